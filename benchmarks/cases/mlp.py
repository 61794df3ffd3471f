"""A training step of a network of two hidden layers, with plain gradient descent.

784-512-256-10, a batch of 128 float32. Nearly all of the work is eight products of
matrices, 308 million operations. What a package can gain is to do the rest (biases,
relu, cross-entropy, updates) on the way through those products, with both threads busy
in all of them. `mlp_adam` is the same network with Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks import adjoints
from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import cross_entropy
from benchmarks.training import SGD, Rule, training_peers

SIZES, BATCH = (784, 512, 256, 10), 128
RULE = SGD(0.1)


def layers(weights: Sequence[Any], x: Any, bend: Callable[[Any], Any]) -> Any:
    """Dense layers with `bend` between them."""
    for i in range(0, len(weights), 2):
        x = (bend(x) if i else x) @ weights[i] + weights[i + 1]
    return x


def loss(m: Any, weights: Sequence[Any], x: Any, labels: Any) -> Any:
    """The mean cross-entropy of a network with relu."""
    return cross_entropy(m, layers(weights, x, m.nn.relu), labels)


def make_weights(rng: np.random.Generator, sizes: Sequence[int]) -> list[Array]:
    """A matrix that keeps the size of what it maps, and a bias, for each layer."""
    found: list[Array] = []
    for a, b in pairwise(sizes):
        found.append((rng.standard_normal((a, b)) * (2 / a) ** 0.5).astype(np.float32))
        found.append((0.1 * rng.standard_normal(b)).astype(np.float32))
    return found


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Weights, a batch, its labels."""
    x = rng.standard_normal((BATCH, SIZES[0])).astype(np.float32)
    labels = rng.integers(0, SIZES[-1], BATCH)
    return *make_weights(rng, SIZES), x, labels


def first_step(rule: Rule, *arrays: Array) -> Sequence[Array]:
    """The loss, and the weights after a step."""
    *weights, x, labels = adjoints.widened(arrays)
    scores, back = adjoints.network(weights, x, adjoints.relu)
    value, pull = adjoints.cross_entropy(scores, labels)
    pairs = zip(weights, back(pull(np.ones(()))), strict=True)
    return [value, *(rule.first_step(weight, gradient) for weight, gradient in pairs)]


CASES = (
    Case(
        name="mlp",
        description="a step of SGD, 784-512-256-10, batch of 128 float32",
        unit="µs",
        make_inputs=make_inputs,
        reference=lambda *arrays: first_step(RULE, *arrays),
        builders=training_peers(loss, RULE, 6),
        goals=(Leads(1.4),),
        stateful=True,
    ),
)
