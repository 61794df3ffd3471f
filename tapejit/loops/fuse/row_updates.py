"""Sparse row update: of a table whose gradient is a scatter, some rows change.

The gradient of `take(w, i)` is zero but for the rows in `i`, and `w - rate * g` leaves
the others as they are. Written as one operation, `subtract_rows`, the step costs what
those rows cost, however long the table is; the table of gradients is not there at all.

Start reading at `with_row_updates`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from tapejit import ops
from tapejit.base.types import is_float
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node, origin_of
from tapejit.ir.rewriting import rewritten
from tapejit.loops.native_ops import one_hot
from tapejit.ops.row_updates import are_rows, subtract_rows

MOST_ROWS: Final = 1 << 31  # elements of a table whose rows have numbers of 32 bits


def with_row_updates(graph: Graph) -> Graph:
    """w - rate * gather_add(0, ...) -> subtract_rows(w, rate, ...), for results.

    >>> from tapejit.ir import parse_graph
    >>> text = '''graph f(w: f32[9,3], g: f32[2,3], i: i32[2], rate: f32[]) {
    ...   %0: f32[9,3] = broadcast_to f32(0.0), shape=(9, 3)
    ...   %1: f32[9,3] = gather_add %0, g, i, axes=(0,)
    ...   %2: f32[9,3] = mul %1, rate
    ...   %3: f32[9,3] = sub w, %2
    ...   return %3
    ... }'''
    >>> print(with_row_updates(parse_graph(text)))
    graph f(w: f32[9,3], g: f32[2,3], i: i32[2], rate: f32[]) {
      %0: f32[9,3] = subtract_rows w, rate, g, i, axes=(0,)
      return %0
    }
    """
    if not any(node.op is ops.gather_add for node in graph.nodes):
        return graph
    uses = Counter(x for node in graph.nodes for x in node.inputs)
    uses.update(graph.outputs)
    results, known = frozenset(graph.outputs), frozenset(graph.inputs)
    nodes = iter(graph.nodes)

    def step(node: Node) -> Node:
        old = next(nodes)  # `node` may have new inputs
        if old not in results or old.op is not ops.sub or old.inputs[0] not in known:
            return node
        change = old.inputs[1]
        if change in known or change.op is not ops.mul or uses[change] > 1:
            return node
        for at, rate in enumerate(change.inputs):
            scattered = change.inputs[1 - at]
            if rate.shape or scattered in known or uses[scattered] > 1:
                continue
            if is_sum_of_rows(scattered):
                w, change = node.inputs
                rate, scattered = change.inputs[at], change.inputs[1 - at]
                with origin_of(node.origin):
                    return subtract_rows(
                        w, rate, *scattered.inputs[1:], axes=scattered.attrs["axes"]
                    )
        return node

    return rewritten(graph, step)


def is_sum_of_rows(node: Node) -> bool:
    """Whether a Node has sums of floats in the rows that indices name, 0 elsewhere."""
    if node.op is not ops.gather_add or not is_float(node.dtype):
        return False
    if not are_rows(node.attrs["axes"], node.dtype) or one_hot(node) is not None:
        return False
    return is_zeros(node.inputs[0]) and math.prod(node.shape) < MOST_ROWS


def is_zeros(node: Node) -> bool:
    """Whether a Node is one zero, of either sign, in all places."""
    while node.op is ops.broadcast_to:
        (node,) = node.inputs
    return node.op is LITERAL and not node.shape and not node.attrs["value"]
