"""Systems and factorisations of matrices up to 4 by 4, written out as arithmetic.

LAPACK is called once per matrix, which takes a microsecond whatever the size. Written
out, a stack is computed at once: element (i, j) of all matrices is one operand.

Each function takes a `RowArithmetic`, which says what arithmetic is, and lists of rows
whose elements are NumPy arrays here, and vectors of lanes in native code
(`targets/cpu/arrays/small_matrices.py`). The steps are the same ones in the same order,
so both have the same bits.

Elimination chooses the largest pivot, by selection, as LAPACK does by exchange. So its
errors are LAPACK's: n eps of the growth of the elements, which for 4 rows is at most
8. `is_good` tells where a result can be relied on. Where it is false a pivot is zero
or nothing but rounding, or a product of pivots is beyond what a float holds; there
LAPACK decides what the answer is, and whether there is one.

Start reading at `solved`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from tapejit.ir.node import Node

MOST_ROWS: Final = 4
MOST_COLUMNS: Final = 8  # of right-hand sides
# Arithmetic on arrays costs 1 us per step, LAPACK 1 us per matrix: measured for 4 rows.
MANY_MATRICES: Final = 256
# Below so many eps of what was subtracted, a difference is rounding.
ROUNDING: Final = 8.0

Rows = list[list[Any]]


class RowArithmetic(Protocol):
    """What can be done with elements besides + - * /."""

    eps: float
    tiny: float

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """`x` where the condition holds, else `y`."""

    def both(self, x: Any, y: Any) -> Any:
        """Whether two conditions hold."""

    def less(self, x: Any, y: Any) -> Any:
        """Whether x < y; false of NaN."""

    def differs(self, x: Any, y: Any) -> Any:
        """Whether x is not y; true of NaN."""

    def abs(self, x: Any) -> Any:
        """The magnitude."""

    def sqrt(self, x: Any) -> Any:
        """The square root."""

    def constant(self, value: float) -> Any:
        """A number."""


def eliminated(m: RowArithmetic, a: Rows, b: Rows) -> tuple[Rows, Rows, Any, Any]:
    """Upper triangular rows, right-hand sides alike, the sign of exchanges, is_good.

    A column of zeros is left alone: what is below a zero is zero.
    """
    a, b = [list(row) for row in a], [list(row) for row in b]
    size = len(a)
    sign, zero = m.constant(1.0), m.constant(0.0)
    last = size - 1
    is_good = m.differs(m.constant(1.0), zero)
    for k in range(size):
        for i in range(k + 1, size):
            is_larger = m.less(m.abs(a[k][k]), m.abs(a[i][k]))
            for rows, first in ((a, k), (b, 0)):
                for j in range(first, len(rows[k])):
                    x, y = rows[k][j], rows[i][j]
                    rows[k][j] = m.where(is_larger, y, x)
                    rows[i][j] = m.where(is_larger, x, y)
            sign = m.where(is_larger, zero - sign, sign)
        is_pivot = m.differs(a[k][k], zero)
        for i in range(k + 1, size):
            factor = m.where(is_pivot, a[i][k] / a[k][k], zero)
            for j in range(k + 1, size):
                before, taken = a[i][j], factor * a[k][j]
                a[i][j] = before - taken
                if i == j == last:
                    noise = m.abs(before) + m.abs(taken)
                    noise = noise * m.constant(ROUNDING * m.eps)
                    is_good = m.less(noise, m.abs(a[i][j]))
            for j in range(len(b[i])):
                b[i][j] = b[i][j] - factor * b[k][j]
    return a, b, sign, is_good


def all_differ_from_zero(m: RowArithmetic, values: Sequence[Any]) -> Any:
    zero = m.constant(0.0)
    found = m.differs(values[0], zero)
    for value in values[1:]:
        found = m.both(found, m.differs(value, zero))
    return found


def diagonal_of(a: Rows) -> list[Any]:
    return [row[i] for i, row in enumerate(a)]


def solved(m: RowArithmetic, a: Rows, b: Rows) -> tuple[Rows, Any]:
    """x with a x = b, and is_good; false of singular matrices."""
    upper, right, _, is_good = eliminated(m, a, b)
    is_good = m.both(is_good, all_differ_from_zero(m, diagonal_of(upper)))
    return substituted_rows(upper, right, lower=False, unit_diagonal=False), is_good


def substituted_rows(a: Rows, b: Rows, *, lower: bool, unit_diagonal: bool) -> Rows:
    """The solution for a triangular matrix; the other triangle is not looked at."""
    size = len(a)
    x: dict[int, list[Any]] = {}
    for i in range(size) if lower else reversed(range(size)):
        row = list(b[i])
        for j in range(i) if lower else range(i + 1, size):
            row = [value - a[i][j] * x[j][c] for c, value in enumerate(row)]
        x[i] = row if unit_diagonal else [value / a[i][i] for value in row]
    return [x[i] for i in range(size)]


def solved_triangular(
    m: RowArithmetic, a: Rows, b: Rows, *, lower: bool, unit_diagonal: bool
) -> tuple[Rows, Any]:
    """`substituted_rows`, and is_good: no element of the diagonal is zero."""
    if unit_diagonal:
        is_good = m.differs(m.constant(1.0), m.constant(0.0))
    else:
        is_good = all_differ_from_zero(m, diagonal_of(a))
    return substituted_rows(a, b, lower=lower, unit_diagonal=unit_diagonal), is_good


def determinant(m: RowArithmetic, a: Rows) -> tuple[Any, Any]:
    """The product of the pivots, and is_good: it is neither too small nor too large."""
    upper, _, out, is_good = eliminated(m, a, [[] for _ in a])
    for pivot in diagonal_of(upper):
        out = out * pivot
    size = m.abs(out)
    is_good = m.both(is_good, m.less(m.constant(m.tiny), size))
    return out, m.both(is_good, m.less(size, m.constant(np.inf)))


def cholesky_factor(m: RowArithmetic, x: Rows) -> tuple[Rows, Any]:
    """The lower triangular l with l lᵀ = (x + xᵀ) / 2, and is_good."""
    size = len(x)
    half, zero = m.constant(0.5), m.constant(0.0)
    out: Rows = [[zero] * size for _ in range(size)]
    is_good = m.differs(m.constant(1.0), zero)
    for j in range(size):
        for i in range(j, size):
            value = x[i][j] if i == j else x[i][j] * half + x[j][i] * half
            for k in range(j):
                value = value - out[i][k] * out[j][k]
            if i == j:
                noise = m.abs(x[j][j]) * m.constant(ROUNDING * m.eps)
                is_good = m.both(is_good, m.less(noise, value))
                out[j][j] = m.sqrt(value)
            else:
                out[i][j] = value / out[j][j]
    return out, is_good


def cofactor_matrix(m: RowArithmetic, a: Rows) -> tuple[Rows, Any]:
    """The determinants of what is left without a row and a column, with signs.

    It is good where all elements are finite.
    """
    size = len(a)
    infinity = m.constant(np.inf)
    is_good = m.less(m.abs(a[0][0]), infinity)
    for row in a:
        for value in row:
            is_good = m.both(is_good, m.less(m.abs(value), infinity))

    def minor(rows: Sequence[int], columns: Sequence[int]) -> Any:
        if not rows:
            return m.constant(1.0)
        first, *others = rows
        if not others:
            return a[first][columns[0]]
        total = None
        for at, column in enumerate(columns):
            left = [*columns[:at], *columns[at + 1 :]]
            term = a[first][column] * minor(others, left)
            if total is None:
                total = term
            else:
                total = total - term if at % 2 else total + term
        return total

    def without(at: int) -> list[int]:
        return [i for i in range(size) if i != at]

    out = [[minor(without(i), without(j)) for j in range(size)] for i in range(size)]
    for i in range(size):
        for j in range(1 - i % 2, size, 2):
            out[i][j] = m.constant(0.0) - out[i][j]
    return out, is_good


# On arrays


class Arrays:
    """Arithmetic on NumPy arrays of one dtype."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.eps = float(np.finfo(dtype).eps)
        self.tiny = float(np.finfo(dtype).tiny)
        self.where = np.where
        self.both = np.logical_and
        self.less = np.less
        self.differs = np.not_equal
        self.abs = np.abs
        self.sqrt = np.sqrt

    def constant(self, value: float) -> Any:
        return self.dtype.type(value)


