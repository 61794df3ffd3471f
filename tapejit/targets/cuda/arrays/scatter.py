"""Scatter-add: updates are sorted by row, then a thread adds up an element of a row.

The keys that are sorted are a row and the number of its update, in one integer. They
are all different, so any way of sorting has one result, and updates of a row come in
their order: sums have the CPU's bits without atomics. Sorting is bitonic: blocks sort
runs in shared memory, and larger steps are kernels over all pairs.

The first key of a row stands for all of them. Its threads, one for each column, go
along the keys of the row and add up in a register; nobody else has that row.

Start reading at `emit_gather_add`, then `RowSort`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tapejit.base.types import DType
from tapejit.loops.index import strides_of
from tapejit.loops.kernels import accumulator
from tapejit.loops.steps import Step
from tapejit.targets.cpu.arrays.loops import (
    ArrayOperand,
    combined,
    emit_copy,
    emit_map,
    operands_of,
)
from tapejit.targets.cpu.arrays.scatter import lie_apart, position_along
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import I64, INT64, number
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.arrays.kernels import (
    array_kernel,
    node_of,
    result_of,
    shape_of,
)
from tapejit.targets.cuda.kernel import SimtKernel, power_above
from tapejit.targets.cuda.target import CUDA

if TYPE_CHECKING:
    from tapejit.targets.cuda.module import Emission

NO_ROW: Final = (1 << 63) - 1  # behind all keys: of an update that is outside


class Scattered:
    """What is added where: sizes of the table, the updates, and of their keys.

    count, width   rows of the table, and elements in each
    updates        how many rows are added; `front` is their shape, `rest` a row's
    size           how many keys are sorted, a power of two
    """

    def __init__(self, step: Step) -> None:
        node = self.node = node_of(step)
        self.axes: tuple[int, ...] = node.attrs["axes"]
        self.first = 1 + (node.op.name == "subtract_rows")  # where the updates are
        self.shape = shape_of(node)
        self.others = [x for x in range(node.ndim) if x not in self.axes]
        given = shape_of(node.inputs[self.first])
        rank = len(given) - len(self.others)
        self.front, self.rest = given[:rank], given[rank:]
        self.sizes = [self.shape[axis] for axis in self.axes]
        self.count, self.width = math.prod(self.sizes), math.prod(self.rest)
        self.updates = math.prod(self.front)
        self.size = max(2, power_above(self.updates))
        self.bits = self.size.bit_length() - 1  # of a key, for the update's number

    def row(self, at: SimtAddressing, key: Value) -> Value:
        """The row of a key."""
        return at.builder.lshr(key, number(self.bits))

    def update(self, at: SimtAddressing, key: Value) -> Value:
        """The number of the update of a key."""
        return at.builder.and_(key, number(self.size - 1))

    def key(
        self, at: SimtAddressing, update: Value, indices: Sequence[ArrayOperand]
    ) -> Value:
        """The key of an update; its indices may be out of range."""
        b, rank = at.builder, len(self.front)
        along = at.unravelled(update, self.front)
        row: Value = number(0)
        is_inside: Value = ir.Literal(ir.IntType(1), 1)
        for size, index in zip(self.sizes, indices, strict=True):
            strides = (0,) * (rank - len(index.strides)) + index.strides
            place = at.at_position(number(0), strides, along)
            here, is_good = position_along(at, index, place, size)
            row = b.add(b.mul(row, number(size)), here)
            is_inside = b.and_(is_inside, is_good)
        found = b.or_(b.shl(row, number(self.bits)), update)
        return b.select(is_inside, found, number(NO_ROW))

    def place(self, at: SimtAddressing, row: Value, column: Value) -> Value:
        """Where an element is in the table."""
        own = strides_of(self.shape)
        place = at.at_position(
            number(0), [own[x] for x in self.axes], self.split_row(at, row)
        )
        others = [own[x] for x in self.others]
        return at.at_position(place, others, at.unravelled(column, self.rest))

    def split_row(self, at: SimtAddressing, row: Value) -> list[Value]:
        """The position of a row along each axis that is indexed."""
        return at.unravelled(row, self.sizes)

    def place_of_update(
        self, at: SimtAddressing, x: ArrayOperand, update: Value, column: Value
    ) -> Value:
        """Where an element of an update is."""
        rank = len(self.front)
        along = at.unravelled(update, self.front)
        place = at.at_position(number(0), x.strides[:rank], along)
        along = at.unravelled(column, self.rest)
        return at.at_position(place, x.strides[rank:], along)


def rooms(step: Step) -> dict[str, int]:
    """The keys; for `subtract_rows` also the rows that are written over twice."""
    it = Scattered(step)
    found = {"keys": it.size * INT64.itemsize}
    if it.first == 2:
        found["rows"] = it.updates * it.width * step.dtype.itemsize
    return found


def emit_gather_add(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """A copy of the first operand, with updates added where the indices say."""
    it, wide = Scattered(step), accumulator(step.dtype)
    RowSort(made, kernel, it).emit()
    with array_kernel(made, kernel, "copy", math.prod(it.shape)) as at:
        x, out = operands_of(at)[0], result_of(at, step)
        whole = ArrayOperand(out, step.dtype, strides_of(it.shape))
        with at.builder.if_then(lie_apart(at, out, x.pointer)):
            emit_copy(at, it.shape, x, whole)
    with array_kernel(made, kernel, "add", it.updates * it.width) as at:
        out = result_of(at, step)

        def row(keys: RowKeys, column: Value) -> None:
            place = it.place(at, keys.row, column)
            before = at.load_at(out, place, step.dtype, 1)
            start = at.converted(before, step.dtype, wide)
            total = keys.added_up(start, wide, column)
            at.store_at(out, place, at.converted(total, wide, step.dtype), step.dtype)

        each_row(at, it, row)


def emit_subtract_rows(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """The first operand, less the sums of updates times a rate.

    Rows without updates have 0 subtracted, times the rate. That changes nothing if the
    result has the memory of the operand, and the rate times 0 is 0. Where both are one
    memory and something changes, what the rows with updates were is kept before.
    """
    it, dtype = Scattered(step), step.dtype
    RowSort(made, kernel, it).emit()

    def state(at: SimtAddressing) -> tuple[ArrayOperand, ArrayOperand, Value, Value]:
        """The operand, the result, the rate times 0, and whether it is not 0."""
        x, rate, *_ = operands_of(at)
        own = strides_of(it.shape)
        out = ArrayOperand(result_of(at, step), dtype, own)
        by = at.load_at(rate.pointer, number(0), dtype, 1)
        nothing = combined(at, "mul", by, lanes.constant(dtype, 0, 1), dtype)
        bits = ir.IntType(8 * dtype.itemsize)
        plain = at.builder.bitcast(at.lane_number(nothing, 0), bits)
        changes = at.builder.icmp_signed("!=", plain, ir.Literal(bits, 0))
        return x, out, nothing, changes

    count = it.updates * it.width
    with array_kernel(made, kernel, "keep", count) as at:
        x, out, _, changes = state(at)
        is_apart = lie_apart(at, out.pointer, x.pointer)
        is_kept = at.builder.and_(at.builder.not_(is_apart), changes)

        def keep(keys: RowKeys, column: Value) -> None:
            value = at.load_at(x.pointer, it.place(at, keys.row, column), dtype, 1)
            at.store_at(at.room("rows"), keys.place(column), value, dtype)

        with at.builder.if_then(is_kept):
            each_row(at, it, keep)
    with array_kernel(made, kernel, "others", math.prod(it.shape)) as at:
        x, out, nothing, changes = state(at)
        is_apart = lie_apart(at, out.pointer, x.pointer)

        def less_nothing(values: Sequence[Value], width: int) -> Value:
            return combined(at, "sub", values[0], nothing, dtype)

        with at.builder.if_then(at.builder.or_(is_apart, changes)):
            emit_map(at, it.shape, [x], out, less_nothing)
    with array_kernel(made, kernel, "rows", count) as at:
        x, out, _, changes = state(at)
        is_apart = lie_apart(at, out.pointer, x.pointer)
        is_kept = at.builder.and_(at.builder.not_(is_apart), changes)
        rate = operands_of(at)[1]

        def row(keys: RowKeys, column: Value) -> None:
            b, place = at.builder, it.place(at, keys.row, column)
            kept = at.room("rows")
            source = b.select(is_kept, kept, x.pointer)
            where = b.select(is_kept, keys.place(column), place)
            before = at.load_at(source, where, dtype, 1)
            zero = lanes.constant(dtype, 0, 1)
            total = keys.added_up(zero, dtype, column)
            by = at.load_at(rate.pointer, number(0), dtype, 1)
            change = combined(at, "mul", by, total, dtype)
            new = combined(at, "sub", before, change, dtype)
            at.store_at(out.pointer, place, new, dtype)

        each_row(at, it, row)


def each_row(
    at: SimtAddressing, it: Scattered, body: Callable[[RowKeys, Value], None]
) -> None:
    """`body(keys, column)` for all elements of rows that have updates."""

    def single(index: Value) -> None:
        slot, column = at.divided(index, it.width, it.updates * it.width)
        keys = RowKeys(at, it, slot)
        with at.builder.if_then(keys.is_first()):
            body(keys, column)

    at.share(it.updates * it.width, single)


class RowKeys:
    """The keys of a row, from the first one on, in memory that is sorted."""

    def __init__(self, at: SimtAddressing, it: Scattered, slot: Value) -> None:
        self.at, self.it, self.slot = at, it, slot
        self.first = self.key(slot)
        self.row = it.row(at, self.first)

    def key(self, slot: Value) -> Value:
        at = self.at
        return at.lane_number(at.load_at(at.room("keys"), slot, INT64, 1), 0)

    def is_first(self) -> Value:
        """Whether the key is of a row, and the one before it of another row."""
        at, b = self.at, self.at.builder
        before = b.sub(self.slot, number(1))
        begins = b.icmp_signed("<", before, number(0))
        other = self.it.row(at, self.key(b.select(begins, number(0), before)))
        is_other = b.or_(begins, b.icmp_signed("!=", other, self.row))
        is_row = b.icmp_signed("!=", self.first, number(NO_ROW))
        return b.and_(is_other, is_row)

    def place(self, column: Value) -> Value:
        """Where there is room for an element of the row."""
        return self.at.builder.add(
            self.at.moved(number(0), self.slot, self.it.width), column
        )

    def added_up(self, start: Value, dtype: DType, column: Value) -> Value:
        """`start` and all updates of the row, in order."""
        at, it, b = self.at, self.it, self.at.builder
        updates = operands_of(at)[it.first]
        with at.at_entry():
            memory = at.builder.alloca(start.type)
        b.store(start, memory)

        def is_of_row(slot: Value) -> Value:
            is_there = b.icmp_signed("<", slot, number(it.updates))
            key = self.key(b.select(is_there, slot, number(0)))
            is_same = b.icmp_signed("==", it.row(at, key), self.row)
            return b.and_(is_there, is_same)

        def add(slot: Value) -> Value:
            update = it.update(at, self.key(slot))
            place = it.place_of_update(at, updates, update, column)
            given = at.load_at(updates.pointer, place, updates.dtype, 1)
            given = at.converted(given, updates.dtype, dtype)
            before = b.load(memory, typ=start.type)
            b.store(combined(at, "add", before, given, dtype), memory)
            return b.add(slot, number(1))

        at.repeat_while(I64, self.slot, is_of_row, add)
        return b.load(memory, typ=start.type)


class RowSort:
    """The kernels that leave the keys of all updates in the arena, sorted."""

    def __init__(self, made: Emission, kernel: SimtKernel, it: Scattered) -> None:
        self.made, self.kernel, self.it = made, kernel, it
        self.run = min(it.size, CUDA.tuning.sorted_run_keys)
        self.blocks = it.size // self.run

    def emit(self) -> None:
        self.sort_runs()
        if self.blocks == 1:
            return
        step, merge = self.step_kernel(), self.merge_kernel()
        length = 2 * self.run
        while length <= self.it.size:
            distance = length // 2
            while distance >= self.run:
                self.made.add(step, step.blocks, (length, distance))
                distance //= 2
            self.made.add(merge, merge.blocks, (length,))
            length *= 2

    def addressing(self, name: str, blocks: int) -> SimtAddressing:
        numbers = CUDA.numerics
        pairs = max(numbers.warp_threads, self.run // 2)
        threads = min(numbers.block_threads, pairs)
        function = self.made.function(f"{self.made.label}_{name}", threads)
        own = self.kernel.with_threads(threads, blocks)
        return SimtAddressing(function, self.made.plan, own, self.made.layout)

    def sort_runs(self) -> None:
        """Keys, in runs that a block sorts: every other one descends."""
        at = self.addressing("sort", self.blocks)
        b, it = at.builder, self.it
        _, *indices = operands_of(at)[it.first :]
        memory = at.shared_array(self.run, INT64)
        first = b.mul(at.block, number(self.run))

        def load(index: Value) -> None:
            update = b.add(first, index)
            is_there = b.icmp_signed("<", update, number(it.updates))
            safe = b.select(is_there, update, number(0))
            key = b.select(is_there, it.key(at, safe, indices), number(NO_ROW))
            at.store_at(memory, index, at.spread(key, 1), INT64)

        at.strided(at.thread, number(self.run), at.function.threads, load)

        def is_run(length: Value) -> Value:
            return b.icmp_signed("<=", length, number(self.run))

        def merge(length: Value) -> Value:
            self.merge_in_block(at, memory, length)
            return b.shl(length, number(1))

        if it.updates > 1:  # one alone is in order
            at.block_barrier()
            at.repeat_while(I64, number(2), is_run, merge)
        self.store_run(at, memory, first)
        b.ret_void()
        self.made.add(at, self.blocks)

    def merge_kernel(self) -> SimtAddressing:
        """The steps of a length that stay inside of a block's run."""
        at = self.addressing("merge", self.blocks)
        b, length = at.builder, at.function.number()
        memory = at.shared_array(self.run, INT64)
        first, keys = b.mul(at.block, number(self.run)), at.room("keys")

        def load(index: Value) -> None:
            value = at.load_at(keys, b.add(first, index), INT64, 1)
            at.store_at(memory, index, value, INT64)

        at.strided(at.thread, number(self.run), at.function.threads, load)
        at.block_barrier()
        self.merge_in_block(at, memory, length, self.run // 2)
        self.store_run(at, memory, first)
        b.ret_void()
        return at

    def store_run(self, at: SimtAddressing, memory: Value, first: Value) -> None:
        keys = at.room("keys")

        def store(index: Value) -> None:
            value = at.load_at(memory, index, INT64, 1)
            at.store_at(keys, at.builder.add(first, index), value, INT64)

        at.strided(at.thread, number(self.run), at.function.threads, store)

    def merge_in_block(
        self, at: SimtAddressing, memory: Value, length: Value, distance: int = 0
    ) -> None:
        """The steps of a length from a distance on, by default from half of it."""
        b = at.builder
        half = number(distance) if distance else b.lshr(length, number(1))
        first = b.mul(at.block, number(self.run))

        def is_left(apart: Value) -> Value:
            return b.icmp_signed(">", apart, number(0))

        def step(apart: Value) -> Value:
            def pair(index: Value) -> None:
                self.exchange(at, memory, index, apart, length, first)

            at.strided(at.thread, number(self.run // 2), at.function.threads, pair)
            at.block_barrier()
            return b.lshr(apart, number(1))

        at.repeat_while(I64, half, is_left, step)

    def step_kernel(self) -> SimtAddressing:
        """One step of a length, over all pairs in the arena."""
        at = self.addressing("step", 1)
        length, apart = at.function.number(), at.function.number()
        keys = at.room("keys")
        at.share(
            self.it.size // 2,
            lambda index: self.exchange(at, keys, index, apart, length, number(0)),
        )
        at.builder.ret_void()
        return at

    def exchange(
        self,
        at: SimtAddressing,
        memory: Value,
        index: Value,
        apart: Value,
        length: Value,
        first: Value,
    ) -> None:
        """Have two keys in order, so far apart: of a run that ascends or descends."""
        b = at.builder
        below = b.sub(apart, number(1))
        low = b.and_(index, below)
        lower = b.or_(b.shl(b.and_(index, b.not_(below)), number(1)), low)
        upper = b.or_(lower, apart)
        x, y = (
            at.lane_number(at.load_at(memory, place, INT64, 1), 0)
            for place in (lower, upper)
        )
        run = b.and_(b.add(first, lower), length)
        descends = b.icmp_signed("!=", run, number(0))
        is_larger = b.icmp_signed(">", x, y)
        with b.if_then(b.icmp_signed("!=", is_larger, descends)):
            at.store_at(memory, lower, at.spread(y, 1), INT64)
            at.store_at(memory, upper, at.spread(x, 1), INT64)
