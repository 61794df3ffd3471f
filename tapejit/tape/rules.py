"""Derivatives that call Python code which the user wrote.

A `PythonRule` is the value of the opaque leaf in a recorded call of a function with a
gradient of its own (see `ops/custom_rules.py`). Subclasses say how cotangents are
pulled back, on Tensors; the rest is here: arrays, rows of a batch, and forward mode,
which differentiates the pull by its cotangent, if it is linear in it.

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

from tapejit.array.creation import zeros
from tapejit.array.elementwise import conj, multiply, real
from tapejit.array.manipulation import reshape, stack
from tapejit.array.reductions import sum as sum_of
from tapejit.base.origin import Origin
from tapejit.base.types import TensorType, is_complex, is_differentiable
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node
from tapejit.ops.custom_rules import (
    CALLING,
    CONNECTED,
    Callback,
    Expected,
    Flags,
    Reconnected,
)
from tapejit.tape.linearity import CotangentObserver
from tapejit.tensor.tensor import Tensor

Gradients = list[Tensor | None]


class PythonRule(Callback):
    """How a function with a gradient of its own is differentiated.

    name        the function's, for messages
    line        where its gradient is written, for messages
    arguments   the types of what gets a gradient
    results     the types of what the function returned
    is_repeatable  whether it may be asked again, so that its gradients are not held
    takes_zeros  whether zeros or None stand for derivatives that are not given
    """

    is_repeatable = False
    takes_zeros = True
    line: Origin | None = None

    def __init__(
        self,
        name: str,
        arguments: Sequence[TensorType],
        results: Sequence[TensorType],
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
        """One tangent for each floating-point result, None for the others.

        <u, push(t)> = <pull(u), t>, so it is the gradient of the latter by u, which is
        the same at every u: at 0 as well.
        """
        from tapejit.tape.tape import GradientTape

        seeds = [zeros(kind.shape, dtype=kind.dtype) for kind in self.results]
        wanted = [x for x in seeds if is_differentiable(x.dtype)]
        with GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wanted)
            observer = CotangentObserver(wanted)
            with observer.listening():
                gradients = self.pull(seeds)
            observer.check(self.name, self.line, gradients)
            pulled = zip(gradients, tangents, strict=True)
            terms = [_inner(g, t) for g, t in pulled if g is not None]
        found = tape.gradient(terms, wanted)
        parts = iter(found)
        return [
            _filled(next(parts), kind) if is_differentiable(kind.dtype) else None
            for kind in self.results
        ]


def _filled(found: Tensor | None, kind: TensorType) -> Tensor:
    return zeros(kind.shape, dtype=kind.dtype) if found is None else found


def _masked(row: Sequence[Tensor], given: Flags) -> Gradients:
    return [x if flag else None for x, flag in zip(row, given, strict=True)]


def _inner(g: Tensor, t: Tensor) -> Tensor:
    """The real inner product of a gradient and a tangent."""
    return sum_of(real(multiply(conj(g), t)) if is_complex(g.dtype) else g * t)


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
