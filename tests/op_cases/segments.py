"""Cases of reductions by segment.

Start reading at `CASES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from agreement import EXACT, PRODUCT, SUM, Truth

from op_cases.case import (
    INDEX_DTYPES,
    ORDERED,
    Array,
    Attrs,
    DType,
    OpCase,
    Operand,
    Rng,
    Shape,
    Variant,
    distinct,
)
from op_cases.references import elementwise, widened
from tapejit.base.types import is_integer


class Ids(Operand):
    """Numbers of segments: each of them if there is room, some of none, in any order.

    Extremes of empty segments are infinite, which differences cannot be taken of.
    """

    def draw(
        self, rng: Rng, dtype: DType, shapes: Sequence[Shape], at: int, attrs: Attrs
    ) -> Array:
        *rows, count = shapes[at]
        size = attrs["size"]
        low = 0 if dtype.kind == "u" else -1
        more = max(count - size, 0)
        lines = [
            rng.permutation([*range(size), *rng.integers(low, size, more)])[:count]
            for _ in np.ndindex(*rows)
        ]
        return np.array(lines, np.int64).reshape(shapes[at]).astype(dtype)


def members(x: Array, ids: Array, size: int) -> dict[tuple[int, ...], list[Any]]:
    """For each place of the result the elements that belong there, in order."""
    lead = ids.ndim - 1
    rest = x.shape[ids.ndim :]
    found: dict[tuple[int, ...], list[Any]] = {
        at: [] for at in np.ndindex(*ids.shape[:-1], size, *rest)
    }
    for at in np.ndindex(*x.shape):
        number = int(ids[at[: lead + 1]])
        if number >= 0:
            found[(*at[:lead], number, *at[lead + 1 :])].append(x[at])
    return found


def total(combine: Callable[[Any], Any]) -> Callable[..., Any]:
    """A sum or a product, in Python's integers or in a wider float."""

    def reference(x: Array, ids: Array, *, size: int) -> Any:
        kind = object if is_integer(x.dtype) else widened(x).dtype
        found = members(x.astype(kind), ids, size)
        shape = (*ids.shape[:-1], size, *x.shape[ids.ndim :])
        out, scale = np.zeros(shape, kind), np.zeros(shape)
        for at, elements in found.items():
            out[at] = combine(elements)
            scale[at] = float(sum(map(abs, elements)))
        if is_integer(x.dtype):
            return elementwise(lambda value, _: value)(out, np.zeros((), x.dtype))
        count = max(map(len, found.values()), default=1)
        if combine is math.prod:
            return Truth(out, count)
        return Truth(out, count, scale)

    return reference


def extreme(ufunc: np.ufunc, empty: float) -> Callable[..., Array]:
    """One after the other; NaN beats all."""

    def reference(x: Array, ids: Array, *, size: int) -> Array:
        nothing: Any = empty
        if x.dtype.kind == "b":
            nothing = empty > 0
        elif is_integer(x.dtype):
            limits = np.iinfo(x.dtype)
            nothing = limits.max if empty > 0 else limits.min
        out = np.full((*ids.shape[:-1], size, *x.shape[ids.ndim :]), nothing, x.dtype)
        for at, elements in members(x, ids, size).items():
            for element in elements:
                out[at] = ufunc(out[at], element)
        return out

    return reference


FULL = (
    Variant(((7,), (7,)), {"size": 4}),
    Variant(((5, 3), (5,)), {"size": 3}, note="of rows"),
    Variant(((2, 6, 3), (2, 6)), {"size": 4}, note="rows apart"),
    Variant(((9, 2), (9,)), {"size": 1}, note="one segment"),
    Variant(((0,), (0,)), {"size": 0}, note="nothing"),
)
EMPTY = (
    Variant(((3,), (3,)), {"size": 9}, note="mostly empty"),
    Variant(((0, 2), (0,)), {"size": 3}, note="of nothing"),
)


def segments(
    op: str,
    reference: Callable[..., Any],
    agreement: str,
    variants: tuple[Variant, ...] = (*FULL, *EMPTY),
    **fields: Any,
) -> OpCase:
    return OpCase(
        op,
        (Operand(distinct), Ids(own=INDEX_DTYPES)),
        variants,
        reference,
        agreement,
        first="c-",
        refused=(
            Variant(((4,), (3,)), {"size": 3}),
            Variant(((3, 2), (3, 3)), {"size": 3}),
            Variant(((3,), ()), {"size": 3}),
        ),
        unreachable=(Variant(((3,), (3,)), {"size": -1}),),
        **fields,
    )


CASES = [
    segments("segment_sum", total(sum), SUM, second=("-",)),
    segments("segment_prod", total(math.prod), PRODUCT, second=("c-",)),
    segments(
        "segment_max",
        extreme(np.maximum, -math.inf),
        EXACT,
        FULL,
        takes=ORDERED,
        second=("0-",),
    ),
    segments(
        "segment_min",
        extreme(np.minimum, math.inf),
        EXACT,
        FULL,
        takes=ORDERED,
        second=("0-",),
    ),
]
