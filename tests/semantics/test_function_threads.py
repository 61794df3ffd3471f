"""Functions in threads, tasks and processes, and what they keep alive (line 57)."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from elsewhere import needs_fork

import tapejit as tj
from tapejit.tracing.cache import LOCKS

from .fresh_process import run_python

THREADS = 8


@pytest.fixture(autouse=True)
def often_switched() -> Iterator[None]:
    """Threads take turns a hundred times more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """The results of `work(0)`, `work(1)`, ... in threads that start together."""
    together = threading.Barrier(count, timeout=60)

    def start(number: int) -> Any:
        together.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


# Tracing


def test_s57_many_threads_calling_an_untraced_function_trace_it_once() -> None:
    for _ in range(5):
        runs: list[int] = []

        @tj.function
        def f(x: Any) -> Any:
            runs.append(1)  # noqa: B023 - the list of this turn
            return tj.sum(x * x) + 1

        found = in_threads(lambda number: float(f(tj.full((3,), float(number)))))
        assert found == [3.0 * n * n + 1 for n in range(THREADS)]
        assert len(runs) == 1
        assert f.trace_count == 1


def test_s57_threads_that_need_different_traces_each_get_theirs() -> None:
    runs: list[Any] = []

    @tj.function
    def f(x: Any, factor: int) -> Any:
        runs.append((x.shape, factor))
        return tj.sum(x) * factor

    def work(number: int) -> list[float]:
        sizes = [1 + (number + k) % 4 for k in range(40)]
        return [float(f(tj.ones(n), n % 3)) for n in sizes]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, found in enumerate(in_threads(work)):
            sizes = [1 + (number + k) % 4 for k in range(40)]
            assert found == [float(n * (n % 3)) for n in sizes]
    assert len(runs) == len(set(runs)) == 4


def test_s57_branches_in_threads() -> None:
    @tj.function
    def f(x: Any) -> Any:
        if x > 4:
            return x * 10
        if x > 2:
            return x * 100
        return -x

    def expected(n: int) -> float:
        return n * 10.0 if n > 4 else n * 100.0 if n > 2 else -float(n)

    def work(number: int) -> bool:
        values = [(number * 3 + k) % 8 for k in range(200)]
        return all(float(f(tj.asarray(float(n)))) == expected(n) for n in values)

    assert all(in_threads(work))
    assert f.trace_count == 3


def test_s57_functions_that_run_eagerly_are_safe_too() -> None:
    v = tj.Variable(0.0)

    @tj.function
    def f(x: Any) -> Any:
        v.assign(v + float(x))
        return v * 1

    with pytest.warns(UserWarning, match="needs a value"):
        f(tj.asarray(0.0))
    in_threads(lambda _: [f(tj.asarray(1.0)) for _ in range(50)])
    assert float(v) == THREADS * 50


def test_s57_clearing_the_cache_while_others_call() -> None:
    f = tj.function(lambda x: x * 2)

    def work(number: int) -> bool:
        for k in range(100):
            if number == 0:
                f.clear_cache()
            elif float(f(tj.asarray(float(k)))) != 2.0 * k:
                return False
        return True

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert all(in_threads(work))


