"""Tiles of rows and of columns that do not divide their number."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from limits import set_limits

import tapejit as tj
from tapejit.targets.cpu.matmul.tiled import TiledMatmul
from tapejit.targets.cpu.matmul.tiled_tiling import TileCut
from tapejit.targets.cpu.module import build
from tapejit.targets.cpu.schedule.tile_columns import even_part, part_of

from .compiled import WAYS_OF_TILES, gradients, limit_tiles

Program = Callable[..., list[Any]]


@pytest.fixture(params=WAYS_OF_TILES)
def small_limits(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_tiles(monkeypatch, request.param, 24, 16)
    set_limits(monkeypatch, row_tile_least_rows=8, row_tile_result_ratio=0)
    if request.param == "columns in tiles":  # of one row, none would have a rest
        set_limits(monkeypatch, column_tile_least_rows=8, column_tile_least_columns=16)
    set_limits(monkeypatch, threads_least_instructions=1, task_least_instructions=1)


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What kinds of products there are for last tiles, with the axes that are cut."""
    found: set[str] = set()
    emit = TiledMatmul.emit_cut

    def noted(self: TiledMatmul, cut: TileCut) -> Any:
        last, cuts = cut.sizes.last, self.role.cuts.items()
        if last:
            names = sorted(x for x, axis in cuts if axis in last)
            found.add(f"{self.role.kind} {''.join(names)}")
        return emit(self, cut)

    monkeypatch.setattr(TiledMatmul, "emit_cut", noted)
    return found


def scores(q: Any, k: Any) -> Any:
    return q @ tj.matrix_transpose(k) / 4


def causal(q: Any, k: Any, v: Any) -> Any:
    return tj.nn.scaled_dot_product_attention(q, k, v, is_causal=True)


def totals(q: Any, k: Any, v: Any) -> Any:
    weights = tj.exp(scores(q, k) - 3)
    return weights @ v + tj.sum(weights, axis=-2)[..., None, :1] + tj.sum(weights)


ATTENTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda q, k, v: tj.nn.softmax(scores(q, k)) @ v,
    "tanh": lambda q, k, v: tj.tanh(scores(q, k)) @ v,
    "causal": causal,
    "totals of columns": totals,
}
STACKS: dict[str, tuple[int, ...]] = {"a matrix": (), "heads": (2,), "both": (2, 3)}


def run(program: Program, tensors: list[Any], *threads: int) -> list[list[Any]]:
    """The results in native code, for some numbers of threads."""
    function, found = tj.function(program), []
    with tj.config.override(native=True, cache=False):
        for count in threads:
            with tj.set_num_threads(count):
                found.append([x.numpy() for x in function(*tensors)])
    return found


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_both_modes_agree_and_threads_make_no_difference(
    name: str, stack: str, full: bool
) -> None:
    rng = np.random.default_rng(0)
    program = gradients(ATTENTIONS[name])
    lengths = [(37, 100), (64, 67)]
    one = len(name + stack) % 2
    for queries, keys in lengths if full else lengths[one : one + 1]:
        sizes = (queries, keys, keys)
        shapes = [(*STACKS[stack], size, 8) for size in sizes]
        tensors = [tj.asarray(rng.standard_normal(shape)) for shape in shapes]
        expected = program(*tensors)
        ours, others = run(program, tensors, 1, 2)
        for at, (x, y, theirs) in enumerate(zip(ours, others, expected, strict=True)):
            where = f"{queries} and {keys}, result {at}"
            assert_agrees(COMPOSED, x, theirs.numpy(), where=where)
            assert x.tobytes() == y.tobytes(), where


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("name", ["softmax", "tanh", "causal"])
def test_the_source_computes_the_same(name: str) -> None:
    rng = np.random.default_rng(0)
    tensors = [tj.asarray(rng.standard_normal((2, n, 8))) for n in (37, 53, 53)]
    program, names = gradients(ATTENTIONS[name]), dict[str, Any]()
    with tj.config.override(native=True, cache=False):
        exec(tj.function(program).source(*tensors), names)
    found = names["run"](*[x.numpy() for x in tensors])
    for ours, theirs in zip(found, program(*tensors), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("small_limits", ["columns in tiles"], indirect=True)
@pytest.mark.usefixtures("small_limits")
def test_every_kind_of_product_has_one_for_last_tiles(rests: set[str]) -> None:
    tensors = [tj.ones((2, size, 8)) for size in (37, 100, 100)]
    run(gradients(ATTENTIONS["softmax"]), tensors, 1)
    assert rests >= {"rows m", "result m", "result k", "result km", "sum k", "sum m"}


@pytest.mark.usefixtures("small_limits")
def test_rows_that_are_made_for_a_product_may_have_a_rest(rests: set[str]) -> None:
    rng = np.random.default_rng(0)
    tensors = [tj.asarray(rng.standard_normal(x)) for x in ((2, 53, 24), (24, 16))]

    def program(x: Any, weight: Any) -> list[Any]:
        return [tj.nn.layer_norm(x) @ weight]

    ((ours,),), (theirs,) = run(program, tensors, 2), program(*tensors)
    assert_agrees(COMPOSED, ours, theirs.numpy())
    assert "result m" in rests


@pytest.mark.parametrize(
    ("size", "most", "least", "unit", "expected"),
    [
        (2048, 256, 128, 16, 256),
        (1000, 64, 32, 1, 50),
        (131, 64, 32, 1, 44),
        (1021, 256, 128, 16, 256),
        (4093, 256, 128, 16, 256),
    ],
)
def test_parts_have_no_rest_or_a_large_one(
    size: int, most: int, least: int, unit: int, expected: int
) -> None:
    assert part_of(size, most, least, unit) == expected


def test_even_parts_are_no_more_than_the_largest_would_be() -> None:
    for size in range(1, 400):
        for most in (16, 48, 64):
            part = even_part(size, most, 16)
            assert part % 16 == 0
            assert -(-size // part) == -(-size // most)


@pytest.mark.usefixtures("small_limits")
def test_tiles_of_one_matrix_are_several_tasks_unless_something_adds_up() -> None:
    q, k, v = (tj.asarray(np.ones((3, 100, 16), "f4")) for _ in range(3))
    program = gradients(ATTENTIONS["softmax"])
    plan = build(tj.function(program).graph(q, k, v), "tasks").plan
    found = set()
    for kernel in plan.kernels:
        kinds = {x.tiles.kind for x in kernel.steps() if x.tiles is not None}
        if kinds and kernel.loop is not None:
            found.add(("sum" in kinds, kernel.inner_tasks))
    assert found == {(False, 2), (True, 1)}
