"""Derivatives of Graphs by rule and by difference, for tests to compare.

Everything is projected: a cotangent is drawn for the outputs and a direction for each
input, so a Jacobian becomes one number per input. Complex numbers are vectors of the
plane: the inner product is the real part of Σ conj(x) y.

Start reading at `pulled_back`, then `slope_along`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from op_cases.case import Array, Rng, differentiable_positions

from tapejit.base.types import TensorType, is_complex, is_differentiable
from tapejit.ir import Graph, Node, interpret, param
from tapejit.ir.node import Zero
from tapejit.transforms import jvp, vjp

# A central difference over three steps to each side: its error is of sixth order, so
# a step may be long enough for rounding not to matter.
STEP = 1e-3
WEIGHTS = (3 / 4, -3 / 20, 1 / 60)


def inner(xs: Sequence[Array], ys: Sequence[Array]) -> float:
    """Re Σ conj(x) y, in extended precision."""
    total = np.longdouble(0)
    for x, y in zip(xs, ys, strict=True):
        product = np.conj(x.astype(np.clongdouble)) * y.astype(np.clongdouble)
        total += product.real.sum()
    return float(total)


def magnitude(xs: Sequence[Array], ys: Sequence[Array]) -> float:
    """Σ |x| |y|: what an inner product may be off in proportion to."""
    pairs = zip(xs, ys, strict=True)
    return float(sum((np.abs(x) * np.abs(y)).sum() for x, y in pairs))


def drawn_like(rng: Rng, types: Sequence[Any]) -> list[Array]:
    """Numbers between -1 and 1 of these types, complex ones inside the square."""
    found = []
    for type in types:
        x = rng.uniform(-1, 1, type.shape)
        if is_complex(type.dtype):
            x = x + 1j * rng.uniform(-1, 1, type.shape)
        found.append(np.asarray(x).astype(type.dtype))
    return found


def targets_of(graph: Graph) -> list[Node]:
    """The outputs that have derivatives."""
    return [
        out
        for out in graph.outputs
        if isinstance(out.type, TensorType) and is_differentiable(out.type.dtype)
    ]


def outputs_of(graph: Graph, ends: Sequence[Any], arrays: Sequence[Array]) -> list[Any]:
    """The values of some Nodes of a Graph; None and ZERO stay what they are."""
    nodes = [end for end in ends if isinstance(end, Node)]
    found = iter(interpret(Graph("ends", graph.inputs, nodes), *arrays))
    return [next(found) if isinstance(end, Node) else end for end in ends]


def pulled_back(
    graph: Graph, arrays: Sequence[Array], cotangents: Sequence[Array]
) -> list[Any]:
    """The cotangent of each differentiable input: an array, ZERO or None."""
    targets = targets_of(graph)
    seeds = [param(f"d_{at}", out.type) for at, out in enumerate(targets)]
    sources = [graph.inputs[at] for at in differentiable_positions(graph)]
    found = vjp(graph.nodes, targets=targets, seeds=seeds, sources=sources)
    wide = Graph("pulled", (*graph.inputs, *seeds), ())
    return outputs_of(wide, found, [*arrays, *cotangents])


def pushed_forward(
    graph: Graph,
    arrays: Sequence[Array],
    positions: Sequence[int],
    tangents: Sequence[Array],
) -> list[Any]:
    """The tangent of each target when the inputs at these positions move."""
    sources = [graph.inputs[at] for at in positions]
    seeds = [param(f"t_{at}", x.type) for at, x in enumerate(sources)]
    found = jvp(graph.nodes, sources=sources, tangents=seeds, targets=targets_of(graph))
    wide = Graph("pushed", (*graph.inputs, *seeds), ())
    return outputs_of(wide, found, [*arrays, *tangents])


def slope_along(
    graph: Graph, arrays: Sequence[Array], at: int, direction: Array, weights: Any
) -> float:
    """How fast <weights, targets> grows when the input at `at` moves, by difference."""
    if not direction.size:
        return 0.0  # nothing moves, not even an infinite target
    ends = targets_of(graph)

    def height(step: float) -> float:
        moved = list(arrays)
        moved[at] = arrays[at] + step * direction
        return inner(weights, outputs_of(graph, ends, moved))

    total = sum(
        weight * (height(times * STEP) - height(-times * STEP))
        for times, weight in enumerate(WEIGHTS, 1)
    )
    return total / STEP


def as_arrays(found: Sequence[Any], types: Sequence[Any]) -> list[Array]:
    """Derivatives with zeros for what is ZERO or None."""
    return [
        np.zeros(type.shape, type.dtype) if part is None or is_zero(part) else part
        for part, type in zip(found, types, strict=True)
    ]


def is_zero(part: Any) -> bool:
    return isinstance(part, Zero)


def adjoint_of(graph: Graph) -> Graph | None:
    """The cotangents of a Graph's inputs as a Graph; None if nothing is connected."""
    targets = targets_of(graph)
    seeds = [param(f"d_{at}", out.type) for at, out in enumerate(targets)]
    sources = [graph.inputs[at] for at in differentiable_positions(graph)]
    found = vjp(graph.nodes, targets=targets, seeds=seeds, sources=sources)
    ends = [part for part in found if isinstance(part, Node)]
    if not ends:
        return None
    return Graph(f"{graph.name}.adjoint", (*graph.inputs, *seeds), ends, graph.effects)
