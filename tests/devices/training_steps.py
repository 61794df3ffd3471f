"""Training steps that figures and logs are taken of.

Start reading at `STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tapejit as tj

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def labels(count: int, classes: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, classes, count).astype(np.int32)


def crossed(model: Any, x: Any, y: Any) -> Any:
    return tj.nn.sparse_softmax_cross_entropy(model(x), y)


def squared(model: Any, x: Any, y: Any) -> Any:
    return tj.mean(tj.square(model(x) - y))


def mlp(*sizes: int, dtype: str = "float32") -> Any:
    *hidden, last = sizes
    layers = [tj.nn.Dense(size, "relu", dtype=dtype) for size in hidden]
    return tj.nn.Sequential([*layers, tj.nn.Dense(last, dtype=dtype)])


def cnn() -> Any:
    return tj.nn.Sequential(
        [
            tj.nn.Conv2D(4, 3, activation="relu"),
            tj.nn.MaxPool2D(2),
            tj.nn.Flatten(),
            tj.nn.Dense(3),
        ]
    )


class AttentionBlock(tj.nn.Module):
    def __init__(self, heads: int, size: int) -> None:
        self.norm = tj.nn.LayerNorm()
        # Scores do not depend on a bias of keys: it would be noise.
        self.attention = tj.nn.MultiHeadAttention(heads, size, use_bias=False)

    def __call__(self, x: Any) -> Any:
        normal = self.norm(x)
        return x + self.attention(normal, normal, use_causal_mask=True)


class Step(NamedTuple):
    """A model, its loss, and a batch; the optimizer is Adam."""

    model: Callable[[], Any]
    loss: Callable[..., Any]
    batch: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

    def made(self, device: str = "cpu") -> tuple[Any, tuple[Any, Any], Any, Any]:
        """The step as a function, its arguments, the model, the optimizer."""
        tj.random.set_seed(3)
        model, optimizer = self.model(), tj.optimizers.Adam(1e-3)
        model(tj.asarray(self.batch[0][:1]))
        model.to(device)

        @tj.function
        def step(x: Any, y: Any) -> Any:
            with tj.GradientTape() as tape:
                loss = self.loss(model, x, y)
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        x, y = (tj.asarray(part, device=device) for part in self.batch)
        return step, (x, y), model, optimizer


LARGE_MLP = Step(
    lambda: mlp(512, 256, 10), crossed, (floats(128, 784), labels(128, 10))
)
ATTENTION = Step(
    lambda: AttentionBlock(4, 16), squared, (floats(2, 16, 64), floats(2, 16, 64))
)

# Small ones, which the emulated device does in milliseconds.
STEPS = {
    "mlp": Step(lambda: mlp(16, 16, 3), crossed, (floats(8, 12), labels(8, 3))),
    "cnn": Step(cnn, crossed, (floats(4, 8, 8, 2), labels(4, 3))),
    "attention": Step(
        lambda: AttentionBlock(2, 4), squared, (floats(2, 5, 8), floats(2, 5, 8))
    ),
    "halves": Step(
        lambda: mlp(16, 3, dtype="float16"),
        lambda model, x, y: squared(model, x, y),
        (floats(8, 12).astype(np.float16), floats(8, 3).astype(np.float16)),
    ),
}
