"""Loop fusion: Steps arranged into a tree of loops.

A `Loop` runs over one axis; its body has Steps and Loops. `schedule` picks an axis for
the outermost loop and asks of every Step whether it belongs inside. Steps that need the
result of a reduction along the axis, or elements from other iterations, have to wait
until the loop is over, and go into another loop over the same axis: the fewer such
passes an axis needs, the better it is as the outer one. Inside each loop, and among the
Steps outside, the same is done again with the axes that are left.

So forward values and their adjoints share loops without either knowing of the other,
and a value is stored only where a later pass needs it and computing it again would cost
more (`recomputed_instructions`).

Start reading at `schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple

from tapejit.ir.node import CHEAP, COSTLY
from tapejit.loops import numerics
from tapejit.loops.index import Affine, Axis
from tapejit.loops.steps import (
    AddAt,
    CheckedIndex,
    Choose,
    Compute,
    IndexValue,
    Load,
    Number,
    PartialSum,
    Reduce,
    Step,
    Verify,
    across,
)

RECOMPUTED: Final = (Compute, Load, IndexValue, Choose, Number, AddAt)


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """A loop over one axis.

    `tile` is not 0 if it goes through the axis in tiles of that many iterations, which
    loops over the same axis in its body do one by one or all at once. `lanes` is the
    axis along which its body is done as vectors, if that is not the kernel's, with
    their width. `copies` iterations go through the loops in its body together.
    """

    axis: Axis
    body: Sequence[Step | Loop]
    _: KW_ONLY
    tile: int = 0
    lanes: tuple[Axis, int] | None = None
    copies: int = 1
    inside: tuple[Step, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "body", tuple(self.body))
        object.__setattr__(self, "inside", tuple(steps_in(self.body)))

    def steps(self) -> Iterator[Step]:
        """Every Step inside."""
        return iter(self.inside)


def cost(step: Step) -> float:
    """About how many instructions a Step takes."""
    if isinstance(step.what, (Number, IndexValue)):
        return 0.5
    if step.op is None or isinstance(step.what, (Reduce, PartialSum, Verify)):
        return CHEAP
    return step.op.cost


def is_long(step: Step) -> bool:
    """Whether a Step computes a formula of many instructions."""
    return cost(step) >= COSTLY


def reads_its_own(load: Step, axes: Iterable[Axis]) -> bool:
    """Whether a load takes, along these axes, what the same iteration has made."""
    source = load.source
    if load.is_flat or not isinstance(source, Step) or source.dims is None:
        return False
    wanted = frozenset(axes)
    for dim, position in zip(source.dims, load.index, strict=True):
        if dim is not None and dim.root in wanted:
            axis = position.axis if isinstance(position, Affine) else None
            if axis is None or axis.root is not dim.root:
                return False
    return True


def sources_of(step: Step) -> Iterator[Step]:
    """The Steps whose values a Step takes, itself or through loads."""
    for x in step.needed():
        if not x.is_leaf:
            yield x
        elif isinstance(x.source, Step):
            yield x.source


Waits = Iterable[tuple[Step, frozenset[Axis]]]


def waits(step: Step) -> Waits:
    """What has to come before a Step, and the axes whose loops have to be over then."""
    for x in step.needed():
        if not x.is_leaf:
            yield x, across(x, step)
        elif isinstance(x.source, Step):
            yield x.source, across(x.source, x)


def schedule(steps: Sequence[Step]) -> list[Step | Loop]:
    """The tree of loops for these Steps; leaves are not in it."""
    inner = [step for step in steps if not step.is_leaf]
    return without_unused(Scheduler(inner).arrange(inner, frozenset(), {}))


def without_unused(tree: Sequence[Step | Loop]) -> list[Step | Loop]:
    """A tree without the Steps whose values nobody takes."""
    used: set[Step] = set()
    for step in reversed(list(steps_in(tree))):
        if is_end(step) or step in used:
            used.add(step)
            used.update(x for x, _ in waits(step))
    return only(tree, used)


def is_end(step: Step) -> bool:
    """Whether a Step is there for its own sake: a result, or a check."""
    return step.output is not None or isinstance(step.what, (Verify, CheckedIndex))


def steps_in(items: Sequence[Step | Loop]) -> Iterator[Step]:
    """Every Step of a tree, in the order of the first iteration."""
    for item in items:
        if isinstance(item, Loop):
            yield from item.inside
        else:
            yield item


def loops_in(items: Sequence[Step | Loop]) -> Iterator[Loop]:
    """Every loop of a tree, outer ones first."""
    for item in items:
        if isinstance(item, Loop):
            yield item
            yield from loops_in(item.body)


def only(items: Sequence[Step | Loop], used: set[Step]) -> list[Step | Loop]:
    """A tree without the Steps that copies have made superfluous."""
    kept: list[Step | Loop] = []
    for item in items:
        if not isinstance(item, Loop):
            if item in used:
                kept.append(item)
        elif used.issuperset(item.inside):
            kept.append(item)
        elif body := only(item.body, used):
            kept.append(Loop(item.axis, body, tile=item.tile, lanes=item.lanes))
    return kept


class Facts(NamedTuple):
    """What is asked of a Step at every level of the tree.

    `along` are the axes along which it and its inputs go through memory, `places` those
    of its array, with the number of the dimension.
    """

    cost: float
    along: list[Axis]
    places: list[tuple[Axis, int]]

    @staticmethod
    def of(step: Step) -> Facts:
        """Those of a Step."""
        along = map(last_axis, (step, *step.inputs))
        dims = enumerate(step.dims or ())
        places = [(dim.root, at) for at, dim in dims if dim is not None]
        return Facts(cost(step), [axis for axis in along if axis], places)


class Share(NamedTuple):
    """Of some Steps, what is done along each axis.

    `work` are instructions, `both` those along two axes, `arrays` those of reductions
    of more than one sum along the axis, `near` the elements that lie along it side by
    side, `steps` the Steps, and `places` the numbers of dimensions of arrays.
    """

    work: dict[Axis, float]
    both: dict[tuple[Axis, Axis], float]
    arrays: dict[Axis, float]
    near: dict[Axis, float]
    steps: dict[Axis, int]
    places: dict[Axis, list[int]]

    def is_dominated(self, axis: Axis, other: Axis, most: float) -> bool:
        """Whether nearly all its work is inside that of another one with more."""
        both = self.both.get((axis, other), 0.0)
        without, beyond = self.work[axis] - both, self.work[other] - both
        return without <= 0.1 * self.work[axis] and beyond > max(without, 0.02 * most)


class Passes(NamedTuple):
    """How often so many Steps go through an axis, beyond the first time.

    It is one time less where nothing is there of what comes `after` the last one. What
    is between two Steps of a pass is in it, too: so that is all that can change where
    there are fewer Steps, but as many that run over the axis.
    """

    number: int
    steps: int
    after: list[Step]

    @staticmethod
    def of(levels: Mapping[Step, int], steps: int) -> Passes:
        """Those that the `phases` make."""
        last = max(levels.values())
        after = [step for step, level in levels.items() if level == last]
        return Passes(last // 2, steps, [] if last % 2 else after[::-1])

    def among(self, steps: Container[Step]) -> int:
        """Their number, if there are these Steps only."""
        is_less = self.after and not any(step in steps for step in self.after)
        return self.number - bool(is_less)


class Scheduler:
    """Arranges Steps; a value that is cheap to compute again is copied where needed.

    A Step is met in every level of the tree, so what is asked of it there is noted:
    the `axes` that it runs over, what it waits for (`before`), what it adds to a Share.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self.axes: dict[Step, frozenset[Axis]] = {}
        self.sets: dict[frozenset[Axis], frozenset[Axis]] = {}  # equal ones are one
        self.before: dict[Step, Waits] = {}
        self.facts: dict[Step, Facts] = {}
        for step in steps:
            self.note(step)

    def note(self, step: Step) -> None:
        """A Step is new, or has other inputs."""
        axes = step.labels | step.closed
        self.axes[step] = self.sets.setdefault(axes, axes)
        self.before[step] = list(waits(step))
        self.facts[step] = Facts.of(step)

    def arrange(
        self, steps: list[Step], bound: frozenset[Axis], known: Mapping[Axis, Passes]
    ) -> list[Step | Loop]:
        """The items of the body of a loop nest over the `bound` axes.

        These Steps are some of those of which the Passes are `known`.
        """
        open_axes = {step: self.axes[step] for step in steps}
        if bound:
            rest = {axes: axes - bound for axes in set(open_axes.values())}
            open_axes = {step: rest[axes] for step, axes in open_axes.items()}
        if not any(open_axes.values()):
            return list(steps)
        known = dict(known)
        axis, levels = self.choose_axis(steps, open_axes, bool(bound), known)
        put_off(steps, levels, self.before, bound)
        steps, levels = self.recomputed(steps, levels, axis, bound, known)
        passes: list[list[Step]] = [[] for _ in range(max(levels.values()) + 1)]
        for step in steps:
            passes[levels[step]].append(step)
        body: list[Step | Loop] = []
        for level, here in enumerate(passes):
            if level % 2 and here:
                body.append(Loop(axis, self.arrange(here, bound | {axis}, known)))
            elif here:
                body.extend(self.arrange(here, bound, known))
        return body

    def choose_axis(
        self,
        steps: Sequence[Step],
        open_axes: dict[Step, frozenset[Axis]],
        is_inside: bool,
        known: dict[Axis, Passes],
    ) -> tuple[Axis, dict[Step, int]]:
        """The axis whose loop should be the outermost, and the `phases` then.

        At the top, the fewest passes over memory count. Inside of a loop everything is
        near, and what counts is that sums are registers: no axis is to be summed along
        while others, of the same sum, are looped over inside.
        """
        share = self.share(steps, open_axes)
        most = max(share.work.values())
        candidates = [axis for axis, work in share.work.items() if work >= most / 4]
        ranks = {
            axis: (
                share.arrays.get(axis, 0.0) if is_inside else 0.0,
                any(share.is_dominated(axis, x, most) for x in candidates),
            )
            for axis in candidates
        }
        best = min(ranks.values())
        candidates = [axis for axis, rank in ranks.items() if rank == best]
        levels: dict[Axis, dict[Step, int]] = {}

        def passes(axis: Axis) -> int:
            """Over memory, beyond the first."""
            found = known.get(axis)
            if found is None or found.steps != share.steps[axis]:
                levels[axis] = phases(steps, open_axes, self.before, axis)
                found = known[axis] = Passes.of(levels[axis], share.steps[axis])
            return found.among(open_axes)

        if len(candidates) > 1:

            def rank(axis: Axis) -> tuple[float, ...]:
                near, work = share.near.get(axis, 0.0), share.work[axis]
                is_less = work < numerics.LOOPS.equal_work_share * most
                places = share.places.get(axis, [0])
                place = sum(places) / len(places)
                return passes(axis), near, is_less, place, -work, axis.number

            candidates = [min(candidates, key=rank)]
        (found,) = candidates
        if found not in levels:
            levels[found] = phases(steps, open_axes, self.before, found)
        return found, levels[found]

    def share(
        self, steps: Sequence[Step], open_axes: dict[Step, frozenset[Axis]]
    ) -> Share:
        """What is done along each axis."""
        found = Share({}, {}, {}, {}, {}, {})
        _, _, arrays, near, _, places = found
        sizes: dict[frozenset[Axis], int] = {}
        totals: dict[frozenset[Axis], float] = {}
        counts: dict[frozenset[Axis], int] = {}
        for step in steps:
            facts, axes = self.facts[step], open_axes[step]
            size = sizes.get(axes)
            if size is None:
                size = sizes[axes] = math.prod(axis.hint for axis in axes)
                totals[axes], counts[axes] = 0.0, 0
            here = facts.cost * size
            totals[axes] += here
            counts[axes] += 1
            for axis in facts.along:
                if axis in axes:
                    near[axis] = near.get(axis, 0.0) + size
            for axis, place in facts.places:
                places.setdefault(axis, []).append(place)
            if step.reduced and not step.labels.isdisjoint(axes):
                for axis in axes & step.closed:
                    arrays[axis] = arrays.get(axis, 0.0) + here
        for axes, total in totals.items():
            for axis in axes:
                found.steps[axis] = found.steps.get(axis, 0) + counts[axes]
                found.work[axis] = found.work.get(axis, 0.0) + total
                for other in axes:
                    both = found.both.get((axis, other), 0.0)
                    found.both[axis, other] = both + total
        return found

    def recomputed(
        self,
        steps: list[Step],
        levels: dict[Step, int],
        axis: Axis,
        bound: frozenset[Axis],
        known: dict[Axis, Passes],
    ) -> tuple[list[Step], dict[Step, int]]:
        """The Steps, with cheap values of earlier passes computed again later.

        What is `known` of the axes of such values is so no longer.
        """
        if max(levels.values()) < 3:
            return steps, levels
        limits: dict[Step, float] = {}
        near = numerics.LOOPS.recomputed_instructions
        far = numerics.LOOPS.far_recomputed_instructions

        def limit(step: Step) -> float:
            if step not in limits:
                free = step.labels - bound
                size = math.prod(label.hint for label in free)
                is_far = size > numerics.LOOPS.near_elements
                limits[step] = far if is_far else near
            return limits[step]

        def price(step: Step, level: int, budget: float) -> float:
            """What it costs to have an earlier value here without memory."""
            if levels.get(step, -1) in (-1, level) or levels[step] % 2 == 0:
                return CHEAP if step.is_leaf else 0.0
            if not isinstance(step.what, RECOMPUTED):
                return math.inf
            total = cost(step)
            for x in step.inputs:
                if total > budget:
                    break
                total += price(x, level, budget - total)
            if isinstance(step.what, Load) and any(
                isinstance(x, Step) and levels.get(x, -1) != -1 for x in step.index
            ):
                return math.inf
            return total

        made: dict[tuple[Step, int], Step] = {}
        order: list[Step] = []

        def copied(step: Step, level: int) -> Step:
            if levels.get(step, -1) in (-1, level) or levels[step] % 2 == 0:
                return step
            found = made.get((step, level))
            if found is None:
                inputs = [copied(x, level) for x in step.inputs]
                found = made[step, level] = step.copy(inputs)
                for label in step.axes:
                    label.root.steps.add(found.number)
                    known.pop(label.root, None)
                levels[found] = level
                self.note(found)
                order.append(found)
            return found

        for step in steps:
            level = levels[step]
            for at, x in enumerate(step.inputs):
                if x not in levels or levels[x] % 2 == 0 or levels[x] >= level:
                    continue
                if level % 2 == 0 or axis not in x.labels:
                    continue
                if x.output is not None:  # it is in memory anyway
                    continue
                if price(x, level, limit(x)) <= limit(x):
                    step.inputs[at] = copied(x, level)
                    self.note(step)
            order.append(step)
        return order, levels


