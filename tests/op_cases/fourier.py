"""Cases of the Fourier transform.

Start reading at `CASES`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from agreement import SUM, Truth

from op_cases.case import OpCase, Operand, Variant


def transform(x: Any, *, axis: int, inverse: bool) -> Truth:
    """The sum as it is defined, in the widest complex numbers."""
    wide = np.moveaxis(np.asarray(x).astype(np.clongdouble), axis, -1)
    n = wide.shape[-1]
    turns = np.outer(np.arange(n), np.arange(n)) % max(n, 1)
    angle = 2 * np.pi * turns.astype(np.longdouble) / n
    matrix = np.cos(angle) + (1j if inverse else -1j) * np.sin(angle)
    total = np.moveaxis(wide @ matrix.astype(np.clongdouble), -1, axis)
    terms = np.broadcast_to(
        np.abs(x).astype(np.longdouble).sum(axis=axis, keepdims=True), total.shape
    )
    return Truth(total, n, terms)


def half_weights(n: int, weight: float) -> Any:
    """`weight` for frequencies that have a mirror image, 1 for the others."""
    out = np.ones(n // 2 + 1, np.longdouble)
    out[1 : (n + 1) // 2] = weight
    return out


def scale_of(n: int, unscaled: str, norm: str) -> Any:
    if norm == unscaled:
        return np.longdouble(1)
    return 1 / (np.sqrt(np.longdouble(n)) if norm == "ortho" else np.longdouble(n))


def other_axes(x: Any, axes: Any, norm: str, *, inverse: bool) -> Truth:
    """The complex transform along all axes but the last, scaled."""
    unscaled = "forward" if inverse else "backward"
    truth = Truth(x.astype(np.clongdouble), 1, np.abs(x).astype(np.longdouble))
    for axis in axes[:-1]:
        turned = transform(truth.value, axis=axis, inverse=inverse)
        terms = np.sum(np.asarray(truth.scale), axis=axis, keepdims=True)
        scale = scale_of(x.shape[axis], unscaled, norm)
        truth = Truth(
            turned.value * scale,
            truth.count * x.shape[axis],
            np.broadcast_to(terms * scale, turned.value.shape),
        )
    return truth


def real_transform(x: Any, *, axes: Any, norm: str, is_transpose: bool) -> Truth:
    axis = axes[-1]
    n = x.shape[axis]
    others = other_axes(x, axes, norm, inverse=False)
    whole = transform(others.value, axis=axis, inverse=False).value
    terms = np.sum(np.asarray(others.scale), axis=axis, keepdims=True)
    weights = half_weights(n, 2.0 if is_transpose else 1.0)
    weights = weights * scale_of(n, "backward", norm)
    weights = np.moveaxis(weights.reshape((1,) * (x.ndim - 1) + (-1,)), -1, axis)
    half = np.moveaxis(np.moveaxis(whole, axis, -1)[..., : n // 2 + 1], -1, axis)
    return Truth(half * weights, others.count * n, terms * weights)


def inverse_real_transform(
    x: Any, *, axes: Any, length: int, norm: str, is_transpose: bool
) -> Truth:
    """The sum over half of the spectrum, what has a mirror image taken twice."""
    axis = axes[-1]
    others = other_axes(x, axes, norm, inverse=True)
    half = np.moveaxis(others.value, axis, -1)
    terms = np.moveaxis(np.asarray(others.scale), axis, -1)
    turns = np.outer(np.arange(half.shape[-1]), np.arange(length)) % length
    angle = 2 * np.pi * turns.astype(np.longdouble) / length
    weights = half_weights(length, 1.0 if is_transpose else 2.0)
    weights = weights * scale_of(length, "forward", norm)
    total = (half.real * weights) @ np.cos(angle) - (half.imag * weights) @ np.sin(
        angle
    )
    terms = np.sum(2 * terms * weights, axis=-1, keepdims=True)
    terms = np.broadcast_to(terms, total.shape)
    return Truth(
        np.moveaxis(total, -1, axis),
        others.count * length,
        np.moveaxis(terms, -1, axis),
    )


def half(*axes: int, norm: str = "backward", back: bool = False) -> Any:
    return {"axes": axes, "norm": norm, "is_transpose": back}


def whole(*axes: int, length: int, norm: str = "backward", back: bool = False) -> Any:
    return {**half(*axes, norm=norm, back=back), "length": length}


CASES = (
    OpCase(
        "real_fourier",
        (Operand(),),
        (
            Variant(((8,),), half(0)),
            Variant(((3, 5),), half(1, norm="forward"), note="odd"),
            Variant(((4, 3),), half(0, norm="ortho", back=True), note="transpose"),
            Variant(((2, 7),), half(1, back=True), note="odd transpose"),
            Variant(((3, 4),), half(1, 0, norm="ortho"), note="two axes"),
            Variant(((3, 4),), half(0, 1, back=True), note="two axes transpose"),
            Variant(((1,),), half(0, norm="forward", back=True)),
            Variant(((0, 3),), half(1)),
        ),
        real_transform,
        SUM,
        takes=("float",),
        first="c",
        second=("-",),
        refused=(Variant(((3, 0),), half(1)), Variant(((),), half(0))),
    ),
    OpCase(
        "inverse_real_fourier",
        (Operand(),),
        (
            Variant(((5,),), whole(0, length=8)),
            Variant(((3, 3),), whole(1, length=5, norm="forward"), note="odd"),
            Variant(
                ((3, 2),),
                whole(0, length=4, norm="ortho", back=True),
                note="transpose",
            ),
            Variant(((2, 4),), whole(1, length=7, back=True), note="odd transpose"),
            Variant(((3, 4),), whole(1, 0, length=4, norm="ortho"), note="two axes"),
            Variant(((3, 4),), whole(0, 1, length=7, back=True), note="both back"),
            Variant(((1,),), whole(0, length=1)),
            Variant(((0, 3),), whole(1, length=4)),
        ),
        inverse_real_transform,
        SUM,
        takes=("complex",),
        first="c",
        second=("-",),
        fixed_sizes=(2, 3, 4, 5),
        refused=(
            Variant(((3, 0),), whole(1, length=1)),
            Variant(((3,),), whole(0, length=6)),
        ),
        unreachable=(Variant(((3, 3),), whole(1, 1, length=4)),),
    ),
    OpCase(
        "fourier",
        (Operand(),),
        (
            Variant(((8,),), {"axis": 0, "inverse": False}),
            Variant(((3, 5),), {"axis": 1, "inverse": True}),
            Variant(((4, 3),), {"axis": 0, "inverse": False}, note="first axis"),
            Variant(((1,),), {"axis": 0, "inverse": True}),
            Variant(((0, 3),), {"axis": 1, "inverse": False}),
        ),
        transform,
        SUM,
        takes=("complex",),
        first="c",
        second=("-",),
        refused=(
            Variant(((3, 0),), {"axis": 1, "inverse": False}),
            Variant(((),), {"axis": 0, "inverse": False}),
        ),
    ),
)
