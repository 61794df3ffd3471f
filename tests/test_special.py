"""`tj.special`: digits, special values, derivatives, operands, and SciPy's own calls.

The records behind it are in the op table, which tests types, batching, graphs and both
modes of differentiation; here the functions are called as users call them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
from agreement import SUM, TRANSCENDENTAL, Truth, assert_agrees
from elsewhere import run_interpreter
from special_golden import GOLDEN

import tapejit as tj
from tapejit.ops import hurwitz, incomplete

INF, NAN = np.inf, np.nan

# One point inside the domain of every function, for derivatives and batches.
POINTS: dict[str, tuple[Any, ...]] = {
    "betainc": (np.array([0.7, 5.0]), np.array([2.5, 0.9]), np.array([0.3, 0.6])),
    "betaln": (np.array([0.7, 12.0]), np.array([3.0, 0.4])),
    "digamma": (np.array([0.6, 4.0, -1.4]),),
    "entr": (np.array([0.2, 3.0]),),
    "erf": (np.array([-1.0, 0.3]),),
    "erfc": (np.array([-1.0, 2.0]),),
    "erfcx": (np.array([-1.0, 2.0]),),
    "erfinv": (np.array([-0.5, 0.3]),),
    "expit": (np.array([-1.0, 2.0]),),
    "gammainc": (np.array([0.6, 7.0, 30.0]), np.array([1.2, 4.0, 33.0])),
    "gammaincc": (np.array([0.6, 7.0, 30.0]), np.array([1.2, 4.0, 33.0])),
    "gammaln": (np.array([0.6, 4.0, -1.4]),),
    "i0": (np.array([-1.0, 0.0, 2.0]),),
    "i0e": (np.array([-1.0, 2.0]),),
    "i1": (np.array([-1.0, 0.0, 2.0]),),
    "i1e": (np.array([-1.0, 2.0]),),
    "kl_div": (np.array([0.5, 2.0]), np.array([0.3, 3.0])),
    "log_ndtr": (np.array([-6.0, 0.5]),),
    "log_softmax": (np.array([-1.0, 0.5]),),
    "logit": (np.array([0.2, 0.7]),),
    "logsumexp": (np.array([-1.0, 0.5]),),
    "ndtr": (np.array([-1.5, 0.5]),),
    "ndtri": (np.array([0.1, 0.6]),),
    "psi": (np.array([0.6, 4.0]),),
    "rel_entr": (np.array([0.5, 2.0]), np.array([0.3, 3.0])),
    "softmax": (np.array([-1.0, 0.5]),),
    "xlog1py": (np.array([0.5, 2.0]), np.array([0.3, 3.0])),
    "xlogy": (np.array([0.5, 2.0]), np.array([0.3, 3.0])),
    "zeta": (np.array([1.5, 4.0]), np.array([0.6, 3.0])),
}
REDUCTIONS = ("logsumexp", "softmax", "log_softmax")  # tested where they are made
FUNCTIONS = pytest.mark.parametrize("name", POINTS)
ELEMENTWISE = pytest.mark.parametrize(
    "name", [n for n in POINTS if n not in REDUCTIONS]
)


def function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(tj.special, name)
    return found


def test_every_function_has_a_point() -> None:
    """But for those that SciPy has not: the op table has what there is to say."""
    names = {name for name in tj.special.__all__ if hasattr(scipy.special, name)}
    assert {*POINTS, "polygamma"} == names


# Digits


def called(name: str, arguments: tuple[float, ...], dtype: str) -> Any:
    if name == "polygamma":
        n, x = arguments
        return tj.special.polygamma(int(n), tj.asarray(x, dtype=dtype))
    return function(name)(*[tj.asarray(x, dtype=dtype) for x in arguments])


@pytest.mark.parametrize(("name", "arguments", "value", "conditioning"), GOLDEN)
def test_digits(
    name: str, arguments: tuple[float, ...], value: float, conditioning: float
) -> None:
    """In float32 to 2 ULP; in float64 as if the arguments had been rounded."""
    where = f"{name}{arguments}"
    single = called(name, arguments, "float32").numpy()
    assert_agrees(TRANSCENDENTAL, single, np.array(value), where=where)
    double = called(name, arguments, "float64").numpy()
    truth = Truth(np.array(value), 2**8, conditioning)
    assert_agrees(SUM, double, truth, where=where)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@ELEMENTWISE
def test_results_keep_the_dtype_and_are_rounded_once(name: str, dtype: str) -> None:
    arguments = [tj.asarray(x, dtype=dtype) for x in POINTS[name]]
    got = function(name)(*arguments)
    assert got.dtype == arguments[0].dtype
    wide = [x.numpy().astype(np.float64) for x in arguments]
    assert_agrees(TRANSCENDENTAL, got.numpy(), getattr(scipy.special, name)(*wide))


def test_polygamma_far_below_zero_takes_no_steps() -> None:
    """SciPy would take 10¹² of them; by reflection ψ₁(x) + ψ₁(1-x) = π²/sin²(πx)."""
    got = tj.special.polygamma(1, tj.asarray(-1e12 + 0.25, dtype="float64"))
    assert abs(float(got) - (np.pi**2 / np.sin(np.pi / 4) ** 2 - 1e-12)) < 1e-13
    for s in (2.0, 3.0):
        near, far = hurwitz.DEEP + 0.3, hurwitz.DEEP - 0.7
        step = hurwitz.zeta(np.float64(s), np.float64(far)) - far**-s
        assert step == pytest.approx(hurwitz.zeta(s, np.float64(near)), rel=1e-13)


def test_densities_integrate_to_the_functions() -> None:
    """Across the seam between the two forms of each density."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t = (nodes + 1) / 2
    for a in (11.9, 12.1, 80.0):
        found = np.sum(incomplete.gamma_density(a, t * a) * weights / 2) * a
        assert found == pytest.approx(scipy.special.gammainc(a, a), rel=1e-13)
        for b in (11.9, 12.1, 60.0):
            found = np.sum(incomplete.beta_density(a, b, t * 0.6) * weights / 2) * 0.6
            expected = scipy.special.betainc(a, b, 0.6)
            assert found == pytest.approx(expected, rel=1e-13)


