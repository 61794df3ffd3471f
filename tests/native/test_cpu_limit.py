"""Code for an older processor: the same bits, and no processor that is not there.

A process of its own makes code for x86-64-v2, which has 128-bit vectors and no fused
multiplication and addition; LLVM calls functions of the C library instead. Vectors have
as many lanes as ever, so each sum is made in the same order.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import binding

import tapejit as tj
from tapejit.base.config import Config, ConfigError
from tapejit.base.errors import UnsupportedError
from tapejit.runtime.store.key import cache_key
from tapejit.targets.cpu.machine import host, processor
from tapejit.targets.cpu.machine.host import host_machine
from tapejit.targets.cpu.machine.objects import emit

from .compiled import needs_levels

PROGRAM = Path(__file__).parent.parent / "programs" / "native_bits.py"
ROOT = PROGRAM.parent.parent.parent


def start(cpu: str, every: int, cache: Path) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TAPEJIT_NATIVE": "1",
        "TAPEJIT_CPU": cpu,
        "TAPEJIT_CACHE_DIR": str(cache),
    }
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(every)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


@needs_levels
def test_bits_do_not_depend_on_the_processor(full: bool, tmp_path: Path) -> None:
    """Two processes share one cache, and must not find each other's code there."""
    every = 1 if full else 24
    processes = [start(cpu, every, tmp_path) for cpu in ("", "x86-64-v2")]
    here, older = map(printed, processes)
    assert len(here) >= 20
    assert here == older


FMA = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
define void @run(ptr %at) {
  %x = load <16 x float>, ptr %at
  %y = call <16 x float> @llvm.fma.v16f32(
    <16 x float> %x, <16 x float> %x, <16 x float> %x)
  store <16 x float> %y, ptr %at
  ret void
}
"""


@needs_levels
def test_an_older_processor_gets_calls_instead_of_instructions() -> None:
    with tj.config.override(cpu="x86-64-v2"):
        assert emit(FMA).undefined == ("fmaf",)


@needs_levels
def test_native_functions_run_for_an_older_processor() -> None:
    x = np.linspace(-2, 2, 1001, dtype="f4")

    def body(x: Any) -> Any:
        return tj.sum(tj.floor(x * 3) * tj.exp(x))

    with tj.config.override(native=True):
        here = tj.function(body)(x).numpy()
    with tj.config.override(native=True, cpu="x86-64", default_float="float64"):
        assert tj.function(lambda x: body(x) + 0)(x).numpy() == here


@needs_levels
def test_a_level_that_this_processor_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the process would end by an illegal instruction."""
    found = dict(binding.get_host_cpu_features())
    found["avx512f"] = found["fma"] = False
    monkeypatch.setattr(host.binding, "get_host_cpu_features", lambda: found)
    for level, feature in (("x86-64-v3", "fma"), ("x86-64-v4", "fma")):
        with (
            tj.config.override(cpu=level),
            pytest.raises(UnsupportedError, match=f"there is no {feature}"),
        ):
            host_machine()
    with tj.config.override(cpu="x86-64-v2"):
        host_machine()


@needs_levels
def test_a_processor_that_llvm_does_not_know_is_refused() -> None:
    """Else LLVM would end the process."""
    for name in ("x86-64-v9", "nonsense"):
        with (
            tj.config.override(native=True, cache=False, cpu=name),
            pytest.raises(UnsupportedError, match=f"no processor '{name}'"),
        ):
            tj.function(lambda x: tj.tanh(x) + 7)(np.ones(3))
    with tj.config.override(cpu="nehalem"):
        host_machine()


