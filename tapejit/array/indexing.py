"""Indexing: NumPy's, basic and advanced.

A basic index (ints, slices, `...`, None) becomes slice, flip and reshape. Integer
arrays become one `gather` over the axes they index; a boolean mask is turned into the
positions of its True elements first. A single bool is a mask of no axes: it indexes a
new axis of size one.

Start reading at `getitem`.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tapejit import ops
from tapejit.array.manipulation import broadcast_to, permute_dims, reshape
from tapejit.base.dims import Dim
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    OutOfRangeError,
    ShapeError,
    TapejitError,
    UnsupportedError,
)
from tapejit.ops.basic_index import BasicIndex, plan_basic_index
from tapejit.ops.indexing import axes_to_front
from tapejit.ops.shapes import normalize_axis
from tapejit.tensor.device import beside
from tapejit.tensor.dispatch import apply, as_operand, cast, operands, weak_scalar
from tapejit.tensor.symbolic_size import TracedSize, plain_shape
from tapejit.tensor.tensor import CONSTANT, Tensor, TracedTensor


def getitem(x: Any, key: Any) -> Tensor:
    """`x[key]`."""
    x = as_operand(x, "getitem")
    try:
        plan = _planned(key, x.shape)
        if plan is not None:
            return _basic(x, plan)
        return _advanced(x, key if isinstance(key, tuple) else (key,))
    except TapejitError as error:
        error.op = error.op or "getitem"
        raise


def _planned(key: Any, shape: tuple[Any, ...]) -> BasicIndex | None:
    """The plan of a basic index, None if it is advanced.

    A plan may be symbolic, but whether an integer is inside its axis is a question
    about the actual size.
    """
    symbolic = [size for size in shape if type(size) is TracedSize]
    if not symbolic:
        return plan_basic_index(key, shape)
    sizes = plain_shape(shape)
    try:
        plan = plan_basic_index(_plain_key(key), sizes)
    except UnsupportedError:  # not whatever the size is
        return plan_basic_index(key, tuple([int(size) for size in shape]))
    if plan is not None:
        facts = symbolic[0]._facts
        for start, stop, size in zip(plan.starts, plan.stops, sizes, strict=True):
            is_inside = facts.decide(-start, ops.less_equal)
            if not (is_inside and facts.decide(stop - size, ops.less_equal)):
                return plan_basic_index(key, tuple([int(size) for size in shape]))
    return plan


def _plain_key(key: Any) -> Any:
    """A basic index with the sizes in it as they are without a trace."""
    if isinstance(key, tuple):
        return tuple([_plain_key(entry) for entry in key])
    if isinstance(key, slice):
        bounds = (key.start, key.stop, key.step)
        return slice(*[x.now() if type(x) is TracedSize else x for x in bounds])
    return key.now() if type(key) is TracedSize else key


def _basic(x: Tensor, plan: BasicIndex) -> Tensor:
    whole = plan.stops == plain_shape(x.shape) and not any(
        start != 0 for start in plan.starts
    )
    if not whole or any(step != 1 for step in plan.steps):
        x = apply(ops.slice, x, starts=plan.starts, stops=plan.stops, steps=plan.steps)
    if plan.flips:
        x = apply(ops.flip, x, axes=plan.flips)
    return reshape(x, plan.shape)


def _advanced(x: Tensor, key: tuple[Any, ...]) -> Tensor:
    """Slices first, then one gather over the axes that arrays index.

    The axes of the index arrays stand where the arrays stood if those are next to
    each other, in front otherwise.
    """
    entries = _expanded(x, key)
    basic: list[Any] = []
    indices: list[Tensor] = []
    axes: list[int] = []
    places: list[int] = []
    for place, entry in enumerate(entries):
        if isinstance(entry, Tensor):
            axes.append(len(basic))
            indices.append(entry)
            places.append(place)
            basic.append(slice(None))
        elif isinstance(entry, _MaskPart):  # of no axes: it indexes one of its own
            axes.append(len(basic))
            indices.append(entry.positions)
            places.append(place)
            basic.append(None)
        elif entry is not Ellipsis:
            basic.append(entry)
    plan = _planned(tuple(basic), x.shape)
    assert plan is not None
    y = _basic(x, plan)
    try:
        out = apply(ops.gather, y, *indices, axes=tuple(axes))
    except ShapeError as error:
        raise OutOfRangeError(error.message, help=error.help) from None
    rank = max(index.ndim for index in indices)
    if places != list(range(places[0], places[-1] + 1)) or axes[0] == 0:
        return out
    front, rest = range(rank), list(range(rank, out.ndim))
    before, after = rest[: axes[0]], rest[axes[0] :]
    return permute_dims(out, (*before, *front, *after))


def _expanded(x: Tensor, key: tuple[Any, ...]) -> list[Any]:
    """One entry per axis (None adds one), arrays as integer tensors.

    An ellipsis that stands for no axis is kept: to NumPy it separates what is on both
    sides of it.
    """
    entries: list[Any] = []
    for entry in key:
        if entry is None or entry is Ellipsis or isinstance(entry, slice):
            entries.append(entry)
        else:
            entries.extend(_index_arrays(entry))
    used = sum(map(_uses_axis, entries))
    if used > x.ndim:
        raise OutOfRangeError(f"too many indices: {x._type} has {x.ndim}, got {used}")
    dots = [at for at, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise OutOfRangeError("an index can only have one ellipsis ('...')")
    at = dots[0] if dots else len(entries)
    fill: list[Any] = [slice(None)] * (x.ndim - used)
    if dots and not fill:
        fill = [Ellipsis]
    entries = entries[:at] + fill + entries[at + len(dots) :]
    _check_masks(x, entries)
    return [_unmasked(entry) for entry in entries]


def _uses_axis(entry: Any) -> bool:
    if entry is None or entry is Ellipsis:
        return False
    return not (isinstance(entry, _MaskPart) and entry.size is None)


class _Mask:
    """A boolean mask among the indices.

    Its positions are asked for last, when everything else is known to fit: in a trace
    their number is a question about values.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    @cached_property
    def positions(self) -> tuple[Tensor, ...]:
        """Where it is True: one tensor per axis, of a mask of no axes zeros."""
        if self.mask.ndim:
            return nonzero_positions(self.mask, "a boolean mask")
        count = count_true(self.mask, "a boolean mask")
        return (Tensor(np.zeros(count, np.intp), CONSTANT),)


