"""Run random programs:  python -m tests.fuzz --seeds 0:20000 --processes 2

Each failure is printed with its seed, as a program made smaller; the last line counts.
`--show` prints programs without running them. Processes are started anew if one dies,
and the program that it died of is a failure.

Start reading at `main`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seeds", default="0:1000", help="first:end")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print programs only")
    parser.add_argument("--whole", action="store_true", help="make none smaller")
    parser.add_argument("--stop", type=int, default=0, help="after so many failures")
    parser.add_argument("--fault", default="", help="put back one of `faults`")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    first, end = map(int, options.seeds.split(":"))
    if options.show:
        from fuzz.writer import program_of

        for seed in range(first, end):
            print(program_of(seed), end="\n\n")
        return 0
    if options.worker:
        work(options.whole, options.fault)
        return 0
    return Run(range(first, end), options).run()


def work(whole: bool, fault: str) -> None:
    """Judge the seeds that come by the standard input, one answer line each."""
    import tapejit as tj
    from fuzz.faults import put_back
    from fuzz.judge import judge
    from fuzz.shrink import shrunk
    from fuzz.writer import program_of
    from tapejit.base import blas

    if fault:
        put_back(fault)
    blas.set_threads(1)
    tj.config.update(native=True, check=True, cache=False)
    for line in sys.stdin:
        program = program_of(int(line))
        failure = judge(program)
        answer: dict[str, Any] = {"seed": program.seed}
        if failure is not None:
            if not whole:
                program = shrunk(program, failure.kind, judge)
                failure = judge(program) or failure
            answer.update(failure=str(failure), program=str(program))
        print(json.dumps(answer), flush=True)


class Run:
    """Many seeds on some processes."""

    def __init__(self, seeds: range, options: Any) -> None:
        self.all, self.seeds, self.options = seeds, iter(seeds), options
        self.done = 0
        self.failures: list[int] = []
        self.began = self.told = time.perf_counter()

    def run(self) -> int:
        """All of it; the exit code says whether something failed."""
        threads = [Thread(target=self.feed) for _ in range(self.options.processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - self.began
        print(
            f"{self.done} programs, seeds {self.all.start}:{self.all.stop}, "
            f"{len(self.failures)} failures in {seconds:.0f} s"
            + (f": seeds {sorted(self.failures)}" if self.failures else ""),
            flush=True,
        )
        return 1 if self.failures else 0

    def feed(self) -> None:
        """Give seeds to one process, and another one if it dies."""
        child = self.start()
        for seed in self.seeds:
            if 0 < self.options.stop <= len(self.failures):
                break
            child.stdin.write(f"{seed}\n")
            child.stdin.flush()
            text = child.stdout.readline()
            if text:
                self.note(json.loads(text))
            else:
                self.note({"seed": seed, "failure": f"exit code {child.wait()}"})
                child = self.start()
        child.stdin.close()
        child.wait()

    def start(self) -> Any:
        command = [sys.executable, "-m", "tests.fuzz", "--worker"]
        command += ["--whole"] * self.options.whole + ["--fault", self.options.fault]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def note(self, answer: dict[str, Any]) -> None:
        """Count, and tell of failures and now and then of progress."""
        self.done += 1
        if "failure" in answer:
            self.failures.append(answer["seed"])
            print(f"FAILED {answer['failure']}\n{answer.get('program', answer)}\n")
        now = time.perf_counter()
        if now - self.told > 20:
            self.told = now
            print(
                f"{self.done} of {len(self.all)} programs, "
                f"{len(self.failures)} failures, {now - self.began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    raise SystemExit(main())
