"""Reductions by segment: sums, means, products and extremes of elements with one id.

They are `tf.math.segment_sum` and `tf.math.unsorted_segment_sum` in one: ids come in
any order, and `num_segments` may be left out. Then it is one more than the largest id,
and a function that is traced becomes one for that number.

`dynamic_partition` puts the elements of each id into a tensor of their own, and
`dynamic_stitch` puts them back.

Start reading at `segment_sum`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.array.creation import ones, zeros
from tapejit.array.elementwise import equal
from tapejit.array.indexing import number_of, take, true_positions
from tapejit.array.manipulation import concat, reshape, with_axes
from tapejit.base.dims import Dim
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.base.types import promote_all, wide_dtype
from tapejit.ir.node import Op
from tapejit.tensor.dispatch import apply, as_float, as_operand, cast, weak_scalar
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor

_INT64: Final = np.dtype("int64")


@named
def segment_sum(data: Any, segment_ids: Any, num_segments: Any = None) -> Tensor:
    """The sums of the elements that have the same segment id.

    `segment_ids` are integers in any order, one for each element of the first axis of
    `data`, or of its first axes. The result has `num_segments` rows; if that is None,
    one more than the largest id. Elements with a negative id are dropped, and an id
    that is too large is an error. A segment without elements is 0.

    >>> import tapejit as tj
    >>> x = tj.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> print(tj.segment_sum(x, [0, 2, 0], num_segments=3))
    [[6. 8.]
     [0. 0.]
     [3. 4.]]
    >>> print(tj.segment_sum(tj.asarray([1.0, 2.0, 4.0]), [1, -1, 1]))
    [0. 5.]
    """
    return _segments(ops.segment_sum, data, segment_ids, num_segments)


@named
def segment_prod(data: Any, segment_ids: Any, num_segments: Any = None) -> Tensor:
    """The products of the elements that have the same segment id.

    Arguments are those of `segment_sum`. A segment without elements is 1. The gradient
    is exact also where elements are 0.

    >>> import tapejit as tj
    >>> print(tj.segment_prod(tj.asarray([2.0, 3.0, 4.0]), [0, 0, 2]))
    [6. 1. 4.]
    """
    return _segments(ops.segment_prod, data, segment_ids, num_segments)


@named
def segment_max(data: Any, segment_ids: Any, num_segments: Any = None) -> Tensor:
    """The largest of the elements that have the same segment id; NaN if there is one.

    Arguments are those of `segment_sum`. A segment without elements is -inf, or the
    smallest integer there is; equal largest elements share the gradient equally.

    >>> import tapejit as tj
    >>> print(tj.segment_max(tj.asarray([2.0, 3.0, 4.0]), [0, 0, 2]))
    [  3. -inf   4.]
    """
    return _segments(ops.segment_max, data, segment_ids, num_segments)


@named
def segment_min(data: Any, segment_ids: Any, num_segments: Any = None) -> Tensor:
    """The smallest of the elements that have the same segment id; NaN if there is one.

    Arguments are those of `segment_sum`. A segment without elements is inf, or the
    largest integer there is; equal smallest elements share the gradient equally.

    >>> import tapejit as tj
    >>> print(tj.segment_min(tj.asarray([2.0, 3.0, 4.0]), [0, 0, 2]))
    [ 2. inf  4.]
    """
    return _segments(ops.segment_min, data, segment_ids, num_segments)


@named
def segment_mean(data: Any, segment_ids: Any, num_segments: Any = None) -> Tensor:
    """The means of the elements that have the same segment id.

    Arguments are those of `segment_sum`. A segment without elements is 0, and integers
    average to the default float.

    >>> import tapejit as tj
    >>> print(tj.segment_mean(tj.asarray([2.0, 3.0, 4.0]), [0, 0, 2]))
    [2.5 0.  4. ]
    """
    data, ids = _with_ids(data, segment_ids)
    data = as_float(data)
    wide = wide_dtype(data.dtype)
    size = _number_of_segments(ids, num_segments)
    total = apply(ops.segment_sum, cast(data, wide), ids, size=size)
    count = apply(ops.segment_sum, ones(ids.shape, dtype=_INT64), ids, size=size)
    count = apply(ops.maximum, count, weak_scalar(1, _INT64))
    shares = with_axes(cast(count, wide), total.ndim)
    return cast(apply(ops.div, total, shares), data.dtype)


def _segments(op: Op, data: Any, segment_ids: Any, num_segments: Any) -> Tensor:
    data, ids = _with_ids(data, segment_ids)
    return apply(op, data, ids, size=_number_of_segments(ids, num_segments))


def _with_ids(data: Any, segment_ids: Any) -> tuple[Tensor, Tensor]:
    """Elements along the first axis, and an id for each."""
    data, ids = as_operand(data), _integers(segment_ids, "segment ids")
    if not ids.ndim:
        raise ShapeError(
            f"needs one segment id for each element, got a single one for {data._type}"
        )
    if ids.ndim > 1:
        data, ids = _along_one_axis(data, ids, "segment ids")
    return data, ids


def _along_one_axis(data: Tensor, ids: Tensor, label: str) -> tuple[Tensor, Tensor]:
    """The first axes of the data, which are those of the ids, merged."""
    if data.shape[: ids.ndim] != ids.shape:
        raise ShapeError(
            f"{label} of {ids._type} for {data._type}",
            help=f"the shape of the {label} is that of the first axes of the data",
        )
    count = ids.size
    data = reshape(data, (count, *data.shape[ids.ndim :]))
    return data, reshape(ids, (count,))


def _integers(given: Any, label: str) -> Tensor:
    """Integers; an empty list has no dtype to speak of."""
    found = as_operand(given)
    if found.dtype.kind in "iu":
        return found
    if found.size == 0 and not hasattr(given, "dtype"):
        return cast(found, _INT64)
    raise DTypeError(
        f"{label} are integers, got {found._type}",
        help="convert them with .astype(tj.int64)",
    )


def _number_of_segments(ids: Tensor, given: Any) -> Any:
    if given is not None:
        return _count(given, "num_segments")
    if not ids.size:
        return 0
    largest = apply(ops.max, cast(ids, _INT64), axes=(0,), keepdims=False)
    needed = apply(ops.add, largest, weak_scalar(1, _INT64))
    needed = apply(ops.maximum, needed, weak_scalar(0, _INT64))
    return number_of(needed, "num_segments=None: the largest segment id")


def _count(given: Any, label: str) -> Any:
    """A number from 0 on, which may be a size that is open."""
    if isinstance(given, Tensor) and given.ndim == 0 and given.dtype.kind in "iu":
        count: Any = number_of(given, label)
    elif isinstance(given, Dim):
        return given
    else:
        try:
            count = operator.index(given)
        except TypeError:
            raise ArgumentTypeError(f"{label} is an integer, got {given!r}") from None
    if count < 0:
        raise ArgumentError(f"{label} cannot be negative, got {count}")
    return count


# Apart and together


@named
def dynamic_partition(data: Any, partitions: Any, num_partitions: Any) -> list[Tensor]:
    """The elements that have each of the numbers 0, 1, ..., in their order.

    `partitions` are integers below `num_partitions`, one for each element of the first
    axis of `data`, or of its first axes. In a function that is traced how many elements
    go where is a guard, as for boolean masks.

    >>> import tapejit as tj
    >>> low, high = tj.dynamic_partition(tj.asarray([1.0, 9.0, 2.0]), [0, 1, 0], 2)
    >>> print(low, high)
    [1. 2.] [9.]
    """
    data, ids = as_operand(data), _integers(partitions, "partitions")
    count = int(_count(num_partitions, "num_partitions"))
    name = "dynamic_partition"
    ids = apply(
        ops.checked_categories,
        ids,
        count=count,
        label="a partition",
        name=name,
        help="to drop elements, give them a partition of their own and leave it out",
    )
    data, ids = _along_one_axis(data, ids, "partitions")
    parts = []
    for number in range(count):
        chosen = true_positions(equal(ids, number), f"{name}: partition {number}")
        parts.append(take(data, chosen, axis=0))
    return parts


@named
def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any]) -> Tensor:
    """Elements of several tensors, each put where its index says.

    `data[k]` has the axes of `indices[k]`, and then some that are the same for all. The
    result has one more row than the largest index. Of several elements for one row the
    last one stays; a row without any is 0.

    >>> import tapejit as tj
    >>> print(tj.dynamic_stitch([[0, 2], [1]], [[1.0, 3.0], [2.0]]))
    [1. 2. 3.]
    """
    if len(indices) != len(data) or not len(data):
        raise ArgumentError(
            f"{len(indices)} tensors of indices for {len(data)} of data"
        )
    pairs = [
        _along_one_axis(as_operand(x), _integers(at, "indices"), "indices")
        for at, x in zip(indices, data, strict=True)
    ]
    kind = promote_all(x.dtype for x, _ in pairs)
    places = concat([cast(at, _INT64) for _, at in pairs])
    size = _number_of_rows(places)
    if size < 0:
        raise ArgumentError(f"takes no negative indices, got {size}")
    rows = [cast(x, kind) for x, _ in pairs]
    if any(x.shape[1:] != rows[0].shape[1:] for x in rows):
        shapes = ", ".join(str(x.shape[1:]) for x in rows)
        raise ShapeError(f"what is put has not one shape: {shapes}")
    nothing = zeros((size, *rows[0].shape[1:]), dtype=kind)
    sources = apply(ops.written_from, places, size=size)
    return apply(ops.gather, concat([nothing, *rows]), sources, axes=(0,))


def _number_of_rows(places: Tensor) -> int:
    """One more than the largest index, or the smallest if that is negative."""
    if not places.size:
        return 0
    one, nothing = weak_scalar(1, _INT64), weak_scalar(0, _INT64)
    least = apply(ops.min, places, axes=(0,), keepdims=False)
    most = apply(ops.max, places, axes=(0,), keepdims=False)
    is_wrong = apply(ops.less, least, nothing)
    needed = apply(ops.where, is_wrong, least, apply(ops.add, most, one))
    return number_of(needed, "dynamic_stitch: the largest index")
