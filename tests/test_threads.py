"""Threads: each task runs once, whoever calls, whatever the pool, after a fork too.

The tasks are native functions, made here: a Python function as a task would take the
interpreter's lock and so never run beside another one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elsewhere import needs_fork

import tapejit as tj
from tapejit.base import blas
from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.runtime import thread_pool, threads
from tapejit.runtime.builtin_code import CompiledHere, address_of
from tapejit.runtime.thread_pool import ParallelDriver, open_driver
from tapejit.targets.cpu.call import thread_driver
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.machine.host import Library

ROOT = Path(__file__).resolve().parent.parent
TASK_COUNTS = (0, 1, 2, 7, 1000)
THREAD_COUNTS = (1, 2, 4)

I64, POINTER = ir.IntType(64), ir.PointerType()


def tasks_module() -> Any:
    """Tasks over a table of pointers: counts, work per task, driver, inner task.

    `count` adds one to its count. `work` first does its share of additions. `nest`
    runs a region of 5 `count`s inside the region, at 5 counts of its own.
    """
    module = ir.LLVMModule("tasks")
    double = ir.DoubleType()

    def start(name: str) -> Any:
        function = ir.LLVMFunction(module, thread_driver.TASK_TYPE, name)
        return ir.IRBuilder(function.append_basic_block()), function

    def entry(b: Any, table: Any, at: int) -> Any:
        place = b.gep(table, [ir.Literal(I64, at)], source_etype=POINTER)
        return b.load(place, typ=POINTER)

    def element(b: Any, base: Any, index: Any) -> Any:
        return b.gep(base, [index], source_etype=I64)

    one = ir.Literal(I64, 1)
    b, count = start("count")
    table, index = count.args
    b.atomic_rmw("add", element(b, entry(b, table, 0), index), one, "monotonic")
    b.ret_void()

    b, work = start("work")
    table, index = work.args
    rounds = b.load(element(b, entry(b, table, 1), index), typ=I64)
    before, body, done = b.block, *(work.append_basic_block() for _ in range(2))
    b.branch(body)
    b.position_at_end(body)
    at, total = b.phi(I64), b.phi(double)
    at.add_incoming(ir.Literal(I64, 0), before)
    total.add_incoming(ir.Literal(double, 1.0), before)
    following = b.add(at, one)
    at.add_incoming(following, body)
    total.add_incoming(b.fmul(total, ir.Literal(double, 1.0000001)), body)
    b.cbranch(b.icmp_signed("<", following, rounds), body, done)
    b.position_at_end(done)
    b.call(count, [table, index])
    b.ret_void()

    b, nest = start("nest")
    table, index = nest.args
    inner = b.alloca(ir.ArrayType(POINTER, 1))
    own = element(b, entry(b, table, 0), b.mul(index, ir.Literal(I64, 5)))
    b.store(own, b.gep(inner, [ir.Literal(I64, 0)] * 2))
    address = b.ptrtoint(entry(b, table, 2), I64)
    parallel = b.inttoptr(address, thread_driver.PARALLEL_TYPE.as_pointer())
    b.call(parallel, [count, inner, ir.Literal(I64, 5)])
    b.ret_void()
    return module


@pytest.fixture(scope="module")
def tasks() -> dict[str, int]:
    """The addresses of the tasks."""
    library = Library(tasks_module())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
    names = ("count", "work", "nest")
    return {name: address_of(library.function(name, None)) for name in names}


@pytest.fixture(scope="module", params=thread_pool.POOLS)
def opened(request: pytest.FixtureRequest) -> ParallelDriver:
    """A driver over each pool that is to be had here."""
    found = open_driver(request.param, 4)
    if found.pool != request.param:
        pytest.skip(f"there is no pool {request.param!r} here")
    return found


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Every test leaves the number of threads as it was."""
    with tj.set_num_threads(tj.get_num_threads()):
        yield


def table_of(counts: Any, work: Any = None, parallel: int = 0) -> Any:
    addresses = [counts.ctypes.data, 0 if work is None else work.ctypes.data, parallel]
    return np.array(addresses, np.int64)


def run(found: ParallelDriver, task: int, counts: Any, work: Any = None) -> None:
    table = table_of(counts, work)
    found.call(task, table.ctypes.data, len(counts))


def in_fresh_process(code: str, **environ: str) -> str:
    """What a new interpreter prints."""
    named = ("TAPEJIT_NUM_THREADS", "OMP_NUM_THREADS", "TAPEJIT_POOL")
    kept = {name: text for name, text in os.environ.items() if name not in named}
    path = os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Tasks


