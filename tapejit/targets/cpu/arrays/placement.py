"""Putting parts into an array, and adding them there, as loops over whole arrays.

`concat` copies its operands to their places. `place_add` sees what its parts cover when
code is made: those that have no element in common are copied as well; where they meet,
each is added to what is there, one after the other. Parts of one shape, the steps of a
loop over rows for one, share the code: their addresses are in a table. If nobody waits
for another, tasks share the table.

Start reading at `emit_place_add`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from tapejit.base.types import DType, is_float
from tapejit.ir.node import Node
from tapejit.loops.fuse.row_updates import is_zeros
from tapejit.loops.index import strides_of
from tapejit.loops.steps import Step
from tapejit.ops.placing import met, ranges_of
from tapejit.targets.cpu.arrays.loops import (
    ArrayOperand,
    combined,
    each_part,
    emit_copy,
    emit_fill,
    emit_map,
    merged,
    part_of,
    read,
    share_of,
    strides_of_operands,
    widest,
    write,
)
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import I64, POINTER, Addressing, number
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cpu.target import CPU


def emit_place(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Zeros, and the operand at every so many places of each axis."""
    (x,) = operands
    result = ArrayOperand(out, node.dtype, strides_of(node.shape)).as_bits()
    emit_fill(at, math.prod(map(int, node.shape)), result, 0)
    target = region(at, result, ranges_of(node.inputs[0].shape, *placing(node)))
    emit_copy(at, node.inputs[0].shape, x.as_bits(), target)


def placing(node: Node) -> tuple[Any, Any]:
    return node.attrs["starts"], node.attrs["steps"]


def region(at: Addressing, x: ArrayOperand, ranges: Sequence[range]) -> ArrayOperand:
    """The part of an array that has these places along its axes."""
    pairs = list(zip(ranges, x.strides, strict=True))
    start = sum(places.start * stride for places, stride in pairs)
    strides = tuple(places.step * stride for places, stride in pairs)
    return part_of(at, x, start)._replace(strides=strides)


class Placement(NamedTuple):
    """An update: which operand it is, how it lies in memory, and where it goes."""

    number: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    ranges: list[range]  # its places along each axis

    @property
    def kind(self) -> Any:
        """What parts have in common that share code."""
        return self.shape, self.strides, [x.step for x in self.ranges]


def parts_to_add(node: Node, strides: Sequence[Sequence[int]]) -> list[Placement]:
    """The updates of `place_add`."""
    places = zip(node.inputs[1:], *placing(node), strict=True)
    return [
        Placement(
            at,
            tuple(strides[at]),
            tuple(map(int, given.shape)),
            ranges_of(given.shape, start, step),
        )
        for at, (given, start, step) in enumerate(places, 1)
    ]


def are_apart(node: Node, parts: Sequence[Placement]) -> tuple[bool, bool]:
    """Whether several parts go to zeros and no element is of two; whether all are."""
    least, most = coverage(tuple(map(int, node.shape)), parts)
    is_apart = is_zeros(node.inputs[0]) and most == 1 and len(parts) > 1
    return is_apart, is_apart and least > 0


def tasks_of_place_add(step: Step) -> int:
    """How many tasks share the parts, if they have nothing in common."""
    parts = parts_to_add(step.performed, strides_of_operands(step))
    return tasks_of(step.performed, parts) if are_apart(step.performed, parts)[1] else 1


