"""Cases of linear algebra: systems, determinants, factorisations.

A factorisation is judged by what does not depend on its choices: singular vectors may
be turned by a phase, so what is compared is u s³ vᴴ, which is x xᴴ x. References
eliminate, orthogonalise and sum series in extended precision.

Operands are regular: distinct numbers on the diagonal and little beside it. Matrices
of ones or of infinities, on which eager calls of other ops are tried, have no
factorisation; what eager calls refuse is in test_linalg.py.

Start reading at `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from agreement import FACTORED

from op_cases import references as ref
from op_cases.case import INEXACT, Array, OpCase, Operand, Rng, Shape, Variant
from tapejit.ir import OPS, Node
from tapejit.ir.structural import results
from tapejit.ops.linalg import transposed
from tapejit.ops.matrices import (
    adjoint,
    as_rows,
    diagonal,
    identity_like,
    like,
    lower,
    upper,
)

# Operands


def regular(rng: Rng, shape: Shape) -> Array:
    """Matrices with 1.5, 3, 4.5 ... on the diagonal, more or less, and little else."""
    x = rng.uniform(-0.25, 0.25, shape)
    rows, columns = shape[-2:]
    return x + 1.5 * np.eye(rows, columns) * np.arange(1, columns + 1)


def small(rng: Rng, shape: Shape) -> Array:
    return rng.uniform(-0.7, 0.7, shape)


REGULAR = Operand(regular)
SMALL = Operand(small)

# References


def each_matrix(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of matrices in extended precision, for each of a stack."""

    def reference(x: Array, **attrs: Any) -> Array:
        x = ref.widened(x)
        stack = x.shape[:-2]
        found = [function(x[at], **attrs) for at in np.ndindex(stack)]
        shape = np.shape(function(np.eye(*x.shape[-2:], dtype=x.dtype), **attrs))
        return np.array(found, x.dtype).reshape((*stack, *shape))

    return reference


def eliminated(a: Array, b: Array) -> tuple[Array, Any]:
    """The solution of a x = b and the determinant of a, by elimination."""
    a, b = a.copy(), b.copy()
    det = a.dtype.type(1)
    for at in range(len(a)):
        best = at + int(np.argmax(np.abs(a[at:, at])))
        if best != at:
            a[[at, best]], b[[at, best]] = a[[best, at]], b[[best, at]]
            det = -det
        det = det * a[at, at]
        b[at], a[at] = b[at] / a[at, at], a[at] / a[at, at]
        for row in range(len(a)):
            if row != at:
                b[row] -= a[row, at] * b[at]
                a[row] -= a[row, at] * a[at]
    return b, det


def solve(a: Array, b: Array, *, change: Any = lambda x: x) -> Array:
    a, b = ref.widened(a), ref.widened(b)
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = np.broadcast_to(a, (*stack, *a.shape[-2:]))
    b = np.broadcast_to(b, (*stack, *b.shape[-2:]))
    out = np.empty_like(b)
    for at in np.ndindex(stack):
        out[at], _ = eliminated(change(a[at]), b[at])
    return out


def lu_solve(a: Array, b: Array, *, transposed: bool) -> Array:
    return solve(a, b, change=np.transpose if transposed else np.copy)


def solve_triangular(a: Array, b: Array, *, lower: bool, unit_diagonal: bool) -> Array:
    def change(x: Array) -> Array:
        kept = np.tril(x) if lower else np.triu(x)
        if unit_diagonal:
            kept = kept - np.diag(np.diag(kept)) + np.eye(len(x))
        return kept

    return solve(a, b, change=change)


def det(x: Array) -> Any:
    return eliminated(x, np.eye(len(x), dtype=x.dtype))[1]


def inverse(x: Array) -> Array:
    return eliminated(x, np.eye(len(x), dtype=x.dtype))[0]


def cofactor(x: Array) -> Array:
    return det(x) * inverse(x).T


def signed_logarithm(x: Array) -> Any:
    found = det(x)
    return found / abs(found) * np.log(abs(found))


def pinv(x: Array, *, rtol: float) -> Array:
    rows, columns = x.shape
    if rows < columns:
        return pinv(x.conj().T, rtol=rtol).conj().T
    return inverse(x.conj().T @ x) @ x.conj().T


