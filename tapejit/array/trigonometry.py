"""Trigonometric and hyperbolic functions of the namespace, and their inverses.

Start reading at `tan`, then `atan2`.
"""

from __future__ import annotations

import math
from typing import Any

from tapejit import ops
from tapejit.tensor.dispatch import binary_float, unary
from tapejit.tensor.tensor import Tensor


def tan(x: Any, /) -> Tensor:
    """The tangent.

    >>> import tapejit as tj
    >>> print(tj.tan(tj.asarray([0.0, 1.0])))
    [0.        1.5574077]
    """
    return unary(ops.tan, x, True)


def asin(x: Any, /) -> Tensor:
    """The inverse sine, between -π/2 and π/2; its slope at ±1 is infinite.

    >>> import tapejit as tj
    >>> print(tj.asin(tj.asarray([0.0, 1.0])))
    [0.        1.5707964]
    """
    return unary(ops.asin, x, True)


def acos(x: Any, /) -> Tensor:
    """The inverse cosine, between 0 and π; its slope at ±1 is infinite.

    >>> import tapejit as tj
    >>> print(tj.acos(tj.asarray([1.0, 0.0])))
    [0.        1.5707964]
    """
    return unary(ops.acos, x, True)


def atan(x: Any, /) -> Tensor:
    """The inverse tangent, between -π/2 and π/2.

    >>> import tapejit as tj
    >>> print(tj.atan(tj.asarray([0.0, 1.0])))
    [0.        0.7853982]
    """
    return unary(ops.atan, x, True)


def atan2(y: Any, x: Any, /) -> Tensor:
    """The angle of the point (x, y), between -π and π; all its slopes at 0 are 0.

    >>> import tapejit as tj
    >>> print(tj.atan2(tj.asarray([1.0, -1.0]), tj.asarray([0.0, 0.0])))
    [ 1.5707964 -1.5707964]
    """
    return binary_float(ops.atan2, y, x)


def hypot(x: Any, y: Any, /) -> Tensor:
    """√(x² + y²) without overflow; all its slopes at 0 are 0.

    >>> import tapejit as tj
    >>> print(tj.hypot(tj.asarray([3.0, 3e30]), tj.asarray([4.0, 4e30])))
    [5.e+00 5.e+30]
    """
    return binary_float(ops.hypot, x, y)


def sinh(x: Any, /) -> Tensor:
    """The hyperbolic sine.

    >>> import tapejit as tj
    >>> print(tj.sinh(tj.asarray([0.0, 1.0])))
    [0.        1.1752012]
    """
    return unary(ops.sinh, x, True)


def cosh(x: Any, /) -> Tensor:
    """The hyperbolic cosine.

    >>> import tapejit as tj
    >>> print(tj.cosh(tj.asarray([0.0, 1.0])))
    [1.        1.5430807]
    """
    return unary(ops.cosh, x, True)


def asinh(x: Any, /) -> Tensor:
    """The inverse hyperbolic sine.

    >>> import tapejit as tj
    >>> print(tj.asinh(tj.asarray([0.0, 1.0])))
    [0.        0.8813736]
    """
    return unary(ops.asinh, x, True)


def acosh(x: Any, /) -> Tensor:
    """The inverse hyperbolic cosine; its slope at 1 is infinite.

    >>> import tapejit as tj
    >>> print(tj.acosh(tj.asarray([1.0, 2.0])))
    [0.       1.316958]
    """
    return unary(ops.acosh, x, True)


def atanh(x: Any, /) -> Tensor:
    """The inverse hyperbolic tangent; its slope at ±1 is infinite.

    >>> import tapejit as tj
    >>> print(tj.atanh(tj.asarray([0.0, 0.5])))
    [0.         0.54930615]
    """
    return unary(ops.atanh, x, True)


def sinc(x: Any, /) -> Tensor:
    """sin(πx) / (πx): 1 at 0, where all its derivatives exist, 0 at other integers.

    >>> import tapejit as tj
    >>> print(tj.sinc(tj.asarray([0.0, 0.5, 1.0])))
    [1.         0.63661975 0.        ]
    """
    return unary(ops.sinc, x, True)


def deg2rad(x: Any, /) -> Tensor:
    """Degrees as radians.

    >>> import tapejit as tj
    >>> print(tj.deg2rad(tj.asarray([0.0, 180.0])))
    [0.        3.1415927]
    """
    return binary_float(ops.mul, x, math.pi / 180)


def rad2deg(x: Any, /) -> Tensor:
    """Radians as degrees.

    >>> import tapejit as tj
    >>> print(tj.rad2deg(tj.asarray([0.0, tj.pi])))
    [  0. 180.]
    """
    return binary_float(ops.mul, x, 180 / math.pi)
