"""Parallel reduction: accumulators of lanes and tasks, combined in a fixed order.

An `Accumulator` is set up before the outermost loop that a reduction goes along and
read after it. It is a register, or an array if its value has axes inside of that loop;
an element of an array is in a register while a loop adds to that element only. Its
lanes are folded as a tree in the end.

The order in which a sum adds its terms is a rule of its array (`sum_order`), whatever
loops it has. Where a chain ends, it is flushed into a total of its own, of which there
are several levels. Lanes of the rule that vectors do not have are *phases*, arrays of
their own. What tasks add up goes to *slots*, as many in any case: each has chains that
end where it does, and `combine_slots` adds them in the order that one task would.

Start reading at `Reductions.accumulator`.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.base.types import DType, is_float
from tapejit.ir.node import Op
from tapejit.loops.index import Axis, strides_of
from tapejit.loops.kernels import (
    LoopPlan,
    Slots,
    Storage,
    accumulator,
    bound,
)
from tapejit.loops.schedule.schedule import Loop, loops_in
from tapejit.loops.steps import Contract, Step
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, Type, Value, VectorType
from tapejit.targets.cpu.nest.addressing import (
    I32,
    number,
)
from tapejit.targets.cpu.nest.nonfinite_check import fail_unless_finite
from tapejit.targets.cpu.nest.step_values import StepValues
from tapejit.targets.cpu.schedule.sum_order import (
    SumLayout,
    chains_of,
    is_ordered,
    layout_of,
)
from tapejit.targets.cpu.simd import floats, lanes
from tapejit.targets.cpu.simd.storage import Floats
from tapejit.targets.cpu.simd.vector import INTEGER, MASK, Vector
from tapejit.targets.cpu.target import CPU

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


@dataclass(frozen=True)
class Flush:
    """After how many iterations of a loop a level of a sum is added to the next.

    With a `period`, that is only where the position in the axis is a multiple of it. A
    flush to a `slot` ends what a task adds up of so many elements.
    """

    loop: Loop
    every: int
    level: int
    around: frozenset[Axis]  # the axes of which the loop has one iteration at a time
    period: int = 0
    slot: int = 0
    first: int = 0  # of the levels that end there


class Accumulator:
    """Where a reduction adds up."""

    def __init__(
        self, step: Step, dtype: DType, layout: SumLayout, tiles: dict[Axis, int]
    ) -> None:
        self.step = step
        self.dtype = dtype
        self.layout = layout
        self.axes = layout.axes
        self.lanes = layout.has_lanes
        self.width = layout.width
        self.size = layout.elements
        self.is_ordered = False
        self.pointer: Value
        self.flushes: list[Flush] = []  # where a sum goes on from a new start
        self.totals: list[Value] = []  # what is flushed into, level by level
        self.undefined: Any = None  # the last NaN that a maximum or minimum has met
        self.bits: Any = None  # those of its elements that come first, as integers
        # Those of levels of one element of an array, while it is in use.
        self.registers: dict[int, Value] = {}
        self.vector: Axis | None = None
        self.full = 1  # lanes of a vector along it
        self.strides = dict(zip(layout.axes, strides_of(layout.sizes), strict=True))
        self.tiles = tiles
        self.is_array = bool(layout.axes) or layout.phases > 1
        self.is_loose = layout.each > 1 and layout.has_rest

    @property
    def op(self) -> Op:
        """The reduction."""
        return self.step.reduction

    @property
    def count(self) -> int:
        """How many levels there are."""
        return max([1, *(x.level + (1 if x.slot else 2) for x in self.flushes)])

    @property
    def levels(self) -> list[Value]:
        """All that it adds up in, from terms to totals."""
        return [self.pointer, *self.totals]

    def is_bound(self, around: Collection[Axis]) -> bool:
        """Whether one iteration of these axes has one element."""
        phased = {self.layout.axis} if self.layout.phases > 1 else set()
        return not self.is_loose and {*self.axes} | phased <= {*around}


def accumulator_of(plan: LoopPlan, step: Step, in_order: bool = True) -> Accumulator:
    """Where a reduction adds up, without memory; `in_order` of the rule, if it has one.

    A GPU adds up by threads and has another order.
    """
    tiles = {x.axis: x.tile for x in plan.homes[step] if x.tile}
    in_order = in_order and is_ordered(step)
    layout = layout_of(plan, step, in_order)
    made = Accumulator(step, accumulator(step.dtype), layout, tiles)
    made.vector, made.full = plan.lanes[step]
    if in_order:
        made.is_ordered, made.flushes = True, flushes_of(plan, made)
    return made


def copies_of(plan: LoopPlan, step: Step) -> int:
    """How many iterations go on together that have a sum of their own each."""
    return math.prod(loop.copies for loop in plan.homes[step])


def sum_arrays(plan: LoopPlan, step: Step) -> list[int]:
    """The bytes of each array that a reduction adds up in, none for registers."""
    made = accumulator_of(plan, step)
    if not made.is_array:
        return []
    slots = plan.kernels[plan.kernel_of[step]].slots.get(step)
    arrays = max(made.count * copies_of(plan, step), chain_levels(slots))
    return arrays * [made.layout.numbers * made.dtype.itemsize]


def chain_levels(slots: Slots | None) -> int:
    """How many levels there are of chains of what tasks leave."""
    if slots is None:
        return 0
    most = CPU.numerics.sum_chain_terms
    return next(x for x in count(1) if most**x >= slots.parts)


def flushes_of(plan: LoopPlan, made: Accumulator) -> list[Flush]:
    """Where chains of a sum end, and what an axis adds up to is a term.

    Axes are looked at from the inside. There is a level for terms and one more for
    each length of chains; where an axis begins anew, what is in those of the axes
    inside is collapsed into the first level of this one after each iteration.
    """
    step = made.step
    path, slots = plan.paths[step], plan.kernels[plan.kernel_of[step]].slots.get(step)
    slot = slots.length if slots else 0
    loops: dict[Axis, list[int]] = {}
    for at in reversed(range(len(plan.homes[step]), len(path))):
        if path[at].axis in step.closed:
            loops.setdefault(path[at].axis, []).append(at)
    assert list(loops) == [axis.root for axis in reversed(step.reduced)], step
    found: list[Flush] = []
    first = level = 0  # levels of an axis
    chains = chains_of(step)
    for axis, places in loops.items():
        if chains[axis].begins:
            at = places[0]
            around = frozenset(bound(path[:at]))
            for x in range(first, level + 1):
                found.append(Flush(path[at], 1, x, around))
            first = level = level + 1
        is_cut = slot > 0 and places[-1] == 0
        for length in chains[axis].ends:
            if is_cut and length >= slot:
                break
            found.append(flush_at(plan, made, places, length, level))
            level += 1
        if is_cut:
            end = flush_at(plan, made, places, slot, level)
            found.append(replace(end, slot=slot, first=first))
    return found


def flush_at(
    plan: LoopPlan, made: Accumulator, places: Sequence[int], length: int, level: int
) -> Flush:
    """The flush after so many elements of an axis, by the loops that this has."""
    path = plan.paths[made.step]
    inner, outer = path[places[0]], path[places[-1]]
    stride = made.full if inner.axis is made.vector else 1
    if inner is not outer and length % outer.tile == 0:
        around = frozenset(bound(path[: places[-1]]))
        return Flush(outer, length // outer.tile, level, around)
    around = frozenset(bound(path[: places[0]]))
    if inner is not outer and outer.tile % length:
        return Flush(inner, 1, level, around, period=length)
    return Flush(inner, length // stride, level, around)


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
        dtype, numbers = made.dtype, made.layout.numbers
        if made.is_array:
            # Iterations that go on together have arrays of their own.
            first = self.turns[step] % copies_of(self.plan, step) * made.count
            self.turns[step] += 1
            made.pointer, *made.totals = (
                self.at.private_memory((step, first + level), numbers, dtype)
                for level in range(made.count)
            )
        else:
            kind = lanes.register_type(dtype, made.width)
            with self.at.at_entry():
                made.pointer = self.at.builder.alloca(kind)
                made.totals = [
                    self.at.builder.alloca(kind) for _ in range(made.count - 1)
                ]
                if made.op in SIDES and dtype.kind not in "biu":
                    made.undefined = self.at.builder.alloca(kind)
                    made.bits = self.at.builder.alloca(integers_like(dtype, made.width))
        for pointer in made.levels:
            self.clear(made, pointer)
        if made.undefined is not None:
            self.at.builder.store(self.neutral(made), made.undefined)
        if made.bits is not None:
            # The bits of -1 and 1 are those of no zero.
            other = lanes.constant(dtype, -1 if made.op is ops.max else 1, made.width)
            start = self.at.builder.bitcast(other, integers_like(dtype, made.width))
            self.at.builder.store(start, made.bits)
        return made

    def place_to_add(self, step: Step) -> Accumulator:
        """Where a reduction adds up, without memory."""
        return accumulator_of(self.plan, step)

    def clear(self, made: Accumulator, pointer: Value) -> None:
        """Let a level begin with what changes nothing."""
        if not made.is_array:
            self.at.builder.store(self.neutral(made), pointer)
            return

        def part(at: Value, width: int) -> None:
            self.at.store_at(pointer, at, self.fill(made, width), made.dtype)

        self.along(number(0), made.layout.numbers, part)

    def along(
        self, start: Value, count: int, body: Callable[[Value, int], None]
    ) -> None:
        """Go through elements of an array in wide vectors, each of them once."""
        width = min(64, 1 << (count.bit_length() - 1))
        done = count // width * width

        def part(at: Value) -> None:
            body(self.at.builder.add(start, at), width)

        if done == width:
            part(number(0))
        else:
            self.at.for_range(number(0), number(done), width, part)
        while done < count:
            rest = 1 << ((count - done).bit_length() - 1)
            body(self.at.builder.add(start, number(done)), rest)
            done += rest

    # The order of additions

    def flush(self, made: Accumulator, at: Flush) -> None:
        """Add what a level has to the next one; it starts again from nothing."""
        source, target = made.levels[at.level : at.level + 2]
        if not made.is_array:
            kind = lanes.register_type(made.dtype, made.width)
            part = self.at.builder.load(source, typ=kind)
            total = self.at.builder.load(target, typ=kind)
            both = self.combined(made, total, part, made.width)
            self.at.builder.store(both, target)
            self.at.builder.store(self.neutral(made), source)
            return
        if made.registers:
            self.flush_element(made, at.level)
            return

        def body(at: Value, width: int) -> None:
            part = self.at.load_at(source, at, made.dtype, width)
            total = self.at.load_at(target, at, made.dtype, width)
            both = self.combined(made, total, part, width)
            self.at.store_at(target, at, both, made.dtype)
            self.at.store_at(source, at, self.fill(made, width), made.dtype)

        self.pieces(made, at.around, body)

    def pieces(
        self,
        made: Accumulator,
        around: Collection[Axis],
        body: Callable[[Value, int], None],
    ) -> None:
        """Go through what an array has for an iteration of the axes around."""
        start, count = number(0), made.width
        if made.vector in around and made.vector in made.axes:
            count = made.full
        loose: list[tuple[int, int]] = []  # sizes and strides of what is not in a row
        for axis in reversed(made.axes):
            size, stride = made.tiles.get(axis, axis.extent), made.strides[axis]
            stride *= made.width
            if axis in around:
                start = self.at.builder.add(start, self.distance(made, axis, stride))
            elif not loose and count == stride:
                count *= size
            else:
                loose.append((size, stride))
        layout = made.layout
        if layout.phases > 1:
            stride = layout.elements * layout.width
            if layout.axis in around:
                start = self.at.builder.add(start, self.phase_start(made))
            elif not loose and count == stride:
                count *= layout.phases
            else:
                loose.append((layout.phases, stride))

        def nest(loops: list[tuple[int, int]], start: Value) -> None:
            if not loops:
                self.along(start, count, body)
                return
            *rest, (size, stride) = loops
            self.at.for_range(
                number(0),
                number(size * stride),
                stride,
                lambda at: nest(rest, self.at.builder.add(start, at)),
            )

        nest(loose, start)

    def distance(self, made: Accumulator, axis: Axis, stride: int) -> Value:
        """How far the present iteration of an axis is from the first in an array."""
        index = self.at.indices[axis]
        if axis in made.tiles:
            index = self.at.builder.sub(index, self.at.origins[axis])
        return self.at.builder.mul(index, number(stride))

    def phase_start(self, made: Accumulator) -> Value:
        """Where the phase of the present iteration begins."""
        layout, b = made.layout, self.at.builder
        assert layout.axis is not None
        at, size = self.at.indices[layout.axis], layout.axis.extent
        phase = b.urem(b.udiv(at, number(layout.each)), number(layout.period))
        if layout.each == 1 and layout.has_rest:
            is_rest = b.icmp_signed(">=", at, number(layout.whole))
            phase = b.select(is_rest, b.sub(at, number(size - layout.lanes)), phase)
        return b.mul(phase, number(layout.elements * layout.width))

    def flush_element(self, made: Accumulator, level: int) -> None:
        """The same of one element of an array, which is in registers by now."""
        source, target = (made.registers[x] for x in (level, level + 1))
        width = made.full if made.vector in made.axes else made.width
        kind = lanes.register_type(made.dtype, width)
        part, total = (self.at.builder.load(x, typ=kind) for x in (source, target))
        both = self.combined(made, total, part, width)
        self.at.builder.store(both, target)
        self.at.builder.store(self.fill(made, width), source)

    def to_slot(self, made: Accumulator, at: Flush, place: Value) -> None:
        """Leave what a task has added up until a place of the outermost axis."""
        for level in range(at.first, at.level):
            self.flush(made, replace(at, level=level))
        source, layout = made.levels[at.level], made.layout
        base = self.at.pointer_to(self.kernel.partials[made.step])
        slot = self.at.builder.udiv(place, number(at.slot))
        start = self.at.builder.mul(slot, number(layout.numbers))
        if not made.is_array:
            kind = lanes.register_type(made.dtype, made.width)
            self.at.store_at(
                base, start, self.at.builder.load(source, typ=kind), made.dtype
            )
            self.clear(made, source)
            return

        def body(at: Value, width: int) -> None:
            part = self.at.load_at(source, at, made.dtype, width)
            self.at.store_at(base, self.at.builder.add(start, at), part, made.dtype)
            self.at.store_at(source, at, self.fill(made, width), made.dtype)

        self.along(number(0), layout.numbers, body)

    def combine_slots(self, step: Step) -> None:
        """The value of a sum from what tasks left: slots are chains of the axis."""
        most = CPU.numerics.sum_chain_terms
        made = accumulator_of(self.plan, step)
        made.is_array, made.flushes = True, []
        parts, dtype = self.kernel.slots[step].parts, made.dtype
        base, numbers = (
            self.at.pointer_to(self.kernel.partials[step]),
            made.layout.numbers,
        )
        levels = [
            self.at.private_memory((step, level), numbers, dtype)
            for level in range(chain_levels(self.kernel.slots[step]))
        ]
        made.pointer, *made.totals = levels

        def add_to(level: int, source: Value, start: Value, clears: bool) -> None:
            def body(at: Value, width: int) -> None:
                part = self.at.load_at(
                    source, self.at.builder.add(start, at), dtype, width
                )
                total = self.at.load_at(levels[level], at, dtype, width)
                both = self.combined(made, total, part, width)
                self.at.store_at(levels[level], at, both, dtype)
                if clears:
                    self.at.store_at(source, at, self.fill(made, width), dtype)

            self.along(number(0), numbers, body)

        def chains(level: int, low: Value, high: Value) -> None:
            """Slots from one to another, added up in a level."""
            if not level:
                self.at.for_range(
                    low,
                    high,
                    1,
                    lambda at: add_to(
                        0, base, self.at.builder.mul(at, number(numbers)), False
                    ),
                )
                return
            length = most**level

            def part(at: Value) -> None:
                end = self.at.smaller(self.at.builder.add(at, number(length)), high)
                chains(level - 1, at, end)
                add_to(level, levels[level - 1], number(0), True)

            self.at.for_range(low, high, length, part)

        for pointer in levels:
            self.clear(made, pointer)
        chains(len(levels) - 1, number(0), number(parts))
        self.finish(made)

    def fill(self, made: Accumulator, width: int) -> Value:
        """So many lanes of what changes nothing."""
        return lanes.constant(made.dtype, self.neutral_number(made), width)

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
        width = made.full if made.vector in made.axes else made.width
        values = [
            self.at.widened(
                self.at.converted(self.steps.value(x), x.dtype, made.dtype), width
            )
            for x in step.inputs
        ]
        if not made.is_loose:
            self.add_vector(made, values, width)
            return
        b, axis = self.at.builder, made.layout.axis
        assert axis is not None
        end = b.add(self.at.indices[axis], number(made.full))
        is_rest = b.icmp_signed(">", end, number(made.layout.whole))
        with b.if_else(is_rest) as (rest, others):
            with rest:
                self.add_lanes(made, values)
            with others:
                self.add_vector(made, values, width)

    def add_vector(
        self, made: Accumulator, values: Sequence[Value], width: int
    ) -> None:
        """Add one vector to another one."""
        pointer, at = made.pointer, number(0)
        is_array = made.is_array and not made.registers
        if is_array:
            at = self.place_of(made)
            before = self.at.load_at(pointer, at, made.dtype, width)
        else:
            pointer = made.registers.get(0, pointer)
            before = self.at.builder.load(
                pointer, typ=lanes.register_type(made.dtype, width)
            )
        after = self.with_term(made, before, values, width)
        is_repeated = made.vector in made.step.closed or made.vector in made.axes
        if self.at.valid is not None and is_repeated:
            after = self.at.builder.select(self.at.valid, after, before)
        if is_array:
            self.at.store_at(pointer, at, after, made.dtype)
        else:
            self.at.builder.store(after, pointer)

    def add_lanes(self, made: Accumulator, values: Sequence[Value]) -> None:
        """Add what lanes have that are in the rest of the long axis, to its lanes."""
        layout, b = made.layout, self.at.builder
        assert layout.axis is not None
        first = b.sub(
            self.at.indices[layout.axis], number(layout.axis.extent - layout.lanes)
        )
        start = self.element_at(made)
        for lane in range(made.full):
            with contextlib.ExitStack() as stack:
                if self.at.valid is not None:
                    stack.enter_context(
                        b.if_then(self.at.lane_number(self.at.valid, lane))
                    )
                place = b.add(first, number(lane))
                phase, place = (f(place, number(layout.each)) for f in (b.udiv, b.urem))
                at = b.mul(phase, number(layout.elements * layout.width))
                at = b.add(b.add(start, at), place)
                before = self.at.load_at(made.pointer, at, made.dtype, 1)
                terms = [self.at.lane(x, lane) for x in values]
                after = self.with_term(made, before, terms, 1)
                self.at.store_at(made.pointer, at, after, made.dtype)

    def with_term(
        self, made: Accumulator, before: Value, values: Sequence[Value], width: int
    ) -> Value:
        """What has been added up, and one more term."""
        if isinstance(made.step.what, Contract):
            return self.steps.multiplied(before, values, made.dtype, width)
        if made.undefined is not None:
            return self.extreme(made, before, values[0])
        return self.combined(made, before, values[0], width)

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

    def into_registers(self, made: Accumulator, loop: Loop) -> tuple[Value, Type]:
        """Take the element of this iteration to registers; where it was, its type.

        That is, the levels that are in use inside of a loop.
        """
        width = made.full if made.vector in made.axes else made.width
        kind = lanes.register_type(made.dtype, width)
        inside = [loop, *loops_in(loop.body)]
        used = {x.level for x in made.flushes if x.loop in inside}
        at = self.place_of(made)
        for level in sorted({0, *used, *(x + 1 for x in used)}):
            with self.at.at_entry():
                register = self.at.builder.alloca(kind)
            value = self.at.load_at(made.levels[level], at, made.dtype, width)
            self.at.builder.store(value, register)
            made.registers = {**made.registers, level: register}
        return at, kind

    def element_at(self, made: Accumulator) -> Value:
        """Where the element of this iteration is in each phase."""
        at = self.at.offset(made.strides)
        for axis in made.tiles:
            if axis in made.strides:
                start = self.at.builder.mul(
                    self.at.origins[axis], number(made.strides[axis])
                )
                at = self.at.builder.sub(at, start)
        return self.at.builder.mul(at, number(made.width)) if made.lanes else at

    def place_of(self, made: Accumulator) -> Value:
        """The element of this iteration in an array that adds up."""
        at = self.element_at(made)
        if made.layout.phases > 1:
            at = self.at.builder.add(at, self.phase_start(made))
        return at

    def finish(self, made: Accumulator) -> None:
        """The value of a reduction, now that its loop is over."""
        step = made.step
        memory = self.plan.storage.get(step)
        parts = self.kernel.partials.get(step)
        if any(x.slot for x in made.flushes):
            return  # all of it is in slots
        if step in self.kernel.slots:
            parts = None
        if not made.axes:
            if made.undefined is not None:
                total = self.at.builder.load(
                    made.pointer, typ=lanes.register_type(made.dtype, made.width)
                )
                total = self.finished_extreme(made, total)
            else:
                total = self.total_at(made, number(0), made.width)
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

        def nest(axes: Sequence[Axis]) -> None:
            if not axes:
                body()
                return
            axis, *rest = axes
            stride = made.full if axis is vector else 1
            size = made.tiles.get(axis, axis.extent)
            # What the last tile has in common with the one before is not added up
            # again: the totals are those of then.
            skip = self.at.skips.get(axis) if axis in made.tiles else None
            high = self.at.counts.get(axis) if axis in made.tiles else None
            high = number(size) if high is None else high

            def iteration(at: Value) -> None:
                if stride > 1 and (axis in self.at.counts or size % stride):
                    at = self.at.smaller(at, self.at.builder.sub(high, number(stride)))
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
            self.at.for_range(low, high, stride, iteration)
            del self.at.indices[axis]

        nest(made.axes)

    def finish_element(
        self, made: Accumulator, memory: Storage, parts: Storage | None
    ) -> None:
        vector = made.vector
        width = made.full if vector in made.axes else made.width
        total = self.total_at(made, self.element_at(made), width)
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

    def total_at(self, made: Accumulator, at: Value, width: int) -> Value:
        """All levels, phases and lanes of an element as one."""
        layout = made.layout
        apart = layout.elements * layout.width

        def phase(number_of: int) -> Value:
            here = self.at.builder.add(at, number(number_of * apart))
            total, *above = (self.level_at(made, x, here, width) for x in made.levels)
            for x in above:
                total = self.combined(made, x, total, width)
            return total

        found = [phase(x) for x in range(layout.phases)]
        half = layout.period
        while half > 1:
            half //= 2
            for low, high in zip(range(half), range(half, len(found)), strict=False):
                found[low] = self.combined(made, found[low], found[high], width)
            del found[half:]
        return self.whole(made, found[0])

    def level_at(
        self, made: Accumulator, pointer: Value, at: Value, width: int
    ) -> Value:
        """An element of a level."""
        if made.is_array:
            return self.at.load_at(pointer, at, made.dtype, width)
        return self.at.builder.load(pointer, typ=lanes.register_type(made.dtype, width))

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
