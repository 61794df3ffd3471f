"""Sorting, searching, and what is in a tensor.

Orders are stable, so positions are always the same: of equal elements the first comes
first, also in descending order. NaN comes last either way. Complex numbers have no
order and are refused. The gradient of a sorted element goes to where it came from.

Results whose size depends on the values (`nonzero`, `unique_values` and its relatives)
make a function that is traced one for that size; a mapped one is refused.

Start reading at `sort`, then `unique_all`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapejit import ops
from tapejit.array import elementwise, reductions
from tapejit.array.at import At
from tapejit.array.creation import full, zeros
from tapejit.array.indexing import count_true, nonzero_positions, take, true_positions
from tapejit.array.manipulation import concat, reshape, stack
from tapejit.base.errors import (
    ArgumentError,
    OutOfRangeError,
    ShapeError,
    UnsupportedError,
)
from tapejit.base.numpy_adapter import restore, silence
from tapejit.base.types import is_complex
from tapejit.ops.shapes import normalize_axis
from tapejit.tensor.device import beside
from tapejit.tensor.dispatch import apply, apply_many, as_operand, is_weak, operands
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor, TracedTensor


def value_of(x: Tensor, what: str) -> np.ndarray[Any, Any]:
    """The array of a tensor that is not being traced, for what depends on values."""
    if isinstance(x, TracedTensor):
        return x._needed(what)
    return np.asarray(x._value)


def _axis_of(x: Tensor, axis: int) -> int:
    return normalize_axis(operator.index(axis), x.ndim)


def _lines_of(given: Any, axis: int | None, name: str) -> tuple[Tensor, int]:
    """What is sorted, and along which axis: without one, all as one line."""
    x = as_operand(given, name)
    if axis is None:
        return reshape(x, -1), 0
    return x, _axis_of(x, axis)


@named
def sort(
    x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True
) -> Tensor:
    """The elements of each line in ascending or descending order, NaN last.

    `axis=None` makes one line of all. Every sort here is stable, whatever `stable`
    says.

    >>> import tapejit as tj
    >>> print(tj.sort(tj.asarray([3.0, 1.0, 2.0])))
    [1. 2. 3.]
    >>> print(tj.sort(tj.asarray([3.0, 1.0, 2.0]), descending=True))
    [3. 2. 1.]
    """
    x, at = _lines_of(x, axis, "sort")
    return apply(ops.sort_by, x, x, axis=at, descending=bool(descending))


@named
def argsort(
    x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True
) -> Tensor:
    """The positions that sort each line; of equal elements the first comes first.

    `axis=None` makes one line of all.

    >>> import tapejit as tj
    >>> print(tj.argsort(tj.asarray([3.0, 1.0, 2.0])))
    [1 2 0]
    """
    x, at = _lines_of(x, axis, "argsort")
    return apply(ops.argsort, x, axis=at, descending=bool(descending))


class TopK(NamedTuple):
    """What `top_k` gives."""

    values: Tensor
    indices: Tensor


@named
def top_k(x: Any, k: int, /, axis: int = -1, *, mode: str = "largest") -> TopK:
    """The `k` largest elements of each line, the largest first, and their positions.

    `mode="smallest"` gives the smallest instead. NaN is taken only where there is
    nothing else left.

    >>> import tapejit as tj
    >>> values, indices = tj.top_k(tj.asarray([1.0, 5.0, 3.0]), 2)
    >>> print(values, indices)
    [5. 3.] [1 2]
    """
    x = as_operand(x, "top_k")
    if mode not in ("largest", "smallest"):
        raise ArgumentError(f"mode is 'largest' or 'smallest', got {mode!r}")
    at = _axis_of(x, axis)
    count = operator.index(k)
    if not 0 <= count <= x.shape[at]:
        raise ArgumentError(
            f"k={count} elements of axis {at}, which has {x.shape[at]}",
            help="give a k from 0 to the size of the axis",
        )
    values, indices = apply_many(
        ops.top, x, axis=at, descending=mode == "largest", window=(0, count)
    )
    return TopK(values, indices)


def _check_kth(x: Tensor, kth: Any, axis: int) -> None:
    size = x.shape[axis]
    for k in np.ravel(kth):
        if not -size <= operator.index(k) < size:
            raise OutOfRangeError(f"kth={k} is out of range for axis of size {size}")


@named
def partition(x: Any, kth: Any, /, axis: int | None = -1) -> Tensor:
    """Each line with its `kth` element in place, no larger one before it.

    It is sorted, which satisfies every `kth`; `axis=None` flattens first.

    >>> import tapejit as tj
    >>> print(tj.partition(tj.asarray([3.0, 1.0, 2.0]), 1)[1])
    2.0
    """
    return _partitioned(sort, x, kth, axis)


@named
def argpartition(x: Any, kth: Any, /, axis: int | None = -1) -> Tensor:
    """The positions that partition each line, as `partition` does.

    >>> import tapejit as tj
    >>> print(tj.argpartition(tj.asarray([3.0, 1.0, 2.0]), 1)[1])
    2
    """
    return _partitioned(argsort, x, kth, axis)


def _partitioned(
    arrange: Callable[..., Tensor], x: Any, kth: Any, axis: int | None
) -> Tensor:
    x, axis = flattened(as_operand(x), axis)
    _check_kth(x, kth, _axis_of(x, axis))
    return arrange(x, axis=axis)


def flattened(x: Tensor, axis: int | None) -> tuple[Tensor, int]:
    """`x` with the axis to work along; without one, all elements in a line."""
    return (reshape(x, (-1,)), 0) if axis is None else (x, axis)


@named
def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Tensor:
    """Where the elements of `x2` would go in the sorted vector `x1` to keep it sorted.

    `side="left"` gives the first such place, `"right"` the last. If `x1` is not
    sorted, `sorter` says how: `tj.argsort(x1)`.

    >>> import tapejit as tj
    >>> print(tj.searchsorted(tj.asarray([1.0, 2.0, 3.0]), tj.asarray([0.0, 2.0, 9.0])))
    [0 1 3]
    """
    line, values = operands((_strong(x1), x2), "searchsorted")
    if line.ndim != 1:
        raise ShapeError(
            f"searches in a vector, got {line._type}",
            help="for one search per row, map it: tj.vmap(tj.searchsorted)",
        )
    if sorter is not None:
        line = take(line, sorter, axis=0)
    return apply(ops.searchsorted, line, values, side=side)


def _strong(x: Any) -> Any:
    return as_operand(x) if is_weak(x) else x


@named
def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Tensor:
    """Which elements of `x1` are among those of `x2`; NaN never is.

    >>> import tapejit as tj
    >>> print(tj.isin(tj.asarray([1, 2, 3]), [3, 1]))
    [ True False  True]
    """
    x, among = operands((x1, x2), "isin")
    among = reshape(among, (-1,))
    found: Tensor
    if not among.size:
        found = zeros(x.shape, dtype="bool", device=x.device)
    elif is_complex(x.dtype):
        found = reductions.any(reshape(x, (*x.shape, 1)) == among, axis=-1)
    else:
        line = sort(among)
        at = apply(ops.searchsorted, line, x, side="left")
        last = full((), line.size - 1, dtype="int64")
        found = elementwise.equal(take(line, elementwise.minimum(at, last)), x)
    return elementwise.logical_not(found) if invert else found


# What depends on values


@named
def nonzero(x: Any, /) -> tuple[Tensor, ...]:
    """The positions of the elements that are not 0, one tensor per axis.

    >>> import tapejit as tj
    >>> rows, columns = tj.nonzero(tj.asarray([[1.0, 0.0], [0.0, 2.0]]))
    >>> print(rows, columns)
    [0 1] [0 1]
    """
    x = as_operand(x, "nonzero")
    if not x.ndim:
        raise ShapeError(
            "a scalar has no positions", help="write x != 0, or x.reshape(1)"
        )
    return nonzero_positions(_is_not_zero(x), "nonzero")


def _is_not_zero(x: Tensor) -> Tensor:
    return x if x.dtype.kind == "b" else elementwise.not_equal(x, 0)


@named
def argwhere(x: Any, /) -> Tensor:
    """The positions of the elements that are not 0, one row each.

    >>> import tapejit as tj
    >>> tj.argwhere(tj.asarray([[1.0, 0.0], [0.0, 2.0]])).tolist()
    [[0, 0], [1, 1]]
    """
    x = as_operand(x, "argwhere")
    if x.ndim:
        return stack(nonzero(x), axis=1)
    count = count_true(_is_not_zero(x), "argwhere")
    return zeros((count, 0), dtype="int64", device=x.device)


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


@named
def unique_all(x: Any, /) -> UniqueAll:
    """The distinct elements in order, where each is first, where all are among them,
    and how many there are of each.

    Each NaN is distinct. The gradient of a value goes to its first occurrence.

    >>> import tapejit as tj
    >>> found = tj.unique_all(tj.asarray([2.0, 1.0, 2.0]))
    >>> print(found.values, found.indices, found.inverse_indices, found.counts)
    [1. 2.] [1 0] [1 0 1] [1 2]
    """
    return distinct(as_operand(x), "unique_all", equal_nan=False)


def distinct(x: Tensor, name: str, *, equal_nan: bool) -> UniqueAll:
    """The distinct elements; with `equal_nan` all NaN are one, as in `np.unique`."""
    if isinstance(x, TracedTensor) and not is_complex(x.dtype):
        return _distinct_traced(x, name, equal_nan)
    array = value_of(x, name)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)  # whose order NumPy knows
    token = silence()
    try:
        _, *found = np.unique(
            array.reshape(-1),
            return_index=True,
            return_inverse=True,
            return_counts=True,
            equal_nan=equal_nan,
        )
    finally:
        restore(token)
    indices, inverse, counts = (beside(at.astype(np.int64), x) for at in found)
    values = take(reshape(x, (-1,)), indices, axis=0)
    return UniqueAll(values, indices, reshape(inverse, x.shape), counts)


def _distinct_traced(x: Tensor, name: str, equal_nan: bool) -> UniqueAll:
    """In order, equal elements are neighbours: where an element differs from the one
    before it, a new one begins. Only how many do has to be known."""
    flat = reshape(x, (-1,))
    order = argsort(flat)
    line = take(flat, order, axis=0)
    is_new = elementwise.not_equal(line[1:], line[:-1])
    if equal_nan:
        is_new = is_new & ((line[1:] == line[1:]) | (line[:-1] == line[:-1]))
    is_new = concat([full(min(flat.size, 1), True, dtype="bool"), is_new])
    starts = true_positions(is_new, name)
    ends = concat([starts[1:], full(min(starts.size, 1), flat.size, dtype="int64")])
    indices = take(order, starts, axis=0)
    number = apply(ops.cumulative_sum, elementwise.astype(is_new, "int64"), axis=0)
    inverse = At(order)[order].set(number - 1)
    values = take(flat, indices, axis=0)
    return UniqueAll(values, indices, reshape(inverse, x.shape), ends - starts)


@named
def unique_counts(x: Any, /) -> UniqueCounts:
    """The distinct elements in order, and how many there are of each.

    >>> import tapejit as tj
    >>> values, counts = tj.unique_counts(tj.asarray([2.0, 1.0, 2.0]))
    >>> print(values, counts)
    [1. 2.] [1 2]
    """
    found = distinct(as_operand(x), "unique_counts", equal_nan=False)
    return UniqueCounts(found.values, found.counts)


@named
def unique_inverse(x: Any, /) -> UniqueInverse:
    """The distinct elements in order, and for each element which of them it is.

    >>> import tapejit as tj
    >>> values, inverse_indices = tj.unique_inverse(tj.asarray([2.0, 1.0, 2.0]))
    >>> print(values, inverse_indices)
    [1. 2.] [1 0 1]
    """
    found = distinct(as_operand(x), "unique_inverse", equal_nan=False)
    return UniqueInverse(found.values, found.inverse_indices)


@named
def unique_values(x: Any, /) -> Tensor:
    """The distinct elements, in order.

    >>> import tapejit as tj
    >>> print(tj.unique_values(tj.asarray([2.0, 1.0, 2.0])))
    [1. 2.]
    """
    return distinct(as_operand(x), "unique_values", equal_nan=False).values


def numpy_sorted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`sort` or `argsort` with NumPy's parameters; every kind of sort is stable."""

    def adapter(
        a: Any, *, axis: int | None = -1, kind: Any = None, stable: Any = None
    ) -> Tensor:
        x, at = flattened(as_operand(a), axis)
        return function(x, axis=at)

    return adapter


