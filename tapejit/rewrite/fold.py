"""Constant folding: what depends on constants alone is computed now.

Through the interpreter, so the constant has the bits that a run would have found. Only
small results, or a table made of two numbers would be stored with the program; and only
those that lie in memory row by row as a literal does: a constant that is repeated
without memory stays as it is.

Start reading at `fold`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.interpret import has_dims
from tapejit.ir.node import LITERAL, Node, literal, origin_of
from tapejit.ir.rewriting import Sources, rewritten
from tapejit.ir.structural import dim_value, recomputed
from tapejit.rewrite.memory_order import is_complex_number

MAX_BYTES: Final = 4096


def fold(graph: Graph, sources: Sources | None = None) -> Graph:
    """Nodes of nothing but literals, as literals.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> print(fold(Graph("f", (x,), (x * ops.sqrt(literal(2.25, x.dtype)),))))
    graph f(x: f32[3]) {
      %0: f32[3] = mul x, f32(1.5)
      return %0
    }
    """
    constants = _constants(graph)
    if not constants:
        return graph
    try:
        values = Graph("constants", (), constants).program.run([])
    except Exception:  # of any op
        # One of them fails. It has to do so when it is run, where the user's line is
        # known; which one it is, and what does not need it, is found one by one.
        return rewritten(graph, _folded_alone, sources)
    known = dict(zip(constants, values, strict=True))
    nodes = iter(graph.nodes)

    def step(node: Node) -> Node:
        value = known.get(next(nodes))  # by the old Node; `node` may have new inputs
        return node if value is None else _literal(value, node)

    return rewritten(graph, step, sources)


def _constants(graph: Graph) -> list[Node]:
    """The Nodes that depend on literals alone, in order."""
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if _may_fold(node) and all(x.op is LITERAL or x in found for x in node.inputs):
            found[node] = None
    return list(found)


def _folded_alone(node: Node) -> Node:
    if not _may_fold(node) or not all(x.op is LITERAL for x in node.inputs):
        return node
    try:
        (value,) = Graph("constant", (), (node,)).program.run([])
    except Exception:  # it will fail when it is run, where the line is known
        return node
    return _literal(value, node)


def _literal(value: Any, node: Node) -> Node:
    """The value as a literal; the Node itself where a run would tell them apart."""
    is_array = isinstance(value, np.ndarray)
    if not value.flags.c_contiguous or (is_array and is_complex_number(node)):
        return node
    with origin_of(node.origin):
        return literal(value, node.dtype)


def _may_fold(node: Node) -> bool:
    op, kind = node.op, node.type
    if op is LITERAL or (not node.inputs and op is not dim_value):
        return False
    if op.is_effect or op.draws or op is recomputed:
        return False
    if not isinstance(kind, TensorType) or has_dims(node):
        return False
    shape: Any = kind.shape  # ints all of them
    return bool(math.prod(shape) * kind.dtype.itemsize <= MAX_BYTES)
