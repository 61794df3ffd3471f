"""Programs that only move memory, against what the memory can do.

What the memory can do is what the fastest of the others gets out of it in the same run:
the compilers, and for NumPy two threads that do nothing else. One copies as many bytes
into an array that exists already: `a * x + b` reads and writes exactly those. The
factors are 1 and 0, so that a copy is the right answer, but they are arguments, and no
compiler knows them. The other reads only: chunks of BLAS's dot product. A ratio of 0.7
says that tapejit moves 70 % of the bytes per second that the fastest does; below the
table stand the gigabytes per second of each. All but the copy must also allocate what
they return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads, Program
from benchmarks.gradients import compiled_program, has_compiler

COUNT, CHUNK, THREADS = 1 << 24, 1 << 19, 2

Function = Callable[..., Any]


def scale_and_shift(m: Any, x: Any, a: Any, b: Any) -> Any:
    """One multiplication and one addition for eight bytes."""
    return a * x + b


def sum_of_squares(m: Any, x: Any) -> Any:
    """Two operations for four bytes."""
    return m.sum(x * x)


def copy_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """16 million float32, and the factors."""
    x = rng.random(COUNT, dtype=np.float32)
    return x, np.asarray(np.float32(1)), np.asarray(np.float32(0))


def sum_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """16 million float32."""
    return (rng.random(COUNT, dtype=np.float32),)


def with_numpy_copy(x: Array, a: Array, b: Array) -> Callable[[], Any]:
    """The base for reading and writing."""
    pool, out = ThreadPoolExecutor(THREADS), np.empty_like(x)
    halves = [slice(i, i + COUNT // THREADS) for i in range(0, COUNT, COUNT // THREADS)]

    def run() -> Array:
        list(pool.map(lambda half: np.copyto(out[half], x[half]), halves))
        return out

    return run


def with_numpy_dot(x: Array) -> Callable[[], Any]:
    """The base for reading; chunks, added in float64, keep float32 accurate."""
    pool = ThreadPoolExecutor(THREADS)
    chunks = [x[i : i + CHUNK] for i in range(0, COUNT, CHUNK)]

    def run() -> Array:
        parts = pool.map(lambda chunk: np.dot(chunk, chunk), chunks)
        return np.asarray(sum(map(float, parts)), np.float32)

    return run


def with_tapejit(function: Function) -> Callable[..., Program]:
    """`tj.function` with its own tensors."""

    def build(*arrays: Array) -> Program:
        import tapejit as tj

        @tj.function
        def run(*arguments: Any) -> Any:
            return function(tj, *arguments)

        tensors = [tj.asarray(array) for array in arrays]
        return compiled_program(run, tensors)

    return build


def with_jax(function: Function) -> Callable[..., Callable[[], Any]]:
    """`jax.jit`."""

    def build(*arrays: Array) -> Callable[[], Any]:
        import jax
        import jax.numpy as jnp

        run = jax.jit(lambda *arguments: function(jnp, *arguments))
        tensors = [jnp.asarray(array) for array in arrays]
        return lambda: run(*tensors).block_until_ready()

    return build


def with_torch_compile(function: Function) -> Callable[..., Callable[[], Any]]:
    """Torch's compiler."""

    def build(*arrays: Array) -> Callable[[], Any]:
        import torch

        run = torch.compile(lambda *arguments: function(torch, *arguments))
        tensors = [torch.tensor(array) for array in arrays]
        return lambda: run(*tensors)

    return build


def peers(function: Function) -> dict[str, Callable[..., Any]]:
    """tapejit and the compilers."""
    found: dict[str, Callable[..., Any]] = {
        "tapejit": with_tapejit(function),
        "jax (jit)": with_jax(function),
    }
    if has_compiler():
        found["torch (compile)"] = with_torch_compile(function)
    return found


def scale_and_shift_reference(x: Array, a: Array, b: Array) -> Sequence[Array]:
    """In float64."""
    return [x.astype(np.float64) * float(a) + float(b)]


def sum_of_squares_reference(x: Array) -> Sequence[Array]:
    """In float64."""
    wide = x.astype(np.float64)
    return [np.asarray(wide @ wide)]


CASES = (
    Case(
        name="streaming/scale_and_shift",
        description="a * x + b over 16 million float32: 128 MB read and written",
        unit="ms",
        make_inputs=copy_inputs,
        reference=scale_and_shift_reference,
        builders={"numpy (copy)": with_numpy_copy, **peers(scale_and_shift)},
        goals=(Leads(0.7),),
        moved=8 * COUNT,
    ),
    Case(
        name="streaming/sum_of_squares",
        description="sum(x * x) over 16 million float32: 64 MB read",
        unit="ms",
        make_inputs=sum_inputs,
        reference=sum_of_squares_reference,
        builders={"numpy (dot)": with_numpy_dot, **peers(sum_of_squares)},
        goals=(Leads(0.7),),
        moved=4 * COUNT,
    ),
)
