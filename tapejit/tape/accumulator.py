"""ForwardAccumulator: derivatives that are computed along with the values.

A tape remembers operations and differentiates later; an accumulator carries one
direction and computes, with every result, the derivative in that direction: its
tangent. It keeps nothing of the past. The table of tangents refers weakly to the
Tensors they belong to, so a tangent goes when its Tensor goes.

`Tangents` stands among the tapes and hears of the same operations. How the tangents
of an operation's results follow from those of its operands is a `Pushforward`: a
small Graph made of the op's own rule, once for each combination of op, types,
attributes and operands that have a tangent.

Nesting is strict, as it is for tapes: the computation of tangents is seen by what was
recording when the accumulator was entered, not by what was entered inside. So an outer
tape or accumulator can differentiate a tangent, and an inner tape does not hold on to
tangents that it has no use for.

Start reading at `Tangents.record`, then `ForwardAccumulator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any, Final
from weakref import ref

from tapejit import ir
from tapejit.array.creation import asarray, zeros_like
from tapejit.base import tree
from tapejit.base.config import config
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    TapeError,
)
from tapejit.base.origin import user_origin, warn_user
from tapejit.base.public import public
from tapejit.base.types import (
    OPAQUE,
    TensorType,
    TupleType,
    is_complex,
    is_differentiable,
)
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import ZERO, Node, Op, Zero, param
from tapejit.ir.structural import results
from tapejit.ops.custom_rules import CONNECTED, custom_call
from tapejit.tape.recording import identify, leaf_key
from tapejit.tape.rules import run_settled
from tapejit.tape.tape import RecordingBlock, UnconnectedGradients, at_path, filler
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import TAPES, TRACE, as_operand, cast
from tapejit.tensor.scope import SCOPE
from tapejit.tensor.tensor import Tensor, next_id
from tapejit.tensor.trace import run_graph
from tapejit.transforms.jvp import jvp

Tangent = Tensor | Zero  # ZERO: connected, and zero everywhere


# One operation


class Pushforward:
    """The tangents of one operation's results, ready to run.

    graph    from operands, results and tangents, those it looks at, to tangents
    takes    where the inputs of the Graph are in (*operands, *results, *tangents)
    places   per result: the index of its tangent among the Graph's outputs, ZERO for
             one that vanishes, None where no operand's tangent reaches
    """

    __slots__ = ("graph", "places", "takes")

    def __init__(
        self,
        graph: Graph,
        takes: tuple[int, ...],
        places: tuple[int | Zero | None, ...],
    ) -> None:
        self.graph = graph
        self.takes = takes
        self.places = places


MAX_PUSHFORWARDS: Final = 4096  # a few kilobytes each
PUSHFORWARDS: Final[dict[Any, Pushforward]] = {}
CALLBACK: Final = param("callback", OPAQUE)  # of any `custom_call`


def pushforward(
    op: Op,
    inputs: Sequence[Tensor],
    attrs: dict[str, Any],
    tangents: Sequence[Tangent | None],
    *,
    again: bool,
) -> Pushforward:
    """The Pushforward of an operation, from the table or new.

    With `again` it computes the results it looks at anew instead of taking them.
    """
    given = tuple([None if t is None else t is not ZERO for t in tangents])
    types = tuple([leaf_key(x) for x in inputs])
    known = CONNECTED.get().items()
    key = (op, types, tuple(attrs.items()), given, again, *known)
    found = PUSHFORWARDS.get(key)
    if found is None:
        found = _build(op, [x._type for x in inputs], attrs, given, again)
        if len(PUSHFORWARDS) >= MAX_PUSHFORWARDS:
            PUSHFORWARDS.clear()
        PUSHFORWARDS[key] = found
    return found


def _build(
    op: Op,
    types: Sequence[TensorType],
    attrs: dict[str, Any],
    given: Sequence[bool | None],
    again: bool,
) -> Pushforward:
    operands = [
        CALLBACK if kind == OPAQUE else param(f"x{at}", kind)
        for at, kind in enumerate(types)
    ]
    node = Node(op, tuple(operands), dict(attrs), op.infer_type(types, attrs), None)
    is_tuple = isinstance(node.type, TupleType)
    targets = results(node) if is_tuple else (node,)
    seeds = [param(f"t{at}", kind) for at, kind in enumerate(types)]
    sources = [at for at, kind in enumerate(given) if kind is not None]
    found = jvp(
        (node, *targets) if is_tuple else (node,),
        sources=[operands[at] for at in sources],
        # ZERO is an entry of the pass's own table, where it costs nothing.
        tangents=[seeds[at] if given[at] else ZERO for at in sources],
        targets=targets,
    )
    outputs: list[Node] = []
    places: list[int | Zero | None] = []
    for tangent in found:
        if isinstance(tangent, Node):
            places.append(len(outputs))
            outputs.append(tangent)
        else:
            places.append(tangent)
    at_hand = [*operands, *targets, *seeds]
    hidden = set(targets) if again else set()
    stop = set(at_hand) - hidden
    order = topological_order(outputs, stop=stop)
    looked_at = {x for inner in order for x in inner.inputs} | set(outputs)
    takes = [at for at, x in enumerate(at_hand) if x in looked_at and x in stop]
    graph = Graph(f"{op.name}.jvp", [at_hand[at] for at in takes], outputs)
    if config.current().check:
        ir.check_graph(graph)
    return Pushforward(graph, tuple(takes), tuple(places))


# The table


class Entry(ref[Tensor]):
    """The tangent of a Tensor, which is referred to weakly."""

    __slots__ = ("key", "tangent")

    key: int
    tangent: Tangent


class TangentTable:
    """Tensor id -> Entry; an entry goes when its Tensor does."""

    __slots__ = ("__weakref__", "entries", "forget")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        table = ref(self)  # an entry that held the table would make a cycle

        def forget(entry: Any) -> None:
            found = table()
            if found is not None:
                found.entries.pop(entry.key, None)

        self.forget = forget

    def put(self, tensor: Tensor, key: int, tangent: Tangent) -> None:
        entry = Entry(tensor, self.forget)
        entry.key = key
        entry.tangent = tangent
        self.entries[key] = entry


class Pending(dict[int, Variable]):
    """Tensor id -> Variable, for results of assignments, of watched variables only."""

    def __init__(self, watched: Mapping[int, tuple[Variable, Tangent]]) -> None:
        super().__init__()
        self.watched = watched

    def __setitem__(self, key: int, variable: Variable) -> None:
        if id(variable) in self.watched:
            super().__setitem__(key, variable)


class Tangents:
    """What an accumulator knows; among the tapes it hears of every operation.

    table      the tangents of Tensors
    variables  id of a Variable -> (the Variable, its tangent)
    pending    Tensor id -> Variable, for results of assignments not yet used
    thread     the thread whose operations count, None while it is not recording
    trace      the trace it was entered in, if any
    outer      what was recording when it was entered: it sees tangents computed
    nodes      the ids it knows, as those of a recording
    """

    __slots__ = ("nodes", "outer", "pending", "table", "thread", "trace", "variables")

    def __init__(self) -> None:
        self.table = TangentTable()
        self.nodes: Mapping[int, Entry] = self.table.entries
        self.variables: dict[int, tuple[Variable, Tangent]] = {}
        self.pending = Pending(self.variables)
        self.thread: int | None = None
        self.trace = TRACE.get()
        self.outer: tuple[Any, ...] = ()

    def watch(self, primal: Tensor | Variable, tangent: Tangent) -> None:
        """Give a primal its tangent; a variable has it at each read."""
        if isinstance(primal, Variable):
            self.variables[id(primal)] = (primal, tangent)
        else:
            self.table.put(primal, identify(primal), tangent)

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """Compute the tangents of results if an operand has one."""
        if self.thread != get_ident():
            return
        if self.pending:
            for x in inputs:
                self._settle(x)
        entries = self.table.entries
        found = [entries.get(x._id) for x in inputs]
        if not any(found):
            return
        tangents = [None if entry is None else entry.tangent for entry in found]
        outer, again = self._around()
        parts = result if type(result) is tuple else (result,)
        at_hand: Any = (*inputs, *parts, *tangents)

        def build() -> Pushforward:
            return pushforward(op, inputs, attrs, tangents, again=again)

        def run(pushed: Pushforward) -> list[Tensor]:
            return run_graph(pushed.graph, [at_hand[at] for at in pushed.takes])

        token = TAPES.set(outer)
        try:
            if op is custom_call:  # which results it reaches is known when it has run
                values, pushed, _ = run_settled(build, run, lambda _: [CALLBACK], {})
            else:
                pushed = build()
                values = run(pushed)
        finally:
            TAPES.reset(token)
        for part, place in zip(parts, pushed.places, strict=True):
            if place is not None:
                part._id = part._id or next_id()
                tangent = values[place] if isinstance(place, int) else ZERO
                self.table.put(part, part._id, tangent)

    def _around(self) -> tuple[tuple[Any, ...], bool]:
        """Who sees the computation, and whether one of them comes after this.

        Who comes after has not heard of the operation's results yet, so they would
        be constants to it. It happens when an outer tape was stopped and goes on: it
        is then last among the tapes.
        """
        if not self.outer:
            return (), False
        tapes: tuple[Any, ...] = TAPES.get()
        outer = tuple([tape for tape in tapes if tape in self.outer])
        after = tapes[tapes.index(self) :] if self in tapes else ()
        return outer, any(tape in after for tape in outer)

    def tracks(self, x: Tensor) -> bool:
        """Whether a tensor has a tangent."""
        return x._id in self.nodes

    def note_read(self, variable: Variable, tensor: Tensor) -> None:
        """A variable's value was read; by which thread does not change its tangent."""
        watched = self.variables.get(id(variable))
        if watched is not None:
            self.table.put(tensor, identify(tensor), watched[1])

    def _settle(self, x: Tensor) -> None:
        """The result of an assignment counts as read when it is used."""
        variable = self.pending.pop(x._id, None)
        if variable is not None:
            self.note_read(variable, x)

    def tangent_of(self, x: Tensor | Variable) -> Tangent | None:
        """The tangent of a tensor or variable; None where nothing leads to it."""
        if isinstance(x, Variable):
            watched = self.variables.get(id(x))
            return None if watched is None else watched[1]
        self._settle(x)
        entry = self.table.entries.get(x._id)
        return None if entry is None else entry.tangent


