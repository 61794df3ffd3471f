"""The code of a convolution as a matmul: tasks, packing and register tiles.

A `WindowEmitter` makes, for one phase of a convolution, the function of a task and the
functions it calls. A task goes from block to block of what is summed up, for a block
from panel to panel of features, and computes all its tiles of rows with each. Tiles are
those of `micro_kernel`, but that steps along what is summed up are nested loops with a
stride each. Panels are packed if they are used often, with shuffles if features lie
apart. What is packed, and sums between blocks, are on the thread's stack.

How a convolution is cut up, `conv_tiling` says.

Start reading at `emit_windows`, then `WindowEmitter.blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import LLVMFunction, LLVMModule, Type, Value
from tapejit.targets.cpu.matmul.conv_tiling import RowAxis, Term, Windows, blocks_of
from tapejit.targets.cpu.matmul.emitter import I64, POINTER, VOID, Site, number
from tapejit.targets.cpu.matmul.micro_kernel import RegisterTile, TileEmitter
from tapejit.targets.cpu.matmul.tiling import Hooks, Span, Spot, Tiling
from tapejit.targets.cpu.simd.transpose import transposed


def emit_windows(
    module: LLVMModule,
    phases: Sequence[tuple[Windows, Tiling]],
    name: str,
    hooks: Hooks,
) -> LLVMFunction:
    """Add the function `name(table, task)` of a convolution to a module.

    `hooks` have an epilogue; operands are not changed when they are loaded.
    """
    signature = ir.FunctionType(VOID, [POINTER, I64])
    function = ir.LLVMFunction(module, signature, name)
    function.linkage = "internal"
    tasks, tiling = 0, phases[0][1]
    site = Site(function, tiling, hooks)
    b = site.builder
    for at, (windows, tiling) in enumerate(phases):
        label = f"{name}_phase_{at}"
        own = WindowEmitter(module, windows, tiling, label, hooks).task()
        first, tasks = tasks, tasks + tiling.tasks * windows.groups
        is_mine = b.and_(
            b.icmp_signed(">=", site.task, number(first)),
            b.icmp_signed("<", site.task, number(tasks)),
        )
        with b.if_then(is_mine):
            b.call(own, [site.table, b.sub(site.task, number(first))])
    b.ret_void()
    return function


class WindowEmitter(TileEmitter):
    """Products of windows and filters by register tiles."""

    def __init__(
        self,
        module: LLVMModule,
        windows: Windows,
        tiling: Tiling,
        name: str,
        hooks: Hooks,
    ) -> None:
        super().__init__(module, tiling, name, hooks)
        self.windows = windows
        self.cut = blocks_of(windows.terms)

    @property
    def inner(self) -> tuple[Term, ...]:
        """The terms of a block; of the first one it has a part."""
        return self.windows.terms[self.cut.axis :]

    @property
    def depth(self) -> int:
        """The most terms that a block has."""
        first, *rest = self.inner
        return -(-first.size // self.cut.parts) * prod(term.size for term in rest)

    def task(self) -> LLVMFunction:
        """The function of a task: a block of the result of one group."""
        windows, tiling = self.windows, self.tiling
        signature = ir.FunctionType(VOID, [POINTER, I64])
        function = ir.LLVMFunction(self.module, signature, self.name)
        function.linkage = "internal"
        site = Site(function, tiling, self.hooks)
        a, right, c = self.hooks.operands(site)
        cuts = (windows.groups, tiling.groups, tiling.column_blocks, tiling.row_blocks)
        group, stack, column, row = site.indices(site.task, cuts)
        site.pointers = {
            name: site.at(site.at(pointer, start), site.times(group, step))
            for name, pointer, start, step in zip(
                "ab", (a, right), windows.start, windows.group, strict=True
            )
        }
        site.pointers["c"] = c
        tiles = site.share(row, tiling.rows.parts, tiling.row_blocks)
        panels = site.share(column, tiling.panels, tiling.column_blocks)
        stacks = site.share(stack, windows.matrices, tiling.groups)
        self.blocks(site, group, stacks, tiles, panels)
        site.builder.ret_void()
        return function

    def blocks(
        self, site: Site, group: Value, stacks: Span, tiles: Span, panels: Span
    ) -> None:
        """Block after block of terms, panel after panel: all tiles of all matrices."""
        windows, tiling, b = self.windows, self.tiling, site.builder
        tile_size = tiling.rows.most * tiling.columns
        room = tiling.tiles_of_task
        matrices = -(-windows.matrices // tiling.groups)
        nothing: Value = ir.Literal(POINTER, None)
        packed = sums = nothing
        if tiling.packs_b:
            packed = site.scratch(self.depth * tiling.columns)
        if tiling.blocks > 1:
            sums = site.scratch(matrices * room * tiling.panels_of_task * tile_size)
        outer = windows.terms[: self.cut.axis]
        first = self.inner[0]

        def block(at: Value) -> None:
            *before, part = site.indices(at, [*(x.size for x in outer), self.cut.parts])
            start, end = site.share(part, first.size, self.cut.parts)
            count = b.sub(end, start)
            left, right = site.pointers["a"], site.pointers["b"]
            for index, term in zip((*before, start), (*outer, first), strict=True):
                left = site.at(left, site.times(index, term.a))
                right = site.at(right, site.times(index, term.b))
            is_first = b.icmp_signed("==", at, number(0))
            is_last = b.icmp_signed("==", at, number(tiling.blocks - 1))
            state = b.or_(b.zext(is_first, I64), b.shl(b.zext(is_last, I64), number(1)))

            def panel(at: Value, columns: int) -> None:
                column = site.times(at, tiling.columns)
                here = site.at(right, site.times(column, windows.column))
                if tiling.packs_b:
                    own = [here, packed, count]
                    b.call(self.pack(columns), [site.table, site.task, *own])
                    here = packed

                def matrix(stack: Value) -> None:
                    place = left
                    for index, axis in zip(
                        site.indices(stack, [x.size for x in windows.stack]),
                        windows.stack,
                        strict=True,
                    ):
                        place = site.at(place, site.times(index, axis.a))

                    def tile(tile: Value, row: Value, height: int) -> None:
                        kept = sums
                        if tiling.blocks > 1:
                            which = site.times(b.sub(at, panels[0]), matrices)
                            which = b.add(which, b.sub(stack, stacks[0]))
                            which = b.add(site.times(which, room), tile)
                            which = b.sub(which, tiles[0])
                            kept = site.at(sums, site.times(which, tile_size))
                        rows = site.at(place, site.times(row, windows.rows.a))
                        own = [rows, here, site.pointers["c"], group, stack, row]
                        own += [column, count, kept, state]
                        function = self.tile(height, columns)
                        b.call(function, [site.table, site.task, *own])

                    self.each_kind_of_tile(site, tiles, tile)

                site.loop(*stacks, 1, matrix)

            self.each_kind_of_panel(site, panels, panel)

        site.loop(number(0), number(tiling.blocks), 1, block)

    def once(
        self, kind: str, operands: Sequence[Type], body: Callable[..., None]
    ) -> LLVMFunction:
        """A function of this kernel, emitted when it is first asked for."""
        name = f"{self.name}_{kind}"
        made = self.module.declared(name, VOID, [POINTER, I64, *operands])
        if made.blocks:
            return made
        made.linkage = "internal"
        made.attributes.add("noinline")
        site = Site(made, self.tiling, self.hooks)
        body(site, *made.args[2:])
        site.builder.ret_void()
        return made

    def pack(self, columns: int) -> LLVMFunction:
        """Copy a panel of the filters for a block, a row of vectors for each term."""
        width, lanes = self.tiling.width, self.lanes(columns)
        align, row_size = width * self.gemm.lane, len(lanes) * width
        apart, last = self.windows.column, self.inner[-1]
        # Shuffled if features lie apart and what is summed up does not.
        is_shuffled = apart != 1 and last.b == 1 and last.size >= width

        def body(site: Site, right: Value, out: Value, count: Value) -> None:
            b = site.builder

            def row(place: Value, out: Value) -> list[Value]:
                for j, amount in enumerate(lanes):
                    value = self.features(site, place, j * width, amount)
                    value = site.widened(value, width)
                    b.store(value, site.at(out, j * width), align=align)
                return []

            def squares(place: Value, out: Value) -> list[Value]:
                is_known = len(self.inner) > 1 or self.cut.parts == 1
                high = number(last.size) if is_known else count
                most = b.sub(high, number(width))

                def square(at: Value) -> None:
                    at = site.smaller(at, most)  # the last ones may be done twice
                    near = site.at(place, at)
                    to = site.at(out, site.times(at, row_size))
                    for j, amount in enumerate(lanes):
                        found = [
                            site.load(site.at(near, (j * width + lane) * apart), width)
                            for lane in range(amount)
                        ]
                        found += [site.zeros(width)] * (width - amount)
                        for k, value in enumerate(transposed(b, found, site.nbytes)):
                            here = site.at(to, k * row_size + j * width)
                            b.store(value, here, align=align)

                site.loop(number(0), high, width, square)
                return []

            steps = [self.steps_of_b, self.steps_packed(columns)]
            places, axes = [right, out], len(self.inner)
            if is_shuffled:
                self.each_term(site, count, steps, places, [], squares, axes - 1)
            else:
                self.each_term(site, count, steps, places, [], row, axes)

        return self.once(f"panel_{columns}", [POINTER, POINTER, I64], body)

    def features(self, site: Site, place: Value, first: int, lanes: int) -> Value:
        """Some features of a filter's entry, wherever they lie."""
        apart = self.windows.column
        if apart == 1 or lanes == 1:
            return site.load(site.at(place, first * apart), lanes)
        kind = ir.VectorType(site.element, lanes)
        found: Value = ir.Literal(kind, ir.Undefined)
        for lane in range(lanes):
            where = site.at(place, (first + lane) * apart)
            one = site.builder.load(where, align=site.nbytes, typ=site.element)
            at = ir.Literal(ir.IntType(32), lane)
            found = site.builder.insert_element(found, one, at)
        return found

    def tile(self, height: int, columns: int) -> LLVMFunction:
        """The function of a register tile."""
        made = WindowTile(self, height, columns)
        kinds = [POINTER, POINTER, POINTER, *[I64] * 5, POINTER, I64]
        return self.once(f"tile_{height}_{columns}", kinds, made.block)

    @property
    def steps_of_b(self) -> list[int]:
        """Those of the filters along the terms of a block."""
        return [term.b for term in self.inner]

    def steps_packed(self, columns: int) -> list[int]:
        """The same in a packed panel."""
        row = len(self.lanes(columns)) * self.tiling.width
        sizes = [term.size for term in self.inner]
        return [row * prod(sizes[at + 1 :]) for at in range(len(sizes))]

    def each_term(
        self,
        site: Site,
        count: Value,
        steps: Sequence[Sequence[int]],
        places: Sequence[Value],
        values: Sequence[Value],
        body: Callable[..., list[Value]],
        depth: int,
        unrolled: int = 1,
    ) -> list[Value]:
        """Loops over `depth` axes of a block, of the first of which it has `count`.

        body(*places, *values) gives the next values; each place moves by its steps.
        """
        moving = len(places)

        def along(
            at: int, places: Sequence[Value], values: Sequence[Value]
        ) -> list[Value]:
            if at == depth:
                return body(*places, *values)

            def several(amount: int) -> Callable[..., list[Value]]:
                def one(__: Value, *carried: Value) -> list[Value]:
                    here, found = list(carried[:moving]), list(carried[moving:])
                    for _ in range(amount):
                        found = along(at + 1, here, found)
                        here = [
                            site.at(place, own[at])
                            for place, own in zip(here, steps, strict=True)
                        ]
                    return [*here, *found]

                return one

            size = self.inner[at].size
            is_known = at > 0 or self.cut.parts == 1
            together = unrolled if at == depth - 1 else 1
            high = number(size) if is_known else count
            whole = high
            if together > 1:
                whole = (
                    number(size - size % together)
                    if is_known
                    else site.builder.and_(count, number(-together))
                )
            found = [*places, *values]
            if not is_known or size >= together:
                found = site.loop(number(0), whole, together, several(together), found)
            if is_known and size % together:
                found = several(size % together)(None, *found)
            elif not is_known and together > 1:
                found = site.loop(whole, high, 1, several(1), found)
            return found[moving:]

        return along(0, places, values)


