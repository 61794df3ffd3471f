"""Why a gradient is None, in words.

`why_none` walks from the source towards the target over what the tape recorded and
reports the first place where the path ends. What the tape does not know (a tensor it
never saw) it explains by where the tensor came from.

Start reading at `why_none`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapejit import ops
from tapejit.base.errors import ArgumentTypeError
from tapejit.base.origin import short_location
from tapejit.base.types import is_differentiable
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node
from tapejit.ir.structural import call, item
from tapejit.ops.custom_rules import callback_of, custom_call
from tapejit.tape.recording import Recording
from tapejit.tape.variable import Variable
from tapejit.tensor.tensor import Tensor
from tapejit.transforms.vjp import filled as filled_node
from tapejit.transforms.vjp import passes_gradient, vjp


def why_none(recording: Recording, target: Any, source: Any) -> str:
    """One sentence or two: where the path from `source` to `target` ends."""
    for role, x in (("target", target), ("source", source)):
        if not isinstance(x, (Tensor, Variable)):
            raise ArgumentTypeError(
                f"the {role} is a {type(x).__name__}, not a tensor",
                help="a value that went through NumPy is a constant to the tape",
            )
        if not is_differentiable(x.dtype):
            return f"the {role} is {x.dtype.name}: gradients exist for floats only"
    ends = _nodes_of(recording, target)
    starts = _nodes_of(recording, source)
    if not starts:
        return _why_unknown_source(recording, source)
    if not ends:
        return _why_unknown_target(recording, target)
    if _is_connected(recording.order, starts, ends[-1]):
        return _why_connected(recording, starts, ends[-1])
    return _where_it_ends(recording, starts, ends[-1])


def _nodes_of(recording: Recording, x: Any) -> list[Node]:
    if isinstance(x, Variable):
        return recording.reads.get(id(x), (x, []))[1]
    node = recording.node_of(x)
    return [] if node is None else [node]


def _is_connected(order: Sequence[Node], starts: list[Node], end: Node) -> bool:
    seed = filled_node(1, end.tensor_type)
    found = vjp(order, targets=[end], seeds=[seed], sources=starts)
    return any(part is not None for part in found)


def _why_connected(recording: Recording, starts: list[Node], end: Node) -> str:
    """There is a path; but what a `grad_fn` returns is known only when it runs."""
    needed = _ancestors(end)
    called = [x for x in recording.order if callback_of(x) and x in needed]
    rest = [node for node in recording.order if not callback_of(node)]
    if not called or _is_connected(rest, starts, end):
        return "there is a path: the gradient is not None"
    return (
        "every path leads through a function with a custom gradient, called at "
        f"{_place(called[0])}: the gradient is None if its grad_fn returns None"
    )


def _why_unknown_source(recording: Recording, source: Any) -> str:
    if isinstance(source, Variable):
        name = f"variable {source.name!r}"
        if not source.trainable:
            return (
                f"{name} was not watched: it is not trainable; call tape.watch(v) "
                "inside the block"
            )
        if not recording.watches_variables:
            return (
                f"{name} was not watched: the tape was made with "
                "watch_accessed_variables=False; call tape.watch(v) inside the block"
            )
        return (
            f"{name} was not read while the tape was recording; a value read before "
            "the tape, or after it, does not connect to it"
        )
    if source._made is not None and source._made.variable is not None:
        return (
            f"the source is a value read from variable {source._made.variable!r}, not "
            "recorded by this tape; ask for the variable itself"
        )
    return (
        f"the source was not watched{_from(source)}; call tape.watch(x) inside the "
        "block, before it is used"
    )


def _why_unknown_target(recording: Recording, target: Any) -> str:
    if recording.left:
        node, (how, origin) = next(iter(recording.left.items()))
        return (
            "the target was not computed from anything the tape recorded"
            f"{_from(target)}; the value of {_name(recording, node)} {how} at "
            f"{short_location(origin)}, where the path ends"
        )
    return (
        f"the target was not computed from anything watched{_from(target)}: it was "
        "computed outside the tape's block, or from constants, or from values read "
        "before the tape"
    )


def _from(x: Any) -> str:
    made = getattr(x, "_made", None)
    if made is None:
        return ""
    return f" (from: {made.by}, {short_location(made.origin)})"


def _where_it_ends(recording: Recording, starts: list[Node], end: Node) -> str:
    """The first Node after the source that lets no gradient through."""
    order, now = _without_calls(recording.order)
    needed = _ancestors(now.get(end, end))
    reached = {now.get(node, node) for node in starts}
    blocked: list[Node] = []
    for node in order:
        if node in reached or not any(x in reached for x in node.inputs):
            continue
        if passes_gradient(node) and not reached.isdisjoint(_ways_into(node)):
            reached.add(node)
        elif node in needed:
            blocked.append(node)
    if blocked:
        return _why_blocked(blocked[0])
    for node, (how, origin) in recording.left.items():
        if node in reached:
            return (
                f"the value of {_name(recording, node)} {how} at "
                f"{short_location(origin)}: from there on it is a constant"
            )
    names = {_name(recording, node) for node in starts}
    return (
        "the target was computed from other values: no operation connects "
        f"{' or '.join(sorted(names))} with it; a value read or computed before the "
        "tape is a constant"
    )


def _ways_into(node: Node) -> Sequence[Node]:
    """The inputs from which a path may lead into a Node."""
    if node.op is not custom_call or callback_of(node):
        return node.inputs
    arguments = zip(node.inputs, node.attrs["connected"], strict=False)
    connected = [x for x, is_connected in arguments if is_connected]
    return [*connected, *node.inputs[-node.attrs["results"] :]]


def _without_calls(order: list[Node]) -> tuple[list[Node], dict[Node, Node]]:
    """The Nodes with those of called Graphs in their place, and what became of each."""
    now: dict[Node, Node] = {}
    made: list[Node] = []
    results: dict[Node, list[Node]] = {}
    for node in order:
        _inline(node, now, made, results)
    return made, now


def _inline(
    node: Node, now: dict[Node, Node], made: list[Node], results: dict[Node, list[Node]]
) -> None:
    """Add a Node to `made`, or the Nodes of the Graph it calls."""
    inputs = tuple(now.get(x, x) for x in node.inputs)
    if node.op is item and inputs[0] in results:
        now[node] = results[inputs[0]][node.attrs["index"]]
        return
    copy = node
    if inputs != node.inputs:
        copy = Node(node.op, inputs, node.attrs, node.type, node.origin)
    now[node] = copy
    graph: Graph | None = node.attrs.get("body" if node.op is custom_call else "graph")
    if graph is None:
        made.append(copy)
        return
    inner = dict(zip(graph.inputs, inputs, strict=False))
    for part in graph.nodes:
        if part not in inner:
            _inline(part, inner, made, results)
    results[copy] = [inner[out] for out in graph.outputs]


def _ancestors(end: Node) -> set[Node]:
    found, waiting = {end}, [end]
    while waiting:
        for x in _needed_by(waiting.pop()):
            if x not in found:
                found.add(x)
                waiting.append(x)
    return found


def _needed_by(node: Node) -> Sequence[Node]:
    """The inputs of a Node; of a result of `custom_call` those that lead to it."""
    if node.op is custom_call and not callback_of(node):
        return ()
    whole = node.inputs[0] if node.op is item else node
    if whole.op is not custom_call or callback_of(whole):
        return node.inputs
    value = whole.inputs[node.attrs["index"] - whole.attrs["results"]]
    return (whole, *whole.inputs[: len(whole.attrs["connected"])], value)


def _why_blocked(node: Node) -> str:
    if node.op is ops.stop_gradient:
        return f"the path ends at stop_gradient: {_place(node)}"
    if node.op is ops.cast:
        kind = node.tensor_type.dtype.name
        return (
            f"the path ends at a cast to {kind}: {_place(node)}; no gradient passes "
            "through integers"
        )
    if node.op is custom_call:
        return (
            "the path ends in a function with a gradient of its own, called at "
            f"{_place(node)}"
        )
    return (
        f"the path ends at {node.op.name}: {_place(node)}; its result is not "
        "differentiable"
    )


def _name(recording: Recording, node: Node) -> str:
    for variable, reads in recording.reads.values():
        if node in reads:
            return f"variable {variable.name!r}"
    if node.op is item:
        return _name(recording, _made_by(node))
    return node.op.name if node.inputs else "a watched tensor"


def _made_by(result: Node) -> Node:
    """What the user wrote for one of several results: in a call, the Graph's own."""
    whole = result.inputs[0]
    if whole.op is not call:
        return whole
    graph: Graph = whole.attrs["graph"]
    out = graph.outputs[result.attrs["index"]]
    if out in graph.inputs:
        return whole.inputs[graph.inputs.index(out)]
    return out


def _place(node: Node) -> str:
    origin = node.origin
    return short_location(origin) if isinstance(origin, tuple) else "unknown line"
