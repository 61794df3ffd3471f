"""The error function and its complement.

Below 1, erf x = x P(x²) with the first coefficient in two words. Beyond, erfc x is
exp(-x²) / (1 + 2x) times a function that is nearly constant, and a polynomial in
(x - c) / (x + c): one polynomial for all x, since that maps them to one interval
(Shepherd and Laframboise's idea). erfc keeps every factor in two words; erf = 1 - erfc
needs less.

Start reading at `erf`.
"""

from __future__ import annotations

from tapejit.codegen.vecmath.exponentials import exp, exp_of_pair, scaled
from tapejit.codegen.vecmath.numbers import table_of
from tapejit.codegen.vecmath.pairs import (
    Pair,
    divide,
    fast_two_sum,
    multiply,
    two_product,
    two_sum,
)
from tapejit.codegen.vector import Builder, Vector


def erf(b: Builder, x: Vector) -> Vector:
    """2/√π times the integral of exp(-t²) from 0 to x.

    >>> from tapejit.codegen.host import value_of
    >>> value_of(erf, 0.5)
    0.5204998778130465
    """
    magnitude = b.abs(x)
    last = 6.0 if b.format.bits == 64 else 4.0
    bounded = b.select(magnitude > last, last, magnitude)
    factor = smooth_factor(b, bounded)
    rest = exp(b, -(bounded * bounded)) * factor.total()
    far = 1 - rest / b.fma(bounded, 2.0, 1.0)
    return b.copysign(b.select(magnitude < 1, near_zero(b, magnitude).total(), far), x)


def erfc(b: Builder, x: Vector) -> Vector:
    """1 - erf x, to full precision where that is small.

    >>> from tapejit.codegen.host import value_of
    >>> value_of(erfc, 25.0)
    8.300172571196522e-274
    """
    table = table_of(b)
    magnitude = b.abs(x)
    bounded = b.select(magnitude > table.erfc_last, table.erfc_last, magnitude)
    square = two_product(b, bounded, bounded)
    k, decay = exp_of_pair(b, Pair(-square.high, -square.low))
    top = multiply(b, decay, smooth_factor(b, bounded))
    quotient = divide(b, top, two_sum(1.0, bounded + bounded))
    far = scaled(b, quotient.total(), k)
    far = b.select(x < 0, 2 - far, far)

    inner = near_zero(b, x)
    near = fast_two_sum(1.0, -inner.high)
    near_value = near.high + (near.low - inner.low)
    return b.select(magnitude < 0.5, near_value, far)


def near_zero(b: Builder, x: Vector) -> Pair:
    """erf x for |x| < 1."""
    table = table_of(b)
    z = x * x
    first = two_product(b, x, table.two_over_root_pi[0])
    second = b.fma(z, b.polynomial(z, table.erf), table.two_over_root_pi[1])
    return Pair(first.high, b.fma(x, second, first.low))


def smooth_factor(b: Builder, x: Vector) -> Pair:
    """(1 + 2x) exp(x²) erfc x, for x from 0.49."""
    table = table_of(b)
    t = (x - table.erfc_middle) / (x + table.erfc_middle)
    first, *others = table.erfc
    return fast_two_sum(first, t * b.polynomial(t, others))
