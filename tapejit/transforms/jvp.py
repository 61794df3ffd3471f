"""Forward mode: the tangents of a set of Nodes.

The table maps a Node to its tangent; a Node without an entry has none, `ZERO` is a
tangent that vanishes without costing a Node.

Start reading at `jvp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tapejit.base.errors import NotDifferentiableError
from tapejit.ir.graph import Graph
from tapejit.ir.node import ZERO, Derived, Node, Op, Zero, origin_of, param
from tapejit.ir.structural import item
from tapejit.transforms.vjp import (
    Cotangent,
    carries_gradient,
    materialize,
    passes_gradient,
    zeros,
)

# The tangents of the results of a call from those of its inputs: see `calls.py`.
PUSHES: Final[dict[Op, Callable[[Node, Sequence[Any]], tuple[Cotangent, ...]]]] = {}


def jvp(
    nodes: Sequence[Node],
    *,
    sources: Sequence[Node],
    tangents: Sequence[Node | Zero],
    targets: Sequence[Node],
) -> tuple[Cotangent, ...]:
    """The tangent of each target, None where no source reaches it."""
    table: dict[Node, Any] = {}
    for source, tangent in zip(sources, tangents, strict=True):
        if carries_gradient(source.type):
            table[source] = tangent
    for node in nodes:
        if node in table or not passes_gradient(node):
            continue
        if any(x in table for x in node.inputs):
            with origin_of(Derived("jvp", node)):
                tangent = push_forward(node, [table.get(x) for x in node.inputs])
            if tangent is not None:
                table[node] = tangent
    return tuple(table.get(target) for target in targets)


def push_forward(node: Node, tangents: Sequence[Any]) -> Any:
    """The tangent of a Node from those of its inputs (a tuple's is a tuple)."""
    if node.op is item:
        (whole,) = tangents
        return whole[node.attrs["index"]]
    if node.op in PUSHES:
        return PUSHES[node.op](node, tangents)
    if node.op.jvp is None:
        raise NotDifferentiableError(f"{node.op.name} has no derivative")
    if all(t is None or isinstance(t, Zero) for t in tangents):
        filled = _filled(node, tangents)
        out = node.op.jvp(filled, node, *node.inputs, **node.attrs)
        if isinstance(out, tuple):
            return tuple(None if part is None else ZERO for part in out)
        return None if out is None else ZERO
    return node.op.jvp(_filled(node, tangents), node, *node.inputs, **node.attrs)


def _filled(node: Node, tangents: Sequence[Any]) -> tuple[Node | None, ...]:
    return tuple(
        zeros(x.type) if isinstance(t, Zero) else t
        for t, x in zip(tangents, node.inputs, strict=True)
    )


def jvp_graph(graph: Graph) -> Graph:
    """Append the tangents: inputs gain a tangent each, so do outputs.

    Inputs and outputs that are not floating point gain none.
    """
    sources = [x for x in graph.inputs if carries_gradient(x.type)]
    tangents = [param(f"t_{at}", x.type) for at, x in enumerate(sources)]
    targets = [x for x in graph.outputs if carries_gradient(x.type)]
    found = jvp(graph.nodes, sources=sources, tangents=tangents, targets=targets)
    ends = [materialize(t, x.type) for t, x in zip(found, targets, strict=True)]
    return Graph(
        f"{graph.name}.jvp",
        (*graph.inputs, *tangents),
        (*graph.outputs, *ends),
        graph.effects,
    )
