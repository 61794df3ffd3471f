"""The price of a call that returns a nest, and of one that has keywords.

Numbers without axes, so next to nothing is computed: the time is finding what was
traced, running it, and making the containers. `nested` returns a dict in a list in a
tuple, as a training step does; `keywords` has an argument that only has a name, and a
word that selects what is done. Compare with `call_overhead`, which has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads, Within
from benchmarks.gradients import has_compiler


def nested(x: Any, y: Any) -> Any:
    """Three numbers in three containers."""
    return x + y, [x * y, {"difference": x - y}]


def scaled(x: Any, *, scale: Any, how: str) -> Any:
    """One number; `how` selects what is traced."""
    return x * scale if how == "times" else x / scale


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Two numbers."""
    x, y = rng.standard_normal((2, 1)).astype(np.float32)
    return x.reshape(()), y.reshape(())


def reference_nested(x: Array, y: Array) -> Sequence[Array]:
    """The three numbers in float64."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    return [a + b, a * b, a - b]


def reference_keywords(x: Array, y: Array) -> Sequence[Array]:
    """The product in float64."""
    return [x.astype(np.float64) * y.astype(np.float64)]


Decorate = Callable[[Callable[..., Any]], Callable[..., Any]]


def calls(
    decorate: Decorate, as_tensor: Callable[[Array], Any], named: Decorate | None = None
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Builders for both cases; `named` decorates what has keywords."""

    def with_nest(x: Array, y: Array) -> Callable[[], Any]:
        function, a, b = decorate(nested), as_tensor(x), as_tensor(y)
        return lambda: function(a, b)

    def with_keywords(x: Array, y: Array) -> Callable[[], Any]:
        function, a, b = (named or decorate)(scaled), as_tensor(x), as_tensor(y)
        return lambda: function(a, scale=b, how="times")

    return with_nest, with_keywords


def with_tapejit(which: int) -> Callable[..., Any]:
    """`tj.function` with its own tensors."""

    def build(x: Array, y: Array) -> Callable[[], Any]:
        import tapejit as tj

        run: Callable[[], Any] = calls(tj.function, tj.asarray)[which](x, y)
        return run

    return build


def with_jax(which: int) -> Callable[..., Any]:
    """`jax.jit` with its own arrays, and the word static."""

    def build(x: Array, y: Array) -> Callable[[], Any]:
        import jax
        import jax.numpy as jnp

        def named(function: Callable[..., Any]) -> Callable[..., Any]:
            found: Callable[..., Any] = jax.jit(function, static_argnames="how")
            return found

        run = calls(jax.jit, jnp.asarray, named)[which](x, y)
        return lambda: jax.block_until_ready(run())

    return build


def with_tensorflow(which: int) -> Callable[..., Any]:
    """`tf.function` with its own tensors."""

    def build(x: Array, y: Array) -> Callable[[], Any]:
        import tensorflow as tf

        run: Callable[[], Any] = calls(tf.function, tf.constant)[which](x, y)
        return run

    return build


def with_torch_compile(which: int) -> Callable[..., Any]:
    """Torch's compiler."""

    def build(x: Array, y: Array) -> Callable[[], Any]:
        import torch

        run: Callable[[], Any] = calls(torch.compile, torch.tensor)[which](x, y)
        return run

    return build


def peers(which: int) -> dict[str, Callable[..., Callable[[], Any]]]:
    """The builders of one of the cases."""
    found = {
        "tapejit": with_tapejit(which),
        "jax (jit)": with_jax(which),
        "tensorflow (function)": with_tensorflow(which),
    }
    if has_compiler():
        found["torch (compile)"] = with_torch_compile(which)
    return found


GOALS = (Leads(2.0), Within(1.2, "µs", promised=False))
CASES = (
    Case(
        name="call_structures/nested",
        description="a warm call that returns (x + y, [x * y, {...: x - y}]), float32",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference_nested,
        builders=peers(0),
        goals=GOALS,
    ),
    Case(
        name="call_structures/keywords",
        description="a warm call f(x, scale=y, how='times') of a float32",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference_keywords,
        builders=peers(1),
        goals=GOALS,
    ),
)
