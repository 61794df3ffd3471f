"""The gradient of a label gather is a comparison in the loops of its neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.base.errors import OutOfRangeError

F4 = np.float32
ROWS, COLUMNS = 300, 37


def along(x: Any, labels: Any) -> Any:
    return tj.take_along_axis(x, labels[..., None], axis=-1)


def picked(x: Any, labels: Any) -> Any:
    return x[tj.arange(labels.shape[0]), labels]


def picked_small(x: Any, labels: Any) -> Any:
    return x[np.arange(labels.shape[0], dtype=np.int16), labels]


def in_sequences(x: Any, labels: Any) -> Any:
    shape = (10, ROWS // 10)
    return along(tj.reshape(x, (*shape, COLUMNS)), tj.reshape(labels, shape))


@pytest.mark.parametrize("is_captured", [False, True], ids=["given", "captured"])
@pytest.mark.parametrize("gather", [along, picked, picked_small, in_sequences])
def test_no_scatter_is_left(gather: Any, is_captured: bool) -> None:
    rng = np.random.default_rng(3)
    x = tj.asarray(rng.normal(size=(ROWS, COLUMNS)).astype(F4))
    labels = tj.asarray(rng.integers(-COLUMNS, COLUMNS, ROWS))

    def loss(x: Any, labels: Any) -> Any:
        weights = tj.astype(labels, "float32") * 0.25
        return tj.sum(tj.reshape(gather(x, labels), (ROWS,)) * weights)

    with tj.config.override(native=True):
        if is_captured:
            traced = tj.function(lambda x: tj.grad(loss)(x, labels))
            found = traced(x)
        else:
            traced = tj.function(lambda x, labels: tj.grad(loss)(x, labels))
            found = traced(x, labels)
        assert [
            kernel for kernel in traced.kernels() if "gather_add" in kernel.ops
        ] == []
    taken = np.zeros((ROWS, COLUMNS), bool)
    taken[np.arange(ROWS), labels.numpy()] = True
    assert not np.any(found.numpy()[~taken])
    np.testing.assert_array_equal(found, tj.grad(loss)(x, labels))


def test_a_label_that_is_outside() -> None:
    x, labels = tj.zeros((ROWS, 5)), np.zeros(ROWS, np.int64)
    labels[77] = 5
    traced = tj.function(tj.grad(lambda x, i: tj.sum(picked(x, i) ** 2)))
    with (
        tj.config.override(native=True),
        pytest.raises(OutOfRangeError, match="index 5"),
    ):
        traced(x, tj.asarray(labels))


def test_numbers_that_only_seem_to_count() -> None:
    """One row is named twice, one not at all: that is a scatter."""
    rows = np.arange(100)
    rows[50] = 51
    x, labels = tj.ones((100, 4)), tj.zeros(100, dtype="int32")
    with tj.config.override(native=True):
        got = tj.function(tj.grad(lambda x: tj.sum(x[tj.asarray(rows), labels])))(x)
    assert got.numpy()[49:53, 0].tolist() == [1, 0, 2, 1]
