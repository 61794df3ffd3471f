"""The folder of stored code: the user's alone, or it is not used."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stored import (
    CODE,
    HEADER,
    KEY,
    finish,
    key_of,
    path_of,
    posix_only,
    start,
)

from tapejit.runtime.store import folder
from tapejit.runtime.store.folder import CacheWarning, refusal
from tapejit.runtime.store.store import Counts, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(autouse=True)
def nobody_was_warned() -> Iterator[None]:
    folder._warned.clear()
    yield
    folder._warned.clear()


@posix_only
def test_a_new_folder_is_its_owners_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "above" / "store")
    before = os.umask(0)
    try:
        store.put(KEY, HEADER, CODE)
    finally:
        os.umask(before)
    modes = [os.stat(path).st_mode for path in (store.directory, path_of(store))]
    assert [stat.S_IMODE(mode) for mode in modes] == [0o700, 0o600]


@posix_only
@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_refused(store: Store, mode: int) -> None:
    store.put(KEY, HEADER, CODE)
    os.chmod(store.directory, mode)
    with pytest.warns(CacheWarning, match="other users can write to it") as warned:
        assert store.get(KEY) is None
    assert "TAPEJIT_CACHE_DIR" in str(warned[0].message)
    # No more warnings from here on: one would be an error.
    assert not store.put(key_of(1), HEADER, CODE)
    assert not Store(store.directory).put(key_of(1), HEADER, CODE)
    assert list(store.stored()) == []
    assert store.clear() == 0
    assert path_of(store).exists()
    assert store.state().startswith("not in use")
    os.chmod(store.directory, 0o755)
    assert store.get(KEY) is not None, "others may look"


@posix_only
def test_a_folder_of_another_user_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(KEY, HEADER, CODE)
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with pytest.warns(CacheWarning, match=rf"another user \(number {us}\)"):
        assert store.get(KEY) is None


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give it away"
)
def test_a_folder_given_to_another_user_is_refused(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    os.chown(path_of(store), 65534, 65534)
    assert store.get(KEY) is None
    assert store.counts.damaged == 1, "an entry too"
    os.chown(store.directory, 65534, 65534)
    with pytest.warns(CacheWarning, match=r"another user \(number 65534\)"):
        assert not store.put(KEY, HEADER, CODE)


@posix_only
def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    assert refusal(str(link)) == "it is a link to nothing"
    real.mkdir(0o700)
    store = Store(link)
    assert store.put(KEY, HEADER, CODE)
    real.chmod(0o777)
    with pytest.warns(CacheWarning, match="other users can write to it"):
        assert store.get(KEY) is None


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(CacheWarning, match="it is not a folder"):
        assert not Store(tmp_path / "file").put(KEY, HEADER, CODE)


READ_ONLY = """
import shutil, tempfile
folder = tempfile.mkdtemp()
try:
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        os.setuid(65534)  # root may write anywhere
    inside = os.path.join(folder, "store")
    store = Store(inside)
    store.put("a" * 64, {}, b"code")
    os.chmod(os.path.join(inside, "a" * 64 + ".object"), 0o400)
    os.chmod(inside, 0o500)
    print(store.get("a" * 64).code, store.put("b" * 64, {}, b"code"), store.state())
    print(store.counts)
    os.chmod(folder, 0o500)
    nowhere = Store(os.path.join(folder, "other"))
    print(nowhere.get("a" * 64), nowhere.put("a" * 64, {}, b"code"))
finally:
    os.chmod(folder, 0o700)
    os.chmod(inside, 0o700)
    shutil.rmtree(inside)
    os.rmdir(folder)
"""


@posix_only
def test_a_folder_that_cannot_be_written_is_still_read(tmp_path: Path) -> None:
    lines = finish(start(READ_ONLY, str(tmp_path))).splitlines()
    assert lines == [
        "b'code' False read, not written: Permission denied",
        str(Counts(hits=1, puts=1, failures=1)),
        "None False",
    ]


FULL = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
print(store.put("a" * 64, {}, bytes(100_000)), store.put("b" * 64, {}, b"code"))
print(store.counts, os.listdir(sys.argv[1]).count("b" * 64 + ".object"))
print([name for name in os.listdir(sys.argv[1]) if name.startswith(".")])
"""


@posix_only
def test_a_write_that_ends_halfway_leaves_nothing(tmp_path: Path) -> None:
    lines = finish(start(FULL, str(tmp_path))).splitlines()
    assert lines == ["False True", f"{Counts(puts=1, failures=1)} 1", "[]"]


def test_a_full_disk_does_not_stop_reading(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.put(KEY, HEADER, CODE)
    monkeypatch.setattr(os, "write", full)
    assert store.get(KEY) is not None
    assert not store.put(key_of(1), HEADER, CODE)
    assert store.counts == Counts(hits=1, puts=1, failures=1)
    assert "No space left" in str(store.problem)
    assert store.state().startswith("read, not written: No space left")


def test_a_folder_that_was_removed_is_made_again(store: Store) -> None:
    store.put(KEY, HEADER, CODE)
    store.clear()
    os.rmdir(store.directory)
    assert store.get(KEY) is None
    assert store.put(KEY, HEADER, CODE)
