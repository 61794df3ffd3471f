"""Adding parts to an array: what the cotangents of many slices of one array sum up to.

`place_add` is a sum written as one operation: `x`, plus each update put at its slice
of an array of zeros, from left to right,

    x + place(updates[0], ...) + place(updates[1], ...) + ...

with the bits of that sum, signs of zeros included. It takes the time of the elements
that are there, where the sum takes that of as many whole arrays as there are updates.

Where nothing is added, zeros are: -0.0 + 0.0 is 0.0. So an element keeps a -0.0 only
where all updates meet, and all of them have one there. `met` finds that place.

Start reading at `place_add_eval`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Shape, Size
from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.base.types import DType, TensorType, Type
from tapejit.ir.node import ALL, Node, always, literal, record
from tapejit.ir.structural import with_rows
from tapejit.ops import movement
from tapejit.ops.elementwise import NUMERIC, Cotangents, check_kind
from tapejit.ops.shapes import Axes, same_dtype, tensor


def nothing(dtype: DType, shape: Shape) -> Node:
    """What changes no bit of what is added to it: -0.0, of integers 0.

    >>> nothing(np.dtype("float32"), (2,)).type
    f32[2]
    """
    zero = literal(0 if dtype.kind in "iu" else -np.zeros((), dtype)[()], dtype)
    return movement.broadcast_to(zero, shape=shape) if shape else zero


def place_add_type(
    x: Type, *updates: Type, starts: tuple[Shape, ...], steps: tuple[Axes, ...]
) -> TensorType:
    x, parts = tensor(x), [tensor(part) for part in updates]
    check_kind(same_dtype(x, *parts), NUMERIC)
    if not len(parts) == len(starts) == len(steps):
        raise ArgumentError(
            f"needs starts and steps for each of {len(parts)} updates, got "
            f"{len(starts)} and {len(steps)}"
        )
    for part, start, step in zip(parts, starts, steps, strict=True):
        if part.ndim != x.ndim:
            raise ShapeError(f"an update of {x} has as many axes, got {part}")
        movement.check_count(x, starts=start, steps=step)
        movement.check_steps(step)
        movement.check_inside(
            start, movement.placed_stops(part.shape, start, step), x.shape
        )
    return x


def met(ranges: Sequence[Sequence[range]]) -> tuple[range, ...]:
    """The elements that all parts have; a part has one range for each axis.

    >>> met([[range(0, 4)], [range(1, 5)], [range(2, 5)]])
    (range(2, 4),)
    >>> met([[range(0, 9, 2)], [range(1, 9, 3)]])
    (range(4, 8, 6),)
    """
    found = list(ranges[0])
    for part in ranges[1:]:
        if not all(found):
            break
        found = [both(x, y) for x, y in zip(found, part, strict=True)]
    return tuple(found)


def both(x: range, y: range) -> range:
    """The numbers that are in two ranges of positive steps."""
    start = max(x.start, y.start)
    stop = min(x[-1], y[-1]) + 1 if x and y else start
    if x.step == y.step == 1:
        return range(start, max(stop, start))
    step = math.lcm(x.step, y.step)
    for first in range(start, min(start + step, stop)):
        if first in x and first in y:
            return range(first, stop, step)
    return range(0)


def ranges_of(part: Sequence[int], starts: Axes, steps: Axes) -> list[range]:
    """The places along each axis of an update of this shape."""
    return [
        range(start, start + size * step, step)
        for size, start, step in zip(part, starts, steps, strict=True)
    ]


def place_add_eval(
    x: Any, *updates: Any, starts: tuple[tuple[int, ...], ...], steps: tuple[Axes, ...]
) -> Any:
    """Zeros are added everywhere, and updates, one after the other, where they are."""
    if not updates:
        return x
    is_uniform = bool(x.size) and not any(x.strides)
    if is_uniform and not x.flat[0]:
        out = np.zeros(x.shape, x.dtype)
    else:
        out = np.empty(x.shape, x.dtype)
        np.add(x, x.dtype.type(0), out=out)
    parts = list(zip(updates, starts, steps, strict=True))
    if x.dtype.kind not in "iu":
        common = met([ranges_of(part.shape, at, by) for part, at, by in parts])
        if all(common):
            there = tuple([np.s_[r.start : r.stop : r.step] for r in common])
            out[there] = x[there]
    for part, at, by in parts:
        stops = movement.placed_stops(part.shape, at, by)
        out[movement.numpy_ranges(at, stops, by, x.shape)] += part
    return out


def place_add_vjp(
    g: Node,
    out: Node,
    x: Node,
    *updates: Node,
    starts: tuple[Shape, ...],
    steps: tuple[Axes, ...],
) -> Cotangents:
    """The operand receives all, an update the slice that it was put into."""
    parts = zip(updates, starts, steps, strict=True)
    return (
        g,
        *[
            movement.slice(
                g, starts=at, stops=movement.placed_stops(part.shape, at, by), steps=by
            )
            for part, at, by in parts
        ],
    )


def place_add_jvp(
    tangents: movement.Tangents,
    out: Node,
    x: Node,
    *updates: Node,
    starts: tuple[Shape, ...],
    steps: tuple[Axes, ...],
) -> Node:
    """The updates' tangents added to the operand's at the same places."""
    t, *others = tangents
    parts = zip(others, starts, steps, strict=True)
    known = [(part, at, by) for part, at, by in parts if part is not None]
    if not known:
        assert t is not None
        return t
    if t is None and len(known) == 1:
        ((part, at, by),) = known
        return movement.place(part, shape=x.shape, starts=at, steps=by)
    return place_add(
        nothing(x.dtype, x.shape) if t is None else t,
        *[part for part, _, _ in known],
        starts=tuple(at for _, at, _ in known),
        steps=tuple(by for _, _, by in known),
    )


def place_add_batch(
    size: Size,
    inputs: Sequence[Node],
    batched: Sequence[bool],
    *,
    starts: tuple[Shape, ...],
    steps: tuple[Axes, ...],
) -> Node:
    return place_add(
        *with_rows(size, inputs, batched),
        starts=tuple((0, *at) for at in starts),
        steps=tuple((1, *by) for by in steps),
    )


def expand_place_add(node: Node) -> Node:
    """Additions, each with a placement that is read in place."""
    x, *updates = node.inputs
    parts = zip(updates, node.attrs["starts"], node.attrs["steps"], strict=True)
    for part, starts, steps in parts:
        x = x + movement.place(part, shape=node.shape, starts=starts, steps=steps)
    return x


place_add = record(
    "place_add",
    type_rule=place_add_type,
    eval=place_add_eval,
    vjp=place_add_vjp,
    jvp=place_add_jvp,
    batch=place_add_batch,
    conj_linear=True,
    linear=ALL,
    on_arrays=always,
    expands=expand_place_add,
)
