"""Linear systems, determinants, pseudo-inverses and exponentials of matrices.

All of these work on stacks: leading axes broadcast where there are two operands.
`solve` and `solve_triangular` take their right-hand sides as columns of a matrix; the
inverse is the solution for the identity. A matrix that is not small is factorised
once for all that is asked of it, see `lu_factors`.

Where a formula would divide by a determinant that may be zero, a record of its own
takes its place: the slope of `det` is `cofactor`, which exists for singular matrices
too. `pinv` and `expm` have rules that need no factorisation, and so no gaps between
singular values or eigenvalues.

Start reading at `solve`, then `det`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import ShapeError
from tapejit.base.types import TensorType, TupleType, Type, is_complex
from tapejit.ir.node import SECOND, ZERO, Node, Op, record
from tapejit.ir.structural import results
from tapejit.ops.complex import conj, imag, make_complex
from tapejit.ops.elementwise import (
    Cotangent,
    Cotangents,
    batch_elementwise,
    unbroadcast,
)
from tapejit.ops.linalg import transposed
from tapejit.ops.matrices import (
    adjoint,
    as_matrices,
    identity_like,
    iteration,
    lapack,
    like,
    lower,
    matrix,
    real_part,
    real_type,
    square,
    total,
    upper,
)
from tapejit.ops.movement import concat, permute_dims, reshape, slice, zeros
from tapejit.ops.shapes import broadcast_shapes, same_dtype
from tapejit.ops.small_matrices import (
    Arrays,
    cofactor_matrix,
    determinant,
    is_many,
    is_small,
    is_small_matrix,
    rows_of,
    solved,
    stacked,
)

Tangents = Sequence[Node | None]

SINGULAR = {
    "failure": "the matrix is singular",
    "help": "tj.linalg.pinv and tj.linalg.lstsq take matrices without an inverse",
}

# solve


def solve_type(a: Type, b: Type) -> TensorType:
    """[..., n, n] and [..., n, k] give [..., n, k]."""
    a, b = square(a), matrix(b)
    dtype = same_dtype(a, b)
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"{a} has {a.shape[-1]} rows, the right-hand side {b} has {b.shape[-2]}",
            help="right-hand sides are columns: one row per row of the matrix",
        )
    stacks = [x.with_shape(x.shape[:-2]) for x in (a, b)]
    return TensorType(dtype, (*broadcast_shapes(*stacks), *b.shape[-2:]))


def solutions(a: Any, b: Any) -> Any:
    """LAPACK's, or arithmetic on a stack of many small matrices."""
    if is_many(a, b) and a.shape[-1] == b.shape[-2]:
        rows, is_good = solved(Arrays(a.dtype), rows_of(a), rows_of(b))
        if np.all(is_good):
            stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            return stacked(rows, (*stack, *b.shape[-2:]), a.dtype)
    return np.linalg.solve(a, b)


def solve_vjp(g: Node, out: Node, a: Node, b: Node) -> Cotangents:
    """a⁻ᵀ g for the right-hand side; minus that times xᵀ for the matrix."""
    gb = solve(transposed(a), g)
    ga = -(gb @ transposed(out))
    return unbroadcast(ga, a.shape), unbroadcast(gb, b.shape)


def solve_jvp(tangents: Tangents, out: Node, a: Node, b: Node) -> Node:
    """x moves as the solution of a x' = b' - a' x."""
    ta, tb = tangents
    if ta is None:
        assert tb is not None
        return solve(a, tb)
    moved = -(ta @ out) if tb is None else tb - ta @ out
    return solve(a, moved)


align_and_solve = batch_elementwise("solve")


def solve_batch(size: Size, inputs: Sequence[Node], batched: Sequence[bool]) -> Node:
    """One more axis of the stack; more columns where the matrix is shared."""
    a, b = inputs
    if not batched[0] and a.ndim == 2 and b.ndim == 3:
        rows, columns = b.shape[-2:]
        side_by_side = reshape(
            permute_dims(b, axes=(1, 0, 2)), shape=(rows, b.shape[0] * columns)
        )
        solved = reshape(solve(a, side_by_side), shape=(rows, b.shape[0], columns))
        return permute_dims(solved, axes=(1, 0, 2))
    return align_and_solve(size, inputs, batched)


