"""One line per epoch that says where training stands.

On a terminal the line is rewritten, at most ten times a second; anywhere else (a file,
a pipe, a notebook) it is printed once, when the epoch is over. It goes to standard
output, as the results that it shows are what the program was run for.

Start reading at `progress_for`, then `Terminal.show`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sized
from contextlib import suppress
from typing import Any, Final

from tapejit.training.history import History

INTERVAL: Final = 0.1  # seconds between two versions of the line
BAR: Final = 20  # characters


class Progress:
    """Shows nothing: what `verbose=0` asks for, and the base of the others."""

    def start_epoch(self, history: History) -> None:
        """An epoch begins, or goes on."""

    def show(self, history: History) -> None:
        """A batch is done."""

    def end_epoch(self, history: History, logs: dict[str, float]) -> None:
        """An epoch is complete."""

    def end(self, history: History) -> None:
        """Training is over."""

    def say(self, text: str) -> None:
        """Something happened, possibly in the middle of writing a line."""


class Lines(Progress):
    """One line at the end of each epoch."""

    def __init__(self, epochs: int, batches: int | None) -> None:
        self.epochs = epochs
        self.batches = batches
        self.started = 0.0
        self.done_before = 0
        self.steps_before = 0

    def start_epoch(self, history: History) -> None:
        """Start the clock."""
        self.started = time.perf_counter()
        self.done_before = history.batches
        self.steps_before = history.steps

    def end_epoch(self, history: History, logs: dict[str, float]) -> None:
        """Print the line of an epoch."""
        taken = time.perf_counter() - self.started
        steps = history.steps - self.steps_before
        parts = [self.epoch_text(history.epochs), values_text(logs), time_text(taken)]
        if steps:
            parts.append(f"{time_text(taken / steps)}/step")
        self.write_line("  ".join(part for part in parts if part))

    def epoch_text(self, number: int) -> str:
        """`epoch  3/10`."""
        return f"epoch {number:>{len(str(self.epochs))}}/{self.epochs}"

    def write_line(self, text: str) -> None:
        """A line that stays."""
        print(text, flush=True)

    def end(self, history: History) -> None:
        """Say why it ended early."""
        if history.stopped is not None:
            self.write_line(f"stopped: {history.stopped}")

    def say(self, text: str) -> None:
        """Tell the user from a signal handler, where Python's own files may be busy."""
        with suppress(OSError):  # there may be nobody to tell
            os.write(2, f"\n{text}\n".encode())


class Terminal(Lines):
    """A line that is rewritten while the epoch goes on."""

    def __init__(self, epochs: int, batches: int | None) -> None:
        super().__init__(epochs, batches)
        self.shown_at = 0.0

    def show(self, history: History) -> None:
        """Rewrite the line if it has stood long enough."""
        now = time.perf_counter()
        if now - self.shown_at < INTERVAL:
            return
        self.shown_at = now
        steps = history.batches - self.done_before
        pace = (now - self.started) / max(1, steps)
        parts = [self.epoch_text(history.epochs + 1)]
        if self.batches is None:
            parts.append(str(history.batches))
        else:
            parts.append(bar_text(history.batches, self.batches))
            parts.append(f"{history.batches}/{self.batches}")
        parts.append(values_text(history.means()))
        parts.append(f"{time_text(pace)}/step")
        if self.batches is not None:
            left = max(0, self.batches - history.batches) * pace
            parts.append(f"{time_text(left)} left")
        self.rewrite("  ".join(part for part in parts if part))

    def rewrite(self, text: str) -> None:
        """Replace the line, cut to the width of the terminal."""
        width = shutil.get_terminal_size().columns
        sys.stdout.write("\r\x1b[K" + text[: width - 1])
        sys.stdout.flush()

    def write_line(self, text: str) -> None:
        """A line that stays, in place of the one that was rewritten."""
        sys.stdout.write(f"\r\x1b[K{text}\n")
        sys.stdout.flush()
        self.shown_at = 0.0


def progress_for(verbose: int, epochs: int, data: Iterable[Any]) -> Progress:
    """The way to show progress that suits where the output goes.

    >>> progress_for(0, 1, []).show(History())
    """
    if not verbose:
        return Progress()
    batches = len(data) if isinstance(data, Sized) else None
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return (Terminal if is_terminal else Lines)(epochs, batches)


def bar_text(done: int, total: int) -> str:
    """A bar of fixed width.

    >>> bar_text(5, 10)
    '[##########..........]'
    """
    full = BAR * min(done, total) // max(1, total)
    return f"[{'#' * full}{'.' * (BAR - full)}]"


def values_text(logs: dict[str, float]) -> str:
    """Names and values.

    >>> values_text({"loss": 0.123456, "accuracy": 1.0})
    'loss 0.1235  accuracy 1'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in logs.items())


def time_text(seconds: float) -> str:
    """A time as one would say it.

    >>> time_text(0.00123), time_text(0.5), time_text(12.34), time_text(3700)
    ('1.23 ms', '500 ms', '12.3 s', '1:01:40')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