def test_s57_a_method_called_by_many_threads_traces_once_per_instance() -> None:
    class Model:
        def __init__(self, w: float) -> None:
            self.w = tj.Variable(w)
            self.runs = 0

        @tj.function
        def apply(self, x: Any) -> Any:
            self.runs += 1
            return x * self.w

    models = [Model(2.0), Model(3.0)]

    def work(number: int) -> float:
        return sum(float(models[number % 2].apply(tj.asarray(1.0))) for _ in range(50))

    assert in_threads(work) == [100.0, 150.0] * (THREADS // 2)
    assert [m.runs for m in models] == [1, 1]


# State


def test_s57_no_update_is_lost(full: bool) -> None:
    calls = 10_000 if full else 1_000
    counter, total = tj.Variable(0, dtype="int64"), tj.Variable([0.0, 0.0])

    @tj.function
    def step(x: Any) -> Any:
        counter.assign_add(1)
        total.assign_add(x)

    x = tj.asarray([1.0, 2.0])

    def work(number: int) -> None:
        for _ in range(calls):
            step(x)

    in_threads(work)
    assert int(counter) == THREADS * calls
    np.testing.assert_array_equal(total, [THREADS * calls, 2.0 * THREADS * calls])


def test_s57_functions_and_plain_assignments_share_a_lock() -> None:
    v = tj.Variable(0, dtype="int64")
    step = tj.function(lambda: v.assign_add(1))
    read_then_write = tj.function(lambda: v.assign(v + 1))
    read_then_write()
    ways = [step, lambda: v.assign_add(1), read_then_write]

    def work(number: int) -> None:
        for _ in range(500):
            ways[number % 3]()

    in_threads(work, 6)
    assert int(v) == 3001


def test_s57_variables_locked_in_different_orders_do_not_wait_for_ever() -> None:
    a, b = tj.Variable(0.0), tj.Variable(0.0)

    @tj.function
    def forth(x: Any) -> None:
        a.assign_add(x)
        b.assign_sub(x)

    @tj.function
    def back(x: Any, first: Any, second: Any) -> None:
        first.assign_add(x)
        second.assign_sub(x)

    x = tj.asarray(1.0)

    def work(number: int) -> None:
        for _ in range(300):
            if number % 2:
                forth(x)
            else:
                back(x, b, a)

    in_threads(work)
    assert (float(a), float(b)) == (0.0, 0.0)


def test_s57_readers_see_pairs_that_belong_together() -> None:
    a, b = tj.Variable(0.0), tj.Variable(0.0)
    done = threading.Event()

    @tj.function
    def write() -> None:
        a.assign_add(1.0)
        b.assign_add(1.0)

    @tj.function
    def difference(x: Any) -> Any:
        return (a - b) * x

    one = tj.asarray(1.0)

    def work(number: int) -> int:
        if number == 0:
            for _ in range(1500):
                write()
            done.set()
            return 0
        wrong = 0
        while not done.is_set():
            wrong += float(difference(one)) != 0.0
        return wrong

    assert in_threads(work, 4) == [0] * 4


def test_s57_calls_that_only_read_run_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    v = tj.Variable(2.0)
    together = threading.Barrier(2, timeout=30)

    class Meeting:
        def write(self, text: str) -> None:
            together.wait()  # passes only if both calls are under way

        def flush(self) -> None: ...

    @tj.function
    def f(x: Any) -> Any:
        tj.print("here")
        return v * x

    f(tj.asarray(0.0))
    monkeypatch.setattr(sys, "stdout", Meeting())
    assert in_threads(lambda n: float(f(tj.asarray(float(n)))), 2) == [0.0, 2.0]


def test_s57_functions_run_eagerly_and_compiled_ones_lose_nothing_together() -> None:
    v = tj.Variable(0, dtype="int64")

    @tj.function
    def plain(x: Any) -> None:
        v.assign(v + int(float(x)))

    compiled = tj.function(lambda: v.assign_add(1))
    with pytest.warns(UserWarning, match="needs a value"):
        plain(tj.asarray(1.0))

    def work(number: int) -> None:
        for _ in range(200):
            plain(tj.asarray(1.0)) if number % 2 else compiled()

    in_threads(work)
    assert int(v) == 1 + THREADS * 200


def test_s57_a_call_that_fails_in_one_thread_does_not_harm_the_others() -> None:
    v = tj.Variable(0, dtype="int64")

    @tj.function
    def f(x: Any) -> Any:
        v.assign_add(1)
        tj.debug.assert_greater(x, 0.0)
        return x

    f(tj.asarray(1.0))

    def work(number: int) -> int:
        failed = 0
        for k in range(200):
            try:
                f(tj.asarray(float((number + k) % 2)))
            except tj.CheckFailed:
                failed += 1
        return failed

    assert in_threads(work) == [100] * THREADS
    assert int(v) == 1 + THREADS * 100


def test_s57_tapes_in_threads_around_one_function() -> None:
    v = tj.Variable([1.0, 2.0])
    f = tj.function(lambda x: tj.sum(v * v * x))

    def work(number: int) -> list[float]:
        found = []
        for k in range(30):
            x = tj.full((2,), float(number + k))
            with tj.GradientTape() as tape:
                y = f(x)
            found.append(float(tape.gradient(y, v)[0]))
        return found

    expected = [[2.0 * (n + k) for k in range(30)] for n in range(THREADS)]
    assert in_threads(work) == expected
    assert f.trace_count == 1


def test_s57_a_tape_in_one_thread_does_not_record_the_calls_of_others() -> None:
    v = tj.Variable(3.0)
    f = tj.function(lambda: v * v)
    with tj.GradientTape() as tape:
        with ThreadPoolExecutor(1) as pool:
            theirs = pool.submit(f).result()
        assert tape.watched_variables() == ()
    assert tape.gradient(theirs, v) is None


def test_s57_random_draws_of_many_threads_are_all_different() -> None:
    draw = tj.function(lambda: tj.random.uniform((4,)))
    draw()
    found = in_threads(lambda _: [draw().numpy() for _ in range(25)])
    rows = np.concatenate(found)
    assert len(np.unique(rows[:, 0])) > 0.99 * len(rows)
    assert len({row.tobytes() for row in rows}) == THREADS * 25


# asyncio


def test_s57_functions_in_asyncio_tasks() -> None:
    v = tj.Variable(0.0)

    @tj.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        return x * x

    async def work(number: int) -> float:
        total = 0.0
        for _ in range(10):
            total += float(step(tj.asarray(float(number))))
            await asyncio.sleep(0)
        return total

    async def main() -> list[float]:
        inside = await asyncio.gather(*(work(n) for n in range(5)))
        beside = await asyncio.gather(
            *(asyncio.to_thread(step, tj.asarray(float(n))) for n in range(5))
        )
        return [*inside, *map(float, beside)]

    found = asyncio.run(main())
    assert found == [10.0 * n * n for n in range(5)] + [float(n * n) for n in range(5)]
    assert float(v) == 10 * 10.0 + 10.0
    assert step.trace_count == 1


def test_s57_a_task_around_a_call_is_recorded_by_the_tape_it_started_in() -> None:
    v = tj.Variable(3.0)
    f = tj.function(lambda: v * v)

    async def call() -> Any:
        await asyncio.sleep(0)
        return f()

    async def main() -> Any:
        with tj.GradientTape() as tape:
            y = await asyncio.create_task(call())
        return tape.gradient(y, v)

    assert float(asyncio.run(main())) == 6.0


# Processes

counter = tj.Variable(1.0)


@tj.function
def scaled(x: Any) -> Any:
    """At the top of a module, so that it can be pickled."""
    return x * counter * 2


class Scaler:
    @tj.function
    def apply(self, x: Any) -> Any:
        return x * 3


@needs_fork
def test_s57_after_a_fork_traces_and_locks_are_usable() -> None:
    lines = run_python(
        """
        import os, threading
        from tapejit.tracing.cache import LOCKS
        v = tj.Variable(1.0)
        @tj.function
        def f(x):
            v.assign_add(x)
            return v * x
        x = tj.asarray(2.0)
        f(x)
        held, release = threading.Event(), threading.Event()
        def hold():
            with LOCKS.tracing, LOCKS.running_eagerly, v._lock:
                held.set()
                release.wait(60)
        other = threading.Thread(target=hold)
        other.start()
        held.wait()
        pid = os.fork()
        if pid == 0:
            print("child", float(f(x)), f.trace_count)
            print("new", float(f(tj.asarray(3.0))), float(f(tj.ones(()))))
            with tj.config.override(eager=True):
                print("eager", float(f(x)))
            print("traced", float(tj.function(lambda y: y + v)(x)), flush=True)
            os._exit(0)
        print("status", os.waitpid(pid, 0)[1])
        release.set()
        other.join()
        print("parent", float(f(x)))
        """
    )
    lines = [line for line in lines if "DeprecationWarning" not in line]
    assert lines[0] == "child 10.0 1"
    assert lines[1] == "new 24.0 9.0"
    assert lines[2] == "eager 22.0"
    assert lines[3] == "traced 13.0"
    assert "status 0" in lines
    assert "parent 10.0" in lines


@pytest.mark.parametrize("method", [pytest.param("fork", marks=needs_fork), "spawn"])
def test_s57_functions_go_to_other_processes_by_name(method: str) -> None:
    lines = run_python(
        f"""
        import multiprocessing, sys, warnings
        sys.path.insert(0, "tests")
        from semantics import test_function_threads as module
        if __name__ == "__main__":
            warnings.simplefilter("ignore")
            module.scaled(tj.asarray(1.0))
            context = multiprocessing.get_context({method!r})
            with context.Pool(2) as pool:
                given = [tj.asarray(float(n)) for n in range(3)]
                found = pool.map(module.scaled, given)
            print([float(x) for x in found])
        """
    )
    assert lines[-1] == "[0.0, 2.0, 4.0]"


def test_s57_functions_pickle_by_reference_and_without_traces() -> None:
    scaled(tj.asarray(1.0))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(scaled, protocol)) is scaled
    assert len(pickle.dumps(scaled)) < 200
    assert copy.copy(scaled) is scaled
    assert copy.deepcopy(scaled) is scaled
    assert pickle.loads(pickle.dumps(Scaler.apply)) is Scaler.apply


