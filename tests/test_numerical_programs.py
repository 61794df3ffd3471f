"""Programs as numerical people write them: against NumPy, in both modes, with slopes.

Each takes float64 arrays. Its results are those of a program without tapejit, and its
gradient, eagerly, in a function and around one, is what differences say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tapejit as tj

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


class Program(NamedTuple):
    """A program, the same without tapejit, and its arguments."""

    body: Callable[..., Any]
    reference: Callable[..., Any]
    args: tuple[Array, ...]


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape)


# A filter: a loop over time with solves


def kalman(xp: Any, solve: Any, logdet: Any) -> Callable[..., Any]:
    def run(moves: Any, sees: Any, seen: Any) -> Any:
        mean, spread, total = xp.zeros(3, dtype="float64"), np.eye(3), 0.0
        for y in seen:
            mean, spread = moves @ mean, moves @ spread @ moves.T + 0.1 * np.eye(3)
            expected = sees @ spread @ sees.T + 0.2 * np.eye(2)
            gain, miss = solve(expected, sees @ spread).T, y - sees @ mean
            total = total - (miss @ solve(expected, miss) + logdet(expected)[1]) / 2
            mean, spread = mean + gain @ miss, (np.eye(3) - gain @ sees) @ spread
        return total, mean

    return run


# Gaussian processes: a factor of a matrix, shared


def gaussian_process(logs: Any, x: Any, y: Any) -> Any:
    width, noise = tj.exp(logs[0]), tj.exp(logs[1])
    kernel = tj.exp(-tj.sum(((x[:, None] - x[None]) / width) ** 2, axis=-1) / 2)
    root = tj.linalg.cholesky(kernel + noise * np.eye(len(x)))
    half = tj.linalg.solve_triangular(root, y, lower=True)
    return half @ half / 2 + tj.sum(tj.log(tj.diagonal(root)))


def gaussian_process_plain(logs: Array, x: Array, y: Array) -> Any:
    width, noise = np.exp(logs)
    kernel = np.exp(-(((x[:, None] - x[None]) / width) ** 2).sum(-1) / 2)
    kernel += noise * np.eye(len(x))
    return y @ np.linalg.solve(kernel, y) / 2 + np.linalg.slogdet(kernel)[1] / 2


# Finite elements: a stiffness matrix assembled by scatter

ELEMENTS = np.stack([np.arange(7), np.arange(1, 8)], axis=1)
PATTERN = np.array([[1.0, -1.0], [-1.0, 1.0]])


def bar(nodes: Any, stiffness: Any) -> Any:
    length = nodes[ELEMENTS[:, 1]] - nodes[ELEMENTS[:, 0]]
    parts = (stiffness / length)[:, None, None] * PATTERN
    matrix = tj.zeros((8, 8), "float64")
    matrix = matrix.at[ELEMENTS[:, :, None], ELEMENTS[:, None]].add(parts)
    return tj.linalg.solve(matrix.at[0, 0].add(1e3), np.ones(8))


def bar_plain(nodes: Array, stiffness: Array) -> Array:
    matrix = np.zeros((8, 8))
    for (i, j), k in zip(ELEMENTS, stiffness / np.diff(nodes), strict=True):
        matrix[np.ix_([i, j], [i, j])] += k * PATTERN
    matrix[0, 0] += 1e3
    return np.linalg.solve(matrix, np.ones(8))


# Dynamic programming in a Python loop: CTC of the labels 1, 2


def ctc(logits: Any) -> Any:
    scores = logits - tj.logsumexp(logits, axis=1, keepdims=True)
    states = np.array([0, 1, 0, 2, 0])
    gap = tj.full(2, -1e30, "float64")
    alpha = tj.concat([scores[0, states[:2]], tj.full(3, -1e30, "float64")])
    for row in scores[1:]:
        one = tj.concat([gap[:1], alpha[:-1]])
        two = tj.where(states == 2, tj.concat([gap, alpha[:-2]]), -1e30)
        alpha = tj.logsumexp(tj.stack([alpha, one, two]), axis=0) + row[states]
    return -tj.logaddexp(alpha[-1], alpha[-2])


def ctc_plain(logits: Array) -> Any:
    scores = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    total = 0.0
    for way in itertools.product(range(3), repeat=len(logits)):
        if [k for k, _ in itertools.groupby(way) if k] == [1, 2]:
            total += np.exp(sum(scores[t, k] for t, k in enumerate(way)))
    return -np.log(total)


# Stencils


def heat(u: Any) -> Any:
    for _ in range(5):
        middle = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u = tj.asarray(u).at[1:-1, 1:-1].add(0.1 * (around - 4 * middle))
    return u


def heat_plain(u: Array) -> Array:
    u = u.copy()
    for _ in range(5):
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u[1:-1, 1:-1] += 0.1 * (around - 4 * u[1:-1, 1:-1])
    return u


def neighbours(xp: Any) -> Callable[[Any], Any]:
    shifts = [x for x in itertools.product((-1, 0, 1), repeat=2) if x != (0, 0)]
    return lambda x: sum(xp.roll(x, shift, (0, 1)) for shift in shifts) * x


# A sampler: gradients inside of the program


def energy(q: Any) -> Any:
    return tj.sum(q**2) / 2 + tj.sum(tj.cos(q))


def leapfrog(q: Any, p: Any) -> Any:
    for _ in range(4):
        p = p - 0.05 * tj.grad(energy)(q)
        q = q + 0.1 * p
        p = p - 0.05 * tj.grad(energy)(q)
    return q, p


def leapfrog_plain(q: Array, p: Array) -> Any:
    for _ in range(4):
        p = p - 0.05 * (q - np.sin(q))
        q = q + 0.1 * p
        p = p - 0.05 * (q - np.sin(q))
    return q, p


# One step of a learner inside another: second derivatives, over tasks


def learned(w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return tj.mean((tj.tanh(x @ w) - y) ** 2)

    def task(x: Any, y: Any) -> Any:
        return loss(w - 0.1 * tj.grad(loss)(w, x[:3], y[:3]), x[3:], y[3:])

    return tj.mean(tj.vmap(task)(x, y))


def learned_plain(w: Array, x: Array, y: Array) -> Any:
    losses = []
    for xs, ys in zip(x, y, strict=True):
        out = np.tanh(xs[:3] @ w)
        slope = xs[:3].T @ (2 * (out - ys[:3]) * (1 - out**2)) / 3
        losses.append(np.mean((np.tanh(xs[3:] @ (w - 0.1 * slope)) - ys[3:]) ** 2))
    return np.mean(losses)


PROGRAMS = {
    "kalman filter": Program(
        kalman(tj, tj.linalg.solve, tj.linalg.slogdet),
        kalman(np, np.linalg.solve, np.linalg.slogdet),
        (0.9 * np.eye(3) + 0.05 * draw(3, 3), draw(2, 3), draw(6, 2)),
    ),
    "gaussian process": Program(
        gaussian_process,
        gaussian_process_plain,
        (np.array([-0.5, -2.0]), draw(9, 2), draw(9)),
    ),
    "finite elements": Program(
        bar, bar_plain, (np.arange(8) + 0.3 * RNG.random(8), 1 + RNG.random(7))
    ),
    "ctc": Program(ctc, ctc_plain, (draw(5, 3),)),
    "heat": Program(heat, heat_plain, (draw(11, 13),)),
    "neighbours": Program(neighbours(tj), neighbours(np), (draw(13, 17),)),
    "leapfrog": Program(leapfrog, leapfrog_plain, (draw(5), draw(5))),
    "meta-learning": Program(
        learned, learned_plain, (draw(4), draw(3, 7, 4), draw(3, 7))
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str) -> None:
    body, reference, args = PROGRAMS[name]
    expected = tj.tree.leaves(reference(*args))
    weights = [np.cos(np.arange(np.size(x))).reshape(np.shape(x)) for x in expected]
    numbers = tuple(range(len(args)))
    function = tj.function(body)

    def loss_of(run: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*given: Any) -> Any:
            parts = zip(tj.tree.leaves(run(*given)), weights, strict=True)
            return sum((x * w).sum() for x, w in parts)

        return loss

    given = [tj.asarray(x) for x in args]
    for run in (body, function, function):
        found = tj.tree.leaves(run(*given))
        for one, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-10, atol=1e-12)
    slopes = tj.grad(loss_of(body), numbers)(*given)
    ways = (
        tj.function(tj.grad(loss_of(body), numbers)),
        tj.grad(loss_of(function), numbers),
    )
    for way in ways:
        for one, wanted in zip(way(*given), slopes, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-9, atol=1e-11)
    directions = [draw(*x.shape) for x in args]
    ends = [
        [x + side * 1e-6 * d for x, d in zip(args, directions, strict=True)]
        for side in (1, -1)
    ]
    up, down = (loss_of(reference)(*end) for end in ends)
    along = sum(
        np.sum(np.asarray(s) * d) for s, d in zip(slopes, directions, strict=True)
    )
    np.testing.assert_allclose(along, float(up - down) / 2e-6, rtol=1e-5, atol=1e-6)