class _MaskPart:
    """One axis of a boolean mask, of its size; a mask of no axes is one of no size."""

    def __init__(self, mask: _Mask, axis: int, size: int | None) -> None:
        self.mask, self.axis, self.size = mask, axis, size

    @property
    def positions(self) -> Tensor:
        """Where the mask is True, along this axis."""
        return self.mask.positions[self.axis]


def _index_arrays(entry: Any) -> list[Any]:
    index = as_index(entry, "getitem")
    if index.dtype.kind == "b":
        mask = _Mask(index)
        sizes = index.shape or (None,)
        return [_MaskPart(mask, at, size) for at, size in enumerate(sizes)]
    if index.dtype.kind not in "iu":
        is_empty_list = not hasattr(entry, "dtype") and index.size == 0
        if not is_empty_list:
            raise OutOfRangeError(
                f"an index is made of integers or bools, got {index._type}"
            )
        index = cast(index, np.dtype("int64"))
    return [index]


def _check_masks(x: Tensor, entries: Sequence[Any]) -> None:
    axis = 0
    for entry in entries:
        if not _uses_axis(entry):
            continue
        # As in NumPy, a mask of no elements selects nothing of any axis.
        if isinstance(entry, _MaskPart) and entry.size not in (0, x.shape[axis]):
            raise OutOfRangeError(
                f"a boolean mask of size {entry.size} does not fit axis {axis} of "
                f"{x._type}"
            )
        axis += 1


def _unmasked(entry: Any) -> Any:
    """A part of a mask as the integer index it is; one of no axes stays what it is."""
    is_index = isinstance(entry, _MaskPart) and entry.size is not None
    return entry.positions if is_index else entry


# Masks


def number_of(x: Tensor, what: str) -> int:
    """The integer that a tensor without axes is, where the shape of a result needs it.

    In a traced function it becomes a guard; a function that is being mapped is told
    `what` needs the value.
    """
    if isinstance(x, TracedTensor):
        found: int = x._trace.number(x, what)
        return found
    return int(np.asarray(x._value))


def has_values(x: Tensor) -> bool:
    """Whether values can be checked: a row that is being mapped has none."""
    return not isinstance(x, TracedTensor) or x._trace.holds_state


