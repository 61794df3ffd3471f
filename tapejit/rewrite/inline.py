"""Inlining: calls are replaced by the bodies they call.

A call hides its inside from every other pass; in its place the body can be simplified,
merged with what is around it, and fused. A call stays where its body does more than
compute (effects), where a part of the body could fail that nobody would look at any
more, and where bodies within bodies would grow beyond `LIMIT`.

A body that was made for any size may be called with a known one. Then its Nodes get
the numbers.

Start reading at `inline`, then `_expanded`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tapejit.base.binding import bind_shapes
from tapejit.base.dims import Dim, Size, substitute
from tapejit.base.errors import TapejitError
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import LITERAL, Node
from tapejit.ir.rewriting import Sources, note_source, rewritten
from tapejit.ir.structural import bound_type, call, item
from tapejit.ops.custom_rules import failed

LIMIT: Final = 20_000  # Nodes that inlining may make of one Graph


def inline(graph: Graph, sources: Sources | None = None) -> Graph:
    """The bodies of calls in their place, those of calls within them too.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> p, x = (param(name, TensorType.parse("f32[3]")) for name in "px")
    >>> body = Graph("body", (p,), (p * p,))
    >>> squared = ops.item(ops.call(x, graph=body), index=0)
    >>> print(inline(Graph("f", (x,), (ops.sin(squared),))))
    graph f(x: f32[3]) {
      %0: f32[3] = mul x, x
      %1: f32[3] = sin %0
      return %1
    }
    """
    while True:
        inlined = _inline_outermost(graph, sources)
        if inlined is graph:
            return graph
        graph = inlined


def _inline_outermost(graph: Graph, sources: Sources | None) -> Graph:
    calls = {node for node in graph.nodes if node.op is call}
    if not calls:
        return graph
    used: dict[Node, set[int]] = {}
    for node in graph.nodes:
        if node.op is item and node.inputs[0] in calls:
            used.setdefault(node.inputs[0], set()).add(node.attrs["index"])
    original = iter([node for node in graph.nodes if node.op is call])
    results: dict[Node, Sequence[Node]] = {}
    count = len(graph.nodes)

    def step(node: Node) -> Node:
        nonlocal count
        if node.op is call:
            old = next(original)  # in the same order; `node` may have new inputs
            body: Graph = node.attrs["graph"]
            count += len(body.nodes)
            if count <= LIMIT and _may_vanish(body, used.get(old, set())):
                expanded = _expanded(node, old, sources)
                if expanded is not None:
                    results[node] = expanded
        elif node.op is item and node.inputs[0] in results:
            return results[node.inputs[0]][node.attrs["index"]]
        return node

    return rewritten(graph, step, sources)


def _may_vanish(body: Graph, used: set[int]) -> bool:
    """Whether nothing is lost but values if only these results are looked at."""
    if body.effects is not None:
        return False
    can_fail = [x for x in body.nodes if x.op.can_fail or x.op is failed]
    if not can_fail:
        return True
    ends = [body.outputs[at] for at in sorted(used)]
    return set(can_fail) <= set(topological_order(ends, stop=body.inputs))


def _expanded(node: Node, old: Node, sources: Sources | None) -> list[Node] | None:
    """The outputs of a call's body on the call's inputs; None if types get in the way.

    A rule may tell apart a size that is known to be 1 from one that is not known.
    """
    body: Graph = node.attrs["graph"]
    sizes = _sizes(node, body)
    made: dict[Node, Node] = dict(zip(body.inputs, node.inputs, strict=True))
    for x in body.nodes:
        if x.op is LITERAL:
            made[x] = x
            continue
        inputs = tuple(made[y] for y in x.inputs)
        attrs, kind = x.attrs, x.type
        if sizes:
            attrs = {name: _bound(value, sizes) for name, value in attrs.items()}
            kind = bound_type(kind, sizes)
            try:
                inferred = x.op.infer_type([y.type for y in inputs], attrs)
            except TapejitError:
                return None
            if inferred != kind:
                return None
        made[x] = Node(x.op, inputs, attrs, kind, x.origin)
        if sources is not None:
            note_source(sources, made[x], old)
    return [made[x] for x in body.outputs]


def _sizes(node: Node, body: Graph) -> dict[str, int]:
    """The numbers for the symbolic sizes of a body."""
    pairs = [
        (inner.type.shape, given.type.shape)
        for inner, given in zip(body.inputs, node.inputs, strict=True)
        if inner.type != given.type
        and isinstance(inner.type, TensorType)
        and isinstance(given.type, TensorType)
    ]
    actual: Any = [given for _, given in pairs]  # ints: the call's type rule saw to it
    return bind_shapes([inner for inner, _ in pairs], actual) if pairs else {}


def _bound(value: Any, sizes: Mapping[str, Size]) -> Any:
    if isinstance(value, tuple):
        return tuple(_bound(part, sizes) for part in value)
    return substitute(value, sizes) if isinstance(value, Dim) else value
