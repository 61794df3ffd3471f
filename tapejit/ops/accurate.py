"""Special functions of doubles where SciPy's have fewer digits than tapejit promises.

SciPy rounds x² before it is an exponent, so that the tails of erfc and Φ lose as many
digits as x² has; it cancels x log(x/y) against x - y, and log Γ against itself around
its zeros. Here squares and products are two words: what a double holds and what its
rounding lost (T. J. Dekker, 1971). Special values are SciPy's.

Functions take doubles and return doubles, and NumPy's warnings are the caller's. They
cost some hundred operations of arrays, so narrow floats, which need no such digits,
are better off with SciPy's. Start reading at `erfcx_words`, then `kl_div`.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = Any
Words = tuple[Any, Any]
"""A number as a double and what is left of it."""
LN2 = 0.6931471803691238, 1.9082149292705877e-10
"""log 2, of which the first word has 21 zeros at its end, and the rest."""
STEP = 0.4
"""Of the sum that erfcx is; it is right to exp(-(π / STEP)²), some 1e-27."""
GREATEST = 40.0
"""Beyond it exp(-x²/2) is 0."""


def scipys(name: str, *arrays: Array) -> Array:
    """A function of `scipy.special`, imported at its first use."""
    return getattr(importlib.import_module("scipy.special"), name)(*arrays)


# Two words


def halves(x: Array) -> Words:
    """Two numbers of 26 bits whose sum is x, so that products of them are exact."""
    carried = x * 134217729.0  # 2²⁷ + 1
    high = carried - (carried - x)
    return high, x - high


def two_product(x: Array, y: Array) -> Words:
    """x y, and what its rounding lost.

    >>> two_product(1 + 2.0**-30, 1 + 2.0**-30) == (1 + 2.0**-29, 2.0**-60)
    True
    """
    product = x * y
    (x_high, x_low), (y_high, y_low) = halves(x), halves(y)
    lost = x_high * y_high - product
    return product, lost + x_high * y_low + x_low * y_high + x_low * y_low


def two_sum(x: Array, y: Array) -> Words:
    """x + y, and what its rounding lost."""
    total = x + y
    other = total - x
    return total, (x - (total - other)) + (y - other)


# The error function's relatives


class Scale(NamedTuple):
    """In what the argument is measured, and with it the constants that depend on it."""

    half: float  # what x² is multiplied by
    slope: Words  # of erf at 0
    last: Words  # x erfcx(x) of an infinite x
    rate: float  # 2π / STEP


ERROR = Scale(
    1.0,
    (1.1283791670955126, 1.533545961316588e-17),
    (0.5641895835477563, 7.66772980658294e-18),
    2 * math.pi / STEP,
)
NORMAL = Scale(
    0.5,
    (0.7978845608028654, -4.98465440455546e-17),
    (0.7978845608028654, -4.98465440455546e-17),
    math.sqrt(2) * math.pi / STEP,
)
"""The same for x / √2, which the normal distribution is a function of."""

THIRD_LOST = 1.850371707708594e-17  # by 1 / 3
SPLIT = 1.0
"""Of |x|, or |x|/√2: below it 1 - erf is computed as that."""


def in_blocks(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`function` of one block after the other, so that all it makes stays in cache."""
    size = 1 << 11

    @functools.wraps(function)
    def evaluate(x: Array) -> Array:
        if np.size(x) <= size:
            return function(x)
        flat = np.ravel(x)
        blocks = [function(flat[at : at + size]) for at in range(0, flat.size, size)]
        return np.concatenate(blocks).reshape(np.shape(x))

    return evaluate


def square_of(x: Array, scale: Scale) -> Words:
    """x², or x²/2, of an x that is not so large that it overflows."""
    return two_product(x, x * scale.half)


def erfc_words(x: Array, scale: Scale) -> Words:
    """1 - erf x for x from 0 to `SPLIT`, by the power series of erf.

    Its first two terms are in two words: what is left cancels less and is smaller.
    """
    square, square_lost = square_of(x, scale)
    terms = [(-1.0) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(2, 22)]
    third, third_lost = two_sum(-1 / 3, square * polynomial(square, terms))
    bend, bend_lost = two_product(square, third)
    bend_lost = bend_lost + square * (third_lost - THIRD_LOST) + square_lost * third
    high, low = two_product(x, scale.slope[0])
    low = low + x * scale.slope[1]
    part, part_lost = two_product(high, bend)
    whole, lost = two_sum(1.0, -high)
    whole, more = two_sum(whole, -part)
    rest = low + low * bend + part_lost + high * bend_lost
    return two_sum(whole, lost + more - rest)


