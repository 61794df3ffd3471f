"""Many calls of native functions leave nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from elsewhere import run_interpreter

PROGRAM = Path(__file__).parent.parent / "programs" / "soak.py"


def test_memory_and_references_stay_as_they_are(full: bool, tmp_path: Path) -> None:
    """20,000 calls, a million with `--full`; also such that miss and that fail."""
    arguments = (str(PROGRAM), *(["--full"] if full else []))
    folder = str(tmp_path)
    done = run_interpreter(*arguments, timeout=1200, TAPEJIT_CACHE_DIR=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["growth"] < 0.01, found
    assert not any(found["references"]), found