def test_s57_a_bound_method_pickles_with_its_instance() -> None:
    bound = pickle.loads(pickle.dumps(Scaler().apply))
    assert float(bound(tj.asarray(2.0))) == 6.0


@pytest.mark.parametrize("make", [lambda: tj.function(lambda x: x), lambda: local()])
def test_s57_a_local_function_says_how_to_pickle_it(make: Any) -> None:
    with pytest.raises((TypeError, pickle.PicklingError), match="cloudpickle"):
        pickle.dumps(make())


def local() -> Any:
    @tj.function
    def inside(x: Any) -> Any:
        return x

    return inside


# What is kept alive


@pytest.mark.usefixtures("without_collector")
def test_s57_a_function_goes_with_what_it_captured() -> None:
    v, x, big = tj.Variable([1.0, 2.0]), tj.asarray([1.0, 2.0]), tj.ones(1000)

    def make(v: Any, big: Any) -> Any:
        @tj.function
        def f(x: Any) -> Any:
            v.assign_add([1.0, 1.0])
            return tj.sum(v * x) + big[0]

        return f

    f = make(v, big)
    f(x)
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    tape.gradient(y, x)
    alive = [weakref.ref(part) for part in (f, v, x, big, y)]
    del f, v, x, big, y, tape
    assert [part() for part in alive] == [None] * 5


