"""Random words as numbers of the gamma, beta and Poisson distributions.

Gamma numbers are made by rejection: of each word's own stream (`philox.further_words`)
pairs are taken until one is accepted, after the method of Marsaglia and Tsang (2000).
Whether it is accepted is decided with exactly rounded operations and the logarithm of
`quantile.py`, so that it is the same everywhere; what follows is rounded to a few
ULP. A beta number is made of two gamma numbers. A Poisson number is the inverse of
its distribution function.

Rejection has no derivative by the parameters. `gamma_transport(a, a0, z)` has: it is
the number that has as much of the distribution of shape `a` below it as `z` has of that
of shape `a0`. With a0 = a it is z itself, and its derivative by `a` is how a gamma
number moves with its parameter, the implicit reparametrisation of Figurnov et al.
(2018). `beta_transport` is the same for the beta distribution.

Start reading at `gamma_numbers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapejit.base.errors import ArgumentTypeError
from tapejit.base.types import DType, TensorType, Type
from tapejit.ir.node import Node, Op, Rule, record
from tapejit.ops import philox
from tapejit.ops.arithmetic import cast_eval
from tapejit.ops.elementwise import batch_elementwise, check_kind, elementwise
from tapejit.ops.quantile import TABLES, negative_log2, normal_quantile
from tapejit.ops.random import words_type
from tapejit.ops.shapes import broadcast_shapes, same_dtype, tensor
from tapejit.ops.special import (
    beta_density,
    betainc_slope,
    gamma_density,
    gammainc_slope,
    rounded_once,
)

Doubles = NDArray[np.float64]
Words = NDArray[np.uint64]

TABLE: Final = TABLES[np.dtype(np.uint64)]
LN2: Final = math.log(2)
INT64: Final = np.dtype("int64")
LARGEST: Final = 1e300  # sums of gamma numbers of larger parameters overflow
CHUNK: Final = 1 << 13  # the arrays of one chunk fit the second-level cache


# Gamma


def gamma_numbers(words: Words, shape: Doubles) -> tuple[Doubles, Doubles]:
    """Gamma numbers as pairs (g, e), which stand for g · exp(e).

    Below shape 1 a number is one of shape + 1 times uniform^(1/shape), a power that may
    be too small for a float; otherwise e is 0.

    >>> g, e = gamma_numbers(np.array([5], np.uint64), np.array([2.0]))
    >>> g.shape, float(e[0])
    ((1,), 0.0)
    """
    is_small = shape < 1
    g = np.full(words.shape, np.nan)
    d = np.where(is_small, shape + 1, shape) - 1 / 3
    c = 1 / np.sqrt(9 * d)
    pending = np.flatnonzero((shape > 0) & np.isfinite(shape))
    index = 1  # the first pair is for the power
    while pending.size:
        found, is_accepted = _propose(words[pending], d[pending], c[pending], index)
        g[pending[is_accepted]] = found[is_accepted]
        pending = pending[~is_accepted]
        index += 1
    g = np.where(shape == 0, 0.0, np.where(np.isposinf(shape), np.inf, g))
    exponent = np.zeros(words.shape)
    (small,) = np.nonzero(is_small & (shape > 0))
    if small.size:
        uniform = _open_uniform(philox.further_words(words[small], 0)[0])
        exponent[small] = -negative_log2(uniform, TABLE) * LN2 / shape[small]
    return g, exponent


def _propose(words: Words, d: Doubles, c: Doubles, index: int) -> tuple[Any, Any]:
    """d (1 + c·normal)³, and whether to take it."""
    first, second = philox.further_words(words, index)
    normal = normal_quantile(first)
    y = c * normal
    root = 1 + y
    v = root * root * root
    positive = np.where(v > 0, v, 1.0)
    mantissa, power = np.frexp(positive)
    log_v = (power - negative_log2(mantissa, TABLE)) * LN2
    margin = 0.5 * normal * normal + d * (1 - positive + log_v)
    # For a large shape the terms cancel; this is what remains of them.
    y4 = y * y * y * y
    series = -d * y4 * (0.75 - y * (0.6 - y * (0.5 - y * (3 / 7))))
    margin = np.where(np.abs(y) < 0.01, series, margin)
    threshold = -negative_log2(_open_uniform(second), TABLE) * LN2
    return d * v, (v > 0) & (threshold < margin)


def _open_uniform(words: Words) -> Doubles:
    """Odd multiples of 2**-53: neither 0 nor 1, and exact."""
    odd = (words >> 12 << 1 | 1).view(np.int64)
    return odd.astype(np.float64) * 2.0**-53


def gamma_of(words: Words, shape: Doubles) -> Doubles:
    g, exponent = gamma_numbers(words, shape)
    return np.where(exponent == 0, g, g * np.exp(exponent))


def beta_of(words: Words, a: Doubles, b: Doubles) -> Doubles:
    """g₁ / (g₁ + g₂), where powers enter as a difference of exponents."""
    left, low = gamma_numbers(words, a)
    # The second number has a stream of its own, named by the complement.
    right, high = gamma_numbers(~words, b)
    is_defined = (a > 0) & (b > 0) & (np.maximum(a, b) < LARGEST)
    return np.where(is_defined, left / (left + right * np.exp(high - low)), np.nan)


# Poisson

# From here on the expansion is right to 1e-9 of a step, and its inverse slow to check.
HUGE: Final = 2.0**30
TOO_LARGE: Final = 2.0**62


def poisson_of(words: Words, rate: Doubles) -> Doubles:
    """The least k with enough of the distribution at or below it; -1 for no rate."""
    is_rate = (rate >= 0) & (rate < TOO_LARGE)
    mean = np.where(is_rate, rate, 0.0)
    z = normal_quantile(words)
    width = np.sqrt(mean)
    guess = mean + width * z + (z * z - 1) / 6
    guess = guess + (z - z * z * z) / np.maximum(72 * width, 72.0)
    k = np.maximum(np.floor(guess + 0.5), 0.0)
    (near,) = np.nonzero((mean > 0) & (mean < HUGE))
    k[near] = _corrected(words[near], mean[near], k[near])
    out = np.where(mean == 0, 0.0, k)
    return np.where(is_rate, out, -1.0)


def _corrected(words: Words, mean: Doubles, k: Doubles) -> Doubles:
    """A guess moved up or down to the inverse of the distribution function."""
    from scipy.special import gammainc, gammaincc

    # In the upper half it is the other tail that has digits.
    is_upper = words >= np.uint64(1 << 63)
    rest = np.where(is_upper, ~words, words).astype(np.float64)
    tail = (rest + 0.5) * 2.0**-64

    def is_enough(at: Any, k: Doubles) -> Any:
        below = gammaincc(k + 1, mean[at]) >= tail[at]
        above = gammainc(k + 1, mean[at]) <= tail[at]
        return np.where(is_upper[at], above, below)

    k = k.copy()
    pending = np.flatnonzero(~is_enough(slice(None), k))
    rising = np.zeros(len(k), bool)
    rising[pending] = True
    while pending.size:
        k[pending] += 1
        pending = pending[~is_enough(pending, k[pending])]
    pending = np.flatnonzero(~rising & (k > 0))
    while pending.size:
        pending = pending[is_enough(pending, k[pending] - 1)]
        k[pending] -= 1
        pending = pending[k[pending] > 0]
    return k


# The records


def sampled(name: str, function: Rule, arity: int, result: DType | None = None) -> Op:
    """A record that makes numbers of words and of `arity` parameters."""

    def type_rule(words: Type, *parameters: Type) -> TensorType:
        if len(parameters) != arity:
            raise ArgumentTypeError(f"takes {arity} parameters, got {len(parameters)}")
        drawn = words_type(words, 64, "such random numbers are")
        tensors = [tensor(x) for x in parameters]
        dtype = same_dtype(*tensors)
        check_kind(dtype, ("float",))
        return TensorType(result or dtype, broadcast_shapes(drawn, *tensors))

    def evaluate(words: Any, *parameters: Any) -> Any:
        wide = [x.astype(np.float64) for x in parameters]
        arrays = np.broadcast_arrays(words, *wide)
        flat = [x.reshape(-1) for x in arrays]
        out = np.empty(flat[0].size)
        for start in range(0, out.size, CHUNK):
            rows = slice(start, start + CHUNK)
            out[rows] = function(*[x[rows] for x in flat])
        dtype = result or parameters[0].dtype
        return cast_eval(out.reshape(arrays[0].shape), dtype=dtype)

    return record(
        name,
        type_rule=type_rule,
        eval=evaluate,
        batch=batch_elementwise(name),
        differentiable=False,
    )


bits_to_gamma = sampled("bits_to_gamma", gamma_of, 1)
bits_to_beta = sampled("bits_to_beta", beta_of, 2)
bits_to_poisson = sampled("bits_to_poisson", poisson_of, 1, INT64)


def gamma_transport_of(a: Any, start: Any, z: Any) -> Any:
    """The quantile of `a` at the probability of z; z itself if the shapes agree."""
    a, start, z = np.broadcast_arrays(a, start, z)
    is_moved = a != start
    if not np.any(is_moved):
        return z
    from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

    below, above = gammainc(start, z), gammaincc(start, z)
    moved = np.where(
        below < above,
        gammaincinv(a, np.where(below < above, below, 0.5)),
        gammainccinv(a, np.where(below < above, 0.5, above)),
    )
    return np.where(is_moved, moved, z)


gamma_transport = elementwise(
    "gamma_transport",
    eval=rounded_once(gamma_transport_of),
    deriv=(
        lambda t, a, start, z, out: (
            -t * gammainc_slope(a, out, order=1) / gamma_density(a, out)
        ),
        lambda t, a, start, z, out: (
            t * gammainc_slope(start, z, order=1) / gamma_density(a, out)
        ),
        lambda t, a, start, z, out: (
            t * (gamma_density(start, z) / gamma_density(a, out))
        ),
    ),
    scalar=lambda m, a, start, z: m.gamma_transport(a, start, z),
    kinds=("float",),
)


def beta_transport_of(a: Any, b: Any, a0: Any, b0: Any, z: Any) -> Any:
    """The quantile of (a, b) at the probability that z has for (a0, b0)."""
    a, b, a0, b0, z = np.broadcast_arrays(a, b, a0, b0, z)
    is_moved = (a != a0) | (b != b0)
    if not np.any(is_moved):
        return z
    from scipy.special import betainc, betaincc, betainccinv, betaincinv

    below, above = betainc(a0, b0, z), betaincc(a0, b0, z)
    moved = np.where(
        below < above,
        betaincinv(a, b, np.where(below < above, below, 0.5)),
        betainccinv(a, b, np.where(below < above, 0.5, above)),
    )
    return np.where(is_moved, moved, z)


def beta_transport_deriv(at: int) -> Rule:
    """How the quantile moves with operand `at`."""

    def rule(t: Node, *inputs: Node) -> Node:
        a, b, a0, b0, z, out = inputs
        density = beta_density(a, b, out)
        if at == 4:
            return t * (beta_density(a0, b0, z) / density)
        orders = (1, 0) if at % 2 == 0 else (0, 1)
        if at < 2:
            return -t * betainc_slope(a, b, out, orders=orders) / density
        return t * betainc_slope(a0, b0, z, orders=orders) / density

    return rule


BETA_TRANSPORT_DERIVS: Final[Sequence[Rule]] = [
    beta_transport_deriv(i) for i in range(5)
]

beta_transport = elementwise(
    "beta_transport",
    eval=rounded_once(beta_transport_of),
    deriv=BETA_TRANSPORT_DERIVS,
    scalar=lambda m, a, b, a0, b0, z: m.beta_transport(a, b, a0, b0, z),
    kinds=("float",),
)