solve: Op = record(
    "solve",
    type_rule=solve_type,
    eval=lapack(solutions, solve_type, **SINGULAR),
    can_fail=True,
    vjp=solve_vjp,
    jvp=solve_jvp,
    batch=solve_batch,
    linear=SECOND,
    on_arrays=is_small_matrix,
)


# solve_triangular


def solve_triangular_type(
    a: Type, b: Type, *, lower: bool, unit_diagonal: bool
) -> TensorType:
    return solve_type(a, b)


def triangular_solution(
    a: Any, b: Any, *, lower: bool, unit_diagonal: bool = False
) -> Any:
    """The other triangle is not looked at.

    SciPy solves one system at a time; a stack with more systems than each has rows
    is solved row by row, all systems at once.
    """
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*stack, *b.shape[-2:])
    a = np.broadcast_to(a, (*stack, *a.shape[-2:]))
    b = np.broadcast_to(b, shape)
    if not b.size:
        return np.empty(shape, b.dtype)
    if math.prod(stack) > a.shape[-1]:
        return substituted(a, b, lower, unit_diagonal)
    from scipy.linalg import solve_triangular as solve_one

    out = np.empty(shape, b.dtype)
    for at in np.ndindex(stack):
        out[at] = solve_one(
            a[at], b[at], lower=lower, unit_diagonal=unit_diagonal, check_finite=False
        )
    return out


def substituted(a: Any, b: Any, lower: bool, unit_diagonal: bool) -> Any:
    """Forward or backward substitution for a whole stack."""
    size = a.shape[-1]
    if not unit_diagonal and np.any(np.diagonal(a, axis1=-2, axis2=-1) == 0):
        raise np.linalg.LinAlgError
    out = np.zeros_like(b)
    for row in range(size) if lower else range(size)[::-1]:
        known = np.s_[:row] if lower else np.s_[row + 1 :]
        rest = b[..., row, :] - np.einsum(
            "...j,...jk->...k", a[..., row, known], out[..., known, :]
        )
        out[..., row, :] = rest if unit_diagonal else rest / a[..., row, row, None]
    return out


def solve_triangular_vjp(
    g: Node, out: Node, a: Node, b: Node, *, lower: bool, unit_diagonal: bool
) -> Cotangents:
    """As `solve`; the triangle that is not looked at receives nothing."""
    gb = solve_triangular(
        transposed(a), g, lower=not lower, unit_diagonal=unit_diagonal
    )
    ga = triangle(-(gb @ transposed(out)), lower, unit_diagonal)
    return unbroadcast(ga, a.shape), unbroadcast(gb, b.shape)


def solve_triangular_jvp(
    tangents: Tangents, out: Node, a: Node, b: Node, *, lower: bool, unit_diagonal: bool
) -> Node:
    ta, tb = tangents
    moved = tb
    if ta is not None:
        pushed = triangle(ta, lower, unit_diagonal) @ out
        moved = -pushed if tb is None else tb - pushed
    return solve_triangular(a, moved, lower=lower, unit_diagonal=unit_diagonal)


def triangle(x: Node, is_lower: bool, unit_diagonal: bool) -> Node:
    """The part of a matrix that a triangular solve looks at."""
    offset = int(unit_diagonal)
    return lower(x, -offset) if is_lower else upper(x, offset)


solve_triangular: Op = record(
    "solve_triangular",
    type_rule=solve_triangular_type,
    eval=lapack(triangular_solution, solve_triangular_type, **SINGULAR),
    can_fail=True,
    vjp=solve_triangular_vjp,
    jvp=solve_triangular_jvp,
    batch=batch_elementwise("solve_triangular"),
    linear=SECOND,
    on_arrays=is_small_matrix,
)


# det and cofactor


def det_type(x: Type) -> TensorType:
    x = square(x)
    return x.with_shape(x.shape[:-2])


