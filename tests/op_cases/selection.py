"""Cases of what `x.at`, masks and the sequences are made of.

Start reading at `CASES`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from agreement import EXACT, SUM, Truth

from op_cases.case import INDEX_DTYPES, Array, Attrs, OpCase, Operand, Shape, Variant
from op_cases.references import elementwise, objects, widened
from tapejit.base.types import is_integer


def written_from(positions: Array, *, size: int) -> Array:
    """Value after value is written; a place remembers which was the last."""
    out = np.empty((*positions.shape[:-1], size), np.int64)
    for row in np.ndindex(*positions.shape[:-1]):
        places = list(range(size))
        for number, at in enumerate(positions[row]):
            places[int(at)] = size + number
        out[row] = places
    return out


def places_of(shapes: Sequence[Shape], attrs: Attrs, at: int) -> tuple[int, int]:
    return -attrs["size"], attrs["size"]


def convolve(x: Array, y: Array, *, mode: str) -> Any:
    """Every product of two elements goes to the sum of their positions."""
    n, m = x.shape[-1], y.shape[-1]
    front = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    change = objects if is_integer(x.dtype) else widened
    left = np.broadcast_to(change(x), (*front, n))
    right = np.broadcast_to(change(y), (*front, m))
    out = np.zeros((*front, n + m - 1), left.dtype)
    scale = np.zeros(out.shape, float)
    for i, j in itertools.product(range(n), range(m)):
        out[..., i + j] += left[..., i] * right[..., j]
        scale[..., i + j] += np.abs(left[..., i] * right[..., j]).astype(float)
    if mode == "valid":
        out, scale = out[..., m - 1 : n], scale[..., m - 1 : n]
    if is_integer(x.dtype):
        return elementwise(lambda value, _: value)(out, np.zeros((), x.dtype))
    return Truth(out, min(n, m), scale)


def true_positions(mask: Array, *, size: int) -> Array:
    """Where it is True, then where it is False, as many as are asked for."""
    out = np.empty((*mask.shape[:-1], size), np.int64)
    for row in np.ndindex(*mask.shape[:-1]):
        places = [at for at, flag in enumerate(mask[row]) if flag]
        places += [at for at, flag in enumerate(mask[row]) if not flag]
        out[row] = places[:size]
    return out


def in_range(shapes: Sequence[Shape], attrs: Attrs, at: int) -> tuple[int, int]:
    return 0, attrs["count"]


QUIET = {"message": "a number that is not 0"}
CATEGORIES = {"count": 9, "label": "a class", "name": "losses"}

CASES = [
    OpCase(
        "written_from",
        (Operand(integers=places_of, own=INDEX_DTYPES),),
        (
            Variant(((4,),), {"size": 6}),
            Variant(((9,),), {"size": 2}, note="crowded"),
            Variant(((3, 4),), {"size": 5}, note="rows"),
            Variant(((2, 1, 3),), {"size": 4}),
            Variant(((0,),), {"size": 3}, note="nothing"),
            Variant(((0,),), {"size": 0}, note="nowhere"),
            Variant(((0, 3),), {"size": 2}, note="no rows"),
        ),
        written_from,
        EXACT,
        takes=("integer",),
        first="-",
        refused=(Variant(((),), {"size": 3}),),
        unreachable=(Variant(((2,),), {"size": -1}),),
    ),
    OpCase(
        "convolve",
        (Operand(), Operand()),
        (
            Variant(((5,), (3,)), {"mode": "full"}, note="full"),
            Variant(((5,), (3,)), {"mode": "valid"}, note="valid"),
            Variant(((2,), (4,)), {"mode": "full"}, note="shorter first"),
            Variant(((4,), (4,)), {"mode": "valid"}, note="one"),
            Variant(((1,), (1,)), {"mode": "full"}),
            Variant(((2, 5), (3,)), {"mode": "full"}, note="rows full"),
            Variant(((5,), (2, 3)), {"mode": "valid"}, note="rows valid"),
            Variant(((7, 1, 4), (3, 2)), {"mode": "full"}, note="crossed full"),
            Variant(((7, 4), (7, 2)), {"mode": "valid"}, note="paired valid"),
            Variant(((0, 4), (2,)), {"mode": "full"}, note="no rows"),
        ),
        convolve,
        SUM,
        first="cc",
        second=("-c", "c-"),
        refused=(
            Variant(((2,), (3,)), {"mode": "valid"}),
            Variant(((0,), (3,)), {"mode": "full"}),
            Variant(((2, 3), (3, 2)), {"mode": "full"}),
            Variant(((), (3,)), {"mode": "full"}),
        ),
    ),
    OpCase(
        "true_positions",
        (Operand(),),
        (
            Variant(((6,),), {"size": 3}),
            Variant(((6,),), {"size": 0}, note="none"),
            Variant(((6,),), {"size": 6}, note="all"),
            Variant(((3, 5),), {"size": 2}, note="rows"),
            Variant(((2, 1, 3),), {"size": 1}),
            Variant(((0,),), {"size": 0}, note="nothing"),
            Variant(((0, 3),), {"size": 2}, note="no rows"),
        ),
        true_positions,
        EXACT,
        takes=("bool",),
        first="-",
        unreachable=(
            Variant(((),), {"size": 1}),
            Variant(((3,),), {"size": 4}),
            Variant(((2,),), {"size": -1}),
        ),
        fixed_sizes=(2, 3, 5, 6),
    ),
    OpCase(
        "checked_categories",
        (Operand(integers=in_range),),
        (
            Variant(((6,),), CATEGORIES),
            Variant(((),), CATEGORIES),
            Variant(((2, 3),), CATEGORIES),
            Variant(((0, 3),), CATEGORIES, note="no rows"),
            Variant(((0,),), {**CATEGORIES, "count": 0}, note="no classes"),
        ),
        lambda x, **_: x,
        EXACT,
        takes=("integer",),
        first="-",
        unreachable=(Variant(((2,),), {**CATEGORIES, "count": -1}),),
    ),
    OpCase(
        "warned",
        (Operand(integers=lambda *_: (0, 1)),),
        (Variant(((),), QUIET), Variant(((2, 3),), QUIET)),
        lambda x, **_: x,
        EXACT,
        takes=("integer",),
        first="-",
    ),
]