@pytest.mark.parametrize("count", THREAD_COUNTS)
@pytest.mark.parametrize("size", TASK_COUNTS)
def test_every_task_runs_once(
    opened: ParallelDriver, tasks: dict[str, int], size: int, count: int
) -> None:
    opened.set_threads(count)
    for _ in range(50):
        counts = np.zeros(size, np.int64)
        run(opened, tasks["count"], counts)
        assert (counts == 1).all()


def test_uneven_tasks_all_run_once(
    opened: ParallelDriver, tasks: dict[str, int]
) -> None:
    opened.set_threads(4)
    work = np.array([1 + 20_000 * (at % 13 == 0) + 10 * at for at in range(100)])
    for _ in range(20):
        counts = np.zeros(len(work), np.int64)
        run(opened, tasks["work"], counts, work)
        assert (counts == 1).all()


def test_a_region_inside_a_region_runs_in_its_thread(
    opened: ParallelDriver, tasks: dict[str, int]
) -> None:
    opened.set_threads(4)
    counts = np.zeros(5 * 40, np.int64)
    table = table_of(counts, parallel=opened.address)

    opened.call(tasks["nest"], table.ctypes.data, 40)

    assert (counts == 1).all()


def test_callers_in_eight_threads_each_get_all_their_tasks(
    opened: ParallelDriver, tasks: dict[str, int]
) -> None:
    opened.set_threads(4)
    wrong: list[int] = []
    ready = threading.Barrier(8)

    def call(size: int) -> None:
        ready.wait()
        for _ in range(300):
            counts = np.zeros(size, np.int64)
            run(opened, tasks["count"], counts)
            if not (counts == 1).all():
                wrong.append(size)

    callers = [threading.Thread(target=call, args=(2 + 9 * at,)) for at in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

    assert not wrong


def test_helpers_that_went_to_sleep_come_back(tasks: dict[str, int]) -> None:
    found = open_driver("own", 3)
    if found.pool != "own":
        pytest.skip("there is no pool of our own here")
    asleep = threading.Event()
    for _ in range(10):
        asleep.wait(0.003)  # longer than helpers look for work
        counts = np.zeros(64, np.int64)
        run(found, tasks["work"], counts, np.full(64, 20_000))
        assert (counts == 1).all()
    assert found.words[thread_driver.HELPERS] == 2
    assert found.words[thread_driver.BUSY] == 0


def sleeping_helpers() -> ParallelDriver:
    """A pool of our own with two helpers, both asleep."""
    found = open_driver("own", 3)
    if found.pool != "own":
        pytest.skip("there is no pool of our own here")
    pause = threading.Event()
    for _ in range(10_000):
        if (
            found.words[thread_driver.SLEEPERS]
            == found.words[thread_driver.HELPERS]
            == 2
        ):
            return found
        pause.wait(0.001)
    raise AssertionError("helpers without work do not sleep")


NEVER = 2**62


@pytest.mark.parametrize(
    ("worth", "look", "alone", "woken"),
    [
        (0, 0, 0, 1),
        (NEVER, 0, 0, 0),
        (NEVER, 10_000, NEVER + 1, 1),
        (NEVER, 0, NEVER + 1, 0),
    ],
    ids=["worth it", "not worth it", "worth it after others", "others long ago"],
)
def test_sleepers_are_woken_when_it_is_worth_it(
    tasks: dict[str, int], worth: int, look: int, alone: int, woken: int
) -> None:
    found = sleeping_helpers()
    before = found.words[thread_driver.WAKE]
    found.words[thread_driver.WORTH] = worth
    found.words[thread_driver.LOOK] *= (
        look  # a helper may look so long: 2 s, not for ever
    )
    found.words[thread_driver.ALONE] = alone
    clock = ctypes.CFUNCTYPE(ctypes.c_int64)(found.functions["clock"])
    found.words[thread_driver.ENDED] = clock()
    counts = np.zeros(50, np.int64)

    run(found, tasks["work"], counts, np.full(50, 100))

    assert (counts == 1).all()
    assert found.words[thread_driver.WAKE] - before == woken


def test_helpers_are_started_when_wanted_and_not_before(tasks: dict[str, int]) -> None:
    found = open_driver("own", 1)
    if found.pool != "own":
        pytest.skip("there is no pool of our own here")
    started = []
    for count, size in ((1, 100), (4, 1), (4, 2), (4, 100), (2, 100)):
        found.set_threads(count)
        run(found, tasks["count"], np.zeros(size, np.int64))
        started.append(found.words[thread_driver.HELPERS])
    assert started == [0, 0, 1, 3, 3]


def test_threads_that_cannot_be_started_are_done_without(
    tasks: dict[str, int],
) -> None:
    found = open_driver("own", 1)
    if found.pool != "own":
        pytest.skip("there is no pool of our own here")
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(lambda *_: 11)
    found.words[thread_driver.PTHREAD_CREATE] = address_of(refuse)
    found.set_threads(4)
    for _ in range(3):
        counts = np.zeros(100, np.int64)
        run(found, tasks["count"], counts)
        assert (counts == 1).all()
    assert found.words[thread_driver.HELPERS] == 0
    assert found.words[thread_driver.ROOM] == 0


# Pools


def test_a_pool_that_fails_its_trial_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ParallelDriver, "passes_trial", lambda self: False)

    assert open_driver("own", 2).pool == "serial"


