"""Running a program in a process of its own, for what happens once per process."""

from __future__ import annotations

import textwrap

from elsewhere import run_interpreter


def run_python(code: str) -> list[str]:
    """The lines that a program prints in a fresh process, warnings included."""
    program = "import numpy as np, tapejit as tj\n" + textwrap.dedent(code)
    done = run_interpreter("-W", "always", "-c", program)
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()
