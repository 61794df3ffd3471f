"""Refuse forward mode of a gradient that is no linear map of its cotangent.

Forward mode uses the transpose of what a `grad_fn` computes. Outside of a trace an
observer stands among the tapes while `grad_fn` runs and hears which operations are
done with the cotangents; in a trace there is a Graph to look at. What an operation does
to linearity is the same in both: see `transforms/linearity.py`.

Start reading at `CotangentObserver`, then `not_linear`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tapejit.base.errors import NotDifferentiableError
from tapejit.base.origin import Origin, describe, user_origin
from tapejit.ir.node import Derived, Node, Op
from tapejit.ir.structural import call
from tapejit.tensor.dispatch import TAPES, TRACE
from tapejit.tensor.recorder import Observer
from tapejit.tensor.tensor import Tensor, TracedTensor, next_id
from tapejit.transforms.linearity import (
    Found,
    Kind,
    found_for,
    found_in_call,
    is_zero,
    result_kind,
)

Culprit = tuple[str, Origin | None]  # an operation and its line


class CotangentObserver(Observer):
    """Hears what is done with cotangents, outside of a trace of its own.

    nodes       id of a Tensor -> how it depends on the cotangents
    culprits    id of a Tensor that is not linear -> where it ceased to be
    left        what became known to Python: id -> how, and the line
    """

    def __init__(self, seeds: Sequence[Tensor]) -> None:
        self.trace = TRACE.get()
        self.pending: dict[int, Any] = {}
        self.nodes: dict[int, Any] = {}
        self.culprits: dict[int, Culprit] = {}
        self.left: dict[Any, tuple[str, Origin | None]] = {}
        for seed in seeds:
            seed._id = seed._id or next_id()
            self.nodes[seed._id] = Kind.LINEAR

    @contextmanager
    def listening(self) -> Iterator[None]:
        """What runs inside is heard, beside the tapes there are."""
        token = TAPES.set((*TAPES.get(), self))
        try:
            yield
        finally:
            TAPES.reset(token)

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """An operation was performed."""
        known = self.nodes
        if not any(x._id in known for x in inputs):
            return
        given = [known.get(x._id) or _constant_kind(x) for x in inputs]
        parts = result if type(result) is tuple else (result,)
        culprit: Culprit | None
        if op is call:
            found = found_in_call(attrs["graph"], [(kind, None) for kind in given])
        else:
            found = [(result_kind(op, given, attrs), None)] * len(parts)
        for part, (kind, node) in zip(parts, found, strict=True):
            part._id = part._id or next_id()
            known[part._id] = kind
            if kind is Kind.OTHER:
                before = (self.culprits.get(x._id) for x in inputs)
                culprit = next((x for x in before if x is not None), None)
                if culprit is None:
                    here = op.name, user_origin(3)
                    culprit = here if node is None else culprit_at(node)
                self.culprits[part._id] = culprit

    def note_read(self, variable: Any, tensor: Tensor) -> None:
        """A variable is a constant here."""

    def check(self, name: str, line: Origin | None, gradients: Sequence[Any]) -> None:
        """Refuse gradients that are not linear in the cotangents."""
        for how, origin in self.left.values():
            raise _left_tapejit(name, how, origin or line)
        for g in gradients:
            kind = None if g is None else self.nodes.get(g._id) or _constant_kind(g)
            if kind is Kind.OTHER:
                raise not_linear(name, line, self.culprits[g._id])
            if kind is Kind.CONSTANT:
                raise not_linear(name, line, None)


def _constant_kind(x: Tensor) -> Kind:
    """The kind of what does not depend on cotangents."""
    if isinstance(x, TracedTensor):
        return Kind.ZERO if is_zero(x._value) else Kind.CONSTANT
    value = x._value
    is_number = isinstance(value, (np.ndarray, np.generic))
    return Kind.CONSTANT if not is_number or value.any() else Kind.ZERO


def check_nodes(
    name: str,
    line: Origin | None,
    nodes: Sequence[Node],
    seeds: Sequence[Node],
    gradients: Sequence[Node],
) -> None:
    """The same for what was traced."""
    known: dict[Node, Found] = dict.fromkeys(seeds, (Kind.LINEAR, None))
    for kind, node in found_for(nodes, known, gradients):
        if kind in (Kind.OTHER, Kind.CONSTANT):
            raise not_linear(name, line, None if node is None else culprit_at(node))


def culprit_at(node: Node) -> Culprit:
    origin: Any = node.origin
    while isinstance(origin, Derived):
        origin = origin.node.origin
    return node.op.name, origin


def line_of(function: Callable[..., Any]) -> Origin | None:
    """Where a function is written, None if it is not known."""
    code = getattr(function, "__code__", None)
    return None if code is None else (code, 0)


def not_linear(
    name: str, line: Origin | None, culprit: Culprit | None
) -> NotDifferentiableError:
    """The error for a gradient without a transpose."""
    if culprit is None:
        origin, why = line, "a part of it does not depend on that"
    else:
        origin, why = culprit[1] or line, f"{culprit[0]} is not linear"
    return NotDifferentiableError(
        f"the grad_fn of {name} is not linear in its cotangent, so it has no transpose "
        f"and forward mode cannot use it: {why} ({describe(origin)})",
        origin=origin,
        help="use reverse mode, tj.grad or a GradientTape; or write grad_fn with "
        "products, sums and movements of the cotangent alone, and clip or normalise "
        "the gradient after it was asked for",
    )


def _left_tapejit(name: str, how: str, origin: Origin | None) -> NotDifferentiableError:
    return NotDifferentiableError(
        f"the grad_fn of {name} leaves tapejit, so forward mode cannot use it: the "
        f"cotangent {how} ({describe(origin)})",
        origin=origin,
        help="compute with tapejit's functions, without .numpy() or Python's if; or "
        "use reverse mode, tj.grad or a GradientTape",
    )


__all__ = ["CotangentObserver", "check_nodes", "line_of", "not_linear"]
