"""Products of matrices and vectors.

Start reading at `matmul`.
"""

from __future__ import annotations

from typing import Any

from tapejit import ops
from tapejit.array.manipulation import reshape
from tapejit.base.errors import ShapeError
from tapejit.tensor.dispatch import apply, operands
from tapejit.tensor.tensor import Tensor


def matmul(x: Any, y: Any, /) -> Tensor:
    """The matrix product; vectors count as a row or a column, leading axes broadcast.

    >>> import tapejit as tj
    >>> print(tj.matmul(tj.asarray([[1.0, 2.0]]), tj.asarray([3.0, 4.0])))
    [11.]
    """
    x, y = operands((x, y), "matmul")
    if not x.ndim or not y.ndim:
        raise ShapeError(
            f"takes vectors and matrices, got {x._type} and {y._type}",
            op="matmul",
            help="multiply by a scalar with *",
        )
    if x.ndim > 1 and y.ndim > 1:
        return apply(ops.matmul, x, y)
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else -1]:
        raise ShapeError(
            f"the inner sizes of {x._type} and {y._type} differ",
            op="matmul",
            help="the last axis of the first meets the first axis of the second",
        )
    left = reshape(x, (1, *x.shape)) if x.ndim == 1 else x
    right = reshape(y, (*y.shape, 1)) if y.ndim == 1 else y
    out = apply(ops.matmul, left, right)
    shape = list(out.shape)
    if y.ndim == 1:
        shape.pop(-1)
    if x.ndim == 1:
        shape.pop(-1 if y.ndim == 1 else -2)
    return reshape(out, tuple(shape))


__all__ = ["matmul"]
