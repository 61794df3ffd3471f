"""Derivatives that call Python code which the user wrote.

A `PythonRule` is the value of the opaque leaf in a recorded call of a function with a
gradient of its own (see `ops/custom_rules.py`). Subclasses say how cotangents are
pulled back, on Tensors; the rest is here: arrays, rows of a batch, and forward mode,
which traces the pull and runs the transpose of that Graph, if it is linear.

Running such a derivative is an `Attempt`: when a rule gives its gradients to other
arguments than the Graph expects, the Graph is built anew and run again, and what the
rule gave is not asked for a second time.

Start reading at `PythonRule`, then `run_settled`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from tapejit.array.creation import zeros, zeros_like
from tapejit.array.manipulation import reshape, stack
from tapejit.base.errors import TapejitError
from tapejit.base.origin import Origin, user_origin
from tapejit.base.types import TensorType, is_differentiable
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import Node, Op, param
from tapejit.ir.structural import call
from tapejit.ir.structural import results as results_of
from tapejit.ops.custom_rules import (
    CALLING,
    CONNECTED,
    Callback,
    Expected,
    Flags,
    Reconnected,
)
from tapejit.tape.linearity import check_linear, left_tapejit
from tapejit.tensor.device import CPU, placed
from tapejit.tensor.dispatch import TRACE, effect
from tapejit.tensor.tensor import Tensor, TracedTensor
from tapejit.tensor.trace import Trace, run_graph, trace
from tapejit.transforms.vjp import materialize, vjp

Gradients = list[Tensor | None]


class PythonRule(Callback):
    """How a function with a gradient of its own is differentiated.

    name        the function's, for messages
    line        where its gradient is written, for messages
    arguments   the types of what gets a gradient
    results     the types of what the function returned
    is_repeatable  whether it may be asked again, so that its gradients are not held
    device       where its results are, and so their cotangents
    takes_zeros  whether zeros or None stand for derivatives that are not given
    """

    is_repeatable = False
    takes_zeros = True
    device = CPU
    line: Origin | None = None

    def __init__(
        self, name: str, arguments: Sequence[TensorType], results: Sequence[TensorType]
    ) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        self.results = tuple(results)

    @abstractmethod
    def pull(self, cotangents: Sequence[Any]) -> Gradients:
        """One gradient for each argument, of its type, or None."""

    def pull_rows(self, rows: Iterable[Sequence[Any]]) -> list[Gradients]:
        """What `pull` gives for each row of a batch of cotangents."""
        return [self.pull(row) for row in rows]

    def evaluate(
        self, op: str, arrays: Sequence[Any], attrs: dict[str, Any]
    ) -> tuple[Any, ...]:
        found = self.perform(op, [Tensor(x) for x in arrays], attrs)
        return tuple(x._value for x in found)

    def perform(
        self, op: str, tensors: Sequence[Any], attrs: dict[str, Any]
    ) -> tuple[Any, ...]:
        is_pull = op == "custom_vjp"
        given: Flags = attrs["given"]
        connected: Flags = attrs["connected"]
        axes: int = attrs["batch_axes"]
        attempt = ATTEMPT.get()
        rows = None if attempt is None else attempt.replayed(self)
        if self.device != CPU:
            tensors = [placed(x, self.device) for x in tensors]
        if rows is None:
            with _alone():
                asked: Iterable[Any] = _rows(tensors, axes) if axes else [tensors]
                if not self.takes_zeros:
                    asked = (_masked(row, given) for row in asked)
                rows = self.pull_rows(asked) if is_pull else [*map(self.push, asked)]
            if attempt is not None and not (is_pull and self.is_repeatable):
                attempt.log(self, rows)
        if attempt is not None and rows:
            flags = attempt.seen(self, given, rows, connected)
            if not axes and flags != connected:
                raise Reconnected(self, given, flags)
        kinds = self.arguments if is_pull else self.results
        places = [at for at, flag in enumerate(connected) if flag]
        columns = [[_filled(row[at], kinds[at]) for row in rows] for at in places]
        if not axes:
            return tuple(column[0] for column in columns)
        return tuple(
            _stacked(column, attrs, place) for place, column in enumerate(columns)
        )

    def push(self, tangents: Sequence[Any]) -> Gradients:
        """One tangent for each floating-point result, None for the others."""
        backward, looked_at, connected = self._traced()
        forward = self.transposed(backward, looked_at)
        given = [t for t, flag in zip(tangents, connected, strict=True) if flag]
        found = iter(run_graph(forward, [*looked_at, *given]))
        return [
            next(found) if is_differentiable(kind.dtype) else None
            for kind in self.results
        ]

    def pulled(self, cotangents: Sequence[Tensor]) -> tuple[list[Tensor], Flags]:
        """The gradients there are, and which arguments have one."""
        found = self.pull(
            [x if is_differentiable(x.dtype) else zeros_like(x) for x in cotangents]
        )
        return [g for g in found if g is not None], tuple(g is not None for g in found)

    def _traced(self) -> tuple[Graph, list[Tensor], Flags]:
        """What is pulled as a Graph of tensors it looks at, and of all cotangents."""
        connected: Flags = ()

        def pulled(*cotangents: Tensor) -> list[Tensor]:
            nonlocal connected
            gradients, connected = self.pulled(cotangents)
            return gradients

        graph, captured, _ = trace(
            pulled, self.results, lambda seeds: (seeds, {}), PullTrace(self)
        )
        count = len(self.results)
        inputs = (*graph.inputs[count:], *graph.inputs[:count])
        return Graph(graph.name, inputs, graph.outputs), captured, connected

    def transposed(self, backward: Graph, looked_at: Sequence[Tensor]) -> Graph:
        """From the tangents of connected arguments to those of the results.

        Refused if the gradient is no linear map of its cotangents.
        """
        check_linear(self.name, self.line, backward, looked_at)
        kept = backward.inputs[: len(looked_at)]
        seeds = backward.inputs[len(looked_at) :]
        wanted = [x for x in seeds if is_differentiable(x.dtype)]
        tangents = [param(f"t_{at}", x.type) for at, x in enumerate(backward.outputs)]
        order = topological_order(backward.outputs, stop=frozenset(backward.inputs))
        found = vjp(order, targets=backward.outputs, seeds=tangents, sources=wanted)
        ends = [materialize(g, x.type) for g, x in zip(found, wanted, strict=True)]
        inputs = (*kept, *tangents)
        name = f"{self.name}.forward"
        if set(seeds).isdisjoint(topological_order(ends)):
            return Graph(name, inputs, ends)
        # The adjoint of a call takes all that the call took. What it makes of the seeds
        # is not used, since the gradient is linear: zeros will do.
        body = Graph(name, (*inputs, *seeds), ends)
        nothing = [materialize(None, x.type) for x in seeds]
        return Graph(name, inputs, results_of(call(*inputs, *nothing, graph=body)))


class PullTrace(Trace):
    """The trace of a `pull` for forward mode: of its cotangents only types are known.

    What does not depend on them is performed as if there were no such trace.
    """

    is_transparent = True

    def __init__(self, rule: PythonRule) -> None:
        super().__init__(f"{rule.name}.backward")
        self.rule = rule

    def effect(self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]) -> None:
        """What is shown of cotangents is nothing."""
        if not any(isinstance(x, TracedTensor) and x._trace is self for x in inputs):
            token = TRACE.set(self.outer)
            try:
                effect(op, *inputs, **attrs)
            finally:
                TRACE.reset(token)

    def needs_value(self, x: TracedTensor, what: str) -> Any:
        """Nobody knows it."""
        raise self.left("went through NumPy")

    def refused(self, variable: str, method: str) -> TapejitError:
        """The error for a cotangent that is assigned."""
        return self.left(f"was assigned to variable {variable!r} ({method})")

    def left(self, how: str) -> TapejitError:
        """The error for a cotangent that left tapejit."""
        return left_tapejit(self.rule.name, how, user_origin(4))


def _filled(found: Tensor | None, kind: TensorType) -> Tensor:
    return zeros(kind.shape, dtype=kind.dtype) if found is None else found


def _masked(row: Sequence[Tensor], given: Flags) -> Gradients:
    return [x if flag else None for x, flag in zip(row, given, strict=True)]


def _rows(tensors: Sequence[Tensor], axes: int) -> Iterator[list[Tensor]]:
    for index in np.ndindex(tensors[0].shape[:axes]):
        yield [x[index] for x in tensors]


def _stacked(parts: Sequence[Any], attrs: Mapping[str, Any], at: int) -> Tensor:
    """Rows as one Tensor of the shape that is expected."""
    shape, dtype = attrs["shapes"][at], attrs["dtypes"][at]
    if not parts:
        return zeros(shape, dtype=dtype)
    return reshape(stack(parts), shape)


# Running


class Attempt:
    """One derivative under way, in as many tries as it takes.

    A rule that was asked is not asked again in the next try: its answers are logged
    and given again in the same order.
    """

    def __init__(self) -> None:
        self._logs: dict[int, list[list[Gradients]]] = {}
        self._at: dict[int, int] = {}
        self._seen: dict[tuple[int, Flags], tuple[PythonRule, Flags, Flags]]
        self.begin()

    def begin(self) -> None:
        """Another try."""
        self._at = {}
        self._seen = {}

    def replayed(self, rule: PythonRule) -> list[Gradients] | None:
        """What a rule answered at this point of an earlier try."""
        log, at = self._logs.get(id(rule), []), self._at.get(id(rule), 0)
        self._at[id(rule)] = at + 1
        return log[at] if at < len(log) else None

    def log(self, rule: PythonRule, rows: list[Gradients]) -> None:
        self._logs.setdefault(id(rule), []).append(rows)

    def seen(
        self, rule: PythonRule, given: Flags, rows: list[Gradients], connected: Flags
    ) -> Flags:
        """Which ends have got a derivative so far, in this row or another."""
        before = self._seen.get((id(rule), given))
        flags = tuple(
            any(row[at] is not None for row in rows)
            or (before is not None and before[1][at])
            for at in range(len(connected))
        )
        self._seen[id(rule), given] = (rule, flags, connected)
        return flags

    def surprises(self) -> list[tuple[PythonRule, Flags, Flags]]:
        """The rules that gave derivatives to other ends than was expected."""
        return [
            (rule, given, flags)
            for (_, given), (rule, flags, connected) in self._seen.items()
            if flags != connected
        ]


ATTEMPT: Final[ContextVar[Attempt | None]] = ContextVar("attempt", default=None)


@contextmanager
def _alone() -> Iterator[None]:
    """While the user's code runs, what it differentiates is not part of the attempt."""
    token = ATTEMPT.set(None)
    try:
        yield
    finally:
        ATTEMPT.reset(token)


