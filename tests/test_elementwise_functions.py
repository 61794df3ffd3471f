"""The elementwise functions of the namespace: complete, as NumPy's, differentiable.

Records are tested row by row in test_ops*.py. Here are the functions that users call:
what they make of Python's numbers, integers, arrays and variables, what is composed of
several records, and the derivatives at the ends of their domains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import assert_agrees
from op_cases import CASES
from op_cases.case import eager

import tapejit as tj
from tapejit.base.types import dtype_named

INF, NAN = math.inf, math.nan
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-300, INF, -INF, NAN])
HALVES = ("float16", "bfloat16")

STANDARD = """abs acos acosh add asin asinh atan atan2 atanh bitwise_and
bitwise_left_shift bitwise_invert bitwise_or bitwise_right_shift bitwise_xor ceil clip
conj copysign cos cosh divide equal exp expm1 floor floor_divide greater greater_equal
hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp
logical_and logical_not logical_or logical_xor maximum minimum multiply negative
nextafter not_equal positive pow real reciprocal remainder round sign signbit sin sinh
square sqrt subtract tan tanh trunc"""

# tapejit's function and the truth in NumPy, with a domain of smooth points.
UNARY: dict[str, tuple[Callable[..., Any], tuple[float, float]]] = {
    "tan": (np.tan, (-1, 1)),
    "asin": (np.arcsin, (-0.9, 0.9)),
    "acos": (np.arccos, (-0.9, 0.9)),
    "atan": (np.arctan, (-2, 2)),
    "sinh": (np.sinh, (-2, 2)),
    "cosh": (np.cosh, (-2, 2)),
    "asinh": (np.arcsinh, (-2, 2)),
    "acosh": (np.arccosh, (1.2, 3)),
    "atanh": (np.arctanh, (-0.9, 0.9)),
    "deg2rad": (np.deg2rad, (-90, 90)),
    "rad2deg": (np.rad2deg, (-2, 2)),
    "exp2": (np.exp2, (-2, 2)),
    "log2": (np.log2, (0.3, 3)),
    "log10": (np.log10, (0.3, 3)),
    "cbrt": (np.cbrt, (0.3, 3)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (0.3, 3)),
    "reciprocal": (np.reciprocal, (0.3, 3)),
    "sinc": (np.sinc, (-1.8, 1.8)),
    "nan_to_num": (np.nan_to_num, (-2, 2)),
}
BINARY: dict[str, tuple[Callable[..., Any], tuple[float, float]]] = {
    "atan2": (np.arctan2, (0.3, 2)),
    "hypot": (np.hypot, (0.3, 2)),
    "logaddexp": (np.logaddexp, (-2, 2)),
    "logaddexp2": (np.logaddexp2, (-2, 2)),
    "copysign": (np.copysign, (0.3, 2)),
    "fmod": (np.fmod, (1.1, 1.9)),
    "heaviside": (np.heaviside, (0.3, 2)),
}
ALL = {**UNARY, **BINARY}


def ours(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(tj, name)
    return function


def drawn(name: str, count: int = 4) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    low, high = ALL[name][1]
    shapes = [(count,)] if name in UNARY else [(3, count), (count,)]
    return [rng.uniform(low, high, shape) for shape in shapes]


def slopes(function: Callable[..., Any], *points: Any) -> list[Any]:
    """The gradient of the sum of a function by each of its arguments."""
    xs = [tj.asarray(point, dtype="float64") for point in points]
    with tj.GradientTape() as tape:
        tape.watch(xs)
        y = function(*xs)
    return [None if g is None else g.numpy() for g in tape.gradient(y, xs)]


def test_every_elementwise_function_of_the_standard_is_there() -> None:
    names = STANDARD.split()
    assert [name for name in names if not callable(getattr(tj, name, None))] == []
    assert set(names) <= set(tj.__all__)


# Values


@pytest.mark.parametrize("name", UNARY)
def test_special_values_are_numpys(name: str) -> None:
    with np.errstate(all="ignore"):
        expected = UNARY[name][0](SPECIAL)
    got = ours(name)(tj.asarray(SPECIAL)).numpy()
    # NumPy's sinc is 4e-17 at an integer instead of 0.
    limit = {"atol": 1e-16} if name == "sinc" else {}
    np.testing.assert_allclose(got, expected, rtol=1e-15, **limit)
    if name != "sinc":
        np.testing.assert_array_equal(np.signbit(got[:2]), np.signbit(expected[:2]))


@pytest.mark.parametrize("name", BINARY)
def test_special_values_of_pairs_are_numpys(name: str) -> None:
    x, y = SPECIAL[:, None], SPECIAL
    with np.errstate(all="ignore"):
        expected = BINARY[name][0](x, y)
    got = ours(name)(tj.asarray(x), y).numpy()
    np.testing.assert_allclose(got, expected, rtol=2e-15)


@pytest.mark.parametrize("name", ALL)
def test_anything_array_like_is_taken(name: str) -> None:
    arrays = drawn(name)
    expected = ALL[name][0](*arrays)
    for convert in (tj.asarray, tj.Variable, np.asarray):
        got = ours(name)(*map(convert, arrays))
        assert isinstance(got, tj.Tensor)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-14)
    scalar = ours(name)(*[float(x.ravel()[0]) for x in arrays])
    assert scalar.dtype == np.float32
    np.testing.assert_allclose(
        float(scalar), ALL[name][0](*[x.ravel()[0] for x in arrays]), rtol=1e-6
    )


@pytest.mark.parametrize("name", sorted(set(ALL) - {"fmod", "nan_to_num"}))
def test_integers_become_floats(name: str) -> None:
    ones = [tj.asarray([1, 1])] * (1 if name in UNARY else 2)
    got = ours(name)(*ones)
    assert got.dtype == np.float32
    floats = [x.astype("float32") for x in ones]
    np.testing.assert_array_equal(got.numpy(), ours(name)(*floats).numpy())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ALL)
def test_halves_stay_halves_and_are_accurate(name: str, dtype: str) -> None:
    kind = dtype_named(dtype)
    arrays = [x.astype(kind) for x in drawn(name, 50)]
    got = ours(name)(*map(tj.asarray, arrays))
    assert got.dtype == kind
    expected = ALL[name][0](*[x.astype(np.float64) for x in arrays])
    eps = 2.0**-10 if dtype == "float16" else 2.0**-7
    found = got.numpy().astype(np.float64)
    # Sums of exponentials cancel near 0, where their error is absolute.
    floor = eps if name.startswith("logaddexp") else 0
    np.testing.assert_allclose(found, expected, rtol=eps, atol=floor)


@pytest.mark.parametrize("name", ALL)
def test_nothing_and_scalars_have_values_too(name: str) -> None:
    count = 1 if name in UNARY else 2
    assert ours(name)(*[tj.zeros((0, 3))] * count).shape == (0, 3)
    assert ours(name)(*[tj.asarray(0.5)] * count).shape == ()


HOLOMORPHIC = "tan asin acos atan sinh cosh asinh acosh atanh exp2 log2 log10"


@pytest.mark.parametrize("name", [*HOLOMORPHIC.split(), "reciprocal", "rsqrt"])
def test_complex_functions_are_holomorphic(name: str) -> None:
    z = np.array([0.3 + 0.4j, -0.2 + 0.7j, 0.5 - 0.6j])
    np.testing.assert_allclose(
        ours(name)(tj.asarray(z)).numpy(), UNARY[name][0](z), rtol=1e-14
    )
    tj.testing.check_grads(ours(name), [z])


@pytest.mark.parametrize("dtype", [*HALVES, "float32", "float64"])
@pytest.mark.parametrize("op", ["hypot", "atan2", "xlogy"])
def test_pairs_are_accurate_over_the_whole_range(op: str, dtype: str) -> None:
    (case,) = CASES[op]
    kind = dtype_named(dtype)
    rng = np.random.default_rng(43)
    word = np.dtype(f"u{kind.itemsize}")
    top = int(np.iinfo(word).max)
    pairs = rng.integers(0, top, (2, 20_000), word, endpoint=True).view(kind)
    near = (pairs[0], rng.uniform(0.25, 4, 20_000).astype(kind))
    for x, y in (pairs, near, near[::-1]):
        with np.errstate(all="ignore"):
            truth = case.reference(x, y)
        got = np.asarray(eager(op, [x, y], {})._value)
        assert_agrees(case.agreement, got, truth, where=f"{op} of {dtype}")


# NumPy's functions on tensors


@pytest.mark.parametrize(
    "name", [name for name in ALL if getattr(np, name, None) is ALL[name][0]]
)
def test_numpys_function_is_tapejits(name: str) -> None:
    arrays = [tj.asarray(x) for x in drawn(name)]
    with tj.GradientTape() as tape:
        tape.watch(arrays)
        y = ALL[name][0](*arrays)
    assert isinstance(y, tj.Tensor)
    np.testing.assert_array_equal(y.numpy(), ours(name)(*arrays).numpy())
    found = tape.gradient(y, arrays)
    assert all(part is not None for part in found)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.arcsin(x / 4),
        lambda x: np.arctan2(x, 2.0),
        lambda x: np.degrees(x),
        lambda x: np.radians(x),
        lambda x: np.nextafter(x, 9.0),
        lambda x: np.signbit(x - 1),
        lambda x: np.modf(x)[0],
        lambda x: np.frexp(x)[1],
        lambda x: np.ldexp(x, 3),
        lambda x: np.divmod(x, 0.75)[1],
        lambda x: np.nan_to_num(x / (x - 1), copy=False, posinf=3.0),
    ],
)
def test_numpys_spellings_reach_tapejit(call: Callable[..., Any]) -> None:
    x = np.array([0.5, 1.0, 2.5])
    with np.errstate(all="ignore"):
        expected = call(x)
    got = call(tj.asarray(x))
    assert isinstance(got, tj.Tensor)
    np.testing.assert_array_equal(got.numpy(), expected)


def test_scipys_ufuncs_reach_tapejit() -> None:
    special = pytest.importorskip("scipy.special")
    x, y = np.array([0.0, 0.5, 2.0]), np.array([0.0, 1.5, 0.1])
    for ufunc, operands in ((special.xlogy, (x, y)), (special.exp2, (x,))):
        got = ufunc(*map(tj.asarray, operands))
        assert isinstance(got, tj.Tensor)
        np.testing.assert_allclose(got.numpy(), ufunc(*operands), rtol=1e-15)
    got = special.cbrt(tj.asarray(x))
    np.testing.assert_allclose(got.numpy(), np.cbrt(x), rtol=1e-15)


# Derivatives


@pytest.mark.parametrize("name", [name for name in ALL if name != "heaviside"])
def test_gradients_follow_differences_to_second_order(name: str) -> None:
    tj.testing.check_grads(ours(name), drawn(name))


@pytest.mark.parametrize("name", ["modf", "frexp", "divmod"])
def test_gradients_of_parts_follow_differences(name: str) -> None:
    rest = [np.array([1.05, 1.02])] if name == "divmod" else []
    tj.testing.check_grads(ours(name), [np.array([2.6, -3.4]), *rest])


def test_gradients_of_xlogy_follow_differences() -> None:
    x, y = np.array([0.5, -2.0]), np.array([[0.3, 2.0], [1.5, 0.7]])
    tj.testing.check_grads(tj.xlogy, [x, y])


KINKS: list[tuple[str, list[Any], list[Any]]] = [
    ("asin", [[-1.0, 0.0, 1.0]], [[INF, 1, INF]]),
    ("acos", [[-1.0, 0.0, 1.0]], [[-INF, -1, -INF]]),
    ("acosh", [[1.0, math.sqrt(2), INF]], [[INF, 1, 0]]),
    ("atanh", [[-1.0, 0.0, 1.0]], [[INF, 1, INF]]),
    ("atan", [[-INF, 0.0, 1e200, INF]], [[0, 1, 0, 0]]),
    ("asinh", [[-INF, 0.0, 1e200]], [[0, 1, 1e-200]]),
    ("log2", [[0.0, 1.0]], [[INF, 1 / math.log(2)]]),
    ("log10", [[0.0, 1.0]], [[INF, 1 / math.log(10)]]),
    ("exp2", [[-INF, 0.0]], [[0, math.log(2)]]),
    ("cbrt", [[0.0, -0.0, -8.0, INF]], [[INF, INF, 1 / 12, 0]]),
    ("rsqrt", [[0.0, 4.0, INF]], [[-INF, -1 / 16, 0]]),
    ("reciprocal", [[0.0, 2.0, INF]], [[-INF, -0.25, 0]]),
    ("hypot", [[0.0, 3.0, 3e200], [0.0, 4.0, 4e200]], [[0, 0.6, 0.6], [0, 0.8, 0.8]]),
    (
        "atan2",
        [[0.0, 0.0, 1.0, 1.0, 3e-200, INF], [0.0, 2.0, 0.0, INF, 4e-200, 1.0]],
        [[0, 0.5, 0, 0, 1.6e199, 0], [0, 0, -1, 0, -1.2e199, 0]],
    ),
    (
        "logaddexp",
        [[-INF, INF, INF, 1000.0, -INF], [-INF, INF, 1.0, 1000.0, 2.0]],
        [[0, 0.5, 1, 0.5, 0], [0, 0.5, 0, 0.5, 1]],
    ),
    (
        "logaddexp2",
        [[-INF, INF, 1000.0, 1.0], [-INF, INF, 1000.0, 0.0]],
        [[0, 0.5, 0.5, 2 / 3], [0, 0.5, 0.5, 1 / 3]],
    ),
    (
        "xlogy",
        [[0.0, 0.0, 2.0], [0.0, 3.0, 1.0]],
        [[0, math.log(3), 0], [0, 0, 2]],
    ),
    (
        "copysign",
        [[2.0, -2.0, 2.0, 0.0, 2.0], [3.0, 3.0, -3.0, 1.0, -0.0]],
        [[1, -1, -1, 0, -1], [0] * 5],
    ),
    ("nextafter", [[0.0, 1.0], [1.0, 1.0]], [[1, 1], [0, 0]]),
    ("heaviside", [[-1.0, 0.0, 1.0], [0.5] * 3], [[0, 0, 0], [0, 1, 0]]),
    ("fmod", [[4.0, -5.0], [2.0, 2.0]], [[1, 1], [-2, 2]]),
    ("nan_to_num", [[1.0, NAN, INF, -INF]], [[1, 0, 0, 0]]),
    ("sinc", [[0.0, 1.0]], [[0, -1]]),
]


@pytest.mark.parametrize(
    ("name", "points", "expected"), KINKS, ids=[kink[0] for kink in KINKS]
)
def test_the_slope_at_an_end(name: str, points: Any, expected: Any) -> None:
    found = slopes(ours(name), *points)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-14, atol=1e-300)


def test_slopes_keep_their_digits_near_the_ends() -> None:
    near = 1 - 2.0**-40
    # 1 - x² = 2⁻³⁹ - 2⁻⁸⁰, of which 1 - x * x has 14 bits.
    inside = 2.0**-39 - 2.0**-80
    np.testing.assert_allclose(slopes(tj.asin, [near])[0], inside**-0.5, rtol=1e-15)
    np.testing.assert_allclose(slopes(tj.atanh, [near])[0], 1 / inside, rtol=1e-15)
    (found,) = slopes(tj.acosh, [1 + 2.0**-40])
    np.testing.assert_allclose(found, (2.0**-39 + 2.0**-80) ** -0.5, rtol=1e-15)
    first, _ = slopes(tj.logaddexp, [1e6 + 1], [1e6])
    np.testing.assert_allclose(first, 1 / (1 + math.exp(-1)), rtol=1e-15)


def test_nan_operands_have_nan_slopes() -> None:
    for name in ("hypot", "atan2", "logaddexp", "xlogy"):
        first, second = slopes(ours(name), [NAN], [1.0])
        assert np.isnan(first).all() or np.isnan(second).all(), name


def nth(function: Callable[..., Any], order: int) -> Callable[..., Any]:
    """The derivative of a scalar function."""
    return function if not order else nth(tj.grad(function), order - 1)


def test_sinc_is_smooth_at_zero() -> None:
    """Its power series is Σ (-π²)ᵏ x²ᵏ / (2k + 1)!."""
    squared = math.pi**2
    wanted = [1, 0, -squared / 3, 0, squared**2 / 5, 0, -(squared**3) / 7]
    for order, expected in enumerate(wanted):
        got = float(nth(tj.sinc, order)(tj.asarray(0.0, dtype="float64")))
        np.testing.assert_allclose(got, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("x", [1e-9, 1e-4, 0.01, 0.3, 0.94, 0.96, 1.25, 7.4])
def test_derivatives_of_sinc_have_no_seams(x: float) -> None:
    """Against the integral ∫₀¹ cos(πxs) ds, differentiated, by Gauss's rule."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    s, w = (nodes + 1) / 2, weights / 2
    angle = math.pi * x * s
    waves = (np.cos(angle), -np.sin(angle), -np.cos(angle), np.sin(angle))
    for order in range(4):
        expected = float(w @ ((math.pi * s) ** order * waves[order]))
        got = float(nth(tj.sinc, order)(tj.asarray(x, dtype="float64")))
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["logaddexp", "hypot", "xlogy", "atan2"])
def test_second_derivatives_at_ties_and_axes(name: str) -> None:
    """Where masks of the special points must not reach."""
    for point in ([1.0, 1.0], [0.0, 1.0], [0.5, 2.0]):
        x, y = (np.array([value]) for value in point)
        tj.testing.check_grads(ours(name), [x, y])


