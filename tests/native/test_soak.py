"""Many calls of native functions leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent.parent / "programs" / "soak.py"
ROOT = PROGRAM.parent.parent.parent


def test_memory_and_references_stay_as_they_are(full: bool, tmp_path: Path) -> None:
    """20,000 calls, a million with `--full`; also such that miss and that fail."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TAPEJIT_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *(["--full"] if full else [])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["growth"] < 0.01, found
    assert not any(found["references"]), found
