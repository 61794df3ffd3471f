"""What "agree" means: one table, used wherever numbers of two ways are compared.

A result belongs to a class, and `BOUNDS` says how far a result of that class may be
from the truth. No test has a tolerance of its own, and neither has `Function.verify`.

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
  element. It is for comparing modes with each other, never with the truth. A graph that
  has run n times, each time on its last results, as the steps of a training do: n times
  that, the `count` of a `Truth`.

In every class NaN, infinities and signs of zero are where the truth has them.

The truth is an array of the result's dtype or a wider one; a `Truth` says besides how
many terms a sum has and what their magnitudes add up to.

Start reading at `difference`, then `BOUNDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Truth:
    """A value in wide precision, of `count` terms whose magnitudes sum to `scale`."""

    value: Any
    count: int = 1
    scale: Any = 0.0


@dataclass(frozen=True)
class Difference:
    """The first place where two arrays disagree, and by how much.

    `count` elements of `size` do; `ulps` is None where there is no such distance: a
    NaN, an infinity or a sign of zero that only one of them has.
    """

    what: str
    index: tuple[int, ...]
    got: Any
    expected: Any
    ulps: float | None
    count: int
    size: int


def difference(op_class: str, got: Any, truth: Any) -> Difference | None:
    """Where `got` is not as near to the truth as its class demands; shapes are equal.

    >>> difference(EXACT, np.float32([1, 2]), np.float32([1, 2])) is None
    True
    >>> found = difference(EXACT, np.float32([1, 2]), np.float32([1, 2.0000002]))
    >>> found.index, found.ulps, found.what
    ((1,), 1.0, 'off by 1 ULP, allowed 0')
    """
    got = np.asarray(got)
    if not isinstance(truth, Truth):
        truth = Truth(truth)
    expected = np.asarray(truth.value)
    rounded = round_to(expected, got.dtype)
    for part, correct in zip(parts_of(got), parts_of(rounded), strict=True):
        kind = other_kind(part, correct)
        if kind is not None:
            what, is_other = kind
            return _difference(what, is_other, got, expected, None)
    bound, distance, unit = BOUNDS[op_class](got, expected, rounded, truth)
    is_far = np.isfinite(widen(rounded)) & ~(distance <= bound)
    if not np.any(is_far):
        return None
    at = first_of(is_far)
    allowed = np.broadcast_to(bound, got.shape)[at]
    far = np.asarray(distance)[at]
    what = f"off by {far:.3g} {unit}, allowed {allowed:.3g}"
    return _difference(what, is_far, got, expected, ulps_between(got, rounded)[at])


def first_of(flags: Array) -> tuple[int, ...]:
    """Where the first True is."""
    return tuple(int(i) for i in np.argwhere(flags)[0])


def _difference(
    what: str, flags: Array, got: Array, expected: Array, ulps: Any
) -> Difference:
    at = first_of(flags)
    steps = None if ulps is None else float(ulps)
    count = int(np.count_nonzero(flags))
    return Difference(what, at, got[at], expected[at], steps, count, got.size)


def other_kind(got: Array, correct: Array) -> tuple[str, Array] | None:
    """Which of NaN, infinity and sign of zero differ, and where."""
    if not is_inexact(got.dtype):
        return None
    got, correct = widen(got), widen(correct)
    checks = {
        "NaN": (np.isnan(got), np.isnan(correct)),
        "infinity": (inf_signs(got), inf_signs(correct)),
        "sign of zero": (zero_signs(got, correct), zero_signs(correct, got)),
    }
    for what, (found, wanted) in checks.items():
        if np.any(found != wanted):
            return f"{what} differs", found != wanted
    return None


def inf_signs(x: Array) -> Array:
    """The sign of each infinity, 0 elsewhere."""
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
    """The errors of a sum add up as its terms are paired."""
    steps = max(1.0, np.log2(max(truth.count, 1)))
    if not is_inexact(got.dtype):
        return 0, ulps_between(got, rounded), "units"
    allowed = steps * eps_of(got.dtype) * np.asarray(truth.scale)
    return allowed + tiny_of(got.dtype), distance_of(got, expected), "absolute"


def product_bound(got: Array, expected: Array, rounded: Array, truth: Truth) -> Any:
    """Each factor of a product costs one rounding."""
    if not is_inexact(got.dtype):
        return 0, ulps_between(got, rounded), "units"
    allowed = max(truth.count, 1) * eps_of(got.dtype) * magnitude_of(expected)
    return allowed + tiny_of(got.dtype), distance_of(got, expected), "absolute"


def composed_bound(got: Array, expected: Array, rounded: Array, truth: Truth) -> Any:
    """Errors of single operations spread to the whole result."""
    if not is_inexact(got.dtype):
        return 0, ulps_between(got, rounded), "units"
    magnitudes = magnitude_of(expected)
    largest = np.max(magnitudes, where=np.isfinite(magnitudes), initial=0.0)
    allowed = 64 * max(truth.count, 1) * eps_of(got.dtype) * largest
    return allowed, distance_of(got, expected), "absolute"


BOUNDS: dict[str, Bound] = {
    **{name: in_ulps(name) for name in ULPS},
    SUM: sum_bound,
    PRODUCT: product_bound,
    FACTORED: composed_bound,
    COMPOSED: composed_bound,
}


def distance_of(got: Array, expected: Array) -> Array:
    """How far apart two numbers are, measured in a wide precision."""
    with np.errstate(invalid="ignore"):  # inf - inf; those are compared elsewhere
        return np.asarray(np.abs(widen(got) - widen(expected)))


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
    """Whether numbers of a dtype are rounded: floats and complex numbers."""
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def widen(x: Array) -> Array:
    """`x` where arithmetic on it is exact enough to measure with."""
    x = np.asarray(x)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def parts_of(x: Array) -> tuple[Array, ...]:
    """A complex array as its two parts, any other as itself."""
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
        return np.asarray(np.maximum(*[ulps_between(x, y) for x, y in pairs]))
    if not is_inexact(a.dtype):
        # Unequal integers and bools are as far apart as one can tell without overflow.
        return np.asarray(a != b).astype(np.longdouble)
    both_nan = np.isnan(widen(a)) & np.isnan(widen(b))
    return np.where(both_nan, 0, np.abs(lattice(a) - lattice(b)))


def lattice(x: Array) -> Array:
    """The position of each number among all of its dtype; both zeros are at 0."""
    size = x.dtype.itemsize
    bits = np.ascontiguousarray(x).reshape(x.shape).view(f"i{size}")
    lowest = np.iinfo(bits.dtype).min
    ordered = np.where(bits < 0, lowest - bits, bits)  # the magnitude, negated
    return ordered.astype(np.longdouble)  # 64 bits of mantissa: differences are exact
