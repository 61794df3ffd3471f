"""One LU factorisation of a matrix, for all that is asked of it.

`lu` factorises a matrix. `lu_solve`, `lu_inv`, `lu_slogdet` and `lu_det` take a matrix
together with its factors, and so do their derivatives: a solution, its adjoint and the
slope of a logarithm need no factorisation of their own. Each asks for `lu` of its
matrix; in a function equal Nodes are one (`passes.cse`), and a tape keeps the factors.

The derivative belongs to the matrix. The factors are there to be used, like the
positions of a sorted array, and have no derivative: `lu` is no path.

The factors are LAPACK's: unit lower triangular and upper triangular in one matrix, and
the rows that were exchanged. Two things differ from what SciPy shows. The matrix is
kept transposed, because LAPACK goes down columns. The exchanges are a matrix of one
row, so all operands are stacks of matrices and broadcast alike. Halves, which LAPACK
has not, have factors of float32.

A singular matrix has factors too, with a zero on the diagonal: its determinant is zero,
and `lu_solve` and `lu_inv` refuse it.

Matrices of few rows are left to `solve`, `slogdet` and `det`: there a call costs more
than a factorisation. `is_worthwhile` draws the line.

Start reading at `is_worthwhile`, then `lu_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import ShapeError
from tapejit.base.types import TensorType, TupleType, Type, is_half
from tapejit.ir.node import OPS, Node, Op, Rule, record
from tapejit.ir.structural import batch_stack
from tapejit.ops import solving
from tapejit.ops.elementwise import (
    Cotangent,
    Cotangents,
    batch_elementwise,
    unbroadcast,
)
from tapejit.ops.linalg import transposed as transpose
from tapejit.ops.matrices import (
    NO_CONVERGENCE,
    as_matrices,
    identity_like,
    lapack,
    square,
    total,
)

Tangents = Sequence[Node | None]

# Sharing takes one more call, of 10 us in a function and 30 us outside. A solution, a
# determinant and their gradients with four factorisations take as long at 32 rows in a
# function and at 64 outside. Stacks of smaller ones are NumPy's loop, 1 us a matrix.
ROWS_TO_SHARE: Final = 64

BLOCK_COLUMNS: Final = 64  # LAPACK's blocks when it inverts, for the workspace
INT32 = np.dtype("int32")
LAPACK_LETTERS: Final = {"f": "s", "d": "d", "F": "c", "D": "z"}


def is_worthwhile(a: TensorType) -> bool:
    """Whether matrices of this type are factorised once for all of their users."""
    rows = a.shape[-1]
    return rows >= ROWS_TO_SHARE if isinstance(rows, int) else a.ndim == 2


# lu


def lu_type(a: Type) -> TupleType:
    """Both factors in one matrix, transposed, and the exchanges in a row."""
    a = square(a)
    packed = TensorType(np.dtype("float32"), a.shape) if is_half(a.dtype) else a
    return TupleType((packed, TensorType(INT32, (*a.shape[:-2], 1, a.shape[-1]))))


@cache
def lapack_function(name: str, dtype: Any) -> Any:
    from scipy.linalg import lapack as functions

    return getattr(functions, LAPACK_LETTERS[dtype.char] + name)


def factors(a: Any) -> tuple[Any, Any]:
    """LAPACK's factors of every matrix of a stack."""
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise np.linalg.LinAlgError
    stack, rows = a.shape[:-2], a.shape[-1]
    packed = np.array(np.swapaxes(a, -1, -2), order="C")
    pivots = np.empty((*stack, 1, rows), INT32)
    if packed.size:
        factorise = lapack_function("getrf", a.dtype)
        for at in np.ndindex(stack):
            found, pivots[at][0], _ = factorise(packed[at].T, overwrite_a=True)
            packed[at] = found.T
    return packed, pivots


factors_of_matrices = lapack(factors, lu_type, **NO_CONVERGENCE)


def lu_eval(a: Any) -> tuple[Any, Any]:
    if is_half(a.dtype):
        a = a.astype(np.float32)
    lapack_function("getrf", a.dtype)  # loads SciPy's BLAS, to be told of threads next
    found: tuple[Any, Any] = factors_of_matrices(a)
    return found


lu = record(
    "lu", type_rule=lu_type, eval=lu_eval, batch=batch_stack("lu"), differentiable=False
)


def check_factors(a: Type, packed: Type, pivots: Type) -> None:
    if (packed, pivots) != lu_type(a).items:
        raise ShapeError(f"{packed} and {pivots} are not the factors of {a}")


def pivots_on_diagonal(packed: Any) -> Any:
    """The diagonal of the upper triangular factor, whose product is the determinant."""
    return np.diagonal(packed, axis1=-2, axis2=-1)


# lu_solve


