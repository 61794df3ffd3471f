"""Cases of the families that scan and sort lines.

References go element by element in Python or in extended precision; orders are those
of Python's own stable sort.

Start reading at `scan`, then `SORTING`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from agreement import EXACT, PRODUCT, SUM, Truth

from op_cases import references as ref
from op_cases.case import (
    ANY,
    FLOAT,
    INEXACT,
    ORDERED,
    Array,
    Attrs,
    OpCase,
    Operand,
    Variant,
    distinct,
    dtypes_of,
)
from tapejit.types import is_complex, is_float

# Scans


def lines(x: Array, axis: int) -> Array:
    """The axis in front: `lines(x)[i]` is what stands at place i."""
    return np.moveaxis(x, axis, 0)


def is_exact(x: Array) -> bool:
    return not (is_float(x.dtype) or is_complex(x.dtype))


def in_python(x: Array, axis: int, combine: Callable[[int, int], int]) -> Array:
    """A scan of integers or bools in Python's numbers, kept in 32 bits or more."""
    bits = max(8 * x.dtype.itemsize, 32)
    dtype = np.dtype(f"{'uint' if x.dtype.kind == 'u' else 'int'}{bits}")
    out = np.empty(x.shape, dtype)
    source, target = lines(x, axis), lines(out, axis)
    for at in np.ndindex(*source.shape[1:]):
        total: int | None = None
        for i in range(len(source)):
            value = int(source[(i, *at)])
            total = value if total is None else combine(total, value)
            target[(i, *at)] = ref.wrap(total, dtype)
    return out


def cumulative_sum(x: Array, *, axis: int) -> Any:
    if is_exact(x):
        return in_python(x, axis, lambda total, value: total + value)
    wide = ref.widened(x)
    total, scale = wide.copy(), np.abs(wide)
    for i in range(1, x.shape[axis]):
        lines(total, axis)[i] += lines(total, axis)[i - 1]
        lines(scale, axis)[i] += lines(scale, axis)[i - 1]
    return Truth(total, x.shape[axis], scale)


def cumulative_prod(x: Array, *, axis: int) -> Any:
    if is_exact(x):
        return in_python(x, axis, lambda total, value: total * value)
    total = ref.widened(x).copy()
    for i in range(1, x.shape[axis]):
        lines(total, axis)[i] *= lines(total, axis)[i - 1]
    return Truth(total, x.shape[axis])


def linear_recurrence(a: Array, b: Array, *, axis: int) -> Truth:
    """Every step rounds a product and a sum."""
    factors, out = ref.widened(a), ref.widened(b).copy()
    scale = np.abs(out)
    for i in range(1, b.shape[axis]):
        factor = lines(factors, axis)[i]
        lines(out, axis)[i] += factor * lines(out, axis)[i - 1]
        lines(scale, axis)[i] += np.abs(factor) * lines(scale, axis)[i - 1]
    return Truth(out, 2 * b.shape[axis], scale)


def logcumsumexp(x: Array, *, axis: int) -> Truth:
    """Each result on its own, from the differences to its largest element."""
    wide = lines(ref.widened(x), axis)
    out, scale = np.empty_like(wide), np.empty_like(wide)
    for i in range(len(wide)):
        part = ref.logsumexp(wide[: i + 1], axes=(0,), keepdims=False)
        out[i], scale[i] = part.value, part.scale
    back = [np.moveaxis(y, 0, axis) for y in (out, scale)]
    return Truth(back[0], x.shape[axis], back[1])


def along(axis: int) -> Attrs:
    return {"axis": axis}


def scan(
    op: str,
    reference: Callable[..., Any],
    agreement: str,
    operands: tuple[Operand, ...] = (Operand(integers=(-3, 4)),),
    **fields: Any,
) -> OpCase:
    """A case that scans one axis; its operands have the same shape."""
    count = len(operands)
    return OpCase(
        op,
        operands,
        (
            Variant(((3, 4),) * count, along(0), note="rows"),
            Variant(((3, 4),) * count, along(1), note="columns"),
            Variant(((2, 5, 3),) * count, along(1)),
            Variant(((5,),) * count, along(0)),
            Variant(((1, 3),) * count, along(0), note="one"),
            Variant(((0, 3),) * count, along(0), note="of nothing"),
            Variant(((0, 3),) * count, along(1), note="no lines"),
            Variant(((2, 70),) * count, along(1), note="blocks"),
        ),
        reference,
        agreement,
        refused=(
            Variant(((3, 4),) * count, along(2)),
            Variant(((),) * count, along(0)),
        ),
        **fields,
    )


NEAR_ONE = Operand(lambda rng, shape: rng.uniform(0.5, 1.5, shape), integers=(-2, 3))

SCANS = [
    scan("cumulative_sum", cumulative_sum, SUM, takes=ANY, first="c", second=("-",)),
    scan(
        "cumulative_prod",
        cumulative_prod,
        PRODUCT,
        (NEAR_ONE,),
        takes=ANY,
        first="c",
        second=("c",),
    ),
    scan("logcumsumexp", logcumsumexp, SUM, takes=FLOAT, first="c", second=("c",)),
    scan(
        "linear_recurrence",
        linear_recurrence,
        SUM,
        (NEAR_ONE, Operand()),
        takes=INEXACT,
        first="cc",
        second=("cc", "c-"),
    ),
]

# Sorting

