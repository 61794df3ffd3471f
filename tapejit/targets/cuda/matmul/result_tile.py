"""The sums of a thread: what it has of a tile of the result, in registers.

They are those of one block of terms; where there are several blocks, totals stand
beside them. A thread has them in chunks of rows, each in another part of the tile, so
that chunks go through shared memory one after the other.

Start reading at `ResultTile`.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator

from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.matmul.tiling import MatmulTiling


class ResultTile(ABC):
    """The sums of one thread, in vectors of a `width` along a row."""

    def __init__(self, at: SimtAddressing, tiling: MatmulTiling, width: int) -> None:
        self.at, self.tiling, self.width = at, tiling, width
        self.kind = lanes.register_type(tiling.kept, width)
        tile = tiling.tile
        count = tile.thread_rows * tile.thread_columns // width
        with at.at_entry():
            self.sums = [at.builder.alloca(self.kind) for _ in range(count)]
            many = count if tiling.has_totals else 0
            self.totals = [at.builder.alloca(self.kind) for _ in range(many)]
        for x in (*self.sums, *self.totals):
            at.builder.store(self.zero, x)

    @property
    def zero(self) -> Value:
        return lanes.constant(self.tiling.kept, 0, self.width)

    @abstractmethod
    def multiply(self, left: Value, right: Value) -> None:
        """Add the products of all terms of two tiles in shared memory."""

    @abstractmethod
    def rows(self, chunk: int) -> Iterator[tuple[Value, list[tuple[Value, int]]]]:
        """Each row of a chunk, with the columns that its vectors have, by number."""

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
        b, pitch = self.at.builder, self.tiling.stage_pitch
        for row, vectors in self.rows(chunk):
            with contextlib.ExitStack() as inside:
                if line is not None:
                    row, most = b.sub(row, line), number(self.tiling.strip_rows)
                    inside.enter_context(b.if_then(b.icmp_unsigned("<", row, most)))
                start = b.mul(row, number(pitch))
                for column, which in vectors:
                    found = (self.totals or self.sums)[which]
                    value, where = b.load(found, typ=self.kind), b.add(start, column)
                    with self.at.aligned_if(True):
                        self.at.store_at(stage, where, value, self.tiling.kept)
