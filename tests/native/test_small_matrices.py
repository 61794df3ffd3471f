"""Matrices up to 4 by 4: arithmetic in native code, LAPACK where that cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import FACTORED, assert_agrees

import tapejit as tj

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def native() -> Any:
    with tj.config.override(native=True, cache=False, compile="now"):
        yield


STACKS = (((), "float64"), ((5,), "float32"), ((2, 150), "float64"))


def matrices(stack: tuple[int, ...], size: int, dtype: str) -> Array:
    """Positive definite, of condition 10 or so."""
    x = np.random.default_rng(size).standard_normal((*stack, size, size))
    return (x @ np.swapaxes(x, -1, -2) / size + np.eye(size)).astype(dtype)


def columns(stack: tuple[int, ...], size: int, dtype: str) -> Array:
    return np.random.default_rng(9).standard_normal((*stack, size, 2)).astype(dtype)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "solve": tj.linalg.solve,
    "inv": lambda a, b: tj.linalg.inv(a),
    "det": lambda a, b: tj.linalg.det(a),
    "cholesky": lambda a, b: tj.linalg.cholesky(a),
    "lower": lambda a, b: tj.linalg.solve_triangular(a, b, lower=True),
    "upper": lambda a, b: tj.linalg.solve_triangular(a, b, lower=False),
    "shared": lambda a, b: tj.linalg.solve(a[..., :1, :, :] if a.ndim > 2 else a, b),
}


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients_are_lapacks_and_native(name: str, size: int) -> None:
    program = PROGRAMS[name]
    slopes = tj.grad(lambda a, b: tj.sum(program(a, b) ** 2), argnums=0)
    for stack, dtype in STACKS:
        given = matrices(stack, size, dtype), columns(stack, size, dtype)
        both = tj.function(lambda a, b: (program(a, b), slopes(a, b)))
        found = both(*map(tj.asarray, given))
        assert not both.explain(*map(tj.asarray, given)).on_numpy
        # LAPACK's, one matrix at a time and in double
        one = [x.astype(np.float64) for x in given]
        for at in np.ndindex(stack[:1]):
            a, b = (x[at][:3] if len(stack) == 2 else x[at] for x in one)
            if name == "shared" and len(stack) == 1:
                a = one[0][:1]
                b = one[1][at][None]
            expected = program(tj.asarray(a), tj.asarray(b))
            got = np.asarray(found[0])[at]
            got = got[:3] if len(stack) == 2 else got
            expected = np.asarray(expected).reshape(got.shape)
            assert_agrees(FACTORED, got, expected, where=f"{name} {stack} {dtype}")
        plain = slopes(*map(tj.asarray, given))
        assert_agrees(FACTORED, found[1], plain, where=f"slope of {name} {stack}")


SINGULAR = {
    "equal rows": [[1.0, 2.0], [1.0, 2.0]],
    "zeros": [[0.0, 0.0, 0.0]] * 3,
    "up to rounding": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]],
    "nearly": [[1.0, 1.0], [1.0, 1.0 + 3e-16]],
    "nan": [[np.nan, 1.0], [2.0, 3.0]],
    "indefinite": [[1.0, 2.0], [2.0, 1.0]],
    "small and large": [[1e-200, 0.0, 0.0], [0.0, 1e-200, 0.0], [0.0, 0.0, 1e300]],
}


def outcome(function: Callable[..., Any], x: Array) -> Any:
    try:
        return np.asarray(function(tj.asarray(x)))
    except tj.LinAlgError as error:
        return str(error).partition("where")[0]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("matrix", SINGULAR)
@pytest.mark.parametrize("name", ["inv", "det", "cholesky"])
def test_what_arithmetic_cannot_tell_lapack_decides(
    name: str, matrix: str, many: bool
) -> None:
    function = getattr(tj.linalg, name)
    lapack = {"inv": np.linalg.inv, "det": np.linalg.det}.get(name)
    x = np.array(SINGULAR[matrix])
    if many:
        x = np.concatenate([np.broadcast_to(np.eye(len(x)), (400, *x.shape)), x[None]])
    native, eager = outcome(tj.function(function), x), outcome(function, x)
    if isinstance(eager, str):
        assert native == eager
    else:
        assert_agrees(FACTORED, native, eager, where=f"{name} of {matrix}")
        if lapack is not None:
            with np.errstate(all="ignore"):
                expected = lapack(x[-1] if many else x)
            got = eager[-1] if many else eager
            np.testing.assert_allclose(got, expected, rtol=1e-15)


def test_the_slope_of_a_determinant_exists_for_singular_matrices() -> None:
    x = tj.asarray([[1.0, 2.0], [2.0, 4.0]])
    slope = tj.grad(lambda x: tj.linalg.det(x))
    for function in (slope, tj.function(slope)):
        np.testing.assert_array_equal(function(x), [[4.0, -2.0], [-2.0, 1.0]])
