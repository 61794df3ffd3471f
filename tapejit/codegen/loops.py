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

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir

from tapejit.codegen import lanes
from tapejit.codegen.cursor import (
    I32,
    I64,
    INT64,
    POINTER,
    Cursor,
    Layout,
    number,
    steps,
)
from tapejit.ir.node import OPS
from tapejit.passes.fusion.index import Affine, Axis, Range, strides_of
from tapejit.passes.fusion.plan import (
    Kernel,
    Path,
    Plan,
    Storage,
    accumulator,
    inner_axes,
)
from tapejit.passes.fusion.schedule import Loop, is_leaf
from tapejit.passes.fusion.steps import Buffer, Step
from tapejit.types import DType

TASK = ir.FunctionType(ir.VoidType(), [POINTER, I64])
UNROLLED: Final = 4  # loops of no more iterations are written out
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
) -> Any:
    """A function `name(table, task)` that runs one task of a kernel."""
    function = ir.Function(module, TASK, name)
    function.linkage = "internal"
    emitter = KernelEmitter(function, plan, kernel, layout)
    emitter.emit()
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
        self, step: Step, dtype: DType, axes: list[Axis], lanes: bool, width: int
    ) -> None:
        self.step = step
        self.dtype = dtype
        self.axes = axes
        self.lanes = lanes
        self.width = width
        self.pointer: Any = None
        self.block: Any = None  # of the current block, if sums are made in blocks
        self.is_in_blocks = False
        self.strides = dict(
            zip(axes, strides_of([axis.size for axis in axes]), strict=True)
        )
        self.size = math.prod(axis.size for axis in axes)

    @property
    def op(self) -> str:
        """The name of the reduction."""
        return "sum" if self.step.kind == "contract" else self.step.op.name  # type: ignore[union-attr]


