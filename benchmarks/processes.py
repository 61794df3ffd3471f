"""Cases about whole processes: how long until the first answer, and how much memory.

The data structure is `FreshProcess`: a peer and a case that a process of its own runs
each time it is measured, with the caches of all packages in a folder given. Its answer
is the one the last process stored, so every measurement is also checked.

Start reading at `FreshProcess.measure`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.case import Array, Program

BYTECODE = str(Path(tempfile.gettempdir(), f"tapejit-bytecode-{os.getpid()}"))


def cache_environment(folder: Path) -> dict[str, str]:
    """Every package keeps what it has compiled in `folder`, however small.

    >>> sorted(cache_environment(Path("/x")))[0]
    'JAX_COMPILATION_CACHE_DIR'
    """
    return {
        "TAPEJIT_CACHE_DIR": str(folder / "tapejit"),
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        # As after an installation: modules have been compiled to bytecode.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": BYTECODE,
    }


@dataclass(eq=False)
class FreshProcess:
    """The first answer of `label` in the case `name`, by a new process each time.

    >>> process = FreshProcess("numpy", "rosenbrock")
    >>> process.measure() > 0, process.run()[1].shape
    (True, (10,))
    """

    label: str
    name: str
    memory: bool = False
    caches: Path | None = None
    """A folder that stays; without one, each process finds empty caches."""
    answer: list[Array] = field(default_factory=list)

    def measure(self) -> float:
        """Seconds from the start of a process to its end, or the bytes it grew by."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "answer.npz")
            command = [sys.executable, "-m", "benchmarks.fresh"]
            command += [self.label, self.name, str(file)]
            command += ["--memory"] if self.memory else []
            caches = self.caches or Path(folder)
            started = time.perf_counter()
            done = subprocess.run(
                command,
                env={**os.environ, **cache_environment(caches)},
                capture_output=True,
                text=True,
                check=False,
            )
            seconds = time.perf_counter() - started
            if done.returncode != 0:
                raise RuntimeError(f"status {done.returncode}: {done.stderr[-2000:]}")
            with np.load(file) as stored:
                self.answer = [stored[f"arr_{i}"] for i in range(len(stored.files))]
        return float(done.stdout.split()[-1]) if self.memory else seconds

    def run(self) -> list[Array]:
        """The answer of the last process; the first call starts one."""
        if not self.answer:
            self.measure()
        return self.answer


def process_builders(
    labels: Iterable[str], name: str, *, warm: bool = False, memory: bool = False
) -> dict[str, Callable[..., Program]]:
    """Builders for a case about processes of another case, one file's only one.

    `warm` keeps the caches, and the first process, which fills them, is not measured.

    >>> [*process_builders(["numpy"], "rosenbrock")]
    ['numpy']
    """

    def builder(label: str) -> Callable[..., Program]:
        def build(*inputs: Array) -> Program:
            process = FreshProcess(label, name, memory)
            if warm:
                process.caches = Path(tempfile.mkdtemp())
                weakref.finalize(process, shutil.rmtree, process.caches)
            return Program(run=process.run, measure=process.measure)

        return build

    return {label: builder(label) for label in labels}
