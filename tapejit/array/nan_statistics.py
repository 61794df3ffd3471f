"""Products, spreads, medians and scans of what is not NaN, as NumPy has them.

No cotangent reaches an element that is NaN.

Start reading at `nanvar`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.array import elementwise, reductions
from tapejit.array.manipulation import Axis, reshape
from tapejit.array.numpy import names
from tapejit.array.selection import take_along_axis
from tapejit.array.sorting import sort
from tapejit.array.statistics import _line, _widened, _without_nan
from tapejit.base.types import is_complex, is_differentiable
from tapejit.ops.shapes import keep_axes
from tapejit.tensor.dispatch import as_operand, cast
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor


def _filled(x: Any, fill: float, name: str) -> Tensor:
    x = as_operand(x, name)
    return _without_nan(x, fill)[0] if is_differentiable(x.dtype) else x


@named
def nanprod(
    x: Any, /, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False
) -> Tensor:
    """The product of all that is not NaN; of nothing it is 1.

    >>> import tapejit as tj
    >>> print(tj.nanprod(tj.asarray([2.0, tj.nan, 3.0])))
    6.0
    """
    x = _filled(x, 1.0, "nanprod")
    return reductions.prod(x, axis=axis, dtype=dtype, keepdims=keepdims)


@named
def nancumsum(x: Any, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Running sums, with NaN taken as 0; without an axis of all elements in order.

    >>> import tapejit as tj
    >>> print(tj.nancumsum(tj.asarray([1.0, tj.nan, 2.0])))
    [1. 1. 3.]
    """
    return names.cumsum(_filled(x, 0.0, "nancumsum"), axis, dtype)


@named
def nancumprod(x: Any, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Running products, with NaN taken as 1; without an axis of all in order.

    >>> import tapejit as tj
    >>> print(tj.nancumprod(tj.asarray([2.0, tj.nan, 3.0])))
    [2. 2. 6.]
    """
    return names.cumprod(_filled(x, 1.0, "nancumprod"), axis, dtype)


def _spread(x: Tensor, axis: Axis, correction: float, keepdims: bool) -> Tensor:
    """The mean square distance from the mean; NaN of no more than `correction`."""
    filled, is_nan = _without_nan(x, 0.0)
    kept = elementwise.logical_not(is_nan)
    count = cast(reductions.sum(kept, axis=axis, keepdims=True), filled.real.dtype)
    mean = reductions.sum(filled, axis=axis, keepdims=True) / cast(count, filled.dtype)
    away = elementwise.where(is_nan, 0.0, filled - mean)
    squares = elementwise.square(elementwise.abs(away))
    total = reductions.sum(squares, axis=axis, keepdims=keepdims)
    count = reductions.max(count, axis=axis, keepdims=keepdims) - correction
    out: Tensor = total / elementwise.where(count > 0, count, np.nan)
    return out


@named
def nanvar(
    x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The variance of all that is not NaN; of nothing it is NaN.

    >>> import tapejit as tj
    >>> print(tj.nanvar(tj.asarray([1.0, tj.nan, 3.0])))
    1.0
    """
    x, dtype = _widened(x, "nanvar")
    out = _spread(x, axis, correction, keepdims)
    return cast(out, out.dtype if is_complex(dtype) else dtype)


@named
def nanstd(
    x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The root of `nanvar`; its gradient where that is 0 is 0.

    >>> import tapejit as tj
    >>> print(tj.nanstd(tj.asarray([1.0, tj.nan, 3.0])))
    1.0
    """
    x, dtype = _widened(x, "nanstd")
    spread = _spread(x, axis, correction, keepdims)
    is_zero = spread == 0
    root = elementwise.sqrt(elementwise.where(is_zero, 1.0, spread))
    out = elementwise.where(is_zero, 0.0, root)
    return cast(out, out.dtype if is_complex(dtype) else dtype)


@named
def nanmedian(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The median of all that is not NaN; of nothing it is NaN.

    >>> import tapejit as tj
    >>> print(tj.nanmedian(tj.asarray([1.0, tj.nan, 3.0, 5.0])))
    3.0
    """
    x, dtype = _widened(x, "nanmedian")
    line, axes = _line(x, axis)
    if not line.shape[-1]:
        out = reductions.sum(line, axis=-1) * np.nan
    else:
        kept = elementwise.logical_not(elementwise.isnan(line))
        count = cast(reductions.sum(kept, axis=-1, keepdims=True), np.dtype("int64"))
        ordered = sort(line)  # NaN comes last
        low = elementwise.maximum((count - 1) // 2, 0)
        first = take_along_axis(ordered, low)
        second = take_along_axis(ordered, elementwise.maximum(count // 2, low))
        is_even = count % 2 == 0
        middle = elementwise.where(is_even, first * 0.5 + second * 0.5, first)
        out = reshape(middle, line.shape[:-1])
    if keepdims:
        out = reshape(out, keep_axes(x.shape, axes))
    return cast(out, dtype)


__all__ = ["nancumprod", "nancumsum", "nanmedian", "nanprod", "nanstd", "nanvar"]
