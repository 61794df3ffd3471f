"""The Gaussian mixture of ADBench: log-likelihood with a Wishart prior, and gradient.

25 components in 10 dimensions, 1,000 points, float64. As there, the inverse covariance
of a component is given by the logarithms of a diagonal and the strictly lower triangle
column by column (`icf`), and the gradient is by the weights, the means and `icf`. The
largest value in sight has N x K x D = 250,000 entries, and none of them has to be
stored: forward and adjoint share the loop over the points.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

POINTS, COMPONENTS, SIZE = 1000, 25, 10
GAMMA, FREEDOM = 1.0, 0
"""The parameters of the Wishart prior that ADBench uses."""

# Where an entry of the strictly lower triangle stands in a row of `icf`.
_columns, _rows = np.triu_indices(SIZE, 1)
PLACE = np.zeros((SIZE, SIZE), np.int64)
PLACE[_rows, _columns] = SIZE + np.arange(len(_rows))
LOWER = np.tril(np.ones((SIZE, SIZE)), -1)


def constant_terms() -> float:
    """What of the objective depends on no argument."""
    from scipy.special import multigammaln

    degrees = SIZE + FREEDOM + 1
    scale = degrees * SIZE * (log(GAMMA) - 0.5 * log(2))
    prior = COMPONENTS * (scale - float(multigammaln(0.5 * degrees, SIZE)))
    return -0.5 * POINTS * SIZE * log(2 * pi) - prior


CONSTANT = constant_terms()


def objective(m: Any, alphas: Any, means: Any, icf: Any, x: Any) -> Any:
    """The log-likelihood of the points plus the log-prior of the parameters."""
    logarithms = icf[:, :SIZE]
    diagonal = m.exp(logarithms)
    log_determinants = m.sum(logarithms, axis=1)
    lower = m.take(icf, m.asarray(PLACE), axis=1) * m.asarray(LOWER)

    centred = x[:, None, :] - means
    mapped = diagonal * centred + m.einsum("kij,nkj->nki", lower, centred)
    inner = alphas + log_determinants - 0.5 * m.sum(mapped * mapped, axis=2)
    likelihood = m.sum(m.logsumexp(inner, axis=1)) - POINTS * m.logsumexp(
        alphas, axis=0
    )
    squares = m.sum(diagonal * diagonal) + m.sum(icf[:, SIZE:] * icf[:, SIZE:])
    prior = 0.5 * GAMMA**2 * squares - FREEDOM * m.sum(log_determinants)
    return CONSTANT + likelihood + prior


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Standard normal parameters and points, as ADBench draws them."""
    packed = SIZE * (SIZE + 1) // 2
    shapes = ((COMPONENTS,), (COMPONENTS, SIZE), (COMPONENTS, packed), (POINTS, SIZE))
    alphas, means, icf, x = (rng.standard_normal(shape) for shape in shapes)
    return alphas, means, icf, x


def reference(alphas: Array, means: Array, icf: Array, x: Array) -> Sequence[Array]:
    """The gradient by hand: responsibilities, then sums over the points."""
    logarithms, diagonal = icf[:, :SIZE], np.exp(icf[:, :SIZE])
    matrices = icf[:, PLACE] * LOWER + diagonal[:, :, None] * np.eye(SIZE)
    centred = x[:, None, :] - means
    mapped = np.einsum("kij,nkj->nki", matrices, centred)
    inner = alphas + logarithms.sum(1) - 0.5 * np.sum(mapped**2, axis=2)
    evidence = np.logaddexp.reduce(inner, axis=1)
    total = np.logaddexp.reduce(alphas)
    prior = 0.5 * GAMMA**2 * (np.sum(diagonal**2) + np.sum(icf[:, SIZE:] ** 2))
    prior -= FREEDOM * logarithms.sum()
    value = CONSTANT + evidence.sum() - POINTS * total + prior

    belongs = np.exp(inner - evidence[:, None])
    counts = belongs.sum(0)
    pulled = -belongs[:, :, None] * mapped
    by_matrix = np.einsum("nki,nkj->kij", pulled, centred)
    by_icf = np.empty_like(icf)
    by_icf[:, :SIZE] = (
        np.einsum("kii->ki", by_matrix) * diagonal
        + counts[:, None]
        + GAMMA**2 * diagonal**2
        - FREEDOM
    )
    by_icf[:, SIZE:] = by_matrix[:, _rows, _columns] + GAMMA**2 * icf[:, SIZE:]
    return [
        np.asarray(value),
        counts - POINTS * np.exp(alphas - total),
        -np.einsum("nki,kij->kj", pulled, matrices),
        by_icf,
    ]


CASES = (
    Case(
        name="gmm",
        description="ADBench's mixture, K=25 D=10 N=1000, float64: value, gradient",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(objective, wrt=(0, 1, 2)),
        goals=(Leads(6.0),),
    ),
)
