"""Programs that `python -m tests.fuzz` found to be wrong, as small as it left them.

Each is run as plain Python and as native code, with memory marked (`TAPEJIT_CHECK`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from tapejit.base import tree

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _checked(with_native_code: None) -> Iterator[None]:
    tj.config.update(check=True, cache=False)
    yield
    tj.config.update(check=False, cache=True)


def normal(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
    def body(*xs: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(list(xs))
            y = loss(*xs)
        return y, tape.gradient(y, list(xs))

    return body


def slopes_of_a_part(x: Any) -> Any:
    """Their gradient is a number put into zeros, which is too large to be folded."""
    return tj.sum(x[:, 1:] * 0.5) + tj.sum(x[2:] * 3)


def changed_parts(x: Any) -> Any:
    """What is changed is no argument: a kernel has made it."""
    y = x * 2
    return y.at[-2, ::2].set(2.0), y.at[np.array([1, 1, 0])].add(y[:3])


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Array]]] = {
    "slopes-of-a-part": (gradient(slopes_of_a_part), [normal(100, 16, dtype="f8")]),
    "changed-parts": (changed_parts, [normal(5, 7)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_was_wrong_agrees(name: str) -> None:
    body, arrays = PROGRAMS[name]
    tensors = [tj.asarray(x) for x in arrays]
    function = tj.function(lambda *xs: body(*xs))
    expected, spec = tree.flatten(body(*tensors), none_is_leaf=True)
    for _ in range(3):
        got, found = tree.flatten(function(*tensors), none_is_leaf=True)
        assert found == spec
        for x, y in zip(got, expected, strict=True):
            assert (x is None) == (y is None)
            if y is not None:
                assert (x.dtype, x.shape) == (y.dtype, y.shape)
                assert_agrees(COMPOSED, x.numpy(), y.numpy(), where=name)
