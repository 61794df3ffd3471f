"""Faults that there were, put back: what the generator has to find.

A fault is a line of the package as it was, given as text of a function that is in force
while it is put back. So a fault that no longer fits the package is an error here.

    python -m tests.fuzz --fault keep_apart --seeds 0:5000 --stop 1

Start reading at `FAULTS`.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tapejit.runtime.executable import EXECUTABLES


@dataclass(frozen=True)
class Fault:
    """Text of a function, and what stood in its place; `where` is "module:function"."""

    where: str
    text: str
    before: str

    def owner(self) -> tuple[Any, str]:
        """The module or class that has the function, and its name there."""
        module, _, path = self.where.partition(":")
        *outer, name = path.split(".")
        found: Any = importlib.import_module(module)
        for part in outer:
            found = getattr(found, part)
        return found, name


FAULTS: dict[str, tuple[Fault, ...]] = {
    # Private memory read before it is written.
    "keep_apart": (
        Fault(
            "tapejit.passes.fusion.vectors:keep_apart",
            " or leaf.source in made_here",
            "",
        ),
    ),
}


def put_back(name: str) -> None:
    """Put a fault back for the rest of the process."""
    for fault in FAULTS[name]:
        owner, attribute = fault.owner()
        setattr(owner, attribute, as_it_was(fault))


@contextmanager
def with_fault(name: str) -> Iterator[None]:
    """Put a fault back for a while."""
    owners = [fault.owner() for fault in FAULTS[name]]
    kept = [vars(owner)[attribute] for owner, attribute in owners]
    EXECUTABLES.clear()  # equal Graphs are compiled again
    put_back(name)
    try:
        yield
    finally:
        EXECUTABLES.clear()
        for (owner, attribute), function in zip(owners, kept, strict=True):
            setattr(owner, attribute, function)


def as_it_was(fault: Fault) -> Any:
    """The function with the text of before."""
    owner, name = fault.owner()
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(fault.text) == 1, f"{fault.where} has no longer {fault.text!r}"
    source = source.replace(fault.text, fault.before)
    made: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{source}", fault.where, "exec")
    exec(code, function.__globals__, made)
    return made[name]
