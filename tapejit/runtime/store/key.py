"""What native code depends on, and the key that it is stored under.

A key is a digest of everything that could make other code of the same Graph: the Graph
as it was traced, with which no pass has to run to find its code; the sources of
everything between a Graph and its machine code; the settings; the versions and the
processor. In doubt it is part of the key: a key that changes without need costs a
compilation, one that stays the same by mistake gives wrong results.

Finding all that must not cost what the stored code saves, nor load what the code is to
make unnecessary: the sources are read and hashed (90 files, 2 ms; their dates would be
faster by 1 ms and wrong where files are unpacked with fixed dates), Numba's version is
read from its folder (0.2 ms, against 300 to import it and 30 for importlib.metadata).

One case remains: a source that is changed while the process runs. What is in memory is
older than what would be hashed, so such a process has keys that no other one has.

Start reading at `cache_key`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from tapejit.base.config import config
from tapejit.ir.rewriting import VERSION
from tapejit.targets.cpu.machine import processor

# Settings that leave native code as it is. Any other is part of the key, so a new
# setting is until it is named here.
HARMLESS: Final = frozenset(
    {
        "cache",
        "cache_dir",
        "cache_size",
        "compile",
        "cuda",  # who runs kernels: those are kept under the name of what compiles them
        "debug",
        "device_memory",
        "eager",
        "kept_memory",
        "mixed_precision",  # the casts it asks for are Nodes
        "native",
        "num_threads",  # results are the same bits for any number of threads
        "pool",  # reached by address
        "soft_placement",  # which Graphs are made code of, not which code
    }
)

# Parts of the package with which a Graph becomes no other code. Any other counts: the
# operations, for one, have their lane expressions in `ops`.
NOT_SOURCES: Final = frozenset(
    {"tensor", "array", "tape", "tracing", "nn", "optimizers", "training"}
    | {"__main__.py", "debug.py", "testing.py"}
)


def cache_key(graph_digest: str, *, extras: Mapping[str, Any]) -> str:
    """The key of a Graph's code: 64 hexadecimal digits.

    `extras` is what else the code depends on (layouts, say), as JSON.

    >>> key = cache_key("abc", extras={"layouts": ["C", "F"]})
    >>> len(key), key == cache_key("abc", extras={"layouts": ["C", "C"]})
    (64, False)
    """
    text = json.dumps(signature(graph_digest, extras=extras), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def signature(graph_digest: str, *, extras: Mapping[str, Any]) -> dict[str, Any]:
    """All that is in a key, readable; worth keeping in the header of an entry.

    >>> sorted(signature("abc", extras={}))
    ['environment', 'extras', 'graph', 'pipeline', 'settings']
    """
    return {
        "graph": graph_digest,
        "pipeline": VERSION,
        "extras": dict(extras),
        "settings": settings_that_matter(),
        "environment": environment(),
    }


def settings_that_matter() -> dict[str, Any]:
    """The settings in force, without those that change no code.

    >>> "default_float" in settings_that_matter(), "debug" in settings_that_matter()
    (True, False)
    """
    now = vars(config.current()).items()
    return {name: value for name, value in now if name not in HARMLESS}


@functools.cache
def environment() -> dict[str, str]:
    """What native code depends on that a process cannot change.

    >>> sorted(environment())[:5]
    ['cores', 'llvmlite', 'numba', 'numpy', 'platform']
    """
    import llvmlite  # its version alone: the library is not loaded

    return {
        "sources": sources_digest(),
        # The name of extension files carries the tag of Python's binary interface.
        "python": importlib.machinery.EXTENSION_SUFFIXES[0],
        "numpy": np.__version__,
        "llvmlite": llvmlite.__version__,
        "numba": numba_version() or "none",
        "platform": f"{sys.platform} {platform.machine()} {sys.byteorder}",
        "processor": processor.identity() or llvms_description(),
        "cores": str(processor.cores()),  # for so many tasks code has room
    }


def llvms_description() -> str:
    """The processor as LLVM sees it; that takes 50 ms, to load LLVM.

    >>> len(llvms_description().split())
    3
    """
    from llvmlite import binding

    features = binding.get_host_cpu_features().flatten()
    return f"{binding.get_process_triple()} {binding.get_host_cpu_name()} {features}"


def sources_digest() -> str:
    """SHA-256 over the sources of all that makes code of a Graph, names and contents.

    >>> len(sources_digest())
    64
    """
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(here))
    whole = hashlib.sha256()
    started = process_start()
    is_changed = False
    for path in _sources(package, NOT_SOURCES):
        with open(path, "rb", buffering=0) as file:
            content = file.read()
            is_changed |= os.fstat(file.fileno()).st_mtime > started
        name = path[len(package) + 1 :].replace(os.sep, "/")
        whole.update(b"%s\0%d\0" % (name.encode(), len(content)))
        whole.update(content)
    if is_changed:  # since it was imported, perhaps
        whole.update(os.urandom(32))
    return whole.hexdigest()


_imported = time.time()


def process_start() -> float:
    """When this process began, in seconds of `time.time`, give or take 20 ms.

    Where the system does not tell, it is when this module was imported.

    >>> process_start() < time.time()
    True
    """
    try:
        with open("/proc/self/stat") as file:
            # The second word is the program's name, and may be anything in brackets.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        since_boot = ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError, AttributeError):
        return _imported


def _sources(folder: str, left_out: frozenset[str] = frozenset()) -> Iterator[str]:
    """The Python files of a folder and those in it, in a fixed order."""
    with os.scandir(folder) as items:
        found = sorted(items, key=lambda item: item.name)
    for item in found:
        if item.name in left_out or item.name == "__pycache__":
            continue
        if item.name.endswith(".py"):
            yield item.path
        elif item.is_dir():
            yield from _sources(item.path)


def numba_version() -> str | None:
    """The version of the installed Numba, which is not imported; None if there is none.

    >>> import re
    >>> bool(re.match(r"\\d+\\.\\d+", numba_version()))
    True
    """
    return _version_in_folder("numba", "_version.py", r'"version": "([^"]+)"')


def _version_in_folder(package: str, file: str, pattern: str) -> str | None:
    """A version by reading one file of a package, else by its installation record."""
    try:
        spec = importlib.util.find_spec(package)  # of a package: nothing is executed
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return None
    try:
        with open(os.path.join(os.path.dirname(spec.origin), file)) as lines:
            match = re.search(pattern, lines.read())
        if match:
            return match[1]
    except OSError:
        pass
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
