"""A Graph ready to run: arrays in, arrays out.

An Executable runs what the passes make of the Graph it is given. If all of that can be
native code, it is one native call, whose code may be on disk already: then no pass runs
at all. If only parts can be, they are called among the operations that NumPy performs;
and with native code switched off, NumPy performs them all.

Functions know it by `run`, which takes and gives what the given Graph would, and by
`failed_step`, which speaks of the given Graph too. What `run` does is its `RunState`.

Start reading at `executable_for`, then `Executable.run`.
"""

from __future__ import annotations

from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from tapejit.base.collector import resting
from tapejit.base.config import config
from tapejit.base.errors import GraphError
from tapejit.ir.graph import Graph
from tapejit.ir.interpret import Program
from tapejit.ir.node import LITERAL, PARAM, Node
from tapejit.ir.numerics import run_checked
from tapejit.ir.rewriting import VERSION, Sources
from tapejit.loops.segments import Split
from tapejit.runtime.background import Compilation
from tapejit.runtime.compile_progress import current, showing

if TYPE_CHECKING:
    from tapejit.rewrite.pipeline import OnChange
    from tapejit.runtime.compiled import Code, Segment


class RunState(Enum):
    """What a run does.

    WAITING      makes native code first
    COMPILING    is interpreted: native code is made in the background
    INTERPRETED  performs operations with NumPy, native segments among them
    NATIVE       is one native call
    """

    WAITING = auto()
    COMPILING = auto()
    INTERPRETED = auto()
    NATIVE = auto()


class Executable:
    """Runs one Graph.

    `run(arrays)` gives the outputs; the list is emptied, so that values can be freed.
    `graph` is what really runs: the same inputs and outputs, fewer Nodes in between.
    `segments` are its native parts: one, if that is all of it, or those that are Nodes
    of the Graph of `split`, among operations that NumPy performs.
    `when` says when it is made: "now", by the first call, or in the "background".

    With `checks` it raises NonFiniteError where an operation of the given Graph gives
    NaN or infinity. Then calls are inlined and no other pass runs, so that all
    operations are there. Native code, which is not kept on disk, notes that something
    is not finite, and the same values go through NumPy, which tells what.

    >>> import numpy as np
    >>> from tapejit import ops
    >>> from tapejit.base.errors import NonFiniteError
    >>> from tapejit.base.types import TensorType
    >>> from tapejit.ir import param
    >>> x = param("x", TensorType.parse("f32[2]"))
    >>> checked = Executable(Graph("f", (x,), (ops.log(x) * 0,)), checks=True)
    >>> try:
    ...     checked.run([np.float32([1, 0])])
    ... except NonFiniteError as error:
    ...     print(error.message, "| step", checked.failed_step(error))
    the result is -inf at index (1,), of 0.0; 1 of 2 elements is not finite | step 0
    """

    def __init__(
        self,
        graph: Graph,
        observe: OnChange | None = None,
        when: str | None = None,
        *,
        checks: bool = False,
    ) -> None:
        self.given = graph
        self._checks = checks
        self.segments: list[Segment] = []
        self.split: Split | None = None
        self.inside: Any = None  # what was found in it, by `executable_report`
        self._observe = observe
        self._optimised: tuple[Graph, Sources] | None = None
        self._program: Program | None = None
        self.is_native = config.current().native
        self.compilation: Compilation | None = None
        self._interpreter: Program | None = None
        self.state = RunState.WAITING
        if self.is_native and (when or config.current().compile) == "now":
            return
        self._interpreter = self._program = self.graph.program
        self.state = RunState.INTERPRETED
        if self.is_native:
            self.compilation = Compilation()
            self.state = RunState.COMPILING

    @property
    def is_waiting(self) -> bool:
        """Whether there will be native code, but is none yet."""
        return self.state is RunState.WAITING or self.state is RunState.COMPILING

    @property
    def graph(self) -> Graph:
        """What the passes made of the given Graph."""
        return self._passed()[0]

    def _passed(self) -> tuple[Graph, Sources]:
        if self._optimised is None:
            # Here: code that is on disk needs no pass, and starts 1 ms sooner without.
            from tapejit.rewrite.inline import inline
            from tapejit.rewrite.pipeline import optimise

            sources: Sources = {}
            if self._checks:
                after = inline(self.given, sources)
            else:
                after = optimise(self.given, sources=sources, observe=self._observe)
            self._optimised = after, sources
        return self._optimised

    def run(self, arguments: list[Any]) -> list[Any]:
        """The outputs; the list is emptied."""
        if self.state is RunState.WAITING:
            self.prepare()
        elif self.compilation is not None and self.state is RunState.COMPILING:
            self.compilation.attend(self)
        if self.state is RunState.NATIVE:
            found = self.segments[0].called(arguments)
            if found is not None:
                arguments.clear()
                return found
            self._program = self.graph.program
        assert self._program is not None
        if self._checks:
            return run_checked(self._program, arguments)
        return self._program.run(arguments)

    def stay_interpreted(self) -> None:
        """There will be no native code after all."""
        self.state = RunState.INTERPRETED

    def prepare(self, *, quietly: bool = False) -> None:
        """Have the native code ready; `quietly` if nobody waits for it."""
        # It would look at a hundred thousand new objects again and again, find nothing,
        # and run finalizers while a module is half imported.
        with resting():
            self._prepare(quietly)

    def _prepare(self, quietly: bool) -> None:
        from tapejit.runtime import compiled

        with compiled.COMPILING:
            if not self.is_waiting:
                return
            shown = showing(self.given.name, quietly=quietly)
            with compiled.with_helper(), shown:
                self.state = self._compile()
            settings = config.current()
            if (settings.debug or settings.dump) and not self._checks:
                from tapejit.runtime import executable_report

                executable_report.show(self)

    def _compile(self) -> RunState:
        from tapejit.runtime import compiled

        whole = self._whole()
        if whole is not None:
            self.segments = [whole]
            return RunState.NATIVE
        self.split = compiled.native_form(self.graph, self._symbol, self._checks)
        self.segments = [compiled.segment_of(node) for node in self.split.segments]
        for number, segment in enumerate(self.segments, 1):
            if len(self.segments) > 1:
                current().part = f", part {number} of {len(self.segments)}"
            segment.prepare()
        self._program = self.split.graph.program
        return RunState.INTERPRETED

    @property
    def code(self) -> Code | None:
        """The native code if that is all of it."""
        return self.segments[0].code if self.state is RunState.NATIVE else None

    def _whole(self) -> Segment | None:
        """All of the Graph as one segment, None if it cannot be."""
        from tapejit.runtime import compiled

        digest = None if self._checks else digest_of(self.given)
        plain = all(compiled.is_plain(x.type) for x in self.given.outputs)
        if digest is not None and plain and not self._optimised:
            found = compiled.stored_code(self.given, digest)
            if found is not None:
                return compiled.Segment(self.given, self._symbol, digest, code=found)
            compiled.expect_to_compile()
        whole = compiled.whole_graph(self.graph)
        if whole is None:
            return None
        segment = compiled.Segment(whole, self._symbol, digest, self._checks)
        segment.prepare()
        return segment

    @property
    def _symbol(self) -> str:
        return symbol_for(self.given) + ("_checked" if self._checks else "")

    def failed_step(self, error: BaseException) -> int | None:
        """Which of the given Graph's Nodes (literals not counted) raised `error`."""
        if self._program is None:
            return None
        failed = self._program.failed_node(error)
        if self.split is not None and failed is not None:
            segment = self.split.segments.get(failed)
            if segment is not None:
                failed = segment.program.failed_node(error)
            if failed is not None:
                failed = self.split.originals.get(failed, failed)
        if failed is None and self._interpreter is not None:
            failed = self._interpreter.failed_node(error)  # it began before the switch
        if failed is None:
            return None
        # By number, not by Node: Graphs with the same digest share this, each with
        # Nodes and lines of its own.
        node = self._passed()[1].get(failed, failed)
        return steps_of(self.given).index(node)


