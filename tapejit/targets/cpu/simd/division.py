"""Division of vectors by a constant, exactly rounded, without dividing.

A vector of quotients keeps the divider of a processor busy for 10 to 16 cycles; here it
takes two multiplications and a look at what is divided. With 1 / c as the sum of two
numbers, high and low,

    x / c = RN(x * high + RN(x * low))

for nearly all c and, with such a c, for all x: the sum before its last rounding is off
by less than x / c is away from any number half-way between two floats (Brisebarre,
Muller and Raina, "Accelerating correctly rounded floating-point division when the
divisor is known in advance", 2004). For which c that holds is found out by trying the
few x that come near enough (`is_exact`). Both parts are positive, high being cut off
and not rounded, so infinities, zeros and their signs come out right.

Only where x * low would be subnormal its error counts. Vectors with such an x, other
than 0, are divided.

Start reading at `divided`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from tapejit.base.config import config
from tapejit.targets.cpu.machine.processor import has_fused_multiply_add
from tapejit.targets.cpu.simd.vector import MASK, Builder, Format, Splat, Vector


class Inverse(NamedTuple):
    """1 / c in two parts, and the size from which on numbers may be multiplied."""

    high: float
    low: float
    least: float


def divided(b: Builder, x: Vector, y: Vector) -> Vector:
    """x / y, by multiplications if y is a constant for which they give the same."""
    if not isinstance(y.value, Splat) or b.width == 1 or not is_fused():
        return x / y
    divisor: float = y.value.constant.constant
    inverse = inverse_of(b.format, abs(divisor))
    if inverse is None:
        return x / y
    product = b.fma(x, inverse.high, x * inverse.low)
    quick = -product if divisor < 0 else product
    size = b.as_bits(b.abs(x)) - 1  # the largest of all for 0
    least = b.integer(b.format.bits_of(inverse.least) - 1)
    is_tiny = b.ir.icmp_unsigned("<", size.value, least.value)
    any_tiny = b.any(Vector(b, is_tiny, MASK))
    before = b.ir.block
    with b.ir.if_then(any_tiny, likely=False):
        slow = x / y
        inside = b.ir.block
    found = b.ir.phi(b.float_type)
    found.add_incoming(quick.value, before)
    found.add_incoming(slow.value, inside)
    return b.wrap(found)


def is_fused() -> bool:
    """Whether x * y + z is an instruction of the processor that code is made for."""
    return has_fused_multiply_add() and config.cpu not in ("x86-64", "x86-64-v2")


@lru_cache(1024)
def inverse_of(form: Format, c: float) -> Inverse | None:
    """1 / c for a positive c, if multiplying by it gives all quotients.

    >>> from tapejit.targets.cpu.simd.vector import F32
    >>> high, low, _ = inverse_of(F32, 3.0)
    >>> f"{high:.10f} + {low:.1e}"
    '0.3333333135 + 2.0e-08'
    >>> inverse_of(F32, 4.0)  # nothing is left for the second part
    """
    room = 2.0 ** (form.max_exponent - 2 * form.precision)  # parts are not subnormal
    if not 1 / room < c < room:
        return None
    exact = 1 / Fraction(c)
    high = cut(exact, form.precision)
    low = nearest(exact - high, form.precision)
    if not low or not is_exact(form.precision, Fraction(c), high, low):
        return None
    smallest = Fraction(2) ** (1 - form.max_exponent)
    least = Fraction(2) ** (exponent_of(smallest / low) + 1)
    return Inverse(float(high), float(low), float(least))


def is_exact(precision: int, c: Fraction, high: Fraction, low: Fraction) -> bool:
    """Whether x / c is x high + x low, rounded, for every x of so many bits."""
    error = abs(1 / c - high - low) * c + low * c / 2**precision
    return all(
        nearest(x * high + nearest(x * low, precision), precision)
        == nearest(x / c, precision)
        for x in near_halves(precision, c, error)
    )


def near_halves(precision: int, c: Fraction, error: Fraction) -> Iterator[Fraction]:
    """The x of so many bits for which x / c is as near to a number of one bit more.

    With integers X and C of `precision` bits and an odd N of one bit more, such an X
    has X 2^t = N C + r with a small r. For each r they follow from N = -r / C modulo
    2^t.
    """
    whole = c / Fraction(2) ** (exponent_of(c) - precision + 1)
    assert whole.denominator == 1
    size = whole.numerator
    even = (size & -size).bit_length() - 1
    odd = size >> even
    low, high = 2 ** (precision - 1), 2**precision
    most = int(error * 2 * high * size) + 1
    for t in (precision, precision + 1):
        modulus = 2 ** (t - even)
        inverse = pow(odd, -1, modulus)
        for r in range(-most, most + 1):
            if r == 0 or r % 2**even:
                continue
            first = -(r >> even) * inverse % modulus
            start = high + (first - high) % modulus
            for n in range(start, 2 * high, modulus):
                x = (n * size + r) >> t
                if n % 2 and low <= x < high:
                    yield Fraction(x)


def exponent_of(x: Fraction) -> int:
    """The n with 2^n <= x < 2^(n + 1), of a positive number."""
    n = x.numerator.bit_length() - x.denominator.bit_length()
    return n if x >= Fraction(2) ** n else n - 1


def cut(x: Fraction, precision: int) -> Fraction:
    """The next number of so many bits towards 0."""
    unit = Fraction(2) ** (exponent_of(x) - precision + 1)
    return x // unit * unit


def nearest(x: Fraction, precision: int) -> Fraction:
    """The nearest number of so many bits, of two the even one."""
    if not x:
        return x
    unit = Fraction(2) ** (exponent_of(x) - precision + 1)
    return round(x / unit) * unit
