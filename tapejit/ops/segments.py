"""Reductions by segment: elements that have the same number are combined.

The elements lie along an axis, and `ids` says which segment each of them belongs to.
All axes of `ids` are the first ones of `x`: the last is reduced, those before it are
separate rows. So `[..., n, *rest]` with ids `[..., n]` is `[..., size, *rest]`.

A negative id belongs to no segment: its element is dropped. An id from `size` on is an
error. A segment without elements has the value that changes nothing: 0 for sums, 1 for
products, and what is not more (or less) than any number for extremes.

Start reading at `segment_type`, then `combine`, then `segment_sum`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import OutOfRangeError, ShapeError
from tapejit.base.types import DType, TensorType, Type, is_differentiable, is_float
from tapejit.ir.node import FIRST, Node, Op, Rule, literal, record
from tapejit.ir.structural import with_rows
from tapejit.ops.arithmetic import eq_mask, gate, maximum
from tapejit.ops.comparison import equal, less, where
from tapejit.ops.elementwise import NUMERIC, ORDERED, Cotangents, check_kind
from tapejit.ops.indexing import LONG_ROW, as_signed, gather, gather_add, iota
from tapejit.ops.movement import (
    Tangents,
    check_shape,
    flip,
    permute_dims,
    reshape,
    zeros,
)
from tapejit.ops.reduction import doublings, shifted
from tapejit.ops.shapes import tensor
from tapejit.ops.sorting import sort_by, unsort_by


def segment_type(x: TensorType, ids: TensorType, size: Size) -> TensorType:
    """The axis of elements becomes one of segments."""
    check_kind(ids.dtype, ("integer",))
    check_shape((size,))
    if not ids.ndim or x.shape[: ids.ndim] != ids.shape:
        raise ShapeError(
            f"needs one segment id for each element along the first axes, got {x} and "
            f"ids of {ids}"
        )
    return x.with_shape((*ids.shape[:-1], size, *x.shape[ids.ndim :]))


def combine(ufunc: np.ufunc, empty: Any, x: Any, ids: Any, size: int) -> Any:
    """Elements are combined in their order; halves in float32, rounded once."""
    rows, count = math.prod(ids.shape[:-1]), ids.shape[-1]
    width = math.prod(x.shape[ids.ndim :])
    signed = as_signed(ids).astype(np.int64, copy=False)
    check_segments(signed, size)
    cells = (signed.reshape(rows, count) + size * np.arange(rows)[:, None]).reshape(-1)
    is_half = is_float(x.dtype) and x.dtype.itemsize == 2
    wide = np.dtype(np.float32) if is_half else x.dtype
    values = x.astype(wide, copy=False).reshape(rows * count, width)
    is_kept = signed.reshape(-1) >= 0
    if not is_kept.all():
        cells, values = cells[is_kept], values[is_kept]
    table = np.full((rows * size, width), empty, wide)
    if width >= LONG_ROW:
        for row, line in zip(cells.tolist(), values, strict=True):
            ufunc(table[row], line, out=table[row])
    else:
        places = cells[:, None] * width + np.arange(width)
        ufunc.at(table.reshape(-1), places.reshape(-1), values.reshape(-1))
    out = table.astype(x.dtype, copy=False)
    return out.reshape(*ids.shape[:-1], size, *x.shape[ids.ndim :])


def check_segments(ids: Any, size: int) -> None:
    """Refuse the first id that is too large."""
    is_wrong = ids >= size
    if np.any(is_wrong):
        at = np.unravel_index(np.argmax(is_wrong), np.shape(is_wrong))
        place = ", ".join(str(int(position)) for position in at)
        raise OutOfRangeError(
            f"segment id {int(ids[at])} at [{place}] is not below the number of "
            f"segments, {size}",
            help="num_segments is one more than the largest id; give elements that "
            "are to be dropped the id -1",
        )


def is_dropped(ids: Node) -> Node:
    """Which elements belong to no segment."""
    return less(ids, literal(0, ids.dtype))


def per_element(flags: Node, x: Node) -> Node:
    """What there is for each id, with axes of size one to the rank of `x`."""
    missing = x.ndim - flags.ndim
    return reshape(flags, shape=(*flags.shape, *(1,) * missing)) if missing else flags


def row_indices(ids: Node) -> list[Node]:
    """The number of the row that each id is in, one index for each axis of rows."""
    found = []
    for axis, size in enumerate(ids.shape[:-1]):
        shape = tuple(size if at == axis else 1 for at in range(ids.ndim))
        found.append(reshape(iota(size=size), shape=shape))
    return found


def kept_ids(ids: Node) -> Node:
    """Ids that can be read at: that of a dropped element is 0."""
    return maximum(ids, literal(0, ids.dtype))


def spread(table: Node, ids: Node, x: Node) -> Node:
    """What each element reads of its segment; dropped ones 0."""
    if table.shape[ids.ndim - 1] == 0:
        return zeros(table.dtype, x.shape)
    axes = tuple(range(ids.ndim))
    read = gather(table, *row_indices(ids), kept_ids(ids), axes=axes)
    nothing = literal(0, table.dtype)
    return where(per_element(is_dropped(ids), read), nothing, read)


def scattered_sum(x: Node, ids: Node, size: Size) -> Node:
    """`segment_sum` by `gather_add`: dropped elements add 0 to the first segment."""
    axes = tuple(range(ids.ndim))
    shape = (*ids.shape[:-1], size, *x.shape[ids.ndim :])
    added = where(per_element(is_dropped(ids), x), literal(0, x.dtype), x)
    return gather_add(
        zeros(x.dtype, shape), added, *row_indices(ids), kept_ids(ids), axes=axes
    )


def batch_segments(name: str) -> Rule:
    """Ids of their own are more rows; shared ones leave the batch an inner axis."""

    def batch(
        batch_size: Size, inputs: Sequence[Node], batched: Sequence[bool], *, size: Size
    ) -> Node:
        x, ids = inputs
        op = RECORDS[name]
        if batched[1]:
            return op(*with_rows(batch_size, inputs, batched), size=size)
        behind = ids.ndim
        inner = (*range(1, behind + 1), 0, *range(behind + 1, x.ndim))
        out = op(permute_dims(x, axes=inner), ids, size=size)
        outer = (behind, *range(behind), *range(behind + 1, x.ndim))
        return permute_dims(out, axes=outer)

    return batch


def by_segment(
    name: str,
    type_rule: Rule,
    eval: Rule,
    vjp: Rule,
    jvp: Rule | None = None,
    **fields: Any,
) -> Op:
    """A reduction by segment."""
    return record(
        name,
        type_rule=type_rule,
        eval=eval,
        can_fail=True,
        vjp=vjp,
        jvp=jvp,
        batch=batch_segments(name),
        **fields,
    )


# segment_sum


def total_type(x: Type, ids: Type, *, size: Size) -> TensorType:
    x, ids = tensor(x), tensor(ids)
    check_kind(x.dtype, NUMERIC)
    return segment_type(x, ids, size)


def sum_eval(x: Any, ids: Any, *, size: int) -> Any:
    return combine(np.add, 0, x, ids, size)


def sum_vjp(g: Node, out: Node, x: Node, ids: Node, *, size: Size) -> Cotangents:
    """Every element of a segment receives that segment's cotangent."""
    return spread(g, ids, x), None


