"""What a dtype looks like in registers and in memory, and the way between.

In registers bools are single bits, integers are themselves, and floats are float or
double. The two small floats are held as floats whose value their 16 bits could hold:
`rounded` makes it so after every operation, and then writing them down is exact. In
memory a bool is a byte, as NumPy has it, and a small float the 16 bits that it is.

The small floats are rounded and written by arithmetic on bits, but for float16 where
the processor converts it to float and back (F16C). Where it does not, LLVM would call
a function of the compiler's library, which generated code must not depend on. The
instructions for bfloat16 take subnormal numbers for zeros, so they are not used.

A float16 is a float with 112 less in its exponent and 13 bits less in its fraction:
times 2^-112 its bits need only be shifted, subnormal numbers included. A bfloat16 is
the upper half of a float.

Start reading at `register_type`, then `rounded`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from tapejit.base.config import config
from tapejit.base.types import DType, is_float
from tapejit.ops.arithmetic import cast_eval
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, Type, Value, VectorType
from tapejit.targets.cpu.simd.vector import F32, F64, INTEGER, Builder, Splat, Vector

# Of the 16-bit formats: exponent of the smallest normal number, bits of precision,
# largest finite number.
SMALL = {"float16": (-14, 11, 65504.0), "bfloat16": (-126, 8, (2 - 2.0**-7) * 2.0**127)}
SIGN, INFINITY = 0x8000, 0x7C00  # of a float16
HALF_SCALE = 112
HALF = Type("half")


def converts_halves() -> bool:
    """Whether the processor that code is for has instructions to and from float16.

    >>> with config.override(cpu="x86-64-v2"):
    ...     converts_halves()
    False
    """
    if config.cpu:
        return config.cpu in ("x86-64-v3", "x86-64-v4")
    return _converts_here()


@cache
def _converts_here() -> bool:
    from llvmlite import binding

    return bool(binding.get_host_cpu_features().get("f16c"))


def is_small(dtype: DType) -> bool:
    """Whether a float is one of those of 16 bits."""
    return dtype.itemsize == 2 and dtype.name in SMALL  # names take NumPy 5 µs


def register_element(dtype: DType) -> Type:
    if dtype.kind == "b":
        return ir.IntType(1)
    if not is_float(dtype):
        return ir.IntType(8 * dtype.itemsize)
    return ir.DoubleType() if dtype == np.float64 else ir.FloatType()


def register_type(dtype: DType, width: int) -> VectorType:
    """The LLVM type of `width` lanes of a dtype.

    >>> print(register_type(np.dtype("float16"), 8))
    <8 x float>
    """
    return ir.VectorType(register_element(dtype), width)


def memory_type(dtype: DType) -> Type:
    """The LLVM type of one element in memory.

    >>> print(memory_type(np.dtype(bool)), memory_type(np.dtype("float16")))
    i8 i16
    """
    if dtype.kind == "b" or is_small(dtype):
        return ir.IntType(8 * dtype.itemsize)
    return register_element(dtype)


def constant(dtype: DType, number: Any, width: int) -> Value:
    """A number, rounded to the dtype, in every lane.

    >>> print(constant(np.dtype("int8"), 257, 4))
    <4 x i8> splat (i8 1)
    """
    value = cast_eval(np.asarray(number), dtype=dtype)
    element = register_element(dtype)
    plain = float(value) if is_float(dtype) else int(value)
    return Splat(ir.VectorType(element, width), ir.Literal(element, plain))


class Floats(Builder):
    """A Builder that knows of which dtype its floats are."""

    def __init__(self, builder: IRBuilder, dtype: DType, width: int) -> None:
        super().__init__(builder, F64 if dtype == np.float64 else F32, width)
        self.dtype = dtype


# The small floats


def rounded(b: Builder, x: Vector, dtype: DType) -> Vector:
    """`x`, float or double, to the nearest number of a dtype; ties go to the even one.

    What overflows is infinite. A double is rounded once, not by way of a float.
    """
    if not is_small(dtype):
        return x
    if dtype.name == "float16" and b.format is F32 and converts_halves():
        return b.wrap(b.ir.fpext(_narrowed(b, x), b.float_type))
    lowest, precision, largest = SMALL[dtype.name]
    if lowest == 1 - b.format.max_exponent:
        return _rounded_bits(b, x, b.format.precision - precision)
    # Added to a power of two that is so much larger, a number keeps just `precision`
    # bits; not to a smaller one than subnormal numbers need.
    size = b.abs(x)
    exponent = b.as_bits(size) & b.format.bits_of(math.inf)
    low, high = (b.format.bits_of(2.0**e) for e in (lowest, 1 - lowest + 1))
    exponent = b.select(exponent < low, low, exponent)
    exponent = b.select(exponent > high, high, exponent)
    shift = b.format.precision - precision
    large = b.as_float(exponent + (shift << b.format.stored))
    near = (size + large) - large
    return b.copysign(b.select(near > largest, math.inf, near), x)


def _narrowed(b: Builder, x: Vector) -> Value:
    return b.ir.fptrunc(x.value, ir.VectorType(HALF, b.width))


def _rounded_bits(b: Builder, x: Vector, shift: int) -> Vector:
    """Without the last `shift` bits, for a format of the same exponents.

    A NaN might carry over to 0, or be an infinity without them: its first bit is set.
    """
    bits = b.as_bits(x)
    is_odd = (bits >> shift) & 1
    near = bits + ((1 << (shift - 1)) - 1) + is_odd
    near = b.select(x.ne(x), bits | (1 << (b.format.stored - 1)), near)
    return b.as_float(near & -(1 << shift))


def half_bits(b: Builder, x: Vector) -> Vector:
    """The bits of the magnitude of a float16 that is held as a float."""
    scaled = b.abs(x) * 2.0**-HALF_SCALE
    bits = b.logical_shift(b.as_bits(scaled), F32.stored - 10)
    bits = b.select(bits > INFINITY, INFINITY, bits)
    return b.select(x.ne(x), INFINITY | 0x200, bits)


def half_value(b: Builder, bits: Vector) -> Vector:
    """The float that such bits stand for."""
    shifted = bits << (F32.stored - 10)
    value = b.as_float(shifted) * 2.0**HALF_SCALE
    beyond = b.as_float(shifted | F32.bits_of(math.inf))
    return b.select(bits >= INFINITY, beyond, value)


def from_memory(builder: IRBuilder, value: Value, dtype: DType) -> Value:
    """Lanes as they are computed with, from lanes as they were read."""
    width = value.type.count
    if dtype.kind == "b":
        return builder.icmp_unsigned("!=", value, Splat(value.type, _integer(8, 0)))
    if not is_small(dtype):
        return value
    b = Builder(builder, F32, width)
    if dtype.name == "float16" and converts_halves():
        halves = builder.bitcast(value, ir.VectorType(HALF, width))
        return builder.fpext(halves, b.float_type)
    bits = Vector(b, builder.zext(value, b.int_type), INTEGER)
    if dtype.name == "bfloat16":
        return b.as_float(bits << 16).value
    sign = (bits & SIGN) << 16
    size = half_value(b, bits & (SIGN - 1))
    return b.as_float(b.as_bits(size) | sign).value


def to_memory(builder: IRBuilder, value: Value, dtype: DType) -> Value:
    """Lanes as they are written, from lanes as they are computed with."""
    width = value.type.count
    wanted = ir.VectorType(memory_type(dtype), width)
    if dtype.kind == "b":
        return builder.zext(value, wanted)
    if not is_small(dtype):
        return value
    b = Builder(builder, F32, width)
    x = b.wrap(value)
    if dtype.name == "float16" and converts_halves():
        return builder.bitcast(_narrowed(b, x), wanted)
    upper = b.logical_shift(b.as_bits(x), 16)
    if dtype.name == "bfloat16":
        return builder.trunc(upper.value, wanted)
    return builder.trunc((half_bits(b, x) | (upper & SIGN)).value, wanted)


def _integer(bits: int, value: int) -> ir.Literal:
    return ir.Literal(ir.IntType(bits), value)
