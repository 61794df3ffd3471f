"""The further distributions of `tj.random`: numbers, gradients, errors, statistics.

The statistical tests use fixed seeds, so they always give the same answer; perfect
numbers would fail one of them for a fraction ALARM of all seeds. Seeds, states and keys
as such are tested in `test_random.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import tapejit as tj
from tapejit import ops
from tapejit.ops import philox, sampling

ALARM = 1e-6
COUNT = 20_000

Generator = tj.random.Generator
Draw = Callable[[Any], tj.Tensor]
F64 = "float64"

# One draw of every kind, and the number of blocks of four 32-bit words it takes.
DRAWS: dict[str, tuple[Draw, int]] = {
    "truncated_normal": (lambda g: g.truncated_normal(-1, 2, (2, 3)), 3),
    "exponential": (lambda g: g.exponential(5, 2.0), 3),
    "gamma": (lambda g: g.gamma(0.7, 4), 2),
    "beta": (lambda g: g.beta(0.7, 2.0, 4), 2),
    "laplace": (lambda g: g.laplace(4, 1.0, 2.0), 2),
    "gumbel": (lambda g: g.gumbel(4), 2),
    "poisson": (lambda g: g.poisson(3.5, 4), 2),
    "categorical": (lambda g: g.categorical([0.0, 1.0, 2.0], 4), 2),
    "categorical of rows": (lambda g: g.categorical(np.eye(3), (2, 1)), 3),
    "choice": (lambda g: g.choice(9, 4), 2),
    "choice by weight": (lambda g: g.choice(3, 4, p=[1.0, 2.0, 3.0]), 2),
    "choice without": (lambda g: g.choice(9, 4, replace=False), 5),
    "choice without by weight": (
        lambda g: g.choice(4, 2, replace=False, p=[1.0, 2.0, 0.0, 3.0]),
        2,
    ),
    "shuffle": (lambda g: g.shuffle(np.eye(3)), 2),
    "none": (lambda g: g.gamma(1.0, (0, 3)), 0),
}
every_draw = pytest.mark.parametrize("draw", [d for d, _ in DRAWS.values()], ids=DRAWS)


def place(generator: Generator) -> list[int]:
    found: list[int] = generator.state.numpy().tolist()
    return found


def same(x: Any, y: Any) -> bool:
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and np.array_equal(x, y)


class Keyed:
    """The functions of the module with a key, called as a generator's methods are."""

    def __init__(self, key: tj.Tensor) -> None:
        self.key = key

    def __getattr__(self, name: str) -> Callable[..., tj.Tensor]:
        def call(*args: Any, **options: Any) -> tj.Tensor:
            drawn: tj.Tensor = getattr(tj.random, name)(*args, **options, key=self.key)
            return drawn

        return call


# Where numbers come from


@pytest.mark.parametrize(("draw", "blocks"), DRAWS.values(), ids=DRAWS)
def test_a_seed_a_key_and_the_default_generator_give_the_same(
    draw: Draw, blocks: int
) -> None:
    generator, default = Generator(5), tj.random.default_generator()
    start = place(generator)
    expected = draw(generator)
    assert place(generator)[2] - start[2] == blocks
    assert same(draw(Generator(5)), expected)
    key = tj.random.key(5)
    assert same(draw(Keyed(key)), expected)
    assert same(key, tj.random.key(5))
    before = default.state
    try:
        tj.random.set_seed(5)
        assert same(draw(tj.random), expected)
    finally:
        default.state = before


GOLDEN: dict[str, list[Any]] = {
    "gamma": [3.0992322868157136, 2.811358509297416, 2.3956460370764994],
    "poisson": [10, 8, 8, 7, 8, 7],
    "categorical": [2, 2, 2, 2, 2, 2, 1, 2],
    "choice": [13, 20, 90, 35],
    "weighted": [4, 3, 1],
    "shuffle": [5, 3, 1, 4, 2, 0],
    "beta": [0.2727057956213967, 0.11789402382250426, 0.028005577778083594],
    "exponential": [1.9733868583781722, 0.7694751239371395, 1.0357469405748243],
    "laplace": [1.2802396778182268, 0.07632794337719413, 0.3425997600148789],
    "gumbel": [-0.6797512840380785, 0.26204665379282044, -0.03512284814511181],
    "truncated_normal": [-0.596555127502566, 0.1200747648820255, -0.10844642387351434],
    "small gamma": [0.2045444986854355, 0.28108349778541164],
}


