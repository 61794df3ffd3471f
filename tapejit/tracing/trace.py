"""The trace of a decorated function: state, guards, and values beside it.

A `FunctionTrace` runs a Python body once on TracedTensors and gathers what a Graph of
the whole step needs:

- variables are `Slot`s: their value at entry is an input, their value at the end, if
  they were written, an output; reads and writes in between keep the program's order;
- concrete tensors that the body reaches are inputs too, unless nobody else refers to
  them, which makes them literals. Operations on them are seen by a `Watcher` among the
  tapes, so a gradient of them is found whether the call traces or not;
- a value that Python asks for is computed beside the trace, on the actual arguments,
  each Node at most once and without effects. `bool`, `int`, `index`, and the sizes
  that masks and the like decide, become guards: the Graph holds for calls that give
  the same answers. Any other use of a value means that the function cannot be a
  Graph, `needs` says where.

Start reading at `run_traced`, then `FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Final
from weakref import ref

import numpy as np

from tapejit import ir, ops
from tapejit.base import tree
from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, TapejitError, VariableError
from tapejit.base.numpy_adapter import restore, silence
from tapejit.base.origin import Origin, describe, user_origin
from tapejit.base.types import TensorType, TupleType
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.interpret import bind_dims, has_dims, perform
from tapejit.ir.node import (
    LITERAL,
    OPS,
    ORIGIN,
    PARAM,
    Derived,
    Node,
    Op,
    literal,
    origin_of,
    param,
)
from tapejit.ir.structural import first_token, guard, read, require, reread, results
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tape.variable import Variable
from tapejit.tensor.device import device_of
from tapejit.tensor.dispatch import SCALAR, TAPES, TRACE, described_node, leaked
from tapejit.tensor.symbolic_size import SizeFacts
from tapejit.tensor.tensor import DeviceTensor, Provenance, Tensor, TracedTensor
from tapejit.tensor.trace import Trace, result_tensor

# A constant that only the trace refers to is part of the Graph up to this size.
LITERAL_BYTES: Final = 1 << 16
FEWEST_COUNTED: Final = 64  # numbers; fewer are found in the literal they are


class Slot:
    """What a function does with one variable.

    `entry` is the Node of its value at the start, `exit` that of the value assigned
    last; `tensor` stands for its value now; `may_end` says that the variable was made
    here and need not outlive the call.
    """

    __slots__ = (*("entry", "exit", "may_end", "tensor", "variable", "was_read"),)

    def __init__(
        self, variable: Variable, trace: FunctionTrace, initial: Node | None = None
    ) -> None:
        held = variable._tensor
        self.variable: Any = variable
        if initial is None:
            self.entry = param(variable._name, held._type)
        else:
            self.entry = read(initial)  # a Graph looks behind it if it is no input
        self.exit: Node | None = None
        made = Provenance("variable", None, variable._name)
        self.tensor = TracedTensor(self.entry, trace, made)
        self.was_read = False
        self.may_end = initial is not None


class Watcher:
    """Sees, among the tapes, what the body does with concrete tensors."""

    def __init__(self, trace: FunctionTrace) -> None:
        self.owner = trace
        self.thread = get_ident()
        self.trace = None
        self.nodes: dict[int, Node] = {}
        self.pending: dict[int, Variable] = {}

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """An operation on concrete tensors was performed."""
        if self.thread == get_ident():
            self.owner.derive(op, inputs, attrs, result)

    def tracks(self, x: Tensor) -> bool:
        """No gradient is taken here."""
        return False

    def note_read(self, variable: Variable, tensor: Tensor) -> None:
        """Reads go through the trace's slots."""


