"""Integers that name categories: labels, and rows of a table.

A category is an integer from 0 on. NumPy's negative indices have no place here: a
label of -1 is a padding mark or a mistake, never the last class. So they are refused;
while a function is traced, where values are not known, they are sent out of range, and
reading there fails when the graph runs.

Start reading at `embedding`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.api.dispatch import apply, as_operand, cast
from tapejit.api.elementwise import where
from tapejit.api.tensor import Tensor, TracedTensor
from tapejit.dims import Size
from tapejit.errors import DTypeError, OutOfRangeError, ShapeError
from tapejit.types import is_integer

INT64: Final = np.dtype("int64")


def embedding(table: Any, indices: Any, /) -> Tensor:
    """The rows of `table` at `indices`, which replace the indices' elements.

    The gradient with respect to the table is dense; rows that are read several times
    add up.

    >>> import tapejit as tj
    >>> table = tj.asarray([[0.0, 0.1], [1.0, 1.1], [2.0, 2.1]])
    >>> print(tj.nn.embedding(table, [2, 0, 2]))
    [[2.  2.1]
     [0.  0.1]
     [2.  2.1]]
    """
    rows = as_operand(table, "embedding")
    if not rows.ndim:
        raise ShapeError(f"takes a table with rows, got {rows._type}", op="embedding")
    at = categories(indices, rows.shape[0], "an index", "embedding")
    return apply(ops.gather, rows, at, axes=(0,))


def categories(indices: Any, count: Size, label: str, name: str) -> Tensor:
    """Integers from 0 up to but not including `count`, checked."""
    found = as_operand(indices, name)
    if not is_integer(found.dtype):
        raise DTypeError(
            f"{label} is an integer, got {found._type}",
            op=name,
            help="convert with .astype(tj.int64)",
        )
    if isinstance(found, TracedTensor):
        if found.dtype.kind == "u":
            return found
        wide = cast(found, INT64)
        return where(wide < 0, count, wide)
    values = found._value
    is_wrong = (values < 0) | (values >= count)
    if np.any(is_wrong):
        at = np.unravel_index(np.argmax(is_wrong), np.shape(is_wrong))
        place = f" at [{', '.join(map(str, map(int, at)))}]" if at else ""
        raise OutOfRangeError(
            f"{label} is from 0 to {count - 1}, got {values[at]}{place}",
            op=name,
            help="give padding any index in range, and mask it out afterwards",
        )
    return found


__all__ = ["embedding"]
