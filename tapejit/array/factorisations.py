"""Matrix factorisations: QR, SVD, LU, Cholesky, eigenvalues, with named results.

Each is one record; what NumPy's modes add to it (a matrix with more columns than rows,
square bases) is composed here. What a factorisation leaves open, such as the signs of
singular vectors, is explained with the records, in `ops/decompositions.py`.

Start reading at `qr`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tapejit import ops
from tapejit.array import elementwise
from tapejit.array.creation import zeros
from tapejit.array.manipulation import concat, matrix_transpose
from tapejit.array.matmul import matmul
from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.base.types import complex_dtype, is_complex
from tapejit.tensor.dispatch import apply, apply_many, as_float, cast, operands
from tapejit.tensor.mixed_precision import unconverted
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor


class EigResult(NamedTuple):
    """What `eig` gives.

    >>> import tapejit as tj
    >>> tj.linalg.eig(tj.eye(2)).eigenvalues
    <tj.Tensor c64[2] [1.+0.j 1.+0.j]>
    """

    eigenvalues: Tensor
    eigenvectors: Tensor


class EighResult(NamedTuple):
    """What `eigh` gives.

    >>> import tapejit as tj
    >>> tj.linalg.eigh(tj.eye(2)).eigenvalues
    <tj.Tensor f32[2] [1. 1.]>
    """

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """What `qr` gives.

    >>> import tapejit as tj
    >>> tj.linalg.qr(tj.ones((3, 2))).R.shape
    (2, 2)
    """

    Q: Tensor
    R: Tensor


class SVDResult(NamedTuple):
    """What `svd` gives.

    >>> import tapejit as tj
    >>> tj.linalg.svd(tj.eye(2)).S
    <tj.Tensor f32[2] [1. 1.]>
    """

    U: Tensor
    S: Tensor
    Vh: Tensor


def as_inexact(x: Any, name: str) -> Tensor:
    """One operand as a tensor of floating point numbers."""
    return as_float(*operands((x,), name))


def as_matrix(x: Any, name: str) -> Tensor:
    """One operand as matrices of floating point numbers."""
    found = as_inexact(x, name)
    if found.ndim < 2:
        raise ShapeError(
            f"takes a matrix, got {found._type}",
            op=name,
            help="a matrix has at least two axes",
        )
    return found


def adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose."""
    return matrix_transpose(elementwise.conj(x) if is_complex(x.dtype) else x)


@named
def cholesky(x: Any, /, *, upper: bool = False) -> Tensor:
    """The lower triangular L with L Lᴴ = x, or the upper U with Uᴴ U = x.

    Of `x` the Hermitian part counts, (x + xᴴ) / 2, and so of its gradient.

    >>> import tapejit as tj
    >>> print(tj.linalg.cholesky(tj.asarray([[4.0, 2.0], [2.0, 10.0]])))
    [[2. 0.]
     [1. 3.]]
    """
    factor = apply(ops.cholesky, as_matrix(x, "cholesky"))
    return adjoint(factor) if upper else factor


@named
def qr(x: Any, /, mode: str = "reduced") -> QRResult:
    """Orthonormal columns Q and an upper triangular R whose product is `x`.

    Mode "complete" gives a square Q; the columns beyond those of mode "reduced" are
    some basis of what is left, and differentiate as turning no more than they must.

    >>> import tapejit as tj
    >>> q, r = tj.linalg.qr(tj.asarray([[3.0, 1.0], [4.0, 2.0]]))
    >>> print(tj.round(q @ r))
    [[3. 1.]
     [4. 2.]]
    """
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f"mode is 'reduced' or 'complete', got {mode!r}")
    x = as_matrix(x, "qr")
    *stack, rows, columns = x.shape
    if rows < columns:
        # The first columns give Q, the rest is only seen from there.
        q, r = apply_many(ops.qr, x[..., :rows])
        with unconverted():
            rest = matmul(adjoint(q), x[..., rows:])
        return QRResult(q, concat([r, rest], axis=-1))
    q, r = apply_many(ops.qr, x)
    if mode == "complete" and rows > columns:
        q = concat([q, apply(ops.complement, q)], axis=-1)
        below = zeros((*stack, rows - columns, columns), dtype=x.dtype)
        r = concat([r, below], axis=-2)
    return QRResult(q, r)