def erfcx_words(x: Array, scale: Scale) -> Words:
    """exp(x²) erfc x for x from `SPLIT` on: a trapezoidal sum, and what it lacks.

    erfc is an integral of exp(-t²) / (x² + t²) over all t. Sums with steps h differ
    from it by 2 exp(x²) / (1 - exp(2πx/h)), the share of the pole at t = ix, and by
    exp(-(π/h)²) (C. Chiarella and A. Reichel, 1968). As the sum without the denominator
    is known, only what is lacking in it is summed: little where x is large.
    """
    square = scale.half * x * x
    at = (np.arange(16, 0, -1) * STEP) ** 2
    weights = 2 * STEP / math.sqrt(math.pi) * np.exp(-at) * at
    lacking = (weights / (square[..., None] + at)).sum(axis=-1)
    high = scale.last[0] / x
    product, lost = two_product(high, np.minimum(x, 1e200))
    rest = ((scale.last[0] - product) - lost + scale.last[1]) / x
    pole = np.exp(np.minimum(square, 70.0) - scale.rate * x)
    pole = 2 * pole / (1 - np.exp(-scale.rate * x))
    rest = np.where(x < 1e200, rest, 0) - high * lacking
    return two_sum(high, rest - np.where(square < (math.pi / STEP) ** 2, pole, 0))


def tail(square: Words, factor: Words) -> Words:
    """exp(-square) times the factor."""
    decay = np.exp(-square[0])
    high, low = two_product(decay, factor[0])
    low = np.where(high < 1e-290, 0, low)  # of digits that are below the least float
    return high, low + (decay * factor[1] - high * square[1])


def erfc_of(x: Array, scale: Scale) -> Words:
    """erfc x for every x from 0 to `GREATEST`."""
    split = SPLIT / math.sqrt(scale.half)
    near = erfc_words(np.minimum(x, split), scale)
    outer = np.maximum(x, split)
    far = tail(square_of(outer, scale), erfcx_words(outer, scale))
    return chosen(x < split, near, far)


def erfcx_of(x: Array, scale: Scale) -> Words:
    """exp(x²) erfc x for every x from 0 on."""
    split = SPLIT / math.sqrt(scale.half)
    inner = np.minimum(x, split)
    square, rest = square_of(inner, scale)
    near = tail((-square, -rest), erfc_words(inner, scale))
    return chosen(x < split, near, erfcx_words(np.maximum(x, split), scale))


def chosen(mask: Array, x: Words, y: Words) -> Words:
    """`x` where the mask says so, elsewhere `y`."""
    return np.where(mask, x[0], y[0]), np.where(mask, x[1], y[1])


def bounded(x: Array) -> Array:
    """|x|, at most where every tail has become 0: no square overflows."""
    return np.minimum(np.abs(x), GREATEST)


@in_blocks
def erfc(x: Array) -> Array:
    """1 - erf x, which on the right is small.

    >>> print(f"{erfc(np.float64(25.0)):.13g}")
    8.300172571197e-274
    """
    high, low = erfc_of(bounded(x), ERROR)
    return np.where(x < 0, (2 - high) - low, high + low)


@in_blocks
def erfcx(x: Array) -> Array:
    """exp(x²) erfc x; on the left 2 exp(x²) less what it is on the right."""
    high, low = erfcx_of(np.abs(x), ERROR)
    square, rest = square_of(bounded(x), ERROR)
    grown = 2 * np.exp(square)
    left = np.where(grown < np.inf, grown + (grown * rest - high), np.inf)
    return np.where(x < 0, left, high + low)


@in_blocks
def ndtr(x: Array) -> Array:
    """The normal distribution function Φ(x) = erfc(-x/√2) / 2.

    >>> print(f"{ndtr(np.float64(-10.0)):.13g}")
    7.619853024161e-24
    """
    high, low = erfc_of(bounded(x), NORMAL)
    far = 0.5 * high + 0.5 * low
    return np.where(x < 0, far, 1 - far)


