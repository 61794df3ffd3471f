"""The BLAS that NumPy has loaded: addresses of its functions, its number of threads.

NumPy brings a BLAS into every process, and products of matrices are bit-equal to
NumPy's only if they are its own. So nothing is loaded here. The extension module that
holds `np.matmul` is opened once more, which gives a handle and costs microseconds; a
symbol that is asked of the handle is looked for in the libraries it was linked with,
wherever they lie and whoever built them. Windows does not look so far: there the
libraries of NumPy's wheel are asked by name.

Builds differ in how they spell the names (`SPELLINGS`) and in the width of their
integers, which the name does not always tell: a trial call does.

The data structure is `Blas`: a name to address function over one open library. `find`
gives the one of this process, or None where NumPy has none that can be used; products
of matrices are then left to NumPy.

Start reading at `find`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["FUNCTIONS", "Blas", "find", "set_threads", "threads"]

# What products of matrices call; a complex dot product stores its result.
FUNCTIONS = (
    *(f"{letter}{kind}" for letter in "sdcz" for kind in ("gemm", "gemv", "syrk")),
    *("sdot", "ddot", "cdotu_sub", "zdotu_sub"),
)


class Spelling(NamedTuple):
    """What a build puts before and after the names that the standard gives."""

    prefix: str
    suffix: str

    def __call__(self, name: str) -> str:
        return f"{self.prefix}{name}{self.suffix}"


# NumPy's wheels first, then those of distributions, then Apple's.
SPELLINGS = (
    Spelling("scipy_", "64_"),
    Spelling("scipy_", ""),
    Spelling("", "64_"),
    Spelling("", "_64"),
    Spelling("", "$NEWLAPACK$ILP64"),
    Spelling("", "$NEWLAPACK"),
    Spelling("", ""),
)


class Blas:
    """One loaded library with all of `FUNCTIONS`.

    `integer_bits` is the width of the sizes and strides that its functions take: code
    that calls them is made for it.

    >>> blas = find()
    >>> blas is None or blas.integer_bits in (32, 64)
    True
    """

    __slots__ = ("_get", "_set", "addresses", "integer_bits", "spelling")

    def __init__(self, library: Any, spelling: Spelling, integer_bits: int) -> None:
        self.spelling = spelling
        self.integer_bits = integer_bits
        self.addresses = {
            name: address_of(library, spelling(f"cblas_{name}")) for name in FUNCTIONS
        }
        self._get = thread_function(library, spelling, "get", ctypes.c_int)
        self._set = thread_function(library, spelling, "set", None, ctypes.c_int)

    def address(self, name: str) -> int:
        """Where a function is, by the name the standard gives it.

        >>> blas = find()
        >>> blas is None or blas.address("dgemm") != 0
        True
        """
        return self.addresses[name]

    @property
    def threads(self) -> int | None:
        """How many threads one product may use; None if the library does not say."""
        return None if self._get is None else int(self._get())

    def set_threads(self, count: int) -> bool:
        """Limit the threads of each product; False if the library cannot be told."""
        if self._set is None:
            return False
        self._set(count)
        return True

    def __repr__(self) -> str:
        return f"<Blas {self.spelling('cblas_*')}, {self.integer_bits}-bit integers>"


@cache
def find() -> Blas | None:
    """The BLAS of NumPy in this process; None if there is none to be called.

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
    """Limit NumPy's BLAS to `count` threads, for NumPy too; False if it cannot be told.

    >>> before = threads()
    >>> if before is not None and set_threads(1):
    ...     assert threads() == 1
    ...     assert set_threads(before)
    """
    found = find()
    return found is not None and found.set_threads(count)


def libraries() -> Iterator[Any]:
    """Open handles in which NumPy's BLAS may be found, the most certain first."""
    if sys.platform == "win32":
        folder = Path(np.__file__).parent.parent / "numpy.libs"
        paths = [str(path) for path in sorted(folder.glob("*openblas*.dll"))]
    else:
        # The name is private, but only asked for: without it products fall back.
        extension = sys.modules.get("numpy._core._multiarray_umath")
        path = getattr(extension, "__file__", None)
        paths = [] if path is None else [path]
    for path in paths:
        try:
            yield ctypes.CDLL(path)
        except OSError:
            continue  # a file that cannot be opened is not what NumPy uses


def blas_of(library: Any) -> Blas | None:
    """The BLAS in an open library, in the first spelling that has every function."""
    for spelling in SPELLINGS:
        if all(has(library, spelling(f"cblas_{name}")) for name in FUNCTIONS):
            bits = integer_bits(library, spelling)
            if bits is not None:
                return Blas(library, spelling, bits)
    return None


def integer_bits(library: Any, spelling: Spelling) -> int | None:
    """How wide the library's integers are, by a trial; None if its answers are wrong.

    The size given to the trial is 2 for whoever reads its lower half, and negative, so
    that nothing is read and the answer is 0, for whoever reads all of it.
    """
    integer, pointer = ctypes.c_int64, ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(
        ctypes.c_double, integer, pointer, integer, pointer, integer
    )
    dot = kind(address_of(library, spelling("cblas_ddot")))
    vector = (ctypes.c_double * 2)(3.0, 4.0)
    if dot(2, vector, 1, vector, 1) != 25.0:
        return None
    return {25.0: 32, 0.0: 64}.get(dot(2 - 2**32, vector, 1, vector, 1))


def has(library: Any, symbol: str) -> bool:
    try:
        library[symbol]
    except AttributeError:
        return False
    return True


def address_of(library: Any, symbol: str) -> int:
    """The address of a symbol that is there."""
    address = ctypes.cast(library[symbol], ctypes.c_void_p).value
    assert address is not None
    return address


def thread_function(
    library: Any, spelling: Spelling, verb: str, result: Any, *operands: Any
) -> Callable[..., Any] | None:
    """OpenBLAS's function that gets or sets its number of threads, if it is there."""
    symbol = spelling(f"openblas_{verb}_num_threads")
    if not has(library, symbol):
        return None
    kind = ctypes.CFUNCTYPE(result, *operands)
    return kind(address_of(library, symbol))
