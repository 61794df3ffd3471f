"""Linear regression by Adam: ten measurements predict the progress of diabetes.

The best weights have a formula, so one can see how close training comes to them.

Run with:  python examples/linear_regression_adam.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_diabetes

import tapejit as tj


def load_data() -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Measurements of 442 patients, standardised, their outcomes, and the names."""
    data = load_diabetes()
    x = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    return x.astype(np.float32), data.target.astype(np.float32), data.feature_names


def least_squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The best weights and, last, the best bias, in double precision."""
    columns = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    return np.linalg.lstsq(columns, y.astype(np.float64))[0]


def explained(predictions: np.ndarray, y: np.ndarray) -> float:
    """R²: the share of the variance of y that the predictions explain."""
    return 1 - float(np.mean((y - predictions) ** 2) / np.var(y))


def main(quick: bool = False) -> tuple[float, float]:
    """Returns R² and the largest distance of a weight from the best one."""
    x, y, names = load_data()
    steps = 1000 if quick else 3000

    w = tj.Variable(tj.zeros(x.shape[1]), name="w")
    b = tj.Variable(0.0, name="b")
    decay = tj.optimizers.schedules.CosineDecay(2.0, steps)
    optimizer = tj.optimizers.Adam(learning_rate=decay)

    @tj.function
    def step(x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = tj.nn.squared_error(x @ w + b, y)
        gradients = tape.gradient(loss, [w, b])
        optimizer.apply_gradients(zip(gradients, [w, b], strict=True))
        return loss

    began = time.perf_counter()
    for count in range(steps):
        loss = step(x, y)
        if count % (steps // 5) == 0:
            rate = float(optimizer.learning_rate)
            print(f"step {count:4}: loss {loss:9.3f}, learning rate {rate:.3f}")
    took = 1e6 * (time.perf_counter() - began) / steps

    *best, best_bias = least_squares(x, y)
    print("measurement  trained     best")
    for name, ours, exact in zip(names, w.numpy(), best, strict=True):
        print(f"{name:11}  {ours:7.3f}  {exact:7.3f}")
    print(f"{'bias':11}  {b:7.3f}  {best_bias:7.3f}")

    score = explained(np.asarray(x @ w + b), y)
    distance = max(np.max(np.abs(w.numpy() - best)), abs(float(b) - best_bias))
    print(f"R² {score:.4f}, off by {distance:.1e} at most, {took:.0f} µs per step")
    return score, float(distance)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    main(**vars(parser.parse_args()))
