"""The error function, its complement, and the normal distribution's functions.

Below 1, erf x = x P(x²) with the first coefficient in two words; beyond, 1 - erfc x
with erfc x = exp(x Q(x)), whose errors count little. Single precision has one formula
for all x, -(exp(-w) - 1) with w = x + x Q(x), as exp(-w) - 1 is right near 0 as well.

The others come from erfcx x = exp(x²) erfc x, which falls like 1/x: x + c times it is a
polynomial in t = (x - c) / (x + c), one for all x from 0 to infinity (Shepherd and
Laframboise's idea), and one division gives both. Exponentials take x² in two words.
In single precision `erfc` and `ndtr` need half the time for it, in `tail_single`.

Start reading at `erf`, then `erfcx_pair`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from tapejit.targets.cpu.simd.vector import Builder, Format, Vector
from tapejit.targets.cpu.vecmath.exponentials import (
    LIFT,
    LN2,
    exp_parts,
    expm1_parts,
    exponent_bounds,
    grown_by,
    lowered,
    lowest,
    nearest_power,
    scaled,
    with_sign_of,
)
from tapejit.targets.cpu.vecmath.logarithms import log_reduced, split
from tapejit.targets.cpu.vecmath.numbers import numbers_of, table_of
from tapejit.targets.cpu.vecmath.pairs import (
    Pair,
    choose,
    divide,
    fast_two_sum,
    multiply,
    times,
    two_product,
    two_sum,
)

ROOT_PI = math.sqrt(math.pi)
NORMAL_LAST = 14.4  # Φ(-x) is 0 in single precision
NORMAL_SLOPE = 1.1  # of the logarithm of its factor by that of 1 / (x + c), about


def erf(b: Builder, x: Vector) -> Vector:
    """2/√π times the integral of exp(-t²) from 0 to x.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(erf, 0.5)
    0.5204998778130465
    """
    table = table_of(b)
    magnitude = b.abs(x)
    bounded = bounded_by(b, magnitude, table.erf_last)
    if b.format.bits == 32:
        return with_sign_of(b, erf_single(b, bounded), x)
    k, p = exp_parts(b, bounded * b.polynomial(bounded, table.log_erfc))
    far = 1 - p * b.power_of_two(k)
    z = bounded * bounded
    near = b.fma(bounded, b.polynomial(z, table.erf), bounded)
    return b.copysign(b.select(magnitude < 1, near, far), x)


def erf_single(b: Builder, x: Vector) -> Vector:
    """1 - exp(-w) with w = -log(erfc x), for x >= 0."""
    table = table_of(b)
    w = b.fma(x, from_even_and_odd(b, x, table.erfc_rate, 2), x)
    n, power = nearest_power(b, w, -table.log2_e[0], 0)
    r = b.fma(n, -table.ln2[0], -w)  # the second word of ln 2 is below 0.1 ULP
    return b.fma(-power, grown_by(b, r, table.exp), 1 - power)


def from_even_and_odd(
    b: Builder, x: Vector, numbers: Sequence[float], first: int
) -> Vector:
    """A polynomial: Horner's rule for the first terms, as those count in the error.

    The others are summed as even and odd powers, which wait less for each other.
    """
    square = x * x
    even, odd = numbers[first::2], numbers[first + 1 :: 2]
    rest = b.fma(x, b.polynomial(square, odd), b.polynomial(square, even))
    for number in reversed(numbers[:first]):
        rest = b.fma(rest, x, number)
    return rest


def tail_single(b: Builder, x: Vector, *, is_normal: bool) -> Vector:
    """Φ(-x), or erfc x unless `is_normal`, in single precision, for x >= 0.

    e^(-x²/2) = 2^k (1 + q), the factor is start / (x + c) (1 + d), d a polynomial in t
    = 1 - m / (x + c). With start as the numerator the quotient's error is known; it
    goes into d by the factor's relative slope in the quotient, 1 to 1.3. The product
    is u + u v with v = d + (1 + d) q, where q stays a sum of two: one rounding alone is
    of the size of the result.
    """
    table = table_of(b)
    c, middle, start = table.normal_map
    last, half = NORMAL_LAST, -0.5
    if not is_normal:  # x times √2 is the normal distribution's
        c, middle, start = c * 0.5**0.5, middle * 0.5**0.5, start * 2**0.5
        last, half = NORMAL_LAST * 0.5**0.5, -1.0
    x = bounded_by(b, x, last)
    top = b.format.round(start * 2.0**-LIFT)
    bottom = fast_two_sum(c, x)  # exact for all x: c has few bits
    u = top / bottom.high
    lost = b.fma(-u, bottom.low, b.fma(-u, bottom.high, top))
    t = b.fma(u, -middle / top, 1.0)

    square = two_product(b, x, x * half)
    n, power = nearest_power(b, square.high, table.log2_e[0], LIFT)
    high = b.fma(n, -table.ln2[0], square.high)
    low = b.fma(n, -table.ln2[1], square.low)
    r = high + low
    rest = b.fma(r * r, b.polynomial(r, table.exp), low)
    slope = from_even_and_odd(b, t, table.normal[1:], 1)
    d = b.fma(t, slope, lost * (NORMAL_SLOPE / top))
    v = b.fma(1 + d, high, b.fma(1 + d, rest, d))
    return b.fma(u, v, u) * power


def erfc(b: Builder, x: Vector) -> Vector:
    """1 - erf x, to full precision where that is small.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(erfc, 25.0)
    8.300172571196523e-274
    """
    if b.format.bits == 32:
        far = tail_single(b, b.abs(x), is_normal=False)
        return b.select(b.is_negative(x), 2 - far, far)
    magnitude = bounded_by(b, b.abs(x), (-lowest(b)) ** 0.5)
    square = two_product(b, magnitude, -magnitude)
    far = tail(b, square, erfcx_pair(b, magnitude))
    return b.select(x < 0, 2 - far, far)


def ndtr(b: Builder, x: Vector) -> Vector:
    """The normal distribution function Φ(x) = erfc(-x/√2) / 2.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(ndtr, -38.0)
    2.88542835e-316
    """
    if b.format.bits == 32:
        far = tail_single(b, b.abs(x), is_normal=True)
        return b.select(b.is_negative(x), far, 1 - far)
    magnitude = bounded_by(b, b.abs(x), (-2 * lowest(b)) ** 0.5)
    high, low = erfcx_pair(b, magnitude, is_normal=True)
    far = normal_tail(b, magnitude, Pair(0.5 * high, 0.5 * low))
    return b.select(x < 0, far, 1 - far)


def normal_tail(b: Builder, x: Vector, factor: Pair) -> Vector:
    """Φ(-x) = exp(-x²/2) times the factor, for x >= 0."""
    x = bounded_by(b, x, (-2 * lowest(b)) ** 0.5)
    return tail(b, two_product(b, x, -0.5 * x), factor)


def bounded_by(b: Builder, x: Vector, last: float) -> Vector:
    """`x`, or `last` where it is beyond."""
    return b.select(x > last, last, x)


def tail(b: Builder, exponent: Pair, factor: Pair) -> Vector:
    """exp(exponent) times the factor."""
    k, q = expm1_parts(b, exponent.high, exponent.low)
    decay = fast_two_sum(1.0, q)
    return lowered(b, multiply(b, decay, factor).total(), k)


def erfcx_pair(b: Builder, x: Vector, is_normal: bool = False) -> Pair:
    """erfcx(x), or erfcx(x/√2) if `is_normal`, for x >= 0.

    To first order with what the quotient 1 / (x + c) and t = 1 - 2c / (x + c) lose;
    the last steps of the polynomial, whose terms cancel for large x, in two words.
    """
    c, numbers, lows = erfcx_numbers(b.format, is_normal)
    bottom = two_sum(c, x)
    inverse = 1 / bottom.high
    rest = b.fma(-inverse, bottom.low, b.fma(-inverse, bottom.high, 1.0))
    share = two_product(b, inverse, 2 * c)
    t, t_low = fast_two_sum(1.0, -share.high)  # a share beyond 1 loses nothing
    t_low = t_low - b.fma(share.high, rest, share.low)

    top = b.polynomial(t, numbers[len(lows) :])
    top_low = b.constant(0.0)
    for number, second in zip(
        reversed(numbers[: len(lows)]), reversed(lows), strict=True
    ):
        following = b.fma(t, top, number)
        lost = b.fma(t, top, number - following)
        top, top_low = following, b.fma(t, top_low, lost + second)
    terms = 2 if b.format.bits == 32 else 4  # the rest hardly changes a correction
    slope = [n * number for n, number in enumerate(numbers[1 : terms + 1], 1)]
    top_low = b.fma(b.polynomial(t, slope), t_low, top_low)
    high, low = two_product(b, top, inverse)
    return Pair(high, b.fma(high, rest, b.fma(top_low, inverse, low)))


@functools.cache
def erfcx_numbers(
    form: Format, is_normal: bool
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """The middle of the map, the coefficients and the second words of the first ones.

    All are √2 times larger if x is to be divided by √2.
    """
    table = numbers_of(form)
    factor = sum(map(Fraction, table.root_two)) if is_normal else Fraction(1)
    seconds = itertools.chain(table.erfcx_low, itertools.repeat(0.0))
    exact = [
        factor * (Fraction(first) + Fraction(second))
        for first, second in zip(table.erfcx, seconds, strict=False)
    ]
    highs = [form.round(float(number)) for number in exact]
    lows = [
        form.round(float(number - Fraction(high)))
        for number, high in zip(exact, highs, strict=True)
    ]
    middle = form.round(float(factor * Fraction(table.erfcx_middle)))
    return middle, tuple(highs), tuple(lows[: len(table.erfcx_low)])


def erfcx(b: Builder, x: Vector) -> Vector:
    """exp(x²) erfc x, which falls like 1 / (√π x).

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(erfcx, 1e10)
    5.641895835477563e-11
    """
    magnitude = b.abs(x)
    far = 2.0 ** (b.format.precision // 2 + 4)
    factor = erfcx_pair(b, bounded_by(b, magnitude, far))
    right = b.select(magnitude > far, 1 / ROOT_PI / x, factor.total())

    # On the left 2 exp(x²) is added, which becomes infinite.
    bounded = bounded_by(b, magnitude, (exponent_bounds(b)[1] * LN2) ** 0.5)
    square = two_product(b, bounded, bounded)
    k, q = expm1_parts(b, square.high, square.low)
    grown = fast_two_sum(1.0, q)
    high, low = scaled(b, grown.high, k + 1), scaled(b, grown.low, k + 1)
    left = (high - factor.high) + (low - factor.low)
    return b.select(x < 0, left, right)


def log_ndtr(b: Builder, x: Vector) -> Vector:
    """log Φ(x); on the left -x²/2 and the logarithm of what Φ is beside exp(-x²/2).

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(log_ndtr, -1e10)
    -5e+19
    """
    magnitude = bounded_by(b, b.abs(x), 2.0 ** (b.format.max_exponent - 1))
    high, low = erfcx_pair(b, magnitude, is_normal=True)
    factor = Pair(0.5 * high, 0.5 * low)
    right = -normal_tail(b, magnitude, factor)
    is_left = x < 0
    left = fast_two_sum(factor.high, factor.low)
    whole = b.select(is_left, left.high, 1 + right)
    extra = b.select(is_left, left.low / left.high, 0.0)
    k, m = split(b, whole)
    # On the right m is 1 - tail, or twice that; less 1 either is exact.
    near = b.select(k.eq(0.0), right, 1 + 2 * right)
    logarithm = log_reduced(b, k, b.select(is_left, m - 1, near), extra)
    found = b.select(is_left, b.fma(x * -0.5, x, logarithm), -b.abs(logarithm))
    return b.select(x.eq(x), found, x)


def log_ndtr_slope(b: Builder, x: Vector) -> Vector:
    """φ(x) / Φ(x), the slope of log Φ; far to the left -x.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(log_ndtr_slope, -1e10)
    10000000000.0
    """
    magnitude = b.abs(x)
    far = 2.0 ** (b.format.precision // 2 + 4)
    factor = erfcx_pair(b, bounded_by(b, magnitude, far), is_normal=True)
    bounded = bounded_by(b, magnitude, (-2 * lowest(b)) ** 0.5)
    square = two_product(b, bounded, -0.5 * bounded)
    k, q = expm1_parts(b, square.high, square.low)
    decay = fast_two_sum(1.0, q)
    tail_value = lowered(b, multiply(b, decay, factor).total(), k)
    is_left = x < 0
    one, none = b.constant(1.0), b.constant(0.0)
    top = choose(b, is_left, Pair(one, none), decay)
    bottom = choose(b, is_left, factor, fast_two_sum(2.0, -tail_value))
    ratio = times(b, divide(b, top, bottom), table_of(b).root_two_over_pi)
    found = lowered(b, ratio.total(), b.select(is_left, b.integer(0), k))
    return b.select(x < -far, -x, found)
