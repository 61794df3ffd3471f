"""Batching: the same Graph over a leading axis, in one run.

Every batched Node has its batch axis in front; Nodes that depend on nothing batched
stay as they are and are computed once. Each Op says how it batches in its own
record. A random draw is batched always, so that rows differ.

Start reading at `batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapejit.base.dims import Size
from tapejit.base.errors import UnsupportedError
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import OPS, Derived, Node, origin_of, param
from tapejit.ir.structural import call, item, recomputed
from tapejit.ops.custom_rules import callback_of, custom_call


def batch(
    graph: Graph, *, size: Size, batched: Sequence[bool]
) -> tuple[Graph, tuple[bool, ...]]:
    """The Graph with a leading axis of `size` on the inputs that are `batched`.

    The second result says which outputs have the axis; the others do not depend on
    anything batched.
    """
    made: dict[Node, Node] = {}
    has_axis: dict[Node, bool] = {}
    inputs = []
    for x, flag in zip(graph.inputs, batched, strict=True):
        made[x] = _with_axis(x, size) if flag else x
        has_axis[x] = flag
        inputs.append(made[x])
    for node in graph.nodes:
        flags = [has_axis[x] for x in node.inputs]
        # A link of the effects has no rows, also after an effect that had.
        tensors = flags[:-1] if node.op.is_effect else flags
        if node.op is recomputed:  # a second run serves all rows of what it is for
            tensors = flags[:1]
        has_axis[node] = any(tensors) or node.op.draws
        if not has_axis[node]:
            inputs_now = tuple(made[x] for x in node.inputs)
            if inputs_now == node.inputs:
                made[node] = node
            else:
                made[node] = Node(
                    node.op, inputs_now, node.attrs, node.type, node.origin
                )
            continue
        with origin_of(Derived("batch", node)):
            made[node] = batch_node(node, size, [made[x] for x in node.inputs], flags)
    name = f"{graph.name}.batch"
    outputs = [made[out] for out in graph.outputs]
    effects = None if graph.effects is None else made[graph.effects]
    flags_out = tuple(has_axis[out] for out in graph.outputs)
    return Graph(name, inputs, outputs, effects), flags_out


def _with_axis(x: Node, size: Size) -> Node:
    kind = x.tensor_type
    name = x.name or "batched"
    return param(name, TensorType(kind.dtype, (size, *kind.shape)))


def batch_node(
    node: Node, size: Size, inputs: Sequence[Node], flags: Sequence[bool]
) -> Node:
    """One Node batched."""
    if node.op is item:
        return item(*inputs, index=node.attrs["index"])
    if node.op is call:
        return call(*inputs, graph=_batch_body(node.attrs["graph"], size, flags))
    if node.op is custom_call:
        return _batch_custom_call(node, size, inputs, flags)
    if node.op.batch is None:
        what = "effect" if node.op.is_effect else "operation"
        raise UnsupportedError(
            f"the {what} {node.op.name} cannot be batched",
            help="move it out of the function that is mapped",
            origin=node.origin if isinstance(node.origin, tuple) else None,
        )
    return node.op.batch(size, inputs, flags, **node.attrs)


def _batch_body(graph: Graph, size: Size, flags: Sequence[bool]) -> Graph:
    """A Graph that is called, batched; every result gets the axis."""
    body, has_axis = batch(graph, size=size, batched=flags)
    outputs: list[Any] = [
        out if flag else broadcast_front(out, size)
        for out, flag in zip(body.outputs, has_axis, strict=True)
    ]
    return Graph(body.name, body.inputs, outputs, body.effects)


def _batch_custom_call(
    node: Node, size: Size, inputs: Sequence[Node], flags: Sequence[bool]
) -> Node:
    """Arguments and results get the axis, what its Graphs look at only if it has it."""
    if callback_of(node) is not None:
        raise UnsupportedError(
            "a recorded call of a function with a custom gradient has no rows",
            help="map the function itself: tj.vmap(function)",
        )
    attrs = dict(node.attrs)
    first, last = len(attrs.get("connected", ())), len(inputs) - attrs["results"]
    operands = [
        x if flag or first <= at < last else broadcast_front(x, size)
        for at, (x, flag) in enumerate(zip(inputs, flags, strict=True))
    ]
    for name, graph in node.attrs.items():
        if isinstance(graph, Graph):
            batched = list(flags[first:last])
            batched += [True] * (len(graph.inputs) - len(batched))
            attrs[name] = _batch_body(graph, size, batched)
    return custom_call(*operands, **attrs)


def broadcast_front(x: Node, size: Size) -> Node:
    """Repeat a Node along a new leading axis."""
    return OPS["broadcast_to"](x, shape=(size, *x.shape))