def test_all_derivatives_at_the_origin_are_zero() -> None:
    for name in ("hypot", "atan2"):
        for argnums in (0, 1):
            slope = tj.grad(ours(name), argnums=argnums)
            zero = tj.asarray(0.0, dtype="float64")
            assert [float(g) for g in slopes(slope, 0.0, 0.0)] == [0, 0], name
            assert float(slope(zero, zero)) == 0


def test_what_is_constant_piece_by_piece_has_gradient_zero_not_none() -> None:
    (_, by_sign) = slopes(tj.copysign, [1.0], [2.0])
    np.testing.assert_array_equal(by_sign, [0])
    (by_x, _) = slopes(tj.heaviside, [1.0], [2.0])
    np.testing.assert_array_equal(by_x, [0])
    (whole,) = slopes(lambda x: tj.modf(x)[1], [1.5])
    np.testing.assert_array_equal(whole, [0])


def test_integers_and_bools_end_the_path() -> None:
    assert slopes(tj.signbit, [1.0]) == [None]
    assert slopes(lambda x: tj.frexp(x)[1], [1.0]) == [None]
    assert slopes(tj.isclose, [1.0], [1.0]) == [None, None]


# Batching


@pytest.mark.parametrize("name", ALL)
def test_vmap_is_a_loop(name: str) -> None:
    arrays = [np.stack([x, x[..., ::-1]]) for x in drawn(name)]
    got = tj.vmap(ours(name))(*arrays).numpy()
    for row, one in zip(got, zip(*arrays, strict=True), strict=True):
        np.testing.assert_allclose(row, ours(name)(*one).numpy(), rtol=1e-15)


