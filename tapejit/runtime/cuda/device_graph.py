"""Which Graphs a GPU has kernels for, and what is left of one that it does whole.

Start reading at `whole_graph`.
"""

from __future__ import annotations

from typing import Final

from tapejit.base.errors import UnsupportedError
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node, line_of
from tapejit.ir.structural import require, start
from tapejit.rewrite.empty import is_empty, without_empty

HELP: Final = (  # for who meets an operation that has no kernel
    'do it on the CPU, x.to("cpu"), or let tapejit do so: '
    "tj.config.update(soft_placement=True)"
)


def why_no_kernel(node: Node) -> str | None:
    """Half a sentence on a Node that a GPU has no kernel for; None of others."""
    from tapejit.targets.cuda import native_ops

    return native_ops.why_no_kernel(node)


def why_not_whole(graph: Graph) -> UnsupportedError | None:
    """Why kernels cannot do all of an optimised Graph; None if they can."""
    try:
        whole_graph(without_empty(graph))
    except UnsupportedError as error:
        return error
    return None


def whole_graph(graph: Graph) -> Graph:
    """The Graph without effects and results that are empty.

    What nobody reads and may fail is one more result. UnsupportedError if not all of it
    has kernels.
    """
    outputs = [x for x in graph.outputs if not is_empty(x)]
    graph = Graph(graph.name, graph.inputs, outputs, graph.effects)
    for node in dict.fromkeys((*graph.nodes, *outputs)):
        reason = why_no_kernel(node)
        if reason is not None:
            raise UnsupportedError(
                f"a GPU cannot do this: {reason}",
                op=node.op.name,
                origin=line_of(node),
                help=HELP,
            )
    for node in graph.nodes:
        if node.op.is_effect and node.op not in (start, require):
            raise UnsupportedError(
                "an effect happens on the host", op=node.op.name, origin=line_of(node)
            )
    kept = set(Graph(graph.name, graph.inputs, graph.outputs).nodes)
    required = [x.inputs[0] for x in graph.nodes if x.op is require]
    unread = [x for x in required if x not in kept and x.op is not LITERAL]
    return Graph(graph.name, graph.inputs, (*graph.outputs, *dict.fromkeys(unread)))


def tensor_type(node: Node) -> TensorType:
    """The type of a Node that is known to be a tensor."""
    if not isinstance(node.type, TensorType) or not node.type.is_static:
        raise UnsupportedError(f"a GPU gives arrays of fixed sizes, not {node.type}")
    return node.type


def fixed(kind: TensorType) -> tuple[int, ...]:
    """A shape that is known."""
    return tuple(map(int, kind.shape))
