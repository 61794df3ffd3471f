"""Memory of large results is used again, but never while anything refers to it."""

from __future__ import annotations

import gc
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from elsewhere import needs_timers
from entries import adding, address, of

import tapejit as tj
from tapejit.runtime import memory_pool
from tapejit.runtime.compiled import SlowEntry
from tapejit.runtime.memory_pool import (
    GRAIN,
    KEPT_FROM,
    PATIENCE,
    Loan,
    kept_bytes,
    lend,
)
from tapejit.runtime.native_entry import EntrySpec

MEGABYTE = 1 << 20
SIZE = MEGABYTE // 4  # elements of a megabyte of float32


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test, with native code, begins with nothing kept and 64 MB allowed."""
    monkeypatch.setenv("TAPEJIT_NATIVE", "1")
    before = tj.config.kept_memory
    tj.config.update(kept_memory=0)
    tj.config.update(kept_memory=64, native=True)
    yield
    tj.config.update(kept_memory=0)
    tj.config.update(kept_memory=before, native=False)


@tj.function
def doubled(x: tj.Tensor) -> tj.Tensor:
    return x * 2 + 1


def ones(value: float = 1.0, size: int = SIZE) -> tj.Tensor:
    return tj.asarray(np.full(size, value, np.float32))


def where(x: Any) -> int:
    """Where the memory of a Tensor or an array begins."""
    return int(np.asarray(x).__array_interface__["data"][0])


class Exported:
    """Hands on a capsule, as a library that knows DLPack would hold it."""

    def __init__(self, x: tj.Tensor) -> None:
        self.device = x.__dlpack_device__()
        self.capsule = x.__dlpack__(max_version=(1, 0))

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def in_a_cycle(x: tj.Tensor) -> Any:
    ring: list[Any] = [x]
    ring.append(ring)
    return ring


def as_strided(x: tj.Tensor) -> Any:
    return np.lib.stride_tricks.as_strided(np.asarray(x), (SIZE // 2,), (8,))


# How something holds on to a result, and how to see its numbers.
HOLDERS: dict[str, tuple[Callable[[tj.Tensor], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda x: x, np.asarray),
    "array": (np.asarray, np.asarray),
    "view": (lambda x: np.asarray(x)[5:-5], np.asarray),
    "view of views": (
        lambda x: np.asarray(x).reshape(64, -1)[1:, ::3].T[4:].view(np.float32),
        np.asarray,
    ),
    "strides": (as_strided, np.asarray),
    "windows": (
        lambda x: np.lib.stride_tricks.sliding_window_view(np.asarray(x), 3),
        np.asarray,
    ),
    "broadcast": (lambda x: np.broadcast_to(np.asarray(x), (2, SIZE)), np.asarray),
    "bytes": (
        lambda x: np.asarray(x).view(np.uint8)[64:],
        lambda held: held.view(np.float32),
    ),
    "iterator": (lambda x: np.asarray(x).flat, lambda held: held.copy()),
    "memoryview": (lambda x: memoryview(np.asarray(x)), np.asarray),
    "part of a memoryview": (lambda x: memoryview(np.asarray(x))[7:], np.asarray),
    "buffer": (
        lambda x: np.frombuffer(memoryview(np.asarray(x)), np.float32),
        np.asarray,
    ),
    "subclass": (lambda x: np.asarray(x).view(np.recarray), np.asarray),
    "DLPack to NumPy": (np.from_dlpack, np.asarray),
    "DLPack to tapejit": (tj.from_dlpack, np.asarray),
    "DLPack capsule": (Exported, np.from_dlpack),
    "reshaped tensor": (lambda x: tj.reshape(x, (64, -1)), np.asarray),
    "part of a tensor": (lambda x: x[3:], np.asarray),
    "transposed tensor": (lambda x: tj.reshape(x, (64, -1)).T[2:], np.asarray),
    "variable": (tj.Variable, np.asarray),
    "assigned variable": (
        lambda x: tj.Variable(tj.zeros(SIZE)).assign(x),
        np.asarray,
    ),
    "pickle": (lambda x: pickle.loads(pickle.dumps(x)), np.asarray),
    "Loan": (lambda x: root(np.asarray(x)), np.asarray),
    "array of the Loan": (lambda x: np.asarray(root(np.asarray(x))), np.asarray),
    "cycle": (in_a_cycle, lambda held: np.asarray(held[0])),
}


def root(array: Any) -> Any:
    """What owns the memory of an array."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize("name", HOLDERS)
