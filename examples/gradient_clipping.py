"""Between a gradient and its update: compute, process, apply.

A small network predicts the progress of diabetes. Its targets are raw, from 25 to 346,
so the first gradients have norms of a thousand, and plain gradient descent blows up at
once. Scaled down to a norm of at most 100, the gradients train it.

Run with:  python examples/gradient_clipping.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_diabetes

import tapejit as tj

LIMIT = 100.0


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Standardised measurements and raw outcomes; every fifth patient held out."""
    x, y = load_diabetes(return_X_y=True)
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    y = y.astype(np.float32)[:, None]
    held_out = np.arange(len(x)) % 5 == 0
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


class Network(tj.nn.Module):
    """One hidden layer, and a scale that nothing uses yet: its gradient is None."""

    def __init__(self) -> None:
        self.hidden = tj.nn.Dense(32, "relu", input_size=10)
        self.out = tj.nn.Dense(1, input_size=32)
        self.scale = tj.Variable(1.0, name="scale")

    def __call__(self, x: tj.Tensor) -> tj.Tensor:
        return self.out(self.hidden(x))


def train(epochs: int, process, **options) -> tuple[Network, list[dict[str, float]]]:
    """The trained network, and the means of each epoch up to the first that is nan."""
    tj.random.set_seed(0)
    x, y, _, _ = load_data()
    network = Network()
    optimizer = tj.optimizers.SGD(learning_rate=0.01, **options)

    @tj.function
    def step(x: tj.Tensor, y: tj.Tensor) -> dict[str, tj.Tensor]:
        # Compute
        with tj.GradientTape() as tape:
            loss = tj.nn.squared_error(network(x), y)
        variables = network.trainable_variables
        gradients = tape.gradient(loss, variables)
        # Process
        gradients, norm = process(gradients)
        # Apply; where a gradient is None, the variable stays as it is
        pairs = zip(gradients, variables, strict=True)
        optimizer.apply_gradients(pairs, on_missing="ignore")
        return {"loss": loss, "norm": norm}

    epoch_logs = []

    def stop_at_nan(epoch: int, logs: dict[str, float]) -> str | None:
        epoch_logs.append(logs)
        return None if np.isfinite(logs["loss"]) else "the loss is not finite"

    data = tj.data.batches((x, y), 32, shuffle=True, seed=0, drop_remainder=True)
    began = time.perf_counter()
    history = tj.fit(step, data, epochs, [stop_at_nan], verbose=0)
    took = 1e6 * (time.perf_counter() - began) / history.steps
    end = (
        f"stopped: {history.stopped}" if history.stopped else f"{took:.0f} µs per step"
    )
    print(f"  after {history.steps} steps {end}")
    return network, epoch_logs


def clip(gradients: list) -> tuple[list, tj.Tensor]:
    """Scaled down together, so that their direction stays; None stays None."""
    return tj.clip_by_global_norm(gradients, LIMIT)


def leave(gradients: list) -> tuple[list, tj.Tensor]:
    return gradients, tj.global_norm(gradients)


def main(quick: bool = False) -> float:
    """Returns R² on the patients held out, with clipped gradients."""
    epochs = 20 if quick else 50
    print("as they are:")
    train(epochs, leave)
    print(f"clipped to {LIMIT:.0f}:")
    network, logs = train(epochs, clip)
    for epoch in range(0, epochs, epochs // 5):
        shown = "  ".join(f"{name} {value:8.2f}" for name, value in logs[epoch].items())
        print(f"  epoch {epoch:3}  {shown}")
    print(f"clipped by the optimizer, global_clipnorm={LIMIT:.0f}:")
    same, _ = train(epochs, leave, global_clipnorm=LIMIT)
    pairs = zip(network.variables, same.variables, strict=True)
    apart = max(float(tj.max(tj.abs(a - b))) for a, b in pairs)
    print(f"  largest difference of a weight {apart}")

    _, _, x, y = load_data()
    score = 1 - float(tj.nn.squared_error(network(x), y)) / float(np.var(y))
    print(f"R² on patients held out {score:.3f}")
    return score


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    main(**vars(parser.parse_args()))
