"""Prefix scan: cumulative sums and products, as loops over whole arrays.

All scans are y[i] = a[i] * y[i - 1] + b[i], where running sums have no factors. A long
axis is scanned in blocks, in the order in which the records do it, so that the bits are
theirs: inside of a block from its own start, then with what all blocks before it have
come to. Those totals are scanned in the same way, one level up. Here everything is done
in one pass: when a block is complete its total moves up, and `Level` has what has been
found so far: `partial`, since the start of a block of that level, and `total`, since
the start of the axis.

Lanes are neighbours along another axis if those lie side by side in the result, or if
there is so much to compute that it does not matter how they lie.

Start reading at `emit_cumulative_sum`, then `Scan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tapejit.base.types import DType
from tapejit.ir.node import Node
from tapejit.loops.index import strides_of
from tapejit.loops.kernels import accumulator
from tapejit.ops.scan import BLOCK, SHORT
from tapejit.targets.cpu.arrays.loops import (
    ArrayOperand,
    by_vectors,
    combined,
    each,
    function_of,
    merged,
    moved,
    read,
    widest,
    write,
)
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import Addressing, number
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cpu.target import CPU

F64: Final = np.dtype(np.float64)

Element = tuple[
    Value | None, Value | None
]  # factor and term; sums have no factor, products no term
Values = Sequence[Value]


def emit_cumulative_sum(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Running sums."""
    wide = accumulator(node.dtype)
    short = math.inf if wide.kind in "biu" else SHORT
    scan = Scan(at, node, operands, out, wide, short, has_factors=False)
    scan.emit(lambda values, state: (None, values[0]))


