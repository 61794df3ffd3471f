"""Exponentials, logarithms and roots beyond exp, log and sqrt: exp2, logaddexp, xlogy.

Start reading at `exp2`, then `xlogy`.
"""

from __future__ import annotations

from typing import Any

from tapejit import ops
from tapejit.tensor.dispatch import binary_float, unary
from tapejit.tensor.tensor import Tensor


def exp2(x: Any, /) -> Tensor:
    """2 to the power x.

    >>> import tapejit as tj
    >>> print(tj.exp2(tj.asarray([0.0, 3.0])))
    [1. 8.]
    """
    return unary(ops.exp2, x, True)


def log2(x: Any, /) -> Tensor:
    """The logarithm to base 2.

    >>> import tapejit as tj
    >>> print(tj.log2(tj.asarray([1.0, 8.0])))
    [0. 3.]
    """
    return unary(ops.log2, x, True)


def log10(x: Any, /) -> Tensor:
    """The logarithm to base 10.

    >>> import tapejit as tj
    >>> print(tj.log10(tj.asarray([1.0, 1000.0])))
    [0. 3.]
    """
    return unary(ops.log10, x, True)


def logaddexp(x: Any, y: Any, /) -> Tensor:
    """log(exp(x) + exp(y)), without overflow.

    >>> import tapejit as tj
    >>> print(tj.logaddexp(tj.asarray([0.0, 1000.0]), tj.asarray([0.0, 0.0])))
    [6.931472e-01 1.000000e+03]
    """
    return binary_float(ops.logaddexp, x, y)


def logaddexp2(x: Any, y: Any, /) -> Tensor:
    """log2(2**x + 2**y), without overflow.

    >>> import tapejit as tj
    >>> print(tj.logaddexp2(tj.asarray([0.0, 1000.0]), tj.asarray([0.0, 1000.0])))
    [1.000e+00 1.001e+03]
    """
    return binary_float(ops.logaddexp2, x, y)


def cbrt(x: Any, /) -> Tensor:
    """The real cube root; its slope at 0 is infinite.

    >>> import tapejit as tj
    >>> print(tj.cbrt(tj.asarray([8.0, -27.0])))
    [ 2. -3.]
    """
    return unary(ops.cbrt, x, True)


def rsqrt(x: Any, /) -> Tensor:
    """1 / √x.

    >>> import tapejit as tj
    >>> print(tj.rsqrt(tj.asarray([4.0, 16.0])))
    [0.5  0.25]
    """
    return reciprocal(unary(ops.sqrt, x, True))


def reciprocal(x: Any, /) -> Tensor:
    """1 / x; integers divide to the default float.

    >>> import tapejit as tj
    >>> print(tj.reciprocal(tj.asarray([2.0, -4.0])))
    [ 0.5  -0.25]
    """
    return binary_float(ops.div, 1, x)


def xlogy(x: Any, y: Any, /) -> Tensor:
    """x log(y), and 0 where x is 0, also for y = 0; its slope by x is log(y).

    >>> import tapejit as tj
    >>> print(tj.xlogy(tj.asarray([0.0, 2.0]), tj.asarray([0.0, 1.0])))
    [0. 0.]
    """
    return binary_float(ops.xlogy, x, y)
