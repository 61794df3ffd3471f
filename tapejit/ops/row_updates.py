"""Steps along the gradient of a table of which few rows were read.

`subtract_rows` is `x - rate * gather_add(zeros, updates, *indices)` as one operation.
Where the rate is finite and not negative, a row that no index names keeps its bits, so
native code touches no other rows. It is made of graphs that have been differentiated.

Start reading at `subtract_rows_eval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import ShapeError
from tapejit.base.types import DType, TensorType, Type
from tapejit.ir.node import Node, record
from tapejit.ir.structural import with_rows
from tapejit.ops.elementwise import check_kind, lift
from tapejit.ops.indexing import gather_add_batch, gather_add_eval, gather_add_type
from tapejit.ops.movement import zeros
from tapejit.ops.shapes import Axes, same_dtype, tensor


def are_rows(axes: Axes, dtype: DType) -> bool:
    """Whether positions along axes are those of rows of floats, side by side.

    Halves are added up as floats and rounded once, at the end, so they are not meant.
    """
    return tuple(axes) == tuple(range(len(axes))) and dtype.itemsize >= 4


def subtract_rows_type(
    x: Type, rate: Type, updates: Type, *indices: Type, axes: Axes
) -> TensorType:
    x, rate = tensor(x), tensor(rate)
    check_kind(same_dtype(x, rate), ("float",))
    if rate.shape:
        raise ShapeError(f"the rate must be a scalar, got {rate}")
    return gather_add_type(x, updates, *indices, axes=axes)


def subtract_rows_eval(
    x: Any, rate: Any, updates: Any, *indices: Any, axes: Axes
) -> Any:
    """Updates of a row are added up from 0, in their order, then subtracted once."""
    nothing = np.broadcast_to(np.zeros((), x.dtype), x.shape)
    return x - rate * gather_add_eval(nothing, updates, *indices, axes=axes)


def subtract_rows_batch(
    size: Size, inputs: Sequence[Node], batched: Sequence[bool], *, axes: Axes
) -> Node:
    """Written out: rates of their own are no scalar."""
    x, rate, updates, *indices = inputs
    shape = x.shape[1:] if batched[0] else x.shape
    total = gather_add_batch(
        size,
        (zeros(x.dtype, shape), updates, *indices),
        (False, *batched[2:]),
        axes=axes,
    )
    factor = lift(rate, len(shape)) if batched[1] else rate
    (rows,) = with_rows(size, inputs[:1], batched[:1])
    return rows - factor * total


subtract_rows = record(
    "subtract_rows",
    type_rule=subtract_rows_type,
    eval=subtract_rows_eval,
    can_fail=True,
    batch=subtract_rows_batch,
    differentiable=False,
    scatters=3,
    on_arrays=lambda node: are_rows(node.attrs["axes"], node.dtype),
)
