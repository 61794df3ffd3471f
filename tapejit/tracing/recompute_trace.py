"""recompute_grad in a traced function.

The function is traced as usual, while no tape is looking. The Nodes that this made are
its body; Nodes that were there before, values of variables and captured tensors are
where the body begins. The call becomes one Node of `custom_call`. Its residuals are
those beginnings and nothing in between; its `backward` is a copy of the body on
`recomputed` beginnings, and the adjoint of the copy. So the values of the first run go
when the first run ends, whoever asks for the gradient, a tape in the trace or one
around the traced function.

The copy is made of Nodes, Python runs once: what the function prints, checks, asks and
assigns happens in the first run alone, and draws of the copy begin with the state that
the first run began with.

Start reading at `call_traced`, then `Body`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tapejit.base import tree
from tapejit.base.errors import TapejitError
from tapejit.base.types import is_differentiable
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import LITERAL, PARAM, Node, Op, param
from tapejit.ir.structural import first_token, item, recomputed
from tapejit.ir.structural import results as results_of
from tapejit.ops.arithmetic import stop_gradient
from tapejit.ops.custom_rules import Flags, Ways, custom_call, note_error, terms
from tapejit.tape.custom_trace import failing
from tapejit.tape.variable import Variable, warn_tracked
from tapejit.tensor.dispatch import TAPES, apply, as_operand
from tapejit.tensor.recorder import Observer
from tapejit.tensor.tensor import Tensor, TracedTensor
from tapejit.tracing.path import assigns_tracked
from tapejit.tracing.trace import FunctionTrace
from tapejit.transforms.jvp import jvp
from tapejit.transforms.partition import size_carriers
from tapejit.transforms.vjp import Cotangent, materialize, vjp


def call_traced(
    trace: FunctionTrace,
    name: str,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> Any:
    """Call a function whose values are computed again for its gradient."""
    bystander = Bystander(trace)
    with bystander.watching():
        found, structure = tree.flatten(function(*args, **kwargs))
        values = [as_operand(x, name) for x in found]
        ends = [trace.node_of(x) for x in values]
        bystander.note_used(values)
    body = Body(name, ends, bystander.beginnings(ends))
    bystander.tell(body.starts)
    if not any(body.connected):
        return tree.unflatten(structure, values)  # constants to every tape
    attrs = {
        "backward": body.backward,
        "forward": body.forward,
        "connected": body.connected,
        "depends": body.depends,
        "results": len(ends),
    }
    starts = bystander.tensors_of(body.starts)
    bystander.warn(body.starts, starts)
    operands = [
        x for x, node in zip(starts, body.starts, strict=True) if _is_path(node)
    ]
    operands += starts
    operands += [TracedTensor(node, trace) for node in body.carriers]
    operands += [apply(stop_gradient, x) for x in values]
    results = trace.record(custom_call, [trace.node_of(x) for x in operands], attrs)
    for tape in TAPES.get():
        if tape.trace is trace:
            tape.record(custom_call, operands, attrs, results)
    return tree.unflatten(structure, list(results))


def _is_path(node: Node) -> bool:
    return is_differentiable(node.dtype)


class Bystander(Observer):
    """Stands in the place of the tapes while the function is traced.

    mark     the Nodes with a smaller serial were there before
    held     what the variables held then
    reads    id of a Variable -> the Variable, for those that were read
    used     Node -> a traced tensor that stood for it in an operation
    pending  Tensor id -> Variable, for results of assignments
    taken    the values that were assigned, and by which method
    """

    def __init__(self, trace: FunctionTrace) -> None:
        self.trace = trace
        self.mark = first_token().serial
        self.held = {key: slot.tensor for key, slot in trace.slots.items()}
        self.reads: dict[int, Variable] = {}
        self.used: dict[Node, TracedTensor] = {}
        self.pending: dict[int, Variable] = {}
        self.taken: list[tuple[Node, str]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """What runs inside is seen by the trace and by this, and by no tape."""
        around = TAPES.get()
        taken = len(self.trace.taken)
        tapes: Any = (self.trace.watcher, self)
        TAPES.set(tapes)
        try:
            yield
        finally:
            TAPES.set(tuple([tape for tape in around if tape.thread is not None]))
            self.taken = self.trace.taken[taken:]

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """An operation was performed."""
        self.note_used(inputs)

    def note_used(self, tensors: Sequence[Tensor]) -> None:
        """Tensors are operands, or results."""
        for x in tensors:
            if isinstance(x, TracedTensor):
                before = self.used.get(x._value)
                if before is None or not before._id:  # rather one that has a name
                    self.used[x._value] = x
            variable = self.pending.get(x._id)
            if variable is not None:
                self.reads[id(variable)] = variable

    def note_read(self, variable: Variable, tensor: Tensor) -> None:
        """A variable was read."""
        self.reads[id(variable)] = variable

    def beginnings(self, ends: Sequence[Node]) -> list[Node]:
        """Where the values that `ends` are made of come from, in a fixed order."""
        captured = {node for _, node in self.trace.captures.values()}
        entries = {slot.entry for slot in self.trace.slots.values()}
        found: dict[Node, None] = {}
        seen: set[Node] = set()
        waiting = list(reversed(ends))
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            is_outside = self._was_there(node) or node.op is PARAM or node in entries
            if node in captured or (is_outside and node.op is not LITERAL):
                found[node] = None
            else:
                waiting.extend(reversed(node.inputs))
        return list(found)

    def _was_there(self, node: Node) -> bool:
        """A projection is as old as what it is of: it is made when it is used."""
        whole = node.inputs[0] if node.op is item else node
        return whole.serial < self.mark

    def tell(self, starts: Sequence[Node]) -> None:
        """Tell the tapes which variables were read, and of assignments.

        The starts that stand for a variable are its reads: the value it held before,
        and that at entry, which a read after an assignment inside belongs to.
        """
        for key, variable in self.reads.items():
            entry = TracedTensor(self.trace.slots[key].entry, self.trace)
            held = self.held.get(key, entry)
            self._read(variable, held)
            if held is not entry and entry._value in starts:
                self._read(variable, entry)
        for tape in TAPES.get():
            tape.pending.update(self.pending)

    def _read(self, variable: Variable, tensor: TracedTensor) -> None:
        self.used[tensor._value] = tensor
        variable._note_read(tensor)

    def warn(self, starts: Sequence[Node], tensors: Sequence[Tensor]) -> None:
        """Warn if something was assigned that a tape would have tracked."""
        tracked = [
            node
            for node, x in zip(starts, tensors, strict=True)
            if any(tape.tracks(x) for tape in TAPES.get())
        ]
        assigned = assigns_tracked(self.taken, tracked)
        if assigned is not None:
            warn_tracked(assigned)

    def tensors_of(self, nodes: Sequence[Node]) -> list[Tensor]:
        """The tensors by which tapes know what Nodes stand for."""
        known: dict[Node, Tensor] = dict(self.used)
        for table in (self.trace.derived, self.trace.captures):
            known.update((node, tensor) for tensor, node in table.values())
        return [known.get(x, TracedTensor(x, self.trace)) for x in nodes]


class Body:
    """What was traced between `starts` and `ends`, and its derivatives.

    depends     per start that is floating point, the ends it has a gradient from
    connected   whether there are any
    carriers    further residuals, which tell the Graphs their symbolic sizes
    backward    from starts, carriers and cotangents to gradients, computing again
    forward     from starts, carriers and tangents to tangents
    """

    def __init__(self, name: str, ends: Sequence[Node], starts: Sequence[Node]) -> None:
        self.name = name
        self.starts = list(starts)
        self.ends = list(ends)
        self.nodes = topological_order(ends, stop=frozenset(starts))
        self.carriers = size_carriers(starts, (*self.nodes, *ends))
        self.paths = [at for at, node in enumerate(ends) if _is_path(node)]
        self.depends: Ways
        self.backward = self._backward()
        self.connected: Flags = tuple(map(bool, self.depends))
        self.forward = self._forward()

    def _inputs(self) -> list[Node]:
        """New parameters for the starts and the carriers."""
        return [
            param(node.name or f"x{at}", node.type)
            for at, node in enumerate((*self.starts, *self.carriers))
        ]

    def _copied(self, starts: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """The Nodes and the ends once more, from other starts."""
        now: dict[Node, Node] = dict(zip(self.starts, starts, strict=True))
        for node in self.nodes:
            if node.op is LITERAL:
                now[node] = node
            elif node.op is item:
                now[node] = results_of(now[node.inputs[0]])[node.attrs["index"]]
            else:
                inputs = tuple([now[x] for x in node.inputs])
                now[node] = Node(node.op, inputs, node.attrs, node.type, node.origin)
        return [now[x] for x in self.nodes], [now[x] for x in self.ends]

    def _backward(self) -> Graph:
        inputs = self._inputs()
        seeds = [param(f"d_{at}", x.type) for at, x in enumerate(self.ends)]
        after = [seed for seed in seeds if _is_path(seed)]
        starts = [recomputed(x, *after) for x in inputs[: len(self.starts)]]
        sources = [x for x in starts if _is_path(x)]
        name = f"{self.name}.backward"

        def pull(places: Sequence[int]) -> Sequence[Cotangent]:
            targets, given = [ends[at] for at in places], [seeds[at] for at in places]
            return vjp(nodes, targets=targets, seeds=given, sources=sources)

        try:
            nodes, ends = self._copied(starts)
            whole = pull(self.paths)
            is_one = len(self.paths) == 1
            alone = {at: whole if is_one else pull([at]) for at in self.paths}
        except TapejitError as error:  # of whoever asks for the gradient
            self.depends = (tuple(self.paths),) * len(sources)
            types = [sources[at].tensor_type for at, _ in terms(self.depends)]
            return failing(name, [*inputs, *seeds], types, note_error(error))
        self.depends = tuple(
            tuple(result for result, found in alone.items() if found[at] is not None)
            for at in range(len(sources))
        )
        gradients = []
        for at, result in terms(self.depends):
            found = whole if result is None else alone[result]
            gradients.append(materialize(found[at], sources[at].type))
        return Graph(name, (*inputs, *seeds), gradients)

    def _forward(self) -> Graph:
        inputs = self._inputs()
        starts = inputs[: len(self.starts)]
        paths = [x for x in starts if _is_path(x)]
        sources = [x for x, flag in zip(paths, self.connected, strict=True) if flag]
        tangents = [param(f"t_{at}", x.type) for at, x in enumerate(sources)]
        name = f"{self.name}.forward"
        types = [x.tensor_type for x in self.ends if _is_path(x)]
        try:
            nodes, ends = self._copied(starts)
            found = jvp(
                nodes,
                sources=sources,
                tangents=tangents,
                targets=[x for x in ends if _is_path(x)],
            )
        except TapejitError as error:
            return failing(name, [*inputs, *tangents], types, note_error(error))
        outputs = [materialize(t, x) for t, x in zip(found, types, strict=True)]
        return Graph(name, (*inputs, *tangents), outputs)


__all__ = ["call_traced"]
