"""Argmax and argmin: the first extremum, as loops over whole arrays.

Start reading at `Extremum`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tapejit.base.types import DType
from tapejit.ir.node import OPS, Node
from tapejit.loops.index import strides_of
from tapejit.loops.steps import Step
from tapejit.targets.cpu.arrays.loops import (
    ArrayOperand,
    each_of_task,
    each_vector_of_task,
    merged,
    moved,
    read,
    tasks_for,
    write,
)
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import I32, INT64, Addressing, number, steps
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cpu.target import CPU

BOOL, INT32 = np.dtype(bool), np.dtype(np.int32)


# The first extremum


def tasks_of_argmax(step: Step) -> int:
    """How many tasks share the lines."""
    size = math.prod(map(int, step.performed.inputs[0].shape))
    return tasks_for(math.prod(map(int, step.performed.shape)), size)


def tasks_of_argmin(step: Step) -> int:
    return tasks_of_argmax(step)


def emit_argmax(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Where the first largest element is, or the first NaN."""
    Extremum(at, "greater", operands[0].dtype).emit(node, operands[0], out)


def emit_argmin(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Where the first smallest element is, or the first NaN."""
    Extremum(at, "less", operands[0].dtype).emit(node, operands[0], out)


class Extremum:
    """The search for the first element that nothing goes before.

    Each lane keeps the best element it has seen and its index. Lanes are neighbours
    along another axis if those lie side by side; if not, along the axis searched, and
    are compared with each other at the end.
    """

    def __init__(self, at: Addressing, order: str, dtype: DType) -> None:
        self.at = at
        self.order = order
        self.dtype = dtype
        self.index: DType = INT32  # what lanes count in

    def emit(self, node: Node, x: ArrayOperand, out: Value) -> None:
        at, axis = self.at, node.attrs["axis"]
        shape = [int(size) for size in node.inputs[0].shape]
        length, stride = shape[axis], x.strides[axis]
        if length > np.iinfo(INT32).max:
            self.index = INT64
        rest = [*shape[:axis], *shape[axis + 1 :]]
        own = strides_of(rest)
        sizes, strides = merged(rest, [*x.strides[:axis], *x.strides[axis + 1 :]], own)
        result = ArrayOperand(out, INT64, own)
        is_across = bool(sizes) and strides[0][-1] == 1 and stride != 1
        if not is_across:

            def single(places: list[Value]) -> None:
                index = self.along(x, places[0], stride, length)
                write(at, result, places[1], 1, self.whole(index))

            each_of_task(at, sizes, strides, single)
            return

        def some(places: list[Value], last: list[int], width: int) -> None:
            _, found = self.chain(x, places[0], 1, stride, length, width)
            write(at, result, places[1], 1, self.whole(found))

        each_vector_of_task(at, sizes, strides, CPU.tuning.search_lanes, some)

    def whole(self, index: Value) -> Value:
        return self.at.converted(index, self.index, INT64)

    def chain(
        self,
        x: ArrayOperand,
        place: Value,
        apart: int,
        stride: int,
        length: int,
        width: int,
    ) -> tuple[Value, Value]:
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

        def compare(index: Value) -> None:
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

    def along(self, x: ArrayOperand, place: Value, stride: int, length: int) -> Value:
        """The index of the first extremum of a row."""
        at, width = self.at, CPU.tuning.search_lanes
        while width > 4 and length < 4 * width:
            width //= 2
        if length < 2 * width:
            return self.chain(x, place, stride, stride, length, 1)[1]
        count, left = divmod(length, width)
        best, index = self.chain(x, place, stride, stride * width, count, width)
        lane = at.converted(steps(width), INT64, self.index)
        index = at.builder.mul(index, lanes.constant(self.index, width, width))
        index = at.builder.add(index, lane)
        if left:  # some elements once more, which changes nothing
            first = length - width
            here = at.builder.add(place, number(first * stride))
            start = lanes.constant(self.index, first, width)
            last = read(at, x, here, stride, width), at.builder.add(start, lane)
            best, index = self.earlier((best, index), last)
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
        return index

    def lanes_from(self, value: Value, first: int, count: int) -> Value:
        """Some neighbouring lanes."""
        kind = ir.VectorType(I32, count)
        return self.at.builder.shuffle_vector(
            value,
            ir.Literal(value.type, ir.Undefined),
            ir.Literal(kind, list(range(first, first + count))),
        )

    def earlier(
        self, left: tuple[Value, Value], right: tuple[Value, Value]
    ) -> tuple[Value, Value]:
        """Of two elements with their indices the better; of equal ones the first."""
        builder = self.at.builder
        (x, i), (y, j) = left, right
        is_better = self.goes_before(y, x)
        is_worse = self.goes_before(x, y)
        is_first = builder.icmp_signed("<", j, i)
        takes = builder.or_(is_better, builder.and_(builder.not_(is_worse), is_first))
        return builder.select(takes, y, x), builder.select(takes, j, i)

    def goes_before(self, x: Value, y: Value) -> Value:
        """Whether an element is better than another; NaN is better than numbers."""
        builder, width = self.at.builder, x.type.count
        dtypes = [self.dtype, self.dtype]
        found = lanes.apply(builder, OPS[self.order], {}, dtypes, BOOL, [x, y], width)
        if self.dtype.kind in "biu":
            return found
        x_is_nan = builder.fcmp_unordered("uno", x, x)
        y_is_number = builder.fcmp_ordered("ord", y, y)
        return builder.or_(found, builder.and_(x_is_nan, y_is_number))
