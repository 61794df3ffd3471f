"""PTX: LLVM writes it for each processor, it keeps its promises, and it assembles."""

from __future__ import annotations

import numpy as np
import pytest

from devices import kernels
from tapejit.base.errors import ArgumentError, UnsupportedError
from tapejit.targets.cuda.ptx import (
    PROCESSORS,
    KernelUsage,
    assemble,
    broken_promises,
    linker,
    processor_for,
    to_ptx,
    usage_in,
)

try:
    linker()
    missing = ""
except UnsupportedError as error:
    missing = error.message
needs_wheels = pytest.mark.skipif(
    bool(missing), reason=f"tapejit[cuda-test]: {missing}"
)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_table_has_the_version_that_llvm_writes(processor: str) -> None:
    capability, version = PROCESSORS[processor]
    ptx = to_ptx(kernels.ELEMENTWISE, processor)
    assert f".version {version}\n.target {processor}\n" in ptx
    assert ".entry elementwise(" in ptx
    assert ".maxntid 1024" in ptx
    assert processor == f"sm_{capability[0]}{capability[1]}"
    assert processor_for(capability) == processor


def test_an_unknown_processor_is_an_error_and_not_the_end_of_the_process() -> None:
    with pytest.raises(ArgumentError, match="no GPU is called 'sm_20'") as caught:
        to_ptx(kernels.ELEMENTWISE, "sm_20")
    assert "sm_80" in str(caught.value.help)


def test_an_old_device_is_told_which_ones_are_new_enough() -> None:
    with pytest.raises(UnsupportedError, match=r"7\.0, and code is made from 7\.5 on"):
        processor_for((7, 0))


@pytest.mark.parametrize("name", kernels.ALL)
def test_kernels_keep_their_promises(name: str) -> None:
    assert broken_promises(to_ptx(kernels.ALL[name], "sm_80")) == []


@pytest.mark.parametrize(
    ("instruction", "is_broken"),
    [
        ("add.rn.f32", False),
        ("add.f32", True),
        ("add.rn.ftz.f32", True),
        ("mul.f64", True),
        ("mul.rn.f64", False),
        ("fma.rn.f32", False),
        ("fma.rn.bf16x2", False),
        ("mul.bf16x2", True),
        ("sub.f16", True),
        ("div.full.f32", True),
        ("div.rn.f32", False),
        ("sqrt.approx.f32", True),
        ("ex2.approx.ftz.f32", True),
        ("tanh.approx.f32", True),
        ("max.f32", False),
        ("max.ftz.f32", True),
        ("setp.lt.f32", False),
        ("cvt.rn.f32.f64", False),
        ("ld.global.nc.v4.f32", False),
        ("add.s32", False),
    ],
)
def test_a_broken_promise_is_found(instruction: str, is_broken: bool) -> None:
    text = f"\t@%p1 {instruction} \t%f1, %f2, %f3;\n"
    assert broken_promises(text) == ([instruction] if is_broken else [])


def test_fast_mathematics_is_found_in_what_llvm_writes() -> None:
    text = kernels.ELEMENTWISE.replace(
        "%c = call float @llvm.fma.f32(float %a, float %a, float %b)",
        "%c = fdiv afn contract float %a, %b",
    )
    assert broken_promises(to_ptx(text, "sm_80")) == ["div.approx.f32"]


def test_the_same_text_gives_the_same_ptx() -> None:
    assert len({to_ptx(kernels.BLOCK_SUM, "sm_90") for _ in range(3)}) == 1


def test_the_log_of_the_assembler_is_read() -> None:
    log = """info    : 0 bytes gmem
info    : Compiling entry function 'one' for 'sm_80'
info    : Function properties for one
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
info    : Used 30 registers, used 1 barriers, 512 bytes smem, 400 bytes cmem[0]
info    : Compiling entry function 'two' for 'sm_80'
info    : Used 8 registers, used 0 barriers, 376 bytes cmem[0]
"""
    assert usage_in(log) == {
        "one": KernelUsage(30, 8, 4, 512),
        "two": KernelUsage(8, 0, 0, 0),
    }


@needs_wheels
@pytest.mark.parametrize("processor", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", kernels.ALL)
def test_kernels_assemble_without_spills(name: str, processor: str) -> None:
    made = assemble(to_ptx(kernels.ALL[name], processor), processor)
    assert made.code.startswith(b"\x7fELF")
    (usage,) = made.usage.values()
    assert 0 < usage.registers <= 64
    assert usage.spilled_bytes == 0
    assert usage.stack_bytes == 0
    shared = {"block_sum": 512, "bf16": 768, "f16": 768, "transpose": 128}
    assert usage.shared_bytes == shared.get(name, 0)


@needs_wheels
def test_a_budget_of_registers_is_kept() -> None:
    """A kernel with 64 values at once spills where it may have 32 registers."""
    body = [f"  %p{i} = getelementptr float, ptr %x, i32 {i}" for i in range(64)]
    body += [f"  %v{i} = load volatile float, ptr %p{i}" for i in range(64)]
    body += [f"  store volatile float %v{i}, ptr %p{63 - i}" for i in range(64)]
    text = kernels.kernel("many", "ptr %x", "\n".join(body), threads=128)
    usage = assemble(to_ptx(text, "sm_80"), "sm_80").usage["many"]
    assert usage.registers > 64
    assert usage.spilled_bytes == 0
    tight = text.replace('"128"', '"1024" "nvvm.minctasm"="2"')
    usage = assemble(to_ptx(tight, "sm_80"), "sm_80").usage["many"]
    assert usage.registers <= 32
    assert usage.stack_bytes >= usage.spilled_bytes >= 4 * 32


def test_numbers_of_a_cpu_are_those_of_the_text() -> None:
    """`fma` stays one rounding: the CPU's is checked here, PTX's by its name."""
    ptx = to_ptx(kernels.ELEMENTWISE, "sm_80")
    assert "fma.rn.f32" in ptx
    x = np.float32(1 + 2**-12)
    exact = np.float64(x) * x - 1
    assert np.float32(exact) != x * x - np.float32(1)
