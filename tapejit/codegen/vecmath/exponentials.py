"""Exponentials and the hyperbolic functions made of them.

exp(x) = 2^k exp(r) with k the integer nearest to x / ln 2, so |r| <= ln(2)/2, and
exp(r) = 1 + r + r² P(r). x - k ln 2 loses nothing: with the first word of ln 2 the
fused product cancels exactly, the second word adds what is missing. k is read from the
last bits of a sum, so it is an integer for every x, NaN included. 2^k is multiplied in
two steps, since k itself may exceed the exponents of normal numbers; only the last
step rounds, when the result is subnormal.

Where a difference would cancel (expm1, tanh), exp(r) - 1 is kept as a Pair.

Start reading at `exp`.
"""

from __future__ import annotations

import math

from tapejit.codegen.vecmath.numbers import table_of
from tapejit.codegen.vecmath.pairs import (
    Pair,
    choose,
    divide,
    fast_two_sum,
    two_sum,
)
from tapejit.codegen.vector import Builder, Vector

LN2 = math.log(2)


def exp(b: Builder, x: Vector) -> Vector:
    """e^x.

    >>> from tapejit.codegen.host import value_of
    >>> value_of(exp, 1.0)
    2.718281828459045
    """
    # What 1 + r and k ln 2 lose is added last: a tenth of the time for e^1 = e.
    k, (r, low) = reduced_pair(b, clamped(b, x))
    start = fast_two_sum(1.0, r)
    rest = b.fma(r * r, b.polynomial(r, table_of(b).exp), start.low + low)
    return scaled(b, start.high + rest, k)


def exp2(b: Builder, x: Vector) -> Vector:
    """2^x.

    >>> from tapejit.codegen.host import value_of
    >>> value_of(exp2, 10.0)
    1024.0
    """
    emin, emax = exponent_bounds(b)
    n, k = b.split_round(b.clamp(x, emin, emax) + b.format.rounder)
    fraction = b.clamp(x, emin, emax) - n
    first, second = table_of(b).ln2
    r = fraction * first
    low = b.fma(fraction, first, -r) + fraction * second
    return scaled(b, 1 + reduced_expm1(b, Pair(r, low)).high, k)


def exponent_bounds(b: Builder) -> tuple[float, float]:
    """Exponents of 2 beyond which all is 0, and all is infinite."""
    return (
        -float(b.format.max_exponent + b.format.precision + 2),
        float(b.format.max_exponent + 3),
    )


def clamped(b: Builder, x: Vector) -> Vector:
    """`x` where e^x is neither 0 nor infinite, and a little beyond."""
    emin, emax = exponent_bounds(b)
    return b.clamp(x, emin * LN2, emax * LN2)


def reduced(b: Builder, x: Vector) -> tuple[Vector, Vector, Vector]:
    """k as a float and as an integer, and x less k times the first word of ln 2."""
    table = table_of(b)
    n, k = b.split_round(b.fma(x, table.log2_e[0], b.format.rounder))
    return n, k, b.fma(n, -table.ln2[0], x)


def reduced_pair(b: Builder, x: Vector) -> tuple[Vector, Pair]:
    """k, and x - k ln 2 in two words."""
    n, k, r = reduced(b, x)
    return k, fast_two_sum(r, n * -table_of(b).ln2[1])


def reduced_expm1(b: Builder, r: Pair) -> Pair:
    """e^r - 1 for |r| <= ln(2)/2."""
    low = b.fma(r.low, r.high, r.low)
    square = r.high * r.high
    rest = b.fma(square, b.polynomial(r.high, table_of(b).exp), low)
    return fast_two_sum(r.high, rest)


def scaled(b: Builder, x: Vector, k: Vector) -> Vector:
    """x 2^k for a k of up to twice the normal exponents."""
    half = k >> 1
    return x * b.power_of_two(half) * b.power_of_two(k - half)


def exp_of_pair(b: Builder, x: Pair) -> tuple[Vector, Pair]:
    """k and the Pair p with e^x = 2^k p."""
    k, r = reduced_pair(b, x.high)
    # x.low may be as large as the rounding of x, far beyond that of r.
    grown = reduced_expm1(b, fast_two_sum(r.high, r.low + x.low))
    high = 1 + grown.high
    return k, Pair(high, grown.high - (high - 1) + grown.low)


def expm1_pair(b: Builder, x: Vector) -> Pair:
    """e^x - 1, for an x that does not overflow.

    As 2 (2^(k-1) e^r - 1/2), since 2^k may be infinite where e^x is not.
    """
    k, r = reduced_pair(b, x)
    grown = reduced_expm1(b, r)
    half = b.power_of_two(k - 1)
    high, low = two_sum(half - 0.5, half * grown.high)
    whole = Pair(2 * high, 2 * b.fma(half, grown.low, low))
    return choose(b, k.eq(0), grown, whole)


def expm1(b: Builder, x: Vector) -> Vector:
    """e^x - 1, also for small x.

    >>> from tapejit.codegen.host import value_of
    >>> value_of(expm1, 1e-20)
    1e-20
    """
    lowest = -(b.format.precision + 3) * LN2
    highest = (b.format.max_exponent + 1.3) * LN2
    grown = expm1_pair(b, b.clamp(x, lowest, highest))
    return b.copysign(grown.total(), x)


def tanh(b: Builder, x: Vector) -> Vector:
    """The hyperbolic tangent: t / (t + 2) with t = e^(2|x|) - 1.

    >>> from tapejit.codegen.host import value_of
    >>> value_of(tanh, 0.5)
    0.46211715726000974
    """
    magnitude = b.clamp(b.abs(x), 0.0, (b.format.precision + 4) * LN2 / 2)
    top = expm1_pair(b, magnitude + magnitude)
    bottom = two_sum(2, top.high)
    quotient = divide(b, top, Pair(bottom.high, bottom.low + top.low))
    return b.copysign(quotient.total(), x)


def half_exp(b: Builder, magnitude: Vector) -> Vector:
    """e^|x| / 2, which may be finite where e^|x| is not."""
    k, p = exp_of_pair(b, Pair(clamped(b, magnitude), b.constant(0.0)))
    return scaled(b, p.total(), k - 1)


def sinh(b: Builder, x: Vector) -> Vector:
    """The hyperbolic sine; below 1 by its own polynomial, where exponentials cancel.

    >>> from tapejit.codegen.host import value_of
    >>> value_of(sinh, 1.0)
    1.1752011936438014
    """
    magnitude = b.abs(x)
    z = magnitude * magnitude
    small = b.fma(magnitude * z, b.polynomial(z, table_of(b).sinh), magnitude)
    half = half_exp(b, magnitude)
    large = half - 0.25 / half
    return b.copysign(b.select(magnitude < 1, small, large), x)


def cosh(b: Builder, x: Vector) -> Vector:
    """The hyperbolic cosine.

    >>> from tapejit.codegen.host import value_of
    >>> value_of(cosh, 1.0)
    1.5430806348152437
    """
    half = half_exp(b, b.abs(x))
    return half + 0.25 / half


def sigmoid(b: Builder, x: Vector) -> Vector:
    """1 / (1 + e^-x), from e^-|x|, which does not overflow.

    >>> from tapejit.codegen.host import value_of
    >>> value_of(sigmoid, -700.0)
    9.85967654375977e-305
    """
    small = exp(b, -b.abs(x))
    top = Pair(b.select(x < 0, small, 1.0), b.constant(0.0))
    return divide(b, top, fast_two_sum(1.0, small)).total()
