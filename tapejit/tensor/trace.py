"""One symbolic run of a function: what it does, as a Graph.

While a function is traced its arguments are TracedTensors, whose value is a Node.
Operations on them make Nodes; concrete Tensors that meet them are captured as further
inputs of the Graph, so tapes outside still see them when the Graph is run. Effects are
noted in their order and become Nodes when the trace ends.

This is the trace of `vmap`: one row, whose values do not exist. That of a decorated
function, which has state and values beside it, is in `tracing.trace`.

Start reading at `trace`, then `run_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit import ir, ops
from tapejit.base import tree
from tapejit.base.config import MIXED, NUMERICS, config
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    TapejitError,
    UnsupportedError,
)
from tapejit.base.origin import Labelled, Origin, user_origin
from tapejit.base.types import TOKEN, TensorType, TupleType
from tapejit.ir.graph import Graph
from tapejit.ir.interpret import has_dims, perform
from tapejit.ir.node import (
    LITERAL,
    ORIGIN,
    PARAM,
    Derived,
    Node,
    Op,
    literal,
    origin_of,
    param,
)
from tapejit.ir.numerics import run_checked
from tapejit.ir.structural import first_token, item, results
from tapejit.ops.custom_rules import CALLING, raise_failure
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tensor.device import CPU, device, move
from tapejit.tensor.dispatch import (
    TAPES,
    TRACE,
    apply,
    apply_traced,
    described_node,
    effect,
    leaked,
)
from tapejit.tensor.mutation import GivenArguments
from tapejit.tensor.scope import returned
from tapejit.tensor.tensor import (
    CONSTANT,
    DeviceTensor,
    Provenance,
    Tensor,
    TracedTensor,
)

if TYPE_CHECKING:
    from tapejit.tracing.trace import FunctionTrace


class TracePlacement:
    """Where a traced function runs: on the device of all of its inputs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device: device | None = None
        self.what = ""

    def note(self, device: device, what: str) -> None:
        """An input is on a device; ArgumentError if another is elsewhere."""
        if self.device is None:
            self.device, self.what = device, what
        elif self.device != device:
            raise ArgumentError(
                f"{self.name} runs on one device: {self.what} is on {self.device}, "
                f"{what} on {device}",
                help=f'move one of them before the call: .to("{self.device}") or '
                f'.to("{device}")',
            )


