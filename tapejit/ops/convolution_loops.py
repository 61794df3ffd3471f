"""Convolution of arrays: windows laid out as matrices, block by block.

The windows of a batch are a view with twice the spatial axes, `[batch, *positions,
*window, channels]`. Its rows, batch and positions, and its columns, window and
channels, each merge to one axis of a matrix that is multiplied with the filters. Only
the merging copies, so it is done for a block of the outermost axis at a time, small
enough to stay in the cache until it is multiplied.

Memory decides about order. A derivative by the filters comes with batch and channels
exchanged, as a view: whichever axis is innermost in memory is innermost in the matrix,
and the outermost axis, which is cut into blocks, may be a row or a column. Columns in
blocks are summed up.

Many small groups are no work for products of matrices: they are multiplied and added
element by element, along all groups at once.

Start reading at `correlate`, then `product`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tapejit.ops.linalg import multiply_matrices

Sizes = Sequence[int]

# A block of windows. From 128 KB to 64 MB the times are alike: this many bytes of
# windows are laid out at most, whatever the batch.
BLOCK_BYTES: Final = 1 << 22
# What stays in the second level of the cache between the entries of a window.
CACHE_BYTES: Final = 1 << 18
# Up to so many products per entry and group, they are made for all groups at once.
FEW: Final = 4


def correlate(
    x: Any,
    filters: Any,
    counts: Sizes,
    strides: Sizes,
    lows: Sizes,
    dilations: Sizes,
    input_dilations: Sizes,
    groups: int,
) -> Any:
    """[batch, *n, c] with filters [*k, c / groups, f] at `counts` positions."""
    shape = (x.shape[0], *counts, filters.shape[-1])
    if not (filters.size and math.prod(shape)):
        return np.zeros(shape, x.dtype)
    if all(d == 1 for d in input_dilations):
        windows = windows_of(x, filters.shape[:-2], counts, strides, lows, dilations)
        return product(windows, filters, groups)
    out = np.zeros(shape, x.dtype)
    axes = zip(
        filters.shape[:-2],
        counts,
        strides,
        lows,
        dilations,
        input_dilations,
        strict=True,
    )
    for phase in itertools.product(*[phases(*axis) for axis in axes]):
        positions, taps, inner_counts, inner_strides, inner_lows, inner_dilations = zip(
            *phase, strict=True
        )
        part = filters[taps]
        windows = windows_of(
            x, part.shape[:-2], inner_counts, inner_strides, inner_lows, inner_dilations
        )
        out[(slice(None), *positions)] = product(windows, part, groups)
    return out


def phases(
    window: int, count: int, stride: int, low: int, dilation: int, input_dilation: int
) -> list[tuple[slice, slice, int, int, int, int]]:
    """Along an axis of spread input: the convolutions of input that is not.

    Positions of one phase see the same entries of the window; the others meet the
    zeros between neighbours. Gives the positions, the entries, and for these the
    count, stride, low and dilation.

    >>> phases(3, 4, 1, 1, 1, 2)  # doctest: +NORMALIZE_WHITESPACE
    [(slice(0, None, 2), slice(1, None, 2), 2, 1, 0, 1),
     (slice(1, None, 2), slice(0, None, 2), 2, 1, 0, 1)]
    """
    period = input_dilation // math.gcd(input_dilation, stride)
    step = input_dilation // math.gcd(input_dilation, dilation)
    found = []
    for first, entry in itertools.product(
        range(min(period, count)), range(min(step, window))
    ):
        start = first * stride + entry * dilation - low
        if start % input_dilation:
            continue
        found.append(
            (
                slice(first, None, period),
                slice(entry, None, step),
                len(range(first, count, period)),
                period * stride // input_dilation,
                -start // input_dilation,
                step * dilation // input_dilation,
            )
        )
    return found


def windows_of(
    x: Any, window: Sizes, counts: Sizes, strides: Sizes, lows: Sizes, dilations: Sizes
) -> Any:
    """Every window as a view, [batch, *counts, *window, channels]."""
    axes = zip(counts, strides, window, dilations, strict=True)
    needed = [(n - 1) * stride + (k - 1) * step + 1 for n, stride, k, step in axes]
    x = reframed(x, needed, lows)
    batch, *spatial, channels = x.strides
    moved = [step * by for step, by in zip(spatial, strides, strict=True)]
    inside = [step * by for step, by in zip(spatial, dilations, strict=True)]
    return np.lib.stride_tricks.as_strided(
        x,
        (x.shape[0], *counts, *window, x.shape[-1]),
        (batch, *moved, *inside, channels),
        writeable=False,
    )


def reframed(x: Any, needed: Sizes, lows: Sizes) -> Any:
    """The stretch of each spatial axis from -low on, zeros where there is no input.

    A copy, if it takes one, has the same axis innermost.
    """
    whole = slice(None)
    taken, put = [whole], [whole]
    is_inside = True
    for size, length, low in zip(x.shape[1:-1], needed, lows, strict=True):
        start, stop = max(0, -low), max(0, min(size, length - low))
        taken.append(slice(start, stop))
        put.append(slice(start + low, max(stop + low, start + low)))
        is_inside = is_inside and stop - start == length
    if is_inside:
        return x[tuple(taken)]
    shape = (x.shape[0], *needed, x.shape[-1])
    order = outermost_first(x, range(x.ndim))
    out = np.zeros([shape[at] for at in order], x.dtype)
    out = out.transpose([order.index(at) for at in range(x.ndim)])
    out[tuple(put)] = x[tuple(taken)]
    return out


def outermost_first(x: Any, axes: Sequence[int]) -> list[int]:
    """Axes in the order of memory."""
    return sorted(axes, key=lambda at: (-abs(x.strides[at]), x.shape[at]))


def product(windows: Any, filters: Any, groups: int) -> Any:
    """[batch, *counts, *window, groups * c] times [*window, c, groups * f]."""
    if groups == 1:
        return matrix_product(windows, filters)
    *window, channels, features = filters.shape
    rank = len(window)
    step = windows.strides[-1]
    windows = np.lib.stride_tricks.as_strided(
        windows,
        (*windows.shape[:-1], groups, channels),
        (*windows.strides[:-1], channels * step, step),
        writeable=False,
    )
    filters = filters.reshape(*window, channels, groups, features // groups)
    batch, *counts = windows.shape[: rank + 1]
    each = features // groups
    entries, positions = math.prod(window) * channels, math.prod(counts) * batch
    if entries <= positions and channels * each <= FEW:
        out = by_entry(windows, filters)
    elif positions <= entries and batch * each <= FEW:
        out = by_position(windows, filters)
    else:
        out = np.empty((batch, *counts, groups, each), windows.dtype)
        for group in range(groups):
            out[..., group, :] = matrix_product(
                windows[..., group, :], filters[..., group, :]
            )
    return out.reshape(batch, *counts, features)


def by_entry(windows: Any, filters: Any) -> Any:
    """Entry by entry of the window, all groups at once.

    [batch, *counts, *window, groups, c] with [*window, c, groups, f].
    """
    *window, channels, groups, features = filters.shape
    rows = windows.ndim - len(window) - 2
    shape = (*windows.shape[:rows], groups)
    out = np.zeros((features, *shape), windows.dtype)
    step = max(1, CACHE_BYTES * shape[0] // (math.prod(shape) * out.itemsize))
    whole = (slice(None),) * rows
    for start in range(0, shape[0], step):
        block = out[:, start : start + step]
        term = np.empty(block.shape[1:], out.dtype)
        for entry in np.ndindex(*window):
            seen = windows[start : start + step][(*whole, *entry)]
            for channel, feature in np.ndindex(channels, features):
                weights = filters[(*entry, channel, slice(None), feature)]
                # Repeated along the last axis: NumPy's inner loop then runs over both.
                line = np.ascontiguousarray(np.broadcast_to(weights, term.shape[-2:]))
                np.multiply(seen[..., channel], line, out=term)
                block[feature] += term
    return np.moveaxis(out, 0, -1)


def by_position(windows: Any, filters: Any) -> Any:
    """Position by position, all groups at once: for few positions of large windows.

    [batch, *counts, *window, groups, c] with [*window, c, groups, f].
    """
    *window, _, groups, features = filters.shape
    rank = len(window)
    out = np.empty((*windows.shape[: -rank - 2], groups, features), windows.dtype)
    entries = list(range(rank))
    of_windows, of_filters = [*entries, rank, rank + 1], [*entries, rank + 1, rank]
    for at in np.ndindex(*out.shape[:-2]):
        for feature in range(features):
            out[(*at, slice(None), feature)] = np.einsum(
                windows[at], of_windows, filters[..., feature], of_filters, [rank]
            )
    return out


def matrix_product(windows: Any, filters: Any) -> Any:
    """[*rows, *columns] times [*columns, f], merged to matrices as memory suggests."""
    split = windows.ndim - filters.ndim + 1
    features = filters.shape[-1]
    # The filters are a matrix already if columns are taken in their order.
    places = outermost_first(filters, range(filters.ndim - 1))
    weights = filters.transpose(*places, filters.ndim - 1).reshape(-1, features)
    rows = outermost_first(windows, range(split))
    columns = [split + at for at in places]
    innermost = outermost_first(windows, range(windows.ndim))[-1]
    is_by_row = innermost >= split
    order = [*rows, *columns] if is_by_row else [*columns, *rows]
    laid = windows.transpose(order)
    count = math.prod(windows.shape[:split])
    out = (np.empty if is_by_row else np.zeros)((count, features), windows.dtype)
    length = len(laid)
    step = max(1, BLOCK_BYTES * length // max(1, laid.size * laid.itemsize))
    inside = (count if is_by_row else len(weights)) // length
    for start in range(0, length, step):
        block = laid[start : start + step]
        stretch = slice(start * inside, (start + step) * inside)
        if is_by_row:
            part = block.reshape(-1, len(weights))
            multiply_matrices(part, weights, out=out[stretch])
        else:
            out += block.reshape(-1, count).T @ weights[stretch]
    out = out.reshape(*[windows.shape[at] for at in rows], features)
    return out.transpose(*[rows.index(at) for at in range(split)], split)
