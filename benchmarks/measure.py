"""Turns: every peer prepares the case, then all run round 1, then all round 2.

The data structures are `Worker`, a live process that speaks the protocol of
`worker.py`, and `Outcome`, what one peer did with one case. Interleaving by round is
the point: when the machine slows down for a second, it slows every peer of that round,
and ratios taken within a round stay what they are.

Start reading at `measure_case`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.case import Case, package_name
from benchmarks.peers import is_installed, thread_environment

ROOT = Path(__file__).resolve().parent.parent

SETTLE_SECONDS = 0.25
"""Between turns: pool threads of the peer before spin while they wait for work, those
of OpenMP for 200 ms, and would take a core from the next one."""

TIMEOUT_SECONDS = 600.0
"""For one request; a peer that takes longer is ended and reported as failed."""

Progress = Callable[[str], None]


class PeerFailed(Exception):
    """A worker could not do what was asked: wrong answer, exception, crash, timeout."""


@dataclass(frozen=True)
class Settings:
    """How long and how often to measure.

    >>> Settings(rounds=3).threads
    2
    """

    rounds: int = 15
    round_seconds: float = 0.05
    threads: int = 2


@dataclass
class Outcome:
    """What one peer did with one case; `seconds` is per operation, one entry per round.

    `status` is "ok", "not installed" or "failed".

    >>> outcome = Outcome("torch", seconds=[3e-6, 1e-6, 2e-6])
    >>> outcome.best, outcome.median
    (1e-06, 2e-06)
    """

    peer: str
    status: str = "ok"
    reason: str = ""
    version: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """The reply to "prepare": seconds of build, first call and compile, kernels,
    dtypes, error against the reference, calls per round."""
    seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """Seconds of the fastest round, per operation."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """Seconds of the median round, per operation."""
        return median(self.seconds)


class Worker:
    """One peer's process; `ask` sends a request and waits for its reply."""

    def __init__(self, label: str, threads: int, python: str = sys.executable) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.label = label
        self.version = ""
        self.import_seconds = 0.0
        # Open as long as the worker lives; `close` closes it.
        self.errors = tempfile.TemporaryFile(  # noqa: SIM115 (as said above)
            mode="w+", encoding="utf-8"
        )
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", label, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            encoding="utf-8",
            env={
                **os.environ,
                **thread_environment(threads),
                "PYTHONPATH": path.rstrip(os.pathsep),
            },
        )

    def greet(self) -> None:
        """Wait until the peer is imported."""
        greeting = self.receive()
        self.version = greeting["version"]
        self.import_seconds = greeting["import_seconds"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, one reply; `PeerFailed` if the worker says or shows failure."""
        assert self.process.stdin is not None
        # If it has died, `receive` finds the end of its output and says how.
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """The next reply."""
        assert self.process.stdout is not None
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.process.kill()

        timer = threading.Timer(TIMEOUT_SECONDS, expire)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if expired.is_set():
            raise PeerFailed(f"no reply within {TIMEOUT_SECONDS:.0f} s")
        if not line:
            raise PeerFailed(f"the process ended with status {self.process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "failed" in reply:
            raise PeerFailed(reply["failed"])
        return reply

    def complaints(self) -> str:
        """The end of what the worker wrote to standard error."""
        self.errors.seek(0)
        return "".join(self.errors.readlines()[-25:])

    def close(self) -> None:
        """End the process: by the end of its input, or by force after 5 seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # already gone
            self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def measure_group(
    cases: Iterable[Case],
    wanted: Callable[[str], bool],
    settings: Settings,
    progress: Progress,
    pythons: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Outcome]]:
    """Outcomes by case and peer, for cases that share one set of processes.

    `pythons` gives the interpreter of a package that does not live in this one.
    """
    pythons = pythons or {}
    cases = list(cases)
    labels = dict.fromkeys(
        label for case in cases for label in case.builders if wanted(label)
    )
    threads = min(settings.threads, *(c.threads or settings.threads for c in cases))
    workers: dict[str, Worker] = {}
    broken: dict[str, Outcome] = {}
    try:
        for label in labels:
            python = pythons.get(package_name(label), sys.executable)
            if python == sys.executable and not is_installed(label):
                broken[label] = Outcome(label, status="not installed")
                continue
            progress(f"starting {label}")
            workers[label] = Worker(label, threads, python)
        for label, worker in list(workers.items()):  # which import side by side
            try:
                worker.greet()
            except PeerFailed as error:
                broken[label] = failed(worker, error, progress)
                del workers[label]
                worker.close()
        return {
            case.name: measure_case(case, workers, broken, settings, progress)
            for case in cases
        }
    finally:
        for worker in workers.values():
            worker.close()


def measure_case(
    case: Case,
    workers: Mapping[str, Worker],
    broken: Mapping[str, Outcome],
    settings: Settings,
    progress: Progress,
) -> dict[str, Outcome]:
    """Outcomes by peer: each prepared and checked, then all in turns, then checked."""
    outcomes: dict[str, Outcome] = {
        label: broken[label] for label in case.builders if label in broken
    }
    running: list[str] = []

    def attempt(label: str, **request: Any) -> dict[str, Any] | None:
        try:
            return workers[label].ask(**request)
        except PeerFailed as error:
            outcomes[label] = failed(workers[label], error, progress)
            if label in running:
                running.remove(label)
            return None

    for label in (label for label in case.builders if label in workers):
        progress(f"{case.name}: {label}: first call, answer, warming up")
        details = attempt(
            label,
            do="prepare",
            case=case.name,
            round_seconds=settings.round_seconds,
        )
        if details is not None:
            details["import_seconds"] = workers[label].import_seconds
            version = workers[label].version
            outcomes[label] = Outcome(label, version=version, details=details)
            running.append(label)

    rounds = min(settings.rounds, case.rounds or settings.rounds)
    for turn in range(rounds):
        for label in list(running):
            progress(f"{case.name}: round {turn + 1} of {rounds}: {label}")
            time.sleep(SETTLE_SECONDS)
            iterations = outcomes[label].details["iterations"]
            reply = attempt(label, do="run", iterations=iterations)
            if reply is not None:
                each = reply["seconds"] / (iterations * case.operations)
                outcomes[label].seconds.append(each)

    for label in list(running):
        attempt(label, do="verify")
    return {label: outcomes[label] for label in case.builders if label in outcomes}


def failed(worker: Worker, error: PeerFailed, progress: Progress) -> Outcome:
    """The outcome of a peer that failed; what it had to say is shown now."""
    progress(f"{worker.label} failed: {error}\n{worker.complaints()}")
    return Outcome(
        worker.label, status="failed", reason=str(error), version=worker.version
    )
