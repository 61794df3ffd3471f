"""Generated LLVM text is what it was: a sample of Replay, all of it with `--full`.

A change that is meant to change the text is accepted with `python -m tests.replay
accept`, and its commit names the programs that this prints.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from replay.__main__ import ROOT, main
from replay.compiler import text_of
from replay.programs import Program, all_programs, golden_programs
from replay.record import (
    KEPT,
    Record,
    differences,
    made_here,
    read_record,
    record_of,
    why_not_comparable,
)

# Of each kind: every so many of the names, which have to be quick.
STEPS = {"golden": 1, "bench": 5, "op": 120, "random": 27}
SLOW = ("bench/compile_time", "bench/gemm", "bench/streaming")


@pytest.fixture(scope="module")
def kept() -> Record:
    """What is kept, if it says something about this process."""
    found = read_record(KEPT)
    reason = why_not_comparable(found.made_with, made_here())
    if reason:
        pytest.skip(f"digests are of another installation: {reason}")
    return found


def sample_of(kind: str) -> list[Program]:
    """Some programs of a kind, spread over all of them."""
    found = [x for x in all_programs([f"{kind}/*"]) if not x.name.startswith(SLOW)]
    return found[:: STEPS[kind]]


@pytest.mark.parametrize("kind", STEPS)
def test_the_text_is_what_it_was(kind: str, kept: Record, full: bool) -> None:
    patterns = [f"{kind}/*"]
    programs = all_programs(patterns) if full else sample_of(kind)
    names = {program.name for program in programs}
    found = differences(kept, record_of(programs), patterns)
    changed = [str(x) for x in found if full or x.name in names]
    assert not changed, "if this is meant: python -m tests.replay accept"


def test_the_sample_has_text(kept: Record) -> None:
    """A sample of programs without native code would compare nothing."""
    for kind in STEPS:
        names = {program.name for program in sample_of(kind)}
        assert len(names & {*kept.programs}) >= 7, kind


# Replay itself


def golden_record() -> Record:
    return record_of(golden_programs())


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = golden_record()
    file = tmp_path / "record.json"
    file.write_text(made.text())
    assert read_record(file) == made
    assert len(made.programs) == 9


def test_compare_names_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = golden_record()
    digests = made.programs["golden/softmax"]
    made.programs["golden/softmax"] = {**digests, "v3": "0" * len(digests["v3"])}
    del made.programs["golden/gather"]
    made.programs["golden/forgotten"] = digests
    file = tmp_path / "record.json"
    file.write_text(made.text())
    assert main(["compare", str(file), "--only", "golden/*"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "golden/forgotten is gone",
        "golden/gather is new",
        "golden/softmax differs (v3)",
        "3 of 9 programs",
    ]
    assert main(["compare", str(file), "--only", "golden/layernorm"]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_digests_of_another_installation_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "record.json"
    file.write_text(Record({**made_here(), "llvmlite": "0.1"}).text())
    assert main(["compare", str(file), "--only", "golden/softmax"]) == 2
    assert "cannot be compared: llvmlite is 0.1 for one" in capsys.readouterr().out


def test_text_does_not_depend_on_what_was_compiled_before() -> None:
    programs = all_programs(["bench/mlp_gradients", "bench/mlp_small"])
    forwards, backwards = record_of(programs), record_of(reversed(programs))
    assert len(forwards.programs) == 2
    assert forwards == backwards


def test_levels_have_their_own_text() -> None:
    (program,) = all_programs(["golden/matmul_bias_relu"])
    (graph,) = program.graphs()
    assert text_of(graph, "v3") != text_of(graph, "v4")


def test_bits_are_those_of_results() -> None:
    programs = all_programs(["golden/softmax", "random/3", "op/tanh-3x4/adjoint"])
    made = record_of(programs, bits=True, levels=["v3"])
    assert set(made.programs) == {program.name for program in programs}
    assert len({digests["v3"] for digests in made.programs.values()}) == 3
    assert made == record_of(programs, bits=True, levels=["v3"])


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
def test_a_commit_is_as_itself(capsys: pytest.CaptureFixture[str], full: bool) -> None:
    if not full:
        pytest.skip("two working trees: --full")
    before = worktrees()
    assert main(["commits", "HEAD", "HEAD", "--only", "golden/*"]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert main(["commits", "HEAD", "no-such-commit", "--only", "golden/softmax"]) == 2
    assert "has failed" in capsys.readouterr().out
    assert worktrees() == before


def worktrees() -> set[str]:
    """The trees of this program that git knows."""
    command = ["git", "worktree", "list", "--porcelain"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {line for line in listed.stdout.splitlines() if "tapejit-replay-" in line}
