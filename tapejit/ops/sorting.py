"""Sorting, and searching in what is sorted.

`argsort` gives positions and has no derivative. `sort_by` and `unsort_by` move what
they are given: one puts it in the order that sorts its keys, the other puts it back, so
each is the transpose of the other. A sorted tensor is `sort_by(x, x)`. Their derivative
in the keys is zero and not absent, because the order depends on them, if only through
comparisons.

Every order is stable: equal keys stay as they were, also when larger ones come first.
NaN comes last either way.

`sort_by` takes values with more leading axes than the keys have. They are all moved
alike, and the keys are sorted once: that is what batching the values needs.

Start reading at `sort_by_type`, then `order_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.dims import Shape, Size
from tapejit.errors import ArgumentError, ShapeError
from tapejit.ir.node import OPS, ZERO, Node, Op, Rule, register
from tapejit.ops.elementwise import (
    ANY,
    ORDERED,
    Cotangent,
    Cotangents,
    check_kind,
    lift,
)
from tapejit.ops.movement import broadcast_to, repeat_rows
from tapejit.ops.scan import check_axis
from tapejit.ops.shapes import tensor
from tapejit.types import TensorType, Type, is_differentiable, is_float

__all__ = ["argsort", "searchsorted", "sort_by", "unsort_by"]

INT64 = np.dtype("int64")
SIDES = ("left", "right")


def comparable(x: Any) -> Any:
    """`x` in a dtype that NumPy sorts with NaN last: it does not bfloat16."""
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def reversed_key(x: Any) -> Any:
    """Numbers that come in the opposite order; applied twice, `x` again.

    Integers are inverted bit by bit, because the smallest has no negative.

    >>> reversed_key(np.array([-128, 0, 127], np.int8))
    array([ 127,   -1, -128], dtype=int8)
    """
    return -x if is_float(x.dtype) else np.invert(x)


def order_of(keys: Any, axis: int, descending: bool) -> Any:
    """The positions of the keys in sorted order."""
    keys = comparable(keys)
    if descending:
        keys = reversed_key(keys)
    return np.argsort(keys, axis=axis, kind="stable")


# argsort


def argsort_type(x: Type, *, axis: int, descending: bool) -> TensorType:
    x = tensor(x)
    check_kind(x.dtype, ORDERED)
    check_axis(axis, x)
    return TensorType(INT64, x.shape)


def argsort_eval(x: Any, *, axis: int, descending: bool) -> Any:
    return order_of(x, axis, descending).astype(np.int64, copy=False)


def argsort_batch(
    size: Size,
    inputs: Sequence[Node],
    batched: Sequence[bool],
    *,
    axis: int,
    descending: bool,
) -> Node:
    return argsort(*inputs, axis=axis + 1, descending=descending)


argsort = register(
    Op(
        "argsort",
        type_rule=argsort_type,
        eval=argsort_eval,
        batch=argsort_batch,
        differentiable=False,
    )
)


# sort_by and unsort_by


def check_lines(values: Shape, keys: Shape) -> int:
    """How many axes the values have before those of the keys, which must be equal."""
    lead = len(values) - len(keys)
    if lead < 0 or values[lead:] != keys:
        raise ShapeError(
            f"values of shape {values} are not in the order of keys of shape {keys}",
            help="the last axes of the values must be those of the keys",
        )
    return lead


def sort_by_type(
    values: Type, keys: Type, *, axis: int, descending: bool
) -> TensorType:
    """`axis` is one of the keys'."""
    values, keys = tensor(values), tensor(keys)
    check_kind(values.dtype, ANY)
    check_kind(keys.dtype, ORDERED)
    check_axis(axis, keys)
    check_lines(values.shape, keys.shape)
    return values


def sort_by_eval(values: Any, keys: Any, *, axis: int, descending: bool) -> Any:
    """Sorting an array by itself needs no positions, and takes a tenth of the time."""
    lead = check_lines(values.shape, keys.shape)
    if values is keys and values.dtype.name != "bfloat16":
        return sorted_lines(values, axis, descending)
    order = order_of(keys, axis, descending)
    return along_line(values, order, lead, axis)


def sorted_lines(x: Any, axis: int, descending: bool) -> Any:
    """What a stable sort gives, by NumPy's fastest, which is not stable.

    Of equal elements only zeros can be told apart, by their sign. There are as many of
    them in a sorted line as there were before, so they are put back in their order.

    >>> sorted_lines(np.array([0.0, 1.0, -0.0, -1.0]), 0, True)
    array([ 1.,  0., -0., -1.])
    """
    if descending:
        out = reversed_key(np.sort(reversed_key(x), axis=axis))
    else:
        out = np.sort(x, axis=axis)
    if is_float(x.dtype):
        source, target = np.moveaxis(x, axis, -1), np.moveaxis(out, axis, -1)
        is_zero = source == 0
        if np.any(is_zero):
            target[target == 0] = source[is_zero]
    return out


