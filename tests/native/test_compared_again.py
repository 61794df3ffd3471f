"""Gradients that look for the largest element again, around a native call.

The call has returned the largest element of a product. Were the product computed again
for the gradient, by NumPy or by another kernel, its last bits could be others, and no
element would be the largest: 0 / 0. In 20 draws this happens at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import param
from tapejit.ops import matmul, max
from tapejit.transforms.partition import partition
from tapejit.transforms.vjp import vjp_graph

Body = Callable[..., Any]


@pytest.fixture(autouse=True)
def _native(with_native_code: None) -> Iterator[None]:
    tj.config.update(cache=False)
    yield
    tj.config.update(cache=True)


def draws(count: int = 20) -> Iterator[list[tj.Tensor]]:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1.5, 1.5, (2, 2, 100)).astype("f4")
        w = rng.choice([-1, -0.5, 0, 0.5, 1, 2], (100, 200)).astype("f4")
        yield [tj.asarray(x), tj.asarray(w)]


def scores(x: Any, w: Any) -> Any:
    return (x @ w) * 0.03125


def pooled(x: Any, w: Any) -> Any:
    images = tj.reshape(scores(x, w), (1, 20, 40, 1))
    return tj.nn.max_pool(images, 2, 2, "VALID")


def segment_largest(x: Any, w: Any) -> Any:
    return tj.segment_max(tj.reshape(scores(x, w), (-1,)), np.arange(800) % 7, 7)


def only_the_largest(x: Any, w: Any) -> Any:
    """A comparison that the user has written."""
    s = scores(x, w)
    return tj.where(s == tj.max(s, axis=-1, keepdims=True), s * s, 0.0)


def rounded_twice(x: Any, w: Any) -> Any:
    """What is cheap to make again, but may be one rounding in native code or two."""
    return tj.max(x[..., :1] * w[0] + w[1], axis=-1)


BODIES: dict[str, Body] = {
    "max": lambda x, w: tj.max(scores(x, w), axis=-1),
    "min": lambda x, w: tj.min(scores(x, w), axis=(0, 2), keepdims=True),
    "max of all": lambda x, w: tj.max(tj.tanh(scores(x, w))),
    "max inside": lambda x, w: tj.exp(tj.max(scores(x, w), axis=-1)) * 2,
    "max and scores": lambda x, w: (
        tj.max(scores(x, w), axis=-1, keepdims=True) - scores(x, w)
    ),
    "max_pool": pooled,
    "segment_max": segment_largest,
    "where": only_the_largest,
    "sort": lambda x, w: tj.sort(scores(x, w), axis=-1)[..., -3:],
    "top_k": lambda x, w: tj.top_k(scores(x, w), 3)[0],
    "quantile": lambda x, w: tj.quantile(scores(x, w), 0.3, axis=-1),
    "maximum": lambda x, w: tj.maximum(
        scores(x, w), tj.max(scores(x, w), axis=-1, keepdims=True)
    ),
    "two roundings": rounded_twice,
    "recompute_grad": tj.recompute_grad(lambda x, w: tj.max(scores(x, w), axis=-1)),
}


def gradient_around(f: Body, xs: list[tj.Tensor]) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(xs)
        y = f(*xs)
    return tape.gradient(y, xs)


@pytest.mark.parametrize("name", BODIES)
def test_the_gradient_around_a_call_finds_the_same_elements(name: str) -> None:
    body = BODIES[name]
    function = tj.function(lambda x, w: body(x, w))
    for xs in draws():
        found, expected = gradient_around(function, xs), gradient_around(body, xs)
        for x, y in zip(found, expected, strict=True):
            assert_agrees(COMPOSED, x.numpy(), y.numpy(), where=name)


def second_order(f: Body, xs: list[tj.Tensor]) -> Any:
    with tj.GradientTape() as outer:
        outer.watch(xs)
        with tj.GradientTape() as inner:
            inner.watch(xs)
            y = tj.sum(f(*xs) ** 2)
        by_x, by_w = inner.gradient(y, xs)
        z = tj.sum(by_x * by_x) + tj.sum(by_w)
    return outer.gradient(z, xs)


def tangents(f: Body, xs: list[tj.Tensor]) -> Any:
    with tj.ForwardAccumulator(xs, [tj.ones_like(x) for x in xs]) as forward:
        y = f(*xs)
    return [forward.jvp(y)]


def rows(f: Body, xs: list[tj.Tensor]) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(xs)
        y = f(*xs)
    return tape.jacobian(y, xs)


@cache
def calling(f: Body) -> Any:
    return tj.function(lambda x, w: f(x, w))


def nested(f: Body, xs: list[tj.Tensor]) -> Any:
    return gradient_around(calling(f), xs)


@cache
def differentiating(f: Body) -> Any:
    return tj.function(lambda x, w: gradient_around(f, [x, w]))


def inside(f: Body, xs: list[tj.Tensor]) -> Any:
    return differentiating(f)(*xs)


SAME = (nested, inside)  # they give what the gradient around gives
WAYS = [
    (way, name)
    for way in (second_order, tangents, rows, nested, inside)
    for name in ("max", "max_pool", "recompute_grad")
    if (way, name) != (rows, "max_pool")  # 200 rows prove no more than 4
]


@pytest.mark.parametrize(("way", "name"), WAYS)
def test_so_do_other_derivatives(way: Callable[..., Any], name: str) -> None:
    body = BODIES[name]
    function = tj.function(lambda x, w: body(x, w))
    for xs in draws():
        expected = gradient_around(body, xs) if way in SAME else way(body, xs)
        found = way(function, xs)
        for x, y in zip(found, expected, strict=True):
            assert_agrees(COMPOSED, x.numpy(), y.numpy(), where=name)


def test_residuals_are_values_of_the_body_and_what_is_compared_among_them() -> None:
    """Whoever differentiates the body again finds these, and nothing of an adjoint."""
    x = param("x", TensorType.parse("f32[4,8]"))
    w = param("w", TensorType.parse("f32[8,16]"))
    y = param("y", TensorType.parse("f32[4,16]"))
    product = matmul(x, w)
    for compared in (product * y, y * y + y):  # the second one is cheap
        body = Graph("f", (x, w, y), (max(compared, axes=(1,), keepdims=False),))
        joint = vjp_graph(body, wrt=body.inputs)
        forward, backward = partition(joint, inputs=3, outputs=1)
        residuals = forward.outputs[1:]
        assert {compared, *body.outputs} <= {*residuals}
        assert {*residuals} <= {*body.nodes, *body.inputs}
        assert product not in backward.nodes
        assert compared not in backward.nodes