# What users hold


@public("tapejit")
class ForwardAccumulator(RecordingBlock):
    """Computes derivatives in one direction, along with the values.

    `tangents` says for each of the `primals`, tensors or variables, how it changes;
    `jvp` then tells how what was computed from them changes: the Jacobian times that
    direction. A tape is the better choice for few results of many inputs, this for
    many results of few: it costs a small multiple of the computation itself and keeps
    nothing but the tangents of tensors that are still in use.

    >>> import tapejit as tj
    >>> x = tj.asarray([1.0, 2.0])
    >>> with tj.ForwardAccumulator(x, tj.asarray([1.0, 0.0])) as acc:
    ...     y = x**3
    >>> acc.jvp(y)
    <tj.Tensor f32[2] [3. 0.]>

    Around a tape it gives the product of a Hessian with a vector:

    >>> v = tj.Variable([1.0, 2.0])
    >>> with tj.ForwardAccumulator(v, tj.asarray([1.0, 1.0])) as acc:
    ...     with tj.GradientTape() as tape:
    ...         y = tj.sum(v**3)
    ...     g = tape.gradient(y, v)
    >>> acc.jvp(g)
    <tj.Tensor f32[2] [ 6. 12.]>

    A variable has its tangent each time it is read, also after an assignment, as its
    gradient on a tape comes from each read.
    """

    _called = "an accumulator"

    def __init__(self, primals: Any, tangents: Any) -> None:
        super().__init__()
        self._recording = Tangents()
        self._was_entered = False
        found, spec = _leaves(primals, "primals")
        _check_distinct(found, spec)
        if isinstance(primals, (Tensor, Variable)):
            given = [tangents]  # a list for one vector is that vector
        else:
            given = tree.flatten_like(
                tangents, spec, none_is_leaf=True, labels=("primals", "tangents")
            )
        for at, (primal, tangent) in enumerate(zip(found, given, strict=True)):
            if is_differentiable(primal.dtype):
                where = at_path(spec.paths()[at])
                self._recording.watch(primal, _checked_tangent(tangent, primal, where))
            else:
                warn_user(
                    f"a primal has dtype {primal.dtype.name}: tangents exist for "
                    "floating point only, this one's will be None"
                )

    # Life

    def __enter__(self) -> ForwardAccumulator:
        if self._recording.thread is not None:
            raise ArgumentError(
                "this accumulator is recording already",
                help="it can be entered again after its block has ended",
            )
        self._was_entered = True
        self._scope = SCOPE.get()
        self._origin = user_origin(2)
        self._recording.outer = TAPES.get()
        self._recording.trace = TRACE.get()
        self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._recording.outer = ()

    # Derivatives

    def jvp(
        self, primals: Any, unconnected_gradients: Any = UnconnectedGradients.NONE
    ) -> Any:
        """The tangents of tensors or variables, in the structure they are given in.

        Nothing is computed here, so it may be called repeatedly, inside the block or
        after it. None where no path leads from the accumulator's primals, or zeros
        with `unconnected_gradients="zero"`.

        >>> import tapejit as tj
        >>> x, c = tj.asarray(3.0), tj.asarray(2.0)
        >>> with tj.ForwardAccumulator(x, 1.0) as acc:
        ...     y = {"square": x * x, "constant": c * c}
        >>> acc.jvp(y)
        {'square': <tj.Tensor f32[] 6.0>, 'constant': None}
        """
        if not self._was_entered:
            raise TapeError(
                "jvp on an accumulator that has never recorded",
                help="compute inside `with tj.ForwardAccumulator(x, t) as acc:`",
            )
        self._check_scope("jvp")
        fill = filler(unconnected_gradients)
        found, spec = _leaves(primals, "jvp's argument")
        tangents = [self._recording.tangent_of(x) for x in found]
        pairs = zip(tangents, found, strict=True)
        filled = [zeros_like(x) if t is ZERO else t for t, x in pairs]
        return tree.unflatten(spec, fill(filled, found))

    def __reduce__(self) -> Any:
        raise ArgumentTypeError("a ForwardAccumulator cannot be pickled or copied")


