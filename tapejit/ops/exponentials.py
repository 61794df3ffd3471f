"""Logarithms and exponentials of other bases, sums of exponentials, cube roots.

Start reading at `exp2`, then `log_of_sum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapejit.ir.node import Node, Op, Rule
from tapejit.ops.arithmetic import eq_mask, gate
from tapejit.ops.complex import abs
from tapejit.ops.elementwise import INEXACT, elementwise
from tapejit.ops.functions import exp, expm1, log, sigmoid
from tapejit.ops.precision import in_double

exp2 = elementwise(
    "exp2",
    eval=in_double(np.exp2),
    deriv=(lambda t, x, out: t * out * math.log(2),),
    scalar=lambda m, x: m.exp2(x),
    kinds=INEXACT,
)
log2 = elementwise(
    "log2",
    eval=in_double(np.log2),
    deriv=(lambda t, x, out: t / x / math.log(2),),
    scalar=lambda m, x: m.log2(x),
    kinds=INEXACT,
)
log10 = elementwise(
    "log10",
    eval=in_double(np.log10),
    deriv=(lambda t, x, out: t / x / math.log(10),),
    scalar=lambda m, x: m.log10(x),
    kinds=INEXACT,
)


def cube_root(x: Any) -> Any:
    """The real root. Libraries are off by 3 ULP, so one step of Newton's follows.

    The step subtracts a cube from a number, so it is done on one that is near 1:
    x = m 8ⁿ has the root of m times 2ⁿ.
    """
    mantissa, exponent = np.frexp(x)
    shift = exponent % 3
    near = np.ldexp(mantissa, shift)
    root = np.cbrt(near)
    square = root * root
    better = root - (square * root - near) / (3 * square)
    has_step = np.isfinite(x) & (x != 0)
    return np.where(has_step, np.ldexp(better, (exponent - shift) // 3), root)


cbrt = elementwise(
    "cbrt",
    eval=in_double(cube_root),
    deriv=(lambda t, x, out: t / (3 * out * out),),
    scalar=lambda m, x: m.cbrt(x),
    kinds=("float",),
)

# Sums of exponentials


def share(x: Node, y: Node, base: float) -> Node:
    """The part of `base`ˣ in the sum of `base`ˣ and `base`ʸ.

    Infinities are kept from meeting: two of inf share equally, and of two of -inf,
    whose powers are 0, neither has a part.
    """
    tied = eq_mask(x, y)
    difference = gate(x - y, 1 - tied * eq_mask(abs(x), math.inf))
    part = sigmoid(difference if base == math.e else difference * math.log(base))
    return gate(part, 1 - tied * eq_mask(x, -math.inf))


def log_of_sum(name: str, base: float, eval: Callable[..., Any], scalar: Rule) -> Op:
    """The logarithm of a sum of two powers, without overflow."""
    return elementwise(
        name,
        eval=in_double(eval),
        deriv=(
            lambda t, x, y, out: t * share(x, y, base),
            lambda t, x, y, out: t * share(y, x, base),
        ),
        scalar=scalar,
        kinds=("float",),
    )


logaddexp = log_of_sum(
    "logaddexp", math.e, np.logaddexp, lambda m, x, y: m.logaddexp(x, y)
)
logaddexp2 = log_of_sum(
    "logaddexp2", 2.0, np.logaddexp2, lambda m, x, y: m.logaddexp2(x, y)
)


def log_of_difference(x: Any) -> Any:
    """From e^x - 1 where that is small, from e^x elsewhere (Mächler, 2012)."""
    near = np.log(-np.expm1(x))
    return np.where(x > -math.log(2), near, np.log1p(-np.exp(x)))


# log(1 - e^x): -inf at 0, nan above, -0 at -inf. The slope is -inf at both zeros.
log1mexp = elementwise(
    "log1mexp",
    eval=in_double(log_of_difference),
    deriv=(lambda t, x, out: -t * exp(x) / (0 - expm1(x)),),
    scalar=lambda m, x: m.select(
        x > -math.log(2), m.log(-m.expm1(x)), m.log1p(-m.exp(x))
    ),
    kinds=("float",),
)


def times_log(x: Any, y: Any) -> Any:
    return np.where((x == 0) & ~np.isnan(y), 0.0, x * np.log(y))


def times_log_derivs(origin: float, log: Any, shift: float) -> tuple[Any, Any]:
    """The derivatives of x log(y + shift), which are all 0 at x = 0, y = `origin`.

    There the logarithm is infinite, but the product is 0, as on all of x = 0.
    """

    def parts(x: Node, y: Node) -> tuple[Node, Node]:
        """1 where derivatives are 0, and y, moved away from there."""
        is_void = eq_mask(x, 0) * eq_mask(y, origin)
        return is_void, y + is_void

    def by_x(t: Node, x: Node, y: Node, out: Node) -> Node:
        is_void, y = parts(x, y)
        return gate(t * log(y), 1 - is_void)

    def by_y(t: Node, x: Node, y: Node, out: Node) -> Node:
        is_void, y = parts(x, y)
        return gate(t * (x / (y + shift if shift else y)), 1 - is_void)

    return by_x, by_y


xlogy = elementwise(
    "xlogy",
    eval=in_double(times_log),
    deriv=times_log_derivs(0.0, log, 0.0),
    scalar=lambda m, x, y: m.xlogy(x, y),
    kinds=("float",),
)
