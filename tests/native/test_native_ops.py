"""Every op of the registry as native code, judged by its row in the op table.

An op is compiled alone and with its adjoint, in the dtypes of its rows; what is right
is said by the row's reference and the class of the op, as it is for NumPy's values. By
default one row of each case is taken, and another one for its derivatives; all rows in
all dtypes with `--full`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from agreement import FACTORED, assert_agrees
from differentiation import drawn_like
from op_cases import CASES, ROWS, OpCase, Row
from op_cases.case import Array, differentiable_positions
from test_ops_special_values import ELEMENTWISE, all_pairs

from tapejit.base.types import DType, TensorType, dtype_named
from tapejit.ir import OPS, Graph, param
from tapejit.runtime.executable import executable_for
from tapejit.transforms import jvp_graph, vjp_graph

from .compiled import (
    assert_composed,
    compile_native,
    run,
    run_native,
    run_numpy,
)

ALL_CASES = [case for cases in CASES.values() for case in cases]
F32, C64 = dtype_named("float32"), dtype_named("complex64")


def test_every_op_has_a_case() -> None:
    assert set(CASES) == set(OPS), "add the op to tests/op_cases"
    assert {row.case.op for row in ROWS} == set(OPS), "and a variant to its case"


# Values


def rows_of(case: OpCase, full: bool) -> Sequence[Row]:
    """All rows, or the first."""
    return case.rows if full else case.rows[:1]


def dtypes_of(row: Row, full: bool) -> Sequence[DType]:
    """All dtypes, or float32 and the last, which is a rare one."""
    if full:
        return row.dtypes
    usual = F32 if F32 in row.dtypes else row.dtypes[0]
    return tuple(dict.fromkeys((usual, row.dtypes[-1])))


def assert_as_the_table_says(
    row: Row, arrays: Sequence[Array], got: Any, what: str = ""
) -> None:
    where = f"{row} in {got.dtype} {what}"
    assert_agrees(row.case.agreement, got, row.reference(arrays), where=where)


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_value_agrees_with_the_reference(case: OpCase, full: bool) -> None:
    rng = np.random.default_rng(43)
    for row in rows_of(case, full):
        for dtype in dtypes_of(row, full):
            graph = row.graph(dtype)
            executable = compile_native(graph)
            for _ in range(2):  # the second time on memory that has been used
                arrays = row.sample(rng, dtype)
                before = [x.tobytes() for x in arrays]
                (got,) = run(executable, arrays)
                assert TensorType.of(got) == graph.outputs[0].type
                assert_as_the_table_says(row, arrays, got)
                assert [x.tobytes() for x in arrays] == before


@pytest.mark.parametrize("case", ELEMENTWISE, ids=str)
def test_special_values_are_those_of_the_reference(case: OpCase, full: bool) -> None:
    row = case.rows[0]
    for dtype in dtypes_of(row, full):
        arrays = all_pairs(case, dtype)
        if not full:
            arrays = [x[:: max(1, x.size // 4001)] for x in arrays]
        graph = row.graph(dtype, [x.shape for x in arrays])
        (got,) = run_native(graph, arrays)
        assert_as_the_table_says(row, arrays, got)


# Sizes and layouts

LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257)


@pytest.mark.parametrize("case", ELEMENTWISE, ids=str)
def test_each_length_is_right_to_its_end(case: OpCase, full: bool) -> None:
    """Whatever the number of lanes, what is left over is computed alike."""
    rng = np.random.default_rng(47)
    row = case.rows[0]
    dtype = dtypes_of(row, full=False)[0]
    at = ALL_CASES.index(case)
    for length in LENGTHS if full else [LENGTHS[at % len(LENGTHS)]]:
        shapes = [(length,)] * len(row.shapes)
        arrays = row.sample(rng, dtype, shapes)
        (got,) = run_native(row.graph(dtype, shapes), arrays)
        assert_as_the_table_says(row, arrays, got, f"of length {length}")


def turned(x: Array) -> Array:
    """Axes lie in memory in the opposite order."""
    return np.array(x, order="F")


def spread(x: Array) -> Array:
    """Every second place of every axis of something larger."""
    larger = np.ones([2 * size for size in x.shape], x.dtype)
    larger[(slice(None, None, 2),) * x.ndim] = x
    return np.asarray(larger[(slice(None, None, 2),) * x.ndim])


def reversed_in_memory(x: Array) -> Array:
    """Each axis runs backwards."""
    backwards = (slice(None, None, -1),) * x.ndim
    return np.asarray(np.array(x[backwards], order="C")[backwards])


def shifted(x: Array) -> Array:
    """It begins one element after an aligned address."""
    room = np.empty(x.size + 1, x.dtype)[1:].reshape(x.shape)
    room[...] = x
    return room


def repeated(x: Array) -> Array:
    """Its first row again and again, held once."""
    return np.broadcast_to(x[:1], x.shape) if x.ndim and len(x) else x


LAYOUTS = (turned, spread, reversed_in_memory, shifted, repeated)


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_operands_may_lie_in_memory_as_they_like(case: OpCase, full: bool) -> None:
    rng = np.random.default_rng(53)
    for row in rows_of(case, full):
        if not row.shapes:
            continue
        dtype = dtypes_of(row, full=False)[0]
        executable = compile_native(row.graph(dtype))
        for layout in LAYOUTS:
            if layout is repeated and case.agreement == FACTORED:
                continue  # a matrix of equal rows is not regular
            arrays = [layout(x) for x in row.sample(rng, dtype)]
            (got,) = run(executable, arrays)
            plain = [np.array(x, order="C") for x in arrays]
            assert_as_the_table_says(row, plain, got, layout.__name__)


# Derivatives


def with_adjoint(graph: Graph) -> Graph:
    wrt = [graph.inputs[at] for at in differentiable_positions(graph)]
    return vjp_graph(graph, wrt=wrt)


def with_second_adjoint(graph: Graph) -> Graph:
    wrt = [graph.inputs[at] for at in differentiable_positions(graph)]
    return vjp_graph(vjp_graph(graph, wrt=wrt), wrt=wrt)


def assert_derived_agrees(
    row: Row, dtype: DType, derive: Callable[[Graph], Graph]
) -> None:
    rng = np.random.default_rng(59)
    arrays = row.sample(rng, dtype)
    graph = derive(row.graph(dtype))
    kinds = [x.type for x in graph.inputs[len(arrays) :]]
    given = [*arrays, *drawn_like(rng, kinds)]
    where = f"{derive.__name__} of {row} in {dtype}"
    assert_composed(run_native(graph, given), run_numpy(graph, given), where)


def float_dtypes(row: Row, full: bool = True) -> Sequence[DType]:
    """Those by which the op is connected."""
    able = [d for d in row.dtypes if "c" in row.first(d)]
    if full:
        return able
    usual = [d for d in (F32, C64) if d in able]
    return usual or able[-1:]


DIFFERENTIABLE = [
    case for case in ALL_CASES if any(float_dtypes(row) for row in case.rows)
]


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_the_adjoint_agrees_with_numpys(case: OpCase, full: bool) -> None:
    rows = [row for row in case.rows if float_dtypes(row)]
    for row in rows if full else rows[:2][-1:]:
        for dtype in float_dtypes(row, full):
            assert_derived_agrees(row, dtype, with_adjoint)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_second_derivatives_agree_with_numpys(case: OpCase, full: bool) -> None:
    row = case.rows[0]
    dtypes = row.double_dtypes
    if not full and ALL_CASES.index(case) % 4:
        return
    for dtype in dtypes:
        assert_derived_agrees(row, dtype, with_second_adjoint)
        if full:
            assert_derived_agrees(row, dtype, jvp_graph)


# That it is native code


def test_native_code_and_numpy_are_two_executables() -> None:
    x = param("x", TensorType(F32, (7,)))
    graph = Graph("two_ways", [x], [x * x + x])
    assert executable_for(graph) is not compile_native(graph)
    assert executable_for(graph) is executable_for(graph)
    assert compile_native(graph) is compile_native(graph)
