"""Threads for what NumPy and SciPy compute: independent lines at the same time.

Native code has a pool of its own. What NumPy performs beside it (sorts, transforms,
movements of whole lines) holds no lock while it runs, so that plain threads of Python
do. They are started when the first array is large enough to be worth one.

How many threads take part is what `tj.set_num_threads` says: `runtime.threads` tells
it here, because the records that use threads may not ask the layers above them. Pieces
are cut between lines, so no result depends on that number.

Start reading at `run_pieces`.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tapejit.base.config import config

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


# A piece is handed to another thread in some 30 us; this many elements of any work
# that is done here take more than ten times that.
LEAST_ELEMENTS: Final = 65_536

_limit: int | None = None
_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()
_inside = threading.local()


def threads() -> int:
    """How many threads may work at the same time, the calling one among them.

    >>> threads() > 0
    True
    """
    if _limit is None:
        limit(config.num_threads or default_count(os.environ))
        return threads()
    return _limit


def limit(count: int) -> None:
    """Let at most `count` threads work from now on."""
    global _limit
    _limit = count


def default_count(environ: Mapping[str, str]) -> int:
    """What OpenMP's variable says, else the number of cores we may run on.

    >>> default_count({"OMP_NUM_THREADS": "3"})
    3
    >>> default_count({"OMP_NUM_THREADS": "4,2"})  # by depth of nesting
    4
    """
    first = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdecimal() and int(first) > 0:  # OpenMP ignores what makes no sense
        return int(first)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_pieces(
    work: Callable[[slice], None],
    count: int,
    elements: int,
    least: int = LEAST_ELEMENTS,
) -> None:
    """Do `work` for `count` lines, several slices of them at the same time.

    `elements` is what all lines have together. A slice has at least `least` of them;
    if there is only one slice, the calling thread does all of it.

    >>> out = [0] * 5
    >>> def fill(lines):
    ...     for line in range(*lines.indices(5)):
    ...         out[line] = line
    >>> run_pieces(fill, 5, elements=5, least=1)
    >>> out
    [0, 1, 2, 3, 4]
    """
    pieces = min(count, elements // max(least, 1), threads())
    if pieces < 2 or getattr(_inside, "is_worker", False):
        work(slice(0, count))
        return
    bounds = [count * at // pieces for at in range(pieces + 1)]
    first, *others = map(slice, bounds[:-1], bounds[1:])
    pool = _workers()
    # A context of its own for each: NumPy's handling of warnings is part of it.
    handed = [
        pool.submit(contextvars.copy_context().run, work, piece) for piece in others
    ]
    try:
        work(first)
    finally:
        for piece in handed:
            piece.exception()  # waits: nobody may write into what the caller drops
    for piece in handed:
        piece.result()


def _workers() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None or _pool._max_workers < threads() - 1:
            from concurrent.futures import ThreadPoolExecutor

            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool = ThreadPoolExecutor(
                threads() - 1, "tapejit-worker", initializer=_mark_worker
            )
        return _pool


def _mark_worker() -> None:
    _inside.is_worker = True


def _after_fork_in_child() -> None:
    global _lock, _pool
    _lock = threading.Lock()
    _pool = None  # its threads stayed with the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
