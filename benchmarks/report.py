"""What a run says: one table, one line of facts about the machine, one JSON document.

The data structure is `Result`, a case with the outcomes of its peers; everything
printed or stored is a function of a list of them. Ratios are peer over tapejit, so
above 1 means tapejit is faster, and both columns come from rounds that ran side by
side.

Start reading at `table`.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.case import (
    OURS,
    UNITS,
    Above,
    AtLeast,
    Case,
    Finding,
    Goal,
    Leads,
    Rounds,
    excesses,
    ratios,
)
from benchmarks.measure import Outcome, Settings

COLUMNS = (
    "case",
    "peer",
    "first call",
    "best",
    "median",
    "peer/tapejit",
    "by median",
    "above base",
    "goal",
    "met?",
)
GOAL_COLUMNS = (
    "case",
    "tapejit",
    "against",
    "its best",
    "ratio",
    "by median",
    "goal",
    "met?",
)
TEXT_COLUMNS = {"case", "peer", "against", "goal", "met?"}


@dataclass(frozen=True)
class Result:
    """A case and what each peer did with it.

    >>> from benchmarks.cases import find_case
    >>> Result(find_case("eager_op/mul"), {}).rounds("torch") is None
    True
    """

    case: Case
    outcomes: dict[str, Outcome]

    def rounds(self, peer: str) -> Rounds | None:
        """The seconds of a peer that ran to the end, else None."""
        outcome = self.outcomes.get(peer)
        if outcome is None or outcome.status != "ok" or not outcome.seconds:
            return None
        return outcome.seconds

    def ratio(self, peer: str) -> tuple[float, float] | None:
        """Peer over tapejit, by best and by median, if both ran."""
        theirs, ours = self.rounds(peer), self.rounds(OURS)
        return None if theirs is None or ours is None else ratios(theirs, ours)

    def excess(self, peer: str) -> tuple[float, float] | None:
        """Seconds above the peer an `Above` goal names, by best and by median."""
        bases = [goal.peer for goal in self.case.goals if isinstance(goal, Above)]
        base = bases[0] if bases else ""
        theirs, below = self.rounds(peer), self.rounds(base)
        if theirs is None or below is None or peer == base:
            return None
        return excesses(theirs, below)

    def find(self, goal: Goal) -> Finding | None:
        """What became of a goal, if all it needs ran."""
        every = {peer: self.rounds(peer) for peer in self.outcomes}
        return goal.find({peer: found for peer, found in every.items() if found})


def show_seconds(seconds: float, unit: str) -> str:
    """Three significant digits, in `unit` as long as that is readable.

    >>> show_seconds(1.2345e-6, "µs"), show_seconds(0.25, "µs"), show_seconds(2e9, "MB")
    ('1.23 µs', '250 ms', '2000 MB')
    """
    while abs(seconds) >= 1000 * UNITS[unit] and unit not in ("s", "MB"):
        unit = [*UNITS][[*UNITS].index(unit) + 1]
    return f"{significant(seconds / UNITS[unit])} {unit}"


def significant(x: float) -> str:
    """Three significant digits, never an exponent.

    >>> significant(0.01234), significant(5.0), significant(2718.0)
    ('0.0123', '5.00', '2718')
    """
    if x == 0:
        return "0"
    return f"{x:.{max(0, 2 - math.floor(math.log10(abs(x))))}f}"


def table_row(result: Result, outcome: Outcome) -> dict[str, str]:
    """The cells of one peer in one case."""
    case, peer = result.case, outcome.peer
    row = {"peer": peer}
    if outcome.status != "ok":
        row["first call"] = outcome.status
        return row
    clock = "s" if case.unit == "MB" else case.unit
    row["first call"] = show_seconds(outcome.details["first_call_seconds"], clock)
    row["best"] = show_seconds(outcome.best, case.unit)
    row["median"] = show_seconds(outcome.median, case.unit)
    if (ratio := result.ratio(peer)) and peer != OURS:
        row["peer/tapejit"], row["by median"] = (f"{significant(r)}x" for r in ratio)
    if excess := result.excess(peer):
        sign = "+" if excess[0] >= 0 else ""
        row["above base"] = sign + show_seconds(excess[0], case.unit)
    return row


def table(results: Sequence[Result]) -> str:
    """The aligned table; every goal stands in the row it is about."""
    rows: list[dict[str, str]] = []
    for result in results:
        for i, outcome in enumerate(result.outcomes.values()):
            row = table_row(result, outcome)
            row["case"] = result.case.name if i == 0 else ""
            goals = [goal for goal in result.case.goals if goal.row == outcome.peer]
            row["goal"] = ", ".join(map(str, goals))
            found = [result.find(goal) for goal in goals]
            row["met?"] = ", ".join(f.verdict if f else "-" for f in found)
            rows.append(row)
    return aligned(COLUMNS, rows)


def goals_table(results: Sequence[Result]) -> str:
    """One row per goal: tapejit, the peer it is measured by, the ratio, the verdict."""
    rows: list[dict[str, str]] = []
    for result in results:
        for goal in result.case.goals:
            row = {"case": result.case.name, "goal": str(goal), "met?": "-"}
            rows.append(row)
            found, ours = result.find(goal), result.rounds(OURS)
            if found is None or ours is None:
                continue
            unit = result.case.unit
            row |= {"met?": found.verdict, "against": found.against}
            row["tapejit"] = show_seconds(min(ours), unit)
            if (theirs := result.rounds(found.against)) is not None:
                row["its best"] = show_seconds(min(theirs), unit)
            if isinstance(goal, AtLeast | Leads):
                row["ratio"] = f"{significant(found.best)}x"
                row["by median"] = f"{significant(found.median)}x"
    return aligned(GOAL_COLUMNS, rows)


def aligned(columns: Sequence[str], rows: Sequence[dict[str, str]]) -> str:
    """Columns side by side under their names; an empty line before each new case.

    >>> print(aligned(["case", "best"], [{"case": "mul", "best": "3 µs"}]))
    case  best
    ----------
    mul   3 µs
    """
    width = {
        column: max([len(column), *(len(row.get(column, "")) for row in rows)])
        for column in columns
    }

    def line(cells: dict[str, str]) -> str:
        return "  ".join(
            cells.get(column, "").ljust(width[column])
            if column in TEXT_COLUMNS
            else cells.get(column, "").rjust(width[column])
            for column in columns
        ).rstrip()

    header = line({column: column for column in columns})
    lines = [header, "-" * len(header)]
    several = any(not row["case"] for row in rows)  # rows below a case belong to it
    for row in rows:
        if several and row["case"] and len(lines) > 2:
            lines.append("")
        lines.append(line(row))
    return "\n".join(lines)


def footnotes(results: Sequence[Result]) -> list[str]:
    """What the table does not say: who is missing, failed, or has another dtype."""
    notes: list[str] = []
    every = [(r, o) for r in results for o in r.outcomes.values()]
    missing = dict.fromkeys(o.peer for _, o in every if o.status == "not installed")
    if missing:
        notes.append(
            f"not installed: {', '.join(missing)} (pip install 'tapejit[bench]')"
        )
    for result, outcome in every:
        if outcome.status == "failed":
            where = f"{result.case.name}, {outcome.peer}"
            notes.append(f"failed: {where}: {outcome.reason}")
    for result in results:
        ours = result.outcomes.get(OURS)
        if ours is None or ours.status != "ok":
            continue
        for outcome in result.outcomes.values():
            dtypes = outcome.details.get("dtypes", ours.details["dtypes"])
            if dtypes != ours.details["dtypes"]:
                names = ", ".join(dict.fromkeys(dtypes))
                notes.append(f"{result.case.name}: {outcome.peer} answers in {names}")
        for outcome in result.outcomes.values():
            kernels = outcome.details.get("kernels")
            compiled = outcome.details.get("compile_seconds")
            if kernels is not None or compiled is not None:
                notes.append(
                    f"{result.case.name}: {outcome.peer}"
                    + (f", {kernels} kernels" if kernels is not None else "")
                    + (f", {compiled:.3g} s to compile" if compiled is not None else "")
                )
    for result in results:
        if result.case.moved is not None:
            notes.append(f"{result.case.name}: {', '.join(bandwidths(result))}")
    return notes


def bandwidths(result: Result) -> list[str]:
    """What each peer moved per second in its best round.

    >>> from benchmarks.cases import find_case
    >>> from benchmarks.measure import Outcome
    >>> outcome = Outcome("numpy", details={}, seconds=[0.008, 0.004])
    >>> bandwidths(Result(find_case("streaming/sum_of_squares"), {"numpy": outcome}))
    ['numpy 16.8 GB/s']
    """
    moved = result.case.moved or 0
    rounds = {peer: result.rounds(peer) for peer in result.outcomes}
    return [
        f"{peer} {significant(moved / min(seconds) / 1e9)} GB/s"
        for peer, seconds in rounds.items()
        if seconds
    ]


def processor() -> str:
    """The CPU's model name, without clock speed."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if found:
            return re.sub(r"\s*@.*|\s+CPU\b|\(R\)|\(TM\)", "", found[1]).strip()
    return platform.processor() or platform.machine()


