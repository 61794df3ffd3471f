"""Tiles of columns: nothing between the products of a gradient has whole rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from limits import set_limits

import tapejit as tj
from tapejit.ir import parse_graph
from tapejit.loops.kernels import LoopPlan
from tapejit.loops.lower.reuse_row_sums import with_known_products
from tapejit.loops.schedule.schedule import loops_in
from tapejit.loops.steps import ArrayOp, Copy
from tapejit.loops.steps import tiles_of as tile_role
from tapejit.rewrite.pipeline import optimise
from tapejit.targets.cpu.target import CPU

TIME, FEATURES = 1024, 16


def plain(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    return tj.nn.softmax(q @ tj.matrix_transpose(k) / 3.0) @ v


def divided(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    return tj.nn.scaled_dot_product_attention(q, k, v)


def causal(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    return tj.nn.scaled_dot_product_attention(q, k, v, is_causal=True)


def heads_joined(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    """What comes next has the steps first, as the heads of one result."""
    return tj.reshape(tj.permute_dims(plain(q, k, v), (1, 0, 2)), (-1, 2 * FEATURES))


def shifted(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    """Weights that are added to those of the column before."""
    weights = tj.nn.softmax(q @ tj.matrix_transpose(k) / 3.0)
    return (weights + tj.roll(weights, 1, axis=-1)) @ v


ATTENTIONS = {f.__name__: f for f in (plain, divided, causal, heads_joined, shifted)}


def gradients(name: str) -> Any:
    def program(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> list[tj.Tensor]:
        with tj.GradientTape() as tape:
            tape.watch([q, k, v])
            y = tj.tanh(ATTENTIONS[name](q, k, v))
            loss = tj.sum(y * y)
        return [loss, *tape.gradient(loss, [q, k, v])]

    return program


def drawn(dtype: str = "f4") -> list[tj.Tensor]:
    arrays = np.random.default_rng(0).standard_normal((3, 2, TIME, FEATURES))
    return [tj.asarray(x) for x in arrays.astype(dtype)]


@pytest.fixture(autouse=True)
def computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, row_tile_recomputed_bytes=1)


def planned(name: str) -> LoopPlan:
    with tj.config.override(native=True, cache=False):
        graph = tj.function(gradients(name)).graph(*drawn())
    return CPU.plan(optimise(graph))


def tiles_of(made: LoopPlan) -> list[list[int]]:
    """The tiles that each kernel's loops go by, the outer ones first."""
    return [[x.tile for x in loops_in(k.items) if x.tile] for k in made.kernels]


@pytest.mark.parametrize("name", ["plain", "divided", "causal", "heads_joined"])
def test_a_gradient_goes_by_tiles_of_rows_and_columns(name: str) -> None:
    made = planned(name)
    (backward,) = [
        kernel
        for kernel, tiles in zip(made.kernels, tiles_of(made), strict=True)
        if len(tiles) == 2
    ]
    products = [x for x in backward.steps() if isinstance(x.what, ArrayOp)]
    assert sorted(tile_role(x).kind for x in products) == [
        *("result", "rows", "rows", "sum", "sum")
    ]
    assert {tile_role(x).cut for x in products} == {"m", "n", "k"}
    kept = [made.storage[x] for x in backward.steps() if x in made.storage]
    private = [x for x in kept if x.kernel is not None]
    assert private
    assert all(x.size <= 64 * (256 + 16) for x in private)


def test_rows_that_need_other_columns_stay_whole() -> None:
    assert all(len(tiles) < 2 for tiles in tiles_of(planned("shifted")))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_numbers_are_those_of_attention(name: str, dtype: str) -> None:
    program, tensors = gradients(name), drawn(dtype)
    expected = program(*tensors)
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        found = []
        for threads in (1, 2):
            with tj.set_num_threads(threads):
                found.append([x.numpy() for x in function(*tensors)])
    for at, (x, y, ours) in enumerate(zip(*found, expected, strict=True)):
        assert x.tobytes() == y.tobytes(), "bits depend on threads"
        assert_agrees(COMPOSED, x, ours.numpy(), where=f"{name}, result {at}")


def test_the_source_computes_the_same() -> None:
    """Of few rows: the loops are the same, and Python goes through them slowly."""
    program, (q, *others) = gradients("plain"), drawn("f8")
    tensors = [q[:, :128], *others]
    names: dict[str, Any] = {}
    with tj.config.override(native=True, cache=False):
        source = tj.function(program).source(*tensors)
    assert source.count("in range(0, 128, 64):") == 2
    assert "in range(0, 1024, 256):" in source
    exec(source, names)
    got = names["run"](*[x.numpy() for x in tensors])
    for ours, theirs in zip(got, program(*tensors), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-12)


def test_heads_are_joined_without_a_copy_though_sums_read_them() -> None:
    copies = [
        step
        for kernel in planned("heads_joined").kernels
        for step in kernel.steps()
        if isinstance(step.what, Copy) and step.whole
    ]
    sizes = {tuple(x.node.shape) for x in copies if x.node is not None}
    assert (TIME, 2, FEATURES) not in sizes


@pytest.mark.parametrize(
    ("left", "right", "is_known"),
    [
        ("p", "v", True),
        ("p", "w", False),
        ("p + p", "v", False),
        ("g", "v", False),
    ],
)
def test_a_sum_along_rows_is_taken_from_a_product_that_is_there(
    left: str, right: str, is_known: bool
) -> None:
    """sum(p * (g @ vᵀ)), where `left @ right` is there."""
    operand = {"p": "p", "p + p": "%0", "g": "%5"}[left]
    graph = parse_graph(f"""
graph f(p: f32[8,9], g: f32[8,3], v: f32[9,3], w: f32[9,3]) {{
  %0: f32[8,9] = add p, p
  %5: f32[8,9] = mul %0, p
  %1: f32[8,3] = matmul {operand}, {right}
  %2: f32[3,9] = permute_dims v, axes=(1, 0)
  %3: f32[8,9] = matmul g, %2
  %4: f32[8,9] = mul %3, p
  %6: f32[8,1] = sum %4, axes=(1,), keepdims=True
  return %1, %6
}}
""")
    changed = with_known_products(graph)
    assert (changed is not graph) == is_known
    assert [x.op.name for x in changed.nodes].count("matmul") == 2 - is_known
