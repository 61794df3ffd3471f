"""Stacks of 4 x 4 matrices: systems, and Cholesky factors of covariances.

LAPACK takes a microsecond per matrix, most of it for being called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

COUNT, SIZE = 10_000, 4


def systems(m: Any, a: Any, b: Any) -> Any:
    """The sum of squares of the solutions."""
    x = m.linalg.solve(a, b)
    return m.sum(x * x)


def systems_in_torch(m: Any, a: Any, b: Any) -> Any:
    import torch

    x = torch.linalg.solve(a, b)
    return m.sum(x * x)


def systems_in_tensorflow(m: Any, a: Any, b: Any) -> Any:
    import tensorflow as tf

    x = tf.linalg.solve(a, b)
    return m.sum(x * x)


def distances(m: Any, a: Any, b: Any) -> Any:
    """The sum of Mahalanobis' squared distances, by Cholesky factors."""
    z = m.linalg.solve_triangular(m.linalg.cholesky(a), b, lower=True)
    return m.sum(z * z)


def distances_in_jax(m: Any, a: Any, b: Any) -> Any:
    from jax.scipy.linalg import solve_triangular

    z = solve_triangular(m.linalg.cholesky(a), b, lower=True)
    return m.sum(z * z)


def distances_in_torch(m: Any, a: Any, b: Any) -> Any:
    import torch

    factor = torch.linalg.cholesky(a)
    z = torch.linalg.solve_triangular(factor, b, upper=False)
    return m.sum(z * z)


def distances_in_tensorflow(m: Any, a: Any, b: Any) -> Any:
    import tensorflow as tf

    z = tf.linalg.triangular_solve(tf.linalg.cholesky(a), b)
    return m.sum(z * z)


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Covariances of condition 10 or so, and a column each."""
    x = rng.standard_normal((COUNT, SIZE, SIZE))
    a = x @ x.swapaxes(-1, -2) / SIZE + np.eye(SIZE)
    b = rng.standard_normal((COUNT, SIZE, 1))
    return a.astype(np.float32), b.astype(np.float32)


def reference_of_systems(a: Array, b: Array) -> Sequence[Array]:
    a, b = a.astype(np.float64), b.astype(np.float64)
    x = np.linalg.solve(a, b)
    g = np.linalg.solve(a.swapaxes(-1, -2), 2 * x)
    return [np.asarray(np.sum(x * x)), -g @ x.swapaxes(-1, -2), g]


def reference_of_distances(a: Array, b: Array) -> Sequence[Array]:
    """bᵀ a⁻¹ b, whose gradients are -x xᵀ and 2 x with a x = b."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    x = np.linalg.solve(a, b)
    return [np.asarray(np.sum(b * x)), -x @ x.swapaxes(-1, -2), 2 * x]


CASES = (
    Case(
        name="small_matrices",
        description=f"{COUNT} systems of {SIZE} float32: value and gradients",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference_of_systems,
        builders=peers_of(
            systems,
            wrt=(0, 1),
            own={"torch": systems_in_torch, "tensorflow": systems_in_tensorflow},
        ),
        goals=(Leads(1.0),),
    ),
    Case(
        name="small_matrices/distances",
        description=f"{COUNT} Mahalanobis distances by Cholesky factors of {SIZE}",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference_of_distances,
        builders=peers_of(
            distances,
            wrt=(0, 1),
            own={
                "jax": distances_in_jax,
                "torch": distances_in_torch,
                "tensorflow": distances_in_tensorflow,
            },
        ),
        goals=(Leads(1.0),),
    ),
)
