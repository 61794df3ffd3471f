"""Logarithms, what is made of them, and powers.

x = 2^k m with m between √½ and √2, so that log x = k ln 2 + log(1 + f), and f = m - 1
is exact. With s = f / (2 + f), log(1 + f) = 2 atanh s, whose series in s² converges
fast. `log` and `log1p` sum it so that the rounding of s hardly matters: 2s = f - s f.
The others need log(1 + f) to more than the precision of the format, because they
multiply it: `log_of_pair` gives it to some 11 bits more.

The integers are taken from the bits of floats by logical shifts, which every machine
has for 64 bits.

Start reading at `log`.
"""

from __future__ import annotations

from tapejit.targets.cpu.simd.vector import FLOAT, Builder, Vector
from tapejit.targets.cpu.vecmath.exponentials import clamped, exp_of_pair, scaled
from tapejit.targets.cpu.vecmath.numbers import INFINITY, NAN, table_of
from tapejit.targets.cpu.vecmath.pairs import (
    Pair,
    choose,
    divide,
    fast_two_sum,
    square_root,
    times,
    two_product,
    two_sum,
)

SQRT_HALF = 0.7071067811865476


def split(b: Builder, x: Vector) -> tuple[Vector, Vector]:
    """k as a float and m in [√½, √2) with x = 2^k m, for positive normal x."""
    form = b.format
    start = form.bits_of(SQRT_HALF)
    shifted = b.as_bits(x) + (form.bits_of(1.0) - start)
    exponent = b.logical_shift(shifted, form.stored)
    rounder = form.rounder
    k = b.as_float(exponent + form.bits_of(rounder)) - (rounder + form.max_exponent)
    significand = shifted & ((1 << form.stored) - 1)
    return k, b.as_float(significand + start)


def split_any(b: Builder, x: Vector) -> tuple[Vector, Vector]:
    """`split`, also of subnormal numbers."""
    bits = b.format.precision + 1
    is_subnormal = x < b.format.tiny
    k, m = split(b, b.select(is_subnormal, x * 2.0**bits, x))
    return b.select(is_subnormal, k - bits, k), m


def with_limits(b: Builder, x: Vector, result: Vector, zero: float) -> Vector:
    """The result above `zero`, -inf there, NaN below; inf of inf."""
    finite = b.select(x < INFINITY, result, x)
    at_most = b.select(x.eq(zero), -INFINITY, NAN)
    return b.select(x > zero, finite, at_most)


def log_reduced(b: Builder, k: Vector, f: Vector, extra: Vector | None) -> Vector:
    """k ln 2 + log(1 + f) + extra."""
    table = table_of(b)
    s = f / (2 + f)
    z = s * s
    rest = s * (f - 2 * z * b.polynomial(z, table.log))
    low = k * table.ln2[1] if extra is None else b.fma(k, table.ln2[1], extra)
    return b.fma(k, table.ln2[0], f - (rest - low))


def log(b: Builder, x: Vector) -> Vector:
    """The natural logarithm.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(log, 10.0)
    2.302585092994046
    """
    if b.format.bits == 32:
        return with_limits(b, x, log_single(b, x), 0.0)
    k, m = split_any(b, x)
    return with_limits(b, x, log_reduced(b, k, m - 1, None), 0.0)


def log_single(b: Builder, x: Vector) -> Vector:
    """The logarithm of a positive number.

    The exponent stays where it is in the bits: as an integer it is 2^23 k, which single
    precision has exactly, and the constants are smaller by as much.
    """
    form, table = b.format, table_of(b)
    unit, up = 1 << form.stored, form.precision + 1
    is_subnormal = x < form.tiny
    bits = b.as_bits(b.select(is_subnormal, x * 2.0**up, x))
    exponent = (bits - form.bits_of(SQRT_HALF)) & -unit
    f = b.as_float(bits - exponent) - 1
    exponent = exponent - b.select(is_subnormal, b.integer(up * unit), b.integer(0))
    k = Vector(b, b.ir.sitofp(exponent.value, b.float_type), FLOAT)

    s = f / (2 + f)
    z = s * s
    rest = b.fma(z, b.polynomial(z, [-2 * number for number in table.log]), f)
    low = b.fma(-s, rest, k * (table.ln2[1] / unit))
    return b.fma(k, table.ln2[0] / unit, f + low)


