"""Arithmetic, kinks, roundings and casts, as a table.

A kink's derivative is `gate(t, ge_mask(x, y))`: the mask is an operation of its own
with derivative zero, so the second derivative of `maximum` is 0 and not None. Masks
select instead of multiplying: an infinite cotangent times 0 would be NaN.

Python's operators are the NumPy meaning of the arithmetic ones: on a NumPy scalar
they cost 0.06 µs where the ufunc costs 0.8, and on arrays they are the ufunc.

Start reading at `add`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.types import (
    DType,
    TensorType,
    is_complex,
    is_differentiable,
    is_float,
)
from tapejit.ir.node import (
    ALL,
    CHEAP,
    FIRST,
    OPS,
    ZERO,
    Movement,
    Node,
    Op,
    Rule,
    Zero,
    record,
)
from tapejit.ir.structural import batch_stack
from tapejit.ops.elementwise import ANY, INEXACT, ORDERED, REAL, Cotangents, elementwise
from tapejit.ops.shapes import tensor


def flat(t: Node, *_: Node) -> Zero:
    """The derivative of what is constant piece by piece."""
    return ZERO


add = elementwise(
    "add",
    eval=operator.add,
    deriv=(lambda t, x, y, out: t, lambda t, x, y, out: t),
    scalar=lambda m, x, y: x + y,
    kinds=ANY,
    conj_linear=True,
    cost=CHEAP,
    linear=ALL,
    exact=True,
)
sub = elementwise(
    "sub",
    eval=operator.sub,
    deriv=(lambda t, x, y, out: t, lambda t, x, y, out: -t),
    scalar=lambda m, x, y: x - y,
    conj_linear=True,
    cost=CHEAP,
    linear=ALL,
    exact=True,
)
mul = elementwise(
    "mul",
    eval=operator.mul,
    deriv=(lambda t, x, y, out: t * y, lambda t, x, y, out: t * x),
    scalar=lambda m, x, y: x * y,
    kinds=ANY,
    cost=CHEAP,
    bilinear=True,
    exact="real",
)
div = elementwise(
    "div",
    eval=operator.truediv,
    deriv=(lambda t, x, y, out: t / y, lambda t, x, y, out: -t * out / y),
    scalar=lambda m, x, y: x / y,
    kinds=INEXACT,
    linear=FIRST,
    exact="real",
    cost=5.0,
)
negative = elementwise(
    "negative",
    eval=operator.neg,
    deriv=(lambda t, x, out: -t,),
    scalar=lambda m, x: -x,
    conj_linear=True,
    cost=CHEAP,
    linear=ALL,
    exact=True,
)
square = elementwise(
    "square",
    eval=lambda x: x * x,
    deriv=(lambda t, x, out: t * 2 * x,),
    scalar=lambda m, x: x * x,
    cost=CHEAP,
    exact="real",
)


def floor_divide_eval(x: Any, y: Any) -> Any:
    """The quotient rounded down; of infinities, that of the quotient itself.

    So inf // 2 is inf and 1 // -inf is -0, as the array API standard has it and
    TensorFlow does. NumPy gives NaN and -1.
    """
    out = np.floor_divide(x, y)
    if not is_float(out.dtype):
        return out
    has_infinity = np.isinf(x) | np.isinf(y)
    if not has_infinity.any():
        return out
    return np.where(has_infinity, np.floor(x / y), out)[()]


floor_divide = elementwise(
    "floor_divide",
    eval=floor_divide_eval,
    deriv=(flat, flat),
    scalar=lambda m, x, y: m.floor_divide(x, y),
    kinds=REAL,
    exact=True,
    cost=12.0,
)
remainder = elementwise(
    "remainder",
    eval=np.remainder,
    deriv=(lambda t, x, y, out: t, lambda t, x, y, out: -t * floor_divide(x, y)),
    scalar=lambda m, x, y: m.remainder(x, y),
    kinds=REAL,
    exact=True,
    cost=12.0,
)


def mask_eval(compare: np.ufunc) -> Any:
    """A comparison as 1 and 0 of the operands' own dtype."""

    def evaluate(x: Any, y: Any) -> Any:
        return compare(x, y).astype(x.dtype)

    return evaluate


ge_mask = elementwise(
    "ge_mask",
    eval=mask_eval(np.greater_equal),
    deriv=(flat, flat),
    scalar=lambda m, x, y: m.select(x >= y, 1, 0),
    kinds=REAL,
    cost=CHEAP,
    exact=True,
    jumps=True,
)
gt_mask = elementwise(
    "gt_mask",
    eval=mask_eval(np.greater),
    deriv=(flat, flat),
    scalar=lambda m, x, y: m.select(x > y, 1, 0),
    kinds=REAL,
    cost=CHEAP,
    exact=True,
    jumps=True,
)
eq_mask = elementwise(
    "eq_mask",
    eval=mask_eval(np.equal),
    deriv=(flat, flat),
    scalar=lambda m, x, y: m.select(m.eq(x, y), 1, 0),
    cost=CHEAP,
    exact=True,
    jumps=True,
)


def gate_eval(t: Any, mask: Any) -> Any:
    return np.where(mask != 0, t, t.dtype.type(0))


