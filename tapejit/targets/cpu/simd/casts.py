"""Casts between dtypes of lanes, as NumPy's `astype` does them.

A float becomes an integer without its fraction. One that no integer of the dtype is
near to, or NaN, becomes what the processor's conversion gives: the lowest integer of
32 or 64 bits, of which a smaller dtype keeps the last ones. An unsigned integer has
the last bits of an int64, so -1.0 is the largest one; NumPy's own result varies there
from one loop to the next. LLVM's conversion has no result for these, so they are
selected before and after.

An integer becomes a float by rounding once; a small float by way of a float, as in
NumPy. Among floats nothing is rounded twice.

Start reading at `cast`.
"""

from __future__ import annotations

import numpy as np

from tapejit.base.types import DType, is_float
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value
from tapejit.targets.cpu.simd.integers import Integers
from tapejit.targets.cpu.simd.storage import Floats, constant, register_type, rounded
from tapejit.targets.cpu.simd.vector import F64, Vector


def cast(
    builder: IRBuilder, value: Value, given: DType, wanted: DType, width: int
) -> Value:
    """Lanes of one dtype as lanes of another."""
    if given == wanted:
        return value
    if wanted.kind == "b":
        return _to_bool(builder, value, given, width)
    if is_float(given):
        b = Floats(builder, given, width)
        if is_float(wanted):
            return _float_to_float(b, value, wanted)
        return _float_to_integer(b, value, wanted)
    if is_float(wanted):
        return _integer_to_float(builder, value, given, wanted, width)
    return _integer_to_integer(builder, value, given, wanted, width)


def _to_bool(builder: IRBuilder, value: Value, given: DType, width: int) -> Value:
    """Whether a number is not 0, which NaN is not."""
    zero = constant(given, 0, width)
    if is_float(given):
        return builder.fcmp_unordered("!=", value, zero)
    return builder.icmp_unsigned("!=", value, zero)


def _integer_to_integer(
    builder: IRBuilder, value: Value, given: DType, wanted: DType, width: int
) -> Value:
    """The last bits, or more of them: the sign's, or zeros."""
    type = register_type(wanted, width)
    if given.kind != "b" and wanted.itemsize < given.itemsize:
        return builder.trunc(value, type)
    if given.kind != "b" and wanted.itemsize == given.itemsize:
        return value  # only the meaning of the first bit is another
    extend = builder.sext if given.kind == "i" else builder.zext
    return extend(value, type)


def _integer_to_float(
    builder: IRBuilder, value: Value, given: DType, wanted: DType, width: int
) -> Value:
    convert = builder.sitofp if given.kind == "i" else builder.uitofp
    b = Floats(builder, wanted, width)
    return rounded(b, b.wrap(convert(value, b.float_type)), wanted).value


def _float_to_float(b: Floats, value: Value, wanted: DType) -> Value:
    other = Floats(b.ir, wanted, b.width)
    if b.format is other.format:
        return rounded(b, b.wrap(value), wanted).value
    if other.format is F64:
        return b.ir.fpext(value, other.float_type)
    # A small float is rounded as a double, and then is one of the floats.
    found = b.ir.fptrunc(rounded(b, b.wrap(value), wanted).value, other.float_type)
    if wanted == np.float16:
        # LLVM would join both steps to a float16, and call a function for that.
        return other.call("arithmetic.fence", other.wrap(found)).value
    return found


def _float_to_integer(b: Floats, value: Value, wanted: DType) -> Value:
    if wanted == np.uint64:
        return _to_uint64(b, value)
    if wanted == np.uint16 or (wanted == np.uint8 and b.format is F64):
        value = _modulo(b, b.wrap(value), 8 * wanted.itemsize).value
    # A float from 2^31 on is a multiple of 2^8: uint8 needs no more than 32 bits.
    bits = 64 if wanted.itemsize == 8 or wanted == np.uint32 else 32
    found = _converted(b, value, bits)
    own = np.dtype(f"int{bits}")
    return _integer_to_integer(b.ir, found, own, wanted, b.width)


def _modulo(b: Floats, x: Vector, bits: int) -> Vector:
    """The last bits of a float as an int64, exactly; 0 where that is the lowest one.

    Processors without AVX-512 convert to 64 bits one lane at a time.
    """
    is_inside = (x >= -(2.0**63)) & (x < 2.0**63)
    whole = b.trunc(b.select(is_inside, x, 0.0))
    return whole - b.floor(whole * 2.0**-bits) * 2.0**bits


def _converted(b: Floats, value: Value, bits: int) -> Value:
    """The processor's conversion: the lowest integer stands for all that do not fit."""
    x = b.wrap(value)
    n = Integers(b.ir, np.dtype(f"int{bits}"), b.width)
    limit = 2.0 ** (bits - 1)
    is_inside = (x >= -limit) & (x < limit)
    found = b.ir.fptosi(b.select(is_inside, x, 0.0).value, n.type)
    return b.ir.select(is_inside.value, found, n.constant(n.lowest))


def _to_uint64(b: Floats, value: Value) -> Value:
    """The upper half of the numbers is moved down first, and the result back up."""
    x = b.wrap(value)
    n = Integers(b.ir, np.dtype("uint64"), b.width)
    half = 2.0**63
    is_upper = (x >= half) & (x < 2 * half)
    moved = b.select(is_upper, x - half, x)
    found = _converted(b, moved.value, 64)
    top = b.ir.select(is_upper.value, n.constant(1 << 63), n.constant(0))
    return b.ir.xor(found, top)
