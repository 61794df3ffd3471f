"""The order in which a sum adds its terms: by the extents of its array alone.

Floats add up to other bits in another order. So the order is a rule of the array that
is reduced: its dtype, its extents, and which of its axes are reduced. It does not
depend on what shares the loop, on the axis that vectors go along, on tiles or on tasks.

- **Lanes.** A sum has lanes along the last axis that is reduced, unless this is a short
  one with less than `sum_lanes_least_terms`; then, along the one before it. There are
  as many as `sum_lane_bytes` have, or the largest power of two that is not above the
  extent. The element at a position adds to the lane `position % lanes`; the rest, of
  fewer elements than lanes, adds to the last lanes. There are none if numbers that are
  kept lie side by side: `sum_chains_least` of them inside of the axis; or fewer, if
  more are outside than the axis has elements.
- **Chains.** Terms of a lane add up one after the other, from 0, no more than
  `sum_chain_terms`. A chain goes on through the axes from the last one on while all of
  an axis fits in. Along the axis where it does not, chains have as many iterations as
  fit, a power of two; chains of them have `sum_chain_terms`, and so on. What such an
  axis adds up to is a term of the axis before it.
- **In the end** the lanes are added as a tree, of halves.

A reduction whose parts can be combined in any order, a maximum or a sum of integers,
has lanes wherever vectors are.

Start reading at `SumLayout`.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tapejit import ops
from tapejit.base.types import is_float
from tapejit.loops.index import Axis
from tapejit.loops.kernels import LoopPlan, accumulator, inner_axes
from tapejit.loops.steps import Contract, Reduce, Step
from tapejit.targets.cpu.target import CPU

EXTREMES: Final = (ops.max, ops.min)


def is_ordered(step: Step) -> bool:
    """Whether the order in which a reduction combines its elements fixes bits."""
    is_reduction = isinstance(step.what, (Reduce, Contract)) and bool(step.closed)
    is_rounded = is_float(accumulator(step.dtype))
    return is_reduction and is_rounded and step.reduction not in EXTREMES


def lane_axis(step: Step) -> Axis | None:
    """The axis along which a sum has lanes, if there is one."""
    assert isinstance(step.what, (Reduce, Contract))
    limits, order = CPU.numerics, step.what.order
    kept = {x: 1 if x.root in step.closed else x.extent for x in order}
    least = limits.sum_lanes_least_terms
    if isinstance(step.what, Contract):
        least = limits.matmul_lanes_least_terms
    inside = 1  # of the numbers that are kept
    for axis in reversed(order):
        inside *= kept[axis]
        if axis.root in step.closed and axis.extent >= least:
            is_wide = inside >= limits.sum_chains_least
            is_wide |= math.prod(kept.values()) > inside * axis.extent and inside > 1
            return None if is_wide else axis.root
    return None


def lanes_along(step: Step, axis: Axis) -> int:
    """How many lanes a sum has along its long axis: no more than there are terms."""
    most = CPU.numerics.sum_lane_bytes // accumulator(step.dtype).itemsize
    return int(min(most, 1 << (axis.extent.bit_length() - 1)))


def unit_of(step: Step, axis: Axis) -> int:
    """How many neighbours along an axis are one term each of their lanes."""
    return lanes_along(step, axis) if lane_axis(step) is axis else 1


class Chains(NamedTuple):
    """Where chains of a sum end along one of its axes, after so many elements each.

    The first are as long as `terms` of each iteration allow. Unless it `begins` anew,
    they go on with the chain of the axis inside.
    """

    begins: bool
    terms: int
    ends: tuple[int, ...] = ()


def chains_of(step: Step) -> dict[Axis, Chains]:
    """The chains along each axis of a sum, the last axis first."""
    most = CPU.numerics.sum_chain_terms
    found: dict[Axis, Chains] = {}
    terms, is_cut = 1, False
    for axis in reversed(step.reduced):
        begins, terms = is_cut, 1 if is_cut else terms
        unit, ends = unit_of(step, axis.root), []
        count = -(-axis.extent // unit)
        is_cut = terms * count > most
        if is_cut:
            length = unit << ((most // terms).bit_length() - 1)
            while length < axis.extent:
                ends.append(length)
                length *= most
        found[axis.root] = Chains(begins, terms, tuple(ends))
        terms *= count
    return found


class SumLayout(NamedTuple):
    """The array that a reduction adds up in: `phases` times its elements.

    An element has `width` lanes. Those of one term of the long axis that a vector has
    no lanes for are in other phases.
    """

    axes: tuple[Axis, ...] = ()
    sizes: tuple[int, ...] = ()
    has_lanes: bool = False
    width: int = 1
    phases: int = 1  # of which there is memory
    period: int = 1  # of those that there could be
    axis: Axis | None = None  # along which there are phases
    each: int = 1  # of its elements in a phase

    @property
    def elements(self) -> int:
        """How many there are in a phase."""
        return math.prod(self.sizes)

    @property
    def lanes(self) -> int:
        """How many there are along the long axis."""
        return self.period * self.each

    @property
    def whole(self) -> int:
        """How many elements of the long axis are terms of all lanes."""
        assert self.axis is not None
        return self.axis.extent // self.lanes * self.lanes

    @property
    def has_rest(self) -> bool:
        """Whether there are phases, and elements that are terms of some lanes only."""
        axis = self.axis
        return self.phases > 1 and axis is not None and self.whole < axis.extent

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return self.elements * self.width * self.phases


def layout_of(plan: LoopPlan, step: Step, in_order: bool) -> SumLayout:
    """How a reduction adds up in the loops that it has."""
    around = {x.axis for x in plan.homes[step] if not x.tile}
    axes = inner_axes(plan, step)
    vector, full = plan.lanes[step]
    if vector in axes:
        axes.remove(vector)
        axes.append(vector)
    tiles = {x.axis: x.tile for x in plan.homes[step] if x.tile}
    sizes = tuple(tiles.get(axis, axis.extent) for axis in axes)
    has_lanes = vector in step.closed or vector in around & step.labels
    made = SumLayout(tuple(axes), sizes, has_lanes, full if has_lanes else 1)
    long = lane_axis(step) if in_order else None
    if long is None:
        return made
    each = full if vector is long else 1
    period = max(1, lanes_along(step, long) // each)
    return made._replace(phases=period, period=period, axis=long, each=each)
