"""How a Graph is rewritten: Node by Node, each after the ones it needs.

A pass is a `step`: it gets a Node whose inputs are what already stands for the old
ones, and returns what is to stand for the Node: the same, one that is there already,
or a new one. `rewritten` runs a step over a Graph; if the step changed nothing, the
result is the Graph itself.

What a Node behind an input is made of is no business of the Graph. So steps never see
one: an input that is no parameter is replaced by one for as long as there is something
to change.

`Sources` say which Node of the Graph a pass began with a new Node serves. A failure is
reported there, in terms of the program the user wrote.

Start reading at `rewritten`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tapejit.ir.graph import Graph
from tapejit.ir.node import PARAM, Node, Op

VERSION: Final = 2  # to be raised when the same Graph would be rewritten otherwise

Sources = dict[Node, Node]
NodeRewrite = Callable[[Node], Node]


def rewritten(graph: Graph, step: NodeRewrite, sources: Sources | None = None) -> Graph:
    """The Graph in which `step` has been applied to every Node.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> graph = Graph("f", (x,), (ops.sin(ops.read(x)),))
    >>> print(rewritten(graph, lambda n: n.inputs[0] if n.op is ops.read else n))
    graph f(x: f32[3]) {
      %0: f32[3] = sin x
      return %0
    }
    >>> rewritten(graph, lambda n: n) is graph
    True
    """
    inputs = tuple(_parameter(x, at) for at, x in enumerate(graph.inputs))
    pairs = zip(graph.inputs, inputs, strict=True)
    moved: dict[Node, Node] = {old: new for old, new in pairs if old is not new}
    there = set(inputs)
    is_changed = bool(moved)
    for node in graph.nodes:
        now = with_inputs(node, moved)
        found = step(now)
        if found is not node:
            moved[node] = found
            is_changed |= found is not now
            is_new = found not in there
            if sources is not None and is_new and found not in sources:
                note_source(sources, found, node)
        there.add(found)
    if not is_changed:
        return graph
    outputs = [moved.get(x, x) for x in graph.outputs]
    effects = None if graph.effects is None else moved.get(graph.effects, graph.effects)
    return Graph(graph.name, inputs, outputs, effects)


def opened(graph: Graph, sources: Sources | None = None) -> Graph:
    """The Graph with nothing known of its inputs.

    A tensor that a function has captured is a literal while the function is traced, and
    an input of the Graph. The code is for any other value, too: all functions of equal
    Graphs share it.

    >>> from tapejit.ir.node import literal
    >>> import numpy as np
    >>> two = literal(np.float32([2.0, 2.0]), np.dtype("f4"))
    >>> opened(Graph("f", (two,), (two * two,))).inputs[0].op is PARAM
    True
    """
    return rewritten(graph, lambda node: node, sources)


def _parameter(x: Node, at: int) -> Node:
    return x if x.op is PARAM else Node(PARAM, (), {"name": f"v{at}"}, x.type, x.origin)


def with_inputs(node: Node, moved: Mapping[Node, Node]) -> Node:
    """The Node on what stands for its inputs; itself if that is still they."""
    for x in node.inputs:
        if x in moved:
            inputs = tuple([moved.get(x, x) for x in node.inputs])
            return Node(node.op, inputs, node.attrs, node.type, node.origin)
    return node


def in_place_of(
    node: Node, op: Op, inputs: Sequence[Node], attrs: Mapping[str, Any]
) -> Node:
    """A Node that stands for another one, and came from the same line."""
    kind = op.infer_type([x.type for x in inputs], attrs)
    return Node(op, tuple(inputs), attrs, kind, node.origin)


def note_source(sources: Sources, made: Node, node: Node) -> None:
    """Say that `made` serves what `node` serves."""
    sources[made] = sources.get(node, node)
