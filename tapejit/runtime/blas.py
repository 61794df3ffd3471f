"""How many threads NumPy's BLAS uses for a product of matrices.

Products in native code are generated. Those of eager code are NumPy's, which gives them
to the BLAS that it brings into every process; `tj.set_num_threads` holds for it too.

Nothing is loaded here. The extension module that holds `np.matmul` is opened once more,
which gives a handle and costs microseconds; a symbol that is asked of the handle is
looked for in the libraries it was linked with, wherever they lie and whoever built
them. Windows does not look so far: there the libraries of NumPy's wheel are asked by
name.

The data structure is `Blas`: two functions of one open library, which builds spell in
different ways (`SPELLINGS`). `find` gives the one of this process, or None where NumPy
has none that can be told a number of threads, as Apple's.

Start reading at `find`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Blas", "find", "set_threads", "threads"]


class Spelling(NamedTuple):
    """What a build puts before and after the names that OpenBLAS gives."""

    prefix: str
    suffix: str

    def __call__(self, name: str) -> str:
        return f"{self.prefix}{name}{self.suffix}"


# NumPy's wheels first, then those of distributions.
SPELLINGS = (
    Spelling("scipy_", "64_"),
    Spelling("scipy_", ""),
    Spelling("", "64_"),
    Spelling("", "_64"),
    Spelling("", ""),
)


class Blas:
    """One loaded library that has a number of threads.

    >>> blas = find()
    >>> blas is None or blas.threads >= 1
    True
    """

    __slots__ = ("_get", "_set", "spelling")

    def __init__(self, library: Any, spelling: Spelling) -> None:
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
    """Limit NumPy's BLAS to `count` threads; False if it cannot be told.

    >>> before = threads()
    >>> if before is not None and set_threads(1):
    ...     assert threads() == 1
    ...     assert set_threads(before)
    """
    found = find()
    if found is None:
        return False
    found.set_threads(count)
    return True


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


def thread_functions(spelling: Spelling) -> list[str]:
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
