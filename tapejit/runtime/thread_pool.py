"""Where threads come from: the one place that knows of thread pools.

`open_driver` gives a `ParallelDriver`: machine code that runs tasks, ready to be called
by its address, over the first pool that passes a small trial:

- `own`: threads that the driver starts itself, on Linux. Measured with two threads on
  two cores: an empty region takes 0.2 us (OpenMP: 1.0), 50 us of work in 8 tasks 26
  (25). With other processes on both cores nine of ten such regions end within 1.2 ms
  (OpenMP: 4 to 7), and after a pause of 1 ms within 0.13 (30): OpenMP's regions wait
  for every thread, ours for the tasks only.
- `tbb`, `omp`: Numba's pools. Their extension files are loaded by path, which takes
  1 to 16 ms; Numba itself is not imported.
- `serial`: no threads.

A driver's state is words in native memory (`tapejit.targets.cpu.call.thread_driver`
lists them); what is written there counts from the next region on. The code is never
freed: threads that nobody ends are in it.

Start reading at `open_driver`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Final, NamedTuple

from tapejit.base.blas import address_of
from tapejit.runtime.builtin_code import load_kept
from tapejit.targets.cpu.call import thread_layout

POOLS: Final = ("own", "tbb", "omp", "serial")
MOST_THREADS: Final = 1024

# Microseconds. A helper looks for work as long as the Python between two calls of a
# training step takes; longer would only burn a core that others may want.
LOOK: Final = 200
# The caller waits so long for a task that a helper has begun before it offers its own
# core: with 200 instead of 20, regions of 50 us took 275 on cores that were taken.
PATIENCE: Final = 20
# No gain in waking a helper if less than this is left to do: with helpers woken at
# once, 50 us of work after a pause took 70 to 120, alone it takes 55.
WORTH: Final = 60

FUTEX_NUMBERS: Final = {"x86_64": 202, "aarch64": 98}
TRIAL_TASKS: Final = 8


class Missing(Exception):
    """A pool is not to be had here; the text says why."""


class ParallelDriver:
    """A parallel driver in native code, over one pool.

    `address` is that of the native function `parallel(task, table, tasks)`.
    """

    def __init__(self, pool: str, *, survives_fork: bool) -> None:
        self.pool = pool
        self.is_parallel = pool != "serial"
        self.survives_fork = survives_fork
        if pool == "own":
            code = load_kept("thread pool", _thread_pool_module)
        else:
            code = load_kept("foreign thread pool", _foreign_pool_module)
        # Threads may be inside until the process ends: never to be freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))
        self.functions = code.functions
        self.address = self.functions["parallel"]
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self.call = kind(self.address)
        state = ctypes.CFUNCTYPE(ctypes.c_void_p)(self.functions["state"])()
        self.words = (ctypes.c_int64 * thread_layout.WORDS).from_address(state)
        self.words[thread_layout.THREADS] = 1

    def __repr__(self) -> str:
        return f"<parallel driver over {self.pool!r}>"

    def set_threads(self, count: int) -> None:
        """How many threads each region may use, the caller among them."""
        self.words[thread_layout.THREADS] = count if self.is_parallel else 1

    def renew(self) -> None:
        """Make it right for a child of fork, where only this thread is left."""
        for word in thread_layout.VOLATILE:
            self.words[word] = 0
        self.words[thread_layout.ROOM] = MOST_THREADS  # helpers are started anew
        if not self.survives_fork:
            self.is_parallel = False
            self.set_threads(1)

    def passes_trial(self) -> bool:
        """Whether each task of a small region runs once.

        >>> open_driver("serial", 1).passes_trial()
        True
        """
        counts = (ctypes.c_int64 * TRIAL_TASKS)()
        trial = self.functions["trial"]
        self.call(trial, ctypes.addressof(counts), TRIAL_TASKS)
        return list(counts) == [1] * TRIAL_TASKS


def _thread_pool_module() -> Any:
    from tapejit.targets.cpu.call.thread_driver import thread_pool_module

    return thread_pool_module()


def _foreign_pool_module() -> Any:
    from tapejit.targets.cpu.call.thread_driver import foreign_pool_module

    return foreign_pool_module()


def open_driver(wanted: str, threads: int) -> ParallelDriver:
    """A driver over the wanted pool or, if that is missing, the next of `POOLS`.

    >>> open_driver("serial", 2)
    <parallel driver over 'serial'>
    """
    for pool in POOLS[POOLS.index(wanted) : -1]:
        try:
            found = OPENERS[pool](threads)
        except Missing:
            continue
        found.set_threads(threads)
        if found.passes_trial():
            return found
    return open_serial()


def open_serial() -> ParallelDriver:
    """A driver whose regions all run in the thread that calls."""
    return ParallelDriver("serial", survives_fork=True)


def open_own(threads: int) -> ParallelDriver:
    """Threads of our own: where the kernel has futexes and the clock is readable."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in FUTEX_NUMBERS:
        raise Missing(f"no pool of our own on {sys.platform}, {machine}")
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        raise Missing("no pool of our own in a 32-bit process")
    found = ParallelDriver("own", survives_fork=True)
    library = ctypes.CDLL(None)
    words = found.words
    words[thread_layout.SYSCALL] = address_of(library.syscall)
    words[thread_layout.PTHREAD_CREATE] = address_of(library.pthread_create)
    words[thread_layout.PTHREAD_SIGMASK] = address_of(library.pthread_sigmask)
    words[thread_layout.FUTEX] = FUTEX_NUMBERS[machine]
    words[thread_layout.ROOM] = MOST_THREADS
    clock = ctypes.CFUNCTYPE(ctypes.c_int64)(found.functions["clock"])
    ticks = ticks_per_microsecond(clock)
    words[thread_layout.LOOK] = round(LOOK * ticks)
    words[thread_layout.PATIENCE] = round(PATIENCE * ticks)
    words[thread_layout.WORTH] = round(WORTH * ticks)
    return found