gate: Op = elementwise(
    "gate",
    eval=gate_eval,
    deriv=(lambda t, x, mask, out: gate(t, mask), flat),
    scalar=lambda m, t, mask: m.select(m.ne(mask, 0), t, 0),
    conj_linear=True,
    cost=CHEAP,
    linear=FIRST,
    exact=True,
)
maximum = elementwise(
    "maximum",
    eval=np.maximum,
    deriv=(
        lambda t, x, y, out: gate(t, ge_mask(x, y)),
        lambda t, x, y, out: gate(t, gt_mask(y, x)),
    ),
    scalar=lambda m, x, y: m.maximum(x, y),
    kinds=ORDERED,
    cost=CHEAP,
    exact=True,
)
minimum = elementwise(
    "minimum",
    eval=np.minimum,
    deriv=(
        lambda t, x, y, out: gate(t, ge_mask(y, x)),
        lambda t, x, y, out: gate(t, gt_mask(x, y)),
    ),
    scalar=lambda m, x, y: m.minimum(x, y),
    kinds=ORDERED,
    cost=CHEAP,
    exact=True,
)


def rounding(name: str, eval: Rule, scalar: Rule) -> Op:
    """A rounding: its derivative is zero, which is not the same as none."""
    return elementwise(
        name,
        eval=eval,
        deriv=(flat,),
        scalar=scalar,
        kinds=("float",),
        exact=True,
        cost=CHEAP,
    )


floor = rounding("floor", np.floor, lambda m, x: m.floor(x))
ceil = rounding("ceil", np.ceil, lambda m, x: m.ceil(x))
trunc = rounding("trunc", np.trunc, lambda m, x: m.trunc(x))
round = elementwise(
    "round",
    eval=np.rint,
    deriv=(flat,),
    scalar=lambda m, x: m.round_half_even(x),
    kinds=INEXACT,
    cost=CHEAP,
    exact=True,
)


def cast_type(x: Any, *, dtype: DType) -> TensorType:
    return TensorType(dtype, tensor(x).shape)


def cast_eval(x: Any, *, dtype: DType) -> Any:
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real  # what NumPy would do with a warning
    if dtype.kind == "u" and is_float(x.dtype):
        return to_unsigned(x, dtype)
    if dtype.name == "bfloat16" and x.dtype.itemsize > 4:
        x = narrowed_to_odd(x)
    return x.astype(dtype)


def to_unsigned(x: Any, dtype: DType) -> Any:
    """Floats as unsigned integers: the last bits of an int64, so -1.0 is the largest.

    What no int64 is near to, and NaN, counts as the lowest one. NumPy's own result
    depends on how many elements there are and how they lie. A uint64 holds more, up
    to 2^64.

    >>> to_unsigned(np.array([-1.0, 257.0]), np.dtype("uint8"))
    array([255,   1], dtype=uint8)
    """
    if dtype.itemsize < 8:
        return x.astype(np.int64).astype(dtype)
    half = x.dtype.type(2.0**63) if x.dtype != np.float16 else np.inf
    is_upper = (x >= half) & (x < 2 * half)
    moved = np.where(is_upper, x - half, x).astype(np.int64).astype(np.uint64)
    return np.where(is_upper, moved ^ np.uint64(1 << 63), moved)[()]


def narrowed_to_odd(x: Any) -> Any:
    """A double as a float32 that rounds on to bfloat16 as the double would.

    ml_dtypes goes through float32 and so rounds twice. A float32 that is not exact
    is cut towards zero and made odd: then it cannot look like a tie.
    """
    x = np.asarray(x, np.float64)
    near = x.astype(np.float32)
    cut = np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    bits = np.asarray(cut, np.float32).view(np.int32)
    is_cut = np.isfinite(x) & (cut != x)
    return np.where(is_cut, bits | 1, bits).astype(np.int32).view(np.float32)


def cast_vjp(g: Node, out: Node, x: Node, *, dtype: DType) -> Cotangents:
    """Back to the operand's dtype; a complex cotangent of a real operand is real."""
    if not is_differentiable(x.dtype):
        return (None,)
    if is_complex(g.dtype) and not is_complex(x.dtype):
        g = OPS["real"](g)
    return (g if g.dtype == x.dtype else cast(g, dtype=x.dtype),)


def cast_jvp(
    tangents: Sequence[Node], out: Node, x: Node, *, dtype: DType
) -> Node | None:
    return cast(tangents[0], dtype=dtype) if is_differentiable(dtype) else None


cast = record(
    "cast",
    type_rule=cast_type,
    eval=cast_eval,
    vjp=cast_vjp,
    jvp=cast_jvp,
    batch=batch_stack("cast"),
    scalar=lambda m, x, *, dtype: m.cast(x, dtype),
    holomorphic=False,
    cost=CHEAP,
    linear=ALL,
    exact=True,
)


def stop_gradient_type(x: Any) -> TensorType:
    return tensor(x)


def _identity(x: Any) -> Any:
    return x


stop_gradient = record(
    "stop_gradient",
    type_rule=stop_gradient_type,
    eval=_identity,
    batch=batch_stack("stop_gradient"),
    scalar=lambda m, x: x,
    differentiable=False,
    moves=Movement.ALIAS,
)
