"""Densities and tail integrals behind the incomplete gamma and beta functions.

Both functions are integrals of a density: P(a, x) of t^(a-1) e^-t / Γ(a) up to x, and
I_x(a, b) of t^(a-1) (1-t)^(b-1) / B(a, b). They have no closed derivative by a and b,
but the density p has: ∂p/∂a is p times a polynomial in the derivatives of log p. So
every derivative by the parameters is the integral of p times such a polynomial.

The integral runs over u = log t (gamma) or log t/(1-t) (beta), where p is smooth and
falls off at least exponentially on both sides, and away from x towards the side that
x lies on, so that nothing cancels. Values of p are taken relative to the one at x. The
substitution u = x ∓ width·exp(w - exp(-w)) and the trapezoidal rule over w converge to
double precision with two hundred points, for parameters of any magnitude.

All functions here take and give arrays of doubles.

Start reading at `gamma_slope`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

# The points of the trapezoidal rule: beyond these ends the integrand is below 1e-18.
STEP: Final = 3 / 64
_W: Final = STEP * np.arange(-82, 146)
POINTS: Final = np.exp(_W - np.exp(-_W))
WEIGHTS: Final = STEP * POINTS * (1 + np.exp(-_W))
CHUNK: Final = 512  # rows of points at a time: their arrays fit the cache

SMALL: Final = 2.0**-1022  # below it, SciPy's log Γ is infinite
LARGE: Final = 12.0  # from here on Stirling's series for log Γ has all digits
STIRLING: Final = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)


def gamma_density(a: Any, x: Any) -> Any:
    """x^(a-1) e^-x / Γ(a): where the gamma distribution has its mass.

    >>> float(gamma_density(np.float64(1.0), np.float64(0.0)))
    1.0
    """
    from scipy.special import gammaln, xlogy

    a, x = np.broadcast_arrays(np.asarray(a, float), np.asarray(x, float))
    with np.errstate(all="ignore"):
        out = np.exp(xlogy(a - 1, x) - x - gammaln(a))
        # The terms of a large `a` cancel. This form is relative to the peak at x = a.
        large = a >= LARGE
        safe_a, safe_x = np.where(large, a, LARGE), np.where(x > 0, x, 1.0)
        peak = np.sqrt(safe_a / (2 * np.pi)) / safe_x
        fall = safe_a * excess((safe_x - safe_a) / safe_a)
        height = np.exp(-fall - stirling_error(safe_a))
        near_peak = np.where(height > 0, peak * height, 0.0)
    out = np.where(large & (x > 0), near_peak, out)
    out = np.where(np.isposinf(x), 0.0, out)
    out = np.where((x == 0) & (a < 1), np.inf, out)
    return np.where((a >= SMALL) & np.isfinite(a) & (x >= 0), out, np.nan)


def beta_density(a: Any, b: Any, x: Any) -> Any:
    """x^(a-1) (1-x)^(b-1) / B(a, b): where the beta distribution has its mass.

    >>> float(beta_density(np.float64(2.0), np.float64(1.0), np.float64(0.5)))
    1.0
    """
    from scipy.special import xlog1py, xlogy

    arrays = np.broadcast_arrays(*[np.asarray(each, float) for each in (a, b, x)])
    a, b, x = arrays
    with np.errstate(all="ignore"):
        out = np.exp(xlogy(a - 1, x) + xlog1py(b - 1, -x) - betaln(a, b))
        large = (a >= LARGE) & (b >= LARGE) & (x > 0) & (x < 1)
        safe_a, safe_b = (np.where(large, each, LARGE) for each in (a, b))
        safe_x = np.where(large, x, 0.5)
        total = safe_a + safe_b
        off = safe_b * safe_x - safe_a * (1 - safe_x)  # 0 at the peak
        fall = safe_a * excess(off / safe_a) + safe_b * excess(-off / safe_b)
        errors = stirling_error(safe_a) + stirling_error(safe_b)
        errors = errors - stirling_error(total)
        peak = np.sqrt(safe_a / (2 * np.pi) / (1 + safe_a / safe_b))
        height = np.exp(-fall - errors)
        product = peak / (safe_x * (1 - safe_x)) * height
        near_peak = np.where(height > 0, product, 0.0)
    out = np.where(large, near_peak, out)
    is_pole = ((x == 0) & (a < 1)) | ((x == 1) & (b < 1))
    is_end = ((x == 0) & (a > 1)) | ((x == 1) & (b > 1))
    out = np.where(is_pole, np.inf, np.where(is_end, 0.0, out))
    is_defined = (a >= SMALL) & (b >= SMALL) & np.isfinite(a) & np.isfinite(b)
    return np.where(is_defined & (x >= 0) & (x <= 1), out, np.nan)


def betaln(a: Any, b: Any) -> Any:
    """log |B(a, b)|; that of large parameters without the terms that cancel.

    SciPy has 10 digits right at (1e6, 1e-3), this has all of them.

    >>> round(float(betaln(np.float64(1e6), np.float64(1e-3))), 12)
    6.893363375325
    """
    from scipy.special import betaln as plain
    from scipy.special import gammaln

    out = plain(a, b)
    small, large = np.minimum(a, b), np.maximum(a, b)
    is_plain = ~((small >= SMALL) & (large >= LARGE) & np.isfinite(large))
    if np.all(is_plain):
        return out
    small, large = np.where(is_plain, LARGE, small), np.where(is_plain, LARGE, large)
    share = np.log1p(small / large)
    errors = stirling_error(large) - stirling_error(large + small)
    mixed = gammaln(small) - (large - 0.5) * share + errors
    mixed = mixed + small * (1 - np.log(large) - share)
    both = np.maximum(small, LARGE)
    part = np.log(both / large) - share
    errors = errors + stirling_error(both) + 0.5 * math.log(2 * math.pi)
    equal = (both - 0.5) * part - (large - 0.5) * share + errors
    equal = equal - 0.5 * (np.log(large) + share)
    return np.where(is_plain, out, np.where(small >= LARGE, equal, mixed))


def stirling_error(a: Doubles) -> Doubles:
    """log Γ(a) less Stirling's formula, for a from LARGE on.

    >>> round(float(stirling_error(np.float64(12.0))), 15)
    0.006942840107209
    """
    inverse = 1 / a
    square = inverse * inverse
    total = np.zeros_like(inverse)
    for coefficient in reversed(STIRLING):
        total = total * square + coefficient
    return total * inverse


def excess(m: Doubles) -> Doubles:
    """m - log(1 + m), exact also for small m.

    >>> float(excess(np.array(0.0))), round(float(excess(np.array(1.0))), 12)
    (0.0, 0.30685281944)
    """
    direct = m - np.log1p(m)
    small = np.where(np.abs(m) < 0.2, m, 0.0)
    v = small / (2 + small)  # log(1 + m) = 2 (v + v³/3 + v⁵/5 + ...)
    square = v * v
    total = np.zeros_like(square)
    for power in range(23, 1, -2):
        total = total * square + 1 / power
    series = v * (small - 2 * square * total)
    return np.where(np.abs(m) < 0.2, series, np.where(np.isposinf(m), np.inf, direct))


# Derivatives by the parameters

Orders = tuple[int, ...]
Part = Callable[[Orders], Any]


def derivatives_of_exp(orders: Orders, part: Part, one: Any) -> Any:
    """∂ exp(h) / exp(h), as many times by each parameter as `orders` says.

    `part(orders)` is that derivative of h. Numbers, arrays or Nodes alike.

    >>> derivatives_of_exp((2,), lambda orders: {1: 5.0, 2: 7.0}[orders[0]], 1.0)
    32.0
    """
    known: dict[Orders, Any] = {tuple(0 for _ in orders): one}

    def of(wanted: Orders) -> Any:
        if wanted in known:
            return known[wanted]
        # One derivative gives exp(h) ∂h; the others follow Leibniz' rule.
        first = next(at for at, order in enumerate(wanted) if order)
        rest = tuple(order - (at == first) for at, order in enumerate(wanted))
        total: Any = None
        for chosen in np.ndindex(*[order + 1 for order in rest]):
            count = math.prod(map(math.comb, rest, chosen))
            raised = tuple(k + (at == first) for at, k in enumerate(chosen))
            left = of(tuple(r - k for r, k in zip(rest, chosen, strict=True)))
            factor = part(raised) if count == 1 else part(raised) * float(count)
            term = factor if left is one else factor * left
            total = term if total is None else total + term
        known[wanted] = total
        return total

    return of(tuple(orders))


def gamma_slope(a: Any, x: Any, *, order: int) -> Any:
    """The derivative of P(a, x), so many times by a.

    >>> a, x = np.float64(1.0), np.float64(1.0)
    >>> round(float(gamma_slope(a, x, order=1)), 12)
    -0.431729710635
    """
    from scipy.special import polygamma

    def integrate(a: Doubles, x: Doubles) -> Doubles:
        """Over the tail that x begins; columns of a and x, rows of points."""
        is_left = x <= a
        width = 1 / (np.abs(a - x) + np.minimum(np.sqrt(a), a))
        delta = np.where(is_left, -width, width) * POINTS
        weight = np.exp(a * delta - x * np.expm1(delta))
        level = np.log(x) - polygamma(0, a)
        constants = {k: -polygamma(k - 1, a) for k in range(2, order + 1)}

        def part(orders: Orders) -> Any:
            return level + delta if orders == (1,) else constants[orders[0]]

        factor = derivatives_of_exp((order,), part, np.ones(()))
        # Where the weight has vanished the factor may be infinite.
        terms = np.where(weight > 0, weight * factor, 0.0) * WEIGHTS
        side = np.where(is_left, width, -width)[:, 0]
        result: Doubles = terms.sum(axis=-1) * side * (x * gamma_density(a, x))[:, 0]
        return result

    a, x = np.broadcast_arrays(np.asarray(a, float), np.asarray(x, float))
    is_defined = (a >= SMALL) & (x >= 0) & np.isfinite(a)
    is_inside = is_defined & (x > 0) & np.isfinite(x)
    out = np.where(is_defined, 0.0, np.nan)
    out[is_inside] = _in_chunks(integrate, a[is_inside], x[is_inside])
    return out


def beta_slope(a: Any, b: Any, x: Any, *, orders: Orders) -> Any:
    """The derivative of I_x(a, b), so many times by a and so many by b.

    >>> one, half = np.float64(1.0), np.float64(0.5)
    >>> round(float(beta_slope(one, one, half, orders=(1, 0))), 12)
    -0.34657359028
    """
    a, b, x = np.broadcast_arrays(*[np.asarray(each, float) for each in (a, b, x)])
    is_defined = (a >= SMALL) & (b >= SMALL) & np.isfinite(a) & np.isfinite(b)
    is_defined = is_defined & (x >= 0) & (x <= 1)
    is_inside = is_defined & (x > 0) & (x < 1)
    out = np.where(is_defined, 0.0, np.nan)
    a, b, x = a[is_inside], b[is_inside], x[is_inside]
    # Right of the mean it is the other tail, that of 1 - x with a and b exchanged.
    is_left = x * b <= (1 - x) * a
    inner = np.empty_like(x)
    for side, flag in ((is_left, 1.0), (~is_left, -1.0)):
        near, far = (a, b) if flag > 0 else (b, a)
        here, there = (x, 1 - x) if flag > 0 else (1 - x, x)
        turned = orders if flag > 0 else orders[::-1]
        columns = (near[side], far[side], here[side], there[side])
        density = beta_density(a[side], b[side], x[side])
        inner[side] = flag * density * _in_chunks(_beta_tail(turned), *columns)
    out[is_inside] = inner
    return out


def _beta_tail(orders: Orders) -> Callable[..., Doubles]:
    """The integral from 0 to x, divided by the density at x."""
    from scipy.special import polygamma

    total_order = sum(orders)

    def integrate(a: Doubles, b: Doubles, x: Doubles, rest: Doubles) -> Doubles:
        total = a + b
        steepness = np.abs(a * rest - b * x)
        width = 1 / (steepness + np.minimum(np.sqrt(a / total * b), a))
        delta = -width * POINTS
        change = x * np.expm1(delta)
        # The logarithm of what 1 - t has become, in proportion.
        shift = np.where(
            change > -0.5, np.log1p(change), np.log(rest + x * np.exp(delta))
        )
        weight = np.exp(a * delta - total * shift)
        psi = {
            k: [polygamma(k, each) for each in (a, b, total)]
            for k in range(total_order)
        }
        levels: Mapping[Orders, Any] = {
            (1, 0): np.log(x) - psi[0][0] + psi[0][2] + (delta - shift),
            (0, 1): np.log(rest) - psi[0][1] + psi[0][2] - shift,
        }

        def part(wanted: Orders) -> Any:
            if wanted in levels:
                return levels[wanted]
            by_a, by_b, by_both = psi[sum(wanted) - 1]
            if wanted[0] and wanted[1]:
                return by_both
            return by_both - (by_a if wanted[0] else by_b)

        factor = derivatives_of_exp(orders, part, np.ones(()))
        terms = np.where(weight > 0, weight * factor, 0.0) * WEIGHTS
        scale = (width * x * rest)[:, 0]
        result: Doubles = terms.sum(axis=-1) * scale
        return result

    return integrate


def _in_chunks(integrate: Callable[..., Doubles], *columns: Doubles) -> Doubles:
    """A function of columns, for some rows at a time."""
    out = np.empty(len(columns[0]))
    with np.errstate(all="ignore"):
        for start in range(0, len(out), CHUNK):
            rows = slice(start, start + CHUNK)
            out[rows] = integrate(*[column[rows, None] for column in columns])
    return out
