"""Rounding to digits behind the point, or before it, in NumPy's way.

Start reading at `to_decimals`.
"""

from __future__ import annotations

from tapejit import ops
from tapejit.base.errors import ArgumentError, UnsupportedError
from tapejit.base.types import is_complex, is_differentiable
from tapejit.tensor.dispatch import alias, apply, binary
from tapejit.tensor.tensor import Tensor


def to_decimals(x: Tensor, decimals: int) -> Tensor:
    """The nearest numbers with so many digits behind the point.

    >>> import tapejit as tj
    >>> print(to_decimals(tj.asarray([3.14159, 2.71828]), 2))
    [3.14 2.72]
    """
    if x.dtype.kind == "b":
        raise ArgumentError("takes numbers, got bool", op="round")
    if not is_differentiable(x.dtype):
        if decimals < 0:
            raise UnsupportedError(
                f"negative decimals of {x.dtype}",
                op="round",
                help="round floats: x.astype(tj.float64)",
            )
        return alias(x)
    if is_complex(x.dtype):
        parts = apply(ops.real, x), apply(ops.imag, x)
        return apply(ops.make_complex, *[to_decimals(part, decimals) for part in parts])
    # As NumPy: dividing by 10.0**n is exact more often than multiplying by 10.0**-n.
    scale = float(10 ** abs(decimals))
    there, back = (ops.mul, ops.div) if decimals > 0 else (ops.div, ops.mul)
    return binary(back, apply(ops.round, binary(there, x, scale)), scale)
