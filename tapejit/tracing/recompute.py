"""Rematerialization: recompute_grad trades time for memory.

A function decorated with `recompute_grad` runs while no tape is looking, so nothing of
its inside is kept; the call is recorded as one Node of `custom` (see
`tape/custom.py`) whose rule runs the function again, under a tape of its own, when
a gradient is wanted.

Running again has to give the same numbers. What a function depends on besides its
arguments are variables, and the state of a random generator is one too. A `Witness`
sees which ones are read; for the second run each of them is put back to what it held
when the first began, and afterwards to what it holds now.

In a traced function there are no values to hold, and Python runs once: what the
function prints, checks, asks and assigns happens in the first run alone. The Nodes that
the trace made between those that were there before and the results are the body of a
`custom_call`. Its adjoint is that of a second run, behind a barrier; so the values of
the first run go when that ends, whoever asks for the gradient, a tape in the trace or
one around the traced function. Draws of the second run begin with the state that the
first began with.

Start reading at `RecomputeGrad.__call__`, then `Again.pull`, then `call_traced`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar

from tapejit.base import tree
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import Node, Op
from tapejit.ir.rewriting import opened
from tapejit.ir.structural import first_token
from tapejit.ops.custom_rules import custom_call
from tapejit.tape.accumulator import ForwardAccumulator
from tapejit.tape.custom import Arguments, CustomGradient, offer
from tapejit.tape.rules import Gradients, PythonRule
from tapejit.tape.tape import GradientTape
from tapejit.tape.variable import JOURNAL, Variable, warn_tracked
from tapejit.tape.witness import Witness
from tapejit.tensor.dispatch import TAPES, TRACE, as_operand, muted
from tapejit.tensor.recorder import Listener
from tapejit.tensor.tensor import Tensor, TracedTensor
from tapejit.tensor.trace import beginnings
from tapejit.tracing.path import assigns_tracked
from tapejit.tracing.trace import FunctionTrace
from tapejit.transforms.partition import size_carriers
from tapejit.transforms.vjp import reached_from

P = ParamSpec("P")
R = TypeVar("R")
Journal = dict[int, tuple[Variable, Tensor]]
Given = Sequence[Tensor | None]


def recompute_grad(function: Callable[P, R]) -> Callable[P, R]:
    """Keep nothing of a function's inside; run it again when a gradient is wanted.

    The gradients are those of the function itself: with respect to its arguments, to
    the variables it reads and to tensors it reaches by closure. The second run sees
    the variables as they were at the first and draws the same random numbers; what it
    assigns is undone, what it prints with `tj.print` is not printed again. Second
    derivatives and nesting work. The function should otherwise depend on its arguments
    alone.

    In a traced function too, Python runs it once and the Graph computes it a second
    time. In the function that `tj.vmap` maps it is an ordinary call: map first, then
    decorate, `tj.recompute_grad(tj.vmap(f))`.

    >>> import tapejit as tj
    >>> x = tj.Variable(tj.ones(1000))
    >>> with tj.GradientTape() as tape:
    ...     y = tj.sum(tj.recompute_grad(lambda x: tj.exp(tj.sin(tj.exp(x))))(x))
    >>> tape.nbytes == x.nbytes
    True
    >>> tape.gradient(y, x).shape
    (1000,)
    """
    return RecomputeGrad(function, is_sealed=True)


class RecomputeGrad(CustomGradient):
    """A function that runs again for its gradient; called like the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace: Any = TRACE.get()
        if trace is not None and trace.holds_state:
            return call_traced(trace, self._name, self._function, args, kwargs)
        if trace is not None or not TAPES.get():
            return self._function(*args, **kwargs)
        given = Arguments(self._function, args, kwargs)
        witness = Witness(given.variables)
        args, kwargs, inputs = given.copied()
        with witness.watching(is_sealed=True), journal() as written:
            outputs, structure = tree.flatten(self._function(*args, **kwargs))
            values = [as_operand(x, self._name) for x in outputs]
        outside = witness.closure(values)
        inputs += [witness.reads[id(x)][1] for x in witness.read_beside()]
        inputs += outside
        kinds = [x._type for x in inputs], [x._type for x in values]
        again = Again(
            self._name, *kinds, self._function, given, witness, outside, written
        )
        results = offer(again, inputs, values, witness)
        return tree.unflatten(structure, results)


