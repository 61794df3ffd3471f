"""Matrices as products of simpler ones: Cholesky, QR, eigenvalues, singular values.

Stacks are factored matrix by matrix. `cholesky` and `eigh` take the Hermitian part of
their operand, (x + xᴴ) / 2, so that every element counts and gradients are Hermitian;
of a Hermitian matrix that is the matrix itself.

None of these is a holomorphic function, so the rules deal with complex numbers
themselves. Each VJP is the transpose of its JVP for the inner product Re tr(aᴴ b).

What a factorisation leaves open, its derivative leaves open too. Eigenvectors and
singular vectors may be turned by a phase (a sign if real), and vectors of equal values
may be mixed: there the rules choose the slope that does not turn them, by the
reciprocal that is 0 at 0. A function that does not depend on such a choice has the
right gradient; one of vectors that belong to equal values has none to be right about.

Start reading at `cholesky`, then `eigh`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import dim_min
from tapejit.base.errors import ShapeError
from tapejit.base.types import TensorType, TupleType, Type, is_complex
from tapejit.ir.node import Node, record
from tapejit.ir.structural import batch_stack, results
from tapejit.ops import small_matrices
from tapejit.ops.complex import conj, imag, make_complex
from tapejit.ops.elementwise import Cotangents
from tapejit.ops.matrices import (
    adjoint,
    as_columns,
    as_rows,
    diagonal,
    diagonal_matrix,
    hermitian,
    hermitian_array,
    is_wide,
    iteration,
    lapack,
    like,
    lower,
    matrix,
    on_diagonal,
    real_part,
    real_type,
    reciprocal,
    square,
    upper,
)
from tapejit.ops.reduction import sum
from tapejit.ops.solving import solve_triangular

Parts = tuple[Node | None, ...]  # the cotangents of several results, with holes


def with_adjoint_inverse(x: Node, r: Node) -> Node:
    """x r⁻ᴴ for an upper triangular r."""
    solved = solve_triangular(r, adjoint(x), lower=False, unit_diagonal=False)
    return adjoint(solved)


# cholesky


def cholesky_eval(x: Any) -> Any:
    """LAPACK's, or arithmetic on a stack of many small matrices."""
    if small_matrices.is_many(x) and x.shape[-1] == x.shape[-2]:
        rows, is_good = small_matrices.cholesky_factor(
            small_matrices.Arrays(x.dtype), small_matrices.rows_of(x)
        )
        if np.all(is_good):
            return small_matrices.stacked(rows, x.shape, x.dtype)
    return np.linalg.cholesky(hermitian_array(x))


def half_lower(x: Node) -> Node:
    """The lower triangle, of its diagonal only half."""
    return lower(x, -1) + on_diagonal(x) * 0.5


def cholesky_vjp(g: Node, out: Node, x: Node) -> Cotangents:
    """The Hermitian part of l⁻ᴴ half_lower(lᴴ g) l⁻¹."""
    lh = adjoint(out)
    inner = half_lower(lh @ g)
    left = solve_triangular(lh, inner, lower=False, unit_diagonal=False)
    both = solve_triangular(lh, adjoint(left), lower=False, unit_diagonal=False)
    return (hermitian(both),)


def cholesky_jvp(tangents: Sequence[Node], out: Node, x: Node) -> Node:
    """l half_lower(l⁻¹ t l⁻ᴴ) for the Hermitian part t of the tangent."""
    t = hermitian(tangents[0])
    left = solve_triangular(out, t, lower=True, unit_diagonal=False)
    both = solve_triangular(out, adjoint(left), lower=True, unit_diagonal=False)
    return out @ half_lower(adjoint(both))


cholesky = record(
    "cholesky",
    type_rule=square,
    eval=lapack(
        cholesky_eval,
        square,
        failure="the matrix is not positive definite",
        help="of a covariance that should be, add a little to the diagonal: "
        "x + 1e-6 * tj.eye(n)",
    ),
    can_fail=True,
    vjp=cholesky_vjp,
    jvp=cholesky_jvp,
    batch=batch_stack("cholesky"),
    holomorphic=False,
    on_arrays=small_matrices.is_small_matrix,
)


# qr


def qr_type(x: Type) -> TupleType:
    """[..., m, n] with m >= n gives [..., m, n] and [..., n, n]."""
    x = matrix(x)
    if is_wide(x):
        raise ShapeError(
            f"factors matrices with at least as many rows as columns, got {x}",
            help="tj.linalg.qr takes any",
        )
    columns = x.shape[-1]
    return TupleType((x, x.with_shape((*x.shape[:-2], columns, columns))))


