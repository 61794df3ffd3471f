"""Windows that slide over axes: convolution, and the largest element of each window.

`conv` takes a batch `[batch, *spatial, channels]` and filters
`[*window, channels / groups, features]`. Output position p of an axis sees, for entry k
of the window, the input at `p * stride + k * dilation - low`, where it is padded with
zeros. It correlates: nothing is turned around, as in every library of networks.
(`convolve` is the mathematician's, of sequences.)

The input can be spread out too, with `input_dilation - 1` zeros between neighbours, and
padding can be negative, which cuts. With both, the two transposes of a convolution are
convolutions: by the input, one of spread cotangents with filters turned around; by the
filters, one in which batch and features exchange their parts. So derivatives of every
order stay within this record.

`window_max` has a window for every axis, and pads with what is less than any number.

Start reading at `conv_type`, then `conv_vjp`; the evaluation is in
`convolution_loops.py`.
"""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Dim, Shape, Size
from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.base.types import DType, TensorType, Type, is_differentiable
from tapejit.ir.node import Node, literal, record
from tapejit.ir.structural import batch_stack
from tapejit.ops.arithmetic import eq_mask, gate
from tapejit.ops.convolution_loops import correlate
from tapejit.ops.elementwise import (
    NUMERIC,
    ORDERED,
    Cotangents,
    bilinear_jvp,
    check_kind,
)
from tapejit.ops.movement import (
    FORWARD,
    Tangents,
    Widths,
    concat,
    exceeds,
    flip,
    largest,
    pad,
    permute_dims,
    place,
    reshape,
    slice,
    zeros,
)
from tapejit.ops.shapes import Axes, same_dtype, tensor
from tapejit.ops.window_sizes import check_groups, extent, share, window_count


def check_positive(name: str, numbers: Sequence[Any], count: int) -> None:
    """Refuse what is not one integer from 1 on per axis."""
    if len(numbers) != count:
        raise ArgumentError(
            f"{name} needs one number per axis of the window, {count}, "
            f"got {len(numbers)}"
        )
    if any(not isinstance(n, Dim) and n < 1 for n in numbers):
        raise ArgumentError(f"{name} are integers from 1 on, got {tuple(numbers)}")


# conv


def conv_type(
    x: Type,
    filters: Type,
    *,
    strides: Axes,
    padding: Widths,
    dilations: Axes,
    input_dilations: Axes,
    groups: Size,
) -> TensorType:
    """[batch, *n, c] with [*k, c / groups, f] is [batch, *positions, f]."""
    x, filters = tensor(x), tensor(filters)
    dtype = same_dtype(x, filters)
    check_kind(dtype, NUMERIC)
    if x.ndim != filters.ndim or x.ndim < 2:
        raise ShapeError(
            f"takes a batch and filters of one rank, got {x} and {filters}",
            help="a batch is [batch, *spatial, channels], filters are "
            "[*window, channels // groups, features]",
        )
    rank = x.ndim - 2
    check_positive("strides", strides, rank)
    check_positive("dilations", dilations, rank)
    check_positive("input_dilations", input_dilations, rank)
    if len(padding) != rank:
        raise ArgumentError(f"padding needs {rank} pairs, got {len(padding)}")
    check_groups(x.shape, filters.shape, groups)
    counts = []
    for axis in range(rank):
        low, high = padding[axis]
        padded = low + extent(x.shape[axis + 1], input_dilations[axis]) + high
        window = extent(filters.shape[axis], dilations[axis])
        count = window_count(padded, window, strides[axis])
        if exceeds(0, count):
            raise ShapeError(
                f"a window of {window} does not fit into axis {axis + 1} of {x}, "
                f"which is {padded} with its padding",
                help="pad the input, or take smaller filters",
            )
        counts.append(count)
    return TensorType(dtype, (x.shape[0], *counts, filters.shape[-1]))


def conv_eval(
    x: Any,
    filters: Any,
    *,
    strides: Axes,
    padding: tuple[tuple[int, int], ...],
    dilations: Axes,
    input_dilations: Axes,
    groups: int,
) -> Any:
    """Products of matrices; halves are computed in float32 and rounded once."""
    attrs: dict[str, Any] = {
        "strides": strides,
        "padding": padding,
        "dilations": dilations,
        "input_dilations": input_dilations,
        "groups": groups,
    }
    out = conv_type(TensorType.of(x), TensorType.of(filters), **attrs)
    counts: Any = out.shape[1:-1]
    dtype = x.dtype
    if is_differentiable(dtype) and dtype.itemsize == 2:
        x, filters = x.astype(np.float32), filters.astype(np.float32)
    lows = tuple(low for low, _ in padding)
    found = correlate(
        x, filters, counts, strides, lows, dilations, input_dilations, groups
    )
    return found.astype(dtype, copy=False)


