"""Nested lists of numbers: their leaves, and the dtype that holds them all.

Start reading at `list_dtype`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tapejit.base import types

Scalar = (bool, int, float, complex)


def list_dtype(array: np.ndarray[Any, Any], value: Any) -> types.DType:
    """Python numbers in lists get tapejit's defaults, arrays keep their dtype.

    Beside arrays or NumPy's scalars Python numbers are weak.

    >>> list_dtype(np.array([0.5, 2.0]), [np.float32(0.5), 2.0])
    dtype('float32')
    """
    leaves = list(flat(value))
    strong = [x.dtype for x in leaves if isinstance(x, (np.ndarray, np.generic))]
    if strong:
        numbers = [x for x in leaves if type(x) in Scalar]
        return joined_dtype(map(types.as_dtype, strong), numbers)
    if not leaves:
        return types.default_float()
    if array.dtype.kind in "iuO":
        low, high = array.min(), array.max()
        return types.scalar_dtype(int(low if low < -(2**31) else high))
    return types.scalar_dtype(array.dtype.type(0).item())


def joined_dtype(strong: Iterable[types.DType], numbers: Sequence[Any]) -> types.DType:
    """The dtype in which tensors and Python numbers stand in one list.

    The numbers are weak; an integer that would not fit widens it.

    >>> joined_dtype([np.dtype("int8")], [1]), joined_dtype([np.dtype("int8")], [300])
    (dtype('int8'), dtype('int32'))
    """
    integers = [x for x in numbers if type(x) is int]
    weak = list({type(x): x for x in numbers if type(x) is not int}.values())
    if integers:
        weak += {min(integers), max(integers)}
    given = list(strong)
    dtype = types.promote_all(given) if given else types.scalar_dtype(weak[0])
    for scalar in weak:
        dtype = types.weak_dtype(scalar, dtype)
        if types.is_integer(dtype) and type(scalar) is int and not _fits(scalar, dtype):
            dtype = types.promote(dtype, types.scalar_dtype(scalar))
    return dtype


def _fits(number: int, dtype: types.DType) -> bool:
    limits = np.iinfo(dtype)
    return limits.min <= number <= limits.max


def flat(value: Any) -> Any:
    for part in value:
        if isinstance(part, (list, tuple)):
            yield from flat(part)
        else:
            yield part
