"""Transposed copies: loops that copy what lies across the vector axis, in registers.

Each vector of such a copy would take a load or a store for each lane. But neighbours
along the loop are neighbours in memory. So rows are loaded as vectors, transposed, and
kept as the vectors of the next iterations; or the vectors of some iterations are
transposed, and stored as rows.

Start reading at `emit_transposed_copy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tapejit.loops.index import Affine, Axis
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Buffer, Copy, Load, Step
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cpu.simd.transpose import shuffled, transposed
from tapejit.targets.cpu.target import CPU

if TYPE_CHECKING:
    from tapejit.targets.cpu.nest.kernel_emitter import KernelEmitter


class CrossingCopy(NamedTuple):
    """A Step that copies rows which lie across the vector axis, from or to `base`."""

    step: Step
    base: Buffer | Step
    place: Affine  # of an element in it
    distance: int  # between two rows
    is_load: bool


def crossing_copy(emitter: KernelEmitter, loop: Loop) -> CrossingCopy | None:
    """What a loop copies, if it copies rows that lie across the vector axis."""
    at, step = emitter.at, loop.body[0]
    is_alone = len(loop.body) == 1 and not emitter.copies and loop.axis is not at.vector
    if not is_alone or not isinstance(step, Step) or not isinstance(step.what, Copy):
        return None
    (source,) = step.inputs
    if isinstance(source.what, Load) and not source.ranges:
        place = place_of_load(emitter, source.what)
        distance = across(place, loop.axis, at.vector)
        if 1 < distance <= CPU.tuning.interleaved_numbers:
            return None  # rows are so short that all of one are loaded at once
        if distance and place is not None:
            return CrossingCopy(step, source.what.source, place, distance, True)
    memory = emitter.plan.storage.get(step)
    if memory is None or memory.lanes or memory.tiled or emitter.is_partial(memory):
        return None
    place = Affine(tuple(memory.strides.items()))
    distance = across(place, loop.axis, at.vector)
    return CrossingCopy(step, step, place, distance, False) if distance else None


def place_of_load(emitter: KernelEmitter, what: Load) -> Affine | None:
    """Where a load reads, if that is a sum of indices, in memory of single numbers."""
    if not isinstance(what.source, Buffer):
        memory = emitter.plan.storage[what.source]
        if memory.lanes or memory.tiled:
            return None
    place = Affine()
    for position, stride in emitter.positions_of(what):
        if isinstance(position, Step):
            return None
        place += position * stride
    return place


def across(place: Affine | None, along: Axis, vector: Axis | None) -> int:
    """The distance of rows along an axis that lie across another; 0 if they do not."""
    factors: dict[Axis, int] = {}
    for axis, factor in () if place is None else place.terms:
        factors[axis.root] = factors.get(axis.root, 0) + factor
    distance = factors.get(vector, 0) if vector is not None else 0
    return distance if distance != 1 and factors.get(along) == 1 else 0


def emit_transposed_copy(
    emitter: KernelEmitter, loop: Loop, copied: CrossingCopy
) -> None:
    """A loop that copies, as many rows and columns at once as there are lanes.

    The last square ends with the axis; a short axis has less than one.
    """
    at, size, axis = emitter.at, loop.axis.extent, loop.axis
    depth = min(at.width, size)
    copy_square = load_square if copied.is_load else store_square

    def square(column: Value) -> None:
        before, emitter.values = emitter.values, dict(emitter.values)
        copy_square(emitter, axis, copied, column, depth)
        emitter.values = before

    whole = size // depth * depth
    if whole > depth:
        at.for_range(number(0), number(whole), depth, square)
    else:
        square(number(0))
    if whole < size:
        square(number(size - depth))


def load_square(
    emitter: KernelEmitter, axis: Axis, copied: CrossingCopy, column: Value, depth: int
) -> None:
    """Rows of memory, kept as vectors of so many iterations."""
    at, dtype = emitter.at, copied.step.dtype
    at.indices[axis] = column
    pointer, first = emitter.origin_of(copied.base), at.scalar(copied.place)
    rows = []
    for lane in range(at.width):
        here = at.builder.add(first, number(lane * copied.distance))
        row = at.load_at(pointer, here, dtype, depth)
        rows.append(with_lanes(emitter, row, at.width))
    columns = transposed(at.builder, rows, dtype.itemsize)
    for iteration, value in enumerate(columns[:depth]):
        at.indices[axis] = at.builder.add(column, number(iteration))
        emitter.keep(copied.step, value)


def store_square(
    emitter: KernelEmitter, axis: Axis, copied: CrossingCopy, column: Value, depth: int
) -> None:
    """Vectors of so many iterations, stored as rows of memory."""
    at, step = emitter.at, copied.step
    before, columns = emitter.values, []
    for iteration in range(depth):
        at.indices[axis] = at.builder.add(column, number(iteration))
        emitter.values = dict(before)
        columns.append(at.widened(emitter.step(step), at.width))
    columns += columns[-1:] * (at.width - depth)
    at.indices[axis] = column
    pointer, first = emitter.origin_of(copied.base), at.scalar(copied.place)
    rows = transposed(at.builder, columns, step.dtype.itemsize)
    for lane, row in enumerate(rows):
        here = at.builder.add(first, number(lane * copied.distance))
        at.store_at(pointer, here, with_lanes(emitter, row, depth), step.dtype)


def with_lanes(emitter: KernelEmitter, row: Value, count: int) -> Value:
    """The first lanes of a vector, again and again if it has fewer."""
    has = row.type.count
    if has == count:
        return row
    return shuffled(emitter.at.builder, row, row, [x % has for x in range(count)])
