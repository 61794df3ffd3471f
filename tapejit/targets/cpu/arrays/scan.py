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

Start reading at `Recurrence`, then `Scan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.base.types import DType
from tapejit.ir.node import Node
from tapejit.loops.index import strides_of
from tapejit.loops.kernels import accumulator
from tapejit.ops.scan import BLOCK, SHORT
from tapejit.targets.cpu.arrays.loops import (
    ArrayOperand,
    combined,
    each,
    each_part,
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


class Recurrence(NamedTuple):
    """What a scan does with elements.

    wide         what it is computed in
    short        the longest axis that is scanned without blocks
    element      factor and term of the operands' values
    has_factors  whether there are factors
    start        of a scan whose `element` and `finish` share memory for one more value:
                 what that starts as
    finish       what becomes of a total, if it is not the result
    is_costly    whether it is more than reading and writing elements one by one
    """

    wide: DType
    short: float
    element: Callable[[Addressing, Values, Value], Element]
    has_factors: bool = True
    start: float | None = None
    finish: Callable[[Addressing, Value, Value], Value] | None = None
    is_costly: bool = False

    @property
    def has_state(self) -> bool:
        """Whether the elements before count in another way as well."""
        return self.start is not None

    def depth(self, length: int) -> int:
        """How many levels there are above the elements of an axis."""
        found = 0
        while length > self.short:
            length = -(-length // BLOCK)
            found += 1
        return found


def of_cumulative_sum(dtype: DType) -> Recurrence:
    """Sums have no factors."""
    wide = accumulator(dtype)
    short = math.inf if wide.kind in "biu" else SHORT
    return Recurrence(wide, short, lambda at, values, _: (None, values[0]), False)


def of_cumulative_prod(dtype: DType) -> Recurrence:
    """One factor after another."""
    wide = accumulator(dtype)
    return Recurrence(wide, math.inf, lambda at, values, _: (values[0], None))


def of_linear_recurrence(dtype: DType) -> Recurrence:
    """y[i] = a[i] * y[i - 1] + b[i]."""
    wide = accumulator(dtype)
    return Recurrence(wide, BLOCK, lambda at, values, _: (values[0], values[1]))


def of_logcumsumexp(dtype: DType) -> Recurrence:
    """Sums of exponentials relative to the largest element so far, in double."""
    return Recurrence(
        F64,
        BLOCK,
        relative_exponential,
        start=-math.inf,
        finish=logarithm,
        is_costly=True,
    )


def relative_exponential(at: Addressing, values: Values, state: Value) -> Element:
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


def logarithm(at: Addressing, total: Value, state: Value) -> Value:
    """Of a sum that is relative to the largest element."""
    shift = finite_or_zero(at, at.builder.load(state, typ=total.type))
    return at.builder.fadd(function_of(at, "log", total, F64), shift)


def finite_or_zero(at: Addressing, x: Value) -> Value:
    """A double, or 0 in place of NaN and of infinities."""
    zero = lanes.constant(F64, 0.0, x.type.count)
    difference = at.builder.fsub(x, x)
    is_finite = at.builder.fcmp_ordered("==", difference, zero)
    return at.builder.select(is_finite, x, zero)


# By the names of operations.
RECURRENCES: Final[dict[str, Callable[[DType], Recurrence]]] = {
    made.__name__.removeprefix("of_"): made
    for made in (
        of_cumulative_prod,
        of_cumulative_sum,
        of_linear_recurrence,
        of_logcumsumexp,
    )
}


def emit_scan(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Any of the scans."""
    recurrence = RECURRENCES[node.op.name](node.dtype)
    Scan(at, node, operands, out, recurrence).emit()


@dataclass
class Level:
    """What a level has found: memory for a value each."""

    partial: Value  # since the start of a block
    factor: Any  # the product of the block's factors
    total: Value  # since the start of the axis


class Scan:
    """Emits a scan along the axis of a Node."""

    def __init__(
        self,
        at: Addressing,
        node: Node,
        operands: Sequence[ArrayOperand],
        out: Value,
        recurrence: Recurrence,
    ) -> None:
        self.at, self.operands, self.recurrence = at, operands, recurrence
        self.wide = recurrence.wide
        self.shape = [int(size) for size in node.shape]
        self.result = ArrayOperand(out, node.dtype, strides_of(self.shape))
        self.axis = node.attrs["axis"]
        self.length = self.shape[self.axis]
        self.depth = recurrence.depth(self.length)
        self.every = (*operands, self.result)
        self.along = [x.strides[self.axis] for x in self.every]
        self.apart = [1] * len(self.every)

    def emit(self) -> None:
        """The loops over all other axes."""
        at, axis = self.at, self.axis
        rest = [*self.shape[:axis], *self.shape[axis + 1 :]]
        sizes, strides = merged(
            rest, *[[*x.strides[:axis], *x.strides[axis + 1 :]] for x in self.every]
        )
        if not sizes or (strides[-1][-1] != 1 and not self.recurrence.is_costly):
            each(at, sizes, strides, lambda places: self.line(places, 1))
            return
        self.apart = [own[-1] for own in strides]
        each_part(at, sizes, strides, widest(self.wide), self.line)

    def line(self, places: list[Value], width: int) -> None:
        """Scan one line of vectors."""
        at = self.at
        self.begin(places, width)
        self.levels = [
            Level(self.memory(), self.memory(), self.memory())
            for _ in range(self.depth + 1)
        ]
        self.state: Any = None
        if self.recurrence.start is not None:
            self.state = self.memory()
            start = lanes.constant(self.wide, self.recurrence.start, width)
            at.builder.store(start, self.state)
        if not self.depth:
            self.block(number(0), self.length)
            return
        count, left = divmod(self.length, BLOCK)

        def whole_block(index: Value) -> None:
            self.block(index, BLOCK)
            base = self.levels[0]
            has_factors = self.recurrence.has_factors
            factor = self.value(base.factor) if has_factors else None
            self.move_up(1, index, factor, self.value(base.partial))

        work = BLOCK * self.width * CPU.tuning.array_element_instructions
        at.long_range(number(0), number(count), 1, whole_block, work, count)
        if left:
            self.block(number(count), left)

    def begin(self, places: list[Value], width: int) -> None:
        """Be at the first elements of so many lines."""
        self.places, self.width = places, width
        self.kind = lanes.register_type(self.wide, width)

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
            here = self.places_at(at.builder.add(first, offset))
            factor, term = self.element(here)
            partial = self.extended(base.partial, factor, term, begins)
            if self.depth:
                product = self.multiplied(base.factor, factor, begins)
                total = self.continued(partial, product, self.levels[1].total)
                partial = at.builder.select(is_first, partial, total)
            self.give(here, partial)

        go_on(number(0), begins=True)
        if length > 1:
            at.for_range(number(1), number(length), 1, lambda i: go_on(i, begins=False))

    def places_at(self, position: Value) -> list[Value]:
        """Where the elements at a position of the axis are."""
        return [
            moved(self.at, place, position, stride)
            for place, stride in zip(self.places, self.along, strict=True)
        ]

    def element(self, here: Sequence[Value]) -> Element:
        """Factor and term there."""
        at = self.at
        values = [
            at.converted(read(at, x, place, stride, self.width), x.dtype, self.wide)
            for x, place, stride in zip(self.operands, here, self.apart, strict=False)
        ]
        return self.recurrence.element(at, values, self.state)

    def give(self, here: Sequence[Value], total: Value) -> None:
        """A total as an element of the result."""
        at, finish = self.at, self.recurrence.finish
        if finish is not None:
            total = finish(at, total, self.state)
        value = at.converted(total, self.wide, self.result.dtype)
        write(at, self.result, here[-1], self.apart[-1], value)

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
