"""Reductions over threads and blocks, always in the same order and without atomics.

Along the thread axis, lanes of a thread are folded as a tree, then those of a warp by
butterflies; each warp leaves one word, and all threads add up those words in order, so
all of them have the result. A sum whose value varies with the thread axis is an array
in which each thread has its own places.

Over teams, each leaves its part in the arena (`Kernel.partials`), and a second kernel
combines the parts in order (`combine`).

Start reading at `BlockReductions.over_team`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tapejit.base.types import DType
from tapejit.loops.index import Axis
from tapejit.loops.kernels import Storage
from tapejit.loops.steps import Step
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cpu.nest.reductions import (
    Accumulator,
    Reductions,
    accumulator_of,
)
from tapejit.targets.cpu.schedule.sum_order import SumLayout
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.target import CUDA

if TYPE_CHECKING:
    from tapejit.targets.cuda.simt import SimtEmitter


class BlockReductions(Reductions):
    """Emits what a thread does of reductions."""

    at: SimtAddressing
    steps: SimtEmitter

    def __init__(self, steps: SimtEmitter) -> None:
        super().__init__(steps)
        self.words: dict[DType, Value] = {}  # one of each warp

    def place_to_add(self, step: Step) -> Accumulator:
        return accumulator_of(self.plan, step, in_order=False)

    def accumulator(self, step: Step) -> Accumulator:
        made = self.place_to_add(step)
        if made.vector not in made.axes:
            return super().accumulator(step)
        self.accumulators[step] = made
        made.pointer = self.at.private_memory((step, 0), made.size, made.dtype)
        fill = lanes.constant(made.dtype, self.neutral_number(made), made.full)

        def clear() -> None:
            self.at.store_at(made.pointer, self.place_of(made), fill, made.dtype)

        self.elements(made, clear)
        return made

    def accumulate(self, step: Step) -> None:
        made = self.accumulators[step]
        with self.at.aligned_if(made.lanes or self.at.fits(made.strides)):
            super().accumulate(step)

    def elements(self, made: Accumulator, body: Callable[[], None]) -> None:
        """This thread's places of an array, or all of one that it has for itself."""

        def nest(axes: Sequence[Axis]) -> None:
            if not axes:
                with self.at.aligned_if(made.lanes or self.at.fits(made.strides)):
                    body()
                return
            axis, *rest = axes

            def iteration(at: Value) -> None:
                self.at.indices[axis] = at
                nest(rest)

            self.steps.go_along(axis, iteration)
            del self.at.indices[axis]

        nest(made.axes)

    def leave_part(
        self, made: Accumulator, parts: Storage, place: Value, total: Value
    ) -> None:
        if made.vector in made.axes:
            super().leave_part(made, parts, place, total)
            return
        with self.at.builder.if_then(self.at.is_first()):
            super().leave_part(made, parts, place, total)

    # Threads

    def whole(self, made: Accumulator, total: Value) -> Value:
        total = super().whole(made, total)
        is_over_threads = made.vector in made.step.closed
        return self.over_team(made, total) if is_over_threads else total

    def finished_extreme(self, made: Accumulator, total: Value) -> Value:
        total = super().finished_extreme(made, total)
        is_over_threads = made.vector in made.step.closed
        return self.over_team(made, total) if is_over_threads else total

    def over_team(self, made: Accumulator, total: Value) -> Value:
        """The combination over all threads of a team, in every one of them."""
        at, warp = self.at, CUDA.numerics.warp_threads
        distance = warp // 2
        while distance:
            other = at.from_lane(total, distance, made.dtype)
            total = self.combined(made, total, other, 1)
            distance //= 2
        warps = at.kernel.team // warp
        if warps <= 1:
            return total
        words = self.words.get(made.dtype)
        is_again = words is not None or self.steps.is_repeated or bool(made.axes)
        if words is None:
            words = at.shared_array(warps, made.dtype)
            self.words[made.dtype] = words
        b = at.builder
        if is_again:
            at.barrier()  # others may still read what an earlier sum has left
        lane = b.and_(at.rank, number(warp - 1))
        with b.if_then(b.icmp_signed("==", lane, number(0))):
            own = b.lshr(at.rank, number(warp.bit_length() - 1))
            at.store_at(words, own, total, made.dtype)
        at.barrier()
        total = at.load_at(words, number(0), made.dtype, 1)
        for which in range(1, warps):
            part = at.load_at(words, number(which), made.dtype, 1)
            total = self.combined(made, total, part, 1)
        return total

    # Blocks

    def combine(self, step: Step) -> None:
        """The value of a reduction from what the teams have left, in order.

        Of a number, the threads of one block take parts in turn. Of an array, each
        column of threads has one element and adds up as many runs of parts as there are
        rows of threads, which are then added up in order.
        """
        at, parts = self.at, self.kernel.partials[step]
        memory = self.plan.storage[step]
        made = Accumulator(step, parts.dtype, SumLayout(), {})
        base, out = at.pointer_to(parts), at.pointer_to(memory)
        kind = lanes.register_type(made.dtype, 1)
        with at.at_entry():
            total = at.builder.alloca(kind)
        at.builder.store(self.neutral(made), total)
        count, size = self.kernel.tasks, memory.size

        def take(where: Value) -> None:
            part = at.load_at(base, where, made.dtype, 1)
            before = at.builder.load(total, typ=kind)
            at.builder.store(self.combined(made, before, part, 1), total)

        def give(where: Value, value: Value) -> None:
            value = at.converted(value, made.dtype, memory.dtype)
            self.steps.check_finite(value, memory.dtype)
            at.store_at(out, where, value, memory.dtype)

        threads = at.function.threads
        if size == 1:
            at.strided(at.thread, number(count), threads, take)
            found = self.over_team(made, at.builder.load(total, typ=kind))
            with at.builder.if_then(at.is_first()):
                give(number(0), found)
            return
        columns = min(size, CUDA.numerics.warp_threads)
        rows = threads // columns
        run = -(-count // rows)
        b = at.builder
        row = b.udiv(at.thread, number(columns))
        column = b.urem(at.thread, number(columns))
        element = b.add(b.mul(at.block, number(columns)), column)
        inside = at.smaller(element, number(size - 1))
        low = b.mul(row, number(run * size))
        high = at.smaller(b.add(low, number(run * size)), number(count * size))
        low, high = (b.add(x, inside) for x in (low, high))
        at.strided(low, high, size, take)
        words = at.shared_array(threads, made.dtype)
        at.store_at(words, at.thread, b.load(total, typ=kind), made.dtype)
        at.block_barrier()
        is_mine = b.icmp_signed("<", at.thread, number(columns))
        is_there = b.icmp_signed("<", element, number(size))
        with b.if_then(b.and_(is_mine, is_there)):
            found = at.load_at(words, column, made.dtype, 1)
            for other in range(1, rows):
                place = b.add(column, number(other * columns))
                part = at.load_at(words, place, made.dtype, 1)
                found = self.combined(made, found, part, 1)
            give(element, found)
