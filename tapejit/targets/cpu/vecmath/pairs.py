"""Sums of two floats: twice the precision, where one float is not enough.

A `Pair` is a value as `high + low`, with `low` around the rounding error of `high`. The
sums and products that return one are exact (the classical error-free transformations,
in Dekker's, Knuth's and the fused form); what is made of them here is not, but its
error is some 2^-100 in double and 2^-44 in single.

Start reading at `two_sum`.
"""

from __future__ import annotations

from typing import NamedTuple

from tapejit.targets.cpu.simd.vector import Builder, Operand, Vector


class Pair(NamedTuple):
    """The value `high + low`.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(lambda b, x: two_product(b, x, x).low, 1 + 2.0**-30) == 2.0**-60
    True
    """

    high: Vector
    low: Vector

    def total(self) -> Vector:
        """The value, rounded."""
        return self.high + self.low


def fast_two_sum(x: Operand, y: Vector) -> Pair:
    """x + y exactly, if x is 0 or |x| >= |y|."""
    high = x + y
    return Pair(high, y - (high - x))


def two_sum(x: Operand, y: Vector) -> Pair:
    """x + y exactly."""
    high = x + y
    rest = high - x
    return Pair(high, (x - (high - rest)) + (y - rest))


def two_product(b: Builder, x: Vector, y: Operand) -> Pair:
    """x * y exactly."""
    high = x * y
    return Pair(high, b.fma(x, y, -high))


def times(b: Builder, x: Pair, words: tuple[float, ...]) -> Pair:
    """A Pair times a constant of two words."""
    high = x.high * words[0]
    low = b.fma(x.high, words[0], -high)
    return Pair(high, b.fma(x.low, words[0], b.fma(x.high, words[1], low)))


def multiply(b: Builder, x: Pair, y: Pair) -> Pair:
    """A Pair times a Pair."""
    high, low = two_product(b, x.high, y.high)
    return Pair(high, b.fma(x.high, y.low, b.fma(x.low, y.high, low)))


def divide(b: Builder, x: Pair, y: Pair) -> Pair:
    """A Pair by a Pair, with one division."""
    reciprocal = 1 / y.high
    high = x.high * reciprocal
    rest = b.fma(-high, y.high, x.high) + b.fma(-high, y.low, x.low)
    return Pair(high, rest * reciprocal)


def square_root(b: Builder, x: Pair) -> Pair:
    """The square root of a Pair that is not negative."""
    high = b.sqrt(x.high)
    rest = b.fma(-high, high, x.high) + x.low
    return Pair(high, b.select(high > 0, rest / (high + high), 0.0))


def choose(b: Builder, mask: Vector, x: Pair, y: Pair) -> Pair:
    """`x` in the lanes of the mask, `y` in the others."""
    return Pair(b.select(mask, x.high, y.high), b.select(mask, x.low, y.low))
