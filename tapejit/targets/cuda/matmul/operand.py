"""An operand's tiles, on their way from memory to shared memory.

Neighbouring threads load what is side by side in memory, several elements at once where
they begin at a multiple of their size: that may be along terms or across them. In
shared memory a term has all its rows, or columns, side by side; for `ldmatrix`, what is
side by side in memory is so there, too.

Beyond the edge a tile has -0 of the left operand and 0 of the right one: their product
is -0, which changes no sum.

Start reading at `OperandTile.load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from tapejit.loops.steps import View
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value
from tapejit.targets.cpu.nest.addressing import I1, I32, I64, number
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.kernel import ALIGNED
from tapejit.targets.cuda.matmul.contraction import StridedSpan, spans_of
from tapejit.targets.cuda.matmul.tiling import MatmulTiling


class OperandTile:
    """How a tile of one operand is brought to shared memory.

    Its `lines` are rows of the left operand or columns of the right one.
    """

    def __init__(
        self, at: SimtAddressing, tiling: MatmulTiling, which: int, view: View
    ) -> None:
        x, tile = tiling.contraction, tiling.tile
        name = "ab"[which]
        self.at, self.threads, self.depth = at, tile.threads, tile.depth
        self.lines = (tile.rows, tile.columns)[which]
        self.limit = (x.m, x.n)[which]
        self.across = spans_of((x.rows, x.columns)[which], name)
        self.along = spans_of(x.terms, name)
        self.stack = [(digit.size, getattr(digit, name)) for digit in x.stack]
        self.base, self.dtype = at.start_of(view.base), view.base.dtype
        self.kept, self.offset = tiling.kept, x.start[which]
        self.fill = lanes.constant(self.kept, (-0.0, 0.0)[which], 1)
        self.is_along = is_near(self.along) or not is_near(self.across)
        self.is_rounded, self.keeps_terms = tiling.core == "tf32", False
        if tiling.core == "mma":  # as it is in memory, whose sign is the first bit
            self.dtype, self.keeps_terms = np.dtype(np.uint16), self.is_along
            self.kept = self.dtype
            self.fill = lanes.constant(self.kept, (0x8000, 0)[which], 1)
        size = self.depth if self.keeps_terms else self.lines
        self.pitch = size + tiling.padding
        self.edges = x.cut.edges()
        step = (tiling.row_step, self.lines)[which]
        self.has_rest = step != self.lines or self.limit % self.lines != 0
        self.has_end = any(
            (high - low) % self.depth
            for low, high in map(x.cut.bounds, range(x.cut.blocks))
        )
        # Positions of 32 bits take half the registers, and one instruction each.
        reach = sum(x.size * abs(x.stride) for x in (*self.across, *self.along))
        self.index = I32 if 2 * reach < 1 << 31 else I64
        self.width = self.lanes_at_once([stride for _, stride in self.stack])

    def lanes_at_once(self, others: Sequence[int]) -> int:
        """How many elements are loaded at once: they are inside or outside together."""
        near, far = self.across, self.along
        sizes = [self.limit, self.lines]
        if self.is_along:
            near, far, sizes = far, near, [*self.edges, self.depth]
        if not is_near(near):
            return 1
        strides = [x.stride for x in (*near[:-1], *far)]
        numbers = [near[-1].size, *strides, *sizes, *others, self.offset]
        width = ALIGNED // self.kept.itemsize
        while any(x % width for x in numbers):
            width //= 2
        return width

    @property
    def nbytes(self) -> int:
        """What a tile takes in shared memory."""
        count = self.lines if self.keeps_terms else self.depth
        return count * self.pitch * self.kept.itemsize

    @property
    def trips(self) -> int:
        """How many loads a thread has."""
        return ceil(self.lines * self.depth / self.width / self.threads)

    def place(self, trip: int) -> tuple[Value, Value, Value]:
        """Line and term in the tile of what a thread loads, and whether it does."""
        b = self.at.builder
        inner = (self.depth if self.is_along else self.lines) // self.width
        which = b.add(self.at.thread, number(trip * self.threads))
        near = b.mul(b.urem(which, number(inner)), number(self.width))
        far = b.udiv(which, number(inner))
        total = self.lines * self.depth // self.width
        is_there: Value = ir.Literal(I1, 1)
        if (trip + 1) * self.threads > total:
            is_there = b.icmp_signed("<", which, number(total))
        line, term = (far, near) if self.is_along else (near, far)
        return line, term, is_there

    def load(
        self, first_line: Value, first_term: Value, end: Value, stack: Sequence[Value]
    ) -> list[Value]:
        """What a thread loads of a tile; `end` is behind the last term."""
        b, found, kind = self.at.builder, [], self.index
        start: Value = number(self.offset)
        for index, (_, stride) in zip(stack, self.stack, strict=True):
            start = b.add(start, b.mul(index, number(stride)))
        element = lanes.memory_type(self.dtype)
        base = b.gep(self.base, [start], source_etype=element)
        first_line, first_term, end = (
            b.trunc(x, kind) for x in (first_line, first_term, end)
        )
        for trip in range(self.trips):
            line, term, is_in = self.place(trip)
            line = b.add(first_line, b.trunc(line, kind))
            term = b.add(first_term, b.trunc(term, kind))
            if self.has_rest:
                limit = ir.Literal(kind, self.limit)
                is_in = b.and_(is_in, b.icmp_signed("<", line, limit))
            if self.has_end:
                is_in = b.and_(is_in, b.icmp_signed("<", term, end))
            place = placed(b, line, self.across)
            place = b.add(place, placed(b, term, self.along))
            place = b.select(is_in, place, ir.Literal(kind, 0))
            if kind is I32:
                place = b.sext(place, I64)
            with self.at.aligned_if(True):
                value = self.at.load_at(base, place, self.dtype, self.width)
            if self.is_rounded:
                value = rounded_to_tf32(b, value)
            fill = self.at.widened(self.fill, self.width)
            found.append(b.select(is_in, value, fill))
        return found

    def put(self, shared: Value, values: Sequence[Value]) -> None:
        """What a thread has loaded, to shared memory."""
        b = self.at.builder
        is_vector = self.is_along == self.keeps_terms
        for trip, value in enumerate(values):
            line, term, is_there = self.place(trip)
            outer, inner = (line, term) if self.keeps_terms else (term, line)
            with b.if_then(is_there):
                where = b.add(b.mul(outer, number(self.pitch)), inner)
                if is_vector:
                    with self.at.aligned_if(True):
                        self.at.store_at(shared, where, value, self.kept)
                    continue
                for lane in range(self.width):
                    here = b.add(where, number(lane * self.pitch))
                    one = self.at.lane(value, lane)
                    self.at.store_at(shared, here, one, self.kept)


def rounded_to_tf32(b: IRBuilder, value: Value) -> Value:
    """A float without the 13 bits that a tensor core does not look at; ties go up."""
    kind = ir.VectorType(I32, value.type.count)

    def every(number: int) -> Value:
        return ir.Literal(kind, [ir.Literal(I32, number)] * value.type.count)

    bits = b.bitcast(value, kind)
    near = b.and_(b.add(bits, every(1 << 12)), every(-1 << 13))
    is_nan = b.fcmp_unordered("uno", value, value)
    found = b.select(is_nan, b.or_(bits, every(1 << 22)), near)
    return b.bitcast(found, value.type)


def is_near(spans: Sequence[StridedSpan]) -> bool:
    """Whether the innermost of some spans is side by side."""
    return bool(spans) and spans[-1].stride == 1


def placed(b: IRBuilder, index: Value, spans: Sequence[StridedSpan]) -> Value:
    """Where a number gets in memory."""
    found: Value = ir.Literal(index.type, 0)
    for at, span in reversed(list(enumerate(spans))):
        digit, size = index, ir.Literal(index.type, span.size)
        if at:
            digit, index = b.urem(index, size), b.udiv(index, size)
        term = b.mul(digit, ir.Literal(index.type, span.stride))
        found = b.add(found, term)
    return found
