"""What the array API standard asks of a namespace beside its functions.

Dtypes can be inspected (`finfo`, `iinfo`), sorted into kinds (`isdtype`) and combined
(`result_type`, `can_cast`); `__array_namespace_info__` tells what the namespace can do.

Start reading at `result_type`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.base.types import (
    SHORT_NAMES,
    DType,
    as_dtype,
    default_complex,
    default_float,
    dtype_named,
    is_complex,
    is_float,
    promote_all,
    scalar_dtype,
    weak_dtype,
)
from tapejit.tensor.device import as_device, devices, move
from tapejit.tensor.dispatch import is_weak, python_scalar
from tapejit.tensor.tensor import Tensor

__array_api_version__ = "2025.12"

STANDARD_DTYPES = tuple(
    name for name in SHORT_NAMES if name[:2] != "bf" and name != "float16"
)


class FloatInfo(NamedTuple):
    """The limits of a floating-point dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntInfo(NamedTuple):
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of(x: Any) -> DType:
    # np.float64, the class, has a dtype attribute that is not one.
    return as_dtype(x if isinstance(x, type) else getattr(x, "dtype", x))


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating-point dtype, or of a tensor's.

    >>> import tapejit as tj
    >>> tj.finfo(tj.float32).eps
    1.1920928955078125e-07
    """
    dtype = _dtype_of(type)
    if is_complex(dtype):
        dtype = np.dtype(f"float{dtype.itemsize * 4}")
    if not is_float(dtype):
        raise ArgumentTypeError(f"finfo takes a floating-point dtype, got {dtype}")
    found: Any = np.finfo(dtype) if dtype.kind == "f" else _bfloat16_info()
    return FloatInfo(
        bits=found.bits,
        eps=float(found.eps),
        max=float(found.max),
        min=float(found.min),
        smallest_normal=float(found.smallest_normal),
        dtype=dtype,
    )


def _bfloat16_info() -> Any:
    import ml_dtypes

    info: Any = ml_dtypes.finfo
    return info("bfloat16")


def iinfo(type: Any, /) -> IntInfo:
    """The limits of an integer dtype, or of a tensor's.

    >>> import tapejit as tj
    >>> tj.iinfo(tj.int8).max
    127
    """
    dtype = _dtype_of(type)
    if dtype.kind not in "iu":
        raise ArgumentTypeError(f"iinfo takes an integer dtype, got {dtype}")
    found = np.iinfo(dtype)
    return IntInfo(found.bits, int(found.max), int(found.min), dtype)


KINDS: dict[str, Any] = {
    "bool": lambda dtype: dtype.kind == "b",
    "signed integer": lambda dtype: dtype.kind == "i",
    "unsigned integer": lambda dtype: dtype.kind == "u",
    "integral": lambda dtype: dtype.kind in "iu",
    "real floating": is_float,
    "complex floating": is_complex,
    "numeric": lambda dtype: dtype.kind != "b",
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: a name of the standard, a dtype, or several.

    >>> import tapejit as tj
    >>> tj.isdtype(tj.float32, "real floating"), tj.isdtype(tj.int8, ("bool", tj.int16))
    (True, False)
    """
    given = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(given, part) for part in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ArgumentError(f"no kind {kind!r}; there are {', '.join(KINDS)}")
        return bool(KINDS[kind](given))
    return given == as_dtype(kind)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype in which tensors, dtypes and Python scalars meet.

    >>> import tapejit as tj
    >>> tj.result_type(tj.int8, tj.int16), tj.result_type(tj.float32, 1.0)
    (dtype('int16'), dtype('float32'))
    """
    if not arrays_and_dtypes:
        raise ArgumentError("result_type needs at least one argument")
    weak = [x for x in arrays_and_dtypes if is_weak(x)]
    strong = [_dtype_of(x) for x in arrays_and_dtypes if not is_weak(x)]
    dtype = promote_all(strong) if strong else None
    for x in weak:
        scalar = python_scalar(x)
        dtype = scalar_dtype(scalar) if dtype is None else weak_dtype(scalar, dtype)
    assert dtype is not None
    return dtype


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether a dtype (or a tensor's) goes into another without loss of kind or range.

    >>> import tapejit as tj
    >>> tj.can_cast(tj.float32, tj.float64), tj.can_cast(tj.float64, tj.int32)
    (True, False)
    """
    source, target = _dtype_of(from_), as_dtype(to)
    if "bfloat16" in (source.name, target.name):
        return result_type(source, target) == target
    return bool(np.can_cast(source, target))


class NamespaceInfo:
    """What tapejit can do, in the words of the array API standard.

    >>> import tapejit as tj
    >>> tj.__array_namespace_info__().default_device()
    'cpu'
    """

    def capabilities(self) -> dict[str, Any]:
        """Optional features."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": 64,
        }

    def default_device(self) -> str:
        """Where new tensors go: see `tj.device`."""
        return as_device(None)

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes of Python numbers, and of indices."""
        as_device(device)
        return {
            "real floating": default_float(),
            "complex floating": default_complex(),
            "integral": np.dtype("int32"),
            "indexing": np.dtype("int64"),
        }

    def devices(self) -> tuple[str, ...]:
        """All devices."""
        return devices()

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The standard's dtypes, those of a kind if one is given."""
        as_device(device)
        found = {name: dtype_named(name) for name in STANDARD_DTYPES}
        if kind is None:
            return found
        return {name: dtype for name, dtype in found.items() if isdtype(dtype, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """The description of this namespace.

    >>> import tapejit as tj
    >>> sorted(tj.__array_namespace_info__().dtypes(kind="bool"))
    ['bool']
    """
    return NamespaceInfo()


def to_device(x: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """A tensor on a device."""
    if stream is not None:
        raise ArgumentError("each device has one stream, which is not chosen")
    return move(x, device)


__all__ = [
    "__array_api_version__",
    "__array_namespace_info__",
    "can_cast",
    "finfo",
    "iinfo",
    "isdtype",
    "result_type",
]
