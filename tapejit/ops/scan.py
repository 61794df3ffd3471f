"""Scans: every element of an axis becomes a combination of all up to it.

The records are two scans users know, `cumulative_sum` and `cumulative_prod`; their
relative among the exponentials, `logcumsumexp`; and the one that the derivatives of
the last two are made of, `linear_recurrence`:

    y[i] = a[i] * y[i - 1] + b[i],  with nothing before the first

A product's slope in a factor is the product of the others, summed over all the places
it reaches. Written as a recurrence that takes no division, so it is exact where factors
are zero, and its own derivative is a recurrence again, run from the other end.

A long axis is not scanned element by element, for an error that grows with its length:
it is cut in blocks of sixteen, which are scanned side by side, and their totals are
scanned in the same way. The order is that of the axis' length alone, whatever else is
in the array.

Start reading at `cumulative_sum`, then `linear_recurrence`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.errors import AxisError, ShapeError
from tapejit.base.types import TensorType, Type, is_differentiable, is_half
from tapejit.ir.node import ALL, SECOND, Node, always, record
from tapejit.ir.structural import batch_rows
from tapejit.ops.arithmetic import cast
from tapejit.ops.comparison import equal, where
from tapejit.ops.elementwise import ANY, INEXACT, Cotangents, check_kind
from tapejit.ops.functions import log, sigmoid
from tapejit.ops.movement import flip
from tapejit.ops.reduction import accumulator, shifted
from tapejit.ops.shapes import normalize_axis, same_dtype, tensor

Tangents = Sequence[Node | None]

# Elements per block. Up to 4097 positive terms in blocks of 16 are off by a third of
# the log2(n) eps that sums may cost, in blocks of 64 by three quarters.
BLOCK = 16
SHORT = 64  # up to here one chain is as good
NARROW = 16  # fewer columns than this are scanned as rows


def check_axis(axis: int, x: TensorType) -> None:
    """Refuse an axis that `x` has not, or that is not normal."""
    if normalize_axis(axis, x.ndim) != axis:
        raise AxisError(f"the axis must be non-negative, got {axis}")


# Evaluation in blocks


def in_blocks(x: Any, axis: int) -> Any:
    """A copy with the axis cut in blocks: [before, blocks, BLOCK, after].

    The last block is filled up with zeros, which come after all that counts.
    """
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    length = x.shape[axis]
    count = -(-length // BLOCK)
    out = np.zeros((before, count * BLOCK, after), x.dtype)
    out[:, :length] = x.reshape(before, length, after)
    return out.reshape(before, count, BLOCK, after)


def out_of_blocks(blocks: Any, shape: tuple[int, ...], axis: int) -> Any:
    """The inverse of `in_blocks`."""
    before, count, _, after = blocks.shape
    whole = blocks.reshape(before, count * BLOCK, after)
    return whole[:, : shape[axis]].reshape(shape)


def scan_sum(x: Any, axis: int) -> Any:
    """Running sums of floats.

    >>> scan_sum(np.ones(100), 0)[[0, 15, 16, 99]]
    array([  1.,  16.,  17., 100.])
    """
    if x.shape[axis] <= SHORT:
        return np.add.accumulate(x, axis=axis)
    if 1 < math.prod(x.shape[axis + 1 :]) < NARROW:
        # NumPy's loops would run over the few columns, at two to five times the cost.
        rows = scan_sum(np.moveaxis(x, axis, -1), x.ndim - 1)
        return np.ascontiguousarray(np.moveaxis(rows, -1, axis))
    y = in_blocks(x, axis)
    for i in range(1, BLOCK):
        y[:, :, i] += y[:, :, i - 1]
    totals = scan_sum(y[:, :, -1], 1)
    y[:, 1:] += totals[:, :-1, None]
    return out_of_blocks(y, x.shape, axis)


def scan_linear(a: Any, b: Any, axis: int) -> Any:
    """y[i] = a[i] * y[i - 1] + b[i].

    >>> scan_linear(np.full(100, 0.5), np.ones(100), 0)[[0, 1, 2, 99]]
    array([1.  , 1.5 , 1.75, 2.  ])
    """
    if b.shape[axis] <= BLOCK:
        y = np.array(b)
        rows, factors = np.moveaxis(y, axis, 0), np.moveaxis(a, axis, 0)
        for i in range(1, len(rows)):
            rows[i] += factors[i] * rows[i - 1]
        return y
    y, factor = in_blocks(b, axis), in_blocks(a, axis)
    for i in range(1, BLOCK):
        y[:, :, i] += factor[:, :, i] * y[:, :, i - 1]
        factor[:, :, i] *= factor[:, :, i - 1]
    totals = scan_linear(factor[:, :, -1], y[:, :, -1], 1)
    y[:, 1:] += factor[:, 1:] * totals[:, :-1, None]
    return out_of_blocks(y, b.shape, axis)


# cumulative_sum


def cumulative_type(x: Type, *, axis: int) -> TensorType:
    """Small integers and bools widen as in sums."""
    x = tensor(x)
    check_kind(x.dtype, ANY)
    check_axis(axis, x)
    return TensorType(accumulator(x.dtype), x.shape)


def cumulative_sum_eval(x: Any, *, axis: int) -> Any:
    if not is_differentiable(x.dtype):
        return np.add.accumulate(x, axis=axis, dtype=accumulator(x.dtype))
    wide = x.astype(np.float32) if is_half(x.dtype) else x
    return scan_sum(wide, axis).astype(x.dtype, copy=False)


def cumulative_sum_vjp(g: Node, out: Node, x: Node, *, axis: int) -> Cotangents:
    """An element receives the cotangents of all sums from its own on."""
    return (flip(cumulative_sum(flip(g, axes=(axis,)), axis=axis), axes=(axis,)),)


cumulative_sum = record(
    "cumulative_sum",
    type_rule=cumulative_type,
    eval=cumulative_sum_eval,
    vjp=cumulative_sum_vjp,
    batch=batch_rows("cumulative_sum"),
    conj_linear=True,
    linear=ALL,
    on_arrays=always,
    precision="single",
)


# linear_recurrence


def linear_recurrence_type(a: Type, b: Type, *, axis: int) -> TensorType:
    a, b = tensor(a), tensor(b)
    check_kind(same_dtype(a, b), INEXACT)
    if a.shape != b.shape:
        raise ShapeError(f"factors {a} and terms {b} differ in shape")
    check_axis(axis, b)
    return b


def linear_recurrence_eval(a: Any, b: Any, *, axis: int) -> Any:
    if a.shape != b.shape:  # NumPy would broadcast
        linear_recurrence_type(TensorType.of(a), TensorType.of(b), axis=axis)
    if is_half(b.dtype):
        wide = scan_linear(a.astype(np.float32), b.astype(np.float32), axis)
        return wide.astype(b.dtype)
    return scan_linear(a, b, axis)


def recur_back(a: Node, g: Node, axis: int) -> Node:
    """y[i] = g[i] + a[i + 1] * y[i + 1]: the transpose of a recurrence in its terms."""
    axes = (axis,)
    factors = shifted(flip(a, axes=axes), axis, 1)
    y = linear_recurrence(factors, flip(g, axes=axes), axis=axis)
    return flip(y, axes=axes)


def linear_recurrence_vjp(
    g: Node, out: Node, a: Node, b: Node, *, axis: int
) -> Cotangents:
    """A term reaches all results from its own on, a factor what came before it."""
    reached = recur_back(a, g, axis)
    return reached * shifted(out, axis, 1, 0), reached


def linear_recurrence_jvp(
    tangents: Tangents, out: Node, a: Node, b: Node, *, axis: int
) -> Node:
    """The same recurrence, fed with the tangents."""
    t_a, t_b = tangents
    if t_a is not None:
        by_factors = t_a * shifted(out, axis, 1, 0)
        t_b = by_factors if t_b is None else by_factors + t_b
    return linear_recurrence(a, t_b, axis=axis)


linear_recurrence = record(
    "linear_recurrence",
    type_rule=linear_recurrence_type,
    eval=linear_recurrence_eval,
    vjp=linear_recurrence_vjp,
    jvp=linear_recurrence_jvp,
    batch=batch_rows("linear_recurrence"),
    linear=SECOND,
    on_arrays=always,
)


# cumulative_prod


def cumulative_prod_eval(x: Any, *, axis: int) -> Any:
    """In order: the error of a product is that of its factors in any order."""
    if is_half(x.dtype):
        wide = np.multiply.accumulate(x.astype(np.float32), axis=axis)
        return wide.astype(x.dtype)
    return np.multiply.accumulate(x, axis=axis, dtype=accumulator(x.dtype))


def cumulative_prod_vjp(g: Node, out: Node, x: Node, *, axis: int) -> Cotangents:
    """What came before a factor, times all that is made of it after; no division."""
    return (shifted(out, axis, 1) * recur_back(x, g, axis),)


def cumulative_prod_jvp(
    tangents: Sequence[Node], out: Node, x: Node, *, axis: int
) -> Node:
    """(x[i] out[i-1])' = x[i] out'[i-1] + x'[i] out[i-1], a recurrence."""
    return linear_recurrence(x, tangents[0] * shifted(out, axis, 1), axis=axis)


