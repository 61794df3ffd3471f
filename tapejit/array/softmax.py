"""Softmax and its logarithm, in all precisions, and the pieces losses make of them.

Start reading at `softmax`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapejit import ops
from tapejit.array import reductions
from tapejit.array.elementwise import exp, log, maximum, subtract
from tapejit.array.precision import as_constant, axes_of, summed_operand
from tapejit.ops.activations import lowest
from tapejit.ops.shapes import Axes
from tapejit.tensor.dispatch import apply, cast
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.tensor.tensor import Tensor

Axis = int | Sequence[int] | None


@with_hints
def softmax(x: Any, /, axis: Axis = -1) -> Tensor:
    """Shares that are positive and sum to 1: e^x over its sum along `axis`.

    `axis` may be several axes, or None for all. An element of -inf gets the share 0
    and no gradient, so adding -inf masks it out. A row that is masked out entirely is
    all 0, and so is its gradient: there is nothing to share.

    >>> import tapejit as tj
    >>> print(tj.nn.softmax(tj.asarray([1000.0, 1000.0, -tj.inf])))
    [0.5 0.5 0. ]
    """
    x, dtype = summed_operand(x, "softmax")
    axes = axes_of(x, axis, "softmax")
    return cast(apply(ops.softmax, x, axes=axes), dtype)


@with_hints
def log_softmax(x: Any, /, axis: Axis = -1) -> Tensor:
    """The logarithm of `softmax`, exact also where a share rounds to 0 or 1.

    An element of -inf stays -inf and gets no gradient from the others.

    >>> import tapejit as tj
    >>> print(tj.nn.log_softmax(tj.asarray([1000.0, 0.0, -tj.inf])))
    [    0. -1000.   -inf]
    """
    x, dtype = summed_operand(x, "log_softmax")
    axes = axes_of(x, axis, "log_softmax")
    lowered = below_largest(x, axes)
    return cast(lowered - log(sum_of_powers(exp(lowered), axes)), dtype)


def below_largest(x: Tensor, axes: Axes) -> Tensor:
    """How far each element is below the largest of its slice: 0 or negative.

    Softmax does not depend on what is subtracted, so that counts as a constant, for
    derivatives of every order. Where all of a slice is -inf, the lowest finite number
    is subtracted: -inf stays -inf instead of becoming NaN.
    """
    if not all(x.shape):  # there is no largest of nothing
        return x
    top = reductions.max(as_constant(x), axis=axes, keepdims=True)
    return subtract(x, maximum(top, lowest(x.dtype)))


def sum_of_powers(powers: Tensor, axes: Axes) -> Tensor:
    """The sum of e^x for what `below_largest` gives, and 1 where that sum is 0.

    The largest element contributes 1, so any other sum is at least 1 already.
    """
    return maximum(reductions.sum(powers, axis=axes, keepdims=True), 1.0)
