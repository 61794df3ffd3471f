"""Running sums and products.

Names and rules are the array API standard's: a tensor of one axis needs no `axis`, any
other does. `np.cumsum(x)` and `np.cumprod(x)` go the same way, and flatten as NumPy
does.

Start reading at `cumulative_sum`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tapejit import ops
from tapejit.array.creation import full
from tapejit.array.manipulation import concat, reshape
from tapejit.base.errors import AxisError
from tapejit.base.types import as_dtype
from tapejit.ir.node import Op
from tapejit.ops.shapes import normalize_axis
from tapejit.tensor.dispatch import apply, as_float, as_operand, cast
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor


def scan_axis(x: Tensor, axis: int | None) -> int:
    """The axis to scan: the only one if none is given."""
    if axis is not None:
        return normalize_axis(operator.index(axis), x.ndim)
    if x.ndim != 1:
        raise AxisError(
            f"a tensor of rank {x.ndim} needs an axis",
            help="write axis=0, or flatten it first: x.flatten()"
            if x.ndim
            else "a scalar has none: write x.reshape(1)",
        )
    return 0


def _accumulated(
    op: Op, x: Any, axis: int | None, dtype: Any, include_initial: bool, initial: int
) -> Tensor:
    x = as_operand(x, op.name)
    kind = None if dtype is None else as_dtype(dtype)
    if kind is not None:
        x = cast(x, kind)
    at = scan_axis(x, axis)
    out = apply(op, x, axis=at)
    if kind is not None:
        out = cast(out, kind)  # small integers were widened
    if not include_initial:
        return out
    shape = (*out.shape[:at], 1, *out.shape[at + 1 :])
    return concat([full(shape, initial, dtype=out.dtype), out], axis=at)


@named
def cumulative_sum(
    x: Any,
    /,
    axis: int | None = None,
    dtype: Any = None,
    *,
    include_initial: bool = False,
) -> Tensor:
    """The sums of the elements up to each; with `include_initial` 0 comes first.

    >>> import tapejit as tj
    >>> print(tj.cumulative_sum(tj.asarray([1.0, 2.0, 3.0])))
    [1. 3. 6.]
    >>> print(tj.cumulative_sum(tj.asarray([1.0, 2.0, 3.0]), include_initial=True))
    [0. 1. 3. 6.]
    """
    return _accumulated(ops.cumulative_sum, x, axis, dtype, include_initial, 0)


@named
def cumulative_prod(
    x: Any,
    /,
    axis: int | None = None,
    dtype: Any = None,
    *,
    include_initial: bool = False,
) -> Tensor:
    """The products of the elements up to each; with `include_initial` 1 comes first.

    The gradient is exact also where elements are 0.

    >>> import tapejit as tj
    >>> print(tj.cumulative_prod(tj.asarray([2.0, 3.0, 4.0])))
    [ 2.  6. 24.]
    """
    return _accumulated(ops.cumulative_prod, x, axis, dtype, include_initial, 1)


@named
def logcumsumexp(x: Any, /, axis: int | None = None) -> Tensor:
    """log(cumulative_sum(exp(x))), without overflow.

    >>> import tapejit as tj
    >>> print(tj.logcumsumexp(tj.asarray([1000.0, 1000.0, 0.0])))
    [1000.     1000.6932 1000.6932]
    """
    x = as_float(as_operand(x, "logcumsumexp"))
    return apply(ops.logcumsumexp, x, axis=scan_axis(x, axis))


def numpy_cumulative(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same scan with NumPy's rule: without an axis, of all elements in order."""

    def adapter(a: Any, *, axis: int | None = None, dtype: Any = None) -> Tensor:
        x = as_operand(a, function.__name__)
        if axis is None:
            x, axis = reshape(x, (-1,)), 0
        return function(x, axis=axis, dtype=dtype)

    return adapter


__all__ = ["cumulative_prod", "cumulative_sum", "logcumsumexp"]
