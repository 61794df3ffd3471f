"""Selection: elements chosen by positions, by conditions, or by where they stand.

Positions that are tensors become one `gather`; those that follow from shapes alone,
such as a diagonal, a strided slice of the flattened matrix (one `gather` too where
sizes are left open). A triangle is chosen by a
mask, not by a product with one, so what lies outside of it may be infinite.

`insert` and `delete` let NumPy rearrange the numbers of the places instead of the
elements, and then read the elements from there: the result is NumPy's in every corner
and the gradient is that of reading.

Start reading at `take_along_axis`, then `diagonal`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit import ops
from tapejit.array.arrangement import moveaxis, ravel
from tapejit.array.at import At
from tapejit.array.creation import arange, zeros
from tapejit.array.elementwise import equal, logical_not, not_equal, where
from tapejit.array.indexing import as_index, getitem, not_indices, take, true_positions
from tapejit.array.manipulation import (
    as_axis,
    broadcast_to,
    concat,
    concrete,
    expand_dims,
    reshape,
    stretch,
)
from tapejit.base.dims import Dim
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
)
from tapejit.base.types import as_dtype, default_float
from tapejit.ops.indexing import check_range
from tapejit.tensor.device import beside
from tapejit.tensor.dispatch import apply, as_operand, cast, operands, weak_scalar
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.tensor.symbolic_size import largest, smallest
from tapejit.tensor.tensor import CONSTANT, Tensor, TracedTensor

# Along an axis


def take_along_axis(x: Any, indices: Any, /, axis: int | None = -1) -> Tensor:
    """One element per index, taken along `axis` from the slice the index stands at.

    The other axes broadcast. Made for what `argmax` and `argsort` give.

    >>> import tapejit as tj
    >>> x = tj.asarray([[3.0, 1.0], [2.0, 9.0]])
    >>> print(tj.take_along_axis(x, tj.argmax(x, axis=1, keepdims=True), axis=1))
    [[3.]
     [9.]]
    """
    x, grid = _grid(x, indices, axis, "take_along_axis")
    return apply(ops.gather, x, *grid, axes=tuple(range(x.ndim)))


def put_along_axis(
    x: Any, indices: Any, values: Any, /, axis: int | None = -1
) -> Tensor:
    """A copy of `x` with `values` where `take_along_axis` would read.

    Unlike NumPy's it changes nothing in place. Of several values for one place the
    last one stays.

    >>> import tapejit as tj
    >>> x = tj.asarray([[3.0, 1.0], [2.0, 9.0]])
    >>> print(tj.put_along_axis(x, [[0], [1]], 0.0, axis=1))
    [[0. 1.]
     [2. 0.]]
    """
    shape = as_operand(x, "put_along_axis").shape
    x, grid = _grid(x, indices, axis, "put_along_axis")
    return reshape(At(x)[tuple(grid)].set(values), shape)


def _grid(
    x: Any, indices: Any, axis: int | None, name: str
) -> tuple[Tensor, list[Tensor]]:
    """The tensor and one index per axis of it."""
    x, index = as_operand(x, name), as_index(indices, name)
    if index.dtype.kind not in "iu":
        raise not_indices(index, name, x)
    if axis is None:
        x, axis = ravel(x), 0
    if index.ndim != x.ndim:
        raise ShapeError(
            f"indices of {index._type} for {x._type}",
            op=name,
            help="give as many axes as the tensor has, of size one where it is shared",
        )
    at = as_axis(axis, x.ndim, name)
    grid = []
    for other, size in enumerate(x.shape):
        shape = tuple(size if here == other else 1 for here in range(x.ndim))
        grid.append(index if other == at else reshape(_places(size), shape))
    return x, grid


def _places(count: Any, first: Any = 0) -> Tensor:
    """As many integers from the first on."""
    if isinstance(count, Dim) or isinstance(first, Dim):
        return arange(first, first + count, dtype="int64")
    return Tensor(np.arange(first, first + count), CONSTANT)


@with_hints
def one_hot(x: Any, num_classes: int, /, axis: int = -1, dtype: Any = None) -> Tensor:
    """1 at the class that each integer names, 0 elsewhere, along a new axis.

    An integer that names no class gives zeros.

    >>> import tapejit as tj
    >>> print(tj.one_hot(tj.asarray([2, 0]), 3))
    [[0. 0. 1.]
     [1. 0. 0.]]
    """
    x = as_operand(x, "one_hot")
    if x.dtype.kind not in "iub":
        raise DTypeError(
            f"classes are integers, got {x._type}",
            op="one_hot",
            help="convert them with .astype(tj.int64)",
        )
    count = operator.index(num_classes)
    if count < 0:
        raise ArgumentError(f"cannot have {count} classes", op="one_hot")
    at = as_axis(axis, x.ndim + 1, "one_hot")
    classes = np.arange(count).reshape(-1, *(1,) * (x.ndim - at))
    kind = default_float() if dtype is None else as_dtype(dtype)
    # In 64 bits: three hundred classes do not fit the dtype of a uint8 label.
    labels = cast(expand_dims(x, axis=at), np.dtype(np.int64))
    return cast(equal(labels, Tensor(classes, CONSTANT)), kind)


# By conditions


def select(
    condlist: Sequence[Any], choicelist: Sequence[Any], /, default: Any = 0
) -> Tensor:
    """Per element the choice of the first condition that holds, else `default`.

    >>> import tapejit as tj
    >>> x = tj.asarray([-2.0, 0.5, 3.0])
    >>> print(tj.select([x < 0, x < 1], [-1.0, x * 10], 7.0))
    [-1.  5.  7.]
    """
    if len(condlist) != len(choicelist):
        raise ArgumentError(
            f"{len(condlist)} conditions for {len(choicelist)} choices", op="select"
        )
    if not condlist:
        raise ArgumentError("needs at least one condition", op="select")
    conditions = [as_operand(condition, "select") for condition in condlist]
    for condition in conditions:
        if condition.dtype.kind != "b":
            raise DTypeError(
                f"conditions are bools, got {condition._type}",
                op="select",
                help="compare them with something",
            )
    *choices, out = operands([*choicelist, default], "select")
    for condition, choice in reversed(list(zip(conditions, choices, strict=True))):
        out = where(condition, choice, out)
    return out


def compress(condition: Any, x: Any, /, axis: int | None = None) -> Tensor:
    """The slices along `axis` at which a vector of bools is True.

    A condition shorter than the axis leaves out the rest of it.

    >>> import tapejit as tj
    >>> print(tj.compress([True, False, True], tj.asarray([1.0, 2.0, 3.0])))
    [1. 3.]
    """
    x = as_operand(x, "compress")
    if axis is None:
        x, axis = ravel(x), 0
    mask = as_operand(condition, "compress")
    if mask.ndim != 1:
        raise ShapeError(f"the condition is a vector, got {mask.shape}", op="compress")
    if mask.dtype.kind != "b":
        mask = not_equal(mask, 0)
    chosen = true_positions(mask, "compress: the condition")
    return take(x, chosen, axis=as_axis(axis, x.ndim, "compress"))


# Triangles and diagonals


def tril(x: Any, /, k: int = 0) -> Tensor:
    """The lower triangle of each matrix, zero above diagonal `k`.

    >>> import tapejit as tj
    >>> print(tj.tril(tj.asarray([[1, 2], [3, 4]])))
    [[1 0]
     [3 4]]
    """
    x = _matrices(x, "tril")
    return _masked(x, _on_or_below(x, operator.index(k)))


def triu(x: Any, /, k: int = 0) -> Tensor:
    """The upper triangle of each matrix, zero below diagonal `k`.

    >>> import tapejit as tj
    >>> print(tj.triu(tj.asarray([[1, 2], [3, 4]])))
    [[1 2]
     [0 4]]
    """
    x = _matrices(x, "triu")
    return _masked(x, ~_on_or_below(x, operator.index(k) - 1))


def _matrices(value: Any, name: str) -> Tensor:
    x = as_operand(value, name)
    if x.ndim < 2:
        raise ShapeError(f"takes matrices, got {x._type}", op=name)
    return x


def _on_or_below(x: Tensor, k: int) -> Any:
    """Which elements of a matrix are not above diagonal `k`, however far that is."""
    rows, columns = x.shape[-2:]
    if isinstance(rows, Dim) or isinstance(columns, Dim):
        from tapejit.array.creation import arange

        row = arange(rows, dtype="int64")[:, None]
        return arange(columns, dtype="int64") <= row + k
    below = np.tri(rows, columns, max(-rows, min(k, columns)), dtype=bool)
    return beside(below, x)


def _masked(x: Tensor, mask: Any) -> Tensor:
    return apply(ops.where, as_operand(mask), x, weak_scalar(0, x.dtype))


def diagonal(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonals of the matrices in two axes, along the last axis of the result.

    >>> import tapejit as tj
    >>> print(tj.diagonal(tj.asarray([[1, 2], [3, 4]])))
    [1 4]
    >>> print(tj.diagonal(tj.asarray([[1, 2], [3, 4]]), 1))
    [2]
    """
    x = _matrices(x, "diagonal")
    axes = [as_axis(at, x.ndim, "diagonal") for at in (axis1, axis2)]
    if axes[0] == axes[1]:
        raise AxisError(f"axis {axis1} is given twice", op="diagonal")
    x = moveaxis(x, axes, (-2, -1))
    *front, rows, columns = x.shape
    offset = operator.index(offset)
    row, column = max(-offset, 0), max(offset, 0)
    count = largest(smallest(rows - row, columns - column), 0)
    if isinstance(columns, Dim) or isinstance(count, Dim):
        return getitem(x, (..., _places(count, row), _places(count, column)))
    flat = reshape(x, (*front, rows * columns))
    # Along the flattened matrix the next element of the diagonal is a row further on,
    # and one.
    start = row * columns + column if count else 0
    stop = start + (count - 1) * (columns + 1) + 1 if count else 0
    return apply(
        ops.slice,
        flat,
        starts=(*[0] * len(front), start),
        stops=(*front, stop),
        steps=(*[1] * len(front), columns + 1),
    )


