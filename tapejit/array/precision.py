"""Operands of functions that take several steps: half precision is computed in single.

Every operation of a half-precision tensor rounds its result. A function of ten steps
would round ten times, and sums of squares would overflow on the way. So its operands
are widened to float32 first, and only the result is rounded to the dtype they had.
Gradients pass the same way back.

Under a policy of mixed precision, what is a sum, a norm, a share or a loss is not
rounded back: `result_dtype` says so.

Start reading at `wide_operand`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tapejit.array.elementwise import stop_gradient
from tapejit.base.config import MIXED, config
from tapejit.base.errors import DTypeError, TapejitError
from tapejit.base.types import DType, default_float, is_complex, is_float, wide_dtype
from tapejit.ops.shapes import Axes, normalize_axes
from tapejit.tensor.dispatch import as_operand, cast, operands
from tapejit.tensor.tensor import Tensor, TracedTensor, another

FLOAT32: Final = np.dtype("float32")


def real_operand(x: Any, name: str) -> Tensor:
    """A tensor of real numbers; a complex one is refused in the function's name."""
    operand = as_operand(x, name)
    if is_complex(operand.dtype):
        raise DTypeError(
            f"takes real numbers, got {operand._type}",
            op=name,
            help="apply it to tj.real(x) and tj.imag(x), or to tj.abs(x)",
        )
    return operand


def float_operand(x: Any, name: str) -> Tensor:
    """A tensor of real floats: integers and bools are converted."""
    operand = real_operand(x, name)
    return operand if is_float(operand.dtype) else cast(operand, default_float())


def wide_operand(x: Any, name: str) -> tuple[Tensor, DType]:
    """A float tensor wide enough to compute with, and the dtype of the result.

    >>> x, dtype = wide_operand(np.float16([1, 2]), "silu")
    >>> x.dtype, dtype
    (dtype('float32'), dtype('float16'))
    """
    x = float_operand(x, name)
    return cast(x, wide_dtype(x.dtype)), x.dtype


def wide_operands(values: Sequence[Any], name: str) -> tuple[list[Tensor], DType]:
    """Several operands that meet in one dtype, as `wide_operand` does with one."""
    tensors = [float_operand(x, name) for x in operands(values, name)]
    dtype = tensors[0].dtype
    return [cast(x, wide_dtype(dtype)) for x in tensors], dtype


def summed_operand(x: Any, name: str) -> tuple[Tensor, DType]:
    """As `wide_operand`, for what is a sum or made of sums."""
    wide, dtype = wide_operand(x, name)
    return wide, result_dtype(dtype)


def result_dtype(dtype: DType) -> DType:
    """What a sum of elements of `dtype` is rounded to: not to a half under a policy.

    >>> from tapejit.base.config import config
    >>> with config.override(mixed_precision="mixed_float16"):
    ...     result_dtype(np.dtype("float16"))
    dtype('float32')
    """
    is_mixed = MIXED and config.mixed_precision != "float32"
    return wide_dtype(dtype) if is_mixed else dtype


def widened(x: Tensor) -> Tensor:
    """A tensor in a dtype wide enough to compute with."""
    return cast(x, wide_dtype(x.dtype))


def as_constant(x: Tensor) -> Tensor:
    """The same values as a constant, of which tapes keep nothing."""
    return stop_gradient(x) if isinstance(x, TracedTensor) else another(x)


def axes_of(x: Tensor, axis: int | Sequence[int] | None, name: str) -> Axes:
    """`axis` as a sorted tuple; errors name the function."""
    try:
        return normalize_axes(axis, x.ndim)
    except TapejitError as error:
        error.op = name
        raise
