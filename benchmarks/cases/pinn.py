"""A network trained on a differential equation: derivatives of second derivatives.

A network 2-64-64-64-1 with tanh is u(x, y) at 1,024 points, in float32; the loss is the
mean square of u_xx + u_yy - f, the gradients are those of its eight parameters. Each
package takes the second derivatives as its users do: nested tapes in tapejit and
TensorFlow, `jvp` of `grad` in JAX, `autograd.grad` twice in Torch. Torch's compiler
refuses to differentiate twice what it has compiled, so it compiles the function
transforms: `grad` of `grad`, since it fails on the zeros within `jvp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.adjoints import widened
from benchmarks.case import Array, Case, Leads, Program
from benchmarks.cases.mlp import layers, make_weights
from benchmarks.gradients import Builder, compiled_program, has_compiler

SIZES, POINTS = (2, 64, 64, 64, 1), 1024


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Weights, coordinates of points in the unit square, and f there."""
    weights = [w * np.float32(0.5**0.5) for w in make_weights(rng, SIZES)]
    x, y = rng.uniform(size=(2, POINTS, 1))
    f = np.sin(np.pi * x) * np.sin(np.pi * y)
    return *weights, *(array.astype(np.float32) for array in (x, y, f))


def with_tapejit(*arrays: Array) -> Program:
    """Three tapes inside one another."""
    import tapejit as tj

    @tj.function
    def value_and_gradients(*arguments: Any) -> Any:
        *weights, x, y, f = arguments
        with tj.GradientTape() as tape:
            tape.watch(weights)
            with tj.GradientTape(persistent=True) as second:
                second.watch([x, y])
                with tj.GradientTape() as first:
                    first.watch([x, y])
                    u = layers(weights, tj.concat([x, y], axis=1), tj.tanh)
                u_x, u_y = first.gradient(u, [x, y])
            residual = second.gradient(u_x, x) + second.gradient(u_y, y) - f
            value = tj.mean(residual * residual)
        # The last bias moves u and no derivative of it.
        zero = tj.UnconnectedGradients.ZERO
        return value, *tape.gradient(value, weights, unconnected_gradients=zero)

    return compiled_program(value_and_gradients, [tj.asarray(a) for a in arrays])


def with_tensorflow(*arrays: Array, xla: bool = False) -> Callable[[], Any]:
    """The same in TensorFlow."""
    import tensorflow as tf

    @tf.function(jit_compile=xla, autograph=False)
    def value_and_gradients(*arguments: Any) -> Any:
        *weights, x, y, f = arguments
        with tf.GradientTape() as tape:
            tape.watch(weights)
            with tf.GradientTape(persistent=True) as second:
                second.watch([x, y])
                with tf.GradientTape() as first:
                    first.watch([x, y])
                    u = layers(weights, tf.concat([x, y], axis=1), tf.tanh)
                u_x, u_y = first.gradient(u, [x, y])
            residual = second.gradient(u_x, x) + second.gradient(u_y, y) - f
            value = tf.reduce_mean(residual * residual)
        # The last bias moves u and no derivative of it.
        zero = tf.UnconnectedGradients.ZERO
        return value, *tape.gradient(value, weights, unconnected_gradients=zero)

    tensors = [tf.constant(array) for array in arrays]
    return lambda: value_and_gradients(*tensors)


def with_jax(*arrays: Array) -> Callable[[], Any]:
    """`jvp` of `grad`: the points are independent, so a tangent of ones serves all."""
    import jax
    import jax.numpy as jnp

    def loss(weights: Any, x: Any, y: Any, f: Any) -> Any:
        def total(x: Any, y: Any) -> Any:
            return jnp.sum(layers(weights, jnp.concat([x, y], axis=1), jnp.tanh))

        ones = jnp.ones_like(x)
        _, u_xx = jax.jvp(lambda x: jax.grad(total, 0)(x, y), (x,), (ones,))
        _, u_yy = jax.jvp(lambda y: jax.grad(total, 1)(x, y), (y,), (ones,))
        return jnp.mean((u_xx + u_yy - f) ** 2)

    function = jax.jit(jax.value_and_grad(loss))
    *weights, x, y, f = [jnp.asarray(array) for array in arrays]

    def run() -> Any:
        value, gradients = jax.block_until_ready(function(weights, x, y, f))
        return value, *gradients

    return run


