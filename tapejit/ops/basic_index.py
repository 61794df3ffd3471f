"""NumPy's basic indexing, translated to `slice`, `flip` and `reshape`.

A basic index is made of integers, slices, `...` and None. `plan_basic_index` turns it
into a `BasicIndex`: a slice with positive steps per axis (an integer is a slice of one
element), the axes to flip (those of negative steps, over the same elements), and the
shape to give the result (integers drop their axis, None adds one). Anything with an
integer or boolean array in it is advanced indexing, for which the plan is None; so are
bools, which NumPy treats as masks and never as the integers 0 and 1.

Sizes may be symbolic, and so may integers and the bounds of slices. Whether an integer
is inside its axis is then decided when the slice is evaluated.

Start reading at `plan_basic_index`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from tapejit.base.dims import Dim, Shape, Size, dim_max, dim_min
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    OutOfRangeError,
    UnsupportedError,
)
from tapejit.ops.movement import exceeds, largest
from tapejit.ops.shapes import Axes

ALL = slice(None)


class BasicIndex(NamedTuple):
    """What a basic index does: slice, then flip, then reshape."""

    starts: Shape
    stops: Shape
    steps: Axes
    flips: Axes
    shape: Shape


def plan_basic_index(key: Any, shape: Shape) -> BasicIndex | None:
    """The plan for `x[key]` with `x` of this shape; None if the index is advanced.

    >>> plan_basic_index((1, slice(None, None, -2)), (3, 6))
    BasicIndex(starts=(1, 1), stops=(2, 6), steps=(1, 2), flips=(1,), shape=(3,))
    >>> plan_basic_index((..., None, -1), (3, 6)).shape
    (3, 1)
    >>> plan_basic_index([0, 2], (3, 6)) is None
    True
    """
    entries = key if isinstance(key, tuple) else (key,)
    checked = [as_basic(entry) for entry in entries]
    if any(entry is ADVANCED for entry in checked):
        return None
    starts: list[Size] = []
    stops: list[Size] = []
    steps: list[int] = []
    flips: list[int] = []
    result: list[Size] = []
    for entry in fill_ellipsis(checked, len(shape)):
        if entry is None:
            result.append(1)
            continue
        axis = len(starts)
        size = shape[axis]
        if isinstance(entry, slice):
            start, stop, step = slice_bounds(entry, size)
            count = largest((stop - start + step - sign(step)) // step, 0)
            if step < 0:
                # The same elements from the last one up; of none, this range too
                # starts at or after its stop.
                start, stop = start + (count - 1) * step, start + 1
                flips.append(axis)
            result.append(count)
        else:
            start, step = integer_position(entry, axis, size), 1
            stop = start + 1
        starts.append(start)
        stops.append(stop)
        steps.append(abs(step))
    return BasicIndex(
        tuple(starts), tuple(stops), tuple(steps), tuple(flips), tuple(result)
    )


class Advanced:
    """Stands for an entry that makes an index advanced."""


ADVANCED = Advanced()
Entry = int | Dim | slice | EllipsisType | None | Advanced


def as_basic(entry: Any) -> Entry:
    """An entry of an index as a plain one; an array or a bool becomes `ADVANCED`."""
    if entry is None or entry is Ellipsis or isinstance(entry, (slice, Dim)):
        return entry
    if isinstance(entry, (bool, np.bool_)):
        return ADVANCED
    if isinstance(entry, int):
        return int(entry)
    dtype = getattr(entry, "dtype", None)
    if dtype is not None:
        is_number = isinstance(entry, (np.generic, np.ndarray)) and entry.ndim == 0
        if is_number and dtype.kind in "iu":
            return operator.index(entry)
        # A tensor's value is not asked for: in a trace it may not have one.
        if dtype.kind in "iub":
            return ADVANCED
    elif hasattr(entry, "__index__"):
        return operator.index(entry)
    elif is_list(entry) or hasattr(entry, "__array__"):
        return ADVANCED
    kind = type(entry).__name__
    found = kind if dtype is None else f"{kind} of {dtype}"
    raise OutOfRangeError(
        f"{entry!r} ({found}) cannot be an index",
        help="an index is made of integers, slices, ..., None, and integer or "
        "boolean arrays",
    )


def is_list(entry: Any) -> bool:
    """Whether NumPy would make an array of the entry's elements."""
    return isinstance(entry, Sequence) and not isinstance(entry, (str, bytes))


def fill_ellipsis(entries: Sequence[Entry], ndim: int) -> list[Entry]:
    """The entries with one slice for each axis that `...`, or the end, leaves out."""
    dots = [at for at, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise OutOfRangeError("an index can only have a single ellipsis (`...`)")
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > ndim:
        raise OutOfRangeError(
            f"too many indices: the tensor is {ndim}-dimensional, "
            f"but {used} were indexed"
        )
    at = dots[0] if dots else len(entries)
    return [*entries[:at], *[ALL] * (ndim - used), *entries[at + 1 :]]


def integer_position(index: Any, axis: int, size: Size) -> Size:
    """A non-negative position; negative indices count from the end."""
    position = from_end(index, size)
    if exceeds(0, position) or exceeds(position, size - 1):
        raise outside(index, axis, size)
    return position


def outside(index: Any, axis: int, size: Size, note: str = "") -> OutOfRangeError:
    """The error for an index that its axis does not have."""
    return OutOfRangeError(
        f"index {index} is out of range for axis {axis} of size {size}{note}",
        help=f"indices go from {-size} to {size - 1}" if size != 0 else None,
    )


def from_end(index: Size, size: Size) -> Size:
    """`index`, counted from the end if it is negative."""
    if exceeds(0, index):
        return size + index
    if isinstance(index, Dim) and largest(index, 0) != index:
        raise UnsupportedError(
            f"whether the index {index} is negative depends on the size",
            help="an index that may be negative or not needs sizes that are known",
        )
    return index


def slice_bounds(key: slice, size: Size) -> tuple[Size, Size, int]:
    """What `slice.indices` gives, also for symbolic sizes and bounds.

    >>> slice_bounds(slice(-2, None), 5), slice_bounds(slice(None, -1), Dim("n"))
    ((3, 5, 1), (0, Dim('n - 1'), 1))
    >>> slice_bounds(slice(None, 4), Dim("n"))
    (0, Dim('min(n, 4)'), 1)
    """
    if key == ALL:
        return 0, size, 1
    step = 1 if key.step is None else as_integer(key.step, "step")
    start = None if key.start is None else as_bound(key.start, "start")
    stop = None if key.stop is None else as_bound(key.stop, "stop")
    if step == 0:
        raise ArgumentError("the step of a slice cannot be zero")
    if not any(isinstance(value, Dim) for value in (start, stop, size)):
        return slice(start, stop, step).indices(size)
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first, last = (low, high) if step > 0 else (high, low)

    def clip(bound: Size | None, default: Size) -> Size:
        if bound is None:
            return default
        return dim_max(low, dim_min(from_end(bound, size), high))

    return clip(start, first), clip(stop, last), step


def as_integer(value: Any, what: str) -> int:
    """A Python int, from anything NumPy would take for one."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise ArgumentTypeError(
            f"the {what} of a slice must be an integer or None, got {value!r} "
            f"({type(value).__name__})"
        ) from error


def as_bound(value: Any, what: str) -> Size:
    """A start or stop: an integer or a symbolic size."""
    return value if isinstance(value, Dim) else as_integer(value, what)


def sign(step: int) -> int:
    return 1 if step > 0 else -1
