"""Float lanes: what NumPy does besides arithmetic, with its special values.

Functions take a `Floats` (a vector Builder that knows the dtype) and Vectors, and
return a Vector. Small floats come and go as floats; the caller rounds the result. So
every function here is right if it is right for float and double, but for those that
ask what the neighbours of a number are.

The remainders are exact, as `fmod` is by definition. The quotient of two floats may
have two thousand bits, so `fmod` takes off a multiple of the divisor that is as large
as a float can name, again and again; two or three times are usual, forty the most.

Start reading at `fmod`.
"""

from __future__ import annotations

import math

import numpy as np

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value, VectorType
from tapejit.targets.cpu.simd.division import divided
from tapejit.targets.cpu.simd.storage import Floats, half_bits, half_value
from tapejit.targets.cpu.simd.vector import F64, INTEGER, Vector


def add(b: Floats, x: Vector, y: Vector) -> Vector:
    return x + y


def sub(b: Floats, x: Vector, y: Vector) -> Vector:
    return x - y


def mul(b: Floats, x: Vector, y: Vector) -> Vector:
    return x * y


def div(b: Floats, x: Vector, y: Vector) -> Vector:
    return divided(b, x, y)


def negative(b: Floats, x: Vector) -> Vector:
    return -x


def ceil(b: Floats, x: Vector) -> Vector:
    """The smallest integer that is not below."""
    return b.call("ceil", x)


def maximum(b: Floats, x: Vector, y: Vector) -> Vector:
    """The larger one, NaN if one is. Of equal ones, which may be zeros, the second.

    NumPy's float16 takes the first.
    """
    is_first = x >= y if b.dtype == np.float16 else x > y
    return b.select(is_first | x.ne(x), x, y)


def minimum(b: Floats, x: Vector, y: Vector) -> Vector:
    """The smaller one, NaN if one is."""
    is_first = x <= y if b.dtype == np.float16 else x < y
    return b.select(is_first | x.ne(x), x, y)


def reduced_maximum(b: Floats, x: Vector, y: Vector) -> Vector:
    """The larger one, NaN if one is, where -0 is below 0: the order does not matter.

    The bits of equal numbers are the same but for the sign of zeros.
    """
    both = b.as_float(b.as_bits(x) & b.as_bits(y))
    return b.select(x.eq(y), both, maximum(b, x, y))


def reduced_minimum(b: Floats, x: Vector, y: Vector) -> Vector:
    """The smaller one, NaN if one is, where -0 is below 0."""
    both = b.as_float(b.as_bits(x) | b.as_bits(y))
    return b.select(x.eq(y), both, minimum(b, x, y))


def sign(b: Floats, x: Vector) -> Vector:
    """-1, 0 or 1, and NaN at NaN; 0 at -0 too."""
    rest = b.select(x.eq(0.0), 0.0, x)
    return b.select(x > 0.0, 1.0, b.select(x < 0.0, -1.0, rest))


def zero(b: Floats, x: Vector) -> Vector:
    """The imaginary part of a real number."""
    return b.constant(0.0)


def angle(b: Floats, x: Vector) -> Vector:
    """Half a turn where the sign is set, that of -0 included."""
    turned = b.select(b.is_negative(x), math.pi, b.constant(0.0))
    return b.select(x.ne(x), x, turned)


# Predicates


def isnan(b: Floats, x: Vector) -> Vector:
    return x.ne(x)


def isinf(b: Floats, x: Vector) -> Vector:
    return b.abs(x).eq(math.inf)


def isfinite(b: Floats, x: Vector) -> Vector:
    return b.abs(x) < math.inf


def signbit(b: Floats, x: Vector) -> Vector:
    return b.is_negative(x)


def differs(x: Vector, y: Vector) -> Vector:
    """Where one of two masks is set."""
    return x ^ y


# Remainders

# A step that keeps every quotient from overflowing: the range of a format is less
# than three of it.
STEPS = {32: 2.0**80, 64: 2.0**600}