def emit_cumulative_prod(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Running products, one factor after another."""
    scan = Scan(at, node, operands, out, accumulator(node.dtype), math.inf)
    scan.emit(lambda values, state: (values[0], None))


def emit_linear_recurrence(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """y[i] = a[i] * y[i - 1] + b[i]."""
    scan = Scan(at, node, operands, out, accumulator(node.dtype), BLOCK)
    scan.emit(lambda values, state: (values[0], values[1]))


def emit_logcumsumexp(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Running sums of exponentials relative to the largest so far, in double."""
    scan = Scan(at, node, operands, out, F64, BLOCK)
    scan.is_costly = True

    def element(values: Values, state: Value) -> Element:
        """The sum is scaled down to a new largest; infinities are not subtracted."""
        builder = at.builder
        (x,) = values
        width = x.type.count
        before = builder.load(state, typ=x.type)
        largest = combined(at, "maximum", before, x, F64)
        builder.store(largest, state)
        is_same = builder.fcmp_ordered("==", before, largest)
        fallen = builder.fsub(before, largest)
        fallen = builder.select(is_same, lanes.constant(F64, 0.0, width), fallen)
        scale = function_of(at, "exp", fallen, F64)
        shifted = builder.fsub(x, finite_or_zero(at, largest))
        return scale, function_of(at, "exp", shifted, F64)

    def finish(total: Value, state: Value) -> Value:
        shift = finite_or_zero(at, at.builder.load(state, typ=total.type))
        return at.builder.fadd(function_of(at, "log", total, F64), shift)

    scan.emit(element, finish, start=-math.inf)


def finite_or_zero(at: Addressing, x: Value) -> Value:
    """A double, or 0 in place of NaN and of infinities."""
    zero = lanes.constant(F64, 0.0, x.type.count)
    difference = at.builder.fsub(x, x)
    is_finite = at.builder.fcmp_ordered("==", difference, zero)
    return at.builder.select(is_finite, x, zero)


@dataclass
class Level:
    """What a level has found: memory for a value each."""

    partial: Value  # since the start of a block
    factor: Any  # the product of the block's factors
    total: Value  # since the start of the axis


class Scan:
    """Emits a scan along the axis of a Node.

    `short` is the longest axis that is scanned without blocks.
    """

    def __init__(
        self,
        at: Addressing,
        node: Node,
        operands: Sequence[ArrayOperand],
        out: Value,
        wide: DType,
        short: float,
        has_factors: bool = True,
    ) -> None:
        self.at = at
        self.has_factors = has_factors
        self.is_costly = False  # more than reading and writing elements one by one
        self.operands = operands
        self.wide = wide
        self.shape = [int(size) for size in node.shape]
        self.result = ArrayOperand(out, node.dtype, strides_of(self.shape))
        self.axis = node.attrs["axis"]
        self.length = self.shape[self.axis]
        self.depth = 0  # of levels above the elements
        count = self.length
        while count > short:
            count = -(-count // BLOCK)
            self.depth += 1

    def emit(
        self,
        element: Callable[[Values, Value], Element],
        finish: Callable[[Value, Value], Value] | None = None,
        start: float | None = None,
    ) -> None:
        """The loops over all other axes.

        `element` makes factor and term of the operands' values; with a `start` it and
        `finish` share memory for one more value, which starts as that.
        """
        at, axis = self.at, self.axis
        self.element, self.finish = element, finish
        self.every = (*self.operands, self.result)
        self.along = [x.strides[axis] for x in self.every]
        rest = [*self.shape[:axis], *self.shape[axis + 1 :]]
        sizes, strides = merged(
            rest, *[[*x.strides[:axis], *x.strides[axis + 1 :]] for x in self.every]
        )
        if not sizes or (strides[-1][-1] != 1 and not self.is_costly):
            self.apart = [1] * len(self.every)
            each(at, sizes, strides, lambda places: self.line(places, 1, start))
            return
        self.apart = [own[-1] for own in strides]
        width = widest(self.wide)

        def row(places: list[Value]) -> None:
            def part(index: Value, lanes: int) -> None:
                here = [
                    moved(at, place, index, stride)
                    for place, stride in zip(places, self.apart, strict=True)
                ]
                self.line(here, lanes, start)

            by_vectors(at, sizes[-1], width, part)

        each(at, sizes[:-1], [own[:-1] for own in strides], row)

    def line(self, places: list[Value], width: int, start: float | None) -> None:
        """Scan one line of vectors."""
        at = self.at
        self.places, self.width = places, width
        self.kind = lanes.register_type(self.wide, width)
        self.levels = [
            Level(self.memory(), self.memory(), self.memory())
            for _ in range(self.depth + 1)
        ]
        self.state: Any = None
        if start is not None:
            self.state = self.memory()
            at.builder.store(lanes.constant(self.wide, start, width), self.state)
        if not self.depth:
            self.block(number(0), self.length)
            return
        count, left = divmod(self.length, BLOCK)

        def whole_block(index: Value) -> None:
            self.block(index, BLOCK)
            base = self.levels[0]
            factor = self.value(base.factor) if self.has_factors else None
            self.move_up(1, index, factor, self.value(base.partial))

        work = BLOCK * self.width * CPU.tuning.array_element_instructions
        at.long_range(number(0), number(count), 1, whole_block, work, count)
        if left:
            self.block(number(count), left)

    def memory(self) -> Value:
        """Room for one value."""
        with self.at.at_entry():
            return self.at.builder.alloca(self.kind)

    def value(self, memory: Value) -> Value:
        return self.at.builder.load(memory, typ=self.kind)

    # Scanning

    def block(self, index: Value, length: int) -> None:
        """Scan the elements of a block, and add what came before it."""
        at, base = self.at, self.levels[0]
        first = at.builder.mul(index, number(BLOCK))
        is_first = at.builder.icmp_signed("==", index, number(0))

        def go_on(offset: Value, begins: bool) -> None:
            position = at.builder.add(first, offset)
            here = [
                moved(at, place, position, stride)
                for place, stride in zip(self.places, self.along, strict=True)
            ]
            values = [
                at.converted(read(at, x, place, stride, self.width), x.dtype, self.wide)
                for x, place, stride in zip(
                    self.operands, here, self.apart, strict=False
                )
            ]
            factor, term = self.element(values, self.state)
            partial = self.extended(base.partial, factor, term, begins)
            if self.depth:
                product = self.multiplied(base.factor, factor, begins)
                total = self.continued(partial, product, self.levels[1].total)
                partial = at.builder.select(is_first, partial, total)
            if self.finish is not None:
                partial = self.finish(partial, self.state)
            value = at.converted(partial, self.wide, self.result.dtype)
            write(at, self.result, here[-1], self.apart[-1], value)

        go_on(number(0), begins=True)
        if length > 1:
            at.for_range(number(1), number(length), 1, lambda i: go_on(i, begins=False))

    def extended(self, memory: Value, factor: Any, term: Any, begins: bool) -> Value:
        """The next value of a chain, kept in its memory."""
        found: Value = factor if term is None else term
        if not begins:
            found = self.after(self.value(memory), factor, term)
        self.at.builder.store(found, memory)
        return found

    def after(self, before: Value, factor: Any, term: Any) -> Value:
        """factor * before + term, each rounded."""
        if factor is not None:
            before = combined(self.at, "mul", factor, before, self.wide)
        if term is None:
            return before
        return combined(self.at, "add", term, before, self.wide)

    def multiplied(self, memory: Value, factor: Any, begins: bool) -> Any:
        """The product of the factors of a block so far."""
        if factor is None:
            return None
        if not begins:
            factor = combined(self.at, "mul", factor, self.value(memory), self.wide)
        self.at.builder.store(factor, memory)
        return factor

    def continued(self, partial: Value, product: Any, total: Value) -> Value:
        """What a chain comes to if it goes on from a total."""
        return self.after(self.value(total), product, partial)

    def move_up(self, depth: int, index: Value, factor: Any, term: Any) -> None:
        """Take the total of block `index` into the level above."""
        at, level = self.at, self.levels[depth]
        if depth == self.depth:  # the last level is one chain
            is_first = at.builder.icmp_signed("==", index, number(0))
            later = self.after(self.value(level.total), factor, term)
            at.builder.store(at.builder.select(is_first, term, later), level.total)
            return
        place = at.builder.and_(index, number(BLOCK - 1))
        begins = at.builder.icmp_signed("==", place, number(0))
        later = self.after(self.value(level.partial), factor, term)
        partial = at.builder.select(begins, term, later)
        at.builder.store(partial, level.partial)
        if factor is not None:
            later = combined(at, "mul", factor, self.value(level.factor), self.wide)
            factor = at.builder.select(begins, factor, later)
            at.builder.store(factor, level.factor)
        is_early = at.builder.icmp_signed("<", index, number(BLOCK))
        total = self.continued(partial, factor, self.levels[depth + 1].total)
        at.builder.store(at.builder.select(is_early, partial, total), level.total)
        ends = at.builder.icmp_signed("==", place, number(BLOCK - 1))
        with at.builder.if_then(ends):
            above = at.builder.lshr(index, number(BLOCK.bit_length() - 1))
            self.move_up(depth + 1, above, factor, partial)
