"""The tape in a minute: one gradient, then a small network that learns digits.

Run with:  python examples/quickstart.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import functools
import time
import timeit

import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

import tapejit as tj


def first_gradient() -> None:
    """The program of the README."""
    x = tj.Variable(3.0)
    y = tj.Variable(4.0)
    with tj.GradientTape() as tape:
        z = x * x + y * y
    dx, dy = tape.gradient(z, [x, y])
    print(f"z = {z:.0f}, dz/dx = {dx:.0f}, dz/dy = {dy:.0f}")


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """1,797 handwritten digits of 8 x 8 pixels, every fifth held out."""
    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)
    labels = digits.target
    held_out = np.arange(len(images)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def make_network(hidden: int = 64) -> list[tj.Variable]:
    """Weights and biases of a network with one hidden layer."""
    return [
        tj.Variable(tj.random.normal((64, hidden), stddev=0.18), name="w1"),
        tj.Variable(tj.zeros(hidden), name="b1"),
        tj.Variable(tj.random.normal((hidden, 10), stddev=0.18), name="w2"),
        tj.Variable(tj.zeros(10), name="b2"),
    ]


def logits(network: list[tj.Variable], images: tj.Tensor) -> tj.Tensor:
    w1, b1, w2, b2 = network
    return tj.tanh(images @ w1 + b1) @ w2 + b2


def cross_entropy(scores: tj.Tensor, one_hot: tj.Tensor) -> tj.Tensor:
    """The mean negative log-likelihood of the right digit."""
    return tj.mean(tj.logsumexp(scores, axis=1) - tj.sum(scores * one_hot, axis=1))


def accuracy(
    network: list[tj.Variable], images: np.ndarray, labels: np.ndarray
) -> float:
    guesses = tj.argmax(logits(network, tj.asarray(images)), axis=1)
    return float(tj.mean(guesses == tj.asarray(labels)))


@tj.function
def step(
    network: list[tj.Variable], images: tj.Tensor, one_hot: tj.Tensor, rate: float
) -> tj.Tensor:
    """One step of gradient descent, traced at its first call; returns the loss."""
    with tj.GradientTape() as tape:
        loss = cross_entropy(logits(network, images), one_hot)
    gradients = tape.gradient(loss, network)
    for variable, gradient in zip(network, gradients, strict=True):
        variable.assign_sub(rate * gradient)
    return loss


def train(epochs: int, batch: int = 64, rate: float = 0.5) -> float:
    """Plain gradient descent; returns the accuracy on the held-out digits."""
    images, labels, test_images, test_labels = load_data()
    one_hot = np.eye(10, dtype=np.float32)[labels]
    network = make_network()
    seconds = []
    # A bar on a terminal; a file gets the lines below and no bar.
    bar = tqdm(range(epochs), desc="training", unit="epoch", disable=None)
    for _ in bar:
        order = tj.random.permutation(len(images)).numpy()
        for start in range(0, len(order) - batch + 1, batch):
            rows = order[start : start + batch]
            began = time.perf_counter()
            loss = step(network, images[rows], one_hot[rows], rate)
            seconds.append(time.perf_counter() - began)
        bar.set_postfix(loss=f"{loss:.3f}")
    print(f"{len(seconds)} steps of {batch} digits, loss {loss:.3f}")
    first, *later = seconds
    plain = step.python_function  # a rate of 0 leaves the weights as they are
    call = functools.partial(plain, network, images[rows], one_hot[rows], 0.0)
    eager = np.median(timeit.repeat(call, number=1, repeat=20))
    print(f"first step: trace, compile (or load)  {1e3 * first:8.1f} ms")
    print(f"later steps: one native call          {1e6 * np.median(later):8.0f} µs")
    print(f"a step without @tj.function           {1e6 * eager:8.0f} µs")
    found = accuracy(network, test_images, test_labels)
    print(f"test accuracy {found:.1%}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tj.random.set_seed(options.seed)
    first_gradient()
    train(options.epochs)
