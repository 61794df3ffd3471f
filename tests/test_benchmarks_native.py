"""The benchmarks of compiled functions: goals against all peers, whole processes.

Nothing here asserts a time. tapejit's answer is checked in each case whose programs are
small, and in all of them under `--full`."""

from __future__ import annotations

import argparse
import mmap
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import fresh, measure, processes
from benchmarks.case import OURS, AtLeast, Case, Finding, Leads, Program, Within
from benchmarks.cases import SETS, compile_time, find_case, load_groups, select
from benchmarks.measure import Outcome, Settings
from benchmarks.processes import FreshProcess, process_builders
from benchmarks.report import Result, document, goals_table, table
from benchmarks.run import interpreter
from benchmarks.worker import Session

pytestmark = pytest.mark.usefixtures("others_stay_frozen")
SMALL = {
    *("rosenbrock", "hessian", "call_overhead", "gmm", "mlp_gradients"),
    *("call_structures/nested", "call_structures/keywords"),
}
IN_PROCESS = [
    case
    for cases in select(["native"]).values()
    for case in cases
    if case.name.partition("/")[0] not in ("cold", "warm_start", "memory")
]


def silent(text: str) -> None:
    """Progress that nobody watches."""


@pytest.mark.parametrize("case", IN_PROCESS, ids=lambda case: case.name)
def test_tapejit_answers_right(case: Case, request: pytest.FixtureRequest) -> None:
    if case.name not in SMALL and not request.config.getoption("--full"):
        pytest.skip("a large program: --full")
    for label in (label for label in case.builders if label.startswith(OURS)):
        assert Session(label).prepare(case, round_seconds=0.0)["error"] <= 1e-5


def test_a_set_names_files_that_exist() -> None:
    for name, files in SETS.items():
        assert set(select([name])) == set(files) <= set(load_groups())


def test_leads_is_judged_by_the_nearest_other_package() -> None:
    rounds = {
        "tapejit": [1.0, 2.0],
        "tapejit (arrays)": [0.1, 0.1],  # the same package: not a peer
        "jax (jit)": [4.0, 5.0],
        "torch": [3.0, 9.0],
    }
    assert Leads(2).find(rounds) == Finding("torch", 3.0, 3.25, "yes")
    assert Leads(3.1).find(rounds) == Finding("torch", 3.0, 3.25, "unclear")
    assert Leads(4).find(rounds) == Finding("torch", 3.0, 3.25, "no")


@pytest.mark.parametrize("goal", [Leads(2), AtLeast(2, "jax"), Within(1, "s")], ids=str)
def test_a_goal_without_its_numbers_finds_nothing(goal: Any) -> None:
    assert goal.find({"torch": [1.0]}) is None
    if not isinstance(goal, Within):
        assert goal.find({OURS: [1.0]}) is None


def test_within_limits_best_and_median() -> None:
    assert Within(250, "ms").find({OURS: [0.2, 0.2]}) == Finding("", 0.2, 0.2, "yes")
    assert Within(10, "MB").find({OURS: [2e7]}) == Finding("", 2e7, 2e7, "no")
    found = Within(250, "ms").find({OURS: [0.2, 0.3, 0.3]})
    assert found is not None
    assert found.verdict == "unclear"


def result_of(case: Case, seconds: dict[str, list[float]]) -> Result:
    """A result with made-up numbers."""
    details = {"first_call_seconds": 2.0, "dtypes": ["float32"]}
    outcomes = {
        peer: Outcome(peer, details=details, seconds=each)
        for peer, each in seconds.items()
    }
    return Result(case, outcomes)


def test_the_table_of_goals_names_the_best_peer_and_its_ratio() -> None:
    seconds = {OURS: [1e-3], "jax (jit)": [4e-3], "torch": [3e-3]}
    result = result_of(find_case("black_scholes"), seconds)
    row = goals_table([result]).splitlines()[-1]
    assert " ".join(row.split()) == (
        "black_scholes 1.00 ms torch 3.00 ms 3.00x 3.00x ≥ 2x yes"
    )
    (goal,) = document([result], Settings())["cases"][0]["goals"]
    assert goal == {
        "goal": "≥ 2x",
        "peer": "torch",
        "promised": True,
        "best": 3.0,
        "median": 3.0,
        "met": "yes",
    }


def test_memory_is_shown_in_megabytes_and_its_first_call_in_seconds() -> None:
    case = find_case("memory/softmax_xent")
    result = result_of(case, {OURS: [2.5e7], "jax (jit)": [5e9]})
    ours, jax = table([result]).splitlines()[-2:]
    assert "2.00 s  25.0 MB" in ours
    assert "5000 MB" in jax