def test_vmap_of_parts_is_a_loop() -> None:
    x = np.array([[1.5, -2.25], [INF, 0.1]])
    for function in (
        lambda row: tj.modf(row)[0],
        lambda row: tj.frexp(row)[0],
        lambda row: tj.ldexp(row, 3),
        lambda row: tj.isclose(row, 1.5),
        lambda row: tj.signbit(row),
        lambda row: tj.divmod(row, 0.7)[0],
    ):
        got = tj.vmap(function)(x).numpy()
        np.testing.assert_array_equal(got, np.stack([function(row) for row in x]))


def test_vmap_of_a_question_with_a_python_answer_is_refused() -> None:
    x = tj.ones((2, 3))
    for ask in (tj.allclose, tj.array_equal):
        with pytest.raises(TypeError, match=r"traced|vmap"):
            tj.vmap(lambda row, ask=ask: ask(row, row) * row)(x)


# Parts of floats


def test_parts_are_numpys() -> None:
    values = np.concatenate([SPECIAL, [5e-324, 1.7e308, -0.75, 8.0]])
    for name in ("modf", "frexp"):
        for got, expected in zip(
            ours(name)(tj.asarray(values)), getattr(np, name)(values), strict=True
        ):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got.numpy(), expected)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_frexp_and_ldexp_are_inverse(dtype: str) -> None:
    x = tj.asarray([1.5, -3.0, 0.1, 1e-7, 0.0], dtype=dtype)
    mantissa, exponent = tj.frexp(x)
    assert mantissa.dtype == x.dtype
    assert exponent.dtype == np.int32
    size = np.abs(mantissa.numpy().astype(np.float64))
    assert ((size == 0) | ((size >= 0.5) & (size < 1))).all()
    assert tj.array_equal(tj.ldexp(mantissa, exponent), x)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "uint32", "int64", "uint64"])
