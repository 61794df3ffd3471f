"""Products and quotients that are 0 where a zero decides, whatever meets it.

`divide_no_nan` is 0 where the divisor is 0, `multiply_no_nan` where the factor is 0,
also if the other operand is infinite or NaN. What is not asked for is not computed
either: a divisor of 0 is replaced by 1 before the division, so derivatives of every
order are finite.

Start reading at `divide_no_nan`.
"""

from __future__ import annotations

from typing import Any

from tapejit import ops
from tapejit.base.types import is_complex, is_differentiable
from tapejit.tensor.dispatch import apply, as_float, operands, weak_scalar
from tapejit.tensor.tensor import Tensor


def divide_no_nan(x: Any, y: Any, /) -> Tensor:
    """The quotient, 0 where `y` is 0, also if `x` is infinite or NaN.

    Both derivatives are 0 there. Integers divide to the default float.

    >>> import tapejit as tj
    >>> print(tj.divide_no_nan(tj.asarray([3.0, 3.0, tj.inf]), [2.0, 0.0, 0.0]))
    [1.5 0.  0. ]
    """
    x, y = map(as_float, operands((x, y), "divide_no_nan"))
    nothing, one = weak_scalar(0, y.dtype), weak_scalar(1, y.dtype)
    is_zero = apply(ops.equal, y, nothing)
    quotient = apply(ops.div, x, apply(ops.where, is_zero, one, y))
    return apply(ops.where, is_zero, nothing, quotient)


def multiply_no_nan(x: Any, y: Any, /) -> Tensor:
    """The product, 0 where `y` is 0, also if `x` is infinite or NaN.

    The derivatives are those of the product; where `x` is not finite and `y` is 0 they
    are 0.

    >>> import tapejit as tj
    >>> print(tj.multiply_no_nan(tj.asarray([3.0, tj.nan, tj.inf]), [2.0, 0.0, 0.0]))
    [6. 0. 0.]
    """
    x, y = operands((x, y), "multiply_no_nan")
    if not is_differentiable(x.dtype):
        return apply(ops.mul, x, y)
    nothing = weak_scalar(0, y.dtype)
    is_zero = apply(ops.equal, y, nothing)
    is_finite = apply(ops.isfinite, x)
    goes = apply(ops.bitwise_and, is_zero, apply(ops.bitwise_invert, is_finite))
    product = apply(ops.mul, apply(ops.where, goes, nothing, x), y)
    # -3 times 0 is -0.0, which +0.0 makes 0; -0.0 changes nothing.
    minus = complex(-0.0, -0.0) if is_complex(y.dtype) else -0.0
    sign = apply(ops.where, is_zero, nothing, weak_scalar(minus, y.dtype))
    return apply(ops.add, product, sign)
