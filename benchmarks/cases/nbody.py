"""The potential of 512 bodies, and the forces: all pairs, float64.

262,144 pairs with three coordinates each; as arrays they are 6 MB apiece, in a loop
over pairs they are nothing. The gradient by position is minus the force.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

BODIES, SOFTENING = 512, 1e-3


def objective(m: Any, positions: Any, masses: Any) -> Any:
    """Each pair counts twice, and a body with itself adds a constant."""
    apart = positions[:, None, :] - positions[None, :, :]
    squared = m.sum(apart * apart, axis=2) + SOFTENING
    return -0.5 * m.sum(masses[:, None] * masses[None, :] / m.sqrt(squared))


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """A normal cloud."""
    return rng.standard_normal((BODIES, 3)), rng.uniform(0.5, 1.5, BODIES)


def reference(positions: Array, masses: Array) -> Sequence[Array]:
    """Newton's law."""
    apart = positions[:, None, :] - positions[None, :, :]
    squared = np.sum(apart * apart, axis=2) + SOFTENING
    weights = np.outer(masses, masses)
    value = -0.5 * np.sum(weights / np.sqrt(squared))
    return [np.asarray(value), np.einsum("ij,ijk->ik", weights * squared**-1.5, apart)]


CASES = (
    Case(
        name="nbody",
        description="potential of 512 bodies, float64: value and gradient",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(objective, wrt=(0,), autograd=True),
        goals=(Leads(2.0),),
    ),
)
