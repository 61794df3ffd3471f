"""Differences, integrals, interpolation and convolution: NumPy's, differentiable."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from composed import (
    Composed,
    assert_derivatives,
    assert_mapped_is_a_loop,
    assert_refused,
    assert_same,
    assert_values_are_numpys,
)
from hypothesis import given
from hypothesis import strategies as st

import tapejit as tj
from tapejit.array import sequences

V = np.array([0.5, -0.25, np.pi, -3.0, 1.5])
W = np.array([2.0, 0.5, -1.0])
M = np.array([[0.5, 1.5, -2.0, 4.0], [3.0, -0.25, 1.0, 0.75]])
C = np.cos(np.arange(24.0)).reshape(2, 3, 4)
Z = V + 1j * V[::-1]
INTEGERS = np.array([3, 1, 4, 1, 5])
PLACES = np.array([0.0, 1.0, 2.5, 3.0, 7.0])
POINTS = np.array([-1.0, 0.3, 1.7, 2.9, 6.5, 9.0])

CASES: dict[str, Composed] = {
    "diff": Composed(lambda x: tj.diff(x), (V,), lambda x: np.diff(x)),
    "diff twice": Composed(
        lambda x: tj.diff(x, n=2, axis=0), (C[0],), lambda x: np.diff(x, 2, 0)
    ),
    "diff too often": Composed(
        lambda x: tj.diff(x, n=9), (V,), lambda x: np.diff(x, n=9)
    ),
    "diff never": Composed(lambda x: tj.diff(x, n=0), (V,), lambda x: np.diff(x, n=0)),
    "diff ends": Composed(
        lambda x, y: tj.diff(x, prepend=y, append=2.0),
        (V, W),
        lambda x, y: np.diff(x, prepend=y, append=2.0),
    ),
    "diff ends of an axis": Composed(
        lambda x: tj.diff(x, axis=0, append=1.0),
        (M,),
        lambda x: np.diff(x, axis=0, append=1.0),
    ),
    "diff bools": Composed(lambda x: tj.diff(x), (V > 0,), lambda x: np.diff(x)),
    "diff integers": Composed(lambda x: tj.diff(x), (INTEGERS,), lambda x: np.diff(x)),
    "diff complex": Composed(lambda x: tj.diff(x), (Z,), lambda x: np.diff(x)),
    "ediff1d": Composed(
        lambda x: tj.ediff1d(x, to_end=[1.0, 2.0], to_begin=0.0),
        (M,),
        lambda x: np.ediff1d(x, to_end=[1.0, 2.0], to_begin=0.0),
    ),
    "trapezoid": Composed(
        lambda y: tj.trapezoid(y), (V,), lambda y: np.trapezoid(y), is_exact=False
    ),
    "trapezoid dx": Composed(
        lambda y: tj.trapezoid(y, dx=0.5, axis=0),
        (M,),
        lambda y: np.trapezoid(y, dx=0.5, axis=0),
        is_exact=False,
    ),
    "trapezoid places": Composed(
        lambda y, x: tj.trapezoid(y, x, axis=1),
        (C, W),
        lambda y, x: np.trapezoid(y, x, axis=1),
        is_exact=False,
    ),
    "trapezoid places of all": Composed(
        lambda y, x: tj.trapezoid(y, x),
        (M, M * 2),
        lambda y, x: np.trapezoid(y, x),
        is_exact=False,
    ),
    "gradient": Composed(
        lambda x: sequences.gradient(x), (V,), lambda x: np.gradient(x), is_exact=False
    ),
    "gradient of axes": Composed(
        lambda x: sequences.gradient(x, 0.5),
        (M,),
        lambda x: np.gradient(x, 0.5),
        is_exact=False,
    ),
    "gradient along an axis": Composed(
        lambda x: sequences.gradient(x, axis=1, edge_order=2),
        (C,),
        lambda x: np.gradient(x, axis=1, edge_order=2),
        is_exact=False,
    ),
    "gradient at places": Composed(
        lambda x, p: sequences.gradient(x, p),
        (V, PLACES),
        lambda x, p: np.gradient(x, p),
        is_exact=False,
    ),
    "gradient at places, second order ends": Composed(
        lambda x, p: sequences.gradient(x, 2.0, p, axis=(0, 1), edge_order=1),
        (M, PLACES[:4]),
        lambda x, p: np.gradient(x, 2.0, p, axis=(0, 1), edge_order=1),
        is_exact=False,
    ),
    "gradient at places to second order": Composed(
        lambda x, p: sequences.gradient(x, p, axis=-1, edge_order=2),
        (M, PLACES[:4]),
        lambda x, p: np.gradient(x, p, axis=-1, edge_order=2),
        is_exact=False,
    ),
    "interp": Composed(
        lambda x, xp, fp: tj.interp(x, xp, fp),
        (POINTS, PLACES, V),
        lambda x, xp, fp: np.interp(x, xp, fp),
        is_exact=False,
    ),
    "interp outside": Composed(
        lambda x, xp, fp: tj.interp(x, xp, fp, left=-7.0, right=8.0),
        (POINTS.reshape(2, 3), PLACES, V),
        lambda x, xp, fp: np.interp(x, xp, fp, left=-7.0, right=8.0),
        is_exact=False,
    ),
    "interp period": Composed(
        lambda x, xp, fp: tj.interp(x, xp, fp, period=5.0),
        (POINTS, PLACES[:4] * 3 + 0.2, V[:4]),
        lambda x, xp, fp: np.interp(x, xp, fp, period=5.0),
        is_exact=False,
    ),
    "interp of a number": Composed(
        lambda x, xp, fp: tj.interp(x, xp, fp),
        (np.array(2.0), PLACES, V),
        lambda x, xp, fp: np.interp(x, xp, fp),
        is_exact=False,
    ),
    "interp complex": Composed(
        lambda x, xp, fp: tj.interp(x, xp, fp),
        (POINTS, PLACES, Z),
        lambda x, xp, fp: np.interp(x, xp, fp),
        is_exact=False,
    ),
    "interp one point": Composed(
        lambda x, xp, fp: tj.interp(x, xp, fp, left=1.0),
        (POINTS, PLACES[2:3], V[:1]),
        lambda x, xp, fp: np.interp(x, xp, fp, left=1.0),
    ),
    **{
        f"{name} {mode} {a.size} {b.size}": Composed(
            lambda x, y, name=name, mode=mode: getattr(tj, name)(x, y, mode),
            (a, b),
            lambda x, y, name=name, mode=mode: getattr(np, name)(x, y, mode),
            is_exact=False,
        )
        for name in ("convolve", "correlate")
        for mode in ("full", "same", "valid")
        for a, b in ((V, W), (W, V), (V, V[:4]), (V[:2], V[:4]), (M[0], V[:1]))
    },
    "convolve complex": Composed(
        lambda x, y: tj.convolve(x, y), (Z, Z[:2]), np.convolve, is_exact=False
    ),
    "correlate complex": Composed(
        lambda x, y: tj.correlate(x, y, "full"),
        (Z, Z[1:4]),
        lambda x, y: np.correlate(x, y, "full"),
        is_exact=False,
    ),
    "convolve integers": Composed(
        lambda x, y: tj.convolve(x, y),
        (INTEGERS, INTEGERS[:2]),
        lambda x, y: np.convolve(x, y),
    ),
    "kron": Composed(lambda x, y: tj.kron(x, y), (V, W), lambda x, y: np.kron(x, y)),
    "kron matrices": Composed(
        lambda x, y: tj.kron(x, y), (M, C[0]), lambda x, y: np.kron(x, y)
    ),
    "kron of ranks": Composed(
        lambda x, y: tj.kron(x, y), (C, W), lambda x, y: np.kron(x, y)
    ),
    "kron of a number": Composed(
        lambda x, y: tj.kron(x, y), (np.array(2.0), M), lambda x, y: np.kron(x, y)
    ),
}

# Mapped, the operands are shuffled: places would no longer increase.
ORDERED = ("interp", "gradient at")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_values_are_numpys(case: Composed) -> None:
    assert_values_are_numpys(case)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_derivatives_are_those_of_finite_differences(case: Composed) -> None:
    assert_derivatives(case)


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith(ORDERED)])
def test_a_mapped_call_is_a_loop_of_calls(name: str) -> None:
    assert_mapped_is_a_loop(CASES[name], np.random.default_rng(0))


def test_a_mapped_interpolation_is_a_loop_of_them() -> None:
    points = np.stack([POINTS, POINTS[::-1], POINTS * 0.5])
    places = np.stack([PLACES, PLACES * 2, PLACES - 1])
    values = np.stack([V, V**2, -V])
    for period in (None, 4.0):

        def call(x: Any, xp: Any, fp: Any, period: Any = period) -> Any:
            return tj.interp(x, xp, fp, period=period)

        rows = [
            np.interp(x, xp, fp, period=period)
            for x, xp, fp in zip(points, places, values, strict=True)
        ]
        np.testing.assert_allclose(
            tj.vmap(call)(points, places, values), np.stack(rows), rtol=1e-13
        )
        rows = [np.interp(x, PLACES, V, period=period) for x in points]
        found = tj.vmap(lambda x, f=call: f(x, PLACES, V))(points)
        np.testing.assert_allclose(found, np.stack(rows), rtol=1e-13)


# Interpolation at its corners


@given(
    st.lists(
        st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, np.nan, np.inf, -np.inf]),
        max_size=5,
    ),
    st.lists(
        st.sampled_from([0.0, -0.0, 1.0, 2.5, np.inf, -np.inf, np.nan]),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_interp_of_special_values(x: Any, fp: Any, has_ends: bool) -> None:
    xp = np.arange(len(fp), dtype=float)
    ends = {"left": -9.0, "right": 9.0} if has_ends else {}
    expected = np.interp(np.array(x), xp, fp, **ends)
    found = tj.interp(np.array(x), xp, np.array(fp), **ends)
    np.testing.assert_array_equal(found, expected)


def test_interp_hits_its_points_exactly() -> None:
    rng = np.random.default_rng(0)
    xp, fp = np.sort(rng.normal(size=50)), rng.normal(size=50)
    assert_same(tj.interp(xp, xp, fp), fp)


def test_the_slope_at_a_point_is_that_of_the_segment_it_begins() -> None:
    x = tj.Variable([0.0, 1.0, 2.0, -1.0, 3.0])
    fp = tj.Variable([0.0, 10.0, 30.0])
    with tj.GradientTape() as tape:
        y = tj.interp(x, [0.0, 1.0, 2.0], fp)
    by_x, by_fp = tape.gradient(y, [x, fp])
    assert by_x.tolist() == [10.0, 20.0, 20.0, 0.0, 0.0]
    assert by_fp.tolist() == [2.0, 1.0, 2.0]


def test_interp_keeps_the_dtype_of_its_operands() -> None:
    x = tj.asarray([0.5, 1.5])
    assert tj.interp(x, [0.0, 1.0, 2.0], [1.0, 2.0, 4.0]).dtype == np.float32
    assert tj.interp(1, [0, 1, 2], [1, 2, 4]).dtype == np.float32
    assert tj.interp(x, PLACES, V).dtype == np.float64


# Convolution


def test_long_convolutions_agree_with_numpy_in_both_orders() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=300), rng.normal(size=7)
    for a, b in ((x, y), (y, x)):
        found = tj.convolve(a, b, "same")
        np.testing.assert_allclose(found, np.convolve(a, b, "same"), rtol=1e-12)


def test_a_convolution_of_halves_is_rounded_once() -> None:
    x = np.float16(np.linspace(0.1, 1.0, 64))
    wide = np.convolve(x.astype(np.float32), x.astype(np.float32))
    assert_same(tj.convolve(x, x), wide.astype(np.float16))


def test_differences_of_unsigned_integers_wrap() -> None:
    array = np.uint8([3, 1, 255])
    assert_same(tj.diff(array), np.diff(array))


def test_integrals_of_integers_are_floats() -> None:
    assert tj.trapezoid(tj.asarray([1, 2, 4])).dtype == np.float32
    assert float(tj.trapezoid(tj.asarray([1, 2, 4]))) == 4.5


REFUSED = {
    "diff: axis -1": lambda x: tj.diff(x[0]),
    "diff: axis 3": lambda x: tj.diff(x, axis=3),
    "diff: cannot take differences -1": lambda x: tj.diff(x, n=-1),
    "trapezoid: axis 3": lambda x: tj.trapezoid(x, axis=3),
    "interp: takes one value per point": lambda x: tj.interp(x, x, x[1:]),
    "interp: needs at least one point": lambda x: tj.interp(x, x[:0], x[:0]),
    "interp: takes real places": lambda x: tj.interp(x * 1j, x, x),
    "interp: the period cannot be zero": lambda x: tj.interp(x, x, x, period=0),
    "convolve: takes vectors, got": lambda x: tj.convolve(x[None], x),
    "convolve: takes vectors with elements": lambda x: tj.convolve(x, x[:0]),
    "convolve: mode is": lambda x: tj.convolve(x, x, "other"),
    "correlate: mode is": lambda x: tj.correlate(x, x, "other"),
    "correlate: takes vectors with elements": lambda x: tj.correlate(x[:0], x),
    "gradient: 2 distances for 1": lambda x: np.gradient(x, 1.0, 2.0),
    "gradient: 1 samples along": lambda x: np.gradient(x[:1]),
    "gradient: edge_order": lambda x: np.gradient(x, edge_order=3),
    "gradient: places of": lambda x: np.gradient(x, [1.0, 2.0]),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.items(), ids=REFUSED)
def test_what_is_refused_names_the_function(message: str, call: Any) -> None:
    assert_refused(
        lambda: call(tj.asarray(V)), message, ValueError, TypeError, IndexError
    )


def test_no_warning_escapes() -> None:
    x = tj.asarray([np.inf, 1.0, -np.inf], dtype="float64")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tj.diff(x)
        tj.trapezoid(x)
        tj.interp(x, [0.0, 0.0, 1.0], x)
        tj.convolve(x, x * 0)
        tj.kron(x, x * 0)
    assert [str(warning.message) for warning in caught] == []
