"""Bodies that wait for other threads, which call functions (line 57).

A thread that another one waits for must not wait for it in turn: it traces without the
lock, and where that cannot work there is an error that names both lines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

import tapejit as tj

PATIENCE = 20.0  # seconds after which a test has hung


def joined(action: Callable[[], Any]) -> None:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join()


def through_another(action: Callable[[], Any]) -> None:
    joined(lambda: joined(action))


def by_a_future(action: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(action).result()


def by_several_futures(action: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        wait([pool.submit(action)])


def by_an_event(action: Callable[[], Any]) -> None:
    """Nobody knows who will set it: the lock is given up after a while."""
    event = threading.Event()

    def act() -> None:
        action()
        event.set()

    threading.Thread(target=act, daemon=True).start()
    event.wait()


def finished(action: Callable[[], Any]) -> Any:
    """What `action` gives, in a thread that may hang."""
    found: list[Any] = []

    def act() -> None:
        try:
            found.append(action())
        except BaseException as error:  # shown by the assertion
            found.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "both threads wait"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@pytest.mark.parametrize(
    "waits", [joined, through_another, by_a_future, by_several_futures, by_an_event]
)
def test_s57_a_body_waits_for_a_thread_that_traces(waits: Any) -> None:
    other = tj.function(lambda x: x * 3)
    results: list[float] = []

    @tj.function
    def step(x: Any) -> Any:
        waits(lambda: results.append(float(other(tj.asarray(2.0)))))
        return x * 2

    assert float(finished(lambda: step(tj.asarray(1.0)))) == 2.0
    assert results == [6.0]
    assert (step.trace_count, other.trace_count) == (1, 1)


def test_s57_a_body_waits_for_a_thread_that_calls_the_same_function() -> None:
    results: list[float] = []

    def body(x: Any) -> Any:
        if not results:
            results.append(0.0)
            joined(lambda: results.append(float(step(tj.asarray(2.0)))))
        return x * 2

    step = tj.function(body)
    assert float(finished(lambda: step(tj.asarray(1.0)))) == 2.0
    assert results == [0.0, 4.0]


def test_s57_a_thread_that_is_waited_for_calls_what_was_traced() -> None:
    """Another signature than the last takes no lock that a trace holds."""
    other = tj.function(lambda x: x * 3)
    other(tj.ones(2))
    other(tj.ones(3))
    results: list[Any] = []

    @tj.function
    def step(x: Any) -> Any:
        joined(lambda: results.extend([other(tj.ones(2)), other(tj.ones(3))]))
        return x * 2

    finished(lambda: step(tj.asarray(1.0)))
    assert [x.shape for x in results] == [(2,), (3,)]
    assert other.trace_count == 2


def test_s57_two_bodies_wait_for_threads_that_trace() -> None:
    others = [tj.function(lambda x: x * 3), tj.function(lambda x: x * 5)]

    def made(other: Any) -> Any:
        @tj.function
        def step(x: Any) -> Any:
            joined(lambda: other(tj.asarray(2.0)))
            return x * 2

        return step

    steps = [made(other) for other in others]

    def both() -> list[float]:
        with ThreadPoolExecutor(2) as pool:
            return [float(x) for x in pool.map(lambda f: f(tj.asarray(1.0)), steps)]

    assert finished(both) == [2.0, 2.0]
    assert [f.trace_count for f in (*steps, *others)] == [1, 1, 1, 1]


@pytest.mark.parametrize("waits", [joined, by_a_future])
@pytest.mark.parametrize("what", ["assigns", "calls", "runs eagerly"])
def test_s57_a_body_that_runs_eagerly_waits_for_a_thread_that_needs_its_locks(
    what: str, waits: Any
) -> None:
    v, errors = tj.Variable(0.0), []
    update = tj.function(lambda x: v.assign_add(x))
    eager = tj.function(lambda x: x * 3)

    def act() -> None:
        actions = {
            "assigns": lambda: v.assign_add(1.0),
            "calls": lambda: update(tj.asarray(1.0)),
            "runs eagerly": lambda: eager(tj.asarray(1.0)),
        }
        with tj.config.override(eager=what == "runs eagerly"):
            try:
                actions[what]()
            except RuntimeError as error:
                errors.append(str(error))

    @tj.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        float(x)  # so it runs as plain Python
        if len(errors) == len(waited):
            waited.append(1)
            waits(act)
        return x * 2

    waited: list[int] = []
    x = tj.asarray(1.0)
    update(x)
    with pytest.warns(UserWarning, match="needs a value"):
        step(x)
    errors.clear()
    waited.clear()
    finished(lambda: step(x))
    (error,) = errors
    assert "in step" in error or "in joined" in error or "in by_a_future" in error
    assert "in act" in error or "in <lambda>" in error
    assert "outside of the function" in error
