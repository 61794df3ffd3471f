"""Derivatives where they are a matter of choice: kinks, NaN, complex (27 to 29)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped


def derivatives(function: Any, setup: Any) -> list[Any]:
    """The gradient by each argument, in every mode, by tapes inside and around."""

    def program(*xs: Any) -> Any:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as tape:
                y = function(*xs)
            found = tape.gradient(y, list(xs))
        return y, found, outer.gradient([g for g in found if g is not None], list(xs))

    found: list[Any] = assert_modes(program, setup).result[1]
    around = assert_taped(lambda *xs: function(*xs), setup)[0]
    for got, same in zip(found, around, strict=True):
        np.testing.assert_array_equal(got, same)
    return found


def slopes(function: Any, *values: Any) -> list[Any]:
    """The gradient of a function by each of its arguments, in float64."""
    arrays = [np.asarray(value, np.float64) for value in values]
    found = derivatives(function, lambda: tuple(map(tj.Variable, arrays)))
    return [None if g is None else g.tolist() for g in found]


def slope(function: Any, value: Any) -> Any:
    """The gradient of a function of one argument."""
    return slopes(function, value)[0]


# 27: kinks


def test_s27_the_positive_part_is_flat_at_zero() -> None:
    assert slope(lambda x: tj.maximum(0.0, x), [-1.0, 0.0, 2.0]) == [0.0, 0.0, 1.0]


def test_s27_abs_is_flat_at_zero() -> None:
    assert slope(tj.abs, [-2.0, 0.0, 2.0]) == [-1.0, 0.0, 1.0]
    assert slope(abs, [-2.0, 0.0, 2.0]) == [-1.0, 0.0, 1.0]
    assert slope(np.abs, 0.0) == 0.0


def test_s27_sqrt_is_infinitely_steep_at_zero() -> None:
    assert slope(tj.sqrt, 0.0) == np.inf


def test_s27_ties_of_maximum_and_minimum_go_to_the_first_argument() -> None:
    tied = ([1.0, 2.0, 5.0], [1.0, 3.0, 4.0])
    assert slopes(tj.maximum, *tied) == [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    assert slopes(tj.minimum, *tied) == [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert slope(lambda x: tj.maximum(x, 0.0), 0.0) == 1.0
    assert slope(lambda x: tj.minimum(0.0, x), 0.0) == 0.0


@pytest.mark.parametrize(("reduce", "sign"), [(tj.max, 1.0), (tj.min, -1.0)])
def test_s27_ties_of_a_reduction_share_equally(reduce: Any, sign: float) -> None:
    data = sign * np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 0.0]])
    assert slope(reduce, data) == [[0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]
    assert slope(lambda x: reduce(x, axis=1), data) == [[0, 0.5, 0.5], [1, 0, 0]]
    assert slope(lambda x: reduce(x, axis=0), data) == [[0, 1, 1], [1, 0, 0]]
    assert slope(reduce, [sign, sign, sign, sign]) == [0.25] * 4


def test_s27_clip_has_slope_one_at_its_bounds() -> None:
    points = [-1.0, 0.0, 0.5, 1.0, 2.0]
    assert slope(lambda x: tj.clip(x, 0.0, 1.0), points) == [0, 1, 1, 1, 0]
    assert slope(lambda x: tj.clip(x, 0.0), points) == [0, 1, 1, 1, 1]
    assert slope(lambda x: tj.clip(x, max=1.0), points) == [1, 1, 1, 1, 0]
    assert slope(lambda x: x.clip(0.0, 1.0), points) == [0, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([2.0, 3.0, 4.0], [12.0, 8.0, 6.0]),
        ([2.0, 0.0, 4.0], [0.0, 8.0, 0.0]),
        ([2.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([0.0], [1.0]),
        ([1e-300, 1e300, 3.0], [3e300, 3e-300, 1.0]),
    ],
)
def test_s27_prod_is_exact_where_elements_are_zero(data: Any, expected: Any) -> None:
    np.testing.assert_allclose(slope(tj.prod, data), expected, rtol=1e-14)
    both = slope(lambda x: tj.prod(x, axis=0), np.stack([data, data], 1))
    np.testing.assert_allclose(both, np.stack([expected, expected], 1), rtol=1e-14)


def test_s27_so_is_cumulative_prod() -> None:
    assert slope(tj.cumulative_prod, [2.0, 0.0, 3.0]) == [1.0, 8.0, 0.0]


def test_s27_the_second_derivative_of_prod_is_exact_too() -> None:
    setup = lambda: tj.asarray(np.array([2.0, 0.0, 0.0]))
    expected = [[0.0, 0.0, 0.0], [0.0, 0.0, 2.0], [0.0, 2.0, 0.0]]
    assert_modes(lambda x: tj.hessian(tj.prod)(x), setup, expected=expected)


def test_s27_a_power_of_zero_is_constant_also_at_zero() -> None:
    for exponent in (0, 0.0, np.float64(0), tj.asarray(0.0), tj.asarray(0)):
        assert slope(lambda x, p=exponent: x**p, [-2.0, 0.0, 2.0]) == [0.0, 0.0, 0.0]
        assert slope(lambda x, p=exponent: tj.pow(x, p), 0.0) == 0.0


def test_s27_small_powers_at_zero() -> None:
    assert slope(lambda x: x**1, [0.0, -2.0]) == [1.0, 1.0]
    assert slope(lambda x: x**2, [0.0, -2.0]) == [0.0, -4.0]
    assert slope(lambda x: x**3, [0.0, -2.0]) == [0.0, 12.0]
    assert slope(lambda x: x**2.0, [0.0, -2.0]) == [0.0, -4.0]
    assert slope(lambda x: x**0.5, 0.0) == np.inf
    mixed = slope(lambda x: x ** tj.asarray([0.0, 1.0, 2.0, 3.0]), [0.0] * 4)
    assert mixed == [0.0, 1.0, 0.0, 0.0]


def test_s27_by_the_exponent_zero_and_negative_bases_give_zero() -> None:
    assert slope(lambda p: tj.pow(0.0, p), [0.0, 1.0, 2.0]) == [0.0, 0.0, 0.0]
    assert slope(lambda p: 0.0**p, [0.0, 1.0, 2.0]) == [0.0, 0.0, 0.0]
    found = slope(lambda p: tj.pow(-2.0, p), [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(found, [0.0, 0.0, 0.0])
    by_base, by_exponent = slopes(tj.pow, [0.0, -2.0, 2.0], [2.0, 3.0, 3.0])
    assert by_base == [0.0, 12.0, 12.0]
    np.testing.assert_allclose(by_exponent, [0.0, 0.0, 8 * np.log(2)], rtol=1e-15)


@pytest.mark.parametrize("norm", [np.linalg.norm, tj.linalg.vector_norm])
def test_s27_the_norm_is_flat_at_zero(norm: Any) -> None:
    assert slope(norm, [0.0, 0.0]) == [0.0, 0.0]
    np.testing.assert_allclose(slope(norm, [3.0, 4.0]), [0.6, 0.8], rtol=1e-15)


@pytest.mark.parametrize(
    "function",
    [
        tj.floor,
        tj.ceil,
        tj.round,
        tj.trunc,
        round,
        lambda x: x // 2.0,
        lambda x: 7.0 // x,
        lambda x: tj.floor_divide(x, 0.3),
        tj.sign,
        np.floor,
        np.rint,
    ],
)
def test_s27_a_staircase_has_slope_zero_not_none(function: Any) -> None:
    assert slope(function, [1.5, -2.5, 2.0]) == [0.0, 0.0, 0.0]


def test_s27_the_remainder_follows_its_operands() -> None:
    by_x, by_y = slopes(lambda x, y: x % y, [7.5, -7.5], [2.0, 2.0])
    assert by_x == [1.0, 1.0]
    assert by_y == [-3.0, 4.0]


def test_s27_forward_mode_chooses_the_same_slope() -> None:
    cases = [
        (tj.abs, 0.0),
        (lambda x: tj.maximum(0.0, x), 0.0),
        (lambda x: tj.maximum(x, 0.0), 0.0),
        (lambda x: tj.clip(x, 0.0, 1.0), 1.0),
        (lambda x: x**0, 0.0),
        (tj.floor, 1.5),
        (lambda x: tj.max(tj.stack([x, x, 0.0 * x])), 1.0),
    ]
    points = [at for _, at in cases]

    def program(*xs: Any) -> Any:
        pairs = zip(cases, xs, strict=True)
        return [
            (tj.jvp(function, (x,), (1.0,))[1], tj.grad(function)(x))
            for (function, _), x in pairs
        ]

    setup = lambda: tuple(tj.asarray(at, dtype="float64") for at in points)
    for tangent, gradient in assert_modes(program, setup).result:
        assert float(tangent) == float(gradient)


# 28: where


def test_s28_the_cotangent_is_masked() -> None:
    data = [-1.0, 2.0]
    assert slopes(lambda x, y: tj.where([True, False], x, y), data, data) == [
        [1.0, 0.0],
        [0.0, 1.0],
    ]
    assert slope(lambda x: tj.where(x > 0, x * 3.0, x * 5.0), data) == [5.0, 3.0]


def test_s28_the_condition_gets_nothing() -> None:
    assert slope(lambda c: tj.where(c, 1.0, 2.0), [0.0, 1.0]) is None


def test_s28_it_broadcasts_and_sums_back() -> None:
    mask = np.array([[True, False], [True, True]])
    assert slopes(lambda x, y: tj.where(mask, x, y), 1.0, [5.0, 6.0]) == [
        3.0,
        [0.0, 1.0],
    ]


def test_s28_a_nan_born_in_the_branch_not_taken_shows() -> None:
    found = slope(lambda x: tj.where(x > 0, tj.sqrt(x), 0.0), [0.0, 4.0])
    assert np.isnan(found[0]), "0 * inf"
    assert found[1] == 0.25


def test_s28_a_harmless_branch_not_taken_does_not() -> None:
    assert slope(lambda x: tj.where(x > 0, tj.log(x), x), [-1.0, 2.0]) == [1.0, 0.5]


def test_s28_a_value_made_safe_first_gives_no_nan() -> None:
    def safe_sqrt(x: Any) -> tj.Tensor:
        return tj.where(x > 0, tj.sqrt(tj.where(x > 0, x, 1.0)), 0.0)

    assert slope(safe_sqrt, [0.0, -1.0, 4.0]) == [0.0, 0.0, 0.25]


@pytest.mark.parametrize("at", [[1.0, -1.0], [0.0, 4.0], [np.nan, np.inf]])
def test_s28_the_same_in_every_mode_where_numbers_are_not_finite(at: Any) -> None:
    def program(x: Any) -> Any:
        safe = tj.where(x > 0.0, x, 1.0)
        return tj.where(x > 0.0, tj.log(x), x), tj.where(x > 0.0, tj.log(safe), x)

    found = assert_taped(program, lambda: tj.asarray(at))
    if at[0] == 0.0:
        assert np.isnan(found[2][0][0].numpy()[0])
        assert found[2][1][0].tolist() == [1.0, 0.25]


def test_s28_nan_and_infinity_cause_no_numpy_warning() -> None:
    with np.errstate(all="raise"):
        assert slope(tj.log, 0.0) == np.inf
        assert np.isnan(slope(lambda x: tj.where(x > 0, tj.sqrt(x), 0.0), 0.0))
        assert (tj.asarray(1.0) / 0.0).item() == np.inf
        assert np.isnan(tj.sqrt(tj.asarray(-1.0)).item())
        assert tj.exp(tj.asarray(1000.0)).item() == np.inf
        assert tj.vmap(tj.log)(tj.zeros(1)).tolist() == [-np.inf]
        assert np.geterr()["divide"] == "raise", "the user's setting stays"
        with pytest.raises(FloatingPointError):
            np.ones(1) / np.zeros(1)


# 29: complex numbers


def complex_slope(function: Any, value: complex) -> complex:
    """The gradient by one complex number."""
    (g,) = derivatives(function, lambda: tj.Variable(value, dtype="complex128"))
    assert g.dtype == np.complex128
    return g.item()


HOLOMORPHIC = {
    "square": (lambda z: z**2, lambda z: 2 * z),
    "product": (lambda z: z * z, lambda z: 2 * z),
    "cube": (lambda z: z * z * z, lambda z: 3 * z**2),
    "scaled": (lambda z: z * (3 - 1j), lambda z: 3 - 1j),
    "divided": (lambda z: 1.0 / z, lambda z: -1 / z**2),
    "exp": (tj.exp, np.exp),
    "log": (tj.log, lambda z: 1 / z),
    "sin": (tj.sin, np.cos),
    "sqrt": (tj.sqrt, lambda z: 0.5 / np.sqrt(z)),
}


@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_s29_the_conjugate_of_the_holomorphic_derivative(name: str) -> None:
    function, derivative = HOLOMORPHIC[name]
    for at in (1 + 2j, 3 + 4j, 1 - 2j):
        expected = np.conj(derivative(at))
        np.testing.assert_allclose(complex_slope(function, at), expected, rtol=1e-14)


def test_s29_the_square_and_the_absolute_value_as_in_the_contract() -> None:
    setup = lambda: (tj.Variable(1 + 2j), tj.Variable(3 + 4j))
    square, absolute = derivatives(lambda z, w: (z**2, tj.abs(w)), setup)
    assert square.item() == 2 - 4j
    assert tj.abs(tj.Variable(3 + 4j)).dtype == np.float32
    np.testing.assert_allclose(absolute.item(), 0.6 + 0.8j, rtol=1e-6)


REAL_VALUED = {
    "real": (tj.real, 1),
    "imag": (tj.imag, 1j),
    "abs": (tj.abs, 0.6 + 0.8j),
    "squared abs": (lambda z: tj.real(z * tj.conj(z)), 6 + 8j),
    "angle": (tj.angle, 1j * (3 + 4j) / 25),
    "real of the conjugate": (lambda z: tj.real(tj.conj(z) * 1j), 1j),
}


@pytest.mark.parametrize("name", REAL_VALUED)
def test_s29_of_a_real_value_it_points_uphill(name: str) -> None:
    """dL/dx + i dL/dy: the direction in which the real value grows."""
    function, expected = REAL_VALUED[name]
    found = complex_slope(function, 3 + 4j)
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)

    def rise(direction: complex) -> float:
        ends = [3 + 4j + 1e-6 * direction, 3 + 4j - 1e-6 * direction]
        high, low = (function(tj.asarray(z, dtype="complex128")).item() for z in ends)
        return (high - low) / 2e-6

    np.testing.assert_allclose(found, rise(1) + 1j * rise(1j), rtol=1e-6, atol=1e-8)


def test_s29_the_absolute_value_is_flat_at_zero() -> None:
    assert complex_slope(tj.abs, 0j) == 0


def test_s29_conj_conjugates_the_cotangent() -> None:
    assert complex_slope(lambda z: tj.conj(z) * 2j, 1 + 2j) == 2j
    assert complex_slope(tj.conj, 1 + 2j) == 1


def test_s29_a_real_source_of_a_complex_target_has_a_real_gradient() -> None:
    (g,) = derivatives(lambda x: x * (3 + 4j), lambda: tj.Variable(2.0))
    assert g.dtype == np.float32
    assert float(g) == 3.0


def test_s29_second_derivatives_of_complex_numbers() -> None:
    def program(z: Any) -> Any:
        with tj.GradientTape(persistent=True) as outer:
            with tj.GradientTape() as inner:
                y = z**3
            g = inner.gradient(y, z)
            real_part = tj.real(g)
        late = tj.real(g)
        return g, outer.gradient(real_part, z), outer.gradient(late, z)

    first, second, late = assert_modes(program, lambda: tj.Variable(1 + 2j)).result
    np.testing.assert_allclose(first.item(), np.conj(3 * (1 + 2j) ** 2), rtol=1e-6)
    # Re(conj(3 z²)) = 3 (x² - y²): the gradient is 6x - 6iy.
    np.testing.assert_allclose(second.item(), 6 - 12j, rtol=1e-6)
    assert late is None, "taken after the block"
