"""The values of Steps: what one iteration computes, as LLVM.

Each kind of Step is some instructions, on vectors. Failures leave a mark in the arena.

Start reading at `StepValues.computed`, then `load`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.types import DType
from tapejit.ir.node import OPS
from tapejit.loops.index import Affine, Range, strides_of
from tapejit.loops.kernels import Storage, accumulator
from tapejit.loops.schedule.schedule import is_long
from tapejit.loops.steps import Buffer, Compute, Load, Step, element_of
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import (
    I32,
    INT64,
    Addressing,
    lane_numbers,
    number,
    strays,
)
from tapejit.targets.cpu.nest.interleaved import deinterleaved
from tapejit.targets.cpu.nest.nonfinite_check import fail_unless_finite
from tapejit.targets.cpu.schedule.vectorize import row_part
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cpu.target import CPU
from tapejit.targets.walk import Steps


def holds_at(position: Affine, x: Range) -> bool | None:
    """Whether a position is in a Range; None if that is not known yet."""
    return None if position.terms else x.low <= position.constant < x.high


class StepValues(Steps[Value]):
    """Emits the values of Steps."""

    def __init__(self, at: Addressing) -> None:
        self.at, self.plan, self.kernel = at, at.plan, at.kernel
        self.values: dict[Step, Value] = {}
        self.read_before: set[Step] = set()  # by other loops of the outermost one

    def converted(self, value: Value, before: DType, after: DType) -> Value:
        return self.at.converted(value, before, after)

    def write(self, memory: Storage, value: Value) -> None:
        """The value of this iteration to memory."""
        self.at.write(memory, value)

    def keep(self, step: Step, value: Value) -> None:
        """Have a value at hand from now on, and in its memory if it has any."""
        if self.plan.checks and step.node is not None:
            fail_unless_finite(self.at, value, step.dtype)
        self.values[step] = value
        memory = self.plan.storage.get(step)
        if memory is not None:
            self.write(memory, value)

    def stored(self, step: Step) -> Value:
        return self.at.read(self.plan.storage[step])

    def constant(self, number: Any, dtype: DType) -> Value:
        return lanes.constant(dtype, number, 1)

    def index_value(self, position: Affine | Step) -> Value:
        assert isinstance(position, Affine)
        return self.at.affine(position)

    def computed(self, step: Step, what: Compute) -> Value:
        values = self.at.together([self.value(x) for x in step.inputs])
        width = values[0].type.count if values else 1
        dtypes = [x.dtype for x in step.inputs]
        if self.kernel.calls_formulas and is_long(step):
            function = self.shared(step, what, dtypes, width)
            return self.at.builder.call(function, values)
        return lanes.apply(
            self.at.builder, what.op, what.attrs, dtypes, step.dtype, values, width
        )

    def shared(
        self, step: Step, what: Compute, dtypes: list[DType], width: int
    ) -> Value:
        """A function that computes a Step, for all who need the same.

        In a large kernel long formulas would be repeated too often: what the calls cost
        is less than the time to compile.
        """
        module, width_name = self.at.function.module, f"x{width}"
        parts = [what.op.name, *(x.name for x in dtypes), step.dtype.name, width_name]
        parts += [f"{key}_{value}" for key, value in what.attrs.items()]
        name = f"{module.name}_{'_'.join(parts)}"
        kinds = [lanes.register_type(x, width) for x in dtypes]
        result = lanes.register_type(step.dtype, width)
        known = module.declared(name, result, kinds)
        if not known.blocks:
            known.linkage = "internal"
            known.attributes.add("noinline")
            builder = ir.IRBuilder(known.append_basic_block())
            value = lanes.apply(
                builder, what.op, what.attrs, dtypes, step.dtype, known.args, width
            )
            builder.ret(value)
        return known

    def contracted(self, step: Step) -> Value:
        dtype = accumulator(step.dtype)
        values = self.at.together(
            [self.converted(self.value(x), x.dtype, dtype) for x in step.inputs]
        )
        width = values[0].type.count
        zero = lanes.constant(dtype, 0, width)
        total = self.multiplied(zero, values, dtype, width)
        return self.converted(total, dtype, step.dtype)

    def chosen(self, step: Step, ranges: Sequence[Range]) -> Value:
        holds = self.condition(ranges)
        x, y = (self.value(v) for v in step.inputs)
        holds, x, y = self.at.together([holds, x, y])
        return self.at.builder.select(holds, x, y)

    def verified(self, step: Step, count: int) -> Value:
        value = self.value(step.inputs[0])
        self.fail_unless_below(value, step.dtype, count, 0)
        return value

    def checked_index(self, step: Step, size: int) -> Value:
        (given,) = step.inputs
        value = self.value(given)
        self.fail_unless_below(value, given.dtype, size, -size)
        width = value.type.count
        wide = self.converted(value, given.dtype, INT64)
        zero, most = self.at.whole(0, width), self.at.whole(size - 1, width)
        is_negative = self.at.builder.icmp_signed("<", wide, zero)
        wrapped = self.at.builder.add(wide, self.at.whole(size, width))
        wide = self.at.builder.select(is_negative, wrapped, wide)
        is_inside = self.at.builder.icmp_unsigned("<=", wide, most)
        return self.at.builder.select(is_inside, wide, zero)

    def affine_index(self, step: Step, factor: int, offset: int) -> Value:
        value = self.value(step.inputs[0])
        width = value.type.count
        value = self.at.builder.mul(value, self.at.whole(factor, width))
        return self.at.builder.add(value, self.at.whole(offset, width))

    def fail_unless_below(
        self, value: Value, dtype: DType, high: int, low: int
    ) -> None:
        """Leave a mark in the arena if a number is not in [low, high)."""
        width = value.type.count
        wide = self.converted(value, dtype, INT64)
        if dtype == np.uint64:
            is_good = self.at.builder.icmp_unsigned(
                "<", wide, self.at.whole(high, width)
            )
        else:
            is_good = self.at.builder.and_(
                self.at.builder.icmp_signed("<", wide, self.at.whole(high, width)),
                self.at.builder.icmp_signed(">=", wide, self.at.whole(low, width)),
            )
        self.at.fail_unless(is_good)

    def added_at(self, step: Step) -> Value:
        place, target, x, update = (self.value(v) for v in step.inputs)
        width = max(place.type.count, target.type.count)
        x, update = self.at.together([x, update], width)
        width = x.type.count
        dtype = step.dtype
        total = lanes.apply(
            self.at.builder, OPS["add"], {}, [dtype, dtype], dtype, [x, update], width
        )
        if target.type.count == 1 and place.type.count > 1:
            # Which lane it is: comparing positions of 64 bits would take longer.
            first = self.at.lane_number(place, 0)
            away = self.at.builder.sub(self.at.lane_number(target, 0), first)
            is_near = self.at.builder.icmp_unsigned("<", away, number(width))
            near = self.at.builder.select(is_near, away, number(-1))
            lane = self.at.spread(self.at.builder.trunc(near, I32), width)
            is_hit = self.at.builder.icmp_signed("==", lane, lane_numbers(width))
        else:
            place, target = self.at.together([place, target], width)
            is_hit = self.at.builder.icmp_signed("==", place, target)
        return self.at.builder.select(is_hit, total, x)

    def load(self, step: Step, what: Load) -> Value:
        rows = self.interleaved_load(step, what)
        if rows is not None:
            return rows
        source, pointer = what.source, self.origin_of(what.source)
        positions, memory, times = self.positions_of(what), None, 1
        if isinstance(source, Buffer):
            size = math.prod(source.shape) - self.at.first.get(source, 0)
        else:
            memory = self.plan.storage[source]
            size, times = memory.size, max(memory.lanes, 1)
        return self.load_from(step, pointer, positions, times, memory, size)

    def interleaved_load(self, step: Step, what: Load) -> Value | None:
        """One number of each row, of whole rows that lie along the vector axis.

        The vectors are the same for all numbers of these rows, so LLVM loads them once.
        """
        vector, width = self.at.vector, self.at.width
        if vector is None or vector.extent < width:
            return None
        place, size, first = Affine(), 0, 0
        if isinstance(what.source, Buffer):
            size = math.prod(what.source.shape)
            first = self.at.first.get(what.source, 0)
        else:
            memory = self.plan.storage[what.source]
            if memory.lanes or memory.tiled:
                return None
            size = memory.size
        for position, stride in self.positions_of(what):
            if isinstance(position, Step):
                return None
            place += position * stride
        place = self.at.known(place)
        part = row_part(place + first, vector, size)
        holds = [holds_at(self.at.known(x.position), x) for x in step.ranges]
        if part is None or None in holds:
            return None
        if not all(holds):
            return lanes.constant(step.dtype, 0, width)
        numbers, which = part
        pointer, begin = self.origin_of(what.source), self.at.scalar(place + -which)
        vectors = [
            self.at.load_at(
                pointer, self.at.builder.add(begin, number(at)), step.dtype, width
            )
            for at in range(0, numbers * width, width)
        ]
        return deinterleaved(self.at.builder, vectors, which)

    def origin_of(self, source: Buffer | Step) -> Value:
        """Where positions in memory count from: of an argument, what is read first."""
        if not isinstance(source, Buffer):
            return self.at.pointer_to(self.plan.storage[source])
        first = self.at.first.get(source, 0)
        return self.at.at_place(self.at.layout.place_of(source, first))

    def positions_of(self, what: Load) -> list[tuple[Step | Affine, int]]:
        """The positions of a load, each with how far apart neighbours are in memory."""
        source = what.source
        if isinstance(source, Buffer):
            place = element_of(what, source)
            if place is not None:
                return [(place + -self.at.first.get(source, 0), 1)]
        if what.flat:
            return [(what.index[0], 1)]
        if isinstance(source, Buffer):
            return list(zip(what.index, strides_of(source.shape), strict=True))
        strides = self.plan.storage[source].strides
        assert source.dims is not None
        pairs = zip(source.dims, what.index, strict=True)
        return [
            (position, strides[dim.root])
            for dim, position in pairs
            if dim is not None and dim.root in strides
        ]

    def load_from(
        self,
        step: Step,
        pointer: Value,
        positions: list[tuple[Step | Affine, int]],
        times: int,
        memory: Storage | None,
        size: int,
    ) -> Value:
        """Load where the positions say, from memory of so many elements.

        `times` is the size of an element in lanes.
        """
        total = Affine()
        moving: list[Value] = []
        for position, stride in positions:
            if isinstance(position, Step):
                value = self.value(position)
                moving.append(
                    self.at.builder.mul(value, self.at.whole(stride, value.type.count))
                )
            else:
                total += position * stride
        if memory is not None and memory.tiled:
            start = self.at.within_tile(memory, number(0))
            moving.append(self.at.spread(start, 1))
        vector, width = self.at.vector, self.at.width
        along = sum(f for axis, f in total.terms if axis.root is vector)
        holds = self.condition(step.ranges) if step.ranges else None
        is_uneven = any(x.type.count > 1 for x in moving)
        # Where every element is a vector, one position is that of all lanes.
        is_row = along == 0 if times > 1 else along == 1
        is_wide = holds is not None and holds.type.count > 1
        if not is_uneven and (is_row or (along == 0 and not is_wide)):
            base = self.at.scalar(total)
            for x in moving:
                base = self.at.builder.add(base, self.at.lane_number(x, 0))
            base = self.at.builder.mul(base, number(times)) if times > 1 else base
            if holds is not None and strays(total, size, step.dtype):
                base = self.at.brought_near(base, holds)
            if is_row and step in self.read_before:
                self.fetch_next(step, pointer, base, total)
            return self.at.guarded(step, pointer, base, width if is_row else 1, holds)
        places = self.at.together([self.at.affine(total), *moving], width)
        place = places[0]
        for x in places[1:]:
            place = self.at.builder.add(place, x)
        return self.at.gather_where(step, pointer, place, times, holds)

    def fetch_next(
        self, step: Step, pointer: Value, base: Value, place: Affine
    ) -> None:
        """Ask for what the next iteration of the outermost loop will load here.

        A row that is read for the second time is in the cache. Meanwhile the next one
        can be on its way.
        """
        loop = self.kernel.loop
        if loop is None or loop.axis is self.at.vector or loop.tile:
            return
        row = sum(f for axis, f in place.terms if axis.root is loop.axis)
        least = CPU.tuning.prefetched_row_least_bytes
        most = CPU.tuning.prefetched_row_most_bytes
        if not least <= row * step.dtype.itemsize <= most:
            return
        element = lanes.memory_type(step.dtype)
        at = self.at.builder.add(base, number(row))
        where = self.at.builder.gep(pointer, [at], source_etype=element)
        how = [ir.Literal(I32, x) for x in (0, 3, 1)]  # to read, to L1, data
        self.at.builder.intrinsic("llvm.prefetch.p0", ir.VoidType(), [where, *how])

    def condition(self, ranges: Sequence[Range]) -> Value:
        """Whether all Ranges hold."""
        first, *others = ranges
        found = self.inside(first)
        for x in others:
            found = self.at.builder.and_(*self.at.together([found, self.inside(x)]))
        return found

    def inside(self, x: Range) -> Value:
        """Whether a Range holds; a side that always does is not asked for."""
        low, high = x.position.span()
        # With room for the lanes beyond a short axis.
        factors = [abs(factor) for _, factor in x.position.terms]
        reach = max(-min(low, x.low), max(high, x.high)) + 64 * max([0, *factors])
        is_narrow = reach <= np.iinfo(np.int32).max
        kind: DType = np.dtype(np.int32 if is_narrow else np.int64)
        value = self.at.affine(x.position, kind)
        width, sides = value.type.count, []
        if low < x.low:
            least = lanes.constant(kind, x.low, width)
            sides.append(self.at.builder.icmp_signed(">=", value, least))
        if high >= x.high or not sides:
            most = lanes.constant(kind, x.high, width)
            sides.append(self.at.builder.icmp_signed("<", value, most))
        return sides[0] if len(sides) == 1 else self.at.builder.and_(*sides)

    def multiplied(
        self, before: Value, values: Sequence[Value], dtype: DType, width: int
    ) -> Value:
        """before + x * y, rounded once if these are floats."""
        x, y = values
        if dtype.kind in "biu":
            if dtype.kind == "b":
                return self.at.builder.or_(before, self.at.builder.and_(x, y))
            return self.at.builder.add(before, self.at.builder.mul(x, y))
        kind = lanes.register_type(dtype, width)
        name = f"llvm.fma.v{width}f{8 * dtype.itemsize}"
        return self.at.builder.intrinsic(name, kind, [x, y, before])
