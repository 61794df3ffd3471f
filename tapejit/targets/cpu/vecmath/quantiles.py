"""The inverse error function and the quantiles of the normal distribution.

With x = 2p - 1 and w = -log(1 - x²) = -log(4p (1 - p)), the quantile of p is x times a
function of w that hardly varies, as long as w is small (Giles' idea), and beyond √w
times a function of 1/√w. 4p (1 - p) keeps its digits at both ends, so do both forms.

In double the far form would be long: it is short, right to 20 bits, and one step of
Newton's on log Φ follows. There log Φ is nearly a parabola, so the step, with the
curvature's term, gives all the digits.

Start reading at `ndtri`.
"""

from __future__ import annotations

from tapejit.targets.cpu.simd.vector import Builder, Vector
from tapejit.targets.cpu.vecmath.entropies import log_words
from tapejit.targets.cpu.vecmath.error_functions import erfcx_pair
from tapejit.targets.cpu.vecmath.exponentials import expm1_parts, scaled
from tapejit.targets.cpu.vecmath.logarithms import split_any
from tapejit.targets.cpu.vecmath.numbers import INFINITY, NAN, table_of
from tapejit.targets.cpu.vecmath.pairs import (
    Pair,
    choose,
    fast_two_sum,
    multiply,
    square_root,
    times,
    two_product,
    two_sum,
)


def ndtri(b: Builder, p: Vector) -> Vector:
    """The number below which a normal variable is with probability p.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(ndtri, 0.975)
    1.9599639845400538
    """
    is_left = p < 0.5
    nearer = b.select(is_left, p, 1 - p)  # exact
    away = two_sum(1.0, -2 * nearer)
    found = quantile(b, nearer, away).total()
    found = b.select(is_left, -found, found)
    limit = b.select(p.eq(0.0), -INFINITY, b.select(p.eq(1.0), INFINITY, NAN))
    return b.select((p > 0) & (p < 1), found, limit)


def erfinv(b: Builder, x: Vector) -> Vector:
    """The y with erf y = x.

    >>> from tapejit.targets.cpu.machine.host import value_of
    >>> value_of(erfinv, 0.5)
    0.4769362762044699
    """
    magnitude = b.abs(x)
    nearer = 0.5 - 0.5 * magnitude  # exact where it is used alone
    found = quantile(b, nearer, Pair(magnitude, b.constant(0.0)))
    half = [0.5 * word for word in table_of(b).root_two]
    value = times(b, found, tuple(half)).total()
    limit = b.select(magnitude.eq(1.0), INFINITY, NAN)
    signed = b.copysign(b.select(magnitude < 1, value, limit), x)
    return signed + 0.0  # SciPy's of -0 is 0


def quantile(b: Builder, p: Vector, x: Pair) -> Pair:
    """The quantile of 1 - p, for p <= 1/2 and x = 1 - 2p."""
    table = table_of(b)
    # 4p (1 - p), of which the logarithm is all that is wanted
    rest = two_sum(1.0, -p)
    product = two_product(b, p, rest.high)
    k, m = split_any(b, product.high)
    w = log_words(b, k + 2, m - 1)
    w = Pair(-w.high, -w.low)

    first, *others = table.ndtri
    inner = w.high * b.polynomial(w.high, others)
    ratio = fast_two_sum(first, inner)
    ratio = Pair(ratio.high, ratio.low + table.ndtri_low[0])
    central = multiply(b, x, ratio)

    is_far = w.high > table.ndtri_middle
    root = square_root(b, choose(b, is_far, w, Pair(b.constant(1.0), 0.0 * w.high)))
    factor, offset = table.ndtri_map
    u = factor / root.high + offset
    first, *others = table.ndtri_tail
    ratio = fast_two_sum(first, u * b.polynomial(u, others))
    far = multiply(b, root, ratio)
    if b.format.bits == 64:
        far = improved(b, far.total(), p)
    return choose(b, is_far, far, central)


def improved(b: Builder, y: Vector, p: Vector) -> Pair:
    """A better y > 0 with Φ(-y) = p, from one with some 20 bits."""
    factor = erfcx_pair(b, y, is_normal=True)
    square = two_product(b, y, -0.5 * y)
    k, q = expm1_parts(b, square.high, square.low)
    tail = multiply(b, fast_two_sum(1.0, q), factor)  # 2 Φ(-y) / 2^k
    excess = ((scaled(b, p, 1 - k) - tail.high) - tail.low) / tail.high
    # log(1 + excess), and the ratio of Mills, Φ(-y) / φ(y)
    series = b.polynomial(excess, [1.0, -1 / 2, 1 / 3, -1 / 4, 1 / 5, -1 / 6])
    mills = factor.high * (1 / table_of(b).root_two_over_pi[0])
    step = -mills * (excess * series)
    bend = 1 / mills - y
    return Pair(y, b.fma(-0.5 * bend * step, step, step))