def unsort_by_eval(values: Any, keys: Any, *, axis: int, descending: bool) -> Any:
    lead = check_lines(values.shape, keys.shape)
    order = order_of(keys, axis, descending)
    inverse = np.empty_like(order)
    shape = [-1 if at == axis else 1 for at in range(keys.ndim)]
    ranks = np.arange(keys.shape[axis]).reshape(shape)
    np.put_along_axis(inverse, order, ranks, axis)
    return along_line(values, inverse, lead, axis)


def along_line(values: Any, positions: Any, lead: int, axis: int) -> Any:
    """The values at positions along an axis, the same for all leading axes."""
    aligned = positions.reshape((1,) * lead + positions.shape)
    return np.take_along_axis(values, aligned, axis=lead + axis)


def moved_by_keys(name: str, inverse: str, eval: Rule) -> Op:
    """A record that moves values in the order of keys; `inverse` moves them back."""

    def vjp(g: Node, out: Node, values: Node, keys: Node, **attrs: Any) -> Cotangents:
        if not is_differentiable(values.dtype):
            return None, None
        by_keys = ZERO if is_differentiable(keys.dtype) else None
        return OPS[inverse](g, keys, **attrs), by_keys

    def jvp(
        tangents: Sequence[Node | None],
        out: Node,
        values: Node,
        keys: Node,
        **attrs: Any,
    ) -> Cotangent:
        t, _ = tangents
        if t is None:
            return ZERO if is_differentiable(values.dtype) else None
        return OPS[name](t, keys, **attrs)

    def batch(
        size: Size,
        inputs: Sequence[Node],
        batched: Sequence[bool],
        *,
        axis: int,
        descending: bool,
    ) -> Node:
        values, keys = inputs
        if not batched[1]:
            return OPS[name](values, keys, axis=axis, descending=descending)
        rows = repeat_rows(values, size, batched[0])
        lead = rows.ndim - keys.ndim
        if lead:
            keys = broadcast_to(lift(keys, rows.ndim - 1), shape=rows.shape)
        return OPS[name](rows, keys, axis=lead + axis + 1, descending=descending)

    return register(
        Op(
            name,
            type_rule=sort_by_type,
            eval=eval,
            vjp=vjp,
            jvp=jvp,
            batch=batch,
            conj_linear=True,
        )
    )


sort_by = moved_by_keys("sort_by", "unsort_by", sort_by_eval)
unsort_by = moved_by_keys("unsort_by", "sort_by", unsort_by_eval)


# searchsorted


def check_haystack(line: Shape, values: Shape) -> int:
    """How many leading axes a search has, one search each."""
    lead = len(line) - 1
    if lead < 0 or values[:lead] != line[:-1]:
        raise ShapeError(
            f"cannot search for values of shape {values} in lines of shape {line}",
            help="what is searched in is a vector, sorted; or several along leading "
            "axes that the values have too",
        )
    return lead


def searchsorted_type(line: Type, values: Type, *, side: str) -> TensorType:
    """A position per value; operands may differ in dtype, as what is compared may."""
    line, values = tensor(line), tensor(values)
    check_kind(line.dtype, ORDERED)
    check_kind(values.dtype, ORDERED)
    if side not in SIDES:
        raise ArgumentError(f"side is 'left' or 'right', got {side!r}")
    check_haystack(line.shape, values.shape)
    return TensorType(INT64, values.shape)


def searchsorted_eval(line: Any, values: Any, *, side: Any) -> Any:
    lead = check_haystack(line.shape, values.shape)
    line, values = comparable(line), comparable(values)
    if not lead:
        return np.asarray(np.searchsorted(line, values, side)).astype(np.int64)
    out = np.empty(values.shape, np.int64)
    for at in np.ndindex(line.shape[:-1]):
        out[at] = np.searchsorted(line[at], values[at], side)
    return out


def searchsorted_batch(
    size: Size, inputs: Sequence[Node], batched: Sequence[bool], *, side: str
) -> Node:
    """Values of any rank are searched for in one vector: a batch is one more axis."""
    line, values = inputs
    if not batched[0] and line.ndim == 1:
        return searchsorted(line, values, side=side)
    pairs = zip(inputs, batched, strict=True)
    rows = [repeat_rows(x, size, flag) for x, flag in pairs]
    return searchsorted(*rows, side=side)


searchsorted = register(
    Op(
        "searchsorted",
        type_rule=searchsorted_type,
        eval=searchsorted_eval,
        batch=searchsorted_batch,
        differentiable=False,
    )
)
