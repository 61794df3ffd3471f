"""The command line: `python -m tapejit [info]` and `python -m tapejit cache ...`.

Each command is a function that prints what it has to say and returns the exit code: 0,
or 1 if what it looked at is not in order. The commands of the cache are the methods of
a `Store` with words around them.

Start reading at `main`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tapejit.runtime.store.store import MEGABYTE, Store, Stored, current_store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code.

    >>> main(["cache", "path"]) == 0  # doctest: +ELLIPSIS
    /...
    True
    """
    given = make_parser().parse_args(arguments)
    try:
        code: int = given.command(given)
    except BrokenPipeError:  # `... | head` has seen enough
        sys.stderr.close()  # or the interpreter reports what it could not write
        return 0
    return code


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options.

    >>> make_parser().parse_args(["cache", "ls"]).command is list_entries
    True
    """
    parser = argparse.ArgumentParser(
        prog="python -m tapejit",
        description="tapejit: what it finds on this machine, and the code it keeps.",
    )
    parser.set_defaults(command=show_information)
    commands = parser.add_subparsers(metavar="command")
    info = commands.add_parser(
        "info", help="versions, processor, threads, BLAS, cache and settings"
    )
    info.set_defaults(command=show_information)
    cache = commands.add_parser(
        "cache",
        help="the native code that is kept on disk",
        description="The native code that is kept on disk for later processes. It can "
        "be removed at any time: what is missing is compiled again.",
        epilog="TAPEJIT_CACHE_DIR moves it, TAPEJIT_CACHE_SIZE bounds it (megabytes), "
        "TAPEJIT_CACHE=0 turns it off.",
    )
    actions = cache.add_subparsers(required=True, metavar="action")
    for name, (command, text) in CACHE_COMMANDS.items():
        actions.add_parser(name, help=text).set_defaults(command=command)
    return parser


def show_information(given: Any) -> int:
    """Print all that is known of this machine."""
    import tapejit
    from tapejit.runtime.machine_info import gather, layout

    print(layout(gather(tapejit.__version__)))
    return 0


def list_entries(given: Any) -> int:
    """Print a table of the entries, the last used first."""
    store = current_store()
    found = sorted(store.stored(), key=lambda stored: stored.age)
    if not found:
        return _say_nothing_is_kept(store)
    rows = [("graph", "kernels", "size", "last used", "uses", "key"), *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        texts = (f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        print("  ".join(texts).rstrip())
    total = sum(stored.size for stored in found)
    limit = store.limit / MEGABYTE
    print(f"{_counted(len(found))}, {_size(total)} of {limit:g} MB, {store.directory}")
    return 0


def verify_entries(given: Any) -> int:
    """Check every entry against its checksum, drop those that are damaged."""
    store = current_store()
    good, damaged = 0, 0
    for stored in store.stored():
        if stored.entry is not None:
            good += 1
            continue
        damaged += 1
        store.drop(stored.key)
        print(f"{stored.key}: {stored.problem}; dropped")
    if not good + damaged:
        return _say_nothing_is_kept(store)
    print(f"{_counted(good)} in order, {damaged} damaged")
    return 1 if damaged else 0


def clear_entries(given: Any) -> int:
    """Remove all entries."""
    store = current_store()
    count = store.clear()
    if not count:
        return _say_nothing_is_kept(store)
    print(f"{_counted(count)} removed from {store.directory}")
    return 0


def show_path(given: Any) -> int:
    """Print the folder of the entries, and nothing else."""
    print(current_store().directory)
    return 0


CACHE_COMMANDS: dict[str, tuple[Callable[[Any], int], str]] = {
    "ls": (list_entries, "a table of what is kept"),
    "verify": (verify_entries, "check it, drop what is damaged; exit code 1 if any is"),
    "clear": (clear_entries, "remove all of it"),
    "path": (show_path, "where it is"),
}


def _say_nothing_is_kept(store: Store) -> int:
    print(f"nothing is kept in {store.directory or 'any folder'} ({store.state()})")
    return 0


def _row(stored: Stored) -> tuple[str, ...]:
    size, age = _size(stored.size), _duration(stored.age)
    if stored.entry is None:
        return (f"damaged: {stored.problem}", "", size, age, "", stored.key[:12])
    header = stored.entry.header
    kernels = header.get("kernels", "")
    count = len(kernels) if isinstance(kernels, list) else kernels
    name, uses = str(header.get("name", "")), str(stored.entry.uses)
    return (name, str(count), size, age, uses, stored.key[:12])


def _counted(number: int) -> str:
    return f"{number} {'entry' if number == 1 else 'entries'}"


def _size(count: int) -> str:
    return (
        f"{count / MEGABYTE:.1f} MB" if count >= MEGABYTE else f"{count / 1024:.1f} KB"
    )


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


if __name__ == "__main__":
    sys.exit(main())