def diag(x: Any, /, k: int = 0) -> Tensor:
    """A vector as diagonal `k` of a square matrix, or that diagonal of a matrix.

    >>> import tapejit as tj
    >>> print(tj.diag(tj.asarray([1, 2])))
    [[1 0]
     [0 2]]
    >>> print(tj.diag(tj.asarray([[1, 2], [3, 4]]), k=-1))
    [3]
    """
    x = as_operand(x, "diag")
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(
            f"takes a vector or a matrix, got {x._type}",
            op="diag",
            help="tj.diagonal takes the diagonals of many matrices",
        )
    k = operator.index(k)
    size = x.size + abs(k)
    if isinstance(size, Dim):
        places = (_places(x.size, max(-k, 0)), _places(x.size, max(k, 0)))
        return At(zeros((size, size), dtype=x.dtype))[places].set(x)
    start = max(-k, 0) * size + max(k, 0) if x.size else 0
    flat = apply(ops.place, x, shape=(size * size,), starts=(start,), steps=(size + 1,))
    return reshape(flat, (size, size))


def diagflat(x: Any, /, k: int = 0) -> Tensor:
    """All elements as diagonal `k` of a square matrix.

    >>> import tapejit as tj
    >>> tj.diagflat(tj.zeros((2, 2)), 1).shape
    (5, 5)
    """
    return diag(ravel(x), k)


