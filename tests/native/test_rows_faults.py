"""Where rows of a tile are not enough: what needs more of a product gets all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from limits import set_limits

import tapejit as tj
from tapejit import ops
from tapejit.rewrite.pipeline import optimise
from tapejit.targets.cpu.module import build
from tapejit.tensor.dispatch import apply

from .compiled import gradients


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, row_tile_least_elements=1, row_tile_most_rows=32)
    set_limits(monkeypatch, row_tile_recomputed_bytes=1, row_tile_result_ratio=0)
    set_limits(monkeypatch, column_tile_least_columns=1, column_tile_most_columns=32)
    set_limits(monkeypatch, column_tile_least_rows=1)
    set_limits(monkeypatch, threads_least_instructions=1, task_least_instructions=1)


def check_both_modes(
    program: Callable[..., list[Any]], *shapes: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    tensors = [tj.asarray(rng.standard_normal(shape)) for shape in shapes]
    expected = program(*tensors)
    with tj.config.override(native=True, cache=False):
        got = tj.function(program)(*tensors)
    for at, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy(), where=f"result {at}")


def scores(q: Any, k: Any) -> Any:
    return q @ tj.matrix_transpose(k)


MOVES: dict[str, Callable[[Any], Any]] = {
    "one row": lambda s: s[..., 5:6, :],
    "rows turned round": lambda s: tj.flip(s, axis=-2),
    "the row before": lambda s: tj.roll(s, 1, axis=-2),
    "matrices turned round": lambda s: tj.flip(s, axis=0),
    "chosen rows": lambda s: tj.take(s, tj.arange(s.shape[-2])[::-1], axis=-2),
}


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("stack", [(), (2,)], ids=["single", "stack"])
@pytest.mark.parametrize("move", MOVES)
def test_scores_of_other_rows(move: str, stack: tuple[int, ...]) -> None:
    def body(q: Any, k: Any, v: Any) -> Any:
        s = scores(q, k)
        return tj.tanh(s + MOVES[move](s)) @ v

    shapes = (*stack, 96, 8), (*stack, 64, 8), (*stack, 64, 8)
    check_both_modes(lambda *arrays: [body(*arrays)], *shapes)
    check_both_modes(gradients(body), *shapes)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("stack", [(), (2,)], ids=["single", "stack"])
def test_random_words_of_other_rows(stack: tuple[int, ...]) -> None:
    key = tj.random.key(3)

    def program(q: Any, k: Any, v: Any) -> list[Any]:
        words = apply(ops.keyed_bits, key, shape=(*stack, 96, 128), bits=32)
        both = tj.logical_and(words < 2**31, tj.roll(words, 1, axis=-2) < 2**31)
        return [tj.where(both, tj.tanh(scores(q, k)), 0) @ v]

    check_both_modes(program, (*stack, 96, 8), (*stack, 128, 8), (*stack, 128, 8))


def softmaxed(q: Any, k: Any, v: Any) -> Any:
    return tj.nn.softmax(scores(q, k)) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    return tj.nn.scaled_dot_product_attention(q, k, v, is_causal=True)


ATTENTIONS = (softmaxed, tj.nn.scaled_dot_product_attention, causal)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("attend", ATTENTIONS, ids=lambda x: x.__name__)
@pytest.mark.parametrize("shape", [(96, 8), (2, 64, 8)], ids=str)
def test_two_layers_with_the_same_weights(
    shape: tuple[int, ...], attend: Callable[..., Any]
) -> None:
    """The gradient of one layer's values is a sum over rows that the other one needs.

    And it takes columns of the weights that rows of them are computed again for."""
    check_both_modes(gradients(lambda x: attend(x, x, attend(x, x, x) + x)), shape)

    def queries_too(x: Any) -> Any:
        again = attend(x, x, x) + x
        return attend(again, x, again)

    check_both_modes(gradients(queries_too), shape)


def test_many_rows_of_a_single_matrix_go_by_their_tiles() -> None:
    """They are no numbers of rows, to be vectors of their own."""
    attend = tj.nn.scaled_dot_product_attention
    check_both_modes(gradients(attend), (4096, 8), (48, 8), (48, 8))


@pytest.mark.usefixtures("small_limits")
def test_the_source_writes_sums_of_a_single_matrix() -> None:
    rng = np.random.default_rng(0)
    tensors = [tj.asarray(rng.standard_normal((96, 8))) for _ in range(3)]
    program = gradients(lambda q, k, v: tj.tanh(scores(q, k)) @ v)
    names: dict[str, Any] = {}
    with tj.config.override(native=True, cache=False):
        exec(tj.function(program).source(*tensors), names)
    got = names["run"](*[x.numpy() for x in tensors])
    for ours, theirs in zip(got, program(*tensors), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("time", [4104, 5000, 4099])
def test_queries_that_are_hard_to_cut_take_no_matrix_of_all_pairs(time: int) -> None:
    x = tj.zeros((time, 8))
    program = gradients(lambda x: tj.nn.scaled_dot_product_attention(x, x, x))
    with tj.config.override(native=True, cache=False):
        graph = tj.function(program).graph(x)
    assert build(optimise(graph), "attend").arena_size < time * time * 4 / 2


@pytest.mark.parametrize("lead", [(), (1,), (2,)], ids=["none", "one", "two"])
def test_heads_that_share_keys_take_no_matrix_of_all_pairs(lead: tuple[int]) -> None:
    time = 2048
    q, k = tj.zeros((*lead, 4, time, 8)), tj.zeros((*lead, 2, time, 8))
    program = gradients(tj.nn.scaled_dot_product_attention)
    with tj.config.override(native=True, cache=False):
        graph = tj.function(program).graph(q, k, k)
    assert build(optimise(graph), "attend").arena_size < time * time * 4


@pytest.mark.parametrize("reduce", [tj.sum, tj.max], ids=["sum", "max"])
def test_totals_of_the_last_tile_do_not_replace_those_before(
    reduce: Callable[..., Any],
) -> None:
    """Columns that two tiles have in common are added up once."""

    def program(y: Any, w: Any) -> list[Any]:
        total = reduce(y, axis=0)
        return [total, tj.tanh(total)[None, :] @ w.T]

    check_both_modes(program, (768, 210), (500, 210))
    single = [np.float32(x) for x in (np.ones((768, 210)), np.ones((500, 210)))]
    with tj.config.override(native=True, cache=False):
        total, _ = tj.function(program)(*single)
    assert set(total.numpy().tolist()) == {768.0 if reduce is tj.sum else 1.0}
