"""Indexing is NumPy's, and its gradients are dense (line 30)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

DATA = np.arange(24.0).reshape(2, 3, 4)
MASK = DATA % 5 < 2

KEYS = {
    "integer": 1,
    "negative integer": -1,
    "numpy integer": np.int64(1),
    "tensor integer": tj.asarray(1),
    "several integers": (1, -2, 3),
    "slice": slice(1, None),
    "slice with step": (slice(None), slice(None, None, 2)),
    "negative step": (slice(None, None, -1), slice(2, None, -1)),
    "slice beyond the end": (slice(None), slice(1, 100)),
    "empty slice": slice(2, 1),
    "ellipsis": ...,
    "ellipsis then integer": (..., -1),
    "integer then ellipsis": (0, ...),
    "newaxis": None,
    "newaxis inside": (slice(None), None, 1, None),
    "empty tuple": (),
    "list": [1, 0, 1],
    "negative list": [-1, -2],
    "array": np.array([[0, 1], [1, 1]]),
    "tensor": tj.asarray([1, 0, 0]),
    "uint8 array": np.uint8([1, 0]),
    "two arrays": ([0, 1], [2, 0]),
    "broadcasting arrays": ([[0], [1]], [2, 0]),
    "array in the middle": (slice(None), [2, 0]),
    "array at the end": (..., [3, 3, 0]),
    "arrays apart": ([0, 1], slice(None), [1, 2]),
    "integer beside array": (0, slice(None), [1, 2]),
    "array beside integer": (slice(None), [1, 2], 0),
    "array and newaxis": (None, [1, 0], None),
    "arrays around newaxis": ([0, 1], None, [1, 2]),
    "empty list": [],
    "mask": MASK,
    "tensor mask": tj.asarray(MASK),
    "mask of the first axis": np.array([False, True]),
    "list mask": [True, False],
    "mask in the middle": (slice(None), [True, False, True]),
    "mask of two axes": MASK[:, :, 0],
    "mask and integer": (MASK[:, :, 0], 1),
    "mask and array": ([True, True], [2, 0]),
    "mask without True": np.zeros((2, 3, 4), bool),
    "slice and mask": (slice(1, None), MASK[0, :, 0], slice(0, 2)),
}


def as_numpy(key: Any) -> Any:
    """The same key made of NumPy arrays only."""
    if isinstance(key, tuple):
        return tuple(map(as_numpy, key))
    return key.numpy() if isinstance(key, tj.Tensor) else key


@pytest.mark.parametrize("name", KEYS)
def test_s30_an_index_selects_what_numpy_selects(name: str) -> None:
    key = KEYS[name]
    expected = DATA[as_numpy(key)]
    got = tj.asarray(DATA)[key]
    assert isinstance(got, tj.Tensor)
    assert got.shape == expected.shape
    assert got.tolist() == expected.tolist()
    assert tj.Variable(DATA)[key].tolist() == expected.tolist()


@pytest.mark.parametrize("name", KEYS)
def test_s30_the_gradient_is_dense_and_adds_up(name: str) -> None:
    key = KEYS[name]
    x = tj.Variable(DATA)
    with tj.GradientTape() as tape:
        y = x[key]
    weights = np.random.default_rng(0).normal(size=y.shape)
    g = tape.gradient(y, x, tj.asarray(weights))
    expected = np.zeros_like(DATA)
    np.add.at(expected, as_numpy(key), weights)
    assert isinstance(g, tj.Tensor)
    assert g.shape == DATA.shape
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-14)


def test_s30_repeated_indices_add_up() -> None:
    table = tj.Variable(tj.ones((4, 2)))
    with tj.GradientTape() as tape:
        y = table[[1, 1, 3, -1, 1]]
    assert tape.gradient(y, table).tolist() == [[0, 0], [3, 3], [0, 0], [2, 2]]


def test_s30_take_gathers_along_an_axis() -> None:
    x = tj.Variable(DATA)
    with tj.GradientTape() as tape:
        y = tj.take(x, [2, -3, 2], axis=1)
    assert y.tolist() == np.take(DATA, [2, -3, 2], axis=1).tolist()
    g = tape.gradient(y, x)
    assert g[0, :, 0].tolist() == [1.0, 0.0, 2.0]


OUT_OF_RANGE = {
    "integer": 2,
    "negative integer": -3,
    "second axis": (0, 3),
    "list": [0, 2],
    "negative list": [0, -3],
    "tensor": tj.asarray([5]),
    "array in the middle": (slice(None), np.array([0, 3])),
    "two arrays": ([0, 1], [0, 3]),
    "too many": (0, 0, 0, 0),
    "too many slices": (slice(None),) * 4,
    "two ellipses": (..., 0, ...),
    "float": 1.0,
    "float array": np.array([0.0]),
    "string": "a",
    "mask too short": np.array([True]),
    "mask too long": np.array([True, False, True]),
    "mask of the wrong axis": (slice(None), [True, False]),
    "arrays that do not broadcast": ([0, 1], [0, 1, 2]),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_s30_what_numpy_refuses_is_an_index_error(name: str) -> None:
    key = OUT_OF_RANGE[name]
    with pytest.raises(IndexError):
        DATA[as_numpy(key)]
    x = tj.Variable(DATA)
    with tj.GradientTape() as tape:
        for source in (x, x.value()):
            with pytest.raises(IndexError):
                source[key]
        y = x * x
    assert tape.gradient(y, x).tolist() == (2 * DATA).tolist(), "the block goes on"


def test_s30_the_error_names_the_index_and_the_size() -> None:
    x = tj.asarray(DATA)
    with pytest.raises(IndexError, match=r"\b7\b.*\b3\b"):
        x[:, 7]
    with pytest.raises(IndexError, match=r"\b7\b.*\b3\b"):
        x[:, [0, 7]]
    with pytest.raises(IndexError, match=r"-4\b.*\b3\b"):
        x[:, tj.asarray([0, -4])]
    with pytest.raises(IndexError, match=r"\b7\b.*\b3\b"):
        tj.take(x, [7], axis=1)


@pytest.mark.parametrize("indices", [[7], [-4], [[0, 7]]])
def test_s30_take_and_scatter_check_their_indices(indices: Any) -> None:
    with pytest.raises(IndexError):
        tj.take(tj.asarray([1.0, 2.0, 3.0]), indices, axis=0)
    with pytest.raises(IndexError):
        tj.scatter_add(tj.zeros(3), indices, 1.0)


def test_s30_indexing_a_number_without_axes() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = x[()] * x[...]
        assert x[None].shape == (1,)
    assert float(tape.gradient(y, x)) == 6.0
    with pytest.raises(IndexError):
        x[0]
    with pytest.raises(IndexError):
        x[:]


def test_s30_an_index_can_be_an_integer_variable() -> None:
    x, at = tj.Variable([1.0, 2.0, 3.0]), tj.Variable([2, 0])
    with tj.GradientTape() as tape:
        y = x[at]
    assert y.tolist() == [3.0, 1.0]
    assert tape.gradient(y, x).tolist() == [1.0, 0.0, 1.0]


def test_s30_the_second_derivative_goes_through() -> None:
    x = tj.Variable([1.0, 2.0, 3.0])
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = tj.sum(x[[0, 0, 2]] ** 3)
        g = inner.gradient(y, x)
    assert outer.gradient(g, x).tolist() == [12.0, 0.0, 18.0]
