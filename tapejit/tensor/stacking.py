"""Stacking: tensors of one shape along a new axis, and nested lists of tensors as one.

Start reading at `stack_tensors`, then `stack_nested`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tapejit import ops
from tapejit.base.errors import ShapeError
from tapejit.ops.shapes import normalize_axis
from tapejit.tensor import dispatch
from tapejit.tensor.lists import flat, joined_dtype
from tapejit.tensor.tensor import Tensor


def stack_tensors(given: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis."""
    tensors = dispatch.operands(given, "stack")
    first = tensors[0]
    for x in tensors:
        if x.shape != first.shape:
            raise ShapeError(
                f"cannot stack {first._type} with {x._type}",
                op="stack",
                help="stacked tensors need equal shapes; tj.concat joins along an axis",
            )
    at = normalize_axis(axis, first.ndim + 1)
    sizes = first._type.shape
    shape = (*sizes[:at], 1, *sizes[at:])
    parts = [dispatch.apply(ops.reshape, x, shape=shape) for x in tensors]
    return dispatch.apply(ops.concat, *parts, axis=at)


def stack_nested(value: Any) -> Tensor:
    """Nested lists with tensors in them, as one tensor."""
    leaves = [x if is_weak_in_list(x) else asarray_of(x) for x in flat(value)]
    strong = [x.dtype for x in leaves if isinstance(x, Tensor)]
    is_narrow = any(x.kind in "iu" and x.itemsize < 4 for x in strong)
    numbers = [
        _number_in_list(x, is_narrow) for x in leaves if not isinstance(x, Tensor)
    ]
    dtype = joined_dtype(strong, numbers)
    tensors = [
        dispatch.cast(x, dtype)
        if isinstance(x, Tensor)
        else dispatch.weak_scalar(x, dtype)
        for x in leaves
    ]
    return _stacked(value, iter(tensors))


def _number_in_list(x: Any, is_narrow: bool) -> Any:
    """What decides the dtype: of a size its value, where it might not fit."""
    if type(x) not in dispatch.TRACED_NUMBERS:
        return x
    return int(x) if is_narrow and type(x.sample) is int else x.sample


def is_weak_in_list(x: Any) -> bool:
    """Whether a number takes the dtype of what is beside it: Python's do."""
    number = x.sample if type(x) in dispatch.TRACED_NUMBERS else x
    return type(number) in (bool, int, float, complex)


def asarray_of(x: Any) -> Tensor:
    """A leaf as a tensor that keeps its dtype."""
    is_tensor = isinstance(x, Tensor) or type(x) in dispatch.HANDLES
    return dispatch.as_operand(x, "asarray") if is_tensor else dispatch.convert(x, None)


def _stacked(value: Any, leaves: Iterator[Any]) -> Tensor:
    if isinstance(value, (list, tuple)):
        return stack_tensors([_stacked(part, leaves) for part in value])
    return dispatch.as_operand(next(leaves), "asarray")