def test_golden_values() -> None:
    def draw(name: str, *args: Any, **options: Any) -> Any:
        return getattr(Generator(20240), name)(*args, **options).tolist()

    assert draw("gamma", 3.0, 3, dtype=F64) == GOLDEN["gamma"]
    assert draw("poisson", 7.5, 6) == GOLDEN["poisson"]
    assert draw("categorical", [0.0, 1.0, 2.0], 8) == GOLDEN["categorical"]
    assert draw("choice", 100, 4, replace=False) == GOLDEN["choice"]
    weighted = draw("choice", 5, 3, replace=False, p=[1, 2, 0, 3, 4])
    assert weighted == GOLDEN["weighted"]
    assert draw("shuffle", [0, 1, 2, 3, 4, 5]) == GOLDEN["shuffle"]
    # Their last step is a logarithm or a power, which libraries round differently.
    for name, args in (
        ("beta", (0.5, 2.0, 3)),
        ("exponential", (3,)),
        ("laplace", (3,)),
        ("gumbel", (3,)),
        ("truncated_normal", (-1, 3, 3)),
    ):
        found = draw(name, *args, dtype=F64)
        np.testing.assert_allclose(found, GOLDEN[name], rtol=1e-15 * 4)
    small = draw("gamma", 0.3, 2, dtype=F64)
    np.testing.assert_allclose(small, GOLDEN["small gamma"], rtol=1e-14)


@every_draw
def test_rows_of_a_batch_differ_and_are_one_draw(draw: Draw) -> None:
    if draw is DRAWS["none"][0]:
        return
    generator = Generator(5)
    rows = tj.vmap(lambda _: draw(generator))(tj.zeros(20)).numpy()
    assert rows.shape == (20, *draw(Generator(5)).shape)
    assert len({row.tobytes() for row in rows}) > 3
    assert place(generator)[2] == 1  # a stream of its own for the whole batch
    keys = tj.random.split(tj.random.key(5), 3)
    mapped = tj.vmap(lambda key: draw(Keyed(key)))(keys)
    assert all(same(mapped[i], draw(Keyed(keys[i]))) for i in range(3))


def test_parameters_can_be_mapped() -> None:
    alphas = tj.asarray([0.5, 2.0, 30.0])
    key = tj.random.key(3)
    for name in ("gamma", "poisson"):

        def draw(a: Any, name: str = name) -> tj.Tensor:
            drawn: tj.Tensor = getattr(tj.random, name)(a, 4, key=key)
            return drawn

        mapped = tj.vmap(draw)(alphas)
        assert all(same(mapped[i], draw(alphas[i])) for i in range(3))
    logits = tj.asarray(np.random.default_rng(0).normal(size=(3, 5)))
    mapped = tj.vmap(lambda row: tj.random.categorical(row, 9, key=key))(logits)
    expected = [tj.random.categorical(row, 9, key=key) for row in logits]
    assert all(map(same, mapped, expected))


def test_jumps_are_far_apart_and_leave_the_generator_where_it_is() -> None:
    generator = Generator(5)
    generator.uniform(3)
    before = place(generator)
    first, second = generator.jump(), generator.jump(2)
    assert place(generator) == before
    assert place(first)[:4] == place(second)[:4] == before[:4]
    high = [p[4] + (p[5] << 32) for p in (before, place(first), place(second))]
    assert [h - high[0] for h in high] == [0, 1, 2]
    assert same(generator.jump().jump().uniform(3), second.uniform(3))
    assert same(generator.jump(0).uniform(3), generator.uniform(3))
    assert (first.seed, generator.jump(0).seed) == (None, 5)
    draws = {g.uniform(4).numpy().tobytes() for g in (generator, first, second)}
    assert len(draws) == 3


# Dtypes and shapes

FLOATING: dict[str, Callable[..., tj.Tensor]] = {
    "truncated_normal": lambda g, **o: g.truncated_normal(-1, 1, 3, **o),
    "exponential": lambda g, **o: g.exponential(3, **o),
    "gamma": lambda g, **o: g.gamma(2.0, 3, **o),
    "beta": lambda g, **o: g.beta(2.0, 0.5, 3, **o),
    "laplace": lambda g, **o: g.laplace(3, **o),
    "gumbel": lambda g, **o: g.gumbel(3, **o),
}


