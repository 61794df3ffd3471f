"""How each peer is asked for the value of a function and its gradients.

A case that differentiates writes its objective once, as `objective(m, *arrays)`, where
`m` is the package by NumPy's names: `tapejit` itself, `jax.numpy`, `torch`, and for
TensorFlow, whose names differ, a small namespace. What a package has a function of its
own for (a layer norm, attention) a case gives to that package; the cross-entropy with
whole-numbered labels is `cross_entropy(m, scores, labels)`. Each function here
returns a builder for `Case.builders`: it moves the arrays into the package, and answers
the value followed by one gradient per argument in `wrt`, finished.

Start reading at `peers_of`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.case import OURS, Array, Program

Objective = Callable[..., Any]
Builder = Callable[..., Program | Callable[[], Any]]


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which `torch.compile` calls.

    >>> has_compiler() in (True, False)
    True
    """
    return shutil.which(os.environ.get("CXX") or "g++") is not None


def use_float64(arrays: Sequence[Array]) -> None:
    """JAX rounds float64 to float32 unless told otherwise before its first array."""
    import jax

    if any(array.dtype == np.float64 for array in arrays):
        jax.config.update("jax_enable_x64", True)


def jax_namespace() -> SimpleNamespace:
    """`jax.numpy` with the functions that stand elsewhere."""
    import jax
    import jax.numpy as jnp

    def cross_entropy(scores: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(scores)
        return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))

    return SimpleNamespace(
        **vars(jnp),
        erf=jax.scipy.special.erf,
        logsumexp=jax.scipy.special.logsumexp,
        nn=jax.nn,
        cross_entropy=cross_entropy,
    )


def torch_namespace() -> SimpleNamespace:
    """Torch takes NumPy's `axis` and `keepdims` nearly everywhere."""
    import torch

    return SimpleNamespace(
        **{name: getattr(torch, name) for name in ("sqrt", "log", "exp", "erf", "sum")},
        tanh=torch.tanh,
        mean=torch.mean,
        einsum=torch.einsum,
        reshape=torch.reshape,
        permute_dims=torch.permute,
        logsumexp=lambda x, axis: torch.logsumexp(x, dim=axis),
        take=lambda x, indices, axis: x[(slice(None),) * axis + (indices,)],
        asarray=torch.as_tensor,
        nn=torch.nn.functional,
        cross_entropy=torch.nn.functional.cross_entropy,
    )


def tensorflow_namespace() -> SimpleNamespace:
    """TensorFlow's functions under NumPy's names."""
    import tensorflow as tf

    def cross_entropy(scores: Any, labels: Any) -> Any:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        return tf.reduce_mean(each)

    return SimpleNamespace(
        sqrt=tf.sqrt,
        log=tf.math.log,
        exp=tf.exp,
        erf=tf.math.erf,
        tanh=tf.tanh,
        sum=tf.reduce_sum,
        mean=tf.reduce_mean,
        logsumexp=tf.reduce_logsumexp,
        einsum=tf.einsum,
        reshape=tf.reshape,
        permute_dims=tf.transpose,
        take=lambda x, indices, axis: tf.gather(x, indices, axis=axis),
        asarray=tf.constant,
        nn=tf.nn,
        cross_entropy=cross_entropy,
    )


def cross_entropy(m: Any, scores: Any, labels: Any) -> Any:
    """The mean cross-entropy by the function of the package `m`.

    >>> import tapejit as tj
    >>> float(cross_entropy(tj, tj.asarray([[0.0, 0.0]]), tj.asarray([1]))) < 0.7
    True
    """
    if hasattr(m, "cross_entropy"):
        return m.cross_entropy(scores, labels)
    return m.nn.sparse_softmax_cross_entropy(scores, labels)  # tapejit itself


def compiled_program(function: Any, arguments: Sequence[Any]) -> Program:
    """A call of a tapejit function, which can tell how many kernels it has.

    >>> import tapejit as tj
    >>> program = compiled_program(tj.function(lambda x: x + x), [tj.ones(2)])
    >>> float(program.run()[0]), program.kernels() in (0, 1)
    (2.0, True)
    """
    return Program(
        run=lambda: function(*arguments),
        kernels=lambda: len(function.explain(*arguments).kernels),
    )


