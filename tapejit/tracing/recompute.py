"""Rematerialization: recompute_grad trades time for memory.

A function decorated with `recompute_grad` runs while no tape is looking, so nothing of
its inside is kept; the call is recorded as one Node of `custom` (see
`custom_gradient.py`) whose rule runs the function again, under a tape of its own, when
a gradient is wanted.

Running again has to give the same numbers. What a function depends on besides its
arguments are variables, and the state of a random generator is one too. A `Witness`
sees which ones are read; for the second run each of them is put back to what it held
when the first began, and afterwards to what it holds now.

In a traced function there are no values to hold, and Nodes to copy instead: see
`recompute_trace.py`.

Start reading at `RecomputeGrad.__call__`, then `Again.pull`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar

from tapejit.base import tree
from tapejit.base.types import TensorType
from tapejit.tape.accumulator import ForwardAccumulator
from tapejit.tape.custom import Arguments, CustomGradient, Witness, offer
from tapejit.tape.rules import Gradients, PythonRule
from tapejit.tape.tape import GradientTape
from tapejit.tape.variable import JOURNAL, Variable
from tapejit.tensor.dispatch import TAPES, TRACE, as_operand, muted
from tapejit.tensor.tensor import Tensor
from tapejit.tracing.recompute_trace import call_traced

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
        witness.note_results(values)
        closure = witness.closure()
        again = Again(
            self._name,
            [x._type for x in (*inputs, *closure)],
            [x._type for x in values],
            self._function,
            given,
            witness,
            written,
        )
        results = offer(again, [*inputs, *closure], values, witness)
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
        written: Journal,
    ) -> None:
        super().__init__(name, arguments, results)
        self.function = function
        self.given = given
        self.variables = witness.read_beside()
        self.outside = witness.closure_tensors()
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


__all__ = ["recompute_grad"]
