"""A matmul inside of loops: for the rows of one tile at a time.

Such a product is a function like that of a whole product, `micro_kernel` makes it. It
is called in the loop with a table of its own: where the rows of this tile are, and for
a sum whether this is the first tile.

How it is cut, `tiled_tiling` says.

Start reading at `TiledMatmul`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tapejit.loops.index import Affine, Axis
from tapejit.loops.kernels import Storage
from tapejit.loops.steps import Buffer, Step
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import LLVMFunction, Value
from tapejit.targets.cpu.matmul.emitter import Reader, Site
from tapejit.targets.cpu.matmul.micro_kernel import emit, emit_panels
from tapejit.targets.cpu.matmul.tiled_tiling import Operand, TileCut, TiledChoice
from tapejit.targets.cpu.matmul.tiling import Hooks, Spot
from tapejit.targets.cpu.nest.addressing import I8, I64, POINTER, Preparation, number
from tapejit.targets.cpu.simd import lanes

if TYPE_CHECKING:
    from tapejit.targets.cpu.nest.kernel_emitter import KernelEmitter


class TiledMatmul:
    """Emits a product for the tiles of a loop, and what is packed before these."""

    def __init__(self, of: KernelEmitter, step: Step) -> None:
        choice = of.kernel.choices[step]
        assert isinstance(choice, TiledChoice)
        self.of, self.at, self.step, self.choice = of, of.at, step, choice
        self.whole = choice.whole
        self.role, self.tiles, _ = self.whole.sizes
        self.is_sum = "k" in self.role.cuts  # over tiles
        self.hooks = Hooks(
            epilogue=added if self.is_sum else None, key="added" if self.is_sum else ""
        )

    def memory(self, operand: Operand) -> Storage | Buffer:
        """What a matrix is in."""
        base = operand.base
        if isinstance(base, Buffer):
            return base
        kept = self.at.kernel.partials if operand.of_task else self.at.plan.storage
        return kept[base]

    def pointer(self, operand: Operand, cut: TileCut | None) -> Value:
        """Where the matrix of a tile begins, or that of all tiles."""
        at, memory = self.at, self.memory(operand)
        if isinstance(memory, Storage):
            start = at.pointer_to(memory)
        else:
            start = at.buffer(memory)
        place = self.place_in_stack(operand.of_stack)
        for axis, step in operand.steps if cut is not None else ():
            assert cut is not None
            first = at.builder.add(at.origins[axis], number(cut.sizes.skip(axis)))
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
        stack = iter(self.role.axes[:-1])
        terms = [
            (next(stack), stride)
            for size, stride in zip(
                self.step.performed.shape[:-2], strides, strict=False
            )
            if size != 1
        ]
        return self.at.scalar(Affine(tuple((axis, f) for axis, f in terms if f)))

    # The code

    def prepare(self) -> None:
        """Pack the right operand of this matrix of a stack, before its tiles."""
        choice, b = self.choice, self.whole.b
        if not (self.whole.is_prepared and choice.is_of_stack):
            return
        at, packed, count = self.at, self.whole.tiling.packed, 1
        apart = tile_size = last = 0  # bytes from one column to the next, columns
        for axis, step in b.steps:
            tile_size, apart = self.tiles[axis], step * self.memory(b).dtype.itemsize
            last = axis.extent - tile_size
            count = choice.tiles_along(axis)
        room = at.part_of_room(self.step)
        first = self.pointer(b, None)
        function = emit_panels(at.function.module, self.whole.tiling)

        def pack(tile: Value) -> None:
            b = at.builder
            column = b.mul(tile, number(tile_size))
            column = at.smaller(column, number(last))
            source = b.gep(first, [b.mul(column, number(apart))], source_etype=I8)
            out = b.gep(room, [b.mul(tile, number(packed))], source_etype=I8)
            self.call(function, (source, source, out), self.whole.tiling.panels)

        at.for_range(number(0), number(count), 1, pack)

    def panels(self) -> Value:
        """Where the panels of the right operand are."""
        at, step, b, tiling = self.at, self.step, self.whole.b, self.whole.tiling
        if self.choice.is_of_stack:
            room = at.part_of_room(step)
            for axis, _ in b.steps:
                # The last tile may begin before the end of the one before.
                end = at.builder.add(at.origins[axis], number(self.tiles[axis] - 1))
                tile = at.builder.udiv(end, number(self.tiles[axis]))
                place = at.builder.mul(tile, number(tiling.packed))
                room = at.builder.gep(room, [place], source_etype=I8)
            return room
        packed = at.layout.place_of(at.kernel.rooms[step])
        if step not in self.of.ready:
            self.of.ready.add(step)
            first = at.layout.place_of(self.memory(b), b.offset)
            function = emit_panels(at.function.module, tiling)
            places = (first, first, packed)
            at.preparations.append(Preparation(function, places, tiling.panels))
        return at.at_place(packed)

    def emit(self) -> list[LLVMFunction]:
        """The product for the current tile; the functions that compute it."""
        at, functions = self.at, []

        def choose(ends: Sequence[Axis], last: tuple[Axis, ...]) -> None:
            if not ends:
                functions.append(self.emit_cut(self.choice.cut(last)))
                return
            axis, *others = ends
            with at.builder.if_else(self.is_at_end(axis)) as (at_end, before):
                with at_end:
                    choose(others, (*last, axis))
                with before:
                    choose(others, last)

        choose(self.choice.ends, ())
        return functions

    def is_at_end(self, axis: Axis) -> Value:
        """Whether the current tile is the last one of an axis, which has fewer."""
        tile = self.tiles[axis]
        is_column = axis is self.role.column
        first = axis.extent - (tile if is_column else axis.extent % tile)
        return self.at.builder.icmp_signed("==", self.at.origins[axis], number(first))

    def emit_cut(self, cut: TileCut) -> LLVMFunction:
        """The product for tiles of these sizes; the function that computes it."""
        at, step = self.at, self.step
        last = cut.sizes.last
        kinds = "".join(x for x, axis in self.role.cuts.items() if axis in last)
        name = f"{at.function.name}_p{step.number}{kinds}"
        module = at.function.module
        right = self.panels() if cut.is_prepared else self.pointer(cut.b, cut)
        function = module.globals.get(name)
        if not isinstance(function, LLVMFunction):
            function = emit(module, cut.tiling, name, self.hooks)
        origin = at.origins[self.role.cuts.get("k", self.role.axes[-1])]
        begin = self.of.first_of(at.task) if cut.c.of_task else number(0)
        first = at.builder.icmp_signed("==", origin, begin)
        flag = at.builder.inttoptr(at.builder.zext(first, I64), POINTER)
        left, out = self.pointer(cut.a, cut), self.pointer(cut.c, cut)
        self.call(function, (left, right, out, flag), cut.tiling.tasks)
        return function

    def call(
        self, function: LLVMFunction, entries: Sequence[Value], tasks: int
    ) -> None:
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
    zero = ir.Literal(old.type, None)
    site.store(spot, b.fadd(b.select(is_first, zero, old), value))
