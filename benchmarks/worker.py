"""One peer in one process: prepares cases, checks their answers, times on command.

Run as `python -m benchmarks.worker LABEL THREADS` by `measure.Worker`. Requests and
replies are JSON objects, one per line, over standard input and what was standard
output; file descriptor 1 itself is pointed at standard error first, because frameworks
print. The data structure is `Session`: the peer, and the case it has prepared.

Start reading at `Session.prepare`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from benchmarks.case import (
    OURS,
    Array,
    Case,
    Program,
    WrongAnswer,
    as_program,
    check_answer,
)
from benchmarks.cases import find_case
from benchmarks.peers import limit_cpus, package_of, version_of

Reply = dict[str, Any]


FEWEST_CALLS = 3
"""Of a round: a call on its own has no call before it that would fill the caches and
wake the threads, which all but the first of a user's loop have."""

LONG_SECONDS = 1.0
"""Calls that take longer are timed one at a time, without any before them."""


def time_calls(run: Callable[[], Any], iterations: int) -> float:
    """Seconds for `iterations` calls, the collector off and its work done before.

    A tenth of the calls go first, untimed: another peer has had the caches since.

    >>> time_calls(lambda: None, 10) >= 0
    True
    """
    gc.collect()
    gc.disable()
    try:
        for _ in repeat(None, max(1, iterations // 10) if iterations > 1 else 0):
            run()
        started = time.perf_counter()
        for _ in repeat(None, iterations):
            run()
        return time.perf_counter() - started
    finally:
        gc.enable()


def calibrate(run: Callable[[], Any], round_seconds: float) -> int:
    """How many calls take about `round_seconds`, and no fewer than `FEWEST_CALLS`.

    >>> calibrate(lambda: None, 0.0)
    3
    """
    iterations = 1
    while True:
        seconds = time_calls(run, iterations)
        if seconds >= LONG_SECONDS:
            return iterations
        if seconds >= round_seconds / 2:
            wanted = round(iterations * round_seconds / max(seconds, 1e-9))
            return max(FEWEST_CALLS, wanted)
        # Grow by at most 8: the first calls are the slow ones of a peer that warms up.
        growth = min(8.0, max(2.0, round_seconds / max(seconds, 1e-9)))
        iterations = int(iterations * growth) + 1


def parts_of(result: Any) -> list[Any]:
    """The arrays in a nest of lists, tuples and dicts, in order.

    >>> parts_of((1, [2, {"b": 3, "a": 4}]))
    [1, 2, 3, 4]
    """
    if isinstance(result, dict):
        result = [*result.values()]
    if not isinstance(result, list | tuple):
        return [result]
    return [x for part in result for x in parts_of(part)]


@dataclass
class Session:
    """A peer and the case it is busy with."""

    label: str
    case: Case | None = None
    program: Program | None = None
    reference: Sequence[Array] = field(default=())

    def answer(self, result: Any) -> list[Array]:
        """The result of a call as a list of NumPy arrays."""
        read = package_of(self.label).read
        return [read(x) for x in parts_of(result)]

    def prepare(self, case: Case, round_seconds: float) -> Reply:
        """Build, call once, check answer and kernels, warm up, check again.

        >>> from benchmarks.cases import find_case
        >>> session = Session("numpy")
        >>> reply = session.prepare(find_case("eager_op/mul"), round_seconds=0.001)
        >>> reply["dtypes"], reply["error"] < 1e-5
        (['float32'], True)
        """
        gc.unfreeze()
        self.case = self.program = None
        inputs = case.inputs()
        self.reference = case.reference(*inputs)

        started = time.perf_counter()
        program = as_program(case.builders[self.label](*inputs))
        built = time.perf_counter()
        result = program.run()
        called = time.perf_counter()

        answer = self.answer(result)
        error = check_answer(case, answer, self.reference)
        kernels = program.kernels() if program.kernels else None
        if self.label == OURS and case.kernels is not None and kernels != case.kernels:
            raise WrongAnswer(
                f"{case.name}: {kernels} kernels, expected {case.kernels}"
            )
        compiled = program.compile_seconds() if program.compile_seconds else None
        del result

        measured = program.measure is not None
        iterations = 1 if measured else calibrate(program.run, round_seconds)
        self.case, self.program = case, program
        self.verify()
        gc.collect()
        gc.freeze()  # or each round's collection walks the whole framework: 0.2 s
        return {
            "build_seconds": built - started,
            "first_call_seconds": called - built,
            "compile_seconds": compiled,
            "kernels": kernels,
            "dtypes": [x.dtype.name for x in answer],
            "error": error,
            "iterations": iterations,
        }

    def run(self, iterations: int) -> Reply:
        """One timed round, or one measurement of what the program measures."""
        if self.program is None:
            raise RuntimeError("run before prepare")
        if self.program.measure is not None:
            return {"seconds": self.program.measure() * iterations}
        return {"seconds": time_calls(self.program.run, iterations)}

    def verify(self) -> Reply:
        """Check the answer of one more call, unless calls depend on one another."""
        if self.case is None or self.program is None:
            raise RuntimeError("verify before prepare")
        if self.case.stateful:
            return {}
        answer = self.answer(self.program.run())
        return {"error": check_answer(self.case, answer, self.reference)}

    def handle(self, request: dict[str, Any]) -> Reply:
        """Do what one request asks."""
        match request:
            case {"do": "prepare", "case": name, "round_seconds": seconds}:
                return self.prepare(find_case(name), seconds)
            case {"do": "run", "iterations": iterations}:
                return self.run(iterations)
            case {"do": "verify"}:
                return self.verify()
        raise ValueError(f"not a request: {request}")


def failure(error: Exception) -> Reply:
    """A reply that says what went wrong; the traceback goes to standard error.

    >>> failure(ValueError("no"))["failed"]
    'ValueError: no'
    """
    traceback.print_exc()
    return {"failed": f"{type(error).__name__}: {error}"}


def main(label: str, threads: int) -> None:
    """Start the peer, report its version, then answer requests until input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(message: Reply) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    limit_cpus(threads)
    session = Session(label)
    try:
        started = time.perf_counter()
        version = version_of(label)  # imports it
        package_of(label).start(threads)
        import_seconds = time.perf_counter() - started
    except Exception as error:  # whatever an import can raise is this peer's failure
        reply(failure(error))
        return
    reply({"version": version, "import_seconds": import_seconds})
    for line in sys.stdin:
        try:
            message = session.handle(json.loads(line))
        except Exception as error:  # reported as this peer's failure; the others go on
            message = failure(error)
        reply(message)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
