"""Chains of sines: their length makes a program new, their gradient is known."""

from __future__ import annotations

from typing import Any

import numpy as np

import tapejit as tj


def chain(x: Any, length: int) -> Any:
    for _ in range(length):
        x = tj.sin(x)
    return tj.sum(x)


def chain_gradient(length: int, at: float) -> float:
    x = tj.Variable([at], dtype="float64")
    with tj.GradientTape() as tape:
        y = chain(x, length)
    return float(tape.gradient(y, x)[0])


def expected_chain_gradient(length: int, at: float) -> float:
    slope = 1.0
    for _ in range(length):
        slope *= np.cos(at)
        at = np.sin(at)
    return slope
