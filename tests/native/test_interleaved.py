"""Rows of two to four numbers are loaded and stored as whole vectors, and shuffled.

Pairs, points and pixels: vectors go along the rows, whose numbers take turns in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from tapejit.targets.cpu.target import CPU

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"]


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    """Memory is NaN until it is written."""
    with tj.config.override(native=True, cache=False, compile="now", check=True):
        yield


def rows_of(count: int, numbers: int, dtype: Any) -> tj.Tensor:
    drawn = np.random.default_rng(count).integers(-9, 9, (count, numbers))
    return tj.astype(tj.asarray(drawn), dtype)


def turned(x: Any, y: Any) -> Any:
    """Each number of a row with the next one of another row."""
    count = x.shape[-1]
    mixed = [x[..., at] * y[..., (at + 1) % count] - y[..., at] for at in range(count)]
    return tj.stack(mixed, axis=-1)


def scaled(x: Any, y: Any) -> Any:
    """Some numbers of the rows only, and what all of a row have in common."""
    length = x[..., 0] * x[..., 0] + y[..., -1] * y[..., -1]
    return x + length[..., None], length


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numbers", [2, 3, 4, 5])
def test_any_number_of_rows(numbers: int, dtype: str) -> None:
    def program(x: Any, y: Any) -> Any:
        return turned(x, y), *scaled(x, y)

    for count in (1, 2, 15, 16, 17, 45, 130):
        x, y = rows_of(count, numbers, dtype), rows_of(count + 1, numbers, dtype)
        ours, theirs = tj.function(program)(x, y[1:]), program(x, y[1:])
        for got, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(got.numpy(), expected.numpy())


@pytest.mark.parametrize("numbers", [2, 3, 4])
def test_gradients_and_updates_in_place(numbers: int) -> None:
    def step(state: Any) -> Any:
        with tj.GradientTape() as tape:
            mixed = turned(state, state * 2)
            loss = tj.mean(mixed * mixed) + tj.mean(state[:, 0] ** 3)
        gradient = tape.gradient(loss, state)
        state.assign_sub(gradient / 8)
        state.assign(tj.stack([state[:, numbers - 1 - at] for at in range(numbers)], 1))
        return loss, gradient

    start = np.random.default_rng(0).standard_normal((1001, numbers)).astype("f4")
    states = [tj.Variable(start), tj.Variable(start)]
    compiled = tj.function(step)
    for _ in range(3):
        ours, theirs = compiled(states[0]), step(states[1])
        for got, expected in zip((*ours, states[0]), (*theirs, states[1]), strict=True):
            assert_agrees(COMPOSED, got.numpy(), expected.numpy())


def test_rows_of_a_tile() -> None:
    """What a tile of rows keeps of them is read where the tile has it."""

    def program(x: Any, y: Any) -> Any:
        with tj.GradientTape() as outer:
            outer.watch([x, y])
            with tj.GradientTape() as inner:
                inner.watch([x, y])
                mixed = x[:, 0] * y[:, 1] + x[:, -1]
            first = inner.gradient(mixed, [x, y])
            squares = [g * g for g in first]
        return (*first, *outer.gradient(squares, [x, y]))

    x, y = rows_of(65, 2, "float32"), rows_of(66, 2, "float32")[1:]
    for got, expected in zip(tj.function(program)(x, y), program(x, y), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())


def test_stacked_rows_and_shares_of_tasks() -> None:
    x = tj.asarray(np.random.default_rng(0).standard_normal((7, 40_001, 2)), "f4")
    ours, theirs = tj.function(turned)(x, x + 1), turned(x, x + 1)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("numbers", [2, 3, 4])
def test_rows_turned_by_their_numbers(numbers: int) -> None:
    """Short loops are written out: then a position, and a condition, is a number."""

    def program(x: Any, y: Any) -> Any:
        rolled = tj.roll(x, 1, -1) * y - x * tj.roll(y, 1, -1)
        return rolled, tj.flip(rolled, axis=-1) * x, tj.sum(rolled * x, axis=-1)

    for count in (5, 40, 131):
        x, y = (
            rows_of(count, numbers, "float32"),
            rows_of(count + 1, numbers, "float32"),
        )
        ours, theirs = tj.function(program)(x, y[1:]), program(x, y[1:])
        for got, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(got.numpy(), expected.numpy())


def test_pairs_take_no_load_and_no_store_of_a_single_number() -> None:
    x = tj.asarray(np.ones((4096, 2), np.float32))
    text = tj.function(turned).llvm(x, x)
    (body,) = [y for y in text.split("define ") if y.count("fmul <16 x float>") >= 2]
    assert body.count("load <16 x float>") >= 2
    assert "shufflevector" in body
    assert "load float" not in body
    assert "store <1 x float>" not in body


def test_without_it_rows_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows_of(77, 3, "float32"), rows_of(77, 3, "float32") * 3
    found = tj.function(turned)(x, y).numpy()
    from dataclasses import replace

    plain = replace(CPU.tuning, interleaved_numbers=1)
    monkeypatch.setattr(CPU, "tuning", plain)
    assert tj.function(lambda x, y: turned(x, y))(x, y).numpy().tobytes() == (
        found.tobytes()
    )