ORDERED_DTYPES = tuple(
    sorted(dtypes_of(ORDERED), key=lambda dtype: dtype != np.dtype("float64"))
)


def order(line: Array, descending: bool) -> list[int]:
    """Python's stable sort; NaN last."""

    def key(at: int) -> tuple[bool, Any]:
        value = ref.objects(line)[at]
        if value != value:
            return (True, 0)
        return (False, -value if descending else value)

    return sorted(range(len(line)), key=key)


def argsort(x: Array, *, axis: int, descending: bool) -> Array:
    out = np.empty(x.shape, np.int64)
    for at in np.ndindex(*lines(x, axis).shape[1:]):
        line = (slice(None), *at)
        lines(out, axis)[line] = order(lines(x, axis)[line], descending)
    return out


def moved(is_back: bool) -> Callable[..., Array]:
    """`sort_by`, or what undoes it."""

    def reference(values: Array, keys: Array, *, axis: int, descending: bool) -> Array:
        out = np.empty_like(values)
        lead = values.ndim - keys.ndim
        positions = argsort(keys, axis=axis, descending=descending)
        for at in np.ndindex(*values.shape):
            inner = at[lead:]
            there = (*inner[:axis], positions[inner], *inner[axis + 1 :])
            if is_back:
                out[(*at[:lead], *there)] = values[at]
            else:
                out[at] = values[(*at[:lead], *there)]
        return out

    return reference


def searchsorted(line: Array, values: Array, *, side: str) -> Array:
    """How many elements are less than a value, or not greater; NaN is the greatest."""

    def rank(x: Any) -> tuple[bool, Any]:
        x = ref.objects(np.asarray(x))[()]
        return (x != x, 0 if x != x else x)

    lead = line.ndim - 1
    out = np.empty(values.shape, np.int64)
    for at in np.ndindex(*values.shape):
        wanted = rank(values[at])
        found = [rank(x) for x in line[at[:lead]]]
        is_before = [x < wanted or (side == "right" and x == wanted) for x in found]
        out[at] = sum(is_before)
    return out


@dataclass(frozen=True)
class SortedOperand(Operand):
    """An operand whose lines are sorted."""

    def draw(self, *args: Any) -> Array:
        drawn = super().draw(*args)
        wide = drawn.astype(np.float64) if is_float(drawn.dtype) else drawn
        return np.sort(wide, axis=-1).astype(drawn.dtype)


def sorting(axis: int, descending: bool = False) -> Attrs:
    return {"axis": axis, "descending": descending}


def movement(op: str, is_back: bool) -> OpCase:
    return OpCase(
        op,
        (Operand(), Operand(distinct, own=ORDERED_DTYPES)),
        (
            Variant(((3, 4), (3, 4)), sorting(0), note="rows"),
            Variant(((3, 4), (3, 4)), sorting(1, True), note="descending"),
            Variant(((2, 3, 5), (3, 5)), sorting(1), note="one order for two"),
            Variant(((2, 3, 5), (5,)), sorting(0, True), note="one order for six"),
            Variant(((5,), (5,)), sorting(0)),
            Variant(((0, 3), (0, 3)), sorting(0), note="of nothing"),
            Variant(((0, 3), (3,)), sorting(0), note="no lines"),
        ),
        moved(is_back),
        EXACT,
        takes=ANY,
        first="c0",
        second=("-0",),
        refused=(
            Variant(((3,), (4,)), sorting(0)),
            Variant(((3,), (2, 3)), sorting(1)),
            Variant(((3, 4), (3,)), sorting(0)),
        ),
        unreachable=(
            Variant(((3, 4), (3, 4)), sorting(2)),
            Variant(((), ()), sorting(0)),
        ),
    )


SORTING = [
    OpCase(
        "argsort",
        (Operand(integers=(-2, 3)),),
        (
            Variant(((3, 4),), sorting(0), note="rows"),
            Variant(((3, 4),), sorting(1, True), note="descending"),
            Variant(((40,),), sorting(0), note="ties"),
            Variant(((40,),), sorting(0, True), note="ties descending"),
            Variant(((0, 3),), sorting(0), note="of nothing"),
            Variant(((0, 3),), sorting(1), note="no lines"),
        ),
        argsort,
        EXACT,
        takes=ORDERED,
        first="-",
        refused=(Variant(((3, 4),), sorting(2)),),
        unreachable=(Variant(((),), sorting(0)),),
    ),
    movement("sort_by", is_back=False),
    movement("unsort_by", is_back=True),
    OpCase(
        "searchsorted",
        (
            SortedOperand(integers=(-3, 4), own=ORDERED_DTYPES),
            Operand(integers=(-4, 5)),
        ),
        (
            Variant(((7,), (5,)), {"side": "left"}),
            Variant(((7,), (2, 3)), {"side": "right"}),
            Variant(((7,), ()), {"side": "left"}, note="one"),
            Variant(((3, 7), (3, 2)), {"side": "right"}, note="several"),
            Variant(((0,), (3,)), {"side": "left"}, note="in nothing"),
            Variant(((4,), (0,)), {"side": "left"}, note="nothing"),
        ),
        searchsorted,
        EXACT,
        takes=ORDERED,
        first="-",
        refused=(
            Variant(((3, 7), (2, 2)), {"side": "left"}),
            Variant(((), (2,)), {"side": "left"}),
        ),
        unreachable=(Variant(((3,), (2,)), {"side": "middle"}),),
    ),
]

CASES = [*SCANS, *SORTING]
