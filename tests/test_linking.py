"""Object code loaded without LLVM: as LLVM would, or not at all."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

import pytest
from elsewhere import needs_fork

from tapejit.targets.cpu.machine import linking, processor
from tapejit.targets.cpu.machine.compile_thread import Job
from tapejit.targets.cpu.machine.linking import link
from tapejit.targets.cpu.machine.objects import (
    ObjectError,
    addresses_outside,
    emit,
    joined,
    load_by_llvm,
    load_object,
)

pytestmark = pytest.mark.skipif(not linking.HERE, reason="LLVM loads code here")

# A constant, a table of addresses, a function called by address, words to write.
PROGRAM = """
@words = internal global [4 x i64] [i64 5, i64 6, i64 7, i64 8], align 64
@zeros = internal global [3 x i64] zeroinitializer, align 64
@table = internal constant [2 x ptr] [ptr @first, ptr @second]

define internal i64 @first(i64 %x) {
  %out = add i64 %x, 100
  ret i64 %out
}
define internal i64 @second(i64 %x) {
  %place = getelementptr [4 x i64], ptr @words, i64 0, i64 %x
  %out = load i64, ptr %place
  ret i64 %out
}
define i64 @chosen(i64 %which, i64 %x) {
  %place = getelementptr [2 x ptr], ptr @table, i64 0, i64 %which
  %function = load ptr, ptr %place
  %out = call i64 %function(i64 %x)
  ret i64 %out
}
define i64 @counted() {
  %place = getelementptr [3 x i64], ptr @zeros, i64 0, i64 1
  %before = load i64, ptr %place
  %after = add i64 %before, 1
  store i64 %after, ptr %place
  ret i64 %after
}
define double @scaled(double %x) {
  %out = fmul double %x, 0x3FF921FB54442D18
  ret double %out
}
define double @remainder(double %x, double %y) {
  %out = frem double %x, %y
  ret double %out
}
define ptr @place() {
  ret ptr @zeros
}
"""


def number(address: int, *operands: int) -> int:
    kinds = [ctypes.c_int64] * (len(operands) + 1)
    return int(ctypes.CFUNCTYPE(*kinds)(address)(*operands))


def real(address: int, *operands: float) -> float:
    kinds = [ctypes.c_double] * (len(operands) + 1)
    return float(ctypes.CFUNCTYPE(*kinds)(address)(*operands))


def permissions(address: int) -> str:
    """Of the memory at an address, as the system shows them."""
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1]
    raise AssertionError("nothing is there")


@pytest.mark.parametrize("loader", ["ours", "LLVM's"])
def test_code_constants_tables_and_words_are_reached(loader: str) -> None:
    made = emit(PROGRAM)
    outside = addresses_outside(made.undefined)
    if loader == "ours":
        loaded = link([made.code], made.functions, outside)
    else:
        loaded = load_by_llvm([made.code], made.functions, outside)
    assert loaded is not None
    assert sorted(loaded.functions) == sorted(made.functions)
    f = loaded.functions
    assert [number(f["chosen"], 0, 1), number(f["chosen"], 1, 3)] == [101, 8]
    assert [number(f["counted"]) for _ in range(3)] == [1, 2, 3]
    assert real(f["scaled"], 2.0) == 2.0 * 1.5707963267948966
    assert real(f["remainder"], -7.5, 2.0) == -1.5


def test_words_of_two_copies_are_two() -> None:
    made = emit(PROGRAM)
    first, second = (load_object(made.code, made.header) for _ in range(2))
    assert number(first.functions["counted"]) == 1
    assert number(first.functions["counted"]) == 2
    assert number(second.functions["counted"]) == 1


def test_nothing_is_writable_and_executable() -> None:
    made = emit(PROGRAM)
    loaded = link([made.code], made.functions, addresses_outside(made.undefined))
    assert loaded is not None
    words = number(loaded.functions["place"])
    assert permissions(loaded.functions["place"]) == "r-xp"
    assert permissions(words) == "rw-p"
    assert words % 64 == 0


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_words_of_its_own() -> None:
    made = emit(PROGRAM)
    loaded = load_object(made.code, made.header)
    assert number(loaded.functions["counted"]) == 1
    pid = os.fork()
    if pid == 0:
        os._exit(number(loaded.functions["counted"]) + 10)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 12
    assert number(loaded.functions["counted"]) == 2


def relocations(code: bytes) -> list[int]:
    """Where the relocations of loaded sections stand in an object."""
    (table,) = struct.unpack_from("<Q", code, 0x28)
    step, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", code, table + at * step)
        for at in range(count)
    ]
    return [
        start + at
        for _, kind, _, _, start, size, _, target, _, _ in sections
        if kind == 4 and sections[target][1] in (1, 8)
        for at in range(0, size, 24)
    ]


def test_what_is_not_simple_is_left_to_llvm() -> None:
    made = emit(PROGRAM)
    outside = addresses_outside(made.undefined)
    place = relocations(made.code)[0]

    other_kind = bytearray(made.code)
    struct.pack_into("<I", other_kind, place + 8, 2)
    too_far = bytearray(made.code)
    struct.pack_into("<Q", too_far, place, 1 << 40)
    no_symbol = bytearray(made.code)
    struct.pack_into("<I", no_symbol, place + 12, 1 << 20)
    other_machine = bytearray(made.code)
    struct.pack_into("<H", other_machine, 0x12, 183)

    for code in (other_kind, too_far, no_symbol, other_machine, made.code[:100]):
        assert link([bytes(code)], made.functions, outside) is None
    assert link([made.code], made.functions, {}) is None, "who has fmod?"
    assert link([made.code], ["nobody"], outside) is None
    threads = emit("@own = thread_local global i64 3\n" + PROGRAM)
    assert link([threads.code], threads.functions, outside) is None


def test_memory_that_must_not_be_executed_is_left_to_llvm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(base: int, size: int) -> None:
        raise PermissionError

    monkeypatch.setattr(linking, "_protect", refuse)
    made = emit(PROGRAM)
    assert link([made.code], made.functions, addresses_outside(made.undefined)) is None
    loaded = load_object(made.code, made.header)
    assert number(loaded.functions["chosen"], 0, 1) == 101
    assert processor.identity.__wrapped__() is None


def test_a_processor_is_the_same_on_each_of_its_cores() -> None:
    allowed = os.sched_getaffinity(0)
    found = set()
    try:
        for core in sorted(allowed)[:8]:
            os.sched_setaffinity(0, {core})
            found.add(processor.identity.__wrapped__())
    finally:
        os.sched_setaffinity(0, allowed)
    assert len(found) == 1


def test_a_processor_tells_what_llvm_sees() -> None:
    """A few features by their bits; all of them are in the words that are kept."""
    from llvmlite import binding

    identity = processor.identity()
    assert identity is not None
    words = dict(part.split(":") for part in identity.split())
    features = binding.get_host_cpu_features()
    assert bool(int(words["1.0"].split(",")[1], 16) >> 20 & 1) == features["sse4.2"]
    if "7.0" in words:
        assert bool(int(words["7.0"].split(",")[1], 16) >> 8 & 1) == features["bmi2"]


ONE = """
declare hidden i64 @doubled(i64 %x)
@half = external hidden constant i8

