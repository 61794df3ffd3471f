"""Norms of vectors and matrices.

A norm has a kink at zero, where its gradient here is zero: what points in no direction
pulls in none. float16 and bfloat16 are computed in float32 and rounded.

Start reading at `vector_norm`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit import ops
from tapejit.array import elementwise, reductions
from tapejit.array.arrangement import moveaxis
from tapejit.array.factorisations import as_inexact, svdvals
from tapejit.array.manipulation import reshape
from tapejit.array.precision import result_dtype, widened
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.base.types import is_complex, real_dtype
from tapejit.ops.shapes import keep_axes, normalize_axes
from tapejit.tensor.dispatch import apply, cast, weak_scalar
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor

Axis = int | Sequence[int] | None


@named
def vector_norm(
    x: Any, /, *, axis: Axis = None, keepdims: bool = False, ord: Any = 2
) -> Tensor:
    """The length of vectors over `axis`, which may be several axes or all.

    `ord` is 2 (Euclidean), 1, inf, -inf, 0 (how many elements are not zero) or any
    other number p: the p-th root of the sum of p-th powers.

    >>> import tapejit as tj
    >>> x = tj.asarray([3.0, -4.0])
    >>> print(tj.linalg.vector_norm(x), tj.linalg.vector_norm(x, ord=tj.inf))
    5.0 4.0
    """
    x = as_inexact(x, "vector_norm")
    if not isinstance(ord, (int, float, np.integer, np.floating)):
        raise ArgumentTypeError(f"ord is a number for vectors, got {ord!r}")
    out = _vector_norm(widened(x), float(ord), axis, keepdims)
    return cast(out, result_dtype(real_dtype(x.dtype)))


def _vector_norm(x: Tensor, ord: float, axis: Axis, keepdims: bool) -> Tensor:
    over: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    if ord == 0:
        is_zero = apply(ops.eq_mask, x, weak_scalar(0, x.dtype))
        return reductions.sum(1.0 - elementwise.real(is_zero), **over)
    if ord == 2 and not is_complex(x.dtype):
        return safe_root(reductions.sum(x * x, **over))
    size = elementwise.abs(x)
    if ord == math.inf:
        return reductions.max(size, **over)
    if ord == -math.inf:
        return reductions.min(size, **over)
    if ord == 1:
        return reductions.sum(size, **over)
    if ord == 2:
        return safe_root(reductions.sum(size * size, **over))
    powers = _power(size, ord, 0.0 if ord > 0 else math.inf)
    return _power(reductions.sum(powers, **over), 1 / ord, 0.0 if ord > 0 else math.inf)


def safe_root(squares: Tensor) -> Tensor:
    """The square root, with slope 0 at 0 where it is infinite."""
    is_zero = squares == 0
    root = elementwise.sqrt(elementwise.where(is_zero, 1.0, squares))
    return elementwise.where(is_zero, 0.0, root)


def _power(x: Tensor, p: float, at_zero: float) -> Tensor:
    """x^p for x >= 0, with slope 0 at 0."""
    is_zero = x == 0
    powers = elementwise.where(is_zero, 1.0, x) ** float(p)
    return elementwise.where(is_zero, at_zero, powers)


@named
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """The norm of matrices in the last two axes.

    `ord` is "fro" (Euclidean, over all elements), "nuc" (the sum of singular values),
    2 or -2 (the largest or smallest of them), 1 or -1 (the largest or smallest sum of
    magnitudes in a column), inf or -inf (those in a row).

    >>> import tapejit as tj
    >>> x = tj.asarray([[3.0, 0.0], [0.0, 4.0]])
    >>> print(tj.linalg.matrix_norm(x), tj.linalg.matrix_norm(x, ord="nuc"))
    5.0 7.0
    """
    x = as_inexact(x, "matrix_norm")
    if x.ndim < 2:
        raise ShapeError(
            f"takes a matrix, got {x._type}", help="tj.linalg.vector_norm takes vectors"
        )
    out = norm_of_matrices(x, ord)
    return reshape(out, (*out.shape, 1, 1)) if keepdims else out


def norm_of_matrices(x: Tensor, ord: Any) -> Tensor:
    """The norm of the matrices in the last two axes of a floating point tensor."""
    wide = widened(x)
    if ord == "fro":
        out = _vector_norm(wide, 2, (-2, -1), False)
    elif ord == "nuc":
        out = reductions.sum(_magnitudes(wide), axis=-1)
    elif ord in (2, -2):
        pick = reductions.max if ord == 2 else reductions.min
        out = pick(_magnitudes(wide), axis=-1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = reductions.sum(elementwise.abs(wide), axis=-2 if abs(ord) == 1 else -1)
        out = (reductions.max if ord > 0 else reductions.min)(sums, axis=-1)
    else:
        raise ArgumentError(
            f"ord is 'fro', 'nuc', 1, -1, 2, -2, inf or -inf for matrices, got {ord!r}"
        )
    return cast(out, result_dtype(real_dtype(x.dtype)))


def _magnitudes(x: Tensor) -> Tensor:
    """Singular values; where one is 0 its slope is 0."""
    return elementwise.abs(svdvals(x))


@named
def norm(
    x: Any, /, ord: Any = None, axis: Axis = None, keepdims: bool = False
) -> Tensor:
    """The norm of a vector or a matrix, as NumPy's.

    Over one axis it is `vector_norm`, over two `matrix_norm`. Without `axis` the
    tensor is one vector or one matrix; without `ord` the norm is Euclidean, over all
    elements of any tensor.

    >>> import tapejit as tj
    >>> x = tj.asarray([[3.0, 0.0], [0.0, 4.0]])
    >>> print(tj.linalg.norm(x), tj.linalg.norm(x, ord=2), tj.linalg.norm(x, axis=0))
    5.0 4.0 [3. 4.]
    """
    x = as_inexact(x, "norm")
    axes = normalize_axes(axis, x.ndim)
    if ord is None:
        return vector_norm(x, axis=axes, keepdims=keepdims)
    if len(axes) == 1:
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=ord)
    if len(axes) != 2:
        raise ArgumentError(
            f"a norm with ord={ord!r} is over one axis or two, got {len(axes)}",
            help="tj.linalg.vector_norm takes any number of axes as one vector",
        )
    order = axes if axis is None else _as_given(axis, x.ndim)
    out = norm_of_matrices(moveaxis(x, order, (-2, -1)), ord)
    return reshape(out, keep_axes(x.shape, axes)) if keepdims else out


def _as_given(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes of rows and of columns: which is which matters."""
    return tuple(int(at) % ndim for at in axis)


__all__ = ["matrix_norm", "norm", "vector_norm"]
