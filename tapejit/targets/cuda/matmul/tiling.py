"""The tiles of a contraction: what a block of threads computes, and what a thread does.

A block has a tile of the result. Step by step along the terms it brings a tile of each
operand to shared memory, `depth` terms deep; each thread has `thread_rows` times
`thread_columns` sums in registers.

Where blocks are few and terms are many, each block of terms is a `part` of its own, on
other multiprocessors; a second kernel adds parts up. No choice here changes a bit: each
sum is that of the blocks of terms, in order.

Start reading at `tiling_of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from tapejit.base.types import DType
from tapejit.loops.kernels import Choice, accumulator
from tapejit.targets.cuda.kernel import ALIGNED
from tapejit.targets.cuda.matmul.contraction import Contraction
from tapejit.targets.cuda.target import CUDA


class Tile(NamedTuple):
    """The sizes of a tile, in rows, columns and terms."""

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int

    @property
    def threads(self) -> int:
        """How many threads compute it."""
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)


SINGLE: Final[tuple[Tile, ...]] = (
    Tile(128, 128, 8, 8, 8),
    Tile(128, 64, 8, 8, 4),
    Tile(64, 64, 16, 4, 4),
    Tile(128, 32, 16, 4, 4),
    Tile(32, 128, 16, 4, 4),
    Tile(32, 32, 16, 2, 2),
    Tile(128, 16, 16, 4, 2),
    Tile(16, 128, 16, 4, 2),
    Tile(16, 32, 32, 2, 1),
    Tile(8, 128, 16, 8, 1),
    Tile(8, 64, 32, 2, 1),
    Tile(4, 128, 16, 4, 1),
)
DOUBLE: Final[tuple[Tile, ...]] = (
    Tile(64, 64, 8, 4, 4),
    Tile(64, 32, 16, 4, 2),
    Tile(32, 64, 16, 2, 4),
    Tile(32, 32, 16, 2, 2),
    Tile(16, 32, 16, 2, 1),
    Tile(8, 64, 16, 4, 1),
    Tile(4, 64, 16, 4, 1),
)


# For tensor cores: a warp has 8 times as many rows, and 4 times as many columns.
TENSOR: Final[tuple[Tile, ...]] = (
    Tile(128, 128, 32, 4, 16),
    Tile(128, 64, 16, 4, 8),
    Tile(64, 128, 32, 4, 8),
    Tile(64, 64, 32, 4, 8),
    Tile(64, 32, 32, 2, 8),
    Tile(32, 32, 64, 2, 4),
    Tile(16, 64, 64, 2, 4),
)


class TileSums(NamedTuple):
    """What an epilogue adds up: values, over units of rows and groups of columns."""

    stages: int = 0
    unit: int = 1
    group: int = 1


@dataclass(frozen=True)
class MatmulTiling(Choice):
    """How a contraction is cut."""

    contraction: Contraction
    tile: Tile
    sums: TileSums
    is_split: bool = False  # whether each block of terms is a part of its own
    core: str = "fma"  # or "mma" or "tf32", on tensor cores

    @property
    def kept(self) -> DType:
        """The dtype of sums."""
        return accumulator(self.contraction.dtype)

    @property
    def itemsize(self) -> int:
        """Of a sum."""
        return self.kept.itemsize

    @property
    def lanes(self) -> int:
        """How many sums are loaded or stored at once."""
        return ALIGNED // self.itemsize

    @property
    def row_step(self) -> int:
        """How many rows tiles are apart: whole units, if there are any."""
        return self.tile.rows // self.sums.unit * self.sums.unit

    @property
    def row_tiles(self) -> int:
        return ceil(self.contraction.m / self.row_step)

    @property
    def column_tiles(self) -> int:
        return ceil(self.contraction.n / self.tile.columns)

    @property
    def parts(self) -> int:
        """How many parts of each sum are kept in memory, until they are added up."""
        return self.contraction.cut.blocks if self.is_split else 1

    @property
    def has_totals(self) -> bool:
        """Whether a thread adds up several blocks of terms."""
        return not self.is_split and self.contraction.cut.blocks > 1

    @property
    def blocks(self) -> int:
        """How many blocks of threads there are."""
        tiles = self.row_tiles * self.column_tiles
        return tiles * self.parts * self.contraction.matrices

    @property
    def part_bytes(self) -> int:
        """What parts of sums take in memory."""
        x = self.contraction
        size = self.parts * x.matrices * x.m * x.n
        return size * self.itemsize if self.is_split else 0

    @property
    def own_bytes(self) -> int:
        """What operands and result take in memory."""
        x = self.contraction
        size = x.matrices * (x.m * x.k + x.k * x.n + x.m * x.n)
        return size * x.dtype.itemsize

    @property
    def padding(self) -> int:
        """By how much lines of shared tiles are longer than what is in them.

        Threads that store or load a column are not to meet in one bank.
        """
        return self.lanes if self.core == "fma" else 8

    @property
    def operand_bytes(self) -> int:
        """What a shared tile of each operand takes, whichever way it lies."""
        depth, most = self.tile.depth, 0
        for lines in self.tile[:2]:
            most += lines * depth + self.padding * max(lines, depth)
        itemsize = 2 if self.core == "mma" else self.itemsize
        return most * itemsize

    @property
    def chunks(self) -> int:
        """How many chunks of rows a thread has: each is in another part of the tile."""
        if self.core == "fma":
            return max(1, self.tile.thread_rows // self.lanes)
        return self.tile.thread_rows // 2

    @property
    def chunk_rows(self) -> int:
        """The rows that one chunk of all threads has."""
        return self.tile.rows // self.chunks

    @property
    def strip_rows(self) -> int:
        """How many rows go through the epilogue at once: shared memory is enough."""
        rows, one = self.chunk_rows, self.stages * self.stage_pitch * self.itemsize
        while rows > self.lanes and rows * one > CUDA.tuning.shared_most_bytes:
            rows //= 2
        return rows

    @property
    def stage_pitch(self) -> int:
        """How far apart rows of a strip are in shared memory."""
        return self.tile.columns + self.lanes

    @property
    def stages(self) -> int:
        """How many strips are in shared memory at once: one for each value."""
        return max(1, self.sums.stages)

    @property
    def shared_size(self) -> int:
        """Sums in shared memory: two tiles of each operand, or strips of the result."""
        tiles = 2 * self.operand_bytes // self.itemsize
        return max(tiles, self.stages * self.strip_rows * self.stage_pitch)

    @property
    def resident_threads(self) -> int:
        """How many threads a multiprocessor is to hold, by the registers they take."""
        tile, x, tuning = self.tile, self.contraction, CUDA.tuning
        sums = tile.thread_rows * tile.thread_columns * (1 + self.has_totals)
        operands = tile.thread_rows + tile.thread_columns
        fetched = tile.depth * (tile.rows + tile.columns) // tile.threads
        is_even = not any(size % self.lanes for size in (x.m, x.n, x.k))
        if self.core == "mma" and is_even:
            fetched //= 2
        needed = self.itemsize // 4 * (sums + operands + fetched)
        needed += tuning.matmul_other_registers
        needed += 0 if is_even else tuning.uneven_matmul_registers
        needed = ceil(needed / tuning.register_grain) * tuning.register_grain
        fitting, most = tuning.registers // needed, tuning.resident_threads
        return max(tile.threads, min(most, fitting // tile.threads * tile.threads))

    @property
    def shared_loads(self) -> tuple[int, float]:
        """For each term, what a thread loads, and a warp, in 128 bytes of the banks."""
        tile, warp, count, lines = self.tile, CUDA.numerics.warp_threads, 0, 0.0
        across = min(warp, tile.columns // tile.thread_columns)
        for own, apart in (
            (tile.thread_rows, max(1, warp // across)),
            (tile.thread_columns, across),
        ):
            width = min(own, self.lanes)
            count += own // width
            lines += own // width * max(1, apart * width * self.itemsize / 128)
        return count, lines

    @property
    def time(self) -> float:
        """About how long it takes, in instructions of a multiprocessor's threads."""
        tile, tuning = self.tile, CUDA.tuning
        loads, lines = map(float, self.shared_loads)
        multiplied = tile.thread_rows * tile.thread_columns * self.itemsize / 4
        itemsize = self.contraction.dtype.itemsize
        fills = (tile.rows + tile.columns) / tile.threads * itemsize
        if self.core != "fma":  # 16 numbers take a thread 8 words, or 16
            rate = itemsize / tuning.tensor_core_bytes
            multiplied *= rate
            loads, lines = loads * itemsize / 8, 8 * lines * rate
        step = max(multiplied, tuning.shared_line_cost * lines) + loads
        step += tuning.global_byte_cost * fills
        steps = self.contraction.k / self.parts + tuning.matmul_begin_steps
        threads = ceil(self.blocks / tuning.multiprocessors) * tile.threads
        time = max(threads, tuning.busy_threads) * step * steps
        if not self.is_split:
            return time
        added = self.part_bytes * tuning.global_byte_cost
        return time + 2 * added / tuning.multiprocessors + tuning.launch_instructions

    @property
    def fits(self) -> bool:
        """Whether a tile can be: there is room, units are whole, parts are small."""
        is_enough = self.shared_size * self.itemsize <= CUDA.tuning.shared_most_bytes
        is_whole = self.row_step > 0 and self.tile.columns % self.sums.group == 0
        moved, most = 2 * self.part_bytes, CUDA.tuning.parts_most_share
        return is_enough and is_whole and moved <= most * self.own_bytes


def tiling_of(contraction: Contraction, sums: TileSums, core: str) -> MatmulTiling:
    """The tiling that takes the least time."""
    is_double = accumulator(contraction.dtype).itemsize == 8
    tiles = DOUBLE if is_double else SINGLE
    if core != "fma":  # numbers of 32 bits are twice as long
        tiles = TENSOR
    if core == "tf32":
        tiles = tuple(x._replace(depth=x.depth // 2) for x in TENSOR)
    choices = (
        MatmulTiling(contraction, tile, sums, is_split, core)
        for tile in tiles
        for is_split in (False, True)[: 1 + (contraction.cut.blocks > 1)]
    )
    return min((x for x in choices if x.fits), key=lambda x: x.time)
