"""Nested lists of numbers: their leaves, and the dtype that holds them all.

Start reading at `list_dtype`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.types import (
    DType,
    as_dtype,
    default_float,
    is_differentiable,
    promote_all,
    scalar_dtype,
    weak_dtype,
)

Scalar = (bool, int, float, complex)


def list_dtype(array: np.ndarray[Any, Any], value: Any) -> DType:
    """Python numbers in lists get tapejit's defaults, arrays keep their dtype.

    Beside arrays or NumPy's scalars Python numbers are weak.

    >>> list_dtype(np.array([0.5, 2.0]), [np.float32(0.5), 2.0])
    dtype('float32')
    """
    leaves = list(flat(value))
    strong = [x.dtype for x in leaves if isinstance(x, (np.ndarray, np.generic))]
    if strong and not is_differentiable(as_dtype(array.dtype)):
        return as_dtype(array.dtype)
    if strong:
        dtype = promote_all(map(as_dtype, strong))
        for scalar in {type(x): x for x in leaves if type(x) in Scalar}.values():
            dtype = weak_dtype(scalar, dtype)
        return dtype
    if not leaves:
        return default_float()
    if array.dtype.kind in "iuO":
        low, high = array.min(), array.max()
        return scalar_dtype(int(low if low < -(2**31) else high))
    return scalar_dtype(array.dtype.type(0).item())


def flat(value: Any) -> Any:
    for part in value:
        if isinstance(part, (list, tuple)):
            yield from flat(part)
        else:
            yield part
