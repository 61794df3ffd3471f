"""A function with a gradient of its own in a traced function.

The Graph of a traced function outlives the trace, and a tape may stand outside: so
`grad_fn` is traced too, at once, on cotangents that are parameters. What it computes
becomes a Graph, `backward`, whose first inputs are the values it looks at, and the
call becomes one Node of `custom_call` that carries it. Its transpose by the cotangents
is `forward`, the rule for tangents.

What `grad_fn` prints or checks has no place in a Graph that only computes: effects in
it are dropped.

Start reading at `offer_traced`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tapejit.array.creation import zeros
from tapejit.base.errors import NotDifferentiableError, UnsupportedError
from tapejit.base.types import TensorType, is_differentiable
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import LITERAL, Node, Op, param
from tapejit.ir.structural import call, item
from tapejit.ir.structural import results as results_of
from tapejit.ops.custom_rules import custom, custom_call, failed, note_error
from tapejit.tape.linearity import check_nodes
from tapejit.tape.rules import PythonRule
from tapejit.tensor.dispatch import TAPES, TRACE
from tapejit.tensor.recorder import Observer
from tapejit.tensor.tensor import Tensor, TracedTensor
from tapejit.tensor.trace import Trace
from tapejit.transforms.vjp import materialize, vjp


def offer_traced(
    rule: PythonRule,
    inputs: Sequence[Tensor],
    values: Sequence[Tensor],
    shadow_of: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """The results, connected to the inputs by what the rule computes.

    A tape inside the trace calls the rule itself when it is asked, as it would in
    plain Python; the Graph is for those outside.
    """
    trace = TRACE.get()
    assert trace is not None
    shadows = [shadow_of(x) for x in values]
    arguments = [trace.node_of(x) for x in inputs]
    backward, forward, residuals, connected = _graphs(rule, arguments, trace)
    nodes = [*arguments, *residuals, *map(trace.node_of, shadows)]
    attrs = {
        "backward": backward,
        "forward": forward,
        "connected": connected,
        "results": len(values),
    }
    results: tuple[Tensor, ...] = trace.record(custom_call, nodes, attrs)
    kept = [TracedTensor(node, trace) for node in residuals]
    for tape in TAPES.get():
        if isinstance(tape, Observer):
            tape.record(custom_call, (*inputs, *kept, *shadows), attrs, results)
        elif tape.trace is trace:
            operands = (Tensor(rule), *inputs, *shadows)
            tape.record(custom, operands, {"results": len(values)}, results)
    return list(results)


# backward, forward, the values they look at, which arguments get a gradient
Graphs = tuple[Graph, Graph, list[Node], tuple[bool, ...]]


def _graphs(rule: PythonRule, arguments: Sequence[Node], trace: Trace) -> Graphs:
    """What the rule computes.

    An error of the user's belongs to whoever asks for the gradient: the Graph then
    raises it when it runs.
    """
    seeds = [param(f"d_{at}", kind) for at, kind in enumerate(rule.results)]
    cotangents = [
        TracedTensor(seed, trace)
        if is_differentiable(seed.dtype)
        else zeros(seed.shape, dtype=seed.dtype)
        for seed in seeds
    ]
    name = f"{rule.name}.backward"
    state = trace.state
    held = {} if state is None else state.written()
    try:
        with _observed(trace) as made:
            gradients = rule.pull(cotangents)
            outputs = [trace.node_of(g) for g in gradients if g is not None]
        if state is not None:
            _refuse_writes(rule, held, state.written())
    except Exception as error:  # the rule is the user's; raised where it is needed
        return _failing(name, rule, seeds, note_error(error))
    finally:
        if state is not None:
            state.put_back(held)  # a tape inside calls the rule again
    residuals = _residuals(outputs, made, seeds)
    for node in arguments:  # a size may stand in an argument alone
        if not node.tensor_type.is_static and node not in residuals:
            residuals.append(node)
    backward = Graph(name, (*residuals, *seeds), outputs)
    forward = _forward(rule, backward, len(residuals))
    connected = tuple(g is not None for g in gradients)
    return backward, forward, residuals, connected


def _refuse_writes(rule: PythonRule, before: Any, after: Any) -> None:
    """A Graph of gradients computes and changes nothing."""
    written = [key for key, (last, _) in after.items() if last is not None]
    if any(before.get(key, (None,))[0] is not after[key][0] for key in written):
        raise UnsupportedError(
            f"the grad_fn of {rule.name} assigns to a variable or draws random "
            "numbers, which a tape around a traced function cannot repeat",
            help="open the tape inside the function, or draw outside grad_fn",
        )


def _failing(name: str, rule: PythonRule, seeds: Sequence[Node], error: str) -> Graphs:
    """Graphs that raise, in the place of those that could not be traced."""
    connected = (True,) * len(rule.arguments)
    tangents = [param(f"t_{at}", kind) for at, kind in enumerate(rule.arguments)]
    wanted = [kind for kind in rule.results if is_differentiable(kind.dtype)]
    backward = failing(name, seeds, rule.arguments, error)
    forward = failing(name, tangents, wanted, error)
    return backward, forward, [], connected


def failing(
    name: str, inputs: Sequence[Node], types: Sequence[TensorType], error: str
) -> Graph:
    """A Graph that raises instead of giving results of these types."""
    raised = failed(
        *inputs,
        error=error,
        shapes=tuple(kind.shape for kind in types),
        dtypes=tuple(kind.dtype for kind in types),
    )
    return Graph(name, inputs, results_of(raised))


def _residuals(
    outputs: Sequence[Node], made: set[Node], seeds: Sequence[Node]
) -> list[Node]:
    """What the Nodes made for `outputs` look at and were there before."""
    before: dict[Node, None] = {}
    waiting, seen = list(outputs), set(seeds)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in made or node.op is LITERAL:
            waiting.extend(node.inputs)
        else:
            before[node] = None
    return list(before)


def _forward(rule: PythonRule, backward: Graph, residuals: int) -> Graph:
    """The rule for tangents, one that raises if the gradient is not linear."""
    seeds = backward.inputs[residuals:]
    try:
        check_nodes(rule.name, rule.line, backward.nodes, seeds, backward.outputs)
    except NotDifferentiableError as error:
        tangents = [param(f"t_{at}", x.type) for at, x in enumerate(backward.outputs)]
        inputs = (*backward.inputs[:residuals], *tangents)
        wanted = [x.tensor_type for x in seeds if is_differentiable(x.dtype)]
        return failing(_forward_name(backward), inputs, wanted, note_error(error))
    return _transposed(backward, residuals)


def _forward_name(backward: Graph) -> str:
    return backward.name.replace("backward", "forward")


def _transposed(backward: Graph, residuals: int) -> Graph:
    """From the tangents of connected arguments to those of the results."""
    seeds = backward.inputs[residuals:]
    wanted = [x for x in seeds if is_differentiable(x.dtype)]
    tangents = [param(f"t_{at}", x.type) for at, x in enumerate(backward.outputs)]
    order = topological_order(backward.outputs, stop=frozenset(backward.inputs))
    found = vjp(order, targets=backward.outputs, seeds=tangents, sources=wanted)
    ends = [materialize(g, x.type) for g, x in zip(found, wanted, strict=True)]
    inputs = (*backward.inputs[:residuals], *tangents)
    name = _forward_name(backward)
    if set(seeds).isdisjoint(topological_order(ends)):
        return Graph(name, inputs, ends)
    # The adjoint of a call takes all that the call took. What it makes of the seeds
    # is not used, since the gradient is linear: zeros will do, as in `push`.
    body = Graph(name, (*inputs, *seeds), ends)
    nothing = [materialize(None, x.type) for x in seeds]
    return Graph(name, inputs, results_of(call(*inputs, *nothing, graph=body)))


class Maker(Observer):
    """Notes the Nodes that are made in a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.made: set[Node] = set()
        self.pending: dict[int, Any] = {}

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """An operation was performed, on traced tensors or on concrete ones."""
        for part in result if type(result) is tuple else (result,):
            if isinstance(part, TracedTensor):
                self.made.add(part._value)
                if part._value.op is item:
                    self.made.add(part._value.inputs[0])

    def note_read(self, variable: Any, tensor: Tensor) -> None:
        """A variable that is read has a Node of its own already."""


@contextmanager
def _observed(trace: Trace) -> Iterator[set[Node]]:
    """What runs inside is recorded by no tape; the Nodes it makes are noted."""
    maker: Any = Maker(trace)
    watcher = getattr(trace.state, "watcher", None)
    token = TAPES.set((maker,) if watcher is None else (watcher, maker))
    effects = len(trace.effects)
    try:
        yield maker.made
    finally:
        del trace.effects[effects:]
        TAPES.reset(token)


__all__ = ["failing", "offer_traced"]
