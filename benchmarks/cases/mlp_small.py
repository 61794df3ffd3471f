"""A training step so small that what surrounds the arithmetic decides.

16-64-64-1 with tanh, a batch of 32 float32, the mean squared error and plain gradient
descent: under a million multiplications, twenty microseconds of one core. The rest is
the price of a call, of the operations one by one, and of six updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import adjoints
from benchmarks.case import Array, Case, Leads
from benchmarks.cases.mlp import layers, make_weights
from benchmarks.training import SGD, training_peers

SIZES, BATCH = (16, 64, 64, 1), 32
RULE = SGD(0.05)


def loss(m: Any, weights: Sequence[Any], x: Any, y: Any) -> Any:
    """The mean squared error."""
    error = layers(weights, x, m.tanh) - y
    return m.mean(error * error)


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Weights, a batch, and what to answer."""
    x = rng.standard_normal((BATCH, SIZES[0])).astype(np.float32)
    y = rng.standard_normal((BATCH, SIZES[-1])).astype(np.float32)
    return *make_weights(rng, SIZES), x, y


def reference(*arrays: Array) -> Sequence[Array]:
    """The loss, and the weights after a step."""
    *weights, x, y = adjoints.widened(arrays)
    answers, back = adjoints.network(weights, x, adjoints.tanh)
    gradients = back(2 * (answers - y) / BATCH)
    pairs = zip(weights, gradients, strict=True)
    value = np.asarray(np.mean((answers - y) ** 2))
    return [value, *(RULE.first_step(weight, gradient) for weight, gradient in pairs)]


CASES = (
    Case(
        name="mlp_small",
        description="a step of SGD, 16-64-64-1 with tanh, batch of 32 float32",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders=training_peers(loss, RULE, 6),
        goals=(Leads(5.0),),
        stateful=True,
    ),
)
