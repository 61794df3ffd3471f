"""Random words for the rows of a tile: dropout keeps no matrix of all pairs either."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from limits import set_limits

import tapejit as tj
from tapejit.rewrite.pipeline import optimise
from tapejit.targets.cpu.module import build

from .compiled import WAYS_OF_TILES, limit_tiles

SIZES = {  # leading axes, queries, keys
    "tiles": ((3,), 96, 128),
    "stack": ((2, 2), 64, 96),
    "single": ((1, 2), 80, 64),
    "rows with gaps": ((2,), 64, 62),
    "tiles with a rest": ((2,), 53, 100),
    "a single one, with gaps": ((), 53, 67),
}


@pytest.fixture(params=WAYS_OF_TILES)
def small_limits(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_tiles(monkeypatch, request.param, most_rows=32, most_rows_of_columns=16)


def drawn(name: str, dtype: str = "f4") -> list[tj.Tensor]:
    lead, queries, keys = SIZES[name]
    rng = np.random.default_rng(0)
    shapes = [(*lead, size, 8) for size in (queries, keys, keys)]
    return [tj.asarray(rng.standard_normal(shape).astype(dtype)) for shape in shapes]


def step(generator: Any, q: Any, k: Any, v: Any, **options: Any) -> list[tj.Tensor]:
    with tj.GradientTape() as tape:
        tape.watch([q, k, v])
        y = tj.nn.scaled_dot_product_attention(
            q, k, v, dropout_rate=0.3, generator=generator, **options
        )
        loss = tj.sum(tj.tanh(y))
    return [y, *tape.gradient(loss, [q, k, v])]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=["all", "causal"])
@pytest.mark.parametrize("name", SIZES)
def test_the_same_weights_are_dropped_as_eagerly(
    name: str, options: dict[str, Any]
) -> None:
    tensors = drawn(name)
    eager, traced = tj.random.Generator(7), tj.random.Generator(7)
    with tj.config.override(native=True, cache=False):
        function = tj.function(step)
        for _ in range(2):
            expected = step(eager, *tensors, **options)
            with tj.set_num_threads(1):
                state = traced.state
                got = function(traced, *tensors, **options)
            traced.state = state
            again = function(traced, *tensors, **options)
            for at, (x, y, z) in enumerate(zip(got, again, expected, strict=True)):
                assert x.numpy().tobytes() == y.numpy().tobytes(), "threads"
                where = f"{name}, result {at}"
                assert_agrees(COMPOSED, x.numpy(), z.numpy(), where=where)
    np.testing.assert_array_equal(eager.state, traced.state)


@pytest.mark.usefixtures("small_limits")
def test_the_source_draws_the_same() -> None:
    tensors = drawn("stack", "f8")
    key = tj.random.key(3)

    def dropped(q: Any, k: Any, v: Any, key: Any) -> Any:
        weights = tj.nn.softmax(q @ tj.matrix_transpose(k))
        return tj.nn.dropout(weights, 0.5, key=key) @ v

    names: dict[str, Any] = {}
    with tj.config.override(native=True, cache=False):
        source = tj.function(dropped).source(*tensors, key)
    assert "kept_keyed_bits = np.empty((32, 96), np.uint32)" in source
    exec(source, names)
    (got,) = names["run"](*[x.numpy() for x in (*tensors, key)])
    expected = dropped(*tensors, key).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    sizes = []
    with tj.config.override(native=True, cache=False):
        for time in (2048, 4096):
            tensors = [tj.ones((4, time, 16))] * 3
            graph = tj.function(step).graph(tj.random.Generator(1), *tensors)
            sizes.append(build(optimise(graph), "attend").arena_size)
    assert sizes[1] < 4 * 4096 * 4096 / 2, "no matrix of all pairs, not even of bools"
    assert sizes[1] < 2.2 * sizes[0]


def test_words_that_others_need_as_a_whole_are_there_as_a_whole() -> None:
    """They are drawn for rows as well, and both are the same."""
    q, k, v = drawn("tiles")
    key = tj.random.key(5)

    def both(q: Any, k: Any, v: Any) -> list[Any]:
        noise = tj.random.uniform(shape=(3, 96, 128), key=key)
        weights = tj.nn.softmax(q @ tj.matrix_transpose(k)) * noise
        return [weights @ v, tj.cumulative_sum(noise, axis=1)]

    expected = both(q, k, v)
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, row_tile_least_elements=1)
        with tj.config.override(native=True, cache=False):
            got = tj.function(both)(q, k, v)
    for x, y in zip(got, expected, strict=True):
        assert_agrees(COMPOSED, x.numpy(), y.numpy(), where="both")