def qr_vjp(g: Parts, out: Node, x: Node) -> Cotangents:
    """(g_q + q h) r⁻ᴴ with h the Hermitian matrix whose upper part is n's.

    n = g_r rᴴ - qᴴ g_q: what the upper triangular part of qᴴ x' r⁻¹ pulls.
    """
    of_q, of_r = g
    q, r = results(out)
    pulled = None if of_r is None else of_r @ adjoint(r)
    if of_q is not None:
        across = adjoint(q) @ of_q
        pulled = -across if pulled is None else pulled - across
    assert pulled is not None
    above = upper(pulled, 1)
    mirrored = above + adjoint(above) + real_diagonal(pulled)
    moved = q @ mirrored
    return (with_adjoint_inverse(moved if of_q is None else of_q + moved, r),)


def qr_jvp(tangents: Sequence[Node], out: Node, x: Node) -> tuple[Node, Node]:
    """q' = x' r⁻¹ - q w and r' = w r; w gathers qᴴ x' r⁻¹ in the upper triangle."""
    q, r = results(out)
    scaled = adjoint(
        solve_triangular(
            adjoint(r), adjoint(tangents[0]), lower=True, unit_diagonal=False
        )
    )
    inner = adjoint(q) @ scaled
    gathered = upper(inner, 1) + adjoint(lower(inner, -1)) + real_diagonal(inner)
    return scaled - q @ gathered, gathered @ r


def real_diagonal(x: Node) -> Node:
    """The real parts of the diagonal; LAPACK keeps that of r real."""
    return like(on_diagonal(real_part(x)), x)


qr = iteration(
    "qr",
    type_rule=qr_type,
    compute=np.linalg.qr,
    vjp=qr_vjp,
    jvp=qr_jvp,
    holomorphic=False,
)


# complement


def complement_type(q: Type) -> TensorType:
    """[..., m, n] with m >= n gives [..., m, m - n]."""
    q = matrix(q)
    if is_wide(q):
        raise ShapeError(f"{q} has more columns than a space has dimensions")
    return q.with_shape((*q.shape[:-1], q.shape[-2] - q.shape[-1]))


def complement_eval(q: Any) -> Any:
    full, _ = np.linalg.qr(q, mode="complete")
    return full[..., q.shape[-1] :]


def complement_vjp(g: Node, out: Node, q: Node) -> Cotangents:
    """The new vectors turn no more than they must to stay orthogonal to q."""
    return (-(out @ adjoint(g) @ q),)


def complement_jvp(tangents: Sequence[Node], out: Node, q: Node) -> Node:
    return -(q @ adjoint(tangents[0]) @ out)


# Orthonormal columns that complete those of q to a basis of the whole space.
complement = iteration(
    "complement",
    type_rule=complement_type,
    compute=complement_eval,
    vjp=complement_vjp,
    jvp=complement_jvp,
    holomorphic=False,
)


# eigh


def eigh_type(x: Type) -> TupleType:
    """Real eigenvalues in ascending order, and eigenvectors as columns."""
    x = square(x)
    return TupleType((real_type(x, x.shape[:-1]), x))


def eigh_eval(x: Any) -> Any:
    return np.linalg.eigh(hermitian_array(x))


def gaps(values: Node) -> Node:
    """1 / (w_j - w_i), and 0 where the two are equal."""
    return reciprocal(as_rows(values) - as_columns(values))


def eigh_vjp(g: Parts, out: Node, x: Node) -> Cotangents:
    """v (diag(g_w) + gaps · vᴴ g_v) vᴴ, its Hermitian part."""
    of_values, of_vectors = g
    values, v = results(out)
    vh = adjoint(v)
    turned = None
    if of_vectors is not None:
        turned = v @ (like(gaps(values), v) * (vh @ of_vectors))
    if of_values is not None:
        scaled = v * like(as_rows(of_values), v)
        turned = scaled if turned is None else turned + scaled
    assert turned is not None
    return (hermitian(turned @ vh),)


def eigh_jvp(tangents: Sequence[Node], out: Node, x: Node) -> tuple[Node, Node]:
    """The diagonal of vᴴ t v, and v times the rest of it by gaps."""
    values, v = results(out)
    moved = hermitian(tangents[0]) @ v
    along = sum(conj(v) * moved, axes=(v.ndim - 2,), keepdims=False)
    turned = v @ (like(gaps(values), v) * (adjoint(v) @ moved))
    return real_part(along), turned