def test_memory_is_used_again_only_when_nothing_refers_to_it(name: str) -> None:
    hold, look = HOLDERS[name]
    result = doubled(ones(3))
    begin = where(result)
    assert type(root(np.asarray(result))) is Loan
    held = hold(result)
    del result
    others = [doubled(ones(k)) for k in range(3)]
    seen = look(held)
    numbers = seen if name not in ("Loan", "array of the Loan") else seen[:4].view("f4")
    assert (numbers == 7).all()
    for other in others:
        assert not np.may_share_memory(np.asarray(other), seen)
    del held, seen, numbers, others, other
    gc.collect()
    assert begin in {where(x) for x in [doubled(ones(k)) for k in range(4)]}


def test_a_tape_keeps_the_results_it_needs() -> None:
    x = ones(0.25)
    with tj.GradientTape() as tape:
        tape.watch(x)
        loss = tj.sum(tj.exp(doubled(x)))
    for k in range(4):
        doubled(ones(k))
    gradient = np.asarray(tape.gradient(loss, x))
    np.testing.assert_allclose(gradient, 2 * np.exp(np.float32(1.5)), rtol=1e-6)


def test_an_argument_may_lie_in_kept_memory() -> None:
    x = ones(0)
    for _ in range(10):
        x = doubled(x)
    assert (np.asarray(x) == 1023).all()


def test_variables_that_are_updated_do_not_share_memory() -> None:
    first, second = tj.Variable(ones(1)), tj.Variable(ones(2))

    @tj.function
    def step() -> None:
        first.assign(first + second)
        second.assign(second * 2)

    for _ in range(5):
        step()
    assert (np.asarray(first) == 63).all()
    assert (np.asarray(second) == 64).all()
    assert not np.may_share_memory(np.asarray(first), np.asarray(second))


