"""Scatter-add: rows that indices name, as loops over whole arrays.

`gather_add` copies its operand and adds the updates one after another, in the order of
the indices, as the record does: repeated positions have the same bits. Half floats are
added up in a table of floats and rounded once. Where the table is updated in place,
there is nothing to copy.

That is one task. Tasks that share the rows would all go through the updates, each with
gaps that nothing foresees: two of them take as long together as one takes twice, rows
of 64 bytes three times. Tasks that share columns are no better.

`subtract_rows` adds the updates of a row up before it subtracts them once. For that a
preparation numbers the rows in the order in which they are met (`emit_numbers`), so
that their sums lie side by side, and whatever the size of the table, nothing is read
or written that is as large. Numbers, most of which count on, are shared by tasks, with
no more work in all: a row is one chain of additions however many tasks there are.

Positions have been checked by Steps of their own: one that is outside has left a mark,
and is passed over here.

Start reading at `emit_gather_add`, then `emit_subtract_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.base.types import DType
from tapejit.ir.node import Node
from tapejit.loops.fuse.row_updates import is_zeros
from tapejit.loops.index import strides_of
from tapejit.loops.kernels import accumulator
from tapejit.loops.steps import Step
from tapejit.targets.cpu.arrays.loops import (
    ArrayOperand,
    by_vectors,
    combined,
    each,
    each_part,
    emit_copy,
    emit_fill,
    merged,
    moved,
    operands_of,
    read,
    widest,
    write,
)
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import (
    I64,
    INT64,
    Addressing,
    Preparation,
    number,
)
from tapejit.targets.cpu.nest.kernel_emitter import new_function
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cpu.target import CPU

INT32 = np.dtype(np.int32)
TRUE: Final[Value] = ir.Literal(ir.IntType(1), 1)
HASH: Final = 2654435769  # 2**32 divided by the golden ratio


class Rows:
    """A table of rows side by side, the updates of some, and what a task has of both.

    count, width   how many rows there are, and elements in each
    shared, share  how many tasks share the rows, and the number of this one
    """

    def __init__(
        self, at: Addressing, shape: Sequence[int], axes: Sequence[int], dtype: DType
    ) -> None:
        self.at, self.dtype = at, dtype
        self.sizes = [int(shape[axis]) for axis in axes]
        self.count = math.prod(self.sizes)
        self.width = math.prod(int(size) for size in shape[len(axes) :])
        self.shared = 1
        self.share: Value = number(0)

    def among(self, tasks: int) -> None:
        """Let tasks share the rows."""
        if tasks > 1:
            self.shared, self.share = tasks, self.at.task

    def each_row(self, body: Callable[[Value], None]) -> None:
        """`body(row)` for all rows."""
        work = self.width * CPU.tuning.array_element_instructions
        self.at.long_range(number(0), number(self.count), 1, body, work, self.count)

    def each_part(self, body: Callable[[Value, int], None]) -> None:
        """`body(column, lanes)` for the columns of a row."""
        by_vectors(self.at, self.width, widest(self.dtype), body)

    def each_position(
        self,
        front: Sequence[int],
        strides: Sequence[int],
        indices: Sequence[ArrayOperand],
        body: Callable[[Value, Value, Value], None],
    ) -> None:
        """`body(place, row, is_inside)` for all updates, in order."""
        at, rank = self.at, len(front)
        own = [(0,) * (rank - len(i.strides)) + i.strides for i in indices]
        sizes, steps = merged(front, strides, *own)

        def single(places: list[Value]) -> None:
            row, is_inside = number(0), TRUE
            for size, index, place in zip(self.sizes, indices, places[1:], strict=True):
                here, is_good = position_along(at, index, place, size)
                row = at.builder.add(at.builder.mul(row, number(size)), here)
                is_inside = at.builder.and_(is_inside, is_good)
            body(places[0], row, is_inside)

        each(at, sizes, steps, single)

    def place(self, row: Value, column: Value) -> Value:
        return moved(self.at, column, row, self.width)


def emit_gather_add(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """A copy of the first operand, with updates added where the indices say."""
    x, updates, *indices = operands
    axes = node.attrs["axes"]
    given = node.inputs[1]
    rank = given.ndim - (node.ndim - len(axes))
    own = strides_of(node.shape)
    is_empty = is_zeros(node.inputs[0])
    is_simple = axes == tuple(range(len(axes))) and (is_empty or x.strides == own)
    rest = strides_of(given.shape)[rank:]
    if not is_simple or plain(given.shape[rank:], updates.strides[rank:]) != rest:
        add_one_by_one(at, node, operands, out)
        return
    if accumulator(node.dtype) != node.dtype:
        add_one_by_one(at, node, operands, out)
        return
    rows = Rows(at, node.shape, axes, node.dtype)
    table = ArrayOperand(out, node.dtype, (1,))

    def copy_row(row: Value) -> None:
        def part(column: Value, width: int) -> None:
            place = rows.place(row, column)
            value = lanes.constant(node.dtype, 0, width)
            if not is_empty:
                value = read(at, x, place, 1, width)
            write(at, table, place, 1, value)

        rows.each_part(part)

    with at.builder.if_then(lie_apart(at, out, x.pointer)):
        rows.each_row(copy_row)

    def add(place: Value, row: Value, is_inside: Value) -> None:
        def part(column: Value, width: int) -> None:
            there = rows.place(row, column)
            added = read(at, updates, at.builder.add(place, column), 1, width)
            before = read(at, table, there, 1, width)
            write(at, table, there, 1, combined(at, "add", before, added, node.dtype))

        with at.builder.if_then(is_inside):
            rows.each_part(part)

    rows.each_position(given.shape[:rank], updates.strides[:rank], indices, add)


def plain(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides, those of axes of size 1 as if rows lay side by side."""
    own = zip(shape, strides, strides_of(shape), strict=True)
    return tuple(b if size == 1 else a for size, a, b in own)


