"""A training step of `examples/digits_mlp.py`, compiled, against its peers and eager.

The network and the batch are the example's, as is Adam but for a constant rate and the
epsilon of `training.py`; pixels and labels are random, which nobody's speed depends on.
tapejit runs the example's modules, and once more without `@tj.function`, which shows
what decorating the step is worth. Steps change the weights, so the loss that is checked
is the first, and the weights those after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.case import OURS, Array, AtLeast, Case, Leads
from benchmarks.cases.mlp import first_step, loss, make_weights
from benchmarks.training import Adam, training_peers

SIZES, BATCH = (64, 256, 128, 10), 32
RULE = Adam(2e-3)


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Weights, pixels and labels."""
    pixels = rng.uniform(size=(BATCH, SIZES[0])).astype(np.float32)
    labels = rng.integers(0, SIZES[-1], BATCH)
    return *make_weights(rng, SIZES), pixels, labels


def with_tapejit(*arrays: Array, eager: bool = False) -> Callable[[], Any]:
    """The step of the example, which returns the loss it started from."""
    import tapejit as tj

    *weights, pixels, labels = arrays
    model = tj.nn.Sequential(
        tj.nn.Dense(SIZES[1], "relu", input_size=SIZES[0]),
        tj.nn.Dense(SIZES[2], "relu", input_size=SIZES[1]),
        tj.nn.Dense(SIZES[3], input_size=SIZES[2]),
    )
    for i, layer in enumerate(model):
        layer.weight.assign(weights[2 * i])
        layer.bias.assign(weights[2 * i + 1])
    variables = [v for layer in model for v in (layer.weight, layer.bias)]
    optimizer = RULE.in_tapejit()

    def step(pixels: Any, labels: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.nn.sparse_softmax_cross_entropy(model(pixels), labels)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    function = step if eager else tj.function(step)
    batch = tj.asarray(pixels), tj.asarray(labels)
    return lambda: (function(*batch), *variables)


def reference(*arrays: Array) -> Sequence[Array]:
    """The loss before the first step, and the weights after it."""
    return first_step(RULE, *arrays)


CASES = (
    Case(
        name="digits_mlp",
        description="a training step with Adam, 64-256-128-10, batch of 32 float32",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders={
            **training_peers(loss, RULE, 6),
            OURS: with_tapejit,
            "tapejit (eager)": partial(with_tapejit, eager=True),
        },
        goals=(AtLeast(5, "tapejit (eager)"), Leads(1.5)),
        stateful=True,
    ),
)
