"""Type rules against eager calls: what they refuse, and symbolic sizes.

A function that is traced learns its types from the rules, an eager call from NumPy.
Both must refuse the same operands, or what runs in one mode fails in the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from op_cases import CASES, EAGER_ROWS, ROWS, OpCase, Row
from op_cases.case import (
    DTYPES,
    Array,
    Variant,
    differentiable_positions,
    eager,
)
from op_cases.properties import for_rows

from tapejit.base.dims import Dim, evaluate
from tapejit.base.errors import ArgumentError, DTypeError, TapejitError
from tapejit.base.types import DType, TensorType, Type
from tapejit.ir import OPS, check_graph, interpret
from tapejit.tensor.tensor import Tensor
from tapejit.transforms import vjp_graph

EAGER_CASES = [case for cases in CASES.values() for case in cases[:1] if case.is_eager]


def ruled(op: str, arrays: Sequence[Array], attrs: Any) -> Type | TapejitError:
    """What the type rule says: a type, or the error it raises."""
    try:
        return OPS[op].infer_type([TensorType.of(x) for x in arrays], attrs)
    except TapejitError as error:
        return error


def performed(op: str, arrays: Sequence[Array], attrs: Any) -> Type | TapejitError:
    """What an eager call says."""
    try:
        result = eager(op, arrays, attrs)
    except TapejitError as error:
        return error
    assert type(result) is Tensor
    return TensorType.of(result._value)


def text(answer: Type | TapejitError) -> str:
    return type(answer).__name__ if isinstance(answer, Exception) else str(answer)


def disagreements(case: OpCase, variant: Variant, dtypes: Sequence[DType]) -> list[str]:
    """Where the rule and the eager call differ, for operands of these dtypes."""
    attrs = variant.attrs_for(variant.shapes)
    arrays = [
        harmless(case, at, shape, dtype)
        for at, (shape, dtype) in enumerate(zip(variant.shapes, dtypes, strict=True))
    ]
    rule = ruled(case.op, arrays, attrs)
    call = performed(case.op, arrays, attrs)
    if text(rule) == text(call):
        return []
    operands = ", ".join(str(TensorType.of(x)) for x in arrays)
    return [f"{case.op}({operands}): rule {text(rule)}, eager {text(call)}"]


def harmless(case: OpCase, at: int, shape: tuple[int, ...], dtype: DType) -> Array:
    """Ones, whose powers, quotients and logarithms exist; as an index, zeros."""
    operand = case.operands[min(at, len(case.operands) - 1)]
    return np.full(shape, not operand.own, dtype)


@pytest.mark.filterwarnings("ignore:a number that is not 0")  # `warned`, of ones
@pytest.mark.parametrize("case", EAGER_CASES, ids=str)
def test_the_rule_refuses_the_dtypes_that_an_eager_call_refuses(case: OpCase) -> None:
    variant = case.variants[0]
    count = min(len(variant.shapes), 3)
    tail = [np.dtype(np.int64)] * (len(variant.shapes) - count)  # more indices
    found = [
        line
        for dtypes in itertools.product(DTYPES, repeat=count)
        for line in disagreements(case, variant, [*dtypes, *tail])
    ]
    assert not found, f"{len(found)} disagreements:\n" + "\n".join(found[:12])


def is_taken(case: OpCase, dtypes: Sequence[DType]) -> bool:
    """Whether the rule takes operands of these dtypes."""
    row = case.rows[0]
    pairs = zip(row.shapes, dtypes, strict=True)
    types = [TensorType(dtype, shape) for shape, dtype in pairs]
    try:
        OPS[case.op].infer_type(types, row.attrs)
    except DTypeError:
        return False
    return True


@pytest.mark.parametrize("case", EAGER_CASES, ids=str)
def test_the_rule_takes_the_dtypes_of_the_case_and_no_others(case: OpCase) -> None:
    row = case.rows[0]
    usual = row.operand_dtypes(row.double_or_only_dtype)
    assert is_taken(case, usual)
    if not all(operand.own for operand in case.operands):
        for dtype in DTYPES:
            given = row.operand_dtypes(dtype)
            assert is_taken(case, given) == (dtype in row.dtypes), f"{case} of {dtype}"
    for at in range(len(row.shapes)):
        own = row.operand(at).own
        for dtype in DTYPES if own else ():
            given = [*usual[:at], dtype, *usual[at + 1 :]]
            where = f"{case} with operand {at} of {dtype}"
            assert is_taken(case, given) == (dtype in own), where


def misfits(which: str) -> list[Any]:
    """A parameter for every misfit of every case."""
    return [
        pytest.param(case, variant, id=f"{case.op}-{at}")
        for cases in CASES.values()
        for case in cases
        for at, variant in enumerate(getattr(case, which))
    ]


def misfitting(case: OpCase, variant: Variant) -> list[Array]:
    """Operands of the usual dtypes in the shapes of a misfit."""
    row = Row(case, variant)
    own = row.operand_dtypes(case.rows[0].double_or_only_dtype)
    return [
        harmless(case, at, shape, dtype)
        for at, (shape, dtype) in enumerate(zip(variant.shapes, own, strict=True))
    ]


@pytest.mark.parametrize(("case", "variant"), misfits("refused"))
def test_sizes_that_do_not_fit_are_refused_alike(
    case: OpCase, variant: Variant
) -> None:
    # An eager call asks the rule once per dtypes, then leaves sizes to NumPy.
    row = case.rows[0]
    row.eager(row.sample(np.random.default_rng(0), row.double_or_only_dtype))
    arrays = misfitting(case, variant)
    attrs = variant.attrs_for(variant.shapes)
    rule = ruled(case.op, arrays, attrs)
    call = performed(case.op, arrays, attrs)
    assert isinstance(rule, TapejitError), f"the rule gives {rule}"
    assert isinstance(call, TapejitError), f"the call gives {call}"
    assert (type(call), call.message, call.op) == (type(rule), rule.message, case.op)


@pytest.mark.parametrize(("case", "variant"), misfits("unreachable"))
def test_the_rule_refuses_what_the_namespace_never_passes_on(
    case: OpCase, variant: Variant
) -> None:
    arrays = misfitting(case, variant)
    attrs = variant.attrs_for(variant.shapes)
    assert isinstance(ruled(case.op, arrays, attrs), TapejitError)


@for_rows(EAGER_ROWS)
def test_an_error_never_comes_from_the_row_itself(row: Row) -> None:
    """Rows are what is taken: the rule and the call agree that they are."""
    rng = np.random.default_rng(1)
    for dtype in row.dtypes:
        arrays = row.sample(rng, dtype)
        rule = ruled(row.case.op, arrays, row.attrs)
        assert text(rule) == text(performed(row.case.op, arrays, row.attrs))
        assert isinstance(rule, TensorType)


@pytest.mark.parametrize("case", EAGER_CASES, ids=str)
def test_a_wrong_number_of_operands_makes_no_node(case: OpCase) -> None:
    """What makes a Node is what `check_graph` and the parser take for well formed."""
    row = case.rows[0]
    types = [x.type for x in row.graph(row.double_or_only_dtype).inputs]
    more = [*types, types[-1] if types else TensorType.parse("f64[2]")]
    wrong = [more] if not types else [types[:-1], more]
    for given in wrong if case.op != "concat" else [[]]:  # it takes any, but not none
        with pytest.raises((TypeError, ArgumentError)):
            OPS[case.op].infer_type(given, row.attrs)


# Symbolic sizes

SYMBOLIC_ROWS = [row for row in ROWS if row.resized(str) != row.shapes]


def bound(type: Type, sizes: dict[str, int]) -> TensorType:
    """A type with its unknown sizes replaced."""
    assert isinstance(type, TensorType)
    return TensorType(type.dtype, tuple(evaluate(size, sizes) for size in type.shape))


@pytest.mark.parametrize("grown", [0, 1])
@for_rows(SYMBOLIC_ROWS)
def test_unknown_sizes_are_bound_when_a_graph_runs(row: Row, grown: int) -> None:
    rng = np.random.default_rng(3)
    dtype = row.double_or_only_dtype
    names = row.resized(lambda size: Dim(f"n{size}"))
    shapes = row.resized(lambda size: size + grown)
    sizes = {f"n{size}": size + grown for shape in row.shapes for size in shape}
    unknown = check_graph(row.graph(dtype, names))
    known = row.graph(dtype, shapes)
    assert bound(unknown.outputs[0].type, sizes) == known.outputs[0].type
    arrays = row.sample(rng, dtype, shapes)
    (got,), (expected,) = interpret(unknown, *arrays), interpret(known, *arrays)
    np.testing.assert_array_equal(got, expected)


@for_rows([row for row in SYMBOLIC_ROWS if row.double_dtypes])
def test_adjoints_of_unknown_sizes_run(row: Row) -> None:
    rng = np.random.default_rng(4)
    (dtype, *_) = row.double_dtypes
    shapes = row.resized(lambda size: size + 1)
    unknown = row.graph(dtype, row.resized(lambda size: Dim(f"n{size}")))
    known = row.graph(dtype, shapes)
    arrays = row.sample(rng, dtype, shapes)
    out = known.outputs[0]
    seed = rng.normal(size=out.shape).astype(out.dtype)
    found, expected = (
        interpret(
            check_graph(
                vjp_graph(
                    graph,
                    wrt=[graph.inputs[at] for at in differentiable_positions(graph)],
                )
            ),
            *arrays,
            seed,
        )
        for graph in (unknown, known)
    )
    for got, wanted in zip(found, expected, strict=True):
        assert_agrees(COMPOSED, got, wanted, where=str(row))
