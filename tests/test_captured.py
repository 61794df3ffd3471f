"""Functions that differ in nothing but what they have captured share their code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

X = np.arange(12, dtype="f4").reshape(3, 4)
Program = Callable[[tj.Tensor], tj.Tensor]


def scaled(c: Any) -> Program:
    return lambda x: x * c + tj.exp(c)


def masked(c: Any) -> Program:
    return lambda x: tj.where(tj.reshape(c, (-1, 1)) >= tj.arange(4), x, -1.0)


def shifted(c: Any) -> Program:
    return lambda x: (x + (c - c * 2)) / tj.maximum(c, 0.5)


def picked(c: Any) -> Program:
    return lambda x: tj.take(x, c, axis=0)


PROGRAMS: dict[str, tuple[Callable[[Any], Program], list[Any]]] = {
    "a number": (scaled, [np.float32(c) for c in (1.0, 3.0, 0.0)]),
    "an array": (scaled, [np.full(4, c, "f4") for c in (1.0, 3.0, 0.0)]),
    "arithmetic": (shifted, [np.full(4, c, "f4") for c in (2.0, 0.25, 1.0)]),
    "positions": (masked, [np.arange(3) + c for c in (0, 2, -5)]),
    "indices": (picked, [np.array(c) for c in ([0, 1, 2], [2, 2, 0], [1, 0, -1])]),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_function_computes_with_its_own(name: str, native: bool) -> None:
    make, values = PROGRAMS[name]
    x = tj.asarray(X)
    functions = []
    with tj.config.override(native=native):
        for value in values:
            program = make(tj.asarray(value))
            functions.append((tj.function(program), program))
            functions[-1][0](x)
        for function, program in functions:
            np.testing.assert_array_max_ulp(
                function(x).numpy(), program(x).numpy(), maxulp=4
            )


def test_indices_of_one_function_say_nothing_of_those_of_another() -> None:
    x = tj.asarray(X)
    inside = tj.function(picked(tj.asarray([0, 1, 2])))
    outside = tj.function(picked(tj.asarray([0, 1, 7])))
    assert inside(x).shape == (3, 4)
    with pytest.raises(IndexError, match="7"):
        outside(x)
