"""The passes between a Graph and its Nests, in order, on every target alike.

Every pass takes Nests and gives Nests; the first ones have a Graph and nothing else
yet. A pass may ask the Target that it is given, and knows none. A target's own passes
follow: they make Kernels of the Nests.

Code that checks every value for NaN does without the passes that are not `with_checks`:
what it looks at has to be a whole array.

Start reading at `PASSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from tapejit.ir.graph import Graph
from tapejit.loops.fuse import fuse_epilogue, inplace
from tapejit.loops.fuse.row_updates import with_row_updates
from tapejit.loops.lower import expand as expansion
from tapejit.loops.lower import lower as lowering
from tapejit.loops.lower.reuse_row_sums import with_known_products
from tapejit.loops.nests import Item, Nests, nests_of
from tapejit.loops.schedule import schedule as scheduling

Observe = Callable[[str, str], None]  # the name of a pass, and what it left, as text


class AskedTarget(Protocol):
    """What the passes ask of a Target."""

    @property
    def unpolled_instructions(self) -> float:
        """How much work may go on without asking for signals."""

    def arrange(self, items: Sequence[Item]) -> list[Item]:
        """The tree as the target wants it before epilogues are fused."""


class Pass(NamedTuple):
    """A pass from Nests to Nests, and why it stands where it does."""

    run: Callable[[Nests, AskedTarget], Nests]
    reason: str
    with_checks: bool = True


def expand(nests: Nests, _: AskedTarget) -> Nests:
    """Operations that are several simpler ones are written out, in the Graph."""
    graph = with_known_products(expansion.expanded(nests.graph))
    return replace(nests, graph=with_row_updates(graph))


def lower(nests: Nests, _: AskedTarget) -> Nests:
    """Steps in place of Nodes."""
    return lowering.lower(nests)


def schedule(nests: Nests, _: AskedTarget) -> Nests:
    """Loops, with the Steps that share them."""
    return replace(nests, nests=nests_of(scheduling.schedule(nests.steps)))


def arrange(nests: Nests, target: AskedTarget) -> Nests:
    """The target's tiles, and its order of what is in memory."""
    return replace(nests, nests=nests_of(target.arrange(nests.items)))


def fuse_epilogues(nests: Nests, _: AskedTarget) -> Nests:
    """What follows a matmul is done with it; sums of that are begun, too."""
    items = nests.items
    made = fuse_epilogue.fuse_epilogues(items, with_sums=not nests.checks)
    return replace(nests, nests=nests_of(*made))


def update_in_place(nests: Nests, target: AskedTarget) -> Nests:
    """Results that may be written over an input, and nests in an order for that."""
    return inplace.update_in_place(nests, target.unpolled_instructions)


PASSES: Final = (
    Pass(expand, "first: what is written out fuses with what is around it"),
    Pass(lower, "once the Graph is as it will be computed"),
    Pass(schedule, "loops follow from Steps alone"),
    Pass(arrange, "before epilogues: tiles take matmuls that would have some", False),
    Pass(fuse_epilogues, "what is left beside matmuls; it takes Steps out of loops"),
    Pass(update_in_place, "last: it changes the order of nests, not what is in them"),
)


def nests_for(
    graph: Graph,
    target: AskedTarget,
    checks: bool = False,
    observe: Observe | None = None,
) -> Nests:
    """The Nests of a Graph all of whose Nodes are native.

    With `checks`, a value that is not finite is a failure; matmuls are whole then.
    `observe` is told the name of each pass, with what it left, as text.
    """
    nests = Nests(graph, checks)
    for step in PASSES:
        if step.with_checks or not checks:
            nests = step.run(nests, target)
            if observe is not None:
                observe(step.run.__name__, str(nests))
    return nests
