"""Arguments of functions that slide a window: sizes, strides, padding, order of axes.

A number stands for every spatial axis. Padding is a word of TensorFlow's or the widths
themselves. "SAME" means that windows start at every `stride`-th element, so that there
are ceil(n / stride) of them, with as little padding as that takes, and the odd element
of it at the end. "VALID" means none.

Functions compute with channels last; `data_format` names the axes of what is given, and
other orders are brought to that one and back.

Start reading at `padding_pairs`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from tapejit.array.manipulation import permute_dims
from tapejit.base.dims import Size
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.ops.movement import exceeds, largest
from tapejit.ops.window_sizes import extent
from tapejit.tensor.tensor import Tensor

Pairs = tuple[tuple[Any, Any], ...]

# By the number of spatial axes: channels last, channels first.
FORMATS: Final = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}


def positive(value: Any, label: str, name: str) -> int:
    """A size of at least 1."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ArgumentTypeError(
            f"{label} is an integer, got {type(value).__name__}", op=name
        )
    number = int(value)
    if number < 1:
        raise ArgumentError(f"{label} is at least 1, got {number}", op=name)
    return number


def per_axis(value: Any, rank: int, label: str, name: str) -> tuple[int, ...]:
    """One integer from 1 on for each spatial axis.

    >>> per_axis(3, 2, "strides", "conv2d"), per_axis([1, 2], 2, "strides", "conv2d")
    ((3, 3), (1, 2))
    """
    given = value if isinstance(value, Sequence) else (value,) * rank
    if isinstance(value, str) or any(isinstance(n, bool) for n in given):
        raise ArgumentTypeError(f"{label} are integers, got {value!r}", op=name)
    try:
        numbers = tuple(operator.index(n) for n in given)
    except TypeError:
        raise ArgumentTypeError(
            f"{label} are integers, got {value!r}", op=name
        ) from None
    if len(numbers) != rank:
        raise ArgumentError(
            f"{label} have one number per spatial axis, {rank} here, got {value!r}",
            op=name,
            help="the axes of batch and channels have none",
        )
    if any(n < 1 for n in numbers):
        raise ArgumentError(f"{label} are integers from 1 on, got {value!r}", op=name)
    return numbers


def padding_pairs(
    padding: Any, sizes: Sequence[Size], window: Sequence[Size], strides: Any, name: str
) -> Pairs:
    """How many elements are put before and after each spatial axis.

    `window` is how far a window reaches, with its dilation.

    >>> padding_pairs("SAME", (5, 6), (3, 3), (1, 2), "conv2d")
    ((1, 1), (0, 1))
    >>> padding_pairs([2, (0, 1)], (5, 6), (3, 3), (1, 1), "conv2d")
    ((2, 2), (0, 1))
    """
    if isinstance(padding, str):
        axes = zip(sizes, window, strides, strict=True)
        if padding.upper() == "SAME":
            return tuple(same_padding(*axis) for axis in axes)
        if padding.upper() == "VALID":
            return tuple((0, 0) for _ in axes)
        raise ArgumentError(
            f"padding is 'SAME', 'VALID' or widths, got {padding!r}", op=name
        )
    rank = len(sizes)
    given = padding if isinstance(padding, Sequence) else (padding,) * rank
    try:
        pairs = tuple(_pair(entry) for entry in given)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"padding is 'SAME', 'VALID', an integer, or one integer or pair (before, "
            f"after) per spatial axis, got {padding!r}",
            op=name,
        ) from None
    if len(pairs) != rank:
        raise ArgumentError(
            f"padding has one entry per spatial axis, {rank} here, got {padding!r}",
            op=name,
            help="the axes of batch and channels have none",
        )
    if any(n < 0 for pair in pairs for n in pair):
        raise ArgumentError(
            f"padding cannot be negative, got {padding!r}",
            op=name,
            help="to cut, write a slice",
        )
    return pairs


def _pair(entry: Any) -> tuple[int, int]:
    if isinstance(entry, Sequence):
        before, after = entry
        return operator.index(before), operator.index(after)
    return operator.index(entry), operator.index(entry)


def same_padding(size: Size, window: Size, stride: int) -> tuple[Size, Size]:
    """The least padding with ceil(size / stride) windows, the odd one at the end.

    >>> same_padding(6, 3, 2), same_padding(5, 2, 1), same_padding(4, 1, 3)
    ((0, 1), (0, 1), (0, 0))
    """
    count = (size + stride - 1) // stride
    total = largest((count - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def reach(window: Sequence[Size], dilations: Sequence[int]) -> tuple[Size, ...]:
    """How far windows with gaps reach."""
    return tuple(extent(n, step) for n, step in zip(window, dilations, strict=True))


def check_fit(x: Tensor, window: Sequence[Size], padding: Pairs, name: str) -> None:
    """Refuse windows that are larger than what they slide over; x is channels last."""
    sizes = x.shape[1:-1]
    for axis, (size, length, (low, high)) in enumerate(
        zip(sizes, window, padding, strict=True), 1
    ):
        if size != 0 and exceeds(length, low + size + high):
            raise ShapeError(
                f"a window of {length} does not fit into axis {axis} of {x._type}, "
                f"which is {low + size + high} with its padding",
                op=name,
                help="padding='SAME' pads as much as is needed",
            )


def channels_last(
    x: Tensor, data_format: Any, name: str, rank: int | None = None
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """`x` with its channels last, and how to bring a result back.

    `rank` is the number of spatial axes, if the function has a fixed one.
    """
    spatial = x.ndim - 2 if rank is None else rank
    if spatial not in FORMATS or x.ndim != spatial + 2:
        wanted = " or ".join(FORMATS[n][0] for n in ([rank] if rank else FORMATS))
        help = "for a single example, write x[None]"
        raise ShapeError(
            f"takes a batch with axes {wanted}, got {x._type}",
            op=name,
            help=help if rank and x.ndim == rank + 1 else None,
        )
    last, first = FORMATS[spatial]
    if data_format is None or data_format == last:
        return x, _unchanged
    if data_format != first:
        raise ArgumentError(
            f"data_format is {last!r} or {first!r} for {x._type}, got {data_format!r}",
            op=name,
        )
    inner = tuple(range(1, spatial + 1))
    moved = permute_dims(x, (0, *(at + 1 for at in inner), 1))
    return moved, lambda out: permute_dims(out, (0, spatial + 1, *inner))


def _unchanged(x: Tensor) -> Tensor:
    return x
