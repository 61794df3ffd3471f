"""Cross-entropy of 4,096 rows of 1,000 scores with integer labels, and its gradient.

Each package is called by the function it has for that. The scores are 16 MB and so is
the gradient: the least a program can do is read one and write the other, and each
further pass over them shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

ROWS, CLASSES = 4096, 1000


def objective(tj: Any, scores: Any, labels: Any) -> Any:
    """tapejit's mean over the rows."""
    return tj.nn.sparse_softmax_cross_entropy(scores, labels)


def objective_in_jax(m: Any, scores: Any, labels: Any) -> Any:
    """JAX has no loss of its own; this is what its users write."""
    picked = m.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    return m.mean(m.logsumexp(scores, axis=1) - picked)


def objective_in_torch(m: Any, scores: Any, labels: Any) -> Any:
    """Torch's mean over the rows."""
    return m.nn.cross_entropy(scores, labels)


def objective_in_tensorflow(m: Any, scores: Any, labels: Any) -> Any:
    """TensorFlow's loss per row, averaged."""
    return m.mean(m.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Normal scores."""
    scores = rng.standard_normal((ROWS, CLASSES)).astype(np.float32)
    return scores, rng.integers(0, CLASSES, ROWS)


def reference(scores: Array, labels: Array) -> Sequence[Array]:
    """The gradient is (softmax - one at the label) / rows."""
    wide = scores.astype(np.float64)
    shifted = np.exp(wide - wide.max(axis=1, keepdims=True))
    gradient = shifted / shifted.sum(axis=1, keepdims=True)
    rows = np.arange(ROWS)
    value = -np.mean(np.log(gradient[rows, labels]))
    gradient[rows, labels] -= 1
    return [np.asarray(value), gradient / ROWS]


CASES = (
    Case(
        name="softmax_xent",
        description="cross-entropy, 4096 x 1000 float32: value and gradient",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(
            objective,
            wrt=(0,),
            own={
                "jax": objective_in_jax,
                "torch": objective_in_torch,
                "tensorflow": objective_in_tensorflow,
            },
        ),
        goals=(Leads(2.0),),
    ),
)
