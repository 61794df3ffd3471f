"""What is done with the elements of a product: the kernel's own Steps, tile by tile.

A strip of a tile is in shared memory, or parts of its sums are in the arena: threads go
through it row by row, so that what they load and store lies side by side. Each computes
the Steps of the epilogue on a vector. What a Step adds up, a unit of rows column by
column or a group of elements of a row, goes back to shared memory; then a thread has
a column, or a group, for itself. So additions come in the order that they have on a
CPU.

Start reading at `TileEpilogue.finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tapejit.base.types import DType
from tapejit.loops.index import Axis
from tapejit.loops.kernels import Kernel
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import PartialSum, Step, partial_of
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cpu.nest.reductions import combine, identity
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.matmul.contraction import Digit
from tapejit.targets.cuda.matmul.tiling import MatmulTiling, TileSums
from tapejit.targets.cuda.simt import SimtEmitter

Source = Callable[[Value, Value, int], Value]  # a line, a place, how many from there


@dataclass(frozen=True)
class Strip:
    """Rows and columns of a product that a block goes through at once.

    `row` and `column` are the first ones, `end` is behind the last row of the tile.
    """

    rows: int
    columns: int
    row: Value
    column: Value
    end: Value
    line: Value  # of its first row in the tile


def loop_axes(kernel: Kernel) -> list[Axis]:
    """The axes of an epilogue, outermost first."""
    found: list[Axis] = []
    items = [x for x in kernel.items if isinstance(x, Loop)]
    while items:
        found.append(items[0].axis)
        items = [x for x in items[0].body if isinstance(x, Loop)]
    return found


def result_axes(kernel: Kernel) -> dict[int, Axis]:
    """The axes of a result, as an epilogue has them if there is one."""
    assert kernel.array_op is not None
    dims = kernel.array_op.dims or ()
    own = {at: dim.root for at, dim in enumerate(dims) if dim is not None}
    axes = loop_axes(kernel)
    return dict(zip(own, axes, strict=True)) if axes else own


def partial_sums(kernel: Kernel) -> list[Step]:
    """What an epilogue adds up."""
    return [x for x in kernel.steps() if isinstance(x.what, PartialSum)]


def tile_sums(kernel: Kernel, kept: DType) -> TileSums:
    """What tiles have to be like for the sums of an epilogue."""
    parts = [partial_of(x) for x in partial_sums(kernel)]
    stages = sum(size for _, size in summed_values(kernel, kept))
    unit = next((x.unit for x in parts if x.unit), 1)
    group = next((x.group for x in parts if x.group), 1)
    return TileSums(stages, unit, group)


def summed_values(kernel: Kernel, kept: DType) -> list[tuple[Step, int]]:
    """The values that are added up, and how many stages each takes.

    The first one may replace the product in its stage, so it is not larger.
    """
    values = dict.fromkeys(x.inputs[0] for x in partial_sums(kernel))
    sizes = ((x, max(1, x.dtype.itemsize // kept.itemsize)) for x in values)
    return sorted(sizes, key=lambda x: x[1])


class TileEpilogue:
    """Emits what is done with the elements of a product, at the place of `steps`.

    `stage` is shared memory for each value that is added up, one strip after the other.
    """

    def __init__(
        self, steps: SimtEmitter, tiling: MatmulTiling, stack: Sequence[Value]
    ) -> None:
        self.steps, self.tiling, self.stack = steps, tiling, stack
        self.at, self.kernel, self.plan = steps.at, steps.kernel, steps.plan
        assert self.kernel.array_op is not None
        self.product, self.width = self.kernel.array_op, steps.at.width
        self.axes = result_axes(self.kernel)
        self.column = self.kernel.vector
        self.parts = partial_sums(self.kernel)
        self.stages: dict[Step, Value] = {}
        self.totals: dict[Step, Value] = {}

    @property
    def b(self) -> IRBuilder:
        return self.at.builder

    def begin(self, stage: Value, strip: int) -> None:
        """Sums have stages, of a `strip` each, and begin with nothing."""
        first, kept = 0, self.tiling.kept
        for value, size in summed_values(self.kernel, kept):
            first = max(first, size - 1)
            at = [number(first * strip)]
            element = lanes.memory_type(kept)
            self.stages[value] = self.b.gep(stage, at, source_etype=element)
            first += size
        for part in self.parts:
            with self.at.at_entry():
                kind = lanes.register_type(part.dtype, 1)
                self.totals[part] = self.at.builder.alloca(kind)
            self.b.store(nothing_of(part), self.totals[part])

    def finish(self, strip: Strip, source: Source) -> None:
        """Do all that is to be done with a strip; its sums are behind a barrier."""
        b, n = self.b, self.tiling.contraction.n
        across = strip.columns // self.width
        has_rest = bool(n % self.tiling.sums.group)

        def vector(which: Value) -> None:
            line = b.udiv(which, number(across))
            place = b.mul(b.urem(which, number(across)), number(self.width))
            row, column = b.add(strip.row, line), b.add(strip.column, place)
            is_row = b.icmp_signed("<", row, strip.end)
            is_column = b.icmp_signed("<", column, number(n))
            with b.if_then(b.and_(is_row, is_column)):
                self.elements(row, column, source(line, place, self.width))
                for x, stage in self.stages.items():
                    found = self.at.widened(self.steps.value(x), self.width)
                    self.put(stage, self.place(strip, line, place), found, x.dtype)
            if not has_rest:
                return
            with b.if_then(b.and_(is_row, b.not_(is_column))):
                for x, stage in self.stages.items():
                    nothing = lanes.constant(x.dtype, 0, self.width)
                    self.put(stage, self.place(strip, line, place), nothing, x.dtype)

        total, threads = strip.rows * across, self.at.function.threads
        self.at.strided(self.at.thread, number(total), threads, vector)
        if self.parts:
            self.at.block_barrier()
        for part in self.parts:
            if partial_of(part).unit:
                self.add_rows(part, strip)
            else:
                self.add_groups(part, strip)

    def place(self, strip: Strip, line: Value, column: Value) -> Value:
        """Where an element of a strip is in its stage."""
        pitch = strip.columns + self.tiling.lanes
        return self.b.add(self.b.mul(line, number(pitch)), column)

    def put(self, stage: Value, place: Value, value: Value, dtype: DType) -> None:
        with self.at.aligned_if(True):
            self.at.store_at(stage, place, value, dtype)

    # Elements

    def elements(self, row: Value, column: Value, value: Value) -> None:
        """The Steps of the epilogue at one vector of the product."""
        steps, product = self.steps, self.product
        # Halves are rounded, as they would be in memory.
        value = steps.converted(value, self.tiling.kept, product.dtype)
        steps.check_finite(value, product.dtype)
        places = self.places(row, column)
        self.go_to({axis: places[at] for at, axis in self.axes.items()}, self.width)
        memory = self.plan.storage.get(product)
        if memory is not None:
            own = [dim.root for dim in product.dims or () if dim is not None]
            names = dict(zip(own, self.axes.values(), strict=True))
            strides = {names[axis]: x for axis, x in memory.strides.items()}
            self.at.write(replace(memory, strides=strides), value)
        for step in list(self.kernel.steps())[1:]:
            for x in step.inputs:
                if x.is_leaf and x.source is product:
                    steps.values[x] = value
            if not isinstance(step.what, PartialSum):
                steps.keep(step, steps.step(step))

    def go_to(self, indices: dict[Axis, Value], width: int) -> None:
        """Be at a place where nothing is known yet."""
        self.steps.values, self.steps.around = {}, tuple(indices)
        self.at.indices, self.at.width = indices, width
        self.at.vector = self.column if width > 1 else None

    def places(self, row: Value, column: Value) -> list[Value]:
        """The index along each axis of the result."""
        x, b = self.tiling.contraction, self.b
        found = [number(first) for first in x.first]
        digits = [
            *zip(x.stack, self.stack, strict=True),
            *digits_of(self.at, row, x.rows),
            *digits_of(self.at, column, x.columns),
        ]
        for digit, index in digits:
            more = b.mul(index, number(digit.period)) if digit.period != 1 else index
            found[digit.axis] = b.add(found[digit.axis], more)
        return found

    # Sums

    def add_rows(self, part: Step, strip: Strip) -> None:
        """A column of a strip to its unit's sum, by one thread, row after row."""
        b, unit, stage = self.b, partial_of(part).unit, self.stages[part.inputs[0]]
        total, kind = self.totals[part], lanes.register_type(part.dtype, 1)
        thread = self.at.thread
        column = b.add(strip.column, thread)
        is_mine = b.icmp_signed("<", thread, number(strip.columns))
        is_there = b.icmp_signed("<", column, number(self.tiling.contraction.n))
        left = self.at.smaller(b.sub(strip.end, strip.row), number(strip.rows))

        def row(line: Value) -> None:
            place = self.place(strip, line, thread)
            value = self.at.load_at(stage, place, part.dtype, 1)
            which = b.urem(b.add(line, strip.line), number(unit))
            is_first = b.icmp_signed("==", which, number(0))
            before = b.select(is_first, nothing_of(part), b.load(total, typ=kind))
            after = combine(b, part.reduction, part.dtype, before, value, 1)
            b.store(after, total)
            with b.if_then(b.icmp_signed("==", which, number(unit - 1))):
                at = b.udiv(b.add(strip.row, line), number(unit))
                assert self.column is not None
                self.leave(part, {self.column: column}, at, after)

        with b.if_then(b.and_(is_mine, is_there)):
            self.at.strided(number(0), left, 1, row)

    def add_groups(self, part: Step, strip: Strip) -> None:
        """The groups of elements of a row, each by one thread, as a tree."""
        b, group, stage = self.b, partial_of(part).group, self.stages[part.inputs[0]]
        groups, threads = strip.columns // group, self.at.function.threads

        def one(which: Value) -> None:
            line, at = b.udiv(which, number(groups)), b.urem(which, number(groups))
            place = b.mul(at, number(group))
            row, column = b.add(strip.row, line), b.add(strip.column, place)
            is_row = b.icmp_signed("<", row, strip.end)
            n = number(self.tiling.contraction.n)
            with b.if_then(b.and_(is_row, b.icmp_signed("<", column, n))):
                where = self.place(strip, line, place)
                with self.at.aligned_if(True):
                    total = self.at.load_at(stage, where, part.dtype, group)
                width = group
                while width > 1:
                    width //= 2
                    low, high = range(width), range(width, 2 * width)
                    x, y = (self.at.shuffled(total, total, y) for y in (low, high))
                    total = combine(b, part.reduction, part.dtype, x, y, width)
                places = self.places(row, column)
                own = {x: places[at] for at, x in self.axes.items() if x in part.labels}
                self.leave(part, own, b.udiv(column, number(group)), total)

        total = number(strip.rows * groups)
        self.at.strided(self.at.thread, total, threads, one)

    def leave(
        self, part: Step, own: dict[Axis, Value], which: Value, total: Value
    ) -> None:
        """The sum of a unit or group, by its number."""
        others = dict.fromkeys(part.labels - {*own}, which)
        self.go_to(own | others, 1)
        self.at.write(self.plan.storage[part], total)


def nothing_of(part: Step) -> Value:
    """What a sum begins with."""
    return lanes.constant(part.dtype, identity(part.reduction, part.dtype), 1)


def digits_of(
    at: SimtAddressing, index: Value, digits: Sequence[Digit]
) -> list[tuple[Digit, Value]]:
    """The digits of a number, those of size 1 left out."""
    found = []
    several = [x for x in digits if x.size > 1]
    for which, digit in reversed(list(enumerate(several))):
        own = index
        if which:
            own = at.builder.urem(index, number(digit.size))
            index = at.builder.udiv(index, number(digit.size))
        found.append((digit, own))
    return found
