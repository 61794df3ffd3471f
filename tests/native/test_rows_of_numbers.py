"""Rows: their largest and smallest, what is picked from them, shares of tasks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj

ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0]
DTYPES = ["f2", "f4", "f8", ml_dtypes.bfloat16]


def native(program: Any, *arrays: Any) -> Any:
    with tj.config.override(native=True, cache=False):
        return tj.function(program)(*map(tj.asarray, arrays))


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_anywhere_in_a_row_is_its_extreme(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    reduce = getattr(np, name)
    for size in (1, 2, 15, 16, 17, 31, 40, 64, 101):
        x = rng.standard_normal((size + 1, size)).astype(dtype)
        x[np.arange(size), np.arange(size)] = np.nan  # the last row has none
        got = native(lambda t: getattr(tj, name)(t, axis=1), x).numpy()
        expected = reduce(x.astype("f8"), axis=1)
        np.testing.assert_array_equal(got.astype("f8"), expected)


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("axis", [0, 1, (0, 1)], ids=str)
def test_extremes_of_odd_numbers(name: str, axis: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.choice(np.array([*ODD, 1.0, -2.0], np.float32), (37, 45))
    x[5], x[6], x[:, 7], x[:, 8] = -np.inf, np.inf, -np.inf, np.inf
    got = native(lambda t: getattr(tj, name)(t, axis=axis), x).numpy()
    np.testing.assert_array_equal(got, getattr(np, name)(x, axis=axis))


@pytest.mark.parametrize("rows", [33, 63, 64, 65, 97, 1000, 1023])
def test_tasks_have_every_row_once(rows: int) -> None:
    x = np.arange(rows * 300, dtype=np.float64).reshape(rows, 300) % 1013

    def program(t: tj.Tensor) -> list[tj.Tensor]:
        y = tj.exp(t / 1000.0)
        z = y * tj.cos(t) + tj.sin(y)
        return [z, tj.sum(z, axis=1), tj.sum(z, axis=0), tj.sum(z)]

    found = []
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        assert any("tasks" in str(k) for k in function.kernels(tj.asarray(x)))
        for threads in (1, 2, 3):
            with tj.set_num_threads(threads):
                found.append([y.numpy() for y in function(tj.asarray(x))])
    for ours, theirs in zip(found[0], program(tj.asarray(x)), strict=True):
        assert_agrees(COMPOSED, ours, theirs.numpy(), where=f"{rows} rows")
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            assert ours.tobytes() == theirs.tobytes()


# What is picked from rows


def picked(x: tj.Tensor, labels: tj.Tensor) -> list[tj.Tensor]:
    """One difference of each row, and the gradient of all."""
    with tj.GradientTape() as tape:
        tape.watch(x)
        lowered = x - tj.max(x, axis=1, keepdims=True)
        chosen = tj.take_along_axis(lowered, labels[:, None], axis=1)[:, 0]
        total = tj.log(tj.sum(tj.exp(lowered), axis=1))
        loss = tj.sum(total - chosen)
    return [loss, chosen, tape.gradient(loss, x)]


def test_a_difference_that_is_picked_is_not_kept_for_all_of_its_row() -> None:
    rng = np.random.default_rng(0)
    x = tj.asarray(rng.standard_normal((64, 200)).astype("f4"))
    labels = tj.asarray(rng.integers(0, 200, 64))
    with tj.config.override(native=True, cache=False):
        function = tj.function(picked)
        source = function.source(x, labels)
        got = function(x, labels)
    for ours, theirs in zip(got, picked(x, labels), strict=True):
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy(), where="picked")
    assert "kept_exp" in source
    assert "kept_lowered" not in source
    assert "kept_sub" not in source


@pytest.mark.parametrize("count", [3, 50])
def test_gathering_from_computed_values(count: int) -> None:
    """More elements than there are: computed once, and gathered from memory."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, 10, 20)).astype("f4")
    rows = rng.integers(-10, 10, (count, 20))

    def program(x: tj.Tensor, y: tj.Tensor, at: tj.Tensor) -> list[tj.Tensor]:
        product = x * y
        shifted = product[::-1] - tj.max(x, axis=0)
        return [tj.take_along_axis(shifted, at, axis=0), shifted[at[:, 0]]]

    arrays = [tj.asarray(a) for a in (x, y, rows)]
    got = native(program, x, y, rows)
    for ours, theirs in zip(got, program(*arrays), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_an_index_out_of_range_is_still_an_error() -> None:
    x = np.ones((4, 8), np.float32)
    with pytest.raises(IndexError):
        native(picked, x, np.array([0, 8, 1, 2]))


# The sum of exponentials and its slope


def slopes(x: tj.Tensor) -> list[tj.Tensor]:
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.logsumexp(x, axis=1)
        loss = tj.sum(y)
    return [y, tape.gradient(loss, x)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slopes_at_infinities(dtype: Any) -> None:
    x = np.array(
        [
            [1, 2, 3, 4],
            [np.inf, 0, 5, np.inf],
            [-np.inf, 0, 1, -np.inf],
            [-np.inf] * 4,
            [np.inf] * 4,
            [-np.inf, np.inf, 0, 1],
            [np.nan, 0, 1, 2],
            [6e4, -6e4, 0, 6e4],
        ],
        dtype,
    )
    expected = slopes(tj.asarray(x))
    assert np.array_equal(expected[1].numpy()[1].astype("f4"), [0.5, 0, 0, 0.5])
    assert not expected[1].numpy()[3].any()
    for ours, theirs in zip(native(slopes, x), expected, strict=True):
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy(), where="slopes")


def test_a_sum_of_exponentials_and_its_slope_have_them_in_common() -> None:
    x = tj.asarray(np.random.default_rng(0).standard_normal((40, 64)))
    with tj.config.override(native=True, cache=False):
        (kernel, *others) = tj.function(slopes).kernels(x)
    assert not others
    assert " exp," in str(kernel), "one exponential"


# Vectors


def test_vectors_go_along_rows_that_other_kernels_have_left() -> None:
    def program(x: tj.Tensor, y: tj.Tensor) -> list[tj.Tensor]:
        for _ in range(3):
            x = tj.cos(x * tj.max(y, axis=0, keepdims=True))
            y = tj.tanh(y * tj.mean(x, axis=1, keepdims=True))
        return [x, y]

    x, y = np.random.default_rng(0).standard_normal((2, 64, 32)).astype("f4")
    with tj.config.override(native=True, cache=False):
        kernels = tj.function(program).kernels(tj.asarray(x), tj.asarray(y))
    assert len(kernels) > 2
    for kernel in kernels:
        assert "<32 by 16>" in str(kernel)