class WindowTile(RegisterTile):
    """A tile of rows of windows times a panel of filters, the sums in registers."""

    def __init__(self, of: WindowEmitter, height: int, columns: int) -> None:
        super().__init__(of, height, columns)
        self.of = of
        packed = of.tiling.packs_b
        right = of.steps_packed(columns) if packed else of.steps_of_b
        self.steps = [term.a for term in of.inner], right

    def block(
        self,
        site: Site,
        left: Value,
        right: Value,
        c: Value,
        group: Value,
        stack: Value,
        row: Value,
        column: Value,
        count: Value,
        sums: Value,
        state: Value,
    ) -> None:
        """The body of the function, for a block of terms.

        `sums` are those of the blocks before. Bit 0 of `state` says that this is the
        first block, bit 1 that it is the last one.
        """
        b = site.builder
        site.pointers["c"] = c

        def term(left: Value, right: Value, *totals: Value) -> list[Value]:
            return self.step(site, left, right, totals)

        places, axes, zeros = [left, right], len(self.of.inner), self.zeros(site)
        totals = self.of.each_term(
            site, count, self.steps, places, zeros, term, axes, self.unrolled
        )
        if not self.is_blocked:
            self.hand_over(site, group, stack, row, column, totals)
            return
        align = self.width * site.nbytes
        is_first = b.trunc(state, ir.IntType(1))
        for at, total in enumerate(totals):
            before = site.load(site.at(sums, at * self.width), self.width, align)
            totals[at] = b.select(is_first, total, b.fadd(before, total))
        is_last = b.icmp_signed(">=", state, number(2))
        with b.if_else(is_last) as (then, otherwise):
            with then:
                self.hand_over(site, group, stack, row, column, totals)
            with otherwise:
                for at, total in enumerate(totals):
                    b.store(total, site.at(sums, at * self.width), align=align)

    def hand_over(
        self,
        site: Site,
        group: Value,
        stack: Value,
        row: Value,
        column: Value,
        totals: Sequence[Value],
    ) -> None:
        """Give vectors of the result to the epilogue, without lanes beyond it."""
        windows, epilogue = self.of.windows, site.hooks.epilogue
        assert epilogue is not None
        *front, _ = windows.shape
        index = [number(0)] * len(front)
        axes = zip(
            site.indices(stack, [axis.size for axis in windows.stack]),
            windows.stack,
            strict=True,
        )
        for at, axis in axes:
            self.note(site, index, axis, at)
        first = site.builder.add(column, site.times(group, windows.features))
        for i in range(self.height):
            self.note(site, index, windows.rows, site.plus(row, i))
            batch = tuple(
                at for at, size in zip(index[:-1], front[:-1], strict=True) if size != 1
            )
            for j, lanes in enumerate(self.lanes):
                value = site.first_lanes(totals[i * self.vectors + j], lanes)
                here = site.plus(first, j * self.width)
                spot = Spot(batch, index[-1], here, "column", lanes)
                epilogue(site, spot, value)

    def note(self, site: Site, index: list[Value], axis: RowAxis, at: Value) -> None:
        """Put the place along merged axes into the index of the result."""
        places = site.indices(at, [part.size for part in axis.parts])
        for part, place in zip(axis.parts, places, strict=True):
            index[part.axis] = site.plus(site.times(place, part.period), part.first)
