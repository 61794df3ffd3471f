"""Graphs of every op, its derivatives and its batch: well formed, and text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from differentiation import drawn_like
from op_cases import CASES, ROWS, Row
from op_cases.case import F64, differentiable_positions
from op_cases.properties import for_rows

from tapejit.base.dims import Dim
from tapejit.base.types import TOKEN, DType
from tapejit.ir import Graph, check_graph, interpret, literal, parse_graph, print_graph
from tapejit.ir.structural import GuardFailed, first_token
from tapejit.transforms import batch, jvp_graph, vjp_graph


def derived_graphs(row: Row, dtype: DType) -> Iterator[Graph]:
    """The op, and if it is differentiable: adjoint, its adjoint, and the tangents."""
    graph = row.graph(dtype)
    yield graph
    wrt = [graph.inputs[at] for at in differentiable_positions(graph)]
    if wrt:
        adjoint = vjp_graph(graph, wrt=wrt)
        yield adjoint
        yield vjp_graph(adjoint, wrt=wrt)
        yield jvp_graph(graph)
        yield jvp_graph(adjoint)


def batched_graphs(row: Row, dtype: DType) -> Iterator[Graph]:
    """The op and its derivatives, and a batch of each."""
    for graph in derived_graphs(row, dtype):
        yield graph
        flags = [at not in row.case.unbatched for at in range(len(graph.inputs))]
        if any(flags):
            yield batch(graph, size=2, batched=flags)[0]


@for_rows(ROWS)
def test_graphs_are_well_formed(row: Row) -> None:
    for dtype in row.some_dtypes[-2:]:
        for graph in batched_graphs(row, dtype):
            assert check_graph(graph) is graph


@for_rows(ROWS)
def test_graphs_of_every_dtype_are_well_formed(row: Row) -> None:
    for dtype in row.dtypes:
        *_, last = derived_graphs(row, dtype)
        assert check_graph(last) is last


@for_rows(ROWS)
def test_a_printed_graph_is_parsed_to_itself(row: Row) -> None:
    for dtype in row.some_dtypes[-2:]:
        for graph in derived_graphs(row, dtype):
            text = print_graph(graph)
            parsed = check_graph(parse_graph(text))
            assert print_graph(parsed) == print_graph(graph, comments=False)
            assert parsed.digest == graph.digest


@for_rows(ROWS)
def test_a_parsed_graph_computes_the_same(row: Row) -> None:
    dtype = row.double_or_only_dtype
    rng = np.random.default_rng(13)
    arrays = row.sample(rng, dtype)
    for graph in derived_graphs(row, dtype):
        kinds = [x.type for x in graph.inputs[len(arrays) :]]
        values = [*arrays, *drawn_like(rng, kinds)]
        parsed = parse_graph(print_graph(graph))
        expected = interpret(graph, *values)
        for got, wanted in zip(interpret(parsed, *values), expected, strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)


@for_rows(ROWS)
def test_graphs_of_unknown_sizes_are_text_too(row: Row) -> None:
    shapes = row.resized(lambda size: Dim(f"n{size}"))
    graph = row.graph(row.double_or_only_dtype, shapes)
    parsed = check_graph(parse_graph(print_graph(graph)))
    assert print_graph(parsed) == print_graph(graph, comments=False)


# Structural ops: what a row cannot say


def only_row(op: str) -> Row:
    return CASES[op][0].rows[0]


def test_a_parameter_is_what_comes_in() -> None:
    graph = only_row("param").graph(F64)
    assert graph.nodes == ()
    (out,) = interpret(graph, np.ones((3, 4)))
    np.testing.assert_array_equal(out, np.ones((3, 4)))


@pytest.mark.parametrize(
    "value", [True, -3, 2.5, float("inf"), float("-inf"), -0.0, 1 - 2j]
)
def test_a_literal_keeps_its_value_in_text(value: complex) -> None:
    graph = Graph("constant", (), (literal(value),))
    (out,) = interpret(parse_graph(print_graph(check_graph(graph))))
    assert out.tobytes() == interpret(graph)[0].tobytes()
    assert out == value


def test_a_literal_array_keeps_its_bits_in_text() -> None:
    array = np.array([[0.1, -0.0], [np.inf, 5e-324]])
    graph = Graph("constant", (), (literal(array),))
    (out,) = interpret(parse_graph(print_graph(graph)))
    assert out.tobytes() == array.tobytes()
    assert out.shape == (2, 2)


def test_a_guard_stops_a_run_with_another_value() -> None:
    graph = only_row("guard").graph(F64)
    x = np.ones((3, 4))
    (out,) = interpret(graph, x, np.array(3))
    np.testing.assert_array_equal(out, x + x)
    with pytest.raises(GuardFailed, match="made for 3, the value is 4"):
        interpret(graph, x, np.array(4))


def test_derivatives_keep_the_guard() -> None:
    graph = only_row("guard").graph(F64)
    x = np.ones((3, 4))
    for derived in (vjp_graph(graph, wrt=graph.inputs[:1]), jvp_graph(graph)):
        with pytest.raises(GuardFailed):
            interpret(derived, x, np.array(4), x)


def test_a_chain_of_effects_starts_with_a_token() -> None:
    assert first_token().type is TOKEN
    graph = only_row("start").graph(F64)
    assert [node.op.name for node in graph.nodes] == ["start"]
