"""Looking at compiled device code: reports, PTX, readable source, predictions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from devices.stored_steps import counts, device_of
from tapejit.runtime.cuda import devices
from tapejit.runtime.cuda.emulated import EmulatedDriver
from tapejit.targets.cuda.kernel_report import GPUKernelReport
from tapejit.targets.cuda.ptx import KernelUsage, broken_promises
from tapejit.targets.cuda.roofline import (
    BlockUse,
    KernelWork,
    occupancy,
    predict,
    resident_blocks,
)
from tapejit.targets.cuda.tuning import GPUS, MULTIPROCESSORS

GPU = "cuda:0"


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is asked of the device of this test."""
    with tj.config.override(cuda="emulated", native=True):
        own, log = device_of(EmulatedDriver())
        monkeypatch.setitem(devices._DEVICES, ("emulated", 0), own)
        yield log


@pytest.fixture
def no_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)


def rows(x: Any) -> Any:
    return tj.nn.softmax(tj.tanh(x)), tj.sum(x, axis=0)


ROWS = np.linspace(-3, 3, 6 * 40, dtype=np.float32).reshape(6, 40)


def launches_of(f: Any) -> list[Any]:
    """All launches of a call on ROWS."""
    kernels = f.kernels(tj.asarray(ROWS), target="cuda")
    return [launch for kernel in kernels for launch in kernel.launches]


# Where


def test_questions_look_where_the_call_runs() -> None:
    f = tj.function(rows)
    here, there = tj.asarray(ROWS), tj.asarray(ROWS, device=GPU)
    assert f.explain(here).device == "cpu"
    assert f.explain(there).device == "cuda:0, sm_80"
    assert not any(isinstance(x, GPUKernelReport) for x in f.kernels(here))
    assert all(isinstance(x, GPUKernelReport) for x in f.kernels(there))
    assert f.explain(there, target="cpu").device == "cpu"
    assert f.explain(here, target="cuda").device == "cuda, sm_80"
    assert f.explain(here, target="sm_90").device == "sm_90"
    assert "ptx_kernel" in f.llvm(there)
    assert "ptx_kernel" not in f.llvm(here)
    assert ".target sm_90" in f.asm(here, target="sm_90")


def test_variables_and_captured_tensors_say_where_too() -> None:
    with tj.device(GPU):
        w = tj.Variable([1.0, 2.0])
        kept = tj.asarray([3.0, 4.0])
    assert tj.function(lambda: w.assign_add([1.0, 1.0])).explain().device[:6] == GPU
    assert tj.function(lambda x: kept * x).explain(2.0).device[:6] == GPU
    scaled = tj.function(lambda v: v * 2)
    assert scaled.explain(w).device[:6] == GPU
    w._move("cpu")
    assert scaled.explain(w).device == "cpu"


def test_nothing_is_run_and_nothing_compiled(log: list[str]) -> None:
    with tj.device(GPU):
        w = tj.Variable([1.0, 2.0])
    step = tj.function(lambda x: w.assign_sub(x))
    x = tj.asarray([1.0, 1.0], device=GPU)
    before = len(log)
    found = step.explain(x)
    str(found), step.ptx(x), step.source(x)
    assert len(log) == before
    assert found.seconds is None
    assert [v.in_place for v in found.variables] == [True]
    with tj.config.override(cache=False):
        step(x)
    assert set(step.explain(x).seconds or {}) == {"emit", "compile"}
    assert counts(log) == (1, 0)


def test_a_target_that_is_not_known_is_an_error() -> None:
    f = tj.function(rows)
    with pytest.raises(tj.ArgumentError, match="no target is 'gpu'") as caught:
        f.explain(tj.asarray(ROWS), target="gpu")
    assert "known are cpu, cuda, sm_75" in str(caught.value)
    assert "f.explain(tj.asarray(ROWS)" in str(caught.value)
    with pytest.raises(tj.ArgumentError, match="written as 'sm_80', not"):
        f.ptx(tj.asarray(ROWS), capability="8.0")


def test_a_parameter_of_the_same_name_is_the_functions() -> None:
    @tj.function
    def loss(x: Any, target: Any, capability: Any = 1.0) -> Any:
        return tj.sum((x - target) * capability)

    x = tj.asarray([1.0, 2.0])
    assert loss.explain(x, target=x).device == "cpu"
    assert loss.kernels(x, target=tj.asarray(x, device="cpu"))
    there = x.to(GPU)
    assert loss.explain(there, target=there).device == "cuda:0, sm_80"
    assert ".target sm_80" in loss.ptx(x, x, capability=2.0)


# PTX


@pytest.mark.parametrize("capability", ["sm_75", "sm_90", "sm_100"])
def test_ptx_needs_neither_a_gpu_nor_its_packages(
    no_linker: None, capability: str
) -> None:
    f = tj.function(rows)
    text = f.ptx(tj.asarray(ROWS), capability=capability)
    assert re.search(rf"^\.target {capability}$", text, re.MULTILINE)
    names = [
        x.name for k in f.kernels(tj.asarray(ROWS), target="cuda") for x in k.launches
    ]
    assert re.findall(r"\.entry (\w+)\(", text) == names
    assert not broken_promises(text)
    assert f.asm(tj.asarray(ROWS), target=capability) == text


