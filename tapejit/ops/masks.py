"""Masks and categories: integers and bools whose values decide what is read.

`true_positions` is how a mask selects when the size of a result has to be known
beforehand: a function that was traced for so many True elements reads their positions
with it. It has a meaning for any mask, so nothing can go wrong before the guard on the
number of elements has spoken.

`checked_categories` passes integers on that lie in a range and refuses others. It says
at run time what an eager call says at once.

Start reading at `true_positions_eval`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import ArgumentError, OutOfRangeError, ShapeError
from tapejit.base.types import TensorType, Type
from tapejit.ir.node import record
from tapejit.ir.structural import batch_stack
from tapejit.ops.elementwise import check_kind
from tapejit.ops.movement import check_shape, exceeds
from tapejit.ops.shapes import tensor

# true_positions


def true_positions_type(mask: Type, *, size: Size) -> TensorType:
    mask = tensor(mask)
    check_kind(mask.dtype, ("bool",))
    check_shape((size,))
    if not mask.ndim:
        raise ShapeError(f"a mask has at least one axis, got {mask}")
    if exceeds(size, mask.shape[-1]):
        raise ArgumentError(f"{size} positions of {mask.shape[-1]} elements")
    return TensorType(np.dtype("int64"), (*mask.shape[:-1], size))


def true_positions_eval(mask: Any, *, size: int) -> Any:
    """Along the last axis: where the mask is True, then where it is not, cut off."""
    if mask.ndim == 1:
        found = np.flatnonzero(mask)
        if found.size == size:
            return found.astype(np.int64, copy=False)
    order = np.argsort(~mask, axis=-1, kind="stable")
    return order[..., :size].astype(np.int64, copy=False)


true_positions = record(
    "true_positions",
    type_rule=true_positions_type,
    eval=true_positions_eval,
    batch=batch_stack("true_positions"),
    differentiable=False,
)


# checked_categories

PADDED = "give padding any index in range, and mask it out afterwards"


def checked_categories_type(
    x: Type, *, count: Size, label: str, name: str, place: int = 1, help: str = PADDED
) -> TensorType:
    x = tensor(x)
    check_kind(x.dtype, ("integer",))
    check_shape((count,))
    return x


def checked_categories_eval(
    x: Any, *, count: int, label: str, name: str, place: int = 1, help: str = PADDED
) -> Any:
    is_wrong = (x < 0) | (x >= count)
    if np.any(is_wrong):
        at = np.unravel_index(np.argmax(is_wrong), np.shape(is_wrong))
        where = f" at [{', '.join(map(str, map(int, at)))}]" if at else ""
        raise OutOfRangeError(
            f"{label} is from 0 to {count - 1}, got {x[at]}{where}",
            op=name,
            help=help or None,
            places=(place,),
        )
    return x


# Integers from 0 up to but not including `count`, which `label` calls by their name and
# `name`, the function that takes them, refuses otherwise. They are its argument number
# `place`, and `help` says what to do.
checked_categories = record(
    "checked_categories",
    type_rule=checked_categories_type,
    eval=checked_categories_eval,
    can_fail=True,
    bound=lambda node: int(node.attrs["count"]),
    batch=batch_stack("checked_categories"),
    differentiable=False,
)
