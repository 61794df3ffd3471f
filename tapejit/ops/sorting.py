"""Sorting, and searching in what is sorted.

`argsort` gives positions and has no derivative. `sort_by` and `unsort_by` move what
they are given: one puts it in the order that sorts its keys, the other puts it back, so
each is the transpose of the other. A sorted tensor is `sort_by(x, x)`. Their derivative
in the keys is zero and not absent, because the order depends on them, if only through
comparisons.

All of them take a `window` (start, stop) of the sorted line, which is found without
sorting the rest: `sort_by` gives those elements only, `unsort_by` puts them back among
zeros. `top` is a window with its positions.

Two records move by positions that are known: `take_along` and `put_along`. A function
uses them where several of the others have the same keys (`passes.orders`), so that
the order is found once.

Every order is stable: equal keys stay as they were, also when larger ones come first.
NaN comes last either way.

`sort_by` takes values with more leading axes than the keys have. They are all moved
alike, and the keys are sorted once: that is what batching the values needs.

Start reading at `sort_by_type`, then `ordering.order_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Shape, Size
from tapejit.base.errors import ArgumentError, DTypeError, ShapeError
from tapejit.base.types import TensorType, TupleType, Type, is_differentiable
from tapejit.ir.node import FIRST, OPS, ZERO, Node, Op, Rule, always, record
from tapejit.ir.structural import batch_stack, with_rows
from tapejit.ops.elementwise import (
    ANY,
    ORDERED,
    Cotangent,
    Cotangents,
    check_kind,
    lift,
)
from tapejit.ops.indexing import gather, iota
from tapejit.ops.movement import broadcast_to, permute_dims
from tapejit.ops.ordering import (
    Window,
    comparable,
    order_of,
    put_positions,
    sorted_lines,
    take_positions,
)
from tapejit.ops.scan import check_axis
from tapejit.ops.shapes import tensor

INT64 = np.dtype("int64")
SIDES = ("left", "right")
# So many of a line are found in one pass that keeps the best so far in registers.
FEW_FIRST = 64


# argsort


def windowed(shape: Shape, axis: int, window: Window) -> Shape:
    """The shape of a window of sorted lines."""
    if window is None:
        return shape
    start, stop = window
    size = shape[axis]
    if not 0 <= start <= stop or (isinstance(size, int) and stop > size):
        raise ArgumentError(f"{window} is no part of a line of {size} elements")
    return (*shape[:axis], stop - start, *shape[axis + 1 :])


def argsort_type(
    x: Type, *, axis: int, descending: bool, window: Window = None
) -> TensorType:
    x = tensor(x)
    check_kind(x.dtype, ORDERED)
    check_axis(axis, x)
    return TensorType(INT64, windowed(x.shape, axis, window))


def argsort_eval(x: Any, *, axis: int, descending: bool, window: Window = None) -> Any:
    return order_of(x, axis, descending, window)


def wants_first(attrs: Any) -> bool:
    """Whether a window is the first few of a sorted line.

    >>> wants_first({"window": (0, 10)}), wants_first({"window": (1, 2)})
    (True, False)
    """
    window = attrs.get("window")
    return window is not None and window[0] == 0 < window[1] <= FEW_FIRST


argsort = record(
    "argsort",
    type_rule=argsort_type,
    eval=argsort_eval,
    batch=batch_stack("argsort"),
    differentiable=False,
    exact=True,
    sorted_by=0,
    on_arrays=lambda node: wants_first(node.attrs),
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
    values: Type, keys: Type, *, axis: int, descending: bool, window: Window = None
) -> TensorType:
    """`axis` is one of the keys'."""
    values, keys = check_movement(values, keys, axis)
    lead = check_lines(values.shape, keys.shape)
    return values.with_shape(windowed(values.shape, lead + axis, window))


