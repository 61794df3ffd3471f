"""Reductions: many elements of an axis become one.

`axes` is a sorted tuple and may be empty, which is the identity; `keepdims` leaves
reduced axes with size one. A derivative rule brings the cotangent back to the
`keepdims` form with `kept` and lets broadcasting repeat it.

A long axis is not reduced row by row, as NumPy does for every axis but the
innermost: a column of 2^25 float32 ones would add up to 2^24. `fold_axis` cuts it
in sixteen long pieces and combines them, piece on piece. That makes a sum a tree,
whose error grows like the logarithm of the length. A narrow array gets faster by it,
because the pieces are contiguous ([1000000,4] over axis 0: 1 to 2 ms, 34 to 39 in
NumPy); a wide one may take up to twice as long. The error of a product is that of all
its factors in any order, so products are folded for the narrow arrays' sake alone.

Start reading at `sum`, then `max`; `product_of_others` is the interesting one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Dim, Size, dim_min
from tapejit.base.errors import AxisError, ShapeError
from tapejit.base.types import DType, TensorType, is_differentiable, is_integer
from tapejit.ir.node import ALL, OPS, Monoid, Node, Op, Rule, always, literal, record
from tapejit.ir.structural import batch_stack
from tapejit.ops import arithmetic
from tapejit.ops.comparison import bitwise_and, bitwise_or, equal, where
from tapejit.ops.elementwise import ANY, REAL, Cotangents, check_kind
from tapejit.ops.functions import exp, log
from tapejit.ops.shapes import (
    Axes,
    drop_axes,
    keep_axes,
    normalize_axes,
    normalize_axis,
    tensor,
)

Tangents = Sequence[Node]

ORDERED = ("bool", *REAL)
# Pieces per step. Columns of 1000 equal float32 terms are off by up to 5.6 eps with 16,
# 10 with 32, 24 with 64 and 125 row by row; the bound to keep is log2(1000) = 10.
FOLD = 16
# From so many terms on, what sums of floats may cost covers their exponentials too.
MANY = 16
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
LOG2_LONGEST = 40  # no axis has 2^40 elements: a terabyte of the smallest dtype


def reduced_type(x: TensorType, dtype: DType, axes: Axes, keepdims: bool) -> TensorType:
    """`x` reduced over `axes`, which must be normal: sorted, distinct, non-negative."""
    if axes != normalize_axes(axes, x.ndim):
        raise AxisError(f"axes must be sorted and non-negative, got {axes}")
    shape = keep_axes(x.shape, axes) if keepdims else drop_axes(x.shape, axes)
    return TensorType(dtype, shape)


def kept(reduced: Node, x: Node, axes: Axes, keepdims: bool) -> Node:
    """A reduction of `x` with its axes back at size one, ready to broadcast."""
    if keepdims or not axes:
        return reduced
    return OPS["reshape"](reduced, shape=keep_axes(x.shape, axes))


def accumulator(dtype: DType) -> DType:
    """The dtype of a sum or product: small integers and bools become 32 bits wide.

    The array API standard asks for the default integer, which is int32 in tapejit, or
    the operand's own dtype if that is wider. Overflow wraps.

    >>> accumulator(np.dtype("bool")), accumulator(np.dtype("uint8"))
    (dtype('int32'), dtype('uint32'))
    >>> accumulator(np.dtype("int64"))
    dtype('int64')
    """
    if dtype.kind == "b" or is_integer(dtype):
        if dtype.itemsize == 8:
            return dtype
        return np.dtype("uint32" if dtype.kind == "u" else "int32")
    return dtype


def fold_axis(ufunc: np.ufunc, x: Any, axis: int) -> Any:
    """`x` with an axis shortened to at most `FOLD` elements, combined as a tree.

    >>> fold_axis(np.add, np.ones(1000), 0).sum()
    np.float64(1000.0)
    """
    front = (slice(None),) * axis
    while (length := x.shape[axis]) > FOLD:
        width = length // FOLD
        even = width * FOLD
        pieces = (*x.shape[:axis], FOLD, width, *x.shape[axis + 1 :])
        folded = ufunc.reduce(x[(*front, slice(even))].reshape(pieces), axis=axis)
        if even < length:
            rest = x[(*front, slice(even, None))]
            folded = np.concatenate((folded, rest), axis=axis)
        x = folded
    return x


def tree_reduce(ufunc: np.ufunc, x: Any, axes: Axes, keepdims: bool) -> Any:
    """Reduce floats axis by axis, each as a tree.

    NumPy's own sum is a tree where the axis is contiguous, so `add` folds only the
    other axes. The longest axis goes first: that leaves the least to do.
    """
    is_sum = ufunc is np.add
    for axis in sorted(axes, key=lambda at: -x.shape[at]):
        if not (is_sum and x.strides[axis] == x.itemsize):
            x = fold_axis(ufunc, x, axis)
        x = ufunc.reduce(x, axis=axis, keepdims=True)
    return x if keepdims else x.reshape(drop_axes(x.shape, axes))


def accumulate(ufunc: np.ufunc, x: Any, axes: Axes, keepdims: bool) -> Any:
    """A sum or product in the accumulator's dtype; halves go through float32."""
    dtype = x.dtype
    if not axes:
        return x.astype(accumulator(dtype), copy=False)
    if not is_differentiable(dtype):  # integers are exact in any order
        return ufunc.reduce(x, axis=axes, dtype=accumulator(dtype), keepdims=keepdims)
    if dtype.itemsize == 2:
        wide = accumulate(ufunc, x.astype(np.float32), axes, keepdims)
        return wide.astype(dtype)
    count = math.prod([x.shape[axis] for axis in axes])
    is_trailing = len(axes) == x.ndim - axes[0] and x.flags.c_contiguous
    if count <= FOLD or (ufunc is np.add and is_trailing):
        return ufunc.reduce(x, axis=axes, keepdims=keepdims)
    return tree_reduce(ufunc, x, axes, keepdims)