def fmod(b: Floats, x: Vector, y: Vector) -> Vector:
    """What remains of x after taking off y as often as it fits, with the sign of x.

    The multiple that is taken off is the quotient, rounded, times the divisor. What
    remains of that is a float again, and it is found by one fused operation without
    an error; its sign may be the other one.
    """
    has_result = (b.abs(x) < math.inf) & (b.abs(y) > 0.0)
    divisor = b.select(has_result, b.abs(y), 1.0)
    start = b.select(has_result, b.abs(x), 0.0)
    step = STEPS[b.format.bits]
    far = divisor * step
    farther = far * step

    before = b.ir.block
    head = b.ir.append_basic_block("fmod")
    body = b.ir.append_basic_block("fmod.reduce")
    done = b.ir.append_basic_block("fmod.done")
    b.ir.branch(head)
    b.ir.position_at_end(head)
    phi = b.ir.phi(b.float_type)
    phi.add_incoming(start.value, before)
    rest = b.wrap(phi)
    size = b.abs(rest)
    is_larger = size >= divisor
    b.ir.cbranch(b.any(is_larger), body, done)

    b.ir.position_at_end(body)
    multiple = b.select(size >= far, far, divisor)
    multiple = b.select(size >= farther, farther, multiple)
    times = b.trunc(rest / multiple)
    smaller = b.fma(-times, multiple, rest)
    phi.add_incoming(b.select(is_larger, smaller, rest).value, b.ir.block)
    b.ir.branch(head)

    b.ir.position_at_end(done)
    positive = b.select(rest < 0.0, rest + divisor, rest)
    return b.select(has_result, b.copysign(positive, x), math.nan)


def remainder(b: Floats, x: Vector, y: Vector) -> Vector:
    """What remains, with the sign of the divisor."""
    rest = fmod(b, x, y)
    is_other = differs(y < 0.0, rest < 0.0)
    moved = b.select(is_other, rest + y, rest)
    return b.select(rest.eq(0.0), b.copysign(0.0, y), moved)


def floor_divide(b: Floats, x: Vector, y: Vector) -> Vector:
    """The quotient rounded down, made from the remainder so that they fit together.

    An infinity has no remainder: there the quotient itself is rounded.
    """
    rest = fmod(b, x, y)
    exact = (x - rest) / y
    is_other = differs(y < 0.0, rest < 0.0) & rest.ne(0.0)
    whole = b.select(is_other, exact - 1.0, exact)
    # `whole` is an integer but for its rounding.
    down = b.floor(whole)
    down = b.select((whole - down) > 0.5, down + 1.0, down)
    down = b.select(whole.eq(0.0), b.copysign(0.0, x / y), down)
    is_infinite = isinf(b, x) | isinf(b, y)
    return b.select(y.eq(0.0) | is_infinite, b.floor(x / y), down)


# Bits


def nextafter(b: Floats, x: Vector, y: Vector) -> Vector:
    """The neighbour of x on the side of y; y itself where they are equal."""
    size = b.abs(x)
    is_half = b.dtype == np.float16
    # The numbers of a dtype are in the order of their bits. Those of a bfloat16 are
    # the upper half of a float's.
    bits = half_bits(b, x) if is_half else b.as_bits(size)
    step = 1 << 16 if b.dtype.name == "bfloat16" else 1
    is_zero = x.eq(0.0)
    is_inward = differs(x < y, x > 0.0)
    moved = b.select(is_inward, bits - step, bits + step)
    moved = b.select(is_zero, step, moved)
    near = half_value(b, moved) if is_half else b.as_float(moved)
    near = b.copysign(near, b.select(is_zero, y, x))
    near = b.select(x.eq(y), y, near)
    return b.select(x.ne(x) | y.ne(y), math.nan, near)


def exponent(b: Floats, x: Vector) -> Vector:
    """e with |x| = m 2^e and 1/2 <= m < 1; 0 where there is none. An int32."""
    size = b.abs(x)
    is_tiny = size < b.format.tiny
    scaled = b.select(is_tiny, size * 2.0**b.format.precision, size)
    found = (b.as_bits(scaled) >> b.format.stored) - (b.format.max_exponent - 1)
    found = b.select(is_tiny, found - b.format.precision, found)
    has_result = (size < math.inf) & (size > 0.0)
    found = b.select(has_result, found, 0)
    if b.format is F64:
        return Vector(b, b.ir.trunc(found.value, int32(b)), INTEGER)
    return found


def int32(b: Floats) -> VectorType:
    """The LLVM type of lanes of int32."""
    return ir.VectorType(ir.IntType(32), b.width)


def ldexp(b: Floats, x: Vector, count: Value) -> Vector:
    """x 2^count, rounded once; `count` is an LLVM value of int32.

    By three powers of two at most, because one may be beyond the format. The first
    two on the way down leave room for all bits of the result above the smallest
    normal number, so that only the last one rounds.
    """
    if b.format is F64:
        count = b.ir.sext(count, b.int_type)
    n = Vector(b, count, INTEGER)
    high = b.format.max_exponent
    low = 1 - high
    down = low + b.format.precision
    for _ in range(2):
        is_above, is_below = n > high, n < low
        factor = b.select(is_below, 2.0**down, b.constant(1.0))
        x = x * b.select(is_above, 2.0**high, factor)
        n = n - b.select(is_above, high, b.select(is_below, down, b.integer(0)))
    n = b.select(n > high, high, n)
    n = b.select(n < low, low, n)
    return x * b.power_of_two(n)
