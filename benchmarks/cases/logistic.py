"""Logistic regression: the mean loss over 10,000 rows of 50 and its gradient.

Two products of a matrix with a vector and a cheap function between them, 2 MB of
float32 in all: the whole case fits the caches of one core, and a gradient that reads
the matrix twice has done twice the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

ROWS, FEATURES = 10_000, 50


def objective(m: Any, w: Any, x: Any, y: Any) -> Any:
    """The mean of log(1 + exp(z)) - y z, without overflow."""
    z = x @ w
    return m.mean(m.nn.softplus(z) - y * z)


def objective_in_tensorflow(m: Any, w: Any, x: Any, y: Any) -> Any:
    """The same; TensorFlow's `@` is for matrices only, its matvec has a name."""
    import tensorflow as tf

    z = tf.linalg.matvec(x, w)
    return m.mean(m.nn.softplus(z) - y * z)


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Labels that a hidden vector of weights predicts, with noise."""
    x = rng.standard_normal((ROWS, FEATURES))
    noisy = x @ rng.standard_normal(FEATURES) + rng.standard_normal(ROWS)
    w = 0.1 * rng.standard_normal(FEATURES)
    return w.astype(np.float32), x.astype(np.float32), (noisy > 0).astype(np.float32)


def reference(w: Array, x: Array, y: Array) -> Sequence[Array]:
    """The gradient is the mean of (sigmoid(z) - y) x."""
    w, x, y = (part.astype(np.float64) for part in (w, x, y))
    z = x @ w
    value = np.mean(np.logaddexp(0, z) - y * z)
    return [np.asarray(value), (1 / (1 + np.exp(-z)) - y) @ x / ROWS]


CASES = (
    Case(
        name="logistic",
        description="logistic regression, 10,000 x 50 float32: value and gradient",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(
            objective, wrt=(0,), own={"tensorflow": objective_in_tensorflow}
        ),
        goals=(Leads(2.0),),
    ),
)
