"""What one operation costs while a tape records it.

Twenty operations in a row, each on the result of the one before, inside a fresh tape
that watches the first operand; the time is per operation, so a twentieth of opening,
closing and dropping the tape is part of it. `taped_op/tape` measures that alone, per
tape. The base is NumPy running the same twenty operations with no tape. Nothing is
differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.case import Above, Array, Case
from benchmarks.cases.eager_op import OPERATIONS, Operation, make_inputs

LENGTH = 20


def chain(operation: Operation, length: int, m: Any, x: Any, y: Any) -> Any:
    """The operation, `length` times, each on the result of the one before."""
    for _ in range(length):
        x = operation(m, x, y)
    return x


def reference(operation: Operation, length: int, x: Array, y: Array) -> Sequence[Array]:
    """The chain in float64."""
    return [chain(operation, length, np, x.astype(np.float64), y.astype(np.float64))]


def with_numpy(
    operation: Operation, length: int, x: Array, y: Array
) -> Callable[[], Any]:
    """The base: the same chain, not recorded."""
    return partial(chain, operation, length, np, x, y)


def with_tapejit(
    operation: Operation, length: int, x: Array, y: Array
) -> Callable[[], Any]:
    """One tape per chain; y is not watched."""
    import tapejit as tj

    first, second = tj.asarray(x), tj.asarray(y)

    def run() -> Any:
        with tj.GradientTape() as tape:
            tape.watch(first)
            return chain(operation, length, tj, first, second)

    return run


def with_torch(
    operation: Operation, length: int, x: Array, y: Array
) -> Callable[[], Any]:
    """The first operand requires a gradient, so every operation is recorded."""
    import torch

    first, second = torch.tensor(x, requires_grad=True), torch.tensor(y)
    return partial(chain, operation, length, torch, first, second)


def with_tensorflow(
    operation: Operation, length: int, x: Array, y: Array
) -> Callable[[], Any]:
    """As tapejit."""
    import tensorflow as tf

    first, second = tf.constant(x), tf.constant(y)

    def run() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(first)
            return chain(operation, length, tf, first, second)

    return run


def with_autograd(
    operation: Operation, length: int, x: Array, y: Array
) -> Callable[[], Any]:
    """`make_vjp` runs the function in a trace and stops short of the backward pass."""
    import autograd.numpy as anp
    from autograd import make_vjp

    record = make_vjp(lambda first: chain(operation, length, anp, first, y))
    return lambda: record(x)[1]


def with_jax(
    operation: Operation, length: int, x: Array, y: Array
) -> Callable[[], Any]:
    """`vjp` runs the function in a trace and stops short of the backward pass."""
    import jax
    import jax.numpy as jnp

    first, second = jnp.asarray(x), jnp.asarray(y)

    def record(first: Any) -> Any:
        return chain(operation, length, jnp, first, second)

    return lambda: jax.vjp(record, first)[0].block_until_ready()


PEERS = {
    "numpy": with_numpy,
    "tapejit": with_tapejit,
    "torch": with_torch,
    "tensorflow": with_tensorflow,
    "autograd": with_autograd,
    "jax": with_jax,
}

# Torch has no tape to open, and the traces of autograd and JAX need a function to run.
OPENS_A_TAPE = ("tapejit", "tensorflow")

CASES = (
    *(
        Case(
            name=f"taped_op/{name}",
            description=f"{text} on ten float32 under a tape, of {LENGTH} in a row",
            unit="µs",
            make_inputs=make_inputs,
            reference=partial(reference, operation, LENGTH),
            builders={
                peer: partial(build, operation, LENGTH) for peer, build in PEERS.items()
            },
            goals=(Above(3.0, "numpy"),),
            operations=LENGTH,
        )
        for name, (operation, text) in OPERATIONS.items()
    ),
    Case(
        name="taped_op/tape",
        description="open a tape, watch one tensor, close and drop it",
        unit="µs",
        make_inputs=make_inputs,
        reference=lambda x, y: [x.astype(np.float64)],
        builders={
            peer: partial(PEERS[peer], OPERATIONS["mul"][0], 0) for peer in OPENS_A_TAPE
        },
    ),
)