def sum_type(x: Any, *, axes: Axes, keepdims: bool) -> TensorType:
    """Bools and small integers sum to 32 bits, wider ones to their own dtype."""
    x = tensor(x)
    check_kind(x.dtype, ANY)
    return reduced_type(x, accumulator(x.dtype), axes, keepdims)


def sum_eval(x: Any, *, axes: Axes, keepdims: bool) -> Any:
    return accumulate(np.add, x, axes, keepdims)


def sum_vjp(g: Node, out: Node, x: Node, *, axes: Axes, keepdims: bool) -> Cotangents:
    """Every element of a summed slice receives that slice's cotangent."""
    g = kept(g, x, axes, keepdims)
    return (g if g.shape == x.shape else OPS["broadcast_to"](g, shape=x.shape),)


sum = record(
    "sum",
    type_rule=sum_type,
    eval=sum_eval,
    vjp=sum_vjp,
    batch=batch_stack("sum"),
    conj_linear=True,
    linear=ALL,
    reduces=Monoid(arithmetic.add, lambda dtype: 0),
    precision="single",
)


def prod_eval(x: Any, *, axes: Axes, keepdims: bool) -> Any:
    return accumulate(np.multiply, x, axes, keepdims)


def prod_vjp(g: Node, out: Node, x: Node, *, axes: Axes, keepdims: bool) -> Cotangents:
    """A factor's slope is the product of the others, whatever the factor is."""
    if not axes:
        return (g,)
    return (kept(g, x, axes, keepdims) * product_of_others(x, axes),)


def prod_jvp(
    tangents: Tangents, out: Node, x: Node, *, axes: Axes, keepdims: bool
) -> Node:
    """Each factor's tangent times the others, summed."""
    (t,) = tangents
    if not axes:
        return t
    return sum(t * product_of_others(x, axes), axes=axes, keepdims=keepdims)


