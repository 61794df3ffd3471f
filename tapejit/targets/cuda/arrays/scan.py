"""Prefix scan: levels of blocks, as the records define them, with threads that share.

A long axis is scanned in blocks of `BLOCK`, whose totals are scanned in the same way,
level above level, until few are left; so it is the records' order, and their bits.
Going up, a thread has a block of a level: what it comes to is an element of the next
level. The highest level is one chain. Going down, a thread scans its block once more
and goes on from what all blocks before have come to.

Where elements look at the largest one so far, a scan of maxima comes first.

Short axes, products, and lines so many that each can have a thread are one kernel, in
which threads do what a CPU does with a line.

Start reading at `emit_scan`, then `BlockScan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tapejit.loops.steps import Step
from tapejit.ops.scan import BLOCK, SHORT
from tapejit.targets.cpu.arrays import scan
from tapejit.targets.cpu.arrays.loops import combined, operands_of
from tapejit.targets.cpu.arrays.scan import Element, Recurrence, Scan
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.arrays.kernels import (
    array_kernel,
    emit_shared,
    node_of,
    result_of,
    shape_of,
)
from tapejit.targets.cuda.kernel import SimtKernel
from tapejit.targets.cuda.target import CUDA

if TYPE_CHECKING:
    from tapejit.targets.cuda.module import Emission


def recurrence_of(step: Step) -> Recurrence:
    """What is scanned; sums of integers also in blocks: they are exact in any order."""
    node = node_of(step)
    found = scan.RECURRENCES[node.op.name](node.dtype)
    is_any_order = not found.has_factors and found.wide.kind in "biu"
    return found._replace(short=SHORT) if is_any_order else found


class Levels:
    """The levels of a scan: how many lines there are, and elements of each at a level.

    There are none above the elements if a thread has a line.
    """

    def __init__(self, step: Step) -> None:
        node, numbers = node_of(step), CUDA.numerics
        self.recurrence = recurrence_of(step)
        shape, axis = shape_of(node), node.attrs["axis"]
        self.rest = [*shape[:axis], *shape[axis + 1 :]]
        self.lines, self.axis = math.prod(self.rest), axis
        self.is_across = math.prod(shape[axis + 1 :]) > 1
        self.sizes = [shape[axis]]
        if self.lines < numbers.most_blocks * numbers.warp_threads:
            for _ in range(self.recurrence.depth(shape[axis])):
                self.sizes.append(-(-self.sizes[-1] // BLOCK))

    @property
    def depth(self) -> int:
        """How many levels there are above the elements."""
        return len(self.sizes) - 1


def rooms(step: Step) -> dict[str, int]:
    """What the blocks of each level come to."""
    levels = Levels(step)
    names = ["term"]
    names += ["factor"] if levels.recurrence.has_factors else []
    names += ["largest"] if levels.recurrence.has_state else []
    itemsize = levels.recurrence.wide.itemsize
    return {
        f"{name}{level}": levels.lines * size * itemsize
        for level, size in enumerate(levels.sizes)
        for name in names
        if level
    }


def emit_scan(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """A scan along an axis."""
    levels = Levels(step)
    if not levels.depth:
        emit_shared(made, kernel, step)
        return
    if levels.recurrence.has_state:
        maxima = BlockScan(made, kernel, step, levels, of_maxima=True)
        maxima.go_up()
        maxima.go_down(1)
    whole = BlockScan(made, kernel, step, levels)
    whole.go_up()
    whole.go_down(0)


class BlockScan:
    """Kernels that go up and down the levels of a scan, or of its maxima."""

    at: SimtAddressing
    scan: Scan

    def __init__(
        self,
        made: Emission,
        kernel: SimtKernel,
        step: Step,
        levels: Levels,
        of_maxima: bool = False,
    ) -> None:
        self.made, self.kernel, self.step, self.levels = made, kernel, step, levels
        self.of_maxima = of_maxima
        self.terms = "largest" if of_maxima else "term"

    def go_up(self) -> None:
        """What each block of each level comes to; the highest level is scanned."""
        levels = self.levels
        for level in range(levels.depth):
            self.emit(f"up{level}", level, partial(self.total_of_block, level))
        self.emit("top", levels.depth, self.scan_chain)

    def go_down(self, last: int) -> None:
        """The totals of each level, from those of the one above."""
        for level in reversed(range(last, self.levels.depth)):
            self.emit(f"down{level}", level, partial(self.scan_block, level))

    def emit(self, name: str, level: int, body: Callable[[Value, Value], None]) -> None:
        """A kernel with `body(line, block)` for all blocks of a level."""
        levels, is_top = self.levels, level == self.levels.depth
        blocks = 1 if is_top else levels.sizes[level + 1]
        count, name = levels.lines * blocks, f"{self.terms}_{name}"
        with array_kernel(self.made, self.kernel, name, count) as at:
            self.at, out = at, result_of(at, self.step)
            node, recurrence = node_of(self.step), levels.recurrence
            self.scan = Scan(at, node, operands_of(at), out, recurrence)

            def single(index: Value) -> None:
                if levels.is_across:
                    block, line = at.divided(index, levels.lines, count)
                else:
                    line, block = at.divided(index, blocks, count)
                along = at.unravelled(line, levels.rest)
                starts = [
                    at.at_position(number(0), self.without_axis(x.strides), along)
                    for x in self.scan.every
                ]
                self.scan.begin(starts, 1)
                body(line, block)

            at.share(count, single)

    def without_axis(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        axis = self.levels.axis
        return (*strides[:axis], *strides[axis + 1 :])

    # Blocks

    def total_of_block(self, level: int, line: Value, block: Value) -> None:
        """What a block comes to, as an element of the next level."""
        memory, product = self.scan.memory(), self.scan.memory()
        self.begin_state(level, line, block)

        def element(position: Value, begins: bool) -> None:
            factor, term = self.element(level, line, position)
            self.extend(memory, factor, term, begins)
            self.scan.multiplied(product, factor, begins)

        self.each(level, block, element)
        self.put(self.terms, level + 1, line, block, self.scan.value(memory))
        if self.has_factors:
            self.put("factor", level + 1, line, block, self.scan.value(product))

    def scan_chain(self, line: Value, block: Value) -> None:
        """The highest level, element by element."""
        memory, level = self.scan.memory(), self.levels.depth

        def element(position: Value, begins: bool) -> None:
            factor, term = self.element(level, line, position)
            total = self.extend(memory, factor, term, begins)
            self.put(self.terms, level, line, position, total)

        self.each(level, block, element)

    def scan_block(self, level: int, line: Value, block: Value) -> None:
        """The totals of a block, which goes on from that of the block before."""
        b = self.at.builder
        memory, product = self.scan.memory(), self.scan.memory()
        self.begin_state(level, line, block)
        is_first, before = self.before(self.terms, level, line, block)

        def element(position: Value, begins: bool) -> None:
            factor, term = self.element(level, line, position)
            own = self.extend(memory, factor, term, begins)
            through = self.scan.multiplied(product, factor, begins)
            total = b.select(is_first, own, self.after(before, through, own))
            if level:
                self.put(self.terms, level, line, position, total)
            else:
                self.scan.give(self.scan.places_at(position), total)

        self.each(level, block, element)

    def each(
        self, level: int, block: Value, body: Callable[[Value, bool], None]
    ) -> None:
        """`body(position, begins)` for the elements of a block, in order."""
        at, b = self.at, self.at.builder
        size, is_top = self.levels.sizes[level], level == self.levels.depth
        first = b.mul(block, number(BLOCK))
        last = number(size)
        if not is_top:
            last = at.smaller(b.add(first, number(BLOCK)), last)
        body(first, True)
        at.strided(b.add(first, number(1)), last, 1, lambda x: body(x, False))

    # Elements

    @property
    def has_factors(self) -> bool:
        return self.levels.recurrence.has_factors and not self.of_maxima

    def element(self, level: int, line: Value, position: Value) -> Element:
        """Factor and term of an element of a level."""
        if level:
            term = self.get(self.terms, level, line, position)
            is_scaled = self.has_factors
            return self.get(
                "factor", level, line, position
            ) if is_scaled else None, term
        here = self.scan.places_at(position)
        if not self.of_maxima:
            return self.scan.element(here)
        at, (x,) = self.at, self.scan.operands
        value = at.load_at(x.pointer, here[0], x.dtype, 1)
        return None, at.converted(value, x.dtype, self.scan.wide)

    def extend(self, memory: Value, factor: Any, term: Any, begins: bool) -> Value:
        """The next value of a chain, kept in its memory."""
        found: Value = term
        if not begins:
            found = self.after(self.scan.value(memory), factor, term)
        self.at.builder.store(found, memory)
        return found

    def after(self, before: Value, factor: Any, term: Any) -> Value:
        if self.of_maxima:
            return combined(self.at, "maximum", before, term, self.scan.wide)
        return self.scan.after(before, factor, term)

    def begin_state(self, level: int, line: Value, block: Value) -> None:
        """Elements of a block begin with the largest before it."""
        self.scan.state, start = None, self.levels.recurrence.start
        if start is None or level or self.of_maxima:
            return
        b, scan = self.at.builder, self.scan
        scan.state = scan.memory()
        is_first, before = self.before("largest", level, line, block)
        nothing = lanes.constant(scan.wide, start, 1)
        b.store(b.select(is_first, nothing, before), scan.state)

    def before(
        self, name: str, level: int, line: Value, block: Value
    ) -> tuple[Value, Value]:
        """Whether a block is the first; the total of the one before it."""
        b = self.at.builder
        is_first = b.icmp_signed("==", block, number(0))
        other = b.select(is_first, number(0), b.sub(block, number(1)))
        return is_first, self.get(name, level + 1, line, other)

    # Memory of the levels

    def place(self, level: int, line: Value, position: Value) -> Value:
        at, levels = self.at, self.levels
        if levels.is_across:
            return at.builder.add(at.moved(number(0), position, levels.lines), line)
        return at.builder.add(at.moved(number(0), line, levels.sizes[level]), position)

    def get(self, name: str, level: int, line: Value, position: Value) -> Value:
        at, place = self.at, self.place(level, line, position)
        return at.load_at(at.room(f"{name}{level}"), place, self.scan.wide, 1)

    def put(
        self, name: str, level: int, line: Value, position: Value, value: Value
    ) -> None:
        at, place = self.at, self.place(level, line, position)
        at.store_at(at.room(f"{name}{level}"), place, value, self.scan.wide)
