"""Tapes belong to a thread: threads, asyncio tasks, tapes out of order (line 12)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tapejit as tj


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


ELSEWHERE = [in_thread, in_thread_with_context, in_asyncio_thread]


@pytest.mark.parametrize("run", ELSEWHERE)
def test_s12_operations_of_other_threads_are_not_recorded(run: Any) -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
        theirs = run(lambda: y * x)
        z = theirs * x
    assert float(theirs) == 27.0
    assert tape.gradient(theirs, x) is None
    assert float(tape.gradient(z, x)) == 27.0, "their result is a constant"


@pytest.mark.parametrize("run", ELSEWHERE)
def test_s12_variables_read_by_other_threads_are_not_watched(run: Any) -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        theirs = run(lambda: v * v)
    assert tape.watched_variables() == ()
    assert tape.gradient(theirs, v) is None


@pytest.mark.parametrize("run", ELSEWHERE)
def test_s12_gradient_may_be_called_from_another_thread(run: Any) -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = v * v
    assert float(run(lambda: tape.gradient(y, v))) == 6.0
    assert float(run(lambda: tape.jacobian(y, v))) == 6.0


@pytest.mark.parametrize("run", ELSEWHERE)
def test_s12_also_while_the_block_is_open_and_without_a_warning(run: Any) -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = v * v * v
        g = run(lambda: tape.gradient(y, v))
    assert float(g) == 27.0
    assert tape.gradient(g, v) is None, "what the other thread did is not recorded"


def test_s12_a_consuming_gradient_in_another_thread_counts_everywhere() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = v * v
    in_thread(lambda: tape.gradient(y, v))
    with pytest.raises(RuntimeError, match="persistent"):
        tape.gradient(y, v)


@pytest.mark.parametrize("run", ELSEWHERE)
def test_s12_consumed_elsewhere_it_stops_recording_here(run: Any) -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = v * v
        assert float(run(lambda: tape.gradient(y, v))) == 6.0
        tj.exp(v) * y
        assert tape.nbytes == 0
        with pytest.raises(RuntimeError, match="not recording"):
            tape.watch(y)


def test_s12_a_tape_active_in_one_thread_cannot_be_entered_in_another() -> None:
    v = tj.Variable(3.0)

    def enter() -> None:
        with tape:
            pass

    with tj.GradientTape() as tape:
        y = v * v
        with pytest.raises(ValueError, match="recording already"):
            in_thread(enter)
        z = y * v
    assert float(tape.gradient(z, v)) == 27.0


def test_s12_a_tape_may_move_to_another_thread_between_blocks() -> None:
    v = tj.Variable(3.0)
    tape = tj.GradientTape()

    def multiply(x: Any) -> tj.Tensor:
        with tape:
            return x * v

    y = multiply(v)
    z = in_thread(lambda: multiply(y))
    assert float(tape.gradient(z, v)) == 27.0


def test_s12_every_thread_has_tapes_of_its_own() -> None:
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


def test_s12_the_same_step_in_many_threads_gives_each_its_own_gradient() -> None:
    def step(scale: float) -> float:
        w = tj.Variable([scale, 2 * scale])
        with tj.GradientTape() as tape:
            loss = tj.sum(tj.tanh(w * 0.1) * w)
        return float(tape.gradient(loss, w).sum())

    scales = [float(n) for n in range(1, 201)]
    expected = [step(scale) for scale in scales]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(step, scales)) == expected


# asyncio


def test_s12_tasks_started_inside_the_block_are_recorded() -> None:
    x, v = tj.asarray(3.0), tj.Variable(2.0)

    async def multiply(y: tj.Tensor) -> tj.Tensor:
        await asyncio.sleep(0)
        return y * x * v

    async def main() -> tuple[tj.GradientTape, tj.Tensor]:
        with tj.GradientTape() as tape:
            tape.watch(x)
            a, b = await asyncio.gather(multiply(x), multiply(x * x))
            c = await asyncio.create_task(multiply(a))
            loss = a + b + c
        return tape, loss

    tape, loss = asyncio.run(main())
    dx, dv = tape.gradient(loss, [x, v])
    # v x² + v x³ + v² x³ at x = 3, v = 2
    assert float(dx) == 2 * 2 * 3 + 2 * 3 * 9 + 4 * 3 * 9
    assert float(dv) == 9 + 27 + 2 * 2 * 27


def test_s12_the_block_may_wait_in_the_middle() -> None:
    v = tj.Variable(3.0)

    async def main() -> Any:
        with tj.GradientTape() as tape:
            y = v * v
            await asyncio.sleep(0)
            z = y * v
        return tape.gradient(z, v)

    assert float(asyncio.run(main())) == 27.0


def test_s12_a_task_started_before_the_block_is_not_recorded() -> None:
    v = tj.Variable(3.0)

    async def main() -> tuple[Any, tuple[Any, ...]]:
        opened = asyncio.Event()

        async def other() -> tj.Tensor:
            await opened.wait()
            return v * v

        task = asyncio.create_task(other())
        with tj.GradientTape() as tape:
            opened.set()
            theirs = await task
        watched = tape.watched_variables()
        return tape.gradient(theirs, v), watched

    assert asyncio.run(main()) == (None, ())


def test_s12_a_task_that_outlives_the_block_is_recorded_only_inside_it() -> None:
    v = tj.Variable(3.0)

    async def main() -> list[Any]:
        closed = asyncio.Event()
        begun: list[tj.Tensor] = []

        async def other() -> tj.Tensor:
            begun.append(v * v)
            await closed.wait()
            return begun[0] * v

        with tj.GradientTape(persistent=True) as tape:
            task = asyncio.create_task(other())
            await asyncio.sleep(0)
        closed.set()
        late = await task
        return [tape.gradient(begun[0], v), tape.gradient(late, v)]

    inside, after = asyncio.run(main())
    assert float(inside) == 6.0
    assert after is None, "what runs after the block is not recorded"


def test_s12_tapes_of_tasks_that_take_turns_do_not_mix() -> None:
    async def train(v: tj.Variable) -> tuple[float, int]:
        with tj.GradientTape() as tape:
            y = v * v
            await asyncio.sleep(0)
            z = y * v
            await asyncio.sleep(0)
        count = len(tape.watched_variables())
        return float(tape.gradient(z, v)), count

    async def main() -> Any:
        return await asyncio.gather(*(train(tj.Variable(x)) for x in (1.0, 2.0, 3.0)))

    assert asyncio.run(main()) == [(3.0, 1), (12.0, 1), (27.0, 1)]


def test_s12_a_tape_opened_in_a_task_is_not_seen_by_its_parent() -> None:
    v = tj.Variable(3.0)

    async def main() -> Any:
        opened, done = asyncio.Event(), asyncio.Event()

        async def child() -> tj.GradientTape:
            with tj.GradientTape() as tape:
                opened.set()
                await done.wait()
            return tape

        task = asyncio.create_task(child())
        await opened.wait()
        y = v * v
        done.set()
        return (await task).gradient(y, v)

    assert asyncio.run(main()) is None


# Tapes out of order


def test_s12_tapes_may_be_exited_out_of_order() -> None:
    x = tj.asarray(3.0)
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
    assert second.why_none(late, x)
    assert first.why_none(z, x)
    assert float(first.gradient(y, x)) == 6.0
    assert float(second.gradient(z, x)) == 27.0


def test_s12_a_tape_that_ends_first_leaves_the_inner_one_usable() -> None:
    v = tj.Variable(3.0)
    outer, inner = tj.GradientTape(), tj.GradientTape()
    outer.__enter__()
    inner.__enter__()
    y = v * v
    g = inner.gradient(y, v)  # stops itself; the outer one records this
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert float(outer.gradient(g, v)) == 2.0
