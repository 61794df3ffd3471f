"""Initial values: their distributions, their sources of numbers, their names."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tapejit as tj
from tapejit.nn.initializers import RULES, _fans_of

inits = tj.nn.initializers
SHAPE = (400, 250)
CUT = stats.truncnorm(-2, 2)

# name -> variance at SHAPE, distribution with variance 1
SCALED: dict[str, tuple[float, Any]] = {}
for _family, _variance in {
    "glorot": 2 / sum(SHAPE),
    "he": 2 / SHAPE[0],
    "lecun": 1 / SHAPE[0],
}.items():
    SCALED[f"{_family}_uniform"] = (
        _variance,
        stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)),
    )
    SCALED[f"{_family}_normal"] = (_variance, stats.truncnorm(-2, 2, 0, 1 / CUT.std()))


def assert_follows(values: Any, distribution: Any) -> None:
    """Neither the variance nor the shape is off; seeds are fixed, so this is too."""
    flat = np.asarray(values, np.float64).ravel()
    # The sample variance has a standard error of √((kurtosis + 2) / n).
    kurtosis = float(distribution.stats(moments="k"))
    error = math.sqrt((kurtosis + 2) / flat.size)
    assert abs(flat.var() / distribution.var() - 1) < 4 * error
    assert stats.kstest(flat, distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", SCALED)
def test_the_variance_is_that_of_the_family(name: str) -> None:
    variance, shape = SCALED[name]
    values = getattr(inits, name)(seed=11)(SHAPE).numpy()
    assert_follows(values / math.sqrt(variance), shape)


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg"])
@pytest.mark.parametrize("distribution", ["uniform", "normal", "truncated_normal"])
def test_variance_scaling(mode: str, distribution: str) -> None:
    fan = {"fan_in": 400, "fan_out": 250, "fan_avg": 325}[mode]
    draw = inits.variance_scaling(3.0, mode, distribution, seed=5)
    values = draw(SHAPE).numpy() * math.sqrt(fan / 3)
    assert abs(values.var() - 1) < 0.02
    assert abs(values.mean()) < 0.02


def test_plain_distributions() -> None:
    assert_follows(inits.uniform(-0.2, 0.6, seed=1)(SHAPE), stats.uniform(-0.2, 0.8))
    assert_follows(inits.normal(1.0, 0.3, seed=2)(SHAPE), stats.norm(1, 0.3))
    cut = stats.truncnorm(-2, 2, 0.5, 0.1)
    assert_follows(inits.truncated_normal(0.5, 0.1, seed=3)(SHAPE), cut)


def test_plain_values() -> None:
    np.testing.assert_array_equal(inits.zeros()((2, 3)), np.zeros((2, 3)))
    np.testing.assert_array_equal(inits.ones()((2, 3)), np.ones((2, 3)))
    np.testing.assert_array_equal(inits.constant(0.5)((2, 3)), np.full((2, 3), 0.5))
    table = [[1.0, 2.0], [3.0, 4.0]]
    np.testing.assert_array_equal(inits.constant(table)((2, 2)), table)
    np.testing.assert_array_equal(inits.identity(2.0)((2, 3)), 2 * np.eye(2, 3))


@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (4, 4), (2, 3, 5)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    q = inits.orthogonal(2.0, seed=3)(shape, dtype="float64").numpy()
    matrix = q.reshape(-1, shape[-1]) / 2
    small = min(matrix.shape)
    product = matrix.T @ matrix if matrix.shape[1] == small else matrix @ matrix.T
    np.testing.assert_allclose(product, np.eye(small), atol=1e-14)


def test_orthogonal_matrices_of_both_orientations_are_equally_likely() -> None:
    draw = inits.orthogonal(generator=tj.random.Generator(0))
    signs = [np.linalg.det(draw((2, 2)).numpy()) for _ in range(200)]
    positive = sum(sign > 0 for sign in signs)
    assert 70 < positive < 130
    first = [float(draw((3, 3))[0, 0]) for _ in range(200)]
    assert 70 < sum(x > 0 for x in first) < 130


def test_fans() -> None:
    assert _fans_of((64, 10)) == (64, 10)
    assert _fans_of((3, 3, 16, 32)) == (144, 288)
    assert _fans_of((7,)) == (7, 7)
    assert _fans_of(()) == (1, 1)
    assert inits.he_normal()((0, 4)).shape == (0, 4)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_initializer_by_name_and_in_every_float(name: str, dtype: str) -> None:
    draw = inits.get(name)
    assert draw.name == name
    assert name in inits.__all__
    values = draw((3, 4), dtype=dtype)
    assert values.dtype == tj.asarray(0, dtype=dtype).dtype
    assert values.shape == (3, 4)
    assert np.isfinite(values.numpy().astype(np.float64)).all()


def test_where_the_numbers_come_from() -> None:
    draw = inits.normal(seed=4)
    np.testing.assert_array_equal(draw(5), draw(5))
    generator = tj.random.Generator(4)
    other = inits.normal(generator=generator)
    first, second = other(5).numpy(), other(5).numpy()
    np.testing.assert_array_equal(first, draw(5))
    assert (first != second).all()
    tj.random.set_seed(9)
    third = inits.normal()(5).numpy()
    tj.random.set_seed(9)
    np.testing.assert_array_equal(inits.get("normal")(5), third)
    given = inits.get("normal", tj.random.Generator(4))
    np.testing.assert_array_equal(given(5), first)
    own = inits.get(draw, tj.random.Generator(77))
    np.testing.assert_array_equal(own(5), first)


def test_copies_and_pickles_draw_the_same() -> None:
    draw = inits.glorot_normal(generator=tj.random.Generator(1))
    twins = [copy.deepcopy(draw), pickle.loads(pickle.dumps(draw))]
    expected = draw((3, 3)).numpy()
    for twin in twins:
        np.testing.assert_array_equal(twin((3, 3)), expected)


def test_what_is_refused() -> None:
    with pytest.raises(tj.ArgumentError, match="did you mean 'glorot_uniform'"):
        inits.get("glorot_unifrom")
    with pytest.raises(tj.ArgumentTypeError, match="a name or a function, got int"):
        inits.get(3)
    with pytest.raises(tj.ArgumentError, match="a generator or a seed"):
        inits.normal(generator=tj.random.Generator(1), seed=1)
    with pytest.raises(tj.ArgumentTypeError, match="got int") as caught:
        inits.normal(generator=3)
    assert "seed=" in str(caught.value)
    with pytest.raises(tj.ShapeError, match=r"identity: makes matrices"):
        inits.identity()((3,))
    with pytest.raises(tj.ShapeError, match=r"orthogonal: needs at least two axes"):
        inits.orthogonal()((3,))
    with pytest.raises(tj.ShapeError, match="a size is negative"):
        inits.zeros()((3, -1))
    with pytest.raises(tj.ArgumentError, match="mode is one of"):
        inits.variance_scaling(mode="fan")
    with pytest.raises(tj.ArgumentError, match="distribution is one of"):
        inits.variance_scaling(distribution="cauchy")
    with pytest.raises(tj.ArgumentError, match="scale is a positive number"):
        inits.variance_scaling(0.0)


def test_an_initializer_in_a_traced_function() -> None:
    draw = inits.he_normal(generator=tj.random.Generator(2))
    same = inits.he_normal(generator=tj.random.Generator(2))
    traced = tj.function(lambda: draw((3, 2)))
    for _ in range(3):
        np.testing.assert_array_equal(traced(), same((3, 2)))
    assert traced.trace_count == 1


def test_how_it_looks() -> None:
    assert repr(inits.normal(stddev=0.1, seed=3)) == (
        "normal(mean=0.0, stddev=0.1, seed=3)"
    )
    assert repr(inits.zeros()) == "zeros()"
