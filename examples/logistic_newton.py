"""Logistic regression by Newton's method: the Hessian from a tape in a tape.

569 tumours, 30 measurements each, benign or malignant. A penalty makes the loss
strongly convex, so a few Newton steps find its minimum to the last digits; gradient
descent is run beside it, from the same start, for comparison.

Run with:  python examples/logistic_newton.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_breast_cancer

import tapejit as tj

PENALTY = 1e-3


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Standardised measurements with a column of ones, and 0 or 1; 1 in 5 held out."""
    x, y = load_breast_cancer(return_X_y=True)
    held_out = np.arange(len(x)) % 5 == 0
    train = x[~held_out]
    x = (x - train.mean(axis=0)) / train.std(axis=0)
    x = np.column_stack([x, np.ones(len(x))])
    y = y.astype(np.float64)
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


def penalised_loss(w: tj.Variable, x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
    likelihood = tj.nn.sigmoid_cross_entropy(x @ w, y)
    return likelihood + 0.5 * PENALTY * tj.sum(tj.square(w))


@tj.function
def newton_step(
    w: tj.Variable, x: tj.Tensor, y: tj.Tensor
) -> tuple[tj.Tensor, tj.Tensor]:
    """w ← w - H⁻¹ g; returns the loss and the length of the gradient before it."""
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            loss = penalised_loss(w, x, y)
        gradient = inner.gradient(loss, w)  # inside the outer block: it is recorded
    hessian = outer.jacobian(gradient, w)
    w.assign_sub(tj.linalg.solve(hessian, gradient))
    return loss, tj.linalg.norm(gradient)


@tj.function
def descent_step(
    w: tj.Variable, x: tj.Tensor, y: tj.Tensor, rate: float
) -> tuple[tj.Tensor, tj.Tensor]:
    """w ← w - rate · g."""
    with tj.GradientTape() as tape:
        loss = penalised_loss(w, x, y)
    gradient = tape.gradient(loss, w)
    w.assign_sub(rate * gradient)
    return loss, tj.linalg.norm(gradient)


def accuracy(w: tj.Variable, x: np.ndarray, y: np.ndarray) -> float:
    return float(tj.mean((x @ w > 0) == (y > 0)))


def main(quick: bool = False) -> tuple[float, float]:
    """Returns the length of the last gradient, and the accuracy on held-out tumours."""
    x, y, test_x, test_y = load_data()

    w = tj.Variable(np.zeros(x.shape[1]), name="w")
    print("Newton's method\n  step      loss   |gradient|        ms")
    for step in range(20):
        began = time.perf_counter()
        loss, length = newton_step(w, x, y)
        took = 1e3 * (time.perf_counter() - began)
        print(f"  {step:4}  {loss:8.5f}  {length:11.2e}  {took:8.2f}")
        if length < 1e-12:
            break

    steps = 200 if quick else 2000
    slow = tj.Variable(np.zeros(x.shape[1]), name="slow")
    for _ in range(steps):
        slow_loss, slow_length = descent_step(slow, x, y, 0.5)
    print(f"gradient descent after {steps} steps")
    print(f"        {slow_loss:8.5f}  {slow_length:11.2e}")

    found = accuracy(w, test_x, test_y)
    print(f"test accuracy {found:.1%}")
    return float(length), found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer slow steps")
    main(**vars(parser.parse_args()))
