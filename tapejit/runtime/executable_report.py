"""What is inside an Executable: its kernels, as numbers and as text of every stage.

A `NativePart` is a stretch of the Graph that is native code. It has the plan that the
code was made of, if that was in this process; else it is planned once more to be looked
at. For LLVM's text it is emitted once more. What runs is not touched, and need not be
native at all. `Inside` has the parts in order and the Nodes that NumPy performs between
them, each with the reason.

`show` is called when native code has been made ready: it reports on standard error what
the setting `debug` asks for, and writes files into the folder `dump`.

Start reading at `inside_of`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tapejit.base.config import config
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node
from tapejit.ir.printer import changed_lines, origin_text, shown
from tapejit.ir.structural import item, require, start
from tapejit.loops.reasons import why_not_native
from tapejit.loops.segments import is_movement
from tapejit.runtime import compiled

if TYPE_CHECKING:
    from tapejit.loops.kernels import LoopPlan
    from tapejit.runtime.compiled import Code
    from tapejit.runtime.executable import Executable
    from tapejit.targets.cpu.kernel_report import KernelReport
    from tapejit.targets.cpu.module import Built

STRUCTURE: Final = (item, require, start, LITERAL)  # there is nothing to perform


class OnNumPy(NamedTuple):
    """A Node that NumPy performs: the operation, why, and the user's line."""

    op: str
    reason: str
    where: str

    def __str__(self) -> str:
        return f"{located(self.op, self.where)}: {self.reason}"


def located(op: str, where: str) -> str:
    """An operation with the user's line, if that is known."""
    return f"{op} at {where}" if where else op


def inside_of(executable: Executable) -> NativeInside:
    """What is inside of an Executable; looked for once, with the present settings."""
    settings = config.current()
    how = settings.cpu, settings.check, executable.is_waiting
    if executable.inside is None or executable.inside[0] != how:
        executable.inside = how, NativeInside(executable.graph, executable)
    found: NativeInside = executable.inside[1]
    return found


class NativePart:
    """A Graph that is native code as a whole; `first` is its first kernel's number."""

    def __init__(
        self, graph: Graph, name: str, first: int, code: Code | None = None
    ) -> None:
        self.graph = graph
        self.name = name
        self.first = first
        self._code = code
        plan = self.plan
        self.count = len(plan.kernels)
        self.arena_size = plan.arena_size
        self.updates = plan.update_pairs()

    @property
    def plan(self) -> LoopPlan:
        """The plan of the code; a new one if that is not known any more."""
        kept = None if self._code is None else self._code.plan
        if kept is None:
            kept = self._plan
            if self._code is not None:
                compiled.with_plan(self._code, kept)
                del self._plan  # the code has it as long as there is room
        return kept

    @cached_property
    def _plan(self) -> LoopPlan:
        from tapejit.targets.cpu.target import CPU

        return CPU.plan(self.graph)

    @cached_property
    def built(self) -> Built:
        """The part once more, with the text of its functions."""
        from tapejit.targets.cpu.module import emit_plan

        return emit_plan(self.graph, self.plan, self.name, marks_memory=config.check)

    def passes(self) -> str:
        """What each pass over its loops changes, as lines taken out and put in."""
        from tapejit.targets.cpu.target import CPU

        texts, before = "", ""

        def observe(name: str, left: str) -> None:
            nonlocal texts, before
            if left != before:
                texts += f"tapejit: {name} of {self.graph.name}\n"
                texts += "".join(f"{x}\n" for x in changed_lines(before, left))
                before = left

        CPU.plan(self.graph, observe=observe)
        return texts

    @cached_property
    def kernels(self) -> list[KernelReport]:
        """Each kernel in numbers."""
        from tapejit.targets.cpu.kernel_report import kernel_reports

        return kernel_reports(self.graph, self.plan, self.first)

    def source(self, name: str) -> str:
        """The kernels as Python, and the function of this name that calls them."""
        from tapejit.targets.cpu.target import CPU
        from tapejit.targets.python.target import PythonTarget

        return PythonTarget(CPU, self.first).emit(self.graph, self.plan, name)

    def llvm(self) -> str:
        """The module as it is turned into machine code."""
        from tapejit.targets.cpu.machine.compile import with_registers

        return str(with_registers(str(self.built.module)))

    def asm(self) -> str:
        """The instructions of this processor."""
        from tapejit.targets.cpu.machine.compile import assembly

        return assembly(self.built.module)


class Part(Protocol):
    """A stretch of a Graph whose kernels are compiled together."""

    arena_size: int

    @property
    def plan(self) -> LoopPlan:
        """The loops of its kernels."""

    @property
    def kernels(self) -> Sequence[KernelReport]:
        """Each kernel in numbers."""

    def source(self, name: str) -> str:
        """The kernels as Python, and the function of this name that calls them."""

    def llvm(self) -> str:
        """The module that is turned into machine code."""

    def asm(self) -> str:
        """Its instructions."""