def lu_solve_type(
    a: Type, packed: Type, pivots: Type, b: Type, *, transposed: bool
) -> TensorType:
    check_factors(a, packed, pivots)
    return solving.solve_type(a, b)


def substituted(
    a: Any, packed: Any, pivots: Any, b: Any, *, transposed: bool = False
) -> Any:
    """Two triangular systems for each matrix of a stack, one after the other."""
    if b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise np.linalg.LinAlgError
    if not pivots_on_diagonal(packed).all():
        raise np.linalg.LinAlgError
    rows, columns = b.shape[-2:]
    solve_columns = lapack_function("getrs", packed.dtype)
    pivots = pivots.astype(INT32, copy=False)
    if packed.ndim == 2 and b.size:  # one matrix for all right-hand sides
        stack = b.shape[:-2]
        if stack:
            b = np.moveaxis(b, -2, 0).reshape(rows, -1)
        out, _ = solve_columns(packed.T, pivots[0], b, trans=int(transposed))
        if stack:
            out = np.moveaxis(out.reshape(rows, *stack, columns), 0, -2)
        return np.ascontiguousarray(out)
    stack = np.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    packed = np.broadcast_to(packed, (*stack, rows, rows))
    pivots = np.broadcast_to(pivots, (*stack, 1, rows))
    b = np.broadcast_to(b, (*stack, rows, columns))
    out = np.empty_like(b)
    if not out.size:
        return out
    for at in np.ndindex(stack):
        out[at], _ = solve_columns(
            packed[at].T, pivots[at][0], b[at], trans=int(transposed)
        )
    return out


def lu_solve_vjp(
    g: Node,
    out: Node,
    a: Node,
    packed: Node,
    pivots: Node,
    b: Node,
    *,
    transposed: bool,
) -> Cotangents:
    """As `solve`: the system of the transposed matrix, by the same factors."""
    gb = lu_solve(a, packed, pivots, g, transposed=not transposed)
    ga = -(out @ transpose(gb)) if transposed else -(gb @ transpose(out))
    return unbroadcast(ga, a.shape), None, None, unbroadcast(gb, b.shape)


def lu_solve_jvp(
    tangents: Tangents,
    out: Node,
    a: Node,
    packed: Node,
    pivots: Node,
    b: Node,
    *,
    transposed: bool,
) -> Node | None:
    """As `solve`: x moves as the solution of a x' = b' - a' x."""
    ta, _, _, moved = tangents
    if ta is not None:
        pushed = (transpose(ta) if transposed else ta) @ out
        moved = -pushed if moved is None else moved - pushed
    if moved is None:
        return None
    return lu_solve(a, packed, pivots, moved, transposed=transposed)


align_and_solve = batch_elementwise("solve")
align_and_substitute = batch_elementwise("lu_solve")


def lu_solve_batch(
    size: Size, inputs: Sequence[Node], batched: Sequence[bool], *, transposed: bool
) -> Node:
    """One more axis of the stack; `solve` where that may be a stack of small ones."""
    a, _, _, b = inputs
    if batched[0] and not is_worthwhile(a.tensor_type):
        matrices = transpose(a) if transposed else a
        return align_and_solve(size, (matrices, b), (batched[0], batched[3]))
    return align_and_substitute(size, inputs, batched, transposed=transposed)


# With transposed=True the solution of aᵀ x = b.
lu_solve: Op = record(
    "lu_solve",
    type_rule=lu_solve_type,
    eval=lapack(substituted, lu_solve_type, **solving.SINGULAR),
    can_fail=True,
    vjp=lu_solve_vjp,
    jvp=lu_solve_jvp,
    batch=lu_solve_batch,
    linear=slice(3, 4),
)


# lu_inv


def lu_inv_type(a: Type, packed: Type, pivots: Type) -> TensorType:
    check_factors(a, packed, pivots)
    return square(a)


def inverses(a: Any, packed: Any, pivots: Any) -> Any:
    """LAPACK's, which takes 0.6 of the time of a solution for the identity."""
    if not pivots_on_diagonal(packed).all():
        raise np.linalg.LinAlgError
    out = np.empty_like(packed, order="C")
    if not out.size:
        return out
    invert = lapack_function("getri", packed.dtype)
    pivots = pivots.astype(INT32, copy=False)
    workspace = BLOCK_COLUMNS * packed.shape[-1]
    for at in np.ndindex(packed.shape[:-2]):
        out[at], _ = invert(packed[at].T, pivots[at][0], lwork=workspace)
    return out


def lu_inv_vjp(g: Node, out: Node, a: Node, packed: Node, pivots: Node) -> Cotangents:
    """-yᵀ g yᵀ for the inverse y."""
    turned = transpose(out)
    return -(turned @ g @ turned), None, None


