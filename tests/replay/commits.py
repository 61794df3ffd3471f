"""What two commits write, each in a working tree of its own.

A commit that has Replay uses its own, which knows its compiler; to an older one the
present Replay is lent. The trees are made in a temporary folder, used one after the
other, and removed.

Start reading at `record_of_commit`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from .record import Record, read_record

ROOT: Final = Path(__file__).resolve().parent.parent.parent
OWN: Final = Path("tests", "replay")


def record_of_commit(commit: str, arguments: Sequence[str]) -> Record:
    """What the compiler of a commit writes; `arguments` are those of `record`."""
    with TemporaryDirectory(prefix="tapejit-replay-") as folder:
        file = Path(folder, "record.json")
        with tree_of(commit, Path(folder, "tree")) as tree:
            if not (tree / OWN / "__main__.py").exists():
                lent = shutil.ignore_patterns("__pycache__", "digests.json")
                shutil.copytree(ROOT / OWN, tree / OWN, ignore=lent)
            command = [sys.executable, "-m", "tests.replay", "record"]
            subprocess.run(
                [*command, "--out", str(file), *arguments],
                cwd=tree,
                env={**os.environ, "PYTHONPATH": str(tree)},
                check=True,
            )
        return read_record(file)


@contextmanager
def tree_of(commit: str, folder: Path) -> Iterator[Path]:
    """A working tree of a commit, for as long as it is needed."""
    git("worktree", "add", "--quiet", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        git("worktree", "remove", "--force", str(folder))


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)
