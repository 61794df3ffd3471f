"""What a floating-point number is made of: sign, exponent, neighbours, remainders.

These are exact: nothing is rounded, except by `ldexp` below the smallest normal
number.

Start reading at `copysign`, then `ldexp`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.base.errors import DTypeError
from tapejit.base.types import DType, TensorType
from tapejit.ir.node import CHEAP, FIRST, Node, Op
from tapejit.ops.arithmetic import flat, round
from tapejit.ops.comparison import comparison
from tapejit.ops.complex import sign
from tapejit.ops.elementwise import REAL, check_kind, elementwise
from tapejit.ops.precision import in_double
from tapejit.ops.shapes import broadcast_shapes, tensor


def copysign_deriv(t: Node, x: Node, y: Node, out: Node) -> Node:
    """As |x|, which has slope 0 at 0, and turned over where y is negative."""
    return t * sign(x) * copysign(1, y)


copysign: Op = elementwise(
    "copysign",
    eval=np.copysign,
    deriv=(copysign_deriv, flat),
    scalar=lambda m, x, y: m.copysign(x, y),
    kinds=("float",),
    cost=CHEAP,
    exact=True,
)


def nextafter_eval(x: Any, y: Any) -> Any:
    """NumPy's; its float16 loop gives x where both are zeros, the others give y."""
    out = np.nextafter(x, y)
    return np.where(x == y, y, out) if x.dtype == np.float16 else out


nextafter = elementwise(
    "nextafter",
    eval=nextafter_eval,
    # A neighbour moves along with x; y only says on which side it is.
    deriv=(lambda t, x, y, out: t, flat),
    scalar=lambda m, x, y: m.nextafter(x, y),
    kinds=("float",),
    cost=CHEAP,
)
signbit = comparison("signbit", np.signbit, lambda m, x: m.signbit(x), ("float",))


def fmod_divisor_deriv(t: Node, x: Node, y: Node, out: Node) -> Node:
    """Minus the number of times that y was taken off.

    Rounded from x less the remainder: trunc(x / y) is one too many where the quotient
    rounds up to the next integer.
    """
    return -t * round((x - out) / y)


fmod = elementwise(
    "fmod",
    eval=np.fmod,
    deriv=(lambda t, x, y, out: t, fmod_divisor_deriv),
    scalar=lambda m, x, y: m.fmod(x, y),
    kinds=REAL,
    exact=True,
)

# Mantissa and exponent

EXPONENT = np.dtype(np.int32)


def to_exponent(dtype: DType) -> DType:
    return EXPONENT


def exponent_eval(x: Any) -> Any:
    """e with |x| = m 2ᵉ and ½ ≤ m < 1; 0 where there is no such e."""
    wide = x.astype(np.float64)
    return np.where(np.isfinite(wide), np.frexp(wide)[1], 0).astype(EXPONENT)


exponent = elementwise(
    "exponent",
    eval=exponent_eval,
    scalar=lambda m, x: m.exponent(x),
    kinds=("float",),
    result=to_exponent,
    differentiable=False,
    cost=CHEAP,
)


def ldexp_type(x: Any, n: Any) -> TensorType:
    """A float and an int32; the result is a float of the same dtype."""
    x, n = tensor(x), tensor(n)
    check_kind(x.dtype, ("float",))
    if n.dtype != EXPONENT:
        raise DTypeError(
            f"takes exponents of dtype int32, got {n.dtype}",
            help="convert first with .astype(...)",
        )
    return TensorType(x.dtype, broadcast_shapes(x, n))


def ldexp_eval(x: Any, n: Any) -> Any:
    return in_double(lambda wide: np.ldexp(wide, n))(x)


ldexp: Op = elementwise(
    "ldexp",
    type_rule=ldexp_type,
    eval=ldexp_eval,
    deriv=(lambda t, x, n, out: ldexp(t, n), None),
    scalar=lambda m, x, n: m.ldexp(x, n),
    cost=CHEAP,
    linear=FIRST,
)
