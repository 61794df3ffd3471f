"""Reductions by segment, and elements put apart by number and together again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from open_sizes import assert_same

import tapejit as tj

X = np.array([[1.0, -2.0], [3.0, 0.5], [-4.0, 8.0], [0.25, 1.0], [7.0, 6.0]])
IDS = np.array([2, 0, -1, 2, 0])
FUNCTIONS = {
    "sum": (tj.segment_sum, 0.0),
    "mean": (tj.segment_mean, 0.0),
    "prod": (tj.segment_prod, 1.0),
    "max": (tj.segment_max, -np.inf),
    "min": (tj.segment_min, np.inf),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


@each_function
def test_numpy_reduces_the_rows_of_each_id(name: str) -> None:
    function, empty = FUNCTIONS[name]
    found = function(X, IDS, 4)
    for number in range(4):
        rows = X[number == IDS]
        wanted = getattr(np, name)(rows, axis=0) if len(rows) else [empty, empty]
        np.testing.assert_allclose(found[number], wanted, rtol=1e-15)
    assert function(X, IDS).shape == (3, 2)
    assert function(X, IDS - 9).shape == (0, 2)
    assert function(X, IDS - 9, 0).shape == (0, 2)
    assert function(X[:0], []).shape == (0, 2)
    np.testing.assert_array_equal(function(X[:0], [], 2), np.full((2, 2), empty))


@each_function
def test_ids_may_have_several_axes(name: str) -> None:
    function, _ = FUNCTIONS[name]
    ids = np.array([[0, 3], [1, 1], [-1, 0], [3, 3], [0, 0]])
    np.testing.assert_array_equal(
        function(X, ids), function(X.reshape(-1), ids.reshape(-1))
    )
    cube = np.arange(30.0).reshape(5, 2, 3)
    assert function(cube, ids).shape == (4, 3)


def test_special_values() -> None:
    x = tj.asarray([np.nan, 1.0, np.inf, -0.0, -np.inf, np.inf])
    ids = [0, 0, 1, 2, 1, -1]
    assert np.isnan(tj.segment_max(x, ids)[0])
    assert np.isnan(tj.segment_min(x, ids)[0])
    assert tj.segment_max(x, ids).numpy()[1:].tolist() == [np.inf, 0.0]
    assert np.isnan(tj.segment_sum(x, ids).numpy()[:2]).all()
    # What is dropped leaves no NaN behind, in the gradient either.
    y = tj.asarray([np.nan, 2.0, np.inf])
    for function, _ in FUNCTIONS.values():
        slope = tj.grad(lambda y, f=function: tj.sum(f(y, [-1, 0, -1]) ** 2))(y)
        assert slope.numpy().tolist() == [0.0, 4.0, 0.0]


def test_ties_share_and_zeros_are_factors() -> None:
    x = tj.asarray([2.0, 2.0, 1.0, 0.0, 0.0, 5.0])
    ids = [0, 0, 0, 1, 1, 1]
    largest = tj.grad(lambda x: tj.sum(tj.segment_max(x, ids)))(x)
    assert largest.numpy().tolist() == [0.5, 0.5, 0, 0, 0, 1]
    smallest = tj.grad(lambda x: tj.sum(tj.segment_min(x, ids)))(x)
    assert smallest.numpy().tolist() == [0, 0, 1, 0.5, 0.5, 0]
    product = tj.hessian(lambda x: tj.sum(tj.segment_prod(x, ids)))(x).numpy()
    assert product[3:, 3:].tolist() == [[0, 5, 0], [5, 0, 0], [0, 0, 0]]
    assert product[:3, :3].tolist() == [[0, 1, 2], [1, 0, 2], [2, 2, 0]]


def test_dtypes() -> None:
    ids = [0, 0, 1]
    for dtype in ("int8", "uint8", "int64", "float16", "bfloat16", "float64"):
        x = tj.asarray([1, 2, 3], dtype=dtype)
        assert tj.segment_sum(x, ids).dtype == x.dtype
        assert tj.segment_max(x, ids).dtype == x.dtype
    assert tj.segment_mean(tj.asarray([1, 2, 3]), ids).dtype == tj.float32
    many = tj.ones(4096, dtype="float16")  # added up in halves they would be 2048
    assert float(tj.segment_sum(many, tj.zeros(4096, dtype="int32"))[0]) == 4096
    assert tj.segment_max(tj.asarray([1], dtype="int8"), [1])[0] == -128
    np.testing.assert_array_equal(
        tj.segment_sum(tj.asarray([1j, 2.0, 3.0]), ids), [2 + 1j, 3]
    )


@each_function
def test_open_sizes_are_one_trace(name: str) -> None:
    function, _ = FUNCTIONS[name]

    def body(x: Any, ids: Any) -> Any:
        return function(x, ids, 3), tj.grad(lambda x: tj.sum(function(x, ids, 3)))(x)

    specs = [tj.TensorSpec([None, 2]), tj.TensorSpec([None], tj.int32)]
    traced = tj.function(input_signature=specs)(body)
    for count in (3, 6, 9):
        x = tj.asarray(np.arange(2.0 * count, dtype=np.float32).reshape(count, 2) + 1)
        ids = tj.asarray(np.arange(count, dtype=np.int32) % 3)
        assert_same(traced(x, ids), body(x, ids))
    assert traced.trace_count == 1


def test_a_number_of_segments_that_values_decide() -> None:
    traced = tj.function(lambda x, ids: tj.segment_sum(x, ids))
    for ids in ([0, 1, 1], [0, 4, 4], [-1, 1, 0], [-1, -1, -1]):
        given = tj.asarray(ids)
        x = tj.asarray([1.0, 2.0, 3.0])
        np.testing.assert_array_equal(traced(x, given), tj.segment_sum(x, given))
    assert traced.trace_count == 3  # of 2, 5 and 0 segments
    with pytest.raises(TypeError, match="num_segments=None: the largest segment id"):
        tj.vmap(lambda x, ids: tj.segment_sum(x, ids))(X, np.array([[0, 1]] * 5))


def test_errors_say_what_to_write() -> None:
    x = tj.asarray([1.0, 2.0])
    with pytest.raises(tj.OutOfRangeError, match=r"segment id 5 at \[1\].*segments, 3"):
        tj.segment_sum(x, [0, 5], 3)
    with pytest.raises(tj.OutOfRangeError, match="id -1"):
        tj.function(lambda ids: tj.segment_max(x, ids, 3))(tj.asarray([0, 5]))
    with pytest.raises(tj.ShapeError, match="one segment id for each element"):
        tj.segment_sum(x, [0, 1, 2])
    with pytest.raises(tj.ShapeError, match="single one"):
        tj.segment_sum(x, 0)
    with pytest.raises(tj.ShapeError, match="first axes of the data"):
        tj.segment_sum(x, [[0], [1]])
    with pytest.raises(tj.DTypeError, match=r"segment ids are integers, got f32\[2\]"):
        tj.segment_sum(x, [0.0, 1.0])
    with pytest.raises(tj.ArgumentTypeError, match="num_segments is an integer"):
        tj.segment_sum(x, [0, 1], 2.5)
    with pytest.raises(tj.ArgumentError, match="cannot be negative, got -1"):
        tj.segment_sum(x, [0, 1], -1)


# Apart and together


def test_parts_are_those_of_masks_and_come_together_again() -> None:
    numbers = np.array([1, 0, 1, 3, 0])
    parts = tj.dynamic_partition(X, numbers, 4)
    for number, part in enumerate(parts):
        np.testing.assert_array_equal(part, X[numbers == number])
    where = tj.dynamic_partition(np.arange(5), numbers, 4)
    np.testing.assert_array_equal(tj.dynamic_stitch(where, parts), X)
    grid = np.array([[0, 1]] * 5)
    assert [p.tolist() for p in tj.dynamic_partition(X, grid, 2)] == X.T.tolist()
    assert tj.dynamic_partition(X, 1, 2)[1].shape == (1, 5, 2)
    assert tj.dynamic_partition(X[:0], [], 2)[0].shape == (0, 2)


def test_the_last_of_several_stays_and_gaps_are_zero() -> None:
    a, b = tj.asarray([[1.0, 2.0], [3.0, 4.0]]), tj.asarray([[[5.0, 6.0]]])
    indices = [[0, 3], [[0]]]
    found = tj.dynamic_stitch(indices, [a, b])
    assert found.numpy().tolist() == [[5, 6], [0, 0], [0, 0], [3, 4]]
    slopes = tj.grad(
        lambda a, b: tj.sum(tj.dynamic_stitch(indices, [a, b]) ** 2), argnums=(0, 1)
    )(a, b)
    assert slopes[0].numpy().tolist() == [[0, 0], [6, 8]]
    assert slopes[1].numpy().tolist() == [[[10, 12]]]
    assert tj.dynamic_stitch([[]], [X[:0]]).shape == (0, 2)


def test_parts_have_gradients_in_both_modes() -> None:
    numbers = tj.asarray([1, 0, 1, 1, 0])

    def loss(x: Any, numbers: Any) -> Any:
        low, high = tj.dynamic_partition(x, numbers, 2)
        return tj.sum(low**2) + tj.sum(high**3)

    expected = np.where(np.array([[1, 0, 1, 1, 0]]).T, 3 * X**2, 2 * X)
    np.testing.assert_allclose(tj.grad(loss)(X, numbers), expected, rtol=1e-14)
    traced = tj.function(lambda x, n: tj.grad(loss)(x, n))
    np.testing.assert_allclose(traced(X, numbers), expected, rtol=1e-14)
    traced(X, tj.asarray([0, 0, 1, 0, 0]))
    assert traced.trace_count == 2


def test_errors_of_parts() -> None:
    with pytest.raises(tj.OutOfRangeError, match=r"from 0 to 1, got 2 at \[1\]"):
        tj.dynamic_partition(X, [0, 2, 0, 0, 1], 2)
    with pytest.raises(tj.OutOfRangeError, match="got -1"):
        tj.function(lambda n: tj.dynamic_partition(X, n, 2))(tj.asarray([0, -1] * 2))
    with pytest.raises(tj.ShapeError, match=r"partitions of i32\[2\] for f64\[5,2\]"):
        tj.dynamic_partition(X, [0, 1], 2)
    with pytest.raises(tj.ArgumentError, match="no negative indices, got -2"):
        tj.dynamic_stitch([[0, -2]], [[1.0, 2.0]])
    with pytest.raises(tj.ArgumentError, match="1 tensors of indices for 2 of data"):
        tj.dynamic_stitch([[0]], [[1.0], [2.0]])
    with pytest.raises(tj.ShapeError, match="not one shape"):
        tj.dynamic_stitch([[0], [1]], [[1.0], [[2.0]]])
