"""Convolutions as generated products: windows are read where they lie.

With its padding in memory, the input of a convolution has every term of it at a place
that is a sum of multiples: one for each axis of the result, and one for each axis of a
window. So the matrix of all windows need not be laid out, in memory or in a cache:

    result[batch, position, feature] = Σ x[batch, position · stride + entry · dilation,
                                           channel] · filters[entry, channel, feature]

A `Windows` says this with strides. The rows of the product are axes of the result
(`RowAxis`) that x is read along evenly; other axes make a stack of such products, and
features are the columns. What is summed up, `Term`s, are the axes of a window and the
channels; those that both operands go through evenly are one. The derivative by the
filters is the same with other strides: there entries of the window and channels are
rows, batch and positions are terms.

Tiles of rows are those of `gemm_micro`. Panels of the filters are packed if they are
used often, with shuffles if features lie apart. Spread input is not spread in memory:
each phase has a kernel of its own, with the entries of the window that it sees.

Terms are cut into blocks of at most `DEPTH`, by their sizes alone. The sum of a block
is one chain of fused multiply-adds that begins with 0, and blocks are added in their
order: so the bits are the same for all tiles, processors and numbers of threads.

Start reading at `windows_of`, then `WindowEmitter.blocks`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, NamedTuple

from llvmlite import ir

from tapejit.codegen.gemm import (
    BatchAxis,
    Cut,
    Gemm,
    Hooks,
    Registers,
    Spot,
    Strides,
    Tiling,
    host_registers,
    tile_of,
)
from tapejit.codegen.gemm_micro import Emitted, RegisterTile, TileEmitter
from tapejit.codegen.gemm_site import I64, POINTER, VOID, Site, number
from tapejit.passes.fusion.index import strides_of
from tapejit.passes.fusion.steps import Step
from tapejit.passes.fusion.windows import Phase, phases_of

DEPTH: Final = 256  # terms of a block
UNCUT: Final = 384  # terms that are one block all the same
ROOM: Final = 1 << 18  # bytes of x that a task reads again for every panel
SUMS: Final = 1 << 17  # bytes of sums between blocks
MOST_ROWS: Final = 1024  # of a task
ENOUGH_ROWS: Final = 8  # of a product, so that a tile is worth it
GRAIN: Final = 400_000  # operations that are worth a task
REUSED: Final = 8  # more tiles of a task than this make packing a panel worth it
ENOUGH: Final = 4  # tasks from which on two threads are busy


class Part(NamedTuple):
    """An axis of the result: which one it is, and the places along it."""

    size: int
    axis: int
    first: int = 0
    period: int = 1


class RowAxis(NamedTuple):
    """Axes of the result that x is read along evenly, outermost first."""

    parts: tuple[Part, ...]
    a: int  # stride of x

    @property
    def size(self) -> int:
        return prod(part.size for part in self.parts)


class Term(NamedTuple):
    """An axis that is summed along: its size, the strides of x and of the filters."""

    size: int
    a: int
    b: int


@dataclass(frozen=True)
class Windows:
    """A convolution by strides, or one phase of it. `shape` is that of the result.

    `start` has the places of the first elements of x and of the filters, `group` the
    strides of a group of channels and of features.
    """

    shape: tuple[int, ...]
    rows: RowAxis
    stack: tuple[RowAxis, ...]
    terms: tuple[Term, ...]  # outermost first
    groups: int
    group: tuple[int, int]
    start: tuple[int, int]
    column: int  # stride of the features of a filter, 1 if there is one

    @property
    def features(self) -> int:
        """Of one group."""
        return self.shape[-1] // self.groups

    @property
    def matrices(self) -> int:
        """How many products a group has."""
        return prod(axis.size for axis in self.stack)

    @property
    def count(self) -> int:
        """How many terms an element has."""
        return prod(term.size for term in self.terms)


def windows_of(product: Step) -> list[Windows]:
    """The Step of a convolution by the strides it has, one phase after the other."""
    node = product.node
    assert node is not None
    axes = [phases_of(node, axis) for axis in range(node.ndim - 2)]
    return [windows_in(product, phases) for phases in itertools.product(*axes)]


def windows_in(product: Step, phases: Sequence[Phase]) -> Windows:
    """One phase of a convolution; `phases` are those of its axes."""
    node = product.node
    assert node is not None
    (_, _, left), (_, _, right) = product.attrs["views"]
    shape = tuple(map(int, node.shape))
    channels = int(node.inputs[1].shape[-2])
    groups = int(node.attrs["groups"])
    rows = [RowAxis((Part(shape[0], 0),), left[0])]
    terms = [Term(channels, left[-1], right[-2])]
    start = [0, 0]
    for axis, phase in enumerate(phases):
        a, b = left[axis + 1], right[axis]
        part = Part(phase.positions, axis + 1, phase.first, phase.period)
        rows.append(RowAxis((part,), phase.stride * a))
        terms.append(Term(phase.entries, phase.dilation * a, phase.skip * b))
        start[0] += phase.start * a
        start[1] += phase.entry * b
    found = merged_rows(rows)
    chosen = rows_among(found)
    return Windows(
        shape,
        chosen,
        tuple(axis for axis in found if axis is not chosen),
        merged_terms(terms),
        groups,
        (channels * left[-1], shape[-1] // groups * right[-1]),
        (start[0], start[1]),
        right[-1] if shape[-1] > groups else 1,
    )


def merged_rows(axes: Sequence[RowAxis]) -> list[RowAxis]:
    """In the order of x in memory, neighbours that it goes through evenly made one.

    >>> rows = [RowAxis((Part(3, 0),), 1), RowAxis((Part(5, 1),), 3)]
    >>> merged_rows(rows) == [RowAxis((Part(5, 1), Part(3, 0)), 1)]
    True
    """
    found: list[RowAxis] = []
    # What has one place can go with any other, so it comes first.
    for axis in sorted(axes, key=lambda axis: (axis.size > 1, -abs(axis.a))):
        if found and (found[-1].size == 1 or found[-1].a == axis.size * axis.a):
            axis = RowAxis((*found.pop().parts, *axis.parts), axis.a)
        found.append(axis)
    return found


def merged_terms(terms: Sequence[Term]) -> tuple[Term, ...]:
    """The same of what is summed up, for both operands; there is one at least.

    >>> merged_terms([Term(3, 100, 96), Term(3, 8, 32), Term(8, 1, 4)])
    (Term(size=3, a=100, b=96), Term(size=24, a=1, b=4))
    """
    if any(term.size == 0 for term in terms):
        return (Term(0, 0, 0),)
    found: list[Term] = []
    several = [term for term in terms if term.size > 1]
    for term in sorted(several, key=lambda term: -abs(term.a)):
        if found and found[-1][1:] == (term.size * term.a, term.size * term.b):
            term = Term(found.pop().size * term.size, term.a, term.b)
        found.append(term)
    return tuple(found) or (Term(1, 0, 0),)


def rows_among(axes: Sequence[RowAxis]) -> RowAxis:
    """Rows next to each other if they are enough for a tile, else the most rows."""
    enough = [axis for axis in axes if axis.size >= ENOUGH_ROWS]
    if enough:
        return enough[-1]
    return max(axes, key=lambda axis: axis.size)


class Blocks(NamedTuple):
    """How terms are cut: the first ones one by one, one in parts, the rest whole.

    >>> blocks_of((Term(32, 900, 900), Term(30, 30, 30), Term(30, 1, 1)))
    Blocks(axis=1, parts=4)
    >>> blocks_of((Term(3, 100, 96), Term(96, 1, 1)))
    Blocks(axis=0, parts=1)
    """

    axis: int
    parts: int


def blocks_of(terms: Sequence[Term]) -> Blocks:
    """The cut of terms, by their sizes alone."""
    if prod(term.size for term in terms) <= UNCUT:
        return Blocks(0, 1)
    inside, axis = 1, len(terms) - 1
    while axis and inside * terms[axis].size <= DEPTH:
        inside *= terms[axis].size
        axis -= 1
    return Blocks(axis, -(-terms[axis].size // (DEPTH // inside)))


def emit_windows(
    module: Any,
    product: Step,
    name: str,
    hooks: Hooks,
    registers: Registers | None = None,
) -> Emitted:
    """Add the function `name(table, task)` of a convolution to a module.

    `hooks` have an epilogue; operands are not changed when they are loaded.
    """
    registers = registers or host_registers()
    phases = [
        (windows, window_tiling(windows, product.dtype, registers))
        for windows in windows_of(product)
    ]
    signature = ir.FunctionType(VOID, [POINTER, I64])
    function = ir.Function(module, signature, name)
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
    return Emitted(function, tasks, tiling)


def window_tiling(windows: Windows, dtype: Any, registers: Registers) -> Tiling:
    """Tiles, panels and the tasks of a group; of the result as a stack of matrices."""
    *front, m, features = windows.shape
    out = strides_of(windows.shape)
    inner, rows = windows.terms[-1], windows.rows.size
    gemm = Gemm(
        m,
        windows.features,
        windows.count,
        dtype,
        Strides(windows.rows.a, inner.a),
        Strides(inner.b, windows.column),
        Strides(features, 1),
        tuple(
            BatchAxis(size, 0, 0, stride)
            for size, stride in zip(front, out, strict=False)
            if size != 1
        ),
    )
    width = registers.nbytes // gemm.lane
    vectors = -(-gemm.n // width)
    mr, nv = tile_of(rows, vectors, gemm.k, registers)
    cut = blocks_of(windows.terms)
    blocks = cut.parts * prod(term.size for term in windows.terms[: cut.axis])
    made = Tiling(gemm, False, False, width, Cut.of(rows, mr), nv, blocks=blocks)
    depth = max(1, min(gemm.k, UNCUT if blocks == 1 else DEPTH))
    most = min(MOST_ROWS, ROOM // (depth * gemm.lane))
    row_blocks = -(-rows // most)
    stacks = -(-windows.matrices // max(1, most // rows))
    made = replace(made, row_blocks=row_blocks, groups=stacks)
    if blocks > 1:
        held = min(most, rows * windows.matrices) * made.columns * gemm.lane
        made = replace(made, column_blocks=-(-made.panels // max(1, SUMS // held)))
    wanted = min(ENOUGH, -(-gemm.operations // GRAIN))
    while made.tasks * windows.groups < wanted:
        if 2 * made.column_blocks <= made.panels:  # what is packed is packed once
            made = replace(made, column_blocks=2 * made.column_blocks)
        elif 2 * made.groups <= windows.matrices:
            made = replace(made, groups=2 * made.groups)
        elif 2 * made.row_blocks <= made.rows.parts:
            made = replace(made, row_blocks=2 * made.row_blocks)
        else:
            break
    tiles = made.tiles_of_task * -(-windows.matrices // made.groups)
    return replace(made, packs_b=tiles > REUSED or windows.column != 1)


class WindowEmitter(TileEmitter):
    """Products of windows and filters by register tiles."""

    def __init__(
        self, module: Any, windows: Windows, tiling: Tiling, name: str, hooks: Hooks
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

    def task(self) -> Any:
        """The function of a task: a block of the result of one group."""
        windows, tiling = self.windows, self.tiling
        signature = ir.FunctionType(VOID, [POINTER, I64])
        function = ir.Function(self.module, signature, self.name)
        function.linkage = "internal"
        site = Site(function, tiling, self.hooks)
        a, right, c = self.hooks.operands(site)
        cuts = (
            windows.groups,
            tiling.groups,
            tiling.column_blocks,
            tiling.row_blocks,
        )
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
        self,
        site: Site,
        group: Any,
        stacks: tuple[Any, Any],
        tiles: tuple[Any, Any],
        panels: tuple[Any, Any],
    ) -> None:
        """Block after block of terms, panel after panel: all tiles of all matrices."""
        windows, tiling, b = self.windows, self.tiling, site.builder
        tile_size = tiling.rows.most * tiling.columns
        room = tiling.tiles_of_task
        matrices = -(-windows.matrices // tiling.groups)
        packed = sums = ir.Constant(POINTER, None)
        if tiling.packs_b:
            packed = site.scratch(self.depth * tiling.columns)
        if tiling.blocks > 1:
            sums = site.scratch(matrices * room * tiling.panels_of_task * tile_size)
        outer = windows.terms[: self.cut.axis]
        first = self.inner[0]

        def block(at: Any) -> None:
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

            def panel(at: Any, columns: int) -> None:
                column = site.times(at, tiling.columns)
                here = site.at(right, site.times(column, windows.column))
                if tiling.packs_b:
                    own = [here, packed, count]
                    b.call(self.pack(columns), [site.table, site.task, *own])
                    here = packed

                def matrix(stack: Any) -> None:
                    place = left
                    for index, axis in zip(
                        site.indices(stack, [x.size for x in windows.stack]),
                        windows.stack,
                        strict=True,
                    ):
                        place = site.at(place, site.times(index, axis.a))

                    def tile(tile: Any, row: Any, height: int) -> None:
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
        self, kind: str, operands: Sequence[Any], body: Callable[..., None]
    ) -> Any:
        """A function of this kernel, emitted when it is first asked for."""
        name = f"{self.name}_{kind}"
        known = self.module.globals.get(name)
        if known is not None:
            return known
        signature = ir.FunctionType(VOID, [POINTER, I64, *operands])
        made = ir.Function(self.module, signature, name)
        made.linkage = "internal"
        made.attributes.add("noinline")
        site = Site(made, self.tiling, self.hooks)
        body(site, *made.args[2:])
        site.builder.ret_void()
        return made

    def pack(self, columns: int) -> Any:
        """Copy a panel of the filters for a block, a row of vectors for each term."""
        width, lanes = self.tiling.width, self.lanes(columns)
        align, row_size = width * self.gemm.lane, len(lanes) * width
        apart, last = self.windows.column, self.inner[-1]
        # Shuffled if features lie apart and what is summed up does not.
        is_shuffled = apart != 1 and last.b == 1 and last.size >= width

        def body(site: Site, right: Any, out: Any, count: Any) -> None:
            b = site.builder

            def row(place: Any, out: Any) -> list[Any]:
                for j, amount in enumerate(lanes):
                    value = self.features(site, place, j * width, amount)
                    value = site.widened(value, width)
                    b.store(value, site.at(out, j * width), align=align)
                return []

            def squares(place: Any, out: Any) -> list[Any]:
                is_known = len(self.inner) > 1 or self.cut.parts == 1
                high = number(last.size) if is_known else count
                most = b.sub(high, number(width))

                def square(at: Any) -> None:
                    at = site.smaller(at, most)  # the last ones may be done twice
                    near = site.at(place, at)
                    to = site.at(out, site.times(at, row_size))
                    for j, amount in enumerate(lanes):
                        found = [
                            site.load(site.at(near, (j * width + lane) * apart), width)
                            for lane in range(amount)
                        ]
                        found += [site.zeros(width)] * (width - amount)
                        for k, value in enumerate(site.transposed(found)):
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

    def features(self, site: Site, place: Any, first: int, lanes: int) -> Any:
        """Some features of a filter's entry, wherever they lie."""
        apart = self.windows.column
        if apart == 1 or lanes == 1:
            return site.load(site.at(place, first * apart), lanes)
        found = ir.Constant(ir.VectorType(site.element, lanes), ir.Undefined)
        for lane in range(lanes):
            where = site.at(place, (first + lane) * apart)
            one = site.builder.load(where, align=site.nbytes, typ=site.element)
            at = ir.Constant(ir.IntType(32), lane)
            found = site.builder.insert_element(found, one, at)
        return found

    def tile(self, height: int, columns: int) -> Any:
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
        count: Any,
        steps: Sequence[Sequence[int]],
        places: Sequence[Any],
        values: Sequence[Any],
        body: Callable[..., list[Any]],
        depth: int,
        unrolled: int = 1,
    ) -> list[Any]:
        """Loops over `depth` axes of a block, of the first of which it has `count`.

        body(*places, *values) gives the next values; each place moves by its steps.
        """
        moving = len(places)

        def along(at: int, places: Sequence[Any], values: Sequence[Any]) -> list[Any]:
            if at == depth:
                return body(*places, *values)

            def several(amount: int) -> Callable[..., list[Any]]:
                def one(_: Any, *carried: Any) -> list[Any]:
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
        left: Any,
        right: Any,
        c: Any,
        group: Any,
        stack: Any,
        row: Any,
        column: Any,
        count: Any,
        sums: Any,
        state: Any,
    ) -> None:
        """The body of the function, for a block of terms.

        `sums` are those of the blocks before. Bit 0 of `state` says that this is the
        first block, bit 1 that it is the last one.
        """
        b = site.builder
        site.pointers["c"] = c

        def term(left: Any, right: Any, *totals: Any) -> list[Any]:
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
        group: Any,
        stack: Any,
        row: Any,
        column: Any,
        totals: Sequence[Any],
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

    def note(self, site: Site, index: list[Any], axis: RowAxis, at: Any) -> None:
        """Put the place along merged axes into the index of the result."""
        places = site.indices(at, [part.size for part in axis.parts])
        for part, place in zip(axis.parts, places, strict=True):
            index[part.axis] = site.plus(site.times(place, part.period), part.first)
