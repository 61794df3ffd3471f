"""Special functions: the error function's relatives, gamma, beta, Bessel, entropies.

The NumPy meaning of a record is SciPy's function in double precision, rounded once to
the operands' dtype; SciPy is imported at the first use. Special values are SciPy's.
Where SciPy is slow or loses digits it is helped: `zeta` far below 0, `betaln`, and in
float64 the functions of `accurate.py`.

Derivatives are closed formulas. Where one would lose digits or meet 0 · inf, it is a
record of its own: `log_ndtr_slope`, and the densities and slopes of the incomplete
gamma and beta functions, whose numbers come from `incomplete.py`, and those of `zeta`
by its exponent, from `hurwitz.py`. A slope is the derivative of any order, so that it
has derivatives itself.

Start reading at `erfc`, then `gammainc`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit.base.errors import ArgumentError
from tapejit.base.types import TensorType
from tapejit.ir.node import OPS, Node, Op, Rule, literal
from tapejit.ops import accurate, hurwitz, incomplete
from tapejit.ops.arithmetic import cast_eval
from tapejit.ops.comparison import bitwise_and, equal, where
from tapejit.ops.elementwise import check_kind, elementwise
from tapejit.ops.exponentials import times_log_derivs
from tapejit.ops.functions import exp, log, log1p
from tapejit.ops.shapes import broadcast_shapes, tensor

TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)
ROOT_TWO_PI = math.sqrt(2 * math.pi)


def rounded_once(
    function: Callable[..., Any], narrow: Callable[..., Any] | None = None
) -> Rule:
    """`function` of doubles for operands of any floating dtype.

    `narrow` is a cheaper one for operands that do not need all digits of a double.

    >>> print(rounded_once(np.hypot)(np.float16(1), np.float16(1)))
    1.414
    """

    cheap = narrow or function

    def evaluate(*arrays: Any, **attrs: Any) -> Any:
        dtype = arrays[0].dtype
        if dtype == np.float64:
            return function(*arrays, **attrs)
        doubles = [x.astype(np.float64) for x in arrays]
        return cast_eval(np.asarray(cheap(*doubles, **attrs)), dtype=dtype)

    return evaluate


def of_scipy(name: str) -> Rule:
    """A function of `scipy.special`, imported at its first use."""

    def function(*arrays: Any) -> Any:
        return getattr(importlib.import_module("scipy.special"), name)(*arrays)

    return rounded_once(function)


def special(
    name: str,
    scalar: Rule,
    deriv: Sequence[Rule | None],
    exact: Callable[..., Any] | None = None,
) -> Op:
    """A record whose meaning is SciPy's function of the same name.

    `exact` is the same with all digits of a double, where SciPy's lacks some.
    """
    eval = of_scipy(name)
    if exact is not None:
        eval = rounded_once(exact, narrow=eval)
    return elementwise(name, eval=eval, deriv=deriv, scalar=scalar, kinds=("float",))


def with_attributes(
    name: str, *, eval: Rule, scalar: Rule, deriv: Sequence[Rule], check: Rule
) -> Op:
    """An elementwise record that has attributes, which `check` looks at."""
    return elementwise(
        name,
        eval=rounded_once(eval),
        deriv=deriv,
        scalar=scalar,
        kinds=("float",),
        check=check,
    )


def check_natural(**numbers: int) -> None:
    """Refuse negative orders."""
    for name, number in numbers.items():
        if number < 0:
            raise ArgumentError(f"{name} cannot be negative, got {number}")


# The error function's relatives

erfc = special(
    "erfc",
    lambda m, x: m.erfc(x),
    (lambda t, x, out: -t * TWO_OVER_ROOT_PI * exp(-(x * x)),),
    accurate.erfc,
)
erfcx = special(
    "erfcx",
    lambda m, x: m.erfcx(x),
    (lambda t, x, out: t * (2 * x * out - TWO_OVER_ROOT_PI),),
    accurate.erfcx,
)
erfinv = special(
    "erfinv",
    lambda m, x: m.erfinv(x),
    (lambda t, x, out: t * exp(out * out) / TWO_OVER_ROOT_PI,),
)
ndtr = special(
    "ndtr",
    lambda m, x: m.ndtr(x),
    (lambda t, x, out: t * exp(x * x * -0.5) / ROOT_TWO_PI,),
    accurate.ndtr,
)
ndtri = special(
    "ndtri",
    lambda m, x: m.ndtri(x),
    (lambda t, x, out: t * ROOT_TWO_PI * exp(out * out * 0.5),),
    accurate.ndtri,
)


def scaled_slope(x: Any) -> Any:
    """√(2/π) / erfcx(-x/√2), far to the left -x: enough digits for narrow floats."""
    from scipy.special import erfcx as scaled

    slope = math.sqrt(2 / math.pi) / scaled(-x * math.sqrt(0.5))
    return np.where(x < -1e9, -x, slope)


log_ndtr_slope = elementwise(
    "log_ndtr_slope",
    eval=rounded_once(accurate.log_ndtr_slope, narrow=scaled_slope),
    deriv=(lambda t, x, out: -t * out * (x + out),),
    scalar=lambda m, x: m.log_ndtr_slope(x),
    kinds=("float",),
)
log_ndtr = special(
    "log_ndtr",
    lambda m, x: m.log_ndtr(x),
    (lambda t, x, out: t * log_ndtr_slope(x),),
    accurate.log_ndtr,
)

# Gamma and beta

gammaln = special(
    "gammaln",
    lambda m, x: m.gammaln(x),
    (lambda t, x, out: t * digamma(x),),
    accurate.gammaln,
)
digamma: Op = special(
    "digamma",
    lambda m, x: m.digamma(x),
    (lambda t, x, out: t * polygamma_of_order(1, x),),
    accurate.digamma,
)


def polygamma_type(n: Any, x: Any) -> TensorType:
    order, at = tensor(n), tensor(x)
    check_kind(order.dtype, ("integer",))
    check_kind(at.dtype, ("float",))
    return TensorType(at.dtype, broadcast_shapes(order, at))


def polygamma_eval(n: Any, x: Any) -> Any:
    out = hurwitz.polygamma(n, x.astype(np.float64))
    return cast_eval(np.asarray(out), dtype=x.dtype)


def polygamma_deriv(t: Node, n: Node, x: Node, out: Node) -> Node:
    return t * polygamma(n + 1, x)


# Of an order n that is an integer, which has no derivative.
polygamma: Op = elementwise(
    "polygamma",
    type_rule=polygamma_type,
    eval=polygamma_eval,
    deriv=(None, polygamma_deriv),
    scalar=lambda m, n, x: m.polygamma(n, x),
)


def polygamma_of_order(n: int, x: Node) -> Node:
    return polygamma(literal(n, np.dtype("int32")), x)


def zeta_slope_by_q(t: Node, x: Node, q: Node, out: Node, *, order: int) -> Node:
    """By q the zeta function has the slope -x ζ(x + 1, q): that, `order` times by x."""
    slope = x * zeta_slope(x + 1, q, order=order)
    if order:
        slope = slope + order * zeta_slope(x + 1, q, order=order - 1)
    return -t * slope


# ∂ζ(x, q)/∂x, and so on: `order` times by x.
zeta_slope: Op = with_attributes(
    "zeta_slope",
    eval=hurwitz.zeta_slope,
    scalar=lambda m, x, q, *, order: m.zeta_slope(x, q, order),
    deriv=(
        lambda t, x, q, out, *, order: t * zeta_slope(x, q, order=order + 1),
        zeta_slope_by_q,
    ),
    check=check_natural,
)
zeta: Op = elementwise(
    "zeta",
    eval=rounded_once(hurwitz.zeta),
    deriv=(
        lambda t, x, q, out: t * zeta_slope(x, q, order=1),
        lambda t, x, q, out: -t * x * zeta(x + 1, q),
    ),
    scalar=lambda m, x, q: m.zeta(x, q),
    kinds=("float",),
)
betaln = elementwise(
    "betaln",
    eval=rounded_once(incomplete.betaln),
    deriv=(
        lambda t, a, b, out: t * (digamma(a) - digamma(a + b)),
        lambda t, a, b, out: t * (digamma(b) - digamma(a + b)),
    ),
    scalar=lambda m, a, b: m.betaln(a, b),
    kinds=("float",),
)


def log_or_zero(x: Node) -> Node:
    """log x, but 0 at 0: there a density that vanishes must not meet an infinity."""
    return log(where(equal(x, 0), 1, x))


gamma_density: Op = elementwise(
    "gamma_density",
    eval=rounded_once(incomplete.gamma_density),
    deriv=(
        lambda t, a, x, out: t * out * (log_or_zero(x) - digamma(a)),
        lambda t, a, x, out: t * out * ((a - 1) / x - 1),
    ),
    scalar=lambda m, a, x: m.gamma_density(a, x),
    kinds=("float",),
)


def gammainc_slope_by_x(t: Node, a: Node, x: Node, out: Node, *, order: int) -> Node:
    """The density, differentiated by a: what the integral is an integral of."""

    def part(orders: tuple[int, ...]) -> Node:
        if orders == (1,):
            return log_or_zero(x) - digamma(a)
        return -polygamma_of_order(orders[0] - 1, a)

    factor = incomplete.derivatives_of_exp((order,), part, None)
    density = t * gamma_density(a, x)
    return density if factor is None else density * factor


# ∂P(a, x)/∂a, and so on: `order` times by a.
gammainc_slope: Op = with_attributes(
    "gammainc_slope",
    eval=incomplete.gamma_slope,
    scalar=lambda m, a, x, *, order: m.gammainc_slope(a, x, order),
    deriv=(
        lambda t, a, x, out, *, order: t * gammainc_slope(a, x, order=order + 1),
        gammainc_slope_by_x,
    ),
    check=check_natural,
)
gammainc = special(
    "gammainc",
    lambda m, a, x: m.gammainc(a, x),
    (
        lambda t, a, x, out: t * gammainc_slope(a, x, order=1),
        lambda t, a, x, out: t * gamma_density(a, x),
    ),
)
gammaincc = special(
    "gammaincc",
    lambda m, a, x: m.gammaincc(a, x),
    (
        lambda t, a, x, out: -t * gammainc_slope(a, x, order=1),
        lambda t, a, x, out: -t * gamma_density(a, x),
    ),
)


def beta_level(a: Node, b: Node, x: Node) -> Node:
    """∂/∂a of the logarithm of the beta density."""
    return log_or_zero(x) - digamma(a) + digamma(a + b)


beta_density: Op = elementwise(
    "beta_density",
    eval=rounded_once(incomplete.beta_density),
    deriv=(
        lambda t, a, b, x, out: t * out * beta_level(a, b, x),
        lambda t, a, b, x, out: t * out * beta_level(b, a, 1 - x),
        lambda t, a, b, x, out: t * out * ((a - 1) / x - (b - 1) / (1 - x)),
    ),
    scalar=lambda m, a, b, x: m.beta_density(a, b, x),
    kinds=("float",),
)


def betainc_slope_by_x(
    t: Node, a: Node, b: Node, x: Node, out: Node, *, orders: tuple[int, int]
) -> Node:
    """The density, differentiated by a and b."""

    def part(wanted: tuple[int, ...]) -> Node:
        if wanted == (1, 0):
            return beta_level(a, b, x)
        if wanted == (0, 1):
            return beta_level(b, a, 1 - x)
        order = sum(wanted) - 1
        together = polygamma_of_order(order, a + b)
        if wanted[0] and wanted[1]:
            return together
        return together - polygamma_of_order(order, a if wanted[0] else b)

    factor = incomplete.derivatives_of_exp(orders, part, None)
    density = t * beta_density(a, b, x)
    return density if factor is None else density * factor


def betainc_slope_by(at: int) -> Rule:
    """The same once more by a (0) or b (1)."""

    def rule(
        t: Node, a: Node, b: Node, x: Node, out: Node, *, orders: tuple[int, int]
    ) -> Node:
        more = (orders[0] + (at == 0), orders[1] + (at == 1))
        return t * betainc_slope(a, b, x, orders=more)

    return rule


def check_orders(*, orders: tuple[int, int]) -> None:
    check_natural(order_of_a=orders[0], order_of_b=orders[1])


# ∂I_x(a, b)/∂a and so on: as many times by a and by b as `orders` says.
betainc_slope: Op = with_attributes(
    "betainc_slope",
    eval=incomplete.beta_slope,
    scalar=lambda m, a, b, x, *, orders: m.betainc_slope(a, b, x, orders),
    deriv=(betainc_slope_by(0), betainc_slope_by(1), betainc_slope_by_x),
    check=check_orders,
)
betainc = special(
    "betainc",
    lambda m, a, b, x: m.betainc(a, b, x),
    (
        lambda t, a, b, x, out: t * betainc_slope(a, b, x, orders=(1, 0)),
        lambda t, a, b, x, out: t * betainc_slope(a, b, x, orders=(0, 1)),
        lambda t, a, b, x, out: t * beta_density(a, b, x),
    ),
)

# Bessel functions


def bessel_i_of(x: Any, *, order: int, scaled: bool) -> Any:
    module = importlib.import_module("scipy.special")
    if order < 2:
        return getattr(module, f"i{order}e" if scaled else f"i{order}")(x)
    return (module.ive if scaled else module.iv)(order, x)


def bessel_i_deriv(t: Node, x: Node, out: Node, *, order: int, scaled: bool) -> Node:
    """Half the sum of both neighbours: unlike I₀ - I₁/x this needs no limit at 0."""
    above = bessel_i(x, order=order + 1, scaled=scaled)
    slope = above
    if order:
        slope = (bessel_i(x, order=order - 1, scaled=scaled) + above) * 0.5
    return t * (slope - OPS["sign"](x) * out if scaled else slope)


def check_order(*, order: int, scaled: bool) -> None:
    check_natural(order=order)


# I of an integer order; `scaled` by e^-|x|, whose slope at 0 counts as 0.
bessel_i: Op = with_attributes(
    "bessel_i",
    eval=bessel_i_of,
    scalar=lambda m, x, *, order, scaled: m.bessel_i(x, order, scaled),
    deriv=(bessel_i_deriv,),
    check=check_order,
)

# Logarithms of odds, entropies

logit = special(
    "logit", lambda m, x: m.logit(x), (lambda t, x, out: t / (x * (1 - x)),)
)
entr = special("entr", lambda m, x: m.entr(x), (lambda t, x, out: -t * (log(x) + 1),))


def ratio(x: Node, y: Node) -> Node:
    """x / y, and 1 where both are 0: as if they went to 0 together."""
    is_void = bitwise_and(equal(x, 0), equal(y, 0))
    return where(is_void, 1, x) / where(is_void, 1, y)


rel_entr = special(
    "rel_entr",
    lambda m, x, y: m.rel_entr(x, y),
    (
        lambda t, x, y, out: t * (log(ratio(x, y)) + 1),
        lambda t, x, y, out: -t * ratio(x, y),
    ),
)
kl_div = elementwise(
    "kl_div",
    eval=rounded_once(accurate.kl_div),
    deriv=(
        lambda t, x, y, out: t * log(ratio(x, y)),
        lambda t, x, y, out: t * (1 - ratio(x, y)),
    ),
    scalar=lambda m, x, y: m.kl_div(x, y),
    kinds=("float",),
)
xlog1py = special(
    "xlog1py", lambda m, x, y: m.xlog1py(x, y), times_log_derivs(-1.0, log1p, 1.0)
)
