"""Eigenvalues and eigenvectors of any square matrix, which are complex.

With A V = V diag(w) and P = V⁻¹ dA V, the eigenvalues move by the diagonal of P and
the eigenvectors by V (gaps · P), where gaps are 1 / (w_j - w_i) and 0 for equal values.
Vectors have length 1 and an open phase: what a tangent has along its own vector is
taken off, so that it neither stretches nor turns it.

A matrix whose eigenvectors do not span everything (a Jordan block) has no derivative:
V has no inverse. Near one, gradients grow without bound.

Start reading at `eig_jvp`; `eig_vjp` is its transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.types import TupleType, Type
from tapejit.ir.node import Node
from tapejit.ir.structural import results
from tapejit.ops.complex import conj
from tapejit.ops.decompositions import Parts, gaps
from tapejit.ops.elementwise import Cotangents, check_kind
from tapejit.ops.matrices import adjoint, diagonal, diagonal_matrix, iteration, square
from tapejit.ops.reduction import sum
from tapejit.ops.solving import solve


def eig_type(x: Type) -> TupleType:
    """Eigenvalues in no order, and eigenvectors as columns of length 1."""
    x = square(x)
    check_kind(x.dtype, ("complex",))
    return TupleType((x.with_shape(x.shape[:-1]), x))


def eig_eval(x: Any) -> tuple[Any, Any]:
    """By the real algorithm where nothing is imaginary: pairs are then exact."""
    given = x if x.imag.any() else x.real
    values, vectors = np.linalg.eig(given)
    return values.astype(x.dtype), vectors.astype(x.dtype)


def without_own(t: Node, v: Node) -> Node:
    """Columns of `t` without what they have along the columns of `v`."""
    along = sum(conj(v) * t, axes=(v.ndim - 2,), keepdims=True)
    return t - v * along


def eig_jvp(tangents: Sequence[Node], out: Node, x: Node) -> tuple[Node, Node]:
    """The diagonal of V⁻¹ t V, and V times the rest of it by gaps."""
    values, v = results(out)
    moved = solve(v, tangents[0] @ v)
    return diagonal(moved), without_own(v @ (gaps(values) * moved), v)


def eig_vjp(g: Parts, out: Node, x: Node) -> Cotangents:
    """V⁻ᴴ (diag(g_w) + conj(gaps) · Vᴴ g_v) Vᴴ."""
    of_values, of_vectors = g
    values, v = results(out)
    vh = adjoint(v)
    inner = None
    if of_vectors is not None:
        inner = conj(gaps(values)) * (vh @ without_own(of_vectors, v))
    if of_values is not None:
        scaled = diagonal_matrix(of_values)
        inner = scaled if inner is None else inner + scaled
    assert inner is not None
    return (solve(vh, inner @ vh),)


eig = iteration(
    "eig",
    type_rule=eig_type,
    compute=eig_eval,
    vjp=eig_vjp,
    jvp=eig_jvp,
    holomorphic=False,
)
