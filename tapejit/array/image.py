"""Image resizing: bilinear or nearest, of one image or a batch of them.

An image is [height, width, channels], a batch of them [batch, height, width, channels].
Pixels are squares: the middle of pixel i is at i + 1/2, and an image of another size
covers the same area. That is what TensorFlow 2 does, and PyTorch without aligned
corners.

Start reading at `resize`.
"""

from __future__ import annotations

import operator
from typing import Any

from tapejit import ops
from tapejit.array.precision import widened
from tapejit.base.dims import Dim, Size
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    ShapeError,
    UnsupportedError,
)
from tapejit.ops.resampling import METHODS
from tapejit.tensor.dispatch import apply, as_float, as_operand, cast
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor

__all__ = ["resize"]


@named
def resize(
    images: Any,
    size: Any,
    method: str = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Images of another size, [batch, height, width, channels] or without the batch.

    `size` is the new height and width. With `preserve_aspect_ratio` images become as
    large as fits into it. `method` is "bilinear", between the four nearest pixels, or
    "nearest", the pixel itself. Bilinear images are floats; nearest ones keep their
    dtype. There is no smoothing before an image is made smaller: `antialias=True` is
    refused.

    >>> import tapejit as tj
    >>> x = tj.reshape(tj.asarray([1.0, 3.0]), (1, 2, 1))
    >>> print(tj.image.resize(x, (1, 4))[0, :, 0])
    [1.  1.5 2.5 3. ]
    >>> print(tj.image.resize(x, (2, 3), "nearest")[:, :, 0])
    [[1. 3. 3.]
     [1. 3. 3.]]
    """
    x = as_operand(images)
    if x.ndim not in (3, 4):
        raise ShapeError(
            f"takes [height, width, channels], or a batch of them, got {x._type}",
            help="an image without channels is x[..., None]",
        )
    if antialias:
        raise UnsupportedError(
            "does not smooth images",
            help="average before: tj.nn.avg_pool(x, k) makes them k times smaller",
        )
    if method not in METHODS:
        raise ArgumentError(
            f"method is one of {', '.join(map(repr, METHODS))}, got {method!r}"
        )
    first = x.ndim - 3
    before = x.shape[first : first + 2]
    if any(n == 0 for n in before):
        raise ShapeError(f"there are no pixels in {x._type}")
    after = _new_size(size, before, preserve_aspect_ratio)
    if method != "nearest":
        x = as_float(x)
    dtype = x.dtype
    if method != "nearest":
        x = widened(x)
    for axis in (first + 1, first):  # along rows first, as TensorFlow
        old, new = before[axis - first], after[axis - first]
        if isinstance(old, Dim) or isinstance(new, Dim) or old != new:
            x = apply(ops.resample, x, axis=axis, size=new, method=method)
    return cast(x, dtype)


def _new_size(
    size: Any, before: tuple[Size, ...], keeps_ratio: bool
) -> tuple[Size, Size]:
    """The new height and width."""
    try:
        wanted = tuple(n if isinstance(n, Dim) else operator.index(n) for n in size)
    except TypeError:
        raise ArgumentTypeError(
            f"size is the new height and width, got {size!r}"
        ) from None
    if len(wanted) != 2:
        raise ArgumentError(f"size is the new height and width, got {size!r}")
    if any(n < 1 for n in wanted):
        raise ArgumentError(f"an image has at least one pixel, got size {size!r}")
    if not keeps_ratio:
        return wanted[0], wanted[1]
    height, width = map(int, before)
    scale = min(int(wanted[0]) / height, int(wanted[1]) / width)
    # As TensorFlow, which rounds half up.
    rounded = [max(1, int(scale * n + 0.5)) for n in (height, width)]
    return rounded[0], rounded[1]
