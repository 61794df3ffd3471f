"""Advanced indexing: reading and adding at positions that arrays of integers name.

There is one pair of records, each the transpose of the other. `gather` reads: the
indices, one per indexed axis, broadcast together, and the result has their shape in
front followed by the axes of `x` that are not indexed. `gather_add` adds updates of
that shape at the same positions; repeated positions accumulate in the order of the
indices. Negative indices count from the end, an index outside its axis raises.

NumPy leaves the axes of adjacent indices where they were. That is a permutation of the
result: `take` along an axis is

    permute_dims(gather(x, i, axes=(axis,)), axes=axes_from_front(axis, i.ndim, ndim))

with `ndim` that of the result, and adding along an axis is `gather_add` of the updates
permuted with `axes_to_front`. Both permutations are views, and NumPy's `take` makes the
inner result contiguous in the outer order, so nothing is copied twice.

Start reading at `gather_type`, then `gather_eval`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import ArgumentError, AxisError, ShapeError
from tapejit.base.types import TensorType, Type, is_float
from tapejit.ir.node import CHEAP, FIRST, Movement, Node, always, record
from tapejit.ir.structural import with_rows
from tapejit.ops.basic_index import outside
from tapejit.ops.elementwise import NUMERIC, Cotangents, check_kind, lift
from tapejit.ops.movement import (
    Tangents,
    inverse_axes,
    permute_dims,
    zeros,
)
from tapejit.ops.shapes import Axes, broadcast_shapes, drop_axes, same_dtype, tensor

# Adding row by row costs 1 µs a row, one flat `np.add.at` 2.5 ns an element.
LONG_ROW = 512


def axes_to_front(at: int, count: int, ndim: int) -> Axes:
    """The permutation that brings `count` axes, from `at` on, to the front.

    >>> axes_to_front(1, 2, 4)
    (1, 2, 0, 3)
    """
    return (*range(at, at + count), *range(at), *range(at + count, ndim))


def axes_from_front(at: int, count: int, ndim: int) -> Axes:
    """The inverse of `axes_to_front`: `count` axes go behind `at` others.

    >>> axes_from_front(1, 2, 4)
    (2, 0, 1, 3)
    """
    return inverse_axes(axes_to_front(at, count, ndim))


def indexed_first(axes: Axes, ndim: int) -> Axes:
    """The permutation with the indexed axes in front, the others after them."""
    return (*axes, *(at for at in range(ndim) if at not in axes))


# iota


def iota_type(*, size: Size) -> TensorType:
    return TensorType(np.dtype("int64"), (size,))


def iota_eval(*, size: int) -> Any:
    return np.arange(size, dtype=np.int64)


# The number of each row of a batch: 0, 1, ..., size - 1.
iota = record(
    "iota",
    type_rule=iota_type,
    eval=iota_eval,
    differentiable=False,
    cost=CHEAP,
    exact=True,
)


# gather


def gather_type(x: Type, *indices: Type, axes: Axes) -> TensorType:
    x = tensor(x)
    types = [tensor(index) for index in indices]
    if not axes or len(axes) != len(types):
        raise ArgumentError(
            f"needs one index for each of its axes {axes}, got {len(types)}"
        )
    if list(axes) != sorted(set(axes) & set(range(x.ndim))):
        raise AxisError(f"axes {axes} are not among those of {x}, in order")
    for index in types:
        check_kind(index.dtype, ("integer",))
    return x.with_shape((*broadcast_shapes(*types), *drop_axes(x.shape, axes)))


def check_range(shape: tuple[int, ...], indices: Sequence[Any], axes: Axes) -> None:
    """Raise for the first index outside its axis.

    Where nothing is indexed NumPy looks at single integers only, and so does this.
    """
    is_empty = not all(np.broadcast(*indices).shape)
    for axis, index in zip(axes, indices, strict=True):
        if is_empty and index.ndim:
            continue
        size = shape[axis]
        is_bad = (index < -size) | (index >= size)
        if np.any(is_bad):
            at = np.unravel_index(np.argmax(is_bad), np.shape(is_bad))
            place = ", ".join(str(int(position)) for position in at)
            note = f" (at [{place}] of the indices)" if place else ""
            raise outside(index[at], axis, size, note)


def as_signed(index: Any) -> Any:
    """An index that NumPy does not wrap: uint64 is cut off at what int64 holds."""
    if index.dtype != np.uint64:
        return index
    return np.minimum(index, np.uint64(2**63 - 1)).astype(np.int64)


def gather_eval(x: Any, *indices: Any, axes: Axes) -> Any:
    """NumPy finds indices out of range; they are searched only to say which."""
    signed = tuple(map(as_signed, indices))
    first, *others = axes
    try:
        if others or not x.flags.c_contiguous:  # `take` would copy all of `x`
            out = x.transpose(indexed_first(axes, x.ndim))[signed]
        else:
            out = np.take(x, signed[0], axis=first)
            if first:
                out = out.transpose(axes_to_front(first, signed[0].ndim, out.ndim))
    except IndexError:
        check_range(x.shape, indices, axes)
        raise
    if out.size == 0:  # `take` looks at no index when there is nothing to copy
        check_range(x.shape, indices, axes)
    return out


def gather_vjp(g: Node, out: Node, x: Node, *indices: Node, axes: Axes) -> Cotangents:
    """An element receives the cotangents of all the places it was read to."""
    read = gather_add(zeros(x.dtype, x.shape), g, *indices, axes=axes)
    return (read, *[None] * len(indices))


def lift_indices(
    indices: Sequence[Node], batched: Sequence[bool]
) -> tuple[list[Node], int]:
    """Indices that broadcast together as each row's do, and the rank they have."""
    pairs = list(zip(indices, batched, strict=True))
    rank = max(index.ndim - flag for index, flag in pairs)
    return [lift(index, rank) if flag else index for index, flag in pairs], rank


