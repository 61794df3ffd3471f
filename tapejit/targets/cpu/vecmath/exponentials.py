"""Exponentials and the hyperbolic functions made of them.

exp(x) = 2^k exp(r) with k the integer nearest to x / ln 2, so |r| <= ln(2)/2, and
exp(r) = 1 + r + r² P(r). x - k ln 2 loses nothing: with the first word of ln 2 the
fused product cancels exactly, the second word adds what is missing. k is read from the
last bits of a sum, so it is an integer for every x, NaN included. 2^k is multiplied in
two steps, since k itself may exceed the exponents of normal numbers; only the last
step rounds, when the result is subnormal.

Where a difference would cancel (expm1), exp(r) - 1 is kept as a Pair. `exp_parts` and
what is made of it keep one word: right to 1 ULP, in two thirds of the time.

In single precision `exp`, `tanh` and `sigmoid` have shorter formulas, which double has
no use for: they take 2^k from the bits of the sum that rounds (`nearest_power`), and
their errors, up to 2 ULP, are known for each of the 2^32 arguments.

Start reading at `exp`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.matmul.tiling import host_registers
from tapejit.targets.cpu.simd.vector import Builder, Vector
from tapejit.targets.cpu.vecmath.numbers import INFINITY, table_of
from tapejit.targets.cpu.vecmath.pairs import Pair, choose, fast_two_sum, two_sum

LN2 = math.log(2)
LIFT = 48  # single: 2^(k + LIFT) is a normal number for every k of a result


def exp(b: Builder, x: Vector) -> Vector:
    """e^x.

    Where it is 0, as for all that a mask has made -inf, 0 is not computed but chosen: a
    product that vanishes takes a hundred cycles longer than others.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(exp, 1.0)
    2.718281828459045
    """
    lowest, highest = (bound * LN2 for bound in exponent_bounds(b))
    is_gone = x < lowest
    bounded = b.select(is_gone, 0.0, b.select(x > highest, highest, x))
    powers = exp_single if b.format.bits == 32 else exp_double
    return b.select(is_gone, 0.0, powers(b, bounded))


def exp_double(b: Builder, x: Vector) -> Vector:
    """e^x within bounds. What 1 + r and k ln 2 lose is added last.

    That is a tenth of the time, for e^1 = e.
    """
    k, (r, low) = reduced_pair(b, x)
    start = fast_two_sum(1.0, r)
    rest = b.fma(r * r, b.polynomial(r, table_of(b).exp), start.low + low)
    return scaled(b, start.high + rest, k)


def exp_single(b: Builder, x: Vector) -> Vector:
    """The same by one polynomial, in 0.7 of the time of the parts below.

    1 and r are part of it. The sum that rounds holds k + 2 bias; its halves are the
    exponents of two factors, where there is no instruction that multiplies by 2^k,
    rounding once as well.
    """
    form = b.format
    rounder = form.rounder + 2 * form.max_exponent
    shifted = b.fma(x, table_of(b).log2_e[0], rounder)
    k = shifted - rounder
    r = without_multiple(b, x, k)
    p = b.polynomial(r, (1.0, 1.0, *table_of(b).exp))
    if has_scaling(b):
        return scaled_at_once(b, p, k)
    bits = b.as_bits(shifted)
    mask = form.bits_of(INFINITY)
    first = (bits << (form.stored - 1)) & mask
    second = (bits << form.stored) - first
    return p * b.as_float(first) * b.as_float(second)


def has_scaling(b: Builder) -> bool:
    """Whether one instruction multiplies a vector of singles by powers of two."""
    is_full = b.format.bits == 32 and b.width == 16
    return is_full and host_registers().nbytes == 64  # AVX-512


def scaled_at_once(b: Builder, x: Vector, k: Vector) -> Vector:
    """x 2^k for whole floats k, a fifth less to do for e^x than with two factors."""
    i16, i32 = ir.IntType(16), ir.IntType(32)
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    # All lanes, in the current way of rounding.
    options = [ir.Literal(i16, -1), ir.Literal(i32, 4)]
    operands = [x.value, k.value, x.value, *options]
    return b.wrap(b.ir.intrinsic(name, b.float_type, operands))


def nearest_power(
    b: Builder, x: Vector, factor: float, lift: int
) -> tuple[Vector, Vector]:
    """The integer n next to x times the factor, and 2^(n + lift).

    The rounder is larger by the bias, so that the sum's last bits are an exponent.
    """
    rounder = b.format.rounder + b.format.max_exponent + lift
    shifted = b.fma(x, factor, rounder)
    power = b.as_float(b.as_bits(shifted) << b.format.stored)
    return shifted - rounder, power


def without_multiple(b: Builder, x: Vector, n: Vector) -> Vector:
    """x - n ln 2."""
    first, second = table_of(b).ln2
    return b.fma(n, -second, b.fma(n, -first, x))


def grown_by(b: Builder, r: Vector, numbers: Sequence[float]) -> Vector:
    """r + r² P(r), which is e^r - 1 with the polynomial of exp."""
    return b.fma(r * r, b.polynomial(r, numbers), r)


def exp_parts(
    b: Builder, x: Vector, low: Vector | None = None
) -> tuple[Vector, Vector]:
    """k and p with e^(x + low) = 2^k p, p to 1 ULP: no word is kept beside r."""
    k, q = expm1_parts(b, x, low)
    return k, 1 + q


def expm1_parts(
    b: Builder, x: Vector, low: Vector | None = None
) -> tuple[Vector, Vector]:
    """k and q with e^(x + low) = 2^k (1 + q)."""
    n, k, r = reduced(b, x)
    r = b.fma(n, -table_of(b).ln2[1], r if low is None else r + low)
    return k, b.fma(r * r, b.polynomial(r, table_of(b).exp), r)


def exp_of_negative(b: Builder, x: Vector, low: Vector | None = None) -> Vector:
    """e^(x + low) for x <= 0 to 1 ULP."""
    k, p = exp_parts(b, b.select(x < lowest(b), lowest(b), x), low)
    return lowered(b, p, k)


def lowest(b: Builder) -> float:
    """Where e^x is 0, and all below."""
    return exponent_bounds(b)[0] * LN2


def lowered(b: Builder, x: Vector, k: Vector) -> Vector:
    """x 2^k for k <= 0, as x 2^(k + h) 2^-h: the first factor is a normal number."""
    half = (b.format.max_exponent + 1) // 2
    return x * b.power_of_two(k + half) * 2.0**-half


def exp2(b: Builder, x: Vector) -> Vector:
    """2^x.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(exp2, 10.0)
    1024.0
    """
    emin, emax = exponent_bounds(b)
    n, k = b.split_round(b.clamp(x, emin, emax) + b.format.rounder)
    fraction = b.clamp(x, emin, emax) - n
    first, second = table_of(b).ln2
    r = fraction * first
    low = b.fma(fraction, first, -r) + fraction * second
    return scaled(b, 1 + reduced_expm1(b, Pair(r, low)).high, k)


def exponent_bounds(b: Builder) -> tuple[float, float]:
    """Exponents of 2 beyond which all is 0, and all is infinite."""
    return (
        -float(b.format.max_exponent + b.format.precision + 2),
        float(b.format.max_exponent + 3),
    )


def clamped(b: Builder, x: Vector) -> Vector:
    """`x` where e^x is neither 0 nor infinite, and a little beyond."""
    emin, emax = exponent_bounds(b)
    return b.clamp(x, emin * LN2, emax * LN2)


def reduced(b: Builder, x: Vector) -> tuple[Vector, Vector, Vector]:
    """k as a float and as an integer, and x less k times the first word of ln 2."""
    table = table_of(b)
    n, k = b.split_round(b.fma(x, table.log2_e[0], b.format.rounder))
    return n, k, b.fma(n, -table.ln2[0], x)


def reduced_pair(b: Builder, x: Vector) -> tuple[Vector, Pair]:
    """k, and x - k ln 2 in two words."""
    n, k, r = reduced(b, x)
    return k, fast_two_sum(r, n * -table_of(b).ln2[1])


def reduced_expm1(b: Builder, r: Pair) -> Pair:
    """e^r - 1 for |r| <= ln(2)/2."""
    low = b.fma(r.low, r.high, r.low)
    square = r.high * r.high
    rest = b.fma(square, b.polynomial(r.high, table_of(b).exp), low)
    return fast_two_sum(r.high, rest)


def scaled(b: Builder, x: Vector, k: Vector) -> Vector:
    """x 2^k for a k of up to twice the normal exponents."""
    half = k >> 1
    return x * b.power_of_two(half) * b.power_of_two(k - half)


def exp_of_pair(b: Builder, x: Pair) -> tuple[Vector, Pair]:
    """k and the Pair p with e^x = 2^k p."""
    k, r = reduced_pair(b, x.high)
    # x.low may be as large as the rounding of x, far beyond that of r.
    grown = reduced_expm1(b, fast_two_sum(r.high, r.low + x.low))
    high = 1 + grown.high
    return k, Pair(high, grown.high - (high - 1) + grown.low)


def expm1_pair(b: Builder, x: Vector) -> Pair:
    """e^x - 1, for an x that does not overflow.

    As 2 (2^(k-1) e^r - 1/2), since 2^k may be infinite where e^x is not.
    """
    k, r = reduced_pair(b, x)
    grown = reduced_expm1(b, r)
    half = b.power_of_two(k - 1)
    high, low = two_sum(half - 0.5, half * grown.high)
    whole = Pair(2 * high, 2 * b.fma(half, grown.low, low))
    return choose(b, k.eq(0), grown, whole)


def expm1(b: Builder, x: Vector) -> Vector:
    """e^x - 1, also for small x.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(expm1, 1e-20)
    1e-20
    """
    lowest = -(b.format.precision + 3) * LN2
    highest = (b.format.max_exponent + 1.3) * LN2
    grown = expm1_pair(b, b.clamp(x, lowest, highest))
    return b.copysign(grown.total(), x)


def tanh(b: Builder, x: Vector) -> Vector:
    """The hyperbolic tangent: 1 - 2 / (e^(2|x|) + 1), near 0 by its own polynomial.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(tanh, 0.5)
    0.4621171572600098
    """
    magnitude = b.abs(x)
    if b.format.bits == 32:
        return with_sign_of(b, tanh_single(b, magnitude), x)
    z = magnitude * magnitude
    small = b.fma(magnitude * z, b.polynomial(z, table_of(b).tanh), magnitude)
    last = (b.format.precision + 4) * LN2 / 2
    bounded = b.select(magnitude > last, last, magnitude)
    k, p = exp_parts(b, bounded + bounded)
    large = 1 - 2 / b.fma(p, b.power_of_two(k), 1.0)
    return b.copysign(b.select(magnitude < 0.55, small, large), x)


def tanh_single(b: Builder, x: Vector) -> Vector:
    """`tanh` of x >= 0; what e^2x lacks hardly counts, since 1 is larger than the rest.

    So n ln 2 has one word, and 2 is in the constants.
    """
    table = table_of(b)
    z = x * x
    small = b.fma(x * z, b.polynomial(z, table.tanh), x)
    last = (b.format.precision + 4) * LN2 / 2
    bounded = b.select(x > last, last, x)
    n, power = nearest_power(b, bounded, 2 * table.log2_e[0], 0)
    r = b.fma(n, -0.5 * table.ln2[0], bounded)
    numbers = [c * 2.0**i for i, c in enumerate((1.0, 1.0, *table.exp))]
    large = 1 - 2 / b.fma(b.polynomial(r, numbers), power, 1.0)
    return b.select(x < 0.55, small, large)


def with_sign_of(b: Builder, magnitude: Vector, x: Vector) -> Vector:
    """A number that is not negative, with the sign of x: shorter than copysign."""
    sign = b.as_bits(x) & b.format.bits_of(-0.0)
    return b.as_float(b.as_bits(magnitude) | sign)


def half_exp(b: Builder, magnitude: Vector) -> Vector:
    """e^|x| / 2, which may be finite where e^|x| is not."""
    k, p = exp_of_pair(b, Pair(clamped(b, magnitude), b.constant(0.0)))
    return scaled(b, p.total(), k - 1)


def sinh(b: Builder, x: Vector) -> Vector:
    """The hyperbolic sine; below 1 by its own polynomial, where exponentials cancel.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(sinh, 1.0)
    1.1752011936438014
    """
    magnitude = b.abs(x)
    z = magnitude * magnitude
    small = b.fma(magnitude * z, b.polynomial(z, table_of(b).sinh), magnitude)
    half = half_exp(b, magnitude)
    large = half - 0.25 / half
    return b.copysign(b.select(magnitude < 1, small, large), x)


def cosh(b: Builder, x: Vector) -> Vector:
    """The hyperbolic cosine.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(cosh, 1.0)
    1.5430806348152437
    """
    half = half_exp(b, b.abs(x))
    return half + 0.25 / half


def sigmoid(b: Builder, x: Vector) -> Vector:
    """1 / (1 + e^-x), from e^-|x|, which does not overflow.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(sigmoid, -700.0)
    9.85967654375977e-305
    """
    if b.format.bits == 32:
        return sigmoid_single(b, x)
    small = exp_of_negative(b, -b.abs(x))
    bottom = fast_two_sum(1.0, small)
    near = small / bottom.high
    # What the quotient and the sum have lost; 1 / (1 + small) is 1 - near.
    rest = b.fma(-near, bottom.low, b.fma(-near, bottom.high, small))
    found = b.fma(rest, 1 - near, near)
    return b.select(x < 0, found, 1 - found)


def sigmoid_single(b: Builder, x: Vector) -> Vector:
    """1 or e^-|x|, by 1 + e^-|x|, with what that sum has lost."""
    magnitude = b.abs(x)
    magnitude = b.select(magnitude > -lowest(b), -lowest(b), magnitude)
    # 2^lift keeps the power a normal number where the result is none.
    n, power = nearest_power(b, magnitude, -table_of(b).log2_e[0], LIFT)
    r = without_multiple(b, -magnitude, n)
    p = b.polynomial(r, (1.0, 1.0, *table_of(b).exp))
    small = p * power * 2.0**-LIFT
    bottom = fast_two_sum(1.0, small)
    near = b.select(b.is_negative(x), small, 1.0) / bottom.high
    return b.fma(-near, bottom.low, near)
