"""How each peer is asked for a step of training: loss, gradients and update in one.

A case writes its loss as `loss(m, weights, *batch)`, where `m` is the package by
NumPy's names, as in `gradients.py`. A step answers the loss it started from and the
weights it ended with: the package's own variables, not copies, so that looking costs
nothing and the first answer checks the update too. Every package keeps its state and
updates it in the fastest way it has: fused optimizers in PyTorch, the operations behind
Keras's former optimizers in TensorFlow, a donated state in JAX.

The data structures are the two rules, `SGD` and `Adam`. Start reading at
`training_peers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.case import OURS, Array, Program
from benchmarks.gradients import (
    Builder,
    has_compiler,
    jax_namespace,
    tensorflow_namespace,
    torch_namespace,
)

Loss = Callable[..., Any]

BETA_1, BETA_2 = 0.9, 0.999
EPSILON = 1e-6
"""Ten times the usual, which changes no one's speed: Adam divides gradients by their
size, so that rounding errors of those smaller than epsilon show in the weights."""
ADDED_LATER = EPSILON / (1 - BETA_2) ** 0.5
"""Adam's epsilon for those who add it after they have corrected the mean of squares
for starting at zero (PyTorch, JAX's users), not before (tapejit, Keras): with this one
the first step, which is checked, is the same."""


@dataclass(frozen=True)
class SGD:
    """Along the gradient.

    >>> float(SGD(0.5).first_step(np.array(1.0), np.array(0.25)))
    0.875
    """

    rate: float

    def first_step(self, weight: Array, gradient: Array) -> Array:
        """The weight after one step, for the reference."""
        return weight - self.rate * gradient

    def in_tapejit(self) -> Any:
        """tapejit's optimizer."""
        import tapejit as tj

        return tj.optimizers.SGD(learning_rate=self.rate)

    def in_torch(self, weights: Sequence[Any]) -> Any:
        """Torch's optimizer, one kernel per weight."""
        import torch

        return torch.optim.SGD(weights, lr=self.rate, fused=True)

    def start_in_jax(self, weights: Sequence[Any]) -> Any:
        """There is nothing to remember."""
        return ()

    def in_jax(self, weights: Any, memory: Any, gradients: Any) -> tuple[Any, Any]:
        """The formula."""
        pairs = zip(weights, gradients, strict=True)
        return [w - self.rate * g for w, g in pairs], ()

    def in_tensorflow(self, variables: Sequence[Any]) -> Callable[[Any], None]:
        """A function that applies gradients."""
        import tensorflow as tf

        def apply(gradients: Any) -> None:
            for variable, gradient in zip(variables, gradients, strict=True):
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=self.rate, delta=gradient
                )

        return apply


@dataclass(frozen=True)
class Adam:
    """By means of the gradient and of its squares, with the usual betas.

    >>> float(Adam(0.5).first_step(np.array(1.0), np.array(2.0)).round(3))
    0.5
    """

    rate: float

    def first_step(self, weight: Array, gradient: Array) -> Array:
        """The weight after one step, for the reference: both means are new."""
        return weight - self.rate * gradient / (np.abs(gradient) + ADDED_LATER)

    def in_tapejit(self) -> Any:
        """tapejit's optimizer."""
        import tapejit as tj

        return tj.optimizers.Adam(self.rate, BETA_1, BETA_2, EPSILON)

    def in_torch(self, weights: Sequence[Any]) -> Any:
        """Torch's optimizer, one kernel per weight."""
        import torch

        betas = (BETA_1, BETA_2)
        return torch.optim.Adam(
            weights, lr=self.rate, betas=betas, eps=ADDED_LATER, fused=True
        )

    def start_in_jax(self, weights: Sequence[Any]) -> Any:
        """Number of steps, means, means of squares."""
        import jax.numpy as jnp

        zeros = [[jnp.zeros_like(w) for w in weights] for _ in range(2)]
        return jnp.zeros((), jnp.int32), *zeros

    def in_jax(self, weights: Any, memory: Any, gradients: Any) -> tuple[Any, Any]:
        """The formulas."""
        import jax.numpy as jnp

        steps, means, squares = memory
        steps = steps + 1
        means = [
            BETA_1 * m + (1 - BETA_1) * g for m, g in zip(means, gradients, strict=True)
        ]
        squares = [
            BETA_2 * v + (1 - BETA_2) * g * g
            for v, g in zip(squares, gradients, strict=True)
        ]
        rate = self.rate / (1 - BETA_1**steps)
        root = jnp.sqrt(1 - BETA_2**steps)
        stepped = [
            w - rate * m / (jnp.sqrt(v) / root + ADDED_LATER)
            for w, m, v in zip(weights, means, squares, strict=True)
        ]
        return stepped, (steps, means, squares)

    def in_tensorflow(self, variables: Sequence[Any]) -> Callable[[Any], None]:
        """A function that applies gradients."""
        import tensorflow as tf

        means, squares = (
            [tf.Variable(tf.zeros_like(variable)) for variable in variables]
            for _ in range(2)
        )
        powers = [tf.Variable(BETA_1), tf.Variable(BETA_2)]

        def apply(gradients: Any) -> None:
            for variable, m, v, gradient in zip(
                variables, means, squares, gradients, strict=True
            ):
                tf.raw_ops.ResourceApplyAdam(
                    var=variable.handle,
                    m=m.handle,
                    v=v.handle,
                    beta1_power=powers[0],
                    beta2_power=powers[1],
                    lr=self.rate,
                    beta1=BETA_1,
                    beta2=BETA_2,
                    epsilon=EPSILON,
                    grad=gradient,
                )
            for power, beta in zip(powers, (BETA_1, BETA_2), strict=True):
                power.assign(power * beta)

        return apply


