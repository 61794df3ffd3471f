"""What a value is: its dtype, its shape, and the rules that combine dtypes.

The data structures are `TensorType` (a `numpy.dtype` and a shape whose sizes are
ints or symbolic `Dim`s; prints as `f32[64,8]`), `TupleType` (what an operation with
several results has) and `TOKEN`, the type of a link in the chain of effects.

Dtypes are NumPy's own objects. bfloat16 comes from ml_dtypes and is looked up only
when somebody asks for it, because importing tapejit must load nothing but NumPy.

Start reading at `TensorType`, then `promote`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import numpy as np

from tapejit.base.config import config
from tapejit.base.dims import Dim, Shape, Size, free_names, parse_dim

DType = np.dtype[Any]

SHORT_NAMES: Final[dict[str, str]] = {
    "bool": "bool",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
}
LONG_NAMES: Final[dict[str, str]] = {short: name for name, short in SHORT_NAMES.items()}


@cache
def dtype_named(name: str) -> DType:
    """The dtype with this long (`float32`) or short (`f32`) name.

    >>> dtype_named("f32")
    dtype('float32')
    """
    long = LONG_NAMES.get(name, name)
    if long not in SHORT_NAMES:
        known = ", ".join(SHORT_NAMES)
        raise TypeError(f"unknown dtype {name!r}; tapejit has {known}")
    if long == "bfloat16":
        import ml_dtypes

        bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(long)


_NATIVE: Final = frozenset(np.dtype(name) for name in SHORT_NAMES if name != "bfloat16")


def as_dtype(spec: Any) -> DType:
    """The tapejit dtype that `spec` (a name, NumPy dtype or type) means.

    Byte order is made native; a dtype tapejit does not have is a TypeError. NumPy's
    codes (`f4`) are names too, but for the two that tapejit prints for other dtypes.

    >>> as_dtype(float), as_dtype("bool"), as_dtype(np.float32), as_dtype("f4")
    (dtype('float64'), dtype('bool'), dtype('float32'), dtype('float32'))
    """
    if isinstance(spec, str):
        return _dtype_spelled(spec)
    if isinstance(spec, np.dtype) and spec in _NATIVE:
        return spec
    dtype: DType = np.dtype(spec).newbyteorder("=")
    if dtype.name not in SHORT_NAMES:
        known = ", ".join(SHORT_NAMES)
        raise TypeError(f"dtype {dtype.name} is not supported; tapejit has {known}")
    return dtype


@cache
def _dtype_spelled(name: str) -> DType:
    """The dtype of a name as users write it."""
    if name in ("i8", "u8"):
        meant = np.dtype(name).name
        raise TypeError(
            f"{name!r} is {meant} in NumPy and {LONG_NAMES[name]} where tapejit prints "
            f"types; write {meant!r} or {LONG_NAMES[name]!r}"
        )
    if name not in SHORT_NAMES and name not in LONG_NAMES:
        try:
            found = np.dtype(name).newbyteorder("=").name
        except TypeError:
            found = name
        return dtype_named(found if found in SHORT_NAMES else name)
    return dtype_named(name)


@cache
def short_name(dtype: DType) -> str:
    """The name used in printed types.

    >>> short_name(np.dtype("float32"))
    'f32'
    """
    return "opaque" if dtype.kind == "O" else SHORT_NAMES[dtype.name]


def default_float() -> DType:
    """The dtype that a Python float becomes when nothing else decides."""
    return dtype_named(config.current().default_float)


def default_complex() -> DType:
    """The dtype that a Python complex becomes when nothing else decides."""
    return dtype_named("complex128" if default_float().itemsize == 8 else "complex64")


@cache
def is_float(dtype: DType) -> bool:
    """Whether `dtype` is real floating point (bfloat16 included)."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


@cache
def is_half(dtype: DType) -> bool:
    """Whether `dtype` is floating point of 16 bits."""
    return dtype.itemsize == 2 and is_float(dtype)


def wide_dtype(dtype: DType) -> DType:
    """Wide enough for several steps: halves are rounded once, at the end."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


@cache
def is_complex(dtype: DType) -> bool:
    """Whether `dtype` is complex."""
    return dtype.kind == "c"


@cache
def is_differentiable(dtype: DType) -> bool:
    """Whether gradients exist for `dtype`: real or complex floating point."""
    return is_float(dtype) or is_complex(dtype)


@cache
def is_integer(dtype: DType) -> bool:
    """Whether `dtype` is a signed or unsigned integer (bool is not one)."""
    return dtype.kind in "iu"


@cache
def real_dtype(dtype: DType) -> DType:
    """The dtype of the real part.

    >>> real_dtype(np.dtype("complex64"))
    dtype('float32')
    """
    if dtype.kind == "c":
        return np.dtype("float32" if dtype.itemsize == 8 else "float64")
    return dtype


@cache
def complex_dtype(dtype: DType) -> DType:
    """The complex dtype whose parts can hold `dtype`."""
    if dtype.kind == "c":
        return dtype
    return np.dtype("complex128" if dtype == np.float64 else "complex64")


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype in which two tensors meet: NumPy's, except that floats stay put.

    A float32, float16 or bfloat16 tensor that meets an integer tensor keeps its
    type: an index must not silently double the width of a model.

    >>> promote(np.dtype("float32"), np.dtype("int64"))
    dtype('float32')
    >>> promote(np.dtype("float32"), np.dtype("float64"))
    dtype('float64')
    """
    if a == b:
        return a
    if is_differentiable(a) and not is_differentiable(b):
        return a
    if is_differentiable(b) and not is_differentiable(a):
        return b
    names = {a.name, b.name}
    if "bfloat16" in names:
        other = b if a.name == "bfloat16" else a
        if other == np.float16:
            return np.dtype("float32")
        return complex_dtype(other) if is_complex(other) else other
    return np.promote_types(a, b)


