"""Functions that bring their own gradient: a stable logarithm, and a linear solver.

A kernel regression predicts the progress of diabetes from ten measurements. Its weights
solve a linear system. How well it does on patients left out depends on a width and a
penalty, found by gradient descent through the solver, which knows a shorter way back
than through its own iterations.

Run with:  python examples/custom_gradient.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_diabetes

import tapejit as tj

ITERATIONS = 60


@tj.custom_gradient
def log1pexp(x: tj.Tensor):
    """log(1 + eˣ). Its plain gradient is eˣ / (1 + eˣ), which is inf / inf at 100."""
    e = tj.exp(x)

    def grad_fn(dy: tj.Tensor) -> tj.Tensor:
        return dy * (1 - 1 / (1 + e))

    return tj.log(1 + e), grad_fn


def plain_solve(matrix: tj.Tensor, b: tj.Tensor) -> tj.Tensor:
    """matrix⁻¹ b by conjugate gradients, for a symmetric positive definite matrix."""
    x, residual = tj.zeros_like(b), b
    direction, square = residual, tj.vecdot(residual, residual)
    for _ in range(ITERATIONS):
        image = matrix @ direction
        step = square / tj.vecdot(direction, image)
        x = x + step * direction
        residual = residual - step * image
        before, square = square, tj.vecdot(residual, residual)
        direction = residual + (square / before) * direction
    return x


@tj.custom_gradient
def solve(matrix: tj.Tensor, b: tj.Tensor):
    """The same; where x gets the gradient g, b gets u = matrix⁻¹ g, matrix -u xᵀ."""
    x = plain_solve(matrix, b)

    def grad_fn(g: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
        u = plain_solve(matrix, g)
        return -tj.outer(u, x), u

    return x, grad_fn


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Standardised measurements and outcomes; every third patient is left out."""
    x, y = load_diabetes(return_X_y=True)
    x, y = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()
    out = np.arange(len(x)) % 3 == 0
    return x[~out], y[~out], x[out], y[out]


def kernel(x: np.ndarray, z: np.ndarray, width: tj.Tensor) -> tj.Tensor:
    distances = np.square(x[:, None] - z).sum(axis=-1)
    return tj.exp(-distances / (2 * width**2))


def error_of(log_width, log_penalty, solver, data) -> tj.Tensor:
    """The mean squared error on patients left out; 1 is what the mean would have."""
    x, y, other_x, other_y = data
    width, penalty = tj.exp(log_width), tj.exp(log_penalty)
    weights = solver(kernel(x, x, width) + penalty * np.eye(len(x)), y)
    return tj.nn.squared_error(kernel(other_x, x, width) @ weights, other_y)


def main(quick: bool = False) -> list[float]:
    """Returns the error on patients left out, step by step."""
    big = tj.Variable(100.0)
    for function in (lambda x: tj.log(1 + tj.exp(x)), log1pexp):
        with tj.GradientTape() as tape:
            y = function(big)
        print(f"slope of log(1 + e^x) at 100: {tape.gradient(y, big):.1f}")

    data = load_data()
    log_width = tj.Variable(0.0, dtype=tj.float64)
    log_penalty = tj.Variable(-1.0, dtype=tj.float64)
    variables = [log_width, log_penalty]
    for solver in (plain_solve, solve):
        for _ in range(2):  # the first time also finds out what is to be computed
            with tj.GradientTape() as tape:
                loss = error_of(*variables, solver, data)
            began = time.perf_counter()
            slopes = tape.gradient(loss, variables)
            took = 1e3 * (time.perf_counter() - began)
        shown = ", ".join(f"{slope:.8f}" for slope in slopes)
        print(f"gradient of {solver.__name__:11} {shown} in {took:.1f} ms")

    optimizer = tj.optimizers.Adam(learning_rate=0.1)

    @tj.function
    def step() -> tj.Tensor:
        return optimizer.minimize(lambda: error_of(*variables, solve, data), variables)

    errors = [float(step()) for _ in range(10 if quick else 100)]
    print(f"error on patients left out: {errors[0]:.3f}, then {errors[-1]:.3f}")
    print(f"width {np.exp(log_width):.2f}, penalty {np.exp(log_penalty):.2f}")
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    main(**vars(parser.parse_args()))