def numpy_partitioned(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`partition` or `argpartition` with NumPy's parameters."""

    def adapter(a: Any, kth: Any, axis: int | None = -1, *, kind: Any = None) -> Tensor:
        return function(a, kth, axis)

    return adapter


def numpy_isin(
    element: Any,
    test_elements: Any,
    *,
    assume_unique: bool = False,
    invert: bool = False,
    kind: Any = None,
) -> Tensor:
    """`np.isin`, whose other arguments are hints about speed."""
    return isin(element, test_elements, invert=invert)


def numpy_flatnonzero(a: Any) -> Tensor:
    """`np.flatnonzero`."""
    return nonzero(reshape(a, (-1,)))[0]


def numpy_unique(
    ar: Any,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """`np.unique`: what is asked for, after the values."""
    if axis is not None:
        raise UnsupportedError(
            "takes no axis= with tensors",
            op="np.unique",
            help="the rows of a matrix: np.unique(x.numpy(), axis=0, "
            "return_index=True) gives positions to take",
        )
    found = distinct(as_operand(ar), "np.unique", equal_nan=equal_nan)
    wanted = [True, return_index, return_inverse, return_counts]
    parts: Sequence[Tensor] = [
        part for part, flag in zip(found, wanted, strict=True) if flag
    ]
    return parts[0] if len(parts) == 1 else tuple(parts)


__all__ = [
    "argpartition",
    "argsort",
    "argwhere",
    "isin",
    "nonzero",
    "partition",
    "searchsorted",
    "sort",
    "top_k",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]
