"""Products of matrices through NumPy's own BLAS: the same bits as np.matmul."""

from __future__ import annotations

import ctypes
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import SUM, Truth, assert_agrees
from elsewhere import run_interpreter
from llvmlite import ir

from tapejit.codegen import blas as codegen
from tapejit.codegen.blas import MatmulSpec, Strides
from tapejit.codegen.host import Library
from tapejit.errors import ArgumentError
from tapejit.runtime import blas as runtime
from tapejit.types import TensorType

Array = np.ndarray[Any, Any]
BLAS = runtime.find()
DTYPES = ("float32", "float64", "complex64", "complex128")
POINTER = ir.PointerType()
SIZES = (1, 2, 3, 17)
GUARD = 7  # elements after the result that must stay as they are


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def transposed(x: Array) -> Array:
    """The same matrices, columns contiguous."""
    return np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2)


def padded(x: Array) -> Array:
    """The same matrices inside larger ones: rows farther apart than they are long."""
    rows, columns = x.shape[-2:]
    room = np.full((*x.shape[:-2], rows + 1, columns + 3), np.nan, x.dtype)
    room[..., :rows, :columns] = x
    return room[..., :rows, :columns]


LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": transposed,
    "padded": padded,
    "padded columns": lambda x: np.swapaxes(padded(np.swapaxes(x, -1, -2)), -1, -2),
}


def element_strides(x: Array) -> tuple[int, ...]:
    return tuple(stride // x.itemsize for stride in x.strides)


def spec_of(x: Array, y: Array, **options: Any) -> MatmulSpec:
    types = [TensorType(operand.dtype, operand.shape) for operand in (x, y)]
    strides = [element_strides(operand) for operand in (x, y)]
    bits = 64 if BLAS is None else BLAS.integer_bits
    return codegen.spec_of(types, strides, integer_bits=bits, **options)


def product_module(spec: MatmulSpec) -> Any:
    """`product(table)`, where the table holds a, b, c and the BLAS function."""
    module = ir.Module("product")
    signature = ir.FunctionType(ir.IntType(64), [POINTER])
    function = ir.Function(module, signature, "product")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    a, b, c, address = (
        builder.load(
            builder.gep(
                function.args[0],
                [ir.Constant(ir.IntType(64), at)],
                source_etype=POINTER,
            ),
            typ=POINTER,
        )
        for at in range(4)
    )
    codegen.emit_matmul(builder, address, a, b, c, spec)
    builder.ret(ir.Constant(ir.IntType(64), 0))
    return module


def multiply(
    x: Array, y: Array, spec: MatmulSpec | None = None, blas: Any = BLAS
) -> Array:
    """x @ y by emitted code; nothing but the result is written."""
    assert blas is not None
    spec = spec_of(x, y) if spec is None else spec
    front = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    shape = (*front, x.shape[-2], y.shape[-1])
    size = int(np.prod(shape))
    room = np.full(size + GUARD, np.nan, x.dtype)  # what was there must not matter
    name = codegen.function_name(spec)
    table = (ctypes.c_void_p * 4)(
        *(array.ctypes.data for array in (x, y, room)),
        blas.address(name) if name else None,
    )
    library = Library(product_module(spec))
    run = library.function("product", ctypes.c_int64, ctypes.c_void_p)
    assert run(ctypes.addressof(table)) == 0
    assert np.isnan(room[size:]).all()
    return room[:size].reshape(shape)


def assert_close(got: Array, x: Array, y: Array, where: str) -> None:
    wide = np.clongdouble if x.dtype.kind == "c" else np.longdouble
    value = x.astype(wide) @ y.astype(wide)
    scale = np.abs(x).astype(np.longdouble) @ np.abs(y).astype(np.longdouble)
    assert_agrees(SUM, got, Truth(value, x.shape[-1], scale), where=where)


def assert_product(x: Array, y: Array, where: str = "") -> None:
    """The bits of np.matmul, and near the truth."""
    got = multiply(x, y)
    np.testing.assert_array_equal(bits(got), bits(np.matmul(x, y)), err_msg=where)
    assert_close(got, x, y, where)


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint8)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(29)


