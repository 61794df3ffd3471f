"""Products with logarithms, logarithms of quotients, entropies.

A product would double the error of a logarithm that is right to one unit, so the
logarithm is a Pair here: k ln 2 and f are added without loss, only what log(1 + f) is
less than f is rounded. A quotient's logarithm is that of two significands, so that no
quotient overflows, and f is exact where both are nearly equal.

Start reading at `log_words`, then `xlogy`.
"""

from __future__ import annotations

from tapejit.targets.cpu.simd.vector import Builder, Vector
from tapejit.targets.cpu.vecmath.gamma import log_of
from tapejit.targets.cpu.vecmath.logarithms import (
    plus_exponent,
    split,
    split_any,
    with_limits,
)
from tapejit.targets.cpu.vecmath.numbers import INFINITY, NAN, table_of
from tapejit.targets.cpu.vecmath.pairs import (
    Pair,
    divide,
    fast_two_sum,
    multiply,
    two_product,
    two_sum,
)

LARGE = {32: 2.0**110, 64: 2.0**1000}  # from here on numbers are made smaller
SHIFT = 16  # by that many bits


def log_words(b: Builder, k: Vector, f: Vector, extra: Vector | None = None) -> Pair:
    """k ln 2 + log(1 + f) + extra, for 1 + f in [√½, √2)."""
    table = table_of(b)
    s = f / (2 + f)
    z = s * s
    rest = s * b.fma(-2 * z, b.polynomial(z, table.log), f)
    high, low = two_product(b, k, table.ln2[0])
    total = fast_two_sum(high, f)
    low = total.low + (b.fma(k, table.ln2[1], low) - rest)
    return fast_two_sum(total.high, low if extra is None else low + extra)


def times_log(b: Builder, x: Vector, y: Vector, log_y: Pair) -> Vector:
    """x log y; 0 where x is, unless y is NaN."""
    high = x * log_y.high
    low = b.fma(x, log_y.high, -high) + x * log_y.low
    size = b.abs(high)  # what is 0 keeps its sign
    found = b.select((size > 0) & (size < INFINITY), high + low, high)
    return b.select(x.eq(0.0) & y.eq(y), 0.0, found)


def limited(b: Builder, y: Vector, log_y: Pair, zero: float) -> Pair:
    """A logarithm with its special values, as `with_limits` has them."""
    is_plain = (y > zero) & (y < INFINITY)
    low = b.select(is_plain, log_y.low, 0.0)
    return Pair(with_limits(b, y, log_y.high, zero), low)


def xlogy(b: Builder, x: Vector, y: Vector) -> Vector:
    """x log y, 0 where x is 0.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(xlogy, 0.0, 0.0)
    0.0
    """
    k, m = split_any(b, y)
    return times_log(b, x, y, limited(b, y, log_words(b, k, m - 1), 0.0))


def xlog1py(b: Builder, x: Vector, y: Vector) -> Vector:
    """x log(1 + y), 0 where x is 0.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(xlog1py, 3.0, 1e-20)
    2.9999999999999997e-20
    """
    one = two_sum(1.0, y)
    k, m = split(b, one.high)
    is_near = k.eq(0.0)
    extra = b.select(is_near, 0.0, one.low / one.high)
    log_y = log_words(b, k, b.select(is_near, y, m - 1), extra)
    log_y = Pair(b.copysign(log_y.high, y), log_y.low)  # of -0 it is -0
    return times_log(b, x, y, limited(b, y, log_y, -1.0))


def entr(b: Builder, x: Vector) -> Vector:
    """-x log x, and -inf below 0.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(entr, 0.5)
    0.34657359027997264
    """
    found = b.select(x.eq(0.0), 0.0, -xlogy(b, x, x))
    return b.select(x < 0, -INFINITY, found)


