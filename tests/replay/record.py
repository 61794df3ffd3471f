"""Digests of many programs, with what they depend on, as a file and compared.

A `Record` says with which packages it was made: another NumPy may fold constants to
other bits, and another Python or system is not promised the same text. So records are
compared only if those are equal.

Start reading at `record_of`, then `differences`.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import llvmlite
import numpy as np

import tapejit as tj

from .compiler import LEVELS, THREADS, text_of, usual_settings
from .programs import Program, is_asked_for, leaves_of

KEPT: Final = Path(__file__).with_name("digests.json")
LENGTH: Final = 16  # hexadecimal digits of a digest

Digests = dict[str, str]  # by level


@dataclass(frozen=True)
class Record:
    """Digests by program and level, and what they depend on."""

    made_with: dict[str, str]
    programs: dict[str, Digests] = field(default_factory=dict)

    def text(self) -> str:
        """As JSON, sorted, one program a line."""
        head = "".join(
            f"{json.dumps(name)}: {json.dumps(value)},\n"
            for name, value in self.made_with.items()
        )
        lines = [
            f"{json.dumps(name)}: {json.dumps(self.programs[name], sort_keys=True)}"
            for name in sorted(self.programs)
        ]
        return f'{{\n{head}"programs": {{\n' + ",\n".join(lines) + "\n}\n}\n"


def read_record(file: Path) -> Record:
    """The Record in a file."""
    found = json.loads(file.read_text())
    programs = found.pop("programs")
    return Record(found, programs)


def made_here(what: str = "text") -> dict[str, str]:
    """What digests depend on, in this process; they are of `what`."""
    return {
        "digests": what,
        "llvmlite": llvmlite.__version__,
        "numpy": np.__version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": f"{sys.platform} {platform.machine()}",
        "threads": str(THREADS),
    }


def why_not_comparable(made: dict[str, str], other: dict[str, str]) -> str | None:
    """Why two Records say nothing about each other; None if they do.

    >>> why_not_comparable({"python": "3.11"}, {"python": "3.12"})
    'python is 3.11 for one, 3.12 for the other'
    """
    for name in {**made, **other}:
        if made.get(name) != other.get(name):
            here, there = made.get(name), other.get(name)
            return f"{name} is {here} for one, {there} for the other"
    return None


# Making


def record_of(
    programs: Iterable[Program], *, bits: bool = False, levels: Sequence[str] = ()
) -> Record:
    """The digests of programs; those without native code are left out.

    With `bits` they are of what programs compute.
    """
    digest = bits_digests if bits else text_digests
    made = Record(made_here("bits" if bits else "text"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of functions that are made again and again
        for program in programs:
            found = digest(program, levels or tuple(LEVELS))
            if found:
                made.programs[program.name] = found
    return made


def text_digests(program: Program, levels: Sequence[str]) -> Digests:
    """Of its LLVM text, by level; none if it has no text."""
    graphs = program.graphs()
    found = {}
    for level in levels:
        texts = list(filter(None, (text_of(graph, level) for graph in graphs)))
        if texts:
            found[level] = digest_of(text.encode() for text in texts)
    return found


def bits_digests(program: Program, levels: Sequence[str]) -> Digests:
    """Of its results, by level; none if NumPy alone computes them."""
    if not any(text_of(graph, levels[0]) for graph in program.graphs()):
        return {}
    found = {}
    for level in levels:
        with (
            usual_settings(cpu=LEVELS[level]),
            tj.set_num_threads(THREADS),
            redirect_stdout(io.StringIO()),  # what programs show is nobody's result
        ):
            results = leaves_of(program.run())
        found[level] = digest_of(map(bits_of, results))
    return found


def bits_of(leaf: Any) -> bytes:
    """A result as bytes: of a NaN neither sign nor payload counts.

    >>> bits_of(np.float32("nan")) == bits_of(-np.float32("nan"))
    True
    >>> bits_of(np.float32(0)) == bits_of(-np.float32(0))
    False
    """
    if not isinstance(leaf, np.ndarray | np.generic):
        return repr(leaf).encode()
    array = np.array(leaf)
    with np.errstate(all="ignore"):
        array[array != array] = np.nan if array.dtype.kind not in "biu" else 0
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def digest_of(texts: Iterable[bytes]) -> str:
    """One digest of several texts, each with its length."""
    made = hashlib.sha256()
    for text in texts:
        made.update(f"{len(text)}\n".encode())
        made.update(text)
    return made.hexdigest()[:LENGTH]


# Comparing


@dataclass(frozen=True)
class Difference:
    """A program, and what became of it: "differs", "is new" or "is gone"."""

    name: str
    what: str
    levels: tuple[str, ...] = ()

    def __str__(self) -> str:
        behind = f" ({', '.join(self.levels)})" if self.levels else ""
        return f"{self.name} {self.what}{behind}"


def differences(
    before: Record, after: Record, patterns: Sequence[str] = ()
) -> list[Difference]:
    """In what two Records differ, among the programs whose names match."""
    found = []
    for name in sorted({*before.programs, *after.programs}):
        if not is_asked_for(name, patterns):
            continue
        old, new = before.programs.get(name), after.programs.get(name)
        if old is None or new is None:
            found.append(Difference(name, "is new" if old is None else "is gone"))
        elif old != new:
            levels = (x for x in LEVELS if old.get(x) != new.get(x))
            found.append(Difference(name, "differs", tuple(levels)))
    return found
