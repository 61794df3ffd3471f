"""Parts put into zeros and added up become one operation on the parts.

A loop that reads `x[0]`, `x[1]` and so on leaves a cotangent of `x` that is a sum of
as many arrays of the size of `x`, each of them a slice placed into zeros. `place_add`
is the same sum, bit by bit, in the time of the slices.

A sum is a chain of additions of which nobody else uses what is in between; an addition
gives the same for its operands in either order, so a chain may go on in both. Parts
that follow each other in it are joined from two of them on. What is added before them,
a whole array, is what they are added to; where it does not lie row by row the chain
stays, because its result would lie otherwise (see `layouts.py`).

Start reading at `join_placements`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from tapejit import ops
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import Node, origin_of
from tapejit.ir.rewriting import Sources, note_source, with_inputs
from tapejit.ops.placing import nothing
from tapejit.rewrite.memory_order import Layouts, in_rows

FEWEST: Final = 2  # placements that are joined


def join_placements(graph: Graph, sources: Sources | None = None) -> Graph:
    """Sums of placements, each as one `place_add`.

    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[2]"))
    >>> low, high = (
    ...     ops.place(x, shape=(4,), starts=(at,), steps=(1,)) for at in (0, 2)
    ... )
    >>> print(join_placements(Graph("f", (x,), (low + high,))))
    graph f(x: f32[2]) {
      %0: f32[4] = broadcast_to f32(-0.0), shape=(4,)
      %1: f32[4] = place_add %0, x, x, starts=((0,), (2,)), steps=((1,), (1,))
      return %1
    }
    """
    chains = _chains(graph)
    if not chains:
        return graph
    layouts = Layouts()
    known = frozenset(graph.inputs)
    moved: dict[Node, Node] = {}
    for node in graph.nodes:
        found = with_inputs(node, moved)
        made: Sequence[Node] = (found,)
        if node in chains:
            terms = [moved.get(x, x) for x in chains[node]]
            parts = [_is_part(x, known) for x in chains[node]]
            with origin_of(node.origin):
                joined = _sum_of(terms, parts, layouts)
            if joined is not None:
                stop = {x for term in terms for x in (term, *term.inputs)}
                found, made = joined, topological_order([joined], stop=stop)
        if found is not node:
            moved[node] = found
            if sources is not None:
                for x in made:
                    note_source(sources, x, node)
    if not moved:
        return graph
    outputs = [moved.get(x, x) for x in graph.outputs]
    effects = None if graph.effects is None else moved.get(graph.effects, graph.effects)
    return Graph(graph.name, graph.inputs, outputs, effects)


def _is_part(node: Node, known: Collection[Node]) -> bool:
    """Whether a Node is a placement, and not one that comes from outside."""
    return node.op is ops.place and node not in known


def _chains(graph: Graph) -> dict[Node, list[Node]]:
    """The last additions of chains with enough parts, each with what is added up."""
    known = frozenset(graph.inputs)
    nodes = graph.nodes
    if sum(node.op is ops.place for node in nodes) < FEWEST:
        return {}
    uses = Counter(x for node in nodes for x in node.inputs)
    uses.update(graph.outputs)
    before: dict[Node, Node | None] = {}  # the addition in the chain before each one
    followed: set[Node] = set()
    for node in nodes:
        if node.op is not ops.add or node.dtype.kind == "b" or not _is_even(node):
            continue
        links = [x for x in node.inputs if x in before and uses[x] == 1]
        before[node] = links[0] if links else None
        followed.update(links[:1])
    found: dict[Node, list[Node]] = {}
    for node in before:
        if node in followed:
            continue
        terms: list[Node] = []
        link: Node | None = node
        while link is not None:
            others = list(reversed(link.inputs))
            if (earlier := before[link]) is not None:
                others.remove(earlier)
            terms += others
            link = earlier
        if sum(_is_part(x, known) for x in terms) >= FEWEST:
            found[node] = terms[::-1]
    return found


def _is_even(node: Node) -> bool:
    """Whether an addition repeats none of its operands, and has axes."""
    return bool(node.shape) and all(x.type == node.type for x in node.inputs)


def _sum_of(
    terms: Sequence[Node], parts: Sequence[bool], layouts: Layouts
) -> Node | None:
    """The sum of some terms, parts of it joined; None if there are none to join."""
    total: Node | None = None
    waiting: list[Node] = []
    has_joined = False

    def add_waiting() -> None:
        nonlocal total, has_joined
        if total is None and len(waiting) < FEWEST:
            total = waiting.pop()
        is_plain = total is None or layouts.of(total) == in_rows(total.ndim)
        if len(waiting) >= FEWEST and is_plain:
            total, has_joined = _joined(total, waiting), True
        else:
            for part in waiting:
                assert total is not None
                total = total + part
        waiting.clear()

    for term, is_part in zip(terms, parts, strict=True):
        if is_part:
            waiting.append(term)
        elif total is None and len(waiting) < FEWEST:
            total = term  # part + term is term + part
        else:
            if waiting:
                add_waiting()
            assert total is not None
            total = total + term
    if waiting:
        add_waiting()
    return total if has_joined else None


def _joined(total: Node | None, parts: Sequence[Node]) -> Node:
    """Parts added to what there is so far."""
    first = parts[0]
    return ops.place_add(
        nothing(first.dtype, first.shape) if total is None else total,
        *[x.inputs[0] for x in parts],
        starts=tuple(x.attrs["starts"] for x in parts),
        steps=tuple(x.attrs["steps"] for x in parts),
    )
