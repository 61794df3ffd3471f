"""Histograms: `bincount`, `histogram` and `digitize` count the elements of each bin.

Counts are integers without a gradient; sums of weights are `scatter_add`, which gives
the weights theirs. Where the number of bins depends on values, a function that is
traced becomes one for that number.

Start reading at `bincount`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.array import elementwise, reductions
from tapejit.array.creation import zeros
from tapejit.array.indexing import getitem, number_of, scatter_add, take
from tapejit.array.manipulation import flip, reshape
from tapejit.array.sorting import searchsorted, value_of
from tapejit.base.errors import ArgumentError, DTypeError, ShapeError
from tapejit.base.numpy_adapter import restore, silence
from tapejit.base.types import is_complex
from tapejit.ops.ordering import compared_dtype
from tapejit.tensor.device import beside
from tapejit.tensor.dispatch import (
    apply,
    as_float,
    as_operand,
    cast,
    operands,
    weak_scalar,
)
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import CONSTANT, Tensor, TracedTensor

INT64: Final = np.dtype("int64")


@named
def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, ... occurs, or the sums of the weights that go with it.

    The size of the result depends on the values of `x`, which therefore cannot be
    mapped; the weights can, and have a gradient.

    >>> import tapejit as tj
    >>> print(tj.bincount(tj.asarray([0, 2, 2])))
    [1 0 2]
    >>> print(tj.bincount(tj.asarray([0, 2, 2]), tj.asarray([0.5, 1.0, 2.0])))
    [0.5 0.  3. ]
    """
    x = as_operand(x, "bincount")
    if x.dtype.kind not in "iub" and x.size:
        raise DTypeError(
            f"counts integers, got {x._type}", help="convert with .astype(tj.int64)"
        )
    if x.ndim != 1:
        raise ShapeError(f"takes a vector, got {x._type}", help="write x.flatten()")
    if minlength < 0:
        raise ArgumentError(f"minlength cannot be negative, got {minlength}")
    places = cast(x, INT64)
    length = _number_of_bins(places, int(minlength))
    if length < 0:
        raise ArgumentError(f"takes no negative integers, got {length}")
    return _totals(places, _as_weights(weights, x), length)


def _number_of_bins(places: Tensor, least: int) -> int:
    """One more than the largest, the smallest if that is negative: one question."""
    if not places.size:
        return least
    if not isinstance(places, TracedTensor):
        values = np.asarray(places._value)
        low, high = int(values.min()), int(values.max())
        return low if low < 0 else max(high + 1, least)
    one, nothing, bins = (weak_scalar(n, INT64) for n in (1, 0, least))
    smallest = apply(ops.min, places, axes=(0,), keepdims=False)
    largest = apply(ops.max, places, axes=(0,), keepdims=False)
    needed = apply(ops.maximum, apply(ops.add, largest, one), bins)
    is_wrong = apply(ops.less, smallest, nothing)
    return number_of(apply(ops.where, is_wrong, smallest, needed), "bincount")


def _as_weights(weights: Any, x: Tensor) -> Tensor | None:
    if weights is None:
        return None
    share = as_operand(weights, "bincount")
    if share.shape != x.shape:
        raise ShapeError(f"weights of {share._type} for elements of {x._type}")
    return share


def _totals(places: Tensor, weights: Tensor | None, length: int) -> Tensor:
    """The number, or the sum of the weights, of what falls into each place."""
    if weights is None:
        if isinstance(places, TracedTensor):
            return scatter_add(zeros(length, dtype=INT64), places, 1)
        counts = np.bincount(places._value, minlength=length)
        return beside(counts.astype(np.int64, copy=False), places)
    weights = as_float(weights)
    return scatter_add(zeros(length, dtype=weights.dtype), places, weights)


@named
def histogram(
    x: Any,
    /,
    bins: Any = 10,
    range: Any = None,
    density: bool = False,
    weights: Any = None,
) -> tuple[Tensor, Tensor]:
    """How many elements fall between each two edges, and the edges, as NumPy does.

    `bins` is a number of bins of equal width, a sequence of edges, or one of NumPy's
    rules by name. Counts are integers and have no gradient; sums of `weights` have one
    for the weights.

    >>> import tapejit as tj
    >>> counts, edges = tj.histogram(tj.asarray([1.0, 2.0, 2.5]), bins=[0, 2, 4])
    >>> print(counts, edges)
    [1 2] [0 2 4]
    """
    x = as_operand(x, "histogram")
    if is_complex(x.dtype):
        raise DTypeError(f"complex numbers have no order, got {x._type}")
    share = _as_weights(weights, x)
    if isinstance(bins, Tensor) or hasattr(bins, "_operand"):
        bins = value_of(as_operand(bins), "histogram")
    if isinstance(x, TracedTensor) and _are_edges_known(bins, range):
        edges = _edges(np.zeros(0, x.dtype), bins, range)
        counts = _counted_traced(x, edges, share)
    else:
        values = value_of(x, "histogram").reshape(-1)
        edges = _edges(values, bins, range)
        counts = _counted(x, values, edges, share)
    ends = beside(edges, x)
    if density:
        widths = getitem(ends, slice(1, None)) - getitem(ends, slice(None, -1))
        counts = counts / widths / reductions.sum(counts)
    return counts, ends