def gather_batch(
    size: Size, inputs: Sequence[Node], batched: Sequence[bool], *, axes: Axes
) -> Node:
    """Where both are batched, the number of the row is one more index."""
    x, x_is_batched = inputs[0], batched[0]
    indices, rank = lift_indices(inputs[1:], batched[1:])
    if not x_is_batched:
        return gather(x, *indices, axes=axes)
    shifted = tuple(at + 1 for at in axes)
    if any(batched[1:]):
        row = lift(iota(size=size), rank)
        return gather(x, row, *indices, axes=(0, *shifted))
    out = gather(x, *indices, axes=shifted)
    return permute_dims(out, axes=axes_to_front(rank, 1, out.ndim))


gather = record(
    "gather",
    type_rule=gather_type,
    eval=gather_eval,
    can_fail=True,
    vjp=gather_vjp,
    batch=gather_batch,
    linear=FIRST,
    moves=Movement.OTHER,
)


# gather_add


def gather_add_type(x: Type, updates: Type, *indices: Type, axes: Axes) -> TensorType:
    x, updates = tensor(x), tensor(updates)
    check_kind(same_dtype(x, updates), NUMERIC)
    read = gather_type(x, *indices, axes=axes)
    if updates != read:
        raise ShapeError(
            f"updates must be {read}, as the indices and {x} say, got {updates}"
        )
    return x


def flat_positions(
    shape: tuple[int, ...], indices: Sequence[Any], axes: Axes
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Indices, known to be in range, into the indexed axes laid out as one.

    >>> flat_positions((3, 9, 5), [np.array([0, -1]), np.array(2)], (0, 2))
    array([ 2, 12])
    """
    flat: Any = 0
    for axis, index in zip(axes, indices, strict=True):
        signed = np.asarray(index).astype(np.intp, copy=False)
        flat = flat * shape[axis] + np.where(signed < 0, signed + shape[axis], signed)
    return np.asarray(flat).reshape(-1)


def gather_add_eval(x: Any, updates: Any, *indices: Any, axes: Axes) -> Any:
    """As `np.add.at`, in the same order; half precision is rounded once, at the end."""
    check_range(x.shape, indices, axes)
    is_half = is_float(x.dtype) and x.dtype.itemsize == 2
    wide = np.dtype(np.float32) if is_half else x.dtype
    front = indexed_first(axes, x.ndim)
    out = np.array(x.transpose(front), dtype=wide, order="C")  # a copy
    rows = flat_positions(x.shape, indices, axes)
    width = math.prod(out.shape[len(axes) :])
    table = out.reshape(math.prod(out.shape[: len(axes)]), width)
    added = updates.astype(wide, copy=False).reshape(rows.size, width)
    if width >= LONG_ROW:
        for row, values in zip(rows.tolist(), added, strict=True):
            table[row] += values
    else:
        cells = rows[:, None] * width + np.arange(width)
        np.add.at(table.reshape(-1), cells.reshape(-1), added.reshape(-1))
    return out.astype(x.dtype, copy=False).transpose(inverse_axes(front))


def gather_add_vjp(
    g: Node, out: Node, x: Node, updates: Node, *indices: Node, axes: Axes
) -> Cotangents:
    """The operand receives all, an update what arrives where it was added."""
    return (g, gather(g, *indices, axes=axes), *[None] * len(indices))


def gather_add_jvp(
    tangents: Tangents, out: Node, x: Node, updates: Node, *indices: Node, axes: Axes
) -> Node:
    """The updates' tangent added to the operand's at the same positions."""
    t, t_updates = tangents[:2]
    if t is None:
        t = zeros(x.dtype, x.shape)
    if t_updates is None:
        return t
    return gather_add(t, t_updates, *indices, axes=axes)


def gather_add_batch(
    size: Size, inputs: Sequence[Node], batched: Sequence[bool], *, axes: Axes
) -> Node:
    """Positions that all rows share address rows whole, others one row each."""
    x, updates = with_rows(size, inputs[:2], batched[:2])
    indices, rank = lift_indices(inputs[2:], batched[2:])
    shifted = tuple(at + 1 for at in axes)
    if any(batched[2:]):
        row = lift(iota(size=size), rank)
        return gather_add(x, updates, row, *indices, axes=(0, *shifted))
    behind = axes_from_front(rank, 1, updates.ndim)
    return gather_add(x, permute_dims(updates, axes=behind), *indices, axes=shifted)


gather_add = record(
    "gather_add",
    type_rule=gather_add_type,
    eval=gather_add_eval,
    can_fail=True,
    vjp=gather_add_vjp,
    jvp=gather_add_jvp,
    batch=gather_add_batch,
    conj_linear=True,
    linear=slice(0, 2),
    scatters=2,
    on_arrays=always,
)