def doubled(**fields: Any) -> Case:
    """x + x by NumPy, which measures something else than its time."""
    numbers = iter([7.0, 8.0, 9.0])

    def build(x: np.ndarray) -> Program:
        return Program(run=lambda: x + x, measure=lambda: next(numbers))

    return Case(
        name="doubled",
        description="x + x",
        unit="MB",
        make_inputs=lambda rng: (rng.standard_normal(4),),
        reference=lambda x: [2 * x],
        builders={"numpy": build},
        **fields,
    )


def test_a_program_that_measures_is_not_timed() -> None:
    session = Session("numpy")
    assert session.prepare(doubled(), round_seconds=10.0)["iterations"] == 1
    assert [session.run(1)["seconds"] for _ in range(2)] == [7.0, 8.0]


def test_a_case_may_ask_for_fewer_rounds() -> None:
    class InProcess(Session):
        """A worker without a process."""

        version, import_seconds = "1", 0.0

        def ask(self, **request: Any) -> dict[str, Any]:
            if request["do"] == "prepare":
                return self.prepare(case, request["round_seconds"])
            return self.handle(request)

    case = doubled(rounds=2)
    workers: Any = {"numpy": InProcess("numpy")}
    outcomes = measure.measure_case(case, workers, {}, Settings(rounds=3), silent)
    assert outcomes["numpy"].seconds == [7.0, 8.0]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environments of the processes that were started, which are all counted."""
    found: list[dict[str, str]] = []
    start = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        found.append(options["env"])
        return start(command, **options)

    monkeypatch.setattr(processes.subprocess, "run", run)
    return found


def cache_folder(environment: dict[str, str]) -> Path:
    """Where a process keeps what it has compiled."""
    return Path(environment["TAPEJIT_CACHE_DIR"]).parent


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_each_measurement_is_a_process_with_its_own_caches_unless_warm(
    warm: bool, launches: list[dict[str, str]]
) -> None:
    case = find_case("rosenbrock")
    (build,) = process_builders(["numpy"], "rosenbrock", warm=warm).values()
    session = Session("numpy")
    session.prepare(replace(case, builders={"numpy": build}), round_seconds=0.0)
    assert len(launches) == 1
    assert session.run(1)["seconds"] > 0
    session.verify()
    assert len(launches) == 2
    first, second = map(cache_folder, launches)
    assert (first == second) is warm
    assert second.exists() is warm


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'no such peer'"):
        FreshProcess("no such peer", "rosenbrock").measure()


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc"
)
def test_growth_counts_what_was_freed_again() -> None:
    size = 64_000_000

    def run() -> int:
        # What malloc has kept of earlier tests would not be new.
        memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        memory[:] = 1
        return int(memory[-1])

    grown, result = fresh.growth("numpy", run)
    assert result == 1
    assert 0.9 * size < grown < 1.5 * size


def test_compile_time_never_compiles_a_graph_twice() -> None:
    state = tuple(np.linspace(-1, 1, 16).reshape(8, 2, 1))
    run = compile_time.new_graphs(np, lambda graph: graph, 2, 50, state)
    first, second = run(), run()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, compile_time.reference(2, 50, *state))


def test_a_graph_of_compile_time_has_the_nodes_it_promises() -> None:
    count = 0

    class Counted:
        """A value whose operations are counted."""

        def operate(self, *others: Any, **options: Any) -> Counted:
            nonlocal count
            count += 1
            return self

        __add__ = __sub__ = __mul__ = __rmul__ = operate

    names = ("cos", "tanh", "maximum", "mean", "max")
    m = SimpleNamespace(**dict.fromkeys(names, Counted.operate))
    for nodes in (1, 2, 250, 2000):
        count = 0
        compile_time.steps(m, 3, nodes, tuple(Counted() for _ in range(8)))
        assert count == nodes


def test_a_package_may_have_its_own_interpreter(tmp_path: Path) -> None:
    mark, python = tmp_path / "started", tmp_path / "python"
    real = shlex.quote(sys.executable)
    python.write_text(f'#!/bin/sh\ntouch {shlex.quote(str(mark))}\nexec {real} "$@"\n')
    python.chmod(0o755)
    case = find_case("eager_op/mul")
    outcomes = measure.measure_group(
        [case],
        lambda label: label == "numpy",
        Settings(rounds=1, round_seconds=0.001),
        silent,
        {"numpy": str(python)},
    )[case.name]
    assert mark.exists()
    assert outcomes["numpy"].status == "ok"


@pytest.mark.parametrize("text", ["abacus=/bin/python", "tapejit", "tapejit="])
def test_an_interpreter_needs_a_package_and_a_path(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not PACKAGE=PATH"):
        interpreter(text)
