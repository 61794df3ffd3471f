"""Loop fission: sums over short rows that are arrays become nests of their own.

Where a thread goes through short rows by itself and adds up something of all rows, it
has all elements of that sum for itself: a number for each weight of a small layer, or
for each position of an attention. Few of them are registers. Of more, threads would go
through memory of their own again and again, and add up what all of them have in the
end. So such sums get loops of their own, after those that make what they add up: each
element of the sum is one thread's, or that of a team.

Start reading at `split_sums`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tapejit.loops.index import Axis
from tapejit.loops.nests import Item
from tapejit.loops.schedule.schedule import Loop, Scheduler, only, sources_of, steps_in
from tapejit.loops.steps import ArrayOp, Step
from tapejit.targets.cuda.schedule.distribute import near_axis
from tapejit.targets.cuda.target import CUDA


def split_sums(tree: Sequence[Item]) -> list[Item]:
    """The tree, with nests for large sums over short rows."""
    found: list[Item] = []
    rest = list(tree)
    while rest:
        item = rest.pop(0)
        sums = large_sums(item) if isinstance(item, Loop) else []
        if not sums:
            found.append(item)
            continue
        found += only([item], {*steps_in([item])} - {*sums})
        # What takes nothing but these sums may share their loops.
        users = [x for x in rest if isinstance(x, Loop) and takes_only(x, sums)]
        rest = [x for x in rest if x not in users]
        steps = [*sums, *steps_in(users)]
        inside = frozenset([Axis(2)])  # as in a loop, where sums are to be registers
        found += Scheduler(steps).arrange(steps, inside, {})
    return found


def takes_only(loop: Loop, given: Sequence[Step]) -> bool:
    """Whether a nest takes values of these Steps, and of no other nest."""
    taken = {x for step in loop.steps() for x in sources_of(step)} - {*loop.steps()}
    return bool(taken) and taken.issubset(given)


def large_sums(loop: Loop) -> list[Step]:
    """What is added up over the rows of a nest, and is too large for registers."""
    numbers = CUDA.numerics
    if near_axis(loop).hint >= numbers.row_least_elements:
        return []
    sums = [
        step
        for step in loop.steps()
        if loop.axis in step.closed and not isinstance(step.what, ArrayOp)
    ]
    nbytes = sum(
        math.prod(axis.hint for axis in step.labels) * step.dtype.itemsize
        for step in sums
    )
    return sums if nbytes > numbers.summed_array_bytes else []
