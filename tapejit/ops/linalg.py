"""Products of matrices.

`matmul` multiplies stacks of matrices: both operands have at least two axes, the
last two are the matrices, those before broadcast. Vectors are given their missing
axis before they come here.

A matrix shared by a whole stack is the common case: weights against a batch. There
the rules put the rows of all matrices under each other and make one long product
of what would otherwise be many short ones and a sum.

Start reading at `matmul_type`, then `matmul_vjp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import ShapeError
from tapejit.base.types import TensorType, is_differentiable
from tapejit.ir.node import OPS, Node, record
from tapejit.ops.elementwise import (
    NUMERIC,
    Cotangents,
    batch_elementwise,
    bilinear_jvp,
    check_kind,
    unbroadcast,
)
from tapejit.ops.shapes import broadcast_shapes, same_dtype, tensor


def matmul_type(x: Any, y: Any) -> TensorType:
    """[..., m, k] times [..., k, n] is [..., m, n]."""
    x, y = tensor(x), tensor(y)
    dtype = same_dtype(x, y)
    check_kind(dtype, NUMERIC)
    if x.ndim < 2 or y.ndim < 2:
        raise ShapeError(
            f"cannot multiply {x} with {y}: a matrix has at least two axes",
            help="make a row of a vector with v[None, :], a column with v[:, None].",
        )
    if x.shape[-1] != y.shape[-2]:
        raise ShapeError(
            f"cannot multiply {x} with {y}: "
            f"rows of {x.shape[-1]} meet columns of {y.shape[-2]}",
            help=product_hint(x, y),
        )
    stack = [operand.with_shape(operand.shape[:-2]) for operand in (x, y)]
    try:
        front = broadcast_shapes(*stack)
    except ShapeError as error:
        raise ShapeError(
            f"cannot multiply {x} with {y}: "
            "the axes before the last two do not broadcast",
            help=error.help,
        ) from None
    return TensorType(dtype, (*front, x.shape[-2], y.shape[-1]))


def product_hint(x: TensorType, y: TensorType) -> str:
    """What to write when the inner sizes differ."""
    if x.shape[-1] == y.shape[-1]:
        return "the right operand is transposed: write x @ y.mT."
    if x.shape[-2] == y.shape[-2]:
        return "the left operand is transposed: write x.mT @ y."
    return "the last size of the left operand must be the last but one of the right."


def matmul_eval(x: Any, y: Any) -> Any:
    """NumPy's; halves are multiplied and added in float32 and rounded once."""
    if x.dtype.itemsize == 2 and is_differentiable(x.dtype):
        return (x.astype(np.float32) @ y.astype(np.float32)).astype(x.dtype)
    return multiply_matrices(x, y)


def multiply_matrices(x: Any, y: Any, out: Any = None) -> Any:
    """NumPy's product of arrays; no zero of it has a minus sign.

    A sum that begins with 0 is never -0. But OpenBLAS's complex kernels for AVX-512
    give -0 for some of a row of zeros, by the signs of what it meets; those for AVX2
    do not.
    """
    out = np.matmul(x, y, out=out)
    if out.dtype.kind == "c":
        out += 0.0
    return out


def transposed(x: Node) -> Node:
    """Every matrix of a stack transposed."""
    axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return OPS["permute_dims"](x, axes=axes)


def stacked_rows(x: Node) -> Node:
    """A stack of matrices as one, its rows under each other."""
    rows: Size = 1
    for size in x.shape[:-1]:
        rows = rows * size
    return OPS["reshape"](x, shape=(rows, x.shape[-1]))


def matmul_vjp(g: Node, out: Node, x: Node, y: Node) -> Cotangents:
    """g yᵀ and xᵀ g, summed over the matrices that an operand was repeated for."""
    gx = unbroadcast(g @ transposed(y), x.shape)
    if y.ndim == 2 and x.ndim > 2:
        return gx, transposed(stacked_rows(x)) @ stacked_rows(g)
    return gx, unbroadcast(transposed(x) @ g, y.shape)


align_and_multiply = batch_elementwise("matmul")


def matmul_batch(size: Size, inputs: Sequence[Node], batched: Sequence[bool]) -> Node:
    """One more axis of the stack; one product where the right matrix is shared."""
    x, y = inputs
    if batched[0] and not batched[1] and y.ndim == 2:
        rows = stacked_rows(x) @ y
        return OPS["reshape"](rows, shape=(*x.shape[:-1], y.shape[-1]))
    return align_and_multiply(size, inputs, batched)


matmul = record(
    "matmul",
    type_rule=matmul_type,
    eval=matmul_eval,
    vjp=matmul_vjp,
    jvp=bilinear_jvp("matmul"),
    batch=matmul_batch,
    bilinear=True,
    precision="half",
    terms=lambda node: int(node.inputs[0].shape[-1]),
)
