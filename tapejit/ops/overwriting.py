"""Overwriting: which of several values ends up in each place.

Writing `values` into `x` at some positions is a movement: lay the flattened `x` and
the values one after the other, and every element of the result is read from there.
`written_from` says where. The last value written to a place stays, as in NumPy, and
an earlier one is read by nobody, so that its derivative is zero without a rule of its
own.

Positions are flat, along the last axis; the axes before it are separate rows.

Start reading at `written_from_eval`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import ShapeError
from tapejit.base.types import TensorType, Type
from tapejit.ir.node import record
from tapejit.ir.structural import batch_stack
from tapejit.ops.elementwise import check_kind
from tapejit.ops.indexing import as_signed, check_range
from tapejit.ops.movement import check_shape
from tapejit.ops.shapes import tensor


def written_from_type(positions: Type, *, size: Size) -> TensorType:
    positions = tensor(positions)
    check_kind(positions.dtype, ("integer",))
    check_shape((size,))
    if not positions.ndim:
        raise ShapeError(f"positions have at least one axis, got {positions}")
    return TensorType(np.dtype("int64"), (*positions.shape[:-1], size))


def written_from_eval(positions: Any, *, size: int) -> Any:
    """Each place reads itself, or the last of the values that are written to it.

    The assignment goes through one axis: only there does NumPy promise its order.
    """
    check_range((size,), (positions,), (0,))
    count, rows = positions.shape[-1], math.prod(positions.shape[:-1])
    signed = as_signed(positions).astype(np.int64).reshape(rows, count)
    cells = np.where(signed < 0, signed + size, signed)
    cells += size * np.arange(rows)[:, None]
    out = np.tile(np.arange(size), rows)
    out[cells.reshape(-1)] = np.tile(np.arange(size, size + count), rows)
    return out.reshape(*positions.shape[:-1], size)


written_from = record(
    "written_from",
    type_rule=written_from_type,
    eval=written_from_eval,
    batch=batch_stack("written_from"),
    differentiable=False,
)
