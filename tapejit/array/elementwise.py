"""Elementwise arithmetic, comparisons, logic, bits and rounding.

Each converts its operands (`dispatch.operands`) and applies one record; the few that
are compositions say so. Integers become floats where a function needs floats.

Start reading at `add`, then `clip`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tapejit import ops
from tapejit.array.decimals import to_decimals
from tapejit.base.errors import ArgumentError
from tapejit.base.public import names_in
from tapejit.base.types import as_dtype, is_complex, is_differentiable
from tapejit.tensor.device import move
from tapejit.tensor.dispatch import (
    alias,
    apply,
    as_bool,
    as_operand,
    binary,
    binary_float,
    cast,
    operands,
    unary,
)
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.tensor.tensor import Tensor


def add(x: Any, y: Any, /) -> Tensor:
    """The sum, element by element.

    >>> import tapejit as tj
    >>> print(tj.add(tj.asarray([1.0, 2.0]), 1))
    [2. 3.]
    """
    return binary(ops.add, x, y)


def subtract(x: Any, y: Any, /) -> Tensor:
    """The difference, element by element.

    >>> import tapejit as tj
    >>> print(tj.subtract(tj.asarray([1.0, 2.0]), 1))
    [0. 1.]
    """
    return binary(ops.sub, x, y)


def multiply(x: Any, y: Any, /) -> Tensor:
    """The product, element by element.

    >>> import tapejit as tj
    >>> print(tj.multiply(tj.asarray([1.0, 2.0]), 3))
    [3. 6.]
    """
    return binary(ops.mul, x, y)


def divide(x: Any, y: Any, /) -> Tensor:
    """The quotient; integers divide to the default float.

    >>> import tapejit as tj
    >>> print(tj.divide(tj.asarray([1, 3]), 2))
    [0.5 1.5]
    """
    return binary_float(ops.div, x, y)


def floor_divide(x: Any, y: Any, /) -> Tensor:
    """The quotient rounded down; its derivative is 0.

    >>> import tapejit as tj
    >>> print(tj.floor_divide(tj.asarray([7.0, -7.0]), 2))
    [ 3. -4.]
    """
    return binary(ops.floor_divide, x, y)


def remainder(x: Any, y: Any, /) -> Tensor:
    """The remainder, with the sign of the divisor.

    >>> import tapejit as tj
    >>> print(tj.remainder(tj.asarray([7.0, -7.0]), 4))
    [3. 1.]
    """
    return binary(ops.remainder, x, y)


def maximum(x: Any, y: Any, /) -> Tensor:
    """The larger of two; at a tie the gradient goes to the first.

    >>> import tapejit as tj
    >>> print(tj.maximum(tj.asarray([1.0, 5.0]), 3))
    [3. 5.]
    """
    return binary(ops.maximum, x, y)


def minimum(x: Any, y: Any, /) -> Tensor:
    """The smaller of two; at a tie the gradient goes to the first.

    >>> import tapejit as tj
    >>> print(tj.minimum(tj.asarray([1.0, 5.0]), 3))
    [1. 3.]
    """
    return binary(ops.minimum, x, y)


def equal(x: Any, y: Any, /) -> Tensor:
    """Whether elements are equal.

    >>> import tapejit as tj
    >>> print(tj.equal(tj.asarray([1, 2]), 2))
    [False  True]
    """
    return binary(ops.equal, x, y)


def not_equal(x: Any, y: Any, /) -> Tensor:
    """Whether elements differ.

    >>> import tapejit as tj
    >>> print(tj.not_equal(tj.asarray([1, 2]), 2))
    [ True False]
    """
    return binary(ops.not_equal, x, y)


def less(x: Any, y: Any, /) -> Tensor:
    """Whether the first is smaller.

    >>> import tapejit as tj
    >>> print(tj.less(tj.asarray([1, 2]), 2))
    [ True False]
    """
    return binary(ops.less, x, y)


def less_equal(x: Any, y: Any, /) -> Tensor:
    """Whether the first is not larger.

    >>> import tapejit as tj
    >>> print(tj.less_equal(tj.asarray([1, 3]), 2))
    [ True False]
    """
    return binary(ops.less_equal, x, y)


def greater(x: Any, y: Any, /) -> Tensor:
    """Whether the first is larger.

    >>> import tapejit as tj
    >>> print(tj.greater(tj.asarray([1, 3]), 2))
    [False  True]
    """
    return binary(ops.greater, x, y)


def greater_equal(x: Any, y: Any, /) -> Tensor:
    """Whether the first is not smaller.

    >>> import tapejit as tj
    >>> print(tj.greater_equal(tj.asarray([1, 2]), 2))
    [False  True]
    """
    return binary(ops.greater_equal, x, y)


def bitwise_and(x: Any, y: Any, /) -> Tensor:
    """The bits that both have.

    >>> import tapejit as tj
    >>> print(tj.bitwise_and(tj.asarray([6, 5]), 3))
    [2 1]
    """
    return binary(ops.bitwise_and, x, y)


def bitwise_or(x: Any, y: Any, /) -> Tensor:
    """The bits that either has.

    >>> import tapejit as tj
    >>> print(tj.bitwise_or(tj.asarray([6, 5]), 3))
    [7 7]
    """
    return binary(ops.bitwise_or, x, y)


def bitwise_xor(x: Any, y: Any, /) -> Tensor:
    """The bits that exactly one has.

    >>> import tapejit as tj
    >>> print(tj.bitwise_xor(tj.asarray([6, 5]), 3))
    [5 6]
    """
    return binary(ops.bitwise_xor, x, y)


def bitwise_left_shift(x: Any, y: Any, /) -> Tensor:
    """The bits moved up.

    >>> import tapejit as tj
    >>> print(tj.bitwise_left_shift(tj.asarray([1, 3]), 2))
    [ 4 12]
    """
    return binary(ops.bitwise_left_shift, x, y)


def bitwise_right_shift(x: Any, y: Any, /) -> Tensor:
    """The bits moved down.

    >>> import tapejit as tj
    >>> print(tj.bitwise_right_shift(tj.asarray([4, 12]), 2))
    [1 3]
    """
    return binary(ops.bitwise_right_shift, x, y)


def square(x: Any, /) -> Tensor:
    """The square.

    >>> import tapejit as tj
    >>> print(tj.square(tj.asarray([1.0, -3.0])))
    [1. 9.]
    """
    return unary(ops.square, x)


def bitwise_invert(x: Any, /) -> Tensor:
    """Every bit turned over; of bools, not.

    >>> import tapejit as tj
    >>> print(tj.bitwise_invert(tj.asarray([True, False])))
    [False  True]
    """
    return unary(ops.bitwise_invert, x)


def sqrt(x: Any, /) -> Tensor:
    """The square root; its slope at 0 is infinite.

    >>> import tapejit as tj
    >>> print(tj.sqrt(tj.asarray([4.0, 9.0])))
    [2. 3.]
    """
    return unary(ops.sqrt, x, True)


def exp(x: Any, /) -> Tensor:
    """The exponential.

    >>> import tapejit as tj
    >>> print(tj.exp(tj.asarray([0.0, 1.0])))
    [1.        2.7182817]
    """
    return unary(ops.exp, x, True)


def expm1(x: Any, /) -> Tensor:
    """exp(x) - 1, exact also for small x.

    >>> import tapejit as tj
    >>> print(tj.expm1(tj.asarray([0.0])))
    [0.]
    """
    return unary(ops.expm1, x, True)


def log(x: Any, /) -> Tensor:
    """The natural logarithm.

    >>> import tapejit as tj
    >>> print(tj.log(tj.asarray([1.0])))
    [0.]
    """
    return unary(ops.log, x, True)


def log1p(x: Any, /) -> Tensor:
    """log(1 + x), exact also for small x.

    >>> import tapejit as tj
    >>> print(tj.log1p(tj.asarray([0.0])))
    [0.]
    """
    return unary(ops.log1p, x, True)


def sin(x: Any, /) -> Tensor:
    """The sine.

    >>> import tapejit as tj
    >>> print(tj.sin(tj.asarray([0.0])))
    [0.]
    """
    return unary(ops.sin, x, True)


def cos(x: Any, /) -> Tensor:
    """The cosine.

    >>> import tapejit as tj
    >>> print(tj.cos(tj.asarray([0.0])))
    [1.]
    """
    return unary(ops.cos, x, True)


def tanh(x: Any, /) -> Tensor:
    """The hyperbolic tangent.

    >>> import tapejit as tj
    >>> print(tj.tanh(tj.asarray([0.0])))
    [0.]
    """
    return unary(ops.tanh, x, True)


def sigmoid(x: Any, /) -> Tensor:
    """1 / (1 + exp(-x)), without overflow.

    >>> import tapejit as tj
    >>> print(tj.sigmoid(tj.asarray([0.0])))
    [0.5]
    """
    return unary(ops.sigmoid, x, True)


def erf(x: Any, /) -> Tensor:
    """The error function.

    >>> import tapejit as tj
    >>> print(tj.erf(tj.asarray([0.0])))
    [0.]
    """
    return unary(ops.erf, x, True)


def pow(x: Any, y: Any, /) -> Tensor:
    """x to the power y; x**0 is constant, also at 0.

    >>> import tapejit as tj
    >>> print(tj.pow(tj.asarray([2.0, 3.0]), 2))
    [4. 9.]
    """
    if type(y) is int and y == 2:
        return square(x)
    return binary(ops.pow, x, y)


def negative(x: Any, /) -> Tensor:
    """The sign changed.

    >>> import tapejit as tj
    >>> print(tj.negative(tj.asarray([1.0, -2.0])))
    [-1.  2.]
    """
    return unary(ops.negative, x)


def positive(x: Any, /) -> Tensor:
    """The operand itself, as a tensor.

    >>> import tapejit as tj
    >>> print(tj.positive([1.0, -2.0]))
    [ 1. -2.]
    """
    return alias(as_operand(x, "positive"))


def abs(x: Any, /) -> Tensor:
    """The absolute value; its slope at 0 is 0.

    >>> import tapejit as tj
    >>> print(tj.abs(tj.asarray([1.0, -2.0])), tj.abs(tj.asarray(3 + 4j)))
    [1. 2.] 5.0
    """
    return unary(ops.abs, x)


def sign(x: Any, /) -> Tensor:
    """-1, 0 or 1; x / |x| of a complex number.

    >>> import tapejit as tj
    >>> print(tj.sign(tj.asarray([3.0, 0.0, -2.0])))
    [ 1.  0. -1.]
    """
    return unary(ops.sign, x)


@with_hints
def clip(x: Any, /, min: Any = None, max: Any = None) -> Tensor:
    """The elements held between two bounds; the slope at a bound is 1.

    >>> import tapejit as tj
    >>> print(tj.clip(tj.asarray([-1.0, 0.5, 2.0]), 0, 1))
    [0.  0.5 1. ]
    """
    if min is None and max is None:
        return positive(x)
    out = x if min is None else maximum(x, min)
    out = out if max is None else minimum(out, max)
    # A wider bound of the same kind does not widen the elements.
    dtype = getattr(x, "dtype", out.dtype)
    is_same_kind = dtype.kind == out.dtype.kind and dtype != out.dtype
    return cast(out, as_dtype(dtype)) if is_same_kind else out


@with_hints
def where(condition: Any, x: Any, y: Any, /) -> Tensor:
    """`x` where the condition holds, else `y`.

    >>> import tapejit as tj
    >>> print(tj.where(tj.asarray([True, False]), 1.0, 0.0))
    [1. 0.]
    """
    condition = as_bool(as_operand(condition, "where"))
    return apply(ops.where, condition, *operands((x, y), "where"))


def logical_and(x: Any, y: Any, /) -> Tensor:
    """Whether both are true.

    >>> import tapejit as tj
    >>> print(tj.logical_and(tj.asarray([True, True]), tj.asarray([True, False])))
    [ True False]
    """
    return _logical(ops.bitwise_and, x, y)


def logical_or(x: Any, y: Any, /) -> Tensor:
    """Whether either is true.

    >>> import tapejit as tj
    >>> print(tj.logical_or(tj.asarray([True, False]), tj.asarray([False, False])))
    [ True False]
    """
    return _logical(ops.bitwise_or, x, y)


def logical_xor(x: Any, y: Any, /) -> Tensor:
    """Whether exactly one is true.

    >>> import tapejit as tj
    >>> print(tj.logical_xor(tj.asarray([True, True]), tj.asarray([True, False])))
    [False  True]
    """
    return _logical(ops.bitwise_xor, x, y)


def logical_not(x: Any, /) -> Tensor:
    """Whether it is false.

    >>> import tapejit as tj
    >>> print(tj.logical_not(tj.asarray([True, False])))
    [False  True]
    """
    return apply(ops.bitwise_invert, as_bool(as_operand(x, "logical_not")))


def _logical(op: Any, x: Any, y: Any) -> Tensor:
    left, right = as_operand(x, op.name), as_operand(y, op.name)
    return apply(op, as_bool(left), as_bool(right))


def isnan(x: Any, /) -> Tensor:
    """Whether an element is not a number.

    >>> import tapejit as tj
    >>> print(tj.isnan(tj.asarray([1.0, float("nan")])))
    [False  True]
    """
    return _predicate(ops.isnan, x)


def isinf(x: Any, /) -> Tensor:
    """Whether an element is infinite.

    >>> import tapejit as tj
    >>> print(tj.isinf(tj.asarray([1.0, float("-inf")])))
    [False  True]
    """
    return _predicate(ops.isinf, x)


def isfinite(x: Any, /) -> Tensor:
    """Whether an element is a finite number.

    >>> import tapejit as tj
    >>> print(tj.isfinite(tj.asarray([1.0, float("inf")])))
    [ True False]
    """
    return _predicate(ops.isfinite, x)


def _predicate(op: Any, x: Any) -> Tensor:
    x = as_operand(x, op.name)
    if is_differentiable(x.dtype):
        return apply(op, x)
    # No integer is infinite or NaN, and each equals itself.
    return apply(ops.equal if op is ops.isfinite else ops.not_equal, x, x)


def floor(x: Any, /) -> Tensor:
    """Rounded down; the derivative is 0.

    >>> import tapejit as tj
    >>> print(tj.floor(tj.asarray([1.5, -1.5])))
    [ 1. -2.]
    """
    return _rounded(ops.floor, x)


def ceil(x: Any, /) -> Tensor:
    """Rounded up; the derivative is 0.

    >>> import tapejit as tj
    >>> print(tj.ceil(tj.asarray([1.5, -1.5])))
    [ 2. -1.]
    """
    return _rounded(ops.ceil, x)


def trunc(x: Any, /) -> Tensor:
    """Rounded towards zero; the derivative is 0.

    >>> import tapejit as tj
    >>> print(tj.trunc(tj.asarray([1.5, -1.5])))
    [ 1. -1.]
    """
    return _rounded(ops.trunc, x)


def round(x: Any, /, decimals: int = 0) -> Tensor:
    """The nearest integer, ties to even; the derivative is 0.

    With `decimals`, the nearest number of so many digits behind the point, computed
    as NumPy does.

    >>> import tapejit as tj
    >>> print(tj.round(tj.asarray([0.5, 1.5])))
    [0. 2.]
    >>> print(tj.round(tj.asarray([3.14159, 2.71828]), 2))
    [3.14 2.72]
    """
    if not decimals:
        return _rounded(ops.round, x)
    return to_decimals(as_operand(x, "round"), decimals)


def _rounded(op: Any, x: Any) -> Tensor:
    """A rounding; an integer is its own."""
    x = as_operand(x, op.name)
    if x.dtype.kind == "b":
        raise ArgumentError("takes numbers, got bool", op=op.name)
    return apply(op, x) if is_differentiable(x.dtype) else alias(x)


def real(x: Any, /) -> Tensor:
    """The real part; a real tensor is its own.

    >>> import tapejit as tj
    >>> print(tj.real(tj.asarray(3 + 4j)))
    3.0
    """
    x = as_operand(x, "real")
    return apply(ops.real, x) if is_complex(x.dtype) else alias(x)


def imag(x: Any, /) -> Tensor:
    """The imaginary part; zeros for a real tensor.

    >>> import tapejit as tj
    >>> print(tj.imag(tj.asarray(3 + 4j)))
    4.0
    """
    from tapejit.array.creation import zeros_like

    x = as_operand(x, "imag")
    return apply(ops.imag, x) if is_complex(x.dtype) else zeros_like(x)


def conj(x: Any, /) -> Tensor:
    """The complex conjugate; a real tensor is its own.

    >>> import tapejit as tj
    >>> print(tj.conj(tj.asarray(3 + 4j)))
    (3-4j)
    """
    x = as_operand(x, "conj")
    return apply(ops.conj, x) if is_complex(x.dtype) else alias(x)


def angle(x: Any, /) -> Tensor:
    """The argument of a complex number.

    >>> import tapejit as tj
    >>> print(tj.angle(tj.asarray(1j)))
    1.5707964
    """
    x = as_operand(x, "angle")
    if not is_complex(x.dtype):
        raise ArgumentError("takes complex tensors", op="angle")
    return apply(ops.angle, x)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The same values in another dtype; through integers no gradient passes.

    Tensors being immutable, `copy` makes no difference.

    >>> import tapejit as tj
    >>> tj.astype(tj.asarray([1.7, 2.2]), tj.int32)
    <tj.Tensor i32[2] [1 2]>
    """
    x, target = as_operand(x, "astype"), as_dtype(dtype)
    if device is not None:
        x = move(x, device)
    return alias(x) if x.dtype == target else cast(x, target)


def stop_gradient(x: Any, /) -> Tensor:
    """The same value, as a constant to every tape.

    >>> import tapejit as tj
    >>> x = tj.Variable(3.0)
    >>> with tj.GradientTape() as tape:
    ...     y = x * tj.stop_gradient(x)
    >>> print(tape.gradient(y, x))
    3.0
    """
    return apply(ops.stop_gradient, as_operand(x, "stop_gradient"))


if not TYPE_CHECKING:
    __all__ = names_in(globals())
