"""The methods that tensors and variables share with ndarray do what ndarray's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

METHODS: dict[str, Callable[[Any], Any]] = {
    "var": lambda x: x.var(0),
    "var ddof": lambda x: x.var(axis=1, ddof=1, keepdims=True),
    "std": lambda x: x.std(),
    "cumsum": lambda x: x.cumsum(),
    "cumsum axis": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(axis=0),
    "argsort": lambda x: x.argsort(),
    "nonzero": lambda x: x.nonzero(),
    "take": lambda x: x.take([2, 0], axis=1),
    "take flat": lambda x: x.take([5, 1]),
    "repeat": lambda x: x.repeat(2, axis=0),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "diagonal": lambda x: x.diagonal(1),
    "trace": lambda x: x.trace(),
    "copy": lambda x: x.copy(),
    "sum": lambda x: x.sum(1),
    "prod": lambda x: x.prod(0),
    "mean": lambda x: x.mean(axis=(0, 1)),
    "max": lambda x: x.max(1, keepdims=True),
    "argmin": lambda x: x.argmin(1),
    "clip": lambda x: x.clip(0, 1),
    "reshape": lambda x: x.reshape(3, 2),
    "transpose": lambda x: x.transpose(1, 0),
    "ravel": lambda x: x.ravel(),
    "squeeze": lambda x: x.reshape(2, 1, 3).squeeze(1),
    "round": lambda x: x.round(),
    "conj": lambda x: x.conj(),
    "astype": lambda x: x.astype("int32"),
    "dot": lambda x: x.dot(x.T),
    "any": lambda x: (x > 1).any(0),
    "all": lambda x: (x > -9).all(),
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x.item(1, 2),
}
VALUES = np.array([[0.5, -1.25, 2.0], [1.5, 0.0, -0.75]])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("made", [tj.asarray, tj.Variable])
def test_a_method_is_ndarrays(name: str, made: Callable[[Any], Any]) -> None:
    expected = METHODS[name](VALUES)
    found = METHODS[name](made(VALUES))
    if not isinstance(expected, tuple):
        expected, found = (expected,), (found,)
    for theirs, ours in zip(expected, found, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-15)


@pytest.mark.parametrize(
    "name", ["var", "std", "cumsum axis", "cumprod", "take", "trace"]
)
def test_its_derivatives_are_those_of_differences(name: str) -> None:
    tj.testing.check_grads(METHODS[name], [VALUES + 0.1])
