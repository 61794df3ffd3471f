"""Cases of the gamma, beta and Poisson numbers that words become.

The references are loops over single words in Python's numbers: the method of Marsaglia
and Tsang as its paper has it, and a distribution function added up term by term.

Start reading at `CASES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from agreement import EXACT, SUM, Truth
from scipy import special

from op_cases.case import FLOAT, Array, OpCase, Operand, Variant, between
from tapejit.ops import philox
from tapejit.ops.quantile import normal_quantile

U64 = np.dtype("uint64")
# The range begins below 0 so that edges are tried instead of every word.
WORDS = Operand(integers=(-1, 2**64), own=(U64,))
PARAMETER = Operand(between(0.3, 4.0))


def pair(word: int, index: int) -> tuple[int, int]:
    """The pair at `index` of a word's stream, as two numbers of 64 bits."""
    low, high = philox.PROPOSING
    key = np.array([word & 0xFFFFFFFF ^ low, word >> 32 ^ high], np.uint32)
    counter = np.array([index, 0, 0, 0], np.uint32)
    first, second, third, fourth = map(int, philox.philox4x32(key, counter, 1)[0])
    return first + (second << 32), third + (fourth << 32)


def log_uniform(word: int) -> float:
    return math.log(((word >> 12) * 2 + 1) / 2**53)


def log_gamma_number(word: int, shape: float) -> tuple[float, float]:
    """A gamma number as its logarithm, and the size of the logarithms added."""
    power = 0.0
    if shape < 1:
        power = log_uniform(pair(word, 0)[0]) / shape
    d = (shape + 1 if shape < 1 else shape) - 1 / 3
    for index in range(1, 1000):
        first, second = pair(word, index)
        x = float(normal_quantile(np.array([first], U64))[0])
        v = (1 + x / math.sqrt(9 * d)) ** 3
        if v <= 0:
            continue
        if log_uniform(second) < x * x / 2 + d * (1 - v + math.log(v)):
            return math.log(d * v) + power, 1 + abs(power) + abs(math.log(d * v))
    raise AssertionError("no proposal was accepted")


def each(function: Callable[..., tuple[float, float]]) -> Callable[..., Truth]:
    """A function of one word and its parameters, for all of them."""

    def reference(*arrays: Array) -> Truth:
        words, *parameters = np.broadcast_arrays(*arrays)
        value, scale = np.empty(words.shape), np.empty(words.shape)
        for at in np.ndindex(words.shape):
            numbers = [float(x[at]) for x in parameters]
            value[at], scale[at] = function(int(words[at]), *numbers)
        return Truth(value, 16, scale)

    return reference


def gamma(word: int, shape: float) -> tuple[float, float]:
    if not shape > 0:
        return (0.0 if shape == 0 else math.nan), 0.0
    if shape == math.inf:
        return math.inf, 0.0
    log, size = log_gamma_number(word, shape)
    value = math.exp(log) if log < 709 else shape
    return value, value * min(size, 1e300)


def beta(word: int, a: float, b: float) -> tuple[float, float]:
    if not (0 < a < 1e300 and 0 < b < 1e300):  # they would overflow
        return math.nan, 0.0
    left, first = log_gamma_number(word, a)
    right, second = log_gamma_number(~word % 2**64, b)
    gap = right - left
    value = 1 / (1 + math.exp(gap)) if gap < 709 else math.exp(-min(gap, 800))
    return value, value * min(first + second, 1e300)


def poisson(words: Array, rate: Array) -> Array:
    """The first k with Σ e^-rate rate^i / i! above the word's place in [0, 1)."""
    out = np.empty(np.broadcast_shapes(words.shape, rate.shape), np.int64)
    words, rate = np.broadcast_arrays(words, rate)
    for at in np.ndindex(out.shape):
        mean, word = np.longdouble(rate[at]), int(words[at])
        if not 0 <= mean < 2**62:
            out[at] = -1
        elif mean > 1e4:
            z = np.longdouble(normal_quantile(np.array([word], U64))[0])
            guess = mean + np.sqrt(mean) * z + (z * z - 1) / 6
            out[at] = int(np.floor(guess + np.longdouble(0.5)))
        else:
            out[at] = first_above(mean, word)
    return out


def first_above(mean: Any, word: int) -> int:
    terms = [np.exp(-mean)]
    for k in range(1, 300):
        terms.append(terms[-1] * mean / k)
    if word < 2**63:
        goal, total = (np.longdouble(word) + 0.5) / 2**64, np.longdouble(0)
        for k, term in enumerate(terms):
            total += term
            if total >= goal:
                return k
    rest = (np.longdouble(2**64 - 1 - word) + 0.5) / np.longdouble(2**64)
    above = np.longdouble(0)
    for k in range(len(terms) - 1, 0, -1):
        if above + terms[k] > rest:
            return k
        above += terms[k]
    return 0


def gamma_transport(a: Array, start: Array, z: Array) -> Array:
    wide = [x.astype(np.float64) for x in (a, start, z)]
    a, start, z = np.broadcast_arrays(*wide)
    below, above = special.gammainc(start, z), special.gammaincc(start, z)
    lower, upper = special.gammaincinv(a, below), special.gammainccinv(a, above)
    return np.where(a == start, z, np.where(below < above, lower, upper))


def beta_transport(*arrays: Array) -> Array:
    a, b, a0, b0, z = np.broadcast_arrays(*[x.astype(np.float64) for x in arrays])
    below, above = special.betainc(a0, b0, z), special.betaincc(a0, b0, z)
    lower = special.betaincinv(a, b, below)
    upper = special.betainccinv(a, b, above)
    is_there = (a == a0) & (b == b0)
    return np.where(is_there, z, np.where(below < above, lower, upper))


def sampling(
    op: str, shapes: list[Any], reference: Any, agreement: str, misfit: Any
) -> OpCase:
    return OpCase(
        op,
        (WORDS, PARAMETER),
        tuple(map(Variant, shapes)),
        reference,
        agreement,
        takes=FLOAT,
        first="-",
        refused=(Variant(misfit),),
    )


ONE: list[Any] = [((3, 4), (4,)), ((), ()), ((0, 3), (3,))]
TWO: list[Any] = [((3, 4), (4,), (3, 1)), ((), (), ()), ((0, 3), (3,), ())]
FIVE: list[Any] = [((3, 1), (), (4,), (4,), (3, 4)), ((0, 3), (3,), (), (), ())]

CASES = [
    sampling("bits_to_gamma", ONE, each(gamma), SUM, ((3,), (4,))),
    sampling("bits_to_beta", TWO, each(beta), SUM, ((3,), (4,), (3,))),
    sampling("bits_to_poisson", ONE, poisson, EXACT, ((3,), (4,))),
    OpCase(
        "gamma_transport",
        (Operand(between(0.8, 3.0)), Operand(between(0.8, 3.0)), PARAMETER),
        (Variant(((3, 1), (4,), (3, 4))), Variant(((0, 3), (3,), ()))),
        gamma_transport,
        EXACT,
        takes=FLOAT,
        first="ccc",
        second=("ccc", "ccc", "ccc"),
        refused=(Variant(((3,), (4,), (3,))),),
    ),
    OpCase(
        "beta_transport",
        (*[Operand(between(0.8, 3.0))] * 4, Operand(between(0.2, 0.7))),
        tuple(map(Variant, FIVE)),
        beta_transport,
        EXACT,
        takes=FLOAT,
        first="ccccc",
        second=("ccccc",) * 5,
        unbatched=(1, 3),  # they could be: this spares the tests 48 combinations
        refused=(Variant(((3,), (4,), (3,), (), ())),),
    ),
]