def digest_of(graph: Graph) -> str | None:
    """The digest of a Graph, None if an attribute has no text."""
    try:
        return graph.digest
    except GraphError:
        return None


def symbol_for(graph: Graph) -> str:
    """A name that no other Graph's code has."""
    digest = digest_of(graph)
    return f"tj_{next(_anonymous)}" if digest is None else f"tj_{digest[:24]}"


_anonymous = count()


def steps_of(graph: Graph) -> list[Node]:
    """The Nodes that are something to do."""
    return [x for x in graph.nodes if x.op is not LITERAL and x.op is not PARAM]


EXECUTABLES: Final[WeakValueDictionary[str, Executable]] = WeakValueDictionary()


def executable_for(
    graph: Graph, observe: OnChange | None = None, when: str | None = None
) -> Executable:
    """The Executable of a Graph, shared by all Graphs with the same digest.

    The digest is that of the Graph as it was traced: whoever finds one has run no pass.
    `observe` is shown what each pass does to a Graph that is met for the first time;
    `when` is as for an Executable, by default what the setting `compile` says.
    """
    digest = digest_of(graph)
    if digest is None:
        return Executable(graph, observe, when)  # nobody can share it
    settings = config.current()
    how = (settings.native, settings.host, settings.cpu, settings.check)
    key = ".".join(map(str, (digest, VERSION, *how, when or settings.compile)))
    found = EXECUTABLES.get(key)
    if found is None:
        found = EXECUTABLES.setdefault(key, Executable(graph, observe, when))
    return found
