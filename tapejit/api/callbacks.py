"""Derivatives that call Python code which the user wrote.

A `PythonRule` is the value of the opaque leaf in a recorded call of a function with a
gradient of its own (see `ops/custom_rules.py`). Subclasses say how cotangents are
pulled back, on Tensors; the rest is here: arrays, rows of a batch, and forward mode,
which differentiates the pull by its cotangent, since it is linear in it.

Running such a derivative is an `Attempt`: when a rule gives its gradients to other
arguments than the Graph expects, the Graph is built anew and run again, and what the
rule gave is not asked for a second time.

Start reading at `PythonRule`, then `run_settled`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from tapejit.api.creation import ones, zeros
from tapejit.api.elementwise import conj, multiply, real
from tapejit.api.manipulation import reshape, stack
from tapejit.api.reductions import sum as sum_of
from tapejit.api.tensor import Tensor
from tapejit.errors import NotDifferentiableError
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node
from tapejit.ops.custom_rules import CALLING, CONNECTED, Callback, Reconnected
from tapejit.types import TensorType, is_complex, is_differentiable

Gradients = list[Tensor | None]


class PythonRule(Callback):
    """How a function with a gradient of its own is differentiated.

    name        the function's, for messages
    arguments   the types of what gets a gradient
    results     the types of what the function returned
    """

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
    def pull(self, cotangents: Sequence[Tensor]) -> Gradients:
        """One gradient for each argument, of its type, or None."""

    def evaluate(
        self, op: str, arrays: Sequence[Any], attrs: dict[str, Any]
    ) -> tuple[Any, ...]:
        found = self.perform(op, [Tensor(x) for x in arrays], attrs)
        return tuple(x._value for x in found)

    def perform(
        self, op: str, tensors: Sequence[Any], attrs: dict[str, Any]
    ) -> tuple[Any, ...]:
        if op == "custom_vjp":
            return self._pulled(tensors, attrs)
        axes = attrs["batch_axes"]
        if not axes:
            with _alone():
                return tuple(self._push(tensors))
        rows = [self._push(row) for row in _rows(tensors, axes)]
        return tuple(
            _stacked([row[at] for row in rows], attrs, at)
            for at in range(len(attrs["shapes"]))
        )

    def _pulled(
        self, cotangents: Sequence[Tensor], attrs: Mapping[str, Any]
    ) -> tuple[Tensor, ...]:
        """The gradients of the connected arguments."""
        connected: tuple[bool, ...] = attrs["connected"]
        attempt = ATTEMPT.get()
        if attrs["batch_axes"]:
            found = self._pulled_rows(cotangents, attrs, attempt)
        else:
            held = None if attempt is None else attempt.held.pop(id(self), None)
            if held is None:
                with _alone():
                    held = self.pull(cotangents)
            given = tuple(g is not None for g in held)
            if attempt is not None and given != connected:
                attempt.held[id(self)] = held
                raise Reconnected(self, given)
            found = [
                zeros(kind.shape, dtype=kind.dtype) if g is None else g
                for g, kind in zip(held, self.arguments, strict=True)
            ]
        return tuple(g for g, flag in zip(found, connected, strict=True) if flag)

    def _pulled_rows(
        self,
        cotangents: Sequence[Tensor],
        attrs: Mapping[str, Any],
        attempt: Attempt | None,
    ) -> list[Tensor]:
        """The same row by row; an argument is connected if it is in some row."""
        connected: tuple[bool, ...] = attrs["connected"]
        with _alone():
            rows = [self.pull(row) for row in _rows(cotangents, attrs["batch_axes"])]
        if attempt is not None and rows:
            before = attempt.seen.get(id(self), (False,) * len(connected))
            given = tuple(
                was or any(row[at] is not None for row in rows)
                for at, was in enumerate(before)
            )
            attempt.seen[id(self)] = given
            if given != connected:
                raise Reconnected(self, given)
        places = iter(range(sum(connected)))
        found = []
        for at, kind in enumerate(self.arguments):
            parts = [
                zeros(kind.shape, dtype=kind.dtype) if row[at] is None else row[at]
                for row in rows
            ]
            place = next(places) if connected[at] else None
            found.append(zeros(()) if place is None else _stacked(parts, attrs, place))
        return found

    def _push(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        """Forward mode: <u, push(t)> = <pull(u), t>, so it is the gradient by u."""
        from tapejit.api.tape import GradientTape

        seeds = [zeros(kind.shape, dtype=kind.dtype) for kind in self.results]
        wanted = [x for x in seeds if is_differentiable(x.dtype)]
        with GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wanted)
            pulled = zip(self.pull(seeds), tangents, strict=True)
            terms = [_inner(g, t) for g, t in pulled if g is not None]
        found = tape.gradient(terms, wanted)
        if all(part is None for part in found):
            self._check_ignores_cotangents()
        return [
            zeros(x.shape, dtype=x.dtype) if part is None else part
            for part, x in zip(found, wanted, strict=True)
        ]

    def _check_ignores_cotangents(self) -> None:
        """A pull that no tape can see would make all tangents zero: say so."""
        given = self.pull([ones(kind.shape, dtype=kind.dtype) for kind in self.results])
        if any(type(g) is Tensor and np.any(np.asarray(g._value)) for g in given):
            raise NotDifferentiableError(
                f"the gradient of {self.name} leaves tapejit, or does not depend on "
                "the cotangent, so forward mode cannot use it",
                help="compute it with tapejit's functions, without .numpy()",
            )


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

    held   by rule: what it gave in a try that failed because of it
    seen   by rule: which arguments have got a gradient in some row
    """

    def __init__(self) -> None:
        self.held: dict[int, Gradients] = {}
        self.seen: dict[int, tuple[bool, ...]] = {}


ATTEMPT: Final[ContextVar[Attempt | None]] = ContextVar("attempt", default=None)


@contextmanager
def _alone() -> Iterator[None]:
    """While the user's code runs, what it differentiates is not part of the attempt."""
    token = ATTEMPT.set(None)
    try:
        yield
    finally:
        ATTEMPT.reset(token)


def calls_back(graph: Graph) -> bool:
    """Whether running a Graph runs Python code that may raise anything."""
    return any(node.op in CALLING for node in graph.nodes)


def run_settled(
    build: Callable[[], Any],
    run: Callable[[Any], Any],
    nodes_of: Callable[[Callback], list[Node]],
    forget: Callable[[Any], None],
) -> Any:
    """The result of `run(build())`, once every rule gives what the Graphs expect.

    `nodes_of` tells which Nodes a rule is the value of; `forget` drops what was built.
    """
    token = ATTEMPT.set(Attempt())
    try:
        while True:
            built = build()
            try:
                return run(built)
            except Reconnected as signal:
                for node in nodes_of(signal.callback):
                    CONNECTED[node] = signal.connected
                forget(built)
    finally:
        ATTEMPT.reset(token)
