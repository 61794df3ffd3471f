"""The examples as a user starts them: as native code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from test_examples import ROOT, SHORT_FORMS

SAMPLE = ("quickstart.py", "custom_gradient.py", "logistic_newton.py")


@pytest.mark.parametrize("name", SHORT_FORMS)
def test_an_example_runs_natively(name: str, full: bool) -> None:
    assert set(SAMPLE) <= set(SHORT_FORMS)
    if not full and name not in SAMPLE:
        return
    arguments, beginning = SHORT_FORMS[name]
    out = subprocess.run(
        [sys.executable, "-W", "error", f"examples/{name}", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TAPEJIT_NATIVE": "1"},
        timeout=300,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith(beginning)
