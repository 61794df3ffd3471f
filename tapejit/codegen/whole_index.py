"""Adding and putting at positions, and finding them, as loops over whole arrays.

`gather_add` copies its operand and adds the updates one after another, in the order of
the indices, as the record does: repeated positions have the same bits. Half floats are
added up in a table of floats and rounded once. A position is checked before anything
is added there; one that is outside leaves a mark and is passed over.

Start reading at `emit_gather_add`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tapejit.codegen import ir, lanes
from tapejit.codegen.cursor import I32, INT64, Cursor, number, steps
from tapejit.codegen.whole_array import (
    Whole,
    by_vectors,
    combined,
    each,
    emit_copy,
    merged,
    moved,
    read,
    widest,
    write,
)
from tapejit.ir.node import OPS, Node
from tapejit.passes.fusion.index import strides_of
from tapejit.passes.fusion.kernels import accumulator
from tapejit.types import DType

BOOL, INT32 = np.dtype(bool), np.dtype(np.int32)
LANES: Final = 32  # of a search: several vectors, which do not wait for each other


def emit_gather_add(
    at: Cursor, node: Node, operands: Sequence[Whole], out: Any
) -> None:
    """A copy of the first operand, with updates added where the indices say."""
    x, updates, *indices = operands
    axes, shape = node.attrs["axes"], node.shape
    own = strides_of(shape)
    result = Whole(out, node.dtype, own)
    wide = accumulator(node.dtype)
    table = result
    if wide != node.dtype:
        memory = at.private_memory(math.prod(map(int, shape)), wide)
        table = Whole(memory, wide, own)
    emit_copy(at, shape, x, table)
    others = [axis for axis in range(len(shape)) if axis not in axes]
    rank = node.inputs[1].ndim - len(others)
    front, rest = node.inputs[1].shape[:rank], node.inputs[1].shape[rank:]
    index_strides = [(0,) * (rank - len(i.strides)) + i.strides for i in indices]
    sizes, strides = merged(front, updates.strides[:rank], *index_strides)

    def row(places: list[Any]) -> None:
        position, is_inside = number(0), ir.Constant(ir.IntType(1), 1)
        for axis, index, place in zip(axes, indices, places[1:], strict=True):
            here, is_good = position_along(at, index, place, int(shape[axis]))
            position = moved(at, position, here, own[axis])
            is_inside = at.builder.and_(is_inside, is_good)
        with at.builder.if_else(is_inside) as (then, otherwise):
            with then:
                add_row(at, rest, updates, places[0], rank, table, position, others)
            with otherwise:
                at.fail()

    each(at, sizes, strides, row)
    if wide != node.dtype:
        emit_copy(at, shape, table, result)


def position_along(at: Cursor, index: Whole, place: Any, size: int) -> tuple[Any, Any]:
    """An index, from the end if it is negative, and whether it is one of an axis."""
    given = at.load_at(index.pointer, place, index.dtype, 1)
    wide = at.lane_number(at.converted(given, index.dtype, INT64), 0)
    if index.dtype.kind != "u":
        is_negative = at.builder.icmp_signed("<", wide, number(0))
        from_end = at.builder.add(wide, number(size))
        wide = at.builder.select(is_negative, from_end, wide)
    # Taken without a sign, what is still negative is too large; so are large uint64.
    return wide, at.builder.icmp_unsigned("<", wide, number(size))


def add_row(
    at: Cursor,
    shape: Sequence[Any],
    updates: Whole,
    place: Any,
    rank: int,
    table: Whole,
    position: Any,
    others: Sequence[int],
) -> None:
    """Add what belongs to one position, along the axes that are not indexed."""
    into = [table.strides[axis] for axis in others]
    sizes, strides = merged(shape, updates.strides[rank:], into)
    if not sizes:
        sizes, strides = [1], [[1], [1]]
    from_stride, to_stride = (own[-1] for own in strides)
    width = widest(table.dtype) if to_stride == 1 else 1

    def inner(places: list[Any]) -> None:
        source, target = places

        def part(index: Any, lanes: int) -> None:
            here = moved(at, source, index, from_stride)
            there = moved(at, target, index, to_stride)
            added = at.converted(
                read(at, updates, here, from_stride, lanes), updates.dtype, table.dtype
            )
            before = read(at, table, there, to_stride, lanes)
            total = combined(at, "add", before, added, table.dtype)
            write(at, table, there, to_stride, total)

        by_vectors(at, sizes[-1], width, part)

    each(at, sizes[:-1], [own[:-1] for own in strides], inner, [place, position])


# The first extremum


def emit_argmax(at: Cursor, node: Node, operands: Sequence[Whole], out: Any) -> None:
    """Where the first largest element is, or the first NaN."""
    Extremum(at, "greater", operands[0].dtype).emit(node, operands[0], out)


def emit_argmin(at: Cursor, node: Node, operands: Sequence[Whole], out: Any) -> None:
    """Where the first smallest element is, or the first NaN."""
    Extremum(at, "less", operands[0].dtype).emit(node, operands[0], out)


class Extremum:
    """The search for the first element that nothing goes before.

    Each lane keeps the best element it has seen and its index. Lanes are neighbours
    along another axis if those lie side by side; if not, along the axis searched, and
    are compared with each other at the end.
    """

    def __init__(self, at: Cursor, order: str, dtype: DType) -> None:
        self.at = at
        self.order = order
        self.dtype = dtype
        self.index: DType = INT32  # what lanes count in

    def emit(self, node: Node, x: Whole, out: Any) -> None:
        at, axis = self.at, node.attrs["axis"]
        shape = [int(size) for size in node.inputs[0].shape]
        length, stride = shape[axis], x.strides[axis]
        if length > np.iinfo(INT32).max:
            self.index = INT64
        rest = [*shape[:axis], *shape[axis + 1 :]]
        own = strides_of(rest)
        sizes, strides = merged(rest, [*x.strides[:axis], *x.strides[axis + 1 :]], own)
        result = Whole(out, INT64, own)
        is_across = bool(sizes) and strides[0][-1] == 1 and stride != 1
        if not is_across:

            def single(places: list[Any]) -> None:
                index = self.along(x, places[0], stride, length)
                write(at, result, places[1], 1, self.whole(index))

            each(at, sizes, strides, single)
            return

        def row(places: list[Any]) -> None:
            def part(index: Any, width: int) -> None:
                place, to = (at.builder.add(p, index) for p in places)
                _, found = self.chain(x, place, 1, stride, length, width)
                write(at, result, to, 1, self.whole(found))

            by_vectors(at, sizes[-1], LANES, part)

        each(at, sizes[:-1], [own[:-1] for own in strides], row)

    def whole(self, index: Any) -> Any:
        return self.at.converted(index, self.index, INT64)

    def chain(
        self, x: Whole, place: Any, apart: int, stride: int, length: int, width: int
    ) -> tuple[Any, Any]:
        """The best of `length` vectors, `stride` apart, and their numbers."""
        at = self.at
        first = read(at, x, place, apart, width)
        zero = lanes.constant(self.index, 0, width)
        if length == 1:
            return first, zero
        with at.at_entry():
            best = at.builder.alloca(first.type)
            where = at.builder.alloca(zero.type)
        at.builder.store(first, best)
        at.builder.store(zero, where)

        def compare(index: Any) -> None:
            here = read(at, x, moved(at, place, index, stride), apart, width)
            before = at.builder.load(best, typ=first.type)
            is_better = self.goes_before(here, before)
            at.builder.store(at.builder.select(is_better, here, before), best)
            known = at.builder.load(where, typ=zero.type)
            count = at.converted(at.spread(index, 1), INT64, self.index)
            found = at.builder.select(is_better, at.widened(count, width), known)
            at.builder.store(found, where)

        at.for_range(number(1), number(length), 1, compare)
        return (
            at.builder.load(best, typ=first.type),
            at.builder.load(where, typ=zero.type),
        )

    def along(self, x: Whole, place: Any, stride: int, length: int) -> Any:
        """The index of the first extremum of a row."""
        at, width = self.at, LANES
        while width > 4 and length < 4 * width:
            width //= 2
        if length < 2 * width:
            return self.chain(x, place, stride, stride, length, 1)[1]
        count, left = divmod(length, width)
        best, index = self.chain(x, place, stride, stride * width, count, width)
        index = at.builder.mul(index, lanes.constant(self.index, width, width))
        index = at.builder.add(index, at.converted(steps(width), INT64, self.index))
        while best.type.count > 1:
            half = best.type.count // 2
            pairs = [
                (
                    self.lanes_from(best, first, half),
                    self.lanes_from(index, first, half),
                )
                for first in (0, half)
            ]
            best, index = self.earlier(*pairs)
        for position in range(length - left, length):
            here = at.builder.add(place, number(position * stride))
            last = (
                read(at, x, here, stride, 1),
                lanes.constant(self.index, position, 1),
            )
            best, index = self.earlier((best, index), last)
        return index

    def lanes_from(self, value: Any, first: int, count: int) -> Any:
        """Some neighbouring lanes."""
        kind = ir.VectorType(I32, count)
        return self.at.builder.shuffle_vector(
            value,
            ir.Constant(value.type, ir.Undefined),
            ir.Constant(kind, list(range(first, first + count))),
        )

    def earlier(self, left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
        """Of two elements with their indices the better; of equal ones the first."""
        builder = self.at.builder
        (x, i), (y, j) = left, right
        is_better = self.goes_before(y, x)
        is_worse = self.goes_before(x, y)
        is_first = builder.icmp_signed("<", j, i)
        takes = builder.or_(is_better, builder.and_(builder.not_(is_worse), is_first))
        return builder.select(takes, y, x), builder.select(takes, j, i)

    def goes_before(self, x: Any, y: Any) -> Any:
        """Whether an element is better than another; NaN is better than numbers."""
        builder, width = self.at.builder, x.type.count
        dtypes = [self.dtype, self.dtype]
        found = lanes.apply(builder, OPS[self.order], {}, dtypes, BOOL, [x, y], width)
        if self.dtype.kind in "biu":
            return found
        x_is_nan = builder.fcmp_unordered("uno", x, x)
        y_is_number = builder.fcmp_ordered("ord", y, y)
        return builder.or_(found, builder.and_(x_is_nan, y_is_number))