# Products without fused multiply-adds


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor that cannot multiply and add in one instruction."""
    monkeypatch.setattr(processor, "has_fused_multiply_add", lambda: False)
    # No code of the processor that is there, and none kept for it.
    with tj.config.override(native=True, cache=False):
        yield


@pytest.mark.usefixtures("unfused")
@pytest.mark.parametrize("shape", [(50, 40, 30), (2, 3, 4)], ids=["large", "small"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_without_fused_multiply_adds_products_are_numpys(
    dtype: str, shape: tuple[int, int, int]
) -> None:
    m, k, n = shape
    rng = np.random.default_rng(41)
    x, y = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    x, y = x.astype(dtype), y.astype(dtype)
    product = tj.function(lambda x, y: ((x + 1) @ y) * 2 - 1)
    expected = ((tj.asarray(x) + 1) @ tj.asarray(y)) * 2 - 1
    np.testing.assert_array_equal(np.asarray(product(x, y)), np.asarray(expected))
    found = product.explain(x, y)
    assert [(at.op, at.reason) for at in found.on_numpy] == [
        ("matmul", "no fused multiply-add in this processor")
    ]
    assert len(found.kernels) == 2


@pytest.mark.usefixtures("unfused")
def test_without_fused_multiply_adds_convolutions_are_numpys() -> None:
    x, filters = np.ones((2, 9, 9, 3), "f4"), np.ones((3, 3, 3, 8), "f4")
    layer = tj.function(lambda x, filters: tj.nn.relu(tj.nn.conv2d(x, filters) - 20))
    got = np.asarray(layer(x, filters))
    assert got[0, 4, 4, 0] == 7
    found = layer.explain(x, filters)
    assert [(at.op, at.reason) for at in found.on_numpy] == [
        ("conv", "no fused multiply-add in this processor")
    ]


@pytest.mark.usefixtures("unfused")
def test_products_of_integers_need_no_fused_multiply_adds() -> None:
    x = np.arange(12).reshape(3, 4)
    product = tj.function(lambda x: x @ x.T + 7)
    np.testing.assert_array_equal(np.asarray(product(x)), x @ x.T + 7)
    assert product.explain(x).on_numpy == []


@needs_levels
@pytest.mark.parametrize("cpu", ["", "x86-64-v2"])
def test_the_processor_that_is_there_says_whether_it_fuses(cpu: str) -> None:
    has_it = bool(binding.get_host_cpu_features().get("fma"))
    with tj.config.override(cpu=cpu):
        assert processor.has_fused_multiply_add.__wrapped__() == has_it


@pytest.mark.parametrize(
    ("features", "saved", "fuses"),
    [
        (1 << 12 | 1 << 28, 7, True),
        (1 << 28, 7, False),
        (1 << 12 | 1 << 28, 3, False),  # the system does not keep wide registers
    ],
)
def test_a_processor_fuses_if_it_says_so_and_the_system_keeps_its_vectors(
    monkeypatch: pytest.MonkeyPatch, features: int, saved: int, fuses: bool
) -> None:
    told = {"1.0": [0, features, 0], "saved": [saved]}
    monkeypatch.setattr(processor, "answers", lambda: told)
    assert processor.has_fused_multiply_add.__wrapped__() is fuses
    del told["saved"]
    assert not processor.has_fused_multiply_add.__wrapped__()


def test_where_it_cannot_be_asked_llvm_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "answers", lambda: None)
    for fuses in (True, False):
        monkeypatch.setattr(
            binding, "get_host_cpu_features", lambda x=fuses: {"fma": x}
        )
        monkeypatch.setattr(platform, "machine", lambda: "AMD64")
        assert processor.has_fused_multiply_add.__wrapped__() is fuses
        monkeypatch.setattr(platform, "machine", lambda: "arm64")
        assert processor.has_fused_multiply_add.__wrapped__() is True


# Keys


def test_the_processor_is_part_of_the_key() -> None:
    keys = set()
    for cpu in ("", "x86-64-v2", "x86-64-v3"):
        with tj.config.override(cpu=cpu):
            keys.add(cache_key("graph", extras={}))
    assert len(keys) == 3


def test_the_setting_comes_from_the_environment() -> None:
    assert Config.from_environment({"TAPEJIT_CPU": "x86-64-v2"}).cpu == "x86-64-v2"
    with pytest.raises(ConfigError, match="TAPEJIT_CPU"):
        Config.from_environment({"TAPEJIT_CPU": "+avx2"})