def conv_vjp(
    g: Node,
    out: Node,
    x: Node,
    filters: Node,
    *,
    strides: Axes,
    padding: Widths,
    dilations: Axes,
    input_dilations: Axes,
    groups: Size,
) -> Cotangents:
    """Each operand receives the cotangent slid over the other."""
    rank = x.ndim - 2
    for_x, for_filters = [], []
    for axis in range(rank):
        low, _ = padding[axis]
        inside = extent(x.shape[axis + 1], input_dilations[axis])
        window = extent(filters.shape[axis], dilations[axis])
        spread = extent(g.shape[axis + 1], strides[axis])
        for_x.append((window - 1 - low, low + inside - spread))
        for_filters.append((low, spread + window - 1 - inside - low))
    gx = conv(
        g,
        turned(filters, groups),
        strides=input_dilations,
        padding=tuple(for_x),
        dilations=dilations,
        input_dilations=strides,
        groups=groups,
    )
    last = x.ndim - 1
    gf = conv(
        channels_as_batch(x, groups, filters.shape[-2]),
        permute_dims(g, axes=(*range(1, last), 0, last)),
        strides=dilations,
        padding=tuple(for_filters),
        dilations=strides,
        input_dilations=input_dilations,
        groups=groups,
    )
    return gx, permute_dims(gf, axes=(*range(1, last), 0, last))


def turned(filters: Node, groups: Size) -> Node:
    """Filters from features back to channels: windows turned around.

    [*k, c, groups * f] becomes [*k, f, groups * c].
    """
    *window, channels, features = filters.shape
    rank = len(window)
    filters = flip(filters, axes=tuple(range(rank)))
    if groups == 1:
        return permute_dims(filters, axes=(*range(rank), rank + 1, rank))
    each = share(features, groups)
    parts = reshape(filters, shape=(*window, channels, groups, each))
    parts = permute_dims(parts, axes=(*range(rank), rank + 2, rank + 1, rank))
    return reshape(parts, shape=(*window, each, groups * channels))


def channels_as_batch(x: Node, groups: Size, each: Size) -> Node:
    """[batch, *n, groups * c] as [c, *n, groups * batch]."""
    batch, *spatial, _ = x.shape
    rank = len(spatial)
    inner = tuple(range(1, rank + 1))
    if groups == 1:
        return permute_dims(x, axes=(rank + 1, *inner, 0))
    parts = reshape(x, shape=(batch, *spatial, groups, each))
    parts = permute_dims(parts, axes=(rank + 2, *inner, rank + 1, 0))
    return reshape(parts, shape=(each, *spatial, groups * batch))


def conv_batch(
    size: Size,
    inputs: Sequence[Node],
    batched: Sequence[bool],
    *,
    groups: Size,
    **attrs: Any,
) -> Node:
    """Rows are more of the batch, more features, or groups that do not meet."""
    x, filters = inputs
    if not batched[1]:
        _, batch, *rest = x.shape
        out = conv(
            reshape(x, shape=(size * batch, *rest)), filters, groups=groups, **attrs
        )
        return reshape(out, shape=(size, batch, *out.shape[1:]))
    _, *window, channels, features = filters.shape
    rank = len(window)
    inner = tuple(range(1, rank + 1))
    if not batched[0]:
        each = share(features, groups)
        parts = reshape(filters, shape=(size, *window, channels, groups, each))
        parts = permute_dims(parts, axes=(*inner, rank + 1, rank + 2, 0, rank + 3))
        wide = reshape(parts, shape=(*window, channels, groups * size * each))
        out = conv(x, wide, groups=groups, **attrs)
        front = out.shape[:-1]
        out = reshape(out, shape=(*front, groups, size, each))
        out = permute_dims(out, axes=(rank + 2, *range(rank + 1), rank + 1, rank + 3))
        return reshape(out, shape=(size, *front, features))
    last = rank + 2
    _, batch, *spatial, inputs_each = x.shape
    rows = permute_dims(x, axes=(1, *range(2, last), 0, last))
    rows = reshape(rows, shape=(batch, *spatial, size * inputs_each))
    wide = permute_dims(filters, axes=(*range(1, last), 0, last))
    wide = reshape(wide, shape=(*window, channels, size * features))
    out = conv(rows, wide, groups=groups * size, **attrs)
    front = out.shape[:-1]
    out = reshape(out, shape=(*front, size, features))
    return permute_dims(out, axes=(rank + 1, *range(rank + 1), rank + 2))