def product_of_others(x: Node, axes: Axes) -> Node:
    """For each element the product of all others in its slice.

    It is what comes before times what comes after. Dividing the whole product by
    the element would be one operation, and wrong wherever an element is zero.
    """
    if len(axes) > 1:
        line, order = as_one_axis(x, axes)
        others = OPS["reshape"](
            product_of_others(line, (line.ndim - 1,)),
            shape=tuple(x.shape[axis] for axis in order),
        )
        return permuted(others, tuple(order.index(at) for at in range(x.ndim)))
    (axis,) = axes
    after = OPS["flip"](product_before(OPS["flip"](x, axes=axes), axis), axes=axes)
    return product_before(x, axis) * after


def as_one_axis(x: Node, axes: Axes) -> tuple[Node, Axes]:
    """`x` with `axes` last and merged, and the order its axes were put in."""
    others = tuple(at for at in range(x.ndim) if at not in axes)
    order = (*others, *axes)
    count: Size = 1
    for axis in axes:
        count = count * x.shape[axis]
    shape = (*(x.shape[at] for at in others), count)
    return OPS["reshape"](permuted(x, order), shape=shape), order


def permuted(x: Node, order: Axes) -> Node:
    """The axes of `x` in this order, left alone where they are."""
    in_order = order == tuple(range(x.ndim))
    return x if in_order else OPS["permute_dims"](x, axes=order)


def product_before(x: Node, axis: int) -> Node:
    """For each element the product of all before it, 1 for the first.

    Each step doubles the number of factors: a product of the last two, times the
    same two places back, is one of the last four.
    """
    product = shifted(x, axis, 1)
    for by in doublings(x.shape[axis]):
        product = product * shifted(product, axis, by)
    return product


def doublings(length: Size) -> Iterator[Size]:
    """1, 2, 4, ... below `length`; past a symbolic length, shifts of all of it."""
    if isinstance(length, Dim):
        for exponent in range(LOG2_LONGEST):
            yield dim_min(2**exponent, length)
        return
    by = 1
    while by < length:
        yield by
        by *= 2


def shifted(x: Node, axis: int, by: Size, coming_in: float = 1) -> Node:
    """`x` moved up an axis by `by` places, with a number coming in."""
    widths = tuple((by, 0) if at == axis else (0, 0) for at in range(x.ndim))
    padded = OPS["pad"](x, literal(coming_in, x.dtype), widths=widths)
    ones = (1,) * x.ndim
    return OPS["slice"](padded, starts=(0,) * x.ndim, stops=x.shape, steps=ones)


prod = record(
    "prod",
    type_rule=sum_type,
    eval=prod_eval,
    vjp=prod_vjp,
    jvp=prod_jvp,
    batch=batch_stack("prod"),
    reduces=Monoid(arithmetic.mul, lambda dtype: 1),
    precision="single",
)


def check_not_empty(x: TensorType, axes: Axes) -> None:
    """Refuse to choose an element where there is none."""
    for axis in axes:
        if x.shape[axis] == 0:
            raise ShapeError(
                f"axis {axis} of {x} is empty: a zero-size reduction has no identity",
                help="reduce what has elements, or handle the empty case before",
            )


def extremum_type(x: Any, *, axes: Axes, keepdims: bool) -> TensorType:
    x = tensor(x)
    check_kind(x.dtype, ORDERED)
    result = reduced_type(x, x.dtype, axes, keepdims)
    check_not_empty(x, axes)
    return result


def has_no_zero(x: Any) -> bool:
    """Whether nothing is 0; `x.all()` takes 3 µs more."""
    return bool(np.count_nonzero(x) == x.size if x.ndim else x)


