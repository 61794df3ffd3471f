"""One case in a process of its own: from `python` to its first answer, or its memory.

Run as `python -m benchmarks.fresh LABEL CASE FILE [--memory]` by `processes.py`. Stores
the answer in FILE. With `--memory`, prints by how many bytes the process grew beyond
what it had before its first call. Whatever is imported here counts as time of the peer,
so only NumPy and the case itself are.

Start reading at `main`.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Case, as_program
from benchmarks.peers import package_of

CALLS = 5
"""How often a program runs before its memory is read."""


def find_program(label: str, name: str) -> tuple[Case, Callable[[], Any]]:
    """The case of that file, and its program; NumPy runs the reference.

    >>> case, run = find_program("numpy", "rosenbrock")
    >>> len(run())
    2
    """
    (case,) = importlib.import_module(f"benchmarks.cases.{name}").CASES
    inputs = case.inputs()
    if label == "numpy":
        return case, lambda: case.reference(*inputs)
    return case, as_program(case.builders[label](*inputs)).run


def resident(field: str) -> int:
    """Bytes of this process in memory: now (VmRSS), or at most so far (VmHWM).

    >>> resident("VmHWM") >= 1_000_000
    True
    """
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def growth(label: str, run: Callable[[], Any]) -> tuple[int, Any]:
    """By how much calling `run` lets the process grow, and its answer.

    Another program goes first, so that the package has loaded its compiler.
    """
    _, first = find_program(label, "call_overhead")
    first()
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
    result = None
    for _ in range(CALLS):
        result = run()
    return resident("VmHWM") - before, result


def main(label: str, name: str, file: str, *options: str) -> None:
    """Run the program of a label; store its answer."""
    _, run = find_program(label, name)
    if "--memory" in options:
        grown, result = growth(label, run)
        print(grown)
    else:
        result = run()
    read = package_of(label).read
    several = isinstance(result, list | tuple)
    np.savez(file, *[read(x) for x in (result if several else (result,))])


if __name__ == "__main__":
    main(*sys.argv[1:])
