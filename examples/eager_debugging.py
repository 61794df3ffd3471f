"""Finding a mistake in a traced step: checks, eager mode, missing gradients, retraces.

A classifier of 178 wines by 13 measurements is trained with a loss written by hand. It
goes wrong in the first steps. This program finds out why, the way one would.

Run with:  python examples/eager_debugging.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_wine

import tapejit as tj

raw, labels = load_wine(return_X_y=True)
raw = raw.astype(np.float32)
standardised = (raw - raw.mean(axis=0)) / raw.std(axis=0)

w = tj.Variable(tj.zeros((13, 3)), name="w")
b = tj.Variable(tj.zeros(3), name="b")


def handmade_loss(scores: tj.Tensor, labels: tj.Tensor) -> tj.Tensor:
    powers = tj.exp(scores)
    shares = powers / tj.sum(powers, axis=1, keepdims=True)
    if tj.functions_run_eagerly() and not np.all(np.isfinite(powers)):
        row = int(np.argmax(np.isinf(powers).any(axis=1)))  # or: breakpoint()
        print(f"  wine {row}: scores {scores[row]}, powers {powers[row]}")
    right = tj.take_along_axis(shares, labels[:, None], axis=1)
    return -tj.mean(tj.log(right))


def make_step(loss_of):
    @tj.function
    def step(x: tj.Tensor, labels: tj.Tensor, rate: float) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = loss_of(x @ w + b, labels)
        tj.debug.assert_all_finite(loss, "the loss")
        for v, gradient in zip([w, b], tape.gradient(loss, [w, b]), strict=True):
            v.assign_sub(rate * gradient)
        return loss

    return step


def train(step, x: np.ndarray, steps: int) -> float:
    """Returns the last loss."""
    w.assign(tj.zeros_like(w))
    b.assign(tj.zeros_like(b))
    for _ in range(steps):
        loss = step(x, labels, 0.1)
    return float(loss)


def main(quick: bool = False) -> float:
    """Returns the accuracy in the end."""
    print("1. A check in the step says what is wrong, and on which line:")
    broken = make_step(handmade_loss)
    try:
        train(broken, raw, 10)
    except tj.CheckFailed as error:
        print("  " + str(error).replace("\n", "\n  "))
    print(f"  w is as it was before that step: {np.isfinite(w).all()}")

    print("2. The same step as plain Python, line by line, on real values:")
    with tj.config.override(eager=True):  # or TAPEJIT_EAGER=1 python ...
        try:
            train(broken, raw, 10)
        except tj.CheckFailed:
            print("  powers overflow: measurements in the thousands, and no logsumexp")

    print("3. Both mended:")
    step = make_step(tj.nn.sparse_softmax_cross_entropy)
    train(step, standardised, 1)  # the first call traces
    steps, began = 50 if quick else 500, time.perf_counter()
    loss = train(step, standardised, steps)
    took = 1e6 * (time.perf_counter() - began) / steps
    accuracy = float(np.mean(np.argmax(standardised @ w + b, axis=1) == labels))
    print(f"  loss {loss:.4f}, accuracy {accuracy:.1%}, {took:.0f} µs per step")

    print("4. A gradient that is None, and where its path ends:")
    with tj.GradientTape() as tape:
        guesses = tj.argmax(standardised @ w + b, axis=1)
        error = tj.mean(tj.astype(guesses != labels, tj.float32))
    print(f"  {tape.why_none(error, w)}")

    print("5. What was traced, and why a call is traced again:")
    print(f"  {step.trace_count} so far: {', '.join(step.signatures())}")
    with tj.config.override(debug=1):  # or TAPEJIT_DEBUG=1; goes to standard error
        step(standardised[:100], labels[:100], 0.1)
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    main(**vars(parser.parse_args()))