def determinants(x: Any) -> Any:
    if is_many(x) and x.shape[-1] == x.shape[-2]:
        out, is_good = determinant(Arrays(x.dtype), rows_of(x))
        if np.all(is_good):
            return out
    return np.linalg.det(x)


def det_vjp(g: Node, out: Node, x: Node) -> Cotangents:
    """The slope by each element is its cofactor."""
    return (as_matrices(g) * cofactor(x),)


def det_jvp(tangents: Sequence[Node], out: Node, x: Node) -> Node:
    return total(cofactor(x) * tangents[0])


det: Op = iteration(
    "det",
    type_rule=det_type,
    compute=determinants,
    vjp=det_vjp,
    jvp=det_jvp,
    on_arrays=is_small_matrix,
)


def cofactors(x: Any) -> Any:
    """det(x) x⁻ᵀ by singular values, of which each needs the product of the others.

    Small matrices have few minors, whose determinants are written out.
    """
    if x.dtype.kind == "f" and is_small(x.shape) and x.shape[-1] == x.shape[-2]:
        rows, is_good = cofactor_matrix(Arrays(x.dtype), rows_of(x))
        if np.all(is_good):
            return stacked(rows, x.shape, x.dtype)
    is_finite = np.isfinite(x).all(axis=(-2, -1), keepdims=True)
    u, s, vh = np.linalg.svd(np.where(is_finite, x, 0))
    sign = np.linalg.det(u) * np.linalg.det(vh)
    ones = np.ones_like(s[..., :1])
    before = np.cumprod(np.concatenate([ones, s[..., :-1]], axis=-1), axis=-1)
    after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], axis=-1), axis=-1)
    others = before[..., : s.shape[-1]] * after[..., ::-1][..., : s.shape[-1]]
    out = (np.conj(u) * others[..., None, :]) @ np.conj(vh) * sign[..., None, None]
    return np.where(is_finite, out, np.nan).astype(x.dtype)


def cofactor_deriv(t: Node, out: Node, x: Node) -> Node:
    """(<c, t> c - c tᵀ c) / det(x), which is its own transpose as a map of t.

    At a singular matrix this is 0 / 0: the second derivative of a determinant exists
    there, but not by this formula.
    """
    crossed = as_matrices(total(out * t)) * out - out @ transposed(t) @ out
    return crossed / as_matrices(det(x))


def cofactor_vjp(g: Node, out: Node, x: Node) -> Cotangents:
    return (cofactor_deriv(g, out, x),)


def cofactor_jvp(tangents: Sequence[Node], out: Node, x: Node) -> Node:
    return cofactor_deriv(tangents[0], out, x)


cofactor: Op = iteration(
    "cofactor",
    type_rule=square,
    compute=cofactors,
    vjp=cofactor_vjp,
    jvp=cofactor_jvp,
    on_arrays=is_small_matrix,
)


# slogdet


def slogdet_type(x: Type) -> TupleType:
    """A sign (of modulus one if complex) and the logarithm of the magnitude."""
    x = square(x)
    stack = x.shape[:-2]
    return TupleType((x.with_shape(stack), real_type(x, stack)))


def slogdet_cotangent(
    g: tuple[Node | None, ...], out: Node, x: Node, inverse: Callable[[], Node]
) -> Cotangent:
    """The logarithm grows along x⁻ᴴ; the sign turns if x goes across it, times i."""
    of_sign, of_logarithm = g
    weight = None if of_logarithm is None else like(of_logarithm, x)
    if of_sign is not None and is_complex(x.dtype):
        sign, _ = results(out)
        turning = make_complex(0, imag(conj(sign) * of_sign))
        weight = turning if weight is None else weight + turning
    if weight is None:
        return ZERO  # a real sign is constant
    return as_matrices(weight) * adjoint(inverse())


def slogdet_tangents(
    t: Node, out: Node, x: Node, inverse: Node
) -> tuple[Cotangent, Cotangent]:
    """tr(x⁻¹ t): its real part to the logarithm, its imaginary part to the angle."""
    rate = total(transposed(inverse) * t)
    if not is_complex(x.dtype):
        return ZERO, rate
    sign, _ = results(out)
    return sign * make_complex(0, imag(rate)), real_part(rate)


