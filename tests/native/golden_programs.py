"""Small programs whose kernels are kept as text.

The lines of this file are part of those texts: add programs at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tapejit as tj

relu = tj.nn.relu  # known before anything is traced


def values(*shape: int) -> Any:
    """Some floats."""
    return tj.asarray(np.linspace(-1, 1, int(np.prod(shape)), dtype="f").reshape(shape))


def elementwise_sum() -> tuple[Any, ...]:
    @tj.function
    def energy(x: Any, w: Any) -> Any:
        h = tj.tanh(x * w)
        return tj.sum(h * h)

    return energy, values(6, 40), values(40)


def softmax() -> tuple[Any, ...]:
    @tj.function
    def softmax(x: Any) -> Any:
        shifted = x - tj.max(x, axis=-1, keepdims=True)
        weights = tj.exp(shifted)
        return weights / tj.sum(weights, axis=-1, keepdims=True)

    return softmax, values(8, 100)


def layernorm() -> tuple[Any, ...]:
    @tj.function
    def layernorm(x: Any, scale: Any, offset: Any) -> Any:
        centre = tj.mean(x, axis=-1, keepdims=True)
        spread = tj.mean((x - centre) ** 2, axis=-1, keepdims=True)
        return (x - centre) / tj.sqrt(spread + 1e-5) * scale + offset

    return layernorm, values(8, 64), values(64), values(64)


def matmul_bias_relu() -> tuple[Any, ...]:
    @tj.function
    def layer(x: Any, w: Any, b: Any) -> Any:
        return relu(x @ w + b)

    return layer, values(64, 32), values(32, 48), values(48)


def strided_slice() -> tuple[Any, ...]:
    @tj.function
    def differences(x: Any) -> Any:
        return x[1::2] - x[-2::-2]

    return differences, values(64)


def gather() -> tuple[Any, ...]:
    @tj.function
    def lookup(table: Any, index: Any) -> Any:
        return table[index] * 2.0

    return lookup, values(10, 16), tj.asarray(np.int64([3, 1, 4, 1, -1]))


def column_sum() -> tuple[Any, ...]:
    @tj.function
    def column_sum(x: Any) -> Any:
        return tj.sum(x, axis=0)

    return column_sum, values(32, 48)


def rows_and_columns() -> tuple[Any, ...]:
    @tj.function
    def both(x: Any) -> Any:
        return tj.sum(x, axis=1), tj.sum(x, axis=0)

    return both, values(32, 48)


def gradient() -> tuple[Any, ...]:
    @tj.function
    def slope(w: Any, x: Any, y: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(w)
            error = tj.sum(x * w, axis=1) - y
            loss = tj.mean(error * error)
        return loss, tape.gradient(loss, w)

    return slope, values(16), values(20, 16), values(20)


PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {
    made.__name__: made
    for made in (
        elementwise_sum,
        softmax,
        layernorm,
        matmul_bias_relu,
        strided_slice,
        gather,
        column_sum,
        rows_and_columns,
        gradient,
    )
}