def count_true(mask: Tensor, what: str) -> int:
    """How many elements a mask selects, known as `number_of` is."""
    if isinstance(mask, TracedTensor):
        found: int = mask._trace.count_true(mask, what)
        return found
    return int(np.count_nonzero(mask._value))


def true_positions(mask: Tensor, what: str) -> Tensor:
    """The positions at which a mask is True, in the flattened order."""
    if isinstance(mask, TracedTensor):
        size = count_true(mask, what)
        return apply(ops.true_positions, reshape(mask, (-1,)), size=size)
    return beside(np.flatnonzero(mask._value), mask)


def nonzero_positions(mask: Tensor, what: str) -> tuple[Tensor, ...]:
    """The positions at which a mask is True, one tensor for each of its axes."""
    if not isinstance(mask, TracedTensor):
        every = np.nonzero(np.asarray(mask._value))
        return tuple([beside(places, mask) for places in every])
    flat = true_positions(mask, what)
    if mask.ndim == 1:
        return (flat,)
    found = []
    for size in reversed(mask.shape):
        along = weak_scalar(max(size, 1), flat.dtype)
        found.append(apply(ops.remainder, flat, along))
        flat = apply(ops.floor_divide, flat, along)
    return tuple(reversed(found))


def take(
    x: Any, indices: Any, /, axis: int | None = None, *, batch_dims: int = 0
) -> Tensor:
    """The elements at integer positions along an axis; negative ones wrap.

    With `batch_dims` the first so many axes of `x` and of the indices belong together:
    each row of indices takes from its own row. The axis is then the one behind them,
    unless another is given.

    >>> import tapejit as tj
    >>> print(tj.take(tj.asarray([10.0, 20.0, 30.0]), [2, -3], axis=0))
    [30. 10.]
    >>> x = tj.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> print(tj.take(x, [[2, 0], [1, 1]], batch_dims=1))
    [[3. 1.]
     [5. 5.]]
    """
    x = as_operand(x, "take")
    index = _as_indices(indices, "take", x)
    if batch_dims:
        return _take_rows(x, index, axis, batch_dims)
    if axis is None:
        if x.ndim > 1:
            x = reshape(x, (-1,))
        axis = 0
    at = normalize_axis(axis, x.ndim)
    out = apply(ops.gather, x, index, axes=(at,))
    if not at:
        return out
    front, rest = range(index.ndim), list(range(index.ndim, out.ndim))
    return permute_dims(out, (*rest[:at], *front, *rest[at:]))


def _take_rows(x: Tensor, index: Tensor, axis: int | None, batch_dims: Any) -> Tensor:
    """Each row of indices from its own row: the number of the row is one more index."""
    given = operator.index(batch_dims)
    count = given + index.ndim if given < 0 else given
    if not 0 <= count <= min(index.ndim, x.ndim):
        raise ArgumentError(
            f"batch_dims is {given}, for {x._type} and indices of {index._type}",
            op="take",
            help="it counts axes that both of them have",
        )
    at = normalize_axis(count if axis is None else axis, x.ndim)
    if at < count:
        raise ArgumentError(
            f"axis {at} is one of the first {count}, which are those of rows", op="take"
        )
    if x.shape[:count] != index.shape[:count]:
        raise ShapeError(
            f"the first {count} axes of {x._type} and of indices {index._type} differ",
            op="take",
        )
    rows = []
    for number, size in enumerate(index.shape[:count]):
        shape = tuple(size if here == number else 1 for here in range(index.ndim))
        rows.append(reshape(apply(ops.iota, size=size), shape))
    out = apply(ops.gather, x, *rows, index, axes=(*range(count), at))
    between = index.ndim + at - count
    order = (
        *range(count),
        *range(index.ndim, between),
        *range(count, index.ndim),
        *range(between, out.ndim),
    )
    return permute_dims(out, order)


def as_index(value: Any, name: str) -> Tensor:
    """Indices or a mask as a Tensor; an array goes to the device of what it indexes."""
    index = as_operand(value, name)
    if isinstance(value, np.ndarray) and index._made is not None:
        index._made.follows = True
    return index


def _as_indices(indices: Any, name: str, x: Any = None) -> Tensor:
    index = as_index(indices, name)
    if index.dtype.kind not in "iu":
        raise not_indices(index, name, x)
    return index