def expand_sum(node: Node) -> Node:
    """A scatter, with nothing added where an element belongs to no segment."""
    x, ids = node.inputs
    return scattered_sum(x, ids, node.attrs["size"])


segment_sum = by_segment(
    "segment_sum",
    total_type,
    sum_eval,
    sum_vjp,
    conj_linear=True,
    linear=FIRST,
    precision="single",
    expands=expand_sum,
)


# segment_prod


def prod_eval(x: Any, ids: Any, *, size: int) -> Any:
    return combine(np.multiply, 1, x, ids, size)


def prod_vjp(g: Node, out: Node, x: Node, ids: Node, *, size: Size) -> Cotangents:
    """A factor's slope is the product of the others in its segment."""
    return spread(g, ids, x) * other_factors(x, ids), None


def prod_jvp(tangents: Tangents, out: Node, x: Node, ids: Node, *, size: Size) -> Node:
    """Each factor's tangent times the others, summed."""
    assert tangents[0] is not None  # ids have none
    return segment_sum(tangents[0] * other_factors(x, ids), ids, size=size)


def other_factors(x: Node, ids: Node) -> Node:
    """For each element the product of all others in its segment.

    In the order of their ids, elements of a segment are neighbours, and what comes
    before one of them times what comes after it is the product. There is no division,
    so zeros are no special case, in derivatives of any order. Dropped elements count
    as 1: whatever they are, nothing of it is left.
    """
    x = where(per_element(is_dropped(ids), x), literal(1, x.dtype), x)
    inner = tuple(range(ids.ndim, x.ndim))
    outer = tuple(range(ids.ndim))
    lines = permute_dims(x, axes=(*inner, *outer)) if inner else x
    along = {"axis": ids.ndim - 1, "descending": False}
    values = sort_by(lines, ids, **along)
    order = sort_by(ids, ids, **along)
    last = (values.ndim - 1,)
    after = flip(
        factors_before(flip(values, axes=last), flip(order, axes=(ids.ndim - 1,))),
        axes=last,
    )
    others = unsort_by(factors_before(values, order) * after, ids, **along)
    if not inner:
        return others
    count = len(inner)
    back = (*range(count, x.ndim), *range(count))
    return permute_dims(others, axes=back)


