"""NumPy's BLAS is found where it is, and told how many threads it may use."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest
from elsewhere import run_interpreter

import tapejit as tj
from tapejit.base import blas
from tapejit.base.blas import SPELLINGS, SymbolSpelling
from tapejit.ops import lu_factors

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

    def __init__(self, spelling: SymbolSpelling) -> None:
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
        "from tapejit.base import blas\n"
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
def test_each_spelling_is_known(spelling: SymbolSpelling) -> None:
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


def test_scipys_blas_is_told_too() -> None:
    import scipy.linalg  # noqa: F401  # brings a BLAS of its own

    found, own = blas.find_scipys(), blas.find()
    if found is None or own is None:
        pytest.skip("this SciPy's BLAS cannot be told")
    before = own.threads
    try:
        assert blas.set_threads(2)
        assert (own.threads, found.threads) == (2, 2)
        with blas.one_thread():
            assert (own.threads, found.threads) == (1, 1)
            with blas.one_thread():
                pass
            assert (own.threads, found.threads) == (1, 1)  # the outer one still holds
            blas.set_threads(3)
            assert (own.threads, found.threads) == (1, 1)
        assert (own.threads, found.threads) == (3, 3)
    finally:
        blas.set_threads(before)


def test_scipys_blas_is_told_when_it_comes_later() -> None:
    code = (
        "import tapejit as tj\n"
        "from tapejit.base import blas\n"
        "tj.set_num_threads(1)\n"
        "assert blas.find_scipys() is None\n"
        "import scipy.linalg\n"
        "found = blas.find_scipys()\n"
        "print(found is None or found.threads)\n"
    )
    assert run_interpreter("-c", code).stdout.strip() in ("1", "True")


def test_small_factorisations_start_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.linalg  # brings its BLAS

    own = blas.find_scipys()
    if own is None:
        pytest.skip("SciPy's BLAS cannot be told")
    seen: list[int] = []
    factorise = scipy.linalg.lapack.dgetrf

    def watched(a: Any, **options: Any) -> Any:
        seen.append(own.threads)
        return factorise(a, **options)

    lu_factors.lapack_function.cache_clear()
    monkeypatch.setattr(scipy.linalg.lapack, "dgetrf", watched)
    before = own.threads
    try:
        blas.set_threads(2)
        for size in (100, 600):
            tj.linalg.inv(np.eye(size))
        assert seen == [1, 2]
        with pytest.raises(tj.LinAlgError):
            tj.linalg.inv(np.zeros((100, 100)))
        assert own.threads == 2
    finally:
        blas.set_threads(before)
        lu_factors.lapack_function.cache_clear()
