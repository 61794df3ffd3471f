"""A loop nest as LLVM: vectors, tiles, the remainder of each, and tasks.

`KernelEmitter` walks the tree of loops of one kernel. Values are vectors: of the
kernel's width if they vary with its vector axis, else of one lane; what meets a wider
value is spread. The loop over the vector axis takes several iterations at a time; where
they do not divide its size, the last ones are done once more together with those before
them, and reductions leave them out the second time.

A reduction has an accumulator that is set up before the outermost loop it reduces along
and read after it: a register, or an array if its value has axes inside that loop. Long
sums are added up in blocks. If the outermost loop is cut into tasks, each task leaves
its part in the arena, and `combine` adds the parts in order. So the result does not
depend on the number of threads.

Start reading at `emit_kernel`.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tapejit.loops.index import Axis
from tapejit.loops.kernels import Kernel, LoopNest, LoopPlan, Storage, bound, task_grain
from tapejit.loops.schedule.schedule import Loop, cost, is_long
from tapejit.loops.steps import Load, Step
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import LLVMFunction, LLVMModule, Value
from tapejit.targets.cpu.matmul.tiled import TiledMatmul
from tapejit.targets.cpu.nest.addressing import (
    I32,
    I64,
    POINTER,
    Addressing,
    PointerTable,
    number,
)
from tapejit.targets.cpu.nest.interleaved import emit_packed_rows, packed_rows
from tapejit.targets.cpu.nest.nonfinite_check import fail_unless_finite
from tapejit.targets.cpu.nest.reductions import Accumulator, Reductions
from tapejit.targets.cpu.nest.row_draws import draw_rows
from tapejit.targets.cpu.nest.step_values import StepValues
from tapejit.targets.cpu.nest.transposed_copy import (
    crossing_copy,
    emit_transposed_copy,
)
from tapejit.targets.cpu.schedule.sum_order import Flush
from tapejit.targets.cpu.schedule.tile_roles import is_tiled_matmul
from tapejit.targets.cpu.schedule.vectorize import distance
from tapejit.targets.cpu.target import CPU
from tapejit.targets.walk import Walk, has_array_op, leaves_of

TASK = ir.FunctionType(ir.VoidType(), [POINTER, I64])


def emit_kernel(
    module: LLVMModule, plan: LoopPlan, kernel: Kernel, layout: PointerTable, name: str
) -> KernelEmitter:
    """A function `name(table, task)` that runs one task of a kernel.

    The table is the kernel's own: pointers to the `places` that it uses.
    """
    emitter = KernelEmitter(new_function(module, name), plan, kernel, layout)
    emitter.emit()
    return emitter


def new_function(module: LLVMModule, name: str) -> LLVMFunction:
    """A function of the kind that the driver calls, known in the module only."""
    function = ir.LLVMFunction(module, TASK, name)
    function.linkage = "internal"
    return function


@dataclass
class UnrolledIteration:
    """What is an iteration's own, while several go on together."""

    indices: dict[Axis, Value]
    values: dict[Step, Value]
    accumulators: dict[Step, Accumulator]