Rule = SGD | Adam


def with_tapejit(loss: Loss, rule: Rule, count: int) -> Builder:
    """Variables, a tape and an optimizer in one function."""

    def build(*arrays: Array) -> Program:
        import tapejit as tj

        variables = [tj.Variable(array) for array in arrays[:count]]
        batch = [tj.asarray(array) for array in arrays[count:]]
        optimizer = rule.in_tapejit()

        @tj.function
        def step(*batch: Any) -> Any:
            with tj.GradientTape() as tape:
                value = loss(tj, variables, *batch)
            gradients = tape.gradient(value, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return value

        return Program(
            run=lambda: (step(*batch), *variables),
            kernels=lambda: len(step.explain(*batch).kernels),
        )

    return build


def with_jax(loss: Loss, rule: Rule, count: int) -> Builder:
    """`jit` of a pure step, which may write into the state it is given."""

    def build(*arrays: Array) -> Callable[[], Any]:
        from functools import partial

        import jax
        import jax.numpy as jnp

        m = jax_namespace()

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(weights: Any, memory: Any, *batch: Any) -> Any:
            value, gradients = jax.value_and_grad(lambda ws: loss(m, ws, *batch))(
                weights
            )
            return value, *rule.in_jax(weights, memory, gradients)

        weights = [jnp.array(array) for array in arrays[:count]]
        memory = rule.start_in_jax(weights)
        batch = [jnp.asarray(array) for array in arrays[count:]]

        def run() -> Any:
            nonlocal weights, memory
            value, weights, memory = step(weights, memory, *batch)
            jax.block_until_ready((value, weights, memory))
            return value, *weights

        return run

    return build


def with_torch(
    loss: Loss, rule: Rule, count: int, *, compiled: bool = False
) -> Builder:
    """The loss, eager or compiled, then `backward` and a fused optimizer."""

    def build(*arrays: Array) -> Callable[[], Any]:
        import torch

        m = torch_namespace()

        def value_of(weights: Any, *batch: Any) -> Any:
            return loss(m, weights, *batch)

        function = torch.compile(value_of) if compiled else value_of
        weights = [torch.tensor(array).requires_grad_() for array in arrays[:count]]
        batch = [torch.tensor(array) for array in arrays[count:]]
        optimizer = rule.in_torch(weights)

        def run() -> Any:
            optimizer.zero_grad()
            value = function(weights, *batch)
            value.backward()
            optimizer.step()
            return value, *weights

        return run

    return build


def with_tensorflow(
    loss: Loss, rule: Rule, count: int, *, xla: bool = False
) -> Builder:
    """Variables and a tape inside `tf.function`, run by TensorFlow or XLA."""

    def build(*arrays: Array) -> Callable[[], Any]:
        import tensorflow as tf

        m = tensorflow_namespace()
        variables = [tf.Variable(array) for array in arrays[:count]]
        batch = [tf.constant(array) for array in arrays[count:]]
        apply = rule.in_tensorflow(variables)

        @tf.function(jit_compile=xla, autograph=False)
        def step(*batch: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(m, variables, *batch)
            apply(tape.gradient(value, variables))
            return value

        return lambda: (step(*batch), *variables)

    return build


def training_peers(
    loss: Loss, rule: Rule, count: int, *, own: Mapping[str, Loss] | None = None
) -> dict[str, Builder]:
    """Builders of a step; the first `count` arrays are the weights.

    `own` replaces the loss of a package.

    >>> [*training_peers(lambda m, weights, x: m.sum(weights[0]), SGD(0.1), 1)][:2]
    ['tapejit', 'jax (jit)']
    """
    chosen = {
        **dict.fromkeys(("jax", "torch", "tensorflow", OURS), loss),
        **(own or {}),
    }
    tensorflow, torch = chosen["tensorflow"], chosen["torch"]
    peers = {
        OURS: with_tapejit(chosen[OURS], rule, count),
        "jax (jit)": with_jax(chosen["jax"], rule, count),
        "torch": with_torch(torch, rule, count),
        "tensorflow (function)": with_tensorflow(tensorflow, rule, count),
        "tensorflow (xla)": with_tensorflow(tensorflow, rule, count, xla=True),
    }
    if has_compiler():
        peers["torch (compile)"] = with_torch(torch, rule, count, compiled=True)
    return peers
