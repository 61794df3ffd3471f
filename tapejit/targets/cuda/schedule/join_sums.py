"""Sums join the nest that makes what they add up, though a product stands between.

An attention divides by the sums of its weights after they have met the values. So the
sums come behind that product, in loops of their own: all weights would be read once
more, and the division could not be the product's epilogue, which waits for the sums. In
the nest of the weights, they are added up while these are in registers; what is made of
sums and numbers alone goes along.

Start reading at `join_sums`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from tapejit.loops.nests import Item
from tapejit.loops.schedule.schedule import (
    Loop,
    Scheduler,
    only,
    reads_its_own,
    steps_in,
    without_unused,
)
from tapejit.loops.steps import Compute, Load, Number, Reduce, Step


def join_sums(tree: Sequence[Item]) -> list[Item]:
    """The tree, with reductions in the nests whose values they take."""
    groups: list[list[Item]] = [[item] for item in tree]
    place = {step: at for at, item in enumerate(tree) for step in steps_in([item])}
    joined: set[Step] = set()
    for at, item in enumerate(tree):
        for step in steps_in([item]):
            source = whole_source(step) or sum_alone(step, joined)
            home = at if source is None else place.get(source, at)
            if source is None or home >= at or not isinstance(tree[home], Loop):
                continue
            if isinstance(step.what, Reduce):
                step.inputs = [source]
            joined.add(step)
            place[step] = home
            groups[at] = only(groups[at], {*steps_in(groups[at])} - {step})
            steps = [*steps_in(groups[home]), step]
            groups[home] = Scheduler(steps).arrange(steps, frozenset(), {})
    if not joined:
        return list(tree)
    return without_unused([item for group in groups for item in group])


def sum_alone(step: Step, joined: Set[Step]) -> Step | None:
    """The sum of those that have `joined` others of which a Step is made, if of one."""
    inputs = [x for x in step.inputs if not isinstance(x.what, Number)]
    if not isinstance(step.what, Compute) or len(inputs) != 1:
        return None
    return inputs[0] if inputs[0] in joined and step.output is None else None


def whole_source(step: Step) -> Step | None:
    """What a reduction loads of an array in memory, each element at its own place."""
    if not isinstance(step.what, Reduce) or step.output is not None:
        return None
    (load,) = step.inputs
    source = load.source
    if not isinstance(load.what, Load) or not isinstance(source, Step) or load.ranges:
        return None
    return source if reads_its_own(load, source.labels) else None