def factors_before(x: Node, ids: Node) -> Node:
    """For each element the product of those before it that have its id.

    For the first one that is 1. As in `product_before`, each step doubles the number
    of factors.
    """
    axis = x.ndim - 1

    def earlier(values: Node, by: Size) -> Node:
        is_same = equal(ids, shifted(ids, ids.ndim - 1, by))
        return where(is_same, shifted(values, axis, by), literal(1, x.dtype))

    product = earlier(x, 1)
    for by in doublings(x.shape[axis]):
        product = product * earlier(product, by)
    return product


segment_prod = by_segment(
    "segment_prod", total_type, prod_eval, prod_vjp, prod_jvp, precision="single"
)


# segment_max and segment_min


def extreme_type(x: Type, ids: Type, *, size: Size) -> TensorType:
    x, ids = tensor(x), tensor(ids)
    check_kind(x.dtype, ORDERED)
    return segment_type(x, ids, size)


def winners(out: Node, x: Node, ids: Node, size: Size) -> tuple[Node, Node]:
    """1 where an element is the extreme of its segment, and how many of them it has.

    For dropped elements that is one, so that nothing is divided by 0.
    """
    goes = per_element(is_dropped(ids), x)
    mask = where(goes, literal(0, x.dtype), eq_mask(x, spread(out, ids, x)))
    count = spread(segment_sum(mask, ids, size=size), ids, x)
    return mask, where(goes, literal(1, x.dtype), count)


def extreme_vjp(g: Node, out: Node, x: Node, ids: Node, *, size: Size) -> Cotangents:
    """As of `max`: winners share the cotangent equally; nobody equals NaN: 0 / 0."""
    mask, count = winners(out, x, ids, size)
    return gate(spread(g, ids, x), mask) / count, None


def extreme_jvp(
    tangents: Tangents, out: Node, x: Node, ids: Node, *, size: Size
) -> Node:
    """The mean of the winners' tangents; an empty segment has none."""
    assert tangents[0] is not None  # ids have none
    mask, count = winners(out, x, ids, size)
    return segment_sum(gate(tangents[0], mask) / count, ids, size=size)


def extreme(name: str, ufunc: np.ufunc) -> Op:
    """The largest or smallest element of each segment; NaN if there is one."""

    def extreme_eval(x: Any, ids: Any, *, size: int) -> Any:
        return combine(ufunc, limit(x.dtype, ufunc is np.maximum), x, ids, size)

    return by_segment(name, extreme_type, extreme_eval, extreme_vjp, extreme_jvp)


def limit(dtype: DType, is_lowest: bool) -> Any:
    """What is not more than any number, or not less.

    >>> limit(np.dtype("int8"), True), limit(np.dtype("float32"), False)
    (-128, inf)
    """
    if is_differentiable(dtype):
        return -math.inf if is_lowest else math.inf
    if dtype.kind == "b":
        return not is_lowest
    return np.iinfo(dtype).min if is_lowest else np.iinfo(dtype).max


segment_max = extreme("segment_max", np.maximum)
segment_min = extreme("segment_min", np.minimum)

RECORDS = {op.name: op for op in (segment_max, segment_min, segment_prod, segment_sum)}