# Less and more


def delete(x: Any, obj: Any, /, axis: int | None = None) -> Tensor:
    """Without the slices that an integer, a slice, integers or a mask name.

    >>> import tapejit as tj
    >>> print(tj.delete(tj.asarray([1.0, 2.0, 3.0]), [0, -1]))
    [2.]
    """
    x = as_operand(x, "delete")
    if axis is None:
        x, axis = ravel(x), 0
    at = as_axis(axis, x.ndim, "delete")
    size = x.shape[at]
    if isinstance(obj, TracedTensor):
        is_mask = obj.dtype.kind == "b" and obj.shape == (size,)
        if is_mask or obj.dtype.kind in "iu":
            return take(x, _kept_traced(obj, size), axis=at)
    named = _named(obj)
    if isinstance(size, Dim) and not isinstance(named, slice):
        numbers = np.asarray(named)
        if numbers.dtype.kind in "iu":
            return _without(x, [int(n) for n in numbers.ravel()], at)
    if isinstance(named, np.ndarray) and named.dtype.kind in "iu":
        check_range((size,), (named,), (0,))
    kept = _rearranged(np.delete, "delete", np.arange(size), named)
    return take(x, Tensor(kept, CONSTANT), axis=at)


def _without(x: Tensor, gone: list[int], axis: int) -> Tensor:
    """What is left along an axis whose size varies, piece by piece."""
    size = x.shape[axis]
    for place in gone:
        if not -size <= place < size:
            check_range((int(size),), (np.asarray(place),), (0,))
    pieces = []
    start: Any = 0
    for place in sorted(place if place >= 0 else size + place for place in gone):
        if place >= start:  # else it was named twice
            pieces.append(stretch(x, start, place, axis))
            start = place + 1
    return concat([*pieces, stretch(x, start, size, axis)], axis=axis)