cumulative_prod = record(
    "cumulative_prod",
    type_rule=cumulative_type,
    eval=cumulative_prod_eval,
    vjp=cumulative_prod_vjp,
    jvp=cumulative_prod_jvp,
    batch=batch_rows("cumulative_prod"),
    on_arrays=always,
    precision="single",
)


# logcumsumexp


def logcumsumexp_type(x: Type, *, axis: int) -> TensorType:
    x = tensor(x)
    check_kind(x.dtype, ("float",))
    check_axis(axis, x)
    return x


def logcumsumexp_eval(x: Any, *, axis: int) -> Any:
    """Sums of exponentials relative to the largest so far, rounded from double.

    When a larger one comes the sum is scaled down to it, so nothing overflows. An
    infinite largest is not subtracted, and counts as no change while it lasts.
    """
    wide = x.astype(np.float64)
    largest = np.maximum.accumulate(wide, axis=axis)
    line = np.moveaxis(largest, axis, 0)
    scale = np.ones_like(wide)
    fallen = np.where(line[1:] == line[:-1], 0.0, line[:-1] - line[1:])
    np.moveaxis(scale, axis, 0)[1:] = np.exp(fallen)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    total = scan_linear(scale, np.exp(wide - shift), axis)
    return (np.log(total) + shift).astype(x.dtype)


