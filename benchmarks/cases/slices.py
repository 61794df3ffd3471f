"""Programs of slices and rows: a recurrent network, a table of embeddings, labels.

Written as their users write them. The gradients are what is measured: those of slices
`x[:, t]` are parts of one array, those of embeddings a few rows of a long table, those
of picked scores one element of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of
from benchmarks.training import SGD, training_peers

STEPS, BATCH, WIDTH = 48, 32, 64
WORDS, FEATURES, READ = 50_000, 64, 4096
STATES, ACTIONS = 4096, 1000
RULE = SGD(0.05)


# A recurrent network


def last_state(m: Any, x: Any, weights: Any) -> Any:
    """The mean square of the last state."""
    state = m.tanh(x[:, 0])
    for t in range(1, STEPS):
        state = m.tanh(x[:, t] + state @ weights)
    return m.mean(state * state)


def make_sequences(rng: np.random.Generator) -> tuple[Array, ...]:
    """Sequences, and weights that neither vanish nor explode."""
    x = rng.standard_normal((BATCH, STEPS, WIDTH)).astype(np.float32)
    weights = rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5
    return x, weights.astype(np.float32)


def recurrent_reference(x: Array, weights: Array) -> Sequence[Array]:
    """Back through time, step by step."""
    x, weights = x.astype(np.float64), weights.astype(np.float64)
    states = [np.tanh(x[:, 0])]
    for t in range(1, STEPS):
        states.append(np.tanh(x[:, t] + states[-1] @ weights))
    by_x, by_weights = np.zeros_like(x), np.zeros_like(weights)
    g = 2 * states[-1] / states[-1].size
    for t in reversed(range(STEPS)):
        g = g * (1 - states[t] ** 2)
        by_x[:, t] = g
        if t:
            by_weights += states[t - 1].T @ g
            g = g @ weights.T
    return [np.asarray(np.mean(states[-1] ** 2)), by_x, by_weights]


# A table of embeddings


def distance(m: Any, weights: Sequence[Any], words: Any, wanted: Any) -> Any:
    """How far some rows of a table are from where they should be."""
    (table,) = weights
    error = m.take(table, words, axis=0) - wanted
    return m.mean(error * error)


def make_table(rng: np.random.Generator) -> tuple[Array, ...]:
    """A table, words that repeat, and features for each."""
    table = rng.standard_normal((WORDS, FEATURES)).astype(np.float32)
    words = np.minimum(rng.zipf(1.3, READ), WORDS) - 1
    wanted = rng.standard_normal((READ, FEATURES)).astype(np.float32)
    return table, words, wanted


def table_reference(table: Array, words: Array, wanted: Array) -> Sequence[Array]:
    """The loss, and the table after a step."""
    table = table.astype(np.float64)
    error = table[words] - wanted
    gradient = np.zeros_like(table)
    np.add.at(gradient, words, 2 * error / error.size)
    return [np.asarray(np.mean(error**2)), RULE.first_step(table, gradient)]


def with_sparse_rows(*arrays: Array) -> Callable[[], Any]:
    """PyTorch with gradients that are rows, and its optimizer of such."""
    import torch

    table, words, wanted = (torch.tensor(array) for array in arrays)
    table.requires_grad_()
    optimizer = torch.optim.SGD([table], lr=RULE.rate)

    def run() -> Any:
        optimizer.zero_grad()
        found = torch.nn.functional.embedding(words, table, sparse=True)
        value = torch.mean((found - wanted) ** 2)
        value.backward()
        optimizer.step()
        return value.detach(), table.detach()

    return run


# A policy


def picked(m: Any, scores: Any, actions: Any, gains: Any) -> Any:
    """The loss of a policy: what was gained, times the logarithm of the chance."""
    logs = scores - m.logsumexp(scores, axis=1)[:, None]
    return -m.mean(logs[m.arange(STATES), actions] * gains)


def picked_in_torch(m: Any, scores: Any, actions: Any, gains: Any) -> Any:
    """The same with the loss that PyTorch has for it."""
    each = m.nn.cross_entropy(scores, actions, reduction="none")
    return m.mean(each * gains)


def picked_in_tensorflow(m: Any, scores: Any, actions: Any, gains: Any) -> Any:
    """The same with the loss that TensorFlow has for it."""
    each = m.nn.sparse_softmax_cross_entropy_with_logits(actions, scores)
    return m.mean(each * gains)


def make_policy(rng: np.random.Generator) -> tuple[Array, ...]:
    """Scores, actions, and what these have gained."""
    scores = rng.standard_normal((STATES, ACTIONS)).astype(np.float32)
    gains = rng.standard_normal(STATES).astype(np.float32)
    return scores, rng.integers(0, ACTIONS, STATES), gains


def policy_reference(scores: Array, actions: Array, gains: Array) -> Sequence[Array]:
    """The gradient is (softmax - one at the action) times the gain."""
    wide = scores.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    gradient = powers / powers.sum(axis=1, keepdims=True)
    rows = np.arange(STATES)
    value = -np.mean(np.log(gradient[rows, actions]) * gains)
    gradient[rows, actions] -= 1
    return [np.asarray(value), gradient * gains[:, None] / STATES]


CASES = (
    Case(
        name="slices/recurrent",
        description="a recurrent network over x[:, t], 48 steps, 32 x 64 float32",
        unit="ms",
        make_inputs=make_sequences,
        reference=recurrent_reference,
        builders=peers_of(last_state, wrt=(0, 1)),
        goals=(Leads(1.0),),
    ),
    Case(
        name="slices/embedding",
        description="a step of SGD on 4,096 of 50,000 embeddings of 64 float32",
        unit="ms",
        make_inputs=make_table,
        reference=table_reference,
        builders={
            **training_peers(distance, RULE, 1),
            "torch (sparse)": with_sparse_rows,
        },
        goals=(Leads(1.0),),
        stateful=True,
    ),
    Case(
        name="slices/policy",
        description="gradient of scores picked by action, 4096 x 1000 float32",
        unit="ms",
        make_inputs=make_policy,
        reference=policy_reference,
        builders=peers_of(
            picked,
            wrt=(0,),
            own={"torch": picked_in_torch, "tensorflow": picked_in_tensorflow},
        ),
        goals=(Leads(1.0),),
    ),
)
