"""The normal quantile of random words, in exactly rounded steps.

A word of b random bits stands for the midpoint u = (word + 1/2) / 2**b of its
interval, and becomes z = Φ⁻¹(u): float32 from 32 bits (|z| up to 6.33), float64 from
64 bits (|z| up to 9.15). So z increases with the word (to within its error), `~word`
gives exactly -z, and neither zero nor an infinity occurs.

Every step is integer arithmetic or one IEEE operation (+ - * / sqrt) rounded once, in
the order written here; nothing calls a mathematical library and no product is fused
with a sum. Vectorised native code that follows the same order has the same bits.

The data structure is `QuantileTable`, one for each width: the coefficients of three
approximations, which native code reads too. With p = min(u, 1 - u) and q = 1/2 - p,
both converted from integers with one rounding each:

- the centre, p >= 2**-7:  w = -log2(4p(1 - p)),  |z| = 3q + q·C(w)
- the tail:                y = sqrt(-log2(4p)),   |z| = y + T(y)
- -log2(v) = n - s·L(s·s)  with v = m / 2**n and s = (m - 1) / (m + 1)

The leading terms 3q (exact, in two parts) and y carry most of the value, so the
rounding errors of C and T count only by their small share: 3 lies in the middle of the
range of |z| / q, and T is about a tenth of |z|. That keeps the error of float32 below
1.89 ULP (all 2**32 words were tried) and of float64 below 2.5 ULP (sampled) without a
fused multiply-add. The polynomials were fitted in 300-bit arithmetic for the smallest
worst relative error of z, their coefficients rounded one after the other with the rest
fitted again; the bounds beside the tables leave out rounding in evaluation.

Start reading at `normal_quantile`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger[Any]]
Floats = NDArray[np.floating[Any]]

TAIL_LOG2: Final = 7  # the tail begins below p = 2**-7
# A chunk's dozen temporaries then fit the second-level cache: 2-3 times faster.
CHUNK: Final = 1 << 13


class QuantileTable(NamedTuple):
    """Formats and coefficients for one width of word; polynomials lowest power first.

    A denominator of length one is the constant 1: there is nothing to divide by.

    >>> table = TABLES[np.dtype(np.uint32)]
    >>> table.float_type, len(table.centre_numerator), len(table.centre_denominator)
    (dtype('float32'), 9, 1)
    """

    float_type: np.dtype[Any]
    word_type: np.dtype[Any]
    mantissa_bits: int
    # The pattern of the largest float below sqrt(2). Subtracting the pattern of v from
    # it leaves n in the exponent field, with v * 2**n between sqrt(1/2) and sqrt(2).
    log2_split: int
    low_bits: int  # 3 * distance is exact in the float type without these bits
    log2: Floats
    centre_numerator: Floats
    centre_denominator: Floats
    tail_numerator: Floats
    tail_denominator: Floats

    @property
    def word_bits(self) -> int:
        """Width of a word.

        >>> TABLES[np.dtype(np.uint64)].word_bits
        64
        """
        return 8 * self.word_type.itemsize


def _coefficients(dtype: type[np.floating[Any]], *values: float) -> Floats:
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


def _float32_table() -> QuantileTable:
    f32 = np.float32
    return QuantileTable(
        float_type=np.dtype(f32),
        word_type=np.dtype(np.uint32),
        mantissa_bits=23,
        log2_split=0x3FB504F3,
        low_bits=10,
        # absolute error of log2 below 2**-30
        log2=_coefficients(f32, 2.88539, 0.96180934, 0.5759774, 0.44635725),
        # relative error of z below 2**-27.9 on 0 <= w <= 5.0114
        centre_numerator=_coefficients(
            f32,
            -0.49337173,
            0.45486677,
            0.01569348,
            -0.0021969976,
            -8.594036e-05,
            2.2134336e-05,
            4.7510812e-07,
            -2.598253e-07,
            1.3771731e-08,
        ),
        centre_denominator=_coefficients(f32, 1.0),
        # relative error of z below 2**-26.7 on 5 <= y*y <= 31
        tail_numerator=_coefficients(
            f32, 0.66348094, -0.46077165, 0.025059171, 0.109229326
        ),
        tail_denominator=_coefficients(f32, 1.0, 0.64152646, 0.5911302, 0.0006985405),
    )


def _float64_table() -> QuantileTable:
    f64 = np.float64
    return QuantileTable(
        float_type=np.dtype(f64),
        word_type=np.dtype(np.uint64),
        mantissa_bits=52,
        log2_split=0x3FF6A09E667F3BCC,
        low_bits=13,
        # absolute error of log2 below 2**-60.9
        log2=_coefficients(
            f64,
            2.8853900817779268,
            0.9617966939260396,
            0.5770780163265073,
            0.4121985890187622,
            0.3205982632518142,
            0.2623467542199619,
            0.220625438145782,
            0.2163223080815677,
        ),
        # relative error of z below 2**-55.7 on 0 <= w <= 5.0114
        centre_numerator=_coefficients(
            f64,
            -0.49337172536899954,
            0.4180179185210545,
            0.037539457965505126,
            0.00951712663905622,
            0.0006401185371104296,
            5.708884996623842e-05,
            2.1710636378453744e-06,
            6.141380983901407e-08,
        ),
        centre_denominator=_coefficients(
            f64,
            1.0,
            0.07468740427832966,
            0.024581973462773618,
            0.0012912615579045092,
            0.00017261700175679782,
            5.020217614976734e-06,
            2.747753281255949e-07,
            9.063731630005658e-10,
        ),
        # relative error of z below 2**-54.2 on 5 <= y*y <= 63
        tail_numerator=_coefficients(
            f64,
            0.6669557004794794,
            0.05938160653079666,
            0.19770061641364442,
            -0.07243719293623131,
            -0.016992935093839187,
            0.10238294199307181,
            0.02284545333254746,
            0.0009659383465259982,
        ),
        tail_denominator=_coefficients(
            f64,
            1.0,
            1.5026112221404215,
            1.9049395347757385,
            1.1715160793074861,
            0.6767013397824121,
            0.12928686171211007,
            0.005440013570665166,
            3.087071409660618e-08,
        ),
    )


TABLES: Final[dict[np.dtype[Any], QuantileTable]] = {
    table.word_type: table for table in (_float32_table(), _float64_table())
}


def normal_quantile(words: Words) -> Floats:
    """Φ⁻¹((word + 1/2) / 2**bits) of every word: float32 of uint32, float64 of uint64.

    >>> words = np.array([0, 1 << 30, 3 << 30, 0xFFFFFFFF], np.uint32)
    >>> normal_quantile(words)
    array([-6.3379574 , -0.67448974,  0.67448974,  6.3379574 ], dtype=float32)
    """
    table = TABLES.get(words.dtype)
    if table is None:
        raise TypeError(
            f"normal_quantile takes words of uint32 or uint64, not {words.dtype}"
        )
    flat = words.reshape(-1)
    out = np.empty(flat.shape, table.float_type)
    for start in range(0, flat.size, CHUNK):
        chunk = slice(start, start + CHUNK)
        out[chunk] = _quantile_of_chunk(flat[chunk], table)
    return out.reshape(words.shape)


def _quantile_of_chunk(words: Words, table: QuantileTable) -> NDArray[Any]:
    bits, dtype = table.word_bits, table.float_type
    unit = dtype.type(2.0 ** -(bits + 1))
    is_negative = words < (1 << (bits - 1))
    upper = np.where(is_negative, ~words, words)
    # Odd integers below 2**bits whose sum is 2**bits: q and p in units of 2**-(bits+1).
    distance = (upper << 1) | 1
    remainder = -distance

    p = remainder.astype(dtype) * unit
    w = negative_log2(p * (4 - 4 * p), table)
    ratio = _quotient(table.centre_numerator, table.centre_denominator, w)
    low = distance & ((1 << table.low_bits) - 1)
    high = distance - low
    q = distance.astype(dtype) * unit
    three = 3 * unit
    small = low.astype(dtype) * three + q * ratio
    z: NDArray[Any] = high.astype(dtype) * three + small

    (tail,) = np.nonzero(remainder < (1 << (bits + 1 - TAIL_LOG2)))
    if tail.size:
        y = np.sqrt(negative_log2(4 * p[tail], table))
        z[tail] = y + _quotient(table.tail_numerator, table.tail_denominator, y)
    np.negative(z, out=z, where=is_negative)
    return z


def negative_log2(values: NDArray[Any], table: QuantileTable) -> NDArray[Any]:
    """-log2 of floats in (0, 1], with the absolute accuracy the quantile needs.

    >>> negative_log2(np.array([0.125, 1.0]), TABLES[np.dtype(np.uint64)])
    array([3., 0.])
    """
    pattern = values.view(table.word_type)
    # The product 4p(1 - p) may round to one step above 1; n is then still 0.
    n = (table.log2_split - pattern) >> table.mantissa_bits
    m = (pattern + (n << table.mantissa_bits)).view(table.float_type)
    s = (m - 1) / (m + 1)
    # n < 64 converts exactly; from a signed type it is a vector instruction.
    whole = n.view(f"i{table.word_type.itemsize}").astype(table.float_type)
    fraction = s * _polynomial(table.log2, s * s)
    np.subtract(whole, fraction, out=whole)
    return whole


def _polynomial(coefficients: Floats, x: Floats) -> Floats:
    """Horner's scheme, each product and each sum rounded."""
    out = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        out *= x
        out += coefficient
    return out


def _quotient(numerator: Floats, denominator: Floats, x: Floats) -> Floats:
    out = _polynomial(numerator, x)
    return out if len(denominator) == 1 else out / _polynomial(denominator, x)
