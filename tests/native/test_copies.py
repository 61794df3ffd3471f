"""Products in the memory of their copies: no transpose is made."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from limits import set_limits

import tapejit as tj
from tapejit.targets.cpu.module import build

Program = Callable[..., list[tj.Tensor]]
STACK = (2, 3, 24, 40)  # of products, each of which is a kernel of its own
SIZE = int(np.prod(STACK))


def normal(*shape: int, dtype: Any = "f4", seed: int = 0) -> tj.Tensor:
    rng = np.random.default_rng([seed, len(shape)])
    return tj.asarray((rng.standard_normal(shape) / 4).astype(dtype))


def operands() -> tuple[tj.Tensor, tj.Tensor]:
    """Of products in a stack."""
    return normal(2, 3, 24, 64), normal(2, 3, 64, 40)


def checked(program: Program, *arguments: tj.Tensor) -> list[str]:
    """What the kernels of a program compute, which is what it computes eagerly."""
    expected = program(*arguments)
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        got = function(*arguments)
        kernels = [str(x) for x in function.kernels(*arguments)]
        namespace: dict[str, Any] = {}
        exec(function.source(*arguments), namespace)
        read = namespace["run"](*[x.numpy() for x in arguments])
    for ours, text, theirs in zip(got, read, expected, strict=True):
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy())
        assert_agrees(COMPOSED, text, theirs.numpy())
    return kernels


def copies_in(kernels: list[str]) -> int:
    return sum("copy" in kernel for kernel in kernels)


@pytest.mark.parametrize("axes", list(permutations(range(4))), ids=str)
def test_axes_that_change_places(axes: tuple[int, ...]) -> None:
    def program(x: tj.Tensor, y: tj.Tensor, w: tj.Tensor) -> list[tj.Tensor]:
        moved = tj.permute_dims(x @ y, axes)
        flat = tj.reshape(moved, (SIZE // 48, 48))
        return [flat @ w, tj.sum(flat * flat, axis=0)]

    kernels = checked(program, *operands(), normal(48, 64))
    assert copies_in(kernels) == (axes[-1] < 2), "rows or columns lie side by side"


def test_heads_are_joined_without_a_copy_forwards_and_backwards() -> None:
    def split(x: tj.Tensor) -> tj.Tensor:
        return tj.permute_dims(tj.reshape(x, (4, 64, 4, 32)), (0, 2, 1, 3))

    def program(
        x: tj.Tensor, q: tj.Tensor, k: tj.Tensor, v: tj.Tensor, w: tj.Tensor
    ) -> list[tj.Tensor]:
        with tj.GradientTape() as tape:
            tape.watch([x, q, k, v, w])
            queries, keys, values = (split(x @ y) for y in (q, k, v))
            scores = queries @ tj.matrix_transpose(keys) / 7.0
            seen = tj.permute_dims(tj.nn.softmax(scores) @ values, (0, 2, 1, 3))
            y = tj.reshape(seen, (4, 64, 128)) @ w
            loss = tj.sum(y * y)
        return list(tape.gradient(loss, [x, q, k, v, w]))

    weights = [normal(128, 128, seed=at) for at in range(4)]
    assert not copies_in(checked(program, normal(4, 64, 128), *weights))


def test_who_else_reads_a_product_sees_it_as_it_was() -> None:
    """A product of a view is one of other strides; sums of elements need the copy."""

    def program(x: tj.Tensor, y: tj.Tensor, w: tj.Tensor) -> list[tj.Tensor]:
        product = x @ y
        flat = tj.reshape(tj.permute_dims(product, (0, 2, 1, 3)), (48, 120))
        part = product[:, 1:, ::-1, 4:36]
        return [flat @ w, part @ tj.matrix_transpose(part)]

    assert copies_in(checked(program, *operands(), normal(120, 64))) == 0

    def summed(x: tj.Tensor, y: tj.Tensor, w: tj.Tensor) -> list[tj.Tensor]:
        product = x @ y
        flat = tj.reshape(tj.permute_dims(product, (0, 2, 1, 3)), (48, 120))
        return [flat @ w, tj.cumulative_sum(product, axis=2)]

    checked(summed, *operands(), normal(120, 64))


@pytest.mark.parametrize("dtype", ["f2", "f8"])
def test_other_floats(dtype: str) -> None:
    def program(x: tj.Tensor, y: tj.Tensor, w: tj.Tensor) -> list[tj.Tensor]:
        moved = tj.permute_dims(x @ y, (0, 3, 1, 2))
        return [tj.reshape(moved, (80, 72)) @ w]

    x, y = (tj.asarray(x.numpy().astype(dtype)) for x in operands())
    checked(program, x, y, normal(72, 64, dtype=dtype))


def test_results_and_copies_of_them() -> None:
    """What is returned lies row by row, whatever else is made of it."""

    def program(x: tj.Tensor, y: tj.Tensor, w: tj.Tensor) -> list[tj.Tensor]:
        product = x @ y
        moved = tj.permute_dims(product, (0, 2, 1, 3))
        return [product, moved, tj.reshape(moved, (48, 120)) @ w]

    checked(program, *operands(), normal(120, 64))


def test_sums_over_tiles_stay_compact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that tiles of rows add to is read and written for each of them."""
    set_limits(monkeypatch, row_tile_least_elements=1, row_tile_most_rows=32)

    def program(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> list[tj.Tensor]:
        with tj.GradientTape() as tape:
            tape.watch([q, k, v])
            heads = [
                tj.permute_dims(tj.reshape(x, (128, 2, 32)), (1, 0, 2))
                for x in (q, k, v)
            ]
            y = tj.nn.softmax(heads[0] @ tj.matrix_transpose(heads[1])) @ heads[2]
            loss = tj.sum(y * y)
        return list(tape.gradient(loss, [q, k, v]))

    kernels = checked(program, *[normal(128, 64, seed=at) for at in range(3)])
    assert any("in tiles" in kernel and "matmul 3" in kernel for kernel in kernels)
    assert copies_in(kernels)


@pytest.mark.parametrize("heads", [2, 4])
def test_sums_of_few_rows_over_tiles_lie_the_other_way(
    monkeypatch: pytest.MonkeyPatch, heads: int
) -> None:
    """The gradient of keys, transposed as they are, that a product with weights has."""
    set_limits(monkeypatch, row_tile_least_elements=1, row_tile_most_rows=32)

    def program(x: tj.Tensor, q: tj.Tensor, k: tj.Tensor) -> list[tj.Tensor]:
        def split(x: tj.Tensor) -> tj.Tensor:
            return tj.permute_dims(tj.reshape(x, (128, heads, -1)), (1, 0, 2))

        with tj.GradientTape() as tape:
            tape.watch([q, k])
            scores = split(x @ q) @ tj.matrix_transpose(split(x @ k))
            y = tj.nn.softmax(scores) @ split(x)
            loss = tj.sum(y * y)
        return list(tape.gradient(loss, [q, k]))

    arguments = [normal(128, 64), *[normal(64, 64, seed=at) for at in (1, 2)]]
    checked(program, *arguments)
    graph = tj.function(program).graph(*arguments)
    for near, expected in ((4096, 1), (1, 0)):
        set_limits(monkeypatch, transposed_row_bytes=near)
        plan = build(graph, "turned").plan
        sums = [
            step
            for kernel in plan.kernels
            for step in kernel.steps()
            if step.tiles is not None and step.tiles.kind == "sum"
        ]
        assert sums
        assert sum(step.order is not None for step in sums) == expected
