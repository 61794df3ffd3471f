"""Sorting and searching: NumPy's values, ties, NaN, gradients, mapping, refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from op_cases.case import ORDERED, dtypes_of

import tapejit as tj
from tapejit.base.types import DType, is_float
from tapejit.ir import OPS
from tapejit.rewrite.pipeline import optimise

Function = Callable[..., Any]
Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(0)
VECTOR = RNG.permutation(9) + RNG.uniform(-0.2, 0.2, 9)
CUBE = (RNG.permutation(24) + RNG.uniform(-0.2, 0.2, 24)).reshape(2, 3, 4)
SPECIAL = np.array([1.0, np.nan, -np.inf, 0.0, -0.0, np.inf, np.nan, -1.0, 1.0])
DTYPES = dtypes_of(ORDERED)


def sample(dtype: DType) -> Array:
    """Numbers with ties, the extremes and, of floats, what is not finite."""
    if dtype.kind == "b":
        return np.array([True, False, True, False])
    if is_float(dtype):
        return SPECIAL.astype(dtype)
    limits = np.iinfo(dtype)
    return np.array([1, limits.max, 0, limits.min, 1, 0, limits.max], dtype)


def wide(x: Any) -> Array:
    """bfloat16 where NumPy can sort it."""
    array = np.asarray(x)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def gradient(function: Function, x: Any) -> Array:
    found = tj.grad(lambda y: tj.sum(function(y)))(tj.asarray(np.asarray(x, float)))
    assert found is not None
    return np.asarray(found)


# Orders


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ascending_order_is_numpys(dtype: DType) -> None:
    x = sample(dtype)
    got, positions = tj.sort(x), tj.argsort(x)
    assert (got.dtype, positions.dtype) == (dtype, tj.int64)
    np.testing.assert_array_equal(wide(got), np.sort(wide(x)))
    np.testing.assert_array_equal(positions, np.argsort(wide(x), stable=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_descending_order_is_stable_with_nan_last(dtype: DType) -> None:
    x = sample(dtype)
    line = wide(x).tolist()
    numbers = [at for at, value in enumerate(line) if value == value]
    expected = sorted(numbers, key=lambda at: -line[at])
    expected += [at for at, value in enumerate(line) if value != value]
    positions = tj.argsort(x, descending=True)
    assert positions.tolist() == expected
    np.testing.assert_array_equal(wide(tj.sort(x, descending=True)), wide(x)[expected])


def test_signs_of_zero_stay_in_place() -> None:
    x = np.array([0.0, -0.0, 0.0, -1.0])
    for descending, expected in ((False, [-1, 0, -0.0, 0]), (True, [0, -0.0, 0, -1])):
        got = tj.sort(x, descending=descending).numpy()
        np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_sorting_along_an_axis(axis: int) -> None:
    x = tj.asarray(CUBE)
    np.testing.assert_array_equal(tj.sort(x, axis=axis), np.sort(CUBE, axis=axis))
    positions = tj.argsort(x, axis=axis, stable=False)
    np.testing.assert_array_equal(positions, np.argsort(CUBE, axis=axis))
    np.testing.assert_array_equal(np.sort(x, axis), np.sort(CUBE, axis))


def test_without_an_axis_all_is_one_line() -> None:
    for f in (tj.sort, tj.function(lambda x, axis: tj.sort(x, axis=axis))):
        np.testing.assert_array_equal(f(CUBE, None), np.sort(CUBE, axis=None))
    places = tj.argsort(CUBE, axis=None)
    np.testing.assert_array_equal(places, np.argsort(CUBE, axis=None))
    weights = np.array([1.0, 5.0])
    gradient = tj.grad(lambda x: tj.sort(x, None)[:2] @ weights)(CUBE)
    expected = np.zeros(24)
    expected[np.argsort(CUBE, axis=None)[:2]] = 1.0, 5.0
    np.testing.assert_array_equal(gradient, expected.reshape(CUBE.shape))


def test_numpys_functions_flatten_without_an_axis() -> None:
    x = tj.asarray(CUBE)
    np.testing.assert_array_equal(np.sort(x, axis=None), np.sort(CUBE, axis=None))
    np.testing.assert_array_equal(
        np.argsort(x, axis=None, kind="stable"), np.argsort(CUBE, axis=None)
    )
    np.testing.assert_array_equal(np.sort(x, stable=True), np.sort(CUBE, stable=True))


# Gradients


def weighted(function: Function) -> Function:
    """Different weights for each place, so that no two places are alike."""

    def call(x: Any) -> Any:
        y = function(x)
        return y * y * np.arange(1.0, y.size + 1).reshape(y.shape)

    return call


SORTS: dict[str, Function] = {
    "sort": tj.sort,
    "descending": lambda x: tj.sort(x, descending=True),
    "first axis": lambda x: tj.sort(x, axis=0),
    "top_k": lambda x: tj.top_k(x, 2).values,
    "smallest": lambda x: tj.top_k(x, 2, 1, mode="smallest").values,
    "partition": lambda x: tj.partition(x, 1, axis=None),
    "unique_values": lambda x: tj.unique_values(x),
    "np.sort": lambda x: np.sort(x, axis=0),
    "np.partition": lambda x: np.partition(x, 2),
    "np.unique": lambda x: np.unique(x, return_counts=True)[0],
}


@pytest.mark.parametrize("name", SORTS)
def test_derivatives_follow_differences(name: str) -> None:
    is_shaped_by_values = "unique" in name
    tj.testing.check_grads(
        weighted(SORTS[name]),
        [CUBE / 8],
        modes=("reverse",) if is_shaped_by_values else ("reverse", "forward"),
    )


@pytest.mark.parametrize("name", [n for n in SORTS if "unique" not in n])
def test_mapping_is_a_loop(name: str) -> None:
    rows = np.stack([CUBE, CUBE[::-1], -CUBE])
    function = SORTS[name]
    got = tj.vmap(function)(rows)
    np.testing.assert_array_equal(
        got, [function(tj.asarray(row)).numpy() for row in rows]
    )
    slopes = tj.vmap(tj.grad(lambda x: tj.sum(weighted(function)(x))))(rows)
    expected = [gradient(weighted(function), row) for row in rows]
    np.testing.assert_array_equal(slopes, expected)


def test_a_jacobian_is_the_permutation() -> None:
    found = tj.jacobian(tj.sort)(tj.asarray(VECTOR))
    np.testing.assert_array_equal(found, np.eye(9)[np.argsort(VECTOR)])


def test_the_first_of_equal_elements_gets_the_first_cotangent() -> None:
    weights = np.array([1.0, 10.0, 100.0])
    found = gradient(lambda x: tj.sort(x) * weights, [2.0, 2.0, 1.0])
    np.testing.assert_array_equal(found, [10, 100, 1])
    found = gradient(lambda x: tj.sort(x, descending=True) * weights, [2.0, 2.0, 3.0])
    np.testing.assert_array_equal(found, [10, 100, 1])
    np.testing.assert_array_equal(
        gradient(tj.unique_values, [2.0, 2.0, 1.0]), [1, 0, 1]
    )


def test_positions_have_no_gradient_and_integers_none() -> None:
    x = tj.asarray(VECTOR)
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        whole = x.astype("int64")
        found = [
            tj.argsort(x),
            tj.top_k(x, 2).indices,
            tj.searchsorted(x, x),
            tj.sort(whole),
            tj.nonzero(x)[0],
            tj.unique_counts(x).counts,
        ]
    assert [tape.gradient(y, x) for y in found] == [None] * len(found)


def test_variables_are_sorted_and_recorded() -> None:
    v = tj.Variable([3.0, 1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.sum(tj.sort(v) * tj.asarray([1.0, 10.0, 100.0]))
    assert tape.gradient(y, v).tolist() == [100, 1, 10]


# top_k and partition


def test_top_k() -> None:
    found = tj.top_k(CUBE, 3)
    assert isinstance(found, tuple)
    np.testing.assert_array_equal(found.values, -np.sort(-CUBE)[..., :3])
    np.testing.assert_array_equal(found.indices, np.argsort(-CUBE)[..., :3])
    by_axis = tj.top_k(CUBE, 2, 1)
    np.testing.assert_array_equal(by_axis.values, -np.sort(-CUBE, axis=1)[:, :2])
    values, indices = tj.top_k([1, 3, 3, 2], 2)
    assert (values.tolist(), indices.tolist()) == ([3, 3], [1, 2])
    assert tj.top_k(VECTOR, 0).values.shape == (0,)
    values, indices = tj.top_k([np.nan, 1.0, 2.0], 2)
    assert (values.tolist(), indices.tolist()) == ([2, 1], [2, 1])


@pytest.mark.parametrize("kth", [0, 3, -1, [1, 5]])
def test_a_partition_has_its_elements_in_place(kth: Any) -> None:
    expected = np.partition(VECTOR, kth)[kth]
    for got in (tj.partition(VECTOR, kth), np.partition(tj.asarray(VECTOR), kth)):
        np.testing.assert_array_equal(got.numpy()[kth], expected)
    positions = np.argpartition(tj.asarray(VECTOR), kth, kind="introselect")
    np.testing.assert_array_equal(VECTOR[positions.numpy()][kth], expected)


# Searching


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_searches_are_numpys(dtype: DType, side: Any) -> None:
    x = sample(dtype)
    line = tj.sort(x)
    expected = np.searchsorted(wide(line), wide(x), side=side)
    got = tj.searchsorted(line, x, side=side)
    assert got.dtype == tj.int64
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.searchsorted(line, x, side), expected)
    sorter = tj.argsort(x)
    np.testing.assert_array_equal(
        tj.searchsorted(x, x, side=side, sorter=sorter), expected
    )


def test_searches_of_any_shape_and_dtype() -> None:
    line = np.array([1.0, 2.0, 4.0])
    values = np.array([[0, 2], [3, 9]])
    np.testing.assert_array_equal(
        tj.searchsorted(line, values), np.searchsorted(line, values)
    )
    assert tj.searchsorted(line, 2.5).item() == 2
    assert tj.searchsorted([1, 3], 2.5).item() == 1


def test_searches_are_mapped_over_either_operand() -> None:
    line, values = np.sort(CUBE[0]), CUBE[1]
    both = tj.vmap(tj.searchsorted)(line, values)
    expected = [np.searchsorted(*pair) for pair in zip(line, values, strict=True)]
    np.testing.assert_array_equal(both, expected)
    lines = tj.vmap(tj.searchsorted, in_axes=(0, None))(line, values[0])
    np.testing.assert_array_equal(
        lines, [np.searchsorted(row, values[0]) for row in line]
    )
    rows = tj.vmap(tj.searchsorted, in_axes=(None, 0))(line[0], values)
    np.testing.assert_array_equal(rows, np.searchsorted(line[0], values))


@pytest.mark.parametrize("invert", [False, True])
def test_isin_is_numpys(invert: bool) -> None:
    rows: list[tuple[Any, Any]] = [
        (np.array([[1, 2], [3, 4]]), np.array([4, 2, 7])),
        (SPECIAL, np.array([np.nan, 0.0, np.inf])),
        (SPECIAL, np.array([])),
        (np.array([1 + 1j, 2]), np.array([2 + 0j, 1j])),
        (np.array(3), np.array([[3]])),
    ]
    for x, among in rows:
        expected = np.isin(x, among, invert=invert)
        np.testing.assert_array_equal(tj.isin(x, among, invert=invert), expected)
        got = np.isin(tj.asarray(x), among, invert=invert)
        np.testing.assert_array_equal(got, expected)
    mapped = tj.vmap(lambda x: tj.isin(x, [1.0, 2.0]))(np.arange(3.0))
    assert mapped.tolist() == [False, True, True]


# What depends on values


@pytest.mark.parametrize(
    "x",
    [
        np.array([[0.0, 2.0], [np.nan, -0.0]]),
        np.array([True, False, True]),
        np.zeros((0, 3)),
        np.array([0, 1j]),
    ],
)
def test_positions_of_what_is_not_zero(x: Array) -> None:
    expected = np.nonzero(x)
    for found in (tj.nonzero(x), np.nonzero(tj.asarray(x))):
        assert isinstance(found, tuple)
        assert all(at.dtype == tj.int64 for at in found)
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(tj.argwhere(x), np.argwhere(x))
    np.testing.assert_array_equal(np.argwhere(tj.asarray(x)), np.argwhere(x))
    np.testing.assert_array_equal(np.flatnonzero(tj.asarray(x)), np.flatnonzero(x))


def test_a_scalar_has_no_positions() -> None:
    with pytest.raises(tj.ShapeError, match="nonzero: a scalar"):
        tj.nonzero(1.0)
    assert tj.argwhere(1.0).shape == (1, 0)
    assert tj.argwhere(0.0).shape == (0, 0)


UNIQUE = [
    np.array([[3.0, 1.0], [3.0, 2.0]]),
    SPECIAL,
    np.array([5, 5, 5]),
    np.array([], np.float32),
    np.array([True, True]),
    np.array([1 + 1j, 1 - 1j, 1 + 1j]),
    np.array(2.0),
]


@pytest.mark.parametrize("x", UNIQUE, ids=str)
def test_distinct_elements_are_numpys(x: Array) -> None:
    found, expected = tj.unique_all(x), np.unique_all(x)
    assert found._fields == expected._fields
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert all(part.dtype == tj.int64 for part in found[1:])
    counts, inverse = tj.unique_counts(x), tj.unique_inverse(x)
    assert counts._fields == ("values", "counts")
    assert inverse._fields == ("values", "inverse_indices")
    np.testing.assert_array_equal(counts.counts, expected.counts)
    np.testing.assert_array_equal(inverse.inverse_indices, expected.inverse_indices)
    for own, theirs in (
        (tj.unique_values(x), np.sort(np.unique_values(x))),
        (np.unique_values(tj.asarray(x)), found.values),
        (np.unique_all(tj.asarray(x)).counts, expected.counts),
        (np.unique_counts(tj.asarray(x)).counts, expected.counts),
        (np.unique_inverse(tj.asarray(x)).values, found.values),
        (np.unique(tj.asarray(x)), np.unique(x)),
    ):
        np.testing.assert_array_equal(own, theirs)
    given = {"return_index": True, "return_inverse": True, "return_counts": True}
    several = np.unique(tj.asarray(x), **given)  # type: ignore[call-overload]  # a dict
    wanted_parts = np.unique(x, **given)  # type: ignore[call-overload]  # a dict
    assert isinstance(several, tuple)
    for got, wanted in zip(several, wanted_parts, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_distinct_elements_of_bfloat16() -> None:
    x = tj.asarray([2.0, 1.0, 2.0]).astype("bfloat16")
    found = tj.unique_counts(x)
    assert found.values.dtype == x.dtype
    assert found.values.astype("float32").tolist() == [1, 2]
    assert found.counts.tolist() == [1, 2]


@pytest.mark.parametrize(
    "function",
    [
        tj.nonzero,
        tj.argwhere,
        tj.unique_all,
        tj.unique_counts,
        tj.unique_inverse,
        tj.unique_values,
        lambda x: np.unique(x),
    ],
)
def test_what_depends_on_values_is_refused_in_a_trace(function: Function) -> None:
    with pytest.raises(tj.ArgumentTypeError, match="being traced"):
        tj.vmap(function)(CUBE)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tj.sort(1j * VECTOR), tj.DTypeError, "sort: takes bool or"),
        (lambda: tj.argsort(1j * VECTOR), tj.DTypeError, "argsort: takes bool or"),
        (lambda: tj.sort(1.0), tj.AxisError, "sort: axis -1"),
        (lambda: tj.argsort(VECTOR, axis=1), tj.AxisError, "argsort: axis 1"),
        (lambda: tj.top_k(VECTOR, 10), tj.ArgumentError, "top_k: k=10"),
        (lambda: tj.top_k(VECTOR, -1), tj.ArgumentError, "top_k: k=-1"),
        (lambda: tj.top_k(VECTOR, 1, mode="best"), tj.ArgumentError, "top_k: mode"),
        (lambda: tj.partition(VECTOR, 9), tj.OutOfRangeError, "partition: kth=9"),
        (lambda: tj.argpartition(VECTOR, -10), tj.OutOfRangeError, "argpartition"),
        (lambda: tj.searchsorted(CUBE, 1.0), tj.ShapeError, "searchsorted: .*vector"),
        (
            lambda: tj.searchsorted(VECTOR, 1.0, side="middle"),
            tj.ArgumentError,
            "searchsorted: side is",
        ),
        (
            lambda: np.unique(tj.asarray(CUBE), axis=0),
            tj.UnsupportedError,
            r"np\.unique: takes no axis=",
        ),
        (
            lambda: np.sort(tj.asarray(VECTOR), order="f"),
            tj.UnsupportedError,
            r"np\.sort: takes no order=",
        ),
    ],
)
def test_refusals_name_the_function(call: Function, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_nothing_warns_about_special_values() -> None:
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="raise"):
        warnings.simplefilter("always")
        for function in (tj.sort, tj.argsort, tj.unique_all, tj.nonzero):
            function(SPECIAL)
        tj.isin(SPECIAL, SPECIAL)
        tj.searchsorted(np.sort(SPECIAL), SPECIAL)
    assert [str(warning.message) for warning in caught] == []


def test_operands_stay_as_they_are() -> None:
    x = VECTOR.copy()
    for function in (tj.sort, tj.argsort, lambda y: tj.top_k(y, 3)):
        function(x)
        function(tj.asarray(x, copy=False))
    np.testing.assert_array_equal(x, VECTOR)


# Long lines, which are sorted by integers of keys and positions


def long_lines(dtype: DType, ties: bool) -> Array:
    """Lines of 500 elements, with all that is special in the dtype among them."""
    rng = np.random.default_rng(3)
    shape = (3, 500)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        low, high = (-3, 4) if ties else (limits.min, limits.max)
        drawn = rng.integers(max(low, limits.min), high, shape, dtype)
        drawn[:, [7, 8, 400]] = limits.max, limits.min, limits.max
        return np.asarray(drawn)
    drawn = rng.integers(-3, 4, shape) if ties else rng.standard_normal(shape)
    drawn = drawn.astype(np.float64)
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, -0.0, 0.0, np.nan, 5e-324]
    drawn[:, 5:105:10] = special
    return drawn.astype(dtype)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_lines_have_the_stable_order(
    dtype: DType, descending: bool, ties: bool
) -> None:
    x = long_lines(dtype, ties)
    keys = wide(x)
    if descending:
        keys = -keys if is_float(dtype) else np.invert(keys)
    order = np.argsort(keys, axis=-1, kind="stable")
    sorted_bits = np.take_along_axis(x, order, -1).view(f"u{dtype.itemsize}")
    for at, line, expected in ((1, x, order), (0, x.T, order.T)):
        got = tj.argsort(line, axis=at, descending=descending)
        np.testing.assert_array_equal(got, expected)
    got = tj.sort(x, descending=descending).numpy()
    is_number = wide(got) == wide(got)  # one NaN is like another
    np.testing.assert_array_equal(
        got.view(sorted_bits.dtype)[is_number], sorted_bits[is_number]
    )
    attrs = {"axis": 1, "descending": descending}
    for window in ((499, 500), (249, 251), (3, 3), (2, 9)):
        got = OPS["argsort"].eval(x, window=window, **attrs)
        np.testing.assert_array_equal(got, order[:, slice(*window)])
    for count in (0, 1, 37, 250, 500):
        mode = "largest" if descending else "smallest"
        values, positions = tj.top_k(x, count, mode=mode)
        np.testing.assert_array_equal(positions, order[:, :count])
        np.testing.assert_array_equal(
            values.numpy().view(sorted_bits.dtype), sorted_bits[:, :count]
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_statistics_of_long_lines_are_numpys(dtype: str) -> None:
    x = long_lines(np.dtype(dtype), ties=True)
    x[0] = np.where(np.isfinite(x[0]), x[0], 1)
    x[1, :250] = np.where(x[1, :250] > 0, -0.0, 0.0)
    for statistic in (np.median, lambda a, axis: np.quantile(a, 0.3, axis=axis)):
        expected = statistic(x, axis=-1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = statistic(tj.asarray(x), axis=-1)
        np.testing.assert_array_equal(np.asarray(got), expected)


def test_the_number_of_threads_changes_nothing() -> None:
    x = np.random.default_rng(0).integers(0, 50, (400, 700)).astype(np.float32)
    for keys in (x, x.astype(np.float64)):
        with tj.set_num_threads(1):
            alone = tj.argsort(keys), tj.sort(keys), tj.top_k(keys, 30).indices
        with tj.set_num_threads(3):
            shared = tj.argsort(keys), tj.sort(keys), tj.top_k(keys, 30).indices
        for a, b in zip(alone, shared, strict=True):
            np.testing.assert_array_equal(a, b)


# One order for all that have the same keys


def names_in(function: Function, *args: Any) -> list[str]:
    """The operations of what a function runs."""
    compiled = tj.function(function)
    compiled(*args)
    return [node.op.name for node in optimise(compiled.graph(*args)).nodes]


PROGRAMS: dict[str, Function] = {
    "sort": lambda x: tj.sum(tj.sort(x) * np.arange(30.0)),
    "top_k": lambda x: tj.sum(tj.top_k(x, 4).values * np.arange(4.0)),
    "median": lambda x: tj.sum(tj.median(x, axis=0)),
    "both": lambda x: tj.sum(tj.take_along_axis(x, tj.argsort(x)) + tj.sort(x)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_gradient_finds_the_order_once(name: str) -> None:
    x = tj.asarray(np.random.default_rng(0).standard_normal((6, 30)))
    both = tj.value_and_grad(PROGRAMS[name])
    names = names_in(both, x)
    assert not {"sort_by", "unsort_by", "top"} & set(names) - {"sort_by"}
    assert names.count("argsort") == (2 if name == "median" else 1)
    assert "sort_by" not in names
    for got, expected in zip(tj.function(both)(x), both(x), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_values_alone_are_sorted_without_positions() -> None:
    x = tj.asarray(np.random.default_rng(0).standard_normal((6, 30)))
    long = tj.asarray(np.random.default_rng(0).standard_normal((6, 90)))
    assert names_in(lambda x: tj.top_k(x, 70).values, long) == ["sort_by"]
    # The first few are found with their positions.
    assert names_in(lambda x: tj.top_k(x, 4).values, x) == ["argsort", "take_along"]
    assert names_in(lambda x: tj.top_k(x, 4).indices, x) == ["argsort"]
    assert names_in(tj.sort, x) == ["sort_by"]