def _kept_traced(obj: Tensor, size: Any) -> Tensor:
    """What is left without the elements that a mask or integers name."""
    goes = obj
    if obj.dtype.kind != "b":
        goes = At(zeros(size, dtype="bool"))[ravel(obj)].set(True)
    return true_positions(logical_not(goes), "obj: which slices")


def insert(x: Any, obj: Any, values: Any, /, axis: int | None = None) -> Tensor:
    """With `values` before the positions that an integer, a slice or integers name.

    >>> import tapejit as tj
    >>> print(tj.insert(tj.asarray([1.0, 2.0, 3.0]), 1, 9.0))
    [1. 9. 2. 3.]
    """
    x, given = as_operand(x, "insert"), as_operand(values, "insert")
    if axis is None:
        x, axis = ravel(x), 0
    at = as_axis(axis, x.ndim, "insert")
    given = cast(given, x.dtype)
    size = x.shape[at]
    if isinstance(size, Dim) and type(obj) is int and given.ndim <= x.ndim:
        return _with(x, obj, given, at)
    places = np.arange(x.size).reshape(x.shape)
    more = np.arange(x.size, x.size + given.size).reshape(given.shape)
    sources = _rearranged(np.insert, "insert", places, _named(obj), more, axis=at)
    whole = concat([ravel(x), ravel(given)])
    return apply(ops.gather, whole, Tensor(sources, CONSTANT), axes=(0,))


def _with(x: Tensor, place: int, given: Tensor, axis: int) -> Tensor:
    """With more before a place on an axis whose size varies."""
    size = x.shape[axis]
    if not -size <= place <= size:
        raise OutOfRangeError(
            f"index {place} is out of bounds for axis {axis} with size {size}",
            op="insert",
        )
    given = reshape(given, (*(1,) * (x.ndim - given.ndim), *given.shape))
    given = moveaxis(given, 0, axis)
    shape = [given.shape[at] if at == axis else n for at, n in enumerate(x.shape)]
    start = place if place >= 0 else size + place
    before, behind = stretch(x, 0, start, axis), stretch(x, start, size, axis)
    return concat([before, broadcast_to(given, shape), behind], axis=axis)


def _named(obj: Any) -> Any:
    """Which slices are meant, as NumPy takes it."""
    if isinstance(obj, (slice, int)):
        return obj
    return concrete(obj, "obj", "which slices") if np.shape(obj) != (0,) else []


def _rearranged(
    function: Callable[..., Any], name: str, *arguments: Any, **options: Any
) -> Any:
    """What a NumPy function makes of the numbers of the places."""
    try:
        return function(*arguments, **options)
    except IndexError as error:
        raise OutOfRangeError(str(error), op=name) from None
    except ValueError as error:
        raise ArgumentError(str(error), op=name) from None
    except TypeError as error:
        raise ArgumentTypeError(str(error), op=name) from None
