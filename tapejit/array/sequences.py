"""Sequences: differences, integrals, interpolation and convolution.

The elements along one axis are samples of a function. `diff`, `trapezoid` and
`gradient` are differences and sums of slices; `interp` finds the segment of each point
and is linear in it; `convolve` has an op of its own.

`gradient` means NumPy's finite differences. It is reached as `np.gradient(x)` and is
not one of tapejit's names, where it would be taken for a derivative.

Start reading at `diff`, then `interp`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit import ops
from tapejit.array.arrangement import ravel
from tapejit.array.elementwise import (
    conj,
    divide,
    isfinite,
    isnan,
    logical_and,
    logical_not,
    maximum,
    multiply,
    not_equal,
    remainder,
    subtract,
    where,
)
from tapejit.array.indexing import take
from tapejit.array.manipulation import (
    as_axis,
    broadcast_to,
    concat,
    flip,
    reshape,
    stretch,
)
from tapejit.array.reductions import sum as sum_
from tapejit.base.errors import ArgumentError, DTypeError, ShapeError
from tapejit.base.types import is_complex
from tapejit.tensor.dispatch import (
    alias,
    apply,
    as_float,
    as_operand,
    binary,
    cast,
    operands,
)
from tapejit.tensor.tensor import Tensor

# Differences and integrals


def diff(
    x: Any, /, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None
) -> Tensor:
    """The differences of neighbours along an axis, taken `n` times.

    `prepend` and `append` are values to put before and after first.

    >>> import tapejit as tj
    >>> print(tj.diff(tj.asarray([1.0, 4.0, 9.0, 16.0])))
    [3. 5. 7.]
    >>> print(tj.diff(tj.asarray([1.0, 4.0, 9.0]), prepend=0.0))
    [1. 3. 5.]
    """
    given = as_operand(x, "diff")
    at = as_axis(axis, given.ndim, "diff")
    times = operator.index(n)
    if times < 0:
        raise ArgumentError(f"cannot take differences {times} times", op="diff")
    if times == 0:
        return alias(given)
    parts = [_as_slice(prepend, given, at), given, _as_slice(append, given, at)]
    out = concat([part for part in parts if part is not None], axis=at)
    function = not_equal if out.dtype.kind == "b" else subtract
    for _ in range(times):
        out = _neighbours(function, out, at)
    return out


def _as_slice(value: Any, x: Tensor, axis: int) -> Any:
    """What is put before or after: a scalar stands for a slice of them."""
    if value is None:
        return None
    _, end = operands((x, value), "diff")
    if end.ndim:
        return end
    one = tuple(1 if at == axis else size for at, size in enumerate(x.shape))
    return broadcast_to(end, one)


def _neighbours(function: Callable[..., Tensor], x: Tensor, axis: int) -> Tensor:
    """A function of each element but the first and the one before it."""
    size = x.shape[axis]
    if size == 0:
        return x
    after, before = stretch(x, 1, size, axis), stretch(x, 0, size - 1, axis)
    return function(after, before)


def ediff1d(x: Any, /, to_end: Any = None, to_begin: Any = None) -> Tensor:
    """The differences of neighbours in flattened order, with values around them.

    >>> import tapejit as tj
    >>> print(tj.ediff1d(tj.asarray([1.0, 2.0, 4.0]), to_begin=0.0))
    [0. 1. 2.]
    """
    flat = ravel(x)
    ends = [
        None if value is None else cast(ravel(value), flat.dtype)
        for value in (to_begin, to_end)
    ]
    parts = [ends[0], diff(flat), ends[1]]
    return concat([part for part in parts if part is not None])


def trapezoid(y: Any, /, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """The integral along an axis by the trapezoidal rule.

    `x` are the places of the samples; without them they are `dx` apart.

    >>> import tapejit as tj
    >>> print(tj.trapezoid(tj.asarray([1.0, 2.0, 3.0])))
    4.0
    """
    y = as_float(as_operand(y, "trapezoid"))
    at = as_axis(axis, y.ndim, "trapezoid")
    step: Any = dx
    if x is not None:
        places = as_operand(x, "trapezoid")
        if places.ndim == 1:
            step = diff(places)
            step = reshape(step, (-1, *(1,) * (y.ndim - at - 1)))
        else:
            step = diff(places, axis=at)
    areas = multiply(step, _neighbours(lambda b, a: b + a, y, at))
    return sum_(divide(areas, 2.0), axis=at)


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """NumPy's `gradient`: central differences inside, one-sided ones at the ends.

    `varargs` are the distances of the samples, one for all axes or one per axis, or
    their places. Several axes give a list.

    >>> import tapejit as tj
    >>> print(gradient(tj.asarray([1.0, 2.0, 4.0, 7.0])))
    [1.  1.5 2.5 3. ]
    """
    f = as_float(as_operand(f, "gradient"))
    given = range(f.ndim) if axis is None else np.atleast_1d(axis).tolist()
    axes = [as_axis(at, f.ndim, "gradient") for at in given]
    spacings: Sequence[Any] = varargs or (1.0,)
    if len(spacings) == 1:
        spacings = list(spacings) * len(axes)
    if len(spacings) != len(axes):
        raise ArgumentError(
            f"{len(spacings)} distances for {len(axes)} axes", op="gradient"
        )
    if edge_order not in (1, 2):
        raise ArgumentError(f"edge_order is 1 or 2, got {edge_order}", op="gradient")
    out = [
        _slope(f, spacing, at, edge_order)
        for at, spacing in zip(axes, spacings, strict=True)
    ]
    return out[0] if axis is not None and np.ndim(axis) == 0 else _one_or_all(out)


def _one_or_all(tensors: list[Tensor]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _slope(f: Tensor, spacing: Any, axis: int, edge_order: int) -> Tensor:
    """The slope along one axis, of the parabola through three neighbours."""
    size = f.shape[axis]
    if size < edge_order + 1:
        raise ShapeError(
            f"{size} samples along axis {axis} are too few, {edge_order + 1} are "
            "needed",
            op="gradient",
        )
    h: Any = spacing if np.ndim(spacing) else None
    if h is not None:
        places = as_operand(h, "gradient")
        if places.shape != (size,):
            raise ShapeError(
                f"places of {places._type} for {size} samples along axis {axis}",
                op="gradient",
            )
        h = diff(places)

    def part(start: int, stop: int) -> Tensor:
        return stretch(f, start, stop, axis)

    def gap(start: int, stop: int) -> Any:
        if h is None:
            return spacing
        piece = stretch(h, start, stop, 0)
        return reshape(piece, (-1, *(1,) * (f.ndim - axis - 1)))

    pieces = [_first_slope(part, gap, edge_order)]
    if size > 2:
        if h is None:
            pieces.append(divide(part(2, size) - part(0, size - 2), 2.0 * spacing))
        else:
            left, right = gap(0, size - 2), gap(1, size - 1)
            total = left + right
            pieces.append(
                -(right / (left * total)) * part(0, size - 2)
                + ((right - left) / (left * right)) * part(1, size - 1)
                + (left / (right * total)) * part(2, size)
            )
    pieces.append(_last_slope(part, gap, edge_order, size))
    return concat(pieces, axis=axis)


def _first_slope(part: Any, gap: Any, edge_order: int) -> Tensor:
    a, b = gap(0, 1), gap(1, 2) if edge_order == 2 else None
    if edge_order == 1:
        return divide(part(1, 2) - part(0, 1), a)
    total = a + b
    outer = -(2.0 * a + b) / (a * total)
    result: Tensor = (
        outer * part(0, 1)
        + (total / (a * b)) * part(1, 2)
        - a / (b * total) * part(2, 3)
    )
    return result


def _last_slope(part: Any, gap: Any, edge_order: int, size: int) -> Tensor:
    b = gap(size - 2, size - 1)
    if edge_order == 1:
        return divide(part(size - 1, size) - part(size - 2, size - 1), b)
    a = gap(size - 3, size - 2)
    total = a + b
    result: Tensor = (
        b / (a * total) * part(size - 3, size - 2)
        - (total / (a * b)) * part(size - 2, size - 1)
        + (2.0 * b + a) / (b * total) * part(size - 1, size)
    )
    return result


# Interpolation


def interp(
    x: Any, xp: Any, fp: Any, /, left: Any = None, right: Any = None, period: Any = None
) -> Tensor:
    """Values at `x` on the straight lines between the points (xp, fp).

    `xp` increases. `left` and `right` are the values outside of it, by default those
    of the first and of the last point; with a `period` there is no outside. At a
    point the slope is that of the segment that begins there.

    >>> import tapejit as tj
    >>> x = tj.asarray([0.0, 1.5, 2.5, 9.0])
    >>> print(tj.interp(x, [1.0, 2.0, 3.0], [10.0, 20.0, 0.0]))
    [10. 15. 10.  0.]
    """
    x, xp = (as_float(value) for value in operands((x, xp), "interp"))
    fp = as_float(as_operand(fp, "interp"))
    if is_complex(x.dtype):
        raise DTypeError("takes real places", op="interp")
    if xp.ndim != 1 or xp.shape != fp.shape:
        raise ShapeError(
            f"takes one value per point, got {xp._type} and {fp._type}", op="interp"
        )
    if xp.size == 0:
        raise ShapeError("needs at least one point", op="interp")
    if period is not None:
        x, xp, fp = _unrolled(x, xp, fp, period)
        left = right = None
    last = xp.size - 1
    at = _segment(x, xp)
    inside = fp[0] if last == 0 else _on_line(x, xp, fp, at)
    low, high = (fp[0] if left is None else left, fp[last] if right is None else right)
    out = where(x < xp[0], low, where(x > xp[last], high, inside))
    return out if out.shape == x.shape else broadcast_to(out, x.shape)


def _segment(x: Tensor, xp: Tensor) -> Tensor:
    """The last point at or before each `x`; the first one for those before all."""
    following = apply(ops.searchsorted, xp, x, side="right")
    return maximum(following - 1, 0)


def _on_line(x: Tensor, xp: Tensor, fp: Tensor, at: Tensor) -> Tensor:
    """On the line from point `at`, or, if that end is infinite, seen from the other.

    The last point has no segment of its own and takes the slope of the one before.
    """
    segment = where(at < xp.size - 1, at, xp.size - 2)
    after = segment + 1
    first, second = take(fp, segment, axis=0), take(fp, after, axis=0)
    rise = second - first
    slope = rise / (take(xp, after, axis=0) - take(xp, segment, axis=0))
    start = take(fp, at, axis=0)
    step = x - take(xp, at, axis=0)
    near = slope * step + start
    far = slope * (x - take(xp, after, axis=0)) + second
    line = where(isnan(near), far, near)
    # Between two equal infinities the line is infinite, though its slope is NaN.
    is_level = logical_and(first == second, logical_not(isnan(x)))
    line = where(logical_and(isnan(line), is_level), first, line)
    is_point = logical_and(step == 0, logical_not(isfinite(slope)))
    return where(is_point, start, line)


def _unrolled(
    x: Tensor, xp: Tensor, fp: Tensor, period: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """One period of points in order, with a neighbour from the next on each side."""
    length = float(period)
    if length == 0:
        raise ArgumentError("the period cannot be zero", op="interp")
    length = abs(length)
    x, xp = remainder(x, length), remainder(xp, length)
    order = apply(ops.argsort, xp, axis=0, descending=False)
    xp, fp = take(xp, order, axis=0), take(fp, order, axis=0)
    places = concat([xp[-1:] - length, xp, xp[:1] + length])
    return x, places, concat([fp[-1:], fp, fp[:1]])


# Products of sequences


def convolve(a: Any, v: Any, /, mode: str = "full") -> Tensor:
    """The convolution of two vectors.

    `mode="full"` has every overlap, "same" the middle of it, as long as the longer
    vector, "valid" only what overlaps completely.

    >>> import tapejit as tj
    >>> print(tj.convolve(tj.asarray([1.0, 2.0, 3.0]), [0.0, 1.0, 0.5]))
    [0.  1.  2.5 4.  1.5]
    """
    long, short = _vectors(a, v, "convolve")
    if long.size < short.size:
        long, short = short, long
    _check_mode(mode, "convolve")
    if mode == "same":
        out = apply(ops.convolve, long, short, mode="full")
        start = (short.size - 1) // 2
        return stretch(out, start, start + long.size, 0)
    return apply(ops.convolve, long, short, mode=mode)


def correlate(a: Any, v: Any, /, mode: str = "valid") -> Tensor:
    """The sums of `a`, shifted, times the conjugate of `v`.

    >>> import tapejit as tj
    >>> print(tj.correlate(tj.asarray([1.0, 2.0, 3.0]), [0.0, 1.0, 0.5], "same"))
    [2.  3.5 3. ]
    """
    first, second = _vectors(a, v, "correlate")
    _check_mode(mode, "correlate")
    turned = flip(conj(second) if is_complex(second.dtype) else second)
    if mode == "same" and first.size < second.size:
        # The longer one stays in place: of an even number of elements the other half
        # of the middle is meant.
        out = apply(ops.convolve, first, turned, mode="full")
        start = first.size // 2
        return stretch(out, start, start + second.size, 0)
    return convolve(first, turned, mode)


def _vectors(a: Any, v: Any, name: str) -> list[Tensor]:
    pair = operands((a, v), name)
    for x in pair:
        if x.ndim > 1:
            raise ShapeError(f"takes vectors, got {x._type}", op=name)
        if x.size == 0:
            raise ShapeError("takes vectors with elements", op=name)
    return [reshape(x, (-1,)) for x in pair]


def _check_mode(mode: str, name: str) -> None:
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(f"mode is 'full', 'same' or 'valid', got {mode!r}", op=name)


def kron(a: Any, b: Any, /) -> Tensor:
    """The Kronecker product: every element of `a` times the whole of `b`.

    >>> import tapejit as tj
    >>> print(tj.kron(tj.asarray([1.0, 10.0]), [1.0, 2.0]))
    [ 1.  2. 10. 20.]
    """
    a, b = operands((a, b), "kron")
    rank = max(a.ndim, b.ndim)
    outer = (1,) * (rank - a.ndim) + a.shape
    inner = (1,) * (rank - b.ndim) + b.shape
    left = reshape(a, tuple(size for n in outer for size in (n, 1)))
    right = reshape(b, tuple(size for n in inner for size in (1, n)))
    product = binary(ops.mul, left, right)
    sizes = zip(outer, inner, strict=True)
    return reshape(product, tuple(n * m for n, m in sizes))


__all__ = ["convolve", "correlate", "diff", "ediff1d", "interp", "kron", "trapezoid"]
