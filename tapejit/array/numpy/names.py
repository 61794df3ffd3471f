"""NumPy's names of functions that the array API standard calls otherwise.

Where NumPy's parameters are the standard's, the name is the same function:
`tj.concatenate is tj.concat`. Four differ, and are written out here.

Start reading at `transpose`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapejit.array import contraction, elementwise, scans, trigonometry
from tapejit.array.creation import asarray
from tapejit.array.manipulation import concat, permute_dims
from tapejit.array.matmul import matmul
from tapejit.array.reductions import max, min
from tapejit.tensor.dispatch import as_operand, operands
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.tensor.tensor import Tensor

absolute = elementwise.abs
amax, amin = max, min
arccos, arccosh = trigonometry.acos, trigonometry.acosh
arcsin, arcsinh = trigonometry.asin, trigonometry.asinh
arctan, arctan2, arctanh = trigonometry.atan, trigonometry.atan2, trigonometry.atanh
array = asarray
bitwise_not = invert = elementwise.bitwise_invert
concatenate = concat
conjugate = elementwise.conj
degrees, radians = trigonometry.rad2deg, trigonometry.deg2rad
fix = elementwise.trunc
left_shift, right_shift = (
    elementwise.bitwise_left_shift,
    elementwise.bitwise_right_shift,
)
mod = elementwise.remainder
power = elementwise.pow
true_divide = elementwise.divide


@with_hints
def transpose(x: Any, /, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order, or all of them in reverse.

    >>> import tapejit as tj
    >>> tj.transpose(tj.zeros((2, 3, 4))).shape
    (4, 3, 2)
    >>> tj.transpose(tj.zeros((2, 3, 4)), (1, 0, 2)).shape
    (3, 2, 4)
    """
    x = as_operand(x, "transpose")
    return permute_dims(x, tuple(range(x.ndim)[::-1]) if axes is None else axes)


@with_hints
def cumsum(x: Any, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Running sums along an axis, or of all elements in order.

    >>> import tapejit as tj
    >>> print(tj.cumsum(tj.asarray([[1, 2], [3, 4]])))
    [ 1  3  6 10]
    """
    return _CUMULATIVE_SUM(x, axis=axis, dtype=dtype)


@with_hints
def cumprod(x: Any, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Running products along an axis, or of all elements in order.

    >>> import tapejit as tj
    >>> print(tj.cumprod(tj.asarray([[1, 2], [3, 4]]), 0))
    [[1 2]
     [3 8]]
    """
    return _CUMULATIVE_PROD(x, axis=axis, dtype=dtype)


_CUMULATIVE_SUM = scans.numpy_cumulative(scans.cumulative_sum)
_CUMULATIVE_PROD = scans.numpy_cumulative(scans.cumulative_prod)


def dot(x: Any, y: Any, /) -> Tensor:
    """The product of vectors or matrices; of higher ranks, over the last axis of `x`.

    The other axis is the last but one of `y`. A number scales. For stacks of matrices
    write `x @ y`.

    >>> import tapejit as tj
    >>> print(tj.dot(tj.asarray([1, 2, 3]), tj.asarray([4, 5, 6])))
    32
    """
    x, y = operands((x, y), "dot")
    if not x.ndim or not y.ndim:
        return elementwise.multiply(x, y)
    if x.ndim > 1 and y.ndim > 2:
        return contraction.tensordot(x, y, axes=(-1, -2))
    return matmul(x, y)
