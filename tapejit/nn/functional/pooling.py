"""Pooling: one number for each window that slides over the spatial axes.

Windows that lie side by side are axes of their own after a reshape, and pooling is a
reduction over these. That covers most uses, and compiles to one loop with what is
around it. Windows that overlap, leave gaps or reach into padding go entry by entry:
`max_pool` is then an op, `window_max`, and `avg_pool` adds up slices, one axis after
the other.

Ties in `max_pool` are as in `tj.max`: equal elements share the gradient equally.

Start reading at `max_pool`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit import ops
from tapejit.array import reductions
from tapejit.array.creation import ones
from tapejit.array.elementwise import add, divide
from tapejit.array.manipulation import reshape
from tapejit.array.precision import wide_operand
from tapejit.base.errors import ArgumentError
from tapejit.nn.functional.windows import (
    Pairs,
    channels_last,
    check_fit,
    padding_pairs,
    per_axis,
)
from tapejit.ops.movement import exceeds, largest
from tapejit.ops.shapes import is_known
from tapejit.ops.window_sizes import window_count
from tapejit.tensor.dispatch import apply, as_operand, cast, weak_scalar
from tapejit.tensor.tensor import CONSTANT, Tensor


class PoolWindows:
    """Where the windows of a pooling are: per spatial axis of `x`, channels last."""

    def __init__(
        self, x: Tensor, window: Any, strides: Any, padding: Any, name: str
    ) -> None:
        rank = x.ndim - 2
        self.name = name
        self.window = per_axis(window, rank, "window sizes", name)
        self.strides = (
            self.window if strides is None else per_axis(strides, rank, "strides", name)
        )
        sizes = x.shape[1:-1]
        self.padding: Pairs = padding_pairs(
            padding, sizes, self.window, self.strides, name
        )
        if any(
            exceeds(n, length - 1)
            for length, pair in zip(self.window, self.padding, strict=True)
            for n in pair
        ):
            raise ArgumentError(
                f"padding {self.padding} reaches as far as the window {self.window}",
                op=name,
                help="every window must see something else than padding",
            )
        check_fit(x, self.window, self.padding, name)
        axes = zip(sizes, self.window, self.strides, self.padding, strict=True)
        self.counts = tuple(
            largest(window_count(low + size + high, length, stride), 0)
            for size, length, stride, (low, high) in axes
        )
        self.is_padded = any(n != 0 for pair in self.padding for n in pair)
        # A window alone is beside all others, whatever the stride.
        self.are_side_by_side = not self.is_padded and all(
            stride == length or count == 1
            for length, stride, count in zip(
                self.window, self.strides, self.counts, strict=True
            )
        )

    def as_axes(self, x: Tensor) -> Tensor:
        """Windows side by side: [batch, count, window, ..., channels]."""
        batch, *sizes, channels = x.shape
        pairs = zip(self.counts, self.window, strict=True)
        used = tuple(count * length for count, length in pairs)
        if not is_known(*sizes) or used != tuple(sizes):  # no guard for evenness
            starts, steps = (0,) * x.ndim, (1,) * x.ndim
            stops = (batch, *used, channels)
            x = apply(ops.slice, x, starts=starts, stops=stops, steps=steps)
        pairs = zip(self.counts, self.window, strict=True)
        split = [n for pair in pairs for n in pair]
        return reshape(x, (batch, *split, channels))

    @property
    def axes(self) -> tuple[int, ...]:
        """Where `as_axes` has the windows."""
        return tuple(range(2, 2 * len(self.window) + 1, 2))


def max_pool(
    x: Any,
    window: Any,
    strides: Any = None,
    padding: Any = "VALID",
    *,
    data_format: str | None = None,
) -> Tensor:
    """The largest element of each window; NaN if there is one.

    `x` is [batch, *spatial, channels] with one to three spatial axes, `window` a number
    for all of them or one for each. Windows are side by side unless `strides` says how
    far apart they start. `padding` is "VALID", "SAME" or widths as in `conv2d`, and
    never counts. `data_format` is "NCHW", "NCW" or "NCDHW" if channels come first.

    Equal largest elements share the gradient equally, as in `tj.max`.

    >>> import tapejit as tj
    >>> x = tj.reshape(tj.arange(16.0), (1, 4, 4, 1))
    >>> print(tj.nn.max_pool(x, 2)[0, :, :, 0])
    [[ 5.  7.]
     [13. 15.]]
    >>> tj.nn.max_pool(x, 3, strides=2, padding="SAME").shape
    (1, 2, 2, 1)
    """
    name = "max_pool"
    x, restore = channels_last(as_operand(x, name), data_format, name)
    windows = PoolWindows(x, window, strides, padding, name)
    if windows.are_side_by_side:
        return restore(reductions.max(windows.as_axes(x), axis=windows.axes))
    out = apply(
        ops.window_max,
        x,
        window=(1, *windows.window, 1),
        strides=(1, *windows.strides, 1),
        padding=((0, 0), *windows.padding, (0, 0)),
    )
    return restore(out)


def avg_pool(
    x: Any,
    window: Any,
    strides: Any = None,
    padding: Any = "VALID",
    *,
    data_format: str | None = None,
) -> Tensor:
    """The mean of each window, of its elements that are not padding.

    Arguments are those of `max_pool`.

    >>> import tapejit as tj
    >>> x = tj.reshape(tj.arange(9.0), (1, 3, 3, 1))
    >>> print(tj.nn.avg_pool(x, 2, strides=1)[0, :, :, 0])
    [[2. 3.]
     [5. 6.]]
    >>> print(tj.nn.avg_pool(x, 2, padding="SAME")[0, :, :, 0])
    [[2.  3.5]
     [6.5 8. ]]
    """
    name = "avg_pool"
    x, dtype = wide_operand(x, name)
    x, restore = channels_last(x, data_format, name)
    windows = PoolWindows(x, window, strides, padding, name)
    if windows.are_side_by_side:
        out = reductions.mean(windows.as_axes(x), axis=windows.axes)
    else:
        out = x
        for axis in range(len(windows.window)):
            out = _axis_mean(out, axis, windows)
    return restore(cast(out, dtype))


def _axis_mean(x: Tensor, axis: int, windows: PoolWindows) -> Tensor:
    """The means of windows along one spatial axis."""
    length, stride = windows.window[axis], windows.strides[axis]
    if (length, stride) == (1, 1):
        return x
    total = _axis_sum(x, axis, windows)
    low, high = windows.padding[axis]
    if low == 0 and high == 0:
        return divide(total, length)
    size: Any = x.shape[axis + 1]
    count: Any = windows.counts[axis]
    along = tuple(-1 if at == axis + 1 else 1 for at in range(x.ndim))
    seen: Any
    if is_known(size, count, low):
        starts = np.arange(count) * stride - low
        seen = np.minimum(starts + length, size) - np.maximum(starts, 0)
        seen = Tensor(seen.astype(x.dtype).reshape(along), CONSTANT)
    else:
        shape = tuple(size if n == -1 else n for n in along)
        seen = _axis_sum(ones(shape, dtype=x.dtype), axis, windows)
    return divide(total, seen)


def _axis_sum(x: Tensor, axis: int, windows: PoolWindows) -> Tensor:
    """The sums of windows along one spatial axis."""
    at = axis + 1
    stride, count = windows.strides[axis], windows.counts[axis]
    pair = windows.padding[axis]
    if pair != (0, 0):
        widths = tuple(pair if i == at else (0, 0) for i in range(x.ndim))
        x = apply(ops.pad, x, weak_scalar(0, x.dtype), widths=widths)
    steps = tuple(stride if i == at else 1 for i in range(x.ndim))
    parts = []
    for first in range(windows.window[axis]):
        starts = tuple(first if i == at else 0 for i in range(x.ndim))
        stops = tuple(
            first + (count - 1) * stride + 1 if i == at else size
            for i, size in enumerate(x.shape)
        )
        parts.append(apply(ops.slice, x, starts=starts, stops=stops, steps=steps))
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return total


__all__ = ["avg_pool", "max_pool"]
