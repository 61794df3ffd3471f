"""Every op of the registry inside a traced function: as eagerly, bit for bit.

The rows of the op table run in both modes: values, dtypes, gradients with the tape
inside the function and around it, second derivatives, and the errors of misfits. Each
function is called twice with other values, so that the second call runs its graph
without tracing. By default a sample of the rows is run, all of them with `--full`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from op_cases import CASES, ROWS, OpCase, Row
from op_cases.case import Array, Variant, differentiable_positions
from op_cases.properties import for_rows
from two_modes import (
    assert_modes_agree,
    assert_near,
    frozen,
    gradients,
    is_error,
    second_gradients,
    tensors,
)

import tapejit as tj
from tapejit.base.types import DType
from tapejit.ir import OPS
from tapejit.tensor.dispatch import apply
from tapejit.tensor.trace import run_graph

# What no call performs: leaves of graphs, links of the chain of effects, and what
# functions themselves put into their graphs.
NOT_PERFORMED = {
    *("param", "literal", "start", "guard", "reread", "call"),
    *("check", "print_values"),  # effects: see test_effects.py
}
PERFORMED = [row for row in ROWS if row.case.op not in NOT_PERFORMED]


@pytest.fixture
def sampled(full: bool) -> Callable[[Row], bool]:
    """Whether a row belongs to the sample: every third variant of each case."""

    def is_in_sample(row: Row) -> bool:
        return full or row.case.rows.index(row) % 3 == 0

    return is_in_sample


def dtypes_of(row: Row, full: bool) -> Sequence[DType]:
    return row.dtypes if full else row.some_dtypes


def body_of(row: Row, dtype: DType) -> Callable[..., Any]:
    """A function of tensors that performs the row's operation."""
    if row.case.is_eager:
        op, attrs = OPS[row.case.op], row.attrs
        return lambda *xs: apply(op, *xs, **attrs)
    graph = row.graph(dtype)
    return lambda *xs: run_graph(graph, list(xs))


def two_samples(row: Row, dtype: DType) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(11)
    return tensors(row.sample(rng, dtype)), tensors(row.sample(rng, dtype))


@for_rows(PERFORMED)
def test_a_traced_op_gives_the_eager_bits(
    row: Row, full: bool, sampled: Callable[[Row], bool]
) -> None:
    dtypes = dtypes_of(row, full) if sampled(row) else [row.double_or_only_dtype]
    for dtype in dtypes:
        function = tj.function(body_of(row, dtype))
        calls = two_samples(row, dtype)
        where = f"{row} in {dtype}"
        found = assert_modes_agree(
            body_of(row, dtype), *calls, where=where, traced=function
        )
        assert not is_error(found), where
        assert function.trace_count == 1, f"{where}: one trace serves both calls"


DOUBLE_ROWS = [(row, dtype) for row in PERFORMED for dtype in row.double_dtypes]


def with_gradients(
    row: Row, dtype: DType, differentiate: Callable[..., list[Any]]
) -> Callable[..., list[Any]]:
    body = body_of(row, dtype)
    positions = differentiable_positions(row.graph(dtype))
    return lambda *xs: differentiate(body, xs, positions)


@for_rows(DOUBLE_ROWS)
def test_gradients_with_the_tape_inside_the_function(
    row: Row, dtype: DType, sampled: Callable[[Row], bool]
) -> None:
    if not sampled(row):
        return
    body = with_gradients(row, dtype, gradients)
    found = assert_modes_agree(body, *two_samples(row, dtype), where=str(row))
    assert not is_error(found)
    assert any(part is not None for part in found)


@for_rows(DOUBLE_ROWS)
def test_gradients_with_the_tape_around_the_function(
    row: Row, dtype: DType, sampled: Callable[[Row], bool]
) -> None:
    if not sampled(row):
        return
    traced = tj.function(body_of(row, dtype))
    positions = differentiable_positions(row.graph(dtype))
    assert_modes_agree(
        with_gradients(row, dtype, gradients),
        *two_samples(row, dtype),
        where=str(row),
        traced=lambda *xs: gradients(traced, xs, positions),
    )
    assert traced.trace_count == 1


@for_rows(DOUBLE_ROWS)
def test_second_derivatives_inside_and_around(
    row: Row, dtype: DType, full: bool
) -> None:
    if not full and row is not first_double_row(row.case):
        return
    calls = two_samples(row, dtype)
    body = with_gradients(row, dtype, second_gradients)
    assert_modes_agree(body, *calls, where=f"{row}: tapes inside")
    traced = tj.function(body_of(row, dtype))
    positions = differentiable_positions(row.graph(dtype))
    for args in calls:
        expected = body(*args)
        found = second_gradients(traced, args, positions)
        assert_near(found, expected, f"{row}: tapes around")


def first_double_row(case: OpCase) -> Row:
    return next(row for row in PERFORMED if row.case is case and row.double_dtypes)


def test_a_gradient_of_a_gradient_with_one_tape_on_each_side() -> None:
    @tj.function
    def slope(x: Any) -> Any:
        (found,) = gradients(lambda x: x * x * x, [x], [0])
        return found

    x = tj.asarray([2.0, 3.0])
    for _ in range(2):
        assert frozen(gradients(slope, [x], [0])) == frozen([6 * x])


# Misfits


def misfits() -> list[Any]:
    return [
        pytest.param(case, variant, id=f"{case.op}-{at}")
        for cases in CASES.values()
        for case in cases
        for at, variant in enumerate(case.refused)
        if case.is_eager
    ]


def usual_operands(case: OpCase, variant: Variant) -> list[Array]:
    row = Row(case, variant)
    own = row.operand_dtypes(case.rows[0].double_or_only_dtype)
    return [
        np.ones(shape, dtype) for shape, dtype in zip(variant.shapes, own, strict=True)
    ]


@pytest.mark.parametrize(("case", "variant"), misfits())
def test_sizes_that_do_not_fit_are_the_same_error(
    case: OpCase, variant: Variant
) -> None:
    attrs = variant.attrs_for(variant.shapes)
    args = tensors(usual_operands(case, variant))
    body = lambda *xs: apply(OPS[case.op], *xs, **attrs)
    assert is_error(assert_modes_agree(body, args, args, where=case.op))


EAGER_CASES = [case for cases in CASES.values() for case in cases if case.is_eager]


@pytest.mark.parametrize("case", EAGER_CASES, ids=str)
def test_dtypes_that_are_not_taken_are_the_same_error(case: OpCase) -> None:
    row = case.rows[0]
    body = body_of(row, row.double_or_only_dtype)
    usual = row.sample(np.random.default_rng(12), row.double_or_only_dtype)
    refused = 0
    for at in range(len(usual)):
        for name in ("bool", "int32", "float32", "complex64"):
            given = [*usual[:at], np.ones(usual[at].shape, name), *usual[at + 1 :]]
            args = tensors(given)
            found = assert_modes_agree(body, args, where=f"{case} with {name} at {at}")
            refused += is_error(found)
    assert refused or case.op in TAKES_ALL, "some dtype is refused"


# Ops of one operand that take every kind of number, and those of none.
TAKES_ALL = {
    case.op
    for case in EAGER_CASES
    if not case.rows[0].shapes
    or (len(case.rows[0].shapes) == 1 and len(case.takes) == 4)
}