@in_blocks
def ndtri(p: Array) -> Array:
    """The x with Φ(x) = p: SciPy's, and one step of Newton's iteration.

    >>> print(f"{ndtri(np.float64(0.975)):.13g}")
    1.95996398454
    """
    found = scipys("ndtri", p)
    nearer, x = np.where(p < 0.5, p, 1 - p), np.where(p < 0.5, found, -found)
    high, low = erfc_of(bounded(x), NORMAL)
    density = NORMAL.slope[0] / 2 * np.exp(-0.5 * x * x)
    x = x - ((0.5 * high - nearer) + 0.5 * low) / density
    stepped = np.where(p < 0.5, x, -x)
    return np.where(np.isfinite(found) & (found != 0), stepped, found)


@in_blocks
def log_ndtr(x: Array) -> Array:
    """log Φ(x): on the right from Φ(-x), far on the left from what it is by exp(-x²/2).

    >>> print(f"{log_ndtr(np.float64(10.0)):.13g}")
    -7.619853024161e-24
    """
    high, low = erfc_of(bounded(x), NORMAL)
    right = np.log1p(-0.5 * high) - 0.5 * low / (1 - 0.5 * high)
    near = np.log(0.5 * high) + low / high
    outer = np.clip(-x, 1.0, 1e150)
    factor, rest = erfcx_of(outer, NORMAL)
    square, lost = square_of(outer, NORMAL)
    far = (np.log(0.5 * factor) + rest / factor - lost) - square
    far = np.where(x < -1e150, -0.5 * x * x, far)
    return np.where(x > 0, right, np.where(x < -1, far, near))


@in_blocks
def log_ndtr_slope(x: Array) -> Array:
    """φ(x) / Φ(x): √(2/π) / erfcx(-x/√2), which does not vanish; far to the left -x."""
    near = bounded(x)
    half = NORMAL.slope[0] / 2, NORMAL.slope[1] / 2
    density, rest = tail(square_of(near, NORMAL), half)
    high, low = erfc_of(near, NORMAL)
    bottom, lost = two_sum(1.0, -0.5 * high)
    right = density / bottom
    right = right + (rest - right * (lost - 0.5 * low)) / bottom
    factor, lost = erfcx_of(np.abs(x), NORMAL)
    left = NORMAL.slope[0] / factor
    left = left + (NORMAL.slope[1] - left * lost) / factor
    return np.where(x > 0, right, np.where(x < -1e9, -x, left))


# Gamma


@functools.cache
def zeta_coefficients(minus: int) -> list[float]:
    """(-1)ᵏ (ζ(k) - minus) / k for k from 2 on."""
    orders = np.arange(2, 56)
    found = scipys("zetac", orders.astype(np.float64)) + (1 - minus)
    return list((-1.0) ** orders * found / orders)


def polynomial(x: Array, coefficients: list[float]) -> Array:
    """By Horner's rule, the constant first."""
    total = np.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


LEAST = -33.5
"""Left of it no float is next to a zero of log |Γ|, and Stirling's series is short."""


def rising_product(x: Array, count: Array) -> Words:
    """x (x + 1) (x + 2) ..., of `count` factors, none of which is to be rounded."""
    high, low = np.where(count > 0, x, 1), np.zeros_like(x)
    for k in range(1, int(count.max())):
        factor = np.where(k < count, x + k, 1)
        high, lost = two_product(high, factor)
        low = low * factor + lost
    return high, low


def mirrored_gammaln(x: Array) -> Array:
    """log |Γ(x)| left of `LEAST`: log |π / (x sin πx)| less Stirling's series of -x."""
    a, away = -x, x - np.rint(x)
    high, low = log_of_ratio(a, 1.0)
    product, lost = two_product(a, high)
    total, more = two_sum(product, -a)
    series = polynomial(1 / (a * a), [1 / 12, -1 / 360, 1 / 1260, -1 / 1680]) / a
    rest = 0.5 * (high - math.log(math.pi / 2)) + series
    rest = rest + (lost + more + (a + 0.5) * low)
    return -(total + (rest + np.log(np.abs(np.sin(math.pi * away)))))


