"""Convolutions that are no matmul: in many small groups, of integers, of halves.

A depthwise convolution has one channel and one or a few features in each group. It is a
sum over the entries of the window: what all positions see at that entry, times its
weight. The derivative by the filters has a window as large as the image and few
positions: each of them is one sum. Both are slices, products and sums, which fuse with
their neighbours.

Halves are convolved in float32 and rounded once. Few groups that are too small for one
matmul and too large to be written out go one by one. Convolutions of integers are
loops, of input that has its zeros around it and between its elements.

Start reading at `is_written_out`, then `by_entry` and `is_rewritten`.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from tapejit import ops
from tapejit.base.dims import Shape
from tapejit.base.types import is_float
from tapejit.ir.node import OPS, Node, literal
from tapejit.loops import numerics
from tapejit.loops.lower.windows import frames_of, is_windowed_product


def is_written_out(node: Node) -> bool:
    """Whether a convolution is a sum of products of slices.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[2,6,8]"))
    >>> w = param("w", TensorType.parse("f32[3,1,8]"))
    >>> plain = {"strides": (1,), "dilations": (1,), "input_dilations": (1,)}
    >>> is_written_out(ops.conv(x, w, padding=((1, 1),), groups=8, **plain))
    True
    """
    if is_windowed_product(node) or node.dtype.kind != "f" or node.dtype.itemsize < 4:
        return False
    if not all(frame.length for frame in frames_of(node)):
        return False
    return goes_by_entry(node) or goes_by_position(node)


def goes_by_entry(node: Node) -> bool:
    """Whether there are few entries in a window, and few products for each."""
    channels, features = each_group(node)
    entries = math.prod(map(int, node.inputs[1].shape[:-2]))
    few = channels * features <= numerics.LOOPS.written_conv_products
    return few and entries * channels * features <= numerics.LOOPS.written_conv_terms


def goes_by_position(node: Node) -> bool:
    """Whether there are few positions, and few results at each."""
    _, features = each_group(node)
    batch, *counts = map(int, node.shape[:-1])
    few = batch * features <= numerics.LOOPS.written_conv_products
    terms = math.prod(counts) * batch * features
    return few and terms <= numerics.LOOPS.written_conv_terms


def each_group(node: Node) -> tuple[int, int]:
    """How many channels and how many features a group has."""
    filters, groups = node.inputs[1], int(node.attrs["groups"])
    return int(filters.shape[-2]), int(filters.shape[-1]) // groups


def written_out(node: Node) -> Node:
    """A convolution of which `is_written_out` holds, as slices, products and sums."""
    if goes_by_entry(node):
        return by_entry(in_frame(spread(node.inputs[0], node), node), node)
    return by_position(node)


def is_convolved(node: Node) -> bool:
    """Whether loops can compute a convolution: most of those with fixed sizes.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> plain = {"strides": (1,), "dilations": (1,), "input_dilations": (1,)}
    >>> for kind in ("f32", "f16", "i32"):
    ...     x = param("x", TensorType.parse(f"{kind}[2,6,3]"))
    ...     w = param("w", TensorType.parse(f"{kind}[3,3,8]"))
    ...     node = ops.conv(x, w, padding=((1, 1),), groups=1, **plain)
    ...     print(is_convolved(node), is_rewritten(node), is_looped(node))
    True False False
    True True False
    True True True
    """
    if is_windowed_product(node) or is_written_out(node):
        return True
    return is_rewritten(node) or is_looped(node)


def is_looped(node: Node) -> bool:
    """Whether a convolution is a loop among loops: of integers, in one group."""
    return node.dtype.kind in "iu" and node.attrs["groups"] == 1


def is_rewritten(node: Node) -> bool:
    """Whether a convolution is made of others, which are native."""
    if is_windowed_product(node) or is_written_out(node):
        return False
    if is_half(node):
        return is_convolved(in_float32(node).inputs[0])
    if node.attrs["groups"] > 1:
        few = node.attrs["groups"] <= numerics.LOOPS.joined_arrays
        return few and is_convolved(one_group(node, 0))
    return is_looped(node) and in_whole(node) is not node


def is_half(node: Node) -> bool:
    return is_float(node.dtype) and node.dtype.itemsize == 2


def rewritten_conv(node: Node) -> Node:
    """A convolution of which `is_rewritten` holds, as others and what joins them."""
    if is_half(node):
        return in_float32(node)
    groups = int(node.attrs["groups"])
    if groups == 1:
        return in_whole(node)
    return OPS["concat"](
        *[one_group(node, at) for at in range(groups)], axis=node.ndim - 1
    )


def in_float32(node: Node) -> Node:
    """The same, rounded once in the end."""
    single = np.dtype(np.float32)
    wide = [OPS["cast"](x, dtype=single) for x in node.inputs]
    return OPS["cast"](OPS["conv"](*wide, **node.attrs), dtype=node.dtype)


def one_group(node: Node, at: int) -> Node:
    """The convolution of a group's channels with its filters."""
    x, filters = node.inputs
    channels, features = each_group(node)
    parts = [
        stretch(
            whole,
            (*(0,) * (whole.ndim - 1), at * each),
            (*map(int, whole.shape[:-1]), each),
            (1,) * whole.ndim,
        )
        for whole, each in ((x, channels), (filters, features))
    ]
    return OPS["conv"](*parts, **{**node.attrs, "groups": 1})


def in_whole(node: Node) -> Node:
    """The convolution of input that has its zeros; itself if there are none."""
    rank = node.ndim - 2
    x = in_frame(spread(node.inputs[0], node), node)
    if x is node.inputs[0]:
        return node
    plain = {"padding": ((0, 0),) * rank, "input_dilations": (1,) * rank}
    return OPS["conv"](x, node.inputs[1], **{**node.attrs, **plain})


