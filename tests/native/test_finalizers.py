"""Finalizers that assign variables while native code is called on them.

The collector runs whenever an object is made, so also in the native entry.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

pytestmark = pytest.mark.usefixtures("with_native_code")

CALLS = 300


class Finalised:
    """Ends when the collector comes along."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.itself = self
        self.action = action

    def __del__(self) -> None:
        self.action()


def call_with_finalizers(call: Callable[[], Any], action: Callable[[], Any]) -> None:
    gc.collect()
    before = gc.get_threshold()
    try:
        for _ in range(CALLS):
            Finalised(action)
            gc.set_threshold(1, 1000, 1000)
            call()
            gc.set_threshold(*before)
    finally:
        gc.set_threshold(*before)
    gc.collect()


@pytest.mark.parametrize("shape", [(), (4,), (100_000,)], ids=str)
@pytest.mark.parametrize("how", ["function", "eager", "another variable too"])
def test_no_update_of_a_finalizer_is_lost(shape: tuple[int, ...], how: str) -> None:
    v, w = (tj.Variable(np.zeros(shape, np.float32)) for _ in range(2))
    one = tj.ones(shape)

    @tj.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        w.assign(v * 2)
        return tj.sum(x), v.value()

    @tj.function
    def bump(x: Any) -> None:
        v.assign_add(x)

    @tj.function
    def bump_both(x: Any) -> None:
        v.assign_add(x)
        w.assign(v * 2)

    step(one)
    bump_both(one)
    bump(one)
    actions = {
        "function": lambda: bump(one),
        "eager": lambda: v.assign_add(one),
        "another variable too": lambda: bump_both(one),
    }
    call_with_finalizers(lambda: step(one), actions[how])
    step(one)
    expected = np.full(shape, 2.0 * CALLS + 4, np.float32)
    np.testing.assert_array_equal(v.numpy(), expected)
    np.testing.assert_array_equal(w.numpy(), 2 * expected)


def test_finalizers_that_draw_do_not_draw_the_same() -> None:
    generator, drawn = tj.random.Generator(7), []
    draw = tj.function(lambda: generator.uniform())

    def note() -> None:
        drawn.append(float(draw()))

    note()
    call_with_finalizers(note, note)
    assert len(set(drawn)) == len(drawn) == 2 * CALLS + 1


def test_memory_is_still_written_over() -> None:
    """What is checked before all objects are made is checked once more."""
    v = tj.Variable(np.zeros(1000, np.float32))
    step = tj.function(lambda x: (v.assign_add(x).shape and tj.sum(x), x * 2))
    x = tj.ones(1000)
    step(x)
    place = v._tensor._value.ctypes.data
    for _ in range(5):
        step(x)
    assert v._tensor._value.ctypes.data == place
    assert float(v[0]) == 6.0
