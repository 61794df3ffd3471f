"""Integers that name categories: labels, and rows of a table.

A category is an integer from 0 on. NumPy's negative indices have no place here: a
label of -1 is a padding mark or a mistake, never the last class. So they are refused,
by an op of its own: when a function is traced, that happens as its graph runs.

Start reading at `embedding`.
"""

from __future__ import annotations

from typing import Any

from tapejit import ops
from tapejit.base.dims import Size
from tapejit.base.errors import DTypeError, ShapeError
from tapejit.base.types import is_integer
from tapejit.tensor.dispatch import apply, as_operand
from tapejit.tensor.tensor import Tensor


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
    return apply(ops.checked_categories, found, count=count, label=label, name=name)


__all__ = ["embedding"]
