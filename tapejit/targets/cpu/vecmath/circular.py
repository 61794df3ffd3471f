"""Sine, cosine and tangent.

After the reduction x = k π/2 + r, |r| <= π/4 in two words, sin r and cos r are
polynomials in r²; k modulo 4 says which of them with which sign is the result. The
tangent keeps both in two words until the quotient.

Start reading at `sin`.
"""

from __future__ import annotations

from tapejit.targets.cpu.simd.vector import Builder, Vector
from tapejit.targets.cpu.vecmath.numbers import table_of
from tapejit.targets.cpu.vecmath.pairs import Pair, choose, divide, fast_two_sum, times
from tapejit.targets.cpu.vecmath.reduction import reduce


def sin(b: Builder, x: Vector) -> Vector:
    """The sine of an angle in radians.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(sin, 1e22)
    -0.8522008497671888
    """
    k, r = reduce(b, x)
    found = by_quadrant(b, k, r)
    return b.select(b.abs(x) < small(b), x, found)


def cos(b: Builder, x: Vector) -> Vector:
    """The cosine of an angle in radians.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(cos, 1e22)
    0.523214785395139
    """
    k, r = reduce(b, x)
    return by_quadrant(b, k + 1, r)


def tan(b: Builder, x: Vector) -> Vector:
    """The tangent of an angle in radians.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(tan, 0.5)
    0.5463024898437905
    """
    k, r = reduce(b, x)
    sine, cosine = sin_pair(b, r), cos_pair(b, r)
    is_odd = (k & 1).ne(0)
    top, bottom = choose(b, is_odd, cosine, sine), choose(b, is_odd, sine, cosine)
    found = divide(b, top, bottom).total()
    return b.select(b.abs(x) < small(b), x, b.select(is_odd, -found, found))


def sinc(b: Builder, x: Vector) -> Vector:
    """sin(πx) / (πx), 1 at 0, and 0 at the other integers.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(sinc, 0.5)
    0.6366197723675814
    """
    magnitude = b.abs(x)
    sine = half_turn(b, magnitude)[0]
    last = 2.0**b.format.precision  # from here on all numbers are integers
    bounded = b.select(magnitude > last, last, magnitude)
    bottom = times(b, Pair(bounded, b.constant(0.0)), table_of(b).pi)
    found = divide(b, sine, bottom).total()
    half = 0.5 * b.floor(magnitude)
    is_odd = half.ne(b.floor(half)) & found.ne(0.0)
    found = b.select(is_odd, -found, found)
    return b.select(magnitude < small(b) * small(b), 1.0, found)


def small(b: Builder) -> float:
    """Below this an odd function with slope 1 at 0 is its argument."""
    return 2.0 ** -(b.format.precision // 2 + 1)


def by_quadrant(b: Builder, k: Vector, r: Pair) -> Vector:
    """sin(k π/2 + r)."""
    found = b.select((k & 1).ne(0), cos_pair(b, r).high, sin_pair(b, r).high)
    flipped = b.as_bits(found) ^ ((k & 2) << (b.format.bits - 2))
    return b.as_float(flipped)


def sin_pair(b: Builder, r: Pair) -> Pair:
    """sin r for |r| <= π/4; `high` is the rounded value."""
    z = r.high * r.high
    low = b.fma(r.low, -0.5 * z, r.low)
    rest = b.fma(z * r.high, b.polynomial(z, table_of(b).sin), low)
    return fast_two_sum(r.high, rest)


def cos_pair(b: Builder, r: Pair) -> Pair:
    """cos r for |r| <= π/4; `high` is the rounded value."""
    z = r.high * r.high
    z_low = b.fma(r.high, r.high, -z)
    half = 0.5 * z
    near = 1 - half
    low = (1 - near) - half - b.fma(r.high, r.low, 0.5 * z_low)
    return fast_two_sum(near, b.fma(z * z, b.polynomial(z, table_of(b).cos), low))


def half_turn(b: Builder, magnitude: Vector) -> tuple[Pair, Pair, Vector, Vector]:
    """|sin πa|, |cos πa|, the fraction of a, and whether that is beyond 1/2."""
    fraction = magnitude - b.floor(magnitude)
    is_second = fraction > 0.5
    folded = b.select(is_second, 1 - fraction, fraction)
    is_steep = folded > 0.25
    part = b.select(is_steep, 0.5 - folded, folded)
    angle = times(b, Pair(part, b.constant(0.0)), table_of(b).pi)
    sine, cosine = sin_pair(b, angle), cos_pair(b, angle)
    first = choose(b, is_steep, cosine, sine)
    second = choose(b, is_steep, sine, cosine)
    return first, second, fraction, is_second
