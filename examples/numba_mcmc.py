"""Eight schools by Hamiltonian Monte Carlo: a loop of Numba's with gradients of ours.

How much coaching raised the scores of eight schools, and how much schools differ
(Rubin, 1981). Sampling takes a gradient of the posterior's logarithm at every step of
every trajectory, a hundred thousand of small ones. tapejit makes the gradient from the
density; `fn.numba` makes of it a function that code of Numba's calls without Python.
The same loop as plain Python, which calls the same gradient, gives the same samples.

Run with:  python examples/numba_mcmc.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

import tapejit as tj

Array = np.ndarray[Any, Any]
Gradient = Callable[[Array], tuple[float, Array]]

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
PARAMETERS = 2 + len(EFFECTS)


def log_density(x: tj.Tensor) -> tj.Tensor:
    """Of the common effect, the logarithm of the spread, and where each school is."""
    common, spread, places = x[0], tj.exp(x[1]), x[2:]
    misses = (EFFECTS - common - spread * places) / ERRORS
    prior = tj.square(common / 5) + tj.sum(tj.square(places))
    # The spread has the prior of a half-Cauchy; x[1] is the change of variables.
    return x[1] - tj.log1p(tj.square(spread / 5)) - (prior + tj.sum(misses**2)) / 2


density_and_slope = tj.function(tj.value_and_grad(log_density))


def sample(
    gradient: Gradient, normals: Array, uniforms: Array, step: float, leaps: int
) -> tuple[Array, float]:
    """Hamiltonian Monte Carlo: a sample for each row of normals, and how many moved."""
    x = np.zeros(normals.shape[1])
    value, slope = gradient(x)
    samples = np.empty(normals.shape)
    moves = 0
    for at in range(len(normals)):
        momentum = normals[at].copy()
        before = value - 0.5 * np.dot(momentum, momentum)
        new_x, new_value, new_slope = x, value, slope
        for _ in range(leaps):
            momentum = momentum + 0.5 * step * new_slope
            new_x = new_x + step * momentum
            new_value, new_slope = gradient(new_x)
            momentum = momentum + 0.5 * step * new_slope
        after = new_value - 0.5 * np.dot(momentum, momentum)
        if np.log(uniforms[at]) < after - before:
            x, value, slope = new_x, new_value, new_slope
            moves += 1
        samples[at] = x
    return samples, moves / len(normals)


compiled_sample = numba.njit(sample)


def python_gradient(x: Array) -> tuple[float, Array]:
    """The gradient as Python calls it."""
    value, slope = density_and_slope(x)
    return float(value), slope.numpy()


def main(quick: bool = False) -> dict[str, float]:
    """Sample, and compare with the same loop in Python."""
    draws, leaps, step = (4_000 if quick else 40_000), 16, 0.2
    rng = np.random.default_rng(7)
    normals = rng.normal(size=(draws, PARAMETERS))
    uniforms = rng.uniform(size=draws)

    gradient = density_and_slope.numba(tj.TensorSpec([PARAMETERS], "float64"))
    few = normals[:400], uniforms[:400], step, leaps
    compiled_sample(gradient, *few)  # compiles
    begin = time.perf_counter()
    samples, moved = compiled_sample(gradient, normals, uniforms, step, leaps)
    seconds = time.perf_counter() - begin

    times_faster = []
    for _ in range(4):  # in turn, because other programs may be at work too
        begin = time.perf_counter()
        again, _ = sample(python_gradient, *few)
        middle = time.perf_counter()
        compiled_sample(gradient, *few)
        times_faster.append((middle - begin) / (time.perf_counter() - middle))

    kept = samples[draws // 10 :]
    spreads = np.exp(kept[:, 1])
    print(f"{draws} samples of {leaps} gradients in {seconds:.2f} s, {moved:.0%} moved")
    print(f"common effect {kept[:, 0].mean():5.2f} ± {kept[:, 0].std():.2f}")
    print(f"spread        {spreads.mean():5.2f} ± {spreads.std():.2f}")
    print(f"the same loop in Python: {np.median(times_faster):.0f} times as long")
    return {
        "common": kept[:, 0].mean(),
        "spread": spreads.mean(),
        "moved": moved,
        "largest difference": np.abs(again - samples[: len(again)]).max(),
        "times faster": np.median(times_faster),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    main(parser.parse_args().quick)
