"""Rows of one's own, positions by axis, sequences with lengths: against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from open_sizes import assert_same

import tapejit as tj

CUBE = np.arange(48.0).reshape(2, 3, 2, 4)


def rows_by_loop(x: Any, index: Any, axis: int, count: int) -> Any:
    """`np.take` in each row, the rows stacked."""
    if count == 0:
        return np.take(x, index, axis=axis)
    parts = [
        rows_by_loop(a, i, axis - 1, count - 1) for a, i in zip(x, index, strict=True)
    ]
    return np.stack(parts)


@pytest.mark.parametrize(
    ("shape", "axis", "count"),
    [
        ((2, 5), 1, 1),
        ((2,), 1, 1),
        ((2, 2, 2), 2, 1),
        ((2, 3, 1), -1, 2),
        ((2, 3), 3, 2),
        ((2, 3, 4), 2, -1),
        ((2, 3, 2), 3, 3),
    ],
)
def test_rows_take_from_their_own(shape: Any, axis: int, count: int) -> None:
    at = axis % CUBE.ndim
    number = count % len(shape) if count < 0 else count
    index = np.random.default_rng(3).integers(-2, 2, shape)
    wanted = rows_by_loop(CUBE, index, at, number)

    def taken(x: Any, index: Any) -> Any:
        return tj.take(x, index, axis=axis, batch_dims=count)

    np.testing.assert_array_equal(taken(CUBE, index), wanted)
    np.testing.assert_array_equal(tj.function(taken)(CUBE, index), wanted)
    np.testing.assert_array_equal(tj.vmap(taken)(CUBE[None], index[None])[0], wanted)
    tj.testing.check_grads(lambda x: taken(x, index), (CUBE,), order=2)


def test_the_axis_behind_the_rows_is_the_usual_one() -> None:
    index = np.array([[0, 2], [1, 1]])
    np.testing.assert_array_equal(
        tj.take(CUBE, index, batch_dims=1), rows_by_loop(CUBE, index, 1, 1)
    )
    specs = [tj.TensorSpec([None, 3]), tj.TensorSpec([None, 2], tj.int32)]
    opened = tj.function(input_signature=specs)(
        lambda x, i: tj.take(x, i, batch_dims=1)
    )
    for size in (2, 4, 7):
        x = tj.reshape(tj.arange(3.0 * size), (size, 3))
        i = tj.asarray(np.tile(np.int32([2, 0]), (size, 1)))
        assert_same(opened(x, i), x.numpy()[:, [2, 0]])
    assert opened.trace_count == 1


def test_rows_that_do_not_belong_together() -> None:
    x = tj.ones((2, 3))
    with pytest.raises(tj.ShapeError, match="first 1 axes"):
        tj.take(x, [[0], [0], [0]], batch_dims=1)
    with pytest.raises(tj.ArgumentError, match="batch_dims is 2"):
        tj.take(x, [0, 1], batch_dims=2)
    with pytest.raises(tj.ArgumentError, match="axis 0 is one of the first 1"):
        tj.take(x, [[0], [0]], axis=0, batch_dims=1)
    with pytest.raises(tj.OutOfRangeError, match="index 3"):
        tj.take(x, [[0], [3]], batch_dims=1)


# Positions by axis


@pytest.mark.parametrize("order", ["C", "F"])
def test_positions_are_numpys(order: Any) -> None:
    shape = (3, 4, 5)
    flat = np.random.default_rng(2).permutation(60).reshape(6, 10)
    found = tj.unravel_index(flat, shape, order)
    expected = np.unravel_index(flat, shape, order)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(tj.ravel_multi_index(found, shape, order=order), flat)


def test_numpys_functions_take_tensors() -> None:
    flat = np.array([[3, 11], [0, 7]])
    through = np.unravel_index(tj.asarray(flat), (3, 4))
    assert all(isinstance(x, tj.Tensor) for x in through)
    back = np.ravel_multi_index(through, (3, 4), mode="clip")
    assert isinstance(back, tj.Tensor)
    np.testing.assert_array_equal(back, flat)


def test_modes_are_numpys() -> None:
    index = (np.array([-1, 5, 2]), np.array([7, -9, 0]))
    for mode in ("wrap", "clip", ("wrap", "clip")):
        np.testing.assert_array_equal(
            tj.ravel_multi_index(index, (3, 4), mode),
            np.ravel_multi_index(index, (3, 4), mode),
        )
    assert tj.unravel_index(0, ()) == ()
    assert tj.unravel_index(tj.asarray([], dtype="int32"), (0, 2))[1].shape == (0,)


def test_open_sizes_of_positions() -> None:
    @tj.function(input_signature=[tj.TensorSpec([None, 3])])
    def place_of_largest(x: Any) -> Any:
        return tj.unravel_index(tj.argmax(x), x.shape)

    for size in (2, 5, 9):
        x = np.zeros((size, 3), np.float32)
        x[size - 1, 1] = 1
        row, column = place_of_largest(x)
        assert (int(row), int(column)) == (size - 1, 1)
    assert place_of_largest.trace_count == 1


def test_positions_that_are_not_there() -> None:
    with pytest.raises(tj.OutOfRangeError, match=r"from 0 to 5, got 6 at \[1\]"):
        tj.unravel_index([0, 6], (2, 3))
    with pytest.raises(tj.OutOfRangeError, match="got -1"):
        tj.function(lambda i: tj.unravel_index(i, (2, 3)))(tj.asarray(-1))
    with pytest.raises(tj.OutOfRangeError, match="from 0 to 1, got 2"):
        tj.ravel_multi_index(([2], [0]), (2, 3))
    with pytest.raises(tj.ArgumentError, match="1 indices and 2 modes for 2 axes"):
        tj.ravel_multi_index(([2],), (2, 3))
    with pytest.raises(tj.ArgumentError, match="mode is one of"):
        tj.ravel_multi_index(([1], [0]), (2, 3), "round")
    with pytest.raises(tj.ArgumentError, match="order is 'C' or 'F'"):
        tj.unravel_index(0, (2, 3), "K")
    with pytest.raises(tj.DTypeError, match="indices are integers"):
        tj.unravel_index(0.5, (2, 3))


# Lengths


def test_masks_of_lengths() -> None:
    found = tj.sequence_mask([[1, 0], [3, -2]])
    assert found.dtype == tj.bool
    assert found.numpy().astype(int).tolist() == [
        [[1, 0, 0], [0] * 3],
        [[1] * 3, [0] * 3],
    ]
    assert tj.sequence_mask(2, 3, "float32").numpy().tolist() == [1.0, 1.0, 0.0]
    assert tj.sequence_mask([]).shape == (0, 0)
    assert tj.sequence_mask([-1]).shape == (1, 0)
    assert tj.sequence_mask(tj.asarray([200], dtype="uint8"), 300).numpy().sum() == 200
    # The largest length is a guard, a given one is not.
    guarded = tj.function(lambda n: tj.sequence_mask(n))
    fixed = tj.function(lambda n: tj.sequence_mask(n, 4))
    for lengths in ([1, 2], [2, 2], [4, 0]):
        n = tj.asarray(lengths)
        np.testing.assert_array_equal(guarded(n), tj.sequence_mask(n))
        np.testing.assert_array_equal(fixed(n), tj.sequence_mask(n, 4))
    assert (guarded.trace_count, fixed.trace_count) == (2, 1)
    with pytest.raises(tj.DTypeError, match="lengths are integers"):
        tj.sequence_mask([1.0])
    with pytest.raises(tj.ArgumentError, match="maxlen cannot be negative"):
        tj.sequence_mask([1], -1)


@pytest.mark.parametrize(("along", "batch"), [(1, 0), (0, 1), (3, 0), (-1, 1), (2, 3)])
def test_beginnings_are_reversed(along: int, batch: int) -> None:
    lengths = np.arange(CUBE.shape[batch]) % (CUBE.shape[along] + 1)
    expected = np.moveaxis(CUBE.copy(), (batch, along), (0, 1))
    for row, count in enumerate(lengths):
        expected[row, :count] = expected[row, :count][::-1].copy()
    expected = np.moveaxis(expected, (0, 1), (batch, along))
    for call in (tj.reverse_sequence, tj.function(tj.reverse_sequence)):
        np.testing.assert_array_equal(call(CUBE, lengths, along, batch), expected)

    def twice(x: Any) -> Any:
        once = tj.reverse_sequence(x, lengths, along, batch)
        return tj.reverse_sequence(once, lengths, along, batch)

    np.testing.assert_array_equal(twice(CUBE), CUBE)
    tj.testing.check_grads(
        lambda x: tj.reverse_sequence(x, lengths, along, batch), (CUBE,)
    )


def test_lengths_that_do_not_fit() -> None:
    x = tj.ones((2, 3))
    with pytest.raises(tj.OutOfRangeError, match=r"a length is from 0 to 3, got 4"):
        tj.reverse_sequence(x, [0, 4])
    with pytest.raises(tj.OutOfRangeError, match="got -1"):
        tj.function(lambda n: tj.reverse_sequence(x, n))(tj.asarray([-1, 0]))
    with pytest.raises(tj.ShapeError, match="one for each of the 2"):
        tj.reverse_sequence(x, [1, 2, 3])
    with pytest.raises(tj.ArgumentError, match="both axis 1"):
        tj.reverse_sequence(x, [1, 2, 3], 1, -1)
    opened = tj.function(
        input_signature=[tj.TensorSpec([None, None]), tj.TensorSpec([None], tj.int32)]
    )(lambda x, n: tj.reverse_sequence(x, n))
    for rows, size in ((2, 3), (3, 5), (4, 4)):
        given = tj.reshape(tj.arange(1.0 * rows * size), (rows, size))
        n = tj.asarray(np.arange(rows, dtype=np.int32) + 1)
        assert_same(opened(given, n), tj.reverse_sequence(given, n))
    assert opened.trace_count <= 2
