"""What a warm call of a compiled function costs besides its work.

The function adds three arrays of ten float32, so next to nothing is computed: the time
is finding what was traced for these arguments, running it and wrapping the result. The
base is `tapejit (executable)`, which runs what `tapejit` has traced without looking
anything up or wrapping anything: what is above it is what Python adds to a call. NumPy
evaluates the same expression as it stands.

Each peer is called once before, so every timed call is a warm one. Torch compiles with
the C++ compiler of the machine: where there is none, only its eager mode runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.case import Above, Array, Case


def add(x: Any, y: Any, z: Any) -> Any:
    """The function that is called."""
    return x + y + z


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Three arrays of ten."""
    x, y, z = rng.standard_normal((3, 10)).astype(np.float32)
    return x, y, z


def reference(x: Array, y: Array, z: Array) -> Sequence[Array]:
    """The sum in float64."""
    return [add(*[part.astype(np.float64) for part in (x, y, z)])]


def with_numpy(x: Array, y: Array, z: Array) -> Callable[[], Any]:
    """The Python function itself."""
    return lambda: add(x, y, z)


def with_tensors(x: Array, y: Array, z: Array) -> Callable[[], Any]:
    """tapejit, called with its own tensors."""
    import tapejit as tj

    function = tj.function(add)
    a, b, c = tj.asarray(x), tj.asarray(y), tj.asarray(z)
    return lambda: function(a, b, c)


def with_arrays(x: Array, y: Array, z: Array) -> Callable[[], Any]:
    """tapejit, called with NumPy's arrays, which are read where they are."""
    import tapejit as tj

    function = tj.function(add)
    return lambda: function(x, y, z)


def with_executable(x: Array, y: Array, z: Array) -> Callable[[], Any]:
    """The base: what tapejit's function runs; the list of arguments is used up."""
    import tapejit as tj
    from tapejit.runtime.executable import executable_for

    run = executable_for(tj.function(add).graph(x, y, z)).run
    return lambda: run([x, y, z])


def with_torch(x: Array, y: Array, z: Array) -> Callable[[], Any]:
    """Torch operation by operation."""
    import torch

    a, b, c = torch.tensor(x), torch.tensor(y), torch.tensor(z)
    return lambda: add(a, b, c)


def with_torch_compile(x: Array, y: Array, z: Array) -> Callable[[], Any]:
    """Torch's compiler with its default settings."""
    import torch

    function = torch.compile(add)
    a, b, c = torch.tensor(x), torch.tensor(y), torch.tensor(z)
    return lambda: function(a, b, c)


def with_tensorflow(x: Array, y: Array, z: Array) -> Callable[[], Any]:
    """`tf.function` with its own tensors."""
    import tensorflow as tf

    function = tf.function(add)
    a, b, c = tf.constant(x), tf.constant(y), tf.constant(z)
    return lambda: function(a, b, c)


def with_jax(x: Array, y: Array, z: Array) -> Callable[[], Any]:
    """`jax.jit` with its own arrays."""
    import jax
    import jax.numpy as jnp

    function = jax.jit(add)
    a, b, c = jnp.asarray(x), jnp.asarray(y), jnp.asarray(z)
    return lambda: function(a, b, c).block_until_ready()


PEERS: dict[str, Callable[..., Callable[[], Any]]] = {
    "numpy": with_numpy,
    "tapejit": with_tensors,
    "tapejit (arrays)": with_arrays,
    "tapejit (executable)": with_executable,
    "torch": with_torch,
    "tensorflow": with_tensorflow,
    "jax (jit)": with_jax,
}

if shutil.which(os.environ.get("CXX") or "g++"):
    PEERS["torch (compile)"] = with_torch_compile

CASES = (
    Case(
        name="function_call",
        description="a warm call of a function: x + y + z on ten float32",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders=PEERS,
        goals=(Above(3.0, "tapejit (executable)"),),
    ),
)
