"""Convolution of sequences along the last axis.

`convolve` is bilinear: out[k] = Σ x[i] y[k - i]. In mode "full" every k with a term
counts, n + m - 1 of them; in mode "valid" only those for which the shorter sequence y
lies inside x, n - m + 1. The transpose of one mode is the other with a reversed
operand, so the derivatives need no other record. The axes before the last broadcast.

Start reading at `convolve_type`, then `convolve_vjp`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.base.types import TensorType, Type, is_differentiable
from tapejit.ir.node import Node, literal, record
from tapejit.ops.elementwise import (
    NUMERIC,
    Cotangents,
    batch_elementwise,
    bilinear_jvp,
    check_kind,
    unbroadcast,
)
from tapejit.ops.movement import exceeds, flip, pad
from tapejit.ops.shapes import broadcast_shapes, same_dtype, tensor


def convolve_type(x: Type, y: Type, *, mode: str) -> TensorType:
    """[..., n] with [..., m] is [..., n + m - 1] or [..., n - m + 1]."""
    x, y = tensor(x), tensor(y)
    dtype = same_dtype(x, y)
    check_kind(dtype, NUMERIC)
    if mode not in ("full", "valid"):
        raise ArgumentError(f"mode is 'full' or 'valid', got {mode!r}")
    if not x.ndim or not y.ndim:
        raise ShapeError(f"takes sequences, got {x} and {y}")
    n, m = x.shape[-1], y.shape[-1]
    if n == 0 or m == 0:
        raise ShapeError(f"a sequence is empty: {x} and {y}")
    if mode == "valid" and exceeds(m, n):
        raise ShapeError(
            f"{y} is longer than {x}",
            help="in mode 'valid' the first operand is the longer one",
        )
    front = broadcast_shapes(*(a.with_shape(a.shape[:-1]) for a in (x, y)))
    length = n + m - 1 if mode == "full" else n - m + 1
    return TensorType(dtype, (*front, length))


def convolve_eval(x: Any, y: Any, *, mode: str) -> Any:
    """Row by row, or term by term if there are more rows than terms.

    Halves are multiplied and added in float32 and rounded once.
    """
    n, m = x.shape[-1], y.shape[-1]
    if mode == "valid" and m > n:  # NumPy would exchange them: the rule explains
        convolve_type(TensorType.of(x), TensorType.of(y), mode=mode)
    is_half = is_differentiable(x.dtype) and x.dtype.itemsize == 2
    dtype = x.dtype
    if is_half:
        x, y = x.astype(np.float32), y.astype(np.float32)
    front = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    if not front:
        out = np.convolve(x, y, mode)  # type: ignore[call-overload]  # checked above
    elif math.prod(front) <= min(n, m):
        out = by_row(x, y, front, mode)
    else:
        out = by_term(x, y, front, mode)
    return out.astype(dtype, copy=False)


def by_row(x: Any, y: Any, front: tuple[int, ...], mode: str) -> Any:
    """One sequence at a time; there may be none."""
    n, m = x.shape[-1], y.shape[-1]
    length = n + m - 1 if mode == "full" else n - m + 1
    x, y = np.broadcast_to(x, (*front, n)), np.broadcast_to(y, (*front, m))
    out = np.empty((*front, length), x.dtype)
    for at in np.ndindex(front):
        out[at] = np.convolve(x[at], y[at], mode)  # type: ignore[call-overload]  # as above
    return out


def by_term(x: Any, y: Any, front: tuple[int, ...], mode: str) -> Any:
    """All sequences at once, one element of the shorter one after the other."""
    if y.shape[-1] > x.shape[-1]:
        x, y = y, x
    n, m = x.shape[-1], y.shape[-1]
    out = np.zeros((*front, n + m - 1 if mode == "full" else n - m + 1), x.dtype)
    for k in range(m):
        if mode == "full":
            out[..., k : k + n] += x * y[..., k : k + 1]
        else:
            out += x[..., m - 1 - k : n - k] * y[..., k : k + 1]
    return out


def reverse(x: Node) -> Node:
    """The sequences backwards."""
    return flip(x, axes=(x.ndim - 1,))


def convolve_vjp(g: Node, out: Node, x: Node, y: Node, *, mode: str) -> Cotangents:
    """The cotangent against the other operand, as it slides over it."""
    if mode == "full":
        gx = convolve(g, reverse(y), mode="valid")
        gy = convolve(g, reverse(x), mode="valid")
    else:
        gx = convolve(g, reverse(y), mode="full")
        gy = reverse(convolve(x, reverse(g), mode="valid"))
    return unbroadcast(gx, x.shape), unbroadcast(gy, y.shape)


def expand_convolve(node: Node) -> Node:
    """In mode "full" the valid part of the first sequence between zeros."""
    x, y = node.inputs
    if node.attrs["mode"] == "valid":
        return node
    width = y.shape[-1] - 1
    widths = (*((0, 0),) * (x.ndim - 1), (width, width))
    return convolve(pad(x, literal(0, x.dtype), widths=widths), y, mode="valid")


convolve = record(
    "convolve",
    type_rule=convolve_type,
    eval=convolve_eval,
    vjp=convolve_vjp,
    jvp=bilinear_jvp("convolve"),
    batch=batch_elementwise("convolve"),
    bilinear=True,
    precision="half",
    expands=expand_convolve,
)