# Bits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_every_layout_has_the_bits_of_numpy(
    dtype: str, left: str, right: str, rng: np.random.Generator, full: bool
) -> None:
    shapes = list(itertools.product(SIZES, SIZES, SIZES))
    if not full:
        shapes = [shapes[at] for at in rng.choice(len(shapes), 6, replace=False)]
    for m, k, n in shapes:
        x = LAYOUTS[left](random(rng, (m, k), dtype))
        y = LAYOUTS[right](random(rng, (k, n), dtype))
        assert_product(x, y, f"{dtype} [{m},{k}] {left} @ [{k},{n}] {right}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 1, 9), (1, 9, 1), (9, 1, 1), (1, 6, 7), (6, 7, 1)], ids=str
)
def test_vectors_have_the_bits_of_numpy(
    dtype: str, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    m, k, n = shape
    for left, right in itertools.product(LAYOUTS, LAYOUTS):
        x = LAYOUTS[left](random(rng, (m, k), dtype))
        y = LAYOUTS[right](random(rng, (k, n), dtype))
        assert_product(x, y, f"{left} @ {right}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 131])
def test_matrices_of_several_blocks_have_the_bits_of_numpy(
    dtype: str, size: int, rng: np.random.Generator
) -> None:
    x, y = random(rng, (size, size + 3), dtype), random(rng, (size + 3, 33), dtype)
    assert_product(x, y)
    assert_product(transposed(x), y)
    assert_product(x, transposed(y))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 15, 16, 40])
def test_a_column_times_a_row_has_the_bits_of_numpy(
    dtype: str, columns: int, rng: np.random.Generator
) -> None:
    x, y = random(rng, (5, 1), dtype), random(rng, (1, columns), dtype)
    x[0] = 0  # the sum of one term that is -0 is +0
    y[0, 0] = -y[0, 0]
    strided = np.repeat(y, 2, axis=1)[:, ::2]
    for right in (y, strided):
        assert codegen.routine(spec_of(x, right)) in ("outer", "gemv")
        assert_product(x, right)
        assert_product(right.T, x.T)


def test_a_negative_zero_is_added_to_zero() -> None:
    for k in (1, 2):
        x, y = np.full((1, k), -0.0), np.ones((k, 1))
        got = multiply(x, y)
        assert not np.signbit(got).any()
        assert not np.signbit(x @ y).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(3, 4, 2), (1, 4, 3), (3, 4, 1), (1, 4, 1), (3, 1, 2)]
)
def test_nan_and_infinity_are_where_numpy_has_them(
    dtype: str, m: int, k: int, n: int, rng: np.random.Generator
) -> None:
    x, y = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    x[0, 0], y[0, -1] = np.nan, np.inf
    with np.errstate(all="ignore"):
        expected = x @ y
    np.testing.assert_array_equal(multiply(x, y), expected)


