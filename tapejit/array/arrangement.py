"""Arrangement: the same elements in other places.

Nothing here computes. Every function is made of reshape, permute_dims, broadcast_to,
slice and concat, so its gradient is theirs: an element receives the cotangents of all
its copies. Splitting gives slices, rolling joins two of them, repeating broadcasts
along a new axis that is then merged with its neighbour.

Names and parameters are those of the array API standard where it has the function,
NumPy's otherwise.

Start reading at `roll`, then `repeat` and `array_split`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit import ops
from tapejit.array.indexing import number_of
from tapejit.array.manipulation import (
    as_axis,
    as_shape,
    broadcast_to,
    concat,
    flip,
    permute_dims,
    reshape,
    stretch,
)
from tapejit.base.dims import Dim, Shape
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    ShapeError,
)
from tapejit.base.types import TensorType
from tapejit.ops.shapes import broadcast_shapes as broadcast_types
from tapejit.tensor.dispatch import alias, apply, as_operand, cast, weak_scalar
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.tensor.tensor import CONSTANT, Tensor, TracedTensor

# The order of axes


def moveaxis(x: Any, source: Any, destination: Any, /) -> Tensor:
    """Some axes moved to other places; the rest keep their order.

    >>> import tapejit as tj
    >>> tj.moveaxis(tj.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_operand(x, "moveaxis")
    sources, places = (
        [as_axis(at, x.ndim, "moveaxis") for at in as_shape(given, "moveaxis")]
        for given in (source, destination)
    )
    if len(sources) != len(places):
        raise ArgumentError(
            f"moves {len(sources)} axes to {len(places)} places",
            op="moveaxis",
            help="give one destination per axis",
        )
    for axes in (sources, places):
        if len(set(axes)) != len(axes):
            raise AxisError(f"an axis is given twice in {axes}", op="moveaxis")
    order = [at for at in range(x.ndim) if at not in sources]
    for place, at in sorted(zip(places, sources, strict=True)):
        order.insert(place, at)
    return permute_dims(x, order)


def swapaxes(x: Any, axis1: int, axis2: int, /) -> Tensor:
    """Two axes exchanged.

    >>> import tapejit as tj
    >>> tj.swapaxes(tj.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = as_operand(x, "swapaxes")
    first, second = (as_axis(at, x.ndim, "swapaxes") for at in (axis1, axis2))
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return permute_dims(x, order)


def rot90(x: Any, /, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by 90 degrees `k` times, from the first of `axes` towards the second.

    >>> import tapejit as tj
    >>> print(tj.rot90(tj.asarray([[1, 2], [3, 4]])))
    [[2 4]
     [1 3]]
    """
    x = as_operand(x, "rot90")
    plane = [as_axis(at, x.ndim, "rot90") for at in axes]
    if len(plane) != 2 or plane[0] == plane[1]:
        raise AxisError(f"turns in a plane of two axes, got {tuple(axes)}", op="rot90")
    turns = operator.index(k) % 4
    if turns == 0:
        return alias(x)
    if turns == 2:
        return flip(x, axis=plane)
    if turns == 1:
        return swapaxes(flip(x, axis=plane[1]), *plane)
    return flip(swapaxes(x, *plane), axis=plane[1])


# Rolling and repeating


def roll(x: Any, /, shift: Any, axis: Any = None) -> Tensor:
    """Shifted along an axis; what leaves at one end comes in at the other.

    Without an axis the elements are shifted in the flattened order. Several axes take
    one shift each, or one for all.

    >>> import tapejit as tj
    >>> print(tj.roll(tj.asarray([1, 2, 3, 4]), 1))
    [4 1 2 3]
    >>> print(tj.roll(tj.asarray([[1, 2], [3, 4]]), (1, 1), axis=(0, 1)))
    [[4 3]
     [2 1]]
    """
    x = as_operand(x, "roll")
    shifts = as_shape(shift, "roll")
    if axis is None:
        flat = roll(reshape(x, (-1,)), sum(shifts), axis=0)
        return reshape(flat, x.shape)
    axes = [as_axis(at, x.ndim, "roll") for at in as_shape(axis, "roll")]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ArgumentError(
            f"{len(shifts)} shifts for {len(axes)} axes",
            op="roll",
            help="give one shift per axis, or one for all",
        )
    count = max(len(shifts), len(axes)) if shifts and axes else 0
    totals = [0] * x.ndim
    for i in range(count):
        totals[axes[i % len(axes)]] += shifts[i % len(shifts)]
    out = alias(x)
    for at, (total, size) in enumerate(zip(totals, x.shape, strict=True)):
        start = -total % size if size else 0
        if start:
            tail, head = stretch(out, start, size, at), stretch(out, 0, start, at)
            out = concat([tail, head], axis=at)
    return out


@with_hints
def tile(x: Any, repetitions: Any, /) -> Tensor:
    """Copies laid side by side, so many along each axis.

    >>> import tapejit as tj
    >>> print(tj.tile(tj.asarray([1, 2]), (2, 2)))
    [[1 2 1 2]
     [1 2 1 2]]
    """
    x = as_operand(x, "tile")
    counts = as_shape(repetitions, "tile")
    if any(count < 0 for count in counts):
        raise ArgumentError(f"a count is negative in {counts}", op="tile")
    rank = max(len(counts), x.ndim)
    counts = (1,) * (rank - len(counts)) + counts
    sizes = (1,) * (rank - x.ndim) + x.shape
    if all(count == 1 for count in counts):
        return reshape(x, sizes)
    pairs = list(zip(counts, sizes, strict=True))
    apart = reshape(x, tuple(size for pair in pairs for size in (1, pair[1])))
    whole = broadcast_to(apart, tuple(size for pair in pairs for size in pair))
    return reshape(whole, tuple(count * size for count, size in pairs))


def repeat(x: Any, repeats: Any, /, axis: int | None = None) -> Tensor:
    """Each element several times in a row.

    `repeats` is one count for all, or one per element along `axis`. Without an axis
    the elements are taken in the flattened order.

    >>> import tapejit as tj
    >>> print(tj.repeat(tj.asarray([1, 2, 3]), 2))
    [1 1 2 2 3 3]
    >>> print(tj.repeat(tj.asarray([1, 2, 3]), [0, 1, 3]))
    [2 3 3 3]
    """
    x = as_operand(x, "repeat")
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    at = as_axis(axis, x.ndim, "repeat")
    given = as_operand(repeats, "repeat")
    if isinstance(given, TracedTensor):
        return _repeat_traced(x, given, at)
    counts = np.asarray(given._value)
    _check_counts(x, given, at)
    if counts.size and counts.min() < 0:
        raise _negative_count()
    if counts.size == 1:
        return _repeat_all(x, int(counts.reshape(())), at)
    rows = np.repeat(np.arange(x.shape[at]), counts.astype(np.intp))
    sources = Tensor(rows, CONSTANT)
    out = apply(ops.gather, x, sources, axes=(at,))
    return moveaxis(out, 0, at)


def _repeat_traced(x: Tensor, counts: Tensor, axis: int) -> Tensor:
    """The number of all copies has to be known, -1 for counts that are wrong."""
    _check_counts(x, counts, axis)
    each = cast(ravel(counts), np.dtype("int64"))
    nothing, wrong = (weak_scalar(number, each.dtype) for number in (0, -1))
    is_wrong = apply(ops.any, apply(ops.less, each, nothing), axes=(0,), keepdims=False)
    total = apply(ops.sum, each, axes=(0,), keepdims=False)
    size = number_of(apply(ops.where, is_wrong, wrong, total), "repeat: the counts")
    if size < 0:
        raise _negative_count()
    if each.size == 1:
        return _repeat_all(x, size, axis)
    ends = apply(ops.cumulative_sum, each, axis=0)
    places = Tensor(np.arange(size), CONSTANT)
    sources = apply(ops.searchsorted, ends, places, side="right")
    return moveaxis(apply(ops.gather, x, sources, axes=(axis,)), 0, axis)


def _negative_count() -> ArgumentError:
    return ArgumentError("a count is negative", op="repeat")


def _check_counts(x: Tensor, counts: Tensor, at: int) -> None:
    if counts.dtype.kind not in "iub":
        raise ArgumentTypeError(
            f"the counts are integers, got {counts.dtype}", op="repeat"
        )
    if counts.size != 1 and counts.shape != (x.shape[at],):
        raise ShapeError(
            f"counts of shape {counts.shape} for {x.shape[at]} elements along axis "
            f"{at} of {x._type}",
            op="repeat",
            help="give one count for all, or one per element",
        )


def _repeat_all(x: Tensor, count: int, axis: int) -> Tensor:
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    apart = reshape(x, (*before, size, 1, *after))
    whole = broadcast_to(apart, (*before, size, count, *after))
    return reshape(whole, (*before, size * count, *after))


# Taking apart


def unstack(x: Any, /, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, which they lack.

    >>> import tapejit as tj
    >>> first, second = tj.unstack(tj.asarray([[1, 2], [3, 4]]), axis=1)
    >>> print(first, second)
    [1 3] [2 4]
    """
    x = as_operand(x, "unstack")
    at = as_axis(axis, x.ndim, "unstack")
    left = (*x.shape[:at], *x.shape[at + 1 :])
    return tuple(
        reshape(stretch(x, i, i + 1, at), left) for i in range(int(x.shape[at]))
    )


def array_split(x: Any, indices_or_sections: Any, /, axis: int = 0) -> list[Tensor]:
    """Cut along an axis: into so many nearly equal parts, or at the given positions.

    >>> import tapejit as tj
    >>> [part.tolist() for part in tj.array_split(tj.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    >>> [part.tolist() for part in tj.array_split(tj.arange(5), [1, 4])]
    [[0], [1, 2, 3], [4]]
    """
    return _split(x, indices_or_sections, axis, "array_split", is_equal=False)


@with_hints
def split(x: Any, indices_or_sections: Any, /, axis: int = 0) -> list[Tensor]:
    """Cut along an axis: into so many equal parts, or at the given positions.

    >>> import tapejit as tj
    >>> [part.tolist() for part in tj.split(tj.arange(4), 2)]
    [[0, 1], [2, 3]]
    >>> [part.tolist() for part in tj.split(tj.arange(4), [3])]
    [[0, 1, 2], [3]]
    """
    return _split(x, indices_or_sections, axis, "split", is_equal=True)


def vsplit(x: Any, indices_or_sections: Any, /) -> list[Tensor]:
    """`split` along the first axis of a tensor of rank 2 or more.

    >>> import tapejit as tj
    >>> [part.shape for part in tj.vsplit(tj.zeros((4, 3)), 2)]
    [(2, 3), (2, 3)]
    """
    x = _of_rank(x, 2, "vsplit")
    return _split(x, indices_or_sections, 0, "vsplit", is_equal=True)


def hsplit(x: Any, indices_or_sections: Any, /) -> list[Tensor]:
    """`split` along the second axis, the first of a vector.

    >>> import tapejit as tj
    >>> [part.shape for part in tj.hsplit(tj.zeros((4, 3)), [1])]
    [(4, 1), (4, 2)]
    """
    x = _of_rank(x, 1, "hsplit")
    axis = 1 if x.ndim > 1 else 0
    return _split(x, indices_or_sections, axis, "hsplit", is_equal=True)


def dsplit(x: Any, indices_or_sections: Any, /) -> list[Tensor]:
    """`split` along the third axis.

    >>> import tapejit as tj
    >>> [part.shape for part in tj.dsplit(tj.zeros((4, 3, 2)), 2)]
    [(4, 3, 1), (4, 3, 1)]
    """
    x = _of_rank(x, 3, "dsplit")
    return _split(x, indices_or_sections, 2, "dsplit", is_equal=True)


def _of_rank(value: Any, rank: int, name: str) -> Tensor:
    x = as_operand(value, name)
    if x.ndim < rank:
        raise ShapeError(f"takes rank {rank} or more, got {x._type}", op=name)
    return x


def _split(x: Any, given: Any, axis: int, name: str, *, is_equal: bool) -> list[Tensor]:
    x = as_operand(x, name)
    at = as_axis(axis, x.ndim, name)
    size = x.shape[at]
    try:
        count = operator.index(given)
    except TypeError:
        cuts = as_shape(given, name)
        bounds = zip((0, *cuts), (*cuts, size), strict=True)
        if isinstance(size, Dim):
            front = (slice(None),) * at
            return [x[(*front, slice(start, stop))] for start, stop in bounds]
        ranges = [slice(*pair).indices(size)[:2] for pair in bounds]
    else:
        ranges = _equal_parts(count, size, name, is_equal)
    return [stretch(x, start, max(start, stop), at) for start, stop in ranges]


def _equal_parts(
    count: int, size: int, name: str, is_equal: bool
) -> list[tuple[int, int]]:
    if count <= 0:
        raise ArgumentError(f"cannot make {count} parts", op=name)
    each, longer = divmod(size, count)
    if is_equal and longer:
        raise ArgumentError(
            f"{size} elements do not divide into {count} equal parts",
            op=name,
            help="tj.array_split makes nearly equal ones",
        )
    lengths = [each + (part < longer) for part in range(count)]
    stops = [sum(lengths[: part + 1]) for part in range(count)]
    return list(zip((0, *stops), stops, strict=False))


# Putting together


def ravel(x: Any, /) -> Tensor:
    """All elements along one axis.

    >>> import tapejit as tj
    >>> print(tj.ravel(tj.asarray([[1, 2], [3, 4]])))
    [1 2 3 4]
    """
    return reshape(x, (-1,))


def atleast_1d(*arrays: Any) -> Any:
    """With one axis or more; several tensors give a tuple.

    >>> import tapejit as tj
    >>> tj.atleast_1d(3.0).shape
    (1,)
    """
    return _each([_widened(x, 1) for x in arrays])


def atleast_2d(*arrays: Any) -> Any:
    """With two axes or more: a vector becomes a row.

    >>> import tapejit as tj
    >>> tj.atleast_2d(tj.zeros(3)).shape
    (1, 3)
    """
    return _each([_widened(x, 2) for x in arrays])


def atleast_3d(*arrays: Any) -> Any:
    """With three axes or more: a matrix gets a last axis, a vector one on each side.

    >>> import tapejit as tj
    >>> tj.atleast_3d(tj.zeros(3)).shape, tj.atleast_3d(tj.zeros((2, 3))).shape
    ((1, 3, 1), (2, 3, 1))
    """
    return _each([_deepened(x) for x in arrays])


def _each(tensors: list[Tensor]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _widened(x: Any, rank: int) -> Tensor:
    x = as_operand(x, f"atleast_{rank}d")
    return reshape(x, (1,) * (rank - x.ndim) + x.shape)


def _deepened(x: Any) -> Tensor:
    x = as_operand(x, "atleast_3d")
    shape = (1, *x.shape) if x.ndim == 1 else x.shape
    return reshape(x, (*shape, *(1,) * (3 - len(shape))))


@with_hints
def vstack(arrays: Sequence[Any], /) -> Tensor:
    """One below the other; vectors are rows.

    >>> import tapejit as tj
    >>> print(tj.vstack([tj.asarray([1, 2]), tj.asarray([3, 4])]))
    [[1 2]
     [3 4]]
    """
    return concat([_widened(x, 2) for x in arrays], axis=0)


@with_hints
def hstack(arrays: Sequence[Any], /) -> Tensor:
    """Side by side: along the second axis, vectors along the first.

    >>> import tapejit as tj
    >>> print(tj.hstack([tj.asarray([1, 2]), tj.asarray([3, 4])]))
    [1 2 3 4]
    """
    parts = [_widened(x, 1) for x in arrays]
    return concat(parts, axis=0 if parts and parts[0].ndim == 1 else 1)


@with_hints
def dstack(arrays: Sequence[Any], /) -> Tensor:
    """One behind the other, along the third axis.

    >>> import tapejit as tj
    >>> tj.dstack([tj.zeros((2, 3)), tj.ones((2, 3))]).shape
    (2, 3, 2)
    """
    return concat([_deepened(x) for x in arrays], axis=2)


def column_stack(arrays: Sequence[Any], /) -> Tensor:
    """Vectors as the columns of a matrix, matrices side by side.

    >>> import tapejit as tj
    >>> print(tj.column_stack([tj.asarray([1, 2]), tj.asarray([3, 4])]))
    [[1 3]
     [2 4]]
    """
    columns = []
    for x in arrays:
        x = as_operand(x, "column_stack")
        columns.append(reshape(x, (x.size, 1)) if x.ndim < 2 else x)
    return concat(columns, axis=1)


def append(x: Any, values: Any, /, axis: int | None = None) -> Tensor:
    """`values` after `x` along an axis; both flattened if none is given.

    >>> import tapejit as tj
    >>> print(tj.append(tj.asarray([1, 2]), [3, 4]))
    [1 2 3 4]
    """
    return concat([x, values], axis=axis)


# Broadcasting


def broadcast_shapes(*shapes: Any) -> Shape:
    """The shape that tensors of these shapes broadcast to.

    >>> import tapejit as tj
    >>> tj.broadcast_shapes((3, 1), (4,), 1)
    (3, 4)
    """
    if not shapes:
        return ()
    given = [as_shape(shape, "broadcast_shapes") for shape in shapes]
    try:
        return broadcast_types(*(TensorType(np.dtype(bool), s) for s in given))
    except ShapeError as error:
        text = " with ".join(map(str, given))
        raise ShapeError(
            f"cannot broadcast {text}", op="broadcast_shapes", help=error.help
        ) from None


def broadcast_arrays(*arrays: Any) -> tuple[Tensor, ...]:
    """The tensors repeated to the shape they broadcast to; each keeps its dtype.

    >>> import tapejit as tj
    >>> [x.shape for x in tj.broadcast_arrays(tj.zeros((3, 1)), tj.zeros(4))]
    [(3, 4), (3, 4)]
    """
    tensors = [as_operand(x, "broadcast_arrays") for x in arrays]
    if not tensors:
        return ()
    try:
        shape = broadcast_types(*(TensorType(x.dtype, x.shape) for x in tensors))
    except ShapeError as error:
        error.op = "broadcast_arrays"
        raise
    return tuple(broadcast_to(x, shape) for x in tensors)


def meshgrid(
    *arrays: Any, indexing: str = "xy", sparse: bool = False
) -> tuple[Tensor, ...]:
    """Coordinates of a grid from the coordinates along its axes.

    `indexing="xy"` gives the first array the second axis, as for x and y of a plot;
    `"ij"` keeps the order. A sparse grid has size one along the other axes.

    >>> import tapejit as tj
    >>> x, y = tj.meshgrid(tj.asarray([1, 2, 3]), tj.asarray([10, 20]))
    >>> print(y)
    [[10 10 10]
     [20 20 20]]
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(
            f"indexing is 'xy' or 'ij', got {indexing!r}", op="meshgrid"
        )
    tensors = [as_operand(x, "meshgrid") for x in arrays]
    for x in tensors:
        if x.ndim > 1:
            raise ShapeError(f"takes vectors, got {x._type}", op="meshgrid")
    places = list(range(len(tensors)))
    if indexing == "xy":
        places[:2] = places[:2][::-1]
    grid = []
    for place, x in zip(places, tensors, strict=True):
        shape = tuple(x.size if at == place else 1 for at in range(len(tensors)))
        grid.append(reshape(x, shape))
    return tuple(grid) if sparse else broadcast_arrays(*grid)
