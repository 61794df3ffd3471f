"""Nests: what shares a loop and what is in memory, before a target schedules it.

A `Nest` is one item at the top of the tree of loops: a loop with all that is in it, an
operation on whole arrays, or a run of single Steps. `Nests` are those of a Graph, in an
order that can run, with what goes from one to another through memory. They know no
vectors, tasks, stages or offsets: a target makes Kernels of them. Loops go by in tiles
where the target has asked for that.

Start reading at `Nest`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from tapejit.ir.graph import Graph
from tapejit.loops.schedule.schedule import Loop, cost, steps_in
from tapejit.loops.steps import ArrayOp, Buffer, Step, is_matmul

Item = Step | Loop
Updates = Mapping[Buffer, Sequence[Buffer]]  # results over inputs


@dataclass(frozen=True, eq=False)
class Nest:
    """What shares loops, or is done as a whole."""

    items: tuple[Item, ...]

    @property
    def loop(self) -> Loop | None:
        """The outermost loop, None for a run of Steps."""
        first = self.items[0]
        return first if isinstance(first, Loop) else None

    @property
    def array_op(self) -> Step | None:
        """The operation on whole arrays that it is, if so.

        That of a product may have an epilogue: loops over its elements, which are done
        while these are in registers.
        """
        first = self.items[0]
        if isinstance(first, Step) and isinstance(first.what, ArrayOp):
            return first
        return None

    @property
    def role(self) -> str:
        """What kind of work it is: map, reduce, matmul, array op or steps."""
        if self.array_op is not None:
            return "matmul" if is_matmul(self.array_op) else "array op"
        if self.loop is None:
            return "steps"
        return "reduce" if any(x.closed for x in self.loop.steps()) else "map"

    def steps(self) -> Iterator[Step]:
        """Every Step, leaves excluded."""
        return steps_in(self.items)

    @cached_property
    def work(self) -> float:
        """About how many instructions it takes, one lane at a time."""
        return sum(map(work_of, self.steps()))


def work_of(step: Step) -> float:
    """About how many instructions a Step takes in all its iterations."""
    if not isinstance(step.what, ArrayOp):
        return cost(step) * math.prod(a.hint for a in step.labels | step.closed)
    node = step.performed
    sizes = [math.prod(map(int, x.shape)) for x in (node, *node.inputs)]
    if node.op.terms is not None:
        return float(sizes[0] * node.op.terms(node))
    return cost(step) * max(sizes)


class AskedTarget(Protocol):
    """What the passes that make Nests ask of a Target."""

    @property
    def unpolled_instructions(self) -> float:
        """How much work may go on without asking for signals."""

    @property
    def overwrites_numbers(self) -> bool:
        """Whether a number that is an input is in memory, as an array is."""

    def arrange(self, items: Sequence[Item]) -> list[Item]:
        """The tree as the target wants it before epilogues are fused."""


@dataclass(frozen=True, eq=False)
class Nests:
    """All of a Graph as Nests for a target, in order.

    Memory from outside are `outputs` and `constants`, and the inputs that Steps name.
    A result may have the memory of an input, which `updates` says. With `checks`, a
    value that is not finite is a failure.
    """

    graph: Graph
    target: AskedTarget
    checks: bool = False
    nests: tuple[Nest, ...] = ()
    outputs: tuple[Buffer, ...] = ()
    constants: tuple[Buffer, ...] = ()
    updates: Updates = field(default_factory=dict)

    def __str__(self) -> str:
        from tapejit.loops.printer import print_nests  # for people: it imports this

        return print_nests(self)

    @property
    def items(self) -> list[Item]:
        """The tree of loops that they are."""
        return [item for nest in self.nests for item in nest.items]

    @property
    def steps(self) -> list[Step]:
        """Every Step of them."""
        return [step for nest in self.nests for step in nest.steps()]

    @cached_property
    def shared(self) -> frozenset[Step]:
        """The Steps whose values go from one Nest to another through memory."""
        nest_of = {step: nest for nest in self.nests for step in nest.steps()}
        found: set[Step] = set()
        for step, nest in nest_of.items():
            for x in step.needed():
                used = x.source if isinstance(x.source, Step) else x
                if nest_of.get(used, nest) is not nest:
                    found.add(used)
        return frozenset(found)


def nests_of(
    items: Sequence[Item], epilogues: Mapping[Step, Loop] | None = None
) -> tuple[Nest, ...]:
    """Each loop at the top, each operation on whole arrays, each run of Steps."""
    nests: list[Nest] = []
    single: list[Item] = []
    for item in items:
        if isinstance(item, Step) and not isinstance(item.what, ArrayOp):
            single.append(item)
            continue
        if single:
            nests.append(Nest(tuple(single)))
            single = []
        epilogue = None
        if isinstance(item, Step) and epilogues is not None:
            epilogue = epilogues.get(item)
        nests.append(Nest((item,) if epilogue is None else (item, epilogue)))
    if single:
        nests.append(Nest(tuple(single)))
    return tuple(nests)