# A matrix times its own transpose


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (40, 7), (2, 4, 3)], ids=str)
def test_a_matrix_times_itself_is_symmetric_as_numpys(
    dtype: str, layout: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    x = LAYOUTS[layout](random(rng, shape, dtype))
    other = np.swapaxes(x, -1, -2)
    spec = spec_of(x, other, is_shared=True)
    assert codegen.routine(spec) == "syrk"

    got = multiply(x, other, spec)

    np.testing.assert_array_equal(bits(got), bits(np.matmul(x, other)))
    np.testing.assert_array_equal(got, np.swapaxes(got, -1, -2))
    assert_close(got, x, other, layout)


def test_sharing_without_a_transpose_is_an_ordinary_product(
    rng: np.random.Generator,
) -> None:
    x = random(rng, (4, 4), "float64")
    spec = spec_of(x, x, is_shared=True)
    assert codegen.routine(spec) == "gemm"
    np.testing.assert_array_equal(multiply(x, x, spec), x @ x)


def test_a_stack_against_one_of_its_matrices_is_an_ordinary_product(
    rng: np.random.Generator,
) -> None:
    x = random(rng, (3, 4, 5), "float64")
    first = x[0].T
    spec = spec_of(x, first, is_shared=True)
    assert codegen.routine(spec) == "gemm"
    assert_close(multiply(x, first, spec), x, first, "stack")


# Stacks

STACKS = [
    ((3,), (3,)),
    ((3,), ()),
    ((), (3,)),
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((2, 1, 4), (3, 1)),
    ((1, 1), (1,)),
]


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(("left", "right"), STACKS)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(3, 4, 5), (1, 4, 5), (3, 4, 1), (1, 4, 1), (3, 1, 5), (3, 0, 2)]
)
def test_stacks_broadcast_as_numpys(
    dtype: str,
    left: tuple[int, ...],
    right: tuple[int, ...],
    m: int,
    k: int,
    n: int,
    rng: np.random.Generator,
) -> None:
    x, y = random(rng, (*left, m, k), dtype), random(rng, (*right, k, n), dtype)
    assert_product(x, y)
    assert_product(transposed(x), padded(y))


def test_stacks_in_any_order_of_axes(rng: np.random.Generator) -> None:
    x = random(rng, (4, 2, 3, 5), "float32").transpose(1, 0, 2, 3)
    y = random(rng, (5, 2, 4, 6), "float32").transpose(1, 2, 0, 3)[::-1]
    assert_product(x, y)


def test_a_stack_that_one_loop_can_run_over_is_one_axis() -> None:
    x, y = np.zeros((2, 3, 4, 5, 6)), np.zeros((2, 3, 4, 6, 7))
    assert spec_of(x, y).batch == ((24, 30, 42, 35),)
    shared = spec_of(x, y[:, :1])  # only the axis in the middle is repeated
    assert [axis.size for axis in shared.batch] == [2, 3, 4]
    assert [axis.b for axis in shared.batch] == [504, 0, 42]


@pytest.mark.parametrize("m", [1, 2, 5])
def test_rows_of_a_stack_with_one_right_side_become_one_matrix(
    m: int, rng: np.random.Generator
) -> None:
    x, y = random(rng, (4, 3, m, 6), "float32"), random(rng, (6, 7), "float32")
    spec = codegen.merge_rows(spec_of(x, y))
    assert (spec.m, spec.batch) == (12 * m, ())
    assert_close(multiply(x, y, spec), x, y, "merged")


def test_rows_that_do_not_follow_each_other_stay_apart(
    rng: np.random.Generator,
) -> None:
    y = random(rng, (6, 7), "float32")
    for x in (
        transposed(random(rng, (4, 3, 6), "float32")),
        padded(random(rng, (4, 3, 6), "float32")),
    ):
        spec = codegen.merge_rows(spec_of(x, y))
        assert spec == spec_of(x, y)
        assert_close(multiply(x, y, spec), x, y, "apart")
    several = spec_of(np.zeros((4, 3, 6)), np.zeros((4, 6, 7)))
    assert codegen.merge_rows(several) == several


