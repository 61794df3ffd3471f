"""The kernels of a product: tile after tile of both operands, then the epilogue.

A block computes one tile of the result. While threads multiply what is in shared
memory, the next tiles are on their way to registers; then these go to the other half of
shared memory, and a barrier lets all threads change halves. At the end, sums go through
shared memory strip by strip to the epilogue.

Where each block of terms is a part of its own, sums go to the arena instead, and a
second kernel adds them up, in order, and does the epilogue.

Start reading at `emit_contraction`, then `ProductKernel.block_of_terms`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import I8, number
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.kernel import GPUFunction, SimtKernel
from tapejit.targets.cuda.matmul.epilogue import Strip, TileEpilogue, result_axes
from tapejit.targets.cuda.matmul.operand import OperandTile
from tapejit.targets.cuda.matmul.tensor_tile import TensorTile
from tapejit.targets.cuda.matmul.thread_tile import ThreadTile
from tapejit.targets.cuda.matmul.tiling import MatmulTiling
from tapejit.targets.cuda.simt import SimtEmitter
from tapejit.targets.cuda.target import CUDA

if TYPE_CHECKING:
    from tapejit.targets.cuda.module import Emission

PARTS = "parts"  # the room for parts of sums


def emit_contraction(made: Emission, kernel: SimtKernel, tiling: MatmulTiling) -> None:
    """The kernels of one contraction, named after the label, and their launches."""
    threads, resident = tiling.tile.threads, tiling.resident_threads
    function = made.function(made.label, threads, resident)
    steps = emitter(made, kernel, tiling, function)
    ProductKernel(steps, tiling).emit()
    made.add(steps.at, tiling.blocks)
    if not tiling.is_split:
        return
    threads = CUDA.numerics.block_threads
    function = made.function(f"{made.label}_c", threads)
    steps = emitter(made, kernel, tiling, function)
    made.add(steps.at, emit_sums_of_parts(steps, tiling))


def emitter(
    made: Emission, kernel: SimtKernel, tiling: MatmulTiling, function: GPUFunction
) -> SimtEmitter:
    """Emits Steps for vectors along the columns of a product."""
    axes, n = result_axes(kernel), tiling.contraction.n
    width = tiling.lanes
    while n % width:
        width //= 2
    kernel = replace(
        kernel,
        vector=axes[max(axes)] if axes else None,
        width=width,
        threads=function.threads,
        team=function.threads,
    )
    return SimtEmitter(function, made.plan, kernel, made.layout)


class ProductKernel:
    """Emits the kernel that multiplies."""

    def __init__(self, steps: SimtEmitter, tiling: MatmulTiling) -> None:
        self.steps, self.at, self.tiling = steps, steps.at, tiling
        at, x = self.at, tiling.contraction
        assert steps.kernel.array_op is not None
        shared = at.shared_array(tiling.shared_size, tiling.kept)
        self.shared = shared
        left, right = steps.kernel.array_op.views
        self.operands = [
            OperandTile(at, tiling, which, view)
            for which, view in enumerate((left, right))
        ]
        sizes = (x.matrices, tiling.parts, tiling.row_tiles, tiling.column_tiles)
        matrix, self.part, row, column = at.unravelled(at.block, sizes)
        self.matrix = matrix
        self.stack = at.unravelled(matrix, [digit.size for digit in x.stack])
        self.row = at.builder.mul(row, number(tiling.row_step))
        self.column = at.builder.mul(column, number(tiling.tile.columns))
        kind = ThreadTile if tiling.core == "fma" else TensorTile
        self.sums = kind(at, tiling, self.operands)

    def emit(self) -> None:
        """The whole function."""
        cut, at = self.tiling.contraction.cut, self.at
        if not self.tiling.contraction.k:
            pass  # all sums are 0
        elif self.tiling.is_split:
            self.block_of_terms(*self.bounds(self.part))
        elif cut.blocks == 1:
            self.block_of_terms(number(0), number(self.tiling.contraction.k))
        else:

            def block(which: Value) -> None:
                self.block_of_terms(*self.bounds(which))
                self.sums.end_block()

            at.strided(number(0), number(cut.blocks), 1, block)
        self.leave()
        at.builder.ret_void()

    def bounds(self, block: Value) -> tuple[Value, Value]:
        """The first term of a block, and the first behind it."""
        b, cut = self.at.builder, self.tiling.contraction.cut
        before, part = b.udiv(block, number(cut.parts)), block
        if cut.outer > 1:
            part = b.urem(block, number(cut.parts))
        first = b.mul(before, number(cut.size)) if cut.outer > 1 else number(0)
        found = []
        for x in (part, b.add(part, number(1))):
            place = b.udiv(b.mul(x, number(cut.size)), number(cut.parts))
            found.append(b.mul(b.add(first, place), number(cut.inner)))
        low, high = found
        return low, high

    def half(self, which: Value, operand: int) -> Value:
        """A tile of an operand in one of the halves of shared memory."""
        b = self.at.builder
        first, second = (x.nbytes for x in self.operands)
        place = b.mul(which, number(first + second))
        if operand:
            place = b.add(place, number(first))
        return b.gep(self.shared, [place], source_etype=I8)

    def block_of_terms(self, low: Value, high: Value) -> None:
        """Add the products of a block of terms, of which there is one at least."""
        at, depth = self.at, self.tiling.tile.depth
        b = at.builder

        def fetch(term: Value) -> list[list[Value]]:
            a, c = self.operands
            return [
                a.load(self.row, term, high, self.stack),
                c.load(self.column, term, high, self.stack),
            ]

        def put(found: list[list[Value]], half: Value) -> None:
            for which, values in enumerate(found):
                self.operands[which].put(self.half(half, which), values)

        put(fetch(low), number(0))
        at.block_barrier()

        def step(term: Value) -> None:
            half = b.udiv(b.sub(term, low), number(depth))
            half = b.and_(half, number(1))
            following = b.add(term, number(depth))
            is_more = b.icmp_signed("<", following, high)
            # Behind the last step there is nobody who looks.
            found = fetch(b.select(is_more, following, low))
            self.sums.multiply(self.half(half, 0), self.half(half, 1))
            put(found, b.xor(half, number(1)))
            at.block_barrier()

        at.for_range(low, high, depth, step)

    def leave(self) -> None:
        """The sums to the epilogue, or to the arena, strip by strip."""
        at, tiling = self.at, self.tiling
        b, tile = at.builder, tiling.tile
        rows, columns = tiling.strip_rows, tile.columns
        pitch = tiling.stage_pitch
        end = b.add(self.row, number(tiling.row_step))
        end = at.smaller(end, number(tiling.contraction.m))
        epilogue = TileEpilogue(self.steps, tiling, self.stack)
        if not tiling.is_split:
            epilogue.begin(self.shared, rows * pitch)

        def source(line: Value, place: Value, width: int) -> Value:
            where = b.add(b.mul(line, number(pitch)), place)
            with at.aligned_if(True):
                return at.load_at(self.shared, where, tiling.kept, width)

        for chunk in range(tiling.chunks):
            first = number(chunk * tiling.chunk_rows)

            def strip(line: Value, chunk: int = chunk, first: Value = first) -> None:
                is_one = rows == tiling.chunk_rows
                self.sums.to_stage(chunk, None if is_one else line, self.shared)
                at.block_barrier()
                line = b.add(first, line)
                strip = Strip(
                    rows, columns, b.add(self.row, line), self.column, end, line
                )
                if tiling.is_split:
                    self.leave_parts(strip, source)
                else:
                    epilogue.finish(strip, source)
                if not is_one or chunk < tiling.chunks - 1:
                    at.block_barrier()  # others may still read what is there

            if rows == tiling.chunk_rows:
                strip(number(0))
            else:
                at.for_range(number(0), number(tiling.chunk_rows), rows, strip)

    def leave_parts(self, strip: Strip, source: Callable[..., Value]) -> None:
        """The sums of a strip to the arena."""
        at, b = self.at, self.at.builder
        width = at.width
        across = strip.columns // width
        room = at.room(PARTS)

        def vector(which: Value) -> None:
            line = b.udiv(which, number(across))
            place = b.mul(b.urem(which, number(across)), number(width))
            row, column = b.add(strip.row, line), b.add(strip.column, place)
            is_row = b.icmp_signed("<", row, strip.end)
            n = number(self.tiling.contraction.n)
            with b.if_then(b.and_(is_row, b.icmp_signed("<", column, n))):
                where = place_of_part(
                    b, self.tiling, self.part, self.matrix, row, column
                )
                value = source(line, place, width)
                with at.aligned_if(True):
                    at.store_at(room, where, value, self.tiling.kept)

        total = number(strip.rows * across)
        at.strided(at.thread, total, at.function.threads, vector)


def emit_sums_of_parts(steps: SimtEmitter, tiling: MatmulTiling) -> int:
    """A kernel that adds up parts and does the epilogue; how many blocks it has."""
    at, x = steps.at, tiling.contraction
    b, width, threads = at.builder, at.width, at.function.threads
    group = max(tiling.sums.group, width)
    columns = max(group, min(64, 1 << (x.n - 1).bit_length()))
    rows, nbytes = strip_of_parts(tiling, threads * width, columns)
    while nbytes > CUDA.tuning.shared_most_bytes and columns > group:
        columns //= 2
        rows, nbytes = strip_of_parts(tiling, threads * width, columns)
    sizes = (x.matrices, ceil(x.m / rows), ceil(x.n / columns))
    matrix, row, column = at.unravelled(at.block, sizes)
    stack = at.unravelled(matrix, [digit.size for digit in x.stack])
    first, start = b.mul(row, number(rows)), b.mul(column, number(columns))
    end = at.smaller(b.add(first, number(rows)), number(x.m))
    room, kind = at.room(PARTS), lanes.register_type(tiling.kept, width)
    with at.at_entry():
        total = at.builder.alloca(kind)

    def source(line: Value, place: Value, width: int) -> Value:
        def part(which: Value) -> Value:
            row, column = b.add(first, line), b.add(start, place)
            where = place_of_part(b, tiling, which, matrix, row, column)
            with at.aligned_if(True):
                return at.load_at(room, where, tiling.kept, width)

        def add(which: Value) -> None:
            b.store(b.fadd(b.load(total, typ=kind), part(which)), total)

        b.store(part(number(0)), total)
        at.strided(number(1), number(tiling.parts), 1, add)
        return b.load(total, typ=kind)

    epilogue = TileEpilogue(steps, tiling, stack)
    strip = Strip(rows, columns, first, start, end, number(0))
    if tiling.sums.stages:
        shared = at.shared_array(nbytes // tiling.itemsize, tiling.kept)
        epilogue.begin(shared, rows * (columns + tiling.lanes))
    epilogue.finish(strip, source)
    b.ret_void()
    return sizes[0] * sizes[1] * sizes[2]


def strip_of_parts(
    tiling: MatmulTiling, elements: int, columns: int
) -> tuple[int, int]:
    """The rows of so many elements, or whole units; the bytes that values take then."""
    rows, stages = max(1, elements // columns), tiling.sums.stages
    if stages:
        rows = ceil(rows / tiling.sums.unit) * tiling.sums.unit
    return rows, stages * rows * (columns + tiling.lanes) * tiling.itemsize


def place_of_part(
    b: ir.IRBuilder,
    tiling: MatmulTiling,
    part: Value,
    matrix: Value,
    row: Value,
    column: Value,
) -> Value:
    """Where a part of a sum is kept."""
    x = tiling.contraction
    found = b.add(b.mul(part, number(x.matrices)), matrix)
    found = b.add(b.mul(found, number(x.m)), row)
    return b.add(b.mul(found, number(x.n)), column)
