"""Kernels in the store: made once, for all processes; what is damaged is made again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elsewhere import run_interpreter

import tapejit as tj
from devices.on_devices import given, numbers
from devices.stored_steps import AssemblingDriver, counts, device_of
from tapejit import ops
from tapejit.base.types import TensorType
from tapejit.ir import Graph
from tapejit.ir.node import literal
from tapejit.runtime.cuda.arrays import upload
from tapejit.runtime.cuda.device_code import device_code
from tapejit.runtime.cuda.emulated import EmulatedDriver
from tapejit.runtime.cuda.kept_kernels import Kernels, packed, unpacked
from tapejit.runtime.cuda.launches import InBuffer, Launch
from tapejit.runtime.store.store import current_store
from tapejit.targets.cuda.target import CUDA

PROGRAM = str(Path(__file__).parent / "stored_steps.py")


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[Any]:
    """A store of this test alone."""
    with tj.config.override(cache_dir=str(tmp_path), cache=True):
        yield current_store()


def graph_with_constant() -> Graph:
    x = given("x", 4, 3)
    table = literal(np.arange(12, dtype=np.float32).reshape(4, 3))
    scaled = ops.exp(x * table)
    return Graph("scaled", (x,), (scaled, ops.sum(scaled, axes=(0,), keepdims=False)))


def asked(driver: Any = None, graph: Graph | None = None) -> tuple[int, int]:
    """How often a device that nobody has used compiles and assembles for a Graph."""
    graph = graph_with_constant() if graph is None else graph
    device, log = device_of(EmulatedDriver() if driver is None else driver)
    code, arrays = device_code(graph, device), numbers(graph)
    found = [x.download() for x in code.run([upload(x, device) for x in arrays])]
    expected = graph.program.run(arrays)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    return counts(log)


def test_a_second_process_makes_nothing(tmp_path: Path) -> None:
    first, second = (
        run_interpreter(PROGRAM, TAPEJIT_CACHE_DIR=str(tmp_path)) for _ in range(2)
    )
    assert not first.returncode, first.stderr
    assert not second.returncode, second.stderr
    made, values, writers = first.stdout.splitlines()
    assert made == "2 2"  # the step, and what puts values back if it fails
    assert writers.split() == ["tapejit.targets.cuda.simt", "tapejit.loops.nests"]
    assert second.stdout.splitlines() == ["0 0", values, ""]


def test_what_a_device_that_nobody_has_used_asks_for(store: Any) -> None:
    assert asked() == (1, 0)
    assert asked() == (0, 0)
    assert (store.counts.hits, store.counts.puts) == (1, 1)
    with tj.config.override(cache=False):
        assert asked() == (1, 0)


def test_a_newer_driver_assembles_again_and_compiles_nothing() -> None:
    assert asked(AssemblingDriver()) == (1, 1)
    newer = AssemblingDriver()
    newer.version = "assembler 2"
    assert asked(newer) == (0, 1)
    assert asked(newer) == (0, 0)
    assert asked(AssemblingDriver()) == (0, 0)


def test_settings_and_capabilities_have_kernels_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert asked() == (1, 0)
    with tj.config.override(cuda_tf32=True):
        assert asked() == (1, 0)
    with tj.config.override(soft_placement=True, device_memory=100):
        assert asked() == (0, 0)  # these change no kernel
    old = EmulatedDriver()
    properties = old.properties(0)._replace(capability=(7, 5))
    monkeypatch.setattr(old, "properties", lambda device: properties)
    assert asked(old) == (1, 0)
    monkeypatch.setattr(CUDA, "numerics", replace(CUDA.numerics, block_threads=128))
    assert asked() == (1, 0)


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """What may become of a file."""
    middle, end = len(data) // 2, len(data) - 4
    for at in (0, 20, data.index(b"{") + 3, middle, end):
        yield f"byte {at}", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    yield "cut", data[:middle]
    yield "empty", b""
    yield "longer", data + b"x"


@pytest.mark.parametrize("which", [0, 1])
def test_what_is_damaged_is_made_again(
    store: Any, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bytes] = []
    monkeypatch.setattr(
        AssemblingDriver,
        "load",
        lambda _, code, device: loaded.append(code) or len(loaded),
    )
    graph = graph_with_constant()

    def made() -> tuple[int, int]:
        device, log = device_of(AssemblingDriver())
        code = device_code(graph, device)
        assert [len(x.arguments) for x in code.launches.launches] == [5]
        assert loaded[-1] == loaded[0]
        return counts(log)

    assert made() == (1, 1)
    paths = [*Path(store.directory).glob("*.object")]
    path = sorted(paths, key=lambda x: b"machine code of" in x.read_bytes())[which]
    good = path.read_bytes()
    for count, (_, damaged) in enumerate(damages(good), 1):
        path.write_bytes(damaged)
        assert made() == ((0, 1) if which else (1, 0))
        assert store.counts.damaged == count
        assert made() == (0, 0)


def test_all_of_the_kernels_is_kept() -> None:
    bf16 = TensorType.parse("bf16[2,2]").dtype
    made = Kernels(
        b"\0code\n",
        (Launch("f", 3, 64, (InBuffer(0), InBuffer(2, 16), np.int64(-5))),),
        128,
        True,
        ((0, 1), (2, 0)),
        (TensorType.parse("i64[3]"), TensorType.parse("bool[]")),
        (np.ones((2, 2), bf16), np.array(np.nan), np.array([True, False])),
    )
    header, data = packed(made)
    found = unpacked(header, data)
    assert found[:-1] == made[:-1]
    for x, y in zip(found.constants, made.constants, strict=True):
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def test_a_failure_of_kept_kernels_is_raised_with_the_users_line() -> None:
    table, rows = given("table", 4, 2), given("rows", 3, dtype="int32")
    graph = Graph("picked", (table, rows), (ops.gather(table, rows, axes=(0,)),))
    arrays = [np.ones((4, 2), np.float32), np.int32([0, 9, 1])]
    for _ in range(2):
        device, _log = device_of(EmulatedDriver())
        code = device_code(graph, device)
        assert code.can_fail
        with pytest.raises(IndexError, match="index 9 is out of range"):
            code.run([upload(x, device) for x in arrays])[0].download()


def test_text_of_kept_kernels_is_emitted_once_more() -> None:
    graph = graph_with_constant()
    first, second = (device_code(graph, device_of(EmulatedDriver())[0]) for _ in "12")
    assert first.seconds
    assert not second.seconds
    assert second.emitted.built.text == first.emitted.built.text


def test_sizes_that_are_open_are_kept_one_by_one() -> None:
    with tj.config.override(cuda="emulated"):
        total = tj.function(lambda x: tj.sum(x * x), reduce_retracing=True)
        for rows in (2, 3, 2):
            x = tj.asarray(np.ones((rows, 2), np.float32), device="cuda:0")
            assert float(total(x)) == 2 * rows
