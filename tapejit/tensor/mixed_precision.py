"""Mixed precision: products in half precision, weights and sums in float32.

A policy names the dtype in which products of float32 operands are computed. It is the
setting `mixed_precision`, so it is part of the signature of a call. Which operations it
concerns is the field `precision` of their records: matmuls and convolutions have their
operands converted down, sums and softmax theirs up; all others follow the dtypes that
they meet. Conversions are casts like any other, so derivatives pass through them, and
gradients of float32 variables are float32.

What is recorded has its casts already: a Graph that runs again, to differentiate it for
one, is performed inside `unconverted`. So are the products inside of factorisations.

Start reading at `set_policy`, then `converted`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from tapejit.base.config import SETTINGS, Config, config
from tapejit.base.errors import ArgumentError
from tapejit.base.origin import warn_user
from tapejit.base.types import DType, dtype_named, is_half
from tapejit.ir.node import Op
from tapejit.tensor.device import CPU
from tapejit.tensor.dispatch import cast
from tapejit.tensor.tensor import Tensor

FLOAT32: Final = np.dtype(np.float32)
PLAIN: Final = "float32"  # the policy that converts nothing

_IS_UNCONVERTED: Final[ContextVar[bool]] = ContextVar("unconverted", default=False)
_TOLD: Final[set[str]] = set()  # policies of which it was said that they are slow here


def set_policy(name: str) -> None:
    """Compute products in half precision from now on, in the whole process.

    "mixed_float16" and "mixed_bfloat16" have float32 operands of matmuls and
    convolutions converted to that half; sums, norms, softmax and losses of halves are
    computed in float32 and stay so. "float32", the default, converts nothing.
    Variables keep their dtype, and their gradients have it. Integers, float64 and
    complex numbers are computed as ever.

    >>> import tapejit as tj
    >>> tj.mixed_precision.set_policy("mixed_bfloat16")
    >>> x = tj.ones((2, 3)) @ tj.ones((3, 4))
    >>> x.dtype, tj.sum(x).dtype
    (dtype(bfloat16), dtype('float32'))
    >>> tj.mixed_precision.set_policy("float32")
    """
    config.update(mixed_precision=checked(name, "set_policy"))


def get_policy() -> str:
    """The name of the policy that is in force here and now.

    >>> import tapejit as tj
    >>> tj.mixed_precision.get_policy()
    'float32'
    """
    return config.mixed_precision


def policy(name: str) -> AbstractContextManager[Config]:
    """Compute by a policy inside a `with` block: see `set_policy`.

    Only this context is concerned: the thread or asyncio task. A traced function that
    is called inside has a trace for the policy.

    >>> import tapejit as tj
    >>> with tj.mixed_precision.policy("mixed_float16"):
    ...     x = tj.ones((2, 3)) @ tj.ones((3, 4))
    >>> x.dtype
    dtype('float16')
    """
    return config.override(mixed_precision=checked(name, "policy"))


def checked(name: Any, asked_by: str) -> str:
    """The name of a policy; an ArgumentError that lists them if it is none."""
    known = [str(each) for each in SETTINGS["mixed_precision"].values.values()]
    if isinstance(name, str) and name in known:
        return name
    mixed = f"mixed_{name}"
    raise ArgumentError(
        f"there is no policy {name!r}: they are {', '.join(map(repr, known))}",
        op=asked_by,
        help=f"write {mixed!r}: variables stay float32" if mixed in known else None,
    )


# Conversions


def half_dtype() -> DType | None:
    """The dtype of products under the policy in force, None if it converts nothing."""
    name = config.mixed_precision
    return None if name == PLAIN else dtype_named(name.removeprefix("mixed_"))


def product_dtype(dtype: DType) -> DType:
    """The dtype in which a layer multiplies whose variables are of `dtype`."""
    half = half_dtype() if dtype == FLOAT32 else None
    return dtype if half is None else half


def converted(op: Op, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The operands of an op as the policy wants them, by the op's `precision`."""
    half = None if _IS_UNCONVERTED.get() else half_dtype()
    if half is None:
        return inputs
    if op.precision == "single":
        return [cast(x, FLOAT32) if is_half(x.dtype) else x for x in inputs]
    if half.name not in _TOLD and all(x.device == CPU for x in inputs):
        _tell_of_cpu(half)
    return [cast(x, half) if x.dtype == FLOAT32 else x for x in inputs]


@contextmanager
def unconverted() -> Iterator[None]:
    """Operations inside have the dtypes of their operands, whatever the policy."""
    token = _IS_UNCONVERTED.set(True)
    try:
        yield
    finally:
        _IS_UNCONVERTED.reset(token)


def _tell_of_cpu(half: DType) -> None:
    """Warn once that a CPU does not multiply halves faster than float32."""
    _TOLD.add(half.name)
    warn_user(
        f"a CPU multiplies {half.name} as float32 and rounds the products: steps take "
        "less memory, but as long as in float32 or somewhat longer; the policy is for "
        "GPUs, and for data that streams from memory"
    )


def __getattr__(name: str) -> Any:
    from tapejit.tensor.foreign_names import MIXED_PRECISION, attribute_error

    raise attribute_error("tapejit.mixed_precision", name, MIXED_PRECISION)


__all__ = ["get_policy", "policy", "set_policy"]