@pytest.mark.parametrize("size", [KEPT_FROM // 4, KEPT_FROM // 4 + 1, SIZE, SIZE + 3])
def test_large_results_begin_on_a_cache_line(size: int) -> None:
    results = [doubled(ones(1, size)) for _ in range(5)]
    assert all(type(root(np.asarray(x))) is Loan for x in results)
    assert [where(x) % 64 for x in results] == [0] * 5
    assert len({where(x) for x in results}) == 5


def test_small_results_have_memory_of_their_own() -> None:
    for size in (1, 1000, KEPT_FROM // 4 - 1):
        assert type(root(np.asarray(doubled(ones(1, size))))) is not Loan
    assert kept_bytes() == 0


def test_further_calls_touch_no_new_pages() -> None:
    resource = pytest.importorskip("resource")
    x = ones(1, 4 * SIZE * 4)  # 16 megabytes
    for _ in range(3):
        result = doubled(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        result = doubled(x)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert after - before < 100
    assert (np.asarray(result) == 3).all()


def test_code_that_is_called_by_ctypes_uses_kept_memory() -> None:
    code, kind = adding(1, 1, SIZE), of((SIZE,))
    spec = EntrySpec(
        run=address(code), arguments=[kind], outputs=[kind], arena_bytes=MEGABYTE
    )
    entry, x = SlowEntry(spec), np.asarray(ones(5))
    (result,) = entry(x)
    assert (result == 5).all()
    begin = where(result)
    del result
    kept = kept_bytes()
    assert kept == 2 * MEGABYTE + GRAIN  # the arena is aligned inside of its block
    (result,) = entry(x)
    assert where(result) == begin
    assert kept_bytes() == kept - MEGABYTE


# How much is kept


def test_what_dies_is_kept_up_to_the_setting() -> None:
    x = ones()
    results = [doubled(x) for _ in range(10)]
    assert kept_bytes() == 0
    tj.config.update(kept_memory=4)
    del results
    assert kept_bytes() == 4 * MEGABYTE


def test_the_oldest_blocks_go_first() -> None:
    tj.config.update(kept_memory=4)
    old, new = [lend(MEGABYTE) for _ in range(2)], [lend(2 * MEGABYTE)]
    places = [where(loan) for loan in old]
    del old[0], old[0]
    new.clear()
    assert kept_bytes() == 4 * MEGABYTE
    lend(KEPT_FROM)
    assert kept_bytes() == 3 * MEGABYTE + KEPT_FROM
    assert where(lend(MEGABYTE)) == places[1]


def test_a_lower_setting_lets_go_at_once() -> None:
    for size in range(1, 6):
        lend(size * MEGABYTE)
    assert kept_bytes() == 15 * MEGABYTE
    tj.config.update(kept_memory=9)
    assert kept_bytes() == 9 * MEGABYTE
    tj.config.update(kept_memory=0)
    assert kept_bytes() == 0
    doubled(ones())
    assert kept_bytes() == 0


def test_a_block_of_code_may_keep_less_or_more() -> None:
    x = ones()
    doubled(x)
    assert kept_bytes() == MEGABYTE
    with tj.config.override(kept_memory=0):
        assert kept_bytes() == 0
        doubled(x)
        assert kept_bytes() == 0
    with tj.config.override(kept_memory=80):
        results = [lend(8 * MEGABYTE) for _ in range(10)]
        results.clear()
        assert kept_bytes() == 80 * MEGABYTE
    assert kept_bytes() == 64 * MEGABYTE


def test_more_than_is_allowed_is_not_kept_and_drives_nothing_out() -> None:
    lend(MEGABYTE)
    lend(65 * MEGABYTE)
    assert kept_bytes() == MEGABYTE


def test_similar_sizes_share_blocks() -> None:
    first = lend(MEGABYTE - 1)
    place = where(first)
    del first
    assert where(lend(MEGABYTE - GRAIN + 1)) == place


def test_results_beyond_the_setting_go_when_they_die() -> None:
    tj.config.update(kept_memory=4)
    x = ones()
    results = [doubled(x) for _ in range(10)]
    assert memory_pool.lent_bytes() == 4 * MEGABYTE
    del results[4:]
    assert kept_bytes() == 0
    results.clear()
    assert kept_bytes() == 4 * MEGABYTE


def test_results_that_stay_give_way_to_others_after_a_while() -> None:
    tj.config.update(kept_memory=2)
    stay = [lend(MEGABYTE) for _ in range(2)]
    for _ in range(PATIENCE - 2):
        lend(MEGABYTE)
    assert kept_bytes() == 0
    for _ in range(3):
        lend(MEGABYTE)
    assert kept_bytes() == MEGABYTE
    assert memory_pool.lent_bytes() == MEGABYTE
    stay.clear()
    assert kept_bytes() == 2 * MEGABYTE


@needs_timers
def test_ctrl_c_is_not_lost_while_results_die() -> None:
    class Stop(Exception):
        """What the handler raises."""

    def stop(*_: object) -> None:
        raise Stop

    def run(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        for k in range(1_000_000):
            result = doubled(x)
            if k % 100 == 0:
                assert (np.asarray(result)[:3] == 3).all()

    x, lost = ones(1, KEPT_FROM // 4), []
    doubled(x)  # compiled before: a compilation would not end within the time
    gc.collect()  # finalizers of other tests' garbage would lose the error
    callbacks, gc.callbacks[:] = gc.callbacks[:], []  # as would Hypothesis's clock
    hook, before = sys.unraisablehook, signal.signal(signal.SIGALRM, stop)
    sys.unraisablehook = lost.append
    try:
        for k in range(100):
            with pytest.raises(Stop):
                run(0.001 + 1e-5 * k)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook
        gc.callbacks[:] = callbacks
    assert not lost


def test_where_memory_is_short_what_is_kept_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, kept = np.empty, []

    def short(*given: Any) -> Any:
        kept.append(kept_bytes())
        if kept[-1]:
            raise MemoryError
        return make(*given)

    lend(MEGABYTE)
    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", short)
        loan = lend(2 * MEGABYTE)
    assert kept == [MEGABYTE, 0]
    assert np.asarray(loan).nbytes == 2 * MEGABYTE


def test_without_memory_a_call_fails_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(size: int) -> Any:
        raise MemoryError(f"no {size} bytes")

    x = ones(2)
    result = doubled(x)
    with monkeypatch.context() as patch:
        patch.setattr(memory_pool, "new_block", none)
        for _ in range(3):
            with pytest.raises(MemoryError, match=f"no {MEGABYTE} bytes"):
                doubled(x)
    assert (np.asarray(doubled(x)) == 5).all()
    assert (np.asarray(result) == 5).all()


# Threads, collections, processes


def run_in_threads(work: Callable[[int], None], count: int = 6) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_threads_that_call_one_function_do_not_share_memory() -> None:
    doubled(ones())
    handed_on: list[tj.Tensor] = []  # these die in another thread than they were made

    def work(number: int) -> None:
        results = []
        for k in range(40):
            value = number * 40 + k
            results.append((value, doubled(ones(value))))
            handed_on.append(results[-1][1])
            if len(results) > 3:
                expected, result = results.pop(0)
                assert (np.asarray(result) == 2 * expected + 1).all()
            if len(handed_on) > 5:
                handed_on.pop(0)

    run_in_threads(work)
    handed_on.clear()
    assert 0 < kept_bytes() <= 64 * MEGABYTE


@pytest.mark.usefixtures("eager_switches")
def test_no_block_is_lent_twice_and_never_too_much_is_kept() -> None:
    tj.config.update(kept_memory=3)
    sizes = [KEPT_FROM, 2 * KEPT_FROM, MEGABYTE]

    def work(number: int) -> None:
        held: list[Any] = []
        for k in range(1500):
            array = np.asarray(lend(sizes[(number + k) % 3]))
            array[:2] = number, k % 251
            held.append((k, array))
            if len(held) > 3:
                before, array = held.pop(k % 3)
                assert array[:2].tolist() == [number, before % 251]
            assert kept_bytes() <= (3 + 6) * MEGABYTE  # each thread may be at it

    run_in_threads(work)
    lend(3 * KEPT_FROM)  # a new block: now the limit holds whoever came between
    assert 0 < kept_bytes() <= 3 * MEGABYTE
    waiting = [each for some in memory_pool._free.values() for each in some]
    assert len({where(each.block) for each in waiting}) == len(waiting)
    assert not memory_pool._lent


def test_results_may_die_in_a_collection_that_a_call_has_started() -> None:
    class Calling:
        """Ends in a cycle; calls the function as it does."""

        def __init__(self, result: tj.Tensor) -> None:
            self.me, self.result = self, result

        def __del__(self) -> None:
            ended.append((np.asarray(doubled(self.result)) == 7).all())

    ended: list[bool] = []
    doubled(ones())
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for k in range(60):
            Calling(doubled(ones(1)))
            result = doubled(ones(k))
            assert (np.asarray(result) == 2 * k + 1).all()
    finally:
        gc.set_threshold(*thresholds)
    assert len(ended) > 20
    assert all(ended)


START = """
import numpy as np, tapejit as tj
f = tj.function(lambda x: x * 2 + 1)
x = tj.asarray(np.ones(1 << 20, np.float32))
for _ in range(4): f(x)
"""
ENDS = {
    "results": "r = [f(x) for _ in range(4)]; del r[0]",
    "a module": "import sys; sys.kept = f(x); np.kept = np.asarray(f(x))[1:]",
    "a cycle": "r = [f(x)]; r.append(r)",
    "the last finalizer": """
class Last:
    def __init__(self): self.me, self.f, self.r = self, f, f(x)
    def __del__(self): self.r = self.f(self.r)
last = Last()
""",
    "a thread": """
import threading, time
def work():
    while True: r = f(x)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
""",
    "an exit handler": "import atexit; atexit.register(f, x)",
}


@pytest.mark.parametrize("name", ENDS)
def test_processes_end_without_a_word(name: str) -> None:
    command = [sys.executable, "-c", START + ENDS[name]]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_has_memory_of_its_own() -> None:
    code = START + (
        "import os\n"
        "tj.set_num_threads(1)\n"
        "r = f(x); f(x)\n"
        "child = os.fork()\n"
        "s = [f(r if child else x) for _ in range(3)]\n"
        "expected = 7 if child else 3\n"
        "good = all((np.asarray(y) == expected).all() for y in s)\n"
        "good = good and (np.asarray(r) == 3).all()\n"
        "if not child: os._exit(0 if good else 3)\n"
        "assert os.waitpid(child, 0)[1] == 0 and good\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
