"""What tapejit finds on this machine: versions, processor, threads, BLAS, cache.

It is what a report of a problem needs, and the first place to look when code is slower
than expected. A part that is missing or broken is named as such; the rest is told all
the same.

Start reading at `gather`.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tapejit.base.config import config

Facts = dict[str, str]


def gather(version: str) -> dict[str, Facts]:
    """All that is known, in sections; `version` is that of tapejit.

    >>> list(gather("1.0"))
    ['versions', 'processor', 'threads', 'BLAS', 'cache', 'settings']
    """
    return {
        "versions": _told(lambda: versions(version)),
        "processor": _told(processor),
        "threads": _told(threads),
        "BLAS": _told(blas),
        "cache": _told(cache),
        "settings": _told(settings),
    }


def layout(sections: dict[str, Facts]) -> str:
    """Sections as text, one line a fact.

    >>> print(layout({"versions": {"tapejit": "1.0", "numpy": "2.4"}}))
    versions
      tapejit  1.0
      numpy    2.4
    """
    width = max(len(label) for facts in sections.values() for label in facts)
    lines = []
    for title, facts in sections.items():
        lines.append(title)
        lines.extend(f"  {label:<{width}}  {text}" for label, text in facts.items())
    return "\n".join(lines)


def _told(section: Callable[[], Facts]) -> Facts:
    """A section; if it cannot be found out, why."""
    try:
        return section()
    except Exception as error:  # whatever is broken is what this is to report
        return {"unknown": f"{type(error).__name__}: {error}"}


def _attempt(find: Callable[[], str]) -> str:
    """A fact; if it cannot be found out, why."""
    return _told(lambda: {"found": find()}).popitem()[1]


def versions(version: str) -> Facts:
    """The versions of tapejit and all it is built on.

    >>> versions("1.0")["numpy"] == np.__version__
    True
    """
    from importlib import metadata

    found = {
        "tapejit": version,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "numpy": np.__version__,
    }
    for package in ("llvmlite", "numba", "scipy", "ml_dtypes", "opt_einsum"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def processor() -> Facts:
    """What code is generated for.

    >>> sorted(processor())
    ['LLVM', 'cpu', 'machine', 'vectors']
    """
    machine = f"{platform.machine()}, {platform.system()}"
    try:
        from llvmlite import binding
    except ImportError as error:
        return {"machine": machine, "LLVM": f"missing: {error}"}
    limit = f", code is made for {config.cpu}" if config.cpu else ""
    return {
        "machine": machine,
        "cpu": binding.get_host_cpu_name() + limit,
        "vectors": f"{vector_bits(binding.get_host_cpu_features())} bits",
        "LLVM": ".".join(map(str, binding.llvm_version_info)),
    }


def vector_bits(features: Any) -> int:
    """The widest registers of a processor with these features.

    >>> vector_bits({"avx": True, "avx512f": False})
    256
    """
    if features.get("avx512f"):
        return 512
    return 256 if features.get("avx") else 128


def threads() -> Facts:
    """How many threads there are to use, and who says so.

    >>> "processors" in threads()
    True
    """
    found = {"processors": str(os.cpu_count())}
    if hasattr(os, "sched_getaffinity"):
        found["allowed to us"] = str(len(os.sched_getaffinity(0)))
    for name in ("OMP_NUM_THREADS", "TAPEJIT_NUM_THREADS"):
        if name in os.environ:
            found[name] = os.environ[name]
    module = _module("threads")
    if module is not None:
        found["in use"] = str(module.get_num_threads())
        found["pool"] = _attempt(lambda: str(module.current_driver().pool))
    return found


def blas() -> Facts:
    """The library that multiplies matrices for NumPy, in eager code.

    >>> bool(blas())
    True
    """
    module = _module("blas")
    found = module.find() if module is not None else None
    if found is None:
        return {"library": "none found that can be told a number of threads"}
    return {"library": str(found), "threads": str(found.threads)}


def cache() -> Facts:
    """Where native code is kept, whether that works, and how much there is.

    >>> with config.override(cache=False):
    ...     print(cache()["state"])
    not in use: turned off by TAPEJIT_CACHE=0 or config.cache
    """
    from tapejit.runtime.store.store import MEGABYTE, current_store

    store = current_store()
    state = store.state()
    number, size = store.usage()
    limit = store.limit / MEGABYTE
    return {
        "folder": store.directory or "none",
        "state": state,
        "entries": f"{number}, {size / MEGABYTE:.1f} of {limit:g} MB",
    }


def settings() -> Facts:
    """Every setting that is in force.

    >>> with config.override(debug=2):
    ...     settings()["debug"]
    '2 (default 0)'
    """
    return dict(config.current().texts())


def _module(name: str) -> Any:
    """A module of this folder, or None if what it needs is not installed."""
    full = f"tapejit.runtime.{name}"
    try:
        return sys.modules.get(full) or importlib.import_module(full)
    except ImportError:
        return None
