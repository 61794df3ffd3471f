"""How many threads compiled functions use, and the driver that uses them.

The data structures are one number, how many threads a parallel region may use, and one
`ParallelDriver`, opened when the first function with a parallel region is made ready:
native code knows it by its address. The number is copied into the driver's memory, so a
change counts from the next region on, in code that is compiled already too.

The number is the process's, not the context's: native code reads it.

Start reading at `set_num_threads`.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Mapping
from typing import SupportsIndex

from tapejit.base import blas, workers
from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.runtime.thread_pool import MOST_THREADS, ParallelDriver, open_driver

__all__ = ["get_num_threads", "set_num_threads"]

_lock = threading.Lock()
_count: int | None = None  # None: nobody has asked yet
_driver: ParallelDriver | None = None


class ThreadNumbers:
    """How many threads kernels have, and BLAS, as somebody has set it.

    `thread` set it; `is_block` says that it holds until a block ends.
    """

    __slots__ = ("blas", "is_block", "kernels", "thread")

    def __init__(self, kernels: int, blas: int | None) -> None:
        self.kernels = kernels
        self.blas = blas
        self.thread = threading.get_ident()
        self.is_block = False


_numbers_lock = threading.RLock()
_set: list[ThreadNumbers] = []  # what was set and still counts; the last one holds


class ThreadsSet:
    """What `set_num_threads` gives: as a block it holds until the block ends.

    Blocks of several threads may overlap: the one that began last counts, and what was
    before the first comes back after the last.
    """

    __slots__ = ("_numbers",)

    def __init__(self, numbers: ThreadNumbers) -> None:
        self._numbers = numbers

    def __enter__(self) -> None:
        own = self._numbers
        with _numbers_lock:
            own.is_block = True
            if own not in _set:  # others were set since
                _set.append(own)
                _use(own)

    def __exit__(self, *raised: object) -> None:
        own = self._numbers
        with _numbers_lock:
            at = _set.index(own)
            # What the same thread has set inside goes with it.
            _set[at:] = [x for x in _set[at:] if x.is_block or x.thread != own.thread]
            _set[:] = [x for x in _set if x is not own]
            _use(_set[-1])


def set_num_threads(count: SupportsIndex) -> ThreadsSet:
    """Use up to `count` threads, the calling one among them, from now on.

    It holds for the whole process, and for the products that NumPy's BLAS computes.
    The results of kernels do not depend on it; those of BLAS may, in the last bits. As
    a context manager it restores what was before.

    The number at the start is the setting `num_threads` (`TAPEJIT_NUM_THREADS`), else
    what `OMP_NUM_THREADS` says, else how many cores the process may run on.

    >>> before = get_num_threads()
    >>> with set_num_threads(1):
    ...     get_num_threads()
    1
    >>> get_num_threads() == before
    True
    """
    wanted = _checked(count)
    with _numbers_lock:
        now = ThreadNumbers(get_num_threads(), blas.threads())
        if not _set:
            _set.append(now)
        _set[-1].blas = now.blas  # which may have been set elsewhere
        _set.append(ThreadNumbers(wanted, wanted))
        last = _set[-3:]
        is_again = len({x.thread for x in last}) == 1 and len(_set) > 3
        if is_again and not any(x.is_block for x in last):
            del _set[-3]  # nothing leads back to it
        _use(_set[-1])
        return ThreadsSet(_set[-1])


def get_num_threads() -> int:
    """How many threads a parallel region may use.

    >>> with set_num_threads(3):
    ...     get_num_threads()
    3
    """
    global _count
    if _count is None:
        _count = config.num_threads or default_num_threads(os.environ)
        workers.limit(_count)
    return _count


def driver_address() -> int:
    """The address of `void parallel(void (*task)(i8**, i64), i8** table, i64 tasks)`.

    The first call compiles it; the address holds for the rest of the process.

    >>> driver_address() == driver_address()
    True
    """
    return current_driver().address


def current_driver() -> ParallelDriver:
    """The driver of this process, opened by the first call.

    >>> current_driver().pool in ("own", "tbb", "omp", "serial")
    True
    """
    global _driver
    if _driver is None:
        with _lock:
            if _driver is None:
                _driver = open_driver(config.pool, get_num_threads())
                _driver.set_threads(get_num_threads())  # it may have changed meanwhile
    return _driver


def default_num_threads(environ: Mapping[str, str]) -> int:
    """What OpenMP's variable says, else the number of cores we may run on.

    >>> default_num_threads({"OMP_NUM_THREADS": "3"})
    3
    >>> default_num_threads({"OMP_NUM_THREADS": "4,2"})  # by depth of nesting
    4
    """
    return min(workers.default_count(environ), MOST_THREADS)


def _checked(count: SupportsIndex) -> int:
    try:
        wanted = operator.index(count)
    except TypeError:
        wanted = None
    if wanted is None or isinstance(count, bool):
        raise ArgumentTypeError(
            f"set_num_threads takes a whole number, got {type(count).__name__}"
        )
    if not 1 <= wanted <= MOST_THREADS:
        raise ArgumentError(
            f"set_num_threads takes a number from 1 to {MOST_THREADS}, got {wanted}"
        )
    return wanted


def _use(numbers: ThreadNumbers) -> None:
    _apply(numbers.kernels)
    if numbers.blas is not None:
        blas.set_threads(numbers.blas)


def _apply(count: int) -> None:
    global _count
    _count = count
    workers.limit(count)
    if _driver is not None:
        _driver.set_threads(count)


def _after_fork_in_child() -> None:
    global _lock, _numbers_lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _numbers_lock = threading.RLock()
    if _driver is not None:
        _driver.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
