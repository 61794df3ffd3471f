"""Statistics: spread, order statistics, averages, counts.

All are composed of other functions, which give them their gradients. Integers become
the default float where a mean is taken; half precision is computed in float32 and
rounded once.

`median` and `quantile` sort, and interpolate between neighbours in the sorted line.

Start reading at `var`, then `quantile`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapejit import ops
from tapejit.array import elementwise, reductions
from tapejit.array.creation import full
from tapejit.array.indexing import getitem, has_values, number_of
from tapejit.array.manipulation import broadcast_to, permute_dims, reshape
from tapejit.array.norms import safe_root
from tapejit.array.precision import result_dtype, widened
from tapejit.array.reductions import Axis
from tapejit.array.sorting import sort
from tapejit.base.dims import Dim
from tapejit.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from tapejit.base.types import DType, is_complex
from tapejit.ops.shapes import drop_axes, keep_axes, normalize_axes
from tapejit.tensor.device import following
from tapejit.tensor.dispatch import apply, as_bool, as_float, as_operand, cast, operands
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import CONSTANT, Tensor, TracedTensor


def as_wide(x: Any, name: str, dtype: Any = None) -> tuple[Tensor, DType]:
    """`x` as floats to compute with, and the dtype of the result."""
    if dtype is not None:
        x = elementwise.astype(x, dtype)
    x = as_float(as_operand(x, name))
    return widened(x), result_dtype(x.dtype) if dtype is None else x.dtype


def _count(x: Tensor, axis: Axis) -> int:
    count = 1
    for at in normalize_axes(axis, x.ndim):
        count *= x.shape[at]
    return count


# Spread


@named
def var(
    x: Any,
    /,
    axis: Axis = None,
    dtype: Any = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
) -> Tensor:
    """The variance: the mean square of the distances to the mean.

    It divides by the number of elements less `correction`, which is what NumPy calls
    `ddof`. Of complex numbers it is real.

    >>> import tapejit as tj
    >>> print(tj.var(tj.asarray([1.0, 2.0, 6.0])))
    4.6666665
    >>> print(tj.var(tj.asarray([1.0, 2.0, 6.0]), correction=1))
    7.0
    """
    x, kind = as_wide(x, "var", dtype)
    spread = _spread(x, axis, correction, keepdims)
    return cast(spread, spread.dtype if is_complex(kind) else kind)


def _spread(x: Tensor, axis: Axis, correction: float, keepdims: bool) -> Tensor:
    away = x - reductions.mean(x, axis=axis, keepdims=True)
    if is_complex(x.dtype):
        real, imag = elementwise.real(away), elementwise.imag(away)
        squares = real * real + imag * imag
    else:
        squares = elementwise.square(away)
    total = reductions.sum(squares, axis=axis, keepdims=keepdims)
    if isinstance(correction, float) and correction.is_integer():
        correction = int(correction)  # a symbolic count stays one
    return elementwise.divide(total, max(_count(x, axis) - correction, 0) * 1.0)


@named
def std(
    x: Any,
    /,
    axis: Axis = None,
    dtype: Any = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
) -> Tensor:
    """The standard deviation, the root of `var`; its gradient where that is 0 is 0.

    >>> import tapejit as tj
    >>> print(tj.std(tj.asarray([1.0, 3.0])))
    1.0
    """
    x, kind = as_wide(x, "std", dtype)
    out = safe_root(_spread(x, axis, correction, keepdims))
    return cast(out, out.dtype if is_complex(kind) else kind)


@named
def ptp(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The largest element less the smallest.

    >>> import tapejit as tj
    >>> print(tj.ptp(tj.asarray([3.0, 1.0, 7.0])))
    6.0
    """
    x = as_operand(x, "ptp")
    high = reductions.max(x, axis=axis, keepdims=keepdims)
    low = reductions.min(x, axis=axis, keepdims=keepdims)
    return elementwise.subtract(high, low)


# Averages and counts


