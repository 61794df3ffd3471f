"""Hurwitz' zeta function, its derivatives by the exponent, and polygamma.

ζ(s, q) = Σ (q + k)^-s over k = 0, 1, ...  Its values are SciPy's, except far below
zero, where SciPy takes -q steps. Its derivatives by s are the sums with powers of
-log(q + k) besides: a few terms, and the rest by the formula of Euler and Maclaurin,
each part of which is differentiated by s as often as asked.

All functions here take and give arrays of doubles.

Start reading at `zeta`, then `zeta_slope`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

import numpy as np

DEEP: Final = -64.0
TERMS: Final = 12  # added one by one
# B₂ⱼ / (2j)!: the coefficients of the correction.
CORRECTION: Final = (
    1 / 12,
    -1 / 720,
    1 / 30240,
    -1 / 1209600,
    1 / 47900160,
    -691 / 1307674368000,
    1 / 74724249600,
    -3617 / 10670622842880000,
)


def zeta(s: Any, q: Any) -> Any:
    """Σ (q + k)^-s; far below 0 by reflection, where the exponent is an integer.

    The sum over all integers depends on the fraction of q alone, so what is missing
    of it to the left of q is a sum that starts at 1 - q.

    >>> round(float(zeta(np.float64(2), np.float64(1))), 12)
    1.644934066848
    """
    from scipy.special import zeta as summed

    is_below, is_whole = q < DEEP, q == np.floor(q)
    out = summed(s, np.where(is_below & ~is_whole, np.nan, q))
    out = np.where(np.isnan(s), np.nan, out)
    is_deep = is_below & ~is_whole & (s == np.floor(s)) & (s > 1)
    if np.any(is_deep):
        above = q - np.floor(q)
        sign = np.where(np.remainder(s, 2) == 0, 1.0, -1.0)
        left = summed(s, 1 - above) - summed(s, np.where(is_deep, 1 - q, 1.0))
        out = np.where(is_deep, summed(s, above) + sign * left, out)
    return out


def polygamma(n: Any, x: Any) -> Any:
    """(-1)^(n+1) n! ζ(n + 1, x), and ψ(x) for n = 0; NaN for negative n.

    >>> round(float(polygamma(np.int64(1), np.float64(1))), 12)
    1.644934066848
    """
    from scipy.special import gamma, psi

    sign = np.where(np.remainder(n, 2) == 0, -1.0, 1.0)
    order = np.where(n < 0, np.nan, np.asarray(n, float))
    higher = sign * gamma(order + 1) * zeta(order + 1, x)
    return np.where(n == 0, psi(x), higher)


def zeta_slope(s: Any, q: Any, *, order: int) -> Any:
    """The derivative of ζ(s, q), so many times by s, for s > 1 and q > 0.

    >>> round(float(zeta_slope(np.float64(2), np.float64(1), order=1)), 12)
    -0.937548254316
    """
    s, q = np.broadcast_arrays(np.asarray(s, float), np.asarray(q, float))
    is_defined = (s > 1) & np.isfinite(s) & (q > 0)
    s, q = np.where(is_defined, s, 2.0), np.where(is_defined, q, 1.0)
    out = np.zeros(s.shape)
    for k in range(TERMS):
        out = out + _power(q + k, -s, order)
    start = q + TERMS
    out = out + 0.5 * _power(start, -s, order)
    # ∫ t^-s from `start` on is start^(1-s) / (s-1).
    for i in range(order + 1):
        inverse = (-1) ** i * math.factorial(i) / (s - 1) ** (i + 1)
        out = out + math.comb(order, i) * inverse * _power(start, 1 - s, order - i)
    for j, coefficient in enumerate(CORRECTION, 1):
        end = 1 - 2 * j - s
        for i in range(min(order, 2 * j - 1) + 1):
            factor = coefficient * math.comb(order, i) * _rising(2 * j - 1, i)(s)
            out = out + factor * _power(start, end, order - i)
    out = np.where(np.isinf(q), 0.0, out)
    return np.where(is_defined, out, np.nan)


@cache
def _rising(count: int, order: int) -> np.polynomial.Polynomial:
    """s (s + 1) ··· of so many factors, differentiated so many times."""
    return np.polynomial.Polynomial.fromroots(-np.arange(float(count))).deriv(order)


def _power(base: Any, exponent: Any, order: int) -> Any:
    """base^exponent (-log base)^order, 0 where the power has vanished."""
    power = base**exponent
    return (
        power
        if not order
        else np.where(power == 0, 0.0, power * (-np.log(base)) ** order)
    )
