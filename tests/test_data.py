"""Batches: what is in them, in which order, and how an order is taken up again."""

from __future__ import annotations

import json
from collections import namedtuple
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tapejit as tj

Example = namedtuple("Example", "image label")


def rows_of(data: Any) -> list[int]:
    return [int(row) for batch in data for row in batch]


# What is in a batch


def test_batches_have_the_structure_of_the_arrays() -> None:
    arrays = {"pair": (np.arange(5), [np.ones((5, 2))]), "t": tj.arange(5.0)}
    batch = next(iter(tj.data.batches(arrays, 2)))
    assert type(batch["pair"]) is tuple
    assert type(batch["pair"][1]) is list
    assert batch["pair"][1][0].shape == (2, 2)
    assert type(batch["t"]) is np.ndarray
    assert batch["t"].dtype == np.float32
    example = next(iter(tj.data.batches(Example(np.zeros((3, 4)), np.arange(3)), 2)))
    assert type(example) is Example
    assert type(next(iter(tj.data.batches(tj.Variable([1.0, 2.0]), 2)))) is np.ndarray


def test_without_shuffling_batches_are_views_in_order() -> None:
    x = np.arange(10)
    found = list(tj.data.batches(x, 4))
    assert [b.tolist() for b in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(np.shares_memory(b, x) for b in found)


@pytest.mark.parametrize(
    ("rows", "size", "drop", "sizes"),
    [
        (10, 4, False, [4, 4, 2]),
        (10, 4, True, [4, 4]),
        (8, 4, False, [4, 4]),
        (8, 4, True, [4, 4]),
        (3, 4, False, [3]),
        (0, 4, False, []),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_sizes(
    rows: int, size: int, drop: bool, sizes: list[int], shuffle: bool
) -> None:
    data = tj.data.batches(np.arange(rows), size, shuffle, 0, drop)
    assert len(data) == len(sizes)
    assert [len(batch) for batch in data] == sizes
    assert data.epoch == 1


def test_pandas_objects_are_arrays() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4, 5, 6]}, index=[7, 7, 9])
    labels = pd.Series([0, 1, 0], index=[3, 1, 2])
    data = tj.data.batches((table, labels), 2)
    x, y = next(iter(data))
    assert type(x) is np.ndarray
    assert x.tolist() == [[1, 4], [2, 5]]
    assert y.tolist() == [0, 1]
    shuffled = tj.data.batches((table, labels), 3, shuffle=True, seed=3)
    [(x, y)] = shuffled
    expected = {(1.0, 4.0): 0, (2.0, 5.0): 1, (3.0, 6.0): 0}
    assert all(expected[tuple(row)] == label for row, label in zip(x, y, strict=True))