def lie_apart(at: Addressing, one: Value, other: Value) -> Value:
    """Whether two arrays do not begin at the same place."""
    first, second = (at.builder.ptrtoint(x, I64) for x in (one, other))
    return at.builder.icmp_unsigned("!=", first, second)


def rooms_of_gather_add(step: Step) -> dict[str, int]:
    """Half floats are added up in a table of floats."""
    wide, node = accumulator(step.dtype), step.performed
    size = math.prod(map(int, node.shape)) * wide.itemsize
    is_large = wide != step.dtype and size > CPU.tuning.stack_array_bytes
    return {"wide": size} if is_large else {}


# subtract_rows


def sizes_of(node: Node) -> tuple[int, int]:
    """How many rows a table has, and elements in each."""
    rank = len(node.attrs["axes"])
    count, width = (
        math.prod(map(int, x)) for x in (node.shape[:rank], node.shape[rank:])
    )
    return count, width


def updates_of(node: Node) -> int:
    """How many rows are added to rows of a table."""
    return math.prod(map(int, node.inputs[2].shape)) // sizes_of(node)[1]


def map_size(node: Node) -> int:
    """How many places there are for the numbers of rows."""
    rank = len(node.attrs["axes"])
    given = node.inputs[2]
    count = math.prod(map(int, given.shape[: given.ndim - (node.ndim - rank)]))
    return min(sizes_of(node)[0], 1 << (2 * count - 1).bit_length())


def tasks_of_subtract_rows(step: Step) -> int:
    """How many tasks share the rows; for the bits it makes no difference."""
    node = step.performed
    count, width = sizes_of(node)
    wanted = updates_of(node) * width // CPU.tuning.scatter_task_elements
    wanted = min(CPU.tuning.scatter_most_tasks, wanted)
    is_short = width * node.dtype.itemsize < CPU.tuning.scatter_least_row_bytes
    tasks = 1 << (wanted.bit_length() - 1) if wanted > 1 else 1
    return 1 if is_short or count < tasks else tasks


def rooms_of_subtract_rows(step: Step) -> dict[str, int]:
    """The numbers of rows, their sums, and a large map from rows to numbers."""
    node = step.performed
    count, width = sizes_of(node)
    updates = updates_of(node)
    most = min(updates, count)
    numbers = {"total": 1, "of": updates, "rows": most}
    found = {key: INT32.itemsize * size for key, size in numbers.items()}
    found["sums"] = most * width * node.dtype.itemsize
    known = map_size(node) * INT32.itemsize
    return found | ({"known": known} if known > CPU.tuning.stack_array_bytes else {})