class Inside:
    """The kernels of a Graph, part by part, and what is not in them."""

    parts: Sequence[Part]
    reads_back: Sequence[Any] = ()  # what the host waits for; a GPU's alone

    def __init__(self) -> None:
        self.on_numpy: list[OnNumPy] = []
        self.updates: set[tuple[int, int]] = set()  # results over inputs

    @property
    def kernels(self) -> list[KernelReport]:
        """Each kernel in numbers, in the order in which they run."""
        return [kernel for part in self.parts for kernel in part.kernels]

    @property
    def arena_size(self) -> int:
        """The bytes of working memory that a call takes."""
        return max((part.arena_size for part in self.parts), default=0)

    @property
    def predicted(self) -> dict[str, float]:
        """Name of a GPU -> seconds for all kernels at best; {} on the CPU."""
        return {}

    @property
    def missing(self) -> str:
        """What keeps numbers unknown; '' if nothing does."""
        return ""

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
        return self._joined([str(part.plan) for part in self.parts], "#")

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


class NativeInside(Inside):
    """The kernels of an optimised Graph on the CPU, and what is not in them.

    An Executable of that Graph may have native code already.
    """

    def __init__(self, graph: Graph, executable: Executable | None = None) -> None:
        super().__init__()
        self.parts: list[NativePart] = []
        code = None if executable is None else executable.code
        split = None if executable is None else executable.split
        whole = None
        if code is not None and code.plan is not None:
            whole = code.graph
        elif split is None:
            whole = compiled.whole_graph(graph)
        if whole is not None:
            self.parts.append(NativePart(whole, "kernels", 0, code))
            self.updates.update(self.parts[0].updates)
            return
        if split is None:
            split = compiled.native_form(graph, "kernels")
        count = 0
        for at, (node, segment) in enumerate(split.segments.items()):
            own = compiled.segment_of(node).code
            part = NativePart(segment, f"kernels_{at}", count, own)
            count += part.count
            self.parts.append(part)
        for node in split.graph.nodes:
            is_structure = node.op in STRUCTURE or is_movement(node)
            if node not in split.segments and not is_structure:
                original = split.originals.get(node, node)
                self.on_numpy.append(on_numpy(original))


class Optimised(Protocol):
    """An Executable of the CPU, or of a device."""

    @property
    def given(self) -> Graph:
        """The Graph as it was traced."""

    @property
    def graph(self) -> Graph:
        """The Graph as the passes leave it."""


def on_numpy(node: Node) -> OnNumPy:
    """A Node that is not native, with the reason."""
    return OnNumPy(node.op.name, why_not_native(node), origin_text(node, {}))


# Reports


def compile_seconds(executable: Executable) -> dict[str, float] | None:
    """What making native code took, by stages; None if it is not made yet.

    Empty if all of it came from disk.
    """
    if not executable.segments:
        return None
    total: dict[str, float] = {}
    for segment in executable.segments:
        if segment.code is None:
            return None
        for stage, seconds in segment.code.seconds.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total


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
    for segment in executable.segments:
        segment.prepare()
    inside = inside_of(executable)
    name = executable.given.name
    if settings.debug >= 1:
        seconds = compile_seconds(executable)
        count = len(inside.kernels)
        kernels = f"{count} kernel{'' if count == 1 else 's'}"
        took = timing_text(seconds) if seconds is not None else "none are needed"
        text = f"tapejit: compiled {name}, {kernels}: {took}\n"
        text += "".join(f"tapejit: NumPy performs {x}\n" for x in inside.on_numpy)
        if settings.debug >= 4:
            text += "".join(part.passes() for part in inside.parts)
            text += inside.plan() + inside.source()
        if settings.debug >= 5:
            text += inside.llvm()
        sys.stderr.write(text)  # in one piece, or the lines of two threads would mix
    if settings.dump:
        write_files(inside, executable, settings.dump)


def write_files(
    inside: Inside, executable: Optimised, folder: str, where: str = "", asm: str = "s"
) -> None:
    """One file for each stage; a Graph that was dumped before replaces its files.

    `where` is part of their names, `asm` the ending of that with instructions.
    """
    from tapejit.runtime.executable import symbol_for

    os.makedirs(folder, exist_ok=True)
    word = re.sub(r"\W+", "_", executable.given.name).strip("_") or "graph"
    stem = os.path.join(folder, f"{word}-{symbol_for(executable.given)[3:13]}{where}")
    for ending, text in (
        ("graph.txt", f"{shown(executable.given)}\n"),
        ("optimised.txt", f"{shown(executable.graph)}\n"),
        ("plan.txt", inside.plan()),
        ("py", inside.source()),
        ("ll", inside.llvm()),
        (asm, inside.asm()),
    ):
        with open(f"{stem}.{ending}", "w", encoding="utf-8") as file:
            file.write(text)
