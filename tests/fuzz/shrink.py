"""A failing program, made smaller.

A statement goes if the program fails in the same way without it: its name is replaced
by another one of its dtype and shape, or it is a result that is not returned.

Start reading at `shrunk`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from .judge import Failure
from .program import Line, Program

Judge = Callable[[Program], Failure | None]


def shrunk(program: Program, kind: str, judge: Judge, tries: int = 200) -> Program:
    """A smaller program that still fails in this way."""
    while True:
        for smaller in candidates(program):
            tries -= 1
            if tries < 0:
                return program
            found = judge(smaller)
            if found is not None and found.kind == kind:
                program = smaller
                break
        else:
            return program


def candidates(program: Program) -> Iterator[Program]:
    """Programs that are smaller by a little."""
    if len(program.results) > 1:
        for at in range(len(program.results)):
            rest = program.results[:at] + program.results[at + 1 :]
            yield needed(replace(program, results=rest))
    kinds = {x.name: (x.dtype, x.shape) for x in program.parameters}
    for at, line in enumerate(program.lines):
        others = [name for name, kind in kinds.items() if kind == line.kind]
        if not line.name:
            lines = program.lines[:at] + program.lines[at + 1 :]
            yield needed(program.without(lines, program.results))
        for other in others[:2]:
            yield needed(without_line(program, at, other))
        if line.kind is not None:
            kinds[line.name] = line.kind
    for at, argument in enumerate(program.arguments):
        for change in ({"layout": "plain"}, {"values": "smooth"}):
            plainer = replace(argument, **change)
            if plainer != argument:
                rest = [*program.arguments]
                rest[at] = plainer
                yield replace(program, arguments=tuple(rest))


def without_line(program: Program, at: int, other: str) -> Program:
    """Another name in place of what a statement makes."""
    gone = program.lines[at].name
    word = re.compile(rf"\b{gone}\b")

    def changed(line: Line) -> Line:
        uses = frozenset(other if x == gone else x for x in line.uses)
        return replace(line, text=word.sub(other, line.text), uses=uses)

    lines = [changed(x) for x in program.lines[:at] + program.lines[at + 1 :]]
    results = tuple(other if x == gone else x for x in program.results)
    return program.without(lines, results)


def needed(program: Program) -> Program:
    """Without statements whose names nothing uses."""
    kept: list[Line] = []
    used = set(program.results)
    for line in reversed(program.lines):
        if not line.name or line.changes or line.name in used:
            kept.append(line)
            used |= line.uses
    return program.without(reversed(kept), program.results)
