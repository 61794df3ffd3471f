"""Parallel reduction: accumulators of lanes and tasks, combined in a fixed order.

An `Accumulator` is set up before the outermost loop that a reduction goes along and
read after it. It is a register, or an array if its value has axes inside of that loop;
an element of an array is in a register while a loop adds to that element only. Its
lanes are folded as a tree in the end.

Rounding errors of a sum grow with the number of terms that are added one after the
other. So there are chains (`schedule.sum_order`): what a chain has added up is then
flushed into a total of its own, of which there may be several levels. Where tasks share
a loop, they leave it in slots, which `combine_slots` adds up as one task would have.

Start reading at `Reductions.accumulator`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.base.types import DType, is_float
from tapejit.ir.node import Op
from tapejit.loops.index import Axis, strides_of
from tapejit.loops.kernels import (
    LoopPlan,
    Storage,
    accumulator,
    bound,
)
from tapejit.loops.steps import Contract, Step
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, Type, Value, VectorType
from tapejit.targets.cpu.nest.addressing import I32, number
from tapejit.targets.cpu.nest.nonfinite_check import fail_unless_finite
from tapejit.targets.cpu.nest.step_values import StepValues
from tapejit.targets.cpu.schedule.sum_order import (
    Flush,
    axes_inside,
    chains_of_slots,
    flushes_of,
    flushes_to_slots,
)
from tapejit.targets.cpu.simd import floats, lanes
from tapejit.targets.cpu.simd.storage import Floats
from tapejit.targets.cpu.simd.vector import INTEGER, MASK, Vector

SIDES: Final = {ops.max: "<", ops.min: ">"}
EXTREMES: Final = {
    ops.max: floats.reduced_maximum,
    ops.min: floats.reduced_minimum,
}


def identity(reduction: Op, dtype: DType) -> Any:
    """The number that changes nothing."""
    assert reduction.reduces is not None
    return reduction.reduces.identity(dtype)


def combine(
    builder: IRBuilder, reduction: Op, dtype: DType, x: Value, y: Value, width: int
) -> Value:
    """Two parts of a reduction as one."""
    if reduction in EXTREMES and is_float(dtype):
        b = Floats(builder, dtype, width)
        return EXTREMES[reduction](b, b.wrap(x), b.wrap(y)).value
    assert reduction.reduces is not None
    op = reduction.reduces.combine
    return lanes.apply(builder, op, {}, [dtype, dtype], dtype, [x, y], width)


def integers_like(dtype: DType, width: int) -> VectorType:
    """The LLVM type of the bits of float lanes."""
    bits = 64 if dtype == np.float64 else 32
    return ir.VectorType(ir.IntType(bits), width)


class Accumulator:
    """Where a reduction adds up."""

    def __init__(
        self,
        step: Step,
        dtype: DType,
        axes: list[Axis],
        lanes: bool,
        width: int,
        tiles: dict[Axis, int],
    ) -> None:
        self.step = step
        self.dtype = dtype
        self.axes = axes
        self.lanes = lanes
        self.width = width
        self.pointer: Value
        self.flushes: list[Flush] = []  # where a sum goes on from a new start
        self.is_left = False  # whether it goes to slots
        self.totals: list[Value] = []  # what is flushed into, level by level
        self.undefined: Any = None  # the last NaN that a maximum or minimum has met
        self.bits: Any = None  # those of its elements that come first, as integers
        self.register: Any = None  # of one element of an array, while it is in use
        self.vector: Axis | None = None
        self.full = 1  # lanes of a vector along it
        sizes = [tiles.get(axis, axis.extent) for axis in axes]
        self.strides = dict(zip(axes, strides_of(sizes), strict=True))
        self.size = math.prod(sizes)
        self.tiles = tiles

    @property
    def levels(self) -> int:
        """How many totals there are, besides the sum itself."""
        return max((1 + x.level for x in self.flushes if not x.slot), default=0)

    @property
    def op(self) -> Op:
        """The reduction."""
        return self.step.reduction


def accumulator_of(plan: LoopPlan, step: Step) -> Accumulator:
    """Where a reduction adds up, without memory."""
    around, axes = bound(plan.homes[step]), axes_inside(plan, step)
    vector, full = plan.lanes[step]
    has_lanes = vector in step.closed or (vector in around & step.labels)
    width = full if has_lanes else 1
    dtype = accumulator(step.dtype)
    tiles = {x.axis: x.tile for x in plan.homes[step] if x.tile}
    made = Accumulator(step, dtype, axes, has_lanes, width, tiles)
    made.vector, made.full = vector, full
    slots = plan.kernels[plan.kernel_of[step]].slots.get(step)
    if slots is None:
        made.flushes = flushes_of(plan, step)
    else:
        made.flushes, made.is_left = flushes_to_slots(plan, step, slots), True
    return made


def copies_of(plan: LoopPlan, step: Step) -> int:
    """How many iterations go on together that have a sum of their own each."""
    return math.prod(loop.copies for loop in plan.homes[step])


def sum_arrays(plan: LoopPlan, step: Step) -> list[int]:
    """The bytes of each array that a reduction adds up in, none for registers."""
    made = accumulator_of(plan, step)
    count = (1 + made.levels) * copies_of(plan, step) if made.axes else 0
    return count * [made.size * made.width * made.dtype.itemsize]


Combination = Callable[[Accumulator, Value, Value, int], Value]


class Reductions:
    """Emits the beginning, the steps and the end of reductions."""

    def __init__(self, steps: StepValues) -> None:
        self.steps, self.at = steps, steps.at
        self.plan, self.kernel = steps.plan, steps.kernel
        self.accumulators: dict[Step, Accumulator] = {}
        self.turns: Counter[Step] = Counter()  # how often each was set up

    def accumulator(self, step: Step) -> Accumulator:
        """Set up before the loop."""
        made = self.accumulators[step] = self.place_to_add(step)
        axes, dtype, width = made.axes, made.dtype, made.width
        levels = made.levels
        kind = lanes.register_type(dtype, width)
        if not axes:
            with self.at.at_entry():
                made.pointer = self.at.builder.alloca(kind)
                made.totals = [self.at.builder.alloca(kind) for _ in range(levels)]
                if made.op in SIDES and dtype.kind not in "biu":
                    made.undefined = self.at.builder.alloca(kind)
                    made.bits = self.at.builder.alloca(integers_like(dtype, width))
            for pointer in (made.pointer, *made.totals):
                self.at.builder.store(self.neutral(made), pointer)
            if made.undefined is not None:
                self.at.builder.store(self.neutral(made), made.undefined)
            if made.bits is not None:
                # The bits of -1 and 1 are those of no zero.
                other = lanes.constant(dtype, -1 if made.op is ops.max else 1, width)
                start = self.at.builder.bitcast(other, integers_like(dtype, width))
                self.at.builder.store(start, made.bits)
            return made
        whole = made.size * width
        # Iterations that go on together have arrays of their own.
        turn = self.turns[step] % copies_of(self.plan, step)
        self.turns[step] += 1
        first = turn * (1 + levels)
        made.pointer, *made.totals = (
            self.at.private_memory((step, first + level), whole, dtype)
            for level in range(1 + levels)
        )
        for pointer in (made.pointer, *made.totals):
            self.clear(made, pointer)
        return made

    def clear(self, made: Accumulator, pointer: Value) -> None:
        """Let an array begin with nothing."""

        def body(at: Value, fill: Value, width: int) -> None:
            self.at.store_at(pointer, at, fill, made.dtype)

        self.along(number(0), made.size * made.width, made, body)

    def place_to_add(self, step: Step) -> Accumulator:
        """Where a reduction adds up, without memory."""
        return accumulator_of(self.plan, step)

    def along(
        self,
        start: Value,
        count: int,
        made: Accumulator,
        body: Callable[[Value, Value, int], None],
    ) -> None:
        """Go through elements of an array in wide vectors, with neutral ones at hand.

        The last vector overlaps the one before it.
        """
        width = min(64, 1 << (count.bit_length() - 1))
        fill = lanes.constant(made.dtype, self.neutral_number(made), width)
        last = number(count - width)

        def part(at: Value) -> None:
            body(self.at.builder.add(start, self.at.smaller(at, last)), fill, width)

        self.at.for_range(number(0), number(count), width, part)

    # Long sums

    def flush(self, made: Accumulator, at: Flush) -> None:
        """Add what a level has to the next one; it starts again from nothing."""
        level = at.level
        source = made.totals[level - 1] if level else made.pointer
        target = made.totals[level]
        if not made.axes:
            kind = lanes.register_type(made.dtype, made.width)
            part = self.at.builder.load(source, typ=kind)
            total = self.at.builder.load(target, typ=kind)
            both = self.combined(made, total, part, made.width)
            self.at.builder.store(both, target)
            self.at.builder.store(self.neutral(made), source)
            return
        if made.register is not None:
            self.flush_element(made, level, source, target)
            return
        start, size = number(0), made.width
        for axis in made.axes:
            if axis in at.around:
                index = self.at.indices[axis]
                if axis in made.tiles:
                    index = self.at.builder.sub(index, self.at.origins[axis])
                distance = number(made.strides[axis] * made.width)
                start = self.at.builder.add(start, self.at.builder.mul(index, distance))
            else:
                size *= made.tiles.get(axis, axis.extent)

        def body(at: Value, fill: Value, width: int) -> None:
            part = self.at.load_at(source, at, made.dtype, width)
            total = self.at.load_at(target, at, made.dtype, width)
            self.at.store_at(
                target, at, self.combined(made, total, part, width), made.dtype
            )
            self.at.store_at(source, at, fill, made.dtype)

        self.along(start, size, made, body)

    def flush_element(
        self, made: Accumulator, level: int, source: Value, target: Value
    ) -> None:
        """The same of one element of an array, which is in a register by now."""
        width = made.full if made.vector in made.axes else made.width
        at = self.place_of(made)
        total = self.at.load_at(target, at, made.dtype, width)
        fill = lanes.constant(made.dtype, self.neutral_number(made), width)
        if level:
            part = self.at.load_at(source, at, made.dtype, width)
            self.at.store_at(source, at, fill, made.dtype)
        else:
            kind = lanes.register_type(made.dtype, width)
            part = self.at.builder.load(made.register, typ=kind)
            self.at.builder.store(fill, made.register)
        self.at.store_at(
            target, at, self.combined(made, total, part, width), made.dtype
        )

    def to_slot(self, made: Accumulator, at: Flush, first: Value) -> None:
        """Leave what a level has in the slot of an iteration; it starts again."""
        source = made.totals[at.level - 1] if at.level else made.pointer
        parts = self.at.pointer_to(self.kernel.partials[made.step])
        slot = self.at.builder.udiv(first, number(at.slot))
        if not made.axes:
            kind = lanes.register_type(made.dtype, made.width)
            part = self.at.builder.load(source, typ=kind)
            place = self.at.builder.mul(slot, number(made.width))
            self.at.store_at(parts, place, part, made.dtype)
            self.at.builder.store(self.neutral(made), source)
            return
        whole = self.kernel.slots[made.step].numbers
        base = self.at.builder.mul(slot, number(whole))

        def leave(at: Value, fill: Value, width: int) -> None:
            part = self.at.load_at(source, at, made.dtype, width)
            place = self.at.builder.add(base, at)
            self.at.store_at(parts, place, part, made.dtype)

        self.along(number(0), whole, made, leave)
        self.clear(made, source)

    def combine_slots(self, step: Step) -> None:
        """The value of a sum from what is in its slots, added as chains of them."""
        made, parts = self.place_to_add(step), self.kernel.partials[step]
        slots, base = self.kernel.slots[step], self.at.pointer_to(parts)
        whole, b = slots.numbers, self.at.builder
        chains = chains_of_slots(self.plan, step, slots)
        result = number(slots.count * whole)

        def add_up(at: Value, fill: Value, width: int) -> None:
            kind = lanes.register_type(made.dtype, width)
            with self.at.at_entry():
                sums = [b.alloca(kind) for _ in (1, *chains)]
            for x in sums:
                b.store(fill, x)

            def add(index: Value) -> None:
                place = b.add(b.mul(index, number(whole)), at)
                part = self.at.load_at(base, place, made.dtype, width)
                add_to(sums[0], part)
                done = b.add(index, number(1))
                for every, x, total in zip(chains, sums, sums[1:], strict=False):
                    over = b.urem(done, number(every))
                    with b.if_then(b.icmp_unsigned("==", over, number(0))):
                        add_to(total, b.load(x, typ=kind))
                        b.store(fill, x)

            def add_to(total: Value, part: Value) -> None:
                before = b.load(total, typ=kind)
                b.store(self.combined(made, before, part, width), total)

            self.at.for_range(number(0), number(slots.count), 1, add)
            found = b.load(sums[0], typ=kind)
            for x in sums[1:]:
                found = self.combined(made, b.load(x, typ=kind), found, width)
            self.at.store_at(base, b.add(result, at), found, made.dtype)

        self.along(number(0), whole, made, add_up)
        made.is_left, made.totals = False, []
        if made.axes:
            element = lanes.memory_type(made.dtype)
            made.pointer = b.gep(base, [result], source_etype=element)
        else:
            value = self.at.load_at(base, result, made.dtype, made.width)
            with self.at.at_entry():
                made.pointer = b.alloca(value.type)
            b.store(value, made.pointer)
        self.finish(made)

    def neutral_number(self, made: Accumulator) -> Any:
        return identity(made.op, made.dtype)

    def neutral(self, made: Accumulator) -> Value:
        return lanes.constant(made.dtype, self.neutral_number(made), made.width)

    def combined(self, made: Accumulator, x: Value, y: Value, width: int) -> Value:
        """Two parts of a reduction as one."""
        return combine(self.at.builder, made.op, made.dtype, x, y, width)

    def accumulate(self, step: Step) -> None:
        """Add the element of this iteration."""
        made = self.accumulators[step]
        vector = made.vector
        is_row = vector in made.axes
        width = made.full if is_row else made.width
        values = [
            self.at.widened(
                self.at.converted(self.steps.value(x), x.dtype, made.dtype), width
            )
            for x in step.inputs
        ]
        pointer, at = made.pointer, number(0)
        is_array = made.axes and made.register is None
        if is_array:
            at = self.place_of(made)
            before = self.at.load_at(pointer, at, made.dtype, width)
        else:
            if made.register is not None:
                pointer = made.register
            before = self.at.builder.load(
                pointer, typ=lanes.register_type(made.dtype, width)
            )
        if isinstance(step.what, Contract):
            after = self.steps.multiplied(before, values, made.dtype, width)
        elif made.undefined is not None:
            after = self.extreme(made, before, values[0])
        else:
            after = self.combined(made, before, values[0], width)
        is_repeated = self.at.valid is not None and (vector in step.closed or is_row)
        if is_repeated:
            after = self.at.builder.select(self.at.valid, after, before)
        if is_array:
            self.at.store_at(pointer, at, after, made.dtype)
        else:
            self.at.builder.store(after, pointer)

    def extreme(self, made: Accumulator, before: Value, value: Value) -> Value:
        """The larger or smaller of two, where NaN and zeros are remembered elsewhere.

        One instruction; looking for them in what was found so far would make every
        iteration wait longer for the one before it. It does not matter if lanes of an
        earlier iteration are looked at once more.
        """
        kept = self.at.builder.load(made.undefined, typ=value.type)
        is_nan = self.at.builder.fcmp_unordered("uno", value, value)
        self.at.builder.store(
            self.at.builder.select(is_nan, value, kept), made.undefined
        )
        b = Floats(self.at.builder, made.dtype, made.width)
        bits = b.as_bits(b.wrap(value)).value
        lowest = self.at.builder.load(made.bits, typ=bits.type)
        is_lower = self.bits_below(made, bits, lowest)
        self.at.builder.store(self.at.builder.select(is_lower, bits, lowest), made.bits)
        return self.beyond(made, before, value, made.width)

    def bits_below(self, made: Accumulator, x: Value, y: Value) -> Value:
        """Whether bits come first: 0 does in a maximum, -0 in a minimum."""
        is_max = made.op is ops.max
        compare = (
            self.at.builder.icmp_unsigned if is_max else self.at.builder.icmp_signed
        )
        return compare("<", x, y)

    def finished_extreme(self, made: Accumulator, total: Value) -> Value:
        """A maximum or minimum with what `extreme` has remembered, lanes folded.

        Of equal numbers `extreme` takes the later one, so that 0 may have been lost to
        -0 in a maximum: it is back if it was there.
        """
        b = Floats(self.at.builder, made.dtype, made.width)
        zero = b.constant(0.0 if made.op is ops.max else -0.0)
        bits = b.as_bits(zero)
        lowest = self.at.builder.load(made.bits, typ=bits.value.type)
        was_there = b.compare("==", Vector(b, lowest, INTEGER), bits)
        undefined = b.wrap(self.at.builder.load(made.undefined, typ=total.type))
        is_nan = undefined.ne(undefined)
        if made.vector in made.step.closed and made.width > 1:
            flags = [self.at.spread(b.any(mask), 1) for mask in (was_there, is_nan)]
            total = self.folded(made, total, self.beyond)
            b = Floats(self.at.builder, made.dtype, 1)
            was_there, is_nan = (Vector(b, flag, MASK) for flag in flags)
            zero = b.constant(0.0 if made.op is ops.max else -0.0)
        found = b.wrap(total)
        found = b.select(found.eq(0.0) & was_there, zero, found)
        return b.select(is_nan, math.nan, found).value

    def beyond(self, made: Accumulator, x: Value, y: Value, width: int) -> Value:
        """The larger or smaller one; of equal ones the second, of NaN either."""
        is_beyond = self.at.builder.fcmp_ordered(SIDES[made.op], y, x)
        return self.at.builder.select(is_beyond, x, y)

    def into_register(self, made: Accumulator) -> tuple[Value, Type]:
        """Take the element of this iteration to a register; where it was, its type."""
        width = made.full if made.vector in made.axes else made.width
        kind = lanes.register_type(made.dtype, width)
        with self.at.at_entry():
            made.register = self.at.builder.alloca(kind)
        at = self.place_of(made)
        value = self.at.load_at(made.pointer, at, made.dtype, width)
        self.at.builder.store(value, made.register)
        return at, kind

    def place_of(self, made: Accumulator) -> Value:
        """The element of this iteration in an array that adds up."""
        at = self.at.offset(made.strides)
        for axis in made.tiles:
            if axis in made.strides:
                start = self.at.builder.mul(
                    self.at.origins[axis], number(made.strides[axis])
                )
                at = self.at.builder.sub(at, start)
        return self.at.builder.mul(at, number(made.width)) if made.lanes else at

    def finish(self, made: Accumulator) -> None:
        """The value of a reduction, now that its loop is over."""
        if made.is_left:
            return
        step = made.step
        memory = self.plan.storage.get(step)
        parts = self.kernel.partials.get(step)
        if step in self.kernel.slots:
            parts = None
        if not made.axes:
            total = self.at.builder.load(
                made.pointer, typ=lanes.register_type(made.dtype, made.width)
            )
            if made.undefined is not None:
                total = self.finished_extreme(made, total)
            else:
                kind = lanes.register_type(made.dtype, made.width)
                for pointer in made.totals:
                    above = self.at.builder.load(pointer, typ=kind)
                    total = self.combined(made, above, total, made.width)
                total = self.whole(made, total)
            if parts is not None:
                self.leave_part(made, parts, self.at.task, total)
                return
            value = self.at.converted(total, made.dtype, step.dtype)
            if self.plan.checks:
                fail_unless_finite(self.at, value, step.dtype)
            self.steps.values[step] = value
            if memory is not None:
                self.steps.write(memory, value)
            return
        assert memory is not None
        before = self.at.vector, self.at.width
        self.at.vector, self.at.width = made.vector, made.full
        self.elements(made, lambda: self.finish_element(made, memory, parts))
        self.at.vector, self.at.width = before

    def elements(self, made: Accumulator, body: Callable[[], None]) -> None:
        """Go through the elements of an array that has added up."""
        vector = made.vector

        def nest(axes: list[Axis]) -> None:
            if not axes:
                body()
                return
            axis, *rest = axes
            stride = made.full if axis is vector else 1
            size = made.tiles.get(axis, axis.extent)
            # What the last tile has in common with the one before is not added up
            # again: the totals are those of then.
            skip = self.at.skips.get(axis) if axis in made.tiles else None

            def iteration(at: Value) -> None:
                if stride > 1 and size % stride:
                    most = number(size - stride)
                    at = self.at.smaller(at, most)
                if stride > 1 and skip is not None:
                    self.at.valid = self.at.lanes_from(
                        self.at.builder.sub(skip, at), stride
                    )
                    self.at.is_repeating = True
                if axis in made.tiles:
                    at = self.at.builder.add(at, self.at.origins[axis])
                self.at.indices[axis] = at
                nest(rest)
                if stride > 1:
                    self.at.valid, self.at.is_repeating = None, False

            low = skip if skip is not None and stride == 1 else number(0)
            high = self.at.counts.get(axis) if axis in made.tiles else None
            high = number(size) if high is None else high
            self.at.for_range(low, high, stride, iteration)
            del self.at.indices[axis]

        nest(made.axes)

    def finish_element(
        self, made: Accumulator, memory: Storage, parts: Storage | None
    ) -> None:
        vector = made.vector
        width = made.full if vector in made.axes else made.width
        at = self.place_of(made)
        total = self.at.load_at(made.pointer, at, made.dtype, width)
        for pointer in made.totals:
            above = self.at.load_at(pointer, at, made.dtype, width)
            total = self.combined(made, above, total, width)
        total = self.whole(made, total)
        if parts is None:
            value = self.at.converted(total, made.dtype, made.step.dtype)
            if self.plan.checks:
                fail_unless_finite(self.at, value, made.step.dtype)
            self.steps.write(memory, value)
            return
        place = self.at.builder.add(
            self.at.offset(memory.strides),
            self.at.builder.mul(self.at.task, number(memory.size)),
        )
        if vector in made.axes and memory.strides.get(vector) != 1:
            stride = memory.strides[vector]
            for lane in range(width):
                here = self.at.builder.add(place, number(lane * stride))
                self.leave_part(made, parts, here, self.at.lane(total, lane))
        else:
            self.leave_part(made, parts, place, total)

    def leave_part(
        self, made: Accumulator, parts: Storage, place: Value, total: Value
    ) -> None:
        """What a task has added up, where others leave theirs."""
        self.at.store_at(self.at.pointer_to(parts), place, total, made.dtype)

    def whole(self, made: Accumulator, total: Value) -> Value:
        """What has added up in lanes, as one."""
        return self.folded(made, total, self.combined)

    def folded(self, made: Accumulator, total: Value, combined: Combination) -> Value:
        """The lanes of a reduction along the vector axis as one, as a tree."""
        if made.vector not in made.step.closed:
            return total
        width = made.width
        while width > 1:
            width //= 2
            halves = [
                self.at.builder.shuffle_vector(
                    total,
                    ir.Literal(total.type, ir.Undefined),
                    ir.Literal(
                        ir.VectorType(I32, width),
                        list(range(first, first + width)),
                    ),
                )
                for first in (0, width)
            ]
            total = combined(made, halves[0], halves[1], width)
        return total
