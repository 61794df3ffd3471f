"""What "agree" means: one table, used by every test that compares numbers.

A result belongs to a class, and `BOUNDS` says how far a result of that class may be
from the truth. No test has a tolerance of its own.

- `EXACT`: movement, comparison, integers, + and -: the same bits.
- `ROUNDED`: × ÷ and square roots: the same bits for real numbers. A complex one is a
  sum of products, which hardware may fuse: within 2 eps of its own magnitude.
- `TRANSCENDENTAL`: within 2 ULP of the correctly rounded result; `POWER` within 4. A
  complex function is a product of two real ones, so twice that, and by the magnitude
  of the result: its smaller part may have no digit right.
- `SUM`: sums, products of matrices: log2(n) eps Σ|terms|; `PRODUCT`: n eps, relative.
- `FACTORED`: systems and factorisations of regular matrices, whose errors follow the
  size of the whole matrix: 64 eps of the largest element.
- `COMPOSED`: a graph of several operations computed in two ways: 64 eps of the largest
  element. It is for comparing modes with each other, never with the truth.

In every class NaN, infinities and signs of zero are where the truth has them.

The truth is an array of the result's dtype or a wider one; a `Truth` says besides how
many terms a sum has and what their magnitudes add up to.

Start reading at `assert_agrees`, then `BOUNDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

EXACT = "exact"
ROUNDED = "rounded"
TRANSCENDENTAL = "transcendental"
POWER = "power"
SUM = "sum"
PRODUCT = "product"
FACTORED = "factored"
COMPOSED = "composed"

ULPS = {EXACT: 0, ROUNDED: 0, TRANSCENDENTAL: 2, POWER: 4}
COMPLEX_EPS = {ROUNDED: 2, TRANSCENDENTAL: 4, POWER: 8}


class Truth(NamedTuple):
    """A value in wide precision, of `count` terms whose magnitudes sum to `scale`."""

    value: Any
    count: int = 1
    scale: Any = 0.0


def assert_agrees(op_class: str, got: Any, truth: Any, *, where: str = "") -> None:
    """Fail unless `got` is as near to the truth as its class demands."""
    got = np.asarray(got)
    if not isinstance(truth, Truth):
        truth = Truth(truth)
    expected = np.asarray(truth.value)
    assert got.shape == expected.shape, f"{where}: {got.shape} is not {expected.shape}"
    rounded = round_to(expected, got.dtype)
    for part, correct in zip(parts_of(got), parts_of(rounded), strict=True):
        assert_same_kind(part, correct, where)
    bound, distance, unit = BOUNDS[op_class](got, expected, rounded, truth)
    is_far = np.isfinite(widen(rounded)) & ~(distance <= bound)
    if np.any(is_far):
        at = tuple(int(i) for i in np.argwhere(is_far)[0])
        allowed = np.broadcast_to(bound, got.shape)[at]
        raise AssertionError(
            f"{where}: {np.count_nonzero(is_far)} of {got.size} elements disagree; at "
            f"{list(at)} got {got[at]!r}, the truth is {expected[at]!r}: "
            f"off by {np.asarray(distance)[at]:.3g} {unit}, allowed {allowed:.3g}"
        )


def assert_same_kind(got: Array, correct: Array, where: str) -> None:
    """NaN, infinities and signs of zero must be in the same places."""
    if not is_inexact(got.dtype):
        return
    got, correct = widen(got), widen(correct)
    checks = {
        "NaN": (np.isnan(got), np.isnan(correct)),
        "infinity": (inf_signs(got), inf_signs(correct)),
        "sign of zero": (zero_signs(got, correct), zero_signs(correct, got)),
    }
    for what, (found, wanted) in checks.items():
        if np.any(found != wanted):
            at = tuple(int(i) for i in np.argwhere(found != wanted)[0])
            raise AssertionError(
                f"{where}: {what} differs at {list(at)}: "
                f"got {got[at]!r}, the truth is {correct[at]!r}"
            )


def inf_signs(x: Array) -> Array:
    return np.where(np.isinf(x), np.sign(x), 0)


def zero_signs(x: Array, other: Array) -> Array:
    """The sign of `x` where both are zero."""
    return np.where((x == 0) & (other == 0), np.copysign(1, x), 0)


# Bounds: (got, expected, rounded, truth) -> what is allowed, what it is, its unit

Bound = Callable[[Array, Array, Array, Truth], tuple[Any, Any, str]]


def in_ulps(op_class: str) -> Bound:
    """Steps on the lattice of representable numbers."""

    def bound(got: Array, expected: Array, rounded: Array, truth: Truth) -> Any:
        if got.dtype.kind == "c" and op_class in COMPLEX_EPS:
            error = distance_of(got, expected)
            floor = np.finfo(got.dtype).smallest_subnormal
            allowed = COMPLEX_EPS[op_class] * eps_of(got.dtype)
            return allowed * magnitude_of(expected) + floor, error, "absolute"
        return ULPS[op_class], ulps_between(got, rounded), "ULP"

    return bound


def sum_bound(got: Array, expected: Array, rounded: Array, truth: Truth) -> Any:
    steps = max(1.0, np.log2(max(truth.count, 1)))
    if not is_inexact(got.dtype):
        return 0, ulps_between(got, rounded), "units"
    allowed = steps * eps_of(got.dtype) * np.asarray(truth.scale)
    return allowed + tiny_of(got.dtype), distance_of(got, expected), "absolute"


def product_bound(got: Array, expected: Array, rounded: Array, truth: Truth) -> Any:
    if not is_inexact(got.dtype):
        return 0, ulps_between(got, rounded), "units"
    allowed = max(truth.count, 1) * eps_of(got.dtype) * magnitude_of(expected)
    return allowed + tiny_of(got.dtype), distance_of(got, expected), "absolute"


def composed_bound(got: Array, expected: Array, rounded: Array, truth: Truth) -> Any:
    if not is_inexact(got.dtype):
        return 0, ulps_between(got, rounded), "units"
    magnitudes = magnitude_of(expected)
    largest = np.max(magnitudes, where=np.isfinite(magnitudes), initial=0.0)
    return 64 * eps_of(got.dtype) * largest, distance_of(got, expected), "absolute"


BOUNDS: dict[str, Bound] = {
    **{name: in_ulps(name) for name in ULPS},
    SUM: sum_bound,
    PRODUCT: product_bound,
    FACTORED: composed_bound,
    COMPOSED: composed_bound,
}


def distance_of(got: Array, expected: Array) -> Array:
    with np.errstate(invalid="ignore"):  # inf - inf; those are compared elsewhere
        return np.abs(widen(got) - widen(expected))


def magnitude_of(x: Array) -> Array:
    """The size of each number, 0 where it has none: a bound of it is not asked for."""
    size = np.abs(widen(x))
    return np.where(np.isfinite(size), size, 0)


def eps_of(dtype: Any) -> float:
    """The distance from 1 to the next number of a float or complex dtype."""
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)


def tiny_of(dtype: Any) -> float:
    """The smallest number of a float or complex dtype: what underflow may cost."""
    if dtype.name == "bfloat16":
        return 2.0**-133
    return float(np.finfo(dtype).smallest_subnormal)


# Representable numbers


def is_inexact(dtype: Any) -> bool:
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def widen(x: Array) -> Array:
    """`x` where arithmetic on it is exact enough to measure with."""
    x = np.asarray(x)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def parts_of(x: Array) -> tuple[Array, ...]:
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


def round_to(x: Array, dtype: Any) -> Array:
    """`x` in a dtype, rounded once: to nearest, ties to even."""
    with np.errstate(all="ignore"):
        if x.dtype == dtype:
            return x
        is_half = is_inexact(dtype) and dtype.itemsize == 2
        if is_half and x.dtype in (np.float64, np.longdouble):
            # NumPy goes through double, ml_dtypes through float. Rounded to odd on
            # the way, a number stays on its side of every tie.
            x = round_to_odd(x, np.float32)
        return x.astype(dtype)


def round_to_odd(x: Array, dtype: Any) -> Array:
    """`x` cut off, with the last bit set if anything was cut."""
    near = x.astype(dtype)
    cut = np.where(np.abs(near) > np.abs(x), np.nextafter(near, dtype(0)), near)
    bits = np.asarray(cut, dtype).view(np.int32)
    is_inside = np.isfinite(x) & (cut != x)
    return np.where(is_inside, bits | 1, bits).astype(np.int32).view(dtype)


def ulps_between(a: Array, b: Array) -> Array:
    """How many representable numbers lie from `a` to `b`; NaN to NaN is 0."""
    assert a.dtype == b.dtype
    if a.dtype.kind == "c":
        pairs = zip(parts_of(a), parts_of(b), strict=True)
        return np.maximum(*[ulps_between(x, y) for x, y in pairs])
    if not is_inexact(a.dtype):
        # Unequal integers and bools are as far apart as one can tell without overflow.
        return (a != b).astype(np.longdouble)
    both_nan = np.isnan(widen(a)) & np.isnan(widen(b))
    return np.where(both_nan, 0, np.abs(lattice(a) - lattice(b)))


def lattice(x: Array) -> Array:
    """The position of each number among all of its dtype; both zeros are at 0."""
    size = x.dtype.itemsize
    bits = np.ascontiguousarray(x).reshape(x.shape).view(f"i{size}")
    lowest = np.iinfo(bits.dtype).min
    ordered = np.where(bits < 0, lowest - bits, bits)  # the magnitude, negated
    return ordered.astype(np.longdouble)  # 64 bits of mantissa: differences are exact
