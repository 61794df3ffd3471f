"""Sums of many equal terms keep the bound of the table, however their loops lie.

Rounding errors of equal terms have one sign, so they add up as fast as they can. A
chain of a thousand additions is off by a hundred eps then, ten times what is allowed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from agreement import SUM, Truth, assert_agrees

import tapejit as tj

pytestmark = pytest.mark.usefixtures("with_native_code")

TERM = np.float32(0.7) * np.log(np.float32(0.5))
SHAPES = [
    ((4000,), None),
    ((100_000,), None),
    ((65, 200), None),
    ((250, 250), None),
    ((250, 251), 0),
    ((250, 251), 1),
    ((1000, 64), None),
    ((20_000, 8), 0),
    ((30, 30, 30, 30), None),
    ((60, 70, 80), 0),
    ((60, 70, 80), 1),
    ((60, 70, 80), (0, 1)),
    ((60, 70, 80), (0, 2)),
    ((255, 255, 17), (0, 1)),
    ((250, 250, 3), (0, 1)),
    ((3, 250, 250), (1, 2)),
    ((2, 2, 200, 127), (0, 1, 2)),
]


def check(got: Any, terms: Any, axis: Any) -> None:
    """Compare a sum with that of its terms in double precision."""
    wide = np.asarray(terms, np.float64)
    value = wide.sum(axis)
    count = wide.size // np.size(value)
    truth = Truth(value, count, np.abs(wide).sum(axis))
    assert_agrees(SUM, np.asarray(got), truth, where=f"{wide.shape} along {axis}")


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_a_sum_of_equal_terms_is_as_near_as_the_table_says(
    shape: Any, axis: Any
) -> None:
    x = np.full(shape, TERM)
    f = tj.function(lambda x: tj.sum(x * 1.0, axis=axis))
    check(f(x), x, axis)


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_so_is_one_that_shares_its_loops(shape: Any, axis: Any) -> None:
    x = np.full(shape, TERM)

    @tj.function
    def f(x: Any) -> Any:
        y = x * x
        return tj.sum(y, axis=axis), tj.sum(y), y * 3

    got, whole, _ = f(x)
    check(got, x * x, axis)
    check(whole, x * x, None)


@pytest.mark.parametrize("tasks", [1, 2])
def test_bits_do_not_depend_on_the_number_of_threads(tasks: int) -> None:
    x = np.random.default_rng(0).standard_normal((3000, 301)).astype("float32")
    f = tj.function(lambda x: (tj.sum(x * x), tj.sum(x * x, axis=0)))
    with tj.set_num_threads(tasks):
        found = [np.asarray(y) for y in f(x)]
    expected = [np.asarray(y) for y in f(x)]
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rows", [300, 1000, 4096])
def test_the_gradient_by_a_bias_is_as_near(rows: int) -> None:
    x, w = np.ones((rows, 40), "float32"), np.ones((40, 64), "float32")

    def loss(w: Any, b: Any) -> Any:
        return tj.sum(tj.nn.relu(x @ w + b) * TERM)

    gradient = tj.grad(loss, argnums=1)
    f = tj.function(lambda w, b: gradient(w, b))
    check(f(w, np.ones(64, "float32")), np.full((rows, 64), TERM), 0)


@pytest.mark.parametrize("size", [33, 1000, 1024, 1025, 33_000])
def test_every_term_is_added_once(size: int) -> None:
    x = (np.arange(size) % 7 + 1).astype("float32")
    f = tj.function(lambda x: tj.sum(x * 2))
    assert float(f(x)) == 2 * math.fsum(x)
