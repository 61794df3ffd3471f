"""Putting parts into an array, and adding them there: a thread for each element.

A thread looks which parts its element is of, so all is written once, in the order of
memory. A kernel looks at a group of parts, and goes through the box that these lie in.

Start reading at `emit_place_add`, then `PlacingKernel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tapejit.base.types import DType, is_float
from tapejit.loops.index import strides_of
from tapejit.loops.steps import Step
from tapejit.ops.placing import met, ranges_of
from tapejit.targets.cpu.arrays.loops import (
    ArrayOperand,
    combined,
    operands_of,
    strides_of_operands,
)
from tapejit.targets.cpu.arrays.placement import (
    Placement,
    parts_to_add,
    parts_to_join,
    placing,
)
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.arrays.kernels import (
    array_kernel,
    node_of,
    result_of,
    shape_of,
)
from tapejit.targets.cuda.kernel import SimtKernel
from tapejit.targets.cuda.target import CUDA

if TYPE_CHECKING:
    from tapejit.targets.cuda.module import Emission

TRUE: Final[Value] = ir.Literal(ir.IntType(1), 1)

Box = list[range]


def emit_place(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """Zeros, and the operand at every so many places of each axis."""
    node = node_of(step)
    shape = shape_of(node.inputs[0])
    ranges = ranges_of(shape, *placing(node))
    part = Placement(0, strides_of_operands(step)[0], shape, ranges)
    shape, parts = joined(shape_of(node), [part])

    def body(own: PlacingKernel, place: Value, along: Sequence[Value]) -> None:
        own.write(place, own.element_or_zero(parts[0], along))

    PlacingKernel(made, kernel, step, shape, is_moved=True).emit(whole(shape), body)


def emit_concat(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """Each operand to its place."""
    node = node_of(step)
    parts = parts_to_join(node, strides_of_operands(step))
    shape, parts = joined(shape_of(node), parts)
    placing_kernel = PlacingKernel(made, kernel, step, shape, is_moved=True)
    at_once = CUDA.tuning.placed_parts
    for first in range(0, len(parts), at_once):
        group = parts[first : first + at_once]

        def body(
            own: PlacingKernel,
            place: Value,
            along: Sequence[Value],
            group: Sequence[Placement] = group,
        ) -> None:
            for part in group:
                is_inside, source = own.inside(part, along)
                with own.at.builder.if_then(is_inside):
                    own.write(place, own.read(part, source))

        placing_kernel.emit(box_of(group), body)


def emit_place_add(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """The first operand, plus each update at its place; zeros are added elsewhere.

    A zero that is added changes no bit but the sign of a zero, and that only once. So a
    later group has to look at nothing but its box, unless all parts before it have an
    element in common.
    """
    node = node_of(step)
    strides, shape = strides_of_operands(step), shape_of(node)
    start = Placement(0, strides[0], shape, whole(shape))
    shape, parts = joined(shape, [start, *parts_to_add(node, strides)])
    placing_kernel = PlacingKernel(made, kernel, step, shape, is_moved=False)
    at_once = CUDA.tuning.placed_parts
    for first in range(0, len(parts), at_once):
        group, before = parts[first : first + at_once], parts[:first]
        common = met([part.ranges for part in before]) if before else ()
        is_boxed = bool(before) and not (is_float(step.dtype) and all(common))

        def body(
            own: PlacingKernel,
            place: Value,
            along: Sequence[Value],
            group: Sequence[Placement] = group,
        ) -> None:
            total = None if group[0] is parts[0] else own.written(place)
            for part in group:
                if total is None:
                    total = own.read(part, own.inside(part, along)[1])
                    continue
                value = own.element_or_zero(part, along)
                total = combined(own.at, "add", total, value, step.dtype)
            assert total is not None
            own.write(place, total)

        placing_kernel.emit(box_of(group) if is_boxed else whole(shape), body)


def whole(shape: Sequence[int]) -> Box:
    """All places of an array."""
    return [range(size) for size in shape]


def box_of(parts: Sequence[Placement]) -> Box:
    """The least box that has all of some parts inside."""
    columns = zip(*[part.ranges for part in parts], strict=True)
    return [
        range(min(x.start for x in column), 1 + max(x[-1] for x in column))
        for column in columns
    ]


def joined(
    shape: Sequence[int], parts: Sequence[Placement]
) -> tuple[tuple[int, ...], list[Placement]]:
    """The same with fewer axes: neighbours are one where no part is cut between.

    >>> rows = Placement(1, (4, 1), (2, 4), [range(3, 5), range(4)])
    >>> joined((9, 4), [rows])
    ((36,), [Placement(number=1, strides=(1,), shape=(8,), ranges=[range(12, 20)])])
    """

    def goes_on(part: Placement, axis: int) -> bool:
        before, size = part.ranges[axis - 1], shape[axis]
        is_even = part.strides[axis - 1] == part.strides[axis] * size
        is_line = len(before) == 1 or (before.step == 1 and is_even)
        return is_line and part.ranges[axis] == range(size)

    runs: list[list[int]] = []
    for axis in range(len(shape)):
        if runs and all(goes_on(part, axis) for part in parts):
            runs[-1].append(axis)
        else:
            runs.append([axis])

    def in_runs(part: Placement) -> Placement:
        ranges = []
        for first, *others in runs:
            size, own = math.prod(shape[x] for x in others), part.ranges[first]
            is_cut = len(own) > 1 and own.step > 1
            end = (own[-1] + 1) * size
            ranges.append(own if is_cut else range(own.start * size, end))
        strides = tuple(part.strides[run[-1]] for run in runs)
        return Placement(part.number, strides, tuple(map(len, ranges)), ranges)

    sizes = tuple(math.prod(shape[x] for x in run) for run in runs)
    return sizes, [in_runs(part) for part in parts]


class PlacingKernel:
    """Kernels over boxes of the result; what is only moved is moved as bits."""

    at: SimtAddressing

    def __init__(
        self,
        made: Emission,
        kernel: SimtKernel,
        step: Step,
        shape: Sequence[int],
        *,
        is_moved: bool,
    ) -> None:
        self.made, self.kernel, self.step, self.shape = made, kernel, step, shape
        self.is_moved, self.count = is_moved, 0

    def emit(
        self, box: Box, body: Callable[[PlacingKernel, Value, Sequence[Value]], None]
    ) -> None:
        """`body(self, place, along)` for each element of the box."""
        name, size = f"{self.step.name}{self.count}", math.prod(map(len, box))
        self.count += 1
        with array_kernel(self.made, self.kernel, name, size) as at:
            self.at, self.operands = at, operands_of(at)
            self.out = ArrayOperand(result_of(at, self.step), self.step.dtype, ())

            def single(index: Value) -> None:
                along = [
                    at.builder.add(x, number(places.start)) if places.start else x
                    for x, places in zip(
                        at.unravelled(index, list(map(len, box))), box, strict=True
                    )
                ]
                place = at.at_position(number(0), strides_of(self.shape), along)
                body(self, place, along)

            at.share(size, single)

    @property
    def dtype(self) -> DType:
        """What elements are looked at as."""
        return (self.out.as_bits() if self.is_moved else self.out).dtype

    def inside(self, part: Placement, along: Sequence[Value]) -> tuple[Value, Value]:
        """Whether an element is of a part, and where it is there."""
        b, is_inside, place = self.at.builder, TRUE, number(0)
        for index, size, places, stride in zip(
            along, self.shape, part.ranges, part.strides, strict=True
        ):
            if places != range(size):
                if places.start:
                    index = b.sub(index, number(places.start))
                is_here = b.icmp_signed(">=", index, number(0))
                if places.step > 1:
                    # Of what comes before the part nothing is looked at.
                    index, rest = self.at.divided(index, places.step, size)
                    is_step = b.icmp_signed("==", rest, number(0))
                    is_here = b.and_(is_here, is_step)
                is_before = b.icmp_signed("<", index, number(len(places)))
                is_inside = b.and_(is_inside, b.and_(is_here, is_before))
            place = self.at.moved(place, index, stride)
        return is_inside, place

    def read(self, part: Placement, place: Value) -> Value:
        """An element of an operand."""
        pointer = self.operands[part.number].pointer
        return self.at.load_at(pointer, place, self.dtype, 1)

    def element_or_zero(self, part: Placement, along: Sequence[Value]) -> Value:
        """The element of a part, or 0 where it is not there."""
        b = self.at.builder
        is_inside, place = self.inside(part, along)
        zero, before = lanes.constant(self.dtype, 0, 1), b.block
        with b.if_then(is_inside):
            value, inside = self.read(part, place), b.block
        found = b.phi(value.type)
        found.add_incoming(zero, before)
        found.add_incoming(value, inside)
        return found

    def written(self, place: Value) -> Value:
        """What is there by now."""
        return self.at.load_at(self.out.pointer, place, self.dtype, 1)

    def write(self, place: Value, value: Value) -> None:
        self.at.store_at(self.out.pointer, place, value, self.dtype)