def expm(x: Array) -> Array:
    """The series of x / 256, squared eight times."""
    term = total = np.eye(len(x), dtype=x.dtype)
    for at in range(1, 20):
        term = term @ x / (256 * at)
        total = total + term
    for _ in range(8):
        total = total @ total
    return total


def hermitian(x: Array) -> Array:
    return (x + x.conj().T) / 2


def cholesky(x: Array) -> Array:
    x, out = hermitian(x), np.zeros_like(x)
    for at in range(len(x)):
        rest = x[at:, at] - out[at:, :at] @ out[at, :at].conj()
        out[at:, at] = rest / np.sqrt(rest[0].real)
    return out


def orthogonalised(x: Array) -> Array:
    """Gram and Schmidt, without making lengths one."""
    out = x.copy()
    for at in range(x.shape[1]):
        for _ in range(2):
            for before in range(at):
                q = out[:, before]
                out[:, at] -= q * (q.conj() @ out[:, at]) / (q.conj() @ q)
    return out


def orthogonalised_squares(x: Array) -> Array:
    return orthogonalised(x) ** 2


def orthogonal_projection(x: Array) -> Array:
    q = orthogonalised(x)
    return np.eye(len(x)) - (q / (q * q.conj()).real.sum(axis=0)) @ q.conj().T


def hermitian_cube(x: Array) -> Array:
    h = hermitian(x)
    return h @ h @ h


def adjoint_power(x: Array) -> Array:
    """(x x x)ᴴ, as it is made of eigenvectors."""
    return (x @ x @ x).conj().T


def cube(x: Array) -> Array:
    return x @ x.conj().T @ x


# What is judged of several results


def built_slogdet(x: Node) -> Node:
    sign, logarithm = results(OPS["slogdet"](x))
    return sign * like(logarithm, sign)


def built_lu(a: Node) -> Node:
    """The product of the factors; no rows of a regular matrix are exchanged."""
    packed, _ = results(OPS["lu"](a))
    both = transposed(packed)
    return (lower(both, -1) + identity_like(both)) @ upper(both)


def built_lu_solve(a: Node, b: Node, **attrs: Any) -> Node:
    return OPS["lu_solve"](a, *results(OPS["lu"](a)), b, **attrs)


def built_lu_inv(x: Node) -> Node:
    return OPS["lu_inv"](x, *results(OPS["lu"](x)))


def built_lu_slogdet(x: Node) -> Node:
    sign, logarithm = results(OPS["lu_slogdet"](x, *results(OPS["lu"](x))))
    return sign * like(logarithm, sign)


def built_lu_det(x: Node) -> Node:
    return OPS["lu_det"](x, *results(OPS["lu"](x)))


def built_qr(x: Node) -> Node:
    """q with the lengths that were taken from it, squared element by element."""
    q, r = results(OPS["qr"](x))
    scaled = q * as_rows(diagonal(r))
    return scaled * scaled


def built_complement(x: Node) -> Node:
    """The projection on what the columns of x do not span."""
    q, _ = results(OPS["qr"](x))
    rest = OPS["complement"](q)
    return rest @ adjoint(rest)


def built_eigh(x: Node) -> Node:
    values, v = results(OPS["eigh"](x))
    return (v * like(as_rows(values * values * values), v)) @ adjoint(v)


def built_eig(x: Node) -> Node:
    values, v = results(OPS["eig"](x))
    scaled = v * as_rows(values * values * values)
    return OPS["solve"](adjoint(v), adjoint(scaled))


def built_svd(x: Node) -> Node:
    u, s, vh = results(OPS["svd"](x))
    return (u * like(as_rows(s * s * s), u)) @ vh


SQUARE = [((3, 3),), ((2, 1, 2, 2),), ((1, 1),), ((0, 0),)]
CURVED = [((3, 3),), ((2, 4, 4),), ((1, 1),), ((0, 0),)]  # 2 x 2 are linear
TALL = [((4, 3),), ((2, 2, 2),), ((1, 1),), ((3, 0),)]
ANY_SHAPE = [((4, 3),), ((2, 2, 3),), ((3, 3),), ((0, 3),)]


def matrix_case(
    op: str,
    reference: Callable[..., Any],
    shapes: list[tuple[Shape, ...]],
    *,
    operand: Operand = REGULAR,
    attrs: Any = None,
    build: Any = None,
    refused: tuple[Variant, ...] = (),
) -> OpCase:
    """A function of one stack of matrices, curved in it."""
    return OpCase(
        op,
        (operand,),
        tuple(Variant(shape, attrs or {}) for shape in shapes),
        each_matrix(reference),
        FACTORED,
        takes=INEXACT,
        first="c",
        second=("c",),
        refused=refused,
        build=build,
        is_eager=False,
    )


