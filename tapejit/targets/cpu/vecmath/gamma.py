"""The logarithm of the gamma function and its derivative.

From z = 8 on, both are Stirling's series: log z times something, and a polynomial in
1/z². Below, z = |x| + 8 is used and the eight factors |x| (|x| + 1) ... (|x| + 7) are
taken off: with u = |x| (|x| + 7) their product is u (u + 6) (u + 10) (u + 12). Negative
arguments are reflected. All of it is in two words, because the parts are larger than
the result. Around 1 and 2, where log Γ is 0, and around the positive root of ψ there
are polynomials of their own.

The zeros between the negative integers have none: there the error is bounded by the
distance from 1 to the next float, not by the result's own precision.

Start reading at `gammaln`.
"""

from __future__ import annotations

from typing import NamedTuple

from tapejit.targets.cpu.simd.vector import Builder, Vector
from tapejit.targets.cpu.vecmath.circular import half_turn
from tapejit.targets.cpu.vecmath.logarithms import log_of_pair, plus_exponent, split_any
from tapejit.targets.cpu.vecmath.numbers import INFINITY, NAN, table_of
from tapejit.targets.cpu.vecmath.pairs import (
    Pair,
    choose,
    divide,
    fast_two_sum,
    multiply,
    times,
    two_sum,
)

SHIFT = 8


class Shifted(NamedTuple):
    """|x|, and the z >= 8 whose function value gives that of |x|."""

    magnitude: Vector
    is_low: Vector  # where z = |x| + 8, otherwise |x|
    is_tiny: Vector  # where Γ(x) = 1/x
    z: Pair
    log_z: Pair


def gammaln(b: Builder, x: Vector) -> Vector:
    """log |Γ(x)|.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(gammaln, 100.0)
    359.1342053695754
    """
    table = table_of(b)
    s = shifted(b, x)
    # (z - ½)(log z - 1) + c + P(1/z²)/z
    left, right = plus(s.z, -0.5), plus(s.log_z, -1.0)
    product = multiply(b, left, right)
    reciprocal = 1 / s.z.high
    rest = b.polynomial(reciprocal * reciprocal, table.stirling)
    series = plus(product, table.stirling_constant[0])
    low = b.fma(reciprocal, rest, series.low + table.stirling_constant[1])
    series = fast_two_sum(series.high, low)

    one, zero = b.constant(1.0), b.constant(0.0)
    u = shift_variable(b, s.magnitude)
    lower = multiply(b, u, plus(u, 6.0))
    factors = multiply(b, lower, multiply(b, plus(u, 10.0), plus(u, 12.0)))
    factors = choose(b, s.is_low, factors, Pair(one, zero))
    sine, _, fraction, _ = half_turn(b, s.magnitude)
    bottom = multiply(b, Pair(s.magnitude, zero), sine)
    reflected = divide(b, times(b, factors, table.pi), bottom)
    is_negative = x < 0
    inner = choose(b, is_negative, reflected, factors)
    inner = choose(b, s.is_tiny, Pair(s.magnitude, zero), inner)
    log_inner = log_of(b, inner)

    series_sign = b.select(is_negative, -one, 1.0)
    series_sign = b.select(s.is_tiny, 0.0, series_sign)
    log_sign = b.select(is_negative & ~s.is_tiny, one, -1.0)
    total = two_sum(series.high * series_sign, log_inner.high * log_sign)
    low = b.fma(series.low, series_sign, total.low) + log_inner.low * log_sign
    found = total.high + low

    for centre, numbers in ((1.0, table.gammaln_one), (2.0, table.gammaln_two)):
        t = x - centre
        near = t * b.polynomial(t, numbers) + 0.0  # log Γ(1) is 0, not -0
        found = b.select(b.abs(t) <= 0.25, near, found)
    is_infinite = product.high.eq(INFINITY) | s.magnitude.eq(INFINITY) | x.eq(0.0)
    is_infinite = is_infinite | (is_negative & fraction.eq(0.0))
    found = b.select(is_infinite, INFINITY, found)
    return b.select(x.eq(-INFINITY), x, found)  # as SciPy has it