def log1p(b: Builder, x: Vector) -> Vector:
    """log(1 + x), also for small x: what 1 + x rounds away is added in the end.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(log1p, 1e-20)
    1e-20
    """
    one = two_sum(1.0, x)
    k, m = split(b, one.high)
    is_near = k.eq(0.0)
    extra = b.select(is_near, 0.0, one.low / one.high)
    found = log_reduced(b, k, b.select(is_near, x, m - 1), extra)
    return with_limits(b, x, b.copysign(found, x), -1.0)


def log_of_pair(b: Builder, f: Pair) -> Pair:
    """log(1 + f) for 1 + f in [√½, √2)."""
    table = table_of(b)
    bottom = fast_two_sum(2.0, f.high)
    quotient = divide(b, f, Pair(bottom.high, bottom.low + f.low))
    s = fast_two_sum(quotient.high, quotient.low)
    z = s.high * s.high
    z_low = b.fma(s.high, s.high, -z) + 2 * (s.high * s.low)
    first = times(b, Pair(z, z_low), table.third)
    tail = b.fma(z * z, b.polynomial(z, table.log_pair), first.low)
    u = fast_two_sum(first.high, tail)
    twice = s.high + s.high
    product = two_product(b, twice, u.high)
    rest = 2 * s.low
    low = b.fma(twice, u.low, product.low) + b.fma(rest, u.high, rest)
    high = fast_two_sum(twice, product.high)
    return Pair(high.high, high.low + low)


def plus_exponent(b: Builder, k: Vector, log_m: Pair) -> Pair:
    """k ln 2 + log m."""
    table = table_of(b)
    high, low = two_product(b, k, table.ln2[0])
    total = fast_two_sum(high, log_m.high)
    rest = total.low + (b.fma(k, table.ln2[1], low) + log_m.low)
    return fast_two_sum(total.high, rest)


def log_pair(b: Builder, x: Vector) -> tuple[Vector, Pair]:
    """k and log m in two words, with x = 2^k m."""
    k, m = split_any(b, x)
    return k, log_of_pair(b, Pair(m - 1, b.constant(0.0)))


def log2(b: Builder, x: Vector) -> Vector:
    """The logarithm to base 2, exact for powers of 2.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(log2, 1024.0)
    10.0
    """
    k, log_m = log_pair(b, x)
    part = times(b, log_m, table_of(b).log2_e)
    total = fast_two_sum(k, part.high)
    return with_limits(b, x, total.high + (total.low + part.low), 0.0)


def log10(b: Builder, x: Vector) -> Vector:
    """The logarithm to base 10.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(log10, 1e-300)
    -300.0
    """
    table = table_of(b)
    k, log_m = log_pair(b, x)
    part = times(b, log_m, table.log10_e)
    high, low = two_product(b, k, table.log10_2[0])
    total = fast_two_sum(high, part.high)
    rest = total.low + (b.fma(k, table.log10_2[1], low) + part.low)
    return with_limits(b, x, total.high + rest, 0.0)


def log1p_of_pair(b: Builder, g: Pair) -> tuple[Vector, Pair]:
    """k and f with 1 + g = 2^k (1 + f), for g >= 0 below 2^precision or so."""
    one = two_sum(1.0, g.high)
    one = fast_two_sum(one.high, one.low + g.low)
    k, m = split(b, one.high)
    integer = b.as_bits(k + b.format.rounder) - b.format.bits_of(b.format.rounder)
    moved = two_sum(m - 1, one.low * b.power_of_two(-integer))
    return k, choose(b, k.eq(0.0), g, moved)


