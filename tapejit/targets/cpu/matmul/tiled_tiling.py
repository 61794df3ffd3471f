"""Choices of matmuls in loops over tiles: how the matmul of one tile is cut.

A matmul in loops over tiles of rows, and maybe of columns, is computed tile by tile. A
`TileCut` is such a product for tiles of one size: where its matrices are, and how it is
cut itself. The last tiles of an axis may have fewer iterations, and a product for these
is another one. `TiledChoice` has them all.

What all tiles have in common is packed once: before the kernel if it is one matrix, and
if each matrix of a stack has its own, before the tiles of that.

Start reading at `tiled_choice`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tapejit.loops.index import Axis
from tapejit.loops.kernels import Choice, Kernel, LoopPlan, Storage
from tapejit.loops.steps import Buffer, Step, TileRole, tiles_of
from tapejit.targets.cpu.matmul.choices import aligned_strides
from tapejit.targets.cpu.matmul.tiling import (
    Cut,
    Edges,
    Gemm,
    Strides,
    Tiling,
    host_registers,
    in_tasks,
    tiling_of,
)
from tapejit.targets.cpu.schedule.output_layout import result_strides
from tapejit.targets.cpu.target import CPU


class Operand(NamedTuple):
    """A matrix of one tile: what it is in, and how far its elements are apart."""

    base: Step | Buffer
    strides: Strides
    of_stack: tuple[int, ...] = ()  # how far its matrices are apart
    steps: tuple[tuple[Axis, int], ...] = ()  # from one iteration of tiles to the next
    offset: int = 0
    of_task: int = 0  # how far apart those of two tasks are


class TileSizes(NamedTuple):
    """How many iterations a tile is, of rows and maybe of columns.

    The last tiles of the axes `last` have fewer.
    """

    role: TileRole
    full: Mapping[Axis, int]
    last: tuple[Axis, ...] = ()

    def of(self, axis: Axis) -> int:
        """How many iterations of an axis a tile has."""
        tile = self.full[axis]
        return axis.extent % tile if axis in self.last else tile

    def skip(self, axis: Axis) -> int:
        """How many columns of a tile are those of the one before."""
        is_column = axis in self.last and axis is self.role.column
        return self.full[axis] - self.of(axis) if is_column else 0


@dataclass(frozen=True)
class TileCut:
    """A product for one tile: its matrices, and how it is cut up."""

    sizes: TileSizes
    a: Operand
    b: Operand
    c: Operand
    tiling: Tiling
    is_prepared: bool  # whether its panels are packed beforehand


@dataclass(frozen=True)
class TiledChoice(Choice):
    """The products for tiles of every size, those for full ones first."""

    ends: tuple[Axis, ...]  # the axes whose last tile takes a product of its own
    cuts: tuple[TileCut, ...]

    @property
    def whole(self) -> TileCut:
        """That for full tiles."""
        return self.cuts[0]

    def cut(self, last: Sequence[Axis]) -> TileCut:
        """That for the last tiles of some axes."""
        return next(x for x in self.cuts if set(x.sizes.last) == set(last))

    @property
    def is_of_stack(self) -> bool:
        """Whether each matrix of a stack has panels of its own.

        Those of tiles of columns are packed for each matrix in any case.
        """
        return any(self.whole.b.of_stack) or self.whole.sizes.role.column is not None

    @property
    def packed(self) -> int:
        """Bytes of all panels of a matrix that are packed beforehand."""
        count = 1
        if self.is_of_stack:
            for axis, _ in self.whole.b.steps:
                count = self.tiles_along(axis)
        return self.whole.tiling.packed * count

    def tiles_along(self, axis: Axis) -> int:
        """How many tiles of an axis have panels; a short one at its end has none."""
        size = self.whole.sizes.full[axis]
        return axis.extent // size if axis in self.ends else -(-axis.extent // size)


def tiled_choice(plan: LoopPlan, kernel: Kernel, step: Step) -> TiledChoice:
    """How a matmul in loops over tiles is computed."""
    tiles = {x.axis: x.tile for x in plan.paths[step] if x.tile}
    role = tiles_of(step)
    # The last tile of columns has some of the one before once more. That is no matter
    # for what is computed anew, but nothing may be added up twice.
    ends = tuple(
        axis
        for axis in role.cuts.values()
        if axis.extent % tiles[axis]
        and not (role.kind == "rows" and axis is role.column)
    )
    whole = TileCutter(plan, kernel, step, TileSizes(role, tiles)).whole()
    others = (TileSizes(role, tiles, last) for last in subsets(ends))
    cuts = (TileCutter(plan, kernel, step, sizes).end(whole) for sizes in others)
    return TiledChoice(ends, (whole, *cuts))


def subsets(axes: tuple[Axis, ...]) -> Iterator[tuple[Axis, ...]]:
    """All of some axes but none of them."""
    for at, axis in enumerate(axes):
        yield (axis,)
        for others in subsets(axes[at + 1 :]):
            yield (axis, *others)


class TileCutter:
    """Cuts a product for tiles of one size."""

    def __init__(
        self, plan: LoopPlan, kernel: Kernel, step: Step, sizes: TileSizes
    ) -> None:
        self.plan, self.kernel, self.step, self.sizes = plan, kernel, step, sizes
        self.node, self.role = step.performed, sizes.role
        self.row, self.cuts = self.role.axes[-1], self.role.cuts
        m, n = map(int, self.node.shape[-2:])
        found = {"m": m, "n": n, "k": int(self.node.inputs[0].shape[-1])}
        found.update({x: sizes.of(axis) for x, axis in self.cuts.items()})
        self.a, self.b = self.operand(0, "mk"), self.operand(1, "kn")
        self.c = self.result()
        a, b, c = (x.strides for x in (self.a, self.b, self.c))
        self.gemm = Gemm(found["m"], found["n"], found["k"], step.dtype, a, b, c)
        edges = Edges(has_epilogue="k" in self.cuts)
        self.tiling = tiling_of(self.gemm, host_registers(), edges, is_part=True)

    def whole(self) -> TileCut:
        """The product for full tiles; its panels may be packed beforehand."""
        is_prepared = self.is_worth_preparing()
        if is_prepared:
            self.tiling = replace(self.tiling, packs_b=True, is_ready=True)
        return self.made(is_prepared)

    def end(self, whole: TileCut) -> TileCut:
        """That for the last tiles, whose panels may be those of the others."""
        is_prepared = whole.is_prepared and self.sizes.last == (self.row,)
        if is_prepared:
            rows = Cut.of(self.gemm.m, whole.tiling.rows.most)
            fewer = replace(whole.tiling, gemm=self.gemm, rows=rows)
            self.tiling = in_tasks(fewer, is_part=True)
        return self.made(is_prepared)

    def made(self, is_prepared: bool) -> TileCut:
        tiling = self.tiling
        is_short = self.gemm.k <= CPU.tuning.short_matmul_steps
        if "k" in self.cuts and tiling.blocks == 1 and is_short:
            tiling = replace(tiling, ends_tiles=True)
        return TileCut(self.sizes, self.a, self.b, self.c, tiling, is_prepared)

    def is_worth_preparing(self) -> bool:
        """Whether all tiles of rows use the same panels, packed beforehand."""
        tiling, (base, _, _) = self.tiling, self.step.views[1]
        if isinstance(base, Step):
            is_there = self.plan.kernel_of[base] != self.kernel.number
        else:
            is_there = base.kind != "constant"
        is_sum = self.role.kind == "sum"
        if not is_there or is_sum or tiling.is_flipped or tiling.is_dots:
            return False
        # Tiles that have the right operand in common.
        shared: int = self.row.extent // self.sizes.full[self.row]
        if not any(self.b.of_stack):
            shared *= math.prod(axis.extent for axis in self.role.axes[:-1])
        return shared >= (2 if tiling.packs_b else CPU.tuning.shared_b_tiles)

    def operand(self, which: int, names: str) -> Operand:
        """An operand; `names` are those of its last axes."""
        base, offset, strides = self.step.views[which]
        if isinstance(base, Step):
            memory = self.plan.storage[base]
            if memory.kernel is not None:
                return self.private(base, memory, names)  # it holds just this tile
        front = len(self.node.shape) - 2
        shape = tuple(map(int, self.node.inputs[which].shape))
        own = aligned_strides(shape, strides, front)
        steps = self.steps(own[-2:], names)
        return Operand(base, Strides(*own[-2:]), own[:-2], steps, offset)

    def steps(self, strides: Sequence[int], names: str) -> tuple[tuple[Axis, int], ...]:
        """How far it is to the next iteration, along each axis that is cut."""
        pairs = zip(names, strides, strict=True)
        return tuple((self.cuts[x], step) for x, step in pairs if x in self.cuts)

    def private(self, base: Step, memory: Storage, names: str) -> Operand:
        """A matrix that is memory of the tile."""
        (column,) = [axis for axis in memory.strides if axis is not self.row]
        axes = [self.row if self.cuts.get(x) is self.row else column for x in names]
        strides = Strides(*(memory.strides[axis] for axis in axes))
        skip = self.sizes.skip(column) * memory.strides[column]
        return Operand(base, strides, offset=skip)

    def result(self) -> Operand:
        """Where the result of a tile goes."""
        memory = self.plan.storage[self.step]
        if memory.kernel is not None:
            return self.private(self.step, memory, "mn")
        own = result_strides(self.step)
        steps = self.steps(own[-2:], "mn")
        of_task = memory.size if self.step in self.kernel.partials else 0
        strides = Strides(*own[-2:])
        return Operand(self.step, strides, own[:-2], steps, of_task=of_task)