@named
def average(
    x: Any,
    /,
    axis: Axis = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    """The mean in which elements count by their weights.

    `weights` has the shape of `x`, or one weight per place along `axis`. With
    `returned` the sums of the weights are given too. Weights that sum to 0 give NaN.

    >>> import tapejit as tj
    >>> print(tj.average(tj.asarray([1.0, 3.0]), weights=tj.asarray([3.0, 1.0])))
    1.5
    """
    x = as_operand(x, "average")
    if weights is None:
        mean = reductions.mean(x, axis=axis, keepdims=keepdims)
        total = full(mean.shape, _count(x, axis), dtype=mean.dtype)
        return (mean, total) if returned else mean
    values, share = operands((x, weights), "average")
    values, dtype = as_wide(values, "average")
    share, _ = as_wide(_aligned(share, values, axis), "average")
    weighted = reductions.sum(values * share, axis=axis, keepdims=keepdims)
    share = broadcast_to(share, values.shape)
    total = reductions.sum(share, axis=axis, keepdims=keepdims)
    mean = cast(weighted / total, dtype)
    return (mean, cast(total, dtype)) if returned else mean


def _aligned(weights: Tensor, x: Tensor, axis: Axis) -> Tensor:
    """Weights that broadcast against `x`."""
    if weights.shape == x.shape:
        return weights
    axes = () if axis is None else normalize_axes(axis, x.ndim)
    if weights.shape != tuple(x.shape[at] for at in axes) or not axes:
        raise ShapeError(
            f"weights of {weights._type} do not fit {x._type}",
            help="give one weight per element, or one per place along an axis",
        )
    kept = tuple(size if at in axes else 1 for at, size in enumerate(x.shape))
    return reshape(weights, kept)


@named
def count_nonzero(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """How many elements are not 0.

    >>> import tapejit as tj
    >>> print(tj.count_nonzero(tj.asarray([[1.0, 0.0], [2.0, 3.0]]), axis=1))
    [1 2]
    """
    counted = as_bool(as_operand(x, "count_nonzero"))
    return reductions.sum(counted, axis=axis, dtype="int64", keepdims=keepdims)


# Order statistics


def as_line(x: Tensor, axis: Axis) -> tuple[Tensor, tuple[int, ...]]:
    """`x` with the axes merged into the last one, and those axes."""
    if is_complex(x.dtype):
        raise DTypeError(
            f"complex numbers have no order, got {x._type}",
            help="take it of the parts or the magnitudes",
        )
    axes = normalize_axes(axis, x.ndim)
    others = tuple(at for at in range(x.ndim) if at not in axes)
    last = permute_dims(x, (*others, *axes))
    line = reshape(last, (*drop_axes(x.shape, axes), _count(x, axes)))
    return line, axes


def _in_order(line: Tensor, start: Any, stop: Any) -> Tensor:
    """The elements from `start` to `stop` of a line in order; the rest is not sorted.

    A part of a line whose size is open is cut out of all of it.
    """
    size = line.shape[-1]
    if any(isinstance(at, Dim) for at in (size, start, stop)):
        return getitem(sort(line, axis=-1), (..., slice(start, stop)))
    if (start, stop) == (0, size):
        return sort(line, axis=-1)
    attrs = {"axis": line.ndim - 1, "descending": False, "window": (start, stop)}
    return apply(ops.sort_by, line, line, **attrs)


LAST = (..., -1)


def _or_nan(out: Tensor, line: Tensor) -> Tensor:
    """NaN, which is last in its line if there is any, in place of the statistic."""
    size = line.shape[-1]
    return _or(out, getitem(_in_order(line, size - 1, size), LAST))


def _or(out: Tensor, last: Tensor) -> Tensor:
    return elementwise.where(elementwise.isnan(last), last, out)


@named
def median(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The middle element in order, or the mean of the middle two; of nothing NaN.

    >>> import tapejit as tj
    >>> print(tj.median(tj.asarray([3.0, 1.0, 2.0])))
    2.0
    """
    x, dtype = as_wide(x, "median")
    line, axes = as_line(x, axis)
    size = line.shape[-1]
    if not size:
        out = full(line.shape[:-1], np.nan, dtype=line.dtype)
    else:
        middle = _in_order(line, (size - 1) // 2, size // 2 + 1)
        if size % 2:
            out = _or_nan(getitem(middle, (..., 0)), line)
        else:
            out = _or_nan(reductions.mean(middle, axis=-1), line)
    if keepdims:
        out = reshape(out, keep_axes(x.shape, axes))
    return cast(out, dtype)


@named
def quantile(
    x: Any,
    q: Any,
    /,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
) -> Tensor:
    """The element below which the part `q`, from 0 to 1, of the elements is.

    Between two elements it is interpolated, NumPy's method "linear". Axes of `q` come
    first in the result. There are gradients for `x`, and for `q` too.

    >>> import tapejit as tj
    >>> print(tj.quantile(tj.asarray([1.0, 2.0, 4.0]), [0.5, 0.75]))
    [2. 3.]
    """
    return _quantile(x, _as_parts(q), axis, method, keepdims, (0, 1))


@named
def percentile(
    x: Any,
    q: Any,
    /,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
) -> Tensor:
    """The quantile of `q` percent.

    >>> import tapejit as tj
    >>> print(tj.percentile(tj.asarray([1.0, 2.0, 4.0]), 75))
    3.0
    """
    return _quantile(x, _as_parts(q), axis, method, keepdims, (0, 100))


def _as_parts(q: Any) -> Tensor:
    """Positions are computed in double: in single they would be off by one soon."""
    if isinstance(q, (bool, int, float, list, tuple)) and not _has_tensors(q):
        q = Tensor(np.array(q, np.float64), CONSTANT)
    parts = as_operand(q, "quantile")
    if is_complex(parts.dtype):
        raise DTypeError(f"q is real, got {parts._type}")
    return cast(parts, np.dtype("float64"))


def _has_tensors(q: Any) -> bool:
    if isinstance(q, (list, tuple)):
        return any(_has_tensors(part) for part in q)
    return not isinstance(q, (bool, int, float, np.number))


def _quantile(
    x: Any, q: Tensor, axis: Axis, method: str, keepdims: bool, span: tuple[int, int]
) -> Tensor:
    if method != "linear":
        raise UnsupportedError(
            f"has only the method 'linear', got {method!r}",
            help="if no gradient is needed, np.quantile(x.numpy(), q, method=...)",
        )
    low, high = span
    if has_values(q):
        is_inside = reductions.all((q >= low) & (q <= high))
        if not number_of(is_inside, "quantile"):
            raise ArgumentError(f"q must be from {low} to {high}")
    if high != 1:
        q = q / high
    x, dtype = as_wide(x, "quantile")
    q = following(q, x.device)
    line, axes = as_line(x, axis)
    size = line.shape[-1]
    rest = line.shape[:-1]
    if size:
        place = q * (size - 1)
        below = elementwise.floor(place)
        part = cast(place - below, line.dtype)
        part = reshape(part, (*q.shape, *(1,) * len(rest)))
        lower = cast(below, np.dtype("int64"))
        upper = elementwise.minimum(lower + 1, size - 1)
        at_axis = (len(rest),)
        start, stop = 0, size
        is_open = isinstance(q, TracedTensor) or isinstance(size, Dim)
        if not q.ndim and not is_open:
            start = int(lower)
            stop = min(start + 1, size - 1) + 1
        needed = _in_order(line, start, stop)
        first = apply(ops.gather, needed, lower - start, axes=at_axis)
        second = apply(ops.gather, needed, upper - start, axes=at_axis)
        out = _interpolated(first, second, part)
        if stop - start == size:
            out = _or(out, getitem(needed, LAST))
        else:
            out = _or_nan(out, line)
    else:
        out = full((*q.shape, *rest), np.nan, dtype=line.dtype)
    if keepdims:
        out = reshape(out, (*q.shape, *keep_axes(x.shape, axes)))
    return cast(out, dtype)


def _interpolated(a: Tensor, b: Tensor, part: Tensor) -> Tensor:
    """From `a` to `b`, from the nearer end: exact at both ends, and monotonic."""
    way = b - a
    from_b = b - way * (1 - part)
    return elementwise.where(part >= 0.5, from_b, a + way * part)


# NumPy's parameters


def numpy_overwriting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An order statistic whose operand NumPy may overwrite; tensors are immutable."""

    def adapter(*args: Any, overwrite_input: bool = False, **options: Any) -> Tensor:
        return function(*args, **options)

    return adapter


def numpy_spread(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`var` or `std` with NumPy's parameters."""

    def adapter(
        a: Any,
        *,
        axis: Axis = None,
        dtype: Any = None,
        ddof: float = 0,
        keepdims: bool = False,
        correction: float | None = None,
    ) -> Tensor:
        if correction is not None and ddof:
            raise ArgumentError(
                "ddof and correction mean the same", help="give one of them"
            )
        x = a if dtype is None else elementwise.astype(a, dtype)
        by = ddof if correction is None else correction
        return function(x, axis=axis, correction=by, keepdims=keepdims)

    return adapter


__all__ = [
    "average",
    "count_nonzero",
    "median",
    "percentile",
    "ptp",
    "quantile",
    "std",
    "var",
]
