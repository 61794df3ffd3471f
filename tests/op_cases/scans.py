"""Cases of the families that scan and sort lines.

References go element by element in Python or in extended precision; orders are those
of Python's own stable sort.

Start reading at `scan`, then `SORTING`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from agreement import EXACT, PRODUCT, ROUNDED, SUM, Truth

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
    Rng,
    Shape,
    Variant,
    distinct,
    dtypes_of,
)
from tapejit.base.types import DType, is_complex, is_differentiable, is_float
from tapejit.ir import OPS, Node
from tapejit.ir.structural import results

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


Window = tuple[int, int] | None


def argsort(x: Array, *, axis: int, descending: bool, window: Window = None) -> Array:
    start, stop = window or (0, x.shape[axis])
    out = np.empty((*x.shape[:axis], stop - start, *x.shape[axis + 1 :]), np.int64)
    for at in np.ndindex(*lines(x, axis).shape[1:]):
        line = (slice(None), *at)
        found = order(lines(x, axis)[line], descending)
        lines(out, axis)[line] = found[start:stop]
    return out


def taken(values: Array, positions: Array, *, axis: int) -> Array:
    lead = values.ndim - positions.ndim
    out = np.empty((*values.shape[:lead], *positions.shape), values.dtype)
    for at in np.ndindex(*out.shape):
        inner = at[lead:]
        there = (*inner[:axis], positions[inner], *inner[axis + 1 :])
        out[at] = values[(*at[:lead], *there)]
    return out


def put(values: Array, positions: Array, *, axis: int, length: int) -> Array:
    lead = values.ndim - positions.ndim
    shape = list(values.shape)
    shape[lead + axis] = length
    out = np.zeros(shape, values.dtype)
    for at in np.ndindex(*values.shape):
        inner = at[lead:]
        there = (*inner[:axis], positions[inner], *inner[axis + 1 :])
        out[(*at[:lead], *there)] = values[at]
    return out


def sorted_by(values: Array, keys: Array, *, axis: int, **attrs: Any) -> Array:
    return taken(values, argsort(keys, axis=axis, **attrs), axis=axis)


def unsorted_by(values: Array, keys: Array, *, axis: int, **attrs: Any) -> Array:
    positions = argsort(keys, axis=axis, **attrs)
    return put(values, positions, axis=axis, length=keys.shape[axis])


def built_top(x: Node, **attrs: Any) -> Node:
    """The elements of `top`, times one more than their positions."""
    values, positions = results(OPS["top"](x, **attrs))
    if not is_differentiable(x.dtype):
        return positions
    return values * OPS["cast"](positions + 1, dtype=values.dtype)


def top(x: Array, *, axis: int, **attrs: Any) -> Array:
    positions = argsort(x, axis=axis, **attrs)
    if not is_differentiable(x.dtype):
        return positions
    values = taken(x, positions, axis=axis)
    return (values * (positions + 1).astype(x.dtype)).astype(x.dtype)


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


def sorting(axis: int, descending: bool = False, window: Window = None) -> Attrs:
    attrs: Attrs = {"axis": axis, "descending": descending}
    return attrs if window is None else {**attrs, "window": window}


@dataclass(frozen=True)
class Positions(Operand):
    """Positions that are distinct in each line."""

    own: tuple[DType, ...] = (np.dtype("int64"),)

    def draw(
        self, rng: Rng, dtype: DType, shapes: Sequence[Shape], at: int, attrs: Attrs
    ) -> Array:
        values, shape = shapes[0], list(shapes[at])
        axis = attrs["axis"]
        count = shape[axis]
        shape[axis] = attrs.get("length", values[len(values) - len(shape) + axis])
        order = np.argsort(rng.random(shape), axis=axis)
        return np.asarray(np.take(order, range(count), axis=axis), dtype)


def movement(op: str, reference: Callable[..., Array], part: Variant) -> OpCase:
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
            part,
        ),
        reference,
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


def by_positions(
    op: str, reference: Callable[..., Array], *variants: Variant
) -> OpCase:
    attrs = variants[0].attrs_for(variants[0].shapes)
    return OpCase(
        op,
        (Operand(), Positions()),
        variants,
        reference,
        EXACT,
        takes=ANY,
        first="c-",
        second=("--",),
        refused=(
            Variant(((3,), (2, 3)), {**attrs, "axis": 1}),
            Variant(((3, 4), (2, 3)), {**attrs, "axis": 1}),
        ),
        is_eager=False,
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
            Variant(((3, 40),), sorting(1, True, (0, 9)), note="the first"),
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
    movement(
        "sort_by",
        sorted_by,
        Variant(((2, 3, 5), (3, 5)), sorting(1, True, (1, 4)), note="window"),
    ),
    movement(
        "unsort_by",
        unsorted_by,
        Variant(((2, 3, 1), (3, 5)), sorting(1, True, (1, 2)), note="window"),
    ),
    OpCase(
        "top",
        (Operand(distinct),),
        (
            Variant(((3, 4),), sorting(0, True, (0, 2)), note="rows"),
            Variant(((3, 4),), sorting(1, False, (1, 4)), note="not the first"),
            Variant(((3, 4),), sorting(1, False, (2, 2)), note="no elements"),
        ),
        top,
        ROUNDED,
        takes=ORDERED,
        first="c",
        second=("0",),
        build=built_top,
        is_eager=False,
        unreachable=(
            Variant(((3, 4),), sorting(1, False, (1, 5))),
            Variant(((3, 4),), sorting(2, False, (0, 1))),
        ),
    ),
    by_positions(
        "take_along",
        taken,
        Variant(((3, 4), (3, 4)), {"axis": 1}, note="permuted"),
        Variant(((3, 4), (2, 4)), {"axis": 0}, note="rows"),
        Variant(((2, 3, 5), (3, 2)), {"axis": 1}, note="one order for two"),
    ),
    by_positions(
        "put_along",
        put,
        Variant(
            ((3, 4), (3, 4)),
            lambda values, _: {"axis": 1, "length": values[1]},
            note="permuted",
        ),
        Variant(((2, 4), (2, 4)), {"axis": 0, "length": 3}, note="rows"),
        Variant(
            ((2, 3, 2), (3, 2)), {"axis": 1, "length": 5}, note="one order for two"
        ),
    ),
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
