"""Sums by tensor cores: `mma`, which multiplies 16 by 8 elements with a whole warp.

Operands are 16-bit floats, which are multiplied exactly, or float32 of which 11 bits
are taken (tf32); sums are float32. Which thread of a warp has which elements is said in
the PTX ISA, "Matrix Fragments": here `group` is a thread's number divided by 4, `turn`
the rest. Of the result it has rows `group` and `group + 8`, two columns from `2 turn`
on. Operands of 16 bits come from shared memory by `ldmatrix`, to which each thread
gives the place of a row of 8 elements; it transposes what lies the other way.

Start reading at `TensorTile.multiply`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import I32, number
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.matmul.operand import OperandTile
from tapejit.targets.cuda.matmul.result_tile import ResultTile
from tapejit.targets.cuda.matmul.tiling import MatmulTiling

LOAD: Final = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4"
FLOAT: Final = ir.FloatType()
FOUR_FLOATS: Final = ir.LiteralStructType([FLOAT] * 4)
FOUR_WORDS: Final = ir.LiteralStructType([I32] * 4)
# By dtype: what multiplies, and the type that it takes words as.
MULTIPLY: Final = {
    "float16": ("m16n8k16.row.col.f32.f32", ir.VectorType(ir.Type("half"), 2)),
    "bfloat16": ("m16n8k16.row.col.bf16", I32),
    "float32": ("m16n8k8.row.col.tf32", I32),
}


class TensorTile(ResultTile):
    """A warp's rows are chunks of 16 rows, its columns are side by side."""

    def __init__(
        self, at: SimtAddressing, tiling: MatmulTiling, operands: list[OperandTile]
    ) -> None:
        super().__init__(at, tiling, 1)
        tile, b = tiling.tile, at.builder
        self.left, self.right = operands
        dtype = tiling.contraction.dtype.name
        self.name, self.register = MULTIPLY[dtype]
        self.terms = 8 if dtype == "float32" else 16
        self.pairs = tile.thread_columns // 2  # matrices of 8 columns
        across = tile.columns // (4 * tile.thread_columns)
        self.lane = b.urem(at.thread, number(32))
        warp = b.udiv(at.thread, number(32))
        self.row = b.mul(b.udiv(warp, number(across)), number(16))
        self.column = b.mul(b.urem(warp, number(across)), number(8 * self.pairs))
        self.group = b.udiv(self.lane, number(4))
        self.turn = b.urem(self.lane, number(4))

    def multiply(self, left: Value, right: Value) -> None:
        b, tile = self.at.builder, self.tiling.tile
        sums = [
            b.extract_element(b.load(x, typ=self.kind), ir.Literal(I32, 0))
            for x in self.sums
        ]
        for term in range(0, tile.depth, self.terms):
            rows = [self.rows_of(left, at, term) for at in range(self.tiling.chunks)]
            columns = self.columns_of(right, term)
            for chunk, x in enumerate(rows):
                for pair, y in enumerate(columns):
                    first = 4 * (chunk * self.pairs + pair)
                    words = [b.bitcast(word, self.register) for word in (*x, *y)]
                    name = f"llvm.nvvm.mma.{self.name}"
                    given = [*words, *sums[first : first + 4]]
                    made = b.intrinsic(name, FOUR_FLOATS, given)
                    for at in range(4):
                        sums[first + at] = b.extract_value(made, at)
        for place, value in zip(self.sums, sums, strict=True):
            b.store(self.at.spread(value, 1), place)

    # Fragments of operands

    def rows_of(self, shared: Value, chunk: int, term: int) -> list[Value]:
        """Words of 16 rows of the left operand: both halves of rows, then of terms."""
        line = chunk * self.tiling.chunk_rows
        if self.terms == 8:
            return [
                self.word(self.left, shared, self.row, line + more, term + further)
                for further in (0, 4)
                for more in (0, 8)
            ]
        return self.matrices(self.left, shared, self.row, line, term, (8, 16))

    def columns_of(self, shared: Value, term: int) -> list[list[Value]]:
        """Words of each 8 columns of the right operand: both halves of terms."""
        if self.terms == 8:
            return [
                [
                    self.word(self.right, shared, self.column, 8 * at, term + further)
                    for further in (0, 4)
                ]
                for at in range(self.pairs)
            ]
        found: list[list[Value]] = []
        for at in range(0, self.pairs, 2):
            four = self.matrices(self.right, shared, self.column, 8 * at, term, (16, 8))
            found += [four[:2], four[2:]]
        return found

    def word(
        self, operand: OperandTile, shared: Value, first: Value, line: int, term: int
    ) -> Value:
        """A number of 32 bits: that of this thread's group and turn."""
        b = self.at.builder
        where = b.add(b.mul(self.turn, number(operand.pitch)), b.add(first, self.group))
        where = b.add(where, number(term * operand.pitch + line))
        place = b.gep(shared, [where], source_etype=I32)
        return b.load(place, align=4, typ=I32)

    def matrices(
        self,
        operand: OperandTile,
        shared: Value,
        first: Value,
        line: int,
        term: int,
        halves: tuple[int, int],
    ) -> list[Value]:
        """Four matrices of 8 lines by 8 terms: those of two halves of both.

        `halves` say by which bit of its number a thread gives places in the second half
        of lines, and of terms.
        """
        b, pitch = self.at.builder, operand.pitch
        inside = b.urem(self.lane, number(8))
        lines, terms = (
            b.mul(b.and_(b.udiv(self.lane, number(bit)), number(1)), number(8))
            for bit in halves
        )
        if operand.keeps_terms:
            lines, transposed = b.add(lines, inside), ""
            where = b.add(b.mul(b.add(first, lines), number(pitch)), terms)
            where = b.add(where, number(line * pitch + term))
        else:
            terms, transposed = b.add(terms, inside), ".trans"
            where = b.add(b.mul(terms, number(pitch)), b.add(first, lines))
            where = b.add(where, number(term * pitch + line))
        place = b.gep(shared, [where], source_etype=ir.IntType(16))
        made = b.intrinsic(f"{LOAD}{transposed}.b16.p0", FOUR_WORDS, [place])
        return [b.extract_value(made, at) for at in range(4)]

    def rows(self, chunk: int) -> Iterator[tuple[Value, list[tuple[Value, int]]]]:
        b = self.at.builder
        column = b.add(self.column, b.mul(self.turn, number(2)))
        for half in (0, 1):
            columns = [
                (
                    b.add(column, number(8 * pair + more)),
                    4 * (chunk * self.pairs + pair) + 2 * half + more,
                )
                for pair in range(self.pairs)
                for more in (0, 1)
            ]
            yield b.add(self.row, b.add(self.group, number(8 * half))), columns