@named
def svd(x: Any, /, full_matrices: bool = True) -> SVDResult:
    """Orthonormal U and V and singular values S, in descending order: x = U S Vᴴ.

    With `full_matrices` U and Vh are square; what that adds for a matrix that is not
    is some basis of what is left. Gradients do not go through `x` where a function
    depends on how vectors of equal values were chosen: there their part is zero.

    >>> import tapejit as tj
    >>> print(tj.linalg.svd(tj.asarray([[0.0, 2.0], [1.0, 0.0]])).S)
    [2. 1.]
    """
    x = as_matrix(x, "svd")
    u, s, vh = apply_many(ops.svd, x)
    rows, columns = x.shape[-2:]
    if full_matrices and rows > columns:
        u = concat([u, apply(ops.complement, u)], axis=-1)
    elif full_matrices and columns > rows:
        more = adjoint(apply(ops.complement, adjoint(vh)))
        vh = concat([vh, more], axis=-2)
    return SVDResult(u, s, vh)


@named
def eig(x: Any, /) -> EigResult:
    """Eigenvalues, in no order, and eigenvectors of a square matrix, both complex.

    Eigenvectors are columns of length 1. Gradients are those of functions that do not
    depend on their phases, nor on how vectors of equal values were chosen. A matrix
    without a full set of eigenvectors, such as [[1, 1], [0, 1]], has no gradient:
    infinite or meaningless numbers come out. For Hermitian matrices take `eigh`.

    >>> import tapejit as tj
    >>> print(tj.linalg.eig(tj.asarray([[0.0, -2.0], [2.0, 0.0]])).eigenvalues)
    [0.+2.j 0.-2.j]
    """
    return EigResult(*apply_many(ops.eig, _as_complex(x, "eig")))


@named
def eigvals(x: Any, /) -> Tensor:
    """The eigenvalues of a square matrix, in no order; they are complex.

    >>> import tapejit as tj
    >>> print(tj.linalg.eigvals(tj.asarray([[0.0, -2.0], [2.0, 0.0]])))
    [0.+2.j 0.-2.j]
    """
    return apply_many(ops.eig, _as_complex(x, "eigvals"))[0]


def _as_complex(x: Any, name: str) -> Tensor:
    matrix = as_matrix(x, name)
    return cast(matrix, complex_dtype(matrix.dtype))


@named
def eigh(x: Any, /) -> EighResult:
    """Eigenvalues in ascending order and eigenvectors of a Hermitian matrix.

    Of `x` the Hermitian part counts, (x + xᴴ) / 2, and so of its gradient. Where a
    function depends on how vectors of equal values were chosen, that part is zero.

    >>> import tapejit as tj
    >>> print(tj.linalg.eigh(tj.asarray([[0.0, 2.0], [2.0, 0.0]])).eigenvalues)
    [-2.  2.]
    """
    return EighResult(*apply_many(ops.eigh, as_matrix(x, "eigh")))


@named
def eigvalsh(x: Any, /) -> Tensor:
    """The eigenvalues of a Hermitian matrix, in ascending order.

    >>> import tapejit as tj
    >>> print(tj.linalg.eigvalsh(tj.asarray([[0.0, 2.0], [2.0, 0.0]])))
    [-2.  2.]
    """
    return apply_many(ops.eigh, as_matrix(x, "eigvalsh"))[0]


@named
def svdvals(x: Any, /) -> Tensor:
    """The singular values, in descending order.

    >>> import tapejit as tj
    >>> print(tj.linalg.svdvals(tj.asarray([[0.0, 2.0], [1.0, 0.0]])))
    [2. 1.]
    """
    return apply_many(ops.svd, as_matrix(x, "svdvals"))[1]
