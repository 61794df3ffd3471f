"""What the tests on random Graphs share: derivatives, comparisons, the loop.

Start reading at `for_all`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from random_graphs import Arrays, Case, Style, random_array

from tapejit import ops
from tapejit.base.types import is_differentiable
from tapejit.ir import Graph, Node, interpret
from tapejit.ir.node import LITERAL
from tapejit.transforms import jvp_graph, vjp_graph

ANYTHING = Style(has_complex=True, has_many_dtypes=True, has_dims=True, has_calls=True)
DOUBLES = Style(has_complex=True, has_dims=True, has_calls=True)
SMOOTH = Style(is_smooth=True, has_complex=True, has_dims=True, has_calls=True)


def for_all(strategy: Any, full: bool, examples: int = 60) -> Any:
    """Run a property for examples of a strategy: the decorator of a local function.

    The default sample is the same in every run; a full run has ten times as many
    examples, and others each time.
    """

    def run(check: Callable[[Any], None]) -> None:
        chosen = settings(
            max_examples=10 * examples if full else examples,
            deadline=None,
            derandomize=not full,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        chosen(given(strategy)(check))()

    return run


# Graphs


def inlined(graph: Graph) -> Graph:
    """The Graph with the bodies of its calls in their place."""
    return Graph(graph.name, graph.inputs, expand(graph, graph.inputs))


def expand(graph: Graph, arguments: Sequence[Node]) -> list[Node]:
    made: dict[Node, Any] = dict(zip(graph.inputs, arguments, strict=True))
    for node in graph.nodes:
        operands = [made[x] for x in node.inputs]
        if node.op is LITERAL:
            made[node] = node
        elif node.op is ops.call:
            made[node] = expand(node.attrs["graph"], operands)
        elif node.op is ops.item:
            made[node] = operands[0][node.attrs["index"]]
        else:
            made[node] = node.op(*operands, **node.attrs)
    return [made[out] for out in graph.outputs]


def random_like(rng: np.random.Generator, nodes: Sequence[Node], case: Case) -> Arrays:
    """Tangents or cotangents of Nodes."""
    return [random_array(rng, x, case.sizes) for x in nodes]


def float_nodes(nodes: Sequence[Node]) -> list[Node]:
    return [x for x in nodes if is_differentiable(x.dtype)]


def without_stopped_paths(graph: Graph) -> Graph:
    """`stop_gradient` left out: along it no difference says what the derivative is."""

    def copied(body: Graph, arguments: Sequence[Node]) -> list[Node]:
        made: dict[Node, Node] = dict(zip(body.inputs, arguments, strict=True))
        for node in body.nodes:
            operands = [made[x] for x in node.inputs]
            attrs = dict(node.attrs)
            if node.op is LITERAL:
                made[node] = node
            elif node.op is ops.stop_gradient:
                (made[node],) = operands
            else:
                if node.op is ops.call:
                    inside = attrs["graph"]
                    outputs = copied(inside, inside.inputs)
                    attrs["graph"] = Graph(inside.name, inside.inputs, outputs)
                made[node] = node.op(*operands, **attrs)
        return [made[out] for out in body.outputs]

    return Graph(graph.name, graph.inputs, copied(graph, graph.inputs))


# Derivatives


def gradient_graph(graph: Graph) -> tuple[Graph, list[Node], list[Node]]:
    """The Graph with its adjoint, what is differentiated, and what is seeded."""
    wrt, targets = float_nodes(graph.inputs), float_nodes(graph.outputs)
    return vjp_graph(graph, wrt=wrt), wrt, targets


def pushed_and_pulled(
    case: Case, tangents: Arrays, cotangents: Arrays
) -> tuple[list[Any], list[Any]]:
    """The tangents of the outputs and the cotangents of the inputs."""
    graph = case.graph
    forward, (adjoint, _, _) = jvp_graph(graph), gradient_graph(graph)
    pushed = interpret(forward, *case.arrays, *tangents)[len(graph.outputs) :]
    pulled = interpret(adjoint, *case.arrays, *cotangents)[len(graph.outputs) :]
    return list(pushed), list(pulled)


# Comparisons


def assert_same(got: Any, expected: Any, where: Any = "") -> None:
    """Equal to the last bit, NaN equal to NaN, zeros of the same sign."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype, where
    assert got.shape == expected.shape, where
    np.testing.assert_array_equal(got, expected, err_msg=str(where))
    if got.dtype.kind == "f":
        is_number = ~np.isnan(got)
        assert np.array_equal(
            np.signbit(got[is_number]), np.signbit(expected[is_number])
        ), f"{where}: a zero has the wrong sign"


def inner(xs: Sequence[Any], ys: Sequence[Any]) -> tuple[float, float]:
    """The real inner product of two lists of arrays, and the sum of its magnitudes."""
    total = scale = 0.0
    for x, y in zip(xs, ys, strict=True):
        products = np.real(np.conj(x) * y)
        total += float(np.sum(products))
        scale += float(np.sum(np.abs(np.conj(x) * y)))
    return total, scale


def assert_near(got: Any, expected: Any, where: Any) -> None:
    """Equal but for the order of sums: to 1e-11 of the largest element."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype, where
    assert got.shape == expected.shape, where
    if got.dtype.kind in "fc":
        size = np.max(np.abs(expected), initial=1e-300)
        np.testing.assert_allclose(
            got, expected, rtol=0, atol=1e-11 * size, err_msg=str(where)
        )
    else:
        np.testing.assert_array_equal(got, expected, err_msg=str(where))
