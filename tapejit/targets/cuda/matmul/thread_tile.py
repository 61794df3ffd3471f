"""Sums by fused multiply-adds: rows times columns of each thread.

For each term a thread loads its rows of the left tile and its columns of the right one,
16 bytes at once, and multiplies each by each.

Start reading at `ThreadTile.multiply`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.matmul.operand import OperandTile
from tapejit.targets.cuda.matmul.result_tile import ResultTile
from tapejit.targets.cuda.matmul.tiling import MatmulTiling


class ThreadTile(ResultTile):
    """A thread's rows are chunks side by side, its columns are, too."""

    def __init__(
        self, at: SimtAddressing, tiling: MatmulTiling, operands: list[OperandTile]
    ) -> None:
        tile, b = tiling.tile, at.builder
        super().__init__(at, tiling, min(tiling.lanes, tile.thread_columns))
        self.left, self.right = operands
        self.chunk = tile.thread_rows // tiling.chunks  # rows
        across = tile.columns // tile.thread_columns
        self.row = b.mul(b.udiv(at.thread, number(across)), number(self.chunk))
        self.column = b.mul(b.urem(at.thread, number(across)), number(self.width))
        self.column_chunks = tile.thread_columns // self.width
        self.apart = tile.columns // self.column_chunks

    def load(self, shared: Value, place: Value, more: int, width: int) -> Value:
        """Neighbours in shared memory."""
        at = self.at.builder.add(place, number(more))
        with self.at.aligned_if(True):
            return self.at.load_at(shared, at, self.tiling.kept, width)

    def multiply(self, left: Value, right: Value) -> None:
        tile, b = self.tiling.tile, self.at.builder
        name = f"llvm.fma.v{self.width}f{8 * self.tiling.itemsize}"
        sums = [b.load(x, typ=self.kind) for x in self.sums]
        for term in range(tile.depth):
            row, column = term * self.left.pitch, term * self.right.pitch
            x = [
                self.load(left, self.row, row + at * self.tiling.chunk_rows, self.chunk)
                for at in range(self.tiling.chunks)
            ]
            y = [
                self.load(right, self.column, column + at * self.apart, self.width)
                for at in range(self.column_chunks)
            ]
            for at in range(tile.thread_rows):
                chunk, lane = divmod(at, self.chunk)
                one = self.at.shuffled(x[chunk], x[chunk], [lane] * self.width)
                for which, other in enumerate(y, at * self.column_chunks):
                    given = [one, other, sums[which]]
                    sums[which] = b.intrinsic(name, self.kind, given)
        for place, value in zip(self.sums, sums, strict=True):
            b.store(value, place)

    def rows(self, chunk: int) -> Iterator[tuple[Value, list[tuple[Value, int]]]]:
        b = self.at.builder
        for line in range(self.chunk):
            first = (chunk * self.chunk + line) * self.column_chunks
            columns = [
                (b.add(self.column, number(at * self.apart)), first + at)
                for at in range(self.column_chunks)
            ]
            yield b.add(self.row, number(line)), columns
