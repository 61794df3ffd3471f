"""NumPy's BLAS is found where it is, and told how many threads it may use."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest
from elsewhere import run_interpreter

from tapejit.runtime import blas
from tapejit.runtime.blas import SPELLINGS, Spelling

GET, SET = ctypes.CFUNCTYPE(ctypes.c_int), ctypes.CFUNCTYPE(None, ctypes.c_int)


class Lacking:
    """A library without some of its symbols."""

    def __init__(self, library: Any, lacking: str) -> None:
        self.library = library
        self.lacking = lacking

    def __getitem__(self, symbol: str) -> Any:
        if self.lacking in symbol:
            raise AttributeError(symbol)
        return self.library[symbol]


class Built:
    """A library of our own, with its names spelt in one way."""

    def __init__(self, spelling: Spelling) -> None:
        self.count = 3
        self.functions = {
            spelling("openblas_get_num_threads"): GET(lambda: self.count),
            spelling("openblas_set_num_threads"): SET(self.limit),
        }

    def limit(self, count: int) -> None:
        self.count = count

    def __getitem__(self, symbol: str) -> Any:
        try:
            return self.functions[symbol]
        except KeyError:
            raise AttributeError(symbol) from None


def numpys_library() -> Any:
    return next(blas.libraries())


def test_numpys_blas_is_found() -> None:
    found = blas.find()
    assert found is not None
    assert found.threads >= 1


def test_finding_it_loads_nothing() -> None:
    code = (
        "import sys, numpy\n"
        "def mapped():\n"
        "    lines = open('/proc/self/maps')\n"
        "    return {line.split()[-1] for line in lines if '.so' in line}\n"
        "import ctypes\n"
        "from tapejit.runtime import blas\n"
        "before = mapped()\n"
        "assert blas.find() is not None\n"
        "assert mapped() == before\n"
        "assert not {'scipy', 'numba', 'llvmlite'} & set(sys.modules)\n"
    )
    if sys.platform != "linux":
        pytest.skip("the list of loaded libraries is read as Linux writes it")
    out = run_interpreter("-c", code)
    assert out.returncode == 0, out.stderr


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda x: x("name"))
def test_each_spelling_is_known(spelling: Spelling) -> None:
    library = Built(spelling)
    found = blas.blas_of(library)
    assert found is not None
    assert found.spelling == spelling
    assert found.threads == 3
    found.set_threads(2)
    assert (library.count, found.threads) == (2, 2)


@pytest.mark.parametrize("name", ["get_num_threads", "set_num_threads", "openblas"])
def test_a_library_that_lacks_a_function_is_not_used(name: str) -> None:
    assert blas.blas_of(Lacking(numpys_library(), name)) is None


def test_without_a_blas_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    find = blas.find.__wrapped__
    monkeypatch.setattr(blas, "libraries", lambda: iter(()))
    assert find() is None
    monkeypatch.setattr(blas, "find", find)
    assert blas.threads() is None
    assert blas.set_threads(1) is False


def test_without_the_extension_module_nothing_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "numpy._core._multiarray_umath")
    monkeypatch.setattr(sys, "platform", "linux")
    assert list(blas.libraries()) == []


def test_threads_are_set_for_numpy_too() -> None:
    before = blas.threads()
    if before is None:
        pytest.skip("this BLAS does not count its threads")
    try:
        assert blas.set_threads(1)
        assert blas.threads() == 1
        assert blas.set_threads(2)
        assert blas.threads() == 2
    finally:
        blas.set_threads(before)
