"""Rounding to decimals, and statistics in another dtype, as NumPy has them."""

from __future__ import annotations

import numpy as np
import pytest

import tapejit as tj


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_rounding_to_decimals_is_numpys(dtype: str) -> None:
    x = (np.random.default_rng(0).standard_normal(50) * 30).astype(dtype)
    x[:6] = [0.0, -0.0, np.inf, np.nan, 2.675, -0.5]
    for decimals in (-1, 0, 2):
        expected = np.round(x, decimals)
        for run in (lambda f: f, tj.function):
            for found in (
                run(lambda x, d=decimals: tj.round(x, decimals=d))(tj.asarray(x)),
                run(lambda x, d=decimals: x.round(d))(tj.asarray(x)),
                run(lambda x, d=decimals: round(x, d))(tj.asarray(x)),
                run(lambda x, d=decimals: np.round(x, d))(tj.asarray(x)),
            ):
                assert found.dtype == dtype
                np.testing.assert_array_equal(found, expected)


def test_rounding_integers() -> None:
    np.testing.assert_array_equal(tj.round(tj.asarray([15, 25]), 2), [15, 25])
    with pytest.raises(tj.UnsupportedError, match="negative decimals"):
        tj.round(tj.asarray([15, 25]), -1)
    assert tj.grad(lambda x: tj.sum(tj.round(x, 1)))(tj.ones(2)).numpy().any() == 0


@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_statistics_in_another_dtype(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype("float32") + 1000
    of_tj, of_np = getattr(tj, name), getattr(np, name)
    for run in (lambda f: f, tj.function):
        for call in (
            lambda x: of_tj(x, dtype="float64"),
            lambda x: of_tj(x, None, np.float64),
            lambda x: of_np(x, dtype="float64"),
        ):
            found = run(call)(tj.asarray(x))
            assert found.dtype == "float64"
            np.testing.assert_allclose(found, of_np(x, dtype="float64"), rtol=1e-14)
    assert getattr(tj.asarray(x), name)(0, "float64").dtype == "float64"