conv = record(
    "conv",
    type_rule=conv_type,
    eval=conv_eval,
    vjp=conv_vjp,
    jvp=bilinear_jvp("conv"),
    batch=conv_batch,
    bilinear=True,
    terms=lambda node: math.prod(map(int, node.inputs[1].shape[:-1])),
    precision="half",
)


# window_max

# What is found axis by axis is written and read again: 3 by 3 entries by strides of 1
# are 0.69 of the work, in 0.6 of the time.
LESS_WORK = 0.75


def window_max_type(
    x: Type, *, window: Axes, strides: Axes, padding: Widths
) -> TensorType:
    """One element per position of a window that has a size for every axis."""
    x = tensor(x)
    check_kind(x.dtype, ORDERED)
    check_positive("window", window, x.ndim)
    check_positive("strides", strides, x.ndim)
    if len(padding) != x.ndim:
        raise ArgumentError(f"padding needs {x.ndim} pairs, got {len(padding)}")
    counts = []
    axes = zip(x.shape, window, strides, padding, strict=True)
    for axis, (size, length, stride, (low, high)) in enumerate(axes):
        if any(exceeds(0, n) or exceeds(n, length - 1) for n in (low, high)):
            raise ArgumentError(
                f"padding of axis {axis} is {(low, high)} for a window of {length}",
                help="every window must see something else than padding",
            )
        count = window_count(low + size + high, length, stride)
        if exceeds(0, count) or (size == 0 and count != 0):
            raise ShapeError(
                f"a window of {length} does not fit into axis {axis} of {x}, "
                f"which is {low + size + high} with its padding"
            )
        counts.append(largest(count, 0))
    return x.with_shape(tuple(counts))


def lowest(dtype: DType) -> Any:
    """What is not more than any number."""
    if is_differentiable(dtype):
        return dtype.type(-np.inf)
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def window_max_eval(
    x: Any, *, window: Axes, strides: Axes, padding: tuple[tuple[int, int], ...]
) -> Any:
    """Axis by axis, each time the largest of `window` stretches; NaN if there is one.

    -0 is below 0, as in `max`, so the order does not matter.
    """
    out = window_max_type(
        TensorType.of(x), window=window, strides=strides, padding=padding
    )
    if any(low or high for low, high in padding):
        x = pad.eval(x, lowest(x.dtype), widths=padding)
    best = largest_in_windows(x, out.shape, window, strides)
    if not is_differentiable(x.dtype) or best.all():
        return best
    doubtful = (best == 0) & np.signbit(best)  # NumPy takes 0 and -0 as equal
    if not doubtful.any():
        return best
    found = largest_in_windows(~np.signbit(x), out.shape, window, strides)
    return np.where(doubtful & found, -best, best)


def largest_in_windows(x: Any, counts: Shape, window: Axes, strides: Axes) -> Any:
    """The largest element of each window; where 0 and -0 meet, either."""
    for axis, (count, length, stride) in enumerate(
        zip(counts, window, strides, strict=True)
    ):
        if (length, stride) == (1, 1):
            continue
        front = (FORWARD,) * axis
        span = (count - 1) * stride + 1
        best = x[(*front, builtins.slice(0, max(span, 0), stride))]
        for start in range(1, length):
            seen = builtins.slice(start, max(start + span, 0), stride)
            # In place from the second time on: the first result is ours.
            best = np.maximum(best, x[(*front, seen)], out=None if start == 1 else best)
        x = best
    return x


def shifts(window: Axes) -> Iterator[Axes]:
    """Where the entries of a window are, from its first one."""
    return itertools.product(*map(range, window))


def seen_by(padded: Node, out: Node, shift: Axes, strides: Axes) -> Node:
    """What every position of a window sees at one of its entries."""
    stops = tuple(
        start + (count - 1) * stride + 1
        for start, count, stride in zip(shift, out.shape, strides, strict=True)
    )
    return slice(padded, starts=shift, stops=stops, steps=strides)


def surrounded(x: Node, value: Any, padding: Widths) -> Node:
    """`x` with its padding, if it has any."""
    if all(width == 0 for pair in padding for width in pair):
        return x
    return pad(x, literal(value, x.dtype), widths=padding)


def window_winners(
    out: Node, x: Node, window: Axes, strides: Axes, padding: Widths
) -> tuple[list[Node], Node]:
    """For each entry of the window 1 where it is the maximum, and their number.

    Padding is NaN here, which equals nothing: it has no share, even if all it
    surrounds is -inf.
    """
    padded = surrounded(x, math.nan, padding)
    masks = [
        eq_mask(seen_by(padded, out, shift, strides), out) for shift in shifts(window)
    ]
    count = masks[0]
    for mask in masks[1:]:
        count = count + mask
    return masks, count


