"""Products of matrices and vectors.

Start reading at `matmul`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapejit import ops
from tapejit.api import elementwise, reductions
from tapejit.api.dispatch import apply, as_operand, operands
from tapejit.api.manipulation import reshape
from tapejit.api.tensor import Tensor
from tapejit.errors import ShapeError
from tapejit.types import is_complex


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


def vector_norm(
    x: Any, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Tensor:
    """The Euclidean length over `axis`; its gradient at 0 is 0.

    >>> import tapejit as tj
    >>> print(tj.vector_norm(tj.asarray([3.0, 4.0])))
    5.0
    """
    x = as_operand(x, "vector_norm")
    size = elementwise.abs(x) if is_complex(x.dtype) else x
    squares = reductions.sum(size * size, axis=axis, keepdims=keepdims)
    # The root's slope at 0 is infinite, so there the root of 1 takes its place.
    is_zero = squares == 0
    root = elementwise.sqrt(elementwise.where(is_zero, 1.0, squares))
    return elementwise.where(is_zero, 0.0, root)


__all__ = ["matmul", "vector_norm"]
