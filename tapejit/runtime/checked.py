"""Running a Graph with a look at every result: what `check_numerics` does to functions.

A `CheckedExecutable` stands in for an Executable while the setting is on. It runs the
Graph as it was traced, calls inlined and nothing else, so that every operation the user
wrote is there. Native code of it notes that something is not finite, and the same
values then go through NumPy step by step, which raises the error; nothing has been
committed by then. Such code is not kept on disk.

Start reading at `CheckedExecutable`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tapejit.base.config import config
from tapejit.ir.graph import Graph
from tapejit.ir.interpret import Program
from tapejit.ir.node import Movement, Op
from tapejit.ir.numerics import run_checked
from tapejit.ir.rewriting import Sources
from tapejit.loops.segments import Split, split
from tapejit.rewrite.inline import inline
from tapejit.runtime import compiled
from tapejit.runtime.compile_progress import showing
from tapejit.runtime.executable import steps_of, symbol_for


class CheckedExecutable:
    """Runs one Graph, and raises NonFiniteError where an operation gives NaN or inf.

    >>> import numpy as np
    >>> from tapejit import ops
    >>> from tapejit.base.errors import NonFiniteError
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[2]"))
    >>> checked = CheckedExecutable(Graph("f", (x,), (ops.log(x) * 0,)))
    >>> try:
    ...     checked.run([np.float32([1, 0])])
    ... except NonFiniteError as error:
    ...     print(error.message, "| step", checked.failed_step(error))
    the result is -inf at index (1,), of 0.0; 1 of 2 elements is not finite | step 0
    """

    def __init__(self, graph: Graph) -> None:
        self.given = graph
        self._sources: Sources = {}
        self.graph = inline(graph, self._sources)
        self._split: Split | None = None
        self._program: Program = self.graph.program
        self._call: Callable[..., Any] | None = None
        if config.current().native:
            self._compile(f"{symbol_for(graph)}_checked")

    def _compile(self, name: str) -> None:
        whole = compiled.whole_graph(self.graph)
        if whole is not None:
            self._call = checked_code(whole, name)
            return
        self._split = split(
            self.graph,
            compiled.is_candidate,
            lambda segment, number: checked_op(segment, f"{name}_{number}"),
        )
        self._program = self._split.graph.program

    def run(self, arguments: list[Any]) -> list[Any]:
        """The outputs; the list is emptied."""
        if self._call is not None:
            found = compiled.called(self._call, arguments)
            if found is not None:
                arguments.clear()
                return found
        return run_checked(self._program, arguments)

    def failed_step(self, error: BaseException) -> int | None:
        """Which of the given Graph's Nodes (literals not counted) raised `error`."""
        failed = self._program.failed_node(error)
        if self._split is not None and failed is not None:
            segment = self._split.segments.get(failed)
            if segment is not None:
                failed = segment.program.failed_node(error)
            if failed is not None:
                failed = self._split.originals.get(failed, failed)
        if failed is None:
            return None
        return steps_of(self.given).index(self._sources.get(failed, failed))


def checked_code(graph: Graph, name: str) -> Callable[..., Any]:
    """Native code that fails where something is not finite."""
    with compiled.COMPILING, showing(graph.name):
        return compiled.compiled_code(graph, name, None, checks=True).callable()


def checked_op(graph: Graph, name: str) -> Op:
    """The operation that runs a segment of a Graph."""
    made = partial(run_segment, graph, checked_code(graph, name))
    return Op(
        "native",
        type_rule=_no_rule,
        eval=made,
        differentiable=False,
        moves=Movement.OTHER,
    )


def run_segment(graph: Graph, call: Callable[..., Any], *arrays: Any) -> list[Any]:
    """A segment by its native code; again by NumPy if that has found something."""
    found = compiled.called(call, arrays)
    return run_checked(graph.program, list(arrays)) if found is None else found


def _no_rule(*types: Any) -> Any:
    raise AssertionError("a segment's Node is made with its type")
