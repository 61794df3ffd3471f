"""Arcsine, arccosine, arctangent.

asin is a polynomial up to 1/2; beyond, asin x = π/2 - 2 asin √((1 - x)/2), where 1 - x
is exact and the root is taken in two words. An arctangent is the angle of a quotient:
the smaller by the larger of two numbers, and if that exceeds tan(π/8), their difference
by their sum, which turns the angle by π/4. The quotient and the multiple of π/4 are in
two words.

Start reading at `atan2`.
"""

from __future__ import annotations

import math

from tapejit.targets.cpu.simd.vector import Builder, Vector
from tapejit.targets.cpu.vecmath.numbers import INFINITY, NAN, table_of
from tapejit.targets.cpu.vecmath.pairs import (
    Pair,
    choose,
    divide,
    fast_two_sum,
    square_root,
    two_product,
    two_sum,
)

TAN_EIGHTH = math.tan(math.pi / 8)


def atan2(b: Builder, y: Vector, x: Vector) -> Vector:
    """The angle of the point (x, y), with the special values of C and NumPy.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(atan2, 0.0, -1.0)
    3.141592653589793
    """
    form = b.format
    across, up = b.abs(x), b.abs(y)
    is_steep = up > across
    large = b.select(is_steep, up, across)
    small = b.select(is_steep, across, up)
    # Away from where sums overflow or remainders vanish.
    floor = 2.0 ** (2 * form.precision - form.max_exponent)
    scale = b.select(large < floor, 2.0 ** (2 * form.precision), 1.0)
    scale = b.select(large > 2.0 ** (form.max_exponent - 3), 2.0**-4, scale)
    small, large = small * scale, large * scale
    small = b.select(large.eq(INFINITY), b.select(small.eq(INFINITY), 1.0, 0.0), small)
    is_unit = large.eq(INFINITY) | large.eq(0.0)
    large = b.select(is_unit, 1.0, large)
    found = octant_angle(b, small, large, is_steep, b.is_negative(x))
    return b.copysign(b.select(x.ne(x) | y.ne(y), NAN, found), y)


def atan(b: Builder, x: Vector) -> Vector:
    """The angle whose tangent is x.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(atan, 1.0)
    0.7853981633974483
    """
    magnitude = b.abs(x)
    magnitude = b.select(magnitude > 2.0**100, 2.0**100, magnitude)  # π/2, rounded
    is_steep = magnitude > 1
    small = b.select(is_steep, 1.0, magnitude)
    large = b.select(is_steep, magnitude, 1.0)
    return b.copysign(octant_angle(b, small, large, is_steep, None), x)


def octant_angle(
    b: Builder, small: Vector, large: Vector, is_steep: Vector, is_left: Vector | None
) -> Vector:
    """atan(small / large), mirrored at 45° if steep and at 90° if left."""
    table = table_of(b)
    is_turned = small > TAN_EIGHTH * large
    none = b.constant(0.0)
    top = choose(b, is_turned, two_sum(small, -large), Pair(small, none))
    bottom = choose(b, is_turned, two_sum(large, small), Pair(large, none))
    t = divide(b, top, bottom)
    z = t.high * t.high
    rest = b.fma(t.high * z, b.polynomial(z, table.atan), t.low)
    eighths = b.select(is_turned, b.constant(1.0), 0.0)
    eighths = b.select(is_steep, 2 - eighths, eighths)
    is_mirrored = is_steep
    if is_left is not None:
        eighths = b.select(is_left, 4 - eighths, eighths)
        is_mirrored = is_steep ^ is_left
    angle = choose(b, is_mirrored, Pair(-t.high, -rest), Pair(t.high, rest))
    base, base_low = two_product(b, eighths, table.quarter_pi[0])
    base_low = b.fma(eighths, table.quarter_pi[1], base_low)
    total = fast_two_sum(base, angle.high)
    return total.high + (total.low + (base_low + angle.low))


def arcsine_parts(b: Builder, x: Vector) -> tuple[Vector, Pair]:
    """Where |x| <= 1/2, and there asin |x|, elsewhere asin √((1 - |x|)/2)."""
    magnitude = b.abs(x)
    is_small = magnitude <= 0.5
    beyond = (1 - magnitude) * 0.5
    none = b.constant(0.0)
    z = b.select(is_small, magnitude * magnitude, beyond)
    root = square_root(b, Pair(beyond, none))
    s = choose(b, is_small, Pair(magnitude, none), root)
    return is_small, Pair(
        s.high, b.fma(s.high * z, b.polynomial(z, table_of(b).asin), s.low)
    )


def asin(b: Builder, x: Vector) -> Vector:
    """The angle in [-π/2, π/2] whose sine is x.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(asin, 1.0)
    1.5707963267948966
    """
    half_pi = table_of(b).half_pi
    is_small, s = arcsine_parts(b, x)
    turned = fast_two_sum(half_pi[0], -2 * s.high)
    large = turned.high + (turned.low + b.fma(-2.0, s.low, half_pi[1]))
    return b.copysign(b.select(is_small, s.total(), large), x)


def acos(b: Builder, x: Vector) -> Vector:
    """The angle in [0, π] whose cosine is x.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(acos, -1.0)
    3.141592653589793
    """
    table = table_of(b)
    is_small, s = arcsine_parts(b, x)
    is_left = x < 0
    base = [
        b.select(is_small, half, b.select(is_left, whole, 0.0))
        for half, whole in zip(table.half_pi, table.pi, strict=False)
    ]
    # π/2 - asin x if small; 2 asin √ to the right; π - 2 asin √ to the left.
    factor = b.select(is_small, b.constant(-1.0), 2.0)
    factor = b.select(is_left, -factor, factor)
    total = two_sum(base[0], factor * s.high)
    return total.high + (total.low + b.fma(factor, s.low, base[1]))
