"""A training script as somebody would write it, to be run eagerly and traced.

It trains a small classifier on the digits bundled with scikit-learn and uses, in one
program, what training programs use: a model of layers with trainable and other state,
dropout, batch and layer normalisation, an optimizer with lazily made slots, clipping
with a Python `if`, a decaying rate passed as a float, weights averaged over time,
running metrics, printing and checks inside the step, a penalty on the gradient with
respect to the input (second order), and an evaluation that shares the model.

`train(decorate, steps)` runs it with `decorate` around the steps: `lambda f: f` for
plain Python, `tj.function` for graphs. Start reading at `train`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import tapejit as tj

CLASSES = 10
BATCH = 32


# Data


def load() -> tuple[np.ndarray[Any, Any], ...]:
    """Pixels between 0 and 1 and labels, for training and for testing."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16.0).astype(np.float32)
    labels = labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    pixels, labels = pixels[order], labels[order]
    return pixels[:1500], labels[:1500], pixels[1500:], labels[1500:]


def batches(
    pixels: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], seed: int
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Batches for ever, in a new order each time around."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield pixels[chosen], labels[chosen]


# Layers


class Dense:
    """A linear map with a bias; its weights are drawn when it is made."""

    def __init__(self, inputs: int, outputs: int, generator: Any, name: str) -> None:
        scale = math.sqrt(2.0 / inputs)
        start = generator.normal((inputs, outputs)) * scale
        self.weight = tj.Variable(start, name=f"{name}.weight")
        self.bias = tj.Variable(tj.zeros(outputs), name=f"{name}.bias")
        self.variables = [self.weight, self.bias]

    def __call__(self, x: Any) -> Any:
        return x @ self.weight + self.bias


class LayerNorm:
    """Each row to mean 0 and variance 1, then scaled and shifted."""

    def __init__(self, size: int, name: str) -> None:
        self.scale = tj.Variable(tj.ones(size), name=f"{name}.scale")
        self.shift = tj.Variable(tj.zeros(size), name=f"{name}.shift")
        self.variables = [self.scale, self.shift]

    def __call__(self, x: Any) -> Any:
        mean = tj.mean(x, axis=-1, keepdims=True)
        variance = tj.mean(tj.square(x - mean), axis=-1, keepdims=True)
        return (x - mean) / tj.sqrt(variance + 1e-5) * self.scale + self.shift


class BatchNorm:
    """Each column by the statistics of the batch, or by running ones."""

    def __init__(self, size: int, name: str) -> None:
        self.scale = tj.Variable(tj.ones(size), name=f"{name}.scale")
        self.shift = tj.Variable(tj.zeros(size), name=f"{name}.shift")
        self.mean = tj.Variable(tj.zeros(size), trainable=False, name=f"{name}.mean")
        self.variance = tj.Variable(tj.ones(size), trainable=False, name=f"{name}.var")
        self.variables = [self.scale, self.shift]

    def __call__(self, x: Any, training: bool) -> Any:
        if training:
            mean = tj.mean(x, axis=0)
            variance = tj.mean(tj.square(x - mean), axis=0)
            self.mean.assign(0.9 * self.mean + 0.1 * tj.stop_gradient(mean))
            self.variance.assign_add(0.1 * (tj.stop_gradient(variance) - self.variance))
        else:
            mean, variance = self.mean, self.variance
        return (x - mean) / tj.sqrt(variance + 1e-5) * self.scale + self.shift


def dropout(x: Any, rate: float, generator: Any) -> Any:
    """Some elements set to zero, the rest scaled up."""
    keep = generator.bernoulli(1 - rate, x.shape)
    return tj.where(keep, x / (1 - rate), 0.0)


class Model:
    """Two hidden layers with a residual connection in between."""

    def __init__(self, seed: int) -> None:
        self.generator = tj.random.Generator(seed)
        self.first = Dense(64, 48, self.generator, "first")
        self.norm = BatchNorm(48, "norm")
        self.second = Dense(48, 48, self.generator, "second")
        self.layer_norm = LayerNorm(48, "layer_norm")
        self.last = Dense(48, CLASSES, self.generator, "last")
        self.layers = [
            self.first,
            self.norm,
            self.second,
            self.layer_norm,
            self.last,
        ]

    @property
    def trainable(self) -> list[tj.Variable]:
        return [v for layer in self.layers for v in layer.variables]

    def __call__(self, x: Any, training: bool = False) -> Any:
        hidden = tj.nn.gelu(self.norm(self.first(x), training))
        if training:
            hidden = dropout(hidden, 0.1, self.generator)
        hidden = self.layer_norm(hidden + tj.tanh(self.second(hidden)))
        return self.last(hidden)


# Loss


def cross_entropy(logits: Any, labels: Any, smoothing: float = 0.05) -> Any:
    """The mean over the batch, with smoothed labels."""
    log_p = logits - tj.logsumexp(logits, axis=-1, keepdims=True)
    target = tj.one_hot(labels, CLASSES) * (1 - smoothing) + smoothing / CLASSES
    return -tj.mean(tj.sum(target * log_p, axis=-1))


def gradient_penalty(model: Model, x: Any) -> Any:
    """How fast the largest logit changes with the input: second order in a step."""
    with tj.GradientTape() as tape:
        tape.watch(x)
        top = tj.sum(tj.max(model(x), axis=-1))
    slope = tape.gradient(top, x)
    return tj.mean(tj.sum(tj.square(slope), axis=-1))


# Optimizer


