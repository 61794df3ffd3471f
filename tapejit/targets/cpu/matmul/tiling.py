"""Tile sizes of a matmul: how it is cut into tasks, panels and register tiles.

A `Gemm` is a stack of products of known sizes and strides. `tiling_of` cuts it for a
processor's `Registers` by rules of the shape, without any trial: a register tile of
`mr` rows and `nv` vectors, tiles of rows that differ by one in height, panels of
columns, blocks of k if it is long, and tasks, which are blocks of the result.
`micro_kernel.emit` writes the code:

    tiling = tiling_of(gemm, host_registers(), hooks.edges)
    tiling.tasks                              how many tasks there are
    emit(module, tiling, "product", hooks)    void (table, task), for the driver

Every element of the result is a chain of fused multiply-adds, over k in ascending order
and beginning with 0. Where k is long, it is cut into blocks of about
`matmul_block_terms` by its size alone, and the sums of blocks are added in order:
rounding would add up in one long chain. So neither the tile nor the processor nor the
number of threads changes a bit. The one exception is a rule of the `Gemm` alone: where
few rows meet operands that both lie along k ("dots"), lanes run along k, as many on
every processor, and are added up as a tree at the end.

`Hooks` change what happens at the edges of a kernel. A hook is called while code is
emitted, with the `Site` (where code is being emitted) and a `Spot`: a position in a
matrix, as LLVM values, and how many lanes lie along which axis from there.

    load_a, load_b   (site, spot) -> vector: instead of loading elements of an operand.
                     `site.load_a(spot)` is what would have been loaded. Each element
                     is asked for once per block of the result or oftener; hooks may
                     not have effects.
    epilogue         (site, spot, vector): instead of storing elements of the result;
                     `site.store(spot, vector)` does store them. Each element is given
                     to it once, from a copy of the register tile in memory: its code
                     is a loop's body.
    sums             what the vectors that the epilogue returns add up to, column by
                     column, over `unit` rows at a time, or along a row, over `group`
                     columns. One task has all tiles of a unit, from the first row to
                     the last, and all vectors of a group, so the order of additions
                     follows from these alone. For results that lie row by row.
    is_brief         whether the epilogue is so few instructions that they may be
                     written for every vector of a register tile, where copies take
                     long.
    enter            (function) -> IRBuilder: how each function begins. Those in which
                     hooks are called have the table and the task as first arguments.
    operands         (site) -> pointers to A, B and C; by default the first three
                     entries of the table.
    key              names what hooks emit. Functions of equal key and tile are shared
                     within a module; without a key, those with hooks are not shared.

A vector has exactly `spot.lanes` lanes, which need not be a power of two: nothing
beyond the matrices is ever read, or handed to a hook. Lanes are floats or doubles;
16-bit floats are widened when they are loaded and rounded when they are stored.

Start reading at `Gemm`, then `tiling_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, Final, NamedTuple

from llvmlite import binding

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError
from tapejit.base.types import DType, is_float
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, LLVMFunction, Value
from tapejit.targets.cpu.simd.storage import is_small
from tapejit.targets.cpu.target import CPU

if TYPE_CHECKING:
    from tapejit.targets.cpu.matmul.emitter import Site


class Registers(NamedTuple):
    """The vector registers of a processor: bytes of each, and how many there are."""

    nbytes: int
    total: int


def host_registers() -> Registers:
    """Those of this processor, or of the one that the settings name.

    >>> with config.override(cpu="x86-64-v3"):
    ...     host_registers()
    Registers(nbytes=32, total=16)
    """
    if config.cpu.startswith("x86-64"):
        level = config.cpu.removeprefix("x86-64")
        return {"-v4": Registers(64, 32), "-v3": Registers(32, 16)}.get(
            level, Registers(16, 16)
        )
    return registers_here()


@cache
def registers_here() -> Registers:
    """Those of this processor."""
    features = binding.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512vl"):
        return Registers(64, 32)
    if features.get("avx2"):
        return Registers(32, 16)
    is_x86 = binding.get_default_triple().startswith(("x86_64", "i686"))
    return Registers(16, 16 if is_x86 else 32)


class Strides(NamedTuple):
    """How many elements lie between two rows and between two columns of a matrix."""

    row: int
    column: int


class BatchAxis(NamedTuple):
    """One axis of a stack: its size, and the strides of A, B and C in elements."""

    size: int
    a: int
    b: int
    c: int


@dataclass(frozen=True)
class Gemm:
    """A stack of products C = A B, [m, k] times [k, n], of arrays in memory.

    Strides are in elements and may be 0 or negative. C must not overlap A or B, nor
    itself.

    >>> import numpy as np
    >>> f32 = np.dtype("f4")
    >>> x = Gemm(128, 10, 256, f32, Strides(256, 1), Strides(10, 1), Strides(10, 1))
    >>> x.operations
    655360
    """

    m: int
    n: int
    k: int
    dtype: DType
    a: Strides  # of a row, of k
    b: Strides  # of k, of a column
    c: Strides
    batch: tuple[BatchAxis, ...] = ()

    def __post_init__(self) -> None:
        if not is_float(self.dtype):
            raise ArgumentError(f"products are of floats, not of {self.dtype}")
        if min(self.m, self.n, self.k, *(axis.size for axis in self.batch)) < 0:
            raise ArgumentError(f"sizes are not negative: {self}")

    @property
    def lane(self) -> int:
        """Bytes of a number that sums are made of."""
        return max(4, self.dtype.itemsize)

    @property
    def matrices(self) -> int:
        """How many products there are."""
        return prod(axis.size for axis in self.batch)

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * self.matrices

    def flipped(self) -> Gemm:
        """The same products, seen as those of the transposed matrices."""
        a, b, c = (Strides(x.column, x.row) for x in (self.b, self.a, self.c))
        batch = tuple(BatchAxis(x.size, x.b, x.a, x.c) for x in self.batch)
        return replace(self, m=self.n, n=self.m, a=a, b=b, c=c, batch=batch)


Span = tuple[Value, Value]  # from one number up to another


class Spot(NamedTuple):
    """Elements of a matrix: the first one's place, and how many follow along an axis.

    `batch` has an index for every axis of the stack. `along` is "row" if each lane is
    in the next row, else "column".
    """

    batch: tuple[Value, ...]
    row: Value
    column: Value
    along: str
    lanes: int

    def flipped(self) -> Spot:
        """The same elements in the transposed matrix."""
        along = "row" if self.along == "column" else "column"
        return Spot(self.batch, self.column, self.row, along, self.lanes)


def plain_entry(function: LLVMFunction) -> IRBuilder:
    """A builder in a new block of a function."""
    return ir.IRBuilder(function.append_basic_block("entry"))


def from_table(site: Site) -> tuple[Value, Value, Value]:
    """The first three entries of the table."""
    pointer, index = ir.PointerType(), ir.IntType(64)
    places = [
        site.builder.gep(site.table, [ir.Literal(index, at)], source_etype=pointer)
        for at in range(3)
    ]
    a, b, c = (site.builder.load(place, typ=pointer) for place in places)
    return a, b, c


@dataclass(frozen=True)
class Sums:
    """How what an epilogue returns adds up: in units of rows that m has whole ones of.

    It adds up along rows in groups of columns. What is 0 is not asked for.

    begin   (site, spot) -> totals of the vectors at a Spot, before its row
    add     (site, totals, vectors) -> totals with one more row
    end     (site, spot, totals): after the last row of a tile that begins at the Spot
    along   (site, spot, vectors): what is returned for each vector of a group of
            columns that begins at the Spot
    """

    unit: int
    begin: Callable[[Site, Spot], Sequence[Value]]
    add: Callable[[Site, Sequence[Value], Sequence[Value]], Sequence[Value]]
    end: Callable[[Site, Spot, Sequence[Value]], None]
    group: int
    along: Callable[[Site, Spot, Sequence[Sequence[Value]]], None]


class Edges(NamedTuple):
    """What a tiling depends on of what is done at the edges of a kernel."""

    has_epilogue: bool = False
    is_brief: bool = False
    unit: int = 0
    group: int = 0
    loads_a: bool = False
    loads_b: bool = False

    def flipped(self) -> Edges:
        """Those of the transposed product."""
        return self._replace(loads_a=self.loads_b, loads_b=self.loads_a)


PLAIN: Final = Edges()


@dataclass(frozen=True)
class Hooks:
    """What to do instead at the edges of a kernel; see the top of this file."""

    load_a: Callable[[Site, Spot], Value] | None = None
    load_b: Callable[[Site, Spot], Value] | None = None
    epilogue: Callable[[Site, Spot, Value], Sequence[Value] | None] | None = None
    sums: Sums | None = None
    enter: Callable[[LLVMFunction], IRBuilder] = plain_entry
    operands: Callable[[Site], tuple[Value, Value, Value]] = from_table
    is_brief: bool = False
    key: str = ""

    @property
    def edges(self) -> Edges:
        """What a tiling depends on of them."""
        loads = self.load_a is not None, self.load_b is not None
        sums = (0, 0) if self.sums is None else (self.sums.unit, self.sums.group)
        return Edges(self.epilogue is not None, self.is_brief, *sums, *loads)

    def flipped(self) -> Hooks:
        """Those of the transposed product, which still get Spots of this one."""
        return replace(self, load_a=self.load_b, load_b=self.load_a)


class Cut(NamedTuple):
    """A size cut in parts that differ by one: the first `tall` ones have one more.

    >>> cut = Cut.of(128, 6)
    >>> cut, [height for height, _, _ in cut.kinds()]
    (Cut(parts=22, short=5, tall=18), [6, 5])
    """

    parts: int
    short: int
    tall: int

    @staticmethod
    def of(size: int, most: int) -> Cut:
        """Parts of at most so many."""
        count = max(1, -(-size // most))
        short, tall = divmod(size, count)
        return Cut(count, short, tall)

    @property
    def most(self) -> int:
        """The size of the largest part."""
        return self.short + (self.tall > 0)

    def kinds(self) -> Iterator[tuple[int, int, int]]:
        """Size, first and end of the parts of each size."""
        if self.tall:
            yield self.short + 1, 0, self.tall
        if self.tall < self.parts:
            yield self.short, self.tall, self.parts


@dataclass(frozen=True)
class Tiling:
    """How a `Gemm` is cut. `gemm` is the one computed, flipped or not.

    >>> import numpy as np
    >>> f32 = np.dtype("f4")
    >>> x = Gemm(128, 512, 784, f32, Strides(784, 1), Strides(512, 1), Strides(512, 1))
    >>> made = tiling_of(x, Registers(32, 16))
    >>> made.rows.most, made.vectors, made.packs_a, made.packs_b, made.tasks
    (6, 2, False, True, 32)
    """

    gemm: Gemm
    is_flipped: bool
    is_dots: bool
    width: int  # lanes of a vector
    rows: Cut  # tiles, of each unit if there are any
    vectors: int  # of a full panel
    unit: int = 0  # rows of which one task has all tiles
    packs_a: bool = False
    packs_b: bool = False
    is_ready: bool = False  # whether B's panels have been packed beforehand
    stores_tiles: bool = False  # in the result, without an epilogue
    ends_tiles: bool = False  # with an epilogue, while they are in registers
    blocks: int = 1  # of k
    row_blocks: int = 1
    column_blocks: int = 1
    groups: int = 1  # of matrices

    @property
    def columns(self) -> int:
        """Of a full panel."""
        return self.vectors if self.is_dots else self.vectors * self.width

    @property
    def full(self) -> int:
        """How many panels are full."""
        return self.gemm.n // self.columns

    @property
    def rest(self) -> int:
        """Columns of the last panel if it is not full, else 0."""
        return self.gemm.n % self.columns

    @property
    def panels(self) -> int:
        return self.full + (self.rest > 0)

    @property
    def packed(self) -> int:
        """Bytes of all panels, packed one after the other."""
        last = -(-self.rest // self.width) * self.width
        return self.gemm.k * (self.full * self.columns + last) * self.gemm.lane

    @property
    def depth(self) -> int:
        """The most that a block of k has."""
        return -(-self.gemm.k // self.blocks)

    @property
    def near_rows(self) -> int:
        """How many rows of A stay near, of a block of k."""
        return CPU.tuning.prepacked_a_bytes // (self.depth * self.gemm.lane)

    @property
    def units(self) -> int:
        """How many units of rows there are; all rows are one if none are asked for."""
        return self.gemm.m // self.unit if self.unit else 1

    @property
    def tiles(self) -> int:
        """How many tiles of rows there are."""
        return self.units * self.rows.parts

    @property
    def row_parts(self) -> int:
        """Into how many blocks the rows can be cut for tasks."""
        return self.units if self.unit else self.rows.parts

    @property
    def tiles_of_task(self) -> int:
        """How many tiles of rows a task has at most."""
        parts = -(-self.row_parts // self.row_blocks)
        return parts * self.rows.parts if self.unit else parts

    @property
    def panels_of_task(self) -> int:
        """How many panels a task has at most."""
        return -(-self.panels // self.column_blocks)

    @property
    def keeps_sums(self) -> bool:
        """Whether sums are kept on the stack between blocks of k."""
        return self.blocks > 1 and not self.stores_tiles

    @property
    def kept_tiles(self) -> int:
        """How many tiles of sums a task has on the stack."""
        if self.stores_tiles or self.ends_tiles:
            return 0
        return self.tiles_of_task * self.panels_of_task if self.keeps_sums else 1

    @property
    def stack(self) -> int:
        """Bytes that a task has on the stack: a panel, its part of A, its sums."""
        rows = self.tiles_of_task * self.rows.most
        numbers = 0 if self.is_ready or not self.packs_b else self.depth * self.columns
        numbers += self.depth * rows if self.packs_a else 0
        numbers += self.kept_tiles * self.rows.most * self.columns
        return numbers * self.gemm.lane

    @property
    def streams(self) -> bool:
        """Whether B comes from far away, to be used a few times.

        Then a few rows of it are read to their end, not a few columns: memory is
        fetched ahead along a row, and pages are few.
        """
        gemm = self.gemm
        is_large = gemm.k * gemm.n * gemm.lane >= CPU.tuning.streamed_b_bytes
        is_used_little = self.tiles <= CPU.tuning.streamed_b_tiles and not self.packs_b
        return is_large and gemm.b.column == 1 and is_used_little

    @property
    def along(self) -> str:
        """The axis along which epilogues get vectors."""
        return "row" if self.is_flipped else "column"

    @property
    def tasks(self) -> int:
        return self.groups * self.row_blocks * self.column_blocks


def tiling_of(
    gemm: Gemm, registers: Registers, edges: Edges = PLAIN, is_part: bool = False
) -> Tiling:
    """The tiling of a product, by rules alone.

    One that is part of a task is not cut for threads.
    """
    is_flipped = gemm.m > 1 and (
        gemm.n == 1 or (gemm.c.column != 1 and gemm.c.row == 1)
    )
    if is_flipped:
        gemm, edges = gemm.flipped(), edges.flipped()
    m, n, k = gemm.m, gemm.n, gemm.k
    lies_along_k = gemm.a.column == 1 and gemm.b.row == 1
    tuning, numerics = CPU.tuning, CPU.numerics
    is_skinny = m <= numerics.dot_most_rows and k > 1
    if is_skinny and lies_along_k and (gemm.b.column != 1 or n == 1):
        lone = m * n < numerics.interleaved_dots
        width = (numerics.lone_dot_bytes if lone else numerics.dot_bytes) // gemm.lane
        at_once = max(1, min(n, numerics.interleaved_dots // max(1, m)))
        rows = Cut.of(m, numerics.dot_most_rows)
        return in_tasks(Tiling(gemm, is_flipped, True, width, rows, at_once), is_part)
    width = registers.nbytes // gemm.lane
    unit = edges.unit
    if unit and (gemm.batch or m % unit or is_flipped):
        raise ArgumentError(f"rows do not add up in units of {unit}: {gemm}")
    group = max(1, edges.group // width)
    mr, vectors = tile_of(unit or m, -(-n // width), k, registers, group)
    rows = Cut.of(unit or m, mr)
    made = Tiling(gemm, is_flipped, False, width, rows, vectors, unit)
    must_widen = is_small(gemm.dtype)
    is_row = gemm.b.column == 1 or n == 1
    is_row_by_row = gemm.c.column == 1 or n == 1
    is_reused = made.tiles > tuning.streamed_b_tiles
    is_torn = is_reused and conflicts(gemm.b.row, gemm.dtype, k)
    packs_b = not is_row or is_torn or (made.tiles > tuning.unpacked_b_tiles and k >= 4)
    is_spread = made.panels >= tuning.spread_a_panels and spreads(gemm)
    in_the_way = conflicts(gemm.a.column, gemm.dtype, k) or collide(
        gemm, made.rows.most
    )
    packs_a = is_spread or (made.panels > 2 and in_the_way)
    packs_a = k > 0 and (packs_a or must_widen or edges.loads_a)
    packs_b = k > 0 and (packs_b or must_widen or edges.loads_b)
    made = replace(
        made,
        packs_a=packs_a,
        packs_b=packs_b,
        stores_tiles=not must_widen and is_row_by_row and not edges.has_epilogue,
    )
    if k > numerics.matmul_uncut_terms:
        made = replace(made, blocks=-(-k // numerics.matmul_block_terms))
    elif edges.has_epilogue and edges.is_brief:
        is_long = gemm.operations >= tuning.long_matmul_operations
        is_worth_it = k <= tuning.short_matmul_steps and is_long
        made = replace(made, ends_tiles=is_worth_it)
    return in_tasks(made, is_part)


@lru_cache(1024)
def tile_of(
    m: int, vectors: int, k: int, registers: Registers, group: int = 1
) -> tuple[int, int]:
    """Rows and vectors of the register tile that takes the fewest cycles.

    Vectors come in whole groups of so many.

    >>> avx2, avx512 = Registers(32, 16), Registers(64, 32)
    >>> tile_of(1024, 64, 512, avx2), tile_of(1, 64, 512, avx2)
    ((6, 2), (1, 11))
    >>> tile_of(1024, 64, 512, avx512), tile_of(128, 1, 9, avx512)
    ((14, 2), (22, 1))
    """
    if k < 4 and m > 1 and vectors > 1:  # storing is most of the work: long rows
        most = min(max(1, vectors), (registers.total - 4) // 2)
        return 2, max(group, most // group * group)
    best, found = float("inf"), (1, group)
    most = 12 if m < 4 else 3
    for nv in range(group, max(group, min(vectors, most)) + 1, group):
        for mr in range(1, max(1, min(m, 24)) + 1):
            used = mr * nv + min(mr, nv) + 1  # sums, one operand, an element
            if used > registers.total:
                break
            full, rest = divmod(vectors, nv)
            total = 0.0
            for height, first, end in Cut.of(m, mr).kinds():
                here = full * cycles(height, nv, k)
                here += cycles(height, rest, k) if rest else 0.0
                total += (end - first) * here
            if used == registers.total:
                total *= 1.04  # nothing is left for what is under way
            if total < best:
                best, found = total, (mr, nv)
    return found


def cycles(rows: int, vectors: int, k: int) -> float:
    """About how long one step of k takes in a tile, its share of the rest included.

    Two sums and two loads a cycle, sums that wait 4 cycles for themselves; a call of
    the kernel, and a cycle for each vector of the result.
    """
    work = max(rows * vectors / 2, (rows + vectors) / 2, 4.0)
    return work + (20 + rows * vectors) / max(k, 1)


def conflicts(stride: int, dtype: DType, count: int) -> bool:
    """Whether so many elements, so far apart, push each other out of the caches.

    >>> import numpy as np
    >>> f32 = np.dtype("f4")
    >>> conflicts(1024, f32, 256), conflicts(784, f32, 256), conflicts(1, f32, 256)
    (True, False, False)
    """
    lines, part = divmod(abs(stride) * dtype.itemsize, CPU.tuning.cache_line_bytes)
    if part or not lines:
        return False
    sets = CPU.tuning.l2_sets
    return count >= sets // gcd(lines, sets) * CPU.tuning.l2_ways


def collide(gemm: Gemm, rows: int) -> bool:
    """Whether rows of a tile of A are all in one place of the nearest cache.

    Rows of the result may be there, too, and B's panel is everywhere.
    """
    stride = abs(gemm.a.row) * gemm.dtype.itemsize
    is_even = stride % CPU.tuning.l1_way_bytes == 0
    return rows > CPU.tuning.l1_ways // 2 and gemm.a.column == 1 and is_even


def spreads(gemm: Gemm) -> bool:
    """Whether one row of A is on more pages than the processor can keep in mind."""
    apart = abs(gemm.a.column)
    return apart > 1 and gemm.k * apart * gemm.lane >= CPU.tuning.spread_a_bytes


def in_tasks(made: Tiling, is_part: bool) -> Tiling:
    """Cut the result so that all threads have something to do, if it is worth it."""
    gemm, tuning = made.gemm, CPU.tuning
    if 0 in (gemm.m, gemm.n, gemm.matrices):
        return replace(made, groups=0)
    most_rows, wide = tuning.matmul_task_most_rows, tuning.matmul_task_row_bytes
    if made.packs_a:
        most_rows = tuning.packed_a_bytes // (made.depth * gemm.lane)
        wide = tuning.packed_task_row_bytes
    if made.is_ready:
        most_rows, wide = made.near_rows, gemm.n * gemm.lane
    if made.streams:
        wide = gemm.n * gemm.lane
    if made.keeps_sums:
        sums = tuning.matmul_sum_bytes
        wide = min(wide, max(4 * tuning.matmul_task_row_bytes, sums // gemm.m))
        most_rows = min(most_rows, sums // wide)
    row_blocks = -(-gemm.m // most_rows)
    if made.is_ready:
        row_blocks += row_blocks % 2  # two threads have as much to do
    if made.unit:
        row_blocks = -(-made.units // max(1, most_rows // made.unit))
    column_blocks = 1
    if made.blocks > 1 or row_blocks > 1:
        column_blocks = -(-made.panels // max(1, wide // (made.columns * gemm.lane)))
    grain = tuning.matmul_task_operations
    if gemm.m <= 2:
        grain = tuning.memory_task_operations
    wanted = 1 if is_part else -(-gemm.operations // grain)
    wanted += wanted % 2 if wanted > 1 else 0  # two threads have as much to do
    others = row_blocks * gemm.matrices
    if not (made.packs_a or made.is_ready):  # else all blocks fetch the same rows
        strips = -(-min(wanted, tuning.matmul_most_tasks) // others)
        if made.streams:
            most = -(-gemm.n * gemm.lane // tuning.streamed_task_row_bytes)
            strips = min(strips, most)
        column_blocks = max(column_blocks, min(strips, made.panels))
    enough = min(wanted, tuning.busy_tasks)
    while row_blocks * column_blocks * gemm.matrices < enough:
        more_rows = 2 * row_blocks <= made.row_parts
        more_columns = 2 * column_blocks <= made.panels and not made.streams
        # What blocks of one axis have in common, each of them packs for itself.
        is_cheaper = column_blocks * gemm.m < row_blocks * gemm.n
        if more_columns and made.packs_a and not made.is_ready and is_cheaper:
            column_blocks *= 2
        elif more_rows:
            row_blocks *= 2
        elif more_columns:
            column_blocks *= 2
        else:
            break
    groups = min(gemm.matrices, -(-wanted // (row_blocks * column_blocks)))
    return replace(
        made, row_blocks=row_blocks, column_blocks=column_blocks, groups=max(1, groups)
    )
