"""Derivatives where they are a matter of choice: kinks, NaN, complex (27 to 29)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj


def slopes(function: Any, *values: Any) -> list[Any]:
    """The gradient of a function by each of its arguments, in float64."""
    xs = [tj.Variable(np.asarray(value, np.float64)) for value in values]
    with tj.GradientTape() as tape:
        y = function(*xs)
    return [None if g is None else g.tolist() for g in tape.gradient(y, xs)]


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


def test_s27_the_second_derivative_of_prod_is_exact_too() -> None:
    found = tj.hessian(tj.prod)(tj.asarray(np.array([2.0, 0.0, 0.0])))
    assert found.tolist() == [[0, 0, 0], [0, 0, 2], [0, 2, 0]]


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


def test_s27_the_norm_is_flat_at_zero() -> None:
    def norm(x: Any) -> Any:
        return np.linalg.norm(x)

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


def test_s27_both_modes_choose_the_same_slope() -> None:
    cases = [
        (tj.abs, 0.0),
        (lambda x: tj.maximum(0.0, x), 0.0),
        (lambda x: tj.maximum(x, 0.0), 0.0),
        (lambda x: tj.clip(x, 0.0, 1.0), 1.0),
        (lambda x: x**0, 0.0),
        (tj.floor, 1.5),
        (lambda x: tj.max(tj.stack([x, x, 0.0 * x])), 1.0),
    ]
    for function, at in cases:
        x = tj.asarray(at, dtype="float64")
        _, tangent = tj.jvp(function, (x,), (1.0,))
        assert float(tangent) == slope(function, at)


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
    z = tj.Variable(value, dtype="complex128")
    with tj.GradientTape() as tape:
        y = function(z)
    g = tape.gradient(y, z)
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
    at = 1 + 2j
    expected = np.conj(derivative(at))
    np.testing.assert_allclose(complex_slope(function, at), expected, rtol=1e-14)


def test_s29_the_square_and_the_absolute_value_as_in_the_contract() -> None:
    z = tj.Variable(1 + 2j)
    with tj.GradientTape() as tape:
        y = z**2
    assert tape.gradient(y, z).item() == 2 - 4j
    w = tj.Variable(3 + 4j)
    with tj.GradientTape() as tape:
        y = tj.abs(w)
    assert y.dtype == np.float32
    np.testing.assert_allclose(tape.gradient(y, w).item(), 0.6 + 0.8j, rtol=1e-6)


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
    x = tj.Variable(2.0)
    with tj.GradientTape() as tape:
        y = x * (3 + 4j)
    g = tape.gradient(y, x)
    assert g.dtype == np.float32
    assert float(g) == 3.0


def test_s29_second_derivatives_of_complex_numbers() -> None:
    z = tj.Variable(1 + 2j)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = z**3
        g = inner.gradient(y, z)
    np.testing.assert_allclose(g.item(), np.conj(3 * (1 + 2j) ** 2), rtol=1e-6)
    second = outer.gradient(tj.real(g), z)
    assert second is None, "taken after the block"
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = z**3
        real_part = tj.real(inner.gradient(y, z))
    # Re(conj(3 z²)) = 3 (x² - y²): the gradient is 6x - 6iy.
    np.testing.assert_allclose(outer.gradient(real_part, z).item(), 6 - 12j, rtol=1e-6)
