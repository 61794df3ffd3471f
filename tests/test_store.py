"""The store of native code: what is found is what was put, whatever happens to it.

Stores are tested by counting, and by what they give back; damage is done to real files,
writers are really killed. Each test has a folder of its own.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from stored import (
    CODE,
    HEADER,
    KEY,
    key_of,
    path_of,
    posix_only,
)

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError
from tapejit.runtime.store import store as store_module
from tapejit.runtime.store.file import FORMAT, DamagedEntry, pack, unpack
from tapejit.runtime.store.folder import default_folder
from tapejit.runtime.store.store import LEDGER, Counts, Store, current_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


# What is put is found


def test_an_entry_is_found_as_it_was_put(store: Store) -> None:
    assert store.get(KEY) is None
    assert store.put(KEY, HEADER, CODE)
    entry = store.get(KEY)
    assert entry is not None
    assert (entry.header, entry.code) == (HEADER, CODE)
    assert store.counts == Counts(hits=1, misses=1, puts=1)


def test_the_last_put_counts(store: Store) -> None:
    store.put(KEY, {"name": "first"}, b"1")
    store.put(KEY, {"name": "second"}, b"2")
    entry = store.get(KEY)
    assert entry is not None
    assert entry.code == b"2"
    assert [each.key for each in store.stored()] == [KEY]


@pytest.mark.parametrize("code", [b"", b"\0", b"+++", b"\n", CODE * 300])
def test_any_bytes_are_code(store: Store, code: bytes) -> None:
    store.put(KEY, {}, code)
    for _ in range(3):  # after the first time with marks of use behind it
        entry = store.get(KEY)
        assert entry is not None
        assert entry.code == code


def test_uses_are_counted_in_the_file(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    for _ in range(3):
        assert Store(store.directory).get(KEY) is not None
    (stored,) = store.stored()
    assert stored.entry is not None
    assert stored.entry.uses == 3


def test_looking_is_not_using(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    before = path_of(store).read_bytes()
    list(store.stored())
    assert path_of(store).read_bytes() == before
    assert store.counts == Counts(puts=1)


def test_a_header_that_is_no_json_is_an_error(store: Store) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.put(KEY, {"address": object()}, CODE)
    assert not Path(store.directory).exists()


@pytest.mark.parametrize("key", ["", "abc", "g" * 64, "../" + "a" * 61, KEY.upper()])
def test_a_key_is_a_digest(store: Store, key: str) -> None:
    for use in (store.get, store.drop, lambda key: store.put(key, {}, b"")):
        with pytest.raises(ArgumentError, match="64 hexadecimal digits"):
            use(key)


def test_dropping_says_whether_there_was_one(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    assert store.drop(KEY)
    assert not store.drop(KEY)
    assert store.get(KEY) is None


# Damage


def test_every_bit_counts() -> None:
    data = pack(KEY, {"name": "loss"}, b"code")
    for at in range(len(data)):
        for bit in range(8):
            other = bytearray(data)
            other[at] ^= 1 << bit
            with pytest.raises(DamagedEntry):
                unpack(KEY, bytes(other))


def test_every_bit_counts_in_a_used_entry() -> None:
    data = pack(KEY, {}, b"") + b"++"
    for at in range(len(data)):
        other = bytearray(data)
        other[at] ^= 2
        with pytest.raises(DamagedEntry):
            unpack(KEY, bytes(other))


def test_every_length_counts() -> None:
    data = pack(KEY, {"name": "loss"}, b"code")
    for length in range(len(data)):
        with pytest.raises(DamagedEntry):
            unpack(KEY, data[:length])
    for more in (b"\0", b"+\0", b"+-", data):
        with pytest.raises(DamagedEntry):
            unpack(KEY, data + more)


@pytest.mark.parametrize(
    "place",
    ["format", "digest", "lengths", "header", "code", "end"],
)
def test_a_flipped_bit_is_a_miss_and_the_entry_is_dropped(
    store: Store, place: str
) -> None:
    store.put(KEY, HEADER, CODE)
    data = bytearray(path_of(store).read_bytes())
    line = data.index(b"\n")
    places = {
        "format": 3,
        "digest": len(FORMAT) + 10,
        "lengths": line - 2,
        "header": line + 5,
        "code": len(data) - 500,
        "end": len(data) - 1,
    }
    data[places[place]] ^= 1
    path_of(store).write_bytes(data)

    assert store.get(KEY) is None
    assert store.counts == Counts(misses=1, puts=1, damaged=1)
    assert not path_of(store).exists()
    assert store.put(KEY, HEADER, CODE)
    assert store.get(KEY) is not None


@pytest.mark.parametrize("length", [0, 1, 16, 17, 90, 100, 500, -1])
def test_a_truncated_entry_is_a_miss_and_is_dropped(store: Store, length: int) -> None:
    store.put(KEY, HEADER, CODE)
    data = path_of(store).read_bytes()
    path_of(store).write_bytes(data[:length])
    assert store.get(KEY) is None
    assert store.counts.damaged == 1
    assert not path_of(store).exists()


def test_an_entry_of_another_version_is_dropped(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    data = path_of(store).read_bytes()
    path_of(store).write_bytes(data.replace(FORMAT, b"tapejit-object 2", 1))
    assert store.get(KEY) is None
    assert store.counts.damaged == 1


def test_an_entry_under_another_name_is_dropped(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    os.rename(path_of(store), path_of(store, key_of(1)))
    assert store.get(key_of(1)) is None
    assert store.counts.damaged == 1


@posix_only
def test_what_is_no_file_is_not_an_entry(store: Store, tmp_path: Path) -> None:
    elsewhere = Store(tmp_path / "elsewhere")
    elsewhere.put(KEY, HEADER, CODE)
    store.put(key_of(1), HEADER, CODE)
    path_of(store).symlink_to(path_of(elsewhere))
    os.mkfifo(path_of(store, key_of(2)))
    path_of(store, key_of(3)).mkdir()
    for key in (KEY, key_of(2), key_of(3)):
        assert store.get(key) is None
    assert store.counts.damaged == 3
    assert not path_of(store).is_symlink()
    assert not store.put(key_of(3), HEADER, CODE)
    assert elsewhere.get(KEY) is not None


@posix_only
def test_an_entry_that_others_can_write_is_dropped(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    path_of(store).chmod(0o622)
    assert store.get(KEY) is None
    assert store.counts.damaged == 1
    assert "another user" in str(store.problem)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_a_shortage_while_reading_costs_no_entry(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_more(*arguments: Any) -> int:
        raise OSError(number, os.strerror(number))

    store.put(KEY, HEADER, CODE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_more)
        assert store.get(KEY) is None
    assert store.counts == Counts(misses=1, puts=1, failures=1)
    assert store.get(KEY) is not None


# The limit


def fill(store: Store, number: int, size: int = 1000) -> None:
    """Entries that were last used one after the other, a minute apart, long ago."""
    for at in range(number):
        store.put(key_of(at), {}, bytes(size))
        if path_of(store, key_of(at)).exists():
            then = time.time() - 60 * (10_000 - at)
            os.utime(path_of(store, key_of(at)), (then, then))


def test_the_least_recently_used_entries_go(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=100_000)
    fill(store, 50)
    assert store.get(key_of(0)) is not None  # so the next oldest is 1
    tight = Store(tmp_path, limit=40_000)
    tight.sweep()
    kept = {each.key for each in tight.stored()}
    _, size = tight.usage()
    assert 30_000 < size <= 35_000
    assert tight.counts.evicted == 50 - len(kept)
    assert kept == {key_of(0), *(key_of(at) for at in range(51 - len(kept), 50))}


@pytest.mark.parametrize("size", [100, 1000, 9000])
def test_a_store_never_grows_over_its_limit(tmp_path: Path, size: int) -> None:
    limit = 200_000
    for at in range(600):  # as if each were put by a process of its own
        store = Store(tmp_path, limit=limit)
        assert store.put(key_of(at), {}, bytes(size))
        if at % 20 == 0:
            assert store.usage()[1] <= limit
    assert store.get(key_of(599)) is not None
    assert store.usage()[1] <= limit


def test_sweeps_are_rare(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=16 * 1024 * 100)
    fill(store, 250, size=900)  # one unit of the ledger each
    assert store.counts.sweeps == 2
    assert (tmp_path / LEDGER).stat().st_size == 50


def test_an_entry_too_large_for_the_store_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=10_000)
    store.put(KEY, {}, b"small")
    assert not store.put(key_of(1), {}, bytes(6000))
    assert store.counts.failures == 1
    assert "over half of the limit" in str(store.problem)
    assert store.get(KEY) is not None


def test_evicting_bears_with_files_that_vanish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, limit=100_000)
    fill(store, 50)
    real = os.unlink

    def unlink_after_another(path: str) -> None:
        real(path)  # the other process
        real(path)

    monkeypatch.setattr(os, "unlink", unlink_after_another)
    tight = Store(tmp_path, limit=40_000)
    tight.sweep()
    assert tight.counts.evicted == 0
    assert 30_000 < tight.usage()[1] <= 35_000


def test_clearing_leaves_what_is_not_the_stores(store: Store) -> None:
    fill(store, 3)
    mine = Path(store.directory) / "mine.txt"
    mine.write_text("mine")
    assert store.clear() == 3
    assert os.listdir(store.directory) == ["mine.txt"]
    assert store.clear() == 0


# Settings


def test_the_folder_follows_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == str(tmp_path / "tapejit")
    with config.override(cache=True, cache_dir=""):
        assert Store().directory == str(tmp_path / "tapejit")
        assert current_store() is current_store()
    with config.override(cache=True, cache_dir=str(tmp_path / "x"), cache_size=3):
        store = current_store()
        assert (store.directory, store.limit) == (str(tmp_path / "x"), 3 << 20)


def test_a_relative_or_missing_home_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert os.path.isabs(default_folder())
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert default_folder() == ""
    with config.override(cache=True, cache_dir=""):
        store = Store()
    assert (store.put(KEY, HEADER, CODE), store.get(KEY)) == (False, None)
    assert "TAPEJIT_CACHE_DIR" in str(store.problem)


def test_a_store_that_is_off_touches_nothing(tmp_path: Path) -> None:
    with config.override(cache=False, cache_dir=str(tmp_path / "store")):
        store = current_store()
        assert (store.put(KEY, HEADER, CODE), store.get(KEY)) == (False, None)
    assert dataclasses.astuple(store.counts) == (0, 1, 0, 0, 0, 0, 0)
    assert not (tmp_path / "store").exists()


def test_nothing_that_can_run_is_unpacked_but_code() -> None:
    folder = Path(store_module.__file__).parent
    sources = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert "file.py" in sources
    for name, text in sources.items():
        for module in ("pickle", "marshal", "shelve"):
            assert f"import {module}" not in text, name
