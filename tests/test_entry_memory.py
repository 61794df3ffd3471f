"""Native entries keep exact reference counts, share nothing between threads, end well.

Also where there are none.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from entries import (
    adding,
    address,
    config_module,
    entry_of,
    needs_native_entries,
    of,
    rising,
    simple,
)

import tapejit as tj
from tapejit.runtime import cpython_layout, memory_pool
from tapejit.runtime import native_entry as entry_layer
from tapejit.runtime.native_entry import MISS, EntrySpec, make_entry, why_unavailable
from tapejit.targets.cpu.call.entry import entry_module
from tapejit.targets.cpu.call.entry_tables import Record, Services
from tapejit.tensor.dispatch import TAPES, TRACE
from tapejit.tensor.tensor import Tensor

pytestmark = needs_native_entries


# Memory


def counts(*things: Any) -> list[int]:
    return [sys.getrefcount(thing) for thing in things]


@pytest.mark.parametrize("result", ["tensor", "tuple", "list", "values"])
def test_reference_counts_are_exact(result: str, full: bool) -> None:
    v, captured = tj.Variable(rising()), rising()
    x, y, scalar = rising(), tj.asarray(rising()), Tensor(np.float32(1))
    shape = of((2, 3))
    outputs = [shape, of(), of((5000,)), shape, of((70_000,))]
    if result == "tensor":
        del outputs[1:]
    entry = entry_of(
        adding(1, 0, 0),  # what stands in the outputs does not matter
        [shape, shape, of()],
        outputs,
        variables=[(v, shape)],
        captured=[captured],
        result=result,
        names=[(vars(config_module), "_process", config_module._process)],
    )
    watched = (
        *(x, y, y._value, scalar, scalar._value, v, v._tensor, v._tensor._value),
        *(captured, shape.dtype, np.dtype(np.uint8), Tensor, np.ndarray, MISS),
        *(memory_pool.Loan, memory_pool.lend, memory_pool._free, memory_pool._lent),
        *(TAPES, TRACE, config_module._process, entry, entry.__self__, None, 0, ()),
    )
    wrong = rising((3, 2))

    def repeat(times: int) -> None:
        for _ in range(times):
            entry(x, y, scalar)
            entry(x, wrong, scalar)
            entry(x, y)

    repeat(10)
    gc.collect()
    before = counts(*watched)
    repeat(100_000 if full else 20_000)
    gc.collect()
    drift = np.subtract(counts(*watched), before)
    assert not drift[:-3].any(), drift
    assert np.abs(drift[-3:]).max() < 10, drift  # others use 0, None and () as well


@pytest.mark.parametrize("large", [(100, 100), (300, 300)])  # new and lent memory
def test_repeated_calls_take_no_memory(large: tuple[int, int]) -> None:
    x = rising()
    add, wide = simple(outputs=2, result="tuple"), simple(2, large)
    y = rising(large)
    tracemalloc.start()
    try:
        for _ in range(100):
            add(x, x), wide(y, y), add(x, y)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5_000):
            add(x, x), wide(y, y), add(x, y)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 500
    finally:
        tracemalloc.stop()


def test_an_entry_dies_with_all_it_keeps_even_in_a_cycle() -> None:
    class Owner:
        """What the code belongs to."""

    owner = Owner()
    v = tj.Variable(rising())
    shape, code = of((2, 3)), adding(2, 1, 6)
    spec = EntrySpec(
        run=address(code),
        arguments=[shape],
        outputs=[shape],
        variables=[(v, shape)],
        keeps=(code, owner),
    )
    entry = make_entry(spec, Tensor)
    assert entry is not None
    assert entry(rising()) is not MISS
    owner.entry = entry  # type: ignore[attr-defined]
    seen = [weakref.ref(owner), weakref.ref(v)]
    del owner, v, spec
    gc.collect()
    assert None not in [ref() for ref in seen]
    del entry
    gc.collect()
    assert [ref() for ref in seen] == [None, None]


def test_an_entry_that_was_taken_apart_misses() -> None:
    add, x = simple(), rising()
    del add.__self__.kept  # type: ignore[attr-defined]  # as the collector does
    assert add(x, x) is MISS


def test_a_collection_in_the_middle_may_assign_what_is_read() -> None:
    v, shape = tj.Variable(np.zeros(1000, np.float32)), of((1000,))
    add = entry_of(
        adding(2, 2, 1000), [shape], [shape] * 2, variables=[(v, shape)], result="list"
    )
    assigned = []

    class Assigning:
        """Ends in a cycle, so when the collector comes along."""

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            assigned.append(len(assigned))
            v.assign(np.full(1000, assigned[-1], np.float32))

    x = np.zeros(1000, np.float32)
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            Assigning()
            first, second = add(x)
            assert (first._value == first._value[0]).all()
            np.testing.assert_array_equal(first._value, second._value)
    finally:
        gc.set_threshold(*thresholds)
    assert len(assigned) > 100


# Threads


def in_threads(work: Callable[[int], None], count: int = 8) -> None:
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


def test_threads_that_release_the_gil_do_not_disturb_each_other() -> None:
    shape = (64, 64)
    add = simple(2, shape, arena_bytes=4096, releases_gil=True)

    def work(number: int) -> None:
        x = np.full(shape, number, np.float32)
        for k in range(300):
            y = np.full(shape, k, np.float32)
            np.testing.assert_array_equal(add(x, Tensor(y))._value, x + y)

    in_threads(work)


def test_calls_in_flight_have_an_arena_each_and_share_few_afterwards() -> None:
    count = 4
    meeting, arenas = threading.Barrier(count, timeout=30), []

    def run(table: int) -> int:
        arenas.append((ctypes.c_size_t * 3).from_address(table)[2])
        meeting.wait()
        return 0

    code = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(run)
    entry = entry_of(code, [of((1,))], [of((1,))], arena_bytes=64, releases_gil=True)
    for _ in range(5):
        in_threads(lambda _: entry(rising((1,))), count)
    assert len(arenas) == 5 * count
    assert len(set(arenas)) == count
    links: set[int] = set()
    free = int(entry.__self__[Record.free])  # type: ignore[attr-defined]
    free = ctypes.c_size_t.from_address(free).value
    while free:
        links.add(free)
        free = ctypes.c_size_t.from_address(free).value
    assert len(links) == count


@pytest.fixture
def keeping_three_megabytes() -> Iterator[None]:
    """Of memory that is in use no longer, and none of it from before."""
    before = tj.config.kept_memory
    tj.config.update(kept_memory=0)
    tj.config.update(kept_memory=3)
    yield
    tj.config.update(kept_memory=before)


@pytest.mark.usefixtures("keeping_three_megabytes")
def test_working_memory_beyond_the_pool_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry_layer, "POOL_BYTES", 0)
    count, size = 6, 1 << 20
    meeting = threading.Barrier(count, timeout=30)

    def run(table: int) -> int:
        meeting.wait()
        return 0

    code = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(run)
    entry = entry_of(code, [of((1,))], [of((1,))], arena_bytes=size, releases_gil=True)
    tracemalloc.start()
    try:
        for _ in range(3):
            in_threads(lambda _: entry(rising((1,))), count)
        assert 0 < memory_pool.kept_bytes() <= 3 * size
        in_use = tracemalloc.get_traced_memory()[0] - memory_pool.kept_bytes()
        assert 2 * size < in_use < 3 * size
    finally:
        tracemalloc.stop()


def test_a_variable_assigned_meanwhile_keeps_the_buffer_that_is_read() -> None:
    size = 1 << 16
    v, shape = tj.Variable(np.zeros(size, np.float32)), of((size,))
    zero = np.zeros(size, np.float32)
    add = entry_of(
        adding(2, 1, size), [shape], [shape], variables=[(v, shape)], releases_gil=True
    )
    is_over = threading.Event()

    def assign() -> None:
        k = 0
        while not is_over.is_set():
            k += 1
            v.assign(np.full(size, k, np.float32))

    other = threading.Thread(target=assign)
    other.start()
    try:
        for _ in range(300):
            out = add(zero)._value
            assert (out == out[0]).all()
    finally:
        is_over.set()
        other.join()


# Where it is available


def test_the_code_names_nothing_outside() -> None:
    text = str(entry_module())
    assert "declare" not in text
    assert "external" not in text


def test_stored_code_is_used_instead_of_compiling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpython_layout.code_address()  # by now it is in the store

    def refuse() -> None:
        raise AssertionError("it was made again")

    monkeypatch.setattr(cpython_layout, "_entry_module", refuse)
    monkeypatch.setattr(cpython_layout, "_natives", {})
    add = simple()
    np.testing.assert_array_equal(add(rising(), rising())._value, 2 * rising())
    assert add(rising(), rising((3, 2))) is MISS


@pytest.mark.parametrize(
    ("field", "word"),
    [("array_ndim", "array"), ("descr_number", "array"), ("object_class", "array")],
)
def test_another_layout_of_arrays_makes_it_unavailable(
    field: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = Services[field]
    moved = cpython_layout.FIELDS | {column: cpython_layout.FIELDS[column] + 4}
    monkeypatch.setattr(cpython_layout, "FIELDS", moved)
    monkeypatch.setattr(cpython_layout, "_natives", {})
    assert make_entry(EntrySpec(run=1, arguments=[], outputs=[of()]), Tensor) is None
    assert word in str(why_unavailable(Tensor))


def test_a_tensor_with_a_dictionary_makes_it_unavailable() -> None:
    class Loose(Tensor):
        """Has attributes of its own."""

    assert "slots" in str(why_unavailable(Loose))


@pytest.mark.parametrize(
    ("where", "name", "value", "reason"),
    [
        ("sys.implementation", "name", "pypy", "pypy"),
        ("sys", "version", "3.14.0 free-threading build", "free-threaded"),
    ],
)
def test_other_pythons_have_no_native_entries(
    where: str, name: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpython_layout, "_natives", {})
    monkeypatch.setattr(f"{where}.{name}", value)
    assert reason in str(why_unavailable(Tensor))


def test_an_entry_works_until_the_very_end_of_the_process() -> None:
    code = (
        "import os, sys; sys.path.insert(0, 'tests')\n"
        "from entries import rising, simple\n"
        "class Last:\n"
        "    def __init__(self):\n"
        "        self.me, self.add, self.x = self, simple(), rising()\n"
        "        self.write = os.write\n"
        "    def __del__(self):\n"
        "        out = self.add(self.x, self.x)._value\n"
        "        self.write(1, out.tobytes())\n"
        "last = Last()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (2 * rising()).tobytes()