class Trace:
    """The Nodes of one function under way, and the tensors it captured.

    outer     the trace around this one, if any
    captures  id -> the concrete Tensors used, with the Nodes that stand for them
    effects   what happens beside the results, in order
    is_over   set at the end: a tensor of this trace used later has leaked
    label     the function the user has called, if errors are named after it
    placement where it runs
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.outer: Trace | None = TRACE.get()
        self.captures: dict[int, tuple[Tensor, Node]] = {}
        self.effects: list[tuple[Op, tuple[Node, ...], dict[str, Any], Any]] = []
        self.is_over = False
        self.label: str | None = None
        self.placement = TracePlacement(name)

    holds_state = False  # whether variables can be given this trace's tensors
    is_transparent = False  # whether draws are those of what is around

    def refused(self, variable: str, method: str) -> TapejitError:
        """The error for a tensor of a trace without state that is assigned."""
        return UnsupportedError(
            f"{variable} cannot be assigned while a function is mapped",
            op=method,
            help="return the value and assign it outside",
        )

    @property
    def device(self) -> device:
        """Where its tensors are."""
        found = self.placement.device
        if found is None:
            return CPU if self.outer is None else self.outer.device
        return found

    @property
    def is_placed(self) -> bool:
        """Whether it is known where its tensors are."""
        if self.placement.device is not None:
            return True
        return self.outer is not None and self.outer.is_placed

    @property
    def state(self) -> FunctionTrace | None:
        """The trace that variables are read from and written to."""
        return None if self.outer is None else self.outer.state

    def parameter(self, name: str, type: TensorType) -> TracedTensor:
        """A new argument of the function."""
        if self.state is not None:
            type = type.with_shape(self.state.facts.plain(type.shape))
        return TracedTensor(
            param(name, type), self, Provenance(f"argument {name}", None)
        )

    def shape_of(self, node: Node) -> tuple[Any, ...]:
        """The shape of a Node, as the traced function meets it."""
        shape: tuple[Any, ...] = node.shape
        state = self.state
        if state is None or not state.facts.actual:
            return shape
        return state.facts.shape(shape)

    def prepared(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]
    ) -> tuple[Sequence[Tensor], dict[str, Any]]:
        """Operands and attributes with the symbolic sizes that the op needs."""
        state = self.state
        if state is None or not state.facts.actual:
            return inputs, attrs
        return state.facts.prepared(op, inputs, attrs)

    def node_of(self, x: Tensor) -> Node:
        """The Node that stands for a tensor in this trace."""
        if isinstance(x, TracedTensor):
            if x._trace is self:
                return x._value
            if x._trace.is_over:
                raise leaked(x)
        if type(x) is Tensor and not x._id and not x.shape:
            return literal(x._value, x.dtype)  # no tape knows it: a plain number
        found = self.captures.get(id(x))
        if found is None:
            found = (x, param(f"captured_{len(self.captures)}", x._type))
            self.captures[id(x)] = found  # holds x, so that its id stays its own
        return found[1]

    def effect(self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]) -> None:
        """Note an effect, to happen when the Graph runs."""
        nodes = tuple(self.node_of(x) for x in inputs)
        if self.state is not None:
            attrs = {key: self.state.facts.plain(x) for key, x in attrs.items()}
        self.effects.append((op, nodes, attrs, user_origin(3)))

    def chain(self, token: Node | None = None) -> Node | None:
        """The effects as Nodes, each after the one before; the last of them."""
        for op, nodes, attrs, origin in self.effects:
            with origin_of(origin):
                token = op(*nodes, token or first_token(), **attrs)
        return token

    def needs_value(self, x: TracedTensor, what: str) -> Any:
        """A value that Python asks for: a row of a batch has none of its own."""
        raise ArgumentTypeError(
            f"{what} needs the value of a tensor that is being traced by {self.name}",
            help="values are not known while a function is mapped: use tj.where for "
            "a choice per element, or take this step outside the function",
        )

    def ask(self, x: TracedTensor, kind: str) -> Any:
        """A value that Python decides on: `bool`, `int` or `index`."""
        return self.needs_value(x, f"{kind}()")

    def number(self, x: TracedTensor, what: str) -> int:
        """An integer without axes on which the shape of a result depends."""
        return int(self.needs_value(x, what))

    def count_true(self, mask: TracedTensor, what: str) -> int:
        """How many elements a mask selects."""
        return int(np.count_nonzero(self.needs_value(mask, what)))

    def record(
        self,
        op: Op,
        nodes: Sequence[Node],
        attrs: dict[str, Any],
        origin: Origin | Derived | None = None,
    ) -> Any:
        """Perform an op symbolically."""
        if origin is None:
            origin = ORIGIN.get() or user_origin(3)
        if self.label is not None and type(origin) is tuple:
            origin = Labelled(origin, self.label)
        with origin_of(origin):
            node = op(*nodes, **attrs)
        made = Provenance(op.name, origin if isinstance(origin, tuple) else None)
        if isinstance(node.type, TupleType):
            return tuple(TracedTensor(part, self, made) for part in results(node))
        return TracedTensor(node, self, made)


def trace(
    function: Callable[..., Any],
    arguments: Sequence[TensorType],
    rebuild: Any,
    under_way: Trace | None = None,
) -> tuple[Graph, list[Tensor], tree.Structure]:
    """Run `function` symbolically.

    `rebuild` makes the function's arguments from the traced leaves. Returns the Graph
    (captured tensors are its last inputs), those tensors, and the structure of the
    results.
    """
    if under_way is None:
        under_way = Trace(getattr(function, "__name__", type(function).__name__))
    leaves = [under_way.parameter(f"x{at}", kind) for at, kind in enumerate(arguments)]
    token = TRACE.set(under_way)
    try:
        args, kwargs = rebuild(leaves)
        given = GivenArguments((args, kwargs))
        found = function(*args, **kwargs)
        given.check_unchanged(function)
        results, structure = tree.flatten(found)
        outputs = [under_way.node_of(result_tensor(x, under_way)) for x in results]
    finally:
        TRACE.reset(token)
        under_way.is_over = True
    captured = list(under_way.captures.values())
    inputs = [leaf._value for leaf in leaves] + [node for _, node in captured]
    graph = Graph(under_way.name, inputs, outputs, under_way.chain())
    if config.current().check:
        ir.check_graph(graph)
    return graph, [tensor for tensor, _ in captured], structure


def beginnings(
    ends: Sequence[Node], mark: int, inside: Iterable[Node], starts: Collection[Node]
) -> list[Node]:
    """Where the values that `ends` are made of come from, in a fixed order.

    These are the Nodes from before `mark`, a serial number, parameters, and `starts`.
    Nothing is looked for behind those `inside`. A projection is as old as what it is
    of: it is made when it is used.
    """
    found: dict[Node, None] = {}
    seen = set(inside)
    waiting = list(reversed(ends))
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        whole = node.inputs[0] if node.op is item else node
        is_outside = whole.serial < mark or node.op is PARAM
        if node in starts or (is_outside and node.op is not LITERAL):
            found[node] = None
        else:
            waiting.extend(reversed(node.inputs))
    return list(found)


def result_tensor(x: Any, under_way: Trace) -> Tensor:
    """What a traced function returned, as a tensor."""
    try:
        return returned(x, under_way.name)
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
    if DEVICE_ARRAYS and is_elsewhere(graph, inputs):
        return _run_on_devices(graph, inputs)
    values = [x._value for x in inputs]
    inputs.clear()  # so that the program can let go of each value after its last use
    program = graph.program
    try:
        if NUMERICS and config.check_numerics:
            found = run_checked(program, values)
        else:
            found = program.run(values)
    except TapejitError as error:
        node = program.failed_node(error)
        if node is None:
            raise
        raise described_node(error, node) from None
    return [Tensor(value) for value in found]


def is_elsewhere(graph: Graph, inputs: Sequence[Tensor]) -> bool:
    """Whether values of a Graph are on a device, or go there."""
    for x in inputs:
        is_rule = x.dtype.kind == "O"  # of a gradient: it knows where it belongs
        if type(x) is DeviceTensor or (is_rule and x._value.device != CPU):
            return True
    return any(node.op is ops.to_device for node in graph.nodes)


def _run_on_devices(graph: Graph, inputs: list[Tensor]) -> list[Tensor]:
    """All at once if one device has kernels for all of it, else Node by Node."""
    from tapejit.tensor.on_device import run_at_once

    found = run_at_once(graph, inputs)
    return _run_observed(graph, inputs) if found is None else found


def is_observed(inputs: Sequence[Tensor]) -> bool:
    """Whether a tape of this thread or a trace would see operations on `inputs`."""
    if TRACE.get() is not None or any(isinstance(x, TracedTensor) for x in inputs):
        return True
    thread = get_ident()
    return any(tape.thread == thread for tape in TAPES.get())


def _run_observed(graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    raise_failure(graph)  # where it is asked for, traced or not
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))
    perform(graph.nodes, values, _performed)
    return [values[node] for node in graph.outputs]


def _performed(node: Node, operands: list[Any]) -> Any:
    """A Node in the sight of whoever is recording: a Tensor, or several."""
    if node.op is LITERAL:
        return Tensor(node.attrs["value"][()], CONSTANT)
    if node.op is ops.to_device:
        return move(operands[0], node.attrs["target"])
    if node.op is item:
        return operands[0][node.attrs["index"]]
    if node.op in CALLING:
        rule, *rest = operands
        return rule._value.perform(node.op.name, rest, node.attrs)
    if node.type is TOKEN:
        if operands:
            try:
                effect(node.op, *operands[:-1], **node.attrs)
            except TapejitError as error:
                raise described_node(error, node) from None
        return None
    with origin_of(node.origin):
        if has_dims(node):  # also of tensors that have no symbolic sizes
            return apply_traced(node.op, operands, dict(node.attrs))
        if MIXED and node.op.precision is not None:
            from tapejit.tensor.mixed_precision import unconverted

            with unconverted():
                return apply(node.op, *operands, **node.attrs)
        return apply(node.op, *operands, **node.attrs)
