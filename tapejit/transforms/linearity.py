"""Whether what a Graph computes is linear in some of its inputs.

A gradient is a linear map of its cotangent, and forward mode uses its transpose. A
`grad_fn` that clips, takes a sign or normalises is no linear map: it has no transpose,
and its derivative at one cotangent says nothing of the others. So linearity is read
off the operations, never off values.

Each value is of a `Kind`. Seeds are linear; what an operation makes of kinds is told by
its record: the operands in which it is `linear`, taken together, or that it is linear
in each operand while the other is constant, `bilinear`. Everything else is linear in
nothing.

Start reading at `result_kind`, then `found_for`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from tapejit import ops
from tapejit.base.types import is_differentiable
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node, Op
from tapejit.ir.structural import call, dim_value, item, recomputed


class Kind(Enum):
    """How a value depends on the seeds."""

    ZERO = "zero, whatever the seeds are"
    CONSTANT = "the same for all seeds"
    LINEAR = "linear in the seeds"
    OTHER = "not known to be linear"


ZERO, CONSTANT, LINEAR, OTHER = Kind


def result_kind(op: Op, kinds: Sequence[Kind], attrs: Mapping[str, Any]) -> Kind:
    """The kind of what an op makes of operands of these kinds."""
    if op is dim_value:  # a size
        return CONSTANT
    if op is recomputed:  # the other operands are what it waits for
        return kinds[0]
    if OTHER in kinds:
        return OTHER
    if op.bilinear:
        if ZERO in kinds:
            return ZERO
        return (CONSTANT, LINEAR, OTHER)[min(kinds.count(LINEAR), 2)]
    values = op.linear
    if values is None or _is_rounded(op, attrs):
        return OTHER if LINEAR in kinds else CONSTANT
    chosen = kinds[values]
    if kinds.count(LINEAR) > chosen.count(LINEAR):  # in a condition, say
        return OTHER
    if LINEAR not in chosen:
        return CONSTANT if CONSTANT in chosen else ZERO
    return OTHER if CONSTANT in chosen else LINEAR


def _is_rounded(op: Op, attrs: Mapping[str, Any]) -> bool:
    """Whether it is a cast to integers or bools."""
    return op is ops.cast and not is_differentiable(attrs["dtype"])


# A value's kind and, of what is not linear, the Node at which it ceased to be.
Found = tuple[Kind, Node | None]


def found_for(
    nodes: Sequence[Node], known: Mapping[Node, Found], ends: Sequence[Node]
) -> list[Found]:
    """The kinds of `ends`.

    `nodes` are in order; what is neither among them nor `known` is a constant.
    """
    table: dict[Node, Any] = dict(known)

    def look_up(x: Node) -> Any:
        if x not in table:
            table[x] = (ZERO if is_zero(x) else CONSTANT), None
        return table[x]

    for node in nodes:
        if node in table or node.op is LITERAL:
            continue
        given = [look_up(x) for x in node.inputs]
        if node.op is item:
            parts = given[0]
            is_one = isinstance(parts[0], Kind)  # all results are of one kind
            table[node] = parts if is_one else parts[node.attrs["index"]]
        elif node.op is call:
            table[node] = found_in_call(node.attrs["graph"], given)
        else:
            table[node] = _found(node, given)
    return [look_up(x) for x in ends]


def found_in_call(graph: Graph, given: Sequence[Found]) -> list[Found]:
    """The kinds of the results of a call."""
    inputs = dict(zip(graph.inputs, given, strict=True))
    return found_for(graph.nodes, inputs, graph.outputs)


def _found(node: Node, given: Sequence[Any]) -> Found:
    kind = result_kind(node.op, [part[0] for part in given], node.attrs)
    if kind is not OTHER:
        return kind, None
    before = (part[1] for part in given if part[0] is OTHER)
    return kind, next(before, node)


def is_zero(node: Node) -> bool:
    """Whether a Node is zeros as it is written: a literal, moved and repeated."""
    while len(node.inputs) == 1 and node.op.linear is not None:
        (node,) = node.inputs
    return node.op is LITERAL and not node.attrs["value"].any()