eigh = iteration(
    "eigh",
    type_rule=eigh_type,
    compute=eigh_eval,
    vjp=eigh_vjp,
    jvp=eigh_jvp,
    holomorphic=False,
)


# svd


def svd_type(x: Type) -> TupleType:
    """[..., m, n] gives [..., m, k], [..., k] and [..., k, n] with k = min(m, n)."""
    x = matrix(x)
    *stack, rows, columns = x.shape
    count = dim_min(rows, columns)
    return TupleType(
        (
            x.with_shape((*stack, rows, count)),
            real_type(x, (*stack, count)),
            x.with_shape((*stack, count, columns)),
        )
    )


def svd_eval(x: Any) -> Any:
    return np.linalg.svd(x, full_matrices=False)


def square_gaps(s: Node) -> Node:
    """1 / (s_j² - s_i²), and 0 where the two are equal."""
    row, column = as_rows(s), as_columns(s)
    return reciprocal((row - column) * (row + column))


def turning(x: Node, s: Node) -> Node:
    """i Im(diag(x)) / s as a diagonal matrix: the phases of complex vectors."""
    return diagonal_matrix(make_complex(0, imag(diagonal(x)) * reciprocal(s)))


def off_range(y: Node, u: Node) -> Node:
    """(I - u uᴴ) y: what the columns of u do not span."""
    return y - u @ (adjoint(u) @ y)


def svd_vjp(g: Parts, out: Node, x: Node) -> Cotangents:
    """u m vᴴ for what stays in both ranges, and what leads out of either.

    With j = gaps · uᴴ g_u and k = gaps · vᴴ g_v:
    m = (j + jᴴ) s + s (k + kᴴ) + diag(g_s), and the phases of u.
    """
    of_u, of_s, of_vh = g
    u, s, vh = results(out)
    v, rows, columns = adjoint(vh), like(as_rows(s), u), like(as_columns(s), u)
    inverse = like(as_rows(reciprocal(s)), u)
    inside: list[Node] = []
    outside: list[Node] = []
    if of_s is not None:
        inside.append(like(diagonal_matrix(of_s), u))
    if of_u is not None:
        across = adjoint(u) @ of_u
        j = like(square_gaps(s), u) * across
        inside.append((j + adjoint(j)) * rows)
        if is_complex(u.dtype):
            inside.append(turning(across, s))
        if u.shape[-2] != u.shape[-1]:
            outside.append((off_range(of_u, u) * inverse) @ vh)
    if of_vh is not None:
        of_v = adjoint(of_vh)
        k = like(square_gaps(s), u) * (vh @ of_v)
        inside.append(columns * (k + adjoint(k)))
        if v.shape[-2] != v.shape[-1]:
            outside.append((u * inverse) @ adjoint(off_range(of_v, v)))
    return (added([u @ added(inside) @ vh, *outside]),)


def added(terms: Sequence[Node]) -> Node:
    first, *rest = terms
    for term in rest:
        first = first + term
    return first


def svd_jvp(tangents: Sequence[Node], out: Node, x: Node) -> tuple[Node, Node, Node]:
    """With p = uᴴ t v: u' = u (gaps · (p s + s pᴴ)), v' = v (gaps · (s p + pᴴ s)).

    Besides, u turns its phases (those of v rest), and both leave their ranges.
    """
    t = tangents[0]
    u, s, vh = results(out)
    v, rows, columns = adjoint(vh), like(as_rows(s), u), like(as_columns(s), u)
    inverse = like(as_rows(reciprocal(s)), u)
    shares = like(square_gaps(s), u)
    tv, thu = t @ v, adjoint(t) @ u
    p = adjoint(u) @ tv
    ph = adjoint(p)
    spin = shares * (p * rows + columns * ph)
    if is_complex(u.dtype):
        spin = spin + turning(p, s)
    tu = u @ spin
    if u.shape[-2] != u.shape[-1]:
        tu = tu + off_range(tv, u) * inverse
    tv = v @ (shares * (columns * p + ph * rows))
    if v.shape[-2] != v.shape[-1]:
        tv = tv + off_range(thu, v) * inverse
    return tu, real_part(diagonal(p)), adjoint(tv)


svd = iteration(
    "svd",
    type_rule=svd_type,
    compute=svd_eval,
    vjp=svd_vjp,
    jvp=svd_jvp,
    holomorphic=False,
)