def window_max_vjp(
    g: Node, out: Node, x: Node, *, window: Axes, strides: Axes, padding: Widths
) -> Cotangents:
    """As of `max`: winners of a window share its cotangent equally, and NaN spreads."""
    masks, count = window_winners(out, x, window, strides, padding)
    shares = {
        shift: gate(g, mask) / count
        for shift, mask in zip(shifts(window), masks, strict=True)
    }
    total = spread_shares(shares, x, strides, padding)
    if total.shape == x.shape:
        return (total,)
    starts = tuple(low for low, _ in padding)
    stops = tuple(low + size for size, (low, _) in zip(x.shape, padding, strict=True))
    return (slice(total, starts=starts, stops=stops, steps=(1,) * x.ndim),)


def spread_shares(
    shares: dict[Axes, Node], x: Node, strides: Axes, padding: Widths
) -> Node:
    """Shares of all windows where these saw them, added up: `x` with its padding.

    A place is `stride * i + phase` along an axis. Within a phase shares lie side by
    side, so what is added up has no gaps and is smaller than `x` by all strides. At
    last phases take turns. There may be a few places too many at the end.
    """
    pairs = zip(x.shape, padding, strides, strict=True)
    lengths = tuple(
        (low + size + high + stride - 1) // stride
        for size, (low, high), stride in pairs
    )
    phases: dict[Axes, Node] = {}
    for shift, part in shares.items():
        digits = [divmod(at, s) for at, s in zip(shift, strides, strict=True)]
        starts = tuple(quotient for quotient, _ in digits)
        phase = tuple(rest for _, rest in digits)
        placed = place(part, shape=lengths, starts=starts, steps=(1,) * x.ndim)
        phases[phase] = phases[phase] + placed if phase in phases else placed
    empty = zeros(x.dtype, lengths)

    def taking_turns(phase: Axes) -> Node:
        """All phases that begin like this one, each axis followed by its phases."""
        if len(phase) == x.ndim:
            split = tuple(size for length in lengths for size in (length, 1))
            return reshape(phases.get(phase, empty), shape=split)
        parts = [taking_turns((*phase, rest)) for rest in range(strides[len(phase)])]
        return parts[0] if len(parts) == 1 else concat(*parts, axis=2 * len(phase) + 1)

    merged = zip(lengths, strides, strict=True)
    return reshape(taking_turns(()), shape=tuple(n * stride for n, stride in merged))


def window_max_jvp(
    tangents: Tangents,
    out: Node,
    x: Node,
    *,
    window: Axes,
    strides: Axes,
    padding: Widths,
) -> Node:
    """The mean of the winners' tangents."""
    masks, count = window_winners(out, x, window, strides, padding)
    assert tangents[0] is not None  # its only operand
    padded = surrounded(tangents[0], 0.0, padding)
    total: Node | None = None
    for shift, mask in zip(shifts(window), masks, strict=True):
        part = gate(seen_by(padded, out, shift, strides), mask)
        total = part if total is None else total + part
    assert total is not None  # a window has an entry
    return total / count


def expand_window_max(node: Node) -> Node:
    """The same of input with its padding, axis by axis if that is less work."""
    (x,), attrs = node.inputs, node.attrs
    window, strides = attrs["window"], attrs["strides"]
    found = surrounded(x, lowest(x.dtype), attrs["padding"])
    none = ((0, 0),) * x.ndim
    by_axis, looked_at = found, 0
    for axis in reversed(range(x.ndim)):
        if (window[axis], strides[axis]) == (1, 1):
            continue
        one = [
            tuple(n if at == axis else 1 for at, n in enumerate(numbers))
            for numbers in (window, strides)
        ]
        by_axis = window_max(by_axis, window=one[0], strides=one[1], padding=none)
        looked_at += window[axis] * math.prod(by_axis.shape)
    if looked_at < LESS_WORK * math.prod(window) * math.prod(node.shape):
        return by_axis
    if found is x:
        return node
    return window_max(found, window=window, strides=strides, padding=none)


window_max = record(
    "window_max",
    type_rule=window_max_type,
    eval=window_max_eval,
    vjp=window_max_vjp,
    jvp=window_max_jvp,
    batch=batch_stack("window_max", window=1, strides=1, padding=(0, 0)),
    exact=True,
    expands=expand_window_max,
)
