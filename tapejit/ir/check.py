"""Whether a Graph is well formed.

Passes may rely on these invariants and must keep them:

 1. The inputs are distinct, and each is a tensor or a token.
 2. Every Node is an application of a registered op.
 3. Every parameter that is reached is an input.
 4. The type of a Node is what its op's rule makes of the types of its inputs. A
    literal holds an array of its own type that nobody can write to.
 5. A Node with several results is used by `item` alone and is no output.
 6. A token is used only as the last input of an effect. The last input of an effect
    is a token, and so is its result, or the last of its results; no other op makes a
    token, but `start` and the `item` of an effect.
 7. Effects form a chain: no link has two successors, `effects` is a token, and every
    effect is on the way to `effects` or to an output.
 8. The symbolic sizes in types and attributes can be found from the shapes of the
    inputs.
 9. Attributes have a text; what has one is hashable too.
10. A Graph held by an attribute keeps all of these by itself: it reaches no parameter
    and mentions no size of the Graph around it.

The error gives the number and shows the place in the printed Graph.

Start reading at `check_graph`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from tapejit.base.binding import bind_shapes
from tapejit.base.dims import Dim, evaluate, free_names
from tapejit.base.errors import GraphError
from tapejit.base.types import TensorType, TokenType, TupleType, Type
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, OPS, PARAM, UNLISTED, Derived, Node
from tapejit.ir.printer import Line, Writer
from tapejit.ir.structural import item, start

CONTEXT = 2  # lines shown before and after the offending one


def check_graph(graph: Graph) -> Graph:
    """The Graph itself; GraphError if it breaks one of the module's invariants.

    >>> from tapejit.ir import param
    >>> x, y = (param(name, TensorType.parse("f32[3]")) for name in "xy")
    >>> check_graph(Graph("add", (x, y), (x + y,)))
    <Graph add(f32[3], f32[3]) -> (f32[3]), 1 nodes>
    >>> check_graph(Graph("add", (x,), (x + y,)))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tapejit.GraphError: add breaks invariant 3: parameter y is reached but is no input
        graph add(x: f32[3]) {
      >   %0: f32[3] = param name="y"
          %1: f32[3] = add x, %0
          return %1
    ...
    """
    _check_inputs(graph)
    for node in graph.nodes:
        _check_op(graph, node)
        _check_attributes(graph, node)
        _check_type(graph, node)
        _check_uses(graph, node)
    _check_outputs(graph)
    _check_chain(graph)
    _check_sizes(graph)
    for node in graph.nodes:
        for nested in _parts(node.attrs.values(), Graph):
            check_graph(nested)
    return graph


def _check_inputs(graph: Graph) -> None:
    seen: set[Node] = set()
    for at, x in enumerate(graph.inputs):
        if x in seen:
            _fail(graph, x, 1, f"input {at} is there twice")
        if isinstance(x.type, TupleType):
            _fail(graph, x, 1, f"input {at} has several results: {x.type}")
        seen.add(x)


def _check_op(graph: Graph, node: Node) -> None:
    if node.op not in (OPS.get(node.op.name), UNLISTED.get(node.op.name)):
        _fail(graph, node, 2, f"{node.op.name} is not a registered op")
    if node.op is PARAM:
        _fail(graph, node, 3, f"parameter {node.name} is reached but is no input")


def _check_attributes(graph: Graph, node: Node) -> None:
    if node.op is LITERAL:
        return
    writer = _OwnAttributesWriter()
    for key, value in node.attrs.items():
        try:
            writer.value_text(value, "")
        except TypeError as error:
            _fail(graph, node, 9, f"attribute {key} of {node.op.name}: {error}", error)


def _check_type(graph: Graph, node: Node) -> None:
    if node.op is LITERAL:
        value = node.attrs.get("value")
        if not isinstance(value, np.ndarray) or value.flags.writeable:
            _fail(graph, node, 4, "a literal holds an array that nobody can write to")
        inferred: Type = TensorType.of(value)
    else:
        try:
            inferred = node.op.infer_type([x.type for x in node.inputs], node.attrs)
        except Exception as error:  # a rule may stumble in any way over a wrong Node
            what = getattr(error, "message", error)  # without the place it adds
            _fail(graph, node, 4, f"{node.op.name} does not take this: {what}", error)
    if inferred != node.type:
        _fail(graph, node, 4, f"{node.op.name} gives {inferred}, not {node.type}")


def _check_uses(graph: Graph, node: Node) -> None:
    """Invariants 5 and 6, seen from the Node that uses and makes."""
    op = node.op
    for at, x in enumerate(node.inputs):
        if isinstance(x.type, TupleType) and op is not item:
            _fail(graph, node, 5, f"{op.name} uses all results of {x.op.name} at once")
        is_link = op.is_effect and at == len(node.inputs) - 1
        if isinstance(x.type, TokenType) and not is_link:
            _fail(graph, node, 6, f"{op.name} takes a token as input {at}")
        if is_link and not isinstance(x.type, TokenType):
            _fail(graph, node, 6, f"the last input of the effect {op.name} is no token")
    results = node.type.items if isinstance(node.type, TupleType) else (node.type,)
    tokens = [isinstance(result, TokenType) for result in results]
    if op.is_effect:
        if not node.inputs or tokens != [False] * (len(tokens) - 1) + [True]:
            _fail(graph, node, 6, f"the effect {op.name} has to end in a token")
    elif any(tokens) and op not in (start, item):
        _fail(graph, node, 6, f"{op.name} makes a token but is no effect")


def _check_outputs(graph: Graph) -> None:
    for at, x in enumerate(graph.outputs):
        if isinstance(x.type, TupleType):
            _fail(graph, x, 5, f"output {at} has several results: {x.type}")
    if graph.effects is not None and not isinstance(graph.effects.type, TokenType):
        _fail(graph, graph.effects, 7, f"effects is no token: {graph.effects.type}")


def _check_chain(graph: Graph) -> None:
    """Walk the chains from their ends; whoever is met twice has two successors."""
    successor: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op.is_effect:
            before = _maker(node.inputs[-1])
            if before in successor:
                rival = successor[before]
                text = f"{rival.op.name} and {node.op.name} follow the same link"
                _fail(graph, node, 7, text)
            successor[before] = node
    ends = [graph.effects] if graph.effects is not None else []
    ends += [x for x in graph.outputs if isinstance(x.type, TokenType)]
    on_chain: set[Node] = set()
    for end in ends:
        link = _maker(end)
        while link.op.is_effect and link not in on_chain:
            on_chain.add(link)
            link = _maker(link.inputs[-1])
    for node in graph.nodes:
        if node.op.is_effect and node not in on_chain:
            _fail(graph, node, 7, f"{node.op.name} is not on the chain of the effects")


def _maker(token: Node) -> Node:
    """The Node a token stands for: an effect, a start or an input."""
    is_item = token.op is item and isinstance(token.inputs[0].type, TupleType)
    return token.inputs[0] if is_item else token


def _check_sizes(graph: Graph) -> None:
    shapes = [x.type.shape for x in graph.inputs if isinstance(x.type, TensorType)]
    names = sorted(set().union(*(free_names(n) for shape in shapes for n in shape)))
    # Whether a run can find the sizes is asked of the function that will do it, with
    # numbers that no small expression makes equal.
    sizes = {name: 101 * 7**at for at, name in enumerate(names)}
    actual = [tuple(evaluate(n, sizes) for n in shape) for shape in shapes]
    try:
        bind_shapes(shapes, actual)
    except ValueError as error:
        message = f"the shapes of the inputs do not tell all of {', '.join(names)}"
        _fail(graph, graph.inputs[0], 8, message, error)
    for node in graph.nodes:
        used = _parts([_shapes(node.type), *node.attrs.values()], Dim)
        for name in sorted(set().union(*map(free_names, used)) - sizes.keys()):
            _fail(graph, node, 8, f"the size {name} is in no input")


def _shapes(type: Type) -> Any:
    if isinstance(type, TupleType):
        return tuple(map(_shapes, type.items))
    return type.shape if isinstance(type, TensorType) else ()


def _parts(values: Iterable[Any], cls: type) -> Iterator[Any]:
    """Everything of a class in attributes, inside tuples too."""
    for value in values:
        if isinstance(value, cls):
            yield value
        elif isinstance(value, tuple):
            yield from _parts(value, cls)


class _OwnAttributesWriter(Writer):
    """Skips nested Graphs: they are checked on their own."""

    def lines(self, graph: Graph, indent: str = "") -> list[Line]:
        return []


class _ForgivingWriter(Writer):
    """Shows a broken Graph too."""

    def unprintable(self, value: Any) -> str:
        return f"<{type(value).__name__}>"

    def dim_text(self, dim: Dim) -> str:
        return str(dim)


def _fail(
    graph: Graph,
    node: Node,
    invariant: int,
    message: str,
    cause: Exception | None = None,
) -> NoReturn:
    origin = node.origin
    while isinstance(origin, Derived):
        origin = origin.node.origin
    what = f"{graph.name} breaks invariant {invariant}: {message}"
    raise GraphError(f"{what}\n{_excerpt(graph, node)}", origin=origin) from cause


def _excerpt(graph: Graph, node: Node) -> str:
    """The line of a Node and its neighbours; the first line if it is an input."""
    lines = _ForgivingWriter(comments=True).lines(graph)
    marked = next((at for at, line in enumerate(lines) if _concerns(line, node)), 0)
    first = max(marked - CONTEXT, 0)
    shown = []
    for at, line in enumerate(lines[first : marked + CONTEXT + 1], first):
        text = line.text.partition("\n")[0]  # a nested Graph by its head
        shown.append(f"  {'>' if at == marked else ' '} {text}")
    return "\n".join(shown)


def _concerns(line: Line, node: Node) -> bool:
    """Whether a line defines a Node or, for a literal that has no line, uses it."""
    return line.node is node or (
        line.node is not None and node.op is LITERAL and node in line.node.inputs
    )