class FunctionTrace(Trace):
    """One symbolic run of a decorated function.

    slots    id -> Slot, for every variable that was touched
    pinned   ids of variables that mattered as such: no other can take their place
    facts_seen  id -> the attributes of a variable that were asked for
    values   Node -> array: what is known beside the trace
    derived  id -> concrete results of operations in the body, with their Nodes
    guards   the questions asked, their answers, and where they were asked
    known    answers of an earlier run that led here, in order
    created  the variables the body made, where, and whether that took state
    asked    the positions of float arguments whose value was asked for
    needs    what needed a value that cannot be guarded, and where
    facts    what is known of symbolic sizes
    arrays   the NumPy arrays that were indexed, with the tensors that stand for them
    unread   id -> what assignments returned and nobody has used yet
    taken    the values that were assigned, and by which method
    """

    holds_state = True

    def __init__(self, name: str, known: Sequence[bool | int] = ()) -> None:
        super().__init__(name)
        self.slots: dict[int, Slot] = {}
        self.pinned: set[int] = set()
        self.facts_seen: dict[int, set[str]] = {}
        self.values: dict[Node, Any] = {}
        self.derived: dict[int, tuple[Tensor, Node]] = {}
        self.guards: list[tuple[Node, bool | int, Origin | None]] = []
        self.answers: dict[tuple[Node, str], Any] = {}
        self.known = tuple(known)
        self.created: list[tuple[ref[Variable], Origin | None, bool]] = []
        self.asked: set[int] = set()
        self.needs: tuple[str, Origin | None] | None = None
        self.facts = SizeFacts(self)
        self.arrays: dict[Any, tuple[Any, Tensor]] = {}
        self.unread: dict[int, tuple[TracedTensor, Slot]] = {}
        self.taken: list[tuple[Node, str]] = []
        self.serves_once = False
        self.watcher = Watcher(self)

    @property
    def state(self) -> FunctionTrace:
        """This trace: it holds the variables."""
        return self

    def argument(
        self, name: str, type: TensorType, value: Any, made: Provenance | None = None
    ) -> TracedTensor:
        """A new argument and its value in this call, None if nothing is called."""
        x = self.parameter(name, type)
        x._made = made or x._made
        if value is not None:
            self.values[x._value] = value
        return x

    # Concrete tensors

    def node_of(self, x: Tensor) -> Node:
        """The Node that stands for a tensor in this trace."""
        if isinstance(x, TracedTensor):
            if x._trace is not self:
                raise leaked(x)
            if id(x) in self.unread:
                self.unread.pop(id(x))[1].was_read = True
            return x._value
        if x._made is SCALAR:
            return literal(x._value, x.dtype)
        found = self.derived.get(id(x)) or self.captures.get(id(x))
        if type(x) is DeviceTensor and found is None:
            self.placement.note(device_of(x), "a tensor")
            found = (x, param(f"captured_{len(self.captures)}", x._type))
            self.captures[id(x)] = found
            self.values[found[1]] = x._value
        if found is None:
            counting = _counting(x)
            found = (x, counting or _constant(x))
            # Either holds x, so that its id stays its own.
            (self.captures if counting is None else self.derived)[id(x)] = found
        return found[1]

    def derive(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """Give the result of an operation on concrete tensors its Node."""
        if all(x._made is SCALAR for x in inputs):
            return
        nodes = [self.node_of(x) for x in inputs]
        with origin_of(user_origin(4)):
            node = op(*nodes, **attrs)
        if isinstance(node.type, TupleType):
            for part, out in zip(result, results(node), strict=True):
                self.derived[id(part)] = (part, out)
        else:
            self.derived[id(result)] = (result, node)

    def record(
        self,
        op: Op,
        nodes: Sequence[Node],
        attrs: dict[str, Any],
        origin: Origin | Derived | None = None,
    ) -> Any:
        """Perform an op symbolically; one that can fail does so in its turn."""
        if origin is None:
            origin = ORIGIN.get() or user_origin(3)
        out = super().record(op, nodes, attrs, origin)
        if op.can_fail and isinstance(origin, tuple):
            first = out[0] if isinstance(out, tuple) else out
            self.effects.append((require, (first._value,), {}, origin))
        return out

    # Variables

    def slot_of(self, variable: Variable) -> Slot:
        """What is known of a variable here."""
        slot = self.slots.get(id(variable))
        if slot is None:
            if DEVICE_ARRAYS:
                what = f"variable {variable._name!r}"
                self.placement.note(device_of(variable._tensor), what)
            slot = self.slots[id(variable)] = Slot(variable, self)
            self.values[slot.entry] = variable._tensor._value
        return slot

    def read(self, variable: Variable) -> TracedTensor:
        """The value of a variable now."""
        slot = self.slot_of(variable)
        slot.was_read = True
        return slot.tensor

    def write(self, variable: Variable, new: Tensor) -> None:
        """Assign; later reads see the new value, and the variable's gradient."""
        slot = self.slot_of(variable)
        slot.exit = self.node_of(self.facts.restated(new))
        made = Provenance("variable", None, variable._name)
        slot.tensor = TracedTensor(reread(slot.exit, slot.entry), self, made)

    def written(self) -> dict[int, tuple[Node | None, TracedTensor]]:
        """What the variables hold now, for `put_back`."""
        return {key: (slot.exit, slot.tensor) for key, slot in self.slots.items()}

    def put_back(self, written: dict[int, tuple[Node | None, TracedTensor]]) -> None:
        """Undo assignments: an inner function failed, and the body may go on."""
        for key, slot in self.slots.items():
            if key in written:
                slot.exit, slot.tensor = written[key]
            elif slot.exit is not None:
                slot.exit = None
                slot.tensor = TracedTensor(slot.entry, self, slot.tensor._made)

    def assigned(self, variable: Variable, made: Provenance) -> TracedTensor:
        """What an assignment returns: a read of the variable, once it is used."""
        slot = self.slot_of(variable)
        x = TracedTensor(slot.tensor._value, self, made)
        self.unread[id(x)] = (x, slot)
        return x

    def note_taken(self, value: Tensor, name: str) -> None:
        """A value was assigned: tapes around the call may have to be told."""
        is_traced = isinstance(value, TracedTensor)
        node = value._value if is_traced else self.node_of(value)
        self.taken.append((node, name))

    def pin(self, variable: Variable) -> None:
        """The trace depends on which variable this is."""
        self.pinned.add(id(variable))

    def note_created(self, variable: Variable, initial: Node | None) -> None:
        """The body made a variable, which has to outlive it.

        If its initial value took what changes from call to call, as a draw takes
        random numbers, later calls must not: they make no variable, and need a trace
        of their own.
        """
        took = False
        if initial is not None:
            written = {x.entry for x in self.slots.values() if x.exit is not None}
            took = not written.isdisjoint(topological_order([initial]))
        self.created.append((ref(variable), user_origin(3), took))

    def starts_from(self, variable: Variable, initial: Tensor) -> None:
        """A variable just made here may end here: each call makes it of this value."""
        slot = Slot(variable, self, self.node_of(initial))
        self.slots[id(variable)] = slot
        self.values[slot.entry] = variable._tensor._value

    def unrecorded(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of operations that no tape hears of, whatever is mapped here."""
        trace_token = TRACE.set(self)
        tapes_token = TAPES.set((self.watcher,))
        try:
            return function(*args)
        finally:
            TAPES.reset(tapes_token)
            TRACE.reset(trace_token)

    # Values beside the trace

    def value_of(self, node: Node) -> Any:
        """What a Node is on the actual arguments."""
        token = silence()
        try:
            needed = topological_order([node], stop=self.values)
            perform(needed, self.values, self._evaluated)
        finally:
            restore(token)
        found = self.values[node] = host_array(self.values[node])
        return found

    def _evaluated(self, node: Node, inputs: Sequence[Any]) -> Any:
        inputs = [host_array(x) for x in inputs]
        if node.op is LITERAL:
            return node.attrs["value"][()]
        if node.op is PARAM:
            raise ArgumentError(
                f"{self.name} is traced without a call and needs the value of "
                f"{node.name}",
                help="trace it with tensors in place of specs, or decide with tj.where",
            )
        attrs = node.attrs
        if has_dims(node):
            sizes: Any = self.facts.actual
            attrs = {name: bind_dims(x, sizes) for name, x in attrs.items()}
        try:
            return node.op.eval(*inputs, **attrs)
        except Exception as error:  # of any op; raised again, explained
            raise described_node(error, node, self._sources()) from None

    def _sources(self) -> dict[Node, Provenance | None]:
        """Where variables and captured tensors came from, for messages."""
        made = {node: tensor._made for tensor, node in self.captures.values()}
        for slot in self.slots.values():
            made[slot.entry] = slot.variable._tensor._made
        return made

    def ask(self, x: TracedTensor, kind: str) -> Any:
        """The answer to `bool`, `int` or `index`, which becomes a guard."""
        node = x._value
        if (node, kind) in self.answers:
            return self.answers[node, kind]
        question = self._question(node, kind)
        if question is None:
            self.known = ()  # the next of them answered this question, as a guard
            return self.needs_value(x, f"{kind}()").reshape(())[()]
        if len(self.guards) < len(self.known):
            answer = self.known[len(self.guards)]
        else:
            answer = self.value_of(question).item()
        self.guards.append((question, answer, user_origin(4)))
        found = question.dtype.type(answer)
        self.answers[node, kind] = found
        return found

    def guarded(self, question: Node, answer: Any) -> Any:
        """Note a question about sizes; they are known, and so is the answer."""
        asked = len(self.guards)
        if self.known[asked : asked + 1] != (answer,):
            self.known = self.known[:asked]  # those were answers to other questions
        self.guards.append((question, answer, user_origin(4)))
        return answer

    def number(self, x: TracedTensor, what: str) -> int:
        """An integer that decides a size: a guard, like `int`."""
        return int(self.ask(x, "int"))

    def count_true(self, mask: TracedTensor, what: str) -> int:
        """How many elements a mask selects: a guard, asked once for each mask."""
        node = mask._value
        found = self.answers.get((node, "count"))
        if found is None:
            wide = OPS["cast"](node, dtype=np.dtype(np.int64))
            count = OPS["sum"](wide, axes=tuple(range(node.ndim)), keepdims=False)
            found = self.answers[node, "count"] = self.ask(
                TracedTensor(count, self), "int"
            )
        return int(found)

    def _question(self, node: Node, kind: str) -> Node | None:
        """The bool or int64 that decides, None if no such number does.

        The lowest int64 does not: NaN and all that is too large are cast to it.
        """
        wanted = np.dtype(bool if kind == "bool" else np.int64)
        if kind != "bool" and node.dtype.kind not in "bi":
            value = np.asarray(self.value_of(node)).item()
            if not -(2.0**63) < value < 2.0**63:
                return None
        if node.shape:
            node = OPS["reshape"](node, shape=())
        return node if node.dtype == wanted else OPS["cast"](node, dtype=wanted)

    def needs_value(self, x: TracedTensor, what: str) -> Any:
        """A value that no guard can stand for: the trace serves this call only."""
        if self.needs is None:
            self.needs = (what, user_origin(3))
        return np.asarray(self.value_of(x._value))

    # The end

    def perform_effects(self) -> None:
        """What the body printed and checked before it raised; a check may raise first.

        Eagerly it would have happened by then.
        """
        for op, nodes, attrs, origin in self.effects:
            values = [self.value_of(node) for node in nodes]
            try:
                op.eval(*values, None, **attrs)
            except TapejitError as error:
                with origin_of(origin):
                    node = op(*nodes, first_token(), **attrs)
                raise described_node(error, node, self._sources()) from None

    def chain(self, token: Node | None = None) -> Node | None:
        """The guards, then the effects."""
        for question, answer, origin in self.guards:
            with origin_of(origin):
                token = guard(question, token or first_token(), expected=answer)
        return super().chain(token)

    def release(self) -> None:
        """Let go of everything: tensors that leaked may keep the trace alive."""
        del self.watcher.owner
        for table in (
            *(self.slots, self.values, self.derived, self.answers),
            self.unread,
            self.arrays,
        ):
            table.clear()
        self.guards.clear()
        self.effects.clear()

    def check_created(self) -> None:
        """A variable that the body makes must be kept by something outside it."""
        self.watcher.pending.clear()  # would keep what was assigned to
        for variable, origin, took in self.created:
            alive = variable()
            if alive is None:
                continue
            key = id(alive)
            slot = self.slots.get(key)
            if slot is not None:
                slot.variable = None
            del alive
            again = variable()
            if again is None and slot is not None and slot.may_end:
                del self.slots[key]
                continue
            if again is None:
                raise VariableError(
                    f"{self.name} makes a variable that is gone when it returns: "
                    f"{describe(origin)}",
                    help="keep it outside, for example as an attribute that is made "
                    "once: `if self.w is None: self.w = tj.Variable(...)`",
                )
            if slot is not None:
                slot.variable = again
            self.serves_once |= took


def _constant(x: Tensor) -> Node:
    """A concrete tensor as a literal that shares its memory."""
    array = np.asarray(x._value).view()
    array.flags.writeable = False
    return Node(LITERAL, (), {"value": array}, x._type)


class Traced:
    """What a trace found.

    graph       inputs: arguments, variables, captured tensors; outputs: results, then
                the values of written variables
    slots       the variables, in the order of the Graph's inputs
    pinned      ids of variables in whose place no other can be passed
    facts_seen  id -> attributes that another in the place of a variable must share
    creates     whether the body made variables
    captured    the concrete tensors among the inputs
    made        where the captured tensors came from, for messages
    taken       the values that were assigned, and by which method
    answers     the answers its guards demand, and `places`, where they were asked
    adapts_sizes  whether it asks about sizes as they happen to be
    asked       the float arguments whose value was asked for
    needs       what needed a value that cannot be guarded, and where, or None
    serves_once whether the body would do something else in the next call
    structure   of the results
    results     how many there are
    unread      position -> the variable's slot, for results that are what an
                assignment returned and that nobody used
    on_cpu      position -> value, for results on the CPU of what runs on a device
    """

    def __init__(self, trace: FunctionTrace, arguments: Sequence[Node]) -> None:
        self.needs = trace.needs
        self.serves_once = False
        self.asked = frozenset(trace.asked)
        self.arguments = tuple(arguments)
        self.slots: tuple[Slot, ...] = ()
        self.pinned = frozenset(trace.pinned)
        self.facts_seen = dict(trace.facts_seen)
        self.creates = bool(trace.created)
        self.captured: tuple[Tensor, ...] = ()
        self.made: dict[Node, Provenance | None] = {}
        self.taken = tuple(trace.taken)
        self.answers = tuple(answer for _, answer, _ in trace.guards)
        self.places = tuple(origin for _, _, origin in trace.guards)
        self.adapts_sizes = trace.facts.has_adapted
        self.structure: Any = None
        self.results = 0
        self.unread: dict[int, Slot] = {}
        self.on_cpu: dict[int, Any] = {}
        self.graph: Graph


def _run_body(
    trace: FunctionTrace, body: Callable[[], Any]
) -> tuple[tree.Structure, list[Node], dict[int, Slot], dict[int, Any]]:
    """The structure of what `body` returns, its Nodes, which are unread or constant."""
    trace_token = TRACE.set(trace)
    tapes_token = TAPES.set((trace.watcher,))
    try:
        found, structure = tree.flatten(body())
        given = [result_tensor(x, trace) for x in found]
        known = trace.unread
        unread = {at: known[id(x)][1] for at, x in enumerate(given) if id(x) in known}
        outputs = [
            x._value if at in unread else trace.node_of(x) for at, x in enumerate(given)
        ]
        on_cpu = {at: x._value for at, x in enumerate(given) if type(x) is Tensor}
        return structure, outputs, unread, on_cpu if trace.device != "cpu" else {}
    finally:
        TAPES.reset(tapes_token)
        TRACE.reset(trace_token)
        trace.is_over = True


def run_traced(
    trace: FunctionTrace, arguments: Sequence[TracedTensor], body: Callable[[], Any]
) -> Traced:
    """Run `body` in a trace and gather its Graph."""
    try:
        structure, outputs, unread, on_cpu = _run_body(trace, body)
    except BaseException:  # an interrupt too must release what it holds
        try:
            trace.perform_effects()
        finally:
            trace.release()
        raise
    traced = Traced(trace, [x._value for x in arguments])
    traced.structure = structure
    traced.results = len(outputs)
    traced.unread, traced.on_cpu = unread, on_cpu
    trace.check_created()
    traced.serves_once = trace.serves_once
    traced.slots = tuple(trace.slots.values())
    traced.made = {node: tensor._made for tensor, node in trace.captures.values()}
    captures = _still_captured(trace)
    traced.captured = tuple(tensor for tensor, _ in captures)
    inputs = [
        *traced.arguments,
        *(slot.entry for slot in traced.slots),
        *(node for _, node in captures),
    ]
    outputs += [slot.exit for slot in traced.slots if slot.exit is not None]
    traced.graph = Graph(trace.name, inputs, outputs, trace.chain())
    trace.release()
    if config.current().check:
        ir.check_graph(traced.graph)
    return traced


def _counting(x: Tensor) -> Node | None:
    """The Node of a tensor that is 0, 1, 2 ... along its only axis; None for others.

    Who picks an element of each row by such numbers is known to hit each row once.
    """
    long = [size for size in x.shape if size != 1]
    if x.dtype.kind not in "iu" or len(long) != 1 or long[0] < FEWEST_COUNTED:
        return None
    (size,) = long
    numbers = np.asarray(x._value).reshape(-1)
    if numbers[-1] != size - 1 or not np.array_equal(numbers, np.arange(size)):
        return None
    node = ops.iota(size=size)
    if x.dtype != node.dtype:
        node = ops.cast(node, dtype=x.dtype)
    return node if x.shape == (size,) else ops.reshape(node, shape=x.shape)


def host_array(value: Any) -> Any:
    """A value that Python or NumPy asks for: fetched, if it is on a device."""
    return np.asarray(value)[()] if type(value) in DEVICE_ARRAYS else value


def _still_captured(trace: FunctionTrace) -> list[tuple[Tensor, Node]]:
    """The captured tensors that somebody else refers to, or that are large.

    A tape can only watch what somebody refers to: the rest are constants.
    """
    known = list(trace.captures.values())
    kept: list[tuple[Tensor, Node]] = []
    kept += [(x, node) for x, node in known if type(x) is DeviceTensor]
    weak = [(ref(x), node) for x, node in known if type(x) is not DeviceTensor]
    del known
    trace.captures.clear()
    trace.derived.clear()
    for tensor, node in weak:
        alive = tensor()
        if alive is not None:
            kept.append((alive, node))
        elif node.attrs["value"].nbytes > LITERAL_BYTES:
            kept.append((Tensor(node.attrs["value"]), node))
    return kept
