"""Comparison with a tolerance: `isclose`, `allclose`, `array_equal`.

Start reading at `isclose`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.array import elementwise, reductions
from tapejit.base.types import is_differentiable
from tapejit.tensor.dispatch import cast, operands
from tapejit.tensor.tensor import Tensor


def isclose(
    x: Any, y: Any, /, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |x - y| ≤ atol + rtol |y|, or both are the same infinity.

    >>> import tapejit as tj
    >>> print(tj.isclose(tj.asarray([1.0, 2.0]), tj.asarray([1.000001, 2.1])))
    [ True False]
    """
    x, y = operands((x, y), "isclose")
    if not is_differentiable(x.dtype):
        double = np.dtype(np.float64)  # unsigned differences would wrap
        x, y = cast(x, double), cast(y, double)
    near = elementwise.less_equal(abs(x - y), atol + rtol * abs(y))
    finite = elementwise.logical_and(near, elementwise.isfinite(y))
    close = elementwise.logical_or(finite, elementwise.equal(x, y))
    return elementwise.logical_or(close, _both_nan(x, y)) if equal_nan else close


def allclose(
    x: Any, y: Any, /, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close, as `isclose` says.

    >>> import tapejit as tj
    >>> tj.allclose(tj.asarray([1.0, 2.0]), tj.asarray([1.000001, 2.0]))
    True
    """
    return bool(reductions.all(isclose(x, y, rtol, atol, equal_nan)))


def array_equal(x: Any, y: Any, /, equal_nan: bool = False) -> bool:
    """Whether two tensors have one shape and equal elements.

    >>> import tapejit as tj
    >>> tj.array_equal(tj.asarray([1, 2]), tj.asarray([1, 2, 3]))
    False
    """
    x, y = operands((x, y), "array_equal")
    if x.shape != y.shape:
        return False
    same = elementwise.equal(x, y)
    if equal_nan:
        same = elementwise.logical_or(same, _both_nan(x, y))
    return bool(reductions.all(same))


def _both_nan(x: Tensor, y: Tensor) -> Tensor:
    return elementwise.logical_and(elementwise.isnan(x), elementwise.isnan(y))
