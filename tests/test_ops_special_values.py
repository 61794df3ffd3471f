"""Values at the edges: zeros, infinities, NaN, ties, subnormals, largest numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from agreement import (
    EXACT,
    PRODUCT,
    SUM,
    assert_agrees,
    assert_same_kind,
    parts_of,
)
from op_cases import CASES, EAGER_ROWS, OpCase, Row
from op_cases.case import DTYPES, Array, Operand, eager

from tapejit.base.types import (
    DType,
    is_complex,
    is_differentiable,
    is_float,
    is_integer,
)

ELEMENTWISE = [
    case
    for cases in CASES.values()
    for case in cases[:1]
    if case.is_eager and case.operands and case.variants[0].attrs == {}
    if case.op not in ("matmul", "random_fold_in", "bits_to_permutation")
]


def special_floats(dtype: DType, *, tame: bool = False) -> list[float]:
    """Zeros, ones, halves, what is not finite, and unless `tame` the extremes."""
    usual = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.0, 3.0, np.inf, -np.inf, np.nan]
    if tame:
        return usual
    info = ml_dtypes.finfo(dtype) if is_float(dtype) else np.finfo(dtype)
    edges = [info.smallest_subnormal, info.smallest_normal, info.max]
    wide = [float(edge) for edge in edges]
    return [*usual, *wide, *[-edge for edge in wide], 1 + float(info.eps)]


def special_values(dtype: DType, operand: Operand, *, tame: bool = False) -> Array:
    """What an operand may be at worst."""
    if dtype.kind == "b":
        return np.array([False, True])
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        extremes = [limits.min, max(limits.min, -1), 0, 1, 2, limits.max]
        assert isinstance(operand.integers, tuple)
        low, high = operand.integers
        # An operand that is never negative has a reason: an exponent, a shift.
        return np.array(extremes if low < 0 else range(low, high), dtype)
    if not is_complex(dtype):
        return np.array(special_floats(dtype, tame=tame)).astype(dtype)
    # Small ones: the error of a complex power grows with exponent and logarithm.
    parts = [x for x in special_floats(dtype, tame=True) if not 1 < abs(x) < np.inf]
    pairs = itertools.product(parts, parts)
    return np.array([complex(x, y) for x, y in pairs]).astype(dtype)


def all_pairs(case: OpCase, dtype: DType) -> list[Array]:
    """Every combination of special operands, laid out flat."""
    row = case.rows[0]
    values = [
        special_values(own, row.operand(at))
        for at, own in enumerate(row.operand_dtypes(dtype))
    ]
    grids = [grid.reshape(-1) for grid in np.meshgrid(*values, indexing="ij")]
    if grids[0].size > 300_000:  # of five operands: a sample, by a stride of no period
        grids = [grid[::331] for grid in grids]
    if not is_complex(dtype) or case.agreement == EXACT:
        return grids
    # A complex result that is not finite is NumPy's choice: see below.
    is_plain = np.all([np.isfinite(grid) for grid in grids], axis=0)
    return [grid[is_plain] for grid in grids]


def perform(case: OpCase, arrays: Sequence[Array]) -> Array:
    """An eager call in which NumPy would raise where it usually warns."""
    with np.errstate(all="raise"):
        return np.asarray(eager(case.op, arrays, case.rows[0].attrs)._value)


EDGES = [
    pytest.param(case, dtype, id=f"{case.op}-{dtype.name}")
    for case in ELEMENTWISE
    for dtype in case.rows[0].dtypes
]


@pytest.mark.parametrize(("case", "dtype"), EDGES)
def test_special_values_are_those_of_the_reference(case: OpCase, dtype: DType) -> None:
    arrays = all_pairs(case, dtype)
    truth = case.rows[0].reference(arrays)
    got = perform(case, arrays)
    assert_agrees(case.agreement, got, truth, where=f"{case.op} of {dtype}")


@pytest.mark.parametrize(("case", "dtype"), EDGES)
def test_special_scalars_are_those_of_the_reference(case: OpCase, dtype: DType) -> None:
    arrays = all_pairs(case, dtype)
    step = 1 if arrays[0].size < 300 else 37
    chosen = [x[::step] for x in arrays]
    found = [
        perform(case, [np.asarray(x) for x in scalars])
        for scalars in zip(*chosen, strict=True)
    ]
    assert all(one.shape == () for one in found)
    truth = case.rows[0].reference(chosen)
    where = f"{case.op} of {dtype} scalars"
    assert_agrees(case.agreement, np.array(found), truth, where=where)


def numpys_expm1(x: Any) -> Any:
    """NumPy's own multiplies 0 with infinities."""
    is_far = ~np.isfinite(x) | (x.real > 60)
    return np.where(is_far, np.exp(x) - 1, np.expm1(x))


NUMPY = {
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "expm1": numpys_expm1,
}


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize(
    "case",
    [
        case
        for case in ELEMENTWISE
        if case.agreement != EXACT and "complex" in case.takes
    ],
    ids=str,
)
def test_complex_numbers_are_infinite_where_numpy_has_it(
    case: OpCase, dtype: Any
) -> None:
    """Which part of an infinite or undefined result is NaN, no formula tells."""
    values = special_values(np.dtype(dtype), Operand())
    grids = np.meshgrid(*[values] * len(case.operands), indexing="ij")
    arrays = [grid.reshape(-1) for grid in grids]
    with np.errstate(all="ignore"):
        expected = (NUMPY.get(case.op) or getattr(np, case.op))(*arrays)
    got = perform(case, arrays)
    for part, correct in zip(parts_of(got), parts_of(expected), strict=True):
        assert_same_kind(part, correct, case.op)


OTHERS = [row for row in EAGER_ROWS if row.case not in ELEMENTWISE]


