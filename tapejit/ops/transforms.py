"""The discrete Fourier transform: one record, everything else is composed of it.

The transform is linear and its matrix is symmetric, so it is its own transpose: the
derivative of a transform is the same transform. Real transforms, other lengths and
other norms are paddings, slices and factors around it.

Start reading at `fourier`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.errors import AxisError, ShapeError
from tapejit.ir.node import Node, Op, register
from tapejit.ops.elementwise import Cotangents, check_kind
from tapejit.ops.shapes import tensor
from tapejit.types import TensorType

__all__ = ["fourier"]


def fourier_type(x: Any, *, axis: int, inverse: bool) -> TensorType:
    """A complex tensor transformed along one axis; nothing changes its type."""
    kind = tensor(x)
    check_kind(kind.dtype, ("complex",))
    if not 0 <= axis < kind.ndim:
        raise AxisError(f"axis {axis} does not exist in {kind}")
    if kind.shape[axis] == 0:
        raise ShapeError(f"axis {axis} of {kind} has no elements to transform")
    return kind


def fourier_eval(x: Any, *, axis: int, inverse: bool) -> Any:
    """Unscaled in both directions: the sum of x exp(∓2πi jk/n)."""
    if inverse:
        return np.fft.ifft(x, axis=axis, norm="forward")
    return np.fft.fft(x, axis=axis, norm="backward")


def fourier_vjp(g: Node, out: Node, x: Node, *, axis: int, inverse: bool) -> Cotangents:
    """The matrix of the transform is symmetric."""
    return (fourier(g, axis=axis, inverse=inverse),)


def fourier_jvp(
    tangents: Sequence[Node], out: Node, x: Node, *, axis: int, inverse: bool
) -> Node:
    return fourier(tangents[0], axis=axis, inverse=inverse)


def fourier_batch(
    size: Any,
    inputs: Sequence[Node],
    batched: Sequence[bool],
    *,
    axis: int,
    inverse: bool,
) -> Node:
    return fourier(*inputs, axis=axis + 1, inverse=inverse)


fourier: Op = register(
    Op(
        "fourier",
        type_rule=fourier_type,
        eval=fourier_eval,
        vjp=fourier_vjp,
        jvp=fourier_jvp,
        batch=fourier_batch,
    )
)