def slogdet_vjp(g: tuple[Node | None, ...], out: Node, x: Node) -> Cotangents:
    return (slogdet_cotangent(g, out, x, lambda: solve(x, identity_like(x))),)


def slogdet_jvp(
    tangents: Sequence[Node], out: Node, x: Node
) -> tuple[Cotangent, Cotangent]:
    return slogdet_tangents(tangents[0], out, x, solve(x, identity_like(x)))


slogdet = iteration(
    "slogdet",
    type_rule=slogdet_type,
    compute=np.linalg.slogdet,
    vjp=slogdet_vjp,
    jvp=slogdet_jvp,
    holomorphic=False,
)


# pinv


def pinv_type(x: Type, *, rtol: float) -> TensorType:
    x = matrix(x)
    return x.with_shape((*x.shape[:-2], x.shape[-1], x.shape[-2]))


def pinv_eval(x: Any, *, rtol: float) -> Any:
    """Singular values up to `rtol` times the largest count as zero."""
    return np.linalg.pinv(x, rtol)


def outside_range(y: Node, x: Node, p: Node) -> Node:
    """(I - x p) y: what x cannot reach."""
    return y - x @ (p @ y)


def pinv_vjp(g: Node, out: Node, x: Node, *, rtol: float) -> Cotangents:
    """-pᴴ g pᴴ, and what turns the range and the null space; the rank is constant."""
    p, ph, gh = out, adjoint(out), adjoint(g)
    inside = ph @ g @ ph
    reached = outside_range(gh @ p @ ph, x, p)
    ignored = adjoint(outside_range(g @ ph @ p, p, x))
    return (reached + ignored - inside,)


def pinv_jvp(tangents: Sequence[Node], out: Node, x: Node, *, rtol: float) -> Node:
    """-p t p + p pᴴ tᴴ (I - x p) + (I - p x) tᴴ pᴴ p."""
    t, p, ph = tangents[0], out, adjoint(out)
    th = adjoint(t)
    reached = adjoint(outside_range(t @ p @ ph, x, p))
    ignored = outside_range(th @ ph @ p, p, x)
    return reached + ignored - p @ t @ p


pinv = iteration(
    "pinv",
    type_rule=pinv_type,
    compute=pinv_eval,
    vjp=pinv_vjp,
    jvp=pinv_jvp,
    holomorphic=False,
)


# expm


def exponential(x: Any) -> Any:
    """SciPy's scaling and squaring; a matrix that is not finite gives NaN."""
    from scipy.linalg import expm as scipy_expm

    if not x.size:
        return np.empty_like(x)
    is_finite = np.isfinite(x).all(axis=(-2, -1), keepdims=True)
    out = scipy_expm(np.where(is_finite, x, 0))
    return np.where(is_finite, out, np.nan).astype(x.dtype)


def exponential_slope(t: Node, x: Node) -> Node:
    """The derivative of expm at x along t: a corner of expm([[x, t], [0, x]])."""
    size, front = x.shape[-1], x.shape[:-2]
    rows, columns = x.ndim - 2, x.ndim - 1
    above = concat(x, t, axis=columns)
    below = concat(zeros(x.dtype, x.shape), x, axis=columns)
    return slice(
        expm(concat(above, below, axis=rows)),
        starts=(*(0,) * len(front), 0, size),
        stops=(*front, size, 2 * size),
        steps=(1,) * x.ndim,
    )


def expm_vjp(g: Node, out: Node, x: Node) -> Cotangents:
    """The transpose of the derivative at x is the derivative at xᵀ."""
    return (exponential_slope(g, transposed(x)),)


def expm_jvp(tangents: Sequence[Node], out: Node, x: Node) -> Node:
    return exponential_slope(tangents[0], x)


expm: Op = iteration(
    "expm", type_rule=square, compute=exponential, vjp=expm_vjp, jvp=expm_jvp
)
