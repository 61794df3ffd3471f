"""Any mixture of integers, slices, arrays and masks indexes as in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from advanced_keys import keys, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

import tapejit as tj


def with_tensors(key: Any, draw: Any) -> Any:
    """The same key, some of its arrays as tensors."""
    if isinstance(key, tuple):
        return tuple(with_tensors(entry, draw) for entry in key)
    is_array = isinstance(key, np.ndarray)
    return tj.asarray(key) if is_array and draw(st.booleans()) else key


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_random_key_selects_and_differentiates_as_in_numpy(data: Any) -> None:
    shape = data.draw(shapes())
    key = data.draw(keys(shape))
    array = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
    x = tj.Variable(array)
    ours = with_tensors(key, data.draw)
    try:
        expected = array[key]
    except IndexError:
        with pytest.raises(IndexError):
            x[ours]
        return
    with tj.GradientTape() as tape:
        y = x[ours]
    assert y.shape == expected.shape
    assert y.tolist() == expected.tolist()
    weights = np.random.default_rng(0).normal(size=expected.shape)
    gradient = tape.gradient(y, x, tj.asarray(weights))
    matrix = selection_matrix(shape, key)
    dense = (matrix.T @ weights.reshape(-1)).reshape(shape)
    np.testing.assert_allclose(gradient, dense, rtol=1e-13, atol=1e-15)


def selection_matrix(shape: tuple[int, ...], key: Any) -> Any:
    """One row per selected element, with a 1 at the place that it is read from."""
    size = int(np.prod(shape))
    places = np.arange(size).reshape(shape)[key]
    matrix = np.zeros((np.size(places), size))
    matrix[np.arange(np.size(places)), np.reshape(places, -1)] = 1.0
    return matrix


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_random_key_indexes_mapped_tensors(data: Any) -> None:
    shape = data.draw(shapes())
    key = data.draw(keys(shape))
    batch = np.arange(3.0 * np.prod(shape)).reshape(3, *shape)
    try:
        expected = np.stack([array[key] for array in batch])
    except IndexError:
        return
    found = tj.vmap(lambda x: x[key])(tj.asarray(batch))
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "key",
    [True, False, np.array(True), np.bool_(False), (True, 0), (0, True), (..., True)],
    ids=str,
)
def test_a_single_bool_is_a_mask_without_axes(key: Any) -> None:
    array = np.arange(6.0).reshape(2, 3)
    found = tj.asarray(array)[key]
    assert found.shape == array[key].shape
    assert found.tolist() == array[key].tolist()


@pytest.mark.parametrize("last", [[0, 1, 1], 0, True], ids=str)
def test_an_ellipsis_of_no_axes_separates(last: Any) -> None:
    array = np.arange(24.0).reshape((2, 3, 4) if last is not True else (12, 2))
    key = (slice(None), [0, 1, 1], ..., last)
    found = tj.asarray(array)[key]
    assert found.shape == array[key].shape
    assert found.tolist() == array[key].tolist()


def test_a_traced_mask_has_no_positions() -> None:
    x = tj.asarray([1.0, 2.0])
    with pytest.raises(TypeError, match="boolean mask"):
        tj.vmap(lambda m: x[m])(tj.asarray([[True, False]]))
