"""A Gaussian's density: a system and a determinant of one covariance, with gradients.

Written as it is read, it factorises the covariance four times: for the solution, the
determinant and the adjoint of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

SIZE = 256


def density(m: Any, a: Any, b: Any) -> Any:
    """bᵀ a⁻¹ b + log |det a|."""
    return m.sum(b * m.linalg.solve(a, b)) + m.linalg.slogdet(a)[1]


def density_in_torch(m: Any, a: Any, b: Any) -> Any:
    import torch

    return m.sum(b * torch.linalg.solve(a, b)) + torch.linalg.slogdet(a)[1]


def density_in_tensorflow(m: Any, a: Any, b: Any) -> Any:
    import tensorflow as tf

    return m.sum(b * tf.linalg.solve(a, b)) + tf.linalg.slogdet(a)[1]


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """A covariance of condition 10 or so, and a column."""
    x = rng.standard_normal((SIZE, SIZE))
    a = x @ x.T / SIZE + np.eye(SIZE)
    b = rng.standard_normal((SIZE, 1))
    return a.astype(np.float32), b.astype(np.float32)


def reference(a: Array, b: Array) -> Sequence[Array]:
    a, b = a.astype(np.float64), b.astype(np.float64)
    inverse = np.linalg.inv(a)
    x, y = inverse @ b, inverse.T @ b
    value = np.sum(b * x) + np.linalg.slogdet(a)[1]
    return [np.asarray(value), inverse.T - y @ x.T, x + y]


BUILDERS = peers_of(
    density,
    wrt=(0, 1),
    own={"torch": density_in_torch, "tensorflow": density_in_tensorflow},
)
del BUILDERS["tensorflow (xla)"]  # has no determinants

CASES = (
    Case(
        name="shared_factors",
        description=f"a Gaussian's density of {SIZE} dimensions: value and gradients",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=BUILDERS,
        goals=(Leads(1.0),),
    ),
)
