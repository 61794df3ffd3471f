"""Compiling a module in chunks, while it is still being written.

Of the time that a Graph takes to become machine code, Python needs half to write the
module, and LLVM the other half to make code of it. `Pieces` lets both go on at once:
whenever enough new functions are there, `look` makes them a module of their own, in
which functions written before are known by name, and gives it to the helper. When all
is written, `finish` joins the objects.

A module is cut by the length of its text alone, so it always becomes the same code.

Start reading at `Pieces`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tapejit.targets.cpu.machine.compile import Compiled
from tapejit.targets.cpu.machine.compile_thread import Job, has_help, submit
from tapejit.targets.cpu.machine.objects import joined
from tapejit.targets.cpu.target import CPU


class Pieces:
    """The machine code of one module; `look` at it as often as there is something new.

    >>> from tapejit.targets.cpu.llvm import ir
    >>> module = ir.LLVMModule("one")
    >>> signature = ir.FunctionType(ir.IntType(64), [])
    >>> function = ir.LLVMFunction(module, signature, "one")
    >>> builder = ir.IRBuilder(function.append_basic_block())
    >>> _ = builder.ret(ir.Literal(ir.IntType(64), 1))
    >>> Pieces().finish(module).object.functions
    ('one',)
    """

    def __init__(self) -> None:
        self.seen = 0  # of the module's functions and constants
        self.declared: list[str] = []  # those of earlier pieces
        self.texts: list[str] = []  # of the next one
        self.length = 0
        self.jobs: list[Job] = []
        self.seconds = {"print": 0.0, "parse": 0.0, "emit": 0.0}

    @property
    def spent(self) -> float:
        """The seconds that all this has taken here."""
        return sum(self.seconds.values())

    def look(self, module: Any, texts: Mapping[str, str] | None = None) -> None:
        """Take what is new in a module; as soon as it is enough, let it be compiled.

        What is there already must not change any more. `texts` are those of functions
        that were printed already, by name.
        """
        begin = time.perf_counter()
        known = texts or {}
        found = list(module.globals.values())
        for thing in found[self.seen :]:
            text = known.get(thing.name) or thing.definition()
            self.texts.append(text)
            self.length += len(text)
        self.seen = len(found)
        self.seconds["print"] += time.perf_counter() - begin
        if self.length >= CPU.tuning.module_chunk_characters and has_help():
            self.cut(module)

    def cut(self, module: Any) -> None:
        """Make what is new a module of its own."""
        begin = time.perf_counter()
        new = [visible(text) for text in self.texts]
        notes = [note.definition() for note in module.metadata]
        self.jobs.append(submit("\n".join([*self.declared, *new, *notes])))
        self.declared += [declaration(text) for text in self.texts]
        self.texts, self.length = [], 0
        self.seconds["parse"] += time.perf_counter() - begin

    def finish(
        self, module: Any, tell: Callable[[str, int, int], None] | None = None
    ) -> Compiled:
        """All of it, when the module is complete; `tell` hears how far it is."""
        self.look(module)
        if self.texts:
            self.cut(module)
        begin = time.perf_counter()
        for count, job in enumerate(reversed(self.jobs), 1):
            if tell is not None:
                tell("machine code, piece", count, len(self.jobs))
            job.do()  # the helper comes from the other end
        made = joined([job.result() for job in self.jobs])
        self.seconds["emit"] = time.perf_counter() - begin
        return Compiled(made, self.seconds)


def visible(text: str) -> str:
    """A function or constant that other modules can use."""
    head, line, rest = text.partition("\n")
    return head.replace(" internal ", " hidden ", 1) + line + rest


def declaration(text: str) -> str:
    """The same for a module that does not have it: its name and type."""
    head, _, _ = visible(text).partition("\n")
    if head.startswith("define"):
        return "declare" + head.removeprefix("define")
    if head.startswith("declare"):
        return head
    name, _, _ = head.partition(" = ")
    return f"{name} = external hidden constant i8"
