"""Comparison, logic, bits and selection, as a table.

Results of comparisons are bool and end every path: `where(x > 0, a, b)` connects to
`a` and `b`, not to `x`.

Start reading at `equal`, then `where`.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tapejit.base.types import DType, TensorType
from tapejit.ir.node import CHEAP, Op, Rule, literal
from tapejit.ops.elementwise import ANY, INEXACT, ORDERED, check_kind, elementwise
from tapejit.ops.shapes import broadcast_shapes, same_dtype, tensor


def to_bool(dtype: DType) -> DType:
    return np.dtype(bool)


def comparison(name: str, eval: Rule, scalar: Rule, kinds: tuple[str, ...]) -> Op:
    """A comparison: operands of one dtype, a bool result."""
    return elementwise(
        name,
        eval=eval,
        scalar=scalar,
        kinds=kinds,
        result=to_bool,
        differentiable=False,
        exact=True,
        jumps=scalar.__code__.co_argcount == 3,  # of two values
        cost=CHEAP,
    )


BITS = ("bool", "integer")

equal = comparison("equal", operator.eq, lambda m, x, y: m.eq(x, y), ANY)
not_equal = comparison("not_equal", operator.ne, lambda m, x, y: m.ne(x, y), ANY)
less = comparison("less", operator.lt, lambda m, x, y: x < y, ORDERED)
less_equal = comparison("less_equal", operator.le, lambda m, x, y: x <= y, ORDERED)
greater = comparison("greater", operator.gt, lambda m, x, y: x > y, ORDERED)
greater_equal = comparison(
    "greater_equal", operator.ge, lambda m, x, y: x >= y, ORDERED
)

isnan = comparison("isnan", np.isnan, lambda m, x: m.isnan(x), INEXACT)
isinf = comparison("isinf", np.isinf, lambda m, x: m.isinf(x), INEXACT)
isfinite = comparison("isfinite", np.isfinite, lambda m, x: m.isfinite(x), INEXACT)


def bitwise(name: str, eval: Rule, scalar: Rule, kinds: tuple[str, ...] = BITS) -> Op:
    """An operation on bits; on bools it is the logical one."""
    return elementwise(
        name,
        eval=eval,
        scalar=scalar,
        kinds=kinds,
        differentiable=False,
        exact=True,
        cost=CHEAP,
    )


bitwise_and = bitwise("bitwise_and", np.bitwise_and, lambda m, x, y: m.and_(x, y))
bitwise_or = bitwise("bitwise_or", np.bitwise_or, lambda m, x, y: m.or_(x, y))
bitwise_xor = bitwise("bitwise_xor", np.bitwise_xor, lambda m, x, y: m.xor(x, y))
bitwise_invert = bitwise("bitwise_invert", np.invert, lambda m, x: m.invert(x))
bitwise_left_shift = bitwise(
    "bitwise_left_shift", np.left_shift, lambda m, x, y: m.shl(x, y), ("integer",)
)
bitwise_right_shift = bitwise(
    "bitwise_right_shift", np.right_shift, lambda m, x, y: m.shr(x, y), ("integer",)
)


def where_type(condition: Any, x: Any, y: Any) -> TensorType:
    condition, x, y = tensor(condition), tensor(x), tensor(y)
    check_kind(condition.dtype, ("bool",))
    return TensorType(same_dtype(x, y), broadcast_shapes(condition, x, y))


where: Op = elementwise(
    "where",
    type_rule=where_type,
    eval=np.where,
    deriv=(
        None,
        lambda t, condition, x, y, out: where(condition, t, 0),
        lambda t, condition, x, y, out: where(condition, literal(0, t.dtype), t),
    ),
    scalar=lambda m, condition, x, y: m.select(condition, x, y),
    conj_linear=True,
    cost=CHEAP,
    linear=slice(1, 3),
    exact=True,
)
