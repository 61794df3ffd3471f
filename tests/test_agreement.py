"""The judge is judged: what `assert_agrees` lets pass and what it does not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from agreement import (
    COMPOSED,
    EXACT,
    POWER,
    PRODUCT,
    ROUNDED,
    SUM,
    TRANSCENDENTAL,
    Truth,
    assert_agrees,
    round_to,
    ulps_between,
)

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def stepped(x: float, steps: int, dtype: Any) -> np.ndarray[Any, Any]:
    """The number so many places up from `x`."""
    start = np.array([x], dtype)
    bits = start.view(f"i{start.itemsize}")
    return (bits + steps).astype(bits.dtype).view(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("op_class", "allowed"), [(EXACT, 0), (ROUNDED, 0), (TRANSCENDENTAL, 2), (POWER, 4)]
)
def test_as_many_ulps_as_the_class_allows(
    op_class: str, allowed: int, dtype: Any
) -> None:
    truth = np.array([1.5], dtype)
    assert_agrees(op_class, stepped(1.5, allowed, dtype), truth)
    assert_agrees(op_class, stepped(1.5, -allowed, dtype), truth)
    for steps in (allowed + 1, -allowed - 1):
        with pytest.raises(AssertionError, match="disagree"):
            assert_agrees(op_class, stepped(1.5, steps, dtype), truth)


@pytest.mark.parametrize("op_class", [EXACT, TRANSCENDENTAL, SUM, PRODUCT, COMPOSED])
@pytest.mark.parametrize(
    ("got", "truth", "what"),
    [
        (0.0, -0.0, "sign of zero"),
        (np.nan, 1.0, "NaN"),
        (1.0, np.nan, "NaN"),
        (np.inf, -np.inf, "infinity"),
        (np.inf, 1.7e308, "infinity"),
        (1.7e308, np.inf, "infinity"),
    ],
)
def test_what_is_not_a_plain_number_must_be_the_same(
    op_class: str, got: float, truth: float, what: str
) -> None:
    wide = Truth(np.array([truth]), 10, np.array([np.inf]))
    with pytest.raises(AssertionError, match=what):
        assert_agrees(op_class, np.array([got]), wide)
    assert_agrees(op_class, np.array([truth]), wide)


def test_shapes_must_be_the_same() -> None:
    with pytest.raises(AssertionError, match="is not"):
        assert_agrees(EXACT, np.zeros(3), np.zeros((3, 1)))


def test_integers_and_bools_are_exact() -> None:
    big = np.array([2**63 - 1])
    assert_agrees(EXACT, big, big)
    for op_class in (EXACT, SUM, PRODUCT):
        with pytest.raises(AssertionError, match="disagree"):
            assert_agrees(op_class, big, big - 1)
    with pytest.raises(AssertionError, match="disagree"):
        assert_agrees(EXACT, np.array([True]), np.array([False]))


def test_a_sum_is_judged_by_its_terms() -> None:
    """Of a thousand terms: ten roundings of what their magnitudes add up to."""
    eps, truth = 2.0**-52, Truth(np.array([1.0]), 1024, np.array([50.0]))
    assert_agrees(SUM, np.array([1.0 + 10 * eps * 49]), truth)
    with pytest.raises(AssertionError, match="disagree"):
        assert_agrees(SUM, np.array([1.0 + 10 * eps * 51]), truth)


def test_a_product_is_judged_by_the_number_of_its_factors() -> None:
    eps, truth = 2.0**-52, Truth(np.array([1.0]), 100)
    assert_agrees(PRODUCT, np.array([1.0 + 99 * eps]), truth)
    with pytest.raises(AssertionError, match="disagree"):
        assert_agrees(PRODUCT, np.array([1.0 + 101 * eps]), truth)


def test_what_has_run_often_is_judged_by_how_often() -> None:
    eps, truth = 2.0**-52, np.array([1.0, 2.0])
    for count in (1, 100):
        allowed = 64 * count * eps * 2
        assert_agrees(COMPOSED, truth - [0.99 * allowed, 0], Truth(truth, count))
        with pytest.raises(AssertionError, match="disagree"):
            assert_agrees(COMPOSED, truth - [1.01 * allowed, 0], Truth(truth, count))


def test_a_complex_number_is_judged_by_its_magnitude() -> None:
    eps, truth = 2.0**-52, np.array([4.0 + 1e-12j])
    assert_agrees(TRANSCENDENTAL, truth + 1j * 15 * eps, truth)
    with pytest.raises(AssertionError, match="disagree"):
        assert_agrees(TRANSCENDENTAL, truth + 1j * 17 * eps, truth)
    with pytest.raises(AssertionError, match="disagree"):
        assert_agrees(EXACT, truth + 1j * eps, truth)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wide", [np.float64, np.longdouble])
def test_rounding_to_halves_happens_once(dtype: Any, wide: Any) -> None:
    eps = wide(float(ml_dtypes.finfo(dtype).eps))
    middle = 1 + eps / 2
    beside = np.array([middle, middle + wide(2.0**-45), middle - wide(2.0**-45)], wide)
    found = round_to(beside, np.dtype(dtype)).astype(np.float64)
    np.testing.assert_array_equal(found, [1, 1 + float(eps), 1])


def test_steps_are_counted_across_zero_and_to_infinity() -> None:
    tiny, largest = np.array([5e-324]), np.array([np.finfo(np.float64).max])
    assert ulps_between(tiny, -tiny) == 2
    assert ulps_between(np.array([0.0]), np.array([-0.0])) == 0
    assert ulps_between(largest, np.array([np.inf])) == 1
    assert ulps_between(-largest, largest) == 2 * (0x7FEFFFFFFFFFFFFF)