def log_of_quotient(b: Builder, k: Vector, x: Pair, y: Pair) -> Pair:
    """k ln 2 + log(x / y)."""
    quotient = divide(b, x, y)
    quotient = fast_two_sum(quotient.high, quotient.low)
    shift, m = split_any(b, quotient.high)
    # Far from 1 the low word does not matter, where 2^-shift may not be normal.
    bounded = b.clamp(shift, -60.0, 60.0)
    integer = b.split_round(bounded + b.format.rounder)[1]
    f, low = two_sum(m - 1, quotient.low * b.power_of_two(-integer))
    return log_words(b, k + shift, f, b.fma(-f, low, low))


def logit(b: Builder, x: Vector) -> Vector:
    """log(x / (1 - x)).

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(logit, 0.5)
    0.0
    """
    none = b.constant(0.0)
    found = log_of_quotient(b, none, Pair(x, none), two_sum(1.0, -x)).total()
    limit = b.select(x.eq(0.0), -INFINITY, b.select(x.eq(1.0), INFINITY, NAN))
    return b.select((x > 0) & (x < 1), found, limit)


def rel_entr(b: Builder, x: Vector, y: Vector) -> Vector:
    """x log(x / y); 0 where x is 0 and y is not negative, elsewhere infinite.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(rel_entr, 2.0, 1.0)
    1.3862943611198906
    """
    ratio = log_of_ratio(b, x, y)
    return entropy_limits(b, x, y, times_log(b, x, y, ratio), b.constant(0.0))


def kl_div(b: Builder, x: Vector, y: Vector) -> Vector:
    """x log(x / y) - x + y; near y as y times a series in (x - y) / y.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(kl_div, 2.0, 1.0)
    0.38629436111989063
    """
    none = b.constant(0.0)
    (k, m), (other_k, other_m) = split_any(b, x), split_any(b, y)
    logarithm = log_of(b, divide(b, Pair(m, none), Pair(other_m, none)))
    logarithm = plus_exponent(b, k - other_k, logarithm)
    # The product may overflow where the result does not.
    is_large = (x > LARGE[b.format.bits]) & (y < INFINITY)
    scale = b.select(is_large, 2.0**-SHIFT, 1.0 + none)
    product = multiply(b, Pair(x * scale, none), logarithm)
    difference = two_sum(y * scale, -x * scale)
    whole = two_sum(product.high, difference.high)
    found = whole.high + (whole.low + (product.low + difference.low))
    found = found * b.select(is_large, 2.0**SHIFT, 1.0 + none)

    distance = x - y
    relative = distance / y
    half = 0.5 * distance * relative
    # (1 + d) log(1 + d) - d = d²/2 - d³/6 + d⁴/12 ...
    series = b.polynomial(relative, [-1 / 3, 1 / 6, -1 / 10, 1 / 15])
    near = b.fma(half * relative, series, half)
    is_near = b.abs(relative) < 2.0 ** -(b.format.precision // 4)
    found = b.select(is_near, near, found)
    is_infinite = x.eq(INFINITY) | y.eq(INFINITY)
    return entropy_limits(b, x, y, b.select(is_infinite, NAN, found), y)


def log_of_ratio(b: Builder, x: Vector, y: Vector) -> Pair:
    """log(x / y) of positive numbers; infinite if one of them is."""
    none = b.constant(0.0)
    (k, m), (other_k, other_m) = split_any(b, x), split_any(b, y)
    found = log_of_quotient(b, k - other_k, Pair(m, none), Pair(other_m, none))
    is_one = x.eq(y)
    high = b.select(is_one, 0.0, found.high)
    high = b.select(x.eq(INFINITY), INFINITY, high)
    high = b.select(y.eq(INFINITY), b.select(is_one, NAN, -INFINITY), high)
    has_low = (b.abs(high) < INFINITY) & ~is_one
    return Pair(high, b.select(has_low, found.low, 0.0))


def entropy_limits(
    b: Builder, x: Vector, y: Vector, found: Vector, at_zero: Vector
) -> Vector:
    """The result where both are positive, `at_zero` where x is 0 and y >= 0."""
    limit = b.select(x.eq(0.0) & (y >= 0), at_zero, INFINITY)
    limit = b.select(x.ne(x) | y.ne(y), NAN, limit)
    return b.select((x > 0) & (y > 0), found, limit)