def check_movement(values: Type, keys: Type, axis: int) -> tuple[TensorType, ...]:
    values, keys = tensor(values), tensor(keys)
    check_kind(values.dtype, ANY)
    check_kind(keys.dtype, ORDERED)
    check_axis(axis, keys)
    return values, keys


def unsort_by_type(
    values: Type, keys: Type, *, axis: int, descending: bool, window: Window = None
) -> TensorType:
    """The values are as many as the window has, the result as many as the keys."""
    values, keys = check_movement(values, keys, axis)
    lead = check_lines(values.shape, windowed(keys.shape, axis, window))
    return values.with_shape((*values.shape[:lead], *keys.shape))


def sort_by_eval(
    values: Any, keys: Any, *, axis: int, descending: bool, window: Window = None
) -> Any:
    """Sorting an array by itself needs no positions, and takes a third of the time."""
    lead = check_lines(values.shape, keys.shape)
    if values is keys and values.dtype.name != "bfloat16":
        return sorted_lines(values, axis, descending, window)
    order = order_of(keys, axis, descending, window)
    return take_positions(values, order, lead, axis)


def unsort_by_eval(
    values: Any, keys: Any, *, axis: int, descending: bool, window: Window = None
) -> Any:
    lead = check_lines(values.shape, windowed(keys.shape, axis, window))
    order = order_of(keys, axis, descending, window)
    return put_positions(values, order, lead, axis, keys.shape[axis])


def batch_beside(name: str) -> Rule:
    """The batch rule of what moves values along an axis as a second operand says."""

    def batch(
        size: Size,
        inputs: Sequence[Node],
        batched: Sequence[bool],
        *,
        axis: int,
        **attrs: Any,
    ) -> Node:
        values, beside = inputs
        if not batched[1]:
            return OPS[name](values, beside, axis=axis, **attrs)
        rows, beside = with_rows(size, inputs, batched)
        lead = rows.ndim - beside.ndim
        if lead:
            shape = (*rows.shape[: lead + 1], *beside.shape[1:])
            beside = broadcast_to(lift(beside, rows.ndim - 1), shape=shape)
        return OPS[name](rows, beside, axis=lead + axis + 1, **attrs)

    return batch


def moved_by_keys(name: str, inverse: str, type_rule: Rule, eval: Rule) -> Op:
    """A record that moves values in the order of keys; `inverse` moves them back."""

    def vjp(g: Node, out: Node, values: Node, keys: Node, **attrs: Any) -> Cotangents:
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

    return record(
        name,
        type_rule=type_rule,
        eval=eval,
        vjp=vjp,
        jvp=jvp,
        batch=batch_beside(name),
        conj_linear=True,
        linear=FIRST,
        jumps=True,
        sorted_by=1,
    )


sort_by = moved_by_keys("sort_by", "unsort_by", sort_by_type, sort_by_eval)
unsort_by = moved_by_keys("unsort_by", "sort_by", unsort_by_type, unsort_by_eval)


# top


def top_type(
    x: Type, *, axis: int, descending: bool, window: tuple[int, int]
) -> TupleType:
    """Elements and where they are."""
    positions = argsort_type(x, axis=axis, descending=descending, window=window)
    return TupleType((tensor(x).with_shape(positions.shape), positions))


def top_eval(
    x: Any, *, axis: int, descending: bool, window: tuple[int, int]
) -> tuple[Any, Any]:
    order = order_of(x, axis, descending, window)
    return take_positions(x, order, 0, axis), order


def top_vjp(g: tuple[Node | None, ...], out: Node, x: Node, **attrs: Any) -> Cotangents:
    of_values, _ = g
    if of_values is None or not is_differentiable(x.dtype):
        return (None,)
    return (unsort_by(of_values, x, **attrs),)


def top_jvp(
    tangents: Sequence[Node], out: Node, x: Node, **attrs: Any
) -> tuple[Cotangent, None]:
    return sort_by(tangents[0], x, **attrs), None