# 40 digits: ∂P/∂a, ∂²P/∂a² and ∂I/∂a, ∂I/∂b, ∂²I/∂a∂b.
SLOPES = [
    (incomplete.gamma_slope, (0.01, 2.0), {"order": 1}),
    (incomplete.gamma_slope, (1000.0, 1100.0), {"order": 2}),
    (incomplete.beta_slope, (0.01, 0.02, 0.7), {"orders": (1, 0)}),
    (incomplete.beta_slope, (100.0, 200.0, 0.4), {"orders": (1, 1)}),
    (incomplete.beta_slope, (5.0, 5.0, 1e-5), {"orders": (0, 1)}),
]
SLOPE_VALUES = [
    -0.05043446769316511,
    -1.0531678471574556e-05,
    -21.85884894392958,
    0.00018467951775325627,
    9.394581840509708e-24,
]


@pytest.mark.parametrize(
    ("slope", "value"), list(zip(SLOPES, SLOPE_VALUES, strict=True))
)
def test_slopes_by_the_parameters_have_their_digits(slope: Any, value: float) -> None:
    of, arguments, orders = slope
    assert float(of(*arguments, **orders)) == pytest.approx(value, rel=2e-13)


# Special values

EDGES: list[tuple[str, list[Any], list[float]]] = [
    ("erfinv", [[-1.0, 1.0, 1.5]], [-INF, INF, NAN]),
    ("ndtri", [[0.0, 1.0, -0.5]], [-INF, INF, NAN]),
    ("ndtr", [[-INF, INF, NAN]], [0, 1, NAN]),
    ("log_ndtr", [[-INF, INF, -1e30]], [-INF, 0, -INF]),
    ("gammaln", [[0.0, -1.0, INF]], [INF, INF, INF]),
    ("digamma", [[0.0, -0.0, -1.0]], [-INF, INF, NAN]),
    ("logit", [[0.0, 1.0, 2.0]], [-INF, INF, NAN]),
    ("entr", [[0.0, -1.0, INF]], [0, -INF, -INF]),
    ("rel_entr", [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]], [0, 0, INF]),
    ("kl_div", [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]], [0, 1, INF]),
    ("xlogy", [[0.0, 0.0, 0.0], [0.0, INF, NAN]], [0, 0, NAN]),
    ("xlog1py", [[0.0, 0.0, 0.0], [-1.0, INF, NAN]], [0, 0, NAN]),
    ("gammainc", [[2.0, 2.0, 2.0], [0.0, INF, -1.0]], [0, 1, NAN]),
    ("gammaincc", [[2.0, 2.0, 2.0], [0.0, INF, -1.0]], [1, 0, NAN]),
    ("betainc", [[2.0] * 3, [3.0] * 3, [0.0, 1.0, 1.5]], [0, 1, NAN]),
    ("zeta", [[1.0, 0.5, 2.0], [1.0, 1.0, 0.0]], [INF, NAN, INF]),
    ("i0e", [[0.0, INF, -INF]], [1, 0, 0]),
    ("log1mexp", [[0.0, -0.0, 0.5]], [-INF, -INF, NAN]),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("name", "operands", "expected"), EDGES)
