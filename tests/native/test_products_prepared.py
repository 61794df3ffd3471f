"""Products whose right operand is packed before the first task, once for all of them.

Large ones are; here the limits are small, so that products of any kind are. How a
product is cut does not change a bit of it, so each of them is compared with the one
whose tasks pack for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
from limits import set_limits

import tapejit as tj
from tapejit.base import tree
from tapejit.runtime import executable
from tapejit.targets.cpu.module import build

from .compiled import (
    assert_same_for_any_processor,
    assert_same_for_any_threads,
    needs_levels,
)
from .test_products import (
    EPILOGUES,
    Array,
    Body,
    assert_native_agrees,
    drawn,
    gradient_of,
    operands,
)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every product that packs its right side and has some rows has it packed first."""
    limit(monkeypatch, 1)
    return monkeypatch


def limit(monkeypatch: pytest.MonkeyPatch, work: float) -> None:
    set_limits(
        monkeypatch,
        prepacked_operations=work,
        prepacked_a_bytes=1 << 12,
        packed_a_bytes=1 << 12,
    )
    # Equal graphs may have been compiled with other limits.
    monkeypatch.setattr(executable, "EXECUTABLES", WeakValueDictionary())


def preparations(body: Body, arrays: Sequence[Array]) -> int:
    """How many functions there are that pack all panels of a product."""
    graph = tj.function(body).graph(*map(tj.asarray, arrays))
    functions = build(graph, "prepared").module.functions
    return sum("gemm_panels" in x.name for x in functions)


def bits(body: Body, arrays: Sequence[Array]) -> list[bytes]:
    with tj.config.override(native=True, cache=False):
        results = tree.leaves(tj.function(body)(*map(tj.asarray, arrays)))
    return [x.numpy().tobytes() for x in results]


def assert_prepared(
    limits: pytest.MonkeyPatch, body: Body, arrays: Sequence[Array]
) -> None:
    """Some product is, and all results are what they would be otherwise."""
    assert preparations(body, arrays)
    found = bits(body, arrays)
    limit(limits, np.inf)
    assert not preparations(body, arrays)
    assert found == bits(body, arrays)


ORDERS: dict[str, Body] = {
    "as they are": lambda x, y: x @ y,
    "left turned": lambda x, y: tj.reshape(x, x.shape[::-1]).T @ y,
    "right turned": lambda x, y: x @ tj.reshape(y, y.shape[::-1]).T,
    "result turned": lambda x, y: (x @ y).T * 2,
    "parts": lambda x, y: x[1:, 2:] @ y[2:, 1:-3],
    "steps": lambda x, y: x[:, ::2] @ y[::2, ::-1],
}
SIZES = [(120, 40, 50), (129, 300, 33), (100, 700, 70), (250, 19, 40)]


@pytest.mark.parametrize("dtype", ["f4", "f8", "bfloat16"])
@pytest.mark.parametrize("order", ORDERS)
def test_products_of_every_order(
    limits: pytest.MonkeyPatch, order: str, dtype: str
) -> None:
    kind = tj.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    for m, k, n in SIZES:
        limit(limits, 1)
        assert_prepared(limits, ORDERS[order], drawn((m, k), (k, n), dtype=kind))


@pytest.mark.parametrize("name", [x for x in EPILOGUES if x != "picked"])
def test_what_follows_a_product(limits: pytest.MonkeyPatch, name: str) -> None:
    """With gradients: products with sums, several in a stage, one before another."""
    body, arrays = EPILOGUES[name], operands(80, 70, 64)

    def loss(*xs: Any) -> Any:
        return sum(tj.sum(tj.tanh(x)) for x in tree.leaves(body(*xs)))

    assert_prepared(limits, gradient_of(loss), arrays)


@pytest.mark.usefixtures("limits")
def test_constants_are_packed_by_tasks() -> None:
    """The code knows such an array; part of it has no place of its own."""
    x, w = drawn((90, 60), (60, 40))

    def body(x: Any) -> Any:
        return x @ tj.constant(w), x[:, 1:] @ tj.constant(w)[1:]

    assert_native_agrees(body, [x])
    assert not preparations(body, [x])


@pytest.mark.usefixtures("limits")
def test_each_matrix_of_a_stack_is_packed_by_tasks() -> None:
    arrays = drawn((3, 90, 60), (3, 60, 40))
    assert_native_agrees(lambda x, y: x @ y, arrays)
    assert not preparations(lambda x, y: x @ y, arrays)


def test_a_right_side_that_is_very_large_is_not_there_twice(
    limits: pytest.MonkeyPatch,
) -> None:
    arrays = drawn((200, 40), (40, 50))  # rows that are many tiles on any processor
    set_limits(limits, prepacked_b_bytes=2 * arrays[1].nbytes)
    assert preparations(lambda x, y: x @ y, arrays)
    set_limits(limits, prepacked_b_bytes=arrays[1].nbytes - 1)
    assert not preparations(lambda x, y: x @ y, arrays)


def test_a_large_product_is_prepared() -> None:
    arrays = drawn((512, 512), (512, 512))
    assert_native_agrees(lambda x, y: x @ y, arrays)
    assert preparations(lambda x, y: x @ y, arrays)


def network(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = tj.nn.gelu(x @ w + b)
    return gradient_of(lambda x, w: tj.sum(tj.tanh(x @ w.T) ** 2))(y + r, w)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bits_do_not_depend_on_threads(dtype: str) -> None:
    arrays = operands(190, 130, 210, dtype)
    assert_same_for_any_threads(lambda: bits(network, arrays))


@needs_levels
@pytest.mark.usefixtures("limits")
def test_bits_do_not_depend_on_the_processor() -> None:
    arrays = operands(61, 130, 75)
    assert_same_for_any_processor(lambda: bits(network, arrays))
