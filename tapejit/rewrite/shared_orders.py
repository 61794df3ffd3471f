"""What is put in the order of the same keys is sorted once.

A sorted value, its positions, and the adjoint that brings cotangents back are records
that each find the order of their keys, because a tape must be able to tell them apart.
After differentiation one `argsort` serves all of them: the others take or put along the
positions it gives.

Sorting a value by itself, if nobody asks for positions, is left alone: it is faster
without them, but for the first few of each line, which are found with them. Of a `top`
whose positions nobody reads only such a value remains.

Start reading at `share_orders`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tapejit import ops
from tapejit.base.types import TupleType
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node
from tapejit.ir.rewriting import Sources, rewritten
from tapejit.ir.structural import item
from tapejit.ops.sorting import wants_first


def share_orders(graph: Graph, sources: Sources | None = None) -> Graph:
    """One order for all that have the same keys.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> ordered = ops.sort_by(x, x, axis=0, descending=False)
    >>> back = ops.unsort_by(ordered * 2, x, axis=0, descending=False)
    >>> print(share_orders(Graph("f", (x,), (back,))))
    graph f(x: f32[3]) {
      %0: i64[3] = argsort x, axis=0, descending=False
      %1: f32[3] = take_along x, %0, axis=0
      %2: f32[3] = mul %1, f32(2.0)
      %3: f32[3] = put_along %2, %0, axis=0, length=3
      return %3
    }
    """
    if not any(node.op.sorted_by is not None for node in graph.nodes):
        return graph
    asked = {_order_key(*found) for found in map(_asking, graph.nodes) if found}
    orders: dict[Hashable, Node] = {}

    def order(keys: Node, attrs: dict[str, Any]) -> Node:
        key = _order_key(keys, attrs)
        if key not in orders:
            orders[key] = ops.argsort(keys, **attrs)
        return orders[key]

    # Nodes are met in the order of the graph, with new inputs: what was asked of old
    # keys is looked up by the old ones.
    old = iter([node for node in graph.nodes if _keys_of(node) is not None])

    def step(node: Node) -> Node:
        keys = _keys_of(node)
        if keys is None:
            return node
        before, attrs = _keys_of(next(old)), dict(_attrs_of(node))
        axis = attrs["axis"]
        if node.op is ops.argsort:
            return orders.setdefault(_order_key(keys, attrs), node)
        if _is_projection(node, 1):
            return order(keys, attrs)
        if node.op is ops.unsort_by:
            length = keys.shape[axis]
            return ops.put_along(
                node.inputs[0], order(keys, attrs), axis=axis, length=length
            )
        values = keys if node.op is item else node.inputs[0]
        if _order_key(before, attrs) in asked:
            return ops.take_along(values, order(keys, attrs), axis=axis)
        return ops.sort_by(keys, keys, **attrs) if node.op is item else node

    return rewritten(graph, step, sources)


def _keys_of(node: Node) -> Node | None:
    """What a Node is ordered by; None if it is none of those that are."""
    if node.op is item:  # of several results: elements and positions
        (node,) = node.inputs
    elif isinstance(node.type, TupleType):
        return None
    at = node.op.sorted_by
    return None if at is None else node.inputs[at]


def _is_projection(node: Node, index: int) -> bool:
    return node.op is item and node.attrs["index"] == index


def _attrs_of(node: Node) -> Any:
    return (node.inputs[0] if node.op is item else node).attrs


def _order_key(keys: Node | None, attrs: Any) -> Hashable:
    return (keys, *sorted(attrs.items()))


def _asking(node: Node) -> tuple[Node, Any] | None:
    """Keys and attributes of a Node that cannot do without positions."""
    keys = _keys_of(node)
    if keys is None:
        return None
    attrs = _attrs_of(node)
    is_itself = node.op is ops.sort_by and node.inputs[0] is keys
    if (is_itself or _is_projection(node, 0)) and not wants_first(attrs):
        return None
    return keys, attrs
