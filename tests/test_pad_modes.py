"""`pad` with elements of the array itself: NumPy's values, gradients, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

X = np.random.default_rng(0).standard_normal((3, 4))
MODES = ["edge", "reflect", "symmetric", "wrap"]
WIDTHS: list[Any] = [1, (1, 2), ((0, 1), (2, 0)), ((3, 2), (5, 9)), 0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_values_and_gradients(mode: Any, widths: Any) -> None:
    expected = np.pad(X, widths, mode=mode)
    weights = np.arange(expected.size, dtype=float).reshape(expected.shape)
    places = np.pad(np.arange(X.size).reshape(X.shape), widths, mode=mode)
    slope = np.bincount(places.ravel(), weights.ravel(), X.size).reshape(X.shape)
    ways = (
        lambda x: tj.pad(x, widths, mode),
        lambda x: np.pad(tj.asarray(x), widths, mode=mode),
        tj.function(lambda x: tj.pad(x, widths, mode=mode)),
    )
    for way in ways:
        np.testing.assert_array_equal(way(X), expected)
        gradient = tj.grad(lambda x, way=way: tj.sum(way(x) * weights))(X)
        np.testing.assert_allclose(gradient, slope, rtol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_mapped(mode: Any) -> None:
    found = tj.vmap(lambda row: tj.pad(row, (1, 2), mode))(X)
    np.testing.assert_array_equal(found, np.pad(X, ((0, 0), (1, 2)), mode=mode))


def test_an_open_size_is_traced_for_each_length() -> None:
    f = tj.function(
        lambda x: tj.pad(x, 1, "reflect"), input_signature=[tj.TensorSpec([None])]
    )
    for size in (2, 3, 5):
        x = np.arange(size, dtype="f4")
        np.testing.assert_array_equal(f(x), np.pad(x, 1, mode="reflect"))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"mode is one of 'constant', 'edge'.*'Edge'"):
        tj.pad(X, 1, "Edge")
    with pytest.raises(ValueError, match="size 0 cannot be padded by"):
        tj.pad(np.ones((0, 2)), 1, "edge")
    with pytest.raises(ValueError, match=r"cannot be padded by \(-1, -1\)"):
        tj.pad(X, -1, "wrap")
    with pytest.raises(tj.UnsupportedError, match="takes no mode='mean'"):
        np.pad(tj.asarray(X), 1, mode="mean")
