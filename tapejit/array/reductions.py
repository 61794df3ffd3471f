"""Sums, products, extremes and their positions.

`axis` is an int, several, or None for all of them; `keepdims` keeps reduced axes with
size one.

Start reading at `sum`, then `mean`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tapejit import ops
from tapejit.base.errors import TapejitError
from tapejit.base.public import names_in
from tapejit.base.types import as_dtype
from tapejit.ir.node import Op
from tapejit.ops.shapes import normalize_axes, normalize_axis
from tapejit.tensor.dispatch import apply, as_bool, as_float, as_operand, binary, cast
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.tensor.tensor import Tensor

Axis = int | Sequence[int] | None


def _reduce(op: Op, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    try:
        axes = normalize_axes(axis, x.ndim)
    except TapejitError as error:
        error.op = op.name
        raise
    return apply(op, x, axes=axes, keepdims=bool(keepdims))


def _accumulate(op: Op, x: Tensor, axis: Axis, dtype: Any, keepdims: bool) -> Tensor:
    """A sum or product of elements that are converted first, if a dtype is given."""
    if dtype is None:
        return _reduce(op, x, axis, keepdims)
    target = as_dtype(dtype)
    # The op widens int8 to int32; arithmetic modulo 2^n allows to come back after it.
    return cast(_reduce(op, cast(x, target), axis, keepdims), target)


@with_hints
def sum(
    x: Any, /, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False
) -> Tensor:
    """The sum; bools and small integers add up in 32 bits, and overflow wraps.

    >>> import tapejit as tj
    >>> print(tj.sum(tj.asarray([[1.0, 2.0], [3.0, 4.0]]), axis=0))
    [4. 6.]
    """
    return _accumulate(ops.sum, as_operand(x, "sum"), axis, dtype, keepdims)


@with_hints
def prod(
    x: Any, /, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False
) -> Tensor:
    """The product; its gradient is exact also where elements are 0.

    >>> import tapejit as tj
    >>> print(tj.prod(tj.asarray([2.0, 3.0, 4.0])))
    24.0
    """
    return _accumulate(ops.prod, as_operand(x, "prod"), axis, dtype, keepdims)


@with_hints
def mean(
    x: Any, /, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False
) -> Tensor:
    """The arithmetic mean; integers average to the default float.

    With `dtype` the elements are of that dtype before they are added.

    >>> import tapejit as tj
    >>> print(tj.mean(tj.asarray([1.0, 2.0, 6.0])))
    3.0
    """
    x = as_operand(x, "mean")
    if dtype is not None:
        x = cast(x, as_dtype(dtype))
    x = as_float(x)
    total = _reduce(ops.sum, x, axis, keepdims)
    count = 1
    for at in normalize_axes(axis, x.ndim):
        count = count * x.shape[at]
    out = binary(ops.div, total, count * 1.0)  # a float also if it is symbolic
    return out if dtype is None else cast(out, x.dtype)


@with_hints
def max(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The largest element; ties share its gradient equally.

    >>> import tapejit as tj
    >>> print(tj.max(tj.asarray([[1.0, 5.0], [7.0, 2.0]]), axis=1))
    [5. 7.]
    """
    return _reduce(ops.max, as_operand(x, "max"), axis, keepdims)


@with_hints
def min(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The smallest element; ties share its gradient equally.

    >>> import tapejit as tj
    >>> print(tj.min(tj.asarray([[1.0, 5.0], [7.0, 2.0]]), axis=1))
    [1. 2.]
    """
    return _reduce(ops.min, as_operand(x, "min"), axis, keepdims)


@with_hints
def argmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The position of the (first) largest element.

    >>> import tapejit as tj
    >>> print(tj.argmax(tj.asarray([[1.0, 5.0], [7.0, 2.0]]), axis=1))
    [1 0]
    """
    return _position(ops.argmax, as_operand(x, "argmax"), axis, keepdims)


@with_hints
def argmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The position of the (first) smallest element.

    >>> import tapejit as tj
    >>> print(tj.argmin(tj.asarray([[1.0, 5.0], [7.0, 2.0]]), axis=1))
    [0 1]
    """
    return _position(ops.argmin, as_operand(x, "argmin"), axis, keepdims)


def _position(op: Op, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    if axis is None:
        ndim = x.ndim
        flat = apply(ops.reshape, x, shape=(x.size,))
        out = apply(op, flat, axis=0, keepdims=False)
        return apply(ops.reshape, out, shape=(1,) * ndim) if keepdims else out
    try:
        at = normalize_axis(int(axis), x.ndim)
    except TapejitError as error:
        error.op = op.name
        raise
    return apply(op, x, axis=at, keepdims=bool(keepdims))


@with_hints
def all(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Whether every element is true.

    >>> import tapejit as tj
    >>> print(tj.all(tj.asarray([True, False])))
    False
    """
    return _reduce(ops.all, as_bool(as_operand(x, "all")), axis, keepdims)


@with_hints
def any(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Whether some element is true.

    >>> import tapejit as tj
    >>> print(tj.any(tj.asarray([True, False])))
    True
    """
    return _reduce(ops.any, as_bool(as_operand(x, "any")), axis, keepdims)


@with_hints
def logsumexp(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))), without overflow.

    >>> import tapejit as tj
    >>> print(tj.logsumexp(tj.asarray([1000.0, 0.0])))
    1000.0
    """
    x = as_float(as_operand(x, "logsumexp"))
    return _reduce(ops.logsumexp, x, axis, keepdims)


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = names_in(globals())
