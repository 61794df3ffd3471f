"""Cases of the activation functions that are records.

Start reading at `CASES`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from op_cases.case import FLOAT, SMOOTH, Array
from op_cases.elementwise import AROUND_ZERO, function


def softplus(x: Array) -> Any:
    """log(e^0 + e^x)."""
    return np.logaddexp(np.zeros_like(x), x)


def softsign(x: Array) -> Any:
    """±1 / (1 + 1/|x|), which needs no special values."""
    return np.copysign(1, x) / (1 + 1 / np.abs(x))


CASES = (
    function("softplus", softplus, AROUND_ZERO, FLOAT),
    function("softsign", softsign, SMOOTH, FLOAT),  # its slope has a kink at 0
)