top = record(
    "top",
    type_rule=top_type,
    eval=top_eval,
    vjp=top_vjp,
    jvp=top_jvp,
    batch=batch_stack("top"),
    conj_linear=True,
    sorted_by=0,
)


# take_along and put_along


def check_positions(positions: TensorType) -> None:
    if positions.dtype != INT64:
        raise DTypeError(f"positions are int64, got {positions}")


def take_along_type(values: Type, positions: Type, *, axis: int) -> TensorType:
    """`axis` is one of the positions'; the others must be those of the values."""
    values, positions = tensor(values), tensor(positions)
    check_kind(values.dtype, ANY)
    check_positions(positions)
    check_axis(axis, positions)
    lead = values.ndim - positions.ndim
    if lead >= 0:
        size = values.shape[lead + axis]
        keys = (*positions.shape[:axis], size, *positions.shape[axis + 1 :])
        check_lines(values.shape, keys)
    else:
        check_lines(values.shape, positions.shape)
    return values.with_shape((*values.shape[:lead], *positions.shape))


def put_along_type(
    values: Type, positions: Type, *, axis: int, length: Size
) -> TensorType:
    values, positions = tensor(values), tensor(positions)
    check_kind(values.dtype, ANY)
    check_positions(positions)
    check_axis(axis, positions)
    at = check_lines(values.shape, positions.shape) + axis
    return values.with_shape((*values.shape[:at], length, *values.shape[at + 1 :]))


def take_along_eval(values: Any, positions: Any, *, axis: int) -> Any:
    return take_positions(values, positions, values.ndim - positions.ndim, axis)


def put_along_eval(values: Any, positions: Any, *, axis: int, length: int) -> Any:
    lead = values.ndim - positions.ndim
    return put_positions(values, positions, lead, axis, length)


def take_along_vjp(
    g: Node, out: Node, values: Node, positions: Node, *, axis: int
) -> Cotangents:
    """Back to where it came from: positions of a line are distinct."""
    length = values.shape[values.ndim - positions.ndim + axis]
    return put_along(g, positions, axis=axis, length=length), None


def put_along_vjp(
    g: Node, out: Node, values: Node, positions: Node, *, axis: int, length: Size
) -> Cotangents:
    return take_along(g, positions, axis=axis), None


def take_along_gathered(node: Node) -> Node:
    """The same as a gather: along the other axes an element stays where it is."""
    values, positions = node.inputs
    lead, along = values.ndim - positions.ndim, node.attrs["axis"]
    indices = [
        positions if axis == along else lift(iota(size=size), positions.ndim - 1 - axis)
        for axis, size in enumerate(positions.shape)
    ]
    found = gather(values, *indices, axes=tuple(range(lead, values.ndim)))
    axes = (*range(positions.ndim, values.ndim), *range(positions.ndim))
    return permute_dims(found, axes=axes) if lead else found


def moved_by_positions(
    name: str,
    type_rule: Rule,
    eval: Rule,
    vjp: Rule,
    expands: Rule | None = None,
    on_arrays: Callable[[Node], bool] | None = None,
) -> Op:
    """A record that moves values by positions that are distinct in each line."""
    return record(
        name,
        type_rule=type_rule,
        eval=eval,
        vjp=vjp,
        batch=batch_beside(name),
        conj_linear=True,
        linear=FIRST,
        expands=expands,
        on_arrays=on_arrays,
    )


take_along = moved_by_positions(
    "take_along",
    take_along_type,
    take_along_eval,
    take_along_vjp,
    expands=take_along_gathered,
)
put_along = moved_by_positions(
    "put_along", put_along_type, put_along_eval, put_along_vjp, on_arrays=always
)


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
    return searchsorted(*with_rows(size, inputs, batched), side=side)


searchsorted = record(
    "searchsorted",
    type_rule=searchsorted_type,
    eval=searchsorted_eval,
    batch=searchsorted_batch,
    differentiable=False,
    on_arrays=always,
)