class KernelEmitter(Cursor):
    """Emits one kernel; `builder` is where it has got to."""

    def __init__(
        self, function: Any, plan: Plan, kernel: Kernel, layout: Layout
    ) -> None:
        super().__init__(function, plan, kernel, layout)
        self.values: dict[Step, Any] = {}
        self.valid: Any = None  # lanes that are here for the first time
        self.accumulators: dict[Step, Accumulator] = {}

    def emit(self) -> None:
        """The whole function."""
        self.block(self.kernel.items, ())
        self.builder.ret_void()

    # Blocks and loops

    def block(self, items: Sequence[Step | Loop], path: Path) -> None:
        """A body: its Steps and loops in order, leaves where they are first needed."""
        bound = {loop.axis for loop in path}
        for item in items:
            for leaf in leaves_of(item):
                if leaf not in self.values and leaf.labels <= bound:
                    self.values[leaf] = self.step(leaf)
            if isinstance(item, Loop):
                self.loop(item, path)
            else:
                self.run(item)

    def loop(self, loop: Loop, path: Path) -> None:
        """A loop, with the reductions that begin and end with it."""
        plan, kernel = self.plan, self.kernel
        inside = (*path, loop)
        closing = [
            step
            for step in loop.steps()
            if step.closed and plan.homes[step] == path and loop in plan.paths[step]
        ]
        made = [self.accumulator(step) for step in closing]
        axis = loop.axis
        is_vector = axis is kernel.vector
        stride = kernel.width if is_vector else 1
        low, high = number(0), number(axis.size)
        count = axis.size
        if not path and kernel.tasks > 1:
            size = chunk(kernel)
            low = self.builder.mul(self.task, number(size))
            end = self.builder.add(low, number(size))
            is_last = self.builder.icmp_signed("<", end, number(axis.size))
            high = self.builder.select(is_last, end, number(axis.size))
            count = size
        saved = dict(self.values)

        def body(at: Any) -> None:
            self.values = dict(saved)
            if is_vector and axis.size % stride:
                most = number(axis.size - stride)
                is_inside = self.builder.icmp_signed("<", at, most)
                base = self.builder.select(is_inside, at, most)
                lane = self.builder.add(self.spread(base, stride), steps(stride))
                self.valid = self.builder.icmp_signed(
                    ">=", lane, self.spread(at, stride)
                )
            else:
                base = at
            self.indices[axis] = base
            self.block(loop.body, inside)
            if is_vector:
                self.valid = None

        if axis.size <= UNROLLED and not is_vector and path:
            for at in range(axis.size):
                body(number(at))
        elif count > 4 * BLOCK * stride and any(x.block is not None for x in made):
            sums = [x for x in made if x.block is not None]

            def part(first: Any) -> None:
                for x in sums:
                    self.store_register(x.block, self.neutral(x), x)
                end = self.builder.add(first, number(BLOCK * stride))
                is_last = self.builder.icmp_signed("<", end, high)
                self.for_range(
                    first, self.builder.select(is_last, end, high), stride, body
                )
                for x in sums:
                    total = self.builder.load(
                        x.pointer, typ=lanes.register_type(x.dtype, x.width)
                    )
                    block = self.builder.load(
                        x.block, typ=lanes.register_type(x.dtype, x.width)
                    )
                    both = self.combined(x, total, block, x.width)
                    self.builder.store(both, x.pointer)

            for x in sums:
                x.is_in_blocks = True
            self.for_range(low, high, BLOCK * stride, part)
        else:
            for x in made:
                x.block = None
            self.for_range(low, high, stride, body)
        self.values = saved
        self.indices.pop(axis, None)
        for x in made:
            self.finish(x)

    def run(self, step: Step) -> None:
        """A Step of a body, and the writing of its value."""
        if step.kind in ("reduce", "contract"):
            if step.closed:
                self.accumulate(step)
                return
        value = self.step(step)
        self.values[step] = value
        memory = self.plan.storage.get(step)
        if memory is not None:
            self.write(memory, value)

    # Reductions

    def accumulator(self, step: Step) -> Accumulator:
        """Set up before the loop."""
        plan, kernel = self.plan, self.kernel
        around = {loop.axis for loop in plan.homes[step]}
        axes = inner_axes(plan, step)
        vector = kernel.vector
        if vector in axes:
            axes.remove(vector)
            axes.append(vector)  # type: ignore[arg-type]
        has_lanes = vector in step.closed or (vector in around & step.labels)
        width = kernel.width if has_lanes else 1
        dtype = accumulator(step.dtype)
        made = Accumulator(step, dtype, axes, has_lanes, width)
        self.accumulators[step] = made
        kind = lanes.register_type(dtype, width)
        if not axes:
            with self.at_entry():
                made.pointer = self.builder.alloca(kind)
                if made.op == "sum":
                    made.block = self.builder.alloca(kind)
            self.store_register(made.pointer, self.neutral(made), made)
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

    def store_register(self, pointer: Any, value: Any, made: Accumulator) -> None:
        self.builder.store(value, pointer)

    def combined(self, made: Accumulator, x: Any, y: Any, width: int) -> Any:
        """Two parts of a reduction as one."""
        op = OPS[COMBINES[made.op]]
        dtype = made.dtype
        return lanes.apply(self.builder, op, {}, [dtype, dtype], dtype, [x, y], width)

    def accumulate(self, step: Step) -> None:
        """Add the element of this iteration."""
        made = self.accumulators[step]
        vector = self.kernel.vector
        is_row = vector in made.axes
        width = self.kernel.width if is_row else made.width
        values = [
            self.widened(self.converted(self.value(x), x.dtype, made.dtype), width)
            for x in step.inputs
        ]
        pointer, at = made.pointer, None
        if made.axes:
            at = self.offset(made.strides)
            if made.lanes:
                at = self.builder.mul(at, number(made.width))
            before = self.load_at(pointer, at, made.dtype, width)
        else:
            if made.is_in_blocks:
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
        if made.axes:
            self.store_at(pointer, at, after, made.dtype)
        else:
            self.builder.store(after, pointer)

    def multiplied(
        self, before: Any, values: Sequence[Any], dtype: DType, width: int
    ) -> Any:
        """before + x * y, rounded once if these are floats."""
        x, y = values
        if dtype.kind in "biu":
            if dtype.kind == "b":
                return self.builder.or_(before, self.builder.and_(x, y))
            return self.builder.add(before, self.builder.mul(x, y))
        kind = lanes.register_type(dtype, width)
        name = f"llvm.fma.v{width}f{8 * dtype.itemsize}"
        known = self.function.module.globals.get(name)
        if known is None:
            signature = ir.FunctionType(kind, [kind] * 3)
            known = ir.Function(self.function.module, signature, name)
        return self.builder.call(known, [x, y, before])

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
            self.values[step] = value
            if memory is not None:
                self.write(memory, value)
            return
        assert memory is not None
        vector = self.kernel.vector

        def nest(axes: list[Axis]) -> None:
            if not axes:
                self.finish_element(made, memory, parts)
                return
            axis, *rest = axes
            stride = self.kernel.width if axis is vector else 1

            def body(at: Any) -> None:
                if stride > 1 and axis.size % stride:
                    most = number(axis.size - stride)
                    is_inside = self.builder.icmp_signed("<", at, most)
                    at = self.builder.select(is_inside, at, most)
                self.indices[axis] = at
                nest(rest)

            self.for_range(number(0), number(axis.size), stride, body)
            del self.indices[axis]

        nest(made.axes)

    def finish_element(
        self, made: Accumulator, memory: Storage, parts: Storage | None
    ) -> None:
        vector = self.kernel.vector
        width = self.kernel.width if vector in made.axes else made.width
        at = self.offset(made.strides)
        if made.lanes:
            at = self.builder.mul(at, number(made.width))
        total = self.folded(made, self.load_at(made.pointer, at, made.dtype, width))
        if parts is None:
            self.write(memory, self.converted(total, made.dtype, made.step.dtype))
            return
        place = self.builder.add(
            self.offset(memory.strides),
            self.builder.mul(self.task, number(memory.size)),
        )
        base = self.pointer_to(parts)
        if vector in made.axes and memory.strides.get(vector) != 1:  # type: ignore[arg-type]
            stride = memory.strides[vector]  # type: ignore[index]
            for lane in range(width):
                here = self.builder.add(place, number(lane * stride))
                self.store_at(base, here, self.lane(total, lane), made.dtype)
        else:
            self.store_at(base, place, total, made.dtype)

    def folded(self, made: Accumulator, total: Any) -> Any:
        """The lanes of a reduction along the vector axis as one, as a tree."""
        if self.kernel.vector not in made.step.closed:
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
            total = self.combined(made, *halves, width)
        return total

    # Steps

    def step(self, step: Step) -> Any:
        """The value of a Step in this iteration."""
        return getattr(self, f"_{step.kind}")(step)

    def value(self, step: Step) -> Any:
        """A value that was computed before, from a register or from memory."""
        found = self.values.get(step)
        if found is None:
            if is_leaf(step) or step.kind == "constant":
                found = self.step(step)
            else:
                found = self.read(self.plan.storage[step], step.labels)
            self.values[step] = found
        return found

    def _constant(self, step: Step) -> Any:
        return lanes.constant(step.dtype, step.attrs["value"], 1)

    def _index(self, step: Step) -> Any:
        return self.affine(step.index[0])

    def _compute(self, step: Step) -> Any:
        values = self.together([self.value(x) for x in step.inputs])
        return lanes.apply(
            self.builder,
            step.op,  # type: ignore[arg-type]
            step.attrs,
            [x.dtype for x in step.inputs],
            step.dtype,
            values,
            values[0].type.count if values else 1,
        )

    def _convert(self, step: Step) -> Any:
        (x,) = step.inputs
        return self.converted(self.value(x), x.dtype, step.dtype)

    def _contract(self, step: Step) -> Any:
        """A sum of one product."""
        dtype = accumulator(step.dtype)
        values = self.together(
            [self.converted(self.value(x), x.dtype, dtype) for x in step.inputs]
        )
        width = values[0].type.count
        zero = lanes.constant(dtype, 0, width)
        total = self.multiplied(zero, values, dtype, width)
        return self.converted(total, dtype, step.dtype)

    def _copy(self, step: Step) -> Any:
        return self.value(step.inputs[0])

    def _choose(self, step: Step) -> Any:
        holds = self.condition(step.ranges)
        x, y = (self.value(v) for v in step.inputs)
        holds, x, y = self.together([holds, x, y])
        return self.builder.select(holds, x, y)

    def _verify(self, step: Step) -> Any:
        value = self.value(step.inputs[0])
        self.fail_unless_below(value, step.dtype, int(step.attrs["count"]), 0)
        return value

    def _position(self, step: Step) -> Any:
        size = step.attrs["size"]
        (given,) = step.inputs
        value = self.value(given)
        self.fail_unless_below(value, given.dtype, size, -size)
        width = value.type.count
        wide = self.converted(value, given.dtype, INT64)
        zero, most = self.whole(0, width), self.whole(size - 1, width)
        is_negative = self.builder.icmp_signed("<", wide, zero)
        wrapped = self.builder.add(wide, self.whole(size, width))
        wide = self.builder.select(is_negative, wrapped, wide)
        is_inside = self.builder.icmp_unsigned("<=", wide, most)
        return self.builder.select(is_inside, wide, zero)

    def _moved(self, step: Step) -> Any:
        value = self.value(step.inputs[0])
        width = value.type.count
        value = self.builder.mul(value, self.whole(step.attrs["factor"], width))
        return self.builder.add(value, self.whole(step.attrs["offset"], width))

    def fail_unless_below(self, value: Any, dtype: DType, high: int, low: int) -> None:
        """Leave a mark in the arena if a number is not in [low, high)."""
        width = value.type.count
        wide = self.converted(value, dtype, INT64)
        if dtype == np.uint64:
            is_good = self.builder.icmp_unsigned("<", wide, self.whole(high, width))
        else:
            is_good = self.builder.and_(
                self.builder.icmp_signed("<", wide, self.whole(high, width)),
                self.builder.icmp_signed(">=", wide, self.whole(low, width)),
            )
        bits = self.builder.bitcast(is_good, ir.IntType(width))
        is_bad = self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, -1))
        then = self.function.append_basic_block("fails")
        after = self.function.append_basic_block("goes_on")
        self.builder.cbranch(is_bad, then, after)
        self.builder.position_at_end(then)
        self.builder.store(number(1), self.arena())
        self.builder.branch(after)
        self.builder.position_at_end(after)

    def _add_at(self, step: Step) -> Any:
        """The second-last input, plus the last one where both positions are equal."""
        here, target, x, update = self.together([self.value(v) for v in step.inputs])
        width = x.type.count
        dtype = step.dtype
        total = lanes.apply(
            self.builder, OPS["add"], {}, [dtype, dtype], dtype, [x, update], width
        )
        is_hit = self.builder.icmp_signed("==", here, target)
        return self.builder.select(is_hit, total, x)

    def _load(self, step: Step) -> Any:
        source = step.source
        positions: list[tuple[Any, int]] = []
        if isinstance(source, Buffer):
            is_flat = step.attrs.get("flat")
            strides = (1,) if is_flat else strides_of(source.shape)
            positions = list(zip(step.index, strides, strict=True))
            pointer, times = self.buffer(source), 1
        else:
            memory = self.plan.storage[source]
            pointer, times = self.pointer_to(memory), 1
            if step.attrs.get("flat"):
                positions = [(step.index[0], 1)]
            else:
                for dim, position in zip(source.dims, step.index, strict=True):
                    if dim is not None and dim.root in memory.strides:
                        positions.append((position, memory.strides[dim.root]))
            if memory.lanes:
                times = self.kernel.width
        return self.load_from(step, pointer, positions, times)

    def load_from(
        self, step: Step, pointer: Any, positions: list[tuple[Any, int]], times: int
    ) -> Any:
        """Load where the positions say; `times` is the size of an element in lanes."""
        total = Affine()
        moving: list[Any] = []
        for position, stride in positions:
            if isinstance(position, Step):
                value = self.value(position)
                moving.append(
                    self.builder.mul(value, self.whole(stride, value.type.count))
                )
            else:
                total += position * stride
        vector, width = self.kernel.vector, self.kernel.width
        along = sum(f for axis, f in total.terms if axis.root is vector)
        holds = self.condition(step.ranges) if step.ranges else None
        is_uneven = any(x.type.count > 1 for x in moving)
        if times > 1:  # every element is a vector
            base = self.scalar(total)
            for x in moving:
                base = self.builder.add(base, self.lane_number(x, 0))
            base = self.builder.mul(base, number(times))
            return self.guarded(step, pointer, base, width, holds)
        if not is_uneven and along in (0, 1):
            base = self.scalar(total)
            for x in moving:
                base = self.builder.add(base, self.lane_number(x, 0))
            has_vector = along == 1 or (holds is not None and holds.type.count > 1)
            if along == 1 or not has_vector:
                return self.guarded(
                    step, pointer, base, width if along == 1 else 1, holds
                )
        places = self.together([self.affine(total), *moving], width)
        place = places[0]
        for x in places[1:]:
            place = self.builder.add(place, x)
        if holds is not None:
            holds = self.widened(holds, width)
            place = self.builder.select(holds, place, self.whole(0, width))
        found = self.gather(pointer, place, step.dtype, width)
        if holds is not None:
            fill = lanes.constant(step.dtype, step.fill, width)
            found = self.builder.select(holds, found, fill)
        return found

    def condition(self, ranges: Sequence[Range]) -> Any:
        """Whether all Ranges hold."""
        found: Any = None
        for x in ranges:
            value = self.affine(x.position)
            width = value.type.count
            inside = self.builder.and_(
                self.builder.icmp_signed(">=", value, self.whole(x.low, width)),
                self.builder.icmp_signed("<", value, self.whole(x.high, width)),
            )
            if found is None:
                found = inside
            else:
                found, inside = self.together([found, inside])
                found = self.builder.and_(found, inside)
        return found