def test_special_values(
    name: str, operands: list[Any], expected: list[float], dtype: str
) -> None:
    with np.errstate(all="raise"):
        got = function(name)(*[tj.asarray(x, dtype=dtype) for x in operands])
    if (name, dtype) == ("log_ndtr", "float64"):
        expected = [-INF, 0, -5e59]
    np.testing.assert_allclose(got.numpy().astype(float), expected, rtol=1e-12)


def log1mexp_and_slope(x: Any) -> tuple[Any, Any]:
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.special.log1mexp(x)
    return y, tape.gradient(y, x)


@pytest.mark.parametrize("call", [log1mexp_and_slope, tj.function(log1mexp_and_slope)])
def test_log1mexp_and_its_slope_at_both_ends(call: Callable[..., Any]) -> None:
    """From below, as logarithms of probabilities go: 0 is approached from the left."""
    x = tj.asarray([-INF, -800.0, -1e-300, -0.0, 0.0, NAN], dtype="float64")
    y, slope = (part.numpy() for part in call(x))
    zero, log_of_tiny = np.float64(-0.0), -690.7755278982137
    expected = np.array([zero, zero, log_of_tiny, -INF, -INF, NAN])
    np.testing.assert_allclose(y, expected, rtol=1e-15)
    np.testing.assert_array_equal(np.signbit(y[:2]), True)
    np.testing.assert_allclose(slope, [zero, zero, -1e300, -INF, -INF, NAN])


SLOPES_AT_EDGES: list[tuple[str, list[Any], list[list[float]]]] = [
    ("erfinv", [[-1.0, 1.0]], [[INF, INF]]),
    ("ndtri", [[0.0, 1.0]], [[INF, INF]]),
    ("log_ndtr", [[-1e10, 50.0]], [[1e10, 0]]),
    ("entr", [[0.0, 1.0]], [[INF, -1]]),
    ("rel_entr", [[0.0, 0.0], [0.0, 2.0]], [[1, -INF], [-1, 0]]),
    ("kl_div", [[0.0, 2.0], [0.0, 2.0]], [[0, 0], [0, 0]]),
    ("xlog1py", [[0.0], [-1.0]], [[0], [0]]),
    ("i1", [[0.0]], [[0.5]]),
    ("i0e", [[0.0]], [[0]]),
    ("gammainc", [[2.0, 1.0, 0.5], [0.0, 0.0, INF]], [[0, 0, 0], [0, 1, 0]]),
    ("betainc", [[2.0, 2.0], [1.0, 3.0], [1.0, 0.0]], [[0, 0], [0, 0], [2, 0]]),
]


