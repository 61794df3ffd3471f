"""The sums of a thread: rows times columns of a tile, by fused multiply-adds.

For each term a thread loads its rows of the left tile and its columns of the right one,
16 bytes at once, and multiplies each by each. Its rows are chunks, one in each strip of
the tile, so that strips go through the epilogue one after the other.

Start reading at `ThreadTile.multiply`.
"""

from __future__ import annotations

from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.matmul.tiling import MatmulTiling


class ThreadTile:
    """The sums of one thread, of a block of terms, and the totals of several."""

    def __init__(self, at: SimtAddressing, tiling: MatmulTiling) -> None:
        self.at, self.tiling = at, tiling
        tile, b = tiling.tile, at.builder
        self.chunk = min(tiling.lanes, tile.thread_rows)  # rows
        self.width = min(tiling.lanes, tile.thread_columns)  # columns
        self.kind = lanes.register_type(tiling.kept, self.width)
        across = tile.columns // tile.thread_columns
        self.row = b.mul(b.udiv(at.thread, number(across)), number(self.chunk))
        self.column = b.mul(b.urem(at.thread, number(across)), number(self.width))
        count = tile.thread_rows * tile.thread_columns // self.width
        with at.at_entry():
            self.sums = [at.builder.alloca(self.kind) for _ in range(count)]
            many = count if tiling.has_totals else 0
            self.totals = [at.builder.alloca(self.kind) for _ in range(many)]
        for x in (*self.sums, *self.totals):
            b.store(self.zero, x)

    @property
    def zero(self) -> Value:
        return lanes.constant(self.tiling.kept, 0, self.width)

    @property
    def row_chunks(self) -> int:
        return self.tiling.tile.thread_rows // self.chunk

    @property
    def column_chunks(self) -> int:
        return self.tiling.tile.thread_columns // self.width

    def load(self, shared: Value, place: Value, more: int, width: int) -> Value:
        """Neighbours in shared memory."""
        at = self.at.builder.add(place, number(more))
        with self.at.aligned_if(True):
            return self.at.load_at(shared, at, self.tiling.kept, width)

    def multiply(self, left: Value, right: Value) -> None:
        """Add the products of all terms of two tiles."""
        tile, b = self.tiling.tile, self.at.builder
        rows, columns = self.tiling.pitches
        apart = tile.columns // self.column_chunks
        name = f"llvm.fma.v{self.width}f{8 * self.tiling.itemsize}"
        sums = [b.load(x, typ=self.kind) for x in self.sums]
        for term in range(tile.depth):
            found = [
                self.load(
                    left,
                    self.row,
                    term * rows + at * self.tiling.chunk_rows,
                    self.chunk,
                )
                for at in range(self.row_chunks)
            ]
            y = [
                self.load(right, self.column, term * columns + at * apart, self.width)
                for at in range(self.column_chunks)
            ]
            for at in range(tile.thread_rows):
                chunk, lane = divmod(at, self.chunk)
                x = self.at.shuffled(found[chunk], found[chunk], [lane] * self.width)
                for which, other in enumerate(y, at * self.column_chunks):
                    given = [x, other, sums[which]]
                    sums[which] = b.intrinsic(name, self.kind, given)
        for x, value in zip(self.sums, sums, strict=True):
            b.store(value, x)

    def end_block(self) -> None:
        """Add what a block of terms has given to the totals, and begin again."""
        b = self.at.builder
        for x, total in zip(self.sums, self.totals, strict=True):
            before, more = (b.load(place, typ=self.kind) for place in (total, x))
            b.store(b.fadd(before, more), total)
            b.store(self.zero, x)

    def to_stage(self, chunk: int, line: Value | None, stage: Value) -> None:
        """The sums of a chunk to shared memory, row by row.

        Only those of a strip, if it has fewer rows and begins at some line.
        """
        b, row = self.at.builder, self.row
        if line is None:
            self.chunk_to_stage(chunk, row, stage)
            return
        row = b.sub(row, line)
        with b.if_then(b.icmp_unsigned("<", row, number(self.tiling.strip_rows))):
            self.chunk_to_stage(chunk, row, stage)

    def chunk_to_stage(self, chunk: int, row: Value, stage: Value) -> None:
        b, apart = self.at.builder, self.tiling.tile.columns // self.column_chunks
        pitch = self.tiling.stage_pitch
        start = b.add(b.mul(row, number(pitch)), self.column)
        for line in range(self.chunk):
            for at in range(self.column_chunks):
                which = (chunk * self.chunk + line) * self.column_chunks + at
                found = (self.totals or self.sums)[which]
                where = b.add(start, number(line * pitch + at * apart))
                with self.at.aligned_if(True):
                    value = b.load(found, typ=self.kind)
                    self.at.store_at(stage, where, value, self.tiling.kept)