def emit_place_add(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """The first operand, plus each update at its place."""
    x, *_ = operands
    shape = tuple(map(int, node.shape))
    result = ArrayOperand(out, node.dtype, strides_of(shape))
    parts = parts_to_add(node, [x.strides for x in operands])
    is_apart, is_whole = are_apart(node, parts)
    if is_apart:
        if not is_whole:
            emit_fill(at, math.prod(shape), result.as_bits(), 0)
        emit_parts(at, parts, operands, result, plus_zero)
        return
    if is_zeros(node.inputs[0]):
        emit_fill(at, math.prod(shape), result.as_bits(), 0)
    else:
        emit_map(
            at,
            shape,
            [x],
            result,
            lambda values, width: plus_zero(at, values[0], None, node.dtype),
        )
    common = met([part.ranges for part in parts])
    if is_float(node.dtype) and all(common):
        sizes = tuple(map(len, common))
        own = region(at, x, common).as_bits()
        emit_copy(at, sizes, own, region(at, result, common).as_bits())
    emit_parts(at, parts, operands, result, plus_before)


def parts_to_join(node: Node, strides: Sequence[Sequence[int]]) -> list[Placement]:
    """The operands of `concat`."""
    axis, parts, start = node.attrs["axis"], [], 0
    for at, (given, steps) in enumerate(zip(node.inputs, strides, strict=True)):
        own = tuple(map(int, given.shape))
        ranges = list(map(range, own))
        ranges[axis] = range(start, start + own[axis])
        parts.append(Placement(at, tuple(steps), own, ranges))
        start += own[axis]
    return parts


def tasks_of_concat(step: Step) -> int:
    """How many tasks share the operands."""
    node = step.performed
    return tasks_of(node, parts_to_join(node, strides_of_operands(step)))


def emit_concat(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Each operand to its place."""
    result = ArrayOperand(out, node.dtype, strides_of(node.shape)).as_bits()
    parts = parts_to_join(node, [x.strides for x in operands])
    emit_parts(at, parts, [x.as_bits() for x in operands], result, as_it_is)


# What is written at a place, of a part and of what is there


def as_it_is(at: Addressing, x: Value, before: Before, dtype: DType) -> Value:
    return x


def plus_zero(at: Addressing, x: Value, _: Before | None, dtype: DType) -> Value:
    """What is there when zeros are added: -0.0 + 0.0 is 0.0."""
    zero = lanes.constant(dtype, 0, x.type.count)
    return combined(at, "add", x, zero, dtype)


def plus_before(at: Addressing, x: Value, before: Before, dtype: DType) -> Value:
    return combined(at, "add", before(), x, dtype)


Before = Callable[[], Value]
Written = Callable[[Addressing, Value, Before, DType], Value]


def tasks_of(node: Node, parts: Sequence[Placement]) -> int:
    """Tasks for parts that have nothing in common, if they share their code."""
    if any(part.kind != parts[0].kind for part in parts):
        return 1
    wanted = math.prod(map(int, node.shape)) // CPU.tuning.placement_task_elements
    most = min(CPU.tuning.placement_most_tasks, len(parts))
    return max(1, min(most, wanted))


def coverage(shape: Sequence[int], parts: Sequence[Placement]) -> tuple[int, int]:
    """Of how many parts an element is one, at least and at most."""
    cut = [
        axis
        for axis, size in enumerate(shape)
        if any(part.ranges[axis] != range(size) for part in parts)
    ]
    sizes = [shape[axis] for axis in cut]
    if math.prod(sizes) > CPU.tuning.placement_counted_elements:
        return 0, len(parts)
    counts = np.zeros(sizes, np.int32)
    for part in parts:
        ranges = [part.ranges[axis] for axis in cut]
        counts[tuple(np.s_[r.start : r.stop : r.step] for r in ranges)] += 1
    return int(counts.min()), int(counts.max())


def emit_parts(
    at: Addressing,
    parts: Sequence[Placement],
    operands: Sequence[ArrayOperand],
    out: ArrayOperand,
    written: Written,
) -> None:
    """Each part to its place."""
    for _, alike in groupby(parts, key=lambda part: part.kind):
        emit_alike(at, list(alike), operands, out, written)


def emit_alike(
    at: Addressing,
    parts: Sequence[Placement],
    operands: Sequence[ArrayOperand],
    out: ArrayOperand,
    written: Written,
) -> None:
    """The same for parts that differ in where they come from and where they go."""
    first, builder = parts[0], at.builder
    own = operands[first.number]
    target = out._replace(
        strides=tuple(
            places.step * stride
            for places, stride in zip(first.ranges, out.strides, strict=True)
        )
    )
    starts = [
        sum(
            r.start * stride for r, stride in zip(part.ranges, out.strides, strict=True)
        )
        for part in parts
    ]
    if len(parts) == 1:
        emit_part(at, first.shape, own, target, number(starts[0]), written)
        return
    with at.at_entry():
        pointers, places = (
            at.builder.alloca(ir.ArrayType(kind, len(parts))) for kind in (POINTER, I64)
        )
    pointers.type = places.type = POINTER
    for index, (part, start) in enumerate(zip(parts, starts, strict=True)):
        where = builder.gep(pointers, [number(index)], source_etype=POINTER)
        builder.store(operands[part.number].pointer, where)
        where = builder.gep(places, [number(index)], source_etype=I64)
        builder.store(number(start), where)

    def single(index: Value) -> None:
        where = at.builder.gep(pointers, [index], source_etype=POINTER)
        update = own._replace(pointer=at.builder.load(where, typ=POINTER))
        where = at.builder.gep(places, [index], source_etype=I64)
        start = at.builder.load(where, typ=I64)
        emit_part(at, first.shape, update, target, start, written)

    low, high = share_of(at, len(parts))
    at.long_range(low, high, 1, single, at.kernel.work / len(parts), len(parts))


def emit_part(
    at: Addressing,
    shape: Sequence[int],
    x: ArrayOperand,
    out: ArrayOperand,
    start: Value,
    written: Written,
) -> None:
    """An update at a place."""
    sizes, strides = merged(shape, x.strides, out.strides)
    from_stride, to_stride = (own[-1] for own in strides) if sizes else (1, 1)
    width = widest(out.dtype) if to_stride == 1 else 1

    def some(places: list[Value], width: int) -> None:
        here, there = places
        value = read(at, x, here, from_stride, width)
        before = partial(read, at, out, there, to_stride, width)
        write(at, out, there, to_stride, written(at, value, before, out.dtype))

    each_part(at, sizes, strides, width, some, [number(0), start])
