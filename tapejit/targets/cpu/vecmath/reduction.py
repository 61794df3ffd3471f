"""x modulo π/2, for every x.

Up to a limit (2^30 in double, 2^15 in single) x - k π/2 is formed with π/2 in three
words: the first fused product cancels exactly, the others keep the result good to more
than the format's precision also where x is as near to a multiple of π/2 as a float can
be (Cody and Waite's method).

Beyond, x = M 2^e with an integer M, and x 2/π modulo 4 = M (2^e 2/π modulo 4): the
factor comes from a table of four words for every eighth e (Payne and Hanek's idea). It
is rare and long, so it is a function of its own behind a branch that is taken if any
lane needs it; each lane's own size decides which result it gets, so the bits do not
depend on its neighbours.

Start reading at `reduce`.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import LLVMFunction, Value
from tapejit.targets.cpu.simd.vector import INTEGER, Builder, Format, Vector
from tapejit.targets.cpu.vecmath.numbers import INFINITY, NAN, table_of
from tapejit.targets.cpu.vecmath.pairs import (
    Pair,
    choose,
    fast_two_sum,
    two_product,
    two_sum,
)

STEP = 8  # exponents per row of the table: a row more costs memory, a step bits
WORDS = 4


def reduce(b: Builder, x: Vector) -> tuple[Vector, Pair]:
    """k modulo 4 in its last bits, and r in [-π/4, π/4] with x = k π/2 + r."""
    first, second, third = table_of(b).half_pi
    limit = 2.0**30 if b.format.bits == 64 else 2.0**15
    n, k = b.split_round(b.fma(x, table_of(b).two_over_pi[0], b.format.rounder))
    r = b.fma(n, -first, x)
    middle = two_product(b, n, -second)
    near = two_sum(r, middle.high)
    low = near.low + b.fma(n, -third, middle.low)
    small = fast_two_sum(near.high, low)

    is_huge = b.abs(x) > limit
    before = b.ir.block
    function = huge_function(b)
    with b.ir.if_then(b.any(is_huge), likely=False):
        found = b.ir.call(function, [x.value])
        inside = b.ir.block
        parts = [b.ir.extract_value(found, i) for i in range(3)]
    merged = []
    for part, default in zip(parts, (k, *small), strict=True):
        phi = b.ir.phi(part.type)
        phi.add_incoming(part, inside)
        phi.add_incoming(default.value, before)
        merged.append(phi)
    far = Pair(b.wrap(merged[1]), b.wrap(merged[2]))
    far_k = Vector(b, merged[0], INTEGER)
    high, low = choose(b, is_huge, far, small)
    high = b.select(b.abs(x) < INFINITY, high, NAN)
    return b.select(is_huge, far_k, k), Pair(high, low)


@functools.cache
def pi_fraction(bits: int) -> int:
    """floor(2^bits π), by Machin's formula.

    >>> hex(pi_fraction(32))
    '0x3243f6a88'
    """
    one = 1 << (bits + 32)

    def arctangent_of_inverse(n: int) -> int:
        power = total = one // n
        divisor, sign = 3, -1
        while power:
            power //= n * n
            total += sign * (power // divisor)
            divisor, sign = divisor + 2, -sign
        return total

    pi = 4 * (4 * arctangent_of_inverse(5) - arctangent_of_inverse(239))
    return pi >> 32


@functools.cache
def factors(form: Format) -> tuple[tuple[float, ...], ...]:
    """2^(8j - stored) 2/π modulo 4, in words, for each j."""
    precise = 2 * form.max_exponent + 16 * form.precision
    two_over_pi = Fraction(2 << precise, pi_fraction(precise))
    rows = []
    for j in range(form.max_exponent // STEP + 1):
        rest = two_over_pi * Fraction(2) ** (STEP * j - form.stored)
        rest -= 4 * round(rest / 4)
        words = []
        for _ in range(WORDS):
            words.append(form.round(float(rest)))
            rest -= Fraction(words[-1])
        rows.append(tuple(words))
    return tuple(rows)


def table_global(b: Builder) -> Value:
    """The table of factors as a constant of the module."""
    name = f"two_over_pi.{b.format.suffix}"
    found = b.ir.module.globals.get(name)
    if found is None:
        words = [word for row in factors(b.format) for word in row]
        type = ir.ArrayType(b.element, len(words))
        found = ir.GlobalVariable(b.ir.module, type, name)
        found.linkage, found.global_constant = "internal", True
        found.initializer = ir.Literal(type, [ir.Literal(b.element, w) for w in words])
    return found


def huge_function(b: Builder) -> LLVMFunction:
    """The function of this module that reduces vectors of huge numbers."""
    name = f"reduce_huge.v{b.width}{b.format.suffix}"
    result = ir.LiteralStructType([b.int_type, b.float_type, b.float_type])
    found = b.ir.module.declared(name, result, [b.float_type])
    if not found.blocks:
        found.linkage = "internal"
        found.attributes.add("noinline")
        inner = Builder(ir.IRBuilder(found.append_basic_block()), b.format, b.width)
        k, r = reduce_huge(inner, inner.wrap(found.args[0]))
        value: Value = ir.Literal(result, ir.Undefined)
        for i, part in enumerate((k, *r)):
            value = inner.ir.insert_value(value, part.value, i)
        inner.ir.ret(value)
    return found


def reduce_huge(b: Builder, x: Vector) -> tuple[Vector, Pair]:
    """`reduce` for finite |x| >= 1; lanes of smaller or no size get some number."""
    form = b.format
    bits = b.as_bits(b.abs(x))
    exponent = b.logical_shift(bits, form.stored) - form.max_exponent
    exponent = b.select(exponent < 0, b.integer(0), exponent)
    exponent = b.select(exponent > form.max_exponent, b.integer(0), exponent)
    significand = (bits & ((1 << form.stored) - 1)) | form.bits_of(1.0)
    remainder = exponent & (STEP - 1)
    integer = b.as_float(significand) * b.power_of_two(remainder + form.stored)
    row = gather_rows(b, b.logical_shift(exponent, STEP.bit_length() - 1))

    # Whole numbers go to the quadrant at once, so that fractions keep all their bits.
    products = [part for word in row for part in two_product(b, integer, word)]
    large, tiny = products[:3], products[3:]  # from the fourth on all are below 1
    quadrant = b.constant(0.0)
    fractions = []
    for part in large:
        whole = b.round(part)
        quadrant = quadrant + (whole - 4 * b.floor(whole * 0.25))
        fractions.append(part - whole)
    first = two_sum(fractions[0], fractions[1])
    second = two_sum(first.high, fractions[2])
    whole = b.round(second.high)
    quadrant = quadrant + whole
    terms = [second.high - whole, first.low, second.low, *tiny]
    for _ in range(3):  # each pass moves the rounding errors one place down
        total = terms[-1]
        for i in reversed(range(len(terms) - 1)):
            total, terms[i + 1] = two_sum(terms[i], total)
        terms[0] = total
    high, low = terms[0], terms[1] + terms[2]

    half_pi = table_of(b).half_pi
    angle = high * half_pi[0]
    rest = b.fma(high, half_pi[0], -angle)
    rest = b.fma(low, half_pi[0], b.fma(high, half_pi[1], rest))
    k = b.as_bits(quadrant + form.rounder)
    is_negative = b.is_negative(x)
    signed = choose(b, is_negative, Pair(-angle, -rest), Pair(angle, rest))
    return b.select(is_negative, -k, k), signed


def gather_rows(b: Builder, rows: Vector) -> list[Vector]:
    """The words of each lane's row of the table, lane by lane."""
    table = table_global(b)
    nothing: Value = ir.Literal(b.float_type, ir.Undefined)
    found = [nothing] * WORDS
    index_type = ir.IntType(32)
    for lane in range(b.width):
        place = ir.Literal(index_type, lane)
        row = b.ir.extract_element(rows.value, place)
        start = b.ir.mul(row, ir.Literal(row.type, WORDS))
        for word in range(WORDS):
            index = b.ir.add(start, ir.Literal(row.type, word))
            address = b.ir.gep(table, [index], source_etype=b.element)
            value = b.ir.load(address, typ=b.element)
            found[word] = b.ir.insert_element(found[word], value, place)
    return [b.wrap(value) for value in found]
