"""Calls: the derivative of a call is a call of the derivative of what is called.

`call` has the derivative of its body. `custom_call` has one of its own: that of a body
that runs again, or what a user wrote, as a Graph or as Python code. An error that is
met when the derivative of a second run is built belongs to whoever asks for it, and is
raised when it runs.

Start reading at `pull_back_call`, then `pull_back_custom`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapejit.base.errors import TapejitError
from tapejit.base.types import TensorType, Type
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import LITERAL, ZERO, Node, Op, Zero, param
from tapejit.ir.structural import call, recomputed, results
from tapejit.ops import custom_rules
from tapejit.transforms.jvp import PUSHES, jvp
from tapejit.transforms.scatters import join_scatters
from tapejit.transforms.vjp import PULLS, Cotangent, carries_gradient, materialize, vjp


def pull_back_call(
    node: Node, g: Sequence[Any], *, again: bool = False
) -> tuple[Cotangent, ...]:
    """The adjoint of a call is a call of the body's adjoint.

    Only the results that have a cotangent are seeded, so a path is found per result
    and input exactly as if the body were inlined. What the adjoint looks at comes
    from the call's inputs and results; what is neither is computed again. With `again`
    so are the results.
    """
    body: Graph = node.attrs["graph"]
    seeded = [at for at, part in enumerate(g) if part is not None]
    targets = [body.outputs[at] for at in seeded]
    # ZERO goes in as it is: 0 * -1 inside the body would be -0.0, which is not what
    # the same operations give outside a call.
    starts = [
        ZERO if isinstance(g[at], Zero) else param(f"d_{at}", body.outputs[at].type)
        for at in seeded
    ]
    found = vjp(body.nodes, targets=targets, seeds=starts, sources=body.inputs)
    ends = [part for part in found if isinstance(part, Node)]
    if not ends:
        return found
    seeds = [start for start in starts if isinstance(start, Node)]
    given = [g[at] for at in seeded if isinstance(g[at], Node)]
    known = dict.fromkeys((*body.inputs, *body.outputs, *seeds))
    ends = list(join_scatters(Graph("ends", tuple(known), ends)).outputs)
    parts = iter(_call_beside(node, f"{body.name}.vjp", seeds, given, ends, again))
    return tuple(next(parts) if isinstance(p, Node) else p for p in found)


def push_forward_call(
    node: Node, tangents: Sequence[Any], *, again: bool = False
) -> tuple[Cotangent, ...]:
    """The tangent of a call is a call of the body's tangents.

    ZERO goes into the body as it is, as if the body were inlined.
    """
    body: Graph = node.attrs["graph"]
    given = [at for at, t in enumerate(tangents) if t is not None]
    starts = [
        ZERO
        if isinstance(tangents[at], Zero)
        else param(f"t_{at}", body.inputs[at].type)
        for at in given
    ]
    found = jvp(
        body.nodes,
        sources=[body.inputs[at] for at in given],
        tangents=starts,
        targets=body.outputs,
    )
    ends = [part for part in found if isinstance(part, Node)]
    if not ends:
        return found
    seeds = [start for start in starts if isinstance(start, Node)]
    values = [t for t in tangents if isinstance(t, Node)]
    parts = iter(_call_beside(node, f"{body.name}.jvp", seeds, values, ends, again))
    return tuple(next(parts) if isinstance(p, Node) else p for p in found)


def _call_beside(
    node: Node,
    name: str,
    inputs: Sequence[Node],
    given: Sequence[Node],
    ends: Sequence[Node],
    again: bool,
) -> tuple[Node, ...]:
    """A call that computes `ends`, Nodes written in terms of the body of `node`.

    `inputs` are the further parameters in `ends` and `given` their values. Inputs and,
    unless it is to run `again`, results of `node` that `ends` look at are passed.
    """
    body: Graph = node.attrs["graph"]
    at_hand = {
        x: result
        for x, result in zip(body.outputs, results(node), strict=True)
        if x.op is not LITERAL and not again
    }
    at_hand.update(zip(body.inputs, node.inputs, strict=True))
    inside = topological_order(ends, stop={*at_hand, *inputs})
    looked_at = [x for inner in inside for x in inner.inputs if x in at_hand]
    looked_at += [x for x in ends if x in at_hand]
    looked_at += [x for x in body.inputs if not _is_static(x.type)]  # bind its sizes
    kept = tuple(dict.fromkeys(looked_at))
    beside = Graph(name, (*kept, *inputs), ends)
    return results(call(*[at_hand[x] for x in kept], *given, graph=beside))


def _is_static(type: Type) -> bool:
    return not isinstance(type, TensorType) or type.is_static


def pull_back_custom(node: Node, g: Sequence[Any]) -> tuple[Cotangent, ...]:
    """What the rule makes of cotangents; what was computed before has its own."""
    operands, values = node.inputs[: -len(g)], node.inputs[-len(g) :]
    given = [part for part in g if isinstance(part, Node)]
    body: Graph | None = node.attrs.get("body")
    if body is not None:
        again = call(*[recomputed(x, *given) for x in operands], graph=body)
        try:
            found = pull_back_call(again, g, again=True)
        except TapejitError as error:
            found = custom_rules.failing(error, [x.type for x in operands])
        return (*found, *[None] * len(values))
    callback = custom_rules.callback_of(node)
    if callback is not None:
        parts = _asked(custom_rules.custom_vjp, callback, g, values, operands[1:])
        return (None, *parts, *g)
    connected: custom_rules.Flags = node.attrs["connected"]
    parts = [ZERO if flag else None for flag in connected]
    residuals = operands[len(connected) :]
    if given and any(connected):
        seeds = [materialize(part, x.type) for part, x in zip(g, values, strict=True)]
        called = call(*residuals, *seeds, graph=node.attrs["backward"])
        parts = _spread(called, connected)
    return (*parts, *[None] * len(residuals), *g)


def push_forward_custom(node: Node, tangents: Sequence[Any]) -> tuple[Cotangent, ...]:
    """What the rule makes of tangents, added to those of results computed before."""
    count: int = node.attrs["results"]
    operands, values = node.inputs[:-count], node.inputs[-count:]
    body: Graph | None = node.attrs.get("body")
    if body is not None:
        again = call(*operands, graph=body)
        try:
            return push_forward_call(again, tangents[:-count], again=True)
        except TapejitError as error:
            return custom_rules.failing(error, [x.type for x in values])
    callback = custom_rules.callback_of(node)
    if callback is not None:
        parts = _asked(
            custom_rules.custom_jvp, callback, tangents[1:-count], operands[1:], values
        )
        return tuple(map(_sum, tangents[-count:], parts))
    connected: custom_rules.Flags = node.attrs["connected"]
    pairs = zip(tangents, operands, connected, strict=False)
    given = [(t, x) for t, x, flag in pairs if flag]
    carrying = [carries_gradient(x.type) for x in values]
    is_reached = any(t is not None for t, _ in given)
    parts = [ZERO if flag and is_reached else None for flag in carrying]
    if any(isinstance(t, Node) for t, _ in given):
        seeds = [materialize(t, x.type) for t, x in given]
        residuals = operands[len(connected) :]
        called = call(*residuals, *seeds, graph=node.attrs["forward"])
        parts = _spread(called, carrying)
    return tuple(map(_sum, tangents[-count:], parts))


def _asked(
    op: Op,
    callback: Node,
    given: Sequence[Any],
    starts: Sequence[Node],
    ends: Sequence[Node],
) -> list[Cotangent]:
    """What a callback makes of the derivatives of starts, for each end.

    Unless it is known to do otherwise, it is expected to give all that there can be.
    """
    flags = tuple(part is not None for part in given)
    every = tuple(any(flags) and carries_gradient(x.type) for x in ends)
    connected = custom_rules.CONNECTED.get().get((callback, flags), every)
    if not any(connected) or not any(isinstance(part, Node) for part in given):
        return [ZERO if flag else None for flag in connected]
    pairs = zip(given, starts, strict=True)
    kinds = [x.tensor_type for x, flag in zip(ends, connected, strict=True) if flag]
    called = op(
        callback,
        *[materialize(part, x.type) for part, x in pairs],
        given=flags,
        connected=connected,
        shapes=tuple(kind.shape for kind in kinds),
        dtypes=tuple(kind.dtype for kind in kinds),
        batch_axes=0,
    )
    return _spread(called, connected)


def _spread(called: Node, connected: Sequence[bool]) -> list[Cotangent]:
    """The results of a call, each in the place of what is connected."""
    parts = iter(results(called))
    return [next(parts) if flag else None for flag in connected]


def _sum(x: Cotangent, y: Cotangent) -> Cotangent:
    if isinstance(x, Node) and isinstance(y, Node):
        return x + y
    return x if isinstance(x, Node) or y is None else y


PULLS.update({call: pull_back_call, custom_rules.custom_call: pull_back_custom})
PUSHES.update({call: push_forward_call, custom_rules.custom_call: push_forward_custom})