def available_cpus() -> int:
    """How many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_facts(results: Sequence[Result]) -> dict[str, Any]:
    """CPU, cores, system, Python and the version of every peer; no names, no paths.

    >>> sorted(machine_facts([]))
    ['cores', 'cpu', 'python', 'system', 'versions']
    """
    versions = {
        outcome.peer.partition(" (")[0]: outcome.version
        for result in results
        for outcome in result.outcomes.values()
        if outcome.version
    }
    return {
        "cpu": processor(),
        "cores": available_cpus(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": dict(sorted(versions.items())),
    }


def facts_line(facts: dict[str, Any], settings: Settings) -> str:
    """The facts on one line, with how it was measured."""
    versions = ", ".join(f"{name} {text}" for name, text in facts["versions"].items())
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, "
        f"Python {facts['python']}, {versions}; {settings.threads} threads, "
        f"{settings.rounds} rounds of {settings.round_seconds * 1e3:g} ms"
    )


def document(results: Sequence[Result], settings: Settings) -> dict[str, Any]:
    """Everything measured, ready for JSON."""
    return {
        "schema": 1,
        "machine": machine_facts(results),
        "settings": asdict(settings),
        "cases": [case_document(result) for result in results],
    }


def case_document(result: Result) -> dict[str, Any]:
    """One case: its goals with verdicts, its peers with every round."""
    case = result.case
    peers: dict[str, Any] = {}
    for peer, outcome in result.outcomes.items():
        entry: dict[str, Any] = {"status": outcome.status}
        if outcome.version:
            entry["version"] = outcome.version
        if outcome.status == "ok":
            entry |= outcome.details
            entry |= {
                "seconds": outcome.seconds,
                "best_seconds": outcome.best,
                "median_seconds": outcome.median,
            }
            for name, pair in (
                ("ratio_to_tapejit", result.ratio(peer)),
                ("seconds_above_base", result.excess(peer)),
            ):
                if pair is not None:
                    entry[name] = {"best": pair[0], "median": pair[1]}
        elif outcome.reason:
            entry["reason"] = outcome.reason
        peers[peer] = entry
    return {
        "name": case.name,
        "description": case.description,
        "unit": case.unit,
        "operations_per_call": case.operations,
        "goals": [
            {
                "goal": str(goal),
                "peer": found.against if found else getattr(goal, "peer", ""),
                "promised": goal.promised,
                "best": found.best if found else None,
                "median": found.median if found else None,
                "met": found.verdict if found else None,
            }
            for goal, found in ((goal, result.find(goal)) for goal in case.goals)
        ],
        "peers": peers,
    }