def phases(
    steps: Sequence[Step],
    open_axes: dict[Step, frozenset[Axis]],
    before: dict[Step, Waits],
    axis: Axis,
) -> dict[Step, int]:
    """When each Step runs: odd numbers are passes over the axis, even ones between."""
    runs = [axis in open_axes[step] for step in steps]
    first = runs.index(True)
    levels = dict.fromkeys(steps[:first], 0)
    for step, inside in zip(steps[first:], runs[first:], strict=True):
        level = 1 if inside else 0
        for x, apart in before[step]:
            last = levels.get(x)
            if not last:  # it is not in these Steps, or behind nothing
                continue
            if last % 2 != inside:
                last += 1
            elif inside and axis in apart:
                last += 2
            if last > level:
                level = last
        levels[step] = level
    return levels


def put_off(
    steps: Sequence[Step],
    levels: dict[Step, int],
    before: dict[Step, Waits],
    bound: frozenset[Axis],
) -> None:
    """Have cheap values between passes wait until they are used: they stay registers.

    Such a value is made of what is in memory anyway, as is a part of the new value of a
    variable that needs nothing but the old one.
    """
    if max(levels.values()) < 2:
        return
    work: dict[Step, float] = {}  # of a value that is made of nothing but memory
    for step in steps:
        is_between = levels[step] % 2 == 0 and isinstance(step.what, (Compute, Choose))
        if is_between and not step.labels <= bound:
            total = cost(step)
            for x in step.inputs:
                if not x.is_leaf:
                    total += work.get(x, math.inf)
            work[step] = total
    most = numerics.LOOPS.recomputed_instructions
    first: dict[Step, int] = {}  # the level of a value's first user
    for step in reversed(steps):
        level, later = levels[step], first.get(step, 0)
        if later > level and later % 2 == 0 and work.get(step, math.inf) <= most:
            levels[step] = level = later
        for x, _ in before[step]:
            if first.get(x, level) >= level:
                first[x] = level


def last_axis(step: Step) -> Axis | None:
    """The axis along which a Step goes through memory element by element."""
    if isinstance(step.what, Load) and step.index:
        position = step.index[-1]
        if isinstance(position, Affine):
            for axis, factor in position.terms:
                if factor == 1:
                    return axis.root
    elif step.output is not None and step.dims and step.dims[-1] is not None:
        return step.dims[-1].root
    return None
