"""Cases of the functions beyond the elementary ones: angles, powers, parts of floats.

Start reading at `TRIGONOMETRY`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from agreement import EXACT, SUM, TRANSCENDENTAL, Truth

from op_cases import references as ref
from op_cases.case import (
    BINARY_SHAPES,
    FLOAT,
    MISFITS,
    REAL,
    SMOOTH,
    Array,
    OpCase,
    Operand,
    Variant,
    apart_from_zero,
    between,
    variants_of,
)
from op_cases.elementwise import DIVIDEND, DIVISOR, binary, by_zero, function, unary

PI = 4 * np.arctan(np.longdouble(1))

# Angles


def wide_sinc(x: Array) -> Array:
    """From the fraction of |x| and the parity of the rest."""
    size = np.abs(x)
    whole = np.floor(size)
    fraction = size - whole
    turned = np.where(fraction > 0.5, 1 - fraction, fraction)
    sine = np.sin(PI * turned) * np.where(np.fmod(whole, 2) == 0, 1, -1)
    return np.where(x == 0, 1, sine / np.where(x == 0, 1, PI * size)) + 0


def wide_sinc_slope(x: Array, *, order: int) -> Truth:
    """By recurrence; judged by the terms of its last step, as a sum of sixteen."""
    x = ref.widened(x)
    pi_x = np.where(x == 0, 1, PI * x)
    before, last = np.cos(PI * x), np.sin(PI * x) / pi_x
    squared = np.where(x == 0, 1, x * x)
    scale = np.abs(last)
    for n in range(order):
        # The first step is (cos πx - sinc x) / x², the others have π² sinc for cos.
        other = before if n == 0 else -PI * PI * before
        step = (other - (2 * n + 1) * last) / squared
        scale = (np.abs(other) + (2 * n + 1) * np.abs(last)) / np.abs(squared)
        before, last = last, step
    top = (-PI * PI) ** order / math.prod(range(1, 2 * order + 2, 2))
    value = np.where(x == 0, top, last)
    return Truth(value, 16, np.where(x == 0, np.abs(top), scale))


TRIGONOMETRY = [
    function("tan", np.tan, between(-1.0, 1.0)),  # poles at ±π/2
    function("asin", np.arcsin, between(-0.8, 0.8)),
    function("acos", np.arccos, between(-0.8, 0.8)),
    function("atan", np.arctan, between(-0.6, 0.6)),  # complex: poles at ±i
    function("sinh", np.sinh),
    function("cosh", np.cosh),
    function("asinh", np.arcsinh, between(-0.6, 0.6)),  # complex: branches at ±i
    function("acosh", np.arccosh, between(1.2, 3.0)),
    function("atanh", np.arctanh, between(-0.8, 0.8)),
    function("sinc", wide_sinc, between(-1.7, 1.7), takes=FLOAT),
    OpCase(
        "sinc_slope",
        (Operand(apart_from_zero(0.4, 1.7)),),
        (
            Variant(((3, 4),), {"order": 1}, note="1"),
            Variant(((3, 4),), {"order": 2}, note="2"),
            Variant(((5,),), {"order": 3}, note="3"),
            Variant(((),), {"order": 1}, note="1"),
            Variant(((0, 3),), {"order": 1}, note="1"),
        ),
        wide_sinc_slope,
        SUM,
        takes=FLOAT,
        first="c",
        second=("c",),
        unreachable=(Variant(((3,),), {"order": 0}),),
    ),
    *[
        binary(
            op,
            ref.wide(ufunc),
            TRANSCENDENTAL,
            takes=FLOAT,
            first="cc",
            second=("cc", "cc"),
        )
        for op, ufunc in (("hypot", np.hypot), ("atan2", np.arctan2))
    ],
]

# Exponentials


def sum_of_powers(ufunc: np.ufunc) -> Any:
    """Judged as a sum: of the larger exponent and what the smaller adds to it."""

    def reference(x: Array, y: Array) -> Truth:
        value = ufunc(ref.widened(x), ref.widened(y))
        larger = np.maximum(ref.widened(x), ref.widened(y))
        return Truth(value, 4, np.abs(larger) + (value - larger))

    return reference


def wide_xlogy(x: Array, y: Array) -> Array:
    return np.where((x == 0) & ~np.isnan(y), 0, x * np.log(y))


def wide_log1mexp(x: Array) -> Array:
    return np.where(x > -0.7, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


EXPONENTIALS = [
    function("exp2", np.exp2),
    function("log2", np.log2, between(0.2, 3.0)),
    function("log10", np.log10, between(0.2, 3.0)),
    function("cbrt", np.cbrt, SMOOTH, takes=FLOAT),
    function("log1mexp", wide_log1mexp, between(-3.0, -0.2), takes=FLOAT),
    *[
        binary(
            op,
            sum_of_powers(ufunc),
            SUM,
            takes=FLOAT,
            first="cc",
            second=("cc", "cc"),
        )
        for op, ufunc in (("logaddexp", np.logaddexp), ("logaddexp2", np.logaddexp2))
    ],
    binary(
        "xlogy",
        ref.wide(wide_xlogy),
        TRANSCENDENTAL,
        right=Operand(between(0.2, 3.0)),
        takes=FLOAT,
        first="cc",
        second=("0c", "cc"),
    ),
]

# Parts of floats


def neighbour(x: Array, y: Array) -> Array:
    """The next number on the lattice of representable ones, by counting bits."""
    x, y = np.broadcast_arrays(x, y)
    word = np.dtype(f"i{x.dtype.itemsize}")
    lowest = np.iinfo(word).min
    bits = np.ascontiguousarray(x).reshape(x.shape).view(word)
    place = np.where(bits < 0, lowest - bits, bits).astype(word)
    left, right = x.astype(np.float64), y.astype(np.float64)
    place = place + np.where(right > left, 1, -1).astype(word)
    bits = np.where(place < 0, lowest - place, place).astype(word)
    bits = np.where((place == 0) & (left < 0), word.type(lowest), bits)
    moved = np.where(left == right, y, bits.astype(word).view(x.dtype))
    is_nan = np.isnan(left) | np.isnan(right)
    return np.where(is_nan, np.array(np.nan, x.dtype), moved)


def remainder_towards_zero(x: int, y: int) -> int:
    rest = abs(x) % abs(y)
    return -rest if x < 0 else rest


def scaled(x: Array, n: Array) -> Array:
    """x 2ⁿ; beyond 5000 nothing is left of any number, or nothing is left but inf."""
    power = np.longdouble(2) ** np.clip(n, -5000, 5000).astype(np.longdouble)
    return ref.widened(x) * power


def exponent(x: float) -> int:
    return math.frexp(x)[1] if math.isfinite(x) else 0


FLOAT_BITS = [
    binary(
        "copysign",
        ref.elementwise(math.copysign),
        EXACT,
        takes=FLOAT,
        first="c0",
        second=("00",),
    ),
    binary(
        "nextafter",
        neighbour,
        EXACT,
        takes=FLOAT,
        first="c0",
        second=("--",),
    ),
    unary(
        "signbit",
        ref.elementwise(lambda x: math.copysign(1, x) < 0, bool),
        EXACT,
        takes=FLOAT,
        first="-",
    ),
    binary(
        "fmod",
        ref.arithmetic(np.fmod, by_zero(remainder_towards_zero)),
        EXACT,
        left=DIVIDEND,
        right=DIVISOR,
        takes=REAL,
        first="cc",
        second=("--", "00"),
    ),
    unary(
        "exponent",
        ref.elementwise(exponent, np.int32),
        EXACT,
        takes=FLOAT,
        first="-",
    ),
    OpCase(
        "ldexp",
        (Operand(), Operand(own=(np.dtype(np.int32),))),
        variants_of(BINARY_SHAPES),
        scaled,
        EXACT,
        takes=FLOAT,
        first="c-",
        second=("--",),
        refused=variants_of(MISFITS),
    ),
]

CASES = [*TRIGONOMETRY, *EXPONENTIALS, *FLOAT_BITS]
