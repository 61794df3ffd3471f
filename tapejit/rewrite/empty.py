"""Arrays without elements: what is computed from them, without looking at them.

An empty array has one value only. So an operation on nothing else is a constant, and
one that joins or adds some to others does without them. This is for targets that have
no code for empty arrays; it is no pass of the pipeline, as NumPy knows what to do.

Start reading at `without_empty`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit import ops
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node, literal, origin_of
from tapejit.ir.rewriting import rewritten


def without_empty(graph: Graph) -> Graph:
    """The Graph in which no Node with elements has an operand without.

    >>> from tapejit.ir import param
    >>> x, y = (param(f"x{n}", TensorType.parse(f"f32[{n},2]")) for n in (0, 3))
    >>> total = ops.sum(ops.exp(x), axes=(0,), keepdims=False)
    >>> print(without_empty(Graph("f", (x, y), (ops.concat(x, y, axis=0) + total,))))
    graph f(x0: f32[0,2], x3: f32[3,2]) {
      %0: f32[2]   = broadcast_to f32(0.0), shape=(2,)
      %1: f32[3,2] = add x3, %0
      return %1
    }
    """
    return rewritten(graph, with_elements)


def is_empty(node: Node) -> bool:
    """Whether a Node is known to be an array without elements."""
    kind = node.type
    return isinstance(kind, TensorType) and kind.is_static and 0 in kind.shape


def with_elements(node: Node) -> Node:
    """The same without operands that are empty, if its result is not."""
    kind = node.type
    is_array = isinstance(kind, TensorType) and kind.is_static
    if not is_array or is_empty(node) or not any(map(is_empty, node.inputs)):
        return node
    with origin_of(node.origin):
        if all(is_empty(x) or x.op is LITERAL for x in node.inputs):
            return constant(node)
        return fewer(node)


def constant(node: Node) -> Node:
    """The value of a Node whose operands are empty or known."""
    values = [
        x.attrs["value"][()] if x.op is LITERAL else np.empty(x.shape, x.dtype)
        for x in node.inputs
    ]
    with np.errstate(all="ignore"):
        found: Any = np.asarray(node.op.eval(*values, **node.attrs))
    first = found.flat[0]
    bits = {x.tobytes() for x in found.flat}
    if len(bits) > 1:
        return literal(np.ascontiguousarray(found), node.dtype)
    one = literal(first, node.dtype)
    return ops.broadcast_to(one, shape=node.shape) if node.shape else one


def fewer(node: Node) -> Node:
    """What joins or adds arrays, without those that are empty."""
    first, *others = node.inputs
    if node.op is ops.concat:
        kept = [x for x in node.inputs if not is_empty(x)]
        return kept[0] if len(kept) == 1 else ops.concat(*kept, **node.attrs)
    if node.op is ops.place_add:
        each = zip(others, node.attrs["starts"], node.attrs["steps"], strict=True)
        rows = [row for row in each if not is_empty(row[0])]
        if not rows:
            return first
        parts, starts, steps = zip(*rows, strict=True)
        return ops.place_add(first, *parts, starts=starts, steps=steps)
    if node.op is ops.gather_add:
        return first
    return node