@pytest.mark.parametrize("row", OTHERS, ids=str)
def test_special_values_pass_through(row: Row) -> None:
    """Operands are drawn from the special values of their dtype."""
    rng = np.random.default_rng(17)
    is_sum = row.case.agreement in (SUM, PRODUCT)
    for dtype in row.dtypes:
        kinds = (dtype, row.graph(dtype).outputs[0].dtype)
        if is_sum and any(map(is_complex, kinds)):
            continue  # which part of a product is NaN depends on how it is fused
        for _ in range(3):
            arrays = row.sample(rng, dtype)
            for at, x in enumerate(arrays):
                if not row.operand(at).own and is_differentiable(x.dtype):
                    values = special_values(x.dtype, row.operand(at), tame=is_sum)
                    arrays[at] = rng.choice(values, x.shape).astype(x.dtype)
            if row.case.op == "cast":
                arrays = [without_overflow(x) for x in arrays]
            with np.errstate(all="raise"):
                got = row.eager(arrays)
            where = f"{row} in {dtype}"
            assert_agrees(row.case.agreement, got, row.reference(arrays), where=where)


def without_overflow(x: Array) -> Array:
    """What every dtype has: other numbers become what the machine makes of them."""
    wide = x.astype(np.complex128 if is_complex(x.dtype) else np.float64)
    return np.where(np.abs(wide) < 100, np.abs(wide), 1).astype(x.dtype)


# Long reductions

LONG = [
    pytest.param(op, dtype, axis, id=f"{op}-{dtype.name}-{axis}")
    for op in ("sum", "prod", "logsumexp")
    for dtype in DTYPES
    if is_differentiable(dtype) and dtype in CASES[op][0].rows[0].dtypes
    for axis in (0, 1)
]


@pytest.mark.parametrize(("op", "dtype", "axis"), LONG)
def test_long_reductions_keep_their_digits(op: str, dtype: DType, axis: int) -> None:
    case = CASES[op][0]
    rng = np.random.default_rng(19)
    drawn = rng.uniform(0.5, 1.5, (3, 4097))
    same = np.full((3, 4097), 0.1 if op != "prod" else 0.9999)
    for x in (drawn, same, -drawn):
        if op == "prod":
            x = np.exp((np.abs(x) - 1) / 100)  # neither over- nor underflows
        array = (x if axis else x.T).astype(dtype)
        attrs = {"axes": (axis,), "keepdims": False}
        got = np.asarray(eager(op, [array], attrs)._value)
        truth = case.reference(array, **attrs)
        assert_agrees(case.agreement, got, truth, where=f"{op} of {dtype}")


@pytest.mark.parametrize(
    "dtype", [d for d in DTYPES if is_differentiable(d)], ids=lambda d: d.name
)
@pytest.mark.parametrize("inner", [1, 2, 33, 300])
def test_long_products_of_matrices_keep_their_digits(dtype: DType, inner: int) -> None:
    rng = np.random.default_rng(23)
    x, y = (rng.normal(size=shape).astype(dtype) for shape in ((5, inner), (inner, 4)))
    case = CASES["matmul"][0]
    got = np.asarray(eager("matmul", [x, y], {})._value)
    assert_agrees(case.agreement, got, case.reference(x, y), where=f"matmul {dtype}")


@pytest.mark.parametrize(
    "dtype", [d for d in DTYPES if is_differentiable(d)], ids=lambda d: d.name
)
@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize("columns", [1, 2, 3, 17])
def test_products_with_zeros_have_no_minus_sign(
    dtype: DType, rows: int, columns: int
) -> None:
    rng = np.random.default_rng(29)
    case = CASES["matmul"][0]
    for inner in (1, 2, 6, 40):
        x = np.zeros((rows, inner), dtype)
        y = np.zeros((inner, columns), dtype)
        for part in parts_of(x):
            part[...] = np.copysign(0.0, rng.normal(size=x.shape))
        for part in parts_of(y):
            part[...] = rng.normal(size=y.shape)
        for a, b in ((x, y), (y.T, x.T)):
            got = np.asarray(eager("matmul", [a, b], {})._value)
            truth = case.reference(a, b)
            assert_agrees(case.agreement, got, truth, where=f"{dtype}, {inner} terms")
            for part in parts_of(got):
                assert not np.signbit(part).any()


# Casts


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("source", [np.float64, np.float32])
def test_a_cast_rounds_once(name: str, source: Any) -> None:
    """Just beside the middle between two numbers, where rounding twice goes wrong."""
    target = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    if target.itemsize >= np.dtype(source).itemsize:
        return
    eps = float(ml_dtypes.finfo(target).eps)
    tiny = 2.0 ** (-40 if source is np.float64 else -22)
    ties = 1 + eps * np.arange(0.5, 6)
    beside = np.concatenate([ties, ties - tiny, ties + tiny, -ties - tiny])
    x = beside.astype(source)
    got = np.asarray(eager("cast", [x], {"dtype": target})._value)
    case = CASES["cast"][0]
    assert_agrees(EXACT, got, case.reference(x, dtype=target), where=f"to {name}")


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
def test_casts_to_integers_cut_off(kind: Any) -> None:
    x = np.array([0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 127.0, -128.0])
    got = np.asarray(eager("cast", [x], {"dtype": np.dtype(kind)})._value)
    np.testing.assert_array_equal(got, np.trunc(x).astype(kind), strict=True)


def test_the_tables_of_special_values_have_what_they_promise() -> None:
    for dtype in DTYPES:
        values = special_values(dtype, Operand())
        assert values.dtype == dtype
        if is_float(dtype):
            wide = values.astype(np.float64)
            assert np.isnan(wide).sum() == 1
            assert np.isinf(wide).sum() == 2
            assert np.count_nonzero(wide == 0) == 2