def ticks_per_microsecond(clock: Callable[[], int]) -> float:
    """The pace of a clock, measured for half a millisecond."""
    start, first = time.perf_counter_ns(), clock()
    while (passed := time.perf_counter_ns() - start) < 500_000:
        pass
    return (clock() - first) / passed * 1000


class ForeignPool(NamedTuple):
    """One of Numba's pools; `module` keeps it loaded."""

    module: Any
    parallel_for: int


def open_tbb(threads: int) -> ParallelDriver:
    """Intel's TBB, which ends its threads before a fork and starts them after it."""
    preload_tbb()
    return open_foreign("tbb", threads, survives_fork=True)


def open_omp(threads: int) -> ParallelDriver:
    """OpenMP; GNU's ends a child that uses it, so no child does."""
    return open_foreign("omp", threads, survives_fork=False)


def open_foreign(name: str, threads: int, *, survives_fork: bool) -> ParallelDriver:
    pool = load_foreign(f"{name}pool")
    launch = ctypes.CFUNCTYPE(None, ctypes.c_int)(pool.module.launch_threads)
    launch(threads)
    found = ParallelDriver(name, survives_fork=survives_fork)
    found.words[thread_layout.PARALLEL_FOR] = pool.parallel_for
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool.module))  # as long as the code
    return found


def load_foreign(name: str) -> ForeignPool:
    """An extension module of Numba's, by the path of its file."""
    module = sys.modules.get(f"numba.np.ufunc.{name}")
    if module is None:
        spec = importlib.util.spec_from_file_location(name, extension_file(name))
        if spec is None or spec.loader is None:
            raise Missing(f"Numba's {name} is no extension module")
        try:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError as error:  # a library that it needs is not there
            raise Missing(str(error)) from error
    try:
        return ForeignPool(module, int(module.parallel_for))
    except AttributeError as error:
        raise Missing(f"Numba's {name} has another interface: {error}") from error


def extension_file(name: str) -> Path:
    """Where an extension of Numba's lies; finding a package does not import it."""
    spec = importlib.util.find_spec("numba")
    for folder in (spec and spec.submodule_search_locations) or ():
        for suffix in EXTENSION_SUFFIXES:
            path = Path(folder, "np", "ufunc", name + suffix)
            if path.is_file():
                return path
    raise Missing(f"there is no {name} of Numba's")


def preload_tbb() -> None:
    """Load the library of the `tbb` package, which no search path of the system has."""
    import importlib.metadata  # 10 ms that other pools need not spend

    try:
        files = importlib.metadata.files("tbb") or []
    except importlib.metadata.PackageNotFoundError:
        return  # the system may have one
    for file in files:
        if file.name == "libtbb.so.12":
            try:
                ctypes.CDLL(os.fspath(file.locate()), ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise Missing(str(error)) from error


OPENERS: Final[dict[str, Callable[[int], ParallelDriver]]] = {
    "own": open_own,
    "tbb": open_tbb,
    "omp": open_omp,
}
