"""One symbolic run of a function: what it does, as a Graph.

While a function is traced its arguments are TracedTensors, whose value is a Node.
Operations on them make Nodes; concrete Tensors that meet them are captured as further
inputs of the Graph, so tapes outside still see them when the Graph is run.

Start reading at `trace`, then `run_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from tapejit import ir, tree
from tapejit.api.dispatch import TAPES, TRACE, apply, as_operand
from tapejit.api.tensor import Made, Tensor, TracedTensor
from tapejit.config import config
from tapejit.errors import ArgumentTypeError
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node, Op, literal, origin_of, param
from tapejit.ir.structural import item, results
from tapejit.origin import user_origin
from tapejit.types import TensorType, TupleType


class Trace:
    """The Nodes of one function under way, and the tensors it captured."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.captures: dict[int, tuple[Tensor, Node]] = {}

    def parameter(self, name: str, type: TensorType) -> TracedTensor:
        """A new argument of the function."""
        return TracedTensor(param(name, type), self, Made(f"argument {name}", None))

    def node_of(self, x: Tensor) -> Node:
        """The Node that stands for a tensor in this trace."""
        if isinstance(x, TracedTensor) and x._trace is self:
            return x._value
        if not isinstance(x, TracedTensor) and not x._id and not x.shape:
            return literal(x._value, x.dtype)  # no tape knows it: a plain number
        found = self.captures.get(id(x))
        if found is None:
            found = (x, param(f"captured_{len(self.captures)}", x._type))
            self.captures[id(x)] = found  # holds x, so that its id stays its own
        return found[1]

    def record(self, op: Op, nodes: Sequence[Node], attrs: dict[str, Any]) -> Any:
        """Perform an op symbolically."""
        origin = user_origin(3)
        with origin_of(origin):
            node = op(*nodes, **attrs)
        made = Made(op.name, origin)
        if isinstance(node.type, TupleType):
            return tuple(TracedTensor(part, self, made) for part in results(node))
        return TracedTensor(node, self, made)


def trace(
    function: Callable[..., Any], arguments: Sequence[TensorType], rebuild: Any
) -> tuple[Graph, list[Tensor], tree.Structure]:
    """Run `function` symbolically.

    `rebuild` makes the function's arguments from the traced leaves. Returns the Graph
    (captured tensors are its last inputs), those tensors, and the structure of the
    results.
    """
    under_way = Trace(getattr(function, "__name__", type(function).__name__))
    leaves = [under_way.parameter(f"x{at}", kind) for at, kind in enumerate(arguments)]
    token = TRACE.set(under_way)
    try:
        args, kwargs = rebuild(leaves)
        results, structure = tree.flatten(function(*args, **kwargs))
        outputs = [under_way.node_of(_result(x, under_way)) for x in results]
    finally:
        TRACE.reset(token)
    captured = list(under_way.captures.values())
    inputs = [leaf._value for leaf in leaves] + [node for _, node in captured]
    graph = Graph(under_way.name, inputs, outputs)
    if config.current().check:
        ir.check_graph(graph)
    return graph, [tensor for tensor, _ in captured], structure


def _result(x: Any, under_way: Trace) -> Tensor:
    try:
        return as_operand(x, under_way.name)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{under_way.name} returned a {type(x).__name__}",
            help="return tensors, numbers, or structures of them",
        ) from None


def run_graph(graph: Graph, inputs: list[Tensor]) -> list[Tensor]:
    """The outputs of a Graph for these Tensors; the list is emptied as it goes.

    When something is recording, each Node is performed like user code, so that outer
    tapes and traces see it; otherwise the whole Graph is interpreted at once.
    """
    if is_observed(inputs):
        return _run_observed(graph, inputs)
    values = [x._value for x in inputs]
    inputs.clear()  # so that the program can let go of each value after its last use
    return [Tensor(value) for value in graph.program.run(values)]


def is_observed(inputs: Sequence[Tensor]) -> bool:
    """Whether a tape of this thread or a trace would see operations on `inputs`."""
    if TRACE.get() is not None or any(type(x) is not Tensor for x in inputs):
        return True
    thread = get_ident()
    return any(tape.thread == thread for tape in TAPES.get())


def _run_observed(graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node.op is LITERAL:
            values[node] = Tensor(node.attrs["value"][()])
        elif node.op is item:
            values[node] = values[node.inputs[0]][node.attrs["index"]]
        else:
            operands = [values[x] for x in node.inputs]
            values[node] = apply(node.op, *operands, **node.attrs)
    return [values[node] for node in graph.outputs]