def leaves_of(item: Step | Loop) -> list[Step]:
    """The leaves that an item needs, the first ones first."""
    inside = item.steps() if isinstance(item, Loop) else (item,)
    return [x for step in inside for x in step.needed() if is_leaf(x)]


def chunk(kernel: Kernel) -> int:
    """How many iterations of the outermost loop one task takes."""
    loop = kernel.loop
    assert loop is not None
    grain = kernel.width if loop.axis is kernel.vector else 1
    return math.ceil(loop.axis.size / kernel.tasks / grain) * grain


def emit_combination(
    module: Any, plan: Plan, kernel: Kernel, layout: Layout, name: str
) -> Any:
    """A function `name(table, 0)` that adds up what the tasks of a kernel left."""
    function = ir.Function(module, TASK, name)
    function.linkage = "internal"
    emitter = KernelEmitter(function, plan, kernel, layout)
    tasks = math.ceil(kernel.loop.axis.size / chunk(kernel))  # type: ignore[union-attr]
    for step, parts in kernel.partials.items():
        memory = plan.storage[step]
        made = Accumulator(step, parts.dtype, [], False, 1)
        base, out = emitter.pointer_to(parts), emitter.pointer_to(memory)
        width = min(16, 1 << (memory.size.bit_length() - 1))
        last = number(memory.size - width)

        def body(at: Any, made: Accumulator = made, memory: Storage = memory) -> None:
            b = emitter.builder
            at = b.select(b.icmp_signed("<", at, last), at, last)
            total = emitter.load_at(base, at, made.dtype, width)
            for task in range(1, tasks):
                here = b.add(at, number(task * memory.size))
                part = emitter.load_at(base, here, made.dtype, width)
                total = emitter.combined(made, total, part, width)
            value = emitter.converted(total, made.dtype, memory.dtype)
            emitter.store_at(out, at, value, memory.dtype)

        emitter.for_range(number(0), number(memory.size), width, body)
    emitter.builder.ret_void()
    return function
