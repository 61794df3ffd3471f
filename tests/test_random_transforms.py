"""Random draws under tapes and `vmap`, and the distributions they have.

The statistical tests at the end use fixed seeds, so they always give the same answer;
perfect numbers would fail one of them for a fraction ALARM of all seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tapejit as tj
from tapejit import ops
from tapejit.base.types import TensorType
from tapejit.ir import Graph, check_graph, interpret, param, parse_graph, print_graph
from tapejit.ops import philox
from tapejit.ops.random import block_count
from tapejit.transforms.batch import batch

ALARM = 1e-6

Generator = tj.random.Generator


def same(x: Any, y: Any) -> bool:
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and np.array_equal(x, y)


# Golden values: what a seed gives, on every machine and in every version


def test_golden_values() -> None:
    def draw(name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return getattr(Generator(20240), name)(*args, **kwargs).tolist()

    assert Generator(20240).state.tolist() == [
        2664776014,
        3271581496,
        0,
        0,
        3551586887,
        3116186025,
    ]
    assert draw("uniform", 3) == [
        0.5593194961547852,
        0.8610146641731262,
        0.8285462260246277,
    ]
    assert draw("uniform", 3, dtype="float64") == [
        0.8610146654675062,
        0.5367438434223984,
        0.6450388530028864,
    ]
    assert draw("uniform", 3, dtype="float16") == [
        0.55908203125,
        0.86083984375,
        0.828125,
    ]
    assert draw("uniform", 3, -2, 5) == [
        1.915236473083496,
        4.027102470397949,
        3.799823760986328,
    ]
    assert draw("normal", 3) == [
        0.14924417436122894,
        1.08488929271698,
        0.9484361410140991,
    ]
    assert draw("normal", 3, 10, 0.5, dtype="float64") == [
        10.542444670928548,
        10.046116881635497,
        10.185980226535705,
    ]
    assert draw("bernoulli", 0.3, 8) == [False] * 6 + [True, False]
    assert draw("integers", -5, 100, 6) == [85, 51, 62, 46, 55, 41]
    assert draw("integers", 2**64, shape=2, dtype="uint64") == [
        15882917177589731420,
        9901176312752217010,
    ]
    assert draw("permutation", 8) == [6, 5, 3, 1, 4, 2, 7, 0]


def test_golden_values_of_derived_streams() -> None:
    key = tj.random.key(20240)
    folded, second = tj.random.fold_in(key, 5), tj.random.split(key)[1]
    assert tj.random.integers(1000, shape=3, key=folded).tolist() == [490, 33, 150]
    assert tj.random.integers(1000, shape=3, key=second).tolist() == [853, 895, 318]
    draws = [g.integers(1000, shape=3).tolist() for g in Generator(20240).split()]
    assert draws == [[400, 267, 421], [853, 895, 318]]
    generator = Generator(20240)
    rows = tj.vmap(lambda x: generator.integers(1000, shape=2))(tj.zeros(2))
    assert rows.tolist() == [[400, 267], [421, 954]]


# Tapes


def test_gradients_flow_to_mean_and_stddev() -> None:
    mean, stddev = tj.Variable([1.0, 2.0, 3.0]), tj.Variable(0.5)
    weights = tj.asarray([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]])
    noise = Generator(5).normal((2, 3))
    with tj.GradientTape() as tape:
        drawn = Generator(5).normal((2, 3), mean, stddev)
        loss = tj.sum(weights * drawn)
    by_mean, by_stddev = tape.gradient(loss, [mean, stddev])
    assert same(by_mean, tj.sum(weights, axis=0))
    assert same(by_stddev, tj.sum(weights * noise))


def test_gradients_flow_to_the_ends_of_an_interval() -> None:
    low, high = tj.Variable([-1.0, 0.0, 5.0]), tj.Variable(7.0)
    noise = Generator(5).uniform(3).numpy()
    with tj.GradientTape() as tape:
        drawn = Generator(5).uniform(minval=low, maxval=high)
    by_low, by_high = tape.gradient(drawn, [low, high])
    np.testing.assert_allclose(by_low, 1 - noise, rtol=1e-6)
    np.testing.assert_allclose(by_high, noise.sum(), rtol=1e-6)


def test_a_tape_keeps_only_the_noise() -> None:
    """Nothing of what tells whether the end of an interval is reached."""
    low, high = tj.Variable(1.0), tj.Variable(2.0)
    with tj.GradientTape(persistent=True) as tape:
        Generator(5).uniform(3, low, high)
    assert tape._recording is not None
    (noise,) = tape._recording.values.values()
    assert same(noise, Generator(5).uniform(3))


def test_half_precision_is_rounded_once_and_has_gradients() -> None:
    mean = tj.Variable([3.0, 4.0], dtype="float16")
    noise = Generator(5).normal(2).numpy()
    with tj.GradientTape() as tape:
        drawn = Generator(5).normal(mean=mean, stddev=0.7)
    wide = np.float32([3, 4]) + np.float32(0.7) * noise
    assert same(drawn, wide.astype(np.float16))
    assert same(tape.gradient(drawn, mean), np.float16([1, 1]))


def test_gradients_follow_the_order_of_a_permutation() -> None:
    x, weights = tj.Variable([1.0, 2.0, 3.0, 4.0]), np.float32([1, 10, 100, 1000])
    order = Generator(5).permutation(4).numpy()
    with tj.GradientTape() as tape:
        loss = tj.sum(Generator(5).permutation(x) * weights)
    assert same(tape.gradient(loss, x), weights[np.argsort(order)])


def test_draws_are_constants_to_a_tape() -> None:
    generator, x = Generator(5), tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        noise = generator.normal(2)
        y = x * noise
        chosen = generator.bernoulli(tj.sigmoid(x))
    assert same(tape.gradient(y, x), noise)
    assert tape.gradient(noise, x) is None
    assert tape.gradient(chosen.astype("float32"), x) is None
    assert tape.watched_variables() == (x,)


def test_second_derivatives_see_one_draw() -> None:
    def loss(x: tj.Tensor) -> tj.Tensor:
        return tj.sum(tj.random.normal(2, key=tj.random.key(5)) * x**3)

    x = tj.asarray([1.0, 2.0])
    noise = np.asarray(tj.random.normal(2, key=tj.random.key(5)))
    expected = np.diag(6 * noise * np.float32([1, 2]))
    np.testing.assert_allclose(tj.hessian(loss)(x), expected, rtol=1e-6)


# vmap


def test_rows_differ_and_the_generator_moves_on_once() -> None:
    generator = Generator(5)
    rows = tj.vmap(lambda x: x + generator.uniform((2,)))(tj.zeros(1000))
    assert rows.shape == (1000, 2)
    assert len(np.unique(rows.numpy())) > 1990  # some of 2000 24-bit numbers may meet
    assert generator.state.tolist() == philox.advance(philox.seed_state(5), 1).tolist()
    again = tj.vmap(lambda x: x + generator.uniform((2,)))(tj.zeros(1000))
    assert not np.any(rows.numpy() == again.numpy())


def test_a_mapped_draw_is_one_draw_of_a_stream_split_off() -> None:
    generator = Generator(5)
    rows = tj.vmap(lambda x: generator.normal((2,)))(tj.zeros(3))
    (stream,) = Generator(5).split(1)
    assert same(rows, stream.normal((3, 2)))


def test_rows_differ_in_every_distribution() -> None:
    generator = Generator(5)

    def draws(x: tj.Tensor) -> dict[str, tj.Tensor]:
        return {
            "uniform": generator.uniform(3, x, x + 1),
            "normal": generator.normal(3, x, x + 1),
            "bernoulli": generator.bernoulli(x + 0.5, 40),
            "integers": generator.integers(2**62, shape=3),
            "order": generator.permutation(20),
            "rows": generator.permutation(x + np.arange(20)),
        }

    for name, rows in tj.vmap(draws)(tj.zeros(2, dtype="float64")).items():
        assert not same(rows[0], rows[1]), name
    assert same(np.sort(rows.numpy(), axis=1), [np.arange(20.0)] * 2)


def test_rows_of_nested_maps_differ() -> None:
    generator = Generator(5)
    inner = tj.vmap(lambda x: generator.uniform(2, dtype="float64"))
    drawn = tj.vmap(inner)(tj.zeros((3, 4)))
    assert drawn.shape == (3, 4, 2)
    assert len(np.unique(drawn.numpy())) == 24


def test_draws_that_meet_no_row_differ_too() -> None:
    generator = Generator(5)
    drawn = tj.vmap(lambda x: generator.uniform(dtype="float64"))(tj.zeros(9))
    assert len(np.unique(drawn.numpy())) == 9


def test_a_generator_made_in_the_mapped_function_draws_for_every_row() -> None:
    rows = tj.vmap(lambda x: Generator(5).normal())(tj.zeros(3))
    assert len(np.unique(rows.numpy())) == 3


def test_mapping_over_no_rows_gives_none() -> None:
    generator = Generator(5)
    assert tj.vmap(lambda x: generator.normal(2))(tj.zeros((0, 3))).shape == (0, 2)


def test_parameters_may_differ_from_row_to_row() -> None:
    generator, offset = Generator(5), tj.Variable(100.0)
    means = tj.asarray([0.0, 1000.0])
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(means)
        rows = tj.vmap(lambda m: generator.normal(3, m + offset))(means)
    assert same(np.round(rows.numpy(), -2), np.float32([[100] * 3, [1100] * 3]))
    assert same(tape.gradient(rows, means), np.float32([3, 3]))
    assert float(tape.gradient(rows, offset)) == 6


def test_a_tape_in_a_mapped_function_sees_the_rows_own_draws() -> None:
    generator = Generator(5)

    def slope(x: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
        with tj.GradientTape() as tape:
            tape.watch(x)
            noise = generator.normal()
            y = noise * x
        return tape.gradient(y, x), noise

    slopes, noise = tj.vmap(slope)(tj.ones(4))
    assert same(slopes, noise)
    assert len(np.unique(slopes.numpy())) == 4


def test_a_jacobian_draws_once() -> None:
    generator = Generator(5)
    found = tj.jacobian(lambda x: generator.normal(3) * x)(tj.ones(3))
    assert same(found, np.diag(Generator(5).normal(3).numpy()))


def test_rows_with_one_key_are_alike_and_rows_with_keys_are_the_loop() -> None:
    key, keys = tj.random.key(5), tj.random.split(tj.random.key(5), 3)
    alike = tj.vmap(lambda x: tj.random.normal(2, key=key))(tj.zeros(3))
    assert same(alike, [tj.random.normal(2, key=key).numpy()] * 3)
    draws: list[Callable[[tj.Tensor], tj.Tensor]] = [
        lambda k: tj.random.uniform((2, 3), -1, 1, key=k),
        lambda k: tj.random.normal((), dtype="float64", key=k),
        lambda k: tj.random.bernoulli(0.5, 20, key=k),
        lambda k: tj.random.integers(99, shape=2, key=k),
        lambda k: tj.random.permutation(8, key=k),
        lambda k: tj.random.split(k, 2),
        lambda k: tj.random.fold_in(k, 7),
        lambda k: tj.random.uniform(2, key=tj.random.split(k, 2)[1]),
    ]
    for draw in draws:
        assert same(tj.vmap(draw)(keys), [draw(k).numpy() for k in keys])


def test_numbers_of_rows_can_be_folded_in() -> None:
    key, keys = tj.random.key(5), tj.random.split(tj.random.key(6), 4)

    def both(k: tj.Tensor, i: tj.Tensor) -> tj.Tensor:
        return tj.random.fold_in(k, i)

    numbers = range(4)
    folded = tj.vmap(both, in_axes=(None, 0))(key, tj.arange(4))
    assert same(folded, [tj.random.fold_in(key, i).numpy() for i in numbers])
    folded = tj.vmap(both)(keys, tj.arange(4))
    expected = [
        tj.random.fold_in(k, i).numpy() for k, i in zip(keys, numbers, strict=True)
    ]
    assert same(folded, expected)
    with pytest.raises(tj.ArgumentError, match="negative"):
        tj.vmap(both, in_axes=(None, 0))(key, tj.arange(4) - 1)


# Records


@pytest.mark.parametrize("streams", [(), (2,), (2, 3)], ids=str)
def test_a_batch_of_one_draw_gives_every_row_and_stream_its_own_words(
    streams: tuple[int, ...],
) -> None:
    count = int(np.prod(streams))
    states = philox.split_state(philox.seed_state(5), count).reshape(*streams, 6)
    state = param("state", TensorType.of(states))
    graph = Graph("draw", (state,), (ops.random_bits(state, shape=(2,), bits=64),))
    whole, has_axis = batch(graph, size=4, batched=[False])
    check_graph(whole)
    (words,) = interpret(whole, states)
    assert has_axis == (True,)
    assert words.shape == (4, *streams, 2)
    for at in np.ndindex(streams):
        expected = philox.random_bits(states[at], (4, 2), 64)[1]
        assert same(words[(slice(None), *at)], expected)


def test_sizes_may_be_symbolic() -> None:
    x = param("x", TensorType.parse("f32[n,3]"))
    state = param("state", TensorType.parse("u32[6]"))
    shape = x.shape
    words = ops.random_bits(state, shape=shape, bits=32)
    noise = ops.bits_to_normal(words, dtype=np.dtype("float32"))
    later = ops.random_advance(state, blocks=block_count(shape, 32))
    graph = Graph("noisy", (x, state), (x + noise, later))
    check_graph(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    start = philox.seed_state(5)
    for rows in (2, 7):
        noisy, end = interpret(graph, np.zeros((rows, 3), np.float32), start)
        assert same(noisy, Generator(5).normal((rows, 3)))
        assert same(end, philox.random_bits(start, (rows, 3))[0])


def test_the_random_ops_survive_print_and_parse() -> None:
    state = param("state", TensorType.parse("u32[6]"))
    number = param("number", TensorType.parse("i32[]"))
    folded = ops.random_fold_in(state, number)
    words = ops.keyed_bits(ops.random_split(folded, count=2), shape=(3,), bits=64)
    low, high, dtype = -(2**63), 2**63, np.dtype("int64")
    outputs = (
        ops.bits_to_integers(words, low=low, high=high, dtype=dtype),
        ops.bits_to_permutation(words),
        ops.bits_to_uniform(words, dtype=np.dtype("float64")),
    )
    graph = Graph("all", (state, number), outputs)
    read = parse_graph(print_graph(graph))
    arguments = philox.seed_state(5), np.int32(3)
    pairs = zip(interpret(read, *arguments), interpret(graph, *arguments), strict=True)
    assert all(same(x, y) for x, y in pairs)


# Distributions


def assert_uniform(counts: np.ndarray) -> None:
    """The counts are those of equally likely outcomes."""
    assert stats.chisquare(counts).pvalue > ALARM


def test_numbers_of_an_interval_are_uniform() -> None:
    drawn = Generator(11).uniform(100_000, -3, 5, "float64").numpy()
    assert stats.kstest(drawn, stats.uniform(-3, 8).cdf).pvalue > ALARM


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_interval_excludes_its_end_and_all_its_numbers_are_alike(dtype: str) -> None:
    """Half of the sums that are nearest to 2 would otherwise be 2."""
    drawn = Generator(11).uniform(400_000, 1, 2, dtype).numpy().astype(np.float64)
    numbers, counts = np.unique(drawn, return_counts=True)
    spacing = {"bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    assert same(numbers, np.arange(1, 2, spacing))
    assert_uniform(counts)


def test_an_interval_without_room_gives_its_start() -> None:
    above = np.nextafter(np.float32(1), np.float32(2))
    for high in (1.0, above):
        drawn = Generator(11).uniform(99, np.float32(1), np.float32(high))
        assert same(drawn, np.ones(99, np.float32))


def test_normal_numbers_have_their_mean_and_stddev() -> None:
    mean, stddev = tj.asarray([[-2.0], [3.0]]), tj.asarray([[0.5], [4.0]])
    drawn = Generator(11).normal((2, 100_000), mean, stddev).numpy()
    for row, center, scale in zip(drawn, (-2, 3), (0.5, 4), strict=True):
        assert stats.kstest(row, stats.norm(center, scale).cdf).pvalue > ALARM


@pytest.mark.parametrize("p", [0.5, 0.3, 1e-3])
def test_bernoulli_is_true_with_its_probability(p: float) -> None:
    count = 200_000
    found = int(Generator(11).bernoulli(p, count).numpy().sum())
    assert stats.binomtest(found, count, p).pvalue > ALARM


def test_integers_are_uniform() -> None:
    drawn = Generator(11).integers(-3, 10, 130_000, "int8").numpy()
    numbers, counts = np.unique(drawn, return_counts=True)
    assert same(numbers, np.arange(-3, 10, dtype=np.int8))
    assert_uniform(counts)


def test_orders_are_equally_likely() -> None:
    generator = Generator(11)
    orders = tj.vmap(lambda x: generator.permutation(4))(tj.zeros(24_000)).tolist()
    seen = dict.fromkeys(itertools.permutations(range(4)), 0)
    for order in orders:
        seen[tuple(order)] += 1
    assert_uniform(np.array(list(seen.values())))


def rows_of_vmap() -> np.ndarray:
    generator = Generator(11)
    return tj.vmap(lambda x: generator.normal(50_000))(tj.zeros(3)).numpy()


def rows_of_split() -> np.ndarray:
    generator = Generator(11)
    whole = [generator, *generator.split(2)]
    return np.array([g.normal(50_000).numpy() for g in whole])


def rows_of_keys() -> np.ndarray:
    key = tj.random.key(11)
    keys = [key, tj.random.split(key)[0], tj.random.fold_in(key, 0)]
    return np.array([tj.random.normal(50_000, key=k).numpy() for k in keys])


@pytest.mark.parametrize("rows", [rows_of_vmap, rows_of_split, rows_of_keys])
def test_rows_are_independent(rows: Callable[[], np.ndarray]) -> None:
    drawn = rows()
    for one, other in itertools.combinations(drawn, 2):
        assert stats.pearsonr(one, other).pvalue > ALARM
        assert stats.pearsonr(one[1:], other[:-1]).pvalue > ALARM
        assert stats.ks_2samp(one, other).pvalue > ALARM
