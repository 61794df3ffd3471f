"""What a tape records, and how it recognises what it has recorded before.

A Recording maps the ids of Tensors to Nodes and keeps the Tensors whose values its
derivative rules look at, no others. The Nodes come from a trie shared by all tapes:
each state of it is "the program recorded so far", and recording an operation is one
look-up of (op, attributes, user's line, operands) that leads to the next state. The
second time a training step runs, no Node is made, no type rule runs, and the adjoint
Graph that belongs to the last state is already there. Each state remembers which one
came next the last time: comparing with that one, mostly by identity, saves a quarter
of a microsecond against the look-up.

Every leaf that is not recorded itself (a constant, a batch of data, a Python number)
is a parameter of its type, so the values of a step do not matter to the trie.

Start reading at `Recording.record`, then `TrieState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import _getframe
from threading import Lock, get_ident
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from tapejit.base.origin import Origin, instruction_start, is_internal
from tapejit.base.types import TupleType, is_differentiable
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node, Op, param
from tapejit.ir.structural import call, read, results
from tapejit.tensor.dispatch import TRACE
from tapejit.tensor.tensor import Tensor, next_id
from tapejit.transforms.vjp import carries_gradient, needed_values, reached_from

if TYPE_CHECKING:
    from tapejit.tape.variable import Variable

MAX_STATES: Final = 50_000  # about a kilobyte each


class TrieState:
    """A point in the trie: the program recorded so far.

    `node` is what the last step recorded, `items` its projections if it has several
    results. `saves` says which operands to keep, as pairs of a Node and a position;
    `keeps_result` whether the result; `cut` holds the Nodes that no gradient can pass.
    `constants` are the results of a call that nothing recorded goes into. `is_plain`
    is the usual case: one result, not cut. `plans` holds the adjoint Graphs asked for
    at this point.

    `likely` is the state that followed the last time. To be recognised, a state says
    what led to it: `op`, `first` and `second` (one operand and ABSENT; two; more as a
    tuple and ABSENT: a Node each, or the type of a leaf), `attrs`, and the user's
    line as `code` and `offset`. Whatever offset a thread writes there leads here. If
    one of two operands is a leaf, `dtype` and `shape` say its type once more, to be
    compared without making a key.
    """

    __slots__ = (
        "attrs",
        "code",
        "constants",
        "cut",
        "dtype",
        "first",
        "is_plain",
        "items",
        "keeps_result",
        "likely",
        "next",
        "node",
        "offset",
        "op",
        "plans",
        "saves",
        "second",
        "shape",
    )

    def __init__(
        self,
        node: Node | None = None,
        items: tuple[Node, ...] = (),
        saves: tuple[tuple[Node, int], ...] = (),
        *,
        keeps_result: bool = False,
        cut: tuple[Node, ...] = (),
    ) -> None:
        self.node = node
        self.keeps_result = keeps_result
        self.cut = cut
        self.constants: frozenset[Node] = frozenset()
        self.is_plain = not items and not cut
        self.items = items
        self.saves = saves
        self.op: Op | None = None
        self.attrs: dict[str, Any] | None = None
        self.first: Any = None
        self.second: Any = None
        self.code: CodeType | None = None
        self.offset = 0
        self.dtype: Any = None
        self.shape: Any = None
        self.likely: TrieState | None = None
        self.next: dict[Any, TrieState] = {}
        self.plans: dict[Any, Any] = {}


UNLIKELY: Final = TrieState()  # follows no other
ABSENT: Final = "absent"


class Trie:
    """The root of all recordings; it starts anew when it holds too many states."""

    def __init__(self) -> None:
        self.root = TrieState()
        self.size = 0

    def grow(self, state: TrieState, key: Any, made: TrieState) -> TrieState:
        self.size += 1
        if self.size > MAX_STATES:
            self.clear()
        return state.next.setdefault(key, made)

    def clear(self) -> None:
        """Forget everything; tapes in use keep the states they are at."""
        self.root = TrieState()
        self.size = 0


TRIE: Final = Trie()
_id_lock = Lock()


class Recording:
    """One tape's Nodes and kept values.

    nodes     Tensor id -> Node, for everything that depends on something watched
    order     the Nodes in the order of recording
    cut       the Nodes that no gradient can pass, as behind stop_gradient
    values    Node -> Tensor, for those a derivative rule looks at
    reads     id of a Variable -> (the Variable, the Nodes of its reads)
    pending   Tensor id -> Variable, for results of assignments not yet used
    thread    the thread whose operations are recorded, None while it is stopped
    trace     the trace it was opened in, if any
    watched   id of a Variable -> the Variable, for those watched by hand
    left      Nodes whose value left the recording: how, and at which line
    """

    __slots__ = (
        "cut",
        "keeps_all",
        "left",
        "nodes",
        "order",
        "pending",
        "reads",
        "state",
        "thread",
        "trace",
        "values",
        "watched",
        "watches_variables",
    )

    def __init__(
        self, watches_variables: bool = True, *, keeps_all: bool = False
    ) -> None:
        self.watches_variables = watches_variables
        self.keeps_all = keeps_all
        self.thread: int | None = None
        self.trace = TRACE.get()
        self.clear()

    def clear(self) -> None:
        """Forget everything recorded."""
        self.nodes: dict[int, Node] = {}
        self.order: list[Node] = []
        self.cut: dict[Node, None] = {}  # for its keys: {} is made faster than set()
        self.values: dict[Node, Tensor] = {}
        self.reads: dict[int, tuple[Variable, list[Node]]] = {}
        self.pending: dict[int, Variable] = {}
        self.watched: dict[int, Variable] = {}
        self.left: dict[Node, tuple[str, Origin | None]] = {}
        self.state = TRIE.root

    def release(self) -> None:
        """Let go of all values; the Nodes stay, to answer questions about paths."""
        self.values = {}

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """Record an operation if one of its operands is recorded."""
        if self.thread != get_ident():
            return
        if self.pending:
            for x in inputs:
                self.node_of(x)
        nodes = self.nodes
        likely = self.state.likely or UNLIKELY
        first: Any
        second: Any = ABSENT
        if len(inputs) == 1:  # one and two operands are written out: most ops have so
            first = nodes.get(inputs[0]._id)
            if first is None:
                return
        elif len(inputs) == 2:
            x, y = inputs
            first, second = nodes.get(x._id), nodes.get(y._id)
            if first is None:
                if second is None:
                    return
                value = x._value
                if (
                    second is likely.second
                    and value.dtype is likely.dtype
                    and value.shape == likely.shape
                ):
                    first = likely.first
                else:
                    first = (value.dtype.num, value.shape)
            elif second is None:
                value = y._value
                if (
                    first is likely.first
                    and value.dtype is likely.dtype
                    and value.shape == likely.shape
                ):
                    second = likely.second
                else:
                    second = (value.dtype.num, value.shape)
        else:
            found = [nodes.get(x._id) for x in inputs]
            if not any(found):
                return
            pairs = zip(found, inputs, strict=True)
            first = tuple([leaf_key(x) if n is None else n for n, x in pairs])
        # Never nearer than: record, unary or apply, operator or function, user.
        frame: Any = _getframe(3)
        code = frame.f_code
        while code is not likely.code:  # which is a user's: no need to ask
            if not is_internal[frame.f_globals.get("__name__", "")]:
                break
            frame = frame.f_back
            if frame is None:
                break
            code = frame.f_code
        if (
            (first is likely.first or first == likely.first)
            and (second is likely.second or second == likely.second)
            and op is likely.op
            and code is likely.code
            and frame.f_lasti == likely.offset
            and (attrs is likely.attrs or attrs == likely.attrs)
        ):
            state = likely
        else:
            state = self._follow(op, first, second, frame, inputs, attrs)
        self.state = state
        node: Any = state.node
        self.order.append(node)
        if state.is_plain and not self.keeps_all:
            known = result._id  # another tape may have named it already
            if not known:
                known = result._id = next_id()
            nodes[known] = node
            if state.keeps_result:
                self.values[node] = result
            for kept, at in state.saves:
                self.values[kept] = inputs[at]
        else:
            self._enter(state, inputs, result)

    def _enter(self, state: TrieState, inputs: Sequence[Tensor], result: Any) -> None:
        """What `record` does for several results, cut paths, and when all is kept."""
        node: Any = state.node
        results = result if state.items else (result,)
        outputs = state.items or (node,)
        self.order.extend(state.items)
        if state.cut:
            self.cut.update(dict.fromkeys(state.cut))
        for part, out in zip(results, outputs, strict=True):
            if out not in state.constants:
                part._id = part._id or next_id()
                self.nodes[part._id] = out
            if state.keeps_result or self.keeps_all:
                self.values[out] = part
        for kept, at in state.saves:
            self.values[kept] = inputs[at]
        if self.keeps_all:
            self.values.update(zip(node.inputs, inputs, strict=True))

    def _follow(
        self,
        op: Op,
        first: Any,
        second: Any,
        frame: FrameType | None,
        inputs: Sequence[Tensor],
        attrs: dict[str, Any],
    ) -> TrieState:
        """The state that follows, looked up or made; it is likely the next time."""
        code, offset = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        held = tuple(attrs.items()) if attrs else None
        # The code object by identity: the Node's origin keeps it alive.
        path = (op, first, second, held, id(code), offset)
        here = self.state
        state = here.next.get(path)
        if state is None:  # known by its true offset, or new
            origin = None if code is None else (code, instruction_start(code, offset))
            true_path = path if origin is None else (*path[:5], origin[1])
            state = here.next.get(true_path)
            if state is None:
                state = self._grow(true_path, op, inputs, attrs, origin)
            here.next[path] = state
        state.offset = offset
        here.likely = state
        return state

    def _grow(
        self,
        path: tuple[Any, ...],
        op: Op,
        inputs: Sequence[Tensor],
        attrs: dict[str, Any],
        origin: Origin | None,
    ) -> TrieState:
        """The state after an operation that has not been recorded here before."""
        operands = tuple(
            self.nodes.get(x._id) or param(f"c{len(self.order)}_{at}", x._type)
            for at, x in enumerate(inputs)
        )
        out = op.infer_type([x.type for x in operands], attrs)
        node = Node(op, operands, dict(attrs), out, origin)
        items: tuple[Node, ...] = ()
        if isinstance(out, TupleType):
            items = results(node)
        # Whatever is recorded may be a source, also behind a `stop_gradient`.
        wanted = [
            x._id in self.nodes and carries_gradient(operand.type)
            for x, operand in zip(inputs, operands, strict=True)
        ]
        looked_at, at_result = needed_values(node, wanted)
        saves = tuple((operands[at], at) for at in looked_at)
        pairs = zip(operands, wanted, strict=True)
        sources = [x for x, flag in pairs if flag and x not in self.cut]
        reached = reached_from(sources, (node, *items))
        cut = tuple(x for x in (node, *items) if x not in reached)
        made = TrieState(node, items, saves, keeps_result=at_result, cut=cut)
        if op is call:
            recorded = [x._id in self.nodes for x in inputs]
            made.constants = _constant_results(node, recorded)
        made.op, made.first, made.second = path[:3]
        made.attrs = attrs
        leaves = [x._value for x in inputs if x._id not in self.nodes]
        if len(inputs) == 2 and len(leaves) == 1:
            made.dtype, made.shape = leaves[0].dtype, leaves[0].shape
        made.code = None if origin is None else origin[0]
        return TRIE.grow(self.state, path, made)

    def watch(self, tensor: Tensor) -> None:
        """From here on, what depends on `tensor` is recorded."""
        if tensor._id not in self.nodes:
            self._leaf(("watch", *leaf_key(tensor)), tensor, None)

    def note_read(self, variable: Variable, tensor: Tensor) -> None:
        """A variable's value was read by this tape's thread."""
        if self.thread == get_ident():
            self._read(variable, tensor)

    def _read(self, variable: Variable, tensor: Tensor) -> None:
        """Make the Node of a read, which is the variable's source, if it is watched."""
        if id(variable) not in self.watched and not (
            self.watches_variables
            and variable._trainable
            and is_differentiable(tensor._value.dtype)
        ):
            return
        name = variable._name
        node = self._leaf(("read", name, *leaf_key(tensor)), tensor, name)
        known = self.reads.get(id(variable))
        if known is None:
            self.reads[id(variable)] = (variable, [node])
        else:
            known[1].append(node)

    def forget_reads(self, state: TrieState, count: int) -> None:
        """Go back to a state with so many Nodes, since which variables were read."""
        forgotten = set(self.order[count:])
        del self.order[count:]
        self.state = state
        while self.nodes and next(reversed(self.nodes.values())) in forgotten:
            self.nodes.popitem()
        for key, (_, nodes) in list(self.reads.items()):
            nodes[:] = [node for node in nodes if node not in forgotten]
            if not nodes:
                del self.reads[key]
        for node in forgotten:
            self.values.pop(node, None)

    def tracks(self, x: Tensor) -> bool:
        """Whether a gradient can flow into a tensor."""
        node = self.nodes.get(x._id)
        return node is not None and node not in self.cut

    def node_of(self, x: Tensor) -> Node | None:
        """The Node of a Tensor; an assignment's result is read when first used."""
        variable = self.pending.pop(x._id, None)
        if variable is not None:
            self._read(variable, x)
        return self.nodes.get(x._id)

    def _leaf(self, key: Any, tensor: Tensor, read_of: str | None) -> Node:
        """Go on to the state after a new leaf: a watched tensor, or a read."""
        state = self.state.next.get(key)
        if state is None:
            if read_of is None:
                made = param("x", tensor._type)
            else:
                made = read(param(read_of, tensor._type))
            state = TRIE.grow(self.state, key, TrieState(made))
        self.state = state
        node = state.node
        assert node is not None
        self.nodes[tensor._id or identify(tensor)] = node
        self.order.append(node)
        if self.keeps_all:
            self.values[node] = tensor
        return node

    def graph(self, targets: Sequence[Any], name: str = "recording") -> Graph:
        """What was recorded, as a Graph of the recorded `targets`."""
        held = [x if isinstance(x, Tensor) else x._held() for x in targets]
        found = [self.node_of(x) for x in held]
        outputs = [node for node in found if node is not None]
        whole = Graph(name, (), outputs)
        leaves = [
            node for node in whole.nodes if not node.inputs and "name" in node.attrs
        ]
        return Graph(name, leaves, outputs)


def identify(tensor: Tensor) -> int:
    """The id of a leaf: two threads may meet it for the first time at once."""
    with _id_lock:
        tensor._id = tensor._id or next_id()
    return tensor._id


def _constant_results(node: Node, recorded: Sequence[bool]) -> frozenset[Node]:
    """The results of a call that nothing recorded goes into, not even as an integer.

    They are not recorded, as if the body were plain Python.
    """
    graph: Graph = node.attrs["graph"]
    depending = {x for x, flag in zip(graph.inputs, recorded, strict=True) if flag}
    for x in graph.nodes:
        if not depending.isdisjoint(x.inputs):
            depending.add(x)
    ends = zip(results(node), graph.outputs, strict=True)
    return frozenset(part for part, x in ends if x not in depending)


def leaf_key(x: Tensor) -> Any:
    """What the trie knows of a tensor that is not recorded: its type."""
    value = x._value
    return value.dtype.num, value.shape  # a dtype's number hashes faster than it
