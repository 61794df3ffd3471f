"""The order in which a sum adds its terms: by the extents of its array alone.

Floats add up to other bits in another order. So the order is a rule of the array that
is reduced: its dtype, its extents, and which of its axes are reduced. It does not
depend on what shares the loop, on the axis that vectors go along, on tiles or on tasks.

- **Lanes.** A sum has lanes along the last axis that is reduced, unless this is a short
  one with less than `sum_lanes_least_terms`; then, along the one before it. There are
  as many as `sum_lane_bytes` have, or the largest power of two that is not above the
  extent. The element at a position adds to the lane `position % lanes`. There are none
  if numbers that are kept lie side by side: if the last axis is kept and has
  `sum_chains_least` elements, or `sum_chains_most` are kept for each of the axis.
- **Chains.** Along each axis, the last one first, terms add up one after the other,
  from 0, `sum_chain_terms` of them; chains add up in the same way, and chains of
  chains. What an axis adds up to is a term of the axis before it. Each lane has
  chains of its own.
- **In the end** the lanes are added as a tree, of halves.

A reduction whose parts can be combined in any order, a maximum or a sum of integers,
has lanes wherever vectors are.

Start reading at `SumLayout`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
    limits, kept = CPU.numerics, 1
    least = limits.sum_lanes_least_terms
    if isinstance(step.what, Contract):
        least = limits.matmul_lanes_least_terms
    for at, axis in enumerate(reversed(step.what.order)):
        if axis.root not in step.closed:
            kept *= axis.extent
            is_long = axis.extent >= limits.sum_chains_least and not at
            if is_long or kept >= limits.sum_chains_most:
                return None
        elif axis.extent >= least:
            return axis.root
    return None


def lanes_along(step: Step, axis: Axis) -> int:
    """How many lanes a sum has along its long axis: no more than there are terms."""
    most = CPU.numerics.sum_lane_bytes // accumulator(step.dtype).itemsize
    return int(min(most, 1 << (axis.extent.bit_length() - 1)))


def unit_of(step: Step, axis: Axis) -> int:
    """How many neighbours along an axis are one term each of their lanes."""
    return lanes_along(step, axis) if lane_axis(step) is axis else 1


def chain_ends(step: Step, axis: Axis) -> Iterator[int]:
    """After how many elements of an axis chains end: of terms, of chains, and so on."""
    size, most = axis.extent, CPU.numerics.sum_chain_terms
    length = unit_of(step, axis) * most
    while length < size:
        yield length
        length *= most


class SumLayout(NamedTuple):
    """The array that a reduction adds up in: `phases` times its elements.

    An element has `width` lanes. Those of one term of the long axis that a vector has
    no lanes for are in other phases. If it is `sequential`, lanes of a vector are terms
    of one chain.
    """

    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]
    has_lanes: bool
    width: int
    phases: int = 1  # of which there is memory
    period: int = 1  # of those that there could be
    axis: Axis | None = None  # along which there are phases
    each: int = 1  # of its elements in a phase
    sequential: bool = False

    @property
    def elements(self) -> int:
        """How many there are in a phase."""
        return math.prod(self.sizes)

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return self.elements * self.width * self.phases


def layout_of(plan: LoopPlan, step: Step) -> SumLayout:
    """How a reduction adds up in the loops that it has."""
    around = {x.axis for x in plan.homes[step] if not x.tile}
    axes = inner_axes(plan, step)
    vector, full = plan.lanes[step]
    if vector in axes:
        axes.remove(vector)
        axes.append(vector)
    tiles = {x.axis: x.tile for x in plan.homes[step] if x.tile}
    sizes = tuple(tiles.get(axis, axis.extent) for axis in axes)
    long = lane_axis(step) if is_ordered(step) else vector
    sequential = vector in step.closed and vector is not long
    is_outside = vector in around & step.labels
    has_lanes = is_outside or (vector in step.closed and not sequential)
    made = SumLayout(
        tuple(axes), sizes, has_lanes, full if has_lanes else 1, sequential=sequential
    )
    if not is_ordered(step) or long is None:
        return made
    each = full if vector is long else 1
    period = max(1, lanes_along(step, long) // each)
    phases = min(period, -(-long.extent // each))
    return made._replace(phases=phases, period=period, axis=long, each=each)
