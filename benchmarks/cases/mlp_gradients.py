"""A network of one hidden layer: the loss of a batch of 512, and all its gradients.

Two products of matrices forward, three backward, in float32, with a bias, a relu and a
cross-entropy between them. Products are most of the work; what is compared is also the
rest, and how little of it a package lets memory see. `cold` and `warm_start` run it
too, as the program with matrices and threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

BATCH, INPUTS, HIDDEN, CLASSES = 512, 256, 512, 10


def objective(m: Any, w1: Any, b1: Any, w2: Any, b2: Any, x: Any, y: Any) -> Any:
    """The mean cross-entropy with labels given as rows of zeros and a one."""
    scores = m.nn.relu(x @ w1 + b1) @ w2 + b2
    return m.mean(m.logsumexp(scores, axis=1) - m.sum(scores * y, axis=1))


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Weights that keep the size of what they map."""
    labels = np.eye(CLASSES)[rng.integers(0, CLASSES, BATCH)]
    arrays = (
        rng.standard_normal((INPUTS, HIDDEN)) * (2 / INPUTS) ** 0.5,
        0.1 * rng.standard_normal(HIDDEN),
        rng.standard_normal((HIDDEN, CLASSES)) * (1 / HIDDEN) ** 0.5,
        0.1 * rng.standard_normal(CLASSES),
        rng.standard_normal((BATCH, INPUTS)),
        labels,
    )
    w1, b1, w2, b2, x, y = (array.astype(np.float32) for array in arrays)
    return w1, b1, w2, b2, x, y


def reference(
    w1: Array, b1: Array, w2: Array, b2: Array, x: Array, y: Array
) -> Sequence[Array]:
    """The adjoint by hand."""
    w1, b1, w2, b2, x, y = (a.astype(np.float64) for a in (w1, b1, w2, b2, x, y))
    before = x @ w1 + b1
    hidden = np.maximum(before, 0)
    scores = hidden @ w2 + b2
    evidence = np.logaddexp.reduce(scores, axis=1)
    by_scores = (np.exp(scores - evidence[:, None]) - y) / BATCH
    by_before = by_scores @ w2.T * (before > 0)
    return [
        np.asarray(np.mean(evidence - np.sum(scores * y, axis=1))),
        x.T @ by_before,
        by_before.sum(axis=0),
        hidden.T @ by_scores,
        by_scores.sum(axis=0),
    ]


CASES = (
    Case(
        name="mlp_gradients",
        description="one hidden layer, batch of 512 float32: value, 4 gradients",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(objective, wrt=(0, 1, 2, 3)),
        goals=(Leads(1.0, promised=False),),
    ),
)