def test_a_table_of_several_kinds_is_named() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    with pytest.raises(tj.DTypeError, match=r"columns of float64, ") as caught:
        tj.data.batches({"x": table}, 2)
    assert "['x']" in caught.value.message


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        (
            {"x": np.ones(3), "y": np.ones(4)},
            tj.ShapeError,
            "arrays['x'] has 3 rows, arrays['y'] has 4",
        ),
        ((np.ones(3), np.ones(2)), tj.ShapeError, "arrays[0] has 3 rows, arrays[1]"),
        ([1.0, 2.0], tj.ArgumentTypeError, "[0] is 1.0, not an array"),
        (np.float32(1), tj.ShapeError, "no axis"),
        ((), tj.ArgumentError, "no arrays"),
        (np.array([None, 1]), tj.DTypeError, "holds objects"),
    ],
)
def test_arrays_that_cannot_be_cut_are_named(
    arrays: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        tj.data.batches(arrays, 2)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "at least one row"),
        ({"size": -1}, "from 0 on"),
        ({"size": 2.5}, "size"),
        ({"size": 9, "drop_remainder": True}, "5 rows give no batch of 9"),
        ({"size": 2, "seed": -1}, "a seed"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        tj.data.batches(np.arange(5), **options)


# Order


def test_each_epoch_has_every_row_once_in_another_order() -> None:
    data = tj.data.batches(np.arange(100), 7, shuffle=True, seed=0)
    epochs = [rows_of(data) for _ in range(5)]
    assert all(sorted(rows) == list(range(100)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 5


def test_rows_stay_together() -> None:
    x = np.arange(20)
    data = tj.data.batches({"x": x, "y": 2 * x, "z": tj.asarray(x)}, 6, True, 1)
    for batch in data:
        assert (batch["y"] == 2 * batch["x"]).all()
        assert (batch["z"] == batch["x"]).all()


def test_the_seed_decides() -> None:
    def run(seed: int | None) -> list[int]:
        return rows_of(tj.data.batches(np.arange(50), 8, shuffle=True, seed=seed))

    assert run(3) == run(3)
    assert run(3) != run(4)
    assert run(None) != run(None)
    assert run(2**100) != run(2**100 + 1)


def test_the_order_is_pinned() -> None:
    """What a seed means stays, else no checkpoint could be taken up again."""
    data = tj.data.batches(np.arange(8), 8, shuffle=True, seed=42)
    epochs = [rows_of(data) for _ in range(2)]
    assert epochs == [[2, 1, 5, 7, 3, 6, 4, 0], [6, 0, 1, 5, 7, 3, 4, 2]]
    for epoch, rows in enumerate(epochs):
        key = tj.random.fold_in(tj.random.key(42), epoch)
        assert tj.random.permutation(8, key=key).numpy().tolist() == rows


def test_first_places_are_even() -> None:
    data = tj.data.batches(np.arange(4), 4, shuffle=True, seed=0)
    counts = np.zeros((4, 4), int)
    for _ in range(2000):
        counts[range(4), rows_of(data)] += 1
    # 500 expected, a deviation of 19: five of them
    assert np.abs(counts - 500).max() < 5 * 19.4


def test_an_iteration_that_is_broken_off_is_an_epoch_too() -> None:
    data = tj.data.batches(np.arange(9), 3, shuffle=True, seed=0)
    firsts = {tuple(next(iter(data)).tolist()) for _ in range(4)}
    assert len(firsts) > 1


def test_two_iterators_do_not_disturb_each_other() -> None:
    data = tj.data.batches(np.arange(6), 2, shuffle=True, seed=0)
    again = tj.data.batches(np.arange(6), 2, shuffle=True, seed=0)
    expected = rows_of(again), rows_of(again)
    first, second = iter(data), iter(data)
    pairs = list(zip(first, second, strict=True))
    assert (rows_of(p[0] for p in pairs), rows_of(p[1] for p in pairs)) == expected


# Taking up again


@given(
    rows=st.integers(1, 20),
    size=st.integers(1, 7),
    stop=st.integers(0, 40),
    shuffle=st.booleans(),
    drop=st.booleans(),
)
def test_a_restored_one_hands_out_what_was_left(
    rows: int, size: int, stop: int, shuffle: bool, drop: bool
) -> None:
    drop = drop and rows >= size

    def make(seed: int | None) -> Any:
        return tj.data.batches(np.arange(rows), size, shuffle, seed, drop)

    def endless(data: Any) -> Any:
        while True:
            for batch in data:
                yield batch.tolist()

    data, whole = make(5), endless(make(5))
    running = endless(data)
    for _ in range(stop):
        assert next(running) == next(whole)
    state = json.loads(json.dumps(data.state()))  # plain values only
    other = make(None)
    other.restore(state)
    assert other.state() == state
    resumed = endless(other)
    assert [next(resumed) for _ in range(9)] == [next(whole) for _ in range(9)]


def test_after_the_last_batch_the_rest_of_the_epoch_is_empty() -> None:
    data = tj.data.batches(np.arange(4), 2)
    iterator = iter(data)
    next(iterator), next(iterator)
    assert (data.epoch, data.position) == (0, 2)
    other = tj.data.batches(np.arange(4), 2)
    other.restore(data.state())
    assert list(other) == []
    assert (other.epoch, other.position) == (1, 0)
    assert len(list(other)) == 2
    assert next(iterator, None) is None
    assert (data.epoch, data.position) == (1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 11}, "rows is 11 in the state, 10 here"),
        ({"size": 5}, "size is 5 in the state, 2 here"),
        ({"shuffle": False}, "shuffle is False"),
        ({"drop_remainder": True}, "drop_remainder is True"),
        ({"position": 6}, "position 6 is past the 5 batches"),
        ({"position": -1}, "position"),
        ({"epoch": "x"}, "epoch"),
        ({"more": 1}, "no state"),
    ],
)
def test_a_state_of_other_batches_is_refused_and_changes_nothing(
    change: dict[str, Any], message: str
) -> None:
    data = tj.data.batches(np.arange(10), 2, shuffle=True, seed=0)
    before = data.state()
    with pytest.raises((ValueError, TypeError), match=message):
        data.restore({**before, "seed": 9, "epoch": 1, **change})
    assert data.state() == before


def test_it_can_be_iterated_over_while_a_function_is_traced() -> None:
    x = np.arange(6.0, dtype=np.float32)
    data = tj.data.batches(x, 2, shuffle=True, seed=0)

    @tj.function
    def total(scale: Any) -> Any:
        return sum(tj.sum(scale * batch) for batch in data)

    assert float(total(tj.asarray(2.0))) == 30.0
