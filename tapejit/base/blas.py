"""How many threads the BLAS of NumPy and that of SciPy use.

Products in native code are generated. Those of eager code are NumPy's, which gives them
to the BLAS that it brings into every process; SciPy brings another. Factorisations are
LAPACK's, which calls the same BLAS. `tj.set_num_threads` holds for all of them.

Threads of OpenBLAS wait for more work by spinning, and a call waits for all of them. So
if a core is taken by somebody else, a factorisation that takes 3 ms with one thread
takes 70 ms with two. `one_thread` is for the calls in which a second thread gains
little: within it no BLAS of this process starts any.

Nothing is loaded here. The extension module that holds `np.matmul` is opened once more,
which gives a handle and costs microseconds; a symbol that is asked of the handle is
looked for in the libraries it was linked with, wherever they lie and whoever built
them. SciPy's is asked in the same way, once something has imported it. Windows does not
look so far: there the libraries of NumPy's wheel are asked by name.

The data structure is `Blas`: two functions of one open library, which builds spell in
different ways (`SPELLINGS`). `find` gives NumPy's, or None where it has none that can
be told a number of threads, as Apple's; `find_scipys` SciPy's.

Start reading at `find`, then `one_thread`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class SymbolSpelling(NamedTuple):
    """What a build puts before and after the names that OpenBLAS gives."""

    prefix: str
    suffix: str

    def __call__(self, name: str) -> str:
        return f"{self.prefix}{name}{self.suffix}"


# NumPy's wheels first, then those of distributions.
SPELLINGS = (
    SymbolSpelling("scipy_", "64_"),
    SymbolSpelling("scipy_", ""),
    SymbolSpelling("", "64_"),
    SymbolSpelling("", "_64"),
    SymbolSpelling("", ""),
)


class Blas:
    """One loaded library that has a number of threads.

    >>> blas = find()
    >>> blas is None or blas.threads >= 1
    True
    """

    __slots__ = ("_get", "_set", "spelling")

    def __init__(self, library: Any, spelling: SymbolSpelling) -> None:
        self.spelling = spelling
        get, set_ = (library[name] for name in thread_functions(spelling))
        self._get = ctypes.CFUNCTYPE(ctypes.c_int)(address_of(get))
        self._set = ctypes.CFUNCTYPE(None, ctypes.c_int)(address_of(set_))

    @property
    def threads(self) -> int:
        """How many threads one product may use."""
        return int(self._get())

    def set_threads(self, count: int) -> None:
        """Limit the threads of each product."""
        self._set(count)

    def __repr__(self) -> str:
        return f"<Blas {self.spelling('openblas_*')}>"


@cache
def find() -> Blas | None:
    """The BLAS of NumPy in this process; None if there is none to be told.

    >>> find() is find()
    True
    """
    for library in libraries():
        found = blas_of(library)
        if found is not None:
            return found
    return None


def threads() -> int | None:
    """How many threads NumPy's BLAS uses for one product; None if it does not say.

    >>> count = threads()
    >>> count is None or count >= 1
    True
    """
    found = find()
    return None if found is None else found.threads


def set_threads(count: int) -> bool:
    """Limit NumPy's BLAS to `count` threads, and SciPy's; False if NumPy's cannot be.

    >>> before = threads()
    >>> if before is not None and set_threads(1):
    ...     assert threads() == 1
    ...     assert set_threads(before)
    """
    with _limits.lock:
        _limits.wanted = count
        for blas in known():
            _limits.set(blas, count)
    return find() is not None


def known() -> list[Blas]:
    """Every BLAS there is so far."""
    return [blas for blas in (find(), find_scipys()) if blas is not None]


_scipys: Blas | None = None


def find_scipys() -> Blas | None:
    """The BLAS of SciPy; None as long as nothing has imported its linear algebra."""
    global _scipys
    if _scipys is None:
        extension = sys.modules.get("scipy.linalg._fblas")
        path = getattr(extension, "__file__", None)
        if path is not None and sys.platform != "win32":
            _scipys = blas_of(ctypes.CDLL(path))
            if _scipys is not None and _limits.wanted is not None:
                _scipys.set_threads(_limits.wanted)  # it was not there to be told
    return _scipys


class _Limits:
    """Who has asked for one thread, and what to go back to afterwards."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.wanted: int | None = None  # what `set_threads` said last
        self.holders = 0
        self.before: dict[Blas, int] = {}

    def set(self, blas: Blas, count: int) -> None:
        """Now, or when nobody wants one thread any more."""
        if blas in self.before:
            self.before[blas] = count
        else:
            blas.set_threads(count)

    def enter(self) -> None:
        with self.lock:
            self.holders += 1
            for blas in known():
                if blas not in self.before:
                    self.before[blas] = blas.threads
                    if self.before[blas] > 1:
                        blas.set_threads(1)

    def leave(self) -> None:
        with self.lock:
            self.holders -= 1
            if self.holders:
                return
            for blas, count in self.before.items():
                if count > 1:
                    blas.set_threads(count)
            self.before.clear()


_limits = _Limits()


@contextmanager
def one_thread() -> Iterator[None]:
    """No BLAS starts threads within this block; afterwards it may do so again.

    The number holds for the whole process, so what other threads compute meanwhile has
    one thread each, too.

    >>> before = threads()
    >>> with one_thread():
    ...     assert threads() in (None, 1)
    >>> threads() == before
    True
    """
    _limits.enter()
    try:
        yield
    finally:
        _limits.leave()


def _after_fork_in_child() -> None:
    global _limits
    for blas, count in _limits.before.items():  # the thread that asked is not here
        blas.set_threads(count)
    wanted, _limits = _limits.wanted, _Limits()
    _limits.wanted = wanted


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def libraries() -> Iterator[Any]:
    """Open handles in which NumPy's BLAS may be found, the most certain first."""
    if sys.platform == "win32":
        folder = Path(np.__file__).parent.parent / "numpy.libs"
        paths = [str(path) for path in sorted(folder.glob("*openblas*.dll"))]
    else:
        # The name is private, but only asked for: without it BLAS is left alone.
        extension = sys.modules.get("numpy._core._multiarray_umath")
        path = getattr(extension, "__file__", None)
        paths = [] if path is None else [path]
    for path in paths:
        try:
            yield ctypes.CDLL(path)
        except OSError:
            continue  # a file that cannot be opened is not what NumPy uses


def blas_of(library: Any) -> Blas | None:
    """The BLAS in an open library, in the first spelling that has both functions."""
    for spelling in SPELLINGS:
        if all(has(library, name) for name in thread_functions(spelling)):
            return Blas(library, spelling)
    return None


def thread_functions(spelling: SymbolSpelling) -> list[str]:
    """OpenBLAS's functions that get and set its number of threads."""
    return [spelling(f"openblas_{verb}_num_threads") for verb in ("get", "set")]


def has(library: Any, symbol: str) -> bool:
    try:
        library[symbol]
    except AttributeError:
        return False
    return True


def address_of(function: Any) -> int:
    """The address of a function."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