class Again(PythonRule):
    """Pulls cotangents back, or pushes tangents on, by running the function again.

    What has no cotangent is no target then, and what has no tangent no primal: None is
    found where the function itself would have it.
    """

    is_repeatable = True
    takes_zeros = False

    def __init__(
        self,
        name: str,
        arguments: Sequence[TensorType],
        results: Sequence[TensorType],
        function: Callable[..., Any],
        given: Arguments,
        witness: Witness,
        outside: Sequence[Tensor],
        written: Journal,
    ) -> None:
        super().__init__(name, arguments, results)
        self.function = function
        self.given = given
        self.variables = witness.read_beside()
        self.outside = outside
        # What was written before it was read held something else at the start.
        self.states: Journal = {**witness.reads, **written}
        self.written = frozenset(written)

    @property
    def kept(self) -> list[Tensor]:
        leaves = [x for x in self.given.leaves if isinstance(x, (Tensor, Variable))]
        tensors = [x if isinstance(x, Tensor) else x._tensor for x in leaves]
        states = [tensor for _, tensor in self.states.values()]
        return [*tensors, *self.outside, *states]

    def pull(self, cotangents: Given) -> Gradients:
        pull = self._run(GradientTape(watch_accessed_variables=False))
        return pull(cotangents)

    def pull_rows(self, rows: Iterable[Given]) -> list[Gradients]:
        """The function runs once for all rows."""
        given = list(rows)
        if len(given) < 2:  # the tape of one use lets go of values as it uses them
            return [self.pull(row) for row in given]
        pull = self._run(GradientTape(persistent=True, watch_accessed_variables=False))
        return [pull(row) for row in given]

    def push(self, tangents: Given) -> Gradients:
        with restored(self.states, self.written):
            args, kwargs, copies = self.given.copied()
            pairs = zip(self._sources(copies), tangents, strict=True)
            moved = [(x, t) for x, t in pairs if x is not None and t is not None]
            primals, directions = [x for x, _ in moved], [t for _, t in moved]
            with ForwardAccumulator(primals, directions) as acc:
                outputs = tree.leaves(self.function(*args, **kwargs))
                values = [as_operand(x, self.name) for x in outputs]
        found: Gradients = acc.jvp(values)
        return found

    def _run(self, tape: GradientTape) -> Callable[[Given], Gradients]:
        """Run the function again; the result pulls cotangents back, by the tape."""
        with restored(self.states, self.written), tape:
            args, kwargs, copies = self.given.copied()
            sources = self._sources(copies)
            wanted = [x for x in sources if x is not None]
            tape.watch(wanted)
            outputs = tree.leaves(self.function(*args, **kwargs))
            values = [as_operand(x, self.name) for x in outputs]

        def pull(cotangents: Given) -> Gradients:
            pairs = zip(values, cotangents, strict=True)
            given = [(x, g) for x, g in pairs if g is not None]
            targets, seeds = [x for x, _ in given], [g for _, g in given]
            found = iter(tape.gradient(targets, wanted, output_gradients=seeds))
            return [None if x is None else next(found) for x in sources]

        return pull

    def _sources(self, copies: Sequence[Tensor]) -> list[Any]:
        """What each argument of the rule stands for in the second run.

        A variable that is passed twice has all of its gradient at its first place.
        """
        sources: list[Any] = []
        seen: set[int] = set()
        for place, copy in zip(self.given.places, copies, strict=True):
            leaf = self.given.leaves[place]
            if not isinstance(leaf, Variable):
                sources.append(copy)
            elif id(leaf) in seen:
                sources.append(None)
            else:
                seen.add(id(leaf))
                sources.append(leaf)
        return [*sources, *self.variables, *self.outside]


@contextmanager
def journal() -> Iterator[Journal]:
    """The variables that are written inside, with what they held before."""
    written: Journal = {}
    outer = JOURNAL.get()
    token = JOURNAL.set(written)
    try:
        yield written
    finally:
        JOURNAL.reset(token)
        if outer is not None:
            for key, entry in written.items():
                outer.setdefault(key, entry)