define i64 @one_more(i64 %x) {
  %twice = call i64 @doubled(i64 %x)
  %offset = load i64, ptr @half
  %out = add i64 %twice, %offset
  ret i64 %out
}
"""
OTHER = """
@half = hidden constant [2 x i64] [i64 1000, i64 5], align 64

define hidden i64 @doubled(i64 %x) {
  %out = add i64 %x, %x
  ret i64 %out
}
"""


@pytest.mark.parametrize("loader", ["ours", "LLVM's"])
def test_objects_call_each_other(loader: str) -> None:
    codes = [Job(text).result() for text in (ONE, OTHER)]
    made = joined(codes)
    assert (made.functions, made.undefined) == (("doubled", "half", "one_more"), ())
    load = link if loader == "ours" else load_by_llvm
    loaded = load(codes, ["one_more"], {})
    assert loaded is not None
    assert number(loaded.functions["one_more"], 4) == 1008
    loaded = load_object(made.code, made.header)
    assert number(loaded.functions["one_more"], 5) == 1010


def test_objects_that_are_not_all_there_are_refused() -> None:
    codes = [Job(text).result() for text in (ONE, OTHER)]
    with pytest.raises(ObjectError, match="calls 'doubled', which nobody provides"):
        joined(codes[:1])
    made = joined(codes)
    with pytest.raises(ObjectError, match="bytes, the header says"):
        load_object(codes[0], made.header)
    header = {**made.header, "sizes": [len(made.code)]}
    with pytest.raises(ObjectError, match="wants doubled, half from outside"):
        load_object(made.code, header)