def _are_edges_known(bins: Any, range: Any) -> bool:
    """Whether the edges do not depend on the elements."""
    return not isinstance(bins, str) and (range is not None or np.ndim(bins) > 0)


def _edges(values: Any, bins: Any, range: Any) -> Any:
    if values.dtype.name == "bfloat16":
        values = values.astype(np.float32)  # whose order NumPy knows
    token = silence()
    try:
        return np.histogram_bin_edges(values, bins, range)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    finally:
        restore(token)


def _counted(x: Tensor, values: Any, edges: Any, weights: Tensor | None) -> Tensor:
    """What falls between each two edges; the last bin includes its right edge."""
    if values.dtype.name == "bfloat16":
        values = values.astype(np.float32)
    last = len(edges) - 1
    places = np.searchsorted(edges, values, side="right") - 1
    places = np.where(values == edges[-1], last - 1, places)
    is_inside = (places >= 0) & (places < last)
    if weights is not None:
        counted = Tensor(np.flatnonzero(is_inside), CONSTANT)
        weights = take(reshape(weights, (-1,)), counted, axis=0)
    return _totals(beside(places[is_inside], x), weights, last)


def _counted_traced(x: Tensor, edges: Any, weights: Tensor | None) -> Tensor:
    """As `_counted`; what falls outside goes to one more bin, which is cut off."""
    last = len(edges) - 1
    values, line = reshape(x, (-1,)), Tensor(edges, CONSTANT)
    above = apply(ops.searchsorted, line, values, side="right")
    common = compared_dtype(x.dtype, edges.dtype)
    end = cast(getitem(line, -1), common)
    is_last_edge = apply(ops.equal, cast(values, common), end)
    places = elementwise.where(is_last_edge, last - 1, above - 1)
    is_inside = (places >= 0) & (places < last)
    places = elementwise.where(is_inside, places, last)
    if weights is not None:
        weights = reshape(weights, (-1,))
    return getitem(_totals(places, weights, last + 1), slice(last))


@named
def digitize(x: Any, bins: Any, /, right: bool = False) -> Tensor:
    """The number of the bin that each element is in, for ascending or descending edges.

    `right` says that a bin includes its right edge instead of the left one.

    >>> import tapejit as tj
    >>> print(tj.digitize(tj.asarray([0.5, 1.0, 9.0]), [0.0, 1.0, 2.0]))
    [1 2 3]
    """
    x, edges = operands((x, as_operand(bins)), "digitize")
    side = "left" if right else "right"
    rising, falling = _directions(edges)
    if rising:
        return searchsorted(edges, x, side=side)
    if not falling:
        raise ArgumentError("bins must be monotonic", help="sort them with tj.sort")
    found = searchsorted(flip(edges), x, side=side)
    return elementwise.subtract(edges.size, found)


def _directions(edges: Tensor) -> tuple[bool, bool]:
    """Whether edges never fall, and whether they never rise."""
    if edges.ndim != 1:
        return True, False  # which searching refuses
    if not isinstance(edges, TracedTensor):
        line = np.asarray(edges._value)
        steps = line[1:] >= line[:-1], line[1:] <= line[:-1]
        return bool(np.all(steps[0])), bool(np.all(steps[1]))
    after, before = getitem(edges, slice(1, None)), getitem(edges, slice(None, -1))
    rising, falling = (
        reductions.all(is_in_order)
        for is_in_order in (after >= before, after <= before)
    )
    # Both answers in one number are one guard in a traced function.
    twice = apply(ops.mul, cast(falling, INT64), weak_scalar(2, INT64))
    found = number_of(apply(ops.add, cast(rising, INT64), twice), "digitize")
    return bool(found & 1), bool(found & 2)


__all__ = ["bincount", "digitize", "histogram"]
