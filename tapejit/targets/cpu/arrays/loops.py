"""Loops over whole arrays: what the emitters of `table.py` are made of.

An `ArrayOperand` is an array as it lies in memory. Loops run over positions of several
arrays of one shape at once; `merged` first makes one axis of neighbours that all arrays
go through evenly, so that what is inside gets long rows. The last axis is done several
elements at a time: `by_vectors` visits each of them once, with shorter vectors at the
end, and `by_repeated_vectors` has one body only and may visit the last ones again.

Start reading at `ArrayOperand`, then `emit_map`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tapejit.base.types import DType
from tapejit.ir.node import OPS
from tapejit.loops.steps import Step
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import I8, Addressing, number, steps
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cpu.target import CPU

Sizes = Sequence[int]
Strides = Sequence[int]


class ArrayOperand(NamedTuple):
    """An array in memory: its first element, and strides in elements."""

    pointer: Value
    dtype: DType
    strides: tuple[int, ...]

    def as_bits(self) -> ArrayOperand:
        """The same elements as integers, which are copied as they are."""
        return self._replace(dtype=np.dtype(f"uint{8 * self.dtype.itemsize}"))


def widest(*dtypes: DType) -> int:
    """How many lanes a vector has that holds elements of all these dtypes.

    >>> widest(np.dtype("float64")), widest(np.dtype("int8"), np.dtype("float32"))
    (8, 16)
    """
    return CPU.numerics.vector_bytes // max(4, *[dtype.itemsize for dtype in dtypes])


def merged(sizes: Sizes, *strides: Strides) -> tuple[list[int], list[list[int]]]:
    """Fewer and longer axes: without those of size 1, and neighbours made one.

    >>> merged((2, 1, 3, 4), (12, 0, 4, 1), (4, 0, 0, 1))
    ([2, 3, 4], [[12, 4, 1], [4, 0, 1]])
    >>> merged((2, 1, 3, 4), (12, 0, 4, 1), (24, 0, 8, 2))
    ([24], [[1], [2]])
    """
    kept: list[int] = []
    found: list[list[int]] = [[] for _ in strides]
    for at, size in enumerate(sizes):
        if size == 1:
            continue
        here = [own[at] for own in strides]
        if kept and all(
            before[-1] == stride * size
            for before, stride in zip(found, here, strict=True)
        ):
            kept[-1] *= size
            for before, stride in zip(found, here, strict=True):
                before[-1] = stride
            continue
        kept.append(size)
        for before, stride in zip(found, here, strict=True):
            before.append(stride)
    return kept, found


def operands_of(at: Addressing) -> list[ArrayOperand]:
    """The operands of the operation that a kernel is, as they lie in memory."""
    (step,) = at.kernel.steps()
    operands = []
    for (base, offset, _), own in zip(
        step.views, strides_of_operands(step), strict=True
    ):
        nbytes = number(offset * base.dtype.itemsize)
        place = at.builder.gep(at.start_of(base), [nbytes], source_etype=I8)
        operands.append(ArrayOperand(place, base.dtype, own))
    return operands


def strides_of_operands(step: Step) -> list[tuple[int, ...]]:
    """How the operands of an operation lie in memory.

    An axis of size 1 is repeated where those of other operands are longer.
    """
    each = zip(step.performed.inputs, step.views, strict=True)
    return [
        tuple(
            0 if size == 1 else stride
            for size, stride in zip(node.shape, view.strides, strict=True)
        )
        for node, view in each
    ]


# Positions


def moved(at: Addressing, place: Value, index: Value, stride: int) -> Value:
    """A place, `index` strides further."""
    return at.moved(place, index, stride)


def each(
    at: Addressing,
    sizes: Sizes,
    strides: Sequence[Strides],
    body: Callable[[list[Value]], None],
    places: Sequence[Value] | None = None,
) -> None:
    """Loops over all positions; the body gets the place of each in every array."""
    start = [number(0)] * len(strides) if places is None else list(places)
    at.each_place(sizes, strides, body, start)


def each_part(
    at: Addressing,
    sizes: Sizes,
    strides: Sequence[Strides],
    width: int,
    body: Callable[[list[Value], int], None],
    places: Sequence[Value] | None = None,
    repeats: bool = False,
) -> None:
    """The same in vectors along the last axis: `body(places, lanes)`.

    If it `repeats`, it has one body only, and visits some elements again.
    """
    if not sizes:
        sizes, strides = [1], [[1] for _ in strides]
    last = [own[-1] for own in strides]
    if at.shares_places:
        each(at, sizes, strides, lambda here: body(here, 1), places)
        return

    def row(starts: list[Value]) -> None:
        def part(index: Value, lanes: int) -> None:
            here = [
                moved(at, place, index, stride)
                for place, stride in zip(starts, last, strict=True)
            ]
            body(here, lanes)

        (by_repeated_vectors if repeats else by_vectors)(at, sizes[-1], width, part)

    each(at, sizes[:-1], [own[:-1] for own in strides], row, places)


def by_vectors(
    at: Addressing, size: int, width: int, body: Callable[[Value, int], None]
) -> None:
    """`body(position, lanes)` for each part of a row; no element is visited twice."""
    done, work = size - size % width, CPU.tuning.array_element_instructions
    if done:
        at.long_range(
            number(0), number(done), width, lambda i: body(i, width), work, done
        )
    while done < size:
        width //= 2
        if size - done >= width:
            body(number(done), width)
            done += width


def by_repeated_vectors(
    at: Addressing, size: int, width: int, body: Callable[[Value, int], None]
) -> None:
    """The same with one width, at most `width`; the last elements may come again."""
    width = min(width, 1 << (size.bit_length() - 1))
    last, work = number(size - width), CPU.tuning.array_element_instructions

    def clamped(position: Value) -> None:
        is_inside = at.builder.icmp_signed("<", position, last)
        body(at.builder.select(is_inside, position, last), width)

    if size % width:
        at.long_range(number(0), number(size), width, clamped, work, size)
    else:
        at.long_range(
            number(0), number(size), width, lambda i: body(i, width), work, size
        )


# Tasks


def tasks_for(most: int, elements: int) -> int:
    """How many tasks share work that can be cut in so many parts."""
    wanted = elements // CPU.tuning.line_task_elements
    return max(1, min(CPU.tuning.line_most_tasks, most, wanted))


def share_of(at: Addressing, count: int) -> tuple[Value, Value]:
    """What of `count` things this task does: from one number up to another."""
    tasks = at.kernel.tasks
    if tasks == 1:
        return number(0), number(count)
    low = at.builder.mul(at.task, number(count))
    high = at.builder.add(low, number(count))
    return at.builder.sdiv(low, number(tasks)), at.builder.sdiv(high, number(tasks))


def each_of_task(
    at: Addressing,
    sizes: Sizes,
    strides: Sequence[Strides],
    body: Callable[[list[Value]], None],
) -> None:
    """The positions that this task has, of all that `each` goes through."""
    if at.shares_places or at.kernel.tasks == 1:
        each(at, sizes, strides, body)
        return
    count = math.prod(sizes)

    def single(index: Value) -> None:
        places, left = [number(0)] * len(strides), index
        for axis in reversed(range(len(sizes))):
            here, size = left, number(sizes[axis])
            if axis:
                here, left = at.builder.urem(left, size), at.builder.udiv(left, size)
            places = [
                moved(at, place, here, own[axis])
                for place, own in zip(places, strides, strict=True)
            ]
        body(places)

    low, high = share_of(at, count)
    with at.builder.if_then(at.builder.icmp_signed("<", low, high)):
        at.long_range(low, high, 1, single, at.kernel.work / count, count)


def each_vector_of_task(
    at: Addressing,
    sizes: Sizes,
    strides: Sequence[Strides],
    width: int,
    body: Callable[[list[Value], list[int], int], None],
) -> None:
    """`body(places, strides, lanes)` for vectors along the last axis.

    Vectors of a row are those of one width, and a last one that begins earlier; it
    belongs to the task that has the one before it.
    """
    if not sizes:
        sizes, strides = [1], [[1] for _ in strides]
    *outer, size = sizes
    last = [own[-1] for own in strides]
    if at.shares_places:
        each(at, sizes, strides, lambda here: body(here, last, 1))
        return
    width = min(width, 1 << (size.bit_length() - 1))
    count, left = divmod(size, width)
    counted = (*[0] * len(outer), 1)

    def part(places: list[Value]) -> None:
        *rows, index = places
        builder = at.builder
        first = builder.mul(index, number(width))

        def vector(offset: Value) -> None:
            here = [
                moved(at, row, offset, stride)
                for row, stride in zip(rows, last, strict=True)
            ]
            body(here, last, width)

        vector(first)
        if left:
            is_last = builder.icmp_signed("==", index, number(count - 1))
            with builder.if_then(is_last):
                vector(number(size - width))

    rows = [(*own[:-1], 0) for own in strides]
    each_of_task(at, [*outer, count], [*rows, counted], part)


# Elements


def read(
    at: Addressing, x: ArrayOperand, place: Value, stride: int, width: int
) -> Value:
    """Elements of a row, as many as there are lanes."""
    if width == 1 or stride == 1:
        return at.load_at(x.pointer, place, x.dtype, width)
    if stride == 0:
        return at.widened(at.load_at(x.pointer, place, x.dtype, 1), width)
    places = at.builder.add(at.spread(place, width), steps(width, stride))
    return at.gather(x.pointer, places, x.dtype, width)


def write(
    at: Addressing, out: ArrayOperand, place: Value, stride: int, value: Value
) -> None:
    """Lanes to the elements of a row."""
    width = value.type.count
    if width == 1 or stride == 1:
        at.store_at(out.pointer, place, value, out.dtype)
        return
    for lane in range(width):
        here = at.builder.add(place, number(lane * stride))
        at.store_at(out.pointer, here, at.lane(value, lane), out.dtype)


def combined(at: Addressing, name: str, x: Value, y: Value, dtype: DType) -> Value:
    """Two values through the operation of this name, whose result is of their dtype."""
    width = x.type.count
    return lanes.apply(at.builder, OPS[name], {}, [dtype, dtype], dtype, [x, y], width)


def function_of(at: Addressing, name: str, x: Value, dtype: DType) -> Value:
    """A function of floats, by its name."""
    return lanes.apply(at.builder, OPS[name], {}, [dtype], dtype, [x], x.type.count)


def emit_map(
    at: Addressing,
    shape: Sizes,
    operands: Sequence[ArrayOperand],
    out: ArrayOperand,
    function: Callable[[Sequence[Value], int], Value],
) -> None:
    """out[...] = function(operands[...]), lane by lane, for arrays of one shape."""
    every = (*operands, out)
    sizes, strides = merged(shape, *[x.strides for x in every])
    width = widest(*[x.dtype for x in every])
    last = [own[-1] for own in strides] if sizes else [1] * len(every)

    def part(here: list[Value], width: int) -> None:
        values = [
            read(at, x, place, stride, width)
            for x, place, stride in zip(operands, here, last, strict=False)
        ]
        write(at, out, here[-1], last[-1], function(values, width))

    each_part(at, sizes, strides, width, part, repeats=True)


def emit_copy(at: Addressing, shape: Sizes, x: ArrayOperand, out: ArrayOperand) -> None:
    """The elements of an array, converted to the dtype of the other."""
    emit_map(
        at,
        shape,
        [x],
        out,
        lambda values, width: at.converted(values[0], x.dtype, out.dtype),
    )


def emit_fill(at: Addressing, size: int, out: ArrayOperand, value: float) -> None:
    """One number in all elements, which lie side by side."""
    flat = out._replace(strides=(1,))
    emit_map(
        at, (size,), [], flat, lambda _, width: lanes.constant(out.dtype, value, width)
    )


def part_of(at: Addressing, x: ArrayOperand, start: int) -> ArrayOperand:
    """The array that begins some elements later."""
    nbytes = number(start * x.dtype.itemsize)
    return x._replace(pointer=at.builder.gep(x.pointer, [nbytes], source_etype=I8))
