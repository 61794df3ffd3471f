"""Layer norm with scale and shift, then the exact gelu: value and three gradients.

4,096 rows of 512 float32. Rows are normalised one by one, but the gradients of scale
and shift are sums over all of them, so a compiler has to reduce in both directions
without going over memory once for each. Packages that have a layer norm are called by
it; JAX and TensorFlow users write the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

ROWS, SIZE, EPSILON = 4096, 512, 1e-5


def formula(m: Any, gelu: Any, x: Any, scale: Any, shift: Any) -> Any:
    """The sum of the squares of what comes out."""
    centred = x - m.mean(x, axis=-1, keepdims=True)
    variance = m.mean(centred * centred, axis=-1, keepdims=True)
    y = gelu(centred / m.sqrt(variance + EPSILON) * scale + shift)
    return m.sum(y * y)


def objective(tj: Any, x: Any, scale: Any, shift: Any) -> Any:
    """tapejit: the formula, with its exact gelu."""
    return formula(tj, tj.nn.gelu, x, scale, shift)


def objective_in_jax(m: Any, x: Any, scale: Any, shift: Any) -> Any:
    """JAX's gelu is an approximation unless told otherwise."""
    return formula(m, lambda z: m.nn.gelu(z, approximate=False), x, scale, shift)


def objective_in_torch(m: Any, x: Any, scale: Any, shift: Any) -> Any:
    """Torch's layer norm and gelu."""
    y = m.nn.gelu(m.nn.layer_norm(x, (SIZE,), scale, shift, EPSILON))
    return m.sum(y * y)


def objective_in_tensorflow(m: Any, x: Any, scale: Any, shift: Any) -> Any:
    """TensorFlow's layer norm is a Keras layer; its users write the formula."""
    return formula(m, m.nn.gelu, x, scale, shift)


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Normal throughout."""
    x = rng.standard_normal((ROWS, SIZE)).astype(np.float32)
    scale, shift = rng.standard_normal((2, SIZE)).astype(np.float32)
    return x, scale, shift


def reference(x: Array, scale: Array, shift: Array) -> Sequence[Array]:
    """The adjoint by hand."""
    from scipy.special import ndtr

    x, scale, shift = (part.astype(np.float64) for part in (x, scale, shift))
    centred = x - x.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + EPSILON)
    normal = centred / spread
    z = normal * scale + shift
    cdf, density = ndtr(z), np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    y = z * cdf
    by_z = 2 * y * (cdf + z * density)
    by_normal = by_z * scale
    along = np.mean(by_normal * normal, axis=1, keepdims=True)
    by_x = by_normal - by_normal.mean(axis=1, keepdims=True) - normal * along
    return [
        np.asarray(np.sum(y * y)),
        by_x / spread,
        np.sum(by_z * normal, axis=0),
        np.sum(by_z, axis=0),
    ]


CASES = (
    Case(
        name="layernorm_gelu",
        description="layer norm and gelu, 4096 x 512 float32: value, 3 gradients",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(
            objective,
            wrt=(0, 1, 2),
            own={
                "jax": objective_in_jax,
                "torch": objective_in_torch,
                "tensorflow": objective_in_tensorflow,
            },
        ),
        goals=(Leads(2.0),),
    ),
)
