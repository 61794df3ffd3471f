"""The order of a sum in a loop nest: where its chains end, what tasks leave of it.

Floats add up to other bits in another order. So where a chain of additions ends is a
rule of extents alone (`flushes_of`):

- Terms of a lane add up one after the other, no more than `sum_chain_terms`. A chain
  goes on from loop to loop, from the inside, while all of a loop fits in.
- Along the loop where it does not, chains have as many iterations as fit, a power of
  two; they are shorter if there are few. Chains of `sum_chain_terms` chains follow, and
  chains of these.
- Around such a loop, each iteration is one term of a new chain.

The end of a chain is a *flush*: what it has added up goes to the total of the next
level, and it starts again from nothing.

Tasks cut the outermost loop where a chain ends, whichever level that is. They leave
what such chains have added up in *slots*, and slots are added as one task would have
added them. So the number of tasks, and which level is cut, change no bit.

Start reading at `flushes_of`, then `slots_for`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tapejit import ops
from tapejit.base.types import is_float
from tapejit.loops.index import Axis
from tapejit.loops.kernels import (
    LoopNest,
    LoopPlan,
    Slots,
    accumulator,
    bound,
    inner_axes,
)
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import ArrayOp, Contract, Reduce, Step
from tapejit.targets.cpu.target import CPU

EXTREMES: Final = (ops.max, ops.min)


@dataclass(frozen=True)
class Flush:
    """After how many iterations of a loop a level of a sum is added to the next."""

    loop: Loop
    every: int
    level: int
    around: frozenset[Axis]  # the axes of which the loop has one iteration at a time
    slot: int = 0  # if it goes there: how many elements of the axis each slot has


def is_ordered(step: Step) -> bool:
    """Whether the order in which a reduction combines its elements fixes bits."""
    is_reduction = isinstance(step.what, (Reduce, Contract)) and bool(step.closed)
    is_rounded = is_float(accumulator(step.dtype))
    return is_reduction and is_rounded and step.reduction not in EXTREMES


def axes_inside(plan: LoopPlan, step: Step) -> list[Axis]:
    """The axes of the array that a reduction adds up in, that of vectors last."""
    axes = inner_axes(plan, step)
    vector, _ = plan.lanes[step]
    if vector in axes:
        axes.remove(vector)
        axes.append(vector)
    return axes


def flushes_of(plan: LoopPlan, step: Step) -> list[Flush]:
    """Where a sum is flushed, level by level, so that no chain is too long."""
    if not is_ordered(step):
        return []
    found: list[Flush] = []
    left: list[int] = []  # levels that a loop may leave something in
    levels, path, axes = 0, plan.paths[step], axes_inside(plan, step)
    terms, most = 1, CPU.numerics.sum_chain_terms  # terms of an iteration
    for at in reversed(range(len(plan.homes[step]), len(path))):
        loop, outer = path[at], path[:at]
        if loop.axis not in step.closed:
            continue
        together, each = iterations_of(plan, step, loop)
        size = tile_around(loop, outer) or loop.axis.extent
        trips = -(-size // together)
        terms *= each
        begins = levels > 0 or is_of_rows(loop)
        is_short = not begins and terms * trips <= most
        if trips == 1 or is_short or not is_flushable(axes, outer):
            terms *= trips
            continue
        is_inside_tile = tile_around(loop, outer) > 0
        every = 1
        if not begins and not is_inside_tile:
            every = max(1, power_of_two(chain_terms(terms * trips) // terms))
        around = frozenset(bound(outer))
        found += [Flush(loop, every, level, around) for level in left]
        terms = -(-trips // every)
        found.append(Flush(loop, every, levels, around))
        while terms > most and not is_inside_tile:
            every *= most
            levels += 1
            found.append(Flush(loop, every, levels, around))
            terms = -(-terms // most)
        levels += 1
        # An iteration with fewer elements may come after the others, without a flush.
        is_even = tile_around(loop, outer) > 0 or loop.axis.extent % together == 0
        here = [x for x in found if x.loop is loop and x.level not in left]
        left = [x.level for x in here if trips % x.every or not is_even]
    return found


def chain_terms(terms: int) -> int:
    """How many of some terms a chain has: fewer if they are few, for more tasks."""
    limits = CPU.numerics
    is_short = terms <= limits.short_sum_terms
    return limits.short_sum_chain_terms if is_short else limits.sum_chain_terms


def iterations_of(plan: LoopPlan, step: Step, loop: Loop) -> tuple[int, int]:
    """How many elements of an axis an iteration has, how many terms of a chain."""
    vector, width = plan.lanes[step]
    lanes = width if loop.axis is vector else 1
    return loop.tile or lanes * loop.copies, loop.copies


def tile_around(loop: Loop, path: LoopNest) -> int:
    """The size of the tile that a loop goes through, 0 if it is no tile's."""
    sizes = [outer.tile for outer in path if outer.tile and outer.axis is loop.axis]
    return sizes[0] if sizes else 0


def is_of_rows(loop: Loop) -> bool:
    """Whether iterations of a loop are tiles of rows, which matmuls share."""
    return bool(loop.tile) and any(isinstance(x.what, ArrayOp) for x in loop.steps())


def is_flushable(axes: Sequence[Axis], path: LoopNest) -> bool:
    """Whether what adds up inside of these loops is one piece of an array."""
    around = bound(path)
    is_bound = [axis in around for axis in axes]
    return all(is_bound) or is_bound == sorted(is_bound, reverse=True)


def power_of_two(n: int) -> int:
    """The largest one that is not above `n`; 0 for 0."""
    return 1 << (n.bit_length() - 1) if n else 0


# What tasks leave


def ends_of(plan: LoopPlan, step: Step) -> dict[int, int]:
    """After how many iterations of the outermost loop chains end, with their levels.

    A single term may be left as well, if an iteration adds just that: it is what a
    chain of one term adds up to. A product is no such term, since it is not rounded
    before it is added.
    """
    path = plan.paths[step]
    (*inner, _) = reversed(path)
    found = {x.every: x.level for x in flushes_of(plan, step) if x.loop is path[0]}
    is_term = not any(loop.axis in step.closed for loop in inner)
    if is_term and not isinstance(step.what, Contract):
        found.setdefault(1, 0)
    return dict(sorted(found.items()))


def slots_for(plan: LoopPlan, step: Step, grain: int, tasks: int) -> Slots | None:
    """The largest slots of which there are enough for some tasks, None if all is one.

    An iteration of the outermost loop has `grain` elements of its axis.
    """
    size, (vector, width) = plan.paths[step][0].axis.extent, plan.lanes[step]
    numbers = math.prod(axis.extent for axis in axes_inside(plan, step))
    numbers *= width if vector in step.closed else 1
    made = [
        Slots(every, every * grain, math.ceil(size / (every * grain)), numbers)
        for every in ends_of(plan, step)
    ]
    made = [x for x in made if x.count > 1]
    enough = [x for x in made if x.count >= tasks]
    return enough[-1] if enough else made[0] if made else None


def flushes_to_slots(plan: LoopPlan, step: Step, slots: Slots) -> list[Flush]:
    """Where a sum is flushed if what some chains have added up goes to slots."""
    loop, level = plan.paths[step][0], ends_of(plan, step)[slots.every]
    kept = [x for x in flushes_of(plan, step) if x.level < level]
    return [*kept, Flush(loop, slots.every, level, frozenset(), slots.length)]


def chains_of_slots(plan: LoopPlan, step: Step, slots: Slots) -> list[int]:
    """After how many slots chains of them end, and chains of these."""
    found = ends_of(plan, step)
    return [every // slots.every for every in found if every > slots.every]
