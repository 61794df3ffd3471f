"""What the records of linear algebra share: checks, evaluation, parts of matrices.

A matrix is the last two axes of a tensor, the axes before them are a stack. Type rules
check with `square` and `matrix`. `lapack` wraps what NumPy and SciPy compute: halves,
which LAPACK has not, are computed in float32 and rounded once, and a factorisation
that does not exist is a `LinAlgError`.

Derivatives are written with the parts below. Triangles and diagonals are masks made of
row and column numbers, so they know unknown sizes and broadcast over a stack.

Start reading at `lapack`, then `adjoint`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tapejit.base.blas import one_thread
from tapejit.base.dims import Dim, Size
from tapejit.base.errors import LinAlgError, ShapeError
from tapejit.base.types import TensorType, Type, is_complex, real_dtype
from tapejit.ir.node import Node, Op, Rule, record
from tapejit.ir.structural import batch_stack
from tapejit.ops.arithmetic import cast
from tapejit.ops.comparison import equal, greater_equal, where
from tapejit.ops.complex import conj, real
from tapejit.ops.elementwise import INEXACT, check_kind
from tapejit.ops.indexing import iota
from tapejit.ops.linalg import transposed
from tapejit.ops.movement import broadcast_to, reshape
from tapejit.ops.reduction import sum
from tapejit.ops.shapes import tensor

# Types


def matrix(x: Type) -> TensorType:
    """`x` as the type of a stack of matrices of floating point numbers."""
    x = tensor(x)
    check_kind(x.dtype, INEXACT)
    if x.ndim < 2:
        raise ShapeError(
            f"takes a matrix, got {x}", help="a matrix has at least two axes"
        )
    return x


def square(x: Type) -> TensorType:
    """`x` as the type of a stack of square matrices."""
    x = matrix(x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"takes a square matrix, got {x}",
            help="the last two sizes must be equal; tj.linalg.pinv and "
            "tj.linalg.lstsq take any",
        )
    return x


def is_wide(x: TensorType) -> bool:
    """Whether matrices certainly have more columns than rows."""
    rows, columns = x.shape[-2:]
    if isinstance(rows, Dim) or isinstance(columns, Dim):
        return False
    return rows < columns


# Evaluation

# Up to 256 rows two threads gain at most a fifth, and mostly lose (measured: solve 1.2
# times as long, cholesky 1.5); where others work too, they take up to 20 times as long.
ROWS_FOR_THREADS: Final = 512


def lapack(compute: Rule, type_rule: Rule, *, failure: str, help: str) -> Rule:
    """An evaluation by LAPACK, whose failure is a `LinAlgError` of these words.

    NumPy raises the same error for shapes that do not fit, which the type rule words
    better. Nobody looks at the shapes of empty matrices, so the rule does at once.
    """

    def evaluate(*arrays: Any, **attrs: Any) -> Any:
        if not all(x.size for x in arrays):
            type_rule(*map(TensorType.of, arrays), **attrs)
        dtype = arrays[0].dtype
        is_half = dtype.itemsize == 2
        if is_half:
            arrays = tuple(x.astype(np.float32) for x in arrays)
        try:
            if max([n for x in arrays for n in x.shape[-2:]]) < ROWS_FOR_THREADS:
                with one_thread():
                    out = compute(*arrays, **attrs)
            else:
                out = compute(*arrays, **attrs)
        except np.linalg.LinAlgError:
            type_rule(*map(TensorType.of, arrays), **attrs)
            raise LinAlgError(failure, help=help) from None
        if isinstance(out, tuple):
            return tuple(part.astype(dtype) if is_half else part for part in out)
        return out.astype(dtype) if is_half else out

    return evaluate


NO_CONVERGENCE: Final = {
    "failure": "the iteration did not converge",
    "help": "check that every element is finite: tj.all(tj.isfinite(x))",
}


def iteration(name: str, *, type_rule: Rule, compute: Rule, **fields: Any) -> Op:
    """Register an op on a stack of matrices that LAPACK iterates for."""
    return record(
        name,
        type_rule=type_rule,
        eval=lapack(compute, type_rule, **NO_CONVERGENCE),
        can_fail=True,
        batch=batch_stack(name),
        **fields,
    )


def hermitian_array(x: Any) -> Any:
    """(x + xᴴ) / 2 of arrays; the same bits if that is what x is."""
    return x / 2 + np.conj(np.swapaxes(x, -1, -2)) / 2


# Parts of matrices, as Nodes


def adjoint(x: Node) -> Node:
    """The conjugate transpose."""
    return transposed(conj(x) if is_complex(x.dtype) else x)


def hermitian(x: Node) -> Node:
    """(x + xᴴ) / 2, which is its own transpose as a map."""
    return (x + adjoint(x)) * 0.5


def row_numbers(x: Node) -> Node:
    return reshape(iota(size=x.shape[-2]), shape=(x.shape[-2], 1))


def column_numbers(x: Node) -> Node:
    return iota(size=x.shape[-1])


def lower(x: Node, offset: int = 0) -> Node:
    """The part on and below a diagonal, `offset` places to the right of the main."""
    is_kept = greater_equal(row_numbers(x) + offset, column_numbers(x))
    return where(is_kept, x, 0)


def upper(x: Node, offset: int = 0) -> Node:
    """The part on and above a diagonal, `offset` places to the right of the main."""
    is_kept = greater_equal(column_numbers(x), row_numbers(x) + offset)
    return where(is_kept, x, 0)


def on_diagonal(x: Node) -> Node:
    """What is on the main diagonal, zero elsewhere."""
    return where(equal(row_numbers(x), column_numbers(x)), x, 0)


def diagonal(x: Node) -> Node:
    """The main diagonal of square matrices as vectors."""
    return sum(on_diagonal(x), axes=(x.ndim - 1,), keepdims=False)


def diagonal_matrix(v: Node) -> Node:
    """Square matrices with these vectors on the diagonal."""
    return on_diagonal(broadcast_to(as_rows(v), shape=(*v.shape, v.shape[-1])))


def identity_like(x: Node) -> Node:
    """One identity matrix for a stack of square matrices."""
    size: Size = x.shape[-1]
    numbers = iota(size=size)
    mask = equal(reshape(numbers, shape=(size, 1)), numbers)
    return cast(mask, dtype=x.dtype)


def as_rows(v: Node) -> Node:
    """Vectors as matrices of one row, to scale columns with."""
    return reshape(v, shape=(*v.shape[:-1], 1, v.shape[-1]))


def as_columns(v: Node) -> Node:
    """Vectors as matrices of one column, to scale rows with."""
    return reshape(v, shape=(*v.shape, 1))


def as_matrices(v: Node) -> Node:
    """One number per matrix, to scale whole matrices with."""
    return reshape(v, shape=(*v.shape, 1, 1))


def total(x: Node) -> Node:
    """The sum of each matrix's elements."""
    return sum(x, axes=(x.ndim - 2, x.ndim - 1), keepdims=False)


def like(x: Node, peer: Node) -> Node:
    """A real Node in the dtype of a peer that may be complex."""
    return x if x.dtype == peer.dtype else cast(x, dtype=peer.dtype)


def real_part(x: Node) -> Node:
    """The real part, in the real dtype."""
    return real(x) if is_complex(x.dtype) else x


def real_type(x: TensorType, shape: Any) -> TensorType:
    """The type of real numbers that belong to `x`: its values, its norms."""
    return TensorType(real_dtype(x.dtype), shape)


def reciprocal(x: Node) -> Node:
    """1 / x, and 0 where x is 0: what has no gap to its neighbour gets no share."""
    is_zero = equal(x, 0)
    return where(is_zero, 0, 1 / where(is_zero, 1, x))
