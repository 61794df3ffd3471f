"""Derivatives of every op, to second order, in both modes.

Rules are compared with central differences by random projection, and the two modes
with each other: <jvp(v), g> = <v, vjp(g)>. All in double precision, at points away from
kinks and poles; what happens at those is in test_ops_kinks.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from differentiation import (
    adjoint_of,
    as_arrays,
    drawn_like,
    inner,
    is_zero,
    magnitude,
    outputs_of,
    pulled_back,
    pushed_forward,
    slope_along,
    targets_of,
)
from op_cases import ROWS, Row
from op_cases.case import C128, F64, Array, differentiable_positions
from op_cases.properties import for_rows

from tapejit.base.types import DType
from tapejit.ir import Graph, Node, param, topological_order
from tapejit.transforms import vjp

# Differences are of sixth order with steps of 1e-3, so what remains is their rounding.
DIFFERENCE = 1e-9
TRANSPOSE = 1e-12


def double_rows() -> list[tuple[Row, DType]]:
    """Rows whose operands and results have double precision."""
    return [
        (row, dtype)
        for row in ROWS
        for dtype in row.double_dtypes
        if row.graph(dtype).outputs[0].dtype in (F64, C128)
    ]


DOUBLE_ROWS = double_rows()


def drawn(row: Row, dtype: DType) -> tuple[Graph, list[Array], np.random.Generator]:
    rng = np.random.default_rng(7)
    return row.graph(dtype), row.sample(rng, dtype), rng


def drawn_adjoint(
    row: Row, dtype: DType
) -> tuple[Graph, list[Array], np.random.Generator]:
    """The cotangents of a row as a function of its operands and its cotangent."""
    graph, arrays, rng = drawn(row, dtype)
    seeds = drawn_like(rng, [out.type for out in targets_of(graph)])
    adjoint = adjoint_of(graph)
    assert adjoint is not None
    return adjoint, [*arrays, *seeds], rng


def assert_near(
    found: float, expected: float, scale: float, tolerance: float, where: str
) -> None:
    """Differ by no more than a part of the magnitudes that were added up."""
    off = abs(found - expected)
    assert off <= tolerance * scale, f"{where}: {found} is not {expected}"


def assert_reverse_mode_follows_differences(
    graph: Graph, arrays: Sequence[Array], rng: np.random.Generator
) -> None:
    weights = drawn_like(rng, [out.type for out in targets_of(graph)])
    positions = differentiable_positions(graph)
    directions = drawn_like(rng, [graph.inputs[at].type for at in positions])
    pulled = pulled_back(graph, arrays, weights)
    parts = as_arrays(pulled, [graph.inputs[at].type for at in positions])
    values = pushed_scale(graph, arrays, weights)
    for at, direction, part in zip(positions, directions, parts, strict=True):
        slope = slope_along(graph, arrays, at, direction, weights)
        scale = magnitude([part], [direction]) + values
        found = inner([part], [direction])
        where = f"{graph.name}: derivative by input {at}"
        assert_near(found, slope, scale, DIFFERENCE, where)


def assert_forward_mode_follows_differences(
    graph: Graph, arrays: Sequence[Array], rng: np.random.Generator
) -> None:
    types = [out.type for out in targets_of(graph)]
    weights = drawn_like(rng, types)
    values = pushed_scale(graph, arrays, weights)
    for at in differentiable_positions(graph):
        (direction,) = drawn_like(rng, [graph.inputs[at].type])
        pushed = as_arrays(pushed_forward(graph, arrays, [at], [direction]), types)
        slope = slope_along(graph, arrays, at, direction, weights)
        scale = magnitude(weights, pushed) + values
        where = f"{graph.name}: tangent from input {at}"
        assert_near(inner(weights, pushed), slope, scale, DIFFERENCE, where)


def pushed_scale(
    graph: Graph, arrays: Sequence[Array], weights: Sequence[Array]
) -> float:
    """Σ |weights| |values|: what rounding of the values is in proportion to."""
    return magnitude(weights, outputs_of(graph, targets_of(graph), arrays))


def assert_modes_are_transposed(
    graph: Graph, arrays: Sequence[Array], rng: np.random.Generator
) -> None:
    """For each input alone and for all of them at once."""
    types = [out.type for out in targets_of(graph)]
    cotangents = drawn_like(rng, types)
    positions = differentiable_positions(graph)
    kinds = [graph.inputs[at].type for at in positions]
    pulled = as_arrays(pulled_back(graph, arrays, cotangents), kinds)
    tangents = drawn_like(rng, kinds)
    chosen = [[at] for at in range(len(positions))]
    for some in [*chosen, list(range(len(positions)))]:
        moved = [tangents[at] for at in some]
        pushed = as_arrays(
            pushed_forward(graph, arrays, [positions[at] for at in some], moved), types
        )
        left = inner(pushed, cotangents)
        right = inner(moved, [pulled[at] for at in some])
        scale = magnitude(pushed, cotangents)
        scale += magnitude(moved, [pulled[at] for at in some])
        assert_near(left, right, scale, TRANSPOSE, f"{graph.name} by {some}")


@for_rows(DOUBLE_ROWS)
def test_vjp_follows_differences(row: Row, dtype: DType) -> None:
    assert_reverse_mode_follows_differences(*drawn(row, dtype))


@for_rows(DOUBLE_ROWS)
def test_jvp_follows_differences(row: Row, dtype: DType) -> None:
    assert_forward_mode_follows_differences(*drawn(row, dtype))


@for_rows(DOUBLE_ROWS)
def test_vjp_is_the_transpose_of_jvp(row: Row, dtype: DType) -> None:
    assert_modes_are_transposed(*drawn(row, dtype))


@for_rows(DOUBLE_ROWS)
def test_vjp_of_vjp_follows_differences(row: Row, dtype: DType) -> None:
    assert_reverse_mode_follows_differences(*drawn_adjoint(row, dtype))


@for_rows(DOUBLE_ROWS)
def test_jvp_of_vjp_follows_differences(row: Row, dtype: DType) -> None:
    assert_forward_mode_follows_differences(*drawn_adjoint(row, dtype))


@for_rows(DOUBLE_ROWS)
def test_second_derivatives_are_transposed(row: Row, dtype: DType) -> None:
    assert_modes_are_transposed(*drawn_adjoint(row, dtype))


# What is connected


def letter(part: object) -> str:
    """How a derivative is connected, as the table spells it."""
    if part is None:
        return "-"
    return "0" if is_zero(part) else "c"


def letters(graph: Graph, target: Node, nodes: Sequence[Node]) -> str:
    """One letter per input of the Graph."""
    seed = param("seed", target.type)
    found = vjp(nodes, targets=[target], seeds=[seed], sources=graph.inputs)
    return "".join(map(letter, found))


@for_rows(ROWS)
def test_first_derivatives_are_connected_as_the_table_says(row: Row) -> None:
    if not row.shapes:
        return  # without operands there is nothing to connect
    for dtype in [d for d in (F64, C128) if d in row.dtypes]:
        graph = row.graph(dtype)
        assert letters(graph, graph.outputs[0], graph.nodes) == row.first(dtype)


@for_rows(ROWS)
def test_integers_and_bools_have_no_derivative(row: Row) -> None:
    for dtype in row.dtypes:
        graph = row.graph(dtype)
        for x, found in zip(
            graph.inputs, letters(graph, graph.outputs[0], graph.nodes), strict=True
        ):
            assert found == "-" or x.dtype.kind in "fcV", f"{row} in {dtype}"


@for_rows([row for row in ROWS if row.double_dtypes])
def test_second_derivatives_are_connected_as_the_table_says(row: Row) -> None:
    for dtype in row.double_dtypes:
        graph = row.graph(dtype)
        seed = param("seed", graph.outputs[0].type)
        first = vjp(
            graph.nodes, targets=graph.outputs, seeds=[seed], sources=graph.inputs
        )
        found = []
        for part in first:
            if isinstance(part, Node):
                order = topological_order([part], stop={*graph.inputs, seed})
                found.append(letters(graph, part, order))
        assert tuple(found) == row.second(dtype), f"{row} in {dtype}"
