"""The micro-kernel of matmuls: packing, prefetch and register tiles, as LLVM.

A `TileEmitter` makes, for one `Tiling`, the function of a task and the functions it
calls: a `RegisterTile` keeps the sums of a tile in registers for a block of k,
`pack_panel` lays the columns of a panel side by side, `pack_tile` does so with the rows
of a tile. Each is one function per height of tile or width of panel. They are given
pointers and know of the product only what the code depends on, so that most products of
a module share theirs. `DotEmitter` is for few rows whose operands lie along k.

A tile goes from registers to the result, or to a copy that `finish` gives to the
epilogue, row by row. That way an epilogue is written once or twice, not for each vector
of each tile, which would be most of the code and of the time to compile it. What the
epilogue gives back is added up on the way, column by column (`tile_sums`). Where the
copy would be felt, and the epilogue is brief, `whole` does all at once.

A is read where it is if its strides allow: they are constants, so the rows of a tile
are displacements from one pointer. B's panels are packed if they are used often, with
shuffles if k is the axis along which B lies. What a task packs is on its thread's
stack; B may have been packed before the first task (`panels`).

The loops are emitted with their values in registers (phis): no pass has to find them.

Start reading at `emit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Block, LLVMFunction, LLVMModule, Value
from tapejit.targets.cpu.matmul.emitter import (
    I32,
    I64,
    POINTER,
    ZERO,
    ByHeight,
    ProductEmitter,
    Reader,
    Site,
    number,
)
from tapejit.targets.cpu.matmul.tile_sums import ColumnSums, Near
from tapejit.targets.cpu.matmul.tiling import Hooks, Span, Strides, Tiling
from tapejit.targets.cpu.simd.transpose import transposed
from tapejit.targets.cpu.target import CPU


def emit(module: LLVMModule, tiling: Tiling, name: str, hooks: Hooks) -> LLVMFunction:
    """Add the function `name(table, task)` of a product to a module.

    >>> import numpy as np
    >>> from tapejit.targets.cpu.matmul.tiling import (
    ...     Gemm,
    ...     Strides,
    ...     host_registers,
    ...     tiling_of,
    ... )
    >>> rows = Strides(8, 1)
    >>> gemm = Gemm(8, 8, 8, np.dtype("f4"), rows, rows, rows)
    >>> emit(
    ...     ir.LLVMModule(), tiling_of(gemm, host_registers()), "product", Hooks()
    ... ).name
    'product'
    """
    kind = DotEmitter if tiling.is_dots else TileEmitter
    return kind(module, tiling, name, hooks).task()


def emit_panels(module: LLVMModule, tiling: Tiling) -> LLVMFunction:
    """A function (table, panel) that packs B, for tilings that want it ready.

    The second entry of the table is B, the third is where its panels go.
    """
    return TileEmitter(module, tiling, "", Hooks()).panels()


class TileEmitter(ProductEmitter):
    """Products by register tiles."""

    def product(
        self, site: Site, tiles: Span, panels: Span
    ) -> Callable[[tuple[Value, ...]], None]:
        tiling, gemm, b = self.tiling, self.gemm, site.builder
        rows, depth = tiling.rows, tiling.depth
        room = tiling.tiles_of_task
        tile_size = rows.most * tiling.columns
        nothing: Value = ir.Literal(POINTER, None)
        panel_scratch = tile_scratch = sums = nothing
        if tiling.packs_b and not tiling.is_ready:
            panel_scratch = site.scratch(depth * tiling.columns)
        if tiling.packs_a:
            tile_scratch = site.scratch(room * rows.most * depth)
        if tiling.kept_tiles:
            sums = site.scratch(tiling.kept_tiles * tile_size)

        def block(batch: tuple[Value, ...], at: Value) -> None:
            start, end = site.share(at, gemm.k, tiling.blocks)
            count = number(gemm.k) if tiling.blocks == 1 else b.sub(end, start)

            def packed(tile: Value) -> Value:
                place = site.times(b.sub(tile, tiles[0]), rows.most * depth)
                return site.at(tile_scratch, place)

            if tiling.packs_a:
                self.pack_tiles(site, batch, tiles, start, count, packed)

            def panel(number_of_it: Value, columns: int) -> None:
                column = site.times(number_of_it, tiling.columns)
                row_size = len(self.lanes(columns)) * tiling.width
                if tiling.is_ready:
                    right = site.at(site.pointers["b"], site.times(column, gemm.k))
                    right = site.at(right, site.times(start, row_size))
                elif tiling.packs_b:
                    here = (batch, start, column)
                    others = (panel_scratch, count)
                    self.call_near(site, "b", here, others, self.pack_panel(columns))
                    right = panel_scratch
                else:
                    right = Reader(site, "b", batch, start, column).origin

                def tile(tile: Value, row: Value, by_height: ByHeight) -> None:
                    if tiling.packs_a:
                        left = packed(tile)
                    else:
                        left = Reader(site, "a", batch, row, start).origin
                    place = (batch, row, column)
                    if tiling.ends_tiles:
                        function = by_height(lambda x: self.whole(x, columns))
                        self.call_near(site, "c", place, (left, right), function)
                        return
                    if tiling.stores_tiles:
                        out = Reader(site, "c", batch, row, column).origin
                        step = gemm.c.row
                    else:
                        out, step = sums, row_size
                    if tiling.keeps_sums:
                        which = site.times(b.sub(number_of_it, panels[0]), room)
                        which = b.add(which, b.sub(tile, tiles[0]))
                        out = site.at(sums, site.times(which, tile_size))
                    function = by_height(lambda height: self.micro(height, columns))
                    b.call(function, [left, right, out, number(step), count, at])
                    if tiling.stores_tiles:
                        return
                    function, others = self.finish(columns), (out, by_height(number))
                    if tiling.blocks == 1:
                        self.call_near(site, "c", place, others, function)
                        return
                    is_last = b.icmp_signed("==", at, number(tiling.blocks - 1))
                    with b.if_then(is_last):
                        self.call_near(site, "c", place, others, function)

                self.each_tile(site, tiles, tile)

            self.each_kind_of_panel(site, panels, panel)

        def run(batch: tuple[Value, ...]) -> None:
            if tiling.blocks > 1:
                site.loop(
                    number(0), number(tiling.blocks), 1, lambda at: block(batch, at)
                )
            else:
                block(batch, number(0))

        return run

    def pack_tiles(
        self,
        site: Site,
        batch: tuple[Value, ...],
        tiles: Span,
        start: Value,
        count: Value,
        packed: Callable[[Value], Value],
    ) -> None:
        """Pack all tiles of a block for a block of k.

        Where rows lie side by side, some steps of k at a time for all of them: they
        are on the same pages, and the caches cannot hold many of those.
        """
        b, at_once = site.builder, CPU.tuning.packed_at_once_steps

        def steps(at: Value, amount: Value) -> None:
            def pack(tile: Value, row: Value, by_height: ByHeight) -> None:
                out = packed(tile)
                if at is not ZERO:
                    step = by_height(lambda x: number(self.tile_steps(x).column))
                    out = site.at(out, b.mul(at, step))
                place = (batch, row, site.sum(start, at))
                function = by_height(self.pack_tile)
                self.call_near(site, "a", place, (out, amount), function)

            self.each_tile(site, tiles, pack)

        def some(at: Value) -> None:
            steps(at, site.smaller(b.sub(count, at), number(at_once)))

        if self.packs_along_k:
            steps(number(0), count)
        else:
            site.loop(number(0), count, at_once, some)

    def lanes(self, columns: int) -> list[int]:
        """Of the vectors of a panel."""
        width = self.tiling.width
        return [min(width, columns - at) for at in range(0, columns, width)]

    def micro(self, height: int, columns: int) -> LLVMFunction:
        """The function of a register tile."""
        tile = RegisterTile(self, height, columns)
        kinds = [POINTER, POINTER, POINTER, I64, I64, I64]
        return self.plain("tile", tile.details, kinds, tile.emit)

    def whole(self, height: int, columns: int) -> LLVMFunction:
        """A register tile from its first step of k to its epilogue."""
        tile = RegisterTile(self, height, columns)

        def body(site: Site, near: Near, left: Value, right: Value) -> None:
            count = number(self.gemm.k)
            totals = tile.summed(site, left, right, count, tile.zeros(site))
            here, sums = near(ZERO, ZERO), ColumnSums(site, near, tile.lanes)
            before = sums.begin()
            for i in range(height):
                found = []
                for j, lanes in enumerate(tile.lanes):
                    value = site.first_lanes(totals[i * tile.vectors + j], lanes)
                    found.append(here.finish(i, j * tile.width, "column", value))
                before = sums.with_row(number(i), before, found)
            sums.end(before)

        details = [*tile.details, self.gemm.k]
        return self.near("c", [POINTER, POINTER], "whole", details, body)

    def finish(self, columns: int) -> LLVMFunction:
        """Hand the vectors of a tile over, without lanes beyond the result.

        A loop over the tile in memory: in the registers where it was summed, all that
        is done with a vector would have to be written for each of them.
        """
        width, lanes = self.tiling.width, self.lanes(columns)
        row_size, sums = len(lanes) * width, self.hooks.sums
        is_group = sums is not None and sums.group > 0
        if columns == 2 * width and not is_group:
            # Instructions of two vectors wait less for each other: 5% of `pinn`.
            lanes = [columns]

        def body(site: Site, near: Near, tile: Value, rows: Value) -> None:
            sums = ColumnSums(site, near, lanes)

            def vector(i: Value, j: Value, count: int) -> Sequence[Value]:
                offset = site.sum(site.times(i, row_size), j)
                value = site.load(site.at(tile, offset), count)
                return near(i, j).finish(0, 0, "column", value)

            def row(i: Value, *before: Value) -> list[Value]:
                rest = lanes
                is_wide = len(lanes) > CPU.tuning.written_epilogue_vectors
                if is_wide and site.hooks.sums is None:
                    full = number(columns // width * width)
                    site.loop(number(0), full, width, lambda j: vector(i, j, width))
                    rest = lanes[columns // width :]
                found = [
                    vector(i, number(at * width), count)
                    for at, count in enumerate(rest, len(lanes) - len(rest))
                ]
                return sums.with_row(i, before, found)

            sums.end(site.loop(number(0), rows, 1, row, sums.begin()))

        return self.near("c", [POINTER, I64], "finish", [columns], body)

    def tile_steps(self, height: int) -> Strides:
        """Strides of a packed tile of A: as it lies, so that vectors can be copied."""
        return (
            Strides(self.tiling.depth, 1) if self.packs_along_k else Strides(1, height)
        )

    @property
    def packs_along_k(self) -> bool:
        return self.gemm.a.column == 1 or self.gemm.a.row != 1

    def pack_tile(self, height: int) -> LLVMFunction:
        """Copy the rows of a tile for some steps of k."""
        width, steps = self.tiling.width, self.tile_steps(height)

        def body(site: Site, near: Near, out: Value, count: Value) -> None:
            b = site.builder

            def chunk(at: Value, lanes: int) -> None:
                here = near(ZERO, at)
                place = site.at(out, site.times(at, steps.column))
                if not self.packs_along_k:
                    value = here.load(0, 0, "row", height)
                    b.store(value, place, align=site.nbytes)
                    return
                for i in range(height):
                    value = here.load(i, 0, "column", lanes)
                    b.store(value, site.at(place, i * steps.row), align=site.nbytes)

            self.along_k(site, count, width if self.packs_along_k else 1, chunk)

        details = [height, self.tiling.depth, min(self.gemm.k, width)]
        return self.near("a", [POINTER, I64], "left", details, body)

    def along_k(
        self, site: Site, count: Value, width: int, chunk: Callable[[Value, int], None]
    ) -> None:
        """chunk(k, lanes) until all is done; the last ones may be done twice."""
        if self.gemm.k < width:
            chunk(number(0), self.gemm.k)
            return
        last = site.builder.sub(count, number(width))

        def one(at: Value) -> None:
            chunk(site.smaller(at, last) if width > 1 else at, width)

        site.loop(number(0), count, width, one)

    def pack_panel(self, columns: int) -> LLVMFunction:
        """Copy the columns of a panel for a block of k, a row of vectors for each k."""
        width, lanes = self.tiling.width, self.lanes(columns)
        row_size = len(lanes) * width
        # Shuffled if columns lie apart and k does not.
        is_shuffled = self.gemm.b.row == 1 and self.gemm.b.column != 1
        fetches = self.tiling.panels > 1 and self.hook_of("b") is None

        def body(site: Site, near: Near, out: Value, count: Value) -> None:
            b, align = site.builder, width * site.nbytes

            def rows(at: Value, _: int) -> None:
                here = near(at, ZERO)
                place = site.at(out, site.times(at, row_size))
                if fetches:
                    # The next panel's part of the row, as far away as this one's.
                    line = CPU.tuning.cache_line_bytes // site.nbytes
                    for ahead in range(row_size, 2 * row_size, line):
                        site.prefetch(here.place(0, ahead))
                for j, count in enumerate(lanes):
                    value = here.load(0, j * width, "column", count)
                    value = site.widened(value, width)
                    b.store(value, site.at(place, j * width), align=align)

            def square(at: Value, j: Value, depth: int, count: int) -> None:
                here = near(at, j)
                place = site.at(out, site.sum(site.times(at, row_size), j))
                found = [
                    site.widened(here.load(0, lane, "row", depth), width)
                    for lane in range(count)
                ]
                found += [site.zeros(width)] * (width - count)
                for k, value in enumerate(transposed(b, found, site.nbytes)[:depth]):
                    b.store(value, site.at(place, k * row_size), align=align)

            def squares(at: Value, depth: int) -> None:
                full, rest = divmod(columns, width)
                site.loop(
                    ZERO,
                    number(full * width),
                    width,
                    lambda j: square(at, j, depth, width),
                )
                if rest:
                    square(at, number(full * width), depth, rest)

            if is_shuffled:
                self.along_k(site, count, width, squares)
            else:
                self.along_k(site, count, 1, rows)

        details = [columns, min(self.gemm.k, width), f"{fetches:d}"]
        return self.near("b", [POINTER, I64], "panel", details, body)

    def panels(self) -> LLVMFunction:
        """The function that packs one of all panels, for all of k."""
        tiling, gemm = self.tiling, self.gemm

        def body(site: Site, _: Value, task: Value) -> None:
            _, source, out = self.hooks.operands(site)
            site.pointers = {"b": source}

            def panel(at: Value, columns: int) -> None:
                column = site.times(at, tiling.columns)
                place = site.at(out, site.times(column, gemm.k))
                here, others = ((), ZERO, column), (place, number(gemm.k))
                self.call_near(site, "b", here, others, self.pack_panel(columns))

            next_one = site.builder.add(task, number(1))
            self.each_kind_of_panel(site, (task, next_one), panel)

        details = [gemm.n, gemm.k, tiling.columns, *gemm.b]
        return self.function("panels", details, [POINTER, I64], body, self.hooks)


class RegisterTile:
    """out[height, columns] = a b for a block of k, the sums in registers.

    Where the tile begins in each operand, its caller knows: products of many sizes have
    their tiles in common.
    """

    def __init__(self, of: TileEmitter, height: int, columns: int) -> None:
        tiling, gemm = of.tiling, of.gemm
        self.packs_b = tiling.packs_b
        self.height, self.width = height, tiling.width
        self.lanes = of.lanes(columns)
        self.vectors = len(self.lanes)
        self.b_step = self.vectors * self.width if tiling.packs_b else gemm.b.row
        self.a_steps = of.tile_steps(height) if tiling.packs_a else gemm.a
        self.is_blocked = tiling.blocks > 1
        # LLVM would want the elements of both steps at once, which are too many.
        is_tall = self.vectors == 1 and height > CPU.tuning.unrolled_tile_most_rows
        self.unrolled = 1 if is_tall else CPU.tuning.matmul_unrolled_steps
        # Steps of k after the loop; None if they depend on the block.
        steps, rest = divmod(gemm.k, tiling.blocks)
        self.remainder = None if rest else steps % self.unrolled
        operands = [f"{self.packs_b:d}", self.b_step, *self.a_steps]
        blocks = ["blocks"] if self.is_blocked else []
        self.details = [height, columns, *operands, self.remainder, *blocks]

    def emit(
        self,
        site: Site,
        a: Value,
        right: Value,
        out: Value,
        step: Value,
        count: Value,
        block: Block,
    ) -> None:
        """The body of the function: `count` steps of k, from A's tile and B's panel.

        `out` is where the tile goes, with rows so far apart, and where the sums of the
        blocks of k before this one are, unless it is the first.
        """
        b = site.builder
        totals = self.summed(site, a, right, count, self.zeros(site))
        if self.is_blocked:
            is_first = b.icmp_signed("==", block, ZERO)
            before = [
                site.widened(site.load(place, lanes), self.width)
                for place, lanes in self.places(site, out, step)
            ]
            totals = [
                b.select(is_first, x, b.fadd(y, x))
                for x, y in zip(totals, before, strict=True)
            ]
        places = self.places(site, out, step)
        for (place, lanes), total in zip(places, totals, strict=True):
            value = site.first_lanes(total, lanes)
            b.store(value, place, align=site.nbytes)

    def zeros(self, site: Site) -> list[Value]:
        """The sums before the first step."""
        return [site.zeros(self.width)] * (self.height * self.vectors)

    def places(self, site: Site, out: Value, step: Value) -> list[tuple[Value, int]]:
        """Where the vectors of the tile are in memory, and their lanes."""
        found = []
        for i in range(self.height):
            out = site.at(out, step) if i else out
            found += [
                (site.at(out, j * self.width), lanes)
                for j, lanes in enumerate(self.lanes)
            ]
        return found

    def summed(
        self,
        site: Site,
        left: Value,
        right: Value,
        count: Value,
        totals: Sequence[Value],
    ) -> list[Value]:
        """The sums after all steps of k."""

        def several(number_of_steps: int) -> Callable[..., list[Value]]:
            def body(
                __: Value | None, left: Value, right: Value, *totals: Value
            ) -> list[Value]:
                made = list(totals)
                for _ in range(number_of_steps):
                    made = self.step(site, left, right, made)
                    left = site.at(left, self.a_steps.column)
                    right = site.at(right, self.b_step)
                return [left, right, *made]

            return body

        whole = site.builder.and_(count, number(-self.unrolled))
        values = site.loop(
            number(0),
            whole,
            self.unrolled,
            several(self.unrolled),
            [left, right, *totals],
        )
        if self.remainder is None:
            values = site.loop(whole, count, 1, several(1), values)
        elif self.remainder:
            values = several(self.remainder)(None, *values)
        return values[2:]

    def step(
        self, site: Site, left: Value, right: Value, totals: Sequence[Value]
    ) -> list[Value]:
        """The sums after one step of k.

        What many sums use waits in registers, the other operand comes one by one.
        """
        made = list(totals)
        if self.vectors <= self.height:
            vectors = [self.vector(site, right, at) for at in range(self.vectors)]
            for i in range(self.height):
                x = self.element(site, left, i)
                for j, y in enumerate(vectors):
                    at = i * self.vectors + j
                    made[at] = site.fma(x, y, made[at])
        else:
            elements = [self.element(site, left, at) for at in range(self.height)]
            for j in range(self.vectors):
                y = self.vector(site, right, j)
                for i, x in enumerate(elements):
                    at = i * self.vectors + j
                    made[at] = site.fma(x, y, made[at])
        return made

    def vector(self, site: Site, right: Value, at: int) -> Value:
        """A vector of B's row."""
        place = site.at(right, at * self.width)
        if self.packs_b:
            return site.load(place, self.width, self.width * site.nbytes)
        return site.widened(site.load(place, self.lanes[at]), self.width)

    def element(self, site: Site, left: Value, at: int) -> Value:
        """An element of A's column in every lane."""
        place = site.at(left, at * self.a_steps.row)
        return site.spread(site.load(place, 1), self.width)