@pytest.mark.parametrize("draw", FLOATING.values(), ids=FLOATING)
def test_small_floats_are_the_doubles_rounded_once(draw: Any) -> None:
    wide = draw(Generator(5), dtype=F64)
    assert draw(Generator(5)).dtype == np.float32
    for dtype in ("float16", "bfloat16", "float32"):
        narrow = draw(Generator(5), dtype=dtype)
        assert same(narrow, wide.astype(narrow.dtype))


def test_other_results_have_their_dtypes() -> None:
    generator = Generator(5)
    assert generator.poisson(2.0).dtype == generator.choice(3).dtype == np.int64
    assert generator.poisson(2.0, dtype="uint8").dtype == np.uint8
    assert generator.categorical([0.0, 1.0], dtype="int32").dtype == np.int32
    assert generator.gamma(tj.asarray(2.0, dtype=F64)).dtype == np.float64
    assert generator.choice(np.float16([1, 2]), 3).dtype == np.float16


def test_parameters_broadcast_with_the_shape() -> None:
    generator = Generator(5)
    column, row = tj.ones((4, 1)), tj.ones(3)
    for drawn in (
        generator.gamma(column, (2, 1, 1), scale=row),
        generator.beta(column, row, shape=(2, 4, 3)),
        generator.laplace((2, 1, 1), column, row),
        generator.truncated_normal(-column, row, (2, 1, 1)),
        generator.poisson(100.0 * column, (2, 4, 3)),
    ):
        assert drawn.shape == (2, 4, 3)
        assert len(np.unique(drawn.numpy())) > 8
    logits = tj.zeros((4, 1, 7))
    assert generator.categorical(logits).shape == (4, 1)
    assert generator.categorical(logits, (5, 4, 3)).shape == (5, 4, 3)
    assert generator.categorical(logits, axis=0).shape == (1, 7)
    assert generator.choice(np.ones((4, 5, 6)), (2, 3), axis=1).shape == (4, 2, 3, 6)
    assert generator.choice(5).shape == generator.choice(np.ones(5)).shape == ()


def test_choices_are_elements() -> None:
    x = np.arange(24.0).reshape(4, 6)
    drawn = Generator(5).choice(x, 3, replace=False, axis=1).numpy()
    columns = {tuple(column) for column in x.T}
    assert len({tuple(column) for column in drawn.T} & columns) == 3
    assert same(np.sort(Generator(5).shuffle(x, axis=1).numpy()), x)
    assert same(Generator(5).shuffle(x), Generator(5).permutation(x))
    everything = Generator(5).choice(50, 50, replace=False).numpy()
    assert same(np.sort(everything), np.arange(50))
    assert Generator(5).choice(7, 0).shape == (0,)
    assert Generator(5).choice(0, 0, replace=False).shape == (0,)


def test_what_has_no_weight_is_never_chosen() -> None:
    p = np.array([0.0, 1e-300, 0.0, 1e-300, 0.0])
    assert set(Generator(5).choice(5, 999, p=p).tolist()) == {1, 3}
    assert set(Generator(5).choice(5, 2, replace=False, p=p).tolist()) == {1, 3}
    logits = np.array([-np.inf, 3.0, -np.inf, 3.0, -np.inf])
    assert set(Generator(5).categorical(logits, 999).tolist()) == {1, 3}
    rows = np.stack([logits, logits])
    assert set(Generator(5).categorical(rows, (99, 2)).ravel().tolist()) == {1, 3}


def test_bounds_are_kept() -> None:
    for low, high in (
        (-1.0, 0.5),
        (5.0, 5.5),
        (-np.inf, -8.0),
        (30.0, np.inf),
        (50, 60),
    ):
        drawn = Generator(5).truncated_normal(low, high, 999, dtype=F64).numpy()
        assert ((drawn >= low) & (drawn <= high)).all()
        assert np.isfinite(drawn).all()


