"""Cases of what slides over axes: convolution, and the largest element of windows.

References go position by position and entry by entry, with Python's integers or in
extended precision.

Start reading at `conv`.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from agreement import EXACT, SUM, Truth

from op_cases.case import ORDERED, Array, Attrs, OpCase, Operand, Variant, distinct
from op_cases.references import elementwise, is_above, objects, widened
from tapejit.base.types import is_integer

Sizes = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def conv(
    x: Array,
    filters: Array,
    *,
    strides: Sizes,
    padding: Pairs,
    dilations: Sizes,
    input_dilations: Sizes,
    groups: int,
) -> Any:
    """Each product of an input and a filter; padding is zeros that are multiplied."""
    change = objects if is_integer(x.dtype) else widened
    left, right = change(x), change(filters)
    batch, *sizes, channels = x.shape
    *window, each, features = filters.shape
    counts = [
        (low + (n - 1) * spread + 1 + high - ((k - 1) * step + 1)) // stride + 1
        for n, k, stride, (low, high), step, spread in zip(
            sizes, window, strides, padding, dilations, input_dilations, strict=True
        )
    ]
    out = np.zeros((batch, *counts, features), left.dtype)
    scale = np.zeros(out.shape, float)
    nothing = np.zeros((batch, channels), left.dtype)
    for position in np.ndindex(*counts):
        for entry in np.ndindex(*window):
            axes = zip(position, entry, strides, padding, dilations, strict=True)
            at = [p * s + k * step - low for p, k, s, (low, _), step in axes]
            pairs = list(zip(at, input_dilations, strict=True))
            if any(place % spread for place, spread in pairs):
                continue
            source = tuple(place // spread for place, spread in pairs)
            is_inside = all(0 <= i < n for i, n in zip(source, sizes, strict=True))
            seen = left[(slice(None), *source)] if is_inside else nothing
            for feature in range(features):
                first = feature * groups // features * each
                for channel in range(each):
                    part = seen[:, first + channel] * right[(*entry, channel, feature)]
                    out[(slice(None), *position, feature)] += part
                    scale[(slice(None), *position, feature)] += np.abs(part).astype(
                        float
                    )
    if is_integer(x.dtype):
        return elementwise(lambda value, _: value)(out, np.zeros((), x.dtype))
    return Truth(out, max(1, each * math.prod(window)), scale)


def sliding(
    strides: Sizes,
    padding: Pairs,
    dilations: Sizes | None = None,
    input_dilations: Sizes | None = None,
    groups: int = 1,
) -> Attrs:
    ones = (1,) * len(strides)
    return {
        "strides": strides,
        "padding": padding,
        "dilations": dilations or ones,
        "input_dilations": input_dilations or ones,
        "groups": groups,
    }


def window_max(x: Array, *, window: Sizes, strides: Sizes, padding: Pairs) -> Array:
    """The largest of what a window sees, NaN if it sees one; -0 is below 0."""
    axes = zip(x.shape, window, strides, padding, strict=True)
    counts = [(low + n + high - k) // s + 1 for n, k, s, (low, high) in axes]
    out = np.empty(counts, x.dtype)
    for position in np.ndindex(*counts):
        starts = [
            p * s - low
            for p, s, (low, _) in zip(position, strides, padding, strict=True)
        ]
        reach = zip(starts, window, x.shape, strict=True)
        places = [range(max(i, 0), min(i + k, n)) for i, k, n in reach]
        best = None
        for at in itertools.product(*places):
            value = x[at]
            is_better = best is None or value != value or is_above(value, best)
            if is_better and (best is None or best == best):
                best = value
        out[position] = best
    return out


def pooling(window: Sizes, strides: Sizes, padding: Pairs | None = None) -> Attrs:
    return {
        "window": window,
        "strides": strides,
        "padding": padding or ((0, 0),) * len(window),
    }


NONE, ONE = ((0, 0), (0, 0)), ((1, 1), (1, 1))
# A spatial axis, batch, channels, features: (batch, n, c) with (k, c, f).
LINES = ((2, 6, 3), (4, 3, 5))
IMAGES = ((2, 5, 4, 3), (3, 2, 3, 5))

CASES = [
    OpCase(
        "conv",
        (Operand(), Operand()),
        (
            Variant(LINES, sliding((1,), ((0, 0),)), note="valid"),
            Variant(LINES, sliding((1,), ((1, 2),)), note="same"),
            Variant(LINES, sliding((3,), ((4, 1),)), note="strided"),
            Variant(LINES, sliding((2,), ((3, 4),), (2,)), note="dilated"),
            Variant(LINES, sliding((1,), ((2, 3),), None, (2,)), note="spread"),
            Variant(LINES, sliding((2,), ((5, 2),), (2,), (3,)), note="all of it"),
            Variant(LINES, sliding((1,), ((-1, -1),)), note="cut"),
            Variant(IMAGES, sliding((1, 1), NONE), note="valid"),
            Variant(IMAGES, sliding((1, 1), ((1, 1), (0, 1))), note="same"),
            Variant(IMAGES, sliding((2, 1), ONE, (1, 2)), note="strided"),
            Variant(IMAGES, sliding((1, 2), ((2, 2), (1, 2)), None, (2, 1))),
            Variant(((1, 4, 1), (1, 1, 1)), sliding((1,), ((0, 0),)), note="ones"),
            Variant(((2, 3), (3, 4)), sliding((), ()), note="no space"),
            Variant(((0, 5, 3), (2, 3, 4)), sliding((1,), ((0, 0),)), note="no rows"),
            Variant(((2, 0, 3), (2, 3, 4)), sliding((1,), ((1, 1),)), note="no input"),
            Variant(((2, 5, 0), (2, 0, 4)), sliding((1,), ((0, 0),)), note="no chans"),
            Variant(((2, 5, 3), (2, 3, 0)), sliding((2,), ((0, 0),)), note="nothing"),
        ),
        conv,
        SUM,
        first="cc",
        second=("-c", "c-"),
        refused=(
            Variant(((2, 5, 3), (2, 4, 5)), sliding((1,), ((0, 0),))),
            Variant(((2, 5, 3), (8, 3, 5)), sliding((1,), ((0, 0),))),
            Variant(((2, 5, 3), (2, 2, 3, 5)), sliding((1,), ((0, 0),))),
            Variant(((3,), (3,)), sliding((), ())),
        ),
        unreachable=(
            Variant(LINES, sliding((0,), ((0, 0),))),
            Variant(LINES, sliding((1, 1), NONE)),
            Variant(LINES, sliding((1,), ((0, 0),), (0,))),
            Variant(LINES, sliding((1,), ())),
            Variant(LINES, sliding((1,), ((0, 0),), groups=0)),
            Variant(LINES, sliding((1,), ((0, 0),), groups=-1)),
        ),
    ),
    OpCase(
        "conv",
        (Operand(), Operand()),
        (
            Variant(((2, 5, 4), (3, 2, 6)), sliding((1,), ((1, 1),), groups=2)),
            Variant(((2, 5, 4), (3, 1, 4)), sliding((2,), ((1, 1),), groups=4)),
            Variant(((2, 5, 4), (3, 1, 12)), sliding((1,), ((0, 0),), groups=4)),
            Variant(
                ((3, 5, 2, 6), (2, 2, 2, 3)),
                sliding((2, 1), ONE, (1, 2), groups=3),
                note="three",
            ),
            Variant(
                ((2, 3, 4), (3, 2, 6)),
                sliding((1,), ((2, 2),), None, (2,), groups=2),
                note="spread",
            ),
        ),
        conv,
        SUM,
        first="cc",
        second=("-c", "c-"),
        refused=(
            Variant(((2, 5, 4), (3, 2, 5)), sliding((1,), ((1, 1),), groups=2)),
            Variant(((2, 5, 4), (3, 4, 6)), sliding((1,), ((1, 1),), groups=2)),
        ),
        fixed_sizes=(2, 3, 4, 6, 12),
    ),
    OpCase(
        "window_max",
        (Operand(distinct),),
        (
            Variant(((7,),), pooling((3,), (2,))),
            Variant(((7,),), pooling((2,), (3,), ((1, 1),)), note="gaps"),
            Variant(((2, 5, 6, 3),), pooling((1, 2, 2, 1), (1, 2, 2, 1))),
            Variant(
                ((2, 5, 6, 3),),
                pooling((1, 3, 2, 1), (1, 2, 1, 1), ((0, 0), (1, 2), (0, 1), (0, 0))),
                note="padded",
            ),
            Variant(((3, 4),), pooling((1, 1), (1, 2)), note="taken"),
            Variant(((3, 4),), pooling((3, 4), (1, 1)), note="all"),
            Variant(((),), pooling((), ()), note="one"),
            Variant(((0, 5),), pooling((1, 2), (1, 1)), note="no rows"),
        ),
        window_max,
        EXACT,
        takes=ORDERED,
        first="c",
        second=("0",),
        refused=(
            Variant(((3,),), pooling((5,), (1,))),
            Variant(((0,),), pooling((2,), (1,), ((1, 1),))),
        ),
        unreachable=(
            Variant(((3,),), pooling((2,), (1,), ((2, 0),))),
            Variant(((3,),), pooling((2,), (1,), ((-1, 0),))),
            Variant(((3,),), pooling((2,), (0,))),
            Variant(((3,),), pooling((2, 1), (1, 1))),
        ),
    ),
]
