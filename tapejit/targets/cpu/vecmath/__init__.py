"""Vector maths: the transcendental functions, emitted as branch-free SIMD.

Each function takes a `Builder` and Vectors of its format, appends instructions and
returns a Vector, for float32 and float64 at any number of lanes. Every lane gets the
same bits at every width. Results are within 2 ULP of the correctly rounded ones over
the whole range: subnormal numbers, overflow, NaN, infinities, signs of zero and huge
angles included. `pow`, `gammaln` and `digamma` have 4 ULP, the latter two and
`logaddexp` an absolute bound near their zeros. `docs/vecmath.md` has what is measured.

The pattern is the same everywhere: reduce the argument to a short interval without
losing bits, evaluate a polynomial there, and put the parts together so that only the
last addition rounds to the result's precision. Where one float is too short for the
parts, `pairs` has sums of two. The polynomials' numbers stand in `coefficients.py`.

Start reading at `exponentials.py`.
"""

from tapejit.targets.cpu.vecmath.circular import cos, sin, sinc, tan
from tapejit.targets.cpu.vecmath.entropies import (
    entr,
    kl_div,
    logit,
    rel_entr,
    xlog1py,
    xlogy,
)
from tapejit.targets.cpu.vecmath.error_functions import (
    erf,
    erfc,
    erfcx,
    log_ndtr,
    log_ndtr_slope,
    ndtr,
)
from tapejit.targets.cpu.vecmath.exponentials import (
    cosh,
    exp,
    exp2,
    expm1,
    sigmoid,
    sinh,
    tanh,
)
from tapejit.targets.cpu.vecmath.gamma import digamma, gammaln
from tapejit.targets.cpu.vecmath.inverse_circular import acos, asin, atan, atan2
from tapejit.targets.cpu.vecmath.logarithms import (
    acosh,
    asinh,
    atanh,
    log,
    log1p,
    log2,
    log10,
    pow,
)
from tapejit.targets.cpu.vecmath.quantiles import erfinv, ndtri
from tapejit.targets.cpu.vecmath.roots import cbrt, hypot
from tapejit.targets.cpu.vecmath.sums_of_exponentials import (
    logaddexp,
    logaddexp2,
    softplus,
    softsign,
)

UNARY = {
    function.__name__: function
    for function in (
        exp, exp2, expm1, log, log2, log10, log1p, sin, cos, tan, sinc,
        sinh, cosh, tanh,
        asin, acos, atan, asinh, acosh, atanh, sigmoid, softplus, softsign,
        erf, erfc, erfcx, erfinv, ndtr, ndtri, log_ndtr, log_ndtr_slope, cbrt,
        gammaln, digamma, entr, logit,
    )
}  # fmt: skip
BINARY = {
    function.__name__: function
    for function in (
        atan2, hypot, pow, logaddexp, logaddexp2, xlogy, xlog1py, rel_entr, kl_div,
    )
}  # fmt: skip

__all__ = ["BINARY", "UNARY", *UNARY, *BINARY]
