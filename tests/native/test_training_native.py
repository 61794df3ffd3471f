"""A training as native code: the numbers of plain Python, step after step.

The table of agreement states how far two ways may be apart after n steps, each of which
starts from the result of the one before: n times what one step allows. The network here
is smooth and its optimizer proportional to the gradient, so that errors do not grow by
themselves. The large script with Adam, dropout and clipping is not like that: it even
divides by roots of vanishing gradients. Of it are asked the first step, all that is not
rounded, and that it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, EXACT, Truth, assert_agrees
from programs.training_script import batches, load, train

import tapejit as tj

STEPS = 100
CLASSES = 10
RATE, MOMENTUM = 0.1, 0.5

Decorate = Callable[[Any], Any]
Snapshot = dict[str, np.ndarray[Any, Any]]


def states(decorate: Decorate, dtype: str) -> Iterator[Snapshot]:
    """Loss and variables after each step of training two layers on digits."""
    pixels, labels, *_ = load()
    rng = np.random.default_rng(7)
    drawn = {
        "first": rng.normal(size=(64, 32)) / 8,
        "bias": np.zeros(32),
        "last": rng.normal(size=(32, CLASSES)) / 6,
    }
    weights = {
        name: tj.Variable(value.astype(dtype), name=name)
        for name, value in drawn.items()
    }
    speeds = {
        name: tj.Variable(tj.zeros(v.shape, dtype=v.dtype), trainable=False)
        for name, v in weights.items()
    }

    @decorate
    def step(x: Any, targets: Any) -> Any:
        with tj.GradientTape() as tape:
            hidden = tj.tanh(x @ weights["first"] + weights["bias"])
            logits = hidden @ weights["last"]
            log_p = logits - tj.logsumexp(logits, axis=-1, keepdims=True)
            loss = -tj.mean(tj.sum(tj.one_hot(targets, CLASSES) * log_p, axis=-1))
        gradients = tape.gradient(loss, weights)
        for name, speed in speeds.items():
            speed.assign(MOMENTUM * speed + gradients[name])
            weights[name].assign_sub(RATE * speed)
        return loss

    data = batches(pixels.astype(dtype), labels, seed=3)
    for _ in range(STEPS):
        loss = step(*next(data))
        yield {"loss": loss.numpy(), **{k: v.numpy() for k, v in weights.items()}}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_native_training_agrees_with_plain_python_at_each_step(dtype: str) -> None:
    with tj.config.override(default_float=dtype):
        plain = list(states(lambda body: body, dtype))
        with tj.config.override(native=True):
            native = list(states(tj.function, dtype))
    assert len(native) == STEPS
    for count, (got, expected) in enumerate(zip(native, plain, strict=True), start=1):
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            where = f"{name} after {count} steps"
            assert got[name].dtype == value.dtype, where
            assert_agrees(COMPOSED, got[name], Truth(value, count), where=where)
    assert plain[-1]["loss"] < 0.5 * plain[0]["loss"], "it learns"


def test_the_training_script_starts_alike_and_learns() -> None:
    plain = train(lambda body: body, 1)
    with tj.config.override(native=True):
        first, whole = train(tj.function, 1), train(tj.function, STEPS)
    for name, value in plain["history"][0].items():
        got, wanted = np.float32(first["history"][0][name]), np.float32(value)
        assert_agrees(COMPOSED, got, wanted, where=name)
    assert_agrees(EXACT, first["generator"], plain["generator"])
    assert whole["step"] == STEPS
    assert whole["accuracies"][-1] > 0.9
    assert whole["history"][-1]["loss"] < 0.5 * whole["history"][0]["loss"]
    step, averages, evaluate = whole["functions"]
    assert step.trace_count <= 5
    assert (averages.trace_count, evaluate.trace_count) == (0, 1)


def test_what_is_drawn_in_a_native_training_is_what_plain_python_draws() -> None:
    """Random bits are integers: not a single one may differ after many steps."""

    def drawn(decorate: Decorate) -> list[np.ndarray[Any, Any]]:
        generator = tj.random.Generator(5)

        @decorate
        def step(x: Any) -> Any:
            keep = generator.bernoulli(0.9, x.shape)
            return tj.where(keep, x / 0.9, 0.0)

        x = tj.ones((33, 7))
        return [step(x).numpy() for _ in range(20)] + [generator.state.numpy()]

    plain = drawn(lambda body: body)
    with tj.config.override(native=True):
        native = drawn(tj.function)
    for at, (got, expected) in enumerate(zip(native, plain, strict=True)):
        assert_agrees(EXACT, got, expected, where=f"step {at}")