def test_exponents_of_every_integer_dtype(dtype: str) -> None:
    n = np.array([0, 3, np.iinfo(dtype).max], dtype)
    expected = [1.0, 8.0, INF if dtype != "int8" else 2.0**127]
    np.testing.assert_array_equal(tj.ldexp(np.ones(3), n).numpy(), expected)
    if n.dtype.kind == "i":
        low = np.array([np.iinfo(dtype).min], dtype)
        expected = [0.0 if dtype != "int8" else 2.0**-128]
        np.testing.assert_array_equal(tj.ldexp(np.ones(1), low).numpy(), expected)


def test_exponents_are_integers() -> None:
    with pytest.raises(tj.DTypeError, match=r"ldexp: takes integer exponents.*float32"):
        tj.ldexp(tj.asarray([1.0]), tj.asarray([1.5]))


@pytest.mark.parametrize("name", ["modf", "frexp"])
def test_complex_numbers_have_no_such_parts(name: str) -> None:
    with pytest.raises(tj.DTypeError, match=f"{name}: takes real tensors"):
        ours(name)(tj.asarray(1 + 2j))


@pytest.mark.parametrize(
    "name", ["hypot", "atan2", "logaddexp", "copysign", "xlogy", "nextafter"]
)
def test_complex_pairs_are_refused_by_name(name: str) -> None:
    with pytest.raises(tj.DTypeError, match=f"{name}: takes float tensors"):
        ours(name)(tj.asarray(1 + 2j), 1.0)


