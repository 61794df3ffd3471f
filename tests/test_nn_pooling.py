"""Pooling: values of a direct loop, ties, padding, derivatives, modes, errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from composed import assert_refused

import tapejit as tj
from tapejit.base.types import dtype_named

nn = tj.nn
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(29)
POOLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "max": (nn.max_pool, np.max),
    "avg": (nn.avg_pool, np.mean),
}


def direct(reduce: Any, x: Array, window: Any, strides: Any, pairs: Any) -> Array:
    """Window by window, of what is in it."""
    batch, *sizes, channels = x.shape
    axes = list(zip(sizes, window, strides, pairs, strict=True))
    counts = [(low + n + high - k) // s + 1 for n, k, s, (low, high) in axes]
    out = np.zeros((batch, *counts, channels), x.dtype)
    inner = tuple(range(1, x.ndim - 1))
    for at in np.ndindex(*counts):
        seen = [
            slice(max(p * s - low, 0), max(p * s - low + k, 0))
            for p, (_, k, s, (low, _)) in zip(at, axes, strict=True)
        ]
        out[(slice(None), *at)] = reduce(x[(slice(None), *seen)], axis=inner)
    return out


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize(
    ("window", "strides", "pairs"),
    [
        ((2, 2), (2, 2), ((0, 0), (0, 0))),
        ((2, 3), (2, 3), ((0, 0), (0, 0))),
        ((3, 2), (1, 1), ((0, 0), (0, 0))),
        ((3, 3), (2, 2), ((1, 1), (0, 1))),
        ((2, 2), (3, 3), ((0, 1), (1, 0))),
        ((1, 1), (2, 3), ((0, 0), (0, 0))),
        ((6, 7), (1, 1), ((0, 0), (0, 0))),
        ((4, 1), (2, 1), ((3, 3), (0, 0))),
    ],
)
def test_images(name: str, window: Any, strides: Any, pairs: Any) -> None:
    ours, reduce = POOLS[name]
    x = RNG.normal(size=(2, 6, 7, 3))
    expected = direct(reduce, x, window, strides, pairs)
    found = ours(x, window, strides, pairs)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)
    first = ours(np.moveaxis(x, -1, 1), window, strides, pairs, data_format="NCHW")
    np.testing.assert_array_equal(np.moveaxis(first.numpy(), 1, -1), found)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_any_number_of_spatial_axes(name: str, rank: int) -> None:
    ours, reduce = POOLS[name]
    x = RNG.normal(size=(2, *range(5, 5 + rank), 2))
    for window, stride in [(2, 2), (3, 2)]:
        found = ours(x, window, stride)
        sizes = (window,) * rank, (stride,) * rank, ((0, 0),) * rank
        np.testing.assert_allclose(found, direct(reduce, x, *sizes), rtol=1e-13)


def test_numbers_by_hand() -> None:
    """Padding never counts, and its odd element is at the end."""
    x = np.array([-1.0, -3.0, -8.0]).reshape(1, 3, 1)
    pools = [nn.max_pool(x, 2), nn.max_pool(x, 2, padding="SAME")]
    assert [pool.numpy().ravel().tolist() for pool in pools] == [[-1], [-1, -8]]
    means = [nn.avg_pool(x, 2, 1), nn.avg_pool(x, 2, 1, "SAME")]
    assert [mean.numpy().ravel().tolist() for mean in means] == [
        [-2, -5.5],
        [-2, -5.5, -8],
    ]


def test_same_padding_has_a_window_for_every_stride() -> None:
    for size, window, stride in itertools.product([3, 4, 5, 6], [1, 2, 3], [1, 2, 3]):
        x = RNG.normal(size=(1, size, 1))
        for pool, reduce in POOLS.values():
            found = pool(x, window, stride, "SAME")
            total = max((-(-size // stride) - 1) * stride + window - size, 0)
            pairs = ((total // 2, total - total // 2),)
            expected = direct(reduce, x, (window,), (stride,), pairs)
            np.testing.assert_allclose(found, expected, rtol=1e-14)
            assert found.shape == (1, -(-size // stride), 1)


# Dtypes and special values


@pytest.mark.parametrize("name", ["bool", "u8", "i16", "i64", "f16", "bf16", "f32"])
@pytest.mark.parametrize("strides", [2, 1])
def test_the_largest_keeps_its_dtype(name: str, strides: int) -> None:
    x = RNG.integers(0, 9, (2, 4, 4, 2)).astype(dtype_named(name))
    for padding, pairs in [("VALID", (0, 0)), (((1, 1), (1, 1)), (1, 1))]:
        found = nn.max_pool(x, 2, strides, padding)
        assert found.dtype == x.dtype
        expected = direct(np.max, x, (2, 2), (strides, strides), (pairs, pairs))
        np.testing.assert_array_equal(found, expected)


def test_negative_integers_are_larger_than_padding() -> None:
    x = np.full((1, 3, 1), -128, np.int8)
    np.testing.assert_array_equal(nn.max_pool(x, 2, 1, "SAME"), x)


def test_means_of_integers_are_floats() -> None:
    found = nn.avg_pool(np.array([1, 2]).reshape(1, 2, 1), 2)
    assert (found.dtype, found.numpy().item()) == (np.float32, 1.5)


def test_means_of_halves_are_rounded_once() -> None:
    x = np.full((1, 4, 1), 60000, np.float16)
    for strides in (None, 1):
        assert nn.avg_pool(x, 4, strides).numpy().item() == np.float16(60000)


@pytest.mark.parametrize("strides", [2, 1])
def test_nan_is_the_largest(strides: int) -> None:
    x = np.array([1.0, np.nan, 2.0, 3.0]).reshape(1, 4, 1)
    found = nn.max_pool(x, 2, strides).numpy().ravel()
    expected = [np.nan, 3] if strides == 2 else [np.nan, np.nan, 3]
    np.testing.assert_array_equal(found, expected)


# Gradients


def gradient(pool: Callable[..., Any], x: Array) -> Array:
    with tj.GradientTape() as tape:
        v = tj.Variable(x)
        y = pool(v)
    found: Array = tape.gradient(y, v).numpy()
    return found


@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [(2, 2, "VALID"), (2, 1, "VALID"), (3, 2, "SAME"), (2, 3, ((1, 1), (0, 1)))],
)
@pytest.mark.parametrize("name", POOLS)
def test_derivatives_to_the_second(
    name: str, window: int, strides: int, padding: Any
) -> None:
    """Numbers far from each other, so that no difference is taken across a kink."""
    pool, _ = POOLS[name]
    x = RNG.permutation(2 * 4 * 5 * 2).reshape(2, 4, 5, 2) * 0.25
    tj.testing.check_grads(
        lambda x: tj.square(pool(x, window, strides, padding)), [x], order=2
    )


def test_equal_elements_share_as_in_a_maximum() -> None:
    x = np.array([1.0, 1.0, 0.0, 2.0]).reshape(1, 4, 1)
    side_by_side = gradient(lambda v: nn.max_pool(v, 4), x)
    np.testing.assert_array_equal(side_by_side.ravel(), [0, 0, 0, 1])
    for pool in (
        lambda v: nn.max_pool(v[:, :2], 2),
        lambda v: nn.max_pool(v[:, :3], 3, 1),
        lambda v: nn.max_pool(v[:, :3], 3, 2, [(1, 1)]),
        lambda v: tj.max(v[:, :3], axis=1),
    ):
        found = gradient(lambda v, pool=pool: pool(v)[:, :1], x).ravel()
        np.testing.assert_array_equal(found, [0.5, 0.5, 0, 0])


def test_overlapping_windows_add_up() -> None:
    x = np.array([0.0, 5.0, 1.0, 5.0, 2.0]).reshape(1, 5, 1)
    found = gradient(lambda v: nn.max_pool(v, 3, 1), x).ravel()
    np.testing.assert_array_equal(found, [0, 1.5, 0, 1.5, 0])


def test_padding_has_no_share_of_minus_infinity() -> None:
    x = np.full((1, 2, 1), -np.inf)
    found = gradient(lambda v: nn.max_pool(v, 2, 1, [(1, 1)]), x).ravel()
    np.testing.assert_array_equal(found, [1.5, 1.5])


def test_the_gradient_of_nan_is_nan_in_its_window_alone() -> None:
    x = np.array([np.nan, 1.0, 2.0, 3.0]).reshape(1, 4, 1)
    for strides in (None, 2):
        pool = lambda v, strides=strides: nn.max_pool(v, 2, strides)
        found = gradient(pool, x).ravel()
        np.testing.assert_array_equal(found, [np.nan, np.nan, 0, 1])
    found = gradient(lambda v: nn.max_pool(v, 2, 1), x).ravel()
    np.testing.assert_array_equal(np.isnan(found), [True, True, False, False])


def test_means_spread_evenly() -> None:
    x = RNG.normal(size=(1, 3, 1))
    found = gradient(lambda v: nn.avg_pool(v, 2, padding="SAME"), x).ravel()
    np.testing.assert_array_equal(found, [0.5, 0.5, 1.0])


# Mapped, compiled, of open sizes


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize(("window", "strides"), [(2, None), (3, 2)])
def test_mapped_compiled_and_eager_agree(name: str, window: int, strides: Any) -> None:
    pool, _ = POOLS[name]
    x = RNG.normal(size=(3, 2, 6, 6, 2))

    def body(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = pool(x, window, strides, "SAME")
            total = tj.sum(y * y)
        return y, tape.gradient(total, x)

    rows = [body(tj.asarray(row)) for row in x]
    mapped = tj.vmap(lambda row: pool(row, window, strides, "SAME"))(x)
    np.testing.assert_allclose(mapped, np.stack([y for y, _ in rows]), rtol=1e-13)
    compiled = tj.function(body)
    for row, expected in zip(x, rows, strict=True):
        for found, part in zip(compiled(tj.asarray(row)), expected, strict=True):
            np.testing.assert_allclose(found, part, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize(("window", "strides"), [(2, 2), (3, 1)])
def test_one_trace_serves_images_of_any_size(
    name: str, window: int, strides: int
) -> None:
    pool, _ = POOLS[name]

    @tj.function(input_signature=[tj.TensorSpec([None, None, None, 2], "float64")])
    def pooled(x: Any) -> Any:
        return pool(x, window, strides)

    for shape in [(2, 6, 7, 2), (3, 9, 5, 2)]:
        x = RNG.normal(size=shape)
        np.testing.assert_allclose(pooled(x), pool(x, window, strides), rtol=1e-13)
    assert pooled.trace_count == 1


# Layers


def test_layers_are_their_functions() -> None:
    x = RNG.normal(size=(2, 6, 6, 3)).astype(np.float32)
    largest = nn.MaxPool2D()
    np.testing.assert_array_equal(largest(x), nn.max_pool(x, 2))
    mean = nn.AvgPool2D((3, 2), 2, "SAME")
    np.testing.assert_array_equal(mean(x), nn.avg_pool(x, (3, 2), 2, "SAME"))
    assert repr(largest) == "MaxPool2D((2, 2))"
    volume = RNG.normal(size=(2, 4, 6, 5, 3))
    deep, even = nn.MaxPool3D((2, 3, 1), name="deep"), nn.AvgPool3D(2, 1)
    np.testing.assert_array_equal(deep(volume), nn.max_pool(volume, (2, 3, 1)))
    np.testing.assert_array_equal(even(volume), nn.avg_pool(volume, 2, 1))
    assert (deep.name, even.name) == ("deep", "avg_pool3d")
    with pytest.raises(tj.ShapeError, match=r"deep: takes \[batch, depth, height, wi"):
        deep(volume[0])
    assert repr(mean) == "AvgPool2D((3, 2), strides=(2, 2), padding=SAME)"


# Errors

X = np.ones((1, 4, 4, 6), np.float32)
REFUSED: dict[str, Callable[[], Any]] = {
    "max_pool: a window of 5 does not fit into axis 1 of f32[1,4,4,6], which is 4": (
        lambda: nn.max_pool(X, 5)
    ),
    "max_pool: padding ((2, 2), (2, 2)) reaches as far as the window (2, 2)": (
        lambda: nn.max_pool(X, 2, padding=2)
    ),
    "max_pool: window sizes are integers, got 2.5": lambda: nn.max_pool(X, 2.5),
    "max_pool: window sizes have one number per spatial axis, 2 here": (
        lambda: nn.max_pool(X, [1, 2, 2, 1])
    ),
    "avg_pool: strides are integers from 1 on": lambda: nn.avg_pool(X, 2, 0),
    "avg_pool: takes a batch with axes NWC or NHWC or NDHWC, got f32[3]": (
        lambda: nn.avg_pool(np.ones(3, np.float32), 2)
    ),
    "avg_pool: takes real numbers": lambda: nn.avg_pool(X * 1j, 2),
    "MaxPool2D: window sizes are integers from 1 on": lambda: nn.MaxPool2D(0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_errors_say_what_to_change(message: str) -> None:
    assert_refused(REFUSED[message], message, tj.TapejitError)