def signed_zeros(name: str, out: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    """`out`, a maximum or minimum of `x`, with the sign of its zeros made certain.

    NumPy takes 0 and -0 as equal, so its result depends on the order of elements in
    vectors. Where a maximum is 0 no element is above, so those without a sign are 0.
    """
    is_negative = name == "max"
    doubtful = (out == 0) & (np.signbit(out) == is_negative)
    if not doubtful.any():
        return out
    others: Any = np.signbit(x) != is_negative
    found = others.any(axis=axes, keepdims=keepdims)
    return np.where(doubtful & found, -out, out)[()]


def extremum(name: str, ufunc: np.ufunc, combine: Op) -> Op:
    """The largest or smallest element; NaN if there is one. -0 is below 0."""
    is_max = combine is arithmetic.maximum

    def identity(dtype: DType) -> Any:
        """The lowest number of a dtype for a maximum, the highest for a minimum."""
        if dtype.kind == "b":
            return not is_max
        if dtype.kind in "iu":
            return np.iinfo(dtype).min if is_max else np.iinfo(dtype).max
        return -math.inf if is_max else math.inf

    def extremum_eval(x: Any, *, axes: Axes, keepdims: bool) -> Any:
        out: Any = ufunc.reduce(x, axis=axes, keepdims=keepdims)
        if not axes or not is_differentiable(x.dtype) or has_no_zero(out):
            return out
        return signed_zeros(name, out, x, axes, keepdims)

    return record(
        name,
        type_rule=extremum_type,
        eval=extremum_eval,
        vjp=extremum_vjp,
        jvp=extremum_jvp,
        batch=batch_stack(name),
        exact=True,
        reduces=Monoid(combine, identity),
    )


def winners(out: Node, x: Node, axes: Axes, keepdims: bool) -> tuple[Node, Node]:
    """1 where an element is the extremum, and how many there are per slice.

    The mask is an operation with derivative zero, so what is gated by it stays
    connected to `x`.
    """
    mask = arithmetic.eq_mask(x, kept(out, x, axes, keepdims))
    return mask, sum(mask, axes=axes, keepdims=True)


def extremum_vjp(
    g: Node, out: Node, x: Node, *, axes: Axes, keepdims: bool
) -> Cotangents:
    """The winners share the cotangent equally; nobody equals NaN: 0 / 0 says so."""
    mask, count = winners(out, x, axes, keepdims)
    return (arithmetic.gate(kept(g, x, axes, keepdims), mask) / count,)


def extremum_jvp(
    tangents: Tangents, out: Node, x: Node, *, axes: Axes, keepdims: bool
) -> Node:
    """The mean of the winners' tangents."""
    mask, count = winners(out, x, axes, keepdims)
    mean = sum(arithmetic.gate(tangents[0], mask), axes=axes, keepdims=True) / count
    return mean if keepdims else OPS["reshape"](mean, shape=out.shape)


max = extremum("max", np.maximum, arithmetic.maximum)
min = extremum("min", np.minimum, arithmetic.minimum)


def truth_type(x: Any, *, axes: Axes, keepdims: bool) -> TensorType:
    """Any dtype: what is not zero is true, NaN too."""
    x = tensor(x)
    check_kind(x.dtype, ANY)
    return reduced_type(x, np.dtype(bool), axes, keepdims)


def truth(name: str, ufunc: np.ufunc, reduces: Monoid) -> Op:
    """Whether all, or any, elements are true; not differentiable."""

    def truth_eval(x: Any, *, axes: Axes, keepdims: bool) -> Any:
        flags = x if x.dtype.kind == "b" else x != 0
        return ufunc.reduce(flags, axis=axes, keepdims=keepdims)

    return record(
        name,
        type_rule=truth_type,
        eval=truth_eval,
        batch=batch_stack(name),
        differentiable=False,
        exact=True,
        reduces=reduces,
    )


all = truth("all", np.logical_and, Monoid(bitwise_and, lambda dtype: 1))
any = truth("any", np.logical_or, Monoid(bitwise_or, lambda dtype: 0))


def position_type(x: Any, *, axis: int, keepdims: bool) -> TensorType:
    x = tensor(x)
    check_kind(x.dtype, ORDERED)
    if normalize_axis(axis, x.ndim) != axis:
        raise AxisError(f"the axis must be non-negative, got {axis}")
    result = reduced_type(x, np.dtype(np.int64), (axis,), keepdims)
    check_not_empty(x, (axis,))
    return result


def position(name: str, find: Rule) -> Op:
    """Where the first extremum of an axis is; NaN counts as one."""

    def position_eval(x: Any, *, axis: int, keepdims: bool) -> Any:
        return find(x, axis=axis, keepdims=keepdims).astype(np.int64, copy=False)

    return record(
        name,
        type_rule=position_type,
        eval=position_eval,
        batch=batch_stack(name),
        differentiable=False,
        exact=True,
        on_arrays=always,
    )


argmax = position("argmax", np.argmax)
argmin = position("argmin", np.argmin)


def logsumexp_type(x: Any, *, axes: Axes, keepdims: bool) -> TensorType:
    x = tensor(x)
    check_kind(x.dtype, ("float",))
    return reduced_type(x, x.dtype, axes, keepdims)


def logsumexp_eval(x: Any, *, axes: Axes, keepdims: bool) -> Any:
    """log(sum(exp(x))) from the differences to the largest; rounded from double.

    An infinite largest is not subtracted: exp and log then give -inf and inf
    themselves. Nothing at all sums to 0, of which the log is -inf.
    """
    wide = np.array(x, np.float64)  # a copy, worked on in place
    largest = np.maximum.reduce(wide, axis=axes, keepdims=True, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    np.subtract(wide, largest, out=wide)
    np.exp(wide, out=wide)
    out = np.log(accumulate(np.add, wide, axes, True)) + largest
    return (out if keepdims else out.reshape(drop_axes(x.shape, axes))).astype(x.dtype)


def powers_below_largest(x: Node, axes: Axes) -> Node:
    """e^x of every element over that of the largest one in its slice.

    The largest one only scales the slice, so it counts as a constant. inf - inf would
    be NaN, so infinities are kept from meeting: elements of inf are 1 and all others in
    their slice 0, and a slice of nothing but -inf is all 0.
    """
    if 0 in x.shape:  # there is no largest of nothing
        return exp(x)
    largest = arithmetic.stop_gradient(max(x, axes=axes, keepdims=True))
    shift = where(equal(largest, -math.inf), 0, largest)
    return exp(where(equal(x, math.inf), 0, x - shift))


def softmax_weights(x: Node, axes: Axes) -> Node:
    """The share of each element in its sum of exponentials, which is its slope."""
    powers = powers_below_largest(x, axes)
    total = sum(powers, axes=axes, keepdims=True)
    return powers / (total + arithmetic.eq_mask(total, 0))


def logsumexp_vjp(
    g: Node, out: Node, x: Node, *, axes: Axes, keepdims: bool
) -> Cotangents:
    """The cotangent is shared out by the softmax weights."""
    weights = softmax_weights(x, axes)
    return (kept(g, x, axes, keepdims) * weights,)


def logsumexp_jvp(
    tangents: Tangents, out: Node, x: Node, *, axes: Axes, keepdims: bool
) -> Node:
    """The mean of the tangents under the softmax weights."""
    weights = softmax_weights(x, axes)
    return sum(tangents[0] * weights, axes=axes, keepdims=keepdims)


def as_dtype(x: Node, dtype: DType) -> Node:
    return x if x.dtype == dtype else arithmetic.cast(x, dtype=dtype)


def expand_logsumexp(node: Node) -> Node:
    """log(sum(exp(x - largest))) + largest, from the powers that its slope has too."""
    (x,) = node.inputs
    axes = node.attrs["axes"]
    count = math.prod(int(x.shape[axis]) for axis in axes)
    is_single = x.dtype != F64 and (x.dtype != F32 or count >= MANY)
    wide = as_dtype(x, F32 if is_single else F64)
    largest = max(wide, axes=axes, keepdims=True)
    shift = where(equal(largest, -math.inf), 0, largest)
    powers = powers_below_largest(wide, axes)
    total = sum(powers, axes=axes, keepdims=True)
    out = as_dtype(log(total) + shift, node.dtype)
    return out if node.attrs["keepdims"] else OPS["reshape"](out, shape=node.shape)


logsumexp = record(
    "logsumexp",
    type_rule=logsumexp_type,
    eval=logsumexp_eval,
    vjp=logsumexp_vjp,
    jvp=logsumexp_jvp,
    batch=batch_stack("logsumexp"),
    expands=expand_logsumexp,
    precision="single",
)