class AdamW:
    """Adam with decoupled weight decay; slots are made at a variable's first step."""

    def __init__(self, decay: float = 1e-3) -> None:
        self.decay = decay
        self.step = tj.Variable(0, trainable=False, name="step")
        self.slots: dict[Any, tuple[tj.Variable, tj.Variable]] = {}

    def slots_of(self, variable: tj.Variable) -> tuple[tj.Variable, tj.Variable]:
        key = variable.ref()
        if key not in self.slots:
            zeros = tj.zeros(variable.shape, dtype=variable.dtype)
            self.slots[key] = (
                tj.Variable(zeros, trainable=False, name=f"{variable.name}.m"),
                tj.Variable(zeros, trainable=False, name=f"{variable.name}.v"),
            )
        return self.slots[key]

    def apply(self, gradients: list[Any], variables: list[Any], rate: Any) -> None:
        self.step.assign_add(1)
        count = self.step.value().astype("float32")
        first = 1 - 0.9**count
        second = 1 - 0.999**count
        for gradient, variable in zip(gradients, variables, strict=True):
            m, v = self.slots_of(variable)
            m.assign(0.9 * m + 0.1 * gradient)
            v.assign(0.999 * v + 0.001 * tj.square(gradient))
            update = (m / first) / (tj.sqrt(v / second) + 1e-7)
            if variable.ndim > 1:
                update = update + self.decay * variable
            variable.assign_sub(rate * update)


def clipped(gradients: list[Any], limit: float) -> tuple[list[Any], Any]:
    """Scaled down if their norm exceeds the limit: a choice made in Python."""
    norm = tj.sqrt(sum(tj.sum(tj.square(g)) for g in gradients))
    if norm > limit:
        gradients = [g * (limit / norm) for g in gradients]
    return gradients, norm


class Mean:
    """A running mean."""

    def __init__(self, name: str) -> None:
        self.total = tj.Variable(0.0, trainable=False, name=f"{name}.total")
        self.count = tj.Variable(0.0, trainable=False, name=f"{name}.count")

    def update(self, value: Any) -> None:
        self.total.assign_add(value)
        self.count.assign_add(1.0)

    def result(self) -> float:
        return float(self.total / self.count)

    def reset(self) -> None:
        self.total.assign(0.0)
        self.count.assign(0.0)


def learning_rate(step: int, steps: int) -> float:
    """A short warm-up, then half a cosine: a new Python float at every step."""
    warm = min(1.0, (step + 1) / 10)
    return 1e-2 * warm * 0.5 * (1 + math.cos(math.pi * step / steps))


# The program


def train(decorate: Callable[[Any], Any], steps: int, seed: int = 3) -> dict[str, Any]:
    """Train, and return everything that could differ between two ways of running."""
    train_x, train_y, test_x, test_y = load()
    model = Model(seed)
    optimizer = AdamW()
    averages = [
        tj.Variable(v, trainable=False, name=f"{v.name}.average")
        for v in model.trainable
    ]
    loss_metric, accuracy_metric = Mean("loss"), Mean("accuracy")

    @decorate
    def update_averages(decay: Any) -> None:
        for average, variable in zip(averages, model.trainable, strict=True):
            average.assign(decay * average + (1 - decay) * variable)

    @decorate
    def train_step(x: Any, labels: Any, rate: Any) -> dict[str, Any]:
        noisy = x + 0.02 * model.generator.normal(x.shape)
        with tj.GradientTape() as tape:
            logits = model(noisy, training=True)
            loss = cross_entropy(logits, labels)
            penalty = gradient_penalty(model, noisy)
            total = loss + 0.01 * penalty
        tj.debug.assert_all_finite(total, "the loss has blown up")
        gradients, norm = clipped(tape.gradient(total, model.trainable), 2.0)
        optimizer.apply(gradients, model.trainable, rate)
        update_averages(0.98)
        hits = tj.mean(tj.astype(tj.argmax(logits, axis=-1) == labels, "float32"))
        loss_metric.update(loss)
        accuracy_metric.update(hits)
        if optimizer.step % 50 == 0:
            tj.print("step", optimizer.step, "loss", loss)
        return {"loss": loss, "penalty": penalty, "norm": norm}

    @decorate
    def evaluate(x: Any, labels: Any) -> Any:
        logits = model(x)
        return tj.mean(tj.astype(tj.argmax(logits, axis=-1) == labels, "float32"))

    history: list[dict[str, float]] = []
    accuracies: list[float] = []
    data = batches(train_x, train_y, seed)
    for step in range(steps):
        x, labels = next(data)
        results = train_step(x, labels, learning_rate(step, steps))
        history.append({name: float(value) for name, value in results.items()})
        if (step + 1) % 25 == 0:
            accuracies.append(float(evaluate(test_x, test_y)))
            history[-1]["mean_loss"] = loss_metric.result()
            history[-1]["mean_accuracy"] = accuracy_metric.result()
            loss_metric.reset()
            accuracy_metric.reset()

    state = [*model.trainable, *averages, model.norm.mean, model.norm.variance]
    state += [slot for pair in optimizer.slots.values() for slot in pair]
    return {
        "history": history,
        "accuracies": accuracies,
        "state": {v.name: v.numpy() for v in state},
        "step": int(optimizer.step),
        "generator": model.generator.state.numpy(),
        "functions": [train_step, update_averages, evaluate],
    }


if __name__ == "__main__":
    outcome = train(tj.function, 200)
    print(f"test accuracy {outcome['accuracies'][-1]:.3f}")
