"""The passes between a traced Graph and what runs, in order.

They come after differentiation: what a tape has to tell apart need not be told apart
any more. Every pass takes a Graph and the `Sources` to fill, and gives a Graph with the
same inputs, the same outputs in the same order and the same effects in the same order,
which computes the same bits. One that finds nothing to do returns what it was given.

One pass makes work for another (a call that is gone, a constant that is known, two
values that turn out to be one), so they take turns until none finds anything more in
what the others left, at most `ROUNDS` times each.

Start reading at `PIPELINE`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tapejit.base.config import config
from tapejit.ir.graph import Graph
from tapejit.ir.rewriting import Sources, opened
from tapejit.rewrite.cse import cse
from tapejit.rewrite.fold import fold
from tapejit.rewrite.inline import inline
from tapejit.rewrite.placements import join_placements
from tapejit.rewrite.shared_orders import share_orders
from tapejit.rewrite.simplify import simplify

Pass = Callable[[Graph, Sources | None], Graph]
OnChange = Callable[[str, Graph, Graph], None]

PIPELINE: Final[tuple[tuple[Pass, str], ...]] = (
    (inline, "first: what is inside of a call is hidden from the others"),
    (simplify, "before folding: it takes broadcasts off constants"),
    (fold, "before merging: constants that came about differently become equal"),
    (join_placements, "before merging: a placement that is added goes with its sum"),
    (cse, "by now what is equal looks equal"),
    (share_orders, "after merging: equal keys are one Node"),
)
ROUNDS: Final = 10


def optimise(
    graph: Graph, *, sources: Sources | None = None, observe: OnChange | None = None
) -> Graph:
    """The Graph that runs in place of `graph`; itself if there is nothing to gain.

    `sources` gets an entry for every new Node: the Node of `graph` that it serves.
    `observe` is told the name of each pass that changed something, with the Graphs
    before and after it.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> ones = ops.broadcast_to(ops.exp(x * 0) * 1, shape=(2, 3))
    >>> print(optimise(Graph("f", (x,), (ops.read(x) * 1 + ones,))))
    graph f(x: f32[3]) {
      %0: f32[3]   = mul x, f32(0.0)
      %1: f32[3]   = exp %0
      %2: f32[2,3] = broadcast_to %1, shape=(2, 3)
      %3: f32[2,3] = add x, %2
      return %3
    }
    """
    is_checked = config.current().check
    graph = opened(graph, sources)
    content = 0  # how many passes, up to the last one, have nothing more to do
    for rewrite, _reason in PIPELINE * ROUNDS:
        after = rewrite(graph, sources)
        if after is graph:
            content += 1
        else:
            content = 1  # a pass finds nothing in what it has just made itself
            if is_checked:
                from tapejit.ir.check import check_graph

                check_graph(after)
            if observe is not None:
                observe(rewrite.__name__, graph, after)
            graph = after
        if content == len(PIPELINE):
            break
    return graph