def with_torch(*arrays: Array) -> Callable[[], Any]:
    """`autograd.grad`, each time keeping the graph for the next."""
    import torch

    *weights, x, y, f = [torch.tensor(array) for array in arrays]
    for tensor in (*weights, x, y):
        tensor.requires_grad_()

    def derivative(u: Any, *by: Any) -> Any:
        return torch.autograd.grad(u, by, torch.ones_like(u), create_graph=True)

    def run() -> Any:
        u = layers(weights, torch.cat([x, y], dim=1), torch.tanh)
        u_x, u_y = derivative(u, x, y)
        residual = derivative(u_x, x)[0] + derivative(u_y, y)[0] - f
        value = torch.mean(residual * residual)
        # The last bias moves u and no derivative of it.
        gradients = torch.autograd.grad(value, weights, materialize_grads=True)
        return value, *gradients

    return run


def with_torch_compile(*arrays: Array) -> Callable[[], Any]:
    """The function transforms, compiled as one."""
    import torch
    from torch.func import grad, grad_and_value

    def loss(weights: Any, x: Any, y: Any, f: Any) -> Any:
        def total(x: Any, y: Any) -> Any:
            return torch.sum(layers(weights, torch.cat([x, y], dim=1), torch.tanh))

        u_xx = grad(lambda x: torch.sum(grad(total, 0)(x, y)))(x)
        u_yy = grad(lambda y: torch.sum(grad(total, 1)(x, y)))(y)
        return torch.mean((u_xx + u_yy - f) ** 2)

    function = torch.compile(grad_and_value(loss))
    *weights, x, y, f = [torch.tensor(array) for array in arrays]

    def run() -> Any:
        gradients, value = function(weights, x, y, f)
        return value, *gradients

    return run


def reference(*arrays: Array) -> Sequence[Array]:
    """Values, first and second derivatives by layer, and the adjoint of all of them."""
    *weights, x, y, f = widened(arrays)
    ones, zeros = np.ones_like(x), np.zeros_like(x)
    # What flows from layer to layer, stacked: h, h_x, h_y and h_xx + h_yy.
    h = np.stack([np.hstack(p) for p in ((x, y), (ones, zeros), (zeros, ones))])
    h = np.concatenate([h, np.zeros_like(h[:1])])
    kept: list[tuple[Array, Array]] = []
    for i in range(0, len(weights), 2):
        z = h @ weights[i]
        z[0] += weights[i + 1]
        kept.append((h, z))
        t = np.tanh(z[0])
        slope = 1 - t * t
        steep = z[1] ** 2 + z[2] ** 2
        bent = slope * z[3] - 2 * t * slope * steep
        h = np.stack([t, slope * z[1], slope * z[2], bent])
    residual = kept[-1][1][3] - f

    by_z = np.zeros_like(kept[-1][1])
    by_z[3] = 2 * residual / POINTS
    found: list[Array] = []
    for i in reversed(range(len(kept))):
        below, _ = kept[i]
        by_w = np.einsum("kpi,kpo->io", below, by_z)
        found[:0] = [by_w, by_z[0].sum(axis=0)]
        if i == 0:
            break
        g = by_z @ weights[2 * i].T
        z = kept[i - 1][1]
        t = np.tanh(z[0])
        slope = 1 - t * t
        steep = z[1] ** 2 + z[2] ** 2
        bend, third = -2 * t * slope, slope * (6 * t * t - 2)
        by_0 = g[0] * slope + bend * (g[1] * z[1] + g[2] * z[2] + g[3] * z[3])
        by_0 += g[3] * third * steep
        by_1, by_2 = (g[j] * slope + 2 * g[3] * bend * z[j] for j in (1, 2))
        by_z = np.stack([by_0, by_1, by_2, g[3] * slope])
    return [np.asarray(np.mean(residual**2)), *found]


PEERS: dict[str, Builder] = {
    "tapejit": with_tapejit,
    "jax (jit)": with_jax,
    "torch": with_torch,
    "tensorflow (function)": with_tensorflow,
    "tensorflow (xla)": lambda *arrays: with_tensorflow(*arrays, xla=True),
}

if has_compiler():
    PEERS["torch (compile)"] = with_torch_compile

CASES = (
    Case(
        name="pinn",
        description="Laplacian of a network 2-64-64-64-1 at 1024 points: 8 gradients",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=PEERS,
        goals=(Leads(1.5),),
    ),
)
