"""Trigonometric and hyperbolic functions, their inverses and sinc, as a table.

Slopes are written so that they keep their digits where a textbook's formula loses
them: (1 - x)(1 + x) near the ends of an interval instead of 1 - x², a hypotenuse
instead of the root of a sum of squares that overflows. At an end itself a slope is
infinite, as the root's is at 0. `hypot` and `atan2` have no direction at the origin,
so all their derivatives are 0 there.

`sinc` is smooth at 0, and so must its derivatives be, of which the formulas divide 0
by 0. `sinc_slope` is the family that they are made of: each member's derivative is x
times the next member.

Start reading at `tan`, then `hypot`, then `sinc_slope`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapejit.base.errors import ArgumentError
from tapejit.base.types import is_complex
from tapejit.ir.node import Node, Op
from tapejit.ops.arithmetic import eq_mask, gate
from tapejit.ops.elementwise import INEXACT, elementwise
from tapejit.ops.functions import sqrt
from tapejit.ops.precision import in_double

tan = elementwise(
    "tan",
    eval=in_double(np.tan),
    deriv=(lambda t, x, out: t * (1 + out * out),),
    scalar=lambda m, x: m.tan(x),
    kinds=INEXACT,
)


def circle_height(x: Node) -> Node:
    """√(1 - x²), with all its digits near ±1."""
    return sqrt((1 - x) * (1 + x))


def hyperbola_height(x: Node) -> Node:
    """√(1 + x²), also where x² overflows."""
    return sqrt(1 + x * x) if is_complex(x.dtype) else hypot(x, 1)


asin = elementwise(
    "asin",
    eval=in_double(np.arcsin),
    deriv=(lambda t, x, out: t / circle_height(x),),
    scalar=lambda m, x: m.asin(x),
    kinds=INEXACT,
)
acos = elementwise(
    "acos",
    eval=in_double(np.arccos),
    deriv=(lambda t, x, out: -t / circle_height(x),),
    scalar=lambda m, x: m.acos(x),
    kinds=INEXACT,
)
atan = elementwise(
    "atan",
    eval=in_double(np.arctan),
    deriv=(lambda t, x, out: t / (1 + x * x),),
    scalar=lambda m, x: m.atan(x),
    kinds=INEXACT,
)
sinh = elementwise(
    "sinh",
    eval=in_double(np.sinh),
    deriv=(lambda t, x, out: t * cosh(x),),
    scalar=lambda m, x: m.sinh(x),
    kinds=INEXACT,
)
cosh: Op = elementwise(
    "cosh",
    eval=in_double(np.cosh),
    deriv=(lambda t, x, out: t * sinh(x),),
    scalar=lambda m, x: m.cosh(x),
    kinds=INEXACT,
)
asinh = elementwise(
    "asinh",
    eval=in_double(np.arcsinh),
    deriv=(lambda t, x, out: t / hyperbola_height(x),),
    scalar=lambda m, x: m.asinh(x),
    kinds=INEXACT,
)
acosh = elementwise(
    "acosh",
    eval=in_double(np.arccosh),
    # Two roots: of the product one would overflow, and be on the wrong sheet.
    deriv=(lambda t, x, out: t / (sqrt(x - 1) * sqrt(x + 1)),),
    scalar=lambda m, x: m.acosh(x),
    kinds=INEXACT,
)
atanh = elementwise(
    "atanh",
    eval=in_double(np.arctanh),
    deriv=(lambda t, x, out: t / ((1 - x) * (1 + x)),),
    scalar=lambda m, x: m.atanh(x),
    kinds=INEXACT,
)

# Two sides of a triangle


def hypot_deriv(t: Node, side: Node, out: Node) -> Node:
    """The cosine of the angle at this side; 0 where there is no triangle."""
    return gate(t * (side / (out + eq_mask(out, 0))), out)


hypot: Op = elementwise(
    "hypot",
    eval=in_double(np.hypot),
    deriv=(
        lambda t, x, y, out: hypot_deriv(t, x, out),
        lambda t, x, y, out: hypot_deriv(t, y, out),
    ),
    scalar=lambda m, x, y: m.hypot(x, y),
    kinds=("float",),
)


def atan2_deriv(t: Node, side: Node, y: Node, x: Node) -> Node:
    """The other side by the square of the radius.

    Divided twice, for the square may overflow or vanish; 0 at the origin, where
    there is no angle, and at infinity, where it no longer moves.
    """
    radius = hypot(y, x)
    origin = eq_mask(radius, 0)
    nearer = radius + origin
    is_between = 1 - origin - eq_mask(radius, math.inf)
    return gate(t * (side / nearer / nearer), is_between)


atan2 = elementwise(
    "atan2",
    eval=in_double(np.arctan2),
    deriv=(
        lambda t, y, x, out: atan2_deriv(t, x, y, x),
        lambda t, y, x, out: atan2_deriv(-t, y, y, x),
    ),
    scalar=lambda m, y, x: m.atan2(y, x),
    kinds=("float",),
)

# sin(πx) / (πx)


def less_turns(x: Any) -> tuple[Any, Any]:
    """At most a quarter of a turn, of the same sine as πx, and if it was mirrored.

    Whole turns are taken off, which is exact; π times the rest is as small as it can
    be. A mirrored angle has the opposite cosine.
    """
    rest = x - 2 * np.rint(x / 2)
    is_mirrored = np.abs(rest) > 0.5
    return np.where(is_mirrored, np.copysign(1, rest) - rest, rest), is_mirrored


# π to 106 bits, the first 53 of them in two parts whose products are exact.
PI_PARTS = (
    float.fromhex("0x1.921fb50000000p+1"),
    float.fromhex("0x1.110b460000000p-25"),
)
PI_REST = 1.2246467991473532e-16


def times_pi(x: Any) -> tuple[Any, Any]:
    """πx as the sum of a double and what is missing from it."""
    high, low = PI_PARTS
    product = np.pi * x
    scaled = 134217729.0 * x  # 2**27 + 1 cuts a double in half
    upper = scaled - (scaled - x)
    lower = x - upper
    missing = ((upper * high - product) + upper * low + lower * high) + lower * low
    return product, missing + x * PI_REST


def sinc_of(x: Any) -> Any:
    """sin(πx) / (πx), 1 at 0, and at the other integers 0."""
    size = np.abs(x)
    rest, _ = less_turns(size)
    (angle, missing), (divisor, more) = times_pi(rest), times_pi(size)
    sine = np.sin(angle)
    near = sine / divisor
    # The roundings of both angles, to first order.
    change = missing * np.cos(angle) / sine - more / divisor
    out = np.where(sine == 0, near, near + near * change)
    return np.where(size == 0, 1.0, out) + 0.0  # no zero is -0


def sinc_slope_of(x: Any, order: int) -> Any:
    """(-π²)ⁿ jₙ(z) / zⁿ at z = πx, where jₙ is the spherical Bessel function.

    By its power series near 0, where it is nearly constant; farther out by the
    recurrence from j₀ and j₋₁, which there loses no digits.
    """
    z = np.pi * x
    is_near = np.abs(z) < order + 2
    squared = np.where(is_near, z * z, 0)
    first = 1 / math.prod(range(1, 2 * order + 2, 2))
    term = np.full_like(squared, first)
    near = term
    for k in range(1, 40):
        term = term * squared / (-2 * k * (2 * order + 2 * k + 1))
        near = near + term
    rest, is_mirrored = less_turns(x)
    sine, cosine = np.sin(np.pi * rest), np.cos(np.pi * rest)
    cosine = np.where(is_mirrored, -cosine, cosine)
    away = np.where(is_near, 1, z)
    squared = away * away
    before, far = cosine, sine / away
    for n in range(order):
        # gₙ = jₙ / zⁿ, and z² gₙ₊₁ = (2n + 1) gₙ - gₙ₋₁ where g₋₁ is the cosine.
        before, far = far, ((2 * n + 1) * far - before) / squared
    return np.where(is_near, near, far) * (-(np.pi**2)) ** order


def check_positive(*, order: int) -> None:
    if order < 1:
        raise ArgumentError(f"the order must be positive, got {order}")


def sinc_slope_eval(x: Any, *, order: int) -> Any:
    return in_double(lambda wide: sinc_slope_of(wide, order))(x)


def sinc_slope_deriv(t: Node, x: Node, out: Node, *, order: int) -> Node:
    """The next member of the family, times x."""
    return t * x * sinc_slope(x, order=order + 1)


sinc_slope: Op = elementwise(
    "sinc_slope",
    kinds=("float",),
    check=check_positive,
    eval=sinc_slope_eval,
    deriv=(sinc_slope_deriv,),
    scalar=lambda m, x, *, order: m.sinc_slope(x, order),
)
sinc = elementwise(
    "sinc",
    eval=in_double(sinc_of),
    deriv=(lambda t, x, out: t * x * sinc_slope(x, order=1),),
    scalar=lambda m, x: m.sinc(x),
    kinds=("float",),
)
