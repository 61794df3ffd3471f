"""Threads, tasks, and what tapes keep alive, in both modes (lines 12 and 13)."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, note, ways
from .test_both_recording import tensor, variable, variable_and_tensor

# 12: threads, tasks, tapes out of order


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_s12_calls_in_other_threads_are_not_recorded() -> None:
    def program(v: Any, x: Any) -> Any:
        return v * x

    for name, call in ways(program, variable_and_tensor):
        v, x = variable_and_tensor()
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            theirs = in_thread(lambda v=v, x=x, call=call: call(v, x))
            assert tape.watched_variables() == (), name
            y = call(v, x) * theirs
        assert tape.gradient(theirs, [v, x]) == [None, None], name
        dv, dx = in_thread(lambda t=tape, y=y, v=v, x=x: t.gradient(y, [v, x]))
        assert (float(dv), float(dx)) == (12.0, 18.0), name


def test_s12_tapes_in_functions_called_by_many_threads_do_not_mix() -> None:
    def step(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = v * x * x
        return tape.gradient(y, [v, x])

    def work(call: Any, scale: int) -> list[float]:
        v = tj.Variable(float(scale))
        found = [call(v, tj.asarray(float(n))) for n in range(20)]
        return [float(g) for pair in found for g in pair]

    expected = [
        [g for n in range(20) for g in (float(n * n), 2.0 * scale * n)]
        for scale in range(8)
    ]
    for name, call in ways(step, variable_and_tensor):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda scale, call=call: work(call, scale), range(8)))
        assert found == expected, name


def in_thread_with_context(function: Callable[[], Any]) -> Any:
    context = contextvars.copy_context()
    return in_thread(lambda: context.run(function))


def test_s12_a_thread_started_by_the_body_is_not_recorded() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x * v
            theirs = in_thread_with_context(lambda: y * x * v)
            z = theirs * x * v
        note([w.name for w in tape.watched_variables()])
        found = [tape.gradient(t, [v, x]) for t in (theirs, z)]
        return found, in_thread_with_context(lambda: tape.gradient(y, [v, x]))

    # theirs = x³ v² = 72 at v = 3, x = 2
    expected = ([[None, None], [72.0 * 2, 72.0 * 3]], [4.0, 12.0])
    assert_modes(program, variable_and_tensor, expected=expected, notes=[["v"]])


def test_s12_a_thread_without_the_context_cannot_help_a_trace() -> None:
    def program(x: Any) -> Any:
        return in_thread(lambda: x * x)

    assert float(program(tensor())) == 9.0
    function = tj.function(program)
    for _ in range(2):
        with pytest.raises(tj.ArgumentError, match="used in another thread") as caught:
            function(tensor())
        assert "copy_context" in str(caught.value)


def test_s12_a_task_that_outlives_the_block_is_recorded_only_inside_it() -> None:
    def program(v: Any) -> Any:
        async def main() -> Any:
            closed = asyncio.Event()
            begun = []

            async def other() -> Any:
                begun.append(v * v)
                await closed.wait()
                return begun[0] * v

            with tj.GradientTape(persistent=True) as tape:
                task = asyncio.create_task(other())
                await asyncio.sleep(0)
            closed.set()
            late = await task
            return tape.gradient(begun[0], v), tape.gradient(late, v)

        return asyncio.run(main())

    assert_modes(program, variable, expected=(6.0, None))


def test_s12_a_task_in_the_body_adds_to_the_recording() -> None:
    def program(v: Any, x: Any) -> Any:
        async def main() -> Any:
            async def multiply(y: Any) -> Any:
                await asyncio.sleep(0)
                return y * x * v

            with tj.GradientTape() as tape:
                tape.watch(x)
                a, b = await asyncio.gather(multiply(x), multiply(x * x))
                loss = a + b
            return tape.gradient(loss, [v, x])

        return asyncio.run(main())

    # v x² + v x³ at v = 3, x = 2
    assert_modes(program, variable_and_tensor, expected=[12.0, 48.0])


def test_s12_tapes_may_be_exited_out_of_order() -> None:
    def program(x: Any) -> Any:
        first, second = tj.GradientTape(), tj.GradientTape()
        first.__enter__()
        second.__enter__()
        first.watch(x)
        second.watch(x)
        y = x * x
        first.__exit__(None, None, None)
        z = y * x
        second.__exit__(None, None, None)
        late = z * x
        note(bool(second.why_none(late, x)))
        return first.gradient(y, x), second.gradient(z, x)

    assert_modes(program, tensor, expected=(6.0, 27.0), notes=[True])


# 13: what is kept alive


def test_s13_nothing_made_in_the_body_outlives_the_call() -> None:
    made: list[weakref.ref[Any]] = []

    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            h = tj.exp(v * x)
            y = tj.sin(h)
        made.extend([weakref.ref(tape), weakref.ref(h), weakref.ref(y)])
        return tape.gradient(y, v)

    for name, call in ways(program, variable_and_tensor):
        call(*variable_and_tensor())
        assert [r() for r in made] == [None] * len(made), name
    assert len(made) >= 3 * 4


@pytest.mark.parametrize("persistent", [False, True])
def test_s13_a_tape_around_releases_what_the_call_kept(persistent: bool) -> None:
    def program(v: Any, x: Any) -> Any:
        return tj.sin(tj.exp(v * x))

    def setup() -> Any:
        return tj.Variable(np.ones(100)), tj.asarray(np.ones(100))

    for name, call in ways(program, setup):
        v, x = setup()
        with tj.GradientTape(persistent=persistent) as tape:
            y = call(v, x)
        kept = tape.nbytes
        assert kept > 0, name
        gone = weakref.ref(v)
        assert tape.gradient(y, v).shape == (100,)
        assert tape.nbytes == (kept if persistent else 0), name
        del v, x, y, tape
        assert gone() is None, name


def test_s13_a_loop_of_calls_under_tapes_keeps_nothing() -> None:
    def program(v: Any, x: Any) -> Any:
        return tj.sum(tj.tanh(v * x) * x)

    def setup() -> Any:
        return tj.Variable(np.ones(10)), tj.asarray(np.ones(10))

    for name, call in ways(program, setup):
        v, x = setup()
        losses, tapes = [], []
        for _ in range(3):
            with tj.GradientTape() as tape:
                loss = call(v, x)
            v.assign_sub(tape.gradient(loss, v))
            losses.append(loss)
            tapes.append(weakref.ref(tape))
            del tape
        assert [t() for t in tapes] == [None] * 3, f"{name}: losses keep their tapes"
        assert len({float(loss) for loss in losses}) == 3