def rules_in(graph: Graph) -> set[Node]:
    """The Nodes of the rules that running a Graph calls."""
    return {node.inputs[0] for node in graph.nodes if node.op in CALLING}


def run_settled(
    build: Callable[[], Any],
    run: Callable[[Any], Any],
    nodes_of: Callable[[Callback], list[Node]],
    expected: Expected,
) -> tuple[Any, Any, Expected]:
    """Build and run until every rule gives what was expected of it.

    `nodes_of` tells which Nodes a rule is the value of. Returns the result, what was
    built last, and what has to be expected to build it.
    """
    attempt = Attempt()
    expectations = dict(expected)
    while True:
        attempt.begin()
        token = CONNECTED.set(expectations)
        try:
            built = build()
        finally:
            CONNECTED.reset(token)
        token_of_attempt = ATTEMPT.set(attempt)
        try:
            result = run(built)
            surprises: list[tuple[Any, Flags, Flags]] = [*attempt.surprises()]
            if not surprises:
                return result, built, expectations
        except Reconnected as signal:
            surprises = [(signal.callback, signal.given, signal.connected)]
        finally:
            ATTEMPT.reset(token_of_attempt)
        expectations = dict(expectations)
        for rule, given, flags in surprises:
            expectations.update(((node, given), flags) for node in nodes_of(rule))
