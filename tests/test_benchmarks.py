"""The benchmark harness: it refuses wrong answers, takes turns, and reports in full.

Nothing here asserts a time. The goals are judged on made-up seconds; the one real run
is tapejit and NumPy, two rounds of a few milliseconds."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import measure, peers
from benchmarks.case import (
    OURS,
    Above,
    AtLeast,
    Case,
    Program,
    WrongAnswer,
    check_answer,
)
from benchmarks.cases import find_case, load_groups
from benchmarks.measure import Outcome, PeerFailed, Settings, Worker
from benchmarks.report import Result, document, footnotes, table
from benchmarks.worker import Session

pytestmark = pytest.mark.usefixtures("others_stay_frozen")
RUN = Path(__file__).resolve().parent.parent / "benchmarks" / "run.py"
EVERY_CASE = [case for cases in load_groups().values() for case in cases]
OTHER_PRODUCTS = {"gemm/tn", "gemm/nt"} | {
    f"gemm_serial/{order}" for order in ("small", "nn", "tn", "nt")
}
LARGE = {"attention", "attention_long", "attention_memory"}  # seconds for a reference


def silent(text: str) -> None:
    """Progress that nobody watches."""


def double(build: Callable[..., Any], **fields: Any) -> Case:
    """x + x, built by `build` for NumPy."""
    return Case(
        name="double",
        description="x + x",
        unit="µs",
        make_inputs=lambda rng: (rng.standard_normal(4),),
        reference=lambda x: [2 * x],
        builders={"numpy": build},
        **fields,
    )


def test_a_run_of_tapejit_and_numpy_reports_every_number(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    command = [sys.executable, str(RUN), "eager_op/mul", "--peers", "numpy,tapejit"]
    done = subprocess.run(
        [*command, "--quick", "--rounds", "2", "--json", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads(file.read_text(encoding="utf-8"))

    (case,) = run["cases"]
    assert case["name"] == "eager_op/mul"
    assert set(case["peers"]) == {"numpy", "tapejit"}
    for peer in case["peers"].values():
        assert peer["status"] == "ok"
        assert len(peer["seconds"]) == 2
        assert peer["best_seconds"] == min(peer["seconds"])
        assert peer["dtypes"] == ["float32"]
        assert peer["error"] <= 1e-5
        assert {"first_call_seconds", "build_seconds", "iterations"} <= set(peer)
    assert case["peers"]["tapejit"]["ratio_to_tapejit"] == {"best": 1.0, "median": 1.0}
    assert case["goals"][0]["met"] in ("yes", "no", "unclear")
    assert run["settings"] == {"rounds": 2, "round_seconds": 0.005, "threads": 2}
    assert set(run["machine"]["versions"]) == {"numpy", "tapejit"}

    assert "≤ 1.5 µs above numpy" in done.stdout
    assert "round 2 of 2" in done.stderr
    for text in (done.stdout, json.dumps(run)):
        assert str(RUN.parent.parent) not in text
        assert platform.node() == "localhost" or platform.node() not in text


@pytest.mark.parametrize("case", EVERY_CASE, ids=lambda case: case.name)
def test_every_case_is_complete(case: Case, full: bool) -> None:
    assert OURS in case.builders
    assert case.description
    for label in case.builders:
        peers.package_of(label)
    for goal in case.goals:
        if isinstance(goal, AtLeast | Above):
            assert goal.peer in case.builders, "a goal against a peer that isn't there"
    first, second = case.inputs(), case.inputs()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    if case.name in LARGE and not full:
        return
    for expected in case.reference(*first):
        assert expected.dtype in (np.float64, np.complex128)
        assert np.all(np.isfinite(expected))


@pytest.mark.parametrize(
    "case", [c for c in EVERY_CASE if "numpy" in c.builders], ids=lambda case: case.name
)
def test_numpy_agrees_with_the_reference(case: Case, full: bool) -> None:
    if case.name in OTHER_PRODUCTS and not full:
        pytest.skip("60 products, as in gemm/nn: --full")
    reply = Session("numpy").prepare(case, round_seconds=0.0)
    assert reply["iterations"] >= 1


def test_case_names_are_unique() -> None:
    names = [case.name for case in EVERY_CASE]
    assert len(names) == len(set(names))
    assert all(find_case(name).name == name for name in names)


def test_a_wrong_answer_is_refused() -> None:
    session = Session("numpy")
    with pytest.raises(WrongAnswer, match="off by"):
        session.prepare(double(lambda x: lambda: x + x + 1e-6), round_seconds=0.0)
    with pytest.raises(RuntimeError, match="before prepare"):
        session.run(1)


def test_an_answer_that_goes_wrong_when_hot_is_refused() -> None:
    def build(x: np.ndarray) -> Callable[[], np.ndarray]:
        calls = iter([2 * x])
        return lambda: next(calls, 3 * x)

    with pytest.raises(WrongAnswer, match="off by"):
        Session("numpy").prepare(double(build), round_seconds=0.0)
    Session("numpy").prepare(double(build, stateful=True), round_seconds=0.0)


def test_an_unexpected_number_of_kernels_is_refused() -> None:
    class Tensor:
        """As much of a tapejit tensor as the harness reads."""

        def __init__(self, value: np.ndarray) -> None:
            self.value = value

        def numpy(self) -> np.ndarray:
            return self.value

    def build(x: np.ndarray) -> Program:
        return Program(lambda: Tensor(2 * x), lambda: 2, lambda: 0.25)

    case = replace(double(build), builders={OURS: build})
    reply = Session(OURS).prepare(replace(case, kernels=2), round_seconds=0.0)
    assert (reply["kernels"], reply["compile_seconds"]) == (2, 0.25)
    with pytest.raises(WrongAnswer, match="2 kernels, expected 1"):
        Session(OURS).prepare(replace(case, kernels=1), round_seconds=0.0)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ([np.array([1.0, np.nan])], "off by nan"),
        ([np.array([[1.0, 2.0]])], "shape"),
        ([], "0 results"),
        ([np.array([1, 3])], "int64 allows 0"),
        ([np.array([1.0, 2.0 + 1e-10])], "float64 allows 1e-11"),
    ],
)
def test_what_a_wrong_answer_is(answer: list[np.ndarray], complaint: str) -> None:
    case = double(lambda x: lambda: x)
    with pytest.raises(WrongAnswer, match=complaint):
        check_answer(case, answer, [np.array([1.0, 2.0])])


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "expected"),
    [
        (AtLeast(5, "torch"), [1.0, 1.0, 1.0], [5.0, 6.0, 7.0], "yes"),
        (AtLeast(5, "torch"), [1.0, 1.0, 1.0], [4.0, 4.5, 9.0], "no"),
        (AtLeast(5, "torch"), [1.0, 2.0, 2.0], [6.0, 6.0, 6.0], "unclear"),
        (Above(1.5, "numpy"), [2e-6, 2e-6], [1e-6, 1e-6], "yes"),
        (Above(1.5, "numpy"), [4e-6, 4e-6], [1e-6, 1e-6], "no"),
        (Above(1.5, "numpy"), [2e-6, 9e-6, 9e-6], [1e-6, 1e-6, 1e-6], "unclear"),
    ],
)
def test_goals_need_best_and_median(
    goal: AtLeast | Above, ours: list[float], theirs: list[float], expected: str
) -> None:
    assert goal.judge(ours=ours, theirs=theirs) == expected


class Scripted:
    """A worker that answers at once and notes the order in which peers were asked."""

    def __init__(
        self, label: str, log: list[tuple[str, str]], fail_on: str = ""
    ) -> None:
        self.label, self.log, self.fail_on = label, log, fail_on
        self.version, self.import_seconds = "1", 0.0

    def ask(self, **request: Any) -> dict[str, Any]:
        self.log.append((request["do"], self.label))
        if request["do"] == self.fail_on:
            raise PeerFailed("on purpose")
        return {
            "iterations": 4,
            "seconds": 8.0,
            "first_call_seconds": 1.0,
            "dtypes": [],
        }

    def complaints(self) -> str:
        return ""


def measure_scripted(*workers: Scripted) -> dict[str, Outcome]:
    """One case through `measure_case` with scripted workers, two rounds."""
    case = replace(find_case("eager_op/mul"), operations=2)
    by_label: Any = {worker.label: worker for worker in workers}
    return measure.measure_case(case, by_label, {}, Settings(rounds=2), silent)


def test_peers_take_turns() -> None:
    log: list[tuple[str, str]] = []
    outcomes = measure_scripted(Scripted("numpy", log), Scripted("tapejit", log))
    turns = [label for do, label in log if do == "run"]
    assert turns == ["numpy", "tapejit", "numpy", "tapejit"]
    assert [do for do, _ in log[-2:]] == ["verify", "verify"]
    assert outcomes["tapejit"].seconds == [1.0, 1.0]  # 8 s: 4 calls of 2 operations


@pytest.mark.parametrize("stage", ["prepare", "run", "verify"])
def test_a_peer_that_fails_leaves_the_others_running(stage: str) -> None:
    log: list[tuple[str, str]] = []
    outcomes = measure_scripted(Scripted("numpy", log, stage), Scripted("tapejit", log))
    assert (outcomes["numpy"].status, outcomes["numpy"].reason) == (
        "failed",
        "on purpose",
    )
    assert outcomes["tapejit"].seconds == [1.0, 1.0]
    result = Result(find_case("eager_op/mul"), outcomes)
    assert "failed: eager_op/mul, numpy: on purpose" in footnotes([result])
    assert document([result], Settings())["cases"][0]["goals"][0]["met"] is None


def test_a_peer_that_is_not_installed_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = peers.Package("a_package_nobody_has", ("a-package-nobody-has",))
    monkeypatch.setitem(peers.PACKAGES, "torch", missing)
    case = find_case("eager_op/mul")
    outcomes = measure.measure_group(
        [case], lambda label: label == "torch", Settings(rounds=1), silent
    )[case.name]
    assert outcomes["torch"].status == "not installed"
    result = Result(case, outcomes)
    assert "not installed" in table([result])
    assert footnotes([result])[0].startswith("not installed: torch")


def test_a_worker_that_dies_is_a_failed_peer() -> None:
    worker = Worker("numpy", threads=1)
    try:
        worker.greet()
        assert worker.version == np.__version__
        with pytest.raises(PeerFailed, match="KeyError"):
            worker.ask(do="prepare", case="no_such_case", round_seconds=0.0)
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(PeerFailed, match="ended with status"):
            worker.ask(do="verify")
    finally:
        worker.close()


def test_the_table_puts_ratio_and_goal_in_the_peers_row() -> None:
    case = find_case("tape_gradient_20")
    details = {"first_call_seconds": 2e-3, "dtypes": ["float32"]}
    outcomes = {
        OURS: Outcome(OURS, details=details, seconds=[1e-6, 2e-6]),
        "tensorflow": Outcome("tensorflow", details=details, seconds=[6e-6, 14e-6]),
    }
    row = next(
        line
        for line in table([Result(case, outcomes)]).splitlines()
        if "tensorflow" in line
    )
    assert " ".join(row.split()) == (
        "tensorflow 2.00 ms 6.00 µs 10.0 µs 6.00x 6.50x ≥ 5x yes"
    )
