"""Random numbers as users draw them: generators, keys, arguments and results.

The words and what single words become are tested in `test_philox.py`, draws under tapes
and `vmap` and the distributions in `test_random_transforms.py`.
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from elsewhere import needs_fork

import tapejit as tj
from tapejit import ops
from tapejit.base.dims import Dim
from tapejit.base.types import dtype_named
from tapejit.ops import philox

pytestmark = pytest.mark.usefixtures("same_default_generator")

FLOATS = ["float16", "bfloat16", "float32", "float64"]

Generator = tj.random.Generator
Draw = Callable[[Generator], tj.Tensor]

# One draw of every kind, and the number of blocks of four 32-bit words it takes.
DRAWS: dict[str, tuple[Draw, int]] = {
    "uniform": (lambda g: g.uniform((2, 3)), 2),
    "uniform in an interval": (lambda g: g.uniform(5, -1, 1), 2),
    "uniform float64": (lambda g: g.uniform(5, dtype="float64"), 3),
    "normal": (lambda g: g.normal(8, 1.0, 2.0), 2),
    "bernoulli": (lambda g: g.bernoulli(0.5, 3), 2),
    "integers": (lambda g: g.integers(10, shape=3), 2),
    "permutation": (lambda g: g.permutation(7), 4),
    "rows in another order": (lambda g: g.permutation(np.eye(3)), 2),
    "one number": (lambda g: g.uniform(), 1),
    "no number": (lambda g: g.uniform((3, 0)), 0),
}
every_draw = pytest.mark.parametrize("draw", [d for d, _ in DRAWS.values()], ids=DRAWS)


def place(generator: Generator) -> list[int]:
    return generator.state.numpy().tolist()


def blocks_between(start: list[int], end: list[int]) -> int:
    return (end[2] - start[2]) + ((end[3] - start[3]) << 32)


def same(x: Any, y: Any) -> bool:
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and np.array_equal(x, y)


# Seeds, order, state


@every_draw
def test_the_seed_determines_the_numbers(draw: Draw) -> None:
    assert same(draw(Generator(5)), draw(Generator(5)))


def test_seeds_differ() -> None:
    draws = [Generator(seed).integers(2**63) for seed in (0, 1, 2, 2**64, 2**200)]
    assert len(set(map(int, draws))) == len(draws)


def test_draws_go_on_from_each_other() -> None:
    generator = Generator(5)
    first, second = generator.uniform(4), generator.uniform(4)
    assert same(np.concatenate([first, second]), Generator(5).uniform(8))


@pytest.mark.parametrize(("draw", "blocks"), DRAWS.values(), ids=DRAWS)
def test_a_draw_takes_as_many_blocks_as_its_words_fill(draw: Draw, blocks: int) -> None:
    generator = Generator(5)
    start = place(generator)
    draw(generator)
    assert blocks_between(start, place(generator)) == blocks


def test_a_fresh_generator_can_be_repeated_from_its_seed() -> None:
    generator = Generator()
    assert generator.seed != Generator().seed
    assert same(Generator(generator.seed).normal(3), generator.normal(3))


def test_reset_starts_again() -> None:
    generator = Generator(5)
    first = generator.normal(3)
    generator.reset(5)
    assert same(generator.normal(3), first)
    generator.reset(6)
    assert generator.seed == 6
    assert same(generator.normal(3), Generator(6).normal(3))
    generator.reset()
    assert generator.seed not in (5, 6)


def test_the_state_can_be_saved_and_put_back() -> None:
    generator = Generator(5)
    generator.uniform(10)
    saved = generator.state
    first = generator.normal(3)
    assert not same(generator.normal(3), first)
    generator.state = saved
    assert generator.seed == 5
    assert same(generator.normal(3), first)
    generator.state = Generator(6).state.numpy()
    assert generator.seed is None
    assert same(generator.normal(3), Generator(6).normal(3))


def test_a_generator_shows_where_it_is() -> None:
    generator = Generator(5)
    generator.uniform(9)
    assert repr(generator) == "<tj.random.Generator seed 5, 3 blocks drawn>"
    (child,) = generator.split(1)
    assert repr(child) == "<tj.random.Generator 0 blocks drawn>"


def test_split_generators_are_all_different() -> None:
    generator = Generator(5)
    families = [generator.split(3), generator.split(3), [generator]]
    draws = [int(g.integers(2**63)) for family in families for g in family]
    assert len(set(draws)) == 7
    assert [g.seed for g in families[0]] == [None] * 3
    assert generator.split(0) == []


def test_the_default_generator_serves_the_functions() -> None:
    def draws(source: Any) -> list[tj.Tensor]:
        return [
            source.uniform(2),
            source.normal(2),
            source.bernoulli(shape=2),
            source.integers(9, shape=2),
            source.permutation(4),
        ]

    tj.random.set_seed(5)
    assert tj.random.default_generator().seed == 5
    expected = draws(Generator(5))
    assert all(map(same, draws(tj.random), expected))


def test_every_process_has_its_own_default_seed() -> None:
    code = "import tapejit as tj; print(tj.random.default_generator().seed)"
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, capture_output=True, check=True) for _ in "12"]
    seeds = {int(run.stdout) for run in runs}
    assert len(seeds | {tj.random.default_generator().seed}) == 3


# Copies, processes, threads


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))],
    ids=["deepcopy", "pickle"],
)
def test_copies_go_on_independently(copied: Callable[[Generator], Generator]) -> None:
    generator = Generator(5)
    generator.uniform(3)
    other = copied(generator)
    assert other.seed == 5
    first = generator.normal(3)
    assert same(other.normal(3), first)
    generator.normal(100)
    assert same(other.normal(3), Generator(5).normal(12)[8:11])


def test_one_generator_stays_one_in_a_copied_structure() -> None:
    generator = Generator(5)
    first, second = copy.deepcopy([generator, generator])
    assert first is second is not generator
    first, second = pickle.loads(pickle.dumps((generator, generator)))
    assert first is second


def test_a_shallow_copy_shares_its_state() -> None:
    generator = Generator(5)
    assert copy.copy(generator) is generator


def in_child(run: Callable[[], bytes]) -> bytes:
    """What a function returns in a forked child, which has ten seconds."""
    import signal

    receive, send = os.pipe()
    with warnings.catch_warnings():
        # Later Pythons warn of any fork while threads run, and the test has some.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            os.write(send, run())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


@needs_fork
def test_a_forked_child_goes_on_from_the_same_place() -> None:
    generator = tj.random.default_generator()
    generator.uniform(3)
    answer = in_child(lambda: generator.normal(3).numpy().tobytes())
    assert answer == generator.normal(3).numpy().tobytes()


@needs_fork
def test_a_fork_while_another_thread_draws_leaves_the_child_able_to_draw() -> None:
    generator, is_held, is_done = Generator(5), threading.Event(), threading.Event()

    def hold() -> None:
        with generator._variable._lock:
            is_held.set()
            is_done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert is_held.wait(30)
        answer = in_child(lambda: generator.normal(3).numpy().tobytes())
    finally:
        is_done.set()
        thread.join()
    assert answer == Generator(5).normal(3).numpy().tobytes()


def test_threads_share_a_generator_without_a_word_drawn_twice() -> None:
    generator, threads, draws = Generator(5), 8, 1000
    found: list[list[int]] = [[] for _ in range(threads)]

    def draw(into: list[int]) -> None:
        for _ in range(draws):  # one block each
            into.extend(generator.integers(2**64, shape=2, dtype="uint64").tolist())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        running = [threading.Thread(target=draw, args=(into,)) for into in found]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    alone = Generator(5)
    words = alone.integers(2**64, shape=2 * threads * draws, dtype="uint64").tolist()
    assert place(generator) == place(alone)
    assert sorted(itertools.chain(*found)) == sorted(words)


# Keys


def test_a_key_draws_what_a_generator_at_that_state_draws() -> None:
    generator = Generator(5)
    assert same(tj.random.key(5), generator.state)
    generator.uniform(20)
    key = generator.state
    pairs: list[tuple[Draw, tj.Tensor]] = [
        (lambda g: g.uniform(3, -1, 1), tj.random.uniform(3, -1, 1, key=key)),
        (lambda g: g.normal(3), tj.random.normal(3, key=key)),
        (lambda g: g.bernoulli(0.3, 9), tj.random.bernoulli(0.3, 9, key=key)),
        (lambda g: g.integers(2, 7, 9), tj.random.integers(2, 7, 9, key=key)),
        (lambda g: g.permutation(9), tj.random.permutation(9, key=key)),
    ]
    for draw, drawn in pairs:
        generator.state = key
        assert same(draw(generator), drawn)


def test_drawing_with_a_key_moves_nothing() -> None:
    before = place(tj.random.default_generator())
    key = tj.random.key(5)
    assert same(tj.random.uniform(3, key=key), tj.random.uniform(3, key=key))
    assert same(key, tj.random.key(5))
    assert place(tj.random.default_generator()) == before


def test_derived_keys_are_all_different() -> None:
    key = tj.random.key(5)
    keys = [key, *tj.random.split(key, 5)]
    keys += [tj.random.fold_in(key, data) for data in (0, 1, 2**63, 2**64 - 1)]
    keys += [tj.random.fold_in(keys[1], 0), tj.random.split(keys[1])[0]]
    assert len({tuple(k.tolist()) for k in keys}) == len(keys) == 12


def test_folding_in_depends_on_the_number_not_on_its_type() -> None:
    key = tj.random.key(5)
    numbers = [3, np.int8(3), np.uint64(3), np.array(3), tj.asarray(3)]
    keys = {tuple(tj.random.fold_in(key, number).tolist()) for number in numbers}
    assert len(keys) == 1


# Dtypes and shapes


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_have_the_dtype_asked_for(dtype: str) -> None:
    generator, wanted = Generator(5), dtype_named(dtype)
    for drawn in (
        generator.uniform(3, dtype=dtype),
        generator.uniform(3, -1, 1, dtype=wanted),
        generator.normal(3, dtype=dtype),
        generator.normal(3, mean=tj.zeros(3, dtype="float64"), dtype=dtype),
        generator.uniform(3, maxval=tj.ones(3, dtype=dtype)),
        generator.normal(stddev=tj.Variable([1.0, 2.0], dtype=dtype)),
    ):
        assert drawn.dtype == wanted


def test_floats_have_the_default_dtype_otherwise() -> None:
    generator = Generator(5)
    assert generator.uniform(3).dtype == np.float32
    assert generator.normal(mean=tj.asarray([1, 2])).dtype == np.float32
    assert generator.normal(mean=np.float64(1), stddev=np.int64(2)).dtype == np.float32
    with tj.config.override(default_float="float64"):
        assert generator.uniform(3).dtype == np.float64
        assert generator.normal(3, 1.0, 2.0).dtype == np.float64


def test_other_results_have_their_dtypes() -> None:
    generator = Generator(5)
    assert generator.bernoulli(0.5, 3).dtype == np.bool_
    assert generator.integers(3).dtype == generator.permutation(3).dtype == np.int64
    assert generator.integers(3, dtype="uint8").dtype == np.uint8
    assert generator.permutation(np.float16([1, 2])).dtype == np.float16


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((), ()),
        (None, ()),
        (3, (3,)),
        (np.int64(3), (3,)),
        ([2, 3], (2, 3)),
        (0, (0,)),
        ((2, 0), (2, 0)),
        (np.array([2, 1]), (2, 1)),
    ],
    ids=str,
)
def test_results_have_the_shape_asked_for(shape: Any, wanted: tuple[int, ...]) -> None:
    generator = Generator(5)
    assert generator.uniform(shape).shape == wanted
    assert generator.uniform(shape, 1.0, 2.0).shape == wanted
    assert generator.normal(shape, dtype="float64").shape == wanted
    assert generator.bernoulli(0.5, shape).shape == wanted
    assert generator.integers(5, shape=shape).shape == wanted


def test_parameters_broadcast_and_every_element_has_its_own_draw() -> None:
    generator = Generator(5)
    column, row = tj.zeros((4, 1)), tj.ones(3)
    for drawn in (
        generator.uniform(minval=column, maxval=row),
        generator.uniform((2, 4, 1), maxval=row),
        generator.normal(mean=column, stddev=row),
        generator.normal((4, 3), stddev=tj.Variable(2.0)),
    ):
        assert drawn.shape in [(4, 3), (2, 4, 3)]
        assert len(np.unique(drawn.numpy())) == drawn.size
    assert generator.bernoulli(tj.full((4, 1), 0.5), shape=5).shape == (4, 5)


def test_parameters_shift_and_scale_the_noise() -> None:
    noise = Generator(5).normal(9, dtype="float64").numpy()
    drawn = Generator(5).normal(9, 3.0, 0.5, dtype="float64")
    assert same(drawn, 3.0 + 0.5 * noise)
    noise = Generator(5).uniform(9, dtype="float64").numpy()
    assert same(Generator(5).uniform(9, -1, 3, "float64"), -1 + 4 * noise)


def test_orders_are_taken_along_the_axis_asked_for() -> None:
    order = Generator(5).permutation(4).numpy()
    x = np.arange(24.0).reshape(2, 4, 3)
    assert same(Generator(5).permutation(x, axis=1), x[:, order])
    assert same(Generator(5).permutation(x, axis=-2), x[:, order])
    assert same(Generator(5).permutation(x[0]), x[0][order])
    assert same(Generator(5).permutation(tj.asarray(4)), order)
    assert Generator(5).permutation(0).shape == (0,)


def test_a_probability_is_met_to_the_last_bit() -> None:
    words = philox.random_bits(philox.seed_state(5), 9, 64)[1]
    noise = philox.bits_to_uniform(words, "float64")
    assert not Generator(5).bernoulli(noise).numpy().any()
    assert Generator(5).bernoulli(np.nextafter(noise, 1)).numpy().all()
    assert Generator(5).bernoulli(1, 99).numpy().all()
    assert not Generator(5).bernoulli(0, 99).numpy().any()


# Errors

WRONG: dict[str, tuple[Draw, type[Exception]]] = {
    "negative size": (lambda g: g.uniform((2, -1)), tj.ShapeError),
    "text as shape": (lambda g: g.normal("abc"), tj.ArgumentTypeError),
    "symbolic size": (lambda g: g.normal(Dim("n")), tj.ShapeError),
    "integer dtype": (lambda g: g.uniform(3, dtype="int32"), tj.DTypeError),
    "complex dtype": (lambda g: g.normal(3, dtype="complex64"), tj.DTypeError),
    "unknown dtype": (lambda g: g.normal(3, dtype="float8"), tj.DTypeError),
    "shapes apart": (lambda g: g.normal(2, mean=tj.zeros(3)), tj.ShapeError),
    "parameters apart": (
        lambda g: g.uniform((), tj.zeros(2), tj.ones(3)),
        tj.ShapeError,
    ),
    "interval reversed": (lambda g: g.uniform(3, 2.0, 1.0), tj.ArgumentError),
    "interval too long": (lambda g: g.uniform(3, -3e38, 3e38), tj.ArgumentError),
    "interval nan": (lambda g: g.uniform(3, 0, np.nan), tj.ArgumentError),
    "complex bound": (lambda g: g.uniform(3, 0, 1j), tj.DTypeError),
    "huge bound": (lambda g: g.uniform(3, 0, 10**400), tj.ArgumentError),
    "negative stddev": (lambda g: g.normal(3, 0, -1), tj.ArgumentError),
    "nan stddev": (lambda g: g.normal(3, 0, np.float32(np.nan)), tj.ArgumentError),
    "no number": (lambda g: g.normal(3, mean="x"), tj.ArgumentTypeError),
    "chance above 1": (lambda g: g.bernoulli(1.5), tj.ArgumentError),
    "no integer below": (lambda g: g.integers(5, 5, shape=3), tj.ArgumentError),
    "no integer below 0": (lambda g: g.integers(0), tj.ArgumentError),
    "fraction as bound": (lambda g: g.integers(2.5), tj.ArgumentTypeError),
    "bound too large": (lambda g: g.integers(257, dtype="uint8"), tj.ArgumentError),
    "float integers": (lambda g: g.integers(5, dtype="float32"), tj.DTypeError),
    "bool integers": (lambda g: g.integers(2, dtype=bool), tj.DTypeError),
    "no such axis": (lambda g: g.permutation(np.eye(3), axis=2), tj.AxisError),
    "order of one number": (lambda g: g.permutation(tj.asarray(1.5)), tj.AxisError),
    "negative count": (lambda g: g.permutation(-1), tj.ArgumentError),
    "negative split": (lambda g: g.split(-1), tj.ArgumentError),
    "negative seed": (lambda g: g.reset(-1), tj.ArgumentError),
    "fraction as seed": (lambda g: g.reset(1.5), tj.ArgumentTypeError),
    "no state": (lambda g: setattr(g, "state", tj.zeros(6)), tj.DTypeError),
    "size in a trace": (
        lambda g: tj.vmap(lambda _: g.uniform((2, -1)))(tj.zeros(3)),
        tj.ShapeError,
    ),
}


@pytest.mark.parametrize(("draw", "error"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused_and_nothing_is_drawn(
    draw: Draw, error: type[Exception]
) -> None:
    generator = Generator(5)
    before = place(generator)
    with pytest.raises(error) as caught:
        draw(generator)
    assert isinstance(caught.value, tj.TapejitError)
    assert (place(generator), generator.seed) == (before, 5)


def test_what_fails_on_the_way_has_drawn_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    generator = Generator(5)
    before = place(generator)
    for name in ("bits_to_uniform", "bits_to_normal", "random_bits"):
        monkeypatch.setattr(getattr(ops, name), "eval", fail)
    for draw in (generator.uniform, generator.normal, generator.bernoulli):
        with pytest.raises(MemoryError, match="no room"):
            draw(shape=3)
        assert place(generator) == before
    monkeypatch.undo()
    assert same(generator.uniform(3), Generator(5).uniform(3))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda k: tj.random.uniform(key=5), tj.ArgumentTypeError, "key(seed)"),
        (lambda k: tj.random.normal(key=Generator(5)), tj.ArgumentTypeError, "Gen"),
        (lambda k: tj.random.normal(key=tj.zeros(6)), tj.DTypeError, "u32[6]"),
        (lambda k: tj.random.normal(key=tj.random.split(k)), tj.DTypeError, "vmap"),
        (lambda k: tj.random.split(k, -1), tj.ArgumentError, "from 0 on"),
        (lambda k: tj.random.key(-1), tj.ArgumentError, "from 0 on"),
        (lambda k: tj.random.key(0.5), tj.ArgumentTypeError, "integer"),
        (lambda k: tj.random.fold_in(k, -1), tj.ArgumentError, "from 0 on"),
        (lambda k: tj.random.fold_in(k, np.array(-1)), tj.ArgumentError, "negative"),
        (lambda k: tj.random.fold_in(k, 2**64), tj.ArgumentError, "2**64"),
        (lambda k: tj.random.fold_in(k, 0.5), tj.DTypeError, "integer"),
        (lambda k: tj.random.fold_in(k, [1, 2]), tj.ShapeError, "vmap"),
        (lambda k: tj.random.set_seed(None), tj.ArgumentTypeError, "reset()"),
        (lambda k: tj.random.set_seed(-1), tj.ArgumentError, "from 0 on"),
    ],
)
def test_wrong_keys_and_seeds_are_refused(
    call: Callable[[tj.Tensor], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        call(tj.random.key(5))
    assert text in str(caught.value)
    assert "test_random.py" in str(caught.value)