def with_tapejit(objective: Objective, wrt: Sequence[int]) -> Builder:
    """A tape inside a function: one graph of value and gradients."""

    def build(*arrays: Array) -> Program:
        import tapejit as tj

        @tj.function
        def value_and_gradients(*arguments: Any) -> Any:
            sources = [arguments[i] for i in wrt]
            with tj.GradientTape() as tape:
                tape.watch(sources)
                value = objective(tj, *arguments)
            return value, *tape.gradient(value, sources)

        tensors = [tj.asarray(array) for array in arrays]
        return compiled_program(value_and_gradients, tensors)

    return build


def with_jax(objective: Objective, wrt: Sequence[int]) -> Builder:
    """`jit` of `value_and_grad`."""

    def build(*arrays: Array) -> Callable[[], Any]:
        import jax

        use_float64(arrays)
        m = jax_namespace()
        function = jax.jit(
            jax.value_and_grad(lambda *xs: objective(m, *xs), argnums=tuple(wrt))
        )
        tensors = [jax.numpy.asarray(array) for array in arrays]

        def run() -> Any:
            value, gradients = jax.block_until_ready(function(*tensors))
            return value, *gradients

        return run

    return build


def with_torch(
    objective: Objective, wrt: Sequence[int], *, compiled: bool = False
) -> Builder:
    """The objective, eager or compiled; `autograd.grad` accumulates into nothing."""

    def build(*arrays: Array) -> Callable[[], Any]:
        import torch

        m = torch_namespace()

        def value_of(*tensors: Any) -> Any:
            return objective(m, *tensors)

        function = torch.compile(value_of) if compiled else value_of
        tensors = [torch.tensor(array) for array in arrays]
        sources = [tensors[i].requires_grad_() for i in wrt]

        def run() -> Any:
            value = function(*tensors)
            return value, *torch.autograd.grad(value, sources)

        return run

    return build


def with_tensorflow(
    objective: Objective, wrt: Sequence[int], *, xla: bool = False
) -> Builder:
    """A tape inside `tf.function`, run by TensorFlow or compiled by XLA."""

    def build(*arrays: Array) -> Callable[[], Any]:
        import tensorflow as tf

        m = tensorflow_namespace()

        @tf.function(jit_compile=xla, autograph=False)
        def value_and_gradients(*arguments: Any) -> Any:
            sources = [arguments[i] for i in wrt]
            with tf.GradientTape() as tape:
                tape.watch(sources)
                value = objective(m, *arguments)
            gradients = tape.gradient(value, sources)
            return value, *[tf.convert_to_tensor(gradient) for gradient in gradients]

        tensors = [tf.constant(array) for array in arrays]
        return lambda: value_and_gradients(*tensors)

    return build


def with_autograd(objective: Objective, wrt: Sequence[int]) -> Builder:
    """`value_and_grad`, which traces anew at each call."""

    def build(*arrays: Array) -> Callable[[], Any]:
        import autograd.numpy as anp
        import autograd.scipy.special as special
        from autograd import value_and_grad

        names = {**vars(anp), "erf": special.erf, "logsumexp": special.logsumexp}
        m = SimpleNamespace(**names)
        function = value_and_grad(lambda *xs: objective(m, *xs), argnum=tuple(wrt))

        def run() -> Any:
            value, gradients = function(*arrays)
            return value, *gradients

        return run

    return build


def peers_of(
    objective: Objective,
    wrt: Sequence[int],
    *,
    own: Mapping[str, Objective] | None = None,
    autograd: bool = False,
) -> dict[str, Builder]:
    """Builders for tapejit and its peers; `own` replaces the objective of a package.

    >>> [*peers_of(lambda m, x: m.sum(x), [0])][:2]
    ['tapejit', 'jax (jit)']
    """
    chosen = {**dict.fromkeys(("jax", "torch", "tensorflow", OURS), objective)}
    chosen |= own or {}
    peers = {
        OURS: with_tapejit(chosen[OURS], wrt),
        "jax (jit)": with_jax(chosen["jax"], wrt),
        "torch": with_torch(chosen["torch"], wrt),
        "tensorflow (function)": with_tensorflow(chosen["tensorflow"], wrt),
        "tensorflow (xla)": with_tensorflow(chosen["tensorflow"], wrt, xla=True),
    }
    if has_compiler():
        peers["torch (compile)"] = with_torch(chosen["torch"], wrt, compiled=True)
    if autograd:
        peers["autograd"] = with_autograd(objective, wrt)
    return peers