def test_shapes_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(tj.ShapeError, match="hypot: cannot broadcast"):
        tj.hypot(tj.ones(3), tj.ones(4))


def test_signs_of_integers() -> None:
    np.testing.assert_array_equal(
        tj.signbit(tj.asarray([-1, 0, 2])), [True, False, False]
    )
    assert not tj.signbit(tj.asarray([3], dtype="uint8")).numpy().any()


def test_divmod_is_pythons() -> None:
    for x, y in ((7, 4), (-7, 4), (7.5, -2.0)):
        assert [float(part) for part in tj.divmod(x, y)] == [*map(float, divmod(x, y))]


def test_fmod_of_integers_stays_integer() -> None:
    got = tj.fmod(tj.asarray([7, -7, 5]), tj.asarray([4, 4, 0]))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got.numpy(), [3, -3, 0])


def test_the_slope_of_fmod_counts_what_was_taken_off() -> None:
    """The double 0.1 is in the double 0.5 four times, although 0.5 / 0.1 is 5.0."""
    assert math.trunc(0.5 / 0.1) == 5
    _, by_divisor = slopes(tj.fmod, [0.5, -0.5, 0.25, 0.05], [0.1])
    assert by_divisor.tolist() == [-4 + 4 - 2 - 0]


# Replacements


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_to_num_takes_the_largest_of_the_dtype(dtype: str) -> None:
    x = np.array([NAN, INF, -INF, -0.0, 2.0], dtype)
    got = tj.nan_to_num(tj.asarray(x))
    np.testing.assert_array_equal(got.numpy(), np.nan_to_num(x), strict=True)
    given = {"nan": 5.0, "posinf": 6.0, "neginf": 7.0}
    got = tj.nan_to_num(tj.asarray(x), **given)
    np.testing.assert_array_equal(got.numpy(), np.nan_to_num(x, **given), strict=True)