def test_a_missing_pool_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(threads: int) -> ParallelDriver:
        raise thread_pool.Missing("not here")

    monkeypatch.setitem(thread_pool.OPENERS, "own", missing)
    monkeypatch.setitem(thread_pool.OPENERS, "tbb", missing)

    assert open_driver("own", 2).pool in ("omp", "serial")
    monkeypatch.setitem(thread_pool.OPENERS, "omp", missing)
    assert open_driver("own", 2).pool == "serial"


def test_the_setting_knows_the_pools() -> None:
    for name in thread_pool.POOLS:
        with config.override(pool=name):
            assert config.pool == name


@pytest.mark.parametrize("name", thread_pool.POOLS)
def test_no_pool_imports_numba(name: str) -> None:
    code = (
        "import sys; from tapejit.runtime import threads;"
        "threads.driver_address(); print('numba' in sys.modules)"
    )
    assert in_fresh_process(code, TAPEJIT_POOL=name) == "False"


def test_importing_tapejit_loads_no_driver() -> None:
    code = (
        "import sys, tapejit as tj; tj.set_num_threads(2); print("
        "[name for name in ('llvmlite', 'numba') if name in sys.modules])"
    )
    assert in_fresh_process(code) == "[]"


def test_the_driver_is_the_same_from_the_store_and_compiled_anew(
    tmp_path: Path, tasks: dict[str, int]
) -> None:
    with config.override(cache=True, cache_dir=str(tmp_path)):
        open_driver("own", 2)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files
        kept = open_driver("own", 2)
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(files)
    here = CompiledHere(thread_driver.thread_pool_module())
    assert set(here.functions) == set(open_driver("own", 2).functions)
    counts = np.zeros(100, np.int64)
    run(kept, tasks["count"], counts)
    assert (counts == 1).all()


# Fork


FORK = """
import ctypes, os, sys, threading
from tapejit.runtime import threads

found = threads.current_driver()
trial = found.functions["trial"]

def region_is_right():
    counts = (ctypes.c_int64 * 200)()
    found.call(trial, ctypes.addressof(counts), 200)
    return list(counts) == [1] * 200

stop = threading.Event()

def keep_busy():
    while not stop.is_set():
        region_is_right()

other = threading.Thread(target=keep_busy)
if BUSY:
    other.start()
right = True
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if all(region_is_right() for _ in range(50)) else 1)
    right = right and os.waitpid(child, 0)[1] == 0 and region_is_right()
stop.set()
if BUSY:
    other.join()
print(right)
"""


@needs_fork
@pytest.mark.parametrize("name", thread_pool.POOLS)
def test_a_child_of_fork_runs_every_task(name: str) -> None:
    code = "BUSY = False" + FORK
    environ = {"TAPEJIT_POOL": name, "TAPEJIT_NUM_THREADS": "2"}
    assert in_fresh_process(code, **environ) == "True"


@needs_fork
def test_a_fork_beside_a_running_region_leaves_the_child_a_free_pool() -> None:
    code = "BUSY = True" + FORK
    assert in_fresh_process(code, TAPEJIT_NUM_THREADS="3") == "True"


# The number of threads


def test_set_num_threads_holds_until_it_is_set_again() -> None:
    tj.set_num_threads(3)
    assert tj.get_num_threads() == 3
    tj.set_num_threads(np.int64(2))
    assert tj.get_num_threads() == 2
    assert type(tj.get_num_threads()) is int


