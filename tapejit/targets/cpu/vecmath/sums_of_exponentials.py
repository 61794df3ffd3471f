"""Logarithms of sums of exponentials, and softsign.

softplus x = log(1 + e^x) and its relatives are max + log(1 + s) with s = e^-|d| at most
1. There log(1 + s) = 2 atanh(s / (2 + s)) needs no further reduction: one division and
one polynomial for all s. What s has lost by rounding is added to first order, so that
results that are nearly s itself are right.

`logaddexp` and `logaddexp2` have zeros on a curve, where both parts cancel: there the
error is bounded by the distance from 1 to the next float.

Start reading at `softplus`.
"""

from __future__ import annotations

from tapejit.targets.cpu.simd.vector import Builder, Vector
from tapejit.targets.cpu.vecmath.exponentials import (
    expm1_parts,
    exponent_bounds,
    lowered,
    lowest,
    reduced_expm1,
)
from tapejit.targets.cpu.vecmath.numbers import INFINITY, table_of
from tapejit.targets.cpu.vecmath.pairs import Pair, fast_two_sum, times, two_sum


def softplus(b: Builder, x: Vector) -> Vector:
    """log(1 + e^x).

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(softplus, -40.0)
    4.248354255291589e-18
    """
    magnitude = b.abs(x)
    bounded = b.select(magnitude > -lowest(b), -lowest(b), magnitude)
    k, q = expm1_parts(b, -bounded)
    share = lowered_pair(b, fast_two_sum(1.0, q), k)
    return b.select(x < 0, 0.0, x) + log1p_of_share(b, share).total()


def softsign(b: Builder, x: Vector) -> Vector:
    """x / (1 + |x|), which is 1 with the sign of x at infinity.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(softsign, -3.0)
    -0.75
    """
    magnitude = b.abs(x)
    found = x / (1 + magnitude)
    return b.select(magnitude.eq(INFINITY), b.copysign(1.0, x), found)


def logaddexp(b: Builder, x: Vector, y: Vector) -> Vector:
    """log(e^x + e^y).

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(logaddexp, 1000.0, 1000.0)
    1000.6931471805599
    """
    largest, distance = largest_and_distance(b, x, y, -lowest(b))
    k, q = expm1_parts(b, -distance.high, -distance.low)
    share = lowered_pair(b, fast_two_sum(1.0, q), k)
    return largest + log1p_of_share(b, share).total()


def logaddexp2(b: Builder, x: Vector, y: Vector) -> Vector:
    """log2(2^x + 2^y).

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(logaddexp2, 5.0, 5.0)
    6.0
    """
    table = table_of(b)
    last = -exponent_bounds(b)[0]
    largest, distance = largest_and_distance(b, x, y, last)
    n, k = b.split_round(b.format.rounder - distance.high)
    fraction = Pair(-distance.high - n, -distance.low)
    grown = reduced_expm1(b, times(b, fraction, table.ln2))
    one = fast_two_sum(1.0, grown.high)
    share = lowered_pair(b, Pair(one.high, one.low + grown.low), k)
    return largest + times(b, log1p_of_share(b, share), table.log2_e).total()


def largest_and_distance(
    b: Builder, x: Vector, y: Vector, last: float
) -> tuple[Vector, Pair]:
    """The larger one, and by how much; at most `last`, also between infinities."""
    largest = b.maximum(x, y)
    smallest = b.select(x < y, x, y)
    high, low = two_sum(largest, -smallest)
    is_near = high < last
    return largest, Pair(b.select(is_near, high, last), b.select(is_near, low, 0.0))


def lowered_pair(b: Builder, x: Pair, k: Vector) -> Pair:
    """x 2^k for k <= 0."""
    return Pair(lowered(b, x.high, k), lowered(b, x.low, k))


def log1p_of_share(b: Builder, s: Pair) -> Pair:
    """log(1 + s) for 0 <= s <= 1."""
    t = s.high / (2 + s.high)
    z = t * t
    rest = t * b.fma(-2 * z, b.polynomial(z, table_of(b).log1p), s.high)
    # 1 - 0.55 s is near enough to the slope 1 / (1 + s) for a correction.
    low = s.low * b.fma(s.high, -0.55, 1.0)
    return fast_two_sum(s.high, low - rest)
