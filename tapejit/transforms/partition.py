"""Cut a Graph and its adjoint into a forward and a backward Graph.

The forward part computes the outputs and the residuals; the backward part gets the
residuals and the seeds. What is cheap and can be made again from residuals and
inputs is not saved.

Residuals are Nodes of the differentiated Graph, never of its adjoint: who asks for a
gradient later differentiates once more, and finds these Nodes and no others again.

What the adjoint compares is saved, however cheap it is. Made again by other code a
value may have other last bits, and then no element equals the maximum of before.

Start reading at `partition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tapejit.base.dims import Dim, free_names
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import LITERAL, OPS, Node, literal
from tapejit.ir.structural import item


def partition(joint: Graph, *, inputs: int, outputs: int) -> tuple[Graph, Graph]:
    """The forward and the backward Graph of `joint`.

    The first `inputs` inputs of `joint` are primal, the rest are seeds; the first
    `outputs` outputs are primal, the rest are gradients. The forward Graph has the
    residuals behind its outputs, the backward Graph has them before the seeds.
    """
    primal, seeds = joint.inputs[:inputs], joint.inputs[inputs:]
    results, gradients = joint.outputs[:outputs], joint.outputs[outputs:]
    effects = () if joint.effects is None else (joint.effects,)
    own = {*primal, *topological_order((*results, *effects))}
    own.update(x for x in joint.nodes if x.op is item and x.inputs[0] in own)
    adjoint = topological_order(gradients, stop=own)
    looked_at = {x for node in adjoint for x in node.inputs if x in own}
    looked_at.update(x for x in gradients if x in own)
    frontier = [
        x for x in (*primal, *joint.nodes) if x in looked_at and x.op is not LITERAL
    ]
    compared = _compared(adjoint, own) | _comparisons(frontier)
    saved = _choose(frontier, set(primal), compared)
    saved += size_carriers((*saved, *seeds), (*adjoint, *gradients))
    forward = Graph(f"{joint.name}.forward", primal, (*results, *saved), joint.effects)
    backward = Graph(f"{joint.name}.backward", (*saved, *seeds), gradients)
    return forward, backward


def size_carriers(inputs: Sequence[Node], inside: Sequence[Node]) -> tuple[Node, ...]:
    """Residuals that tell the backward part its symbolic sizes, and nothing else.

    A size that only shapes results (the gradient of a sum) stands in no other input,
    or only inside an expression that does not determine it. Its carrier is a single
    False, repeated without memory.
    """
    known = {str(size) for x in inputs for size in x.shape if isinstance(size, Dim)}
    wanted = frozenset[str]().union(*map(_names_in, inside))
    return tuple(
        OPS["broadcast_to"](literal(False), shape=(Dim(name),))
        for name in sorted(wanted - known)
    )


def _names_in(node: Node) -> frozenset[str]:
    names = node.type.names if isinstance(node.type, TensorType) else frozenset()
    return names.union(*map(_names_of_attribute, node.attrs.values()))


def _names_of_attribute(value: Any) -> frozenset[str]:
    if isinstance(value, tuple):
        return frozenset[str]().union(*map(_names_of_attribute, value))
    return free_names(value) if isinstance(value, Dim) else frozenset()


def _compared(adjoint: Sequence[Node], own: set[Node]) -> set[Node]:
    """The own values that the adjoint compares with another value."""
    compared: set[Node] = set()
    for node in adjoint:
        if _compares(node):
            operands = [x for x in node.inputs if x not in own]
            inside = (node, *topological_order(operands, stop=own))
            compared.update(x for y in inside for x in y.inputs if x in own)
    return compared


def _comparisons(frontier: Iterable[Node]) -> set[Node]:
    """The own comparisons that the adjoint looks at."""
    return {x for x in frontier if _compares(x)}


def _compares(node: Node) -> bool:
    """Whether values are compared with each other, not with a constant."""
    return node.op.jumps and all(x.op is not LITERAL for x in node.inputs)


def _choose(
    frontier: Sequence[Node], primal: set[Node], compared: set[Node]
) -> tuple[Node, ...]:
    """What to save: the frontier, less what is cheap to make again from the rest."""
    costly = {x for x in frontier if x in primal or x in compared or not x.op.is_cheap}
    saved: dict[Node, None] = {}
    for x in frontier:
        for kept in _roots(x, costly, primal):
            saved[kept] = None
            costly.add(kept)
    return tuple(saved)


def _roots(x: Node, costly: set[Node], primal: set[Node]) -> list[Node]:
    """`x` itself, or the values it is cheaply made of if those are at hand anyway."""
    if x in costly or x in primal:
        return [x]
    roots = []
    for node in topological_order([x], stop=costly | primal):
        if node.op is not LITERAL and not node.op.is_cheap:
            return [x]
        roots += [y for y in node.inputs if y in costly or y in primal]
    return list(dict.fromkeys(roots))