def test_nan_to_num_of_other_dtypes() -> None:
    kind = dtype_named("bfloat16")
    top = tj.nan_to_num(tj.asarray([INF], dtype=kind)).numpy().astype(np.float64)
    assert np.isfinite(top).all()
    assert not np.isfinite(np.nextafter(top.astype(kind), kind.type(INF)).astype(float))
    z = np.array([complex(NAN, 1), complex(2, INF), 3 - 1j])
    np.testing.assert_array_equal(
        tj.nan_to_num(tj.asarray(z)).numpy(), np.nan_to_num(z)
    )
    integers = tj.asarray([1, 2])
    assert tj.nan_to_num(integers).dtype == integers.dtype


# Closeness


@pytest.mark.parametrize("equal_nan", [False, True])
def test_isclose_is_numpys(equal_nan: bool) -> None:
    nudged = np.concatenate([SPECIAL, SPECIAL * (1 + 1e-6), SPECIAL + 1e-3])
    x, y = nudged[:, None], nudged
    with np.errstate(all="ignore"):
        expected = np.isclose(x, y, equal_nan=equal_nan)
    got = tj.isclose(tj.asarray(x), y, equal_nan=equal_nan)
    np.testing.assert_array_equal(got.numpy(), expected)
    loose = tj.isclose(tj.asarray([1.0, 2.0]), [1.2, 2.9], rtol=0.0, atol=0.5)
    np.testing.assert_array_equal(loose.numpy(), [True, False])


