"""Functions of small floats computed in double and rounded once.

NumPy's float32 loops differ from processor to processor, in accuracy too: where
wide vectors are used some are off by 4 ULP. In double every library is right to a
few units of a digit that the result does not keep, so the result is the same
everywhere and almost always the correctly rounded one.

Start reading at `in_double`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of doubles, for operands of any floating dtype.

    >>> import numpy as np
    >>> in_double(np.tan)(np.float16(1.0))
    np.float16(1.558)
    """

    def evaluate(*arrays: Any) -> Any:
        dtype = arrays[0].dtype
        wide = np.complex128 if dtype.kind == "c" else np.float64
        if dtype == wide:
            return function(*arrays)
        return function(*[x.astype(wide) for x in arrays]).astype(dtype)

    evaluate.__name__ = function.__name__
    return evaluate
