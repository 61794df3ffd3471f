"""Products in gradients and trainings: adjoints and updates of variables in epilogues.

The gradient by a matrix of weights is a product, and the update of the weights is what
follows it element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from agreement import COMPOSED, assert_agrees
from fuzz.arguments import Shape

import tapejit as tj

from .test_products import Array, Body, assert_native_agrees, drawn, gradient_of


def network_loss(x: Any, w: Any, u: Any, v: Any, b: Any) -> Any:
    hidden = tj.nn.gelu(tj.tanh(x @ w + b) @ u)
    return tj.mean((hidden @ v) ** 2)


def attention_loss(x: Any, w: Any, u: Any, v: Any) -> Any:
    """Four heads by hand, with a mask and what is added to it."""
    batch, length, size = x.shape

    def heads(y: Any) -> Any:
        return tj.permute_dims(tj.reshape(y, (batch, length, 4, -1)), (0, 2, 1, 3))

    q, k, values = heads(x @ w), heads(x @ u), heads(x @ v)
    scores = q @ tj.matrix_transpose(k) / math.sqrt(q.shape[-1])
    below = tj.arange(length)[:, None] >= tj.arange(length)
    mixed = tj.nn.softmax(tj.where(below, scores, -1e9), axis=-1) @ values
    mixed = tj.reshape(tj.permute_dims(mixed, (0, 2, 1, 3)), (batch, length, size))
    return tj.mean(tj.nn.layer_norm(x + mixed, axis=-1) ** 3)


def norm_loss(x: Any, w: Any, scale: Any, r: Any) -> Any:
    return tj.mean(tj.nn.gelu(tj.nn.layer_norm(x @ w, scale, scale)) * r)


LOSSES: dict[str, tuple[Body, list[Shape]]] = {
    "network": (network_loss, [(40, 32), (32, 48), (48, 24), (24, 20), (48,)]),
    "attention": (attention_loss, [(3, 20, 32), (32, 32), (32, 32), (32, 32)]),
    "norm": (norm_loss, [(40, 32), (32, 48), (48,), (40, 48)]),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_through_products(name: str, dtype: str) -> None:
    loss, shapes = LOSSES[name]
    assert_native_agrees(gradient_of(loss), drawn(*shapes, dtype=dtype))


def test_second_derivatives_through_products() -> None:
    def body(x: Any, w: Any, u: Any) -> Any:
        def slope(x: Any) -> Any:
            return tj.grad(lambda x: tj.sum(tj.tanh(tj.tanh(x @ w) @ u)))(x)

        with tj.GradientTape() as tape:
            tape.watch([w, u])
            loss = tj.mean(slope(x) ** 2)
        return loss, tape.gradient(loss, [w, u])

    assert_native_agrees(body, drawn((40, 20), (20, 32), (32, 20)))


class Trained:
    """Variables and a step of training; `decorate` is `tj.function` or nothing."""

    def __init__(self, optimizer: Callable[[], Any], decorate: Any) -> None:
        w, b, u = drawn((32, 48), (48,), (48, 24))
        self.variables = [tj.Variable(x) for x in (w, b, u)]
        self.optimizer = optimizer()
        self.step = decorate(self.body)

    def body(self, x: Any, y: Any) -> Any:
        w, b, u = self.variables
        with tj.GradientTape() as tape:
            loss = tj.mean((tj.tanh(x @ w + b) @ u - y) ** 2)
        slopes = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(slopes, self.variables, strict=True))
        return loss

    def run(self, steps: int) -> list[Array]:
        x, y = map(tj.asarray, drawn((40, 32), (40, 24)))
        losses = [self.step(x, y).numpy() for _ in range(steps)]
        return [*losses, *(v.numpy() for v in self.variables)]


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "descent": lambda: tj.optimizers.SGD(0.05),
    "momentum": lambda: tj.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: tj.optimizers.Adam(0.01, epsilon=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_variables_in_epilogues(name: str) -> None:
    plain = Trained(OPTIMIZERS[name], lambda body: body).run(2)
    with tj.config.override(native=True):
        native = Trained(OPTIMIZERS[name], tj.function).run(2)
    for at, (got, expected) in enumerate(zip(native, plain, strict=True)):
        assert_agrees(COMPOSED, got, expected, where=f"value {at}")


def test_an_update_is_one_kernel_with_the_gradient() -> None:
    with tj.config.override(native=True):
        trained = Trained(OPTIMIZERS["descent"], tj.function)
        found = trained.step.kernels(*map(tj.asarray, drawn((40, 32), (40, 24))))
    shape = {48 * 24 * 4, 32 * 48 * 4}
    updates = [
        x for x in found if "matmul" in x.ops and "sub" in x.ops and x.writes in shape
    ]
    assert len(updates) == 2


@pytest.mark.parametrize("order", ["read-first", "assigned-first"])
def test_a_variable_that_its_own_update_multiplies(order: str) -> None:
    """The product reads all of what its epilogue replaces."""

    def run(decorate: Any) -> list[Array]:
        (start,) = drawn((40, 40))
        v = tj.Variable(start)

        @decorate
        def step(x: Any) -> Any:
            before = x @ v if order == "read-first" else x
            v.assign(1.5 * v - 0.5 * (v @ v.T @ v) / 40)
            return before, x @ v

        (x,) = map(tj.asarray, drawn((30, 40), seed=1))
        results = [y.numpy() for _ in range(2) for y in step(x)]
        return [*results, v.numpy()]

    plain = run(lambda body: body)
    with tj.config.override(native=True):
        native = run(tj.function)
    for at, (got, expected) in enumerate(zip(native, plain, strict=True)):
        assert_agrees(COMPOSED, got, expected, where=f"value {at}")
