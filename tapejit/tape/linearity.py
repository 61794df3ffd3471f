"""Refuse forward mode of a gradient that is no linear map of its cotangent.

Forward mode uses the transpose of what a `grad_fn` computes, which there is only if it
is linear in the cotangents. What an operation does to linearity is said in
`transforms/linearity.py`; here are the user's lines and the errors.

Start reading at `check_linear`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tapejit.base.errors import NotDifferentiableError
from tapejit.base.origin import Origin, describe
from tapejit.ir.graph import Graph
from tapejit.ir.node import Derived, Node
from tapejit.tensor.dispatch import host_value
from tapejit.tensor.tensor import Tensor, TracedTensor
from tapejit.transforms.linearity import Found, Kind, found_for, is_zero


def check_linear(
    name: str, line: Origin | None, graph: Graph, looked_at: Sequence[Tensor]
) -> None:
    """Refuse gradients that are not linear in the cotangents.

    The first inputs of `graph` are what `looked_at` holds, the others cotangents.
    """
    kinds = [_constant_kind(x) for x in looked_at]
    kinds += [Kind.LINEAR] * (len(graph.inputs) - len(kinds))
    known: Mapping[Node, Found] = {
        x: (kind, None) for x, kind in zip(graph.inputs, kinds, strict=True)
    }
    for kind, node in found_for(graph.nodes, known, graph.outputs):
        if kind in (Kind.OTHER, Kind.CONSTANT):
            raise _not_linear(name, line, node)


def _constant_kind(x: Tensor) -> Kind:
    """The kind of what does not depend on cotangents."""
    if isinstance(x, TracedTensor):
        return Kind.ZERO if is_zero(x._value) else Kind.CONSTANT
    return Kind.CONSTANT if np.any(host_value(x)) else Kind.ZERO


def line_of(function: Callable[..., Any]) -> Origin | None:
    """Where a function is written, None if it is not known."""
    code = getattr(function, "__code__", None)
    return None if code is None else (code, 0)


def _not_linear(
    name: str, line: Origin | None, culprit: Node | None
) -> NotDifferentiableError:
    """The error for a gradient without a transpose."""
    why = "a part of it does not depend on that"
    if culprit is not None:
        why = f"{culprit.op.name} is not linear"
        origin: Any = culprit.origin
        while isinstance(origin, Derived):
            origin = origin.node.origin
        line = origin or line
    return NotDifferentiableError(
        f"the grad_fn of {name} is not linear in its cotangent, so it has no transpose "
        f"and forward mode cannot use it: {why} ({describe(line)})",
        origin=line,
        help="use reverse mode, tj.grad or a GradientTape; or write grad_fn with "
        "products, sums and movements of the cotangent alone, and clip or normalise "
        "the gradient after it was asked for",
    )


def left_tapejit(name: str, how: str, origin: Origin | None) -> NotDifferentiableError:
    """The error for a gradient whose cotangent became known to Python."""
    return NotDifferentiableError(
        f"the grad_fn of {name} leaves tapejit, so forward mode cannot use it: the "
        f"cotangent {how} ({describe(origin)})",
        origin=origin,
        help="compute with tapejit's functions, without .numpy() or Python's if; or "
        "use reverse mode, tj.grad or a GradientTape",
    )
