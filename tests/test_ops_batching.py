"""Batching of every op: one run over a leading axis is a Python loop over its rows.

Every combination of batched and shared operands, for batches of three, one and none;
of the op itself and of its adjoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, PRODUCT, SUM, assert_agrees
from differentiation import adjoint_of, drawn_like
from op_cases import ROWS, Row
from op_cases.case import F64, Array
from op_cases.properties import for_rows

from tapejit.base.errors import UnsupportedError
from tapejit.base.types import DType, TensorType
from tapejit.ir import OPS, Graph, check_graph, interpret, param
from tapejit.transforms import batch

SIZES = (3, 1, 0)


def combinations(row: Row, count: int) -> Iterator[tuple[bool, ...]]:
    """Which of `count` inputs have a batch axis; at least one has."""
    choices = [
        (False,) if at in row.case.unbatched else (False, True) for at in range(count)
    ]
    return (flags for flags in itertools.product(*choices) if any(flags))


def assert_is_a_loop(
    graph: Graph,
    rows: Sequence[Sequence[Array]],
    flags: Sequence[bool],
    size: int,
    op_class: str,
) -> None:
    """Batching these inputs of a Graph is running it for each of the first rows."""
    batched, has_axis = batch(graph, size=size, batched=flags)
    check_graph(batched)
    arguments = [
        np.stack([row[at] for row in rows])[:size] if flag else rows[0][at]
        for at, flag in enumerate(flags)
    ]
    found = interpret(batched, *arguments)
    expected = [
        interpret(
            graph,
            *[row[at] if flag else rows[0][at] for at, flag in enumerate(flags)],
        )
        for row in rows[:size]
    ]
    for at, (got, flag, out) in enumerate(
        zip(found, has_axis, graph.outputs, strict=True)
    ):
        where = f"{graph.name}, batch {size} of {flags}, result {at}"
        shape: Any = out.shape
        assert got.dtype == out.dtype, where
        assert got.shape == ((size, *shape) if flag else shape), where
        for i, one in enumerate(expected):
            assert_agrees(op_class, got[i] if flag else got, one[at], where=where)


def drawn_rows(row: Row, dtype: DType) -> list[list[Array]]:
    rng = np.random.default_rng(11)
    return [row.sample(rng, dtype) for _ in range(max(SIZES))]


@for_rows([row for row in ROWS if row.shapes])
def test_batching_is_a_loop(row: Row) -> None:
    is_sum = row.case.agreement in (SUM, PRODUCT)  # its order may be another
    op_class = COMPOSED if is_sum else row.case.agreement
    for dtype in row.some_dtypes:
        graph = row.graph(dtype)
        rows = drawn_rows(row, dtype)
        for flags in combinations(row, len(graph.inputs)):
            for size in SIZES:
                assert_is_a_loop(graph, rows, flags, size, op_class)


@for_rows([row for row in ROWS if row.double_dtypes])
def test_batching_an_adjoint_is_a_loop(row: Row) -> None:
    for dtype in row.double_dtypes:
        graph = row.graph(dtype)
        adjoint = adjoint_of(graph)
        assert adjoint is not None
        rng = np.random.default_rng(12)
        kinds = [x.type for x in adjoint.inputs[len(graph.inputs) :]]
        rows = [[*one, *drawn_like(rng, kinds)] for one in drawn_rows(row, dtype)]
        for flags in combinations(row, len(adjoint.inputs)):
            for size in SIZES:
                assert_is_a_loop(adjoint, rows, flags, size, COMPOSED)


def test_a_draw_is_batched_without_batched_operands() -> None:
    state = param("state", TensorType.parse("u32[6]"))
    words = OPS["random_bits"](state, shape=(2,), bits=32)
    graph = Graph("draw", (state,), (words,))
    drawn, has_axis = batch(graph, size=3, batched=(False,))
    (rows,) = interpret(drawn, np.arange(6, dtype=np.uint32))
    (whole,) = interpret(
        Graph("whole", (state,), (OPS["random_bits"](state, shape=(3, 2), bits=32),)),
        np.arange(6, dtype=np.uint32),
    )
    assert has_axis == (True,)
    np.testing.assert_array_equal(rows, whole)
    assert len({row.tobytes() for row in rows}) == 3


def test_a_guard_has_no_batch() -> None:
    row = next(row for row in ROWS if row.case.op == "guard")
    with pytest.raises(UnsupportedError, match="the effect guard cannot be batched"):
        batch(row.graph(F64), size=2, batched=(False, True))


def test_what_depends_on_nothing_batched_runs_once() -> None:
    x, y = (param(name, TensorType.parse("f64[3]")) for name in "xy")
    shared = OPS["exp"](x)
    graph = Graph("shared", (x, y), (shared, shared * y))
    batched, has_axis = batch(graph, size=4, batched=(False, True))
    assert has_axis == (False, True)
    assert [node.type for node in batched.nodes if node.op.name == "exp"] == [x.type]
