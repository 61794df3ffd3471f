"""Activation functions whose slope would be long or wrong if they were composed.

The pieces of `softplus` have kinks at 0 that cancel only on paper: built from
`maximum` and `abs` its slope at 0 would be 0, not a half. `logaddexp(x, 0)` is right,
but its slope keeps two infinities from meeting, in nine operations where one will do.
The slope of `softsign`, built from a quotient, is a difference of two nearly equal
numbers wherever x is large. All other activation functions are compositions: see
`tapejit/api/nn`.

Start reading at `softplus`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.ir.node import Node
from tapejit.ops.complex import abs as magnitude
from tapejit.ops.elementwise import elementwise
from tapejit.ops.functions import sigmoid

__all__ = ["softplus", "softsign"]


def softplus_eval(x: Any) -> Any:
    """log(1 + e^x) from e^-|x|, which cannot overflow; rounded from double."""
    wide = x if x.dtype.itemsize >= 8 else x.astype(np.float64)
    small = np.log1p(np.exp(-np.abs(wide)))
    return (np.maximum(wide, 0.0) + small).astype(x.dtype)


softplus = elementwise(
    "softplus",
    eval=softplus_eval,
    deriv=(lambda t, x, out: t * sigmoid(x),),
    scalar=lambda m, x: m.softplus(x),
    kinds=("float",),
)


def softsign_eval(x: Any) -> Any:
    """x / (1 + |x|), whose limits are 1 and -1 also where that is inf / inf."""
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    out = np.where(np.isinf(wide), np.sign(wide), wide / (1 + np.abs(wide)))
    return out.astype(x.dtype)


def softsign_deriv(t: Node, x: Node, out: Node) -> Node:
    """1 / (1 + |x|)²; divided twice, because the square of a float16 overflows."""
    width = 1 + magnitude(x)
    return t / width / width


softsign = elementwise(
    "softsign",
    eval=softsign_eval,
    deriv=(softsign_deriv,),
    scalar=lambda m, x: m.softsign(x),
    kinds=("float",),
)