def advantage_of_before(out: Node, x: Node, axis: int) -> Node:
    """How much the sum before an element outweighs it, in the exponent.

    The sigmoid of it is the slope of a result in the one before, the sigmoid of its
    negative the slope in the element itself. Infinities are kept from meeting: what
    is -inf adds nothing, and elements of inf share the weight equally, as in
    `logsumexp`.
    """
    is_infinite = equal(x, math.inf)
    count = cumulative_sum(cast(is_infinite, dtype=x.dtype), axis=axis)
    difference = shifted(out, axis, 1, -math.inf) - x
    finite = where(equal(x, -math.inf), math.inf, difference)
    return where(is_infinite, log(shifted(count, axis, 1, 0)), finite)


def logcumsumexp_vjp(g: Node, out: Node, x: Node, *, axis: int) -> Cotangents:
    """What a result receives from those after it, times the element's own slope."""
    ahead = advantage_of_before(out, x, axis)
    return (sigmoid(-ahead) * recur_back(sigmoid(ahead), g, axis),)


def logcumsumexp_jvp(
    tangents: Sequence[Node], out: Node, x: Node, *, axis: int
) -> Node:
    """Each result is the mean of the one before and the element, by their weights."""
    ahead = advantage_of_before(out, x, axis)
    return linear_recurrence(sigmoid(ahead), tangents[0] * sigmoid(-ahead), axis=axis)


logcumsumexp = record(
    "logcumsumexp",
    type_rule=logcumsumexp_type,
    eval=logcumsumexp_eval,
    vjp=logcumsumexp_vjp,
    jvp=logcumsumexp_jvp,
    batch=batch_rows("logcumsumexp"),
    on_arrays=always,
    precision="single",
)
