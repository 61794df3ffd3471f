"""Every op of the registry, by its rows in the op table: values and their types."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import EXACT, ROUNDED, assert_agrees
from op_cases import CASES, EAGER_ROWS, ROWS, Row
from op_cases.case import DTYPES, F64, KINDS, Array
from op_cases.properties import for_rows

from tapejit.base.types import TensorType, is_integer
from tapejit.ir import OPS, Graph, interpret


def values_of(graph: Graph, arrays: list[Array]) -> Array:
    """The one output of a Graph."""
    (out,) = interpret(graph, *arrays)
    return out


def test_every_op_has_a_case() -> None:
    assert set(CASES) == set(OPS), "add the op to tests/op_cases"


def test_rows_are_told_apart_by_their_names() -> None:
    assert len({str(row) for row in ROWS}) == len(ROWS)


def test_kinds_part_the_dtypes() -> None:
    assert [sum(is_kind(d) for is_kind in KINDS.values()) for d in DTYPES] == [1] * 15


@for_rows(ROWS)
def test_the_value_agrees_with_the_reference(row: Row) -> None:
    rng = np.random.default_rng(1)
    for dtype in row.dtypes:
        arrays = row.sample(rng, dtype)
        if row.case.is_eager:
            got = row.eager(arrays)
        else:
            got = values_of(row.graph(dtype), arrays)
        where = f"{row} in {dtype}"
        assert_agrees(row.case.agreement, got, row.reference(arrays), where=where)


@for_rows(ROWS)
def test_the_type_rule_gives_the_type_of_the_value(row: Row) -> None:
    rng = np.random.default_rng(2)
    for dtype in row.dtypes:
        arrays = row.sample(rng, dtype)
        graph = row.graph(dtype)
        (out,) = graph.outputs
        assert TensorType.of(values_of(graph, arrays)) == out.type
        if row.case.is_eager:
            assert TensorType.of(row.eager(arrays)) == out.type


@for_rows(EAGER_ROWS)
def test_interpreting_gives_the_eager_value(row: Row) -> None:
    rng = np.random.default_rng(3)
    for dtype in row.dtypes:
        arrays = row.sample(rng, dtype)
        got = values_of(row.graph(dtype), arrays)
        where = f"{row} in {dtype}"
        # Both modes call the same function: what is rounded is rounded alike. Only
        # complex products differ: NumPy fuses them in arrays, not in scalars.
        op_class = ROUNDED if row.case.agreement == ROUNDED else EXACT
        assert_agrees(op_class, got, row.eager(arrays), where=where)


@for_rows(EAGER_ROWS)
def test_operands_stay_as_they_are(row: Row) -> None:
    rng = np.random.default_rng(4)
    arrays = row.sample(rng, row.double_or_only_dtype)
    before = [x.tobytes() for x in arrays]
    for x in arrays:
        x.flags.writeable = False
    row.eager(arrays)
    assert [x.tobytes() for x in arrays] == before


@for_rows(EAGER_ROWS)
def test_the_layout_of_operands_does_not_matter(row: Row) -> None:
    rng = np.random.default_rng(5)
    for dtype in row.some_dtypes:
        arrays = row.sample(rng, dtype)
        spread = [every_second(x) for x in arrays]
        where = f"{row} in {dtype}"
        truth = row.reference(arrays)
        assert_agrees(row.case.agreement, row.eager(spread), truth, where=where)


def every_second(x: Array) -> Array:
    """The same elements in another order in memory, with gaps between them."""
    if not x.ndim:
        return x
    return np.asfortranarray(np.repeat(x, 2, axis=-1))[..., ::2]


@pytest.mark.parametrize("op", ["gather", "gather_add"])
def test_indices_of_every_integer_dtype_mean_the_same(op: str) -> None:
    rng = np.random.default_rng(6)
    first = {"gather": 1, "gather_add": 2}[op]
    for row in CASES[op][0].rows:
        arrays = row.sample(rng, F64)
        expected = row.reference(arrays)
        sizes = [row.shapes[0][axis] for axis in row.attrs["axes"]]
        for dtype in filter(is_integer, DTYPES):
            indices = [
                (index if dtype.kind == "i" else index % size).astype(dtype)
                for index, size in zip(arrays[first:], sizes, strict=True)
            ]
            got = row.eager([*arrays[:first], *indices])
            where = f"{row} indexed by {dtype}"
            assert_agrees(row.case.agreement, got, expected, where=where)
