"""The Hessian of Rosenbrock's function of twenty float64, as one compiled function.

Twenty columns of a second derivative: what is measured is how well a package batches
them into one program. The matrix has three diagonals, and nobody is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.cases.rosenbrock import objective
from benchmarks.gradients import has_compiler, tensorflow_namespace, use_float64

SIZE = 20


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Around the minimum at one."""
    return (rng.uniform(0, 2, SIZE),)


def reference(x: Array) -> Sequence[Array]:
    """The three diagonals by hand."""
    diagonal = np.zeros(SIZE)
    diagonal[:-1] = 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
    diagonal[1:] += 200
    beside = -400 * x[:-1]
    return [np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)]


def with_tapejit(x: Array) -> Callable[[], Any]:
    """`tj.hessian`, compiled."""
    import tapejit as tj

    function = tj.function(tj.hessian(lambda x: objective(tj, x)))
    tensor = tj.asarray(x)
    return lambda: function(tensor)


def with_jax(x: Array) -> Callable[[], Any]:
    """`jax.hessian`, compiled."""
    import jax
    import jax.numpy as jnp

    use_float64([x])
    function = jax.jit(jax.hessian(lambda x: objective(jnp, x)))
    tensor = jnp.asarray(x)
    return lambda: function(tensor).block_until_ready()


def with_torch(x: Array) -> Callable[[], Any]:
    """`torch.func.hessian`, operation by operation."""
    import torch

    function = torch.func.hessian(lambda x: objective(torch, x))
    tensor = torch.tensor(x)
    return lambda: function(tensor)


def with_torch_compile(x: Array) -> Callable[[], Any]:
    """The same through Torch's compiler."""
    import torch

    function = torch.compile(torch.func.hessian(lambda x: objective(torch, x)))
    tensor = torch.tensor(x)
    return lambda: function(tensor)


def with_tensorflow(x: Array, *, xla: bool = False) -> Callable[[], Any]:
    """Two tapes, the outer one asked for a Jacobian."""
    import tensorflow as tf

    m = tensorflow_namespace()

    @tf.function(jit_compile=xla, autograph=False)
    def hessian(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = objective(m, x)
            gradient = inner.gradient(value, x)
        return outer.jacobian(gradient, x)

    tensor = tf.constant(x)
    return lambda: hessian(tensor)


PEERS: dict[str, Callable[..., Callable[[], Any]]] = {
    "tapejit": with_tapejit,
    "jax (jit)": with_jax,
    "torch": with_torch,
    "tensorflow (function)": with_tensorflow,
    "tensorflow (xla)": lambda x: with_tensorflow(x, xla=True),
}

if has_compiler():
    PEERS["torch (compile)"] = with_torch_compile

CASES = (
    Case(
        name="hessian",
        description="Hessian of Rosenbrock's function of twenty float64",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders=PEERS,
        goals=(Leads(2.0),),
    ),
)