@pytest.mark.parametrize(("name", "operands", "expected"), SLOPES_AT_EDGES)
def test_gradients_at_the_edges(
    name: str, operands: list[Any], expected: list[list[float]]
) -> None:
    variables = [tj.Variable(x, dtype="float64") for x in operands]
    with tj.GradientTape() as tape:
        y = function(name)(*variables)
    for got, wanted in zip(tape.gradient(y, variables), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12)


def test_second_derivatives_of_i1_at_zero_need_no_limit() -> None:
    def third(x: Any) -> Any:
        return tj.grad(tj.grad(tj.grad(tj.special.i1)))(x)

    assert float(third(tj.asarray(0.0, dtype="float64"))) == 0.375


# Derivatives


@FUNCTIONS
def test_derivatives(name: str) -> None:
    tj.testing.check_grads(function(name), POINTS[name])


@pytest.mark.parametrize("n", [0, 1, 3])
def test_derivatives_of_polygamma(n: int) -> None:
    x = np.array([0.7, 3.0])
    tj.testing.check_grads(lambda x: tj.special.polygamma(n, x), [x])


def test_an_order_has_no_gradient() -> None:
    n, x = tj.asarray([1, 2]), tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.special.polygamma(n, x)
    found = tape.gradient(y, x)
    np.testing.assert_array_equal(
        found.numpy(), tj.special.polygamma(n + 1, x.value()).numpy()
    )


