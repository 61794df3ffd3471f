"""NumPy's functions that leave out NaN, and padding with a constant for each side."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj

GAPS = np.array([[1, np.nan, 3, 4], [np.nan] * 4, [1, 2, 3, 9], [np.nan, -0.0, 7, 7]])
WHOLE = np.array([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("name", ["nanprod", "nanvar", "nanstd", "nanmedian"])
def test_reductions_are_numpys(name: str, axis: Any) -> None:
    theirs = getattr(np, name)
    for x in (GAPS, WHOLE, GAPS.astype("float32"), np.arange(6).reshape(2, 3)):
        options: dict[str, Any] = {"axis": axis, "keepdims": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = theirs(x, **options)
        t = tj.asarray(x)
        ours = getattr(tj, name)
        for found in (
            ours(t, **options),
            theirs(t, **options),
            tj.function(lambda t, f=ours, o=options: f(t, **o))(t),
        ):
            assert isinstance(found, tj.Tensor)
            assert found.shape == expected.shape
            wanted = np.asarray(expected).astype(found.dtype)
            assert_agrees(COMPOSED, found.numpy(), wanted, where=f"{name} {x.dtype}")


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["nancumsum", "nancumprod"])
def test_scans_are_numpys(name: str, axis: int | None) -> None:
    expected = getattr(np, name)(GAPS, axis=axis)
    for function in (getattr(tj, name), getattr(np, name)):
        np.testing.assert_allclose(function(tj.asarray(GAPS), axis=axis), expected)


def test_corrections_count_what_is_there() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for count in (1, 3):
            expected = np.nanstd(GAPS, axis=1, ddof=count)
            found = np.nanstd(tj.asarray(GAPS), axis=1, ddof=count)
            np.testing.assert_allclose(found, expected)
            found = tj.nanstd(tj.asarray(GAPS), 1, correction=count)
            np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("name", ["nanprod", "nanvar", "nanstd", "nanmedian"])
def test_gradients_leave_out_nan(name: str) -> None:
    """They are those of the numbers alone, and 0 where there is none."""
    kept = np.array([1.0, 2.5, 7.0, 4.0])
    x = np.array([1.0, np.nan, 2.5, 7.0, np.nan, 4.0])
    plain = {"nanprod": tj.prod, "nanvar": tj.var, "nanstd": tj.std}
    expected = tj.grad(plain.get(name, tj.median))(tj.asarray(kept)).numpy()
    found = tj.grad(getattr(tj, name))(tj.asarray(x)).numpy()
    np.testing.assert_allclose(found[~np.isnan(x)], expected, rtol=1e-12)
    np.testing.assert_array_equal(found[np.isnan(x)], 0.0)


@pytest.mark.parametrize("constants", [(0, 0), (1, 2), ((1, 2), (3, 4)), 5, [7]])
@pytest.mark.parametrize("widths", [1, (1, 2), ((1, 2), (3, 0))])
def test_sides_have_their_own_constant(constants: Any, widths: Any) -> None:
    expected = np.pad(WHOLE, widths, constant_values=constants)
    t = tj.asarray(WHOLE)
    for found in (
        np.pad(t, widths, constant_values=constants),
        tj.pad(t, widths, constant_values=constants),
        tj.function(lambda t: tj.pad(t, widths, constant_values=constants))(t),
    ):
        np.testing.assert_array_equal(found, expected)
        assert isinstance(found, tj.Tensor)


def test_constants_that_fit_no_side_are_refused() -> None:
    with pytest.raises(tj.ShapeError, match="each side"):
        tj.pad(tj.ones((2, 2)), 1, constant_values=(1, 2, 3))
