"""Cases of resampling: pixels weighed by hand, one after the other.

Start reading at `CASES`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from agreement import EXACT, SUM, Truth

from op_cases.case import ANY, INEXACT, Array, OpCase, Operand, Variant
from op_cases.references import widened


def terms(new: int, before: int, after: int, method: str) -> dict[int, Fraction]:
    """The old pixels that a new one is made of, in exact arithmetic."""
    middle = (Fraction(new) + Fraction(1, 2)) * before / after
    if method == "nearest":
        return {math.floor(middle): Fraction(1)}
    left = math.floor(middle - Fraction(1, 2))
    far = middle - Fraction(1, 2) - left
    found: dict[int, Fraction] = {}
    for old, share in ((left, 1 - far), (left + 1, far)):
        inside = min(max(old, 0), before - 1)
        found[inside] = found.get(inside, Fraction(0)) + share
    return {old: share for old, share in found.items() if share}


def matrix(before: int, after: int, method: str) -> Array:
    out = np.zeros((after, before))
    for new in range(after):
        for old, share in terms(new, before, after, method).items():
            out[new, old] = float(share)
    return out


def mixed(x: Array, weights: Array, axis: int) -> Truth:
    """Sums over what has a share, so that others may be infinite."""
    wide = np.moveaxis(widened(x), axis, 0)
    out = np.zeros((len(weights), *wide.shape[1:]), wide.dtype)
    scale = np.zeros(out.shape, float)
    for row, shares in enumerate(weights):
        for column in np.flatnonzero(shares):
            out[row] += wide[column] * shares[column]
            scale[row] += 3 * np.abs(wide[column]).astype(float)
    return Truth(np.moveaxis(out, 0, axis), 4, np.moveaxis(scale, 0, axis))


def resample(x: Array, *, axis: int, size: int, method: str) -> Any:
    if method == "nearest":
        places = [
            next(iter(terms(new, x.shape[axis], size, method))) for new in range(size)
        ]
        return np.take(x, np.array(places, int), axis=axis)
    wide = np.moveaxis(widened(x), axis, 0)
    out, scale = (
        np.zeros((size, *wide.shape[1:]), kind) for kind in (wide.dtype, float)
    )
    for new in range(size):
        (first, _), *rest = terms(new, x.shape[axis], size, method).items()
        out[new] = wide[first]
        scale[new] = 3 * np.abs(wide[first]).astype(float)
        for old, share in rest:
            out[new] += (wide[old] - wide[first]) * float(share)
            scale[new] += 3 * np.abs(wide[old]).astype(float)
    return Truth(np.moveaxis(out, 0, axis), 4, np.moveaxis(scale, 0, axis))


def resample_adjoint(g: Array, *, axis: int, size: int, method: str) -> Any:
    return mixed(g, matrix(size, g.shape[axis], method).T, axis)


def by(axis: int, size: int, method: str = "bilinear") -> dict[str, Any]:
    return {"axis": axis, "size": size, "method": method}


LINES = (
    Variant(((5,),), by(0, 10), note="twice"),
    Variant(((4,),), by(0, 7), note="more"),
    Variant(((7,),), by(0, 3), note="fewer"),
    Variant(((2, 6, 3),), by(1, 3), note="half"),
    Variant(((2, 3),), by(0, 40), note="many"),
    Variant(((3, 1),), by(1, 4), note="of one"),
    Variant(((3, 4),), by(1, 4), note="the same"),
    Variant(((0, 3),), by(1, 5), note="no rows"),
)
NEAREST = tuple(
    Variant(v.shapes, {**v.attrs, "method": "nearest"}, note=f"nearest {v.note}")  # type: ignore[dict-item]  # no functions here
    for v in LINES
)
FIELDS: dict[str, Any] = {"first": "c", "second": ("-",)}

CASES = [
    OpCase("resample", (Operand(),), LINES, resample, SUM, INEXACT, **FIELDS),
    OpCase(
        "resample",
        (Operand(),),
        NEAREST,
        resample,
        EXACT,
        ANY,
        refused=(
            Variant(((0,),), by(0, 3, "nearest")),
            Variant(((3,),), by(1, 3, "nearest")),
        ),
        unreachable=(Variant(((3,),), by(0, 3, "cubic")),),
        **FIELDS,
    ),
    OpCase(
        "resample_adjoint",
        (Operand(),),
        (*LINES, *NEAREST[:3]),
        resample_adjoint,
        SUM,
        INEXACT,
        unreachable=(Variant(((3,),), by(1, 3)), Variant(((3,),), by(0, -1))),
        **FIELDS,
    ),
]