def test_the_ends_of_the_words_give_finite_numbers() -> None:
    ends = tj.asarray(np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64))

    def words(shape: Any, bits: int, make: Any, beside: Any = ()) -> Any:
        return make(ends)

    from tapejit.array import random_distributions as draws

    found = [
        draws.draw_exponential(words, 5, 1.0, F64),
        draws.draw_gumbel(words, 5, 0.0, 1.0, F64),
        draws.draw_laplace(words, 5, 0.0, 1.0, F64),
        draws.draw_truncated_normal(words, -np.inf, np.inf, 5, 0, 1, F64),
        draws.draw_gamma(words, 2.0, 5, 1.0, F64),
        draws.draw_poisson(words, 4.0, 5, None),
    ]
    assert all(np.isfinite(x.numpy()).all() for x in found)
    position = draws.draw_categorical(words, np.zeros(7), 5, -1, None)
    assert position.tolist() == [0, 0, 3, 3, 6]


# Gradients


def quantile_slope(
    cdf: Callable[..., Any], pdf: Callable[..., Any], args: list[float], at: int, z: Any
) -> Any:
    """-∂F/∂θ / p by central differences of SciPy's distribution function."""
    step = 1e-5 * args[at]
    ahead, behind = list(args), list(args)
    ahead[at] += step
    behind[at] -= step
    return -(cdf(*ahead, z) - cdf(*behind, z)) / (2 * step) / pdf(z, *args)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5, 40.0])
def test_a_gamma_number_moves_with_its_parameter(alpha: float) -> None:
    a, scale = tj.Variable(alpha, dtype=F64), tj.Variable(3.0, dtype=F64)
    with tj.GradientTape(persistent=True) as tape:
        z = Generator(5).gamma(a, 50, scale)
    by_a = tape.jacobian(z, a).numpy() / 3.0
    noise = z.numpy() / 3.0
    expected = quantile_slope(special.gammainc, stats.gamma.pdf, [alpha], 0, noise)
    np.testing.assert_allclose(by_a, expected, rtol=1e-7)
    np.testing.assert_allclose(tape.jacobian(z, scale).numpy(), noise, rtol=1e-14)
    assert same(z, Generator(5).gamma(alpha, 50, 3.0, dtype=F64))


@pytest.mark.parametrize(("a", "b"), [(0.4, 0.7), (2.0, 3.0), (30.0, 5.0)])
def test_a_beta_number_moves_with_its_parameters(a: float, b: float) -> None:
    variables = [tj.Variable(x, dtype=F64) for x in (a, b)]
    with tj.GradientTape(persistent=True) as tape:
        z = Generator(5).beta(*variables, shape=50)
    for at, variable in enumerate(variables):
        found = tape.jacobian(z, variable).numpy()
        expected = quantile_slope(
            special.betainc, stats.beta.pdf, [a, b], at, z.numpy()
        )
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert same(z, Generator(5).beta(a, b, 50, dtype=F64))


def test_gradients_of_means_are_those_of_the_distributions() -> None:
    """The mean of a gamma is alpha, of a beta a/(a+b), of their squares known too."""
    alpha = tj.Variable(2.5, dtype=F64)
    with tj.GradientTape() as tape:
        z = Generator(5).gamma(alpha, COUNT)
        y = tj.mean(z * z)  # alpha (alpha + 1)
    assert float(tape.gradient(y, alpha)) == pytest.approx(2 * 2.5 + 1, rel=0.03)
    a, b = tj.Variable(2.0, dtype=F64), tj.Variable(3.0, dtype=F64)
    with tj.GradientTape() as tape:
        y = tj.mean(Generator(5).beta(a, b, COUNT))
    by_a, by_b = tape.gradient(y, [a, b])
    assert float(by_a) == pytest.approx(3 / 25, rel=0.03)
    assert float(by_b) == pytest.approx(-2 / 25, rel=0.03)


def test_second_derivatives_of_draws() -> None:
    """The mean of the square of a gamma number has the second derivative 2."""

    def second_moment(alpha: Any) -> Any:
        z = tj.random.gamma(alpha, 5000, key=tj.random.key(3))
        return tj.mean(z * z)

    found = tj.grad(tj.grad(second_moment))(tj.asarray(2.5, dtype=F64))
    assert float(found) == pytest.approx(2.0, rel=0.05)