@pytest.mark.usefixtures("without_collector")
def test_s57_arguments_of_a_trace_are_not_kept() -> None:
    f = tj.function(lambda x, v: x * v if tj.sum(x) > 0 else x)
    x, v = tj.asarray([1.0, 2.0]), tj.Variable([1.0, 2.0])
    for sign in (1.0, -1.0, 1.0):
        f(x * sign, v)
    f(x, v)
    alive = [weakref.ref(part) for part in (x, v)]
    del x, v
    assert [part() for part in alive] == [None, None]
    assert f.trace_count >= 2


@pytest.mark.usefixtures("without_collector")
def test_s57_a_trace_that_failed_keeps_nothing() -> None:
    v = tj.Variable([1.0, 2.0])

    @tj.function
    def f(x: Any, v: Any) -> Any:
        y = x * v
        if tj.sum(y) > 0:
            raise KeyError
        return y

    x = tj.asarray([1.0, 2.0])
    with pytest.raises(KeyError):
        f(x, v)
    alive = [weakref.ref(part) for part in (x, v)]
    del x, v
    assert [part() for part in alive] == [None, None]


@pytest.mark.usefixtures("without_collector")
def test_s57_clearing_the_cache_lets_captured_tensors_go() -> None:
    held: dict[str, Any] = {"x": tj.ones(1000)}
    f = tj.function(lambda: tj.sum(held["x"] * 2))
    f()
    alive = weakref.ref(held.pop("x"))
    assert alive() is not None, "the trace refers to it"
    f.clear_cache()
    assert alive() is None


def test_s57_the_locks_are_free_after_everything() -> None:
    for lock in (LOCKS.tracing, LOCKS.running_eagerly):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lock.acquire, timeout=5).result()
            pool.submit(lock.release).result()
