"""A third target over the same walk: its counts are those that one finds by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tapejit import ops
from tapejit.base.types import TensorType
from tapejit.ir import Graph, Node, param
from tapejit.targets.cpu.target import CPU
from tapejit.tracing.inspect import inside

from .counting_target import CountingTarget, Counts
from .golden_programs import PROGRAMS

TARGET = CountingTarget("counting", CPU)


def counts_of(graph: Graph) -> Counts:
    return TARGET.emit(graph, TARGET.plan(graph), "counted")


def floats(name: str, *shape: int) -> Node:
    return param(name, TensorType(np.dtype(np.float32), shape))


def softmax() -> Graph:
    x = floats("x", 8, 100)
    e = ops.exp(x - ops.max(x, axes=(1,), keepdims=True))
    return Graph("softmax", (x,), (e / ops.sum(e, axes=(1,), keepdims=True),))


# x is read for the maximum and for the differences, e is kept for the division.
SOFTMAX = {
    "load": 3 * 800,
    "store": 2 * 800,
    "maximum": 800,
    "sub": 800,
    "exp": 800,
    "add": 800,
    "div": 800,
}


def layer() -> Graph:
    x, w, b = floats("x", 64, 32), floats("w", 32, 48), floats("b", 48)
    return Graph("layer", (x, w, b), (ops.tanh(x @ w + b),))


# The product is never in memory: its epilogue takes it from registers.
LAYER = {
    "matmul": 64 * 48 * 32,
    "load": 64 * 32 + 32 * 48 + 64 * 48,
    "store": 64 * 48,
    "add": 64 * 48,
    "tanh": 64 * 48,
}


def squares_of_columns() -> Graph:
    x = floats("x", 50, 12)
    return Graph("columns", (x,), (ops.sum(x * x, axes=(0,), keepdims=False),))


SQUARES = {"load": 600, "mul": 600, "add": 600, "store": 12}


def small_product() -> Graph:
    x, y = floats("x", 5, 3), floats("y", 3, 7)
    return Graph("small", (x, y), (x @ y,))


# A loop among loops: each element is a sum of 3 products.
PRODUCT = {"load": 2 * 105, "mul": 105, "add": 105, "store": 35}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (softmax, SOFTMAX),
        (layer, LAYER),
        (squares_of_columns, SQUARES),
        (small_product, PRODUCT),
    ],
)
def test_counts_are_those_found_by_hand(
    program: Callable[[], Graph], expected: dict[str, int]
) -> None:
    assert counts_of(program()) == expected


NO_ARITHMETIC = {"load", "store", "convert", "checked_index"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_reports_count_as_much_step_by_step(name: str) -> None:
    function, *arguments = PROGRAMS[name]()
    (part,) = inside(function, tuple(arguments), {}).parts
    counts = TARGET.emit(part.graph, part.plan, name)
    terms = counts.get("matmul", 0)  # a product and a sum for each
    flops = sum(n for what, n in counts.items() if what not in NO_ARITHMETIC)
    assert flops + terms == sum(kernel.flops for kernel in part.kernels)
