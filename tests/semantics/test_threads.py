"""Tapes belong to a thread; what they keep alive around calls (lines 12 and 13)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import MODES, assert_modes, note, note_error, ways
from .test_recording import tensor, variable, variable_and_tensor

# 12: threads, tasks, tapes out of order


def in_thread(function: Callable[[], Any]) -> Any:
    """The result of a function called in a new thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def in_thread_with_context(function: Callable[[], Any]) -> Any:
    """As `in_thread`, with a copy of the caller's context."""
    context = contextvars.copy_context()
    return in_thread(lambda: context.run(function))


def in_asyncio_thread(function: Callable[[], Any]) -> Any:
    """As `in_thread`, by asyncio.to_thread, which copies the context too."""

    async def main() -> Any:
        return await asyncio.to_thread(function)

    return asyncio.run(main())


# The modes besides plain Python: only a thread that has its context can help a trace,
# and only such a one knows that a tape belongs to the function that is running.
ELSEWHERE = {
    in_thread: (),
    in_thread_with_context: MODES,
    in_asyncio_thread: MODES,
}


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


def test_s12_tapes_of_many_threads_do_not_mix() -> None:
    def step(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = tj.sum(v * x * x)
        return tape.gradient(y, [v, x])

    def work(call: Any, scale: int) -> list[float]:
        v = tj.Variable(float(scale))
        found = [call(v, tj.asarray(float(n))) for n in range(20)]
        return [float(g) for pair in found for g in pair]

    expected = [
        [g for n in range(20) for g in (float(n * n), 2.0 * scale * n)]
        for scale in range(16)
    ]
    for name, call in ways(step, variable_and_tensor):
        with ThreadPoolExecutor(8) as pool:
            calls = lambda scale, call=call: work(call, scale)
            assert list(pool.map(calls, range(16))) == expected, name


def test_s12_every_thread_has_tapes_of_its_own() -> None:
    """Threads that wait for each other inside their blocks; a trace would run once."""
    v = tj.Variable(1.0)
    together = threading.Barrier(4, timeout=60)

    def work(scale: float) -> list[float]:
        found = []
        for step in range(30):
            x = tj.asarray(scale + step)
            together.wait()
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = x * x * v
                assert len(tape.watched_variables()) == 1
                together.wait()
                z = y * x
            found.append(float(tape.gradient(z, x)))
        return found

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, [1.0, 2.0, 3.0, 4.0]))
    for scale, found in zip([1.0, 2.0, 3.0, 4.0], results, strict=True):
        np.testing.assert_allclose(found, 3 * (scale + np.arange(30)) ** 2, rtol=1e-6)


