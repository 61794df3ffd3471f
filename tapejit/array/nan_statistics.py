"""Sums, means, extrema, spreads, medians and scans of what is not NaN, as NumPy's.

No cotangent reaches an element that is NaN.

Start reading at `nanvar`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapejit.array import elementwise, reductions
from tapejit.array.manipulation import Axis, reshape
from tapejit.array.norms import safe_root
from tapejit.array.numpy import names
from tapejit.array.selection import take_along_axis
from tapejit.array.sorting import sort
from tapejit.array.statistics import as_line, as_wide
from tapejit.base.types import is_complex, is_differentiable, is_float
from tapejit.ops.shapes import keep_axes
from tapejit.tensor.dispatch import as_operand, cast
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor


def _without_nan(x: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """`x` with NaN replaced, and where it was; no cotangent reaches it."""
    is_nan = elementwise.isnan(x)
    return elementwise.where(is_nan, fill, x), is_nan


def _filled(x: Any, fill: float, name: str) -> Tensor:
    x = as_operand(x, name)
    return _without_nan(x, fill)[0] if is_differentiable(x.dtype) else x


@named
def nansum(
    x: Any, /, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False
) -> Tensor:
    """The sum of all that is not NaN; of nothing it is 0.

    >>> import tapejit as tj
    >>> print(tj.nansum(tj.asarray([1.0, tj.nan, 2.0])))
    3.0
    """
    x = _filled(x, 0.0, "nansum")
    return reductions.sum(x, axis=axis, dtype=dtype, keepdims=keepdims)


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


@named
def nanmax(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The largest element that is not NaN; NaN where there is nothing else.

    >>> import tapejit as tj
    >>> print(tj.nanmax(tj.asarray([1.0, tj.nan, 3.0])))
    3.0
    """
    return _extremum(reductions.max, as_operand(x, "nanmax"), -np.inf, axis, keepdims)


@named
def nanmin(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The smallest element that is not NaN; NaN where there is nothing else.

    >>> import tapejit as tj
    >>> print(tj.nanmin(tj.asarray([1.0, tj.nan, 3.0])))
    1.0
    """
    return _extremum(reductions.min, as_operand(x, "nanmin"), np.inf, axis, keepdims)


def _extremum(
    reduce: Callable[..., Tensor], x: Tensor, worst: float, axis: Axis, keepdims: bool
) -> Tensor:
    if not is_float(x.dtype):
        plain: Tensor = reduce(x, axis=axis, keepdims=keepdims)
        return plain
    filled, is_nan = _without_nan(x, worst)
    best = reduce(filled, axis=axis, keepdims=keepdims)
    is_empty = reductions.all(is_nan, axis=axis, keepdims=keepdims)
    return elementwise.where(is_empty, np.nan, best)


@named
def nanmean(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The mean of all that is not NaN; of nothing it is NaN.

    >>> import tapejit as tj
    >>> print(tj.nanmean(tj.asarray([1.0, tj.nan, 3.0])))
    2.0
    """
    x, dtype = as_wide(x, "nanmean")
    x, is_nan = _without_nan(x, 0.0)
    total = reductions.sum(x, axis=axis, keepdims=keepdims)
    kept = elementwise.logical_not(is_nan)
    count = reductions.sum(kept, axis=axis, keepdims=keepdims)
    return cast(total / cast(count, total.dtype), dtype)


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
    x, dtype = as_wide(x, "nanvar")
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
    x, dtype = as_wide(x, "nanstd")
    out = safe_root(_spread(x, axis, correction, keepdims))
    return cast(out, out.dtype if is_complex(dtype) else dtype)


@named
def nanmedian(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The median of all that is not NaN; of nothing it is NaN.

    >>> import tapejit as tj
    >>> print(tj.nanmedian(tj.asarray([1.0, tj.nan, 3.0, 5.0])))
    3.0
    """
    x, dtype = as_wide(x, "nanmedian")
    line, axes = as_line(x, axis)
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
