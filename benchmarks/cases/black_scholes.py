"""A million European calls: the sum of their prices, its gradients by spot and by vol.

Everything is elementwise but the sum, so a compiler can do it in one pass over memory:
four float32 read and two written per option. The right answer needs no differentiation:
the derivative of a price by spot is N(d1), by volatility the vega s √t φ(d1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

COUNT = 1_000_000
RATE = 0.02


def objective(m: Any, s: Any, k: Any, t: Any, v: Any) -> Any:
    """The sum of the prices: spot, strike, time, volatility."""

    def cdf(z: Any) -> Any:
        return 0.5 * (1 + m.erf(z * 0.7071067811865476))

    spread = v * m.sqrt(t)
    d1 = (m.log(s / k) + (RATE + 0.5 * v * v) * t) / spread
    return m.sum(s * cdf(d1) - k * m.exp(-RATE * t) * cdf(d1 - spread))


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Near the money, half a year to a year and a half."""
    bounds = ((80, 120), (90, 110), (0.5, 1.5), (0.1, 0.5))
    s, k, t, v = (rng.uniform(*b, size=COUNT).astype(np.float32) for b in bounds)
    return s, k, t, v


def reference(s: Array, k: Array, t: Array, v: Array) -> Sequence[Array]:
    """Price, delta and vega in closed form."""
    from scipy.special import ndtr

    s, k, t, v = (x.astype(np.float64) for x in (s, k, t, v))
    spread = v * np.sqrt(t)
    d1 = (np.log(s / k) + (RATE + 0.5 * v * v) * t) / spread
    prices = s * ndtr(d1) - k * np.exp(-RATE * t) * ndtr(d1 - spread)
    vega = s * np.sqrt(t) * np.exp(-0.5 * d1 * d1) / np.sqrt(2 * np.pi)
    return [np.asarray(prices.sum()), ndtr(d1), vega]


CASES = (
    Case(
        name="black_scholes",
        description="a million options, float32: value, gradients by spot and vol",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(objective, wrt=(0, 3)),
        goals=(Leads(2.0),),
    ),
)
