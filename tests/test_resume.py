"""A training that is killed and started again is the one that was not, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import resumable

import tapejit as tj

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "programs" / "resumable.py"
STEPS = resumable.EPOCHS * -(-resumable.ROWS // resumable.BATCH)


def plain(body: Any) -> Any:
    return body


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Losses by step, and the final state, of a training in plain Python."""
    folder = tmp_path_factory.mktemp("whole")
    losses: dict[int, str] = {}
    state = resumable.train(plain, str(folder / "run"), losses.__setitem__)
    tj.save(folder / "final", state)
    return {
        "losses": losses,
        "final": tj.load(folder / "final"),
        "means": dict(state["history"]),
    }


def assert_same_state(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype, name
            assert found[name].tobytes() == value.tobytes(), name
        else:
            assert found[name] == value, name


def start(folder: Path, mode: str, delay: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM, folder / "run", folder / "losses", mode, str(delay)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def lines_of(folder: Path) -> list[str]:
    path = folder / "losses"
    return path.read_text().splitlines() if path.exists() else []


def kill_after(child: subprocess.Popen[str], folder: Path, count: int) -> None:
    """Kill a run as soon as it has written this many lines more."""
    wanted = len(lines_of(folder)) + count
    while len(lines_of(folder)) < wanted:
        assert child.poll() is None, "it ended before it was killed"
        time.sleep(0.002)
    child.kill()
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL


def test_the_program_learns(uninterrupted: dict[str, Any]) -> None:
    assert list(uninterrupted["losses"]) == list(range(STEPS))
    means = uninterrupted["means"]["loss"]
    assert means[-1] < 0.9 * means[0]
    assert uninterrupted["final"]["optimizer.iterations"] == STEPS


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_killed_run_goes_on_bit_for_bit(
    mode: str, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    kill_after(start(tmp_path, mode, 0.05), tmp_path, 8)  # in the second epoch
    kill_after(start(tmp_path, mode, 0.05), tmp_path, 9)  # and again, in the third
    last = start(tmp_path, mode, 0)
    out, _ = last.communicate(timeout=120)
    assert out == f"None {resumable.EPOCHS}\n"

    found = [line.split(" ", 1) for line in lines_of(tmp_path) if line.count(" ") == 2]
    steps = [int(step) for step, _ in found]
    assert set(steps) == set(range(STEPS))
    assert len(steps) > STEPS  # what came after the last checkpoint was done again
    assert steps[: steps.index(5)] == [0, 1, 2, 3, 4]
    for step, losses in found:
        assert losses == uninterrupted["losses"][int(step)], f"step {step}"
    assert_same_state(tj.load(tmp_path / "run.final"), uninterrupted["final"])


def test_no_moment_to_be_killed_leaves_a_broken_file(tmp_path: Path) -> None:
    """Saved without a pause, killed at any time: the file is always whole."""
    code = (
        "import sys, numpy as np, tapejit as tj\n"
        "for i in range(10**9):\n"
        "    tj.save(sys.argv[1], x=np.full(200_000, i), i=i)\n"
        "    print(i, flush=True)\n"
    )
    path = tmp_path / "f"
    for pause in (0.0, 0.003, 0.007):
        child = subprocess.Popen(
            [sys.executable, "-c", code, path],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert child.stdout is not None
        for _ in range(3):
            assert child.stdout.readline()
        time.sleep(pause)
        child.kill()
        child.communicate()
        loaded = tj.load(path)
        assert (loaded["x"] == loaded["i"]).all()
        assert loaded["i"] >= 2


class Cut(Exception):
    """The end of a run, as sudden as one in the same process can be."""


def cut_at(cut: int, losses: dict[int, str], step: int, text: str) -> None:
    losses[step] = text
    if step == cut:
        raise Cut


@pytest.mark.parametrize("decorate", [plain, tj.function], ids=["eager", "function"])
def test_every_step_is_a_place_to_go_on_from(
    decorate: Any,
    uninterrupted: dict[str, Any],
    tmp_path: Path,
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cut off after each number of steps, among them the ends of epochs."""
    monkeypatch.setattr(resumable, "EVERY", 1)
    for cut in range(STEPS) if full else (0, 4, 6, 7, 13, 14, 20, STEPS - 1):
        losses: dict[int, str] = {}
        path = str(tmp_path / str(cut))
        with pytest.raises(Cut):
            resumable.train(decorate, path, partial(cut_at, cut, losses))
        state = resumable.train(decorate, path, losses.__setitem__)
        assert losses == uninterrupted["losses"], cut
        assert dict(state["history"]) == uninterrupted["means"], cut
