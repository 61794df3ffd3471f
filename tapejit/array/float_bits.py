"""Sign bits, next floats, remainders, mantissa and exponent, and the step function.

What has two results gives a tuple of tensors. Those of which one is an integer
(`frexp`) have a path through the other one only.

Start reading at `copysign`, then `nan_to_num`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit import ops
from tapejit.array import elementwise
from tapejit.base.errors import DTypeError
from tapejit.base.types import DType, is_complex, is_differentiable, is_integer
from tapejit.tensor.dispatch import (
    alias,
    apply,
    as_float,
    as_operand,
    binary,
    binary_float,
    cast,
    operands,
)
from tapejit.tensor.tensor import Tensor


def copysign(x: Any, y: Any, /) -> Tensor:
    """The size of `x` with the sign of `y`, of a zero too.

    >>> import tapejit as tj
    >>> print(tj.copysign(tj.asarray([1.0, -2.0]), tj.asarray([-0.0, 3.0])))
    [-1.  2.]
    """
    return binary_float(ops.copysign, x, y)


def nextafter(x: Any, y: Any, /) -> Tensor:
    """The next number of its dtype from `x` towards `y`; its slope by `x` is 1.

    >>> import tapejit as tj
    >>> print(tj.nextafter(tj.asarray(1.0), tj.asarray(2.0)))
    1.0000001
    """
    return binary_float(ops.nextafter, x, y)


def signbit(x: Any, /) -> Tensor:
    """Whether a number has a minus sign, as -0.0 has.

    >>> import tapejit as tj
    >>> print(tj.signbit(tj.asarray([-0.0, 0.0, -3.0])))
    [ True False  True]
    """
    x = as_operand(x, "signbit")
    return binary(ops.less, x, 0) if is_integer(x.dtype) else apply(ops.signbit, x)


def divmod(x: Any, y: Any, /) -> tuple[Tensor, Tensor]:
    """`floor_divide` and `remainder`, together.

    >>> import tapejit as tj
    >>> quotient, rest = tj.divmod(tj.asarray([7, -7]), 4)
    >>> print(quotient, rest)
    [ 1 -2] [3 1]
    """
    return elementwise.floor_divide(x, y), elementwise.remainder(x, y)


def fmod(x: Any, y: Any, /) -> Tensor:
    """The remainder, with the sign of the dividend.

    >>> import tapejit as tj
    >>> print(tj.fmod(tj.asarray([7.0, -7.0]), 4))
    [ 3. -3.]
    """
    return binary(ops.fmod, x, y)


def modf(x: Any, /) -> tuple[Tensor, Tensor]:
    """The fraction and the whole part, both with the sign of `x`.

    >>> import tapejit as tj
    >>> fraction, whole = tj.modf(tj.asarray([1.5, -2.25]))
    >>> print(fraction, whole)
    [ 0.5  -0.25] [ 1. -2.]
    """
    x = _as_float(x, "modf")
    nothing = binary(ops.copysign, 0.0, x)  # of an infinite number
    fraction = elementwise.where(elementwise.isinf(x), nothing, fmod(x, 1.0))
    return fraction, elementwise.trunc(x)


def frexp(x: Any, /) -> tuple[Tensor, Tensor]:
    """m and e with x = m 2ᵉ and ½ ≤ |m| < 1; of 0, inf and NaN e is 0.

    >>> import tapejit as tj
    >>> mantissa, exponent = tj.frexp(tj.asarray([8.0, -0.75]))
    >>> print(mantissa, exponent)
    [ 0.5  -0.75] [4 0]
    """
    x = _as_float(x, "frexp")
    exponent = apply(ops.exponent, x)
    return apply(ops.ldexp, x, elementwise.negative(exponent)), exponent


def ldexp(x: Any, n: Any, /) -> Tensor:
    """x 2ⁿ for integers n, rounded once.

    >>> import tapejit as tj
    >>> print(tj.ldexp(tj.asarray([1.0, 0.75]), tj.asarray([3, -1])))
    [8.    0.375]
    """
    x, power = _as_float(x, "ldexp"), as_operand(n, "ldexp")
    if not is_integer(power.dtype):
        raise DTypeError(
            f"takes integer exponents, got {power.dtype}",
            op="ldexp",
            help="for others write x * tj.exp2(n)",
        )
    if power.dtype.itemsize > 4 or power.dtype == np.uint32:
        power = elementwise.minimum(power, 5000)  # where every float is infinite
        if power.dtype.kind == "i":
            power = elementwise.maximum(power, -5000)
    return apply(ops.ldexp, x, cast(power, np.dtype(np.int32)))


def heaviside(x: Any, middle: Any, /) -> Tensor:
    """The step: 0 below 0, 1 above, `middle` at 0.

    >>> import tapejit as tj
    >>> print(tj.heaviside(tj.asarray([-2.0, 0.0, 3.0]), 0.5))
    [0.  0.5 1. ]
    """
    x, middle = operands((x, middle), "heaviside")
    x, middle = _as_float(x, "heaviside"), _as_float(middle, "heaviside")
    step = (elementwise.sign(x) + 1.0) * 0.5
    return elementwise.where(elementwise.equal(x, 0), middle, step)


def nan_to_num(
    x: Any, /, *, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Tensor:
    """NaN and infinities replaced, by default with 0 and the largest numbers.

    The gradient of what was replaced is 0.

    >>> import tapejit as tj
    >>> x = tj.asarray([1.0, float("nan"), float("inf")])
    >>> print(tj.nan_to_num(x, posinf=9.0))
    [1. 0. 9.]
    """
    x = as_operand(x, "nan_to_num")
    if not is_differentiable(x.dtype):
        return alias(x)
    if is_complex(x.dtype):
        parts = (elementwise.real(x), elementwise.imag(x))
        return apply(
            ops.make_complex,
            *[
                nan_to_num(part, nan=nan, posinf=posinf, neginf=neginf)
                for part in parts
            ],
        )
    top = _largest(x.dtype)
    out = elementwise.where(elementwise.isnan(x), nan, x)
    high = elementwise.equal(x, float("inf"))
    out = elementwise.where(high, top if posinf is None else posinf, out)
    low = elementwise.equal(x, float("-inf"))
    return elementwise.where(low, -top if neginf is None else neginf, out)


def _largest(dtype: DType) -> float:
    """The largest finite number of a floating dtype."""
    if dtype.name == "bfloat16":
        return 2.0**128 - 2.0**120
    return float(np.finfo(dtype).max)


def _as_float(x: Any, name: str) -> Tensor:
    """An operand as real floats: integers and bools are converted."""
    x = as_operand(x, name)
    if is_complex(x.dtype):
        raise DTypeError(
            f"takes real tensors, got {x.dtype}",
            op=name,
            help="treat tj.real(x) and tj.imag(x) each on its own",
        )
    return as_float(x)
