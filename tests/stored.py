"""What the tests of the store share: a key, an entry, processes with a store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tapejit.runtime.store import folder
from tapejit.runtime.store.store import Store

ROOT = Path(__file__).resolve().parent.parent
KEY = "ab" * 32
HEADER = {"name": "loss", "kernels": ["sum"], "functions": ["run"]}
CODE = bytes(range(256)) * 4

posix_only = pytest.mark.skipif(
    not folder.HAS_OWNERS, reason="there are no owners and modes here"
)


def key_of(number: int) -> str:
    return f"{number:064x}"


def path_of(store: Store, key: str = KEY) -> Path:
    return Path(store.directory) / f"{key}.object"


def leftovers(store: Store) -> list[str]:
    """The temporary files that writers have left."""
    return [name for name in os.listdir(store.directory) if name.startswith(".")]


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs `code` with `store` made of its first argument."""
    before = (
        "import os, signal, sys\n"
        "from tapejit.runtime.store.store import Store\n"
        "store = Store(sys.argv[1])\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", before + code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    out, problems = process.communicate(timeout=120)
    assert process.returncode == code, problems
    return out
