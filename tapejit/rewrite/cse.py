"""Common subexpression elimination: what is computed twice is computed once.

Two Nodes are the same computation if they apply the same op with the same attributes
to the same inputs; two literals if they have the same bits. While a program is recorded
such Nodes are kept apart, because a tape may have seen one and not the other. Once it
has been differentiated nothing tells them apart.

Kept apart are effects, random draws, and `recomputed` values, with all that is made of
them: these are there so that something is computed again.

Start reading at `cse`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from tapejit.base.types import TokenType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node
from tapejit.ir.rewriting import Sources, rewritten
from tapejit.ir.structural import recomputed

MAX_BYTES: Final = 65_536  # beyond that a literal is known by its array


def cse(graph: Graph, sources: Sources | None = None) -> Graph:
    """Equal Nodes as one: the first of them.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> print(cse(Graph("f", (x,), (ops.exp(x) * ops.exp(x),))))
    graph f(x: f32[3]) {
      %0: f32[3] = exp x
      %1: f32[3] = mul %0, %0
      return %1
    }
    """
    first: dict[Hashable, Node] = {}

    def step(node: Node) -> Node:
        op = node.op
        if op.is_effect or op.draws or op is recomputed:
            return node
        if isinstance(node.type, TokenType):
            return node
        key = _literal_key(node) if op is LITERAL else _key(node)
        try:
            return first.setdefault(key, node)
        except TypeError:  # an attribute that is not hashable: nobody can be its equal
            return node

    return rewritten(graph, step, sources)


def _key(node: Node) -> Hashable:
    attrs = node.attrs
    values = tuple((name, exact(attrs[name])) for name in sorted(attrs))
    return (node.op, node.inputs, values, node.type)


def _literal_key(node: Node) -> Hashable:
    value = node.attrs["value"]
    if value.nbytes > MAX_BYTES:
        return id(value)
    return (value.dtype, value.shape, value.strides, value.tobytes())


def exact(value: Any) -> Hashable:
    """An attribute as a key: Python takes 1, 1.0 and True for equal, 0.0 and -0.0 too.

    >>> exact(1) == exact(True), exact((0.0, 1)) == exact((-0.0, 1))
    (False, False)
    """
    if type(value) is tuple:
        return tuple(map(exact, value))
    if type(value) is float:
        return value.hex()
    return (type(value), value)