def emit_subtract_rows(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """The first operand, less the sums of updates times a rate."""
    RowUpdate(at, node, operands, out).emit()


class RowUpdate:
    """Sums of the updates of each row, then one subtraction a row.

    Where the result has the memory of the operand, and the rate times 0 is 0, only rows
    with updates are touched. If not, `is_whole`: results of such rows wait where their
    sums are until all rows have had 0 subtracted, times the rate. The first of the
    tasks that share rows does it then for all of them.
    """

    def __init__(
        self, at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
    ) -> None:
        self.at, self.node, self.dtype = at, node, node.dtype
        self.x, rate, self.updates, *_ = operands
        axes = node.attrs["axes"]
        self.rows = rows = Rows(at, node.shape, axes, self.dtype)
        self.count = updates_of(node)
        rows.among(at.kernel.tasks)
        self.sums = ArrayOperand(at.room("sums"), self.dtype, (1,))
        self.table = ArrayOperand(out, self.dtype, (1,))
        self.rate = at.load_at(rate.pointer, number(0), self.dtype, 1)
        zero = lanes.constant(self.dtype, 0, 1)
        self.nothing = combined(at, "mul", self.rate, zero, self.dtype)
        bits = ir.IntType(8 * self.dtype.itemsize)
        plain = at.builder.bitcast(at.lane_number(self.nothing, 0), bits)
        is_changing = at.builder.icmp_signed("!=", plain, ir.Literal(bits, 0))
        is_apart = lie_apart(at, out, self.x.pointer)
        self.is_whole = at.builder.or_(is_changing, is_apart)
        some = number(rows.shared)
        self.stride = at.builder.select(self.is_whole, number(1), some)

    def emit(self) -> None:
        at, rows = self.at, self.rows
        emit_numbers(at, self.node)
        numbers = Numbers.at(at)
        is_other = at.builder.icmp_signed("!=", rows.share, number(0))
        with at.builder.if_then(at.builder.and_(self.is_whole, is_other)):
            at.leave()
        self.add_up(numbers)
        self.each_sum(numbers, self.subtract)
        with at.builder.if_then(self.is_whole):
            rows.each_row(lambda row: rows.each_part(partial(self.leave_row, row)))
            self.each_sum(numbers, self.put_back)

    def add_up(self, numbers: Numbers) -> None:
        """The sum of the updates of each row, from 0, in order."""
        at, rows = self.at, self.rows
        with at.at_entry():
            met = at.builder.alloca(I64)
        at.builder.store(number(0), met)
        last = at.builder.sub(self.stride, number(1))

        def single(update: Value) -> None:
            named = index_at(at, numbers.of, update)
            before = at.builder.load(met, typ=I64)
            is_new = at.builder.icmp_signed("==", named, before)
            after = at.builder.add(before, at.builder.zext(is_new, I64))
            at.builder.store(after, met)
            share = at.builder.and_(named, last)
            is_mine = at.builder.icmp_signed("==", share, rows.share)
            is_row = at.builder.icmp_signed(">=", named, number(0))
            with (
                at.builder.if_then(at.builder.and_(is_mine, is_row)),
                at.builder.if_else(is_new) as (then, otherwise),
            ):
                with then:
                    rows.each_part(partial(self.add_part, update, named, True))
                with otherwise:
                    rows.each_part(partial(self.add_part, update, named, False))

        work = rows.width * CPU.tuning.array_element_instructions
        at.long_range(number(0), number(self.count), 1, single, work, self.count)

    def add_part(
        self, update: Value, named: Value, is_new: bool, column: Value, width: int
    ) -> None:
        at, there = self.at, self.rows.place(named, column)
        added = read(at, self.updates, self.rows.place(update, column), 1, width)
        before = lanes.constant(self.dtype, 0, width)
        if not is_new:
            before = read(at, self.sums, there, 1, width)
        write(at, self.sums, there, 1, combined(at, "add", before, added, self.dtype))

    def each_sum(self, numbers: Numbers, body: Callable[..., None]) -> None:
        """`body(number, row, column, lanes)` for all sums of this task."""
        at, rows = self.at, self.rows
        count = index_at(at, numbers.total, number(0))
        left = at.builder.sub(count, rows.share)
        left = at.builder.add(left, at.builder.sub(self.stride, number(1)))
        trips = at.builder.sdiv(left, self.stride)

        def single(index: Value) -> None:
            named = at.builder.mul(index, self.stride)
            named = at.builder.add(named, rows.share)
            row = index_at(at, numbers.rows, named)
            rows.each_part(partial(body, named, row))

        with at.builder.if_then(at.builder.icmp_signed(">", trips, number(0))):
            at.for_range(number(0), trips, 1, single)

    def subtract(self, named: Value, row: Value, column: Value, width: int) -> None:
        """A row less its sum times the rate, to its place or to wait for the others."""
        at, dtype = self.at, self.dtype
        there, here = self.rows.place(named, column), self.rows.place(row, column)
        total = read(at, self.sums, there, 1, width)
        change = combined(at, "mul", at.widened(self.rate, width), total, dtype)
        new = combined(at, "sub", read(at, self.x, here, 1, width), change, dtype)
        pointers = self.sums.pointer, self.table.pointer
        to = at.builder.select(self.is_whole, *pointers)
        place = at.builder.select(self.is_whole, there, here)
        write(at, self.table._replace(pointer=to), place, 1, new)

    def leave_row(self, row: Value, column: Value, width: int) -> None:
        at, here = self.at, self.rows.place(row, column)
        nothing = at.widened(self.nothing, width)
        new = combined(at, "sub", read(at, self.x, here, 1, width), nothing, self.dtype)
        write(at, self.table, here, 1, new)

    def put_back(self, named: Value, row: Value, column: Value, width: int) -> None:
        at = self.at
        new = read(at, self.sums, self.rows.place(named, column), 1, width)
        write(at, self.table, self.rows.place(row, column), 1, new)


class Numbers(NamedTuple):
    """Rows that updates are for, numbered in the order in which they are met.

    total    how many there are
    of       the number of each update's row, -1 if there is no such row
    rows     the row that has a number
    """

    total: ArrayOperand
    of: ArrayOperand
    rows: ArrayOperand

    @classmethod
    def at(cls, at: Addressing) -> Numbers:
        """As they lie in the arena."""
        return cls(*[ArrayOperand(at.room(key), INT32, (1,)) for key in cls._fields])


def index_at(at: Addressing, x: ArrayOperand, place: Value) -> Value:
    """An element as a position."""
    value = at.load_at(x.pointer, place, x.dtype, 1)
    return at.lane_number(at.converted(value, x.dtype, INT64), 0)


def put_index(at: Addressing, x: ArrayOperand, place: Value, value: Value) -> None:
    wide = at.spread(value, 1)
    at.store_at(x.pointer, place, at.converted(wide, INT64, x.dtype), x.dtype)


def emit_numbers(at: Addressing, node: Node) -> None:
    """Have rows numbered before the kernel runs.

    A map has the number of each row, plus 1; 0 says that it has none yet. In a long
    table rows are found by a hash, and what is taken, at the next place that is not.
    """
    function = new_function(at.function.module, f"{at.function.name}_numbers")
    own = Addressing(function, at.plan, at.kernel, at.layout)
    number_rows(own, node, Numbers.at(own))
    own.builder.ret_void()
    at.preparations.append(Preparation(own.function, tuple(own.places), 1))


def number_rows(at: Addressing, node: Node, numbers: Numbers) -> None:
    axes = node.attrs["axes"]
    _, _, _, *indices = operands_of(at)
    rows = Rows(at, node.shape, axes, node.dtype)
    given = node.inputs[2]
    front = given.shape[: given.ndim - (node.ndim - len(axes))]
    size = map_size(node)
    is_direct = size == rows.count
    known = ArrayOperand(at.private_memory("known", size, INT32), INT32, (1,))
    emit_fill(at, size, known, 0)
    with at.at_entry():
        done, met = at.builder.alloca(I64), at.builder.alloca(I64)
    for counter in (done, met):
        at.builder.store(number(0), counter)

    def single(_: Value, row: Value, is_inside: Value) -> None:
        builder = at.builder
        update = builder.load(done, typ=I64)
        builder.store(builder.add(update, number(1)), done)
        with builder.if_else(is_inside) as (then, otherwise):
            with then:
                start = row
                if not is_direct:
                    mixed = builder.mul(row, number(HASH))
                    mixed = builder.and_(mixed, number((1 << 32) - 1))
                    start = builder.lshr(mixed, number(33 - size.bit_length()))
                named = number_of(at, known, numbers, met, row, start, size)
                put_index(at, numbers.of, update, named)
            with otherwise:
                put_index(at, numbers.of, update, number(-1))

    rows.each_position(front, [0] * len(front), indices, single)
    put_index(at, numbers.total, number(0), at.builder.load(met, typ=I64))


def number_of(
    at: Addressing,
    known: ArrayOperand,
    numbers: Numbers,
    met: Value,
    row: Value,
    start: Value,
    size: int,
) -> Value:
    """The number of a row, a new one if it has none."""
    builder, function = at.builder, at.function
    head, look, another, new, after = (
        function.append_basic_block(name)
        for name in ("head", "look", "another", "new", "after")
    )
    before = builder.block
    builder.branch(head)
    builder.position_at_end(head)
    place = builder.phi(I64)
    place.add_incoming(start, before)
    found = index_at(at, known, place)
    builder.cbranch(builder.icmp_signed("==", found, number(0)), new, look)
    builder.position_at_end(look)
    named = builder.sub(found, number(1))
    is_same = builder.icmp_signed("==", index_at(at, numbers.rows, named), row)
    builder.cbranch(is_same, after, another)
    builder.position_at_end(another)
    following = builder.and_(builder.add(place, number(1)), number(size - 1))
    place.add_incoming(following, another)
    builder.branch(head)
    builder.position_at_end(new)
    fresh = builder.load(met, typ=I64)
    following = builder.add(fresh, number(1))
    builder.store(following, met)
    put_index(at, known, place, following)
    put_index(at, numbers.rows, fresh, row)
    builder.branch(after)
    builder.position_at_end(after)
    result = builder.phi(I64)
    result.add_incoming(named, look)
    result.add_incoming(fresh, new)
    return result


# The rest


def add_one_by_one(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """The same for rows that do not lie side by side, and for halves."""
    x, updates, *indices = operands
    axes, shape = node.attrs["axes"], node.shape
    own = strides_of(shape)
    result = ArrayOperand(out, node.dtype, own)
    wide = accumulator(node.dtype)
    table = result
    if wide != node.dtype:
        memory = at.private_memory("wide", math.prod(map(int, shape)), wide)
        table = ArrayOperand(memory, wide, own)
    emit_copy(at, shape, x, table)
    others = [axis for axis in range(len(shape)) if axis not in axes]
    rank = node.inputs[1].ndim - len(others)
    front, rest = node.inputs[1].shape[:rank], node.inputs[1].shape[rank:]
    index_strides = [(0,) * (rank - len(i.strides)) + i.strides for i in indices]
    sizes, strides = merged(front, updates.strides[:rank], *index_strides)

    def row(places: list[Value]) -> None:
        position, is_inside = number(0), TRUE
        for axis, index, place in zip(axes, indices, places[1:], strict=True):
            here, is_good = position_along(at, index, place, int(shape[axis]))
            position = moved(at, position, here, own[axis])
            is_inside = at.builder.and_(is_inside, is_good)
        with at.builder.if_then(is_inside):
            add_row(at, rest, updates, places[0], rank, table, position, others)

    each(at, sizes, strides, row)
    if wide != node.dtype:
        emit_copy(at, shape, table, result)


def position_along(
    at: Addressing, index: ArrayOperand, place: Value, size: int
) -> tuple[Value, Value]:
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
    at: Addressing,
    shape: Sequence[Any],
    updates: ArrayOperand,
    place: Value,
    rank: int,
    table: ArrayOperand,
    position: Value,
    others: Sequence[int],
) -> None:
    """Add what belongs to one position, along the axes that are not indexed."""
    into = [table.strides[axis] for axis in others]
    sizes, strides = merged(shape, updates.strides[rank:], into)
    from_stride, to_stride = (own[-1] for own in strides) if sizes else (1, 1)
    width = widest(table.dtype) if to_stride == 1 else 1

    def part(places: list[Value], lanes: int) -> None:
        here, there = places
        added = at.converted(
            read(at, updates, here, from_stride, lanes), updates.dtype, table.dtype
        )
        before = read(at, table, there, to_stride, lanes)
        total = combined(at, "add", before, added, table.dtype)
        write(at, table, there, to_stride, total)

    each_part(at, sizes, strides, width, part, [place, position])
