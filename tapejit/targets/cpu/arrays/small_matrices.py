"""Systems and factorisations of small matrices, as loops over stacks of them.

The steps are those of `ops.small_matrices`, on vectors: a lane is a matrix, so that a
vector has the same element of several neighbours in the stack. Where a result is not
good a mark is left, and NumPy does all of it again, with LAPACK.

Start reading at `emit_solve`, then `emit_stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit.base.types import DType
from tapejit.ir.node import Node
from tapejit.loops.index import strides_of
from tapejit.ops import small_matrices
from tapejit.ops.small_matrices import Rows
from tapejit.targets.cpu.arrays.loops import (
    ArrayOperand,
    each_part,
    function_of,
    merged,
    moved,
    read,
    widest,
    write,
)
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value
from tapejit.targets.cpu.nest.addressing import Addressing, number
from tapejit.targets.cpu.simd import lanes

# From the elements of each operand's matrices to those of the result's, and is_good.
Compute = Callable[["Vectors", list[Rows]], tuple[Rows, Value]]


class RoundedVector:
    """A vector with Python's operators; each is one instruction, rounded once."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: IRBuilder, value: Value) -> None:
        self.builder = builder
        self.value = value

    def __add__(self, other: RoundedVector) -> RoundedVector:
        return RoundedVector(self.builder, self.builder.fadd(self.value, other.value))

    def __sub__(self, other: RoundedVector) -> RoundedVector:
        return RoundedVector(self.builder, self.builder.fsub(self.value, other.value))

    def __mul__(self, other: RoundedVector) -> RoundedVector:
        return RoundedVector(self.builder, self.builder.fmul(self.value, other.value))

    def __truediv__(self, other: RoundedVector) -> RoundedVector:
        return RoundedVector(self.builder, self.builder.fdiv(self.value, other.value))


class Vectors:
    """`small_matrices.Numbers` of vectors."""

    def __init__(self, at: Addressing, dtype: DType, width: int) -> None:
        self.at, self.builder = at, at.builder
        self.dtype, self.width = dtype, width
        self.eps = float(np.finfo(dtype).eps)
        self.tiny = float(np.finfo(dtype).tiny)

    def where(
        self, condition: Value, x: RoundedVector, y: RoundedVector
    ) -> RoundedVector:
        return RoundedVector(
            self.builder, self.builder.select(condition, x.value, y.value)
        )

    def both(self, x: Value, y: Value) -> Value:
        return self.builder.and_(x, y)

    def less(self, x: RoundedVector, y: RoundedVector) -> Value:
        return self.builder.fcmp_ordered("<", x.value, y.value)

    def differs(self, x: RoundedVector, y: RoundedVector) -> Value:
        return self.builder.fcmp_unordered("!=", x.value, y.value)

    def abs(self, x: RoundedVector) -> RoundedVector:
        found = function_of(self.at, "abs", x.value, self.dtype)
        return RoundedVector(self.builder, found)

    def sqrt(self, x: RoundedVector) -> RoundedVector:
        found = function_of(self.at, "sqrt", x.value, self.dtype)
        return RoundedVector(self.builder, found)

    def constant(self, value: float) -> RoundedVector:
        return RoundedVector(
            self.builder, lanes.constant(self.dtype, value, self.width)
        )


def emit_solve(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    emit_stack(
        at, node, operands, out, lambda m, given: small_matrices.solved(m, *given)
    )


def emit_solve_triangular(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    def compute(m: Vectors, given: list[Rows]) -> tuple[Rows, Value]:
        return small_matrices.solved_triangular(m, *given, **node.attrs)

    emit_stack(at, node, operands, out, compute)


def emit_cholesky(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    emit_stack(
        at,
        node,
        operands,
        out,
        lambda m, given: small_matrices.cholesky_factor(m, *given),
    )


def emit_cofactor(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    emit_stack(
        at,
        node,
        operands,
        out,
        lambda m, given: small_matrices.cofactor_matrix(m, *given),
    )


def emit_det(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    def compute(m: Vectors, given: list[Rows]) -> tuple[Rows, Value]:
        value, is_good = small_matrices.determinant(m, *given)
        return [[value]], is_good

    emit_stack(at, node, operands, out, compute, is_number=True)


def emit_stack(
    at: Addressing,
    node: Node,
    operands: Sequence[ArrayOperand],
    out: Value,
    compute: Compute,
    *,
    is_number: bool = False,
) -> None:
    """`compute` for every matrix of a stack; the result is a matrix or a number each.

    A shorter vector at the end has lanes that are matrices too, so none is computed of
    what is not there.
    """
    shape = [int(size) for size in node.shape]
    strides = strides_of(shape)
    if is_number:
        shape, strides = [*shape, 1, 1], (*strides, 0, 0)
    result = ArrayOperand(out, node.dtype, tuple(strides))
    every = (*operands, result)
    stack = shape[:-2]
    outer = [
        stack_strides(x, made.shape[:-2], len(stack))
        for x, made in zip(operands, node.inputs, strict=True)
    ]
    sizes, apart = merged(stack, *outer, result.strides[:-2])
    if not sizes:
        sizes, apart = [1], [[0] for _ in every]
    matrices = [x.shape[-2:] for x in node.inputs]
    last = [own[-1] for own in apart]

    def part(here: list[Value], width: int) -> None:
        numbers = Vectors(at, node.dtype, width)
        given = [
            elements(at, x, place, stride, size, width)
            for x, place, stride, size in zip(
                operands, here, last, matrices, strict=False
            )
        ]
        found, is_good = compute(numbers, given)
        at.fail_unless(is_good)
        for i, values in enumerate(found):
            for j, value in enumerate(values):
                place = moved(at, here[-1], number(i), result.strides[-2])
                place = moved(at, place, number(j), result.strides[-1])
                write(at, result, place, last[-1], value.value)

    each_part(at, sizes, apart, widest(node.dtype), part)


def stack_strides(x: ArrayOperand, sizes: Sequence[Any], rank: int) -> list[int]:
    """The strides of a stack that is repeated along axes which it has not, or one of.

    >>> stack_strides(ArrayOperand(None, np.dtype("f4"), (4, 4, 2, 1)), (3, 1), 3)
    [0, 4, 0]
    """
    own = [0 if size == 1 else x.strides[at] for at, size in enumerate(sizes)]
    return [0] * (rank - len(own)) + own


def elements(
    at: Addressing,
    x: ArrayOperand,
    place: Value,
    stride: int,
    size: Sequence[Any],
    width: int,
) -> Rows:
    """Element (i, j) of `width` matrices that are a stride apart, for all i and j."""
    rows: Rows = []
    for i in range(int(size[0])):
        start = moved(at, place, number(i), x.strides[-2])
        row = []
        for j in range(int(size[1])):
            here = moved(at, start, number(j), x.strides[-1])
            row.append(RoundedVector(at.builder, read(at, x, here, stride, width)))
        rows.append(row)
    return rows