def test_each_kernel_has_its_own_ptx() -> None:
    f = tj.function(rows)
    for kernel in f.kernels(tj.asarray(ROWS), target="cuda"):
        assert isinstance(kernel, GPUKernelReport)
        names = [x.name for x in kernel.launches]
        text = kernel.ptx
        assert re.findall(r"\.entry (\w+)\(", text) == names
        assert text.count("\n}\n") == len(names)


# Source


def test_source_for_threads_runs_and_gives_the_same() -> None:
    w = np.cos(np.arange(40 * 64, dtype=np.float32)).reshape(40, 64)

    @tj.function
    def model(x: Any) -> Any:
        h = tj.nn.relu(x @ w)
        return tj.nn.softmax(h), tj.argmax(h, axis=1), tj.cumulative_sum(h, axis=0)

    text = model.source(tj.asarray(ROWS), target="cuda")
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    found = namespace["run"](ROWS, *[w][: text.count("def run(x, ")])
    for x, y in zip(found, model(tj.asarray(ROWS)), strict=True):
        np.testing.assert_allclose(x, np.asarray(y), rtol=1e-5, atol=1e-6)
    for launch in launches_of(model):
        assert f"    # {launch}\n" in text
    rows_of = tj.function(rows).source(tj.asarray(ROWS), target="cuda")
    assert "# by the 32 threads of the warp" in rows_of


def test_source_says_whose_memory_is_whose() -> None:
    text = tj.function(rows).source(tj.asarray(ROWS), target="cuda")
    assert re.search(r"kept_\w+ = np.empty.*# of each warp, in shared memory", text)


# Reports


def test_a_report_counts_launches_bytes_and_work(no_linker: None) -> None:
    square = tj.function(lambda x: x * x)
    (kernel,) = square.kernels(tj.ones(100_000), target="cuda")
    assert isinstance(kernel, GPUKernelReport)
    assert (kernel.blocks, kernel.threads, kernel.shared_bytes) == (98, 256, 0)
    assert (kernel.reads, kernel.writes, kernel.flops) == (400_000, 400_000, 100_000)
    assert (kernel.registers, kernel.spilled_bytes) == (None, None)
    assert kernel.occupancy == 0.5  # 64 registers are promised
    assert "64 registers at most, occupancy 0.50" in str(kernel)
    text = str(square.explain(tj.ones(100_000), target="cuda"))
    assert "registers  unknown: machine code for GPUs cannot be made" in text
    assert "pip install 'tapejit[cuda-test]'" in text


def test_a_report_has_registers_where_nvjitlink_is() -> None:
    pytest.importorskip("cuda.core")
    square = tj.function(lambda x: x * x)
    (kernel,) = square.kernels(tj.ones(100_000), target="cuda")
    assert isinstance(kernel, GPUKernelReport)
    assert 8 <= (kernel.registers or 0) <= 32
    assert kernel.spilled_bytes == 0
    assert kernel.occupancy == 1
    assert "spills nothing, occupancy 1.00" in str(kernel)
    assert "registers  unknown" not in str(square.explain(tj.ones(9), target="cuda"))


