"""One line that says how far a long compilation is.

Who compiles tells a `CompileProgress` what it does; nothing is shown until a second has
passed. Then a terminal gets one line that is rewritten a few times a second and in the
end says how long it took; anything else (a file, a pipe, a notebook) gets that last
line alone. It goes to standard error. The setting `progress` turns it off, and nobody
waits for what is compiled in the background, so nothing is shown of that.

Start reading at `showing`, then `CompileProgress`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tapejit.base.config import config

PATIENCE: Final = 1.0  # seconds until something is shown
INTERVAL: Final = 0.2  # seconds between two versions of the line

_current: CompileProgress | None = None  # who compiles holds a lock: there is one


class CompileProgress:
    """What is compiled, since when, and whether that was shown."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = time.perf_counter()
        self.looked_at = 0.0
        self.has_shown = False
        self.part = ""  # of a Graph that is compiled in parts: ", part 2 of 3"

    def step(self, what: str, number: int, count: int) -> None:
        """So much is done: kernel 3 of 10."""
        now = time.perf_counter()
        if now - self.started < PATIENCE or now - self.looked_at < INTERVAL:
            return
        self.looked_at = now
        if not is_terminal():
            return
        self.has_shown = True
        text = f"tapejit: compiling {self.name}{self.part}, {what} {number} of {count}"
        width = shutil.get_terminal_size().columns
        write(f"\r\x1b[K{text[: width - 1]}")

    def end(self, is_complete: bool) -> None:
        """It is over: the last line stays, or none if it was interrupted."""
        seconds = time.perf_counter() - self.started
        if seconds < PATIENCE:
            return
        text = f"tapejit: compiled {self.name} in {seconds:.1f} s\n"
        start = "\r\x1b[K" if self.has_shown else ""
        write(start + (text if is_complete else ""))


class Silence(CompileProgress):
    """Shows nothing."""

    def step(self, what: str, number: int, count: int) -> None:
        """Nobody is told."""

    def end(self, is_complete: bool) -> None:
        """Nobody is told."""


def is_terminal() -> bool:
    """Whether a line can be rewritten there."""
    stream = sys.stderr
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def write(text: str) -> None:
    """Text for the user, if there is anybody to read it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # none, a closed pipe, a closed file
        pass


@contextmanager
def showing(name: str, *, quietly: bool = False) -> Iterator[CompileProgress]:
    """Show how far it is what is compiled inside; the outermost one has the word.

    >>> with showing("step") as progress:
    ...     current() is progress
    True
    """
    global _current
    if _current is not None:
        yield _current
        return
    is_shown = config.progress and not quietly
    progress = CompileProgress(name) if is_shown else Silence(name)
    _current = progress
    is_complete = False
    try:
        yield progress
        is_complete = True
    finally:
        _current = None
        progress.end(is_complete)


def current() -> CompileProgress:
    """The progress of what is compiled now; what nobody shows is silent."""
    return Silence("") if _current is None else _current