def _leaves(given: Any, what: str) -> tuple[list[Any], tree.Structure]:
    """The tensors and variables of a structure; anything else is refused by place."""
    found, spec = tree.flatten(given, none_is_leaf=True)
    for at, x in enumerate(found):
        if not isinstance(x, (Tensor, Variable)):
            kind = "None" if x is None else type(x).__name__
            raise ArgumentTypeError(
                f"{what}{at_path(spec.paths()[at])}: a tensor or variable is needed, "
                f"got {kind}",
                help="make a tensor of it first, and compute with that tensor: "
                "x = tj.asarray(x)",
            )
    return found, spec


def _check_distinct(primals: Sequence[Any], spec: tree.Structure) -> None:
    first: dict[int, int] = {}
    for at, x in enumerate(primals):
        before = first.setdefault(id(x), at)
        if before != at:
            paths = spec.paths()
            raise ArgumentError(
                f"the primals at {paths[before]} and {paths[at]} are the same",
                help="name it once, with the sum of the tangents",
            )


def _checked_tangent(given: Any, primal: Tensor | Variable, where: str) -> Tensor:
    """A tangent of exactly its primal's shape and dtype.

    Tensors keep their dtype, so it has to be the right one; numbers, lists and NumPy
    arrays are converted.
    """
    if given is None:
        raise ArgumentTypeError(
            f"the tangent{where} is None",
            help="leave out primals that do not change, or give zeros",
        )
    is_tensor = isinstance(given, (Tensor, Variable))
    tangent = as_operand(given, "tangents") if is_tensor else asarray(given)
    if tangent.shape != primal.shape:
        raise ShapeError(
            f"the tangent{where} has shape {tangent.shape}, its primal {primal.shape}",
            help="a tangent says of each element how it changes; tj.broadcast_to "
            "repeats one",
        )
    if tangent.dtype == primal.dtype:
        return tangent
    if is_tensor or (is_complex(tangent.dtype) and not is_complex(primal.dtype)):
        raise DTypeError(
            f"the tangent{where} is {tangent.dtype.name}, its primal "
            f"{primal.dtype.name}",
            help=f'convert it with .astype("{primal.dtype.name}")',
        )
    return cast(tangent, primal.dtype)


__all__ = ["ForwardAccumulator"]
