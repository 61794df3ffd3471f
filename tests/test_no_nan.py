"""Quotients and products that a zero decides: values, derivatives, signs, dtypes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from composed import Composed as Case
from composed import assert_mapped_is_a_loop

import tapejit as tj

SPECIAL = [0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan]
PAIRS = np.array(list(itertools.product(SPECIAL, SPECIAL))).T


def quotient(x: float, y: float) -> float:
    with np.errstate(all="ignore"):
        return 0.0 if y == 0 else float(np.divide(x, y))


def product(x: float, y: float) -> float:
    with np.errstate(all="ignore"):
        return 0.0 if y == 0 else float(np.multiply(x, y))


FUNCTIONS = {"divide_no_nan": quotient, "multiply_no_nan": product}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_the_rule(name: str) -> None:
    x, y = PAIRS
    found = getattr(tj, name)(x, y).numpy()
    expected = np.array([FUNCTIONS[name](*pair) for pair in PAIRS.T])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_finite_where_the_result_is_cut(name: str) -> None:
    function = getattr(tj, name)
    x, y = (part[PAIRS[1] == 0] for part in PAIRS)

    def slope(x: tj.Tensor, y: tj.Tensor) -> tuple[tj.Tensor, ...]:
        return tj.grad(
            lambda x, y: tj.sum(function(x, y) ** 3 + function(x, y)), (0, 1)
        )(x, y)

    first = slope(x, y)
    second = tj.grad(lambda x, y: sum(map(tj.sum, slope(x, y))), argnums=(0, 1))(x, y)
    for found in (*first, *second):
        assert np.isfinite(found).all()
    if name == "multiply_no_nan":  # a product all the same, as far as it goes
        np.testing.assert_array_equal(first[1], np.where(np.isfinite(x), x, 0.0))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_elsewhere(name: str) -> None:
    x, y = np.array([[1.5, -2.0, 0.25]]), np.array([[3.0], [-0.5]])
    function = getattr(tj, name)
    tj.testing.check_grads(function, (x, y), order=2)
    z = np.array([1.0, 0.0, 2.0])
    case = Case(lambda x, z: function(x, z), (z + 1, z), lambda x, z: x)
    assert_mapped_is_a_loop(case, np.random.default_rng(1))


def test_dtypes() -> None:
    integers = tj.asarray([6, 3, 1])
    found = tj.divide_no_nan(integers, [4, 0, 2])
    assert (found.dtype, found.numpy().tolist()) == (tj.float32, [1.5, 0.0, 0.5])
    assert tj.multiply_no_nan(integers, [4, 0, 2]).dtype == tj.int32
    half = tj.asarray([1.0, 2.0], dtype="float16")
    assert tj.divide_no_nan(half, 2.0).dtype == tj.float16
    assert tj.multiply_no_nan(2.0, half).dtype == tj.float16
    z = tj.asarray([1j, complex(np.nan, 1), 2.0])
    assert tj.divide_no_nan(z, [2.0, 0.0, 1j]).tolist() == [0.5j, 0, -2j]
    assert tj.multiply_no_nan(z, [2.0, 0.0, 1j]).tolist() == [2j, 0, 2j]
