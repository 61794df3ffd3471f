"""Reverse mode: append the adjoint of a set of Nodes.

The table of cotangents maps a Node to the sum of what its users contribute. A Node
that is not in it has no path to a target; `ZERO` in it means that there is a path
and that its derivative vanishes, so no Node has been spent on it. A Node with several
results has a list with one entry per result, None where nothing has arrived.

Complex numbers: the gradient is the conjugate of the holomorphic derivative, so a
rule written for the derivative is wrapped as conj(rule(conj(g))).

Start reading at `vjp`, then `pull_back`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tapejit.base.errors import GraphError, NotDifferentiableError
from tapejit.base.types import (
    TensorType,
    TupleType,
    Type,
    is_complex,
    is_differentiable,
)
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import (
    OPS,
    ZERO,
    Derived,
    Node,
    Op,
    Zero,
    literal,
    origin_of,
    param,
)
from tapejit.ir.structural import call, item, results

Cotangent = Node | Zero | None

# What the cotangents of the results of a call contribute to each of its inputs: see
# `calls.py`, where they are put.
PULLS: Final[dict[Op, Callable[[Node, Sequence[Any]], tuple[Cotangent, ...]]]] = {}


def vjp(
    nodes: Sequence[Node],
    *,
    targets: Sequence[Node],
    seeds: Sequence[Node | Zero],
    sources: Sequence[Node],
) -> tuple[Cotangent, ...]:
    """The cotangent of each source, None where no path leads to it.

    `nodes` are the Nodes that may be walked, each after the ones it needs; `seeds`
    are the targets' cotangents. Sources may be any Nodes, intermediates included.
    """
    active = reached_from(sources, nodes)
    table: dict[Node, Any] = {}
    for target, seed in zip(targets, seeds, strict=True):
        if target in active:
            accumulate(table, target, seed)
    for node in reversed(nodes):
        g = table.get(node)
        if g is None or not any(x in active for x in node.inputs):
            continue
        if not passes_gradient(node):  # a source itself, behind which the path ends
            continue
        with origin_of(Derived("vjp", node)):
            if node.op is item:
                accumulate_item(table, node, g)
                continue
            for x, contribution in zip(node.inputs, pull_back(node, g), strict=True):
                if contribution is not None and x in active:
                    accumulate(table, x, contribution)
    return tuple(table.get(source) for source in sources)


def reached_from(sources: Iterable[Node], nodes: Iterable[Node]) -> set[Node]:
    """The Nodes that depend differentiably on a source.

    Of a call these are the results that a path in its body leads to: what a function
    makes of constants or of integers is a constant, as if the body were inlined.
    """
    active = {source for source in sources if carries_gradient(source.type)}
    unreached: set[Node] = set()  # results of calls
    for node in nodes:
        if any(x in active for x in node.inputs) and passes_gradient(node):
            if node in unreached:
                continue
            active.add(node)
            if node.op is call:
                unreached.update(_unreached_results(node, active))
    return active


def _unreached_results(node: Node, active: set[Node]) -> list[Node]:
    """The results of a call that no path in its body leads to."""
    body: Graph = node.attrs["graph"]
    pairs = zip(body.inputs, node.inputs, strict=True)
    reached = reached_from([x for x, given in pairs if given in active], body.nodes)
    ends = zip(results(node), body.outputs, strict=True)
    return [result for result, x in ends if x not in reached]


def carries_gradient(type: Type) -> bool:
    """Whether a value of this type can have a cotangent."""
    if isinstance(type, TupleType):
        return any(map(carries_gradient, type.items))
    return isinstance(type, TensorType) and is_differentiable(type.dtype)


def passes_gradient(node: Node) -> bool:
    """Whether a path can lead through this Node."""
    op = node.op
    return (op.differentiable or op is item or op in PULLS) and carries_gradient(
        node.type
    )


def accumulate(table: dict[Node, Any], node: Node, g: Any) -> None:
    """Add a contribution to the cotangent of `node`."""
    if isinstance(g, Node) and g.type != node.type:
        raise GraphError(
            f"a derivative rule gave {node.op.name} of type {node.type} a cotangent "
            f"of type {g.type}",
            help="this is a fault in the rule of one of its users",
        )
    before = table.get(node)
    if before is None or isinstance(before, Zero):
        table[node] = g
    elif not isinstance(g, Zero):
        table[node] = before + g


def accumulate_item(table: dict[Node, Any], node: Node, g: Any) -> None:
    """Put the cotangent of a projection into its place among the whole's."""
    (whole,) = node.inputs
    assert isinstance(whole.type, TupleType)
    parts = table.setdefault(whole, [None] * len(whole.type.items))
    before = parts[node.attrs["index"]]
    if isinstance(before, Node):
        g = before if isinstance(g, Zero) else before + g
    parts[node.attrs["index"]] = g