def test_a_driver_tells_registers_where_nvjitlink_is_missing(
    no_linker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(
        driver: Any, ptx: str, kernels: list[str], device: int
    ) -> dict[str, KernelUsage]:
        assert f".entry {kernels[0]}(" in ptx
        return dict.fromkeys(kernels, KernelUsage(40, 8, 8, 0))

    monkeypatch.setattr(EmulatedDriver, "usage", usage)
    square = tj.function(lambda x: x * x)
    (kernel,) = square.kernels(tj.ones(100_000, device=GPU))
    assert "40 registers, spills 8 bytes, occupancy 0.75" in str(kernel)
    (other,) = square.kernels(tj.ones(100_000, device=GPU), target="sm_90")
    assert "registers at most" in str(other)


def test_explain_tells_what_the_host_does_and_waits_for() -> None:
    @tj.function
    def values(x: Any) -> Any:
        found, _ = tj.linalg.eigh(x @ x.T)
        if tj.sum(found) > 0:
            return tj.exp(found)
        return found

    x = tj.asarray(np.eye(4, dtype=np.float32), device=GPU)
    with pytest.raises(tj.UnsupportedError, match="a GPU cannot do this") as caught:
        values.explain(x)
    assert "tj.linalg.eigh(x @ x.T)" in str(caught.value)
    assert "soft_placement=True" in str(caught.value)
    with tj.config.override(soft_placement=True):
        found = values.explain(x)
        assert [node.op for node in found.on_numpy] == ["eigh"]
        assert [(y.op, y.nbytes) for y in found.reads_back][:2] == [
            ("eigh", 64),
            ("guard", 1),
        ]
        text = str(found)
        assert re.search(r"NumPy +eigh at test_inside_devices.py:\d+", text)
        assert re.search(r"waits +eigh at .*: reads 64 bytes back", text)
        assert "// NumPy performs eigh" in values.ptx(x)
        assert [k.name for k in found.kernels] == [
            f"kernel_{at}" for at in range(len(found.kernels))
        ]


def test_kernels_are_for_the_sizes_of_the_call() -> None:
    f = tj.function(lambda x: x * x, reduce_retracing=True)
    for size in (2, 3, 5):
        f(tj.ones(size))
    for size in (7, 70_000):
        (kernel,) = f.kernels(tj.ones(size), target="cuda")
        assert kernel.reads == 4 * size
    spec = tj.TensorSpec([None], tj.float32)
    open_one = tj.function(lambda x: x * x, input_signature=[spec])
    open_one(tj.ones(3))
    with pytest.raises(tj.UnsupportedError, match="leaves sizes open") as caught:
        open_one.kernels(target="cuda")
    assert "give the arguments of a call" in str(caught.value)


def test_what_is_compiled_is_reported_and_dumped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def doubled(x: Any) -> Any:
        return x + x

    x = tj.ones(3, device=GPU)
    with tj.config.override(debug=1, dump=str(tmp_path), cache_dir=str(tmp_path / "c")):
        tj.function(doubled)(x)
    (line,) = [y for y in capsys.readouterr().err.splitlines() if "compiled" in y]
    assert re.match(
        r"tapejit: compiled doubled, 1 kernel on cuda:0: in .* \(emit .*, comp", line
    )
    endings = ["graph.txt", "ll", "optimised.txt", "plan.txt", "ptx", "py"]
    files = sorted(tmp_path.glob("doubled-*.cuda_0.*"))
    assert [y.name.partition(".cuda_0.")[2] for y in files] == endings
    assert ".target sm_80" in files[4].read_text()


# Predictions


@pytest.mark.parametrize(
    ("capability", "use", "blocks"),
    [
        ((8, 0), BlockUse(1, 256, 32, 0), 8),
        ((8, 0), BlockUse(1, 256, 33, 0), 6),
        ((8, 0), BlockUse(1, 128, 128, 0), 4),
        ((8, 0), BlockUse(1, 32, 16, 0), 32),
        ((8, 0), BlockUse(1, 256, 32, 40 << 10), 4),
        ((9, 0), BlockUse(1, 256, 32, 40 << 10), 5),
        ((8, 6), BlockUse(1, 1024, 32, 0), 1),
        ((7, 5), BlockUse(1, 256, 32, 32 << 10), 2),
    ],
)
def test_occupancy_is_what_the_makers_table_says(
    capability: tuple[int, int], use: BlockUse, blocks: int
) -> None:
    assert resident_blocks(use, capability) == blocks
    room = MULTIPROCESSORS[capability].threads
    assert occupancy(use, capability) == blocks * use.threads / room


def test_predictions_follow_what_takes_the_time() -> None:
    full = BlockUse(1024, 256, 32, 0)
    for gpu in GPUS:
        memory = predict(KernelWork((full,), 10**9, 32, 1e6), gpu)
        assert memory.bound == "memory"
        assert memory.seconds == pytest.approx(1e9 / gpu.bytes + gpu.launch)
        product = KernelWork((full,), 10**6, 32, 0.0, 1e12, "mma")
        assert predict(product, gpu).bound == "arithmetic"
        slow = predict(product._replace(core="f32"), gpu)
        ratio = gpu.flops["mma"] / gpu.flops["f32"]
        assert slow.seconds / predict(product, gpu).seconds == pytest.approx(
            ratio, 0.01
        )
        one = BlockUse(1, 32, 32, 0)
        few = KernelWork((one,), 10**9, 32, 1e6)
        assert predict(few, gpu).seconds > 100 * memory.seconds
        twice = predict(KernelWork((full, one), 100, 4, 1.0), gpu)
        assert twice.bound == "launching"
        assert twice.seconds > 2 * gpu.launch


def test_a_step_is_predicted_by_its_kernels() -> None:
    f = tj.function(rows)
    found = f.explain(tj.asarray(ROWS), target="cuda")
    kernels = [x for x in found.kernels if isinstance(x, GPUKernelReport)]
    total = sum(x.predicted["A100"].seconds for x in kernels)
    assert len(kernels) == len(found.kernels)
    assert found.predicted["A100"] == pytest.approx(total)
    assert "at best: a model says so, no GPU has confirmed it" in re.sub(
        r"\s+", " ", str(found)
    )
    assert not f.explain(tj.asarray(ROWS)).predicted


@pytest.mark.parametrize(
    ("dtype", "tf32", "core"),
    [
        ("float32", False, "f32"),
        ("float64", False, "f64"),
        ("bfloat16", False, "mma"),
        ("float32", True, "tf32"),
    ],
)
def test_products_are_predicted_for_what_multiplies(
    dtype: str, tf32: bool, core: str
) -> None:
    x = tj.ones((128, 128), dtype=dtype)
    with tj.config.override(cuda_tf32=tf32):
        (kernel,) = tj.function(lambda x: x @ x).kernels(x, target="cuda")
    assert isinstance(kernel, GPUKernelReport)
    assert kernel.work.core == core
    assert kernel.work.flops == 2 * 128**3
