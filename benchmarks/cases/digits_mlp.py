"""A training step of `examples/digits_mlp.py`, compiled, against the same step eager.

The network, the batch and Adam are the example's; pixels and labels are random, which
nobody's speed depends on. Both peers are tapejit: what is measured is what decorating
the step is worth. Steps change the weights, so the loss that is checked is the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.case import Array, AtLeast, Case

SIZES, BATCH = (64, 256, 128, 10), 32


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Pixels, labels, and one matrix of weights per layer."""
    pixels = rng.uniform(size=(BATCH, SIZES[0])).astype(np.float32)
    labels = rng.integers(0, SIZES[-1], BATCH)
    weights = [
        (rng.standard_normal((a, b)) * (2 / a) ** 0.5).astype(np.float32)
        for a, b in pairwise(SIZES)
    ]
    return pixels, labels, *weights


def reference(pixels: Array, labels: Array, *weights: Array) -> Sequence[Array]:
    """The loss before the first step."""
    scores = pixels.astype(np.float64)
    for i, weight in enumerate(weights):
        scores = (np.maximum(scores, 0) if i else scores) @ weight.astype(np.float64)
    evidence = np.logaddexp.reduce(scores, axis=1)
    return [np.asarray(np.mean(evidence - scores[np.arange(BATCH), labels]))]


def with_tapejit(
    pixels: Array, labels: Array, *weights: Array, eager: bool = False
) -> Callable[[], Any]:
    """The step, which returns the loss it started from."""
    import tapejit as tj

    model = tj.nn.Sequential(
        tj.nn.Dense(SIZES[1], "relu", input_size=SIZES[0]),
        tj.nn.Dense(SIZES[2], "relu", input_size=SIZES[1]),
        tj.nn.Dense(SIZES[3], input_size=SIZES[2]),
    )
    for layer, weight in zip(model, weights, strict=True):
        layer.weight.assign(weight)
    optimizer = tj.optimizers.Adam(learning_rate=2e-3)

    def step(pixels: Any, labels: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.nn.sparse_softmax_cross_entropy(model(pixels), labels)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    function = step if eager else tj.function(step)
    return lambda: function(pixels, labels)


CASES = (
    Case(
        name="digits_mlp",
        description="a training step with Adam, 64-256-128-10, batch of 32 float32",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders={
            "tapejit": with_tapejit,
            "tapejit (eager)": partial(with_tapejit, eager=True),
        },
        goals=(AtLeast(5, "tapejit (eager)"),),
        stateful=True,
    ),
)