@pytest.mark.parametrize("name", ["gammainc", "gammaincc", "betainc"])
def test_second_derivatives_by_the_parameters_are_symmetric(name: str) -> None:
    *parameters, x = [tj.asarray(p[0], dtype="float64") for p in POINTS[name]]

    def of(*each: Any) -> Any:
        return function(name)(*each)

    count = len(parameters) + 1
    arguments = (*parameters, x)

    def mixed(first: int, second: int) -> float:
        inner = tj.grad(of, argnums=first)
        return float(tj.grad(inner, argnums=second)(*arguments))

    for i in range(count):
        for j in range(i):
            assert mixed(i, j) == pytest.approx(mixed(j, i), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients_of_small_floats_keep_their_digits(dtype: str) -> None:
    """A density of exponents that cancel would lose three digits of seven here."""
    a, x = tj.Variable(90.0, dtype=dtype), tj.Variable(96.0, dtype=dtype)
    with tj.GradientTape() as tape:
        y = tj.special.gammainc(a, x)
    by_a, by_x = tape.gradient(y, [a, x])
    wide = np.float64(90.0), np.float64(96.0)
    assert_agrees(TRANSCENDENTAL, by_a.numpy(), incomplete.gamma_slope(*wide, order=1))
    assert_agrees(TRANSCENDENTAL, by_x.numpy(), incomplete.gamma_density(*wide))


# Operands


@FUNCTIONS
def test_a_batch_is_a_loop(name: str) -> None:
    rows = [tj.asarray(np.stack([x, x * 0.9, x * 1.1])) for x in POINTS[name]]
    got = tj.vmap(function(name))(*rows)
    expected = [function(name)(*[row[i] for row in rows]) for i in range(3)]
    np.testing.assert_array_equal(got.numpy(), np.stack([e.numpy() for e in expected]))
    shared = [rows[0], *[row[0] for row in rows[1:]]]
    axes = (0, *[None] * (len(rows) - 1))
    got = tj.vmap(function(name), in_axes=axes)(*shared)
    first = function(name)(*[row[0] for row in rows])
    np.testing.assert_array_equal(got.numpy()[0], first.numpy())


def test_polygamma_is_batched_by_its_order_too() -> None:
    got = tj.vmap(tj.special.polygamma)(tj.asarray([0, 1, 2]), tj.asarray([1.0, 2, 3]))
    expected = [tj.special.polygamma(n, float(n + 1)) for n in range(3)]
    np.testing.assert_array_equal(got.numpy(), [float(x) for x in expected])


@FUNCTIONS
def test_operands_may_be_variables_arrays_and_numbers(name: str) -> None:
    arrays = [x.astype(np.float32) for x in POINTS[name]]
    expected = function(name)(*[tj.asarray(x) for x in arrays]).numpy()
    for given in (arrays, [tj.Variable(x) for x in arrays]):
        np.testing.assert_array_equal(function(name)(*given).numpy(), expected)
    if name not in REDUCTIONS:
        numbers = [float(x[0]) for x in POINTS[name]]
        got = function(name)(*numbers)
        assert (got.shape, got.dtype) == ((), np.float32)
        np.testing.assert_allclose(got.numpy(), expected[0], rtol=1e-6)
    for dtype in (np.int32, np.bool_):
        ones = [np.ones(2, dtype) for _ in arrays]
        assert function(name)(*ones).dtype == np.float32


@FUNCTIONS
def test_nothing_makes_nothing(name: str) -> None:
    empty = [tj.zeros((0, 3), dtype="float64") for _ in POINTS[name]]
    axis = {"axis": 1} if name in REDUCTIONS else {}
    assert function(name)(*empty, **axis).shape[0] == 0


def test_operands_broadcast() -> None:
    a, x = tj.asarray([[1.0], [2.0]]), tj.asarray([0.5, 1.0, 1.5])
    assert tj.special.gammainc(a, x).shape == (2, 3)
    assert tj.special.betainc(a, 2.0, x / 2).shape == (2, 3)
    assert tj.special.polygamma(tj.asarray([[1], [2]]), x).shape == (2, 3)
    with tj.GradientTape() as tape:
        tape.watch([a, x])
        y = tj.special.betainc(a, 2.0, x / 2)
    by_a, by_x = tape.gradient(y, [a, x])
    assert (by_a.shape, by_x.shape) == ((2, 1), (3,))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tj.special.polygamma(-1, 1.0), tj.ArgumentError, "from 0 on"),
        (lambda: tj.special.polygamma(0.5, 1.0), tj.DTypeError, "integer"),
        (lambda: tj.special.polygamma(tj.zeros(2), 1.0), tj.DTypeError, "integer"),
        (lambda: tj.special.erfc(1j), tj.DTypeError, "float"),
        (lambda: tj.special.betaln(1j, 2.0), tj.DTypeError, "float"),
        (lambda: tj.special.i0(1j), tj.DTypeError, "float"),
        (
            lambda: tj.special.gammainc(tj.ones(2), tj.ones(3)),
            tj.ShapeError,
            "gammainc",
        ),
        (lambda: tj.special.entr("x"), tj.ArgumentTypeError, "entr"),
    ],
)
def test_wrong_operands_are_refused(
    call: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
    assert "test_special.py" in str(caught.value)


# SciPy's own calls


@ELEMENTWISE
def test_scipys_functions_of_tensors_are_recorded(name: str) -> None:
    variables = [tj.Variable(x) for x in POINTS[name]]
    with tj.GradientTape() as tape:
        y = getattr(scipy.special, name)(*variables)
    assert isinstance(y, tj.Tensor)
    expected = getattr(scipy.special, name)(*POINTS[name])
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-14)
    assert all(g is not None for g in tape.gradient(y, variables))


def test_digamma_has_two_names() -> None:
    assert tj.special.psi is tj.special.digamma
    assert isinstance(scipy.special.digamma(tj.asarray(1.0)), tj.Tensor)


def test_scipy_is_imported_by_those_who_need_it() -> None:
    code = (
        "import sys, tapejit as tj\n"
        "assert tj.special.__name__\n"
        "assert 'scipy' not in sys.modules\n"
        "tj.special.erfc(1.0)\n"
        "assert 'scipy.special' in sys.modules"
    )
    done = run_interpreter("-c", code)
    assert done.returncode == 0, done.stderr