@contextmanager
def restored(states: Journal, written: frozenset[int]) -> Iterator[None]:
    """Variables hold what they held then; afterwards what they hold now.

    Those that have changed, or will, are locked: another thread that draws from the
    same generator waits.
    """
    changed = [
        (variable, then)
        for key, (variable, then) in states.items()
        if key in written or variable._tensor is not then
    ]
    changed.sort(key=lambda pair: pair[0]._serial)
    token = JOURNAL.set({})
    with ExitStack() as stack:
        stack.enter_context(muted())
        for variable, _ in changed:
            stack.enter_context(variable._lock)
        now = [variable._tensor for variable, _ in changed]
        try:
            for variable, then in changed:
                variable._tensor = then
            yield
        finally:
            for (variable, _), tensor in zip(changed, now, strict=True):
                variable._tensor = tensor
            JOURNAL.reset(token)


def call_traced(
    trace: FunctionTrace,
    name: str,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> Any:
    """Call a function whose values are computed again for its gradient."""
    bystander = Bystander(trace)
    with bystander.watching(is_sealed=True):
        found, structure = tree.flatten(function(*args, **kwargs))
        values = [as_operand(x, name) for x in found]
        ends = [trace.node_of(x) for x in values]
        bystander.note_used(values)
    starts = bystander.starts_of(ends)
    bystander.tell_starts(starts)
    inside = topological_order(ends, stop=frozenset(starts))
    if reached_from(starts, inside).isdisjoint(ends):
        return tree.unflatten(structure, values)  # constants to every tape
    operands = bystander.tensors_of(starts)
    bystander.warn(starts, operands)
    carriers = size_carriers(starts, (*inside, *ends))
    operands += [TracedTensor(node, trace) for node in carriers]
    operands += values
    body = opened(Graph(name, (*starts, *carriers), ends))
    attrs = {"results": len(ends), "body": body}
    results = trace.record(custom_call, [trace.node_of(x) for x in operands], attrs)
    for tape in TAPES.get():
        if tape.trace is trace:
            tape.record(custom_call, operands, attrs, results)
    return tree.unflatten(structure, list(results))


class Bystander(Witness):
    """Sees, in the place of the tapes, what becomes Nodes while a function is traced.

    mark     the Nodes with a smaller serial were there before
    held     what the variables held then
    used     Node -> a traced tensor that stood for it in an operation
    """

    def __init__(self, trace: FunctionTrace) -> None:
        super().__init__(set())
        self.mark = first_token().serial
        self.held = {key: slot.tensor for key, slot in trace.slots.items()}
        self.taken = len(trace.taken)
        self.used: dict[Node, TracedTensor] = {}

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
                self.note_read(variable, x)

    def starts_of(self, ends: Sequence[Node]) -> list[Node]:
        """Where the values that `ends` are made of come from, in a fixed order."""
        known = {node for _, node in self.trace.captures.values()}
        known.update(slot.entry for slot in self.trace.slots.values())
        return beginnings(ends, self.mark, (), known)

    def tell_starts(self, starts: Sequence[Node]) -> None:
        """Tell the tapes which variables were read, and of assignments.

        The starts that stand for a variable are its reads: the value it held before,
        and that at entry, which a read after an assignment inside belongs to.
        """
        for key, (variable, _) in self.reads.items():
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

    def tell(self, tapes: Sequence[Listener]) -> None:
        """Not before it is known which reads matter."""

    def warn(self, starts: Sequence[Node], tensors: Sequence[Tensor]) -> None:
        """Warn if something was assigned that a tape would have tracked."""
        tracked = [
            node
            for node, x in zip(starts, tensors, strict=True)
            if any(tape.tracks(x) for tape in TAPES.get())
        ]
        assigned = assigns_tracked(self.trace.taken[self.taken :], tracked)
        if assigned is not None:
            warn_tracked(assigned)

    def tensors_of(self, nodes: Sequence[Node]) -> list[Tensor]:
        """The tensors by which tapes know what Nodes stand for."""
        known: dict[Node, Tensor] = dict(self.used)
        for table in (self.trace.derived, self.trace.captures):
            known.update((node, tensor) for tensor, node in table.values())
        return [known.get(x, TracedTensor(x, self.trace)) for x in nodes]


__all__ = ["recompute_grad"]
