"""What one operation costs outside any tape: the price of calling tapejit at all.

Arrays of ten float32 leave nothing to compute, so the time is dispatch: checking the
operands, calling NumPy's kernel, wrapping the result. NumPy's own call is the base, and
the goal is stated as microseconds above it. JAX is not made to wait for each result
here: waiting would add about 15 % to its time, and ten elements are computed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.case import Above, Array, Case

Operation = Callable[[Any, Any, Any], Any]


def mul(m: Any, x: Any, y: Any) -> Any:
    """Two arrays through an operator."""
    return x * y


def tanh(m: Any, x: Any, y: Any) -> Any:
    """A function of the namespace."""
    return m.tanh(x)


def add_scalar(m: Any, x: Any, y: Any) -> Any:
    """An array and a Python float, which must not become a float64 array."""
    return x + 1.0


OPERATIONS: dict[str, tuple[Operation, str]] = {
    "mul": (mul, "x * y"),
    "tanh": (tanh, "tanh(x)"),
    "add_scalar": (add_scalar, "x + 1.0"),
}


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Near one, so that twenty operations in a row stay near one too."""
    x, y = rng.uniform(0.9, 1.1, size=(2, 10)).astype(np.float32)
    return x, y


def reference(operation: Operation, x: Array, y: Array) -> Sequence[Array]:
    """The operation in float64."""
    return [operation(np, x.astype(np.float64), y.astype(np.float64))]


def with_numpy(operation: Operation, x: Array, y: Array) -> Callable[[], Any]:
    """The base: NumPy's own call, through the same Python function."""
    return partial(operation, np, x, y)


def with_tapejit(operation: Operation, x: Array, y: Array) -> Callable[[], Any]:
    """No tape is active."""
    import tapejit as tj

    return partial(operation, tj, tj.asarray(x), tj.asarray(y))


def with_torch(operation: Operation, x: Array, y: Array) -> Callable[[], Any]:
    """Plain tensors: nothing requires a gradient."""
    import torch

    return partial(operation, torch, torch.tensor(x), torch.tensor(y))


def with_tensorflow(operation: Operation, x: Array, y: Array) -> Callable[[], Any]:
    """Eager tensors, no tape."""
    import tensorflow as tf

    return partial(operation, tf, tf.constant(x), tf.constant(y))


def with_jax(operation: Operation, x: Array, y: Array) -> Callable[[], Any]:
    """Operation by operation, no jit."""
    import jax.numpy as jnp

    return partial(operation, jnp, jnp.asarray(x), jnp.asarray(y))


PEERS = {
    "numpy": with_numpy,
    "tapejit": with_tapejit,
    "torch": with_torch,
    "tensorflow": with_tensorflow,
    "jax": with_jax,
}

CASES = tuple(
    Case(
        name=f"eager_op/{name}",
        description=f"{text} on ten float32, no tape",
        unit="µs",
        make_inputs=make_inputs,
        reference=partial(reference, operation),
        builders={peer: partial(build, operation) for peer, build in PEERS.items()},
        goals=(Above(1.5, "numpy"),),
    )
    for name, (operation, text) in OPERATIONS.items()
)