# Empty


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((0, 3), (3, 2)),
        ((2, 3), (3, 0)),
        ((2, 0), (0, 3)),
        ((1, 0), (0, 1)),
        ((0, 0), (0, 0)),
        ((0, 2, 3), (3, 2)),
        ((3, 2, 0), (3, 0, 4)),
    ],
)
def test_empty_operands(
    dtype: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    x, y = np.zeros(left, dtype), np.zeros(right, dtype)
    assert codegen.function_name(spec_of(x, y)) is None
    np.testing.assert_array_equal(multiply(x, y), x @ y)


# What is not supported


def unsuitable() -> dict[str, tuple[Array, Array]]:
    matrix = np.zeros((4, 6))
    return {
        "every second column": (np.zeros((4, 12))[:, ::2], np.zeros((6, 3))),
        "rows backwards": (matrix[::-1], np.zeros((6, 3))),
        "repeated row": (np.broadcast_to(np.zeros(6), (4, 6)), np.zeros((6, 3))),
        "overlapping rows": (
            np.lib.stride_tricks.sliding_window_view(np.zeros(9), 6),
            np.zeros((6, 3)),
        ),
        "right strided": (matrix, np.zeros((6, 8))[:, ::2]),
        "repeated vector": (matrix, np.broadcast_to(np.zeros((1, 1)), (6, 1))),
        "vector backwards": (matrix, np.zeros((6, 1))[::-1]),
        "row times repeated": (
            np.zeros((1, 6)),
            np.broadcast_to(np.zeros((1, 1)), (6, 1)),
        ),
        "row times strided": (np.zeros((1, 6)), np.zeros((6, 8))[:, ::2]),
        "float16": (matrix.astype("f2"), np.zeros((6, 3), "f2")),
        "int64": (matrix.astype("i8"), np.zeros((6, 3), "i8")),
    }


@pytest.mark.parametrize("name", unsuitable())
def test_what_blas_cannot_take_is_refused(name: str) -> None:
    x, y = unsuitable()[name]
    spec = spec_of(x, y)
    assert not codegen.is_supported(spec)
    assert codegen.function_name(spec) is None
    with pytest.raises(ArgumentError, match="ask is_supported first"):
        product_module(spec)


def test_sizes_beyond_the_librarys_integers_are_refused() -> None:
    narrow = MatmulSpec(
        np.dtype("f4"), 2, 2, 2**31, Strides(2**31, 1), Strides(2, 1), integer_bits=32
    )
    wide = MatmulSpec(np.dtype("f4"), 2, 2, 2**31, Strides(2**31, 1), Strides(2, 1))
    assert not codegen.is_supported(narrow)
    assert codegen.is_supported(wide)


def test_open_sizes_are_refused() -> None:
    types = TensorType.parse("f32[n,2]"), TensorType.parse("f32[2,2]")
    with pytest.raises(ArgumentError, match="open sizes"):
        codegen.spec_of(types, ((2, 1), (2, 1)))


def test_emitted_code_names_no_symbol() -> None:
    for x, y in (
        (np.zeros((3, 4)), np.zeros((4, 5))),
        (np.zeros((3, 4), "c8"), np.zeros((4, 5), "c8")),
        (np.zeros((3, 0)), np.zeros((0, 5))),
        (np.zeros((3, 1)), np.zeros((1, 50))),
    ):
        assert "declare" not in str(product_module(spec_of(x, y)))


# The library


def test_numpys_blas_is_found() -> None:
    assert BLAS is not None
    assert BLAS.integer_bits in (32, 64)
    assert all(BLAS.address(name) for name in runtime.FUNCTIONS)
    assert len(set(BLAS.addresses.values())) == len(runtime.FUNCTIONS)


def test_the_width_of_integers_is_what_numpy_was_built_with() -> None:
    told = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    if "USE64BITINT" not in told.get("openblas configuration", ""):
        pytest.skip("this NumPy does not tell")
    assert BLAS is not None
    assert BLAS.integer_bits == 64


def test_finding_it_loads_nothing() -> None:
    code = (
        "import sys, numpy\n"
        "def mapped():\n"
        "    lines = open('/proc/self/maps')\n"
        "    return {line.split()[-1] for line in lines if '.so' in line}\n"
        "import ctypes\n"
        "from tapejit.runtime import blas\n"
        "before = mapped()\n"
        "assert blas.find() is not None\n"
        "assert mapped() == before\n"
        "assert not {'scipy', 'numba', 'llvmlite'} & set(sys.modules)\n"
    )
    if sys.platform != "linux":
        pytest.skip("the list of loaded libraries is read as Linux writes it")
    out = run_interpreter("-c", code)
    assert out.returncode == 0, out.stderr


class Lacking:
    """A library without some of its symbols."""

    def __init__(self, library: Any, *lacking: str) -> None:
        self.library = library
        self.lacking = lacking

    def __getitem__(self, symbol: str) -> Any:
        if any(part in symbol for part in self.lacking):
            raise AttributeError(symbol)
        return self.library[symbol]


def numpys_library() -> Any:
    return next(runtime.libraries())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_library_with_narrow_integers_can_be_called(
    dtype: str, rng: np.random.Generator
) -> None:
    """SciPy's, which is not the one that NumPy has."""
    import scipy

    folder = Path(scipy.__file__).parent.parent / "scipy.libs"
    paths = list(folder.glob("*openblas*"))
    narrow = runtime.blas_of(ctypes.CDLL(str(paths[0]))) if paths else None
    if narrow is None or narrow.integer_bits != 32:
        pytest.skip("this SciPy has no library with 32-bit integers")
    for m, k, n in ((3, 4, 5), (1, 4, 5), (3, 4, 1), (1, 4, 1)):
        x, y = random(rng, (2, m, k), dtype), random(rng, (2, k, n), dtype)
        spec = replace(spec_of(x, y), integer_bits=32)
        assert_close(multiply(x, y, spec, narrow), x, y, "narrow")
    x = random(rng, (5, 3), dtype)
    spec = replace(spec_of(x, x.T, is_shared=True), integer_bits=32)
    assert codegen.function_name(spec) == codegen.LETTERS[x.dtype] + "syrk"
    assert_close(multiply(x, x.T, spec, narrow), x, x.T, "narrow")


@pytest.mark.parametrize("name", ["sgemm", "zgemv", "ddot", "cdotu_sub", "cblas"])
def test_a_library_that_lacks_a_function_is_not_used(name: str) -> None:
    assert runtime.blas_of(Lacking(numpys_library(), name)) is None


def test_without_a_blas_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    find = runtime.find.__wrapped__
    monkeypatch.setattr(runtime, "libraries", lambda: iter(()))
    assert find() is None
    monkeypatch.setattr(runtime, "find", find)
    assert runtime.threads() is None
    assert runtime.set_threads(1) is False


def test_without_the_extension_module_nothing_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "numpy._core._multiarray_umath")
    monkeypatch.setattr(sys, "platform", "linux")
    assert list(runtime.libraries()) == []