def is_small(shape: Sequence[Any], columns: Any = 1) -> bool:
    """Whether matrices of this shape, and right-hand sides, are written out."""
    rows = shape[-1]
    return (
        isinstance(rows, int)
        and 1 <= rows <= MOST_ROWS
        and isinstance(columns, int)
        and columns <= MOST_COLUMNS
    )


def is_small_matrix(node: Node) -> bool:
    """Whether an operation on matrices is one on small ones, in single or double."""
    shapes = [x.shape for x in node.inputs]
    columns = shapes[1][-1] if len(shapes) > 1 else 1
    return (
        node.dtype.kind == "f"
        and node.dtype.itemsize >= 4
        and is_small(shapes[0], columns)
    )


def is_many(*arrays: Any) -> bool:
    """Whether arrays are stacks of so many small real matrices that this pays."""
    a, *others = arrays
    stack = np.broadcast_shapes(*[x.shape[:-2] for x in arrays])
    columns = others[0].shape[-1] if others else 1
    return (
        a.dtype.kind == "f"
        and is_small(a.shape, columns)
        and int(np.prod(stack, dtype=np.int64)) >= MANY_MATRICES
    )


def rows_of(x: Any) -> Rows:
    """The elements of all matrices of a stack, each contiguous."""
    rows, columns = x.shape[-2:]
    apart = np.ascontiguousarray(np.moveaxis(x, (-2, -1), (0, 1)))
    return [[apart[i, j] for j in range(columns)] for i in range(rows)]


def stacked(rows: Rows, shape: Sequence[int], dtype: Any) -> Any:
    """Matrices of rows of elements."""
    out = np.empty(shape, dtype)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            out[..., i, j] = value
    return out