@pytest.mark.parametrize("run", ELSEWHERE)
def test_s12_operations_of_other_threads_are_not_recorded(run: Any) -> None:
    def program(v: Any, x: Any, other: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x * v
            theirs = run(lambda: y * x * v * other)
            z = theirs * x * v
            inside = run(lambda: tape.gradient(y, v))  # and no warning
        note([w.name for w in tape.watched_variables()])
        found = [tape.gradient(t, [v, x, other]) for t in (theirs, z, inside)]
        return theirs, found, inside

    def setup() -> Any:
        return *variable_and_tensor(), tj.Variable(1.0, name="other")

    # theirs = x³ v² = 72 at v = 3, x = 2
    found = [[None] * 3, [72.0 * 2, 72.0 * 3, None], [None] * 3]
    expected, modes = (72.0, found, 4.0), ELSEWHERE[run]
    assert_modes(program, setup, expected=expected, notes=[["v"]], modes=modes)


@pytest.mark.parametrize("run", ELSEWHERE)
def test_s12_gradient_may_be_called_from_another_thread(run: Any) -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = v * v
        with tj.GradientTape() as once:
            z = v * v
        found = [run(lambda: once.gradient(z, v))]
        note_error(lambda: once.gradient(z, v))
        for ask in (tape.gradient, tape.jacobian):
            found.append(run(lambda ask=ask: ask(y, v)))
        return found

    errors, modes = [(RuntimeError, "persistent")], ELSEWHERE[run]
    assert_modes(program, variable, expected=[6.0] * 3, errors=errors, modes=modes)


@pytest.mark.parametrize("run", ELSEWHERE)
def test_s12_consumed_elsewhere_it_stops_recording_here(run: Any) -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * v
            g = run(lambda: tape.gradient(y, v))
            tj.exp(v) * y
            note(tape.nbytes)
            note_error(lambda: tape.watch(y))
        return g

    errors, modes = [(RuntimeError, "not recording")], ELSEWHERE[run]
    plain = assert_modes(program, variable, expected=6.0, errors=errors, modes=modes)
    assert plain.notes[0] == 0


@pytest.mark.parametrize("run", ELSEWHERE)
def test_s12_a_tape_is_in_one_thread_at_a_time_and_may_move(run: Any) -> None:
    def program(v: Any) -> Any:
        def multiply(x: Any) -> Any:
            with tape:
                return x * v

        tape = tj.GradientTape()
        y = multiply(v)
        z = run(lambda: multiply(y))
        with tape:
            note_error(lambda: run(lambda: multiply(y)))
            z = z * v
        return tape.gradient(z, v)

    errors, modes = [(ValueError, "recording already")], ELSEWHERE[run]
    assert_modes(program, variable, expected=108.0, errors=errors, modes=modes)


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


def test_s12_tasks_started_inside_the_block_are_recorded() -> None:
    def program(v: Any, x: Any) -> Any:
        async def main() -> Any:
            async def multiply(y: Any) -> Any:
                await asyncio.sleep(0)
                return y * x * v

            with tj.GradientTape() as tape:
                tape.watch(x)
                a, b = await asyncio.gather(multiply(x), multiply(x * x))
                c = await asyncio.create_task(multiply(a))
                await asyncio.sleep(0)  # the block may wait in the middle
                loss = a + b + c
            return tape.gradient(loss, [v, x])

        return asyncio.run(main())

    # v x² + v x³ + v² x³ at v = 3, x = 2
    expected = [4.0 + 8 + 2 * 3 * 8, 3 * 4.0 + 3 * 12 + 9 * 12]
    assert_modes(program, variable_and_tensor, expected=expected)


def test_s12_a_task_started_before_the_block_is_not_recorded() -> None:
    def program(v: Any) -> Any:
        async def main() -> Any:
            opened = asyncio.Event()

            async def other() -> Any:
                await opened.wait()
                return v * v

            task = asyncio.create_task(other())
            with tj.GradientTape() as tape:
                opened.set()
                theirs = await task
            note(tape.watched_variables())
            return tape.gradient(theirs, v)

        return asyncio.run(main())

    assert_modes(program, variable, expected=None, notes=[()])


def test_s12_a_tape_opened_in_a_task_is_not_seen_by_its_parent() -> None:
    def program(v: Any) -> Any:
        async def main() -> Any:
            opened, done = asyncio.Event(), asyncio.Event()

            async def child() -> Any:
                with tj.GradientTape() as tape:
                    opened.set()
                    await done.wait()
                return tape

            task = asyncio.create_task(child())
            await opened.wait()
            y = v * v
            done.set()
            return (await task).gradient(y, v)

        return asyncio.run(main())

    assert_modes(program, variable, expected=None)


def test_s12_tapes_of_tasks_that_take_turns_do_not_mix() -> None:
    def program(*variables: Any) -> Any:
        async def train(v: Any) -> Any:
            with tj.GradientTape() as tape:
                y = v * v
                await asyncio.sleep(0)
                z = y * v
                await asyncio.sleep(0)
            note(len(tape.watched_variables()))
            return tape.gradient(z, v)

        async def main() -> Any:
            return await asyncio.gather(*map(train, variables))

        return asyncio.run(main())

    setup = lambda: tuple(map(tj.Variable, (1.0, 2.0, 3.0)))
    assert_modes(program, setup, expected=[3.0, 12.0, 27.0], notes=[1, 1, 1])


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
        note([bool(second.why_none(late, x)), bool(first.why_none(z, x))])
        return first.gradient(y, x), second.gradient(z, x)

    assert_modes(program, tensor, expected=(6.0, 27.0), notes=[[True, True]])


def test_s12_a_tape_that_ends_first_leaves_the_inner_one_usable() -> None:
    def program(v: Any) -> Any:
        outer, inner = tj.GradientTape(), tj.GradientTape()
        outer.__enter__()
        inner.__enter__()
        y = v * v
        g = inner.gradient(y, v)  # stops itself; the outer one records this
        outer.__exit__(None, None, None)
        inner.__exit__(None, None, None)
        return outer.gradient(g, v)

    assert_modes(program, variable, expected=2.0)


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
