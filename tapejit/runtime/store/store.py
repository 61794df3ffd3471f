"""The disk cache: native code kept from one process to the next.

A `Store` is a folder with one file per entry, named by the key (a digest of all that
the code depends on, see `key`). Any number of processes use it at once, without
locks: a file appears whole, by renaming, and never changes but for the marks that count
its uses; whoever finds one that is not what was stored drops it and has a miss, and
makes the entry again.

A store never stands in the way: a folder that cannot be written, a full disk or a file
that vanishes make it a store that keeps nothing. `counts` tells what happened,
`problem` what went wrong last.

It is bounded. Each writer first adds what it is about to write to a ledger, a file of
one byte per kilobyte; whoever brings it to a sixteenth of the limit starts it anew and
sweeps: entries that were not used for longest go until seven eighths of the limit are
left, and so do temporary files of writers that were killed. So putting an entry costs
the same however many there are, but for every so many.

Start reading at `Store.get`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError
from tapejit.runtime.store.file import USE, CacheEntry, DamagedEntry, pack, unpack
from tapejit.runtime.store.folder import (
    default_folder,
    is_private,
    make_folder,
    refusal,
    warn_of_refusal,
)

__all__ = ["CacheEntry", "Counts", "Store", "Stored", "current_store"]

MEGABYTE: Final = 1 << 20
LARGEST_FILE: Final = 1 << 30  # what is longer is not read to find that it is damaged
MOST_USES: Final = 100_000
TEMPORARY_AGE: Final = 3600.0  # seconds; no writer takes that long
LEDGER: Final = "written"
LEDGER_UNIT: Final = 1024

_KEY = re.compile(r"[0-9a-f]{64}")
_ENTRY_NAME = re.compile(r"([0-9a-f]{64})\.object")
_TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]+\.temporary")

# Reading fails for a reason that has nothing to do with the file.
_SHORTAGES: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.ESTALE}
)

# Not every system has these; nothing but speed or a better error depends on them there.
_CLOSED_ON_EXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_PLAIN_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclasses.dataclass(slots=True)
class Counts:
    """What a store has done in this process.

    `damaged` entries are also misses; `failures` are files that the system would not
    read or write for us.

    >>> Counts(hits=2)
    Counts(hits=2, misses=0, puts=0, damaged=0, failures=0, evicted=0, sweeps=0)
    """

    hits: int = 0
    misses: int = 0
    puts: int = 0
    damaged: int = 0
    failures: int = 0
    evicted: int = 0
    sweeps: int = 0


class Stored(NamedTuple):
    """A file of a store, as a list of them shows it.

    `entry` is None, and `problem` says why, if the file is not what was stored.
    """

    key: str
    size: int
    age: float
    entry: CacheEntry | None
    problem: str = ""


class Store:
    """Entries by key, in a folder.

    `directory` and `limit` (in bytes) are the settings' if not given.

    >>> import tempfile
    >>> key = "0" * 64
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder)
    ...     store.put(key, {"name": "loss"}, b"code")
    ...     Store(folder).get(key).header
    True
    {'name': 'loss'}
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        limit: int | None = None,
    ) -> None:
        self.problem: str | None = None
        settings = config.current()
        self._is_off = directory is None and not settings.cache
        if directory is None:
            directory = os.path.expanduser(settings.cache_dir) or default_folder()
        self.directory = os.path.abspath(directory) if directory else ""
        self.limit = settings.cache_size * MEGABYTE if limit is None else limit
        self.counts = Counts()
        if self._is_off:
            self.problem = "turned off by TAPEJIT_CACHE=0 or config.cache"
        elif not self.directory:
            self.problem = "there is no home folder: set TAPEJIT_CACHE_DIR"

    def __repr__(self) -> str:
        problem = f", {self.problem}" if self.problem else ""
        return f"<tapejit store {self.directory!r}{problem}>"

    def get(self, key: str) -> CacheEntry | None:
        """The entry of a key, checked; None if there is none to be trusted."""
        path = self._path(key)
        entry = None
        if self._may_use():
            try:
                entry = _read(path, key, self._mark_use)
            except FileNotFoundError:
                pass
            except (DamagedEntry, OSError) as error:
                self._handle_unreadable(path, error)
        if entry is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return entry

    def put(self, key: str, header: Mapping[str, Any], code: bytes) -> bool:
        """Keep an entry; whether that was possible. It replaces one with its key."""
        path = self._path(key)
        data = pack(key, header, code)  # first: what is no JSON is always an error
        if not self._may_use():
            return False
        if len(data) > self.limit // 2:
            self.counts.failures += 1
            self.problem = f"{len(data)} bytes are over half of the limit {self.limit}"
            return False
        try:
            make_folder(self.directory)
            is_sweep_due = self._write_ledger(len(data))
            self._write(path, data)
        except OSError as error:
            self.counts.failures += 1
            self.problem = f"nothing can be written: {error.strerror or error}"
            return False
        self.counts.puts += 1
        self.problem = None
        if is_sweep_due:
            self.sweep()
        return True

    def drop(self, key: str) -> bool:
        """Remove an entry; whether there was one."""
        return self._may_use() and _remove(self._path(key))

    def sweep(self, now: float | None = None) -> None:
        """Make room if there is too little, and clear up after writers that died."""
        now = time.time() if now is None else now
        self.counts.sweeps += 1
        total = 0
        found: list[tuple[float, int, str]] = []
        for item, status in self._files():
            age = now - status.st_mtime
            if _ENTRY_NAME.fullmatch(item.name):
                found.append((age, status.st_size, item.path))
            elif _TEMPORARY_NAME.fullmatch(item.name) and age > TEMPORARY_AGE:
                _remove(item.path)
                continue
            total += status.st_size
        found.sort()
        while found and total > self.limit * 7 // 8:
            _, size, path = found.pop()
            total -= size  # also if another process was faster
            self.counts.evicted += _remove(path)

    def stored(self) -> Iterator[Stored]:
        """Every entry, read and checked but neither used nor dropped."""
        now = time.time()
        for item, status in self._files():
            match = _ENTRY_NAME.fullmatch(item.name)
            if match is None:
                continue
            key, age = match[1], max(0.0, now - status.st_mtime)
            try:
                entry = _read(item.path, key)
            except FileNotFoundError:
                continue  # gone since the folder was listed
            except (DamagedEntry, OSError) as error:
                yield Stored(key, status.st_size, age, None, str(error))
            else:
                yield Stored(key, status.st_size, age, entry)

    def usage(self) -> tuple[int, int]:
        """How many entries there are, and how many bytes they take."""
        sizes = [
            status.st_size
            for item, status in self._files()
            if _ENTRY_NAME.fullmatch(item.name)
        ]
        return len(sizes), sum(sizes)

    def clear(self) -> int:
        """Remove every entry, and how many there were; other files stay."""
        count = 0
        for item, _ in self._files():
            if _ENTRY_NAME.fullmatch(item.name):
                count += _remove(item.path)
            elif _TEMPORARY_NAME.fullmatch(item.name) or item.name == LEDGER:
                _remove(item.path)
        return count

    def state(self) -> str:
        """Whether entries can be read and written, tried out, as a phrase."""
        if not self._may_use():
            return f"not in use: {self.problem}"
        above = self.directory
        while not os.path.exists(above):
            above = os.path.dirname(above)
        if above != self.directory:  # it is made with the first entry, not for a look
            can_be_made = os.access(above, os.W_OK | os.X_OK)
            return "empty" if can_be_made else f"not in use: {above} is not writable"
        try:
            self._write(None, b"tried")
        except OSError as error:
            return f"read, not written: {error.strerror or error}"
        return "in use"

    def _path(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise ArgumentError(f"a key has 64 hexadecimal digits, not {key!r}")
        return os.path.join(self.directory, f"{key}.object")

    def _may_use(self) -> bool:
        if self._is_off or not self.directory:
            return False
        # Asked each time: it takes 2 us, and a folder may change its owner or mode.
        reason = refusal(self.directory)
        if reason is None:
            return True
        self.problem = f"{self.directory} is refused: {reason}"
        warn_of_refusal(self.directory, reason)
        return False

    def _handle_unreadable(self, path: str, error: DamagedEntry | OSError) -> None:
        """Drop a file, unless it is not to blame."""
        if getattr(error, "errno", None) in _SHORTAGES:
            self.counts.failures += 1
            self.problem = f"nothing can be read: {error}"
            return
        self.counts.damaged += 1
        self.problem = f"{os.path.basename(path)} was dropped: {error}"
        _remove(path)

    def _mark_use(self, file: int, uses: int) -> None:
        if uses >= MOST_USES:
            os.utime(file)
        elif os.write(file, USE) != len(USE):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, path: str | None, data: bytes) -> None:
        """Write a new file and rename it to `path`; None only tries it."""
        key = os.path.basename(path)[:64] if path else "0" * 64
        temporary = os.path.join(
            self.directory, f".{key}.{os.urandom(8).hex()}.temporary"
        )
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSED_ON_EXEC
        file = os.open(temporary, flags, 0o600)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
            finally:
                os.close(file)
            if path is not None:
                os.replace(temporary, path)
        except BaseException:  # an interrupt too leaves no file behind
            _remove(temporary)
            raise
        if path is None:
            _remove(temporary)

    def _write_ledger(self, size: int) -> bool:
        """Note that so many bytes will be written; whether a sweep is due."""
        path = os.path.join(self.directory, LEDGER)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _CLOSED_ON_EXEC | _PLAIN_FILE
        file = os.open(path, flags, 0o600)
        try:
            os.write(file, b"." * -(-size // LEDGER_UNIT))
            written = os.fstat(file).st_size
        finally:
            os.close(file)
        if written < max(1, self.limit // 16 // LEDGER_UNIT):
            return False
        _remove(path)
        return True

    def _files(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """What is in the folder, if it is ours; files may come and go meanwhile."""
        if not self._may_use():
            return
        try:
            with os.scandir(self.directory) as items:
                for item in items:
                    with contextlib.suppress(OSError):
                        yield item, item.stat(follow_symlinks=False)
        except OSError:
            return


def _read(path: str, key: str, mark_use: Any = None) -> CacheEntry:
    """The checked content of a file; `mark_use(file, uses)` is called if it is good."""
    flags = _CLOSED_ON_EXEC | _PLAIN_FILE
    try:
        access = os.O_RDONLY if mark_use is None else os.O_RDWR | os.O_APPEND
        file = os.open(path, access | flags)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        file, mark_use = os.open(path, os.O_RDONLY | flags), None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
            raise DamagedEntry("it is not a file of ours")
        if not is_private(status):
            raise DamagedEntry("another user has or can have written it")
        entry = unpack(key, _read_all(file, status.st_size))
        if mark_use is not None:
            with contextlib.suppress(OSError):  # a full disk: then it is not counted
                mark_use(file, entry.uses)
    finally:
        os.close(file)
    return entry


def _read_all(file: int, size: int) -> bytes:
    parts = []
    while part := os.read(file, size + 1):  # one more: uses are being added
        parts.append(part)
    return b"".join(parts)


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:  # gone already, or not ours to remove
        return False
    return True


_stores: dict[tuple[Any, ...], Store] = {}


def current_store() -> Store:
    """The store that the settings in force ask for; one object for equal settings.

    >>> with config.override(cache=False):
    ...     current_store().problem
    'turned off by TAPEJIT_CACHE=0 or config.cache'
    """
    now = config.current()
    key = (now.cache, now.cache_dir or default_folder(), now.cache_size)
    found = _stores.get(key)
    if found is None:
        found = _stores.setdefault(key, Store())
    return found