def promote_all(dtypes: Iterable[DType]) -> DType:
    """`promote` over any number of dtypes."""
    first, *rest = dtypes
    for dtype in rest:
        first = promote(first, dtype)
    return first


def weak_dtype(scalar: bool | int | float | complex, dtype: DType) -> DType:
    """The dtype in which a tensor of `dtype` meets a Python (or weak) scalar.

    >>> weak_dtype(2, np.dtype("float32")), weak_dtype(2.5, np.dtype("int32"))
    (dtype('float32'), dtype('float32'))
    """
    if isinstance(scalar, bool):
        return dtype
    if isinstance(scalar, int):
        return scalar_dtype(scalar) if dtype.kind == "b" else dtype
    if isinstance(scalar, complex):
        if is_complex(dtype):
            return dtype
        return complex_dtype(dtype) if is_float(dtype) else default_complex()
    return dtype if is_differentiable(dtype) else default_float()


def scalar_dtype(scalar: bool | int | float | complex) -> DType:
    """The dtype of a Python scalar on its own.

    >>> scalar_dtype(1), scalar_dtype(2**40), scalar_dtype(1.0)
    (dtype('int32'), dtype('int64'), dtype('float32'))
    """
    if isinstance(scalar, bool):
        return np.dtype("bool")
    if isinstance(scalar, int):
        if -(2**31) <= scalar < 2**31:
            return np.dtype("int32")
        return np.dtype("int64" if scalar < 2**63 else "uint64")
    if isinstance(scalar, complex):
        return default_complex()
    return default_float()


class TensorType:
    """A dtype and a shape; a size is an int or a symbolic `Dim`.

    >>> TensorType(np.dtype("float32"), (64, 8))
    f32[64,8]
    >>> TensorType.parse("f32[n,3]").shape
    (Dim('n'), 3)
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: DType, shape: Shape) -> None:
        self.dtype = dtype
        self.shape = shape

    @classmethod
    def of(cls, array: Any) -> TensorType:
        """The type of a NumPy array or scalar."""
        return cls(array.dtype, array.shape)

    @classmethod
    def parse(cls, text: str) -> TensorType:
        """Read what `str` prints."""
        match = re.fullmatch(r"(\w+)\[(.*)\]", text.strip())
        if text.strip() == "opaque[]":
            return OPAQUE
        if match is None or match[1] not in LONG_NAMES:
            raise ValueError(f"not a tensor type: {text!r} (expected e.g. f32[64,8])")
        return cls(dtype_named(match[1]), tuple(map(parse_dim, split_sizes(match[2]))))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Size:
        """The number of elements, symbolic if a size is."""
        return math.prod(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return not any(isinstance(size, Dim) for size in self.shape)

    @property
    def names(self) -> frozenset[str]:
        """The unknowns in the shape."""
        return frozenset().union(*map(free_names, self.shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(self.dtype, shape)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not TensorType:
            return NotImplemented
        return self.shape == other.shape and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def __repr__(self) -> str:
        return f"{short_name(self.dtype)}[{','.join(map(str, self.shape))}]"


# A value that only one operation understands, such as a function to call. It is no
# array and users never meet it, but it is kept and passed on like one.
OPAQUE: Final = TensorType(np.dtype(object), ())


def split_sizes(text: str) -> list[str]:
    """Split at the commas outside parentheses: `n, max(n, m)` has two parts."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


class TupleType:
    """The type of a Node with several results.

    >>> TupleType((TensorType.parse("f32[2]"), TensorType.parse("i32[]")))
    (f32[2], i32[])
    """

    __slots__ = ("items",)

    def __init__(self, items: tuple[Type, ...]) -> None:
        self.items = items

    def __eq__(self, other: object) -> bool:
        return type(other) is TupleType and self.items == other.items

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.items))})"


class TokenType:
    """The type of one link in the chain of effects: it orders, it holds nothing."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "token"

    def __reduce__(self) -> str:
        return "TOKEN"  # there is only one


TOKEN: Final = TokenType()

Type = TensorType | TupleType | TokenType


def parse_type(text: str) -> Type:
    """Read any printed type.

    >>> parse_type("(f32[2,n], token)")
    (f32[2,n], token)
    """
    text = text.strip()
    if text == "token":
        return TOKEN
    if text.startswith("(") and text.endswith(")"):
        return TupleType(tuple(map(parse_type, split_sizes(text[1:-1]))))
    return TensorType.parse(text)