NOT_SQUARE = (Variant(((3, 4),)), Variant(((2, 3, 2),)), Variant(((3,),)))


def triangle(lower: bool, unit_diagonal: bool) -> dict[str, bool]:
    return {"lower": lower, "unit_diagonal": unit_diagonal}


SYSTEMS = [
    ((3, 3), (3, 2)),
    ((2, 3, 3), (3, 2)),
    ((3, 3), (2, 3, 1)),
    ((2, 1, 2, 2), (3, 2, 2)),
    ((0, 0), (0, 2)),
    ((3, 3), (3, 0)),
]

CASES = [
    OpCase(
        "solve",
        (REGULAR, Operand()),
        tuple(map(Variant, SYSTEMS)),
        solve,
        FACTORED,
        takes=INEXACT,
        first="cc",
        second=("cc", "c-"),
        refused=(
            Variant(((3, 4), (3, 2))),
            Variant(((3, 3), (4, 2))),
            Variant(((2, 3, 3), (3, 3, 1))),
            Variant(((3,), (3, 1))),
        ),
        is_eager=False,
    ),
    OpCase(
        "solve_triangular",
        (REGULAR, Operand()),
        (
            Variant(((3, 3), (3, 2)), triangle(True, False), note="lower"),
            Variant(((3, 3), (3, 2)), triangle(False, False), note="upper"),
            Variant(((3, 3), (2, 3, 1)), triangle(True, True), note="lower unit"),
            Variant(((2, 3, 3), (3, 2)), triangle(False, True), note="upper unit"),
            Variant(((4, 2, 2), (2, 1)), triangle(True, False), note="many lower"),
            Variant(((4, 2, 2), (2, 1)), triangle(False, False), note="many upper"),
            Variant(((4, 2, 2), (2, 1)), triangle(False, True), note="many unit"),
            Variant(((0, 0), (0, 2)), triangle(True, False)),
        ),
        solve_triangular,
        FACTORED,
        takes=INEXACT,
        first="cc",
        second=("cc", "c-"),
        refused=(
            Variant(((3, 4), (3, 2)), triangle(True, False)),
            Variant(((3, 3), (4, 2)), triangle(True, False)),
        ),
        is_eager=False,
    ),
    matrix_case("det", det, SQUARE, refused=NOT_SQUARE),
    matrix_case("cofactor", cofactor, CURVED, refused=NOT_SQUARE),
    matrix_case("slogdet", signed_logarithm, SQUARE, build=built_slogdet),
    replace(
        matrix_case("lu", np.copy, SQUARE, build=built_lu),
        first="-",
        second=(),
    ),
    OpCase(
        "lu_solve",
        (REGULAR, Operand()),
        tuple(
            Variant(shapes, {"transposed": is_transposed}, note=f"{is_transposed}")
            for shapes in SYSTEMS
            for is_transposed in (False, True)
        ),
        lu_solve,
        FACTORED,
        takes=INEXACT,
        first="cc",
        second=("cc", "c-"),
        build=built_lu_solve,
        is_eager=False,
    ),
    matrix_case("lu_inv", inverse, SQUARE, build=built_lu_inv),
    matrix_case("lu_slogdet", signed_logarithm, SQUARE, build=built_lu_slogdet),
    matrix_case("lu_det", det, SQUARE, build=built_lu_det),
    matrix_case("pinv", pinv, ANY_SHAPE, attrs={"rtol": 1e-3}),
    matrix_case("expm", expm, SQUARE, operand=SMALL, refused=NOT_SQUARE),
    matrix_case("cholesky", cholesky, SQUARE, refused=NOT_SQUARE),
    matrix_case("qr", orthogonalised_squares, TALL, build=built_qr),
    matrix_case(
        "complement",
        orthogonal_projection,
        [((4, 2),), ((2, 3, 1),), ((3, 0),)],
        build=built_complement,
    ),
    matrix_case("eigh", hermitian_cube, SQUARE, build=built_eigh),
    replace(
        matrix_case("eig", adjoint_power, SQUARE, build=built_eig), takes=("complex",)
    ),
    matrix_case("svd", cube, ANY_SHAPE, build=built_svd),
]
