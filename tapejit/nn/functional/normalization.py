"""Means and variances, and tensors brought to a common scale by them.

Variances are means of squared distances from the mean, taken in a second pass over the
data: the mean of squares minus the square of the mean loses every digit when the mean
is large. `epsilon` is added to the variance, under the root.

Scales and offsets have one entry per element of the axes that are normalized, and are
put where those axes are.

Start reading at `layer_norm`, then `normalize`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tapejit import ops
from tapejit.array import reductions
from tapejit.array.elementwise import abs as magnitude
from tapejit.array.elementwise import equal, maximum, sqrt, square, subtract, where
from tapejit.array.manipulation import reshape
from tapejit.array.precision import (
    as_constant,
    axes_of,
    real_operand,
    summed_operand,
    wide_operand,
)
from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.base.public import names_in
from tapejit.base.types import DType, promote_all
from tapejit.ops.shapes import Axes
from tapejit.tensor.dispatch import apply, cast, is_weak, weak_scalar
from tapejit.tensor.tensor import Tensor

Axis = int | Sequence[int] | None


def moments(
    x: Any, /, axis: Axis = None, *, keepdims: bool = False
) -> tuple[Tensor, Tensor]:
    """The mean and the variance over `axis`, all axes by default.

    The variance is that of a population: the mean of the squared distances.

    >>> import tapejit as tj
    >>> mean, variance = tj.nn.moments(tj.asarray([[1.0, 2.0], [3.0, 6.0]]), axis=0)
    >>> print(mean, variance)
    [2. 4.] [1. 4.]
    """
    x, dtype = summed_operand(x, "moments")
    axes = axes_of(x, axis, "moments")
    mean = reductions.mean(x, axis=axes, keepdims=True)
    variance = reductions.mean(square(x - mean), axis=axes, keepdims=keepdims)
    if not keepdims:
        mean = reshape(mean, variance.shape)
    return cast(mean, dtype), cast(variance, dtype)


def standardize(x: Any, /, axis: Axis = -1, *, epsilon: float = 1e-5) -> Tensor:
    """x with mean 0 and variance 1 along `axis`.

    Where all elements are equal the result is 0.

    >>> import tapejit as tj
    >>> print(tj.nn.standardize(tj.asarray([1.0, 3.0]), epsilon=0.0))
    [-1.  1.]
    """
    x, dtype = summed_operand(x, "standardize")
    axes = axes_of(x, axis, "standardize")
    return cast(_standardized(x, axes, _checked(epsilon, "standardize")), dtype)


def layer_norm(
    x: Any,
    /,
    scale: Any = None,
    bias: Any = None,
    axis: Axis = -1,
    *,
    epsilon: float = 1e-5,
) -> Tensor:
    """`standardize`, then times `scale` and plus `bias`.

    They have the sizes of `axis`, in order: for the last axis one entry per feature.

    >>> import tapejit as tj
    >>> x = tj.asarray([[1.0, 3.0], [10.0, 50.0]])
    >>> print(tj.nn.layer_norm(x, scale=tj.asarray([1.0, 2.0]), epsilon=0.0))
    [[-1.  2.]
     [-1.  2.]]
    """
    name = "layer_norm"
    x, dtype = summed_operand(x, name)
    axes = axes_of(x, axis, name)
    out = _standardized(x, axes, _checked(epsilon, name))
    dtype = _meeting_dtype(dtype, (scale, bias), name)
    return cast(_affine(out, scale, bias, axes, name), dtype)


def rms_norm(
    x: Any, /, scale: Any = None, axis: Axis = -1, *, epsilon: float = 1e-6
) -> Tensor:
    """x over the root of the mean of its squares along `axis`, times `scale`.

    `scale` has the sizes of `axis`, in order.

    >>> import tapejit as tj
    >>> print(tj.nn.rms_norm(tj.asarray([3.0, -3.0, 3.0]), epsilon=0.0))
    [ 1. -1.  1.]
    """
    name = "rms_norm"
    x, dtype = summed_operand(x, name)
    axes = axes_of(x, axis, name)
    level = reductions.mean(square(x), axis=axes, keepdims=True)
    out = x / sqrt(level + _checked(epsilon, name))
    dtype = _meeting_dtype(dtype, (scale,), name)
    return cast(_affine(out, scale, None, axes, name), dtype)


def batch_norm(
    x: Any,
    /,
    mean: Any,
    variance: Any,
    offset: Any = None,
    scale: Any = None,
    *,
    axis: Axis = -1,
    epsilon: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon), times `scale` and plus `offset`.

    The four have one entry per channel, and `axis` says which axis the channels are;
    or they broadcast with x as they are, if they have as many axes as x. In training
    the mean and variance come from `moments` over the other axes, and gradients flow
    through them; afterwards they are running averages.

    >>> import tapejit as tj
    >>> x = tj.asarray([[1.0, 10.0], [3.0, 50.0]])
    >>> mean, variance = tj.nn.moments(x, axis=0)
    >>> print(tj.nn.batch_norm(x, mean, variance, epsilon=0.0))
    [[-1. -1.]
     [ 1.  1.]]
    """
    name = "batch_norm"
    x, dtype = summed_operand(x, name)
    axes = axes_of(x, axis, name)
    dtype = _meeting_dtype(dtype, (mean, variance, offset, scale), name)
    center = _parameter(mean, x, axes, "mean", name)
    spread = _parameter(variance, x, axes, "variance", name)
    out = (x - center) / sqrt(spread + _checked(epsilon, name))
    return cast(_affine(out, scale, offset, axes, name), dtype)


