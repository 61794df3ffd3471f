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


CASES = (
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
