"""What runs in the midst of a call in its thread: finalizers, handlers of signals.

Locks keep out other threads only. What such code assigns is kept, and nothing that a
call does happens twice (lines 54 and 57).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.base import collector
from tapejit.runtime.executable import Executable
from tapejit.tape import variable as variable_module

ONE = np.ones(3, np.float32)


def zeros() -> tj.Variable:
    return tj.Variable(np.zeros(3, np.float32))


@contextmanager
def in_the_midst_of(function: Any, action: Callable[[], Any]) -> Iterator[list[int]]:
    """`action` runs once in each of two calls, when their values are computed."""
    (entry,) = function._cache.entries.values()
    executables = [path._executable for path in entry.paths]
    executables += [e for path in entry.paths for _, e, _ in path._forwards.values()]
    left = [2]

    def interrupted(run: Any) -> Any:
        def run_and_act(arguments: list[Any]) -> list[Any]:
            found: list[Any] = run(arguments)
            if left[0]:
                left[0] -= 1
                action()
            return found

        return run_and_act

    before: list[tuple[Executable, Any]] = [(x, x.run) for x in executables]
    for executable, run in before:
        executable.run = interrupted(run)
    try:
        yield left
    finally:
        for executable, run in before:
            executable.run = run


def eagerly(v: tj.Variable) -> Callable[[], Any]:
    return lambda: v.assign_add(ONE)


def by_a_function(v: tj.Variable) -> Callable[[], Any]:
    bump = tj.function(lambda x: v.assign_add(x))
    bump(ONE)
    v.assign_sub(ONE)
    return lambda: bump(ONE)


@pytest.mark.parametrize("how", [eagerly, by_a_function])
def test_s54_what_is_assigned_in_the_midst_of_a_call_is_kept(how: Any) -> None:
    v, w = zeros(), zeros()

    @tj.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        w.assign(v * 2)
        return tj.sum(v)

    step(ONE)
    with in_the_midst_of(step, how(v)) as left:
        total = step(ONE)
    assert left == [0], "the call was overtaken twice"
    assert float(total) == 12.0
    assert v.numpy().tolist() == [4.0] * 3
    assert w.numpy().tolist() == [8.0] * 3, "all of one call"


def test_s54_what_was_shown_is_not_shown_again(capsys: Any) -> None:
    v = zeros()

    @tj.function
    def step(x: Any) -> None:
        tj.print("v is", v)
        v.assign_add(x)

    step(ONE)
    capsys.readouterr()
    with in_the_midst_of(step, eagerly(v)):
        step(ONE)
    assert capsys.readouterr().out.count("v is") == 1
    assert v.numpy().tolist() == [4.0] * 3


def test_s54_a_call_on_a_tape_that_is_overtaken_is_recorded_once() -> None:
    v = zeros()

    @tj.function
    def step(x: Any) -> Any:
        y = tj.sum(v * v * x)
        v.assign_add(x)
        return y

    def taped() -> Any:
        with tj.GradientTape() as tape:
            y = step(ONE)
        return tape.gradient(y, v), len(tape._recording.reads)  # type: ignore[union-attr]

    taped()
    with in_the_midst_of(step, eagerly(v)) as left:
        g, reads = taped()
    assert left == [0]
    assert g.numpy().tolist() == [6.0] * 3, "v was 1, and 3 when the call was made"
    assert reads == 1
    assert v.numpy().tolist() == [4.0] * 3


def test_s54_a_guard_is_asked_again_after_it_was_overtaken() -> None:
    v = zeros()

    @tj.function
    def step(x: Any) -> Any:
        if tj.sum(v) > 5.0:
            return v.assign(x * 100)
        return v.assign_add(x)

    step(ONE)
    with in_the_midst_of(step, eagerly(v)):
        step(ONE)
    assert v.numpy().tolist() == [100.0] * 3


@pytest.mark.parametrize(
    "update",
    [
        lambda v: v.assign_add(ONE),
        lambda v: v.assign_sub(-ONE),
        lambda v: v.scatter_add([0, 1, 2], ONE),
        lambda v: v[:].assign_add(ONE),
    ],
    ids=["assign_add", "assign_sub", "scatter_add", "part"],
)
def test_s33_an_eager_update_that_is_overtaken_is_made_again(
    update: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    v, left = zeros(), [2]
    holding = tj.Variable._holding

    def hold_and_act(self: tj.Variable, array: Any) -> Any:
        """Between computing a value and putting it in place."""
        held = holding(self, array)
        if left[0]:
            left[0] -= 1
            v.assign_add(ONE)
        return held

    monkeypatch.setattr(tj.Variable, "_holding", hold_and_act)
    assert update(v).numpy().tolist() == [3.0] * 3
    assert v.numpy().tolist() == [3.0] * 3


def test_s16_a_draw_that_is_overtaken_is_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator, drawn = tj.random.Generator(7), []
    first = float(tj.random.Generator(7).uniform())
    advance = tj.random.Generator._advance

    def act_and_advance(self: Any, *args: Any) -> bool:
        if not drawn:
            drawn.append(0.0)
            drawn[0] = float(generator.uniform())
        return bool(advance(self, *args))

    monkeypatch.setattr(tj.random.Generator, "_advance", act_and_advance)
    drawn.append(float(generator.uniform()))
    assert drawn[0] == first
    assert drawn[0] != drawn[1]


def test_s54_a_failed_body_keeps_what_came_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A body that runs as plain Python is undone up to where it was overtaken."""
    v, left = zeros(), [1]
    holding = tj.Variable._holding

    def hold_and_act(self: tj.Variable, array: Any) -> Any:
        held = holding(self, array)
        if left[0]:
            left[0] -= 1
            token = variable_module.JOURNAL.set(None)
            v.assign_add(ONE)
            variable_module.JOURNAL.reset(token)
        return held

    @tj.function
    def step(x: Any) -> Any:
        monkeypatch.setattr(tj.Variable, "_holding", hold_and_act)
        v.assign_add(x)
        raise ValueError("after all")

    with tj.config.override(eager=True), pytest.raises(ValueError, match="after all"):
        step(ONE)
    assert v.numpy().tolist() == [1.0] * 3


# A result of None


def test_s56_a_function_without_a_result_runs_once_under_a_tape() -> None:
    v = zeros()

    @tj.function
    def bump(x: Any) -> None:
        v.assign_add(x)

    with tj.GradientTape() as tape:
        y = v * 2
        bump(ONE)
        z = y * v
    assert v.numpy().tolist() == [1.0] * 3
    assert tape.gradient(z, v).numpy().tolist() == [2.0] * 3


# The collector


class Cycle:
    """Ends when the collector comes along."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.itself = self
        weakref.finalize(self, action).atexit = False


def test_s51_finalizers_do_not_become_part_of_a_trace() -> None:
    v = zeros()
    bump = tj.function(lambda x: v.assign_add(x))
    bump(ONE)
    runs = []

    def finalize() -> None:
        runs.append(1)
        bump(ONE)

    @tj.function
    def step(x: Any) -> Any:
        for _ in range(5):
            Cycle(finalize)
            x = x * 2
        return x

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        step(ONE)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert len(runs) == 5
    assert step.graph().effects is None
    assert [x.name for x in step.graph().inputs] == ["x"]
    step(ONE)
    assert v.numpy().tolist() == [6.0] * 3


def test_the_collector_rests_until_the_last_is_done() -> None:
    assert gc.isenabled()
    with collector.resting():
        with collector.resting():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with collector.resting():
            pass
        assert not gc.isenabled(), "as it was"
    finally:
        gc.enable()