class KernelEmitter(StepValues, Walk[Value, Accumulator]):
    """Walks one kernel: `at` is where code is emitted, `reductions` what adds up."""

    def __init__(
        self,
        function: LLVMFunction,
        plan: LoopPlan,
        kernel: Kernel,
        layout: PointerTable,
    ) -> None:
        super().__init__(Addressing(function, plan, kernel, layout))
        self.reductions = Reductions(self)
        self.function, self.places = function, self.at.places
        self.preparations = self.at.preparations
        self.copies: list[UnrolledIteration] = []  # the iterations that go on together
        self.apart: frozenset[Axis] = frozenset()  # the axes in which they differ
        # What goes into rows that are stored when all of their numbers are there.
        self.columns: dict[Storage, list[Value]] = {}
        self.products: list[LLVMFunction] = []  # called for tiles of rows
        self.has_updates = any(x.output in plan.updates for x in kernel.steps())
        self.ready: set[Step] = set()  # those whose panels are packed beforehand

    @property
    def own(self) -> list[LLVMFunction]:
        """The functions of the kernel that no other kernel uses."""
        return [self.at.function, *dict.fromkeys(self.products)]

    def emit(self) -> None:
        """The whole function."""
        if self.kernel.parts < self.kernel.tasks:
            self.at.take_part()
        self.block(self.kernel.items, ())
        self.end()

    def end(self) -> None:
        """The end of the function."""
        if self.at.has_streamed:  # other threads are to see it as they see other stores
            self.at.builder.fence("seq_cst")
        self.at.leave()

    # Blocks and loops

    def needed_outside(self, item: Step | Loop, around: set[Axis]) -> list[Step]:
        """The leaves, and what a loop would read again and again from memory."""
        found = super().needed_outside(item, around)
        if not isinstance(item, Loop):
            return found
        storage, steps = self.plan.storage, list(item.steps())
        inside = set(steps)
        inputs = {x: None for step in steps for x in step.inputs if x not in inside}
        stored = [x for x in inputs if not x.is_leaf and x in storage]
        return found + [x for x in stored if storage[x].strides.keys() <= around]

    def loop(self, loop: Loop, path: LoopNest) -> None:
        super().loop(loop, path)
        if len(path) == 1:
            self.read_before.update(leaves_of(loop))

    def go_through(self, loop: Loop, path: LoopNest) -> None:
        at = self.at
        before = at.vector, at.width
        at.vector, at.width = loop.lanes or before
        if loop.tile and not any(outer.tile for outer in path):
            for step in loop.steps():
                if is_tiled_matmul(step):
                    self.row_product(step).prepare()
        rows = packed_rows(self, loop)
        copied = None if rows else crossing_copy(self, loop)
        with self.in_registers(loop, path):
            if rows:
                emit_packed_rows(self, loop, path, rows)
            elif copied is not None:
                emit_transposed_copy(self, loop, copied)
            elif any(outer.tile and outer.axis is loop.axis for outer in path):
                self.tile_loop(loop, path)
            else:
                self.whole_loop(loop, path)
        at.vector, at.width = before

    def iteration(
        self,
        loop: Loop,
        path: LoopNest,
        at: Value | int,
        stride: int,
        is_full: bool = False,
    ) -> None:
        """The body for `stride` iterations from `at` on, a number of Python or LLVM.

        The last ones of the axis are done together with some before them, unless
        `is_full` says that there are as many.
        """
        axis = loop.axis
        here = number(at) if isinstance(at, int) else at
        if loop.tile and axis is not self.at.vector and has_array_op(loop):
            self.at.origins[axis] = here
            self.at.skips[axis] = None
            self.at.counts[axis] = self.rows_at(loop, at, is_full)
            self.body(loop, path)
            return
        base, skip = here, None
        last = axis.extent - stride
        if stride > 1 and isinstance(at, int):
            if at > last:
                base, skip = number(last), number(at - last)
        elif stride > 1 and axis.extent % stride and not is_full:
            base = self.at.smaller(here, number(last))
            skip = self.at.builder.sub(here, base)
        if loop.tile:
            self.at.origins[axis] = base
            self.at.skips[axis] = skip
            self.body(loop, path)
            return
        if stride > 1:
            self.at.valid = None if skip is None else self.at.lanes_from(skip, stride)
        self.body_at(loop, path, base)
        if stride > 1:
            self.at.valid = None

    def rows_at(self, loop: Loop, at: Value | int, is_full: bool) -> Value:
        """How many rows a tile for products has: the last one may have fewer."""
        size, rest = loop.axis.extent, loop.axis.extent % loop.tile
        if isinstance(at, int):
            return number(min(loop.tile, size - at))
        if is_full or not rest:
            return number(loop.tile)
        is_last = self.at.builder.icmp_signed("==", at, number(size - rest))
        return self.at.builder.select(is_last, number(rest), number(loop.tile))

    def body_at(self, loop: Loop, path: LoopNest, at: Value) -> None:
        """The body of a loop in one iteration."""
        for _ in self.each_copy():
            self.at.indices[loop.axis] = at
        self.body(loop, path)

    def together_at(self, loop: Loop, path: LoopNest, at: Value) -> None:
        """The body of a loop for several iterations, which go on together."""
        outer, made = self.copies, []
        inside = set(loop.steps())
        for _ in self.each_copy():
            for place in range(loop.copies):
                index = self.at.builder.add(at, number(place)) if place else at
                made.append(
                    UnrolledIteration(
                        {**self.at.indices, loop.axis: index},
                        dict(self.values),
                        {
                            x: copy.copy(y) if x in inside else y
                            for x, y in self.reductions.accumulators.items()
                        },
                    )
                )
        self.copies = made
        self.apart |= {loop.axis}
        self.block(loop.body, (*path, loop))
        self.apart -= {loop.axis}
        self.copies = outer

    def each_copy(self) -> Iterator[None]:
        """Go through the iterations that go on together, one after the other."""
        if not self.copies:
            yield
            return
        for x in self.copies:
            outside = self.at.indices, self.values, self.reductions.accumulators
            self.at.indices, self.values = x.indices, x.values
            self.reductions.accumulators = x.accumulators
            yield
            x.values = self.values
            self.at.indices, self.values, self.reductions.accumulators = outside

    def known(self, step: Step) -> Value | None:
        """A value of this iteration that is in a register, or None.

        What does not differ between iterations that go on together is there once.
        """
        found = self.values.get(step)
        if found is None and self.copies and not step.labels & self.apart:
            found = self.copies[0].values.get(step)
        return found

    def whole_loop(self, loop: Loop, path: LoopNest) -> None:
        """All iterations of an axis, or those of this task."""
        kernel, axis = self.kernel, loop.axis
        is_vector = axis is self.at.vector
        stride = loop.tile or (self.at.width if is_vector else loop.copies)
        low, high = number(0), number(axis.extent)
        is_cut = not path and kernel.tasks > 1
        if kernel.inner_tasks > 1 and len(path) < 2:
            is_cut = True
            low, high = self.share(loop, is_inner=bool(path))
        elif is_cut:
            low = self.first_of(self.at.task)
            end = self.first_of(self.at.builder.add(self.at.task, number(1)))
            high = self.at.smaller(end, number(axis.extent))

        def body(at: Value | int, is_full: bool = False) -> None:
            if loop.copies > 1:
                self.together_at(loop, path, number(at) if isinstance(at, int) else at)
            else:
                self.iteration(loop, path, at, stride, is_full)

        trips, weight = math.ceil(axis.extent / stride), self.weight(loop.body)
        work = self.iteration_work(loop, path)
        rest = axis.extent % stride
        is_short = weight <= CPU.tuning.peeled_steps
        is_peeled = not is_cut and rest and is_short and trips > 1
        end = number(axis.extent - rest) if is_peeled else high

        def part(at: Value) -> None:
            body(at, is_full=bool(is_peeled))

        if self.flushes_in(loop):
            self.loop_in_blocks(loop, low, end, stride, part, work, bool(is_peeled))
        elif not is_cut and self.is_unrolled(loop):
            for trip in range(trips):
                body(trip * stride)
            return
        else:
            self.at.long_range(low, end, stride, part, work, axis.extent)
        if is_peeled:
            body(axis.extent - rest)

    def share(self, loop: Loop, is_inner: bool) -> tuple[Value, Value]:
        """What a task has of two loops: one iteration, and a part of the other one.

        That is of whole tiles, the last of which may end before its time, or of
        iterations that go on together.
        """
        parts, b = number(self.kernel.inner_tasks), self.at.builder
        if not is_inner:
            low = b.udiv(self.at.task, parts)
            return low, b.add(low, number(1))
        part, unit = b.urem(self.at.task, parts), loop.tile or loop.copies
        trips = number(math.ceil(loop.axis.extent / unit))
        low, high = (
            b.mul(b.udiv(b.mul(x, trips), parts), number(unit))
            for x in (part, b.add(part, number(1)))
        )
        return low, self.at.smaller(high, number(loop.axis.extent))

    def first_of(self, task: Value) -> Value:
        """Where a task begins: all are of the same size, or one grain larger."""
        loop, grain = self.kernel.loop, task_grain(self.kernel)
        assert loop is not None
        each, more = divmod(math.ceil(loop.axis.extent / grain), self.kernel.tasks)
        larger = self.at.smaller(task, number(more))
        grains = self.at.builder.add(self.at.builder.mul(task, number(each)), larger)
        return self.at.builder.mul(grains, number(grain))

    def iteration_work(self, loop: Loop, path: LoopNest) -> float:
        """About how many instructions one iteration of a loop takes."""
        total = 0.0
        for step in loop.steps():
            inner = self.plan.paths[step][len(path) + 1 :]
            # Inside of tiles there are loops along the same axis.
            axes = {x.axis for x in inner if x.axis is not loop.axis}
            total += cost(step) * math.prod(axis.hint for axis in axes)
        return total

    def is_unrolled(self, loop: Loop) -> bool:
        """Whether a loop is short enough to be written out."""
        stride = self.at.width if loop.axis is self.at.vector else 1
        trips = math.ceil(loop.axis.hint / stride)
        if loop.tile or trips > CPU.tuning.unrolled_iterations:
            return False
        return trips * self.weight(loop.body) <= CPU.tuning.unrolled_steps

    def weight(self, items: Sequence[Step | Loop]) -> int:
        """How many Steps a body is when it is written out."""
        total = 0
        for item in items:
            if not isinstance(item, Loop):
                total += self.step_weight(item)
            elif self.is_unrolled(item):
                stride = self.at.width if item.axis is self.at.vector else 1
                trips = math.ceil(item.axis.hint / stride)
                total += trips * self.weight(item.body)
            else:
                total += self.weight(item.body)
        return total

    def step_weight(self, step: Step) -> int:
        """The same of one Step: long formulas and elements from all over count more."""
        is_inlined = is_long(step) and not self.kernel.calls_formulas
        total = CPU.tuning.long_formula_steps if is_inlined else 1
        vector = self.at.vector
        if vector is None:
            return total
        for x in (step, *step.inputs):
            memory = self.plan.storage.get(x)
            apart: int | None = 0
            if memory is not None and not memory.lanes:
                apart = memory.strides.get(vector, 0)
            elif isinstance(x.what, Load):
                apart = distance(x, vector)
            total += self.at.width if apart not in (0, 1) else 0
        return total

    @contextlib.contextmanager
    def in_registers(self, loop: Loop, path: LoopNest) -> Iterator[None]:
        """Keep what adds up in one place of an array in a register during a loop."""
        around, kept = bound(path), []
        for _ in self.each_copy():
            for step in loop.steps():
                made = self.reductions.accumulators.get(step)
                if made is None or not made.axes or made.register is not None:
                    continue
                if set(made.axes) <= around:
                    kept.append((made, *self.reductions.into_register(made)))
        yield
        for made, at, kind in kept:
            value = self.at.builder.load(made.register, typ=kind)
            self.at.store_at(made.pointer, at, value, made.dtype)
            made.register = None

    def flushes_in(self, loop: Loop) -> list[int]:
        """After how many iterations of a loop sums are flushed, shortest first."""
        found = {x.every for _, x in self.flushes(loop)}
        return sorted(found)

    def flushes(self, loop: Loop) -> list[tuple[Accumulator, Flush]]:
        """The sums that this iteration flushes in a loop, from low levels to high."""
        pairs = [
            (x, y) for x in self.reductions.accumulators.values() for y in x.flushes
        ]
        found = [(x, y) for x, y in pairs if y.loop is loop]
        return sorted(found, key=lambda pair: pair[1].level)

    def flush_after(self, loop: Loop, every: int, at: Value) -> None:
        """Flush what is to be flushed after so many iterations from `at` on."""
        for _ in self.each_copy():
            for made, x in self.flushes(loop):
                if x.every == every and x.slot:
                    self.reductions.to_slot(made, x, at)
                elif x.every == every:
                    self.reductions.flush(made, x)

    def loop_in_blocks(
        self,
        loop: Loop,
        low: Value,
        high: Value,
        stride: int,
        body: Callable[[Value], None],
        work: float,
        goes_on: bool,
    ) -> None:
        """A loop whose long sums are flushed at the end of blocks of iterations.

        If it goes on after its end, a block that is not over by then does so, too.
        """
        first, *later = self.flushes_in(loop)

        def iteration(at: Value) -> None:
            body(at)
            if first == 1:
                self.flush_after(loop, 1, at)

        if first == 1 and not later:
            self.at.long_range(low, high, stride, iteration, work, loop.axis.extent)
            return
        block = later.pop(0) if first == 1 else first
        b = self.at.builder

        def part(at: Value) -> None:
            end = b.add(at, number(block * stride))
            last = self.at.smaller(end, high)
            self.at.for_range(at, last, stride, iteration)
            if not goes_on:
                end_block(at, end)
                return
            with b.if_then(b.icmp_signed("==", last, end)):
                end_block(at, end)

        def end_block(at: Value, end: Value) -> None:
            self.flush_after(loop, block, at)
            done = b.sub(end, low)
            for every in later:
                over = b.urem(done, number(every * stride))
                is_over = b.icmp_unsigned("==", over, number(0))
                if not goes_on:  # then this is the last one, whether or not it is full
                    is_over = b.or_(is_over, b.icmp_signed(">=", end, high))
                with b.if_then(is_over):
                    self.flush_after(loop, every, at)

        self.at.long_range(low, high, block * stride, part, work, loop.axis.extent)

    def tile_loop(self, loop: Loop, path: LoopNest) -> None:
        """The iterations of one tile: all at once, or one by one."""
        axis = loop.axis
        size = next(outer.tile for outer in path if outer.tile and outer.axis is axis)
        origin, skip = self.at.origins[axis], self.at.skips[axis]
        is_vector = axis is self.at.vector

        def body(at: Value) -> None:
            if is_vector and skip is not None:
                self.at.valid = self.at.lanes_from(
                    self.at.builder.sub(skip, at), self.at.width
                )
                self.at.is_repeating = True
            self.body_at(loop, path, self.at.builder.add(origin, at))
            self.at.valid, self.at.is_repeating = None, False
            self.flush_after(loop, 1, self.at.builder.add(origin, at))

        trips = size // self.at.width
        is_short = trips * self.weight(loop.body) <= CPU.tuning.unrolled_steps
        if is_vector and (trips == 1 or is_short):
            for trip in range(trips):
                body(number(trip * self.at.width))
        elif is_vector:
            self.at.for_range(number(0), number(size), self.at.width, body)
        else:
            first = number(0) if skip is None else skip
            self.at.for_range(first, self.at.counts.get(axis, number(size)), 1, body)

    def accumulator(self, step: Step) -> Accumulator:
        return self.reductions.accumulator(step)

    def accumulate(self, step: Step) -> None:
        self.reductions.accumulate(step)

    def finish(self, made: Accumulator) -> None:
        self.reductions.finish(made)

    def array_op(self, step: Step) -> None:
        if is_tiled_matmul(step):
            self.products += self.row_product(step).emit()
        else:
            draw_rows(self.at, step)

    def row_product(self, step: Step) -> TiledMatmul:
        """A product for the rows of a tile."""
        return TiledMatmul(self, step)

    def write(self, memory: Storage, value: Value) -> None:
        """The value of this iteration to memory.

        In the last tile, iterations that were done before are vectors' lanes once more,
        but loops that go one by one leave them out: what was kept for these lanes is of
        other iterations. Such lanes are not written. Nor are lanes that are done once
        more after an update: what they have read is the new value.
        """
        if memory in self.columns:
            self.columns[memory].append(self.at.widened(value, self.at.width))
            return
        if not self.is_partial(memory):
            super().write(memory, value)
            return
        assert self.at.vector is not None
        value = self.at.widened(value, self.at.width)
        at, pointer = self.at.place_in(memory), self.at.pointer_to(memory)
        stride = memory.strides[self.at.vector]
        # Of truncated integers, as halves are in memory, LLVM 22 may store a lone lane
        # before it truncates it, over what comes next.
        if stride == 1 and memory.dtype in (np.float32, np.float64):
            self.at.store_masked(pointer, at, value, memory.dtype, self.at.valid)
            return
        for lane in range(self.at.width):
            is_new = self.at.builder.extract_element(
                self.at.valid, ir.Literal(I32, lane)
            )
            with self.at.builder.if_then(is_new):
                here = self.at.builder.add(at, number(lane * stride))
                self.at.store_at(pointer, here, self.at.lane(value, lane), memory.dtype)

    def is_partial(self, memory: Storage) -> bool:
        """Whether only the lanes that are valid are written to memory."""
        is_again = self.at.is_repeating and memory.kernel is None
        is_again |= self.has_updates and self.at.valid is not None
        return is_again and self.at.vector in memory.strides

    # What tasks leave

    def combine(self, step: Step) -> None:
        """The value of a reduction from the parts that the tasks left, in order."""
        loop, parts = self.kernel.loop, self.kernel.partials[step]
        assert loop is not None
        tasks = self.kernel.tasks
        memory = self.plan.storage[step]
        made = Accumulator(step, parts.dtype, [], False, 1, {})
        base, out = self.at.pointer_to(parts), self.at.pointer_to(memory)
        width = min(16, 1 << (memory.size.bit_length() - 1))
        last = number(memory.size - width)

        def body(at: Value) -> None:
            at = self.at.smaller(at, last)
            total = self.at.load_at(base, at, made.dtype, width)
            for task in range(1, tasks):
                here = self.at.builder.add(at, number(task * memory.size))
                part = self.at.load_at(base, here, made.dtype, width)
                total = self.reductions.combined(made, total, part, width)
            value = self.converted(total, made.dtype, memory.dtype)
            if self.plan.checks:
                fail_unless_finite(self.at, value, memory.dtype)
            self.at.store_at(out, at, value, memory.dtype)

        self.at.for_range(number(0), number(memory.size), width, body)


def emit_combination(
    module: LLVMModule, plan: LoopPlan, kernel: Kernel, layout: PointerTable, name: str
) -> KernelEmitter:
    """A function `name(table, 0)` that adds up what the tasks of a kernel left."""
    emitter = KernelEmitter(new_function(module, name), plan, kernel, layout)
    for step in kernel.partials:
        if step in kernel.slots:
            emitter.reductions.combine_slots(step)
        else:
            emitter.combine(step)
    emitter.end()
    return emitter
