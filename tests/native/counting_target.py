"""A toy target, which counts the operations of a plan instead of making code of it.

It shows what a target has to say: what its loops support, how they are scheduled (here,
as for the CPU), and what a loop, each kind of Step, a reduction and memory are. Counts
are of all iterations: of each operation by its name, `load` and `store` of elements.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tapejit.base.types import DType
from tapejit.ir import Graph
from tapejit.loops.index import Affine, Range
from tapejit.loops.kernels import Kernel, LoopNest, LoopPlan, inner_axes
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Compute, Contract, Load, Step
from tapejit.targets.target import DerivedTarget
from tapejit.targets.walk import Walk

Counts = dict[str, Fraction]


class CountingTarget(DerivedTarget[Counts]):
    """Counts what another target would do, were its vectors and threads one."""

    def emit(self, graph: Graph, plan: LoopPlan, name: str) -> Counts:
        counts: Counts = defaultdict(Fraction)
        for kernel in plan.kernels:
            KernelCounter(plan, kernel, counts)
        return dict(counts)


class KernelCounter(Walk[str, Step]):
    """Counts what one kernel does; a value is what it comes from."""

    def __init__(self, plan: LoopPlan, kernel: Kernel, counts: Counts) -> None:
        self.plan, self.kernel, self.counts = plan, kernel, counts
        self.values, self.accumulators = {}, {}
        self.times = Fraction(1)  # how often the current body runs, on average
        self.block(kernel.items, ())

    def count(self, what: str, often: int = 1) -> str:
        """So many of these in each iteration of the current body."""
        self.counts[what] += self.times * often
        return what

    def inputs(self, step: Step) -> None:
        for x in step.inputs:
            self.value(x)

    # Loops

    def go_through(self, loop: Loop, path: LoopNest) -> None:
        before, trips = self.times, Fraction(loop.axis.extent)
        tiles = [outer.tile for outer in path if outer.tile and outer.axis is loop.axis]
        if loop.tile:
            trips = Fraction(math.ceil(trips / loop.tile))
        elif tiles:
            trips /= math.ceil(trips / tiles[0])
        self.times *= trips
        self.body(loop, path)
        self.times = before

    def keep(self, step: Step, value: str) -> None:
        self.values[step] = value
        if step in self.plan.storage:
            self.count("store")

    def array_op(self, step: Step) -> None:
        assert step.node is not None
        sizes = [math.prod(map(int, x.shape)) for x in (step.node, *step.node.inputs)]
        terms = step.node.op.terms
        self.counts[step.name] += sizes[0] * (terms(step.node) if terms else 1)
        self.counts["load"] += sum(sizes[1:])
        if step in self.plan.storage:
            self.counts["store"] += sizes[0]

    # Reductions

    def accumulator(self, step: Step) -> Step:
        return step

    def accumulate(self, step: Step) -> None:
        self.inputs(step)
        if isinstance(step.what, Contract):
            self.count("mul")
        assert step.reduction.reduces is not None
        self.count(step.reduction.reduces.combine.name)

    partial_sum = accumulate

    def finish(self, made: Step) -> None:
        axes = inner_axes(self.plan, made)
        if not axes:
            self.values[made] = made.name
        if made in self.plan.storage:
            self.count("store", math.prod(axis.extent for axis in axes))

    # Steps

    def stored(self, step: Step) -> str:
        return self.count("load")

    def constant(self, number: Any, dtype: DType) -> str:
        return "constant"

    def index_value(self, position: Affine | Step) -> str:
        return "index"

    def load(self, step: Step, what: Load) -> str:
        for position in what.index:
            if isinstance(position, Step):
                self.value(position)
        is_at_hand = (
            isinstance(what.source, Step) and what.source not in self.plan.storage
        )
        return step.name if is_at_hand else self.count("load")

    def added_at(self, step: Step) -> str:
        self.inputs(step)
        return self.count(step.name)

    def checked_index(self, step: Step, size: int) -> str:
        return self.added_at(step)

    def affine_index(self, step: Step, factor: int, offset: int) -> str:
        return self.added_at(step)

    def verified(self, step: Step, count: int) -> str:
        return self.added_at(step)

    def computed(self, step: Step, what: Compute) -> str:
        return self.added_at(step)

    def chosen(self, step: Step, ranges: Sequence[Range]) -> str:
        return self.added_at(step)

    def contracted(self, step: Step) -> str:
        self.inputs(step)
        return self.count("mul")

    def converted(self, value: str, before: DType, after: DType) -> str:
        return value if before == after else self.count("convert")