def test_set_num_threads_as_a_block_restores_what_was_before() -> None:
    tj.set_num_threads(2)
    with tj.set_num_threads(5):
        assert tj.get_num_threads() == 5
        with tj.set_num_threads(1):
            assert tj.get_num_threads() == 1
        assert tj.get_num_threads() == 5
    assert tj.get_num_threads() == 2
    with pytest.raises(KeyError), tj.set_num_threads(4):
        raise KeyError
    assert tj.get_num_threads() == 2


def test_set_num_threads_reaches_the_driver_without_compiling() -> None:
    found = threads.current_driver()
    tj.set_num_threads(1)
    before = found.words[thread_driver.THREADS]
    with tj.set_num_threads(7):
        assert threads.current_driver() is found
        expected = 7 if found.is_parallel else 1
        assert (before, found.words[thread_driver.THREADS]) == (1, expected)


def test_set_num_threads_limits_blas_and_gives_it_back_its_own_number() -> None:
    if not blas.set_threads(2):
        pytest.skip("NumPy's BLAS cannot be told")
    tj.set_num_threads(1)
    assert blas.threads() == 1
    blas.set_threads(2)
    with tj.set_num_threads(1):
        assert blas.threads() == 1
    assert (tj.get_num_threads(), blas.threads()) == (1, 2)


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_a_senseless_number_is_refused(count: int) -> None:
    before = tj.get_num_threads()
    with pytest.raises(ArgumentError, match=f"from 1 to 1024, got {count}"):
        tj.set_num_threads(count)
    assert tj.get_num_threads() == before


@pytest.mark.parametrize("count", [2.0, "2", None, True])
def test_what_is_no_whole_number_is_refused(count: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="takes a whole number, got"):
        tj.set_num_threads(count)


# The environment


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


SHOW = "import tapejit as tj; print(tj.get_num_threads())"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, cores),
        ({"OMP_NUM_THREADS": "3"}, lambda: 3),
        ({"OMP_NUM_THREADS": "5,2"}, lambda: 5),
        ({"OMP_NUM_THREADS": "many"}, cores),
        ({"TAPEJIT_NUM_THREADS": "6", "OMP_NUM_THREADS": "3"}, lambda: 6),
        ({"TAPEJIT_NUM_THREADS": "0", "OMP_NUM_THREADS": "3"}, lambda: 3),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_the_environment_gives_the_number_at_the_start(
    environ: dict[str, str], expected: Callable[[], int]
) -> None:
    assert in_fresh_process(SHOW, **environ) == str(expected())


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system has no affinity"
)
def test_affinity_gives_the_number_at_the_start() -> None:
    code = f"import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); {SHOW}"
    assert in_fresh_process(code) == "1"


def test_the_environment_gives_the_pool() -> None:
    code = "from tapejit.runtime.threads import current_driver as d; print(d().pool)"
    assert in_fresh_process(code, TAPEJIT_POOL="serial") == "serial"


def test_blocks_of_several_threads_may_overlap() -> None:
    """Whichever ends first, afterwards it is as before."""
    before, blas_before = threads.get_num_threads(), blas.threads()
    for first_out in (0, 1):
        blocks = [threads.set_num_threads(1), threads.set_num_threads(3)]
        for block in blocks:
            block.__enter__()
        assert threads.get_num_threads() == 3
        blocks.pop(first_out).__exit__(None, None, None)
        assert threads.get_num_threads() == (3, 1)[first_out], (
            "of the block that goes on"
        )
        blocks.pop().__exit__(None, None, None)
        assert (threads.get_num_threads(), blas.threads()) == (before, blas_before)


def test_blocks_of_many_threads_leave_what_was_before() -> None:
    before = threads.get_num_threads()

    def work(number: int) -> None:
        for _ in range(200):
            with threads.set_num_threads(1 + number):
                assert 1 <= threads.get_num_threads() <= 4

    with ThreadPoolExecutor(4) as thread_pool:
        list(thread_pool.map(work, range(4)))
    assert threads.get_num_threads() == before


def test_a_number_that_is_set_in_a_block_goes_with_it() -> None:
    with threads.set_num_threads(1):
        threads.set_num_threads(3)
        with threads.set_num_threads(2):
            threads.set_num_threads(4)
            assert threads.get_num_threads() == 4
        assert threads.get_num_threads() == 3
        for count in range(2, 9):
            threads.set_num_threads(count)
        assert len(threads._set) < 10, "what nothing leads back to is forgotten"
        with ThreadPoolExecutor(1) as thread_pool:
            thread_pool.submit(threads.set_num_threads, 5).result()
    assert threads.get_num_threads() == 5, "of another thread, for good"
