"""Convolutions of batches with filters, and their transposes.

`conv1d`, `conv2d` and `conv3d` are one op, `conv`, with its arguments spelled out;
`depthwise_conv2d` is it with a group for each channel. The transpose is the same op
again: inputs are spread by the strides and filters turned around.

Start reading at `conv2d`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tapejit import ops
from tapejit.array.manipulation import flip, permute_dims, reshape
from tapejit.base.dims import Dim, Size
from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.nn.functional.windows import (
    channels_last,
    check_fit,
    padding_pairs,
    per_axis,
    positive,
    reach,
)
from tapejit.ops.movement import exceeds, largest
from tapejit.ops.window_sizes import check_groups, extent, window_count
from tapejit.tensor.dispatch import apply, operands
from tapejit.tensor.tensor import Tensor

# By the number of spatial axes: what those of filters are called.
WINDOWS: Final = {1: "window", 2: "height, width", 3: "depth, height, width"}


def conv1d(
    x: Any,
    filters: Any,
    strides: Any = 1,
    padding: Any = "SAME",
    dilations: Any = 1,
    groups: int = 1,
    data_format: str = "NWC",
) -> Tensor:
    """Filters slid along sequences.

    `x` is [batch, width, channels], `filters` are [window, channels // groups,
    features]. The other arguments are those of `conv2d`.

    >>> import tapejit as tj
    >>> x = tj.asarray([[[1.0], [2.0], [4.0]]])
    >>> print(tj.nn.conv1d(x, [[[-1.0]], [[1.0]]], padding="VALID"))
    [[[1.]
      [2.]]]
    """
    return _conv(
        x, filters, strides, padding, dilations, groups, data_format, "conv1d", 1
    )


def conv2d(
    x: Any,
    filters: Any,
    strides: Any = 1,
    padding: Any = "SAME",
    dilations: Any = 1,
    groups: int = 1,
    data_format: str = "NHWC",
) -> Tensor:
    """Filters slid over images.

    `x` is [batch, height, width, channels], `filters` are [height, width, channels //
    groups, features]; features of a group see the channels of that group. Windows
    start `strides` apart, and their entries are `dilations` apart. As in every library
    of networks, filters are not turned around.

    `padding` is "SAME", for ceil(size / stride) windows, "VALID", for none, or widths:
    one integer or pair (before, after) for each of the two axes. With `data_format`
    "NCHW" channels come before height, in `x` and in the result.

    >>> import tapejit as tj
    >>> x = tj.reshape(tj.arange(16.0), (1, 4, 4, 1))
    >>> edges = tj.reshape(tj.asarray([-1.0, 1.0]), (1, 2, 1, 1))
    >>> print(tj.nn.conv2d(x, edges)[0, :, :, 0])
    [[  1.   1.   1.  -3.]
     [  1.   1.   1.  -7.]
     [  1.   1.   1. -11.]
     [  1.   1.   1. -15.]]
    >>> tj.nn.conv2d(x, edges, strides=2, padding="VALID").shape
    (1, 2, 2, 1)
    """
    return _conv(
        x, filters, strides, padding, dilations, groups, data_format, "conv2d", 2
    )


def conv3d(
    x: Any,
    filters: Any,
    strides: Any = 1,
    padding: Any = "SAME",
    dilations: Any = 1,
    groups: int = 1,
    data_format: str = "NDHWC",
) -> Tensor:
    """Filters slid through volumes.

    `x` is [batch, depth, height, width, channels], `filters` are [depth, height, width,
    channels // groups, features]. The other arguments are those of `conv2d`; with
    `data_format` "NCDHW" channels come before depth.

    >>> import tapejit as tj
    >>> x = tj.reshape(tj.arange(8.0), (1, 2, 2, 2, 1))
    >>> means = tj.full((2, 2, 2, 1, 1), 1 / 8)
    >>> print(tj.nn.conv3d(x, means, padding="VALID"))
    [[[[[3.5]]]]]
    """
    return _conv(
        x, filters, strides, padding, dilations, groups, data_format, "conv3d", 3
    )


def depthwise_conv2d(
    x: Any,
    filters: Any,
    strides: Any = 1,
    padding: Any = "SAME",
    dilations: Any = 1,
    data_format: str = "NHWC",
) -> Tensor:
    """Each channel of images with filters of its own.

    `x` is [batch, height, width, channels], `filters` are [height, width, channels,
    multiplier]. Channel c of `x` becomes the channels `c * multiplier` and following.
    The other arguments are those of `conv2d`.

    >>> import tapejit as tj
    >>> x = tj.ones((1, 3, 3, 2))
    >>> filters = tj.stack([tj.ones((2, 2)), tj.full((2, 2), 10.0)], axis=-1)
    >>> print(tj.nn.depthwise_conv2d(x, filters[..., None], padding="VALID")[0, 0, 0])
    [ 4. 40.]
    """
    name = "depthwise_conv2d"
    x, filters = operands((x, filters), name)
    if filters.ndim != 4:
        raise ShapeError(
            f"filters are [height, width, channels, multiplier], got {filters._type}",
            op=name,
        )
    *window, channels, multiplier = filters.shape
    first = x.ndim - 1 if data_format == "NHWC" else 1
    if x.ndim == 4 and x.shape[first] != channels:
        raise ShapeError(
            f"{x._type} has {x.shape[first]} channels, and filters {filters._type} "
            f"are for {channels}",
            op=name,
            help="filters are [height, width, channels, multiplier]",
        )
    grouped = reshape(filters, (*window, 1, channels * multiplier))
    if channels == 0:
        raise ShapeError(f"there are no channels in {x._type}", op=name)
    return _conv(
        x, grouped, strides, padding, dilations, channels, data_format, name, 2
    )


def conv2d_transpose(
    x: Any,
    filters: Any,
    strides: Any = 1,
    padding: Any = "SAME",
    dilations: Any = 1,
    groups: int = 1,
    data_format: str = "NHWC",
    *,
    output_size: Any = None,
) -> Tensor:
    """What `conv2d` does, transposed: every input spreads over a window of outputs.

    `filters` are those of the `conv2d` that it is the transpose of, [height, width,
    outputs // groups, channels of x]. Several sizes of images may lead to the size of
    `x`; the result has the size `size * stride` with padding "SAME", otherwise the
    smallest of at least `size * stride` less the padding, or `output_size`.

    >>> import tapejit as tj
    >>> x = tj.reshape(tj.asarray([1.0, 2.0]), (1, 1, 2, 1))
    >>> ones = tj.ones((1, 2, 1, 1))
    >>> print(tj.nn.conv2d_transpose(x, ones, strides=(1, 2))[0, :, :, 0])
    [[1. 1. 2. 2.]]
    """
    name, rank = "conv2d_transpose", 2
    x, filters, restore = _operands(x, filters, data_format, name, rank)
    strides = per_axis(strides, rank, "strides", name)
    dilations = per_axis(dilations, rank, "dilations", name)
    groups = int(_group_count(groups, name))
    if x.shape[-1] != filters.shape[-1]:
        raise ShapeError(
            f"{x._type} has {x.shape[-1]} channels, and filters {filters._type} "
            f"take {filters.shape[-1]}",
            op=name,
            help="filters are [height, width, outputs // groups, channels of x]",
        )
    sizes = x.shape[1:-1]
    window = reach(filters.shape[:-2], dilations)
    outputs = _output_sizes(output_size, sizes, window, strides, padding, name)
    pairs = padding_pairs(padding, outputs, window, strides, name)
    transposed = []
    for size, length, stride, output, (low, high) in zip(
        sizes, window, strides, outputs, pairs, strict=True
    ):
        count = window_count(low + output + high, length, stride)
        if count != size:
            raise ShapeError(
                f"an output of {output} has {count} windows, not the {size} of "
                f"{x._type}",
                op=name,
                help="leave output_size to be chosen",
            )
        transposed.append((length - 1 - low, low + output - extent(size, stride)))
    out = apply(
        ops.conv,
        x,
        _turned(filters, groups, name),
        strides=(1,) * rank,
        padding=tuple(transposed),
        dilations=dilations,
        input_dilations=strides,
        groups=groups,
    )
    return restore(out)


def _conv(
    x: Any,
    filters: Any,
    strides: Any,
    padding: Any,
    dilations: Any,
    groups: Any,
    data_format: Any,
    name: str,
    rank: int,
) -> Tensor:
    x, filters, restore = _operands(x, filters, data_format, name, rank)
    strides = per_axis(strides, rank, "strides", name)
    dilations = per_axis(dilations, rank, "dilations", name)
    groups = _group_count(groups, name)
    try:
        check_groups(x.shape, filters.shape, groups)
    except ShapeError as error:
        error.op = name
        raise
    window = reach(filters.shape[:-2], dilations)
    pairs = padding_pairs(padding, x.shape[1:-1], window, strides, name)
    check_fit(x, window, pairs, name)
    out = apply(
        ops.conv,
        x,
        filters,
        strides=strides,
        padding=pairs,
        dilations=dilations,
        input_dilations=(1,) * rank,
        groups=groups,
    )
    return restore(out)


def _operands(
    x: Any, filters: Any, data_format: Any, name: str, rank: int
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Both in one dtype, `x` with channels last, and how to bring a result back."""
    x, filters = operands((x, filters), name)
    x, restore = channels_last(x, data_format, name, rank)
    if filters.ndim != rank + 2:
        window = WINDOWS[rank]
        raise ShapeError(
            f"filters are [{window}, channels // groups, features], got "
            f"{filters._type}",
            op=name,
        )
    return x, filters, restore


def _group_count(groups: Any, name: str) -> Size:
    if isinstance(groups, Dim):  # as many as there are channels
        return groups
    return positive(groups, "groups", name)


def _output_sizes(
    given: Any, sizes: Any, window: Any, strides: Any, padding: Any, name: str
) -> tuple[Size, ...]:
    """The spatial sizes of a transpose."""
    rank = len(sizes)
    if given is not None:
        if isinstance(given, (int, Dim)):
            given = (given,) * rank
        if len(given) != rank:
            raise ArgumentError(
                f"output_size has one number per spatial axis, {rank}, got {given!r}",
                op=name,
            )
        return tuple(given)
    if isinstance(padding, str) and padding.upper() == "SAME":
        pairs = zip(sizes, strides, strict=True)
        return tuple(size * stride for size, stride in pairs)
    widths = padding_pairs(padding, sizes, window, strides, name)
    outputs = []
    for size, length, stride, (low, high) in zip(
        sizes, window, strides, widths, strict=True
    ):
        output = (size - 1) * stride + largest(length, stride) - low - high
        if exceeds(0, output):
            raise ShapeError(f"padding {padding!r} leaves nothing", op=name)
        outputs.append(output)
    return tuple(outputs)


def _turned(filters: Tensor, groups: int, name: str) -> Tensor:
    """Filters from features back to channels, their windows turned around."""
    *window, channels, features = filters.shape
    rank = len(window)
    if features % groups != 0:
        raise ShapeError(
            f"{features} channels cannot be shared among {groups} groups: filters are "
            f"{filters._type}",
            op=name,
        )
    inner = tuple(range(rank))
    parts = flip(filters, axis=inner)
    if groups == 1:
        return permute_dims(parts, (*inner, rank + 1, rank))
    each = features // groups
    parts = reshape(parts, (*window, channels, groups, each))
    parts = permute_dims(parts, (*inner, rank + 2, rank + 1, rank))
    return reshape(parts, (*window, each, groups * channels))


__all__ = ["conv1d", "conv2d", "conv2d_transpose", "conv3d", "depthwise_conv2d"]
