"""Numba hosts the modules that LLVM alone hosts: the same functions, the same bits."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
from elsewhere import run_interpreter
from gemm_code import emit_product

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError
from tapejit.targets.cpu import vecmath
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.machine import numba_host
from tapejit.targets.cpu.machine.host import FORMATS, Library, aligned, loop_module
from tapejit.targets.cpu.machine.numba_host import (
    HostError,
    NumbaLibrary,
    compile_module,
)
from tapejit.targets.cpu.matmul.tiling import BatchAxis, Gemm, Strides

Array = np.ndarray[Any, Any]
HOSTS = (Library, NumbaLibrary)


def bits(x: Array) -> Array:
    return x.view(np.uint8)


@pytest.fixture
def fresh_check() -> Iterator[None]:
    """The check runs again, inside the test and after it."""
    numba_host.check_numba.cache_clear()
    yield
    numba_host.check_numba.cache_clear()


# The same bits


def sample(dtype: Any, size: int) -> Array:
    """Numbers of many magnitudes and the special ones."""
    rng = np.random.default_rng(30)
    exponents = rng.uniform(-40, 40, size)
    x = (rng.standard_normal(size) * np.exp2(exponents)).astype(dtype)
    x[:6] = [0.0, -0.0, np.inf, -np.inf, 1.0, np.finfo(dtype).smallest_subnormal]
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["exp", "tanh", "sin", "log1p"])
def test_vector_maths_has_the_same_bits(name: str, dtype: Any) -> None:
    vectors, width = 64, 8
    formula = vecmath.UNARY[name]
    module = loop_module(formula, 1, FORMATS[np.dtype(dtype)], width)
    x = aligned(vectors * width, dtype)
    x[:] = sample(dtype, x.size)
    results = []
    for host in HOSTS:
        out = aligned(x.size, dtype)
        run = host(module).function(
            "run", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
        )
        run(x.ctypes.data, out.ctypes.data, vectors)
        results.append(out)
    one, other = results
    is_nan = np.isnan(one)  # the sign of a nan means nothing
    assert not is_nan.all()
    np.testing.assert_array_equal(is_nan, np.isnan(other))
    np.testing.assert_array_equal(bits(one[~is_nan]), bits(other[~is_nan]))


@pytest.mark.parametrize("shape", [(20, 30, 40), (3, 70, 33), (2, 500, 2)], ids=str)
def test_products_of_matrices_have_the_same_bits(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(31)
    x, y = rng.standard_normal((3, m, k)), rng.standard_normal((3, k, n))
    stack = (BatchAxis(3, m * k, k * n, m * n),)
    rows = (Strides(k, 1), Strides(n, 1), Strides(n, 1))
    results = []
    for host in HOSTS:
        module = ir.LLVMModule("segment")
        made = emit_product(module, Gemm(m, n, k, x.dtype, *rows, stack), "product")
        made.function.linkage = "external"
        out = np.full((3, m, n), np.nan)
        table = (ctypes.c_void_p * 3)(*(array.ctypes.data for array in (x, y, out)))
        run = host(module).function("product", None, ctypes.c_void_p, ctypes.c_int64)
        for task in range(made.tiling.tasks):
            run(ctypes.addressof(table), task)
        results.append(out)
    np.testing.assert_array_equal(bits(results[0]), bits(results[1]))
    np.testing.assert_allclose(results[0], x @ y, rtol=0, atol=1e-12)


# Functions and names

TWO_FUNCTIONS = """
@count = global i64 {start}
define internal i64 @step(i64 %x) {{
  %y = add i64 %x, {step}
  ret i64 %y
}}
define i64 @next() {{
  %old = load i64, ptr @count
  %new = call i64 @step(i64 %old)
  store i64 %new, ptr @count
  ret i64 %new
}}
define double @half(double %x) {{
  %y = fmul double %x, 0.5
  ret double %y
}}
"""


@pytest.mark.parametrize("host", HOSTS)
def test_each_function_of_a_module_can_be_called(host: Any) -> None:
    library = host(TWO_FUNCTIONS.format(start=10, step=1))
    following = library.function("next", ctypes.c_int64)
    half = library.function("half", ctypes.c_double, ctypes.c_double)
    assert [following(), following(), half(3.0)] == [11, 12, 1.5]


@pytest.mark.parametrize("host", HOSTS)
def test_modules_with_the_same_names_stay_apart(host: Any) -> None:
    libraries = [
        host(TWO_FUNCTIONS.format(start=start, step=step))
        for start, step in ((0, 1), (100, 10))
    ]
    one, other = (library.function("next", ctypes.c_int64) for library in libraries)
    assert [one(), other(), one(), other()] == [1, 110, 2, 120]


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_that_the_module_lacks_is_an_error(host: Any) -> None:
    library = host("define i64 @one() { ret i64 1 }")
    for name in ("two", "malloc"):
        with pytest.raises(ArgumentError, match=f"no function '{name}'"):
            library.function(name, ctypes.c_int64)


def test_a_module_without_functions_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="no function that can be called"):
        NumbaLibrary("define internal void @hidden() { ret void }")


def test_operands_that_numba_code_cannot_pass_are_an_error() -> None:
    text = "define <4 x float> @same(<4 x float> %x) { ret <4 x float> %x }"
    with pytest.raises(ArgumentError, match="<4 x float>"):
        NumbaLibrary(text)


def test_a_function_keeps_its_library() -> None:
    one = NumbaLibrary("define i64 @one() { ret i64 1 }").function(
        "one", ctypes.c_int64
    )
    gc.collect()
    assert one() == 1


# Calls from compiled code


def test_compiled_functions_can_call_the_entry() -> None:
    text = """
    define i64 @total(ptr %table, i64 %count) {
      %first = load i64, ptr %table
      %sum = add i64 %first, %count
      ret i64 %sum
    }
    define float @third(float %x, double %y) { ret float %x }
    define void @nothing(ptr %x) {
      store i64 7, ptr %x
      ret void
    }
    """
    cell = np.array([40], np.int64)
    place = cell.ctypes.data
    total = NumbaLibrary(text).enter
    third = NumbaLibrary(text, entry="third").enter
    nothing = NumbaLibrary(text, entry="nothing").enter

    @numba.njit
    def orchestrate(table: int) -> tuple[int, float, None]:
        return total(table, 2), third(np.float32(0.5), 2.0), nothing(table)

    assert orchestrate(place) == (42, 0.5, None)
    assert cell[0] == 7


def test_an_entry_that_the_module_lacks_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="no function 'two'"):
        NumbaLibrary("define i64 @one() { ret i64 1 }", entry="two")


def test_the_text_shows_what_became_of_the_module() -> None:
    library = NumbaLibrary(TWO_FUNCTIONS.format(start=0, step=1))
    assert "@step" not in library.llvm  # Numba's passes have put it into its caller
    assert "define double @half" in library.llvm
    assert "mulsd" in library.asm or "fmul" in library.asm


# The setting


def test_the_setting_chooses_the_host() -> None:
    text = "define i64 @one() { ret i64 1 }"
    assert config.current().host == "llvm"
    assert type(compile_module(text)) is Library
    with config.override(host="numba"):
        assert type(compile_module(text)) is NumbaLibrary


def test_llvm_alone_does_not_load_numba() -> None:
    code = (
        "import sys, ctypes\n"
        "from tapejit.targets.cpu.machine.numba_host import compile_module\n"
        "library = compile_module('define i64 @one() { ret i64 1 }')\n"
        "assert library.function('one', ctypes.c_int64)() == 1\n"
        "assert 'numba' not in sys.modules\n"
    )
    out = run_interpreter("-c", code)
    assert out.returncode == 0, out.stderr


# A Numba that has changed


class Partial:
    """A code library that lacks one part."""

    def __init__(self, lacking: str) -> None:
        for part in numba_host.LIBRARY_PARTS:
            if part != lacking:
                setattr(self, part, None)


class Context:
    """What Numba shows to an intrinsic."""

    def __init__(self, library: Any) -> None:
        self.active_code_library = library


@pytest.mark.parametrize("part", numba_host.LIBRARY_PARTS)
def test_a_code_library_that_lacks_a_part_is_told(part: str) -> None:
    with pytest.raises(HostError, match=f"a code library has no {part}") as caught:
        numba_host.active_library(Context(Partial(part)))
    assert numba.__version__ in str(caught.value)
    assert "leave the setting host at 'llvm'" in str(caught.value)


def test_a_context_without_a_code_library_is_told() -> None:
    with pytest.raises(HostError, match="no active_code_library"):
        numba_host.active_library(object())


def test_a_function_without_a_library_is_told() -> None:
    with pytest.raises(HostError, match="a compiled function has no library"):
        numba_host.library_of(object())


@pytest.mark.usefixtures("fresh_check")
def test_a_numba_that_links_otherwise_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_llvm_module(self: Any, module: Any, options: Any) -> None:
        raise AssertionError("called with an argument too few")

    where = "numba.core.codegen.CPUCodeLibrary.add_llvm_module"
    monkeypatch.setattr(where, add_llvm_module)
    with pytest.raises(HostError, match="options"):
        NumbaLibrary("define i64 @one() { ret i64 1 }")


@pytest.mark.usefixtures("fresh_check")
def test_a_numba_that_gives_wrong_answers_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As it would be if functions were not renamed: the younger answers for both.
    monkeypatch.setattr(
        numba_host, "rename_functions", lambda module: {"trial": "trial"}
    )
    with pytest.raises(HostError, match=r"a trial gave \[42, 42\]"):
        NumbaLibrary("define i64 @trial() { ret i64 1 }")


@pytest.mark.usefixtures("fresh_check")
def test_the_installed_numba_passes_the_check() -> None:
    library = NumbaLibrary("define i64 @one() { ret i64 1 }")
    assert numba_host.check_numba.cache_info().currsize == 1
    assert library.function("one", ctypes.c_int64)() == 1
