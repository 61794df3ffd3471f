"""A matmul inside of loops: for the rows of one tile at a time.

Such a product is a function like that of a whole product, `micro_kernel` makes it. It
is called in the loop with a table of its own: where the rows of this tile are, and for
a sum whether this is the first tile.

What all tiles have in common is packed once: before the kernel if it is one matrix, and
if each matrix of a stack has its own, before the tiles of that.

Start reading at `TiledMatmul`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tapejit.loops.index import Affine, Axis
from tapejit.loops.kernels import Storage
from tapejit.loops.steps import Buffer, Step, TileRole, tiles_of
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Function, Value
from tapejit.targets.cpu.matmul.emitter import Reader, Site
from tapejit.targets.cpu.matmul.kernel import aligned_strides
from tapejit.targets.cpu.matmul.micro_kernel import emit, emit_panels
from tapejit.targets.cpu.matmul.tiling import (
    Cut,
    Gemm,
    Hooks,
    Spot,
    Strides,
    host_registers,
    in_tasks,
    tiling_of,
)
from tapejit.targets.cpu.nest.addressing import (
    I8,
    I64,
    POINTER,
    Place,
    Preparation,
    number,
)
from tapejit.targets.cpu.schedule.output_layout import result_strides
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cpu.target import CPU

if TYPE_CHECKING:
    from tapejit.targets.cpu.nest.kernel_emitter import KernelEmitter


class Operand(NamedTuple):
    """A matrix of one tile: what it is in, and how far its elements are apart."""

    memory: Storage | Buffer
    strides: Strides
    of_stack: tuple[int, ...] = ()  # how far its matrices are apart
    steps: tuple[tuple[Axis, int], ...] = ()  # from one iteration of tiles to the next
    offset: int = 0
    of_task: int = 0  # how far apart those of two tasks are


class TiledMatmul:
    """A product for one tile: its matrices, and how it is cut up.

    `tiles` has how many iterations a tile is, of rows and maybe of columns, and `cuts`
    which of the product's axes "m", "n" and "k" go by in tiles, and along what. The
    last tiles of the axes `last` have fewer, and a product for them is another one.
    """

    def __init__(
        self,
        at: KernelEmitter,
        step: Step,
        tiles: dict[Axis, int],
        last: frozenset[Axis] = frozenset(),
    ) -> None:
        assert step.node is not None
        self.at, self.step, self.tiles, self.last = at, step, tiles, last
        self.along: TileRole = tiles_of(step)
        self.is_sum = self.along.kind == "sum"
        self.row = self.along.axes[-1]
        self.cuts = self.along.cuts
        # The axis over whose tiles the result is added up, if it is.
        self.summed = self.cuts.get("k")
        m, n = map(int, step.node.shape[-2:])
        sizes = {"m": m, "n": n, "k": int(step.node.inputs[0].shape[-1])}
        sizes.update({x: self.size_of(axis) for x, axis in self.cuts.items()})
        self.a, self.b = self.operand(0, "mk"), self.operand(1, "kn")
        self.c = self.result()
        a, b, c = (x.strides for x in (self.a, self.b, self.c))
        key = "added" if self.summed else ""
        self.hooks = Hooks(epilogue=added if self.summed else None, key=key)
        gemm = Gemm(sizes["m"], sizes["n"], sizes["k"], step.dtype, a, b, c)
        self.tiling = tiling_of(gemm, host_registers(), self.hooks, is_part=True)
        self.is_prepared = False
        if not last:
            self.is_prepared = self.is_worth_preparing()
            if self.is_prepared:
                self.tiling = replace(self.tiling, packs_b=True, is_ready=True)
        elif last == {self.row}:
            whole = TiledMatmul(at, step, tiles)
            self.is_prepared = whole.is_prepared
            if self.is_prepared:  # the panels are those of the others
                rows = Cut.of(gemm.m, whole.tiling.rows.most)
                fewer = replace(whole.tiling, gemm=gemm, rows=rows)
                self.tiling = in_tasks(fewer, is_part=True)
        is_short = gemm.k <= CPU.tuning.short_matmul_steps
        if self.summed and self.tiling.blocks == 1 and is_short:
            self.tiling = replace(self.tiling, ends_tiles=True)

    def is_worth_preparing(self) -> bool:
        """Whether all tiles of rows use the same panels, packed beforehand."""
        tiling, (base, _, _) = self.tiling, self.step.views[1]
        if isinstance(base, Step):
            is_there = self.at.plan.kernel_of[base] != self.at.kernel.number
        else:
            is_there = base.kind != "constant"
        if not is_there or self.is_sum or tiling.is_flipped or tiling.is_dots:
            return False
        # Tiles that have the right operand in common.
        shared: int = self.row.extent // self.tiles[self.row]
        if not any(self.b.of_stack):
            shared *= math.prod(axis.extent for axis in self.along.axes[:-1])
        return shared >= (2 if tiling.packs_b else CPU.tuning.shared_b_tiles)

    def size_of(self, axis: Axis) -> int:
        """How many iterations of an axis a tile has."""
        tile = self.tiles[axis]
        return axis.extent % tile if axis in self.last else tile

    @property
    def ends(self) -> list[Axis]:
        """The axes whose last tile takes a product of its own.

        The last tile of columns has some of the one before once more. That is no matter
        for what is computed anew, but nothing may be added up twice.
        """
        is_repeated = self.along.kind == "rows"
        return [
            axis
            for axis in self.cuts.values()
            if axis.extent % self.tiles[axis]
            and not (is_repeated and axis is self.along.column)
        ]

    def skip(self, axis: Axis) -> int:
        """How many columns of this tile are those of the one before."""
        is_column = axis in self.last and axis is self.along.column
        return self.tiles[axis] - self.size_of(axis) if is_column else 0

    @property
    def is_of_stack(self) -> bool:
        """Whether each matrix of a stack has panels of its own.

        Those of tiles of columns are packed for each matrix in any case.
        """
        return any(self.b.of_stack) or self.along.column is not None

    def operand(self, which: int, names: str) -> Operand:
        """An operand; `names` are those of its last axes."""
        at, step = self.at, self.step
        assert step.node is not None
        base, offset, strides = step.views[which]
        memory = at.plan.storage[base] if isinstance(base, Step) else base
        if isinstance(memory, Storage) and memory.kernel is not None:
            return self.private(memory, names)  # it holds just this tile
        front = len(step.node.shape) - 2
        shape = tuple(map(int, step.node.inputs[which].shape))
        own = aligned_strides(shape, strides, front)
        steps = self.steps(own[-2:], names)
        return Operand(memory, Strides(*own[-2:]), own[:-2], steps, offset)

    def steps(self, strides: Sequence[int], names: str) -> tuple[tuple[Axis, int], ...]:
        """How far it is to the next iteration, along each axis that is cut."""
        pairs = zip(names, strides, strict=True)
        return tuple((self.cuts[x], step) for x, step in pairs if x in self.cuts)

    def private(self, memory: Storage, names: str) -> Operand:
        """A matrix that is memory of the tile."""
        (column,) = [axis for axis in memory.strides if axis is not self.row]
        axes = [self.row if self.cuts.get(x) is self.row else column for x in names]
        strides = Strides(*(memory.strides[axis] for axis in axes))
        skip = self.skip(column) * memory.strides[column]
        return Operand(memory, strides, offset=skip)

    def result(self) -> Operand:
        """Where the result of a tile goes."""
        assert self.step.node is not None
        memory = self.at.plan.storage[self.step]
        if memory.kernel is not None:
            return self.private(memory, "mn")
        own = result_strides(self.step)
        steps = self.steps(own[-2:], "mn")
        whole = Operand(memory, Strides(*own[-2:]), own[:-2], steps)
        parts = self.at.kernel.partials.get(self.step)
        if parts is None:
            return whole
        return whole._replace(memory=parts, of_task=memory.size)

    def pointer(self, operand: Operand, is_of_tile: bool = True) -> Value:
        """Where the matrix of this tile begins, or that of all tiles."""
        at, memory = self.at, operand.memory
        if isinstance(memory, Storage):
            start = at.pointer_to(memory)
        else:
            start = at.buffer(memory)
        place = self.place_in_stack(operand.of_stack)
        for axis, step in operand.steps if is_of_tile else ():
            first = at.builder.add(at.origins[axis], number(self.skip(axis)))
            more = at.builder.mul(first, number(step))
            place = at.builder.add(place, more)
        if operand.of_task:
            own = at.builder.mul(at.task, number(operand.of_task))
            place = at.builder.add(place, own)
        place = at.builder.add(place, number(operand.offset))
        element = lanes.memory_type(memory.dtype)
        return at.builder.gep(start, [place], source_etype=element)

    def place_in_stack(self, strides: tuple[int, ...]) -> Value:
        """How far the matrix of this iteration is from the first one of a stack."""
        assert self.step.node is not None
        stack = iter(self.along.axes[:-1])
        terms = [
            (next(stack), stride)
            for size, stride in zip(self.step.node.shape[:-2], strides, strict=False)
            if size != 1
        ]
        return self.at.scalar(Affine(tuple((axis, f) for axis, f in terms if f)))

    # The code

    def prepare(self) -> None:
        """Pack the right operand of this matrix of a stack, before its tiles."""
        if not (self.is_prepared and self.is_of_stack):
            return
        at, packed, count = self.at, self.tiling.packed, 1
        apart = tile_size = last = 0  # bytes from one column to the next, columns
        for axis, step in self.b.steps:
            tile_size, apart = self.tiles[axis], step * self.b.memory.dtype.itemsize
            last = axis.extent - tile_size
            count = axis.extent // tile_size
            if axis not in self.ends:
                count = math.ceil(axis.extent / tile_size)
        room = at.rooms.get(self.step)
        if room is None:
            room = at.rooms[self.step] = at.part_of_arena(packed * count)
        first = self.pointer(self.b, is_of_tile=False)
        function = emit_panels(at.function.module, self.tiling)

        def pack(tile: Value) -> None:
            b = at.builder
            column = b.mul(tile, number(tile_size))
            column = at.smaller(column, number(last))
            source = b.gep(first, [b.mul(column, number(apart))], source_etype=I8)
            out = b.gep(room, [b.mul(tile, number(packed))], source_etype=I8)
            self.call(function, (source, source, out), self.tiling.panels)

        at.for_range(number(0), number(count), 1, pack)

    def panels(self) -> Value:
        """Where the panels of the right operand are."""
        at, step, memory = self.at, self.step, self.b.memory
        if self.is_of_stack:
            room = at.rooms[step]
            for axis, _ in self.b.steps:
                # The last tile may begin before the end of the one before.
                end = at.builder.add(at.origins[axis], number(self.tiles[axis] - 1))
                tile = at.builder.udiv(end, number(self.tiles[axis]))
                place = at.builder.mul(tile, number(self.tiling.packed))
                room = at.builder.gep(room, [place], source_etype=I8)
            return room
        if step not in at.ready:
            at.ready[step] = Place(
                at.layout.arena, at.plan.room_for(self.tiling.packed)
            )
            first = at.layout.place_of(memory, self.b.offset)
            function = emit_panels(at.function.module, self.tiling)
            places = (first, first, at.ready[step])
            at.preparations.append(Preparation(function, places, self.tiling.panels))
        return at.at_place(at.ready[step])

    def emit(self) -> list[Function]:
        """The product for the current tile; the functions that compute it."""
        at, functions = self.at, []

        def choose(ends: Sequence[Axis], last: frozenset[Axis]) -> None:
            if not ends:
                made = TiledMatmul(at, self.step, self.tiles, last) if last else self
                functions.append(made.emit_here())
                return
            axis, *others = ends
            with at.builder.if_else(self.is_at_end(axis)) as (at_end, before):
                with at_end:
                    choose(others, last | {axis})
                with before:
                    choose(others, last)

        choose(self.ends, frozenset())
        return functions

    def is_at_end(self, axis: Axis) -> Value:
        """Whether the current tile is the last one of an axis, which has fewer."""
        tile = self.tiles[axis]
        is_column = axis is self.along.column
        first = axis.extent - (tile if is_column else axis.extent % tile)
        return self.at.builder.icmp_signed("==", self.at.origins[axis], number(first))

    def emit_here(self) -> Function:
        """The product for tiles of these sizes; the function that computes it."""
        at, step = self.at, self.step
        kinds = "".join(x for x, axis in self.cuts.items() if axis in self.last)
        name = f"{at.function.name}_p{step.number}{kinds}"
        module = at.function.module
        right = self.panels() if self.is_prepared else self.pointer(self.b)
        function = module.globals.get(name)
        if not isinstance(function, Function):
            function = emit(module, self.tiling, name, self.hooks).function
        origin = at.origins[self.summed or self.row]
        begin = at.first_of(at.task) if self.c.of_task else number(0)
        first = at.builder.icmp_signed("==", origin, begin)
        flag = at.builder.inttoptr(at.builder.zext(first, I64), POINTER)
        table = (self.pointer(self.a), right, self.pointer(self.c), flag)
        self.call(function, table, self.tiling.tasks)
        return function

    def call(self, function: Function, entries: Sequence[Value], tasks: int) -> None:
        """All tasks of a function, one after the other, with a table of their own."""
        at = self.at
        with at.at_entry():
            table = at.builder.alloca(ir.ArrayType(POINTER, len(entries)))
            table.type = POINTER
        for place, value in enumerate(entries):
            where = at.builder.gep(table, [number(place)], source_etype=POINTER)
            at.builder.store(value, where)

        def run(task: Value) -> None:
            at.builder.call(function, [table, task])

        at.for_range(number(0), number(tasks), 1, run)


def added(site: Site, spot: Spot, value: Value) -> None:
    """Add elements to those that earlier tiles have left."""
    b = site.builder
    where = b.gep(site.table, [number(3)], source_etype=POINTER)
    flag = b.ptrtoint(b.load(where, typ=POINTER), I64)
    is_first = b.icmp_signed("!=", flag, number(0))
    here = spot.flipped() if site.tiling.is_flipped else spot
    near = Reader(site, "c", here.batch, here.row, here.column)
    old = near.plain(0, 0, here.along, here.lanes)
    zero = ir.Constant(old.type, None)
    site.store(spot, b.fadd(b.select(is_first, zero, old), value))
