"""A kernel as LLVM: loops of vectors, from a plan.

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
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir

from tapejit.codegen import lanes
from tapejit.codegen.cursor import (
    I32,
    I64,
    POINTER,
    Layout,
    lane_numbers,
    number,
)
from tapejit.codegen.finite import fail_unless_finite
from tapejit.codegen.step_values import StepValues
from tapejit.ir.node import OPS
from tapejit.passes.fusion.index import Axis, strides_of
from tapejit.passes.fusion.kernels import (
    Kernel,
    Path,
    Plan,
    Storage,
    accumulator,
    bound,
    grain_of,
    inner_axes,
)
from tapejit.passes.fusion.schedule import Loop, cost, is_leaf
from tapejit.passes.fusion.steps import Step
from tapejit.types import DType

TASK = ir.FunctionType(ir.VoidType(), [POINTER, I64])
UNROLLED: Final = 16  # loops of no more iterations are written out
MOST_UNROLLED: Final = 24  # Steps that are written out so
PEELED: Final = 40  # Steps that are worth writing twice, for a loop without masks
BLOCK: Final = 64  # iterations whose sum is a number of its own
COMBINES: Final = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "all": "bitwise_and",
    "any": "bitwise_or",
}


def emit_kernel(
    module: Any, plan: Plan, kernel: Kernel, layout: Layout, name: str
) -> KernelEmitter:
    """A function `name(table, task)` that runs one task of a kernel.

    The table is the kernel's own: pointers to the `places` that it uses.
    """
    emitter = KernelEmitter(new_function(module, name), plan, kernel, layout)
    emitter.emit()
    return emitter


def new_function(module: Any, name: str) -> Any:
    """A function of the kind that the driver calls, known in the module only."""
    function = ir.Function(module, TASK, name)
    function.linkage = "internal"
    return function


def identity(op: str, dtype: DType) -> Any:
    """The number that changes nothing."""
    if op in ("sum", "any"):
        return 0
    if op in ("prod", "all"):
        return 1
    lowest = op == "max"
    if dtype.kind == "b":
        return not lowest
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max
    return -math.inf if lowest else math.inf


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
        self.pointer: Any = None
        self.block: Any = None  # of the current block, if sums are made in blocks
        self.is_in_blocks = False
        self.register: Any = None  # of one element of an array, while it is in use
        self.vector: Axis | None = None
        self.full = 1  # lanes of a vector along it
        sizes = [tiles.get(axis, axis.size) for axis in axes]
        self.strides = dict(zip(axes, strides_of(sizes), strict=True))
        self.size = math.prod(sizes)
        self.tiles = tiles

    @property
    def op(self) -> str:
        """The name of the reduction."""
        return self.step.reduction


class KernelEmitter(StepValues):
    """Emits one kernel; `builder` is where it has got to."""

    def __init__(
        self, function: Any, plan: Plan, kernel: Kernel, layout: Layout
    ) -> None:
        super().__init__(function, plan, kernel, layout)
        self.valid: Any = None  # lanes that are here for the first time
        self.skips: dict[Axis, Any] = {}  # iterations of a tile done before
        self.accumulators: dict[Step, Accumulator] = {}

    def emit(self) -> None:
        """The whole function."""
        self.block(self.kernel.items, ())
        self.builder.ret_void()

    # Blocks and loops

    def block(self, items: Sequence[Step | Loop], path: Path) -> None:
        """A body: its Steps and loops in order, leaves where they are first needed."""
        around = bound(path)
        for item in items:
            inside = set(item.steps()) if isinstance(item, Loop) else ()
            for leaf in leaves_of(item):
                is_ready = leaf.labels <= around and leaf.source not in inside
                if is_ready and leaf not in self.values:
                    self.values[leaf] = self.step(leaf)
            if isinstance(item, Loop):
                self.loop(item, path)
            else:
                self.run(item)

    def loop(self, loop: Loop, path: Path) -> None:
        """A loop, with the reductions that begin and end with it."""
        plan = self.plan
        closing = [
            step
            for step in loop.steps()
            if step.closed and plan.homes[step] == path and loop in plan.paths[step]
        ]
        made = [self.accumulator(step) for step in closing]
        saved, before = self.values, (self.vector, self.width)
        if loop.lanes is not None:
            self.vector, self.width = loop.lanes
        with self.in_registers(loop, path):
            if any(outer.tile and outer.axis is loop.axis for outer in path):
                self.tile_loop(loop, path)
            else:
                self.whole_loop(loop, path, made)
        self.vector, self.width = before
        self.values = saved
        for x in made:
            self.finish(x)

    def iteration(self, loop: Loop, path: Path, at: Any, stride: int) -> None:
        """The body for `stride` iterations from `at` on, a number of Python or LLVM.

        The last ones of the axis are done together with some before them.
        """
        axis, outer = loop.axis, self.values
        self.values = dict(outer)
        base, skip = at, None
        last = axis.size - stride
        if stride > 1 and isinstance(at, int):
            base = min(at, last)
            skip = number(at - base) if at != base else None
        elif stride > 1 and axis.size % stride and not loop_is_full(at):
            is_inside = self.builder.icmp_signed("<", at, number(last))
            base = self.builder.select(is_inside, at, number(last))
            skip = self.builder.sub(at, base)
        base = number(base) if isinstance(base, int) else base
        if loop.tile:
            self.origins[axis] = base
            self.skips[axis] = skip
        else:
            self.indices[axis] = base
        if stride > 1 and not loop.tile:
            self.valid = None if skip is None else self.lanes_from(skip, stride)
        self.block(loop.body, (*path, loop))
        if stride > 1 and not loop.tile:
            self.valid = None
        self.values = outer

    def lanes_from(self, skip: Any, width: int) -> Any:
        """The lanes from a number on."""
        first = self.builder.trunc(skip, I32)
        return self.builder.icmp_signed(
            ">=", lane_numbers(width), self.spread(first, width)
        )

    def whole_loop(self, loop: Loop, path: Path, made: list[Accumulator]) -> None:
        """All iterations of an axis, or those of this task."""
        kernel, axis = self.kernel, loop.axis
        is_vector = axis is self.vector
        stride = loop.tile or (self.width if is_vector else 1)
        low, high, count = number(0), number(axis.size), axis.size
        is_cut = not path and kernel.tasks > 1
        if is_cut:
            count = chunk(kernel)
            low = self.builder.mul(self.task, number(count))
            end = self.builder.add(low, number(count))
            is_last = self.builder.icmp_signed("<", end, number(axis.size))
            high = self.builder.select(is_last, end, number(axis.size))

        def body(at: Any) -> None:
            self.iteration(loop, path, at, stride)

        trips, weight = math.ceil(axis.size / stride), self.weight(loop.body)
        sums = [x for x in made if x.block is not None]
        if sums and count > 4 * BLOCK * stride:
            self.loop_in_blocks(loop, path, sums, low, high, stride, body)
            return
        for x in sums:
            x.block = None
        if not is_cut and self.is_unrolled(loop):
            for trip in range(trips):
                body(trip * stride)
        elif not is_cut and axis.size % stride and weight <= PEELED and trips > 1:
            full = axis.size - axis.size % stride
            work = self.iteration_work(loop, path)
            self.long_range(
                low,
                number(full),
                stride,
                lambda at: body(known_full(at)),
                work,
                axis.size,
            )
            body(full)
        else:
            work = self.iteration_work(loop, path)
            self.long_range(low, high, stride, body, work, axis.size)

    def iteration_work(self, loop: Loop, path: Path) -> float:
        """About how many instructions one iteration of a loop takes."""
        total = 0.0
        for step in loop.steps():
            inner = self.plan.paths[step][len(path) + 1 :]
            # Inside of tiles there are loops along the same axis.
            sizes = [x.axis.size for x in inner if x.axis is not loop.axis]
            total += cost(step) * math.prod(sizes)
        return total

    def is_unrolled(self, loop: Loop) -> bool:
        """Whether a loop is short enough to be written out."""
        stride = self.width if loop.axis is self.vector else 1
        trips = math.ceil(loop.axis.size / stride)
        if loop.tile or trips > UNROLLED:
            return False
        return trips * self.weight(loop.body) <= MOST_UNROLLED

    def weight(self, items: Sequence[Step | Loop]) -> int:
        """How many Steps a body is when it is written out."""
        total = 0
        for item in items:
            if not isinstance(item, Loop):
                total += 1
            elif self.is_unrolled(item):
                stride = self.width if item.axis is self.vector else 1
                trips = math.ceil(item.axis.size / stride)
                total += trips * self.weight(item.body)
            else:
                total += self.weight(item.body)
        return total

    @contextlib.contextmanager
    def in_registers(self, loop: Loop, path: Path) -> Iterator[None]:
        """Keep what adds up in one place of an array in a register during a loop."""
        around, kept = bound(path), []
        for step in loop.steps():
            made = self.accumulators.get(step)
            if made is None or not made.axes or made.register is not None:
                continue
            if set(made.axes) <= around:
                width = made.full if made.vector in made.axes else made.width
                kind = lanes.register_type(made.dtype, width)
                with self.at_entry():
                    made.register = self.builder.alloca(kind)
                at = self.place_of(made)
                value = self.load_at(made.pointer, at, made.dtype, width)
                self.builder.store(value, made.register)
                kept.append((made, at, kind))
        yield
        for made, at, kind in kept:
            value = self.builder.load(made.register, typ=kind)
            self.store_at(made.pointer, at, value, made.dtype)
            made.register = None

    def loop_in_blocks(
        self,
        loop: Loop,
        path: Path,
        sums: list[Accumulator],
        low: Any,
        high: Any,
        stride: int,
        body: Callable[[Any], None],
    ) -> None:
        """A loop whose sums are made of the sums of blocks: less rounding."""

        def part(first: Any) -> None:
            for x in sums:
                self.builder.store(self.neutral(x), x.block)
            end = self.builder.add(first, number(BLOCK * stride))
            is_last = self.builder.icmp_signed("<", end, high)
            self.for_range(first, self.builder.select(is_last, end, high), stride, body)
            for x in sums:
                kind = lanes.register_type(x.dtype, x.width)
                total = self.builder.load(x.pointer, typ=kind)
                block = self.builder.load(x.block, typ=kind)
                both = self.combined(x, total, block, x.width)
                self.builder.store(both, x.pointer)

        for x in sums:
            x.is_in_blocks = True
        work = self.iteration_work(loop, path)
        self.long_range(low, high, BLOCK * stride, part, work, loop.axis.size)

    def tile_loop(self, loop: Loop, path: Path) -> None:
        """The iterations of one tile: all at once, or one by one."""
        axis = loop.axis
        size = next(outer.tile for outer in path if outer.tile and outer.axis is axis)
        origin, skip = self.origins[axis], self.skips[axis]
        inside, outer_values = (*path, loop), self.values
        is_vector = axis is self.vector

        def body(at: Any) -> None:
            self.values = dict(outer_values)
            self.indices[axis] = self.builder.add(origin, at)
            if is_vector and skip is not None:
                self.valid = self.lanes_from(self.builder.sub(skip, at), self.width)
            self.block(loop.body, inside)
            self.valid = None

        trips = size // self.width
        is_short = trips * self.weight(loop.body) <= MOST_UNROLLED
        if is_vector and (trips == 1 or is_short):
            for trip in range(trips):
                body(number(trip * self.width))
        elif is_vector:
            self.for_range(number(0), number(size), self.width, body)
        else:
            first = number(0) if skip is None else skip
            self.for_range(first, number(size), 1, body)
        self.values = outer_values

    def run(self, step: Step) -> None:
        """A Step of a body, and the writing of its value."""
        if step.closed:
            self.accumulate(step)
            return
        value = self.step(step)
        if self.plan.checks and step.node is not None:
            fail_unless_finite(self, value, step.dtype)
        self.values[step] = value
        memory = self.plan.storage.get(step)
        if memory is not None:
            self.write(memory, value)

    # Reductions

    def accumulator(self, step: Step) -> Accumulator:
        """Set up before the loop."""
        plan = self.plan
        around = bound(plan.homes[step])
        axes = inner_axes(plan, step)
        vector, full = plan.lanes[step]
        if vector in axes:
            axes.remove(vector)
            axes.append(vector)
        has_lanes = vector in step.closed or (vector in around & step.labels)
        width = full if has_lanes else 1
        dtype = accumulator(step.dtype)
        tiles = {x.axis: x.tile for x in plan.homes[step] if x.tile}
        made = Accumulator(step, dtype, axes, has_lanes, width, tiles)
        made.vector, made.full = vector, full
        self.accumulators[step] = made
        kind = lanes.register_type(dtype, width)
        if not axes:
            with self.at_entry():
                made.pointer = self.builder.alloca(kind)
                if made.op == "sum":
                    made.block = self.builder.alloca(kind)
            self.builder.store(self.neutral(made), made.pointer)
            return made
        made.pointer = self.private_memory(made.size * width, dtype)
        whole = made.size * width
        step_width = min(64, 1 << (whole.bit_length() - 1))
        fill = lanes.constant(dtype, self.neutral_number(made), step_width)
        last = number(whole - step_width)

        def clear(at: Any) -> None:
            is_inside = self.builder.icmp_signed("<", at, last)
            base = self.builder.select(is_inside, at, last)
            self.store_at(made.pointer, base, fill, dtype)

        self.for_range(number(0), number(whole), step_width, clear)
        return made

    def neutral_number(self, made: Accumulator) -> Any:
        return identity(made.op, made.dtype)

    def neutral(self, made: Accumulator) -> Any:
        return lanes.constant(made.dtype, self.neutral_number(made), made.width)

    def combined(self, made: Accumulator, x: Any, y: Any, width: int) -> Any:
        """Two parts of a reduction as one."""
        op = OPS[COMBINES[made.op]]
        dtype = made.dtype
        return lanes.apply(self.builder, op, {}, [dtype, dtype], dtype, [x, y], width)

    def accumulate(self, step: Step) -> None:
        """Add the element of this iteration."""
        made = self.accumulators[step]
        vector = made.vector
        is_row = vector in made.axes
        width = made.full if is_row else made.width
        values = [
            self.widened(self.converted(self.value(x), x.dtype, made.dtype), width)
            for x in step.inputs
        ]
        pointer, at = made.pointer, None
        is_array = made.axes and made.register is None
        if is_array:
            at = self.place_of(made)
            before = self.load_at(pointer, at, made.dtype, width)
        else:
            if made.register is not None:
                pointer = made.register
            elif made.is_in_blocks:
                pointer = made.block
            before = self.builder.load(
                pointer, typ=lanes.register_type(made.dtype, width)
            )
        if step.kind == "contract":
            after = self.multiplied(before, values, made.dtype, width)
        else:
            after = self.combined(made, before, values[0], width)
        is_repeated = self.valid is not None and (vector in step.closed or is_row)
        if is_repeated:
            after = self.builder.select(self.valid, after, before)
        if is_array:
            self.store_at(pointer, at, after, made.dtype)
        else:
            self.builder.store(after, pointer)

    def place_of(self, made: Accumulator) -> Any:
        """The element of this iteration in an array that adds up."""
        at = self.offset(made.strides)
        for axis in made.tiles:
            if axis in made.strides:
                start = self.builder.mul(self.origins[axis], number(made.strides[axis]))
                at = self.builder.sub(at, start)
        return self.builder.mul(at, number(made.width)) if made.lanes else at

    def finish(self, made: Accumulator) -> None:
        """The value of a reduction, now that its loop is over."""
        step = made.step
        memory = self.plan.storage.get(step)
        parts = self.kernel.partials.get(step)
        if not made.axes:
            total = self.builder.load(
                made.pointer, typ=lanes.register_type(made.dtype, made.width)
            )
            total = self.folded(made, total)
            if parts is not None:
                base = self.pointer_to(parts)
                self.store_at(base, self.task, total, made.dtype)
                return
            value = self.converted(total, made.dtype, step.dtype)
            if self.plan.checks:
                fail_unless_finite(self, value, step.dtype)
            self.values[step] = value
            if memory is not None:
                self.write(memory, value)
            return
        assert memory is not None
        vector, before = made.vector, (self.vector, self.width)
        self.vector, self.width = made.vector, made.full

        def nest(axes: list[Axis]) -> None:
            if not axes:
                self.finish_element(made, memory, parts)
                return
            axis, *rest = axes
            stride = made.full if axis is vector else 1
            size = made.tiles.get(axis, axis.size)

            def body(at: Any) -> None:
                if stride > 1 and size % stride:
                    most = number(size - stride)
                    is_inside = self.builder.icmp_signed("<", at, most)
                    at = self.builder.select(is_inside, at, most)
                if axis in made.tiles:
                    at = self.builder.add(at, self.origins[axis])
                self.indices[axis] = at
                nest(rest)

            self.for_range(number(0), number(size), stride, body)
            del self.indices[axis]

        nest(made.axes)
        self.vector, self.width = before

    def finish_element(
        self, made: Accumulator, memory: Storage, parts: Storage | None
    ) -> None:
        vector = made.vector
        width = made.full if vector in made.axes else made.width
        at = self.place_of(made)
        total = self.folded(made, self.load_at(made.pointer, at, made.dtype, width))
        if parts is None:
            value = self.converted(total, made.dtype, made.step.dtype)
            if self.plan.checks:
                fail_unless_finite(self, value, made.step.dtype)
            self.write(memory, value)
            return
        place = self.builder.add(
            self.offset(memory.strides),
            self.builder.mul(self.task, number(memory.size)),
        )
        base = self.pointer_to(parts)
        if vector in made.axes and memory.strides.get(vector) != 1:
            stride = memory.strides[vector]
            for lane in range(width):
                here = self.builder.add(place, number(lane * stride))
                self.store_at(base, here, self.lane(total, lane), made.dtype)
        else:
            self.store_at(base, place, total, made.dtype)

    def combine(self, step: Step) -> None:
        """The value of a reduction from the parts that the tasks left, in order."""
        loop, parts = self.kernel.loop, self.kernel.partials[step]
        assert loop is not None
        tasks = math.ceil(loop.axis.size / chunk(self.kernel))
        memory = self.plan.storage[step]
        made = Accumulator(step, parts.dtype, [], False, 1, {})
        base, out = self.pointer_to(parts), self.pointer_to(memory)
        width = min(16, 1 << (memory.size.bit_length() - 1))
        last = number(memory.size - width)

        def body(at: Any) -> None:
            is_inside = self.builder.icmp_signed("<", at, last)
            at = self.builder.select(is_inside, at, last)
            total = self.load_at(base, at, made.dtype, width)
            for task in range(1, tasks):
                here = self.builder.add(at, number(task * memory.size))
                part = self.load_at(base, here, made.dtype, width)
                total = self.combined(made, total, part, width)
            value = self.converted(total, made.dtype, memory.dtype)
            if self.plan.checks:
                fail_unless_finite(self, value, memory.dtype)
            self.store_at(out, at, value, memory.dtype)

        self.for_range(number(0), number(memory.size), width, body)

    def folded(self, made: Accumulator, total: Any) -> Any:
        """The lanes of a reduction along the vector axis as one, as a tree."""
        if made.vector not in made.step.closed:
            return total
        width = made.width
        while width > 1:
            width //= 2
            halves = [
                self.builder.shuffle_vector(
                    total,
                    ir.Constant(total.type, ir.Undefined),
                    ir.Constant(
                        ir.VectorType(I32, width),
                        list(range(first, first + width)),
                    ),
                )
                for first in (0, width)
            ]
            total = self.combined(made, halves[0], halves[1], width)
        return total


def known_full(at: Any) -> Any:
    """Remember that a position needs no mask."""
    at.is_full = True
    return at


def loop_is_full(at: Any) -> bool:
    """Whether a position is known to need no mask."""
    return bool(getattr(at, "is_full", False))


def leaves_of(item: Step | Loop) -> list[Step]:
    """The leaves that an item needs, the first ones first."""
    inside = item.steps() if isinstance(item, Loop) else (item,)
    return [x for step in inside for x in step.needed() if is_leaf(x)]


def chunk(kernel: Kernel) -> int:
    """How many iterations of the outermost loop one task takes."""
    loop, grain = kernel.loop, grain_of(kernel)
    assert loop is not None
    return math.ceil(loop.axis.size / kernel.tasks / grain) * grain


def emit_combination(
    module: Any, plan: Plan, kernel: Kernel, layout: Layout, name: str
) -> KernelEmitter:
    """A function `name(table, 0)` that adds up what the tasks of a kernel left."""
    emitter = KernelEmitter(new_function(module, name), plan, kernel, layout)
    for step in kernel.partials:
        emitter.combine(step)
    emitter.builder.ret_void()
    return emitter
