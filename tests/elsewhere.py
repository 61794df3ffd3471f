"""Running code elsewhere: in a new interpreter, a module of its own, in threads."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

needs_fork = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="this system has no fork"
)
# These interrupt a call in its midst, which takes SIGALRM from a timer. Wherever there
# are such, they run; Windows, where Python has neither, has nothing to be tested here.
needs_timers = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="Windows has no setitimer and no SIGALRM"
)


def run_interpreter(
    *arguments: str, given: str = "", timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, at the root of the project, until it ends.

    It reads `given`, and finds the tapejit that is tested. How it ended is not judged.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        input=given,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), **environment},
        timeout=timeout,
        check=False,
    )


def load_module(path: Path) -> ModuleType:
    """A program as a module; its main part does not run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(i)` in threads that start together; the first error is raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def guarded(at: int) -> None:
        try:
            barrier.wait(60)
            work(at)
        except BaseException as error:  # raised below, in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]