def not_indices(index: Tensor, name: str, x: Any) -> OutOfRangeError:
    """The error of indices that are none; `x` is what they were to index."""
    help = "convert them with .astype(tj.int64)"
    if x is not None and as_operand(x, name).dtype.kind in "iu":
        help = f"the tensor comes first: tj.{name}(x, indices)"
    return OutOfRangeError(
        f"indices are integers, got {index._type}", op=name, help=help
    )


def scatter_add(x: Any, indices: Any, updates: Any, /, axis: int = 0) -> Tensor:
    """A copy of `x` with `updates` added at `indices` along `axis`.

    Repeated indices add up. `updates` broadcasts to the shape `take` would give.

    >>> import tapejit as tj
    >>> print(tj.scatter_add(tj.zeros(3), [0, 2, 0], tj.asarray([1.0, 2.0, 3.0])))
    [4. 0. 2.]
    """
    x, updates = operands((x, updates), "scatter_add")
    index = _as_indices(indices, "scatter_add", x)
    at = normalize_axis(axis, x.ndim)
    wanted = (*x.shape[:at], *index.shape, *x.shape[at + 1 :])
    try:
        updates = broadcast_to(updates, wanted)
    except ShapeError:
        raise ShapeError(
            f"updates of {updates._type} do not fit the {wanted} elements that "
            "the indices select",
            op="scatter_add",
        ) from None
    moved = range(at, at + index.ndim)
    rest = [a for a in range(updates.ndim) if a not in moved]
    return apply(
        ops.gather_add, x, permute_dims(updates, (*moved, *rest)), index, axes=(at,)
    )


class RowKey(NamedTuple):
    """A key that selects whole rows: an index for each of some axes, all of the others.

    shape    that of `x[key]`
    order    the permutation of its axes that brings those of the indices to the front
    """

    axes: tuple[int, ...]
    indices: tuple[Tensor, ...]
    shape: tuple[Any, ...]
    order: tuple[int, ...]


def row_key(x: Tensor, key: Any) -> RowKey | None:
    """A key of integers, arrays of them and whole axes; None for any other.

    >>> import tapejit as tj
    >>> row_key(tj.zeros((4, 5, 6)), (slice(None), [0, 2])).order
    (1, 0, 2)
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not all(map(_selects_rows, parts)) or not all(type(n) is int for n in x.shape):
        return None
    expanded = _expanded(x, parts)
    places = [at for at, entry in enumerate(expanded) if isinstance(entry, Tensor)]
    if not places:
        return None
    entries = [entry for entry in expanded if entry is not Ellipsis]
    axes = tuple(at for at, entry in enumerate(entries) if isinstance(entry, Tensor))
    indices = tuple([entries[at] for at in axes])
    try:
        front = np.broadcast_shapes(*[index.shape for index in indices])
    except (TypeError, ValueError):  # sizes that are not known, or do not fit
        return None
    rest = [size for at, size in enumerate(x.shape) if at not in axes]
    is_together = places == list(range(places[0], places[-1] + 1))
    at = axes[0] if is_together else 0
    shape = (*rest[:at], *front, *rest[at:])
    return RowKey(axes, indices, shape, axes_to_front(at, len(front), len(shape)))


def _selects_rows(entry: Any) -> bool:
    """Whether an entry is a whole axis, an integer, or an array of integers."""
    if isinstance(entry, builtins.slice):
        return entry == builtins.slice(None)
    if entry is None or isinstance(entry, (bool, np.bool_)):
        return False
    if entry is Ellipsis or isinstance(entry, (int, np.integer)):
        return True
    if isinstance(entry, list):
        return bool(entry) and all(type(x) is int for x in entry)
    dtype = getattr(entry, "dtype", None)
    return dtype is not None and dtype.kind in "iu"


def flat_positions(x: Any, key: Any) -> Tensor:
    """The positions in the flattened `x` of what `x[key]` selects.

    They are traced if the key is. A key that adds axes selects nothing else than one
    without them, so it is refused.

    >>> import tapejit as tj
    >>> print(flat_positions(tj.zeros((2, 3)), (1, [0, 0])))
    [3 3]
    """
    if builtins.any(
        part is None for part in (key if isinstance(key, tuple) else (key,))
    ):
        raise ArgumentTypeError("an assignment takes no None in its index")
    if isinstance(x.size, Dim):
        from tapejit.array.creation import arange

        return getitem(reshape(arange(x.size, dtype="int64"), x.shape), key)
    return getitem(beside(np.arange(x.size).reshape(x.shape), x), key)


__all__ = ["scatter_add", "take"]
