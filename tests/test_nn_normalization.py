"""Moments, normalization, dropout and lookups: values, gradients, shapes, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import TRANSCENDENTAL, assert_agrees

import tapejit as tj
from tapejit.base.types import dtype_named

pytestmark = pytest.mark.usefixtures("same_default_generator")

nn = tj.nn
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
X = RNG.normal(size=(2, 3, 4)) * 2 + 1
AXES: list[Any] = [-1, 0, (1, 2), (0, 2), None]


def standardized(x: Array, axis: Any, epsilon: float) -> Array:
    mean = x.mean(axis=axis, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axis=axis, keepdims=True) + epsilon)


# Moments


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keepdims", [False, True])
def test_moments_are_numpys(axis: Any, keepdims: bool) -> None:
    mean, variance = nn.moments(X, axis, keepdims=keepdims)
    np.testing.assert_allclose(mean, X.mean(axis=axis, keepdims=keepdims), rtol=1e-14)
    np.testing.assert_allclose(
        variance, X.var(axis=axis, keepdims=keepdims), rtol=1e-14
    )


def test_moments_differentiate() -> None:
    tj.testing.check_grads(lambda x: nn.moments(x, axis=(0, 2)), [X])


def test_the_variance_of_a_large_mean_keeps_its_digits() -> None:
    x = np.float32(1e4) + np.float32([-1, 0, 1, 0])
    _, variance = nn.moments(x)
    np.testing.assert_allclose(variance, 0.5, rtol=1e-6)


def test_halves_of_any_size_have_moments() -> None:
    """The squares of such numbers are no float16."""
    x = np.array([-1e4, 1e4, 1e4, -1e4], np.float16)
    mean, variance = nn.moments(x / 100)
    assert mean.dtype == variance.dtype == np.float16
    np.testing.assert_allclose(variance, 1e4, rtol=1e-3)
    np.testing.assert_allclose(nn.standardize(x), [-1, 1, 1, -1], rtol=1e-3)


# Standardization


@pytest.mark.parametrize("axis", AXES)
def test_standardize_along_any_axis(axis: Any) -> None:
    found = nn.standardize(X, axis, epsilon=1e-3)
    np.testing.assert_allclose(found, standardized(X, axis, 1e-3), rtol=1e-13)
    np.testing.assert_allclose(nn.layer_norm(X, axis=axis, epsilon=1e-3), found)


@pytest.mark.parametrize("axis", [-1, 1, (1, 2), (0, 2)])
def test_layer_norm_has_parameters_along_its_axes(axis: Any) -> None:
    axes = [at % 3 for at in np.atleast_1d(axis)]
    sizes = tuple(X.shape[at] for at in axes)
    scale, bias = RNG.normal(size=(2, *sizes))
    kept = [X.shape[at] if at in axes else 1 for at in range(3)]
    expected = standardized(X, axis, 1e-5) * scale.reshape(kept) + bias.reshape(kept)
    np.testing.assert_allclose(
        nn.layer_norm(X, scale, bias, axis), expected, rtol=1e-13
    )
    tj.testing.check_grads(
        lambda x, scale, bias: nn.layer_norm(x, scale, bias, axis), [X, scale, bias]
    )


@pytest.mark.parametrize("axis", [-1, (0, 1)])
def test_rms_norm(axis: Any) -> None:
    axes = [at % 3 for at in np.atleast_1d(axis)]
    scale = RNG.normal(size=tuple(X.shape[at] for at in axes))
    kept = [X.shape[at] if at in axes else 1 for at in range(3)]
    level = np.sqrt(np.mean(X * X, axis=axis, keepdims=True) + 1e-6)
    expected = X / level * scale.reshape(kept)
    np.testing.assert_allclose(nn.rms_norm(X, scale, axis), expected, rtol=1e-13)
    tj.testing.check_grads(lambda x, scale: nn.rms_norm(x, scale, axis), [X, scale])


def test_equal_elements_become_zero_with_a_finite_gradient() -> None:
    for function in (nn.standardize, nn.layer_norm):
        v = tj.Variable([3.0, 3.0, 3.0])
        with tj.GradientTape() as tape:
            y = function(v)
        np.testing.assert_array_equal(y, [0, 0, 0])
        found = tape.gradient(y, v, output_gradients=tj.asarray([1.0, 0.0, 0.0]))
        slope = 1 / math.sqrt(1e-5)
        expected = [slope * 2 / 3, -slope / 3, -slope / 3]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_numbers_are_scales_and_do_not_widen() -> None:
    x = np.array([1.0, 2.0, 4.0], np.float16)
    assert nn.layer_norm(x, 2.0, 1).dtype == np.float16
    found = nn.layer_norm(tj.asarray(x, dtype="float64"), 2.0, 1)
    np.testing.assert_allclose(
        found, 2 * standardized(x.astype(np.float64), -1, 1e-5) + 1
    )


def test_a_wider_scale_decides_the_dtype() -> None:
    x = np.ones(3, np.float16)
    assert nn.layer_norm(x, np.ones(3, np.float32)).dtype == np.float32
    assert nn.rms_norm(x, np.ones(3, np.float64)).dtype == np.float64
    assert nn.rms_norm(x, np.ones(3, np.int64)).dtype == np.float16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(dtype: str) -> None:
    x = (RNG.normal(size=(5, 64)) * 30 + 10).astype(dtype_named(dtype))
    wide = x.astype(np.float64)
    found = nn.layer_norm(tj.asarray(x))
    assert_agrees(TRANSCENDENTAL, found, standardized(wide, -1, 1e-5))
    truth = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    assert_agrees(TRANSCENDENTAL, nn.rms_norm(tj.asarray(x)), truth)


def test_a_parameter_of_the_wrong_shape() -> None:
    x = tj.ones((2, 3))
    message = r"^layer_norm: scale is f32\[2\], but f32\[2,3\] has the sizes \(3,\)"
    with pytest.raises(tj.ShapeError, match=message):
        nn.layer_norm(x, tj.ones(2))
    with pytest.raises(tj.ShapeError, match=r"^rms_norm: scale is f32\[3\]"):
        nn.rms_norm(tj.ones(1), tj.ones(3))  # would broadcast
    with pytest.raises(tj.AxisError, match=r"^layer_norm: axis 2"):
        nn.layer_norm(x, axis=2)
    with pytest.raises(tj.ArgumentError, match=r"^rms_norm: epsilon is a number"):
        nn.rms_norm(x, epsilon=-1.0)


# Batches


def test_batch_norm_with_vectors_per_channel() -> None:
    mean, variance, offset, scale = RNG.uniform(0.5, 2.0, size=(4, 3))
    column = (None, slice(None), None)
    factor = scale / np.sqrt(variance + 1e-5)
    expected = (X - mean[column]) * factor[column] + offset[column]
    found = nn.batch_norm(X, mean, variance, offset, scale, axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    same = nn.batch_norm(X, *[p[column] for p in (mean, variance, offset, scale)])
    np.testing.assert_allclose(same, expected, rtol=1e-13)
    tj.testing.check_grads(
        lambda *args: nn.batch_norm(*args, axis=1), [X, mean, variance, offset, scale]
    )


def test_batch_norm_of_a_batchs_own_moments() -> None:
    def normed(x: Any) -> tj.Tensor:
        mean, variance = nn.moments(x, axis=(0, 1))
        return nn.batch_norm(x, mean, variance)

    np.testing.assert_allclose(normed(X), standardized(X, (0, 1), 1e-5), rtol=1e-13)
    tj.testing.check_grads(normed, [X])


def test_batch_norm_refuses_what_does_not_fit() -> None:
    with pytest.raises(tj.ShapeError, match=r"^batch_norm: variance is f32\[2\]"):
        nn.batch_norm(tj.ones((2, 3)), tj.ones(3), tj.ones(2))


# Lengths


@pytest.mark.parametrize("axis", AXES)
def test_normalize_gives_length_one(axis: Any) -> None:
    found = nn.normalize(X, axis)
    length = np.sqrt(np.sum(X * X, axis=axis, keepdims=True))
    np.testing.assert_allclose(found, X / length, rtol=1e-14)
    tj.testing.check_grads(lambda x: nn.normalize(x, axis), [X], order=3)


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1.0, 1e30, 2e38])
def test_no_square_overflows_or_vanishes(scale: float) -> None:
    x = np.array([1, -1], np.float32) * np.float32(scale)
    np.testing.assert_allclose(nn.normalize(x), [0.5**0.5, -(0.5**0.5)], rtol=1e-6)


def test_a_zero_vector_stays_and_has_no_gradient() -> None:
    v = tj.Variable([[0.0, 0.0], [3.0, 4.0]])
    with tj.GradientTape() as outer:
        with tj.GradientTape() as tape:
            y = nn.normalize(v)
        np.testing.assert_array_equal(y[0], [0, 0])
        found = tape.gradient(y, v, output_gradients=tj.asarray([[1.0, 2.0], [1, 0]]))
    np.testing.assert_allclose(found, [[0, 0], [16 / 125, -12 / 125]], rtol=1e-6)
    second = outer.gradient(found, v).numpy()
    np.testing.assert_array_equal(second[0], [0, 0])
    assert np.isfinite(second).all()


def test_normalizing_nothing() -> None:
    for shape in ((0, 3), (3, 0)):
        assert nn.normalize(tj.zeros(shape)).shape == shape


# Every function of a tensor alone

UNARY: dict[str, Callable[[Any], Any]] = {
    "moments": lambda x: nn.moments(x, axis=-1)[1],
    "standardize": nn.standardize,
    "layer_norm": nn.layer_norm,
    "rms_norm": nn.rms_norm,
    "normalize": nn.normalize,
}
every = pytest.mark.parametrize("name", UNARY)


@every
def test_vmap_is_a_loop(name: str) -> None:
    def slope(x: Any) -> Any:
        return tj.grad(lambda x: tj.sum(tj.square(UNARY[name](x)) * x[..., :1]))(x)

    for function in (UNARY[name], slope):
        found = tj.vmap(function)(X)
        rows = np.stack([np.asarray(function(tj.asarray(x))) for x in X])
        np.testing.assert_allclose(found, rows, rtol=1e-12, atol=1e-15)


@every
def test_operands_of_every_kind(name: str) -> None:
    function = UNARY[name]
    x = np.array([[1.0, 2.0, 4.0]], np.float32)
    expected = function(tj.asarray(x))
    for given in (tj.Variable(x), x, x.tolist(), x.astype(np.int64)):
        found = function(given)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(tj.DTypeError, match=f"^{name}: takes real numbers, got c64"):
        function(tj.asarray([1j]))


# Dropout


def test_dropout_drops_at_its_rate_and_keeps_the_mean() -> None:
    x = tj.ones(100_000)
    for rate in (0.1, 0.5, 0.75):
        y = nn.dropout(x, rate, generator=tj.random.Generator(1)).numpy()
        kept = y != 0
        np.testing.assert_array_equal(y[kept], np.float32(1 / (1 - rate)))
        assert abs(1 - rate - kept.mean()) < 5 * math.sqrt(rate * (1 - rate) / 1e5)


def test_dropout_is_reproducible() -> None:
    x = tj.ones(50)
    key = tj.random.key(7)
    np.testing.assert_array_equal(nn.dropout(x, key=key), nn.dropout(x, key=key))
    first = nn.dropout(x, generator=tj.random.Generator(5)).numpy()
    generator = tj.random.Generator(5)
    np.testing.assert_array_equal(nn.dropout(x, generator=generator), first)
    assert (nn.dropout(x, generator=generator).numpy() != first).any()
    tj.random.set_seed(5)
    np.testing.assert_array_equal(nn.dropout(x), first)
    np.testing.assert_array_equal(nn.dropout(x, key=tj.random.key(5)), first)


@pytest.mark.parametrize("rate", [0, 0.0, 0.5])
def test_nothing_is_drawn_where_nothing_is_dropped(rate: float) -> None:
    generator = tj.random.Generator(5)
    before = generator.state.numpy()
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = nn.dropout(v, rate, training=rate == 0, generator=generator)
    np.testing.assert_array_equal(y, [1, 2])
    np.testing.assert_array_equal(tape.gradient(y, v), [1, 1])
    np.testing.assert_array_equal(generator.state, before)


def test_a_rate_of_one_drops_everything() -> None:
    v = tj.Variable([1.0, math.inf, math.nan])
    with tj.GradientTape() as tape:
        y = nn.dropout(v, 1.0)
    np.testing.assert_array_equal(y, [0, 0, 0])
    np.testing.assert_array_equal(tape.gradient(y, v), [0, 0, 0])


def test_the_gradient_flows_through_what_was_kept() -> None:
    v = tj.Variable(np.linspace(1, 2, 20))
    with tj.GradientTape() as tape:
        y = nn.dropout(v, 0.25, key=tj.random.key(1))
    expected = np.where(y.numpy() == 0, 0, 4 / 3)
    np.testing.assert_allclose(tape.gradient(y, v), expected, rtol=1e-15)
    key = tj.random.key(2)
    x = np.linspace(1, 2, 9)
    tj.testing.check_grads(lambda x: nn.dropout(x, 0.5, key=key) * x, [x])


def test_what_is_dropped_may_be_infinite() -> None:
    key = tj.random.key(1)
    is_kept = nn.dropout(tj.ones(8), key=key).numpy() != 0
    found = nn.dropout(np.where(is_kept, 1.0, np.inf), key=key)
    np.testing.assert_array_equal(found, np.where(is_kept, 2, 0))


def test_elements_can_share_their_fate() -> None:
    y = nn.dropout(tj.ones((40, 3)), noise_shape=(40, 1), key=tj.random.key(1)).numpy()
    assert set(y.sum(axis=1)) == {0.0, 6.0}
    with pytest.raises(tj.ShapeError, match=r"^dropout: a draw of shape \(2, 3\)"):
        nn.dropout(tj.ones((1, 3)), noise_shape=(2, 3))


def test_rows_of_vmap_drop_their_own() -> None:
    rows = tj.vmap(lambda x: nn.dropout(x, generator=tj.random.Generator(3)))
    y = rows(tj.ones((4, 30))).numpy()
    assert len({row.tobytes() for row in y}) == 4


def test_dropout_refuses_what_makes_no_sense() -> None:
    x = tj.ones(3)
    for rate in (-0.1, 1.1, math.nan):
        with pytest.raises(tj.ArgumentError, match=r"^dropout: rate is a probability"):
            nn.dropout(x, rate)
    with pytest.raises(tj.ArgumentTypeError, match=r"^dropout: rate is a number"):
        nn.dropout(x, tj.asarray(0.5))
    with pytest.raises(tj.ArgumentError, match="a generator or a key, not both"):
        nn.dropout(x, generator=tj.random.Generator(1), key=tj.random.key(1))


def test_dropout_keeps_the_dtype() -> None:
    for dtype in ("float16", "bfloat16", "float64"):
        x = tj.ones(4, dtype=dtype)
        assert nn.dropout(x).dtype == x.dtype


# Lookups


def test_embedding_reads_rows() -> None:
    table = RNG.normal(size=(5, 3))
    indices = np.array([[0, 4], [2, 2]], np.uint8)
    np.testing.assert_array_equal(nn.embedding(table, indices), table[indices])
    np.testing.assert_array_equal(nn.embedding(table, 3), table[3])
    assert nn.embedding(table, np.zeros((0,), int)).shape == (0, 3)


def test_a_table_may_be_longer_than_its_indices_count() -> None:
    table = np.arange(300.0)[:, None]
    indices = np.array([0, 255], np.uint8)
    np.testing.assert_array_equal(nn.embedding(table, indices), [[0], [255]])
    found = tj.vmap(lambda i: nn.embedding(table, i))(np.array([0, 127], np.int8))
    np.testing.assert_array_equal(found, [[0], [127]])


def test_the_gradient_of_embedding_is_dense_and_adds_up() -> None:
    table = tj.Variable(np.zeros((4, 2), np.float32))
    with tj.GradientTape() as tape:
        y = nn.embedding(table, [2, 0, 2])
    g = tj.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = tape.gradient(y, table, output_gradients=g)
    np.testing.assert_array_equal(found, [[3, 4], [0, 0], [6, 8], [0, 0]])


@pytest.mark.parametrize(("index", "place"), [(-1, r"\[1\]"), (4, r"\[1\]")])
def test_an_index_out_of_range(index: int, place: str) -> None:
    table = tj.zeros((4, 2))
    message = rf"^embedding: an index is from 0 to 3, got {index} at {place}"
    with pytest.raises(tj.OutOfRangeError, match=message):
        nn.embedding(table, [0, index])
    with pytest.raises(IndexError):  # no value is known while it is traced
        tj.vmap(lambda i: nn.embedding(table, i))([0, index])


def test_embedding_takes_integers_and_a_table() -> None:
    with pytest.raises(tj.DTypeError, match=r"^embedding: an index is an integer"):
        nn.embedding(tj.zeros((4, 2)), [0.0])
    with pytest.raises(tj.ShapeError, match=r"^embedding: takes a table"):
        nn.embedding(tj.zeros(()), [0])


def test_embedding_under_vmap() -> None:
    table = RNG.normal(size=(5, 3))
    indices = np.array([[0, 4], [2, 2]], np.int8)
    found = tj.vmap(lambda i: nn.embedding(table, i))(indices)
    np.testing.assert_array_equal(found, table[indices])


def test_one_hot_is_the_one_of_the_namespace() -> None:
    assert nn.one_hot is tj.one_hot
