"""Handwritten digits with modules, an optimizer and the training loop `tj.fit`.

A network with two hidden layers learns 1,437 digits of 8 x 8 pixels and is tested on
360 it has not seen, of which it gets more than 97 % right. One step (the forward pass,
the gradient, the update) is one traced function.

Run with:  python examples/digits_mlp.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits

import tapejit as tj

BATCH = 32
LEARNING_RATE = 2e-3


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pixels from 0 to 1 and labels, for training and for testing."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32)
    held_out = np.arange(len(labels)) % 5 == 0
    return pixels[~held_out], labels[~held_out], pixels[held_out], labels[held_out]


def make_model() -> tj.nn.Sequential:
    return tj.nn.Sequential(
        tj.nn.Dense(256, "relu", kernel_initializer="he_normal", input_size=64),
        tj.nn.Dense(128, "relu", kernel_initializer="he_normal", input_size=256),
        tj.nn.Dense(10, input_size=128),
    )


def make_optimizer(steps: int) -> tj.optimizers.Adam:
    """Adam with a learning rate that falls to 0 in this many steps."""
    decay = tj.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)
    return tj.optimizers.Adam(learning_rate=decay)


def make_step(model: tj.nn.Module, optimizer: tj.optimizers.Optimizer):
    """One step of training, as a function of a batch that returns the loss."""

    @tj.function
    def step(pixels: tj.Tensor, labels: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = tj.nn.sparse_softmax_cross_entropy(model(pixels), labels)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step


def main(quick: bool = False, seed: int = 0) -> float:
    """Returns the accuracy on digits that were not trained on."""
    tj.random.set_seed(seed)
    pixels, labels, test_pixels, test_labels = load_data()
    data = tj.data.batches(
        (pixels, labels), BATCH, shuffle=True, seed=seed, drop_remainder=True
    )
    epochs = 5 if quick else 20

    model = make_model()
    print(model.summary())
    step = make_step(model, make_optimizer(epochs * len(data)))

    @tj.function
    def predict(pixels: tj.Tensor) -> tj.Tensor:
        return tj.argmax(model(pixels), axis=1)

    def validation() -> dict[str, float]:
        return {"accuracy": np.mean(predict(test_pixels) == test_labels)}

    began = time.perf_counter()
    history = tj.fit(step, data, epochs=epochs, validation=validation)
    took = time.perf_counter() - began
    accuracy = history["val_accuracy"][-1]
    print(f"test accuracy {accuracy:.1%}, {1e6 * took / history.steps:.0f} µs per step")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
