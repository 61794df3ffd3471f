"""Run the benchmarks: `python benchmarks/run.py [case ...]`, options by `--help`.

Progress goes to standard error, the table and the line of facts to standard output. The
status is 1 when a peer failed or gave a wrong answer, and 0 otherwise: a goal that is
not met is a finding, not a failure.

Start reading at `main`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.case import OURS, package_name
from benchmarks.cases import load_groups, select
from benchmarks.measure import Settings, measure_group
from benchmarks.peers import PACKAGES, is_installed, package_of

QUICK = Settings(rounds=3, round_seconds=0.005)


class Progress:
    """Shows what is running: one line rewritten on a terminal, plain lines elsewhere.

    On a terminal a rewritten line costs nothing to read; in a log one line per round
    and peer would be hundreds, so there only the first peer of a round is shown."""

    def __init__(self) -> None:
        self.on_terminal = sys.stderr.isatty()
        self.last = ""

    def __call__(self, text: str) -> None:
        if self.on_terminal:
            first, newline, rest = text.partition("\n")
            sys.stderr.write(f"\r\x1b[K{first}{newline}{rest}")
        else:
            turn = text.rpartition(": ")[0] if ": round " in text else text
            if turn == self.last:
                return
            self.last = turn
            sys.stderr.write(turn + "\n")
        sys.stderr.flush()

    def done(self) -> None:
        """Clear the line."""
        if self.on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line.

    >>> parse(["eager_op", "--quick"]).cases
    ['eager_op']
    """
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py",
        description="Time tapejit beside its peers, on the same programs, in turns.",
    )
    parser.add_argument("cases", nargs="*", metavar="case", help="default: all")
    parser.add_argument(
        "--peers",
        metavar="A,B",
        help="only these; a package's name takes all its variants (default: installed)",
    )
    parser.add_argument("--list", action="store_true", help="show cases and peers")
    parser.add_argument("--json", metavar="FILE", type=Path, help="every number")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="bars of ratios")
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 15")
    parser.add_argument("--threads", type=int, metavar="N", default=2)
    parser.add_argument(
        "--python",
        metavar="PACKAGE=PATH",
        type=interpreter,
        action="append",
        default=[],
        help="run a package's peers with another interpreter, where the requirements "
        "of two packages exclude each other (may be repeated)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="3 rounds of 5 ms: does it work?"
    )
    options = parser.parse_args(arguments)
    for name in ("rounds", "threads"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


def interpreter(text: str) -> tuple[str, str]:
    """The package and the path of `--python`.

    >>> interpreter("tapejit=/opt/python3")
    ('tapejit', '/opt/python3')
    """
    package, _, path = text.partition("=")
    if package not in PACKAGES or not path:
        known = ", ".join(PACKAGES)
        raise argparse.ArgumentTypeError(f"{text!r} is not PACKAGE=PATH ({known})")
    return package, path


def peer_filter(peers: str | None) -> Callable[[str], bool]:
    """Which labels `--peers` asks for.

    >>> wanted = peer_filter("numpy,jax (jit)")
    >>> wanted("numpy"), wanted("jax (jit)"), wanted("jax")
    (True, True, False)
    """
    if peers is None:
        return lambda label: True
    names = {name.strip() for name in peers.split(",") if name.strip()}
    for name in names:
        package_of(name)  # complains about a name nobody knows
    return lambda label: bool({label, package_name(label)} & names)


def listing() -> str:
    """What `--list` prints."""
    lines: list[str] = []
    for cases in load_groups().values():
        for case in cases:
            lines.append(f"{case.name:<22} {case.description}")
            lines += [f"{'':<22} goal: {goal.sentence}" for goal in case.goals]
            peers = [
                label if is_installed(label) else f"{label} [not installed]"
                for label in case.builders
            ]
            lines.append(f"{'':<22} peers: {', '.join(peers)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit status."""
    options = parse(arguments)
    if options.list:
        print(listing())
        return 0
    try:
        groups = select(options.cases)
        wanted = peer_filter(options.peers)
    except ValueError as error:
        print(f"benchmarks/run.py: {error}", file=sys.stderr)
        return 2
    base = QUICK if options.quick else Settings()
    settings = Settings(
        rounds=options.rounds or base.rounds,
        round_seconds=base.round_seconds,
        threads=options.threads,
    )

    progress = Progress()
    results: list[report.Result] = []
    for cases in groups.values():
        outcomes = measure_group(
            cases, wanted, settings, progress, dict(options.python)
        )
        results += [report.Result(case, outcomes[case.name]) for case in cases]
    progress.done()

    print(report.table(results))
    print()
    if any(result.case.goals for result in results):
        print(report.goals_table(results))
        print()
    for note in report.footnotes(results):
        print(note)
    print(report.facts_line(report.machine_facts(results), settings))
    if options.json:
        text = json.dumps(report.document(results, settings), indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.plot:
        if not any(result.rounds(OURS) for result in results):
            print("no plot: ratios need tapejit among the peers", file=sys.stderr)
            return 1
        from benchmarks.plot import draw

        draw(results, options.plot, settings)
    failed = any(o.status == "failed" for r in results for o in r.outcomes.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
