"""A compiled `a * b + c` of three arrays of ten float32: the price of a call.

As `function_call`, but against the fastest way into each package, PyTensor's function
with `trust_input` among them, which skips all checks of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads, Within
from benchmarks.gradients import has_compiler


def combine(a: Any, b: Any, c: Any) -> Any:
    """The function that is called."""
    return a * b + c


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Three arrays of ten."""
    a, b, c = rng.standard_normal((3, 10)).astype(np.float32)
    return a, b, c


def reference(a: Array, b: Array, c: Array) -> Sequence[Array]:
    """The same in float64."""
    return [combine(*[x.astype(np.float64) for x in (a, b, c)])]


def with_tapejit(a: Array, b: Array, c: Array) -> Callable[[], Any]:
    """`tj.function` with its own tensors."""
    import tapejit as tj

    function = tj.function(combine)
    x, y, z = tj.asarray(a), tj.asarray(b), tj.asarray(c)
    return lambda: function(x, y, z)


def with_jax(a: Array, b: Array, c: Array) -> Callable[[], Any]:
    """`jax.jit` with its own arrays."""
    import jax
    import jax.numpy as jnp

    function = jax.jit(combine)
    x, y, z = jnp.asarray(a), jnp.asarray(b), jnp.asarray(c)
    return lambda: function(x, y, z).block_until_ready()


def with_torch_compile(a: Array, b: Array, c: Array) -> Callable[[], Any]:
    """Torch's compiler; its eager mode is no compiled function and not here."""
    import torch

    function = torch.compile(combine)
    x, y, z = torch.tensor(a), torch.tensor(b), torch.tensor(c)
    return lambda: function(x, y, z)


def with_tensorflow(
    a: Array, b: Array, c: Array, *, xla: bool = False
) -> Callable[[], Any]:
    """`tf.function` with its own tensors."""
    import tensorflow as tf

    function = tf.function(combine, jit_compile=xla)
    x, y, z = tf.constant(a), tf.constant(b), tf.constant(c)
    return lambda: function(x, y, z)


def with_pytensor(a: Array, b: Array, c: Array) -> Callable[[], Any]:
    """A compiled function that trusts its arguments to be of the declared types."""
    import pytensor
    import pytensor.tensor as pt

    variables = [pt.vector(name, dtype="float32") for name in "abc"]
    function = pytensor.function(variables, combine(*variables), trust_input=True)
    return lambda: function(a, b, c)


PEERS: dict[str, Callable[..., Callable[[], Any]]] = {
    "tapejit": with_tapejit,
    "jax (jit)": with_jax,
    "tensorflow (function)": with_tensorflow,
    "tensorflow (xla)": lambda a, b, c: with_tensorflow(a, b, c, xla=True),
    "pytensor (trust_input)": with_pytensor,
}

if has_compiler():
    PEERS["torch (compile)"] = with_torch_compile

CASES = (
    Case(
        name="call_overhead",
        description="a warm call of a compiled a * b + c, three arrays of ten float32",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders=PEERS,
        goals=(Leads(2.0), Within(1.5, "µs", promised=False)),
    ),
)
