"""A program of twenty operations on two scalars: record it, differentiate it, repeat.

Nothing is computed to speak of, so this is what the machinery of recording and of the
adjoint costs in a loop that nobody compiled. The value is not asked for, only the two
derivatives. autograd works in float64 throughout, as its users do; the others in
float32. The right answer comes from the complex step, exact to float64: every function
here is analytic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, AtLeast, Case


def program(m: Any, x: Any, y: Any) -> Any:
    """Twenty operations, numbered; several values are used more than once."""
    a = x * y  # 1
    b = m.sin(x)  # 2
    c = a + b  # 3
    d = m.tanh(c)  # 4
    e = m.exp(d)  # 5
    f = e / y  # 6
    g = f - x  # 7
    h = g * g  # 8
    i = h + y  # 9
    j = m.log(i)  # 10
    k = m.sqrt(i)  # 11
    l_ = j * k  # 12
    n = l_ + d  # 13
    o = m.sin(n)  # 14
    p = o * e  # 15
    q = p - b  # 16
    r = m.tanh(q)  # 17
    s = r / k  # 18
    t = s + a  # 19
    return t * y  # 20


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Two positive scalars, so that log and sqrt have a derivative."""
    x, y = rng.uniform(0.5, 1.5, size=2).astype(np.float32)
    return np.asarray(x), np.asarray(y)


def reference(x: Array, y: Array) -> Sequence[Array]:
    """Both derivatives by the complex step."""
    step, x, y = 1e-100, x.astype(np.complex128), y.astype(np.complex128)
    along_x = program(np, x + 1j * step, y).imag / step
    along_y = program(np, x, y + 1j * step).imag / step
    return [np.asarray(along_x), np.asarray(along_y)]


def with_tapejit(x: Array, y: Array) -> Callable[[], Any]:
    """A fresh tape each time, not compiled by hand."""
    import tapejit as tj

    sources = [tj.asarray(x), tj.asarray(y)]

    def run() -> Any:
        with tj.GradientTape() as tape:
            tape.watch(sources)
            value = program(tj, *sources)
        return tape.gradient(value, sources)

    return run


def with_tensorflow(x: Array, y: Array) -> Callable[[], Any]:
    """Eager, as tapejit."""
    import tensorflow as tf

    sources = [tf.constant(x), tf.constant(y)]

    def run() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(sources)
            value = program(tf.math, *sources)
        return tape.gradient(value, sources)

    return run


def with_torch(x: Array, y: Array) -> Callable[[], Any]:
    """Eager, without accumulating into `.grad`."""
    import torch

    sources = [torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)]
    return lambda: torch.autograd.grad(program(torch, *sources), sources)


def with_autograd(x: Array, y: Array) -> Callable[[], Any]:
    """`grad` traces anew at each call.

    Of the ways to ask for both derivatives this is the fastest: Python floats, or a
    tuple as the one argument, cost up to 5 % more, two calls of `grad` 1.6 times.
    """
    import autograd.numpy as anp
    from autograd import grad

    differentiate = grad(lambda x, y: program(anp, x, y), argnum=(0, 1))
    sources = (x.astype(np.float64), y.astype(np.float64))
    return lambda: differentiate(*sources)


def with_jax(x: Array, y: Array) -> Callable[[], Any]:
    """`grad` traces anew at each call; each operation is dispatched by itself."""
    import jax
    import jax.numpy as jnp

    differentiate = jax.grad(lambda x, y: program(jnp, x, y), argnums=(0, 1))
    sources = (jnp.asarray(x), jnp.asarray(y))
    return lambda: jax.block_until_ready(differentiate(*sources))


def with_jax_jit(x: Array, y: Array) -> Callable[[], Any]:
    """One compiled call: what is possible once the program is known."""
    import jax
    import jax.numpy as jnp

    gradient = jax.grad(lambda x, y: program(jnp, x, y), argnums=(0, 1))
    differentiate = jax.jit(gradient)
    sources = (jnp.asarray(x), jnp.asarray(y))
    return lambda: jax.block_until_ready(differentiate(*sources))


CASES = (
    Case(
        name="tape_gradient_20",
        description="twenty scalar operations, recorded and differentiated",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders={
            "tapejit": with_tapejit,
            "torch": with_torch,
            "tensorflow": with_tensorflow,
            "autograd": with_autograd,
            "jax": with_jax,
            "jax (jit)": with_jax_jit,
        },
        goals=(
            AtLeast(5, "tensorflow"),
            AtLeast(1, "autograd"),
            AtLeast(1, "torch", promised=False),
        ),
    ),
)