def test_a_library_that_cannot_count_threads_says_so() -> None:
    blas = runtime.blas_of(Lacking(numpys_library(), "num_threads"))
    assert blas is not None
    assert blas.threads is None
    assert blas.set_threads(1) is False


DOT = ctypes.CFUNCTYPE(
    ctypes.c_double,
    *(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
    *(ctypes.c_void_p, ctypes.c_int64),
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda n: 25.0 if n & 0xFFFFFFFF == 2 else 0.0, 32),
        (lambda n: 25.0 if n == 2 else 0.0, 64),
        (lambda n: 7.0, None),
    ],
    ids=["narrow", "wide", "wrong"],
)
def test_the_trial_tells_the_width_of_integers(answer: Any, expected: Any) -> None:
    call = DOT(lambda n, x, step, y, other: answer(n))
    library = {"cblas_ddot": call}
    assert runtime.integer_bits(library, runtime.Spelling("", "")) == expected


def test_threads_are_set_for_numpy_too() -> None:
    before = runtime.threads()
    if before is None:
        pytest.skip("this BLAS does not count its threads")
    try:
        assert runtime.set_threads(1)
        assert runtime.threads() == 1
        assert runtime.set_threads(2)
        assert runtime.threads() == 2
    finally:
        runtime.set_threads(before)