def gammaln(x: Array) -> Array:
    """log |Γ(x)|: by its series around 1 and 2, and to the left by that around 1.

    With t the distance from the nearest integer, Γ(x) is Γ(1 + t) by the product of x,
    x + 1, ..., t. None of these is rounded, and next to zeros the product is near 1.

    >>> print(f"{gammaln(np.float64(1 + 2.0**-40)):.13g}")
    -5.249745890076e-13
    >>> print(f"{gammaln(np.float64(-3.1428258438257712)):.13g}")
    0.005890444162361
    """
    found, nearest = np.array(scipys("gammaln", x)), np.rint(x)
    is_far = (x < LEAST) & (x != nearest)
    if np.any(is_far):
        found[is_far] = mirrored_gammaln(np.asarray(x)[is_far])
    for zero, slope in ((1, -np.euler_gamma), (2, 1 - np.euler_gamma)):
        is_near = (np.maximum(nearest, 1) == zero) & (x >= LEAST) & (x != nearest)
        if np.any(is_near):
            near, whole = np.asarray(x)[is_near], np.asarray(nearest)[is_near]
            t = near - whole
            series = t * polynomial(t, zeta_coefficients(zero - 1))
            product, rest = rising_product(near, 1 - whole)
            logarithm = np.log(np.abs(product)) + rest / product
            found[is_near] = t * (slope + series) - logarithm
    return found


def digamma(x: Array) -> Array:
    """ψ(x); left of 0 by reflection with the exact distance to the next pole.

    >>> print(f"{digamma(np.float64(-1000.25)):.13g}")
    10.05009769307
    """
    away = x - np.rint(x)
    other = np.copysign(0.5 - np.abs(away), away)  # where the cotangent is small
    cotangent = np.where(
        np.abs(away) < 0.25, 1 / np.tan(math.pi * away), np.tan(math.pi * other)
    )
    mirror, lost = two_sum(1.0, -x)
    rest = lost / (mirror - 0.5)  # times about the slope of ψ
    mirrored = scipys("psi", mirror) + (rest - math.pi * cotangent)
    is_left = (x < -1e-3) & (away != 0) & np.isfinite(x)
    return np.where(is_left, mirrored, scipys("psi", x))


# Entropies


def log_of_ratio(x: Array, y: Array) -> tuple[Array, Array]:
    """log(x / y) of positive numbers in two words, good to one word's last digits."""
    (m, k), (other_m, other_k) = np.frexp(x), np.frexp(y)
    power = (k - other_k).astype(np.float64)
    quotient = m / other_m
    product, lost = two_product(quotient, other_m)
    rest = ((m - product) - lost) / m  # what rounding the quotient lost
    high, low = two_sum(power * LN2[0], np.log(quotient))
    return high, low + (power * LN2[1] + rest)


def kl_div(x: Array, y: Array) -> Array:
    """x log(x/y) - x + y; where the terms cancel, by s = (x - y) / (x + y).

    As log(x/y) is 2 (s + s³/3 + s⁵/5 + ...) it is (x - y) s (1 + (1 + s) (s/3 + s³/5 +
    s⁵/7 + ...)), where nothing cancels.

    >>> print(f"{kl_div(np.float64(1 + 2.0**-52), np.float64(1.0)):.13g}")
    2.465190328816e-32
    """
    is_inside = (x > 0) & (y > 0) & np.isfinite(x) & np.isfinite(y)
    larger = np.where(is_inside, np.maximum(x, y), 1)
    scale = np.where(larger > 2.0**900, 2.0**-100, 1.0)
    scale = np.where(larger < 2.0**-800, 2.0**200, scale)
    x_in, y_in = np.where(is_inside, x, 1), np.where(is_inside, y, 1)
    logarithm, rest = log_of_ratio(x_in, y_in)
    x_in, y_in = x_in * scale, y_in * scale

    product, lost = two_product(x_in, logarithm)
    apart, apart_lost = two_sum(y_in, -x_in)
    total, total_lost = two_sum(product, apart)
    far = total + (total_lost + (lost + x_in * rest + apart_lost))

    total, total_lost = two_sum(x_in, y_in)
    s = -apart / total
    is_near = (np.abs(s) < 0.5) & (s != 0)
    s, apart = np.where(is_near, s, 0.25), np.where(is_near, apart, -0.25 * total)
    series = s * polynomial(s * s, [1 / n for n in range(3, 60, 2)])
    product, lost = two_product(s, total)
    roundings = ((-apart - product) - lost) / (s * total)
    roundings = roundings + 2 * apart_lost / apart - total_lost / total
    near, lost = two_product(-apart, s)
    near = near + (near * ((1 + s) * series + roundings) + lost)

    found = np.where(is_near, near, np.where(x == y, 0, far)) / scale
    outside = np.where((x == 0) & (y >= 0), y, np.inf)
    is_void = np.isnan(x) | np.isnan(y) | ((x > 0) & (y > 0))
    return np.where(is_inside, found, np.where(is_void, np.nan, outside))
