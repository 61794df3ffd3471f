"""The truth about functions of one or two numbers, from mpmath.

Start reading at `precise`; `FUNCTIONS` has those that mpmath has no name for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import scipy.special

Array = np.ndarray[Any, Any]
BITS = 120
MORE_BITS = {
    "power": 200,  # with 90, mpmath loses the last bits of powers of numbers next to 1
    "kl_div": 300,  # next to x = y its terms cancel to the square of the difference
}


def precise(name: str, arguments: list[Array]) -> Array:
    """The function of finite numbers, to the precision of `np.longdouble`."""
    function = FUNCTIONS.get(name) or getattr(mpmath, name)
    found = []
    with mpmath.workprec(MORE_BITS.get(name, BITS)):
        for row in zip(*(x.tolist() for x in arguments), strict=True):
            exact = mpmath.mpf(0) + function(*map(mpmath.mpf, row))
            high = float(exact)
            low = float(exact - high) if np.isfinite(high) else 0.0
            found.append(np.longdouble(high) + np.longdouble(low))
    return np.array(found, np.longdouble)


def erfcx(x: Any) -> Any:
    """exp(x²) erfc(x); far out by its asymptotic series."""
    if x < 100:
        return mpmath.exp(x * x) * mpmath.erfc(x)
    total = term = mpmath.mpf(1)
    for n in range(1, 12):
        term *= -(2 * n - 1) / (2 * x * x)
        total += term
    return total / (x * mpmath.sqrt(mpmath.pi))


def log_ndtr(x: Any) -> Any:
    """From erfcx on the left, where Φ vanishes."""
    root = x / mpmath.sqrt(2)
    if x > 0:
        return mpmath.log1p(-mpmath.erfc(root) / 2)
    return mpmath.log(erfcx(-root) / 2) - x * x / 2


def ndtri(p: Any) -> Any:
    """From SciPy's, by Newton's iteration on log Φ."""
    is_left = p < 0.5
    nearer = p if is_left else 1 - p
    y = mpmath.mpf(float(scipy.special.ndtri(float(nearer))))
    for _ in range(3):
        ratio = log_ndtr(y) - mpmath.log(nearer)
        y -= ratio / (mpmath.sqrt(2 / mpmath.pi) / erfcx(-y / mpmath.sqrt(2)))
    return y if is_left else -y


def erfinv(x: Any) -> Any:
    if abs(x) < 1e-10:
        return mpmath.sqrt(mpmath.pi) / 2 * x * (1 + mpmath.pi * x * x / 12)
    return ndtri((1 + x) / 2) / mpmath.sqrt(2)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x, 2),
    "gammaln": lambda x: mpmath.re(mpmath.loggamma(x)),
    "digamma": lambda x: mpmath.psi(0, x),
    "ndtr": lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "erfcx": erfcx,
    "log_ndtr": log_ndtr,
    "log_ndtr_slope": lambda x: mpmath.sqrt(2 / mpmath.pi) / erfcx(-x / mpmath.sqrt(2)),
    "ndtri": ndtri,
    "erfinv": erfinv,
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "softsign": lambda x: x / (1 + abs(x)),
    "entr": lambda x: -x * mpmath.log(x),
    "logit": lambda x: mpmath.log(x / (1 - x)),
    "sinc": lambda x: mpmath.sincpi(x),
    "logaddexp": lambda x, y: max(x, y) + mpmath.log1p(mpmath.exp(-abs(x - y))),
    "logaddexp2": lambda x, y: (
        max(x, y) + mpmath.log1p(mpmath.power(2, -abs(x - y))) / mpmath.log(2)
    ),
    "xlogy": lambda x, y: x * mpmath.log(y),
    "xlog1py": lambda x, y: x * mpmath.log1p(y),
    "rel_entr": lambda x, y: x * mpmath.log(x / y),
    "kl_div": lambda x, y: x * mpmath.log(x / y) - x + y,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
}
