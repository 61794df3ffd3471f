"""Cut a Graph and its adjoint into a forward and a backward Graph.

The forward part computes the outputs and the residuals; the backward part gets the
residuals and the seeds. What is cheap and can be made again from residuals and
inputs is not saved.

Start reading at `partition`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapejit.dims import Dim, free_names
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import LITERAL, OPS, Node, literal
from tapejit.types import TensorType


def partition(joint: Graph, *, inputs: int, outputs: int) -> tuple[Graph, Graph]:
    """The forward and the backward Graph of `joint`.

    The first `inputs` inputs of `joint` are primal, the rest are seeds; the first
    `outputs` outputs are primal, the rest are gradients. The forward Graph has the
    residuals behind its outputs, the backward Graph has them before the seeds.
    """
    primal, seeds = joint.inputs[:inputs], joint.inputs[inputs:]
    results, gradients = joint.outputs[:outputs], joint.outputs[outputs:]
    adjoint = _depending_on(seeds, joint.nodes)
    available = {*primal, *joint.nodes} - adjoint
    frontier = _used_from(adjoint, gradients, available)
    saved = _choose(frontier, set(primal))
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


def _depending_on(seeds: Sequence[Node], nodes: Sequence[Node]) -> set[Node]:
    adjoint = set(seeds)
    for node in nodes:
        if any(x in adjoint for x in node.inputs):
            adjoint.add(node)
    return adjoint


def _used_from(
    adjoint: set[Node], gradients: Sequence[Node], available: set[Node]
) -> list[Node]:
    """The forward values that the backward part looks at, in order."""
    used = [
        x
        for node in topological_order(gradients)
        if node in adjoint
        for x in node.inputs
        if x in available
    ]
    used += [g for g in gradients if g in available]
    return [x for x in dict.fromkeys(used) if x.op is not LITERAL]


def _choose(frontier: Sequence[Node], primal: set[Node]) -> tuple[Node, ...]:
    """What to save: the frontier, less what is cheap to make again from the rest."""
    costly = {x for x in frontier if x in primal or not x.op.is_cheap}
    saved: dict[Node, None] = {}
    for x in frontier:
        for kept in _roots(x, costly, primal):
            saved[kept] = None
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