def digamma(b: Builder, x: Vector) -> Vector:
    """ψ(x), the derivative of log Γ(x); NaN at the negative integers.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(digamma, 1.0)
    -0.5772156649015329
    """
    table = table_of(b)
    s = shifted(b, x)
    one, zero = b.constant(1.0), b.constant(0.0)
    # log z - 1/2z - P(1/z²)/z²
    half = divide(b, Pair(0.5 * one, zero), s.z)
    w = 4 * (half.high * half.high)
    rest = w * b.polynomial(w, table.digamma)
    total = two_sum(s.log_z.high, -half.high)
    total = Pair(total.high, total.low + ((s.log_z.low - half.low) - rest))

    # The sum of 1 / (|x| + i) is the logarithmic derivative of the product.
    u = shift_variable(b, s.magnitude)
    lower = multiply(b, u, plus(u, 6.0))
    upper = multiply(b, plus(u, 10.0), plus(u, 12.0))
    slope = add(
        multiply(b, plus(twice(u), 6.0), upper),
        multiply(b, plus(twice(u), 22.0), lower),
    )
    slope = multiply(b, slope, two_sum(7.0, s.magnitude + s.magnitude))
    removed = divide(b, slope, multiply(b, lower, upper))
    removed = choose(b, s.is_low, removed, Pair(zero, zero))
    total = add(total, Pair(-removed.high, -removed.low))

    # ψ(-a) = ψ(a) + 1/a + π cot πa
    sine, cosine, fraction, is_second = half_turn(b, s.magnitude)
    cotangent = times(b, divide(b, cosine, sine), table.pi)
    sign = b.select(is_second, -one, 1.0)
    extra = Pair(cotangent.high * sign, cotangent.low * sign)
    extra = add(extra, divide(b, Pair(one, zero), Pair(s.magnitude, zero)))
    is_negative = x < 0
    total = choose(b, is_negative, add(total, extra), total)
    found = total.total()

    t = (x - table.root_of_digamma[0]) - table.root_of_digamma[1]
    near = t * b.polynomial(t, table.digamma_root)
    found = b.select(b.abs(t) <= 0.25, near, found)
    found = b.select(s.is_tiny, -1 / x, found)
    found = b.select(x.eq(INFINITY), INFINITY, found)
    is_pole = is_negative & ~(fraction > 0) & ~s.is_tiny
    return b.select(is_pole, NAN, found)


def shifted(b: Builder, x: Vector) -> Shifted:
    """What both functions start from."""
    magnitude = b.abs(x)
    is_low = magnitude < SHIFT
    plain = Pair(magnitude, b.constant(0.0))
    z = choose(b, is_low, two_sum(float(SHIFT), magnitude), plain)
    is_tiny = magnitude < 2.0 ** -(b.format.precision + 6)
    return Shifted(magnitude, is_low, is_tiny, z, log_of(b, z))


def shift_variable(b: Builder, magnitude: Vector) -> Pair:
    """u = a (a + 7)."""
    return multiply(b, Pair(magnitude, b.constant(0.0)), two_sum(7.0, magnitude))


def plus(x: Pair, number: float) -> Pair:
    """A Pair and a number."""
    total = two_sum(number, x.high)
    return Pair(total.high, total.low + x.low)


def add(x: Pair, y: Pair) -> Pair:
    """A Pair and a Pair."""
    total = two_sum(x.high, y.high)
    return Pair(total.high, total.low + (x.low + y.low))


def twice(x: Pair) -> Pair:
    """2x."""
    return Pair(x.high + x.high, x.low + x.low)


def log_of(b: Builder, x: Pair) -> Pair:
    """The logarithm of a positive Pair; if `low` is not 0, of middling size."""
    x = fast_two_sum(x.high, x.low)
    k, m = split_any(b, x.high)
    integer = b.split_round(k + b.format.rounder)[1]
    low = b.select(x.low.eq(0.0), 0.0, x.low * b.power_of_two(-integer))
    f = two_sum(m - 1, low)
    return plus_exponent(b, k, log_of_pair(b, f))
