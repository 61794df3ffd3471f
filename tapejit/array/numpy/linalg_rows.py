"""Rows of NumPy's table for products and linear algebra.

Each entry is what `table.Row` takes: tapejit's function or an adapter, and
NumPy's parameters in its order.

Start reading at `ROWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tapejit.array import contraction, elementwise, linalg
from tapejit.array.arrangement import moveaxis
from tapejit.array.factorisations import adjoint, as_matrix
from tapejit.array.manipulation import matrix_transpose
from tapejit.array.matmul import matmul
from tapejit.array.numpy import names
from tapejit.array.selection import tril, triu
from tapejit.base.errors import ArgumentError, UnsupportedError
from tapejit.base.numpy_adapter import NO_VALUE
from tapejit.tensor.tensor import Tensor

PINV_RCOND = 1e-15  # NumPy's default, whatever the dtype


def _refused(name: str, argument: str) -> UnsupportedError:
    return UnsupportedError(
        f"takes no {argument} with tensors",
        op=name,
        help=f"if no gradient is needed through it, write {name}(x.numpy(), ...)",
    )


def _cross(
    a: Any,
    b: Any,
    *,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Tensor:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    return moveaxis(contraction.cross(a, b), -1, axisc)


def _pinv(
    a: Any, *, rcond: Any = None, hermitian: bool = False, rtol: Any = NO_VALUE
) -> Tensor:
    """A Hermitian matrix is one like any other."""
    if rcond is None:
        rcond = PINV_RCOND if rtol is NO_VALUE else rtol
    return linalg.pinv(a, rtol=rcond)


def _matrix_rank(
    A: Any, *, tol: Any = None, hermitian: bool = False, rtol: Any = None
) -> Tensor:
    if tol is not None:
        raise _refused("np.linalg.matrix_rank", "tol=")
    return linalg.matrix_rank(A, rtol=rtol)


def _qr(a: Any, *, mode: str = "reduced") -> Any:
    if mode == "r":
        return linalg.qr(a).R
    if mode == "raw":
        raise _refused("np.linalg.qr", "mode='raw'")
    return linalg.qr(a, mode=mode)


def _svd(
    a: Any,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
) -> Any:
    """A Hermitian matrix is one like any other."""
    if not compute_uv:
        return linalg.svdvals(a)
    return linalg.svd(a, full_matrices=full_matrices)


def _triangle_of(a: Any, UPLO: str) -> Tensor:
    """The Hermitian matrix that NumPy reads from one triangle."""
    x = as_matrix(a, "eigh")
    if UPLO.upper() not in ("L", "U"):
        raise ArgumentError(f"UPLO is 'L' or 'U', got {UPLO!r}", op="np.linalg.eigh")
    is_lower = UPLO.upper() == "L"
    whole = tril(x) if is_lower else triu(x)
    beyond = tril(x, k=-1) if is_lower else triu(x, k=1)
    return elementwise.add(whole, adjoint(beyond))


def _eigh(a: Any, *, UPLO: str = "L") -> Any:
    return linalg.eigh(_triangle_of(a, UPLO))


def _eigvalsh(a: Any, *, UPLO: str = "L") -> Tensor:
    return linalg.eigvalsh(_triangle_of(a, UPLO))


ROWS: Final[dict[Any, tuple[Callable[..., Any], str]]] = {
    # Products; np.matmul, np.vecdot, np.matvec and np.vecmat are ufuncs
    np.dot: (names.dot, "a b; out"),
    np.inner: (contraction.inner, "a b"),
    np.outer: (contraction.outer, "a b; out"),
    np.vdot: (contraction.vdot, "a b"),
    np.tensordot: (contraction.tensordot, "a b; axes"),
    np.einsum: (contraction.einsum, "*operands; out optimize"),
    np.cross: (_cross, "a b; axisa axisb axisc axis"),
    np.trace: (contraction.trace, "a; offset axis1 axis2 dtype out"),
    np.linalg.matmul: (matmul, "x1 x2"),
    np.linalg.vecdot: (contraction.vecdot, "x1 x2; axis"),
    np.linalg.tensordot: (contraction.tensordot, "x1 x2; axes"),
    np.linalg.outer: (linalg.outer, "x1 x2"),
    np.linalg.cross: (contraction.cross, "x1 x2; axis"),
    np.linalg.trace: (linalg.trace, "x; offset dtype"),
    np.linalg.diagonal: (linalg.diagonal, "x; offset"),
    np.linalg.matrix_transpose: (matrix_transpose, "x"),
    np.linalg.matrix_power: (linalg.matrix_power, "a n"),
    np.linalg.multi_dot: (linalg.multi_dot, "arrays; out"),
    # Systems and determinants
    np.linalg.solve: (linalg.solve, "a b"),
    np.linalg.inv: (linalg.inv, "a"),
    np.linalg.pinv: (_pinv, "a; rcond hermitian rtol"),
    np.linalg.lstsq: (linalg.lstsq, "a b; rcond"),
    np.linalg.matrix_rank: (_matrix_rank, "A; tol hermitian rtol"),
    np.linalg.cond: (linalg.cond, "x; p"),
    np.linalg.det: (linalg.det, "a"),
    np.linalg.slogdet: (linalg.slogdet, "a"),
    # Factorisations
    np.linalg.cholesky: (linalg.cholesky, "a; upper"),
    np.linalg.qr: (_qr, "a; mode"),
    np.linalg.svd: (_svd, "a; full_matrices compute_uv hermitian"),
    np.linalg.svdvals: (linalg.svdvals, "x"),
    np.linalg.eig: (linalg.eig, "a"),
    np.linalg.eigvals: (linalg.eigvals, "a"),
    np.linalg.eigh: (_eigh, "a; UPLO"),
    np.linalg.eigvalsh: (_eigvalsh, "a; UPLO"),
    # Norms
    np.linalg.norm: (linalg.norm, "x; ord axis keepdims"),
    np.linalg.vector_norm: (linalg.vector_norm, "x; axis keepdims ord"),
    np.linalg.matrix_norm: (linalg.matrix_norm, "x; keepdims ord"),
}