def lu_inv_jvp(
    tangents: Tangents, out: Node, a: Node, packed: Node, pivots: Node
) -> Node | None:
    t = tangents[0]
    return None if t is None else -(out @ t @ out)


def lu_inv_batch(size: Size, inputs: Sequence[Node], batched: Sequence[bool]) -> Node:
    """One more axis of the stack; `solve` where that may be a stack of small ones."""
    a = inputs[0]
    if is_worthwhile(a.tensor_type):
        return lu_inv(*inputs)
    return solving.solve(a, identity_like(a))


lu_inv: Op = record(
    "lu_inv",
    type_rule=lu_inv_type,
    eval=lapack(inverses, lu_inv_type, **solving.SINGULAR),
    can_fail=True,
    vjp=lu_inv_vjp,
    jvp=lu_inv_jvp,
    batch=lu_inv_batch,
)


# lu_slogdet and lu_det


def batch_determinant(name: str) -> Rule:
    """One more axis of the stack; NumPy's own for what may be a stack of small ones."""

    def batch(size: Size, inputs: Sequence[Node], batched: Sequence[bool]) -> Node:
        a, *_ = inputs
        if is_worthwhile(a.tensor_type):
            return OPS[f"lu_{name}"](*inputs)
        return OPS[name](a)

    return batch


def lu_slogdet_type(a: Type, packed: Type, pivots: Type) -> TupleType:
    check_factors(a, packed, pivots)
    return solving.slogdet_type(a)


def sign_and_logarithm(packed: Any, pivots: Any) -> tuple[Any, Any]:
    """Those of the product of the pivots; every exchange turns the sign."""
    found = pivots_on_diagonal(packed)
    turns = pivots[..., 0, :] != np.arange(found.shape[-1])
    is_complex = found.dtype.kind == "c"
    if not is_complex:
        turns = turns ^ (found < 0)
    sizes = np.abs(found)
    with np.errstate(all="ignore"):
        logarithm = np.log(sizes).sum(axis=-1)
        sign = np.where(np.logical_xor.reduce(turns, axis=-1), -1, 1)
        if is_complex:
            sign = sign * (found / sizes).prod(axis=-1)
    if not sizes.all():
        is_singular = (sizes == 0).any(axis=-1)
        sign = np.where(is_singular, 0, sign)
        logarithm = np.where(is_singular, -np.inf, logarithm)
    return np.asarray(sign, found.dtype), np.asarray(logarithm, sizes.dtype)


def lu_slogdet_eval(a: Any, packed: Any, pivots: Any) -> tuple[Any, Any]:
    sign, logarithm = sign_and_logarithm(packed, pivots)
    if a.dtype.itemsize > 2:
        return sign, logarithm
    return sign.astype(a.dtype), logarithm.astype(a.dtype)


def lu_slogdet_vjp(
    g: tuple[Node | None, ...], out: Node, a: Node, packed: Node, pivots: Node
) -> Cotangents:
    found = solving.slogdet_cotangent(g, out, a, lambda: lu_inv(a, packed, pivots))
    return found, None, None


def lu_slogdet_jvp(
    tangents: Tangents, out: Node, a: Node, packed: Node, pivots: Node
) -> tuple[Cotangent, Cotangent]:
    t = tangents[0]
    if t is None:
        return None, None
    return solving.slogdet_tangents(t, out, a, lu_inv(a, packed, pivots))


lu_slogdet = record(
    "lu_slogdet",
    type_rule=lu_slogdet_type,
    eval=lu_slogdet_eval,
    vjp=lu_slogdet_vjp,
    jvp=lu_slogdet_jvp,
    batch=batch_determinant("slogdet"),
    holomorphic=False,
)


def lu_det_type(a: Type, packed: Type, pivots: Type) -> TensorType:
    check_factors(a, packed, pivots)
    return solving.det_type(a)


def lu_det_eval(a: Any, packed: Any, pivots: Any) -> Any:
    """By way of the logarithm, as NumPy: no product of some pivots overflows."""
    sign, logarithm = sign_and_logarithm(packed, pivots)
    with np.errstate(over="ignore", under="ignore"):
        return (sign * np.exp(logarithm)).astype(a.dtype, copy=False)


def lu_det_vjp(g: Node, out: Node, a: Node, packed: Node, pivots: Node) -> Cotangents:
    """As `det`: the cofactors, which the factors of a singular matrix do not give."""
    return as_matrices(g) * solving.cofactor(a), None, None


def lu_det_jvp(
    tangents: Tangents, out: Node, a: Node, packed: Node, pivots: Node
) -> Node | None:
    t = tangents[0]
    return None if t is None else total(solving.cofactor(a) * t)


lu_det = record(
    "lu_det",
    type_rule=lu_det_type,
    eval=lu_det_eval,
    vjp=lu_det_vjp,
    jvp=lu_det_jvp,
    batch=batch_determinant("det"),
)
