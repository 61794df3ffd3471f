"""The passes between a Graph and its Nests, in order, on every target alike.

Every pass takes Nests and gives Nests; the first one has a Graph and nothing else yet.
A pass may ask the Target that the Nests are for, and knows none. A target's own passes
follow: they make Kernels of the Nests.

Code that checks every value for NaN does without the passes that are not `with_checks`:
what it looks at has to be a whole array.

Start reading at `PASSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from tapejit.loops.fuse import fuse_epilogue
from tapejit.loops.fuse.inplace import update_in_place
from tapejit.loops.fuse.row_updates import with_row_updates
from tapejit.loops.lower.complex_parts import with_parts
from tapejit.loops.lower.expand import expanded
from tapejit.loops.lower.lower import lower
from tapejit.loops.lower.reuse_row_sums import with_known_products
from tapejit.loops.nests import Nests, nests_of
from tapejit.loops.schedule import schedule as scheduling

Observe = Callable[[str, str], None]  # the name of a pass, and what it left, as text
State = TypeVar("State")


@dataclass(frozen=True)
class Pass(Generic[State]):
    """A pass from Nests to Nests, or between plans, and why it stands where it does."""

    run: Callable[[State], State]
    reason: str
    with_checks: bool = True


def expand(nests: Nests) -> Nests:
    """Operations that are several simpler ones are written out, in the Graph."""
    graph = expanded(with_parts(nests.graph))
    graph = with_row_updates(with_known_products(graph))
    return replace(nests, graph=graph)


def schedule(nests: Nests) -> Nests:
    """Loops, with the Steps that share them."""
    return replace(nests, nests=nests_of(scheduling.schedule(nests.steps)))


def arrange(nests: Nests) -> Nests:
    """The target's tiles, and its order of what is in memory."""
    return replace(nests, nests=nests_of(nests.target.arrange(nests.items)))


def fuse_epilogues(nests: Nests) -> Nests:
    """What follows a matmul is done with it; sums of that are begun, too."""
    items = nests.items
    made = fuse_epilogue.fuse_epilogues(items, with_sums=not nests.checks)
    return replace(nests, nests=nests_of(*made))


PASSES: Final = (
    Pass(expand, "first: what is written out fuses with what is around it"),
    Pass(lower, "once the Graph is as it will be computed"),
    Pass(schedule, "loops follow from Steps alone"),
    Pass(arrange, "before epilogues: tiles take matmuls that would have some", False),
    Pass(fuse_epilogues, "what is left beside matmuls; it takes Steps out of loops"),
    Pass(update_in_place, "last: it changes the order of nests, not what is in them"),
)


def run_passes(
    passes: Sequence[Pass[State]], state: State, checks: bool, observe: Observe | None
) -> State:
    """What passes make of something, in order.

    `observe` is told the name of each pass, with what it left, as text.
    """
    for step in passes:
        if step.with_checks or not checks:
            state = step.run(state)
            if observe is not None:
                observe(step.run.__name__, str(state))
    return state
