"""Compiling and loading through a store under attack never gives a wrong result."""

from __future__ import annotations

import json
from pathlib import Path

from elsewhere import needs_fork, run_interpreter

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "programs" / "cache_stress.py"


@needs_fork
def test_kills_damage_and_races_give_no_wrong_answer_and_no_crash(full: bool) -> None:
    rounds = 500 if full else 25
    arguments = ("-W", "error", str(PROGRAM), f"--rounds={rounds}")
    out = run_interpreter(*arguments, timeout=1800)
    assert out.returncode == 0, out.stderr
    told = json.loads(out.stdout)
    assert (told["rounds"], told["failed"]) == (rounds, 0)
    # It is a test only if all of that has really happened.
    for what in ("hits", "misses", "puts", "damaged", "evicted"):
        assert told[what] > 0, told
    assert told["done"]["killed"] > rounds
    assert len(told["done"]) > 6, "several kinds of damage"
