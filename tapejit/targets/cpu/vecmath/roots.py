"""The cube root and the hypotenuse.

cbrt: x = 2^(3q) z with z in [1, 8), a polynomial to start from, and Halley's iteration,
which triples the number of good bits; its last step has an exact remainder. hypot: both
numbers are scaled by a power of two where squares would overflow or vanish.

Start reading at `cbrt`.
"""

from __future__ import annotations

from tapejit.targets.cpu.simd.vector import Builder, Vector
from tapejit.targets.cpu.vecmath.numbers import INFINITY, table_of
from tapejit.targets.cpu.vecmath.pairs import two_product


def cbrt(b: Builder, x: Vector) -> Vector:
    """The real cube root.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(cbrt, -27.0)
    -3.0
    """
    form = b.format
    magnitude = b.abs(x)
    moved = 3 * (-(-form.precision // 3))  # a multiple of 3 that makes all normal
    is_subnormal = magnitude < form.tiny
    bits = b.as_bits(b.select(is_subnormal, magnitude * 2.0**moved, magnitude))
    exponent = b.to_float(b.logical_shift(bits, form.stored) - form.max_exponent)
    third = b.floor(b.fma(exponent, 1 / 3, 0.1))
    rest = b.fma(third, -3.0, exponent)
    significand = (bits & ((1 << form.stored) - 1)) | form.bits_of(1.0)
    z = b.as_float(significand + (integer(b, rest) << form.stored))

    y = b.polynomial(z, table_of(b).cbrt)
    if form.bits == 64:
        y = halley(b, y, z)
    y = halley(b, y, z)
    offset = b.select(is_subnormal, b.integer(moved // 3), 0)
    found = b.copysign(y * b.power_of_two(integer(b, third) - offset), x)
    has_root = (magnitude > 0) & (magnitude < INFINITY)
    return b.select(has_root, found, x)


def integer(b: Builder, x: Vector) -> Vector:
    """Small whole floats as integers."""
    return b.split_round(x + b.format.rounder)[1]


def halley(b: Builder, y: Vector, z: Vector) -> Vector:
    """A better cube root of z from y."""
    square = two_product(b, y, y)
    remainder = b.fma(-y, square.high, z) - y * square.low
    return b.fma(y, remainder / b.fma(2 * y, square.high, z), y)


def hypot(b: Builder, x: Vector, y: Vector) -> Vector:
    """√(x² + y²) without overflow on the way; infinite if one of them is.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(hypot, 3e300, 4e300)
    5e+300
    """
    limit = b.format.max_exponent
    left, right = b.abs(x), b.abs(y)
    is_left = left >= right
    large, small = b.select(is_left, left, right), b.select(is_left, right, left)
    low, high = limit * 9 // 25, limit // 2
    is_tiny, is_huge = large < 2.0**-low, large > 2.0**high
    scale = b.select(is_tiny, b.constant(2.0 ** (2 * low)), 1.0)
    scale = b.select(is_huge, 2.0 ** -(high + 3), scale)
    back = b.select(is_tiny, b.constant(2.0 ** -(2 * low)), 1.0)
    back = b.select(is_huge, 2.0 ** (high + 3), back)
    large, small = large * scale, small * scale
    found = b.sqrt(b.fma(large, large, small * small)) * back
    return b.select(left.eq(INFINITY) | right.eq(INFINITY), INFINITY, found)
