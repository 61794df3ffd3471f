"""Linear algebra, public as `tj.linalg`: the array API's extension, and NumPy's names.

A matrix is the last two axes of a tensor; the axes before them are a stack, and what
is said of a matrix holds for each of a stack. float16 and bfloat16 are computed in
float32 and rounded; integers become the default float.

Factorisations with several results give named tuples. What a matrix has not (an
inverse, a Cholesky factor) is a `tj.LinAlgError`, which is also NumPy's.

Start reading at `solve`; factorisations are in `factorisations.py`, norms in
`norms.py`, products in `contraction.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapejit import ops
from tapejit.array import contraction, elementwise, reductions, selection
from tapejit.array.contraction import cross, tensordot, vecdot
from tapejit.array.creation import eye, zeros
from tapejit.array.factorisations import (
    EighResult,
    QRResult,
    SVDResult,
    adjoint,
    as_matrix,
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    qr,
    svd,
    svdvals,
)
from tapejit.array.indexing import number_of
from tapejit.array.manipulation import broadcast_to, matrix_transpose, reshape
from tapejit.array.manipulation import stack as stack_tensors
from tapejit.array.matmul import matmul
from tapejit.array.norms import matrix_norm, norm, norm_of_matrices, vector_norm
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.base.types import DType, real_dtype
from tapejit.ops.lu_factors import ROWS_TO_SHARE
from tapejit.tensor.dispatch import apply, apply_many, as_float, operands
from tapejit.tensor.mixed_precision import unconverted
from tapejit.tensor.naming import named
from tapejit.tensor.symbolic_size import largest
from tapejit.tensor.tensor import Tensor, TracedTensor


class SlogdetResult(NamedTuple):
    """What `slogdet` gives.

    >>> import tapejit as tj
    >>> tj.linalg.slogdet(tj.eye(2)).logabsdet
    <tj.Tensor f32[] 0.0>
    """

    sign: Tensor
    logabsdet: Tensor


class LstsqResult(NamedTuple):
    """What `lstsq` gives.

    >>> import tapejit as tj
    >>> print(tj.linalg.lstsq(tj.eye(2), tj.ones(2)).rank)
    2
    """

    x: Tensor
    residuals: Tensor
    rank: Tensor
    s: Tensor


def _pair(a: Any, b: Any, name: str) -> tuple[Tensor, Tensor]:
    """Two operands of one floating point dtype, the first of them matrices."""
    a, b = map(as_float, operands((a, b), name))
    return as_matrix(a, name), b


# Linear systems


@named
def solve(a: Any, b: Any, /) -> Tensor:
    """The solution of `a x = b` for a vector or for the columns of matrices.

    >>> import tapejit as tj
    >>> a = tj.asarray([[2.0, 0.0], [0.0, 4.0]])
    >>> print(tj.linalg.solve(a, tj.asarray([2.0, 2.0])))
    [1.  0.5]
    """
    a, b = _pair(a, b, "solve")
    return _solved(a, b, lambda right: _solve_columns(a, right))


def _is_shared(a: Tensor) -> bool:
    """Whether a matrix is factorised once for all of its users.

    An open size is asked about, so that a trace has the bits of eager code.
    """
    return bool(a.shape[-1] >= ROWS_TO_SHARE)


def _solve_columns(a: Tensor, b: Tensor) -> Tensor:
    """By factors that all users of the matrix share, or at once if it is small."""
    if not _is_shared(a):
        return apply(ops.solve, a, b)
    return apply(ops.lu_solve, a, *apply_many(ops.lu, a), b, transposed=False)


@named
def solve_triangular(
    a: Any,
    b: Any,
    /,
    *,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
) -> Tensor:
    """The solution of `a x = b` that looks at one triangle of `a` only, as SciPy's.

    `trans` is 0 or "N" for `a` itself, 1 or "T" for its transpose, 2 or "C" for its
    conjugate transpose; `lower` speaks of `a` before that.

    >>> import tapejit as tj
    >>> a = tj.asarray([[2.0, 0.0], [1.0, 1.0]])
    >>> print(tj.linalg.solve_triangular(a, tj.asarray([2.0, 3.0]), lower=True))
    [1. 2.]
    """
    a, b = _pair(a, b, "solve_triangular")
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise ArgumentError(f"trans is 0, 1, 2 or 'N', 'T', 'C', got {trans!r}")
    if trans in (1, "T"):
        a, lower = matrix_transpose(a), not lower
    elif trans in (2, "C"):
        a, lower = adjoint(a), not lower
    attrs = {"lower": bool(lower), "unit_diagonal": bool(unit_diagonal)}
    return _solved(a, b, lambda right: apply(ops.solve_triangular, a, right, **attrs))


def _solved(a: Tensor, b: Tensor, solve_columns: Callable[[Tensor], Tensor]) -> Tensor:
    """Solve for columns; a vector is one, and comes back as a vector."""
    if not b.ndim:
        raise ShapeError(
            f"takes a vector or matrices as right-hand side, got {b._type}",
            help="for one equation write b / a",
        )
    if b.ndim > 1:
        return solve_columns(b)
    out = solve_columns(reshape(b, (*b.shape, 1)))
    return reshape(out, out.shape[:-1])


@named
def inv(x: Any, /) -> Tensor:
    """The inverse.

    >>> import tapejit as tj
    >>> print(tj.linalg.inv(tj.asarray([[2.0, 0.0], [0.0, 4.0]])))
    [[0.5  0.  ]
     [0.   0.25]]
    """
    x = as_matrix(x, "inv")
    if not _is_shared(x):
        return apply(ops.solve, x, eye(x.shape[-1], dtype=x.dtype))
    return apply(ops.lu_inv, x, *apply_many(ops.lu, x))


@named
def pinv(x: Any, /, *, rtol: Any = None) -> Tensor:
    """The pseudo-inverse; its gradient takes the rank to be constant.

    Singular values up to `rtol` times the largest count as zero; by default that is
    the larger side of the matrix times the epsilon of its dtype. A stack of matrices
    may have one `rtol` each.

    >>> import tapejit as tj
    >>> print(tj.linalg.pinv(tj.asarray([[2.0, 0.0], [0.0, 0.0]])))
    [[0.5 0. ]
     [0.  0. ]]
    """
    x = as_matrix(x, "pinv")
    cutoff = _cutoff(x, rtol)
    if isinstance(cutoff, float):
        return apply(ops.pinv, x, rtol=float(cutoff))
    stack = np.broadcast_shapes(x.shape[:-2], cutoff.shape)
    rows, columns = x.shape[-2:]
    matrices = reshape(broadcast_to(x, (*stack, rows, columns)), (-1, rows, columns))
    each = np.broadcast_to(cutoff, stack).ravel()
    if not each.size:
        return zeros((*stack, columns, rows), dtype=x.dtype)
    inverses = [
        apply(ops.pinv, matrices[at], rtol=float(part)) for at, part in enumerate(each)
    ]
    return reshape(stack_tensors(inverses), (*stack, columns, rows))


def _cutoff(x: Tensor, rtol: Any) -> Any:
    """The part of the largest singular value that counts as zero.

    It is a float, or an array with one number per matrix of a stack.
    """
    if rtol is None:
        return largest(*x.shape[-2:]) * _epsilon(x.dtype)
    if isinstance(rtol, TracedTensor):
        rtol = rtol._needed("rtol")
    parts = np.asarray(rtol, np.float64)
    return parts if parts.ndim else float(parts)


def _epsilon(dtype: DType) -> float:
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)


@named
def lstsq(a: Any, b: Any, /, rcond: float | None = None) -> LstsqResult:
    """The x of least length among those for which |a x - b| is smallest.

    Besides `x` the result has the squared `residuals` of each column (none if the
    rank is not that of the columns, or `a` has no more rows than columns), the `rank`
    and the singular values `s`. Values up to `rcond` times the largest count as zero.

    >>> import tapejit as tj
    >>> a = tj.asarray([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> print(tj.round(tj.linalg.lstsq(a, tj.asarray([1.0, 3.0, 5.0])).x))
    [1. 2.]
    """
    a, b = _pair(a, b, "lstsq")
    if a.ndim != 2 or b.ndim not in (1, 2) or a.shape[0] != b.shape[0]:
        raise ShapeError(
            f"takes a matrix and a vector or matrix of as many rows, got {a._type} "
            f"and {b._type}",
            help="for a stack of matrices write tj.linalg.pinv(a) @ b",
        )
    cutoff = _cutoff(a, rcond)
    if not isinstance(cutoff, float):
        raise ArgumentTypeError(f"rcond is one number, got {rcond!r}")
    with unconverted():
        x = matmul(apply(ops.pinv, a, rtol=float(cutoff)), b)
    s = svdvals(a)
    rank = _count_above(s, cutoff)
    rows, columns = a.shape
    if rows <= columns:
        return LstsqResult(x, zeros(0, dtype=real_dtype(a.dtype)), rank, s)
    if number_of(rank, "lstsq: which residuals there are") < columns:
        return LstsqResult(x, zeros(0, dtype=real_dtype(a.dtype)), rank, s)
    with unconverted():
        off = elementwise.abs(matmul(a, x) - b)
    squares = reductions.sum(off * off, axis=0)
    return LstsqResult(x, reshape(squares, (-1,)), rank, s)


def _count_above(s: Tensor, cutoff: Any) -> Tensor:
    """How many singular values are not zero."""
    largest: Any = 0.0
    if s.shape[-1]:
        largest = reductions.max(s, axis=-1, keepdims=True)
    if not isinstance(cutoff, float):
        cutoff = cutoff[..., None].astype(s.dtype)
    return reductions.sum(elementwise.greater(s, largest * cutoff), axis=-1)


@named
def matrix_rank(x: Any, /, *, rtol: Any = None) -> Tensor:
    """How many singular values exceed `rtol` times the largest.

    >>> import tapejit as tj
    >>> print(tj.linalg.matrix_rank(tj.ones((3, 3))))
    1
    """
    x = as_matrix(x, "matrix_rank")
    return _count_above(svdvals(x), _cutoff(x, rtol))


@named
def cond(x: Any, /, p: Any = None) -> Tensor:
    """How much a relative error may grow when a system is solved.

    With `p` None, 2 or -2 it is a ratio of singular values, otherwise the product of
    the norms of `x` and of its inverse.

    >>> import tapejit as tj
    >>> print(tj.linalg.cond(tj.asarray([[4.0, 0.0], [0.0, 2.0]])))
    2.0
    """
    x = as_matrix(x, "cond")
    if p in (None, 2, -2):
        s = svdvals(x)
        largest, smallest = s[..., 0], s[..., -1]
        ends = (smallest, largest) if p == -2 else (largest, smallest)
        return elementwise.divide(*ends)
    return elementwise.multiply(norm_of_matrices(x, p), norm_of_matrices(inv(x), p))


# Determinants


@named
def det(x: Any, /) -> Tensor:
    """The determinant; its gradient exists for singular matrices too.

    >>> import tapejit as tj
    >>> print(tj.linalg.det(tj.asarray([[1.0, 2.0], [0.0, 4.0]])))
    4.0
    """
    x = as_matrix(x, "det")
    if not _is_shared(x):
        return apply(ops.det, x)
    return apply(ops.lu_det, x, *apply_many(ops.lu, x))


@named
def slogdet(x: Any, /) -> SlogdetResult:
    """The sign of the determinant and the logarithm of its magnitude.

    Of a complex matrix the sign has modulus one. Determinants that would over- or
    underflow have a logarithm all the same.

    >>> import tapejit as tj
    >>> sign, logarithm = tj.linalg.slogdet(-1e-30 * tj.eye(3))
    >>> print(sign, logarithm)
    -1.0 -207.23265
    """
    x = as_matrix(x, "slogdet")
    if not _is_shared(x):
        return SlogdetResult(*apply_many(ops.slogdet, x))
    return SlogdetResult(*apply_many(ops.lu_slogdet, x, *apply_many(ops.lu, x)))


# Powers, products, parts


@named
def expm(x: Any, /) -> Tensor:
    """The exponential of a matrix, 1 + x + x²/2 + ...

    >>> import tapejit as tj
    >>> print(tj.linalg.expm(tj.asarray([[0.0, 1.0], [0.0, 0.0]])))
    [[1. 1.]
     [0. 1.]]
    """
    return apply(ops.expm, as_matrix(x, "expm"))


@named
def matrix_power(x: Any, n: int, /) -> Tensor:
    """The product of `n` equal matrices; of inverses if `n` is negative.

    >>> import tapejit as tj
    >>> print(tj.linalg.matrix_power(tj.asarray([[1.0, 1.0], [0.0, 1.0]]), 5))
    [[1. 5.]
     [0. 1.]]
    """
    (x,) = operands((x,), "matrix_power")
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"takes a square matrix, got {x._type}")
    count = operator.index(n)
    if count < 0:
        x, count = inv(x), -count
    if count == 0:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype, device=x.device), x.shape)
    out: Tensor | None = None
    power = x
    while True:
        if count & 1:
            out = power if out is None else matmul(out, power)
        count >>= 1
        if not count:
            return elementwise.positive(out)
        power = matmul(power, power)


@named
def multi_dot(arrays: Sequence[Any], /) -> Tensor:
    """The product of two or more matrices, in the order that costs least.

    The first and the last may be vectors: a row and a column.

    >>> import tapejit as tj
    >>> x, y, z = tj.ones((10, 100)), tj.ones((100, 5)), tj.ones((5, 50))
    >>> tj.linalg.multi_dot([x, y, z]).shape
    (10, 50)
    """
    xs = operands(list(arrays), "multi_dot")
    if len(xs) < 2:
        raise ArgumentError("needs at least two matrices")
    first, last = xs[0], xs[-1]
    drops = [axis for axis, x in ((-2, first), (-1, last)) if x.ndim == 1]
    if first.ndim == 1:
        xs[0] = reshape(first, (1, *first.shape))
    if last.ndim == 1:
        xs[-1] = reshape(last, (*last.shape, 1))
    for x in xs:
        if x.ndim != 2:
            raise ShapeError(f"takes matrices, and vectors at the ends, got {x._type}")
    out = _multiplied(xs, _splits([*(x.shape[0] for x in xs), xs[-1].shape[1]]))
    kept = [
        size for at, size in zip((-2, -1), out.shape, strict=True) if at not in drops
    ]
    return reshape(out, tuple(kept))


def _splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to part the chain from i to j: before which matrix, at the least cost."""
    count = len(sizes) - 1
    cost = {(at, at + 1): 0 for at in range(count)}
    best: dict[tuple[int, int], int] = {}
    for length in range(2, count + 1):
        for start in range(count - length + 1):
            end = start + length
            costs = {
                at: cost[start, at]
                + cost[at, end]
                + sizes[start] * sizes[at] * sizes[end]
                for at in range(start + 1, end)
            }
            best[start, end] = min(costs, key=costs.__getitem__)
            cost[start, end] = costs[best[start, end]]
    return best


def _multiplied(
    xs: Sequence[Tensor], best: dict[tuple[int, int], int], start: int = 0
) -> Tensor:
    """The product of a part of the chain that begins at `start`."""
    if len(xs) == 1:
        return xs[0]
    at = best[start, start + len(xs)]
    left = _multiplied(xs[: at - start], best, start)
    return matmul(left, _multiplied(xs[at - start :], best, at))


@named
def outer(x: Any, y: Any, /) -> Tensor:
    """Every product of an element of one vector and one of another.

    >>> import tapejit as tj
    >>> tj.linalg.outer(tj.ones(2), tj.ones(3)).shape
    (2, 3)
    """
    x, y = operands((x, y), "outer")
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(
            f"takes vectors, got {x._type} and {y._type}",
            help="tj.outer flattens what is not one",
        )
    return contraction.outer(x, y)


@named
def diagonal(x: Any, /, *, offset: int = 0) -> Tensor:
    """The diagonal of the last two axes, `offset` places to the right.

    >>> import tapejit as tj
    >>> print(tj.linalg.diagonal(tj.asarray([[1.0, 2.0], [3.0, 4.0]])))
    [1. 4.]
    """
    return selection.diagonal(x, offset, -2, -1)


@named
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of a diagonal of the last two axes.

    >>> import tapejit as tj
    >>> print(tj.linalg.trace(tj.asarray([[1.0, 2.0], [3.0, 4.0]])))
    5.0
    """
    return contraction.trace(x, offset, -2, -1, dtype)


__all__ = [
    "EighResult",
    "LstsqResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