def test_gradients_flow_through_formulas() -> None:
    points = [np.array([1.0, 2.0]), np.array(0.5)]
    key = tj.random.key(3)
    tj.testing.check_grads(lambda m, s: tj.random.laplace(2, m, s, key=key), points)
    tj.testing.check_grads(lambda m, s: tj.random.gumbel(2, m, s, key=key), points)
    tj.testing.check_grads(lambda s: tj.random.exponential(2, s, key=key), points[1:])
    bounds = [np.array([-1.0, 0.5, 4.0]), np.array([0.3, 2.0, 5.0])]

    def truncated(low: Any, high: Any) -> Any:
        return tj.random.truncated_normal(low, high, key=key)

    tj.testing.check_grads(truncated, bounds)


def test_gradients_flow_to_what_is_chosen_from_only() -> None:
    x, p = tj.Variable([1.0, 2.0, 3.0]), tj.Variable([0.2, 0.3, 0.5])
    with tj.GradientTape(persistent=True) as tape:
        chosen = tj.sum(Generator(5).choice(x, 9, p=p))
        shuffled = tj.sum(Generator(5).shuffle(x) * tj.asarray([1.0, 2.0, 3.0]))
        position = Generator(5).categorical(p, 9).astype("float32")
        count = Generator(5).poisson(x).astype("float32")
    by_x, by_p = tape.gradient(chosen, [x, p])
    assert by_p is None
    assert float(tj.sum(by_x)) == 9
    assert sorted(tape.gradient(shuffled, x).tolist()) == [1.0, 2.0, 3.0]
    assert tape.gradient(position, p) is None
    assert tape.gradient(count, x) is None


# Errors

WRONG: dict[str, tuple[Draw, type[Exception]]] = {
    "negative scale": (lambda g: g.exponential(3, -1), tj.ArgumentError),
    "nan scale": (lambda g: g.laplace(3, 0, np.nan), tj.ArgumentError),
    "complex loc": (lambda g: g.gumbel(3, 1j), tj.DTypeError),
    "integer dtype": (lambda g: g.gamma(2.0, dtype="int32"), tj.DTypeError),
    "negative alpha": (lambda g: g.gamma(-1.0), tj.ArgumentError),
    "negative b": (lambda g: g.beta(1.0, -1.0), tj.ArgumentError),
    "text": (lambda g: g.gamma("x"), tj.ArgumentTypeError),
    "negative rate": (lambda g: g.poisson(-1.0), tj.ArgumentError),
    "float counts": (lambda g: g.poisson(1.0, dtype="float32"), tj.DTypeError),
    "unknown dtype": (lambda g: g.poisson(1.0, dtype="float8"), tj.DTypeError),
    "no interval": (lambda g: g.truncated_normal(2, 1), tj.ArgumentError),
    "nan bound": (lambda g: g.truncated_normal(np.nan, 1), tj.ArgumentError),
    "shapes apart": (lambda g: g.gamma(tj.ones(2), 3), tj.ShapeError),
    "negative size": (lambda g: g.poisson(1.0, -1), tj.ShapeError),
    "no categories": (lambda g: g.categorical(tj.zeros((3, 0))), tj.ShapeError),
    "one logit": (lambda g: g.categorical(1.0), tj.AxisError),
    "complex logits": (lambda g: g.categorical([1j]), tj.DTypeError),
    "no such axis": (lambda g: g.categorical(tj.zeros(3), axis=1), tj.AxisError),
    "nothing to choose": (lambda g: g.choice(0, 3), tj.ArgumentError),
    "too many": (lambda g: g.choice(3, 4, replace=False), tj.ArgumentError),
    "too many with weight": (
        lambda g: g.choice(3, 2, replace=False, p=[1, 0, 0]),
        tj.ArgumentError,
    ),
    "negative weight": (lambda g: g.choice(2, p=[1, -1]), tj.ArgumentError),
    "no weight": (lambda g: g.choice(2, p=[0, 0]), tj.ArgumentError),
    "nan weight": (lambda g: g.choice(2, p=[1, np.nan]), tj.ArgumentError),
    "too few weights": (lambda g: g.choice(3, p=[0.5, 0.5]), tj.ShapeError),
    "choice of a float": (lambda g: g.choice(2.5), tj.ArgumentTypeError),
    "choice of none": (lambda g: g.choice(-1), tj.ArgumentError),
    "choice along no axis": (lambda g: g.choice(tj.ones(2), axis=1), tj.AxisError),
    "shuffled number": (lambda g: g.shuffle(5), tj.ShapeError),
    "shuffled along no axis": (lambda g: g.shuffle(tj.ones(2), axis=1), tj.AxisError),
    "negative jump": (lambda g: g.jump(-1), tj.ArgumentError),
    "half a jump": (lambda g: g.jump(0.5), tj.ArgumentTypeError),
}


