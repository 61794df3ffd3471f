"""Magnitude, sign, and the two parts of a complex number, as a table.

None of these is holomorphic, so none has one formula for both modes: each record
carries a VJP and a JVP that deal with complex operands themselves. A cotangent `g`
of `z` is the gradient in the sense dL = Re(conj(g) dz), the conjugate of the
holomorphic derivative; a VJP is the transpose of its JVP for that inner product.

On real operands `real` and `conj` are identities, `imag` is zero, and `angle` and
`sign` are constant piece by piece.

Magnitudes have a kink at 0, where every slope here is 0: what points in no
direction pulls in none.

Start reading at `abs`, then `sign`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit.base.types import DType, complex_dtype, is_complex, real_dtype
from tapejit.ir.node import ALL, CHEAP, ZERO, Node, Op
from tapejit.ops.arithmetic import cast, eq_mask
from tapejit.ops.elementwise import (
    INEXACT,
    Cotangent,
    Cotangents,
    broadcast_like,
    elementwise,
    unbroadcast,
)

Tangents = Sequence[Node | None]


def unary(
    name: str,
    *,
    vjp: Callable[..., Cotangent],
    jvp: Callable[..., Cotangent],
    result: Callable[[DType], DType] | None = real_dtype,
    **fields: Any,
) -> Op:
    """Register an op on one operand whose rules know about complex numbers."""

    def packed_vjp(g: Node, out: Node, x: Node) -> Cotangents:
        return (vjp(g, out, x),)

    def unpacked_jvp(tangents: Sequence[Node], out: Node, x: Node) -> Cotangent:
        return jvp(tangents[0], out, x)

    return elementwise(
        name,
        vjp=packed_vjp,
        jvp=unpacked_jvp,
        result=result,
        holomorphic=False,
        cost=CHEAP,
        **fields,
    )


def widened(x: Any) -> Any:
    """complex64 as complex128, to be rounded once; anything else as it is."""
    return x.astype(np.complex128) if x.dtype == np.complex64 else x


def inner(a: Node, b: Node) -> Node:
    """Re(conj(a) b): two complex numbers multiplied as vectors of the plane."""
    return real(conj(a) * b)


def turned(size: Node, direction: Node) -> Node:
    """`size` times `direction` turned by a right angle: i s d."""
    return make_complex(0, size) * direction


def radius(z: Node) -> Node:
    """|z|, and 1 at 0, to divide by what is 0 there too."""
    r = abs(z)
    return r + eq_mask(r, 0)


def abs_vjp(g: Node, out: Node, x: Node) -> Node:
    """The magnitude grows fastest along x / |x|."""
    return cast(g, dtype=x.dtype) * sign(x) if is_complex(x.dtype) else g * sign(x)


def abs_jvp(t: Node, out: Node, x: Node) -> Node:
    """The part of the tangent along x / |x|."""
    return inner(sign(x), t) if is_complex(x.dtype) else t * sign(x)


abs = unary("abs", eval=np.abs, vjp=abs_vjp, jvp=abs_jvp, scalar=lambda m, x: m.abs(x))


def sign_eval(x: Any) -> Any:
    """NumPy's: x / |x|, 0 at 0, NaN at NaN."""
    if x.dtype.name == "bfloat16":  # its own loop gives -0 at -0
        x, narrow = x.astype(np.float32), x.dtype
        return np.sign(x).astype(narrow)
    return np.sign(widened(x)).astype(x.dtype)


def sign_deriv(t: Node, out: Node, x: Node) -> Cotangent:
    """The part across x / |x|, by |x|: the unit circle has no other direction.

    This projection is its own transpose, so both modes share it.
    """
    if not is_complex(x.dtype):
        return ZERO
    return turned(imag(conj(out) * t) / radius(x), out)


sign = unary(
    "sign",
    eval=sign_eval,
    vjp=sign_deriv,
    jvp=sign_deriv,
    scalar=lambda m, x: m.sign(x),
    result=None,
)


def real_vjp(g: Node, out: Node, x: Node) -> Node:
    """Nothing goes to the imaginary part."""
    return cast(g, dtype=x.dtype) if is_complex(x.dtype) else g


def real_jvp(t: Node, out: Node, x: Node) -> Node:
    return real(t) if is_complex(x.dtype) else t


real = unary(
    "real",
    eval=np.real,
    vjp=real_vjp,
    jvp=real_jvp,
    scalar=lambda m, x: m.real(x),
    exact=True,
    linear=ALL,
)


def imag_vjp(g: Node, out: Node, x: Node) -> Cotangent:
    """Nothing goes to the real part."""
    return make_complex(0, g) if is_complex(x.dtype) else ZERO


def imag_jvp(t: Node, out: Node, x: Node) -> Cotangent:
    return imag(t) if is_complex(x.dtype) else ZERO


imag = unary(
    "imag",
    eval=np.imag,
    vjp=imag_vjp,
    jvp=imag_jvp,
    scalar=lambda m, x: m.imag(x),
    exact=True,
    linear=ALL,
)


def conj_deriv(t: Node, out: Node, x: Node) -> Node:
    """A reflection is its own transpose."""
    return conj(t) if is_complex(x.dtype) else t


conj = unary(
    "conj",
    eval=np.conj,
    vjp=conj_deriv,
    jvp=conj_deriv,
    scalar=lambda m, x: m.conj(x),
    result=None,
    exact=True,
    linear=ALL,
)


def angle_eval(x: Any) -> Any:
    """The argument in (-pi, pi]; of a real number 0 or pi."""
    return np.angle(widened(x)).astype(real_dtype(x.dtype))


def angle_vjp(g: Node, out: Node, x: Node) -> Cotangent:
    """The angle grows fastest across x, by 1 / |x|; at 0, where it has none, by 0."""
    if not is_complex(x.dtype):
        return ZERO
    return turned(g / radius(x), sign(x))


def angle_jvp(t: Node, out: Node, x: Node) -> Cotangent:
    """The part of the tangent across x, by |x|."""
    if not is_complex(x.dtype):
        return ZERO
    return imag(conj(sign(x)) * t) / radius(x)


angle = unary(
    "angle",
    eval=angle_eval,
    vjp=angle_vjp,
    jvp=angle_jvp,
    scalar=lambda m, x: m.angle(x),
    kinds=INEXACT,
)


def make_complex_eval(x: Any, y: Any) -> Any:
    """The parts as they are: x + 1j * y would make NaN of infinite ones."""
    out = np.empty(np.broadcast_shapes(x.shape, y.shape), complex_dtype(x.dtype))
    out.real = x
    out.imag = y
    return out


def make_complex_vjp(g: Node, out: Node, x: Node, y: Node) -> Cotangents:
    """Each part takes its own."""
    parts = [
        part if part.dtype == x.dtype else cast(part, dtype=x.dtype)
        for part in (real(g), imag(g))
    ]
    return unbroadcast(parts[0], x.shape), unbroadcast(parts[1], y.shape)


def make_complex_jvp(tangents: Tangents, out: Node, x: Node, y: Node) -> Node:
    tx, ty = tangents
    made = make_complex(0 if tx is None else tx, 0 if ty is None else ty)
    return broadcast_like(made, out)


make_complex = elementwise(
    "make_complex",
    kinds=("float",),
    result=complex_dtype,  # halves become complex64, which has no smaller kin
    eval=make_complex_eval,
    vjp=make_complex_vjp,
    jvp=make_complex_jvp,
    scalar=lambda m, x, y: m.make_complex(x, y),
    holomorphic=False,
    cost=CHEAP,
    linear=ALL,
    exact=True,
)
