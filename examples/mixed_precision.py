"""Handwritten digits in mixed precision, and a run that recovers from overflows.

The same network learns 1,437 digits in float32, in mixed bfloat16, and in mixed float16
with a loss that is scaled. Weights are float32 in all of them, and so is the accuracy:
they differ by less than half a percent. The last run begins with a scale that float16
cannot hold. Its first steps overflow, are skipped, and halve the scale until it fits.

Run with:  python examples/mixed_precision.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits

import tapejit as tj

BATCH = 32
FIRST_SCALE, TOO_LARGE = 2.0**10, 2.0**30


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pixels from 0 to 1 and labels, for training and for testing."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32)
    held_out = np.arange(len(labels)) % 5 == 0
    return pixels[~held_out], labels[~held_out], pixels[held_out], labels[held_out]


def train(policy: str, scale: float, epochs: int, seed: int) -> tuple[float, int]:
    """The accuracy on unseen digits, and how many steps overflowed."""
    tj.random.set_seed(seed)
    pixels, labels, test_pixels, test_labels = load_data()
    data = tj.data.batches(
        (pixels, labels), BATCH, shuffle=True, seed=seed, drop_remainder=True
    )
    model = tj.nn.Sequential(
        tj.nn.Dense(128, "relu", kernel_initializer="he_normal", input_size=64),
        tj.nn.Dense(64, "relu", kernel_initializer="he_normal", input_size=128),
        tj.nn.Dense(10, input_size=64),
        policy=policy,
    )
    steps = epochs * len(data)
    decay = tj.optimizers.schedules.CosineDecay(2e-3, steps)
    optimizer = tj.optimizers.LossScaleOptimizer(tj.optimizers.Adam(decay), scale)

    @tj.function
    def step(pixels: tj.Tensor, labels: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = tj.nn.sparse_softmax_cross_entropy(model(pixels), labels)
            target = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        gradients = tape.gradient(target, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    began = time.perf_counter()
    tj.fit(step, data, epochs=epochs, verbose=0)
    took = 1e6 * (time.perf_counter() - began) / steps
    scores = model(test_pixels)
    accuracy = float(np.mean(np.argmax(scores, axis=1) == test_labels))
    skipped = steps - int(optimizer.iterations)
    print(
        f"{policy:15} scores in {scores.dtype.name:8} accuracy {accuracy:.1%}, "
        f"{skipped:2} of {steps} steps skipped, scale {float(optimizer.loss_scale):g}, "
        f"{took:.0f} µs per step with compiling"
    )
    return accuracy, skipped


def main(quick: bool = False, seed: int = 0) -> dict[str, tuple[float, int]]:
    """Returns the accuracy and the steps that were skipped, for each run."""
    epochs = 6 if quick else 20
    with warnings.catch_warnings():
        # On a CPU halves are no faster; here they are for the numbers they give.
        warnings.filterwarnings("ignore", "a CPU multiplies")
        found = {
            policy: train(policy, FIRST_SCALE, epochs, seed)
            for policy in ("float32", "mixed_bfloat16", "mixed_float16")
        }
        print("\nbegun with a scale that overflows:")
        found["overflowing"] = train("mixed_float16", TOO_LARGE, epochs, seed)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
