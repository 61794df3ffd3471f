"""Object code: what is made can be loaded, what could crash is refused."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
from elsewhere import run_interpreter

from tapejit.targets.cpu.machine.host import F32, F64, aligned, loop_module
from tapejit.targets.cpu.machine.objects import (
    PROVIDED,
    ObjectError,
    emit,
    load_object,
    symbols_of,
)

ONE = "define i64 @one() { ret i64 1 }"
CALLS_NOBODY = """
declare void @nobody_has_this()
define void @calls() {
  call void @nobody_has_this()
  ret void
}
"""
COPIES = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i64 @copies(ptr %to, ptr %from, i64 %count) {
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %count, i1 0)
  ret i64 0
}
"""
REMAINDER = """
define double @remainder(double %x, double %y) {
  %out = frem double %x, %y
  ret double %out
}
"""


def call(address: int, result: object, *operands: object) -> object:
    kinds = [type(operand) for operand in operands]
    return ctypes.CFUNCTYPE(result, *kinds)(address)(*operands)


@pytest.mark.parametrize("format", [F32, F64], ids=["f32", "f64"])
@pytest.mark.parametrize("width", [1, 4, 16])
def test_a_loaded_formula_gives_what_numpy_gives(format: object, width: int) -> None:
    dtype = np.float32 if format is F32 else np.float64
    made = emit(loop_module(lambda b, x, y: b.sqrt(x) * y + 1, 2, format, width))
    loaded = load_object(made.code, made.header)
    x, y, out = (aligned(5 * width, dtype) for _ in range(3))
    x[:] = np.arange(x.size)
    y[:] = np.linspace(-1, 1, y.size)

    places = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, out)]
    call(loaded.functions["run"], None, *places, ctypes.c_int64(5))

    np.testing.assert_array_equal(out, np.sqrt(x) * y + dtype(1))


def test_what_is_made_says_what_it_defines_and_wants() -> None:
    made = emit(COPIES + REMAINDER + "define internal void @hidden() { ret void }")
    assert made.functions == ("copies", "remainder")
    assert made.undefined == ("fmod", "memcpy")
    assert set(made.undefined) <= PROVIDED


def test_functions_of_the_c_library_are_reached() -> None:
    made = emit(COPIES + REMAINDER)
    loaded = load_object(made.code, made.header)
    text = ctypes.create_string_buffer(b"a longer text " * 40)
    copy = ctypes.create_string_buffer(len(text))

    places = [ctypes.c_void_p(ctypes.addressof(each)) for each in (copy, text)]
    size = ctypes.c_int64(len(text))
    call(loaded.functions["copies"], ctypes.c_int64, *places, size)
    numbers = ctypes.c_double(-7.5), ctypes.c_double(2.0)

    assert copy.value == text.value
    assert call(loaded.functions["remainder"], ctypes.c_double, *numbers) == -1.5


def test_code_that_calls_what_nobody_provides_is_not_made() -> None:
    with pytest.raises(ObjectError, match="calls 'nobody_has_this', which nobody prov"):
        emit(CALLS_NOBODY)


def test_an_object_that_calls_what_nobody_provides_is_not_loaded() -> None:
    made = emit(COPIES)
    other = made.code.replace(b"\0memcpy\0", b"\0nobody\0")
    header = {"functions": ["copies"], "undefined": ["nobody"]}
    with pytest.raises(ObjectError, match="calls 'nobody', which nobody provides"):
        load_object(other, header)


def test_a_header_that_names_other_wants_is_refused() -> None:
    made = emit(COPIES)
    for wants in ([], ["memset"], ["memcpy", "memset"]):
        with pytest.raises(ObjectError, match="wants memcpy from outside, its header"):
            load_object(made.code, {"functions": ["copies"], "undefined": wants})


def test_a_function_is_the_objects_own() -> None:
    """`read` is one of the C library: LLVM could find that one."""
    made = emit(ONE)
    with pytest.raises(ObjectError, match="does not define read"):
        load_object(made.code, {"functions": ["read"], "undefined": []})


def test_objects_with_equal_names_do_not_meet() -> None:
    made = [emit(f"define i64 @same() {{ ret i64 {n} }}") for n in range(5)]
    loaded = [load_object(each.code, each.header) for each in made]
    found = [call(each.functions["same"], ctypes.c_int64) for each in loaded]
    assert found == [0, 1, 2, 3, 4]


def test_other_formats_and_damaged_tables_are_errors() -> None:
    code = emit(ONE).code
    for other in (b"", b"MZ" + code[2:], code[:5] + b"\2" + code[6:], code[:40]):
        with pytest.raises(ObjectError):
            symbols_of(other)
    far = bytearray(code)
    struct.pack_into("<Q", far, 0x28, 1 << 60)
    with pytest.raises(ObjectError, match="is damaged"):
        symbols_of(bytes(far))


def test_a_text_that_is_no_module_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="LLVM IR parsing error"):
        emit("nonsense")


def test_loading_needs_neither_numba_nor_scipy() -> None:
    code = (
        "import sys\n"
        "from tapejit.targets.cpu.machine.objects import emit, load_object\n"
        f"made = emit({ONE!r})\n"
        "load_object(made.code, made.header)\n"
        "print(sorted({'numba', 'scipy'} & set(sys.modules)))\n"
    )
    out = run_interpreter("-c", code)
    assert (out.stdout.strip(), out.stderr) == ("[]", "")
