"""Sequences of different lengths in one tensor: what is padding, and what comes first.

Start reading at `sequence_mask`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.array.arrangement import moveaxis
from tapejit.array.creation import arange
from tapejit.array.elementwise import less, where
from tapejit.array.indexing import number_of
from tapejit.array.manipulation import as_axis, reshape, with_axes
from tapejit.base.errors import ArgumentError, DTypeError, ShapeError
from tapejit.base.types import as_dtype
from tapejit.tensor.dispatch import apply, as_operand, cast, weak_scalar
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor

__all__ = ["reverse_sequence", "sequence_mask"]

INT64: Final = np.dtype("int64")


@named
def sequence_mask(lengths: Any, maxlen: Any = None, dtype: Any = None) -> Tensor:
    """True for the first so many places of each sequence, along a new last axis.

    `maxlen` is the size of that axis, by default the largest length: a function that is
    traced then becomes one for that number. `dtype` is bool unless another is given.

    >>> import tapejit as tj
    >>> print(tj.sequence_mask([1, 3], 4, dtype="int32"))
    [[1 0 0 0]
     [1 1 1 0]]
    """
    counts = _lengths(lengths)
    size = _largest(counts) if maxlen is None else maxlen
    if isinstance(size, Tensor):
        size = number_of(size, "maxlen")
    if size < 0:
        raise ArgumentError(f"maxlen cannot be negative, got {size}")
    places = arange(size, dtype=INT64)
    mask = less(places, with_axes(cast(counts, INT64), counts.ndim + 1))
    return mask if dtype is None else cast(mask, as_dtype(dtype))


@named
def reverse_sequence(
    x: Any, seq_lengths: Any, seq_axis: int = 1, batch_axis: int = 0
) -> Tensor:
    """The first so many elements of each sequence backwards, the rest as they are.

    The sequences lie along `seq_axis`, and there is a length for each element of
    `batch_axis`.

    >>> import tapejit as tj
    >>> x = tj.asarray([[1, 2, 3, 4], [5, 6, 7, 8]])
    >>> print(tj.reverse_sequence(x, [3, 0]))
    [[3 2 1 4]
     [5 6 7 8]]
    """
    name = "reverse_sequence"
    x = as_operand(x)
    along, batch = (as_axis(at, x.ndim, name) for at in (seq_axis, batch_axis))
    if along == batch:
        raise ArgumentError(
            f"seq_axis and batch_axis are both axis {along} of {x._type}",
            help="for a single sequence, write tj.flip(x[:n])",
        )
    counts = _lengths(seq_lengths)
    rows = moveaxis(x, (batch, along), (0, 1))
    size, length = rows.shape[:2]
    if counts.shape != (size,):
        raise ShapeError(
            f"{counts._type} lengths for axis {batch} of {x._type}",
            help=f"it takes one for each of the {size}",
        )
    counts = apply(
        ops.checked_categories,
        counts,
        count=length + 1,
        label="a length",
        name=name,
        help=f"axis {along} has so many places",
    )
    ends = with_axes(cast(counts, INT64), 2)
    places = arange(length, dtype=INT64)
    sources = where(less(places, ends), ends - 1 - places, places)
    row = reshape(arange(size, dtype=INT64, device=x.device), (size, 1))
    found = apply(ops.gather, rows, row, sources, axes=(0, 1))
    return moveaxis(found, (0, 1), (batch, along))


def _lengths(given: Any) -> Tensor:
    found = as_operand(given)
    if found.dtype.kind not in "iu" and not (
        found.size == 0 and not hasattr(given, "dtype")
    ):
        raise DTypeError(
            f"lengths are integers, got {found._type}",
            help="convert them with .astype(tj.int64)",
        )
    return found if found.dtype.kind in "iu" else cast(found, INT64)


def _largest(counts: Tensor) -> int:
    """The largest length, 0 if there is none."""
    if not counts.size:
        return 0
    flat = reshape(cast(counts, INT64), (-1,))
    most = apply(ops.max, flat, axes=(0,), keepdims=False)
    most = apply(ops.maximum, most, weak_scalar(0, INT64))
    return number_of(most, "maxlen=None: the largest length")
