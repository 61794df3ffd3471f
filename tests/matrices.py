"""Matrices for tests of linear algebra, and how their results are compared.

Start reading at `drawn`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def drawn(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Array:
    rng = np.random.default_rng([seed, *shape])
    x = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=shape)
    return np.asarray(x, dtype)


def positive(*shape: int, dtype: Any = np.float64) -> Array:
    x = drawn(*shape, dtype=dtype)
    return x @ np.conj(np.swapaxes(x, -1, -2)) + np.eye(shape[-1])


def adjoint(x: Array) -> Array:
    return np.conj(np.swapaxes(x, -1, -2))


def assert_near(got: Any, expected: Any, factor: float = 1e3) -> None:
    """Within some eps of the largest element."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    eps = np.finfo(got.dtype).eps
    scale = np.max(np.abs(expected), initial=0)
    np.testing.assert_allclose(got, expected, rtol=0, atol=factor * eps * scale)
