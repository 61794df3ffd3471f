"""The store of native code under several processes, killed ones among them."""

from __future__ import annotations

import os
import signal
import time
import warnings
from pathlib import Path

import pytest
from elsewhere import needs_fork
from stored import (
    CODE,
    HEADER,
    KEY,
    finish,
    key_of,
    leftovers,
    start,
)

from tapejit.runtime.store.store import TEMPORARY_AGE, Counts, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_an_entry_is_found_by_another_process(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    code = (
        "entry = store.get(sys.argv[2]); print(len(entry.code), entry.header['name'])"
    )
    assert finish(start(code, store.directory, KEY)) == "1024 loss\n"


WRITERS = """
def write(number):
    for _ in range(40):
        for name in range(4):
            kind = name if sys.argv[2] == "same" else name + 4 * number
            key = f"{kind:064x}"
            entry = store.get(key)
            assert entry is None or entry.code == bytes([kind]) * 5000, "a wrong entry"
            assert store.put(key, {"kind": kind}, bytes([kind]) * 5000)
    assert store.counts.damaged == store.counts.failures == 0, store.counts
    assert store.counts.puts == 160, store.counts

signal_in, signal_out = os.pipe()
children = []
for number in range(8):
    child = os.fork()
    if not child:
        os.close(signal_out)
        os.read(signal_in, 1)  # returns when the parent closes its end: all at once
        try:
            write(number)
        except BaseException as error:  # told by the exit code; a child ends here
            print(number, repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
os.close(signal_out)
print([os.waitpid(child, 0)[1] for child in children])
"""


@needs_fork
@pytest.mark.parametrize("keys", ["same", "different"])
def test_eight_writers_at_once_leave_whole_entries(store: Store, keys: str) -> None:
    out = finish(start(WRITERS, store.directory, keys))
    assert out == f"{[0] * 8}\n"

    found = list(store.stored())
    assert len(found) == (4 if keys == "same" else 32)
    assert all(each.entry is not None for each in found)
    assert leftovers(store) == []


def test_a_writer_killed_before_renaming_leaves_the_old_entry(store: Store) -> None:
    store.put(KEY, {"name": "old"}, b"old")
    code = (
        "os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)\n"
        "store.put(sys.argv[2], {'name': 'new'}, b'new')\n"
    )
    finish(start(code, store.directory, KEY), -signal.SIGKILL)

    entry = store.get(KEY)
    assert entry is not None
    assert entry.code == b"old"
    assert len(leftovers(store)) == 1
    store.sweep()
    assert len(leftovers(store)) == 1, "its writer may still be at work"
    store.sweep(now=time.time() + TEMPORARY_AGE + 1)
    assert leftovers(store) == []
    assert store.get(KEY) is not None


def test_a_writer_interrupted_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*paths: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.put(KEY, HEADER, CODE)
    assert leftovers(store) == []


@needs_fork
def test_a_child_uses_the_store_of_its_parent(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads
        child = os.fork()
    if not child:
        is_good = store.get(KEY) is not None and store.put(key_of(1), HEADER, CODE)
        os._exit(0 if is_good else 1)
    assert store.put(key_of(2), HEADER, CODE)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert store.counts == Counts(puts=2), "the child counts for itself"
    assert all(store.get(key) for key in (KEY, key_of(1), key_of(2)))