def pull_back(node: Node, g: Any) -> tuple[Cotangent, ...]:
    """What the cotangent `g` of a Node contributes to each of its inputs."""
    if node.op in PULLS:
        return PULLS[node.op](node, g)
    if node.op.vjp is None:
        raise NotDifferentiableError(f"{node.op.name} has no derivative")
    if _is_zero(g):
        if isinstance(g, list):  # what has no cotangent at all stays without one
            parts_given = [None if p is None else zeros(t) for p, t in _pairs(node, g)]
            whole: Any = tuple(parts_given)
        else:
            whole = _zero_seed(node.type)
        return tuple(
            None if part is None else ZERO
            for part in node.op.vjp(whole, node, *node.inputs, **node.attrs)
        )
    if isinstance(g, list):
        g = tuple(zeros(t) if isinstance(p, Zero) else p for p, t in _pairs(node, g))
    if not _needs_conj(node):
        parts: tuple[Cotangent, ...] = node.op.vjp(g, node, *node.inputs, **node.attrs)
        return parts
    parts = node.op.vjp(_conj_all(g), node, *node.inputs, **node.attrs)
    return tuple(conj(part) if isinstance(part, Node) else part for part in parts)


def _pairs(node: Node, parts: Sequence[Any]) -> Iterable[tuple[Any, Type]]:
    assert isinstance(node.type, TupleType)
    return zip(parts, node.type.items, strict=True)


def _is_zero(g: Any) -> bool:
    if isinstance(g, list):
        return all(part is None or isinstance(part, Zero) for part in g)
    return isinstance(g, Zero)


def _zero_seed(type: Type) -> Any:
    if isinstance(type, TupleType):
        return tuple(zeros(t) if carries_gradient(t) else None for t in type.items)
    return zeros(type)


def _needs_conj(node: Node) -> bool:
    if not node.op.holomorphic or node.op.conj_linear:
        return False
    return any(
        isinstance(x.type, TensorType) and is_complex(x.type.dtype)
        for x in (node, *node.inputs)
    )


def conj(x: Node) -> Node:
    """The conjugate, left out where it does nothing."""
    if x.op is OPS["conj"]:
        return x.inputs[0]
    return OPS["conj"](x) if is_complex(x.dtype) else x


def _conj_all(g: Any) -> Any:
    if isinstance(g, tuple):
        return tuple(None if part is None else conj(part) for part in g)
    return conj(g)


def zeros(type: Type) -> Node:
    """A Node of zeros that holds a single one."""
    assert isinstance(type, TensorType)
    return filled(0, type)


def filled(value: float, type: TensorType) -> Node:
    """A Node of one value everywhere."""
    scalar = literal(value, type.dtype)
    return OPS["broadcast_to"](scalar, shape=type.shape) if type.shape else scalar


def vjp_graph(graph: Graph, *, wrt: Sequence[Node]) -> Graph:
    """Append the adjoint: inputs gain a cotangent per output, outputs one per `wrt`.

    A `wrt` that no output depends on gets zeros.
    """
    seeds = tuple(
        param(f"d_{at}", out.type)
        for at, out in enumerate(graph.outputs)
        if carries_gradient(out.type)
    )
    targets = [out for out in graph.outputs if carries_gradient(out.type)]
    found = vjp(graph.nodes, targets=targets, seeds=seeds, sources=wrt)
    ends = [materialize(g, x.type) for g, x in zip(found, wrt, strict=True)]
    return Graph(
        f"{graph.name}.vjp",
        (*graph.inputs, *seeds),
        (*graph.outputs, *ends),
        graph.effects,
    )


def materialize(g: Cotangent, type: Type) -> Node:
    """A cotangent as a Node: zeros for `ZERO` and for None."""
    return g if isinstance(g, Node) else zeros(type)


def needed_values(node: Node, wanted: Sequence[bool]) -> tuple[tuple[int, ...], bool]:
    """Which inputs of a Node, and whether its result, its derivative looks at.

    `wanted` says for which inputs a cotangent will be asked. A tape keeps these
    values and no others.
    """
    if not passes_gradient(node):
        return (), False
    if isinstance(node.type, TupleType):
        seeds = [param("g", t) for t in node.type.items if carries_gradient(t)]
        given = iter(seeds)
        g: Any = tuple(
            next(given) if carries_gradient(t) else None for t in node.type.items
        )
        g = list(g)
    else:
        seeds = [param("g", node.type)]
        g = seeds[0]
    parts = pull_back(node, g)
    ends = [
        part
        for part, want in zip(parts, wanted, strict=True)
        if want and isinstance(part, Node)
    ]
    boundary = {node, *node.inputs, *seeds}
    inside = topological_order(ends, stop=boundary)
    touched = {x for inner in inside for x in inner.inputs} | set(ends)
    inputs = tuple(at for at, x in enumerate(node.inputs) if x in touched)
    return inputs, node in touched
