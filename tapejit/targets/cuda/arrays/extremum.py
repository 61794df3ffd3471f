"""Argmax and argmin: a thread for each line, or a team, or several teams.

A short line, or one of very many that lie across, is one thread's. Else a team goes
along a line, each thread with every so many elements, and pairs of an element with its
index are combined; which pair is the first extremum does not depend on the order. Of
few and long lines several teams have a part each, and a second kernel compares these.

Start reading at `emit_argmax`, then `TeamSearch`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from tapejit.base.types import DType
from tapejit.loops.steps import Step
from tapejit.targets.cpu.arrays.extremum import Extremum
from tapejit.targets.cpu.arrays.loops import operands_of, strides_of_operands
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import INT64, number
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.arrays.kernels import (
    array_kernel,
    emit_shared,
    node_of,
    result_of,
    shape_of,
)
from tapejit.targets.cuda.kernel import SimtKernel, power_above
from tapejit.targets.cuda.target import CUDA

if TYPE_CHECKING:
    from tapejit.targets.cuda.module import Emission

Pair = tuple[Value, Value]  # an element and its index
INDEX_BYTES: Final = INT64.itemsize


def emit_argmax(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """Where the first largest element is, or the first NaN."""
    emit_search(made, kernel, step, "greater")


def emit_argmin(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """Where the first smallest element is, or the first NaN."""
    emit_search(made, kernel, step, "less")


class SearchedLines(NamedTuple):
    """What is searched: how many lines, how long, and in how many parts each."""

    number: int
    length: int
    parts: int  # 0: a thread has a line, or more than one

    @classmethod
    def of(cls, step: Step) -> SearchedLines:
        """Of a search."""
        node, numbers = node_of(step), CUDA.numerics
        axis = node.attrs["axis"]
        length, count = shape_of(node.inputs[0])[axis], math.prod(shape_of(node))
        stride = strides_of_operands(step)[0][axis]
        enough = numbers.most_blocks * numbers.warp_threads
        if length < numbers.row_least_elements or (stride != 1 and count >= enough):
            return cls(count, length, 0)
        wanted = math.ceil(length / CUDA.tuning.search_part_elements)
        return cls(count, length, max(1, min(wanted, numbers.most_blocks // count)))


def rooms(step: Step) -> dict[str, int]:
    """The extremum of each part of a line."""
    lines = SearchedLines.of(step)
    if lines.parts <= 1:
        return {}
    size, dtype = lines.number * lines.parts, node_of(step).inputs[0].dtype
    return {"best": size * dtype.itemsize, "where": size * INDEX_BYTES}


def emit_search(made: Emission, kernel: SimtKernel, step: Step, order: str) -> None:
    lines = SearchedLines.of(step)
    if not lines.parts:
        emit_shared(made, kernel, step)
        return
    search = TeamSearch(made, kernel, step, order, lines)
    search.search_parts()
    if lines.parts > 1:
        search.compare_parts()


class TeamSearch:
    """Kernels in which a team goes along a line, or a part of one."""

    at: SimtAddressing
    extremum: Extremum

    def __init__(
        self,
        made: Emission,
        kernel: SimtKernel,
        step: Step,
        order: str,
        lines: SearchedLines,
    ) -> None:
        self.made, self.kernel, self.step = made, kernel, step
        self.order, self.lines = order, lines
        self.dtype: DType = node_of(step).inputs[0].dtype

    def search_parts(self) -> None:
        """The extremum of each part of each line."""
        lines, node = self.lines, node_of(self.step)
        axis, shape = node.attrs["axis"], shape_of(node.inputs[0])
        rest = [*shape[:axis], *shape[axis + 1 :]]
        size = math.ceil(lines.length / lines.parts)

        def unit(index: Value) -> None:
            at, b = self.at, self.at.builder
            (x,) = operands_of(at)
            line, part = at.divided(index, lines.parts, lines.number * lines.parts)
            strides = [*x.strides[:axis], *x.strides[axis + 1 :]]
            start = at.at_position(number(0), strides, at.unravelled(line, rest))
            low = b.mul(part, number(size))
            high = at.smaller(b.add(low, number(size)), number(lines.length))

            def element(place: Value) -> Pair:
                there = at.moved(start, place, x.strides[axis])
                return at.load_at(x.pointer, there, x.dtype, 1), at.spread(place, 1)

            found = self.along(low, high, element)
            if lines.parts == 1:
                self.give(line, found)
            else:
                self.leave(index, found)

        self.emit("search", lines.number * lines.parts, size, unit)

    def compare_parts(self) -> None:
        """The extremum of each line, from those of its parts."""
        lines = self.lines

        def unit(line: Value) -> None:
            at, b = self.at, self.at.builder
            first = b.mul(line, number(lines.parts))

            def element(part: Value) -> Pair:
                place = b.add(first, part)
                best = at.load_at(at.room("best"), place, self.dtype, 1)
                return best, at.load_at(at.room("where"), place, INT64, 1)

            self.give(line, self.along(number(0), number(lines.parts), element))

        self.emit("compare", lines.number, lines.parts, unit)

    def emit(
        self, name: str, units: int, length: int, unit: Callable[[Value], None]
    ) -> None:
        """A kernel whose teams take units in turn, each of which has some elements."""
        numbers = CUDA.numerics
        warp, most = numbers.warp_threads, numbers.block_threads
        is_short = length <= warp * numbers.warp_row_trips
        team = warp if is_short else min(most, power_above(length))
        threads = min(most, team * power_above(units)) if is_short else team
        teams = threads // team
        blocks = min(numbers.most_blocks, math.ceil(units / teams))
        self.has_turns = units > blocks * teams
        with array_kernel(self.made, self.kernel, name, threads, blocks, team) as at:
            self.at, self.extremum = at, Extremum(at, self.order, self.dtype)
            self.extremum.index = INT64
            at.strided(at.task, number(units), blocks * teams, unit)

    def along(self, low: Value, high: Value, element: Callable[[Value], Pair]) -> Pair:
        """The first extremum of some elements, in all threads of the first warp."""
        at, b, warp = self.at, self.at.builder, CUDA.numerics.warp_threads
        own = b.add(low, at.rank)
        last = b.sub(high, number(1))
        start = element(at.smaller(own, last))
        with at.at_entry():
            memory = [at.builder.alloca(x.type) for x in start]
        for value, where in zip(start, memory, strict=True):
            b.store(value, where)

        def known() -> Pair:
            best, index = (
                b.load(where, typ=value.type)
                for value, where in zip(start, memory, strict=True)
            )
            return best, index

        def compare(place: Value) -> None:
            for value, where in zip(
                self.extremum.earlier(known(), element(place)), memory, strict=True
            ):
                b.store(value, where)

        following = b.add(own, number(at.kernel.team))
        at.strided(following, high, at.kernel.team, compare)
        found, distance = known(), warp // 2
        while distance:
            found = self.extremum.earlier(found, self.from_lane(found, distance))
            distance //= 2
        return self.over_warps(found)

    def from_lane(self, pair: Pair, distance: int) -> Pair:
        best, where = pair
        return (
            self.at.from_lane(best, distance, self.dtype),
            self.at.from_lane(where, distance, INT64),
        )

    def over_warps(self, found: Pair) -> Pair:
        """The same of all warps of a team; each leaves a pair in shared memory."""
        at, b, warp = self.at, self.at.builder, CUDA.numerics.warp_threads
        warps = at.kernel.team // warp
        if warps == 1:
            return found
        words = [at.shared_array(warps, x) for x in (self.dtype, INT64)]
        dtypes = self.dtype, INT64
        lane = b.and_(at.rank, number(warp - 1))
        if self.has_turns:
            at.barrier()  # the first thread may still read those of the unit before
        with b.if_then(b.icmp_signed("==", lane, number(0))):
            own = b.lshr(at.rank, number(warp.bit_length() - 1))
            for memory, value, dtype in zip(words, found, dtypes, strict=True):
                at.store_at(memory, own, value, dtype)
        at.barrier()
        for other in range(warps):
            best, where = (
                at.load_at(memory, number(other), dtype, 1)
                for memory, dtype in zip(words, dtypes, strict=True)
            )
            found = (
                self.extremum.earlier(found, (best, where)) if other else (best, where)
            )
        return found

    def leave(self, index: Value, found: Pair) -> None:
        """The pair of a part, for the second kernel."""
        at = self.at
        with at.builder.if_then(at.is_first()):
            for name, value, dtype in zip(
                ("best", "where"), found, (self.dtype, INT64), strict=True
            ):
                at.store_at(at.room(name), index, value, dtype)

    def give(self, line: Value, found: Pair) -> None:
        """The index, as the result of a line."""
        at = self.at
        with at.builder.if_then(at.is_first()):
            at.store_at(result_of(at, self.step), line, found[1], INT64)
