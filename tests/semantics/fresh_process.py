"""Running a program in a process of its own, for what happens once per process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import tapejit as tj


def run_python(code: str) -> list[str]:
    """The lines that a program prints in a fresh process, warnings included."""
    program = "import numpy as np, tapejit as tj\n" + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(tj.__file__).parents[1],
        timeout=120,
    )
    return (done.stdout + done.stderr).splitlines()