@pytest.mark.parametrize(("draw", "error"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused_and_nothing_is_drawn(
    draw: Draw, error: type[Exception]
) -> None:
    generator = Generator(5)
    before = place(generator)
    with pytest.raises(error) as caught:
        draw(generator)
    assert "test_random_distributions.py" in str(caught.value)
    assert place(generator) == before


def test_what_fails_on_the_way_has_drawn_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    generator = Generator(5)
    before = place(generator)
    for name in ("bits_to_gamma", "bits_to_beta", "bits_to_poisson", "bits_to_uniform"):
        monkeypatch.setattr(getattr(ops, name), "eval", fail)
    for draw in ("gamma", "beta", "poisson", "exponential", "categorical"):
        arguments = {"beta": (1.0, 2.0), "categorical": ([1.0, 2.0],)}.get(draw, (2.0,))
        given = (3,) if draw == "exponential" else arguments
        with pytest.raises(MemoryError, match="no room"):
            getattr(generator, draw)(*given)
        assert place(generator) == before


def test_tensors_without_meaning_give_nan_or_minus_one() -> None:
    bad = tj.asarray([-1.0, np.nan])
    assert np.isnan(Generator(5).gamma(bad).numpy()).all()
    assert np.isnan(Generator(5).beta(bad, 1.0).numpy()).all()
    assert Generator(5).poisson(bad).tolist() == [-1, -1]
    assert Generator(5).gamma(tj.asarray(0.0)).tolist() == 0.0
    assert Generator(5).poisson(tj.asarray([0.0, 1e30])).tolist() == [0, -1]
    nowhere = Generator(5).categorical(tj.asarray([np.nan, 1.0]), 9).numpy()
    assert ((nowhere >= 0) & (nowhere < 2)).all()


# Distributions

CONTINUOUS: dict[str, tuple[Draw, Any]] = {
    "exponential": (lambda g: g.exponential(COUNT, 2.0, F64), stats.expon(scale=2)),
    "laplace": (lambda g: g.laplace(COUNT, 1, 2, F64), stats.laplace(1, 2)),
    "gumbel": (lambda g: g.gumbel(COUNT, 1, 2, F64), stats.gumbel_r(1, 2)),
    **{
        f"gamma {a}": (lambda g, a=a: g.gamma(a, COUNT, dtype=F64), stats.gamma(a))
        for a in (0.1, 0.9, 1.0, 1.1, 7.0, 1e3, 1e7)
    },
    **{
        f"beta {a} {b}": (
            lambda g, a=a, b=b: g.beta(a, b, COUNT, F64),
            stats.beta(a, b),
        )
        for a, b in ((0.5, 0.5), (0.2, 3.0), (1.0, 1.0), (2.0, 5.0), (300.0, 200.0))
    },
    **{
        f"truncated {low} {high}": (
            lambda g, low=low, high=high: g.truncated_normal(
                low, high, COUNT, dtype=F64
            ),
            stats.truncnorm(low, high),
        )
        for low, high in ((-2, 2), (-np.inf, 0.5), (3, 4), (9, np.inf), (-12, -10))
    },
}


@pytest.mark.parametrize(("draw", "law"), CONTINUOUS.values(), ids=CONTINUOUS)
def test_continuous_numbers_have_their_distribution(draw: Draw, law: Any) -> None:
    """By the largest distance of the distribution functions (Kolmogorov, Smirnov)."""
    assert stats.kstest(draw(Generator(20240)).numpy(), law.cdf).pvalue > ALARM


def assert_frequencies(drawn: Any, probabilities: Any) -> None:
    """By the sum of squared deviations; rare values are counted together."""
    probabilities = np.asarray(probabilities, float)
    counts = np.bincount(np.asarray(drawn).ravel(), minlength=len(probabilities))
    assert counts.size == probabilities.size
    assert not counts[probabilities == 0].any()
    expected = probabilities / probabilities.sum() * counts.sum()
    is_common = expected >= 5
    rare = expected[~is_common].sum()
    found = np.append(counts[is_common], counts[~is_common].sum())
    wanted = np.append(expected[is_common], rare)
    if rare < 5:
        found, wanted = found[:-1], wanted[:-1]
        wanted = wanted * found.sum() / wanted.sum()
    assert stats.chisquare(found, wanted).pvalue > ALARM


@pytest.mark.parametrize("rate", [0.01, 0.7, 4.0, 11.5, 60.0, 1e3])
def test_counts_have_their_distribution(rate: float) -> None:
    drawn = Generator(20240).poisson(rate, COUNT).numpy()
    top = int(drawn.max())
    probabilities = stats.poisson.pmf(np.arange(top + 1), rate)
    assert_frequencies(drawn, probabilities)


@pytest.mark.parametrize("rate", [1e6, 2.0**30, 1e15])
def test_large_counts_are_normal(rate: float) -> None:
    drawn = Generator(20240).poisson(rate, COUNT).numpy()
    scaled = (drawn - rate) / np.sqrt(rate)
    assert stats.kstest(scaled, stats.norm.cdf).pvalue > ALARM


def test_poisson_numbers_invert_their_distribution_function() -> None:
    """Of every word exactly, with both tails to the last word."""
    words = philox.random_bits(philox.seed_state(7), 2000, 64)[1]
    words[:4] = [0, 1, 2**64 - 2, 2**64 - 1]
    for rate in (0.3, 6.0, 250.0):
        k = sampling.bits_to_poisson.eval(words, np.asarray(rate))
        lower = (words.astype(float) + 0.5) * 2.0**-64
        upper = ((~words).astype(float) + 0.5) * 2.0**-64
        is_low = words < 2**63
        reached = np.where(
            is_low,
            stats.poisson.cdf(k, rate) >= lower * (1 - 1e-12),
            stats.poisson.sf(k, rate) <= upper * (1 + 1e-12),
        )
        passed = np.where(
            is_low,
            stats.poisson.cdf(k - 1, rate) <= lower * (1 + 1e-12),
            stats.poisson.sf(k - 1, rate) >= upper * (1 - 1e-12),
        )
        assert reached.all()
        assert passed.all()


def test_categories_have_their_probabilities() -> None:
    logits = np.array([0.0, 1.0, -np.inf, 2.0, -3.0])
    p = np.exp(logits)
    assert_frequencies(Generator(20240).categorical(logits, COUNT).numpy(), p)
    rows = np.stack([logits, logits[::-1]])
    drawn = Generator(20241).categorical(rows, (COUNT, 2)).numpy()
    assert_frequencies(drawn[:, 0], p)
    assert_frequencies(drawn[:, 1], p[::-1])
    columns = Generator(20242).categorical(rows.T, (COUNT, 2), axis=0).numpy()
    assert_frequencies(columns[:, 0], p)
    assert_frequencies(Generator(20243).choice(5, COUNT, p=p).numpy(), p)
    assert_frequencies(Generator(20244).choice(5, COUNT).numpy(), np.ones(5))


def test_choices_without_replacement_have_their_probabilities() -> None:
    """Of ordered pairs: p_i p_j / (1 - p_i)."""
    p = np.array([0.5, 0.3, 0.0, 0.2])
    generator = Generator(20240)

    def frequencies(weights: Any) -> Any:
        draw = tj.vmap(lambda _: generator.choice(4, 2, replace=False, p=weights))
        pairs = draw(tj.zeros(COUNT)).numpy()
        return pairs[:, 0] * 4 + pairs[:, 1]

    expected = np.outer(p, p) / (1 - p)[:, None]
    np.fill_diagonal(expected, 0)
    assert_frequencies(frequencies(p), np.trim_zeros(expected.ravel(), "b"))
    equal = np.ones((4, 4))
    np.fill_diagonal(equal, 0)
    assert_frequencies(frequencies(None), equal.ravel()[:-1])


def test_gamma_numbers_of_neighbouring_words_are_unrelated() -> None:
    """A word is the key of a cipher: counting words are as good as random ones."""
    words = np.arange(COUNT, dtype=np.uint64)
    drawn = sampling.bits_to_gamma.eval(words, np.asarray(3.0))
    uniform = stats.gamma(3.0).cdf(drawn)
    assert stats.kstest(uniform, "uniform").pvalue > ALARM
    correlation = np.corrcoef(uniform[:-1], uniform[1:])[0, 1]
    assert abs(correlation) * np.sqrt(COUNT) < stats.norm.isf(ALARM / 2)