def spread(x: Node, node: Node) -> Node:
    """The input with zeros between neighbours, where it is spread.

    Of `x` the axes after the first are spatial, and those behind them are left alone.
    """
    steps = node.attrs["input_dilations"]
    if all(step == 1 for step in steps):
        return x
    rank = len(steps)
    pairs = zip(x.shape[1 : rank + 1], steps, strict=True)
    inner = tuple((int(size) - 1) * step + 1 for size, step in pairs)
    shape = (x.shape[0], *inner, *x.shape[rank + 1 :])
    gaps = (1, *steps, *(1,) * (x.ndim - rank - 1))
    return OPS["place"](x, shape=shape, starts=(0,) * x.ndim, steps=gaps)


def in_frame(x: Node, node: Node) -> Node:
    """The stretch of each spatial axis that windows see, zeros where nothing is."""
    starts, stops = [0] * x.ndim, [int(size) for size in x.shape]
    widths = [(0, 0)] * x.ndim
    for axis in range(node.ndim - 2):
        at, size = axis + 1, int(x.shape[axis + 1])
        low = int(node.attrs["padding"][axis][0])
        stop = needed(node, axis) - low
        starts[at], stops[at] = max(0, -low), min(size, stop)
        widths[at] = (max(0, low), max(0, stop - size))
    if any(starts) or tuple(stops) != x.shape:
        steps = (1,) * x.ndim
        x = OPS["slice"](x, starts=tuple(starts), stops=tuple(stops), steps=steps)
    if any(map(any, widths)):
        x = OPS["pad"](x, literal(0, x.dtype), widths=tuple(widths))
    return x


def needed(node: Node, axis: int) -> int:
    """How many places of an axis windows see."""
    stride, dilation = (int(node.attrs[k][axis]) for k in ("strides", "dilations"))
    count, window = int(node.shape[axis + 1]), int(node.inputs[1].shape[axis])
    return (count - 1) * stride + (window - 1) * dilation + 1


def by_entry(x: Node, node: Node) -> Node:
    """Entry by entry of the window, and channel by channel of the groups."""
    filters, groups = node.inputs[1], int(node.attrs["groups"])
    channels, features = each_group(node)
    *window, _, _ = map(int, filters.shape)
    counts = tuple(map(int, node.shape[:-1]))
    strides = node.attrs["strides"]
    total = literal(0, x.dtype)  # so that no sum is -0.0
    for entry in itertools.product(*map(range, window)):
        firsts = [e * d for e, d in zip(entry, node.attrs["dilations"], strict=True)]
        for channel in range(channels):
            seen = stretch(
                x,
                (0, *firsts, channel),
                (counts[0], *counts[1:], groups),
                (1, *strides, channels),
            )
            weights = stretch(
                filters,
                (*entry, channel, 0),
                (*(1,) * len(window), 1, groups * features),
                (1,) * filters.ndim,
            )
            weights = OPS["reshape"](weights, shape=(groups, features))
            seen = OPS["reshape"](seen, shape=(*counts, groups, 1))
            total = total + seen * weights
    return OPS["reshape"](total, shape=node.shape)


def by_position(node: Node) -> Node:
    """Position by position: sums over the whole window.

    Channels come first: in a derivative by the filters they are the batch. They are put
    there before anything else, so that what merged them with the groups is undone.
    """
    x, filters = node.inputs
    groups = int(node.attrs["groups"])
    channels, features = each_group(node)
    *window, _, _ = map(int, filters.shape)
    rank, batch = len(window), int(node.shape[0])
    counts = tuple(map(int, node.shape[1:-1]))
    x = split(x, (*x.shape[:-1], groups, channels))
    x = in_frame(spread(x, node), node)
    x = OPS["permute_dims"](x, axes=(rank + 2, *range(rank + 2)))
    weights = OPS["reshape"](filters, shape=(*window, channels, groups, features))
    order = (rank, *range(rank), rank + 1, rank + 2)
    weights = OPS["permute_dims"](weights, axes=order)
    weights = OPS["reshape"](weights, shape=(channels, 1, *window, groups, features))
    found = []
    for position in itertools.product(*map(range, counts)):
        firsts = [p * s for p, s in zip(position, node.attrs["strides"], strict=True)]
        seen = stretch(
            x,
            (0, 0, *firsts, 0),
            (channels, batch, *window, groups),
            (1, 1, *node.attrs["dilations"], 1),
        )
        seen = OPS["reshape"](seen, shape=(*seen.shape, 1))
        summed = (0, *range(2, rank + 2))
        total = OPS["sum"](seen * weights, axes=summed, keepdims=False)
        total = literal(0, x.dtype) + total  # so that it is not -0.0
        found.append(OPS["reshape"](total, shape=(batch, 1, groups * features)))
    out = found[0] if len(found) == 1 else OPS["concat"](*found, axis=1)
    return OPS["reshape"](out, shape=node.shape)


def split(x: Node, shape: Shape) -> Node:
    """`x` in another shape: what it was made of, if that had it."""
    if x.op is ops.reshape and x.inputs[0].shape == shape:
        return x.inputs[0]
    return OPS["reshape"](x, shape=shape)


def stretch(
    x: Node, starts: tuple[int, ...], counts: tuple[int, ...], steps: tuple[int, ...]
) -> Node:
    """So many elements of each axis, from a start on, some steps apart."""
    axes = zip(starts, counts, steps, strict=True)
    stops = tuple(start + (count - 1) * step + 1 for start, count, step in axes)
    return OPS["slice"](x, starts=starts, stops=stops, steps=steps)
