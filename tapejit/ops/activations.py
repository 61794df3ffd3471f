"""Activation functions whose slope would be long or wrong if they were composed.

The pieces of `softplus` have kinks at 0 that cancel only on paper: built from
`maximum` and `abs` its slope at 0 would be 0, not a half. `logaddexp(x, 0)` is right,
but its slope keeps two infinities from meeting, in nine operations where one will do.
The slope of `softsign`, built from a quotient, is a difference of two nearly equal
numbers wherever x is large. That of `softmax` needs the shares and nothing else; built
from exponentials and their sum it would want these kept as well. All other activation
functions are compositions: see `tapejit/nn/functional`.

Start reading at `softplus`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tapejit.base.types import DType, TensorType
from tapejit.ir.node import Node, literal, record
from tapejit.ir.structural import batch_stack
from tapejit.ops import reduction
from tapejit.ops.arithmetic import div, maximum, mul
from tapejit.ops.complex import abs as magnitude
from tapejit.ops.elementwise import Cotangents, check_kind, elementwise
from tapejit.ops.functions import exp, sigmoid
from tapejit.ops.reduction import F32, F64, as_dtype
from tapejit.ops.shapes import Axes, tensor


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


def softmax_type(x: Any, *, axes: Axes) -> TensorType:
    x = tensor(x)
    check_kind(x.dtype, ("float",))
    reduction.reduced_type(x, x.dtype, axes, keepdims=True)  # it checks the axes
    return TensorType(x.dtype, x.shape)


@cache
def lowest(dtype: DType) -> float:
    """The most negative finite number of a dtype.

    >>> lowest(np.dtype(np.float16))
    -65504.0
    """
    return float(np.finfo(dtype).min)


def softmax_eval(x: Any, *, axes: Axes) -> Any:
    """e^x over its sum, from the differences to the largest; halves in single.

    Where all of a slice is -inf, the lowest finite number is subtracted: -inf stays
    -inf. The largest element contributes 1, so only the sum of such a slice is below.
    """
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    if not x.size:  # there is no largest of nothing
        return x.copy()
    top = np.maximum.reduce(wide, axis=axes, keepdims=True)
    powers = np.exp(wide - np.maximum(top, wide.dtype.type(lowest(wide.dtype))))
    total = np.maximum(reduction.accumulate(np.add, powers, axes, True), 1)
    return (powers * (1 / total)).astype(x.dtype, copy=False)


def softmax_slope(t: Node, out: Node, axes: Axes) -> Node:
    """What a share gains on its own, less what all of them gain; both modes.

    The Jacobian is symmetric, so this is a tangent or a cotangent.
    """
    return out * (t - reduction.sum(t * out, axes=axes, keepdims=True))


def softmax_vjp(g: Node, out: Node, x: Node, *, axes: Axes) -> Cotangents:
    return (softmax_slope(g, out, axes),)


def softmax_jvp(tangents: Sequence[Node], out: Node, x: Node, *, axes: Axes) -> Node:
    return softmax_slope(tangents[0], out, axes)


def expand_softmax(node: Node) -> Node:
    """e^x over its sum, from the differences to the largest, as `eval` has it."""
    (x,) = node.inputs
    axes = node.attrs["axes"]
    wide = as_dtype(x, F64 if x.dtype == F64 else F32)
    largest = largest_multiple(wide, axes)
    shift = maximum(largest, literal(lowest(wide.dtype), wide.dtype))
    powers = exp(wide - shift)
    total = reduction.sum(powers, axes=axes, keepdims=True)
    one = literal(1.0, wide.dtype)
    return as_dtype(powers * (one / maximum(total, one)), node.dtype)


def largest_multiple(x: Node, axes: Axes) -> Node:
    """max(x), and where x is y times or over c > 0, max(y) times or over c.

    Products and quotients by c are in the order of the y, rounded or not, so it is the
    same number. Only zeros may differ in their signs, to which powers are indifferent.
    """
    match x:
        case Node(inputs=(y, Node(value=float(c), shape=()))) if (
            x.op in (mul, div) and 0 < c < math.inf and y.shape == x.shape
        ):
            largest = reduction.max(y, axes=axes, keepdims=True)
            return x.op(largest, x.inputs[1])
    return reduction.max(x, axes=axes, keepdims=True)


softmax = record(
    "softmax",
    type_rule=softmax_type,
    eval=softmax_eval,
    vjp=softmax_vjp,
    jvp=softmax_jvp,
    batch=batch_stack("softmax"),
    expands=expand_softmax,
    precision="single",
)
