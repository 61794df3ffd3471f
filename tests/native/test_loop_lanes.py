"""Loops that do not go along the axis of their kernel's vectors have some of their own.

Parts of rows have axes of their own and share the loop over rows: slices that go
through different functions, the two parts of a roll, what is joined.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.base.types import dtype_named

from .compiled import assert_composed, gradients


def gates(x: Any) -> Any:
    """Four slices through three functions."""
    size = x.shape[1] // 4
    i, f, g, o = (x[:, at * size : (at + 1) * size] for at in range(4))
    return tj.abs(i), -f, g * g, tj.where(o > 0, o, o * 2)


def joined(x: Any) -> Any:
    return tj.concat([*gates(x)[::-1], x[:, 1:] + x[:, :-1]], axis=1)


def neighbours(x: Any) -> Any:
    shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    return sum(tj.roll(x, by, (0, 1)) for by in shifts)


def read_across(x: Any) -> Any:
    """What one loop leaves is read by another one, along another axis."""
    left, right = x[:, :7] * 2, x[:, 7:] + 1
    return left, right * left[:, :1], right + left[:, 6:], x + 1


def stacked(x: Any) -> Any:
    """Loops of other depths."""
    taken = x[:, [3, 0, 2]] * 2
    return taken, x[::2] + 1, taken[:, None, :] - x[:, :5, None]


PROGRAMS = (gates, joined, neighbours, read_across, stacked)


@pytest.fixture(autouse=True)
def _is_native() -> Any:
    with tj.config.override(native=True, check=True):
        yield


def answers(program: Callable[[Any], Any], x: Any) -> list[Any]:
    found = program(x)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("shape", [(1, 9), (5, 33), (40, 68), (3, 200)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda x: x.__name__)
def test_loops_with_vectors_of_their_own_agree(
    program: Callable[[Any], Any], dtype: str, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(5)
    x = (rng.standard_normal(shape) * 20).astype(dtype_named(dtype))
    if dtype != "int8":
        special = np.array([0.0, -0.0, np.inf, np.nan], x.dtype)
        x = np.where(rng.random(shape) < 0.1, rng.choice(special, shape), x)
    given = tj.asarray(x)
    for got, expected in zip(
        answers(tj.function(program), given), answers(program, given), strict=True
    ):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
        is_negative = np.signbit(got.numpy()) == np.signbit(expected.numpy())
        assert np.all(is_negative | np.isnan(got.numpy()))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda x: x.__name__)
def test_their_gradients_agree(program: Callable[[Any], Any]) -> None:
    def total(x: Any) -> Any:
        return sum(tj.mean(tj.tanh(part) ** 2) for part in answers(program, x))

    x = tj.asarray(np.random.default_rng(6).standard_normal((17, 52)).astype("f4"))
    got = [part.numpy() for part in tj.function(gradients(total))(x)]
    expected = [part.numpy() for part in gradients(total)(x)]
    assert_composed(got, expected, program.__name__)


@pytest.mark.parametrize(
    "program", [gates, joined, neighbours], ids=lambda x: x.__name__
)
def test_each_inner_loop_has_vectors(program: Callable[[Any], Any]) -> None:
    function = tj.function(program)
    function(tj.ones((512, 512)))
    for kernel in function.kernels():
        inner = re.findall(r"\b(\w)<(\d+)( by \d+)?", str(kernel))[1:]
        assert inner, kernel
        assert all(by for _, _, by in inner), kernel
