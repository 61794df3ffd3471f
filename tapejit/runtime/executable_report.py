"""What is inside an Executable: its kernels, as numbers and as text of every stage.

A `Part` is a stretch of the Graph that is native code, planned and emitted once more to
be looked at; what runs is not touched, and need not be native at all. `Inside` has the
parts in order and the Nodes that NumPy performs between them, each with the reason.

`show` is called when native code has been made ready: it reports on standard error what
the setting `debug` asks for, and writes files into the folder `dump`.

Start reading at `Inside`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tapejit.base.config import config
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node
from tapejit.ir.printer import origin_text, shown
from tapejit.ir.structural import item, require, start
from tapejit.loops.reasons import why_not_native
from tapejit.loops.segments import is_movement
from tapejit.runtime import compiled

if TYPE_CHECKING:
    from tapejit.runtime.executable import Executable
    from tapejit.targets.cpu.kernel_report import KernelReport

STRUCTURE: Final = (item, require, start, LITERAL)  # there is nothing to perform


class OnNumPy(NamedTuple):
    """A Node that NumPy performs: the operation, why, and the user's line."""

    op: str
    reason: str
    where: str

    def __str__(self) -> str:
        behind = f" at {self.where}" if self.where else ""
        return f"{self.op}{behind}: {self.reason}"


class Part:
    """A Graph that is native code as a whole; `first` is its first kernel's number."""

    def __init__(self, graph: Graph, name: str, first: int) -> None:
        from tapejit.targets.cpu.module import build

        self.graph = graph
        self.first = first
        self.built = build(graph, name, marks_memory=config.check)

    @cached_property
    def kernels(self) -> list[KernelReport]:
        """Each kernel in numbers."""
        from tapejit.targets.cpu.kernel_report import kernel_reports

        return kernel_reports(self.graph, self.built.plan, self.first)

    def source(self, name: str) -> str:
        """The kernels as Python, and the function of this name that calls them."""
        from tapejit.targets.python.kernel_source import module_source

        return module_source(self.graph, self.built.plan, self.first, name)

    def llvm(self) -> str:
        """The module as it is turned into machine code."""
        from tapejit.targets.cpu.machine.compile import with_registers

        return str(with_registers(str(self.built.module)))

    def asm(self) -> str:
        """The instructions of this processor."""
        from tapejit.targets.cpu.machine.compile import assembly

        return assembly(self.built.module)


class Inside:
    """The kernels of an optimised Graph, and what is not in them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.parts: list[Part] = []
        self.on_numpy: list[OnNumPy] = []
        whole = compiled.whole_graph(graph)
        self.updates: set[tuple[int, int]] = set()  # results over inputs
        if whole is not None:
            self.parts.append(Part(whole, "kernels", 0))
            self.updates.update(self.parts[0].built.plan.update_pairs())
            return
        split = compiled.native_form(graph, "kernels")
        count = 0
        for at, segment in enumerate(split.segments.values()):
            part = Part(segment, f"kernels_{at}", count)
            count += len(part.built.plan.kernels)
            self.parts.append(part)
        for node in split.graph.nodes:
            is_structure = node.op in STRUCTURE or is_movement(node)
            if node not in split.segments and not is_structure:
                original = split.originals.get(node, node)
                self.on_numpy.append(on_numpy(original))

    @property
    def kernels(self) -> list[KernelReport]:
        """Each kernel in numbers, in the order in which they run."""
        return [kernel for part in self.parts for kernel in part.kernels]

    @property
    def arena_size(self) -> int:
        """The bytes of working memory that a call takes."""
        return max((part.built.arena_size for part in self.parts), default=0)

    def source(self) -> str:
        """The kernels as Python."""
        return self._joined(
            [
                part.source("run" if len(self.parts) == 1 else f"run_{at}")
                for at, part in enumerate(self.parts)
            ],
            "#",
        )

    def plan(self) -> str:
        """The loops of each kernel, with vectors, tasks and memory."""
        return self._joined([str(part.built.plan) for part in self.parts], "#")

    def llvm(self) -> str:
        """The modules that are turned into machine code."""
        return self._joined([part.llvm() for part in self.parts], ";")

    def asm(self) -> str:
        """The instructions of this processor."""
        return self._joined([part.asm() for part in self.parts], "#")

    def _joined(self, texts: list[str], mark: str) -> str:
        lines = [f"{mark} NumPy performs {x}" for x in self.on_numpy]
        if not texts:
            lines.append(f"{mark} there are no kernels")
        return "\n\n".join(["\n".join(lines), *texts] if lines else texts) + "\n"


def on_numpy(node: Node) -> OnNumPy:
    """A Node that is not native, with the reason."""
    return OnNumPy(node.op.name, why_not_native(node), origin_text(node, {}))


# Reports


def compile_seconds(executable: Executable) -> dict[str, float] | None:
    """What making native code took, by stages; None if it is not made yet.

    Empty if all of it came from disk.
    """
    codes = list(codes_of(executable))
    if not codes or None in codes:
        return None
    total: dict[str, float] = {}
    for code in codes:
        for stage, seconds in code.seconds.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total


def codes_of(executable: Executable) -> Iterator[Any]:
    """The native code of each part, None where there will be some."""
    if executable.code is not None:
        yield executable.code
    if executable.split is not None:
        for node in executable.split.segments:
            yield compiled.segment_of(node).code


def timing_text(seconds: dict[str, float]) -> str:
    """`in 34.1 ms (build 10.0, emit 24.1)`, or that it was on disk."""
    if not seconds:
        return "taken from disk"
    stages = ", ".join(f"{stage} {1e3 * x:.1f}" for stage, x in seconds.items())
    return f"in {1e3 * sum(seconds.values()):.1f} ms ({stages})"


def show(executable: Executable) -> None:
    """Report on native code that is ready, as far as the settings ask for it."""
    settings = config.current()
    if settings.debug < 1 and not settings.dump:
        return
    if executable.split is not None:
        for node in executable.split.segments:
            compiled.segment_of(node).prepare()
    inside = Inside(executable.graph)
    name = executable.given.name
    if settings.debug >= 1:
        seconds = compile_seconds(executable)
        count = len(inside.kernels)
        kernels = f"{count} kernel{'' if count == 1 else 's'}"
        took = timing_text(seconds) if seconds is not None else "none are needed"
        text = f"tapejit: compiled {name}, {kernels}: {took}\n"
        text += "".join(f"tapejit: NumPy performs {x}\n" for x in inside.on_numpy)
        if settings.debug >= 4:
            text += inside.plan() + inside.source()
        if settings.debug >= 5:
            text += inside.llvm()
        sys.stderr.write(text)  # in one piece, or the lines of two threads would mix
    if settings.dump:
        write_files(inside, executable, settings.dump)


def write_files(inside: Inside, executable: Executable, folder: str) -> None:
    """One file for each stage; a Graph that was dumped before replaces its files."""
    from tapejit.runtime.executable import symbol_for

    os.makedirs(folder, exist_ok=True)
    word = re.sub(r"\W+", "_", executable.given.name).strip("_") or "graph"
    stem = os.path.join(folder, f"{word}-{symbol_for(executable.given)[3:13]}")
    for ending, text in (
        ("graph.txt", f"{shown(executable.given)}\n"),
        ("optimised.txt", f"{shown(executable.graph)}\n"),
        ("plan.txt", inside.plan()),
        ("py", inside.source()),
        ("ll", inside.llvm()),
        ("s", inside.asm()),
    ):
        with open(f"{stem}.{ending}", "w", encoding="utf-8") as file:
            file.write(text)
