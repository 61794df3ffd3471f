"""One Kernel as the function of a thread.

`SimtEmitter` walks the loops of a kernel. Values are vectors of the kernel's width if
they vary with the thread axis, else of one lane, which all threads of a team compute.
What Steps compute is emitted as for a CPU (`StepValues`): the same lane expressions and
the same vector maths, so the same bits.

What one thread has written and others read is behind a barrier of the team. A thread
goes through the same places of the thread axis in every loop along it, so that what it
reads of its own places needs none.

Start reading at `SimtEmitter.go_through`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tapejit.base.types import DType
from tapejit.loops.index import Affine, Axis
from tapejit.loops.kernels import LoopNest, LoopPlan, Storage
from tapejit.loops.schedule.schedule import Loop, reads_its_own
from tapejit.loops.steps import Load, Step
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cpu.nest.nonfinite_check import fail_unless_finite
from tapejit.targets.cpu.nest.reductions import Accumulator
from tapejit.targets.cpu.nest.step_values import StepValues
from tapejit.targets.cuda.addressing import DeviceTable, SimtAddressing
from tapejit.targets.cuda.kernel import GPUFunction, SimtKernel, Transpose
from tapejit.targets.cuda.reductions import BlockReductions
from tapejit.targets.walk import Walk


class SimtEmitter(StepValues, Walk[Value, Accumulator]):
    """Walks one kernel: `at` is where code is emitted, `reductions` what adds up."""

    at: SimtAddressing
    kernel: SimtKernel

    def __init__(
        self,
        function: GPUFunction,
        plan: LoopPlan,
        kernel: SimtKernel,
        layout: DeviceTable,
    ) -> None:
        super().__init__(SimtAddressing(function, plan, kernel, layout))
        self.reductions = BlockReductions(self)
        self.exchanged = exchanged(plan, kernel)
        self.around: tuple[Axis, ...] = ()  # whose loops the code is in

    def emit(self) -> None:
        """The whole function; numbers are for one thread alone."""
        if self.kernel.loop is None and self.kernel.threads > 1:
            b = self.at.builder
            with b.if_then(b.icmp_signed("!=", self.at.thread, number(0))):
                b.ret_void()
        self.block(self.kernel.items, ())
        self.at.builder.ret_void()

    # Loops

    def go_through(self, loop: Loop, path: LoopNest) -> None:
        kernel = self.kernel
        if kernel.transpose is not None:
            self.tiles(kernel.transpose)
            return
        if not path and kernel.grid:
            self.units(lambda: self.within(loop, path))
            return
        if loop.axis in kernel.grid:  # an iteration of it is part of the unit
            self.within(loop, path)
            return
        is_written = any(x in self.exchanged for x in loop.steps())
        is_outside = kernel.vector not in self.around
        if is_written and is_outside and path:
            self.at.barrier()  # others may still read what was there before

        def body(at: Value) -> None:
            self.at.indices[loop.axis] = at
            self.within(loop, path)

        self.go_along(loop.axis, body, not path)
        if is_written and is_outside:
            self.at.barrier()

    def within(self, loop: Loop, path: LoopNest) -> None:
        """The body of a loop, in one iteration."""
        before, self.around = self.around, (*self.around, loop.axis)
        self.body(loop, path)
        self.around = before

    @property
    def is_repeated(self) -> bool:
        """Whether a thread may come here again: in a loop, or in another unit."""
        kernel = self.kernel
        has_turns = kernel.units > kernel.tasks
        return any(has_turns or axis not in kernel.grid for axis in self.around)

    def units(self, body: Callable[[], None]) -> None:
        """The units of this team, one after the other."""
        kernel, b = self.kernel, self.at.builder

        def unit(at: Value) -> None:
            left = at
            if kernel.chunks > 1:
                self.chunk = b.urem(left, number(kernel.chunks))
                left = b.udiv(left, number(kernel.chunks))
            for axis in reversed(kernel.grid[1:]):
                self.at.indices[axis] = b.urem(left, number(axis.extent))
                left = b.udiv(left, number(axis.extent))
            self.at.indices[kernel.grid[0]] = left
            body()

        self.at.strided(self.at.task, number(kernel.units), kernel.tasks, unit)

    def tiles(self, transpose: Transpose) -> None:
        """The tiles of this block: what is transposed first, then the Steps.

        Lines of a tile in shared memory are one element longer than a row, so that a
        warp meets different banks along a row and along a column.
        """
        at, kernel, b = self.at, self.kernel, self.at.builder
        across, along, side = transpose.across, kernel.vector, transpose.side
        assert along is not None
        pitch, lines = number(side + 1), kernel.threads // side
        lane, line = b.urem(at.thread, number(side)), b.udiv(at.thread, number(side))
        shared = {
            x: at.shared_array(side * (side + 1), x.dtype) for x in transpose.loads
        }
        sizes = [axis.extent for axis in kernel.grid]
        sizes += [transpose.tiles(across), transpose.tiles(along)]

        def each_line(
            first: Mapping[Axis, Value],
            warp: Axis,
            down: Axis,
            body: Callable[[Value, Value], None],
        ) -> None:
            """Warps go along one axis: `body(place there, place along the other)`."""
            for trip in range(side // lines):
                other = b.add(line, number(trip * lines))
                at.indices[warp] = b.add(first[warp], lane)
                at.indices[down] = b.add(first[down], other)
                is_inside = b.and_(
                    *(
                        b.icmp_signed("<", at.indices[x], number(x.extent))
                        for x in (warp, down)
                    )
                )
                with b.if_then(is_inside):
                    self.values = {}
                    body(lane, other)

        def unit(which: Value) -> None:
            *outer, row, column = at.unravelled(which, sizes)
            at.indices.update(zip(kernel.grid, outer, strict=True))
            first = {
                axis: b.mul(tile, number(side))
                for axis, tile in ((across, row), (along, column))
            }

            def bring(near: Value, far: Value) -> None:
                for x, tile in shared.items():
                    place = b.add(b.mul(far, pitch), near)
                    at.store_at(tile, place, self.value(x), x.dtype)

            def compute(near: Value, far: Value) -> None:
                for x, tile in shared.items():
                    place = b.add(b.mul(near, pitch), far)
                    self.values[x] = at.load_at(tile, place, x.dtype, 1)
                self.block(transpose.loops[-1].body, transpose.loops)

            each_line(first, across, along, bring)
            at.barrier()
            each_line(first, along, across, compute)
            if kernel.units > kernel.tasks:
                at.barrier()  # others may still read what is there

        self.around = tuple(loop.axis for loop in transpose.loops)
        at.strided(at.task, number(kernel.units), kernel.tasks, unit)

    def go_along(
        self, axis: Axis, body: Callable[[Value], None], is_outermost: bool = False
    ) -> None:
        """Those iterations of an axis that are this thread's."""
        at, kernel, b = self.at, self.kernel, self.at.builder
        if axis is not kernel.vector:
            at.strided(number(0), number(axis.extent), 1, body)
            return
        first, stride = at.rank, kernel.team * kernel.width
        if is_outermost:
            before = b.mul(at.task, number(kernel.team))
            first, stride = b.add(before, first), stride * kernel.tasks
        elif kernel.chunks > 1:
            before = b.mul(self.chunk, number(kernel.team))
            first, stride = b.add(before, first), 0
        first = b.mul(first, number(kernel.width))
        at.strided(first, number(axis.extent), stride, body)

    # Memory

    def write(self, memory: Storage, value: Value) -> None:
        axis = self.kernel.vector
        is_own = axis in memory.strides or axis in self.around or self.kernel.team == 1
        if memory.kernel is not None or is_own:
            super().write(memory, value)
            return
        with self.at.builder.if_then(self.at.is_first()):  # all threads have it
            super().write(memory, value)

    def keep(self, step: Step, value: Value) -> None:
        super().keep(step, value)
        if step in self.exchanged and self.kernel.vector not in self.around:
            self.at.barrier()

    def load_from(
        self,
        step: Step,
        pointer: Value,
        positions: list[tuple[Step | Affine, int]],
        times: int,
        memory: Storage | None,
        size: int,
    ) -> Value:
        total, width = Affine(), self.at.width
        is_aligned = True
        for position, stride in positions:
            if isinstance(position, Step):
                is_aligned &= stride % width == 0
            else:
                total += position * stride
        others = (f for axis, f in total.terms if axis.root is not self.kernel.vector)
        is_aligned &= not any(x % width for x in (total.constant, *others))
        with self.at.aligned_if(is_aligned or times > 1):
            return super().load_from(step, pointer, positions, times, memory, size)

    # Reductions

    def accumulator(self, step: Step) -> Accumulator:
        return self.reductions.accumulator(step)

    def accumulate(self, step: Step) -> None:
        self.reductions.accumulate(step)

    def finish(self, made: Accumulator) -> None:
        self.reductions.finish(made)
        if made.step in self.exchanged and self.kernel.vector not in self.around:
            self.at.barrier()

    def check_finite(self, value: Value, dtype: DType) -> None:
        """Leave a mark if the plan is checked, and a value is not finite."""
        if self.plan.checks:
            fail_unless_finite(self.at, value, dtype)

    def array_op(self, step: Step) -> None:
        raise AssertionError(f"{step} is a kernel of its own")


def exchanged(plan: LoopPlan, kernel: SimtKernel) -> frozenset[Step]:
    """The Steps whose values threads of a team read that others have written."""
    steps = list(kernel.steps())
    inside, found = set(steps), set[Step]()
    for user in steps:
        for x in user.needed():
            source = x.source if x.is_leaf or isinstance(x.what, Load) else x
            if not isinstance(source, Step) or source not in inside:
                continue
            memory = plan.storage.get(source)
            if memory is None or kernel.vector is None:
                continue
            is_along = kernel.vector in memory.strides
            if memory.kernel is not None and not is_along:
                continue  # each thread has its own
            is_own = source is x or reads_its_own(x, [kernel.vector])
            if not (is_along and is_own):
                found.add(source)
    return frozenset(found)
