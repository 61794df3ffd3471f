"""What compiling takes grows with the size of a program, and no faster.

Counted are calls of Python functions, which are the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.ir.graph import Graph
from tapejit.targets.cpu import module

from .test_kernel_key import attention_step, traced


def integration(steps: int) -> Graph:
    """Gradients through Runge-Kutta steps: two kernels of many loops."""
    w, b = tj.Variable(np.eye(8, dtype="f4")), tj.Variable(np.ones(8, "f4"))

    def slope(y: Any) -> Any:
        return tj.tanh(y @ w + b)

    @tj.function
    def gradients(y: Any) -> Any:
        with tj.GradientTape() as tape:
            for _ in range(steps):
                first = slope(y)
                second = slope(y + 0.05 * first)
                y = y + 0.05 * (first + second)
            loss = tj.sum(y * y)
        return tape.gradient(loss, [w, b])

    return traced(gradients, tj.ones((16, 8)))


def recurrence(steps: int) -> Graph:
    """Gradients through steps that each take a slice: kernels one after the other."""
    w = tj.Variable(np.ones((64, 32), "f4") / 64)

    @tj.function
    def gradients(xs: Any) -> Any:
        with tj.GradientTape() as tape:
            h = tj.zeros((8, 32))
            for at in range(steps):
                h = tj.tanh(tj.concat([xs[at], h], axis=1) @ w)
            loss = tj.mean(h * h)
        return tape.gradient(loss, w)

    return traced(gradients, tj.ones((steps, 8, 32)))


def layers(count: int) -> Graph:
    return attention_step(count, 16)


def calls_to_build(graph: Graph) -> int:
    """How many calls of Python functions it takes to make the text of its code."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        module.build(graph, "grown")
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("make", "size"), [(integration, 12), (recurrence, 12), (layers, 2)]
)
def test_twice_the_program_takes_twice_the_calls(
    make: Callable[[int], Graph], size: int
) -> None:
    module.build(make(1), "before")  # what is done once in a process
    few, many = calls_to_build(make(size)), calls_to_build(make(2 * size))
    assert many < 2.1 * few