def normalize(x: Any, /, axis: Axis = -1) -> Tensor:
    """x over its Euclidean length along `axis`; 0 where that is 0.

    The gradient at 0 is 0. No square overflows or vanishes.

    >>> import tapejit as tj
    >>> print(tj.nn.normalize(tj.asarray([[3.0, 4.0], [0.0, 0.0], [0.0, 1e30]])))
    [[0.6 0.8]
     [0.  0. ]
     [0.  1. ]]
    """
    x, dtype = summed_operand(x, "normalize")
    axes = axes_of(x, axis, "normalize")
    if not all(x.shape):  # there is no largest of nothing
        return cast(x * 1.0, dtype)
    # The direction does not depend on the scale, so that counts as a constant, for
    # derivatives of every order.
    size = reductions.max(magnitude(as_constant(x)), axis=axes, keepdims=True)
    scaled = x / _power_of_two(size)
    squares = reductions.sum(square(scaled), axis=axes, keepdims=True)
    # The largest element contributes at least 1: only the sum of zeros is less.
    return cast(scaled / sqrt(maximum(squares, 1.0)), dtype)


def _power_of_two(size: Tensor) -> Tensor:
    """The power of two at or below a number: to divide by it rounds nothing.

    For 0 it is infinite: over that a zero stays what it is, and has no slope.
    """
    exponent = subtract(apply(ops.exponent, size), 1)
    power = apply(ops.ldexp, weak_scalar(1.0, size.dtype), exponent)
    return where(equal(size, 0), math.inf, power)


def _standardized(x: Tensor, axes: Axes, epsilon: float) -> Tensor:
    distance = x - reductions.mean(x, axis=axes, keepdims=True)
    variance = reductions.mean(square(distance), axis=axes, keepdims=True)
    out: Tensor = distance / sqrt(variance + epsilon)
    return out


def _affine(x: Tensor, scale: Any, offset: Any, axes: Axes, name: str) -> Tensor:
    """x times `scale` plus `offset`, those of them that are given."""
    if scale is not None:
        x = x * _parameter(scale, x, axes, "scale", name)
    if offset is not None:
        x = x + _parameter(offset, x, axes, "the offset", name)
    return x


def _parameter(value: Any, x: Tensor, axes: Axes, label: str, name: str) -> Any:
    """A parameter with its axes where those of x are; a number as it is."""
    if is_weak(value):
        return value
    wide, _ = wide_operand(value, name)
    sizes = tuple(x.shape[at] for at in axes)
    if wide.shape == sizes:
        kept = [size if at in axes else 1 for at, size in enumerate(x.shape)]
        return reshape(wide, tuple(kept))
    fits = zip(wide.shape, x.shape, strict=False)
    if not wide.ndim or (wide.ndim == x.ndim and all(n in (1, m) for n, m in fits)):
        return wide
    raise ShapeError(
        f"{label} is {wide._type}, but {x._type} has the sizes {sizes} along {axes}",
        op=name,
        help=f"{label} needs one entry per element there",
    )


def _meeting_dtype(dtype: DType, parameters: Sequence[Any], name: str) -> DType:
    """The dtype in which a tensor of `dtype` and the parameters given meet."""
    strong = [x for x in parameters if x is not None and not is_weak(x)]
    return promote_all([dtype, *[real_operand(x, name).dtype for x in strong]])


def _checked(epsilon: Any, name: str) -> float:
    number = float(epsilon)
    if not 0 <= number < math.inf:
        raise ArgumentError(f"epsilon is a number from 0 on, got {epsilon}", op=name)
    return number


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = names_in(globals())
