"""Random index keys: everything NumPy takes between brackets, mixed.

A key is drawn entry by entry for a given shape: integers, slices, integer arrays that
broadcast together, masks of one or two axes, single bools, None and an ellipsis. Most
keys are right; masks whose counts do not broadcast with the rest are left in, because
NumPy's refusal is part of what is compared.

Start reading at `keys`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

Draw = Any


@st.composite
def shapes(draw: Draw) -> tuple[int, ...]:
    """Small shapes; sizes 0 and 1 are among them."""
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 3, 3, 4]), min_size=1, max_size=4))
    return tuple(sizes)


@st.composite
def keys(draw: Draw, shape: tuple[int, ...], *, is_assigned: bool = False) -> Any:
    """A key for an array of this shape, without None for one to assign to."""
    common = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    entries: list[Any] = []
    axis = 0
    stop = draw(st.integers(0, len(shape)))
    dots_at = draw(st.one_of(st.none(), st.integers(0, stop)))
    while axis < stop:
        entry, used = draw(entry_for(shape[axis:stop], common))
        entries.append(entry)
        axis += used
        if not is_assigned and draw(st.integers(0, 9)) == 0:
            entries.append(None)
        if draw(st.integers(0, 19)) == 0:
            entries.append(draw(st.booleans()))
    if dots_at is not None:
        entries.insert(min(dots_at, len(entries)), Ellipsis)
    if len(entries) == 1 and draw(st.booleans()):
        return entries[0]
    return tuple(entries)


@st.composite
def entry_for(
    draw: Draw, sizes: tuple[int, ...], common: tuple[int, ...]
) -> tuple[Any, int]:
    """An entry for the first of these axes, and how many of them it uses."""
    size = sizes[0]
    kinds = ["slice", "mask"]
    if size:
        kinds += ["integer", "array", "array", "list"]
    if len(sizes) > 1:
        kinds.append("mask of two")
    kind = draw(st.sampled_from(kinds))
    if kind == "slice":
        return draw(slices(size)), 1
    if kind == "integer":
        return draw(st.integers(-size, size - 1)), 1
    if kind == "mask":
        return draw(mask((size,))), 1
    if kind == "mask of two":
        return draw(mask(sizes[:2])), 2
    own = draw(st.integers(0, len(common)))
    shape = [1 if draw(st.integers(0, 3)) == 0 else n for n in common[own:]]
    count = int(np.prod(shape))
    drawn = draw(st.lists(st.integers(-size, size - 1), min_size=count, max_size=count))
    array = np.array(drawn, np.int64).reshape(shape)
    return (array.tolist() if kind == "list" else array), 1


@st.composite
def slices(draw: Draw, size: int) -> slice:
    bound = st.one_of(st.none(), st.integers(-size - 1, size + 1))
    step = draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
    return slice(draw(bound), draw(bound), step)


@st.composite
def mask(draw: Draw, shape: tuple[int, ...]) -> Any:
    count = int(np.prod(shape))
    bits = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return np.array(bits, bool).reshape(shape)