class DotEmitter(ProductEmitter):
    """Products of few rows with columns that lie along k: lanes are parts of a sum."""

    def product(
        self, site: Site, tiles: Span, panels: Span
    ) -> Callable[[tuple[Value, ...]], None]:
        tiling = self.tiling

        def run(batch: tuple[Value, ...]) -> None:
            def panel(at: Value, columns: int) -> None:
                own = [*(site.pointers[x] for x in "abc")]
                column = site.times(at, tiling.columns)
                function = self.dots(columns)
                arguments = [site.table, site.task, *own, column, *batch]
                site.builder.call(function, arguments)

            self.each_kind_of_panel(site, panels, panel)

        return run

    def dots(self, columns: int) -> LLVMFunction:
        """All rows times some columns."""
        gemm, width = self.gemm, self.tiling.width
        whole, rest = gemm.k // width * width, gemm.k % width

        def body(
            site: Site,
            batch: tuple[Value, ...],
            a: Value,
            right: Value,
            c: Value,
            column: Value,
        ) -> None:
            site.pointers = {"a": a, "b": right, "c": c}

            def step(k: Value, totals: Sequence[Value], lanes: int) -> list[Value]:
                left = Reader(site, "a", batch, number(0), k)
                near = Reader(site, "b", batch, k, column)
                xs = [
                    site.widened(left.load(i, 0, "column", lanes), width)
                    for i in range(gemm.m)
                ]
                made = list(totals)
                for j in range(columns):
                    y = site.widened(near.load(0, j, "row", lanes), width)
                    for i, x in enumerate(xs):
                        at = i * columns + j
                        made[at] = site.fma(x, y, made[at])
                return made

            zeros = [site.zeros(width)] * (gemm.m * columns)
            size = CPU.numerics.matmul_block_terms * width

            def chain(low: Value, high: Value) -> list[Value]:
                return site.loop(
                    low, high, width, lambda k, *x: step(k, x, width), zeros
                )

            def more(low: Value, *before: Value) -> list[Value]:
                high = site.smaller(site.plus(low, size), number(whole))
                pairs = zip(before, chain(low, high), strict=True)
                return [site.builder.fadd(x, y) for x, y in pairs]

            totals = zeros
            if whole > CPU.numerics.matmul_uncut_terms * width:
                totals = site.loop(number(0), number(whole), size, more, zeros)
            elif whole:
                totals = chain(number(0), number(whole))
            if rest:
                totals = step(number(whole), totals, rest)
            out = Reader(site, "c", batch, number(0), column)
            for i in range(gemm.m):
                value = self.added(site, totals[i * columns : (i + 1) * columns])
                out.finish(i, 0, "column", value)

        kinds = [POINTER, POINTER, POINTER, I64]
        hooks = self.hooks
        has_hooks = (hooks.load_a, hooks.load_b, hooks.epilogue) != (None,) * 3
        details = [gemm.m, gemm.k, columns]
        return self.special("dots", details, has_hooks or None, kinds, body)

    def added(self, site: Site, totals: Sequence[Value]) -> Value:
        """The sum of the lanes of each vector: always the same tree."""
        b, kind = site.builder, ir.VectorType(site.element, len(totals))
        found: Value = ir.Literal(kind, ir.Undefined)
        for lane, x in enumerate(totals):
            one = b.extract_element(site.folded([x]), ir.Literal(I32, 0))
            found = b.insert_element(found, one, ir.Literal(I32, lane))
        return found
