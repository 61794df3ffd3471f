"""The commands of Replay:  python -m tests.replay compare

The exit code is 1 if a program differs or is gone; programs that are new are named. It
is 2 if nothing could be compared.

Start reading at `main`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import CalledProcessError

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import tapejit  # noqa: E402
from replay.commits import record_of_commit  # noqa: E402
from replay.programs import all_programs  # noqa: E402
from replay.record import (  # noqa: E402
    KEPT,
    Record,
    differences,
    made_here,
    read_record,
    record_of,
    why_not_comparable,
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if not Path(tapejit.__file__).is_relative_to(ROOT):
        print(f"tapejit is that of {tapejit.__file__}: run this in {ROOT}")
        return 2
    return int(options.command(options))


def parser() -> argparse.ArgumentParser:
    """The commands and their options; `command` is the function that is called."""
    made = argparse.ArgumentParser(prog="python -m tests.replay")
    commands = made.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="programs whose names match, as 'bench/*'; may be given several times",
    )
    common.add_argument("--bits", action="store_true", help="run, and digest results")
    one = commands.add_parser("record", parents=[common], help="make digests")
    one.add_argument("--out", type=Path, help="a file; otherwise they are printed")
    one.set_defaults(command=record)
    one = commands.add_parser("compare", parents=[common], help="compare with a file")
    one.add_argument("file", nargs="?", type=Path, default=KEPT)
    one.set_defaults(command=compare)
    one = commands.add_parser("commits", parents=[common], help="compare two commits")
    one.add_argument("before")
    one.add_argument("after")
    one.set_defaults(command=compare_commits)
    one = commands.add_parser("accept", help="write digests.json anew")
    one.set_defaults(command=accept, only=[], bits=False)
    return made


def record(options: argparse.Namespace) -> int:
    """Write digests, or print them."""
    made = made_now(options)
    if options.out is None:
        print(made.text(), end="")
    else:
        options.out.write_text(made.text())
    return 0


def compare(options: argparse.Namespace) -> int:
    """Name what differs from a file."""
    kept = read_record(options.file)
    here = made_here("bits" if options.bits else "text")
    if reason := why_not_comparable(kept.made_with, here):
        print(f"{options.file} cannot be compared: {reason}")
        return 2
    return report(kept, made_now(options), options.only)


def compare_commits(options: argparse.Namespace) -> int:
    """Name what differs between two commits."""
    given = ["--bits"] if options.bits else []
    given += [f"--only={pattern}" for pattern in options.only]
    try:
        before, after = (
            record_of_commit(x, given) for x in (options.before, options.after)
        )
    except CalledProcessError as error:  # it has said why
        print(f"nothing is compared: {shlex.join(error.cmd)} has failed")
        return 2
    if reason := why_not_comparable(before.made_with, after.made_with):
        print(f"the commits cannot be compared: {reason}")
        return 2
    return report(before, after, options.only)


def accept(options: argparse.Namespace) -> int:
    """Keep what is written now, and name what changed."""
    kept = read_record(KEPT) if KEPT.exists() else Record({})
    made = made_now(options)
    KEPT.write_text(made.text())
    report(kept, made)
    return 0


def made_now(options: argparse.Namespace) -> Record:
    """A Record of the programs asked for; how long it took goes to standard error."""
    begin = time.perf_counter()
    made = record_of(all_programs(options.only), bits=options.bits)
    seconds = time.perf_counter() - begin
    print(f"{len(made.programs)} programs in {seconds:.0f} s", file=sys.stderr)
    return made


def report(before: Record, after: Record, patterns: Sequence[str] = ()) -> int:
    """Print what differs, and give the exit code."""
    found = differences(before, after, patterns)
    for difference in found:
        print(difference)
    print(
        f"{len(found)} of {len(after.programs)} programs" if found else "no difference"
    )
    return int(any(x.what != "is new" for x in found))


if __name__ == "__main__":
    raise SystemExit(main())