def test_closeness_of_other_dtypes() -> None:
    z = np.array([1 + 1j, complex(INF, 1), 2j])
    np.testing.assert_array_equal(
        tj.isclose(tj.asarray(z), z + 1e-9).numpy(), np.isclose(z, z + 1e-9)
    )
    small = tj.asarray([3, 4], dtype="uint8")
    assert not tj.allclose(small, tj.asarray([4, 3], dtype="uint8"))
    assert tj.allclose(tj.asarray([True, False]), tj.asarray([True, False]))


def test_a_python_number_takes_the_dtype_of_what_it_is_compared_with() -> None:
    x = tj.asarray([0.1], dtype="float64")
    assert tj.allclose(x, 0.1, rtol=0, atol=0)
    assert tj.allclose(x, np.float64(0.1), rtol=0, atol=0)


def test_array_equal_is_numpys() -> None:
    x = tj.asarray([1.0, NAN])
    assert tj.array_equal(x, x) is False
    assert tj.array_equal(x, x, equal_nan=True) is True
    assert tj.array_equal([1, 2], tj.asarray([1.0, 2.0])) is True
    assert tj.array_equal(tj.ones((2, 1)), tj.ones(2)) is False
    assert tj.array_equal(tj.ones((0, 2)), tj.zeros((0, 2))) is True
    assert tj.array_equal([1, 2], [1, 2], equal_nan=True) is True