def log_of_sum(b: Builder, magnitude: Vector, g: Pair) -> Vector:
    """log(1 + g), or log(2 magnitude) where that is the same and g may overflow."""
    is_large = magnitude > 2.0 ** (b.format.precision // 2 + 3)
    k, f = log1p_of_pair(b, g)
    far, m = split(b, magnitude)
    far_f = Pair(m - 1, b.constant(0.0))
    k = b.select(is_large, far + 1, k)
    return plus_exponent(b, k, log_of_pair(b, choose(b, is_large, far_f, f))).total()


def asinh(b: Builder, x: Vector) -> Vector:
    """log(|x| + √(x² + 1)) as log1p(|x| + x² / (1 + √(x² + 1))), with x's sign.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(asinh, 1e300)
    691.4686750787737
    """
    magnitude = b.abs(x)
    square = two_product(b, magnitude, magnitude)
    one = two_sum(1.0, square.high)
    root = square_root(b, Pair(one.high, one.low + square.low))
    bottom = two_sum(1.0, root.high)
    part = divide(b, square, Pair(bottom.high, bottom.low + root.low))
    g = two_sum(magnitude, part.high)
    found = log_of_sum(b, magnitude, Pair(g.high, g.low + part.low))
    is_linear = magnitude < 2.0 ** -(b.format.precision // 2 + 1)
    is_linear = is_linear | magnitude.eq(INFINITY)
    return b.copysign(b.select(is_linear, magnitude, found), x)


def acosh(b: Builder, x: Vector) -> Vector:
    """log(x + √(x² - 1)) as log1p(t + √(2t + t²)), t = x - 1.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(acosh, 1.5)
    0.9624236501192069
    """
    t = x - 1
    square = two_product(b, t, t)
    under = two_sum(t + t, square.high)
    root = square_root(b, Pair(under.high, under.low + square.low))
    g = two_sum(t, root.high)
    found = log_of_sum(b, x, Pair(g.high, g.low + root.low))
    return b.select(x >= 1, b.select(x < INFINITY, found, x), NAN)


def atanh(b: Builder, x: Vector) -> Vector:
    """log1p(2|x| / (1 - |x|)) / 2, with x's sign.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(atanh, 0.5)
    0.5493061443340549
    """
    magnitude = b.abs(x)
    g = divide(
        b, Pair(magnitude + magnitude, b.constant(0.0)), two_sum(1.0, -magnitude)
    )
    k, f = log1p_of_pair(b, fast_two_sum(g.high, g.low))
    found = 0.5 * plus_exponent(b, k, log_of_pair(b, f)).total()
    limit = b.select(magnitude.eq(1.0), INFINITY, NAN)
    return b.copysign(b.select(magnitude < 1, found, limit), x)


def pow(b: Builder, x: Vector, y: Vector) -> Vector:
    """x^y, with the special values of C and NumPy.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(pow, 1.0001, 10000.0)
    2.7181459268249255
    """
    magnitude = b.abs(x)
    k, log_m = log_pair(b, magnitude)
    log_x = plus_exponent(b, k, log_m)
    high = b.select(magnitude.eq(0.0), -INFINITY, log_x.high)
    high = b.select(magnitude.eq(INFINITY), INFINITY, high)
    product = y * high
    low = b.fma(y, log_x.high, -product) + y * log_x.low
    bounded = clamped(b, product)
    low = b.select(bounded.eq(product), low, 0.0)
    scale, p = exp_of_pair(b, Pair(bounded, low))
    found = scaled(b, p.total(), scale)
    found = b.select(magnitude.eq(1.0), 1.0, found)  # also to infinite powers

    is_integer = y.eq(b.trunc(y))
    half = y * 0.5
    is_odd = is_integer & half.ne(b.trunc(half))
    is_negative = b.is_negative(x)
    found = b.select(is_negative & is_odd, -found, found)
    has_none = (x < 0) & ~is_integer & (magnitude < INFINITY)
    found = b.select(has_none | x.ne(x) | y.ne(y), NAN, found)
    return b.select(x.eq(1.0) | y.eq(0.0), 1.0, found)
