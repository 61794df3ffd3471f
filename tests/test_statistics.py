"""Statistics and scans: NumPy's values, gradients to second order, mapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import assert_agrees
from op_cases import CASES
from op_cases.case import DTYPES, eager

import tapejit as tj
from tapejit.base.types import DType, is_differentiable

Function = Callable[..., Any]
Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(0)
VECTOR = RNG.permutation(7) + RNG.uniform(-0.2, 0.2, 7)
MATRIX = (RNG.permutation(12) + RNG.uniform(-0.2, 0.2, 12)).reshape(3, 4)
CUBE = (RNG.permutation(24) + RNG.uniform(-0.2, 0.2, 24)).reshape(2, 3, 4)
HOLES = np.where(CUBE > 18, np.nan, CUBE)
COMPLEX = MATRIX + 1j * MATRIX[::-1]
WEIGHTS = np.array([0.5, 2.0, 1.0, 0.25])

# tapejit's call, NumPy's call, the operand
SAME: dict[str, tuple[Function, Function, Array]] = {
    "var": (tj.var, np.var, CUBE),
    "var axis": (lambda x: tj.var(x, axis=1), lambda x: np.var(x, 1), CUBE),
    "var axes kept": (
        lambda x: tj.var(x, axis=(0, 2), keepdims=True, correction=1),
        lambda x: np.var(x, (0, 2), keepdims=True, ddof=1),
        CUBE,
    ),
    "var of one": (lambda x: tj.var(x[:1], correction=1), lambda x: np.nan, VECTOR),
    "var complex": (tj.var, np.var, COMPLEX),
    "std": (lambda x: tj.std(x, axis=-1), lambda x: np.std(x, -1), CUBE),
    "std corrected": (
        lambda x: tj.std(x, correction=1.5),
        lambda x: np.std(x, ddof=1.5),
        CUBE,
    ),
    "std complex": (lambda x: tj.std(x, axis=0), lambda x: np.std(x, 0), COMPLEX),
    "ptp": (lambda x: tj.ptp(x, axis=1), lambda x: np.ptp(x, 1), MATRIX),
    "average": (tj.average, np.average, MATRIX),
    "average weighted": (
        lambda x: tj.average(x, axis=1, weights=WEIGHTS),
        lambda x: np.average(x, axis=1, weights=WEIGHTS),
        MATRIX,
    ),
    "average full weights": (
        lambda x: tj.average(x, weights=MATRIX + 1, axis=0, keepdims=True),
        lambda x: np.average(x, weights=MATRIX + 1, axis=0, keepdims=True),
        MATRIX,
    ),
    "nansum": (lambda x: tj.nansum(x, axis=1), lambda x: np.nansum(x, 1), HOLES),
    "nanmean": (lambda x: tj.nanmean(x, axis=1), lambda x: np.nanmean(x, 1), HOLES),
    "nanmax": (lambda x: tj.nanmax(x, axis=1), lambda x: np.nanmax(x, 1), HOLES),
    "nanmin": (lambda x: tj.nanmin(x, axis=1), lambda x: np.nanmin(x, 1), HOLES),
    "median odd": (lambda x: tj.median(x, axis=1), lambda x: np.median(x, 1), CUBE),
    "median even": (tj.median, np.median, CUBE),
    "median kept": (
        lambda x: tj.median(x, axis=(0, 2), keepdims=True),
        lambda x: np.median(x, (0, 2), keepdims=True),
        CUBE,
    ),
    "median of NaN": (lambda x: tj.median(x, axis=1), lambda x: np.median(x, 1), HOLES),
    "quantile": (lambda x: tj.quantile(x, 0.3), lambda x: np.quantile(x, 0.3), CUBE),
    "quantiles": (
        lambda x: tj.quantile(x, [[0, 0.1, 0.5], [0.77, 0.9, 1]], axis=(0, 2)),
        lambda x: np.quantile(x, [[0, 0.1, 0.5], [0.77, 0.9, 1]], axis=(0, 2)),
        CUBE,
    ),
    "quantiles kept": (
        lambda x: tj.quantile(x, [0.25, 0.8], axis=1, keepdims=True),
        lambda x: np.quantile(x, [0.25, 0.8], axis=1, keepdims=True),
        CUBE,
    ),
    "quantile of NaN": (
        lambda x: tj.quantile(x, 0.5, axis=1),
        lambda x: np.quantile(x, 0.5, axis=1),
        HOLES,
    ),
    "percentile": (
        lambda x: tj.percentile(x, [5, 95], axis=0),
        lambda x: np.percentile(x, [5, 95], axis=0),
        CUBE,
    ),
    "cumulative_sum": (tj.cumulative_sum, np.cumsum, VECTOR),
    "cumulative_sum initial": (
        lambda x: tj.cumulative_sum(x, axis=1, include_initial=True),
        lambda x: np.cumulative_sum(x, axis=1, include_initial=True),
        CUBE,
    ),
    "cumulative_prod": (tj.cumulative_prod, np.cumprod, VECTOR),
    "cumulative_prod initial": (
        lambda x: tj.cumulative_prod(x, axis=-1, include_initial=True),
        lambda x: np.cumulative_prod(x, axis=-1, include_initial=True),
        CUBE,
    ),
    "logcumsumexp": (
        lambda x: tj.logcumsumexp(x, axis=1),
        lambda x: np.logaddexp.accumulate(x, axis=1),
        CUBE,
    ),
}
DIFFERENTIABLE = [name for name, row in SAME.items() if row[2] is not HOLES]


@pytest.mark.parametrize("name", SAME)
def test_the_value_is_numpys(name: str) -> None:
    own, theirs, array = SAME[name]
    with np.errstate(all="raise"):
        got = own(array)
    assert isinstance(got, tj.Tensor)
    expected = np.asarray(theirs(array))
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_follow_differences(name: str) -> None:
    own, _, array = SAME[name]
    if name != "var of one":  # it is NaN
        tj.testing.check_grads(own, [array / 8])


@pytest.mark.parametrize("name", SAME)
def test_mapping_is_a_loop(name: str) -> None:
    own, _, array = SAME[name]
    rows = np.stack([array, array[::-1] * 0.5, array - 3])
    got = tj.vmap(own)(rows)
    expected = np.stack([own(row).numpy() for row in rows])
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", SAME)
def test_a_variable_is_as_good_as_an_array(name: str) -> None:
    own, _, array = SAME[name]
    np.testing.assert_array_equal(own(tj.Variable(array)), own(array))


def gradient(function: Function, x: Any) -> Array:
    found = tj.grad(lambda y: tj.sum(function(y)))(tj.asarray(np.asarray(x, float)))
    assert found is not None
    return np.asarray(found)


# NumPy's functions of tensors

NUMPY: dict[str, Function] = {
    "var": lambda x: np.var(x, ddof=1),
    "var typed": lambda x: np.var(x, axis=0, dtype="float64", correction=1),
    "std": lambda x: np.std(x, axis=1, keepdims=True),
    "average": lambda x: np.average(x, 1, WEIGHTS),
    "nansum": lambda x: np.nansum(x, axis=0),
    "nanmean": lambda x: np.nanmean(x, axis=0, dtype="float64"),
    "nanmax": lambda x: np.nanmax(x, 0),
    "nanmin": lambda x: np.nanmin(x, 0),
    "median": lambda x: np.median(x, axis=0, overwrite_input=False),
    "quantile": lambda x: np.quantile(x, 0.3, axis=0, method="linear"),
    "percentile": lambda x: np.percentile(x, 30, 1),
    "cumsum flat": lambda x: np.cumsum(x),
    "cumsum": lambda x: np.cumsum(x, axis=1),
    "cumprod flat": lambda x: np.cumprod(x / 4),
    "cumprod": lambda x: np.cumprod(x, 0),
    "cumulative_sum": lambda x: np.cumulative_sum(x, axis=0, include_initial=True),
    "cumulative_prod": lambda x: np.cumulative_prod(x, axis=0),
    "ptp": lambda x: np.ptp(x, axis=0),
}


@pytest.mark.parametrize("call", NUMPY.values(), ids=NUMPY)
def test_numpys_function_of_a_tensor_is_recorded(call: Function) -> None:
    np.testing.assert_allclose(call(tj.asarray(MATRIX)), call(MATRIX), rtol=1e-13)
    assert np.any(gradient(call, MATRIX))


def test_averages_may_return_the_sums_of_their_weights() -> None:
    for weights in (None, WEIGHTS):
        found = np.average(tj.asarray(MATRIX), 1, weights, returned=True)
        expected = np.average(MATRIX, 1, weights, returned=True)
        np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_ddof_and_correction_are_not_given_both() -> None:
    with pytest.raises(tj.ArgumentError, match="mean the same"):
        np.var(tj.asarray(VECTOR), ddof=1, correction=1)


# Spread where there is none


@pytest.mark.parametrize("function", [tj.var, tj.std])
@pytest.mark.parametrize("value", [0.0, 3.0, -0.5])
def test_what_does_not_vary_has_gradient_zero(function: Function, value: float) -> None:
    x = np.full((2, 3), value)
    np.testing.assert_array_equal(gradient(function, x), np.zeros((2, 3)))
    by_row = gradient(lambda y: function(y, axis=1), x)
    np.testing.assert_array_equal(by_row, np.zeros((2, 3)))


def test_std_is_differentiable_beside_a_constant_row() -> None:
    x = np.array([[2.0, 2.0], [1.0, 3.0]])
    found = gradient(lambda y: tj.std(y, axis=1), x)
    np.testing.assert_allclose(found, [[0, 0], [-0.5, 0.5]])


def test_a_variance_is_not_lost_beside_a_large_mean() -> None:
    x = np.array([1e8, 1e8 + 1, 1e8 + 2])
    np.testing.assert_allclose(tj.var(x).numpy(), 2 / 3, rtol=1e-12)


@pytest.mark.parametrize("function", [tj.var, tj.std, tj.median, tj.nanmean])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(function: Function, dtype: str) -> None:
    x = tj.asarray(MATRIX * 100).astype(dtype)
    exact = function(x.astype("float64"))
    got = function(x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got.numpy(), exact.astype(dtype).numpy())


def test_integers_become_the_default_float() -> None:
    x = tj.asarray([1, 2, 4])
    for function in (tj.var, tj.std, tj.median, tj.nanmean, tj.average):
        assert function(x).dtype == tj.float32
    assert tj.quantile(x, 0.5).dtype == tj.float32
    assert tj.logcumsumexp(x).dtype == tj.float32


def test_of_nothing() -> None:
    empty = np.zeros((0, 3))
    for function in (tj.var, tj.std, tj.median, tj.nanmean):
        np.testing.assert_array_equal(function(empty, axis=0), [np.nan] * 3)
        assert function(empty, axis=1).shape == (0,)
    assert tj.quantile(empty, [0.1, 0.2], axis=1).shape == (2, 0)
    assert np.isnan(tj.quantile(empty, 0.5).numpy())
    np.testing.assert_array_equal(tj.nansum(empty, axis=0), [0.0] * 3)
    with pytest.raises(tj.ShapeError, match=r"nanmax: .*empty"):
        tj.nanmax(empty)


# NaN left out


def test_slices_of_nothing_but_nan() -> None:
    x = np.array([[np.nan, np.nan], [1.0, np.nan]])
    for function in (tj.nanmax, tj.nanmin, tj.nanmean):
        np.testing.assert_array_equal(function(x, axis=1), [np.nan, 1])
    np.testing.assert_array_equal(tj.nansum(x, axis=1), [0, 1])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (tj.nansum, [1, 0, 1, 1]),
        (tj.nanmean, [1 / 3, 0, 1 / 3, 1 / 3]),
        (tj.nanmax, [0, 0, 0.5, 0.5]),
        (tj.nanmin, [1, 0, 0, 0]),
    ],
)
def test_no_gradient_reaches_nan(function: Function, expected: list[float]) -> None:
    found = gradient(function, [1.0, np.nan, 3.0, 3.0])
    np.testing.assert_allclose(found, expected)


def test_integers_have_no_nan() -> None:
    x = tj.asarray([3, 1])
    assert (tj.nansum(x).item(), tj.nanmax(x).item(), tj.nanmin(x).item()) == (4, 3, 1)


# Quantiles


def test_quantiles_are_differentiable_in_q() -> None:
    tj.testing.check_grads(
        lambda x, q: tj.quantile(x, q, axis=0), [MATRIX / 8, np.array([0.2, 0.7])]
    )


def test_quantiles_of_traced_q() -> None:
    q = np.array([0.1, 0.5, 1.0])
    got = tj.vmap(lambda one: tj.quantile(VECTOR, one))(q)
    np.testing.assert_allclose(got, np.quantile(VECTOR, q), rtol=1e-14)


def test_positions_of_long_lines_are_found_in_double() -> None:
    x = np.arange(100_001, dtype=np.float32)
    expected = np.quantile(x, 0.30001)
    np.testing.assert_array_equal(tj.quantile(x, 0.30001), expected)


def test_the_median_of_a_pair_is_halfway_between() -> None:
    np.testing.assert_array_equal(
        gradient(tj.median, [3.0, 1.0, 9.0, 2.0]), [0.5, 0, 0, 0.5]
    )
    np.testing.assert_array_equal(gradient(tj.median, [3.0, 1.0, 2.0]), [0, 0, 1])


def test_the_second_derivative_of_an_order_statistic_is_zero_not_absent() -> None:
    x = tj.asarray(VECTOR)
    for function in (tj.median, tj.sort, lambda y: tj.quantile(y, 0.3)):
        first = tj.grad(lambda y, f=function: tj.sum(f(y)))
        second = tj.grad(lambda y, g=first: tj.sum(g(y)))(x)
        np.testing.assert_array_equal(second, np.zeros(7))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tj.quantile(VECTOR, 1.1), tj.ArgumentError, "q must be from 0 to 1"),
        (lambda: tj.percentile(VECTOR, -1), tj.ArgumentError, "from 0 to 100"),
        (lambda: tj.quantile(VECTOR, np.nan), tj.ArgumentError, "from 0 to 1"),
        (
            lambda: tj.quantile(VECTOR, 0.5, method="lower"),
            tj.UnsupportedError,
            "quantile: has only the method 'linear', got 'lower'",
        ),
        (lambda: tj.median(COMPLEX), tj.DTypeError, "median: .*no order"),
        (lambda: tj.quantile(COMPLEX, 0.5), tj.DTypeError, "quantile: .*no order"),
        (lambda: tj.quantile(VECTOR, 1j), tj.DTypeError, "q is real"),
        (lambda: tj.var(VECTOR, axis=1), tj.AxisError, "var: axis 1"),
        (lambda: tj.median(VECTOR, axis=(0, 0)), tj.AxisError, "median: .*twice"),
        (
            lambda: tj.average(MATRIX, weights=[1.0, 2.0], axis=1),
            tj.ShapeError,
            "average: weights",
        ),
        (lambda: tj.average(MATRIX, weights=WEIGHTS), tj.ShapeError, "weights"),
        (lambda: tj.cumulative_sum(MATRIX), tj.AxisError, "rank 2 needs an axis"),
        (lambda: tj.cumulative_sum(1.0), tj.AxisError, "rank 0 needs an axis"),
        (lambda: tj.cumulative_prod(VECTOR, axis=1), tj.AxisError, "cumulative_prod"),
        (lambda: tj.logcumsumexp(COMPLEX, axis=0), tj.DTypeError, "logcumsumexp"),
    ],
)
def test_refusals_name_the_function(call: Function, error: Any, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        call()
    assert caught.value.op


# Scans


@pytest.mark.parametrize(
    "x",
    [
        [2.0, 0.0, 3.0, 4.0],
        [0.0, 0.0, 3.0, 4.0],
        [2.0, 3.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
        [5.0],
    ],
)
def test_the_gradient_of_running_products_is_exact_with_zeros(x: list[float]) -> None:
    weights = np.array([1.0, 10.0, 100.0, 1000.0])[: len(x)]
    expected = [
        sum(
            weights[j] * np.prod([x[k] for k in range(j + 1) if k != i])
            for j in range(i, len(x))
        )
        for i in range(len(x))
    ]
    found = gradient(lambda y: weights * tj.cumulative_prod(y), x)
    np.testing.assert_array_equal(found, expected)
    slopes = [
        np.sum(weights * tj.jvp(tj.cumulative_prod, [np.array(x)], [unit])[1])
        for unit in np.eye(len(x))
    ]
    np.testing.assert_array_equal(slopes, expected)


def test_second_derivatives_of_running_products_with_zeros() -> None:
    x = np.array([2.0, 0.0, 3.0, 0.0])
    found = tj.hessian(lambda y: tj.cumulative_prod(y)[-1])(x)
    expected = np.zeros((4, 4))
    expected[1, 3] = expected[3, 1] = 6
    np.testing.assert_array_equal(found, expected)


INF = np.inf


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([-INF, -INF], [0, 0]),
        ([-INF, 1.0, -INF], [0, 2, 0]),
        ([0.0, INF, 5.0], [1, 2, 0]),
        ([INF, 0.0, INF, INF], [1 + 1 + 1 / 2 + 1 / 3, 0, 1 / 2 + 1 / 3, 1 / 3]),
        ([1e4, -1e4, 1e4], [2.5, 0, 0.5]),
        ([np.nan, 1.0], [np.nan, np.nan]),
    ],
)
def test_infinities_do_not_meet_in_logcumsumexp(
    x: list[float], expected: list[float]
) -> None:
    with np.errstate(all="raise"):
        found = gradient(tj.logcumsumexp, x)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    total = gradient(lambda y: tj.logcumsumexp(y)[-1], x)
    np.testing.assert_allclose(total, gradient(tj.logsumexp, x), rtol=1e-15)


LONG = [
    pytest.param(op, dtype, axis, id=f"{op}-{dtype.name}-{axis}")
    for op in ("cumulative_sum", "cumulative_prod", "logcumsumexp")
    for dtype in DTYPES
    if is_differentiable(dtype) and dtype in CASES[op][0].rows[0].dtypes
    for axis in (0, 1)
]


@pytest.mark.parametrize(("op", "dtype", "axis"), LONG)
def test_long_scans_keep_their_digits(op: str, dtype: DType, axis: int) -> None:
    case = CASES[op][0]
    rng = np.random.default_rng(19)
    length = 300 if op == "logcumsumexp" else 1500  # its reference is quadratic
    drawn = rng.uniform(0.5, 1.5, (3, length))
    same = np.full((3, length), 0.1 if op != "cumulative_prod" else 0.9999)
    for x in (drawn, same, -drawn):
        if op == "cumulative_prod":
            x = np.exp((np.abs(x) - 1) / 100)  # neither over- nor underflows
        array = (x if axis else x.T).astype(dtype)
        got = np.asarray(eager(op, [array], {"axis": axis})._value)
        truth = case.reference(array, axis=axis)
        assert_agrees(case.agreement, got, truth, where=f"{op} of {dtype}")


def test_a_long_recurrence_keeps_its_digits() -> None:
    case = CASES["linear_recurrence"][0]
    rng = np.random.default_rng(20)
    factors = rng.uniform(0.5, 1.0, (2, 3000))
    terms = rng.uniform(-1, 1, (2, 3000))
    got = np.asarray(eager("linear_recurrence", [factors, terms], {"axis": 1})._value)
    assert_agrees(case.agreement, got, case.reference(factors, terms, axis=1))


def test_the_result_of_a_scan_does_not_depend_on_its_neighbours() -> None:
    x = RNG.normal(size=(5, 1000)).astype(np.float32)
    whole = tj.cumulative_sum(x, axis=1).numpy()
    rows = [tj.cumulative_sum(row).numpy() for row in x]
    np.testing.assert_array_equal(whole, rows)


def test_dtypes_of_scans() -> None:
    x = tj.asarray([100, 100], dtype="int8")
    assert tj.cumulative_sum(x).tolist() == [100, 200]
    small = tj.cumulative_sum(x, dtype="int8")
    assert (small.dtype, small.tolist()) == (tj.int8, [100, -56])
    assert tj.cumulative_sum(x, dtype="float64").dtype == tj.float64
    flags = tj.asarray([True, True])
    assert tj.cumulative_sum(flags, include_initial=True).tolist() == [0, 1, 2]
    assert tj.cumulative_prod(x, dtype="int64").tolist() == [100, 10_000]


def test_integers_have_no_gradient() -> None:
    x = tj.asarray(VECTOR)
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        counted = tj.count_nonzero(x), tj.cumulative_sum(x.astype("int64"))
    assert [tape.gradient(y, x) for y in counted] == [None, None]


# Counting


@pytest.mark.parametrize("array", [MATRIX, np.isnan(HOLES), np.array([0, 3, 0])])
def test_counts_are_numpys(array: Array) -> None:
    got = tj.count_nonzero(array, axis=0)
    np.testing.assert_array_equal(got, np.count_nonzero(array, axis=0))
    assert got.dtype == tj.int64


def test_bincount() -> None:
    x = np.array([3, 0, 3, 1])
    np.testing.assert_array_equal(tj.bincount(x), np.bincount(x))
    for length in (0, 2, 6):
        got = np.bincount(tj.asarray(x), minlength=length)
        np.testing.assert_array_equal(got, np.bincount(x, minlength=length))
    np.testing.assert_array_equal(
        tj.bincount(x, WEIGHTS), np.bincount(x, weights=WEIGHTS)
    )
    tj.testing.check_grads(lambda w: tj.bincount(x, w) ** 2, [WEIGHTS])
    mapped = tj.vmap(lambda w: tj.bincount(x, w))(np.stack([WEIGHTS, -WEIGHTS]))
    np.testing.assert_array_equal(mapped[1], -np.bincount(x, weights=WEIGHTS))
    assert tj.bincount(np.zeros(0, int)).shape == (0,)
    with pytest.raises(tj.ArgumentError, match=r"bincount: .*negative"):
        tj.bincount([-1])
    with pytest.raises(tj.DTypeError, match="bincount: counts integers"):
        tj.bincount([0.5])
    with pytest.raises(tj.ShapeError, match="bincount: weights"):
        tj.bincount(x, VECTOR)
    with pytest.raises(tj.ArgumentTypeError, match="being traced"):
        tj.vmap(tj.bincount)(np.stack([x, x]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bins": 4},
        {"bins": [-1.0, 2.0, 2.5, 7.0]},
        {"bins": 3, "range": (2.0, 9.0)},
        {"bins": 5, "density": True},
        {"bins": "sqrt"},
        {"bins": 4, "weights": MATRIX * 0.5},
        {"bins": 4, "weights": MATRIX * 0.5, "density": True},
    ],
    ids=str,
)
def test_histograms_are_numpys(options: dict[str, Any]) -> None:
    for array in (MATRIX, MATRIX.astype(np.float32), np.round(MATRIX)):
        expected = np.histogram(array, **options)
        for got in (
            tj.histogram(array, **options),
            np.histogram(tj.asarray(array), **options),
        ):
            np.testing.assert_allclose(got[0], expected[0], rtol=1e-6)
            np.testing.assert_array_equal(got[1], expected[1])
            assert (got[0].dtype.kind, got[1].dtype) == (
                expected[0].dtype.kind,
                expected[1].dtype,
            )


def test_histograms_have_a_gradient_for_weights_only() -> None:
    def counted(x: Any, w: Any) -> Any:
        return tj.histogram(x, bins=3, range=(1, 9), weights=w)[0]

    x = tj.asarray(MATRIX)
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        w = tj.ones((3, 4), dtype="float64")
        tape.watch(w)
        counts, edges = tj.histogram(x, bins=3, range=(1, 9))
        weighted = counted(x, w)
    assert tape.gradient(counts, x) is None
    assert tape.gradient(edges, x) is None
    inside = (MATRIX >= 1) & (MATRIX <= 9)
    np.testing.assert_array_equal(tape.gradient(weighted, w), inside.astype(float))


def test_histograms_refuse_what_numpy_refuses() -> None:
    with pytest.raises(tj.ArgumentError, match=r"histogram: .*monotonically"):
        tj.histogram(VECTOR, bins=[1.0, 0.0])
    with pytest.raises(tj.ArgumentError, match=r"histogram: .*finite"):
        tj.histogram([1.0, np.nan])
    with pytest.raises(tj.ArgumentTypeError, match="being traced"):
        tj.vmap(lambda x: tj.histogram(x)[0])(MATRIX)


@pytest.mark.parametrize("right", [False, True])
def test_digitize(right: bool) -> None:
    edges = np.array([0.0, 1.0, 2.0, 2.0, 5.0])
    x = np.array([[-1.0, 0.0, 0.5], [2.0, 5.0, np.nan]])
    for bins in (edges, edges[::-1]):
        expected = np.digitize(x, bins, right=right)
        np.testing.assert_array_equal(tj.digitize(x, bins, right=right), expected)
        got = np.digitize(tj.asarray(x), bins, right)
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(tj.ArgumentError, match="digitize: bins must be monotonic"):
        tj.digitize(x, [0.0, 2.0, 1.0])
    unsigned = np.array([5, 3, 1], np.uint8)
    whole = np.array([0, 4, 9], np.uint8)
    np.testing.assert_array_equal(
        tj.digitize(whole, unsigned), np.digitize(whole, unsigned)
    )
