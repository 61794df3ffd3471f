"""Compiling and loading through a store under attack never gives a wrong result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "programs" / "cache_stress.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_kills_damage_and_races_give_no_wrong_answer_and_no_crash(full: bool) -> None:
    rounds = 500 if full else 25
    out = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), f"--rounds={rounds}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=1800,
    )
    assert out.returncode == 0, out.stderr
    told = json.loads(out.stdout)
    assert (told["rounds"], told["failed"]) == (rounds, 0)
    # It is a test only if all of that has really happened.
    for what in ("hits", "misses", "puts", "damaged", "evicted"):
        assert told[what] > 0, told
    assert told["done"]["killed"] > rounds
    assert len(told["done"]) > 6, "several kinds of damage"
