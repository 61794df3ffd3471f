"""A Graph ready to run: arrays in, arrays out.

An Executable runs the Graph that the passes make of the one it is given. It interprets:
it runs the record of each operation through NumPy, in order, with nothing in between.
Functions know it by `run`, which takes and gives what the given Graph would, and by
`failed_step`, which speaks of the given Graph too.

Start reading at `executable_for`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from tapejit.errors import GraphError
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, PARAM, Node
from tapejit.passes.pipeline import VERSION, OnChange, optimise
from tapejit.passes.rewriting import Sources


class Executable:
    """Runs one Graph.

    `run(arrays)` gives the outputs; the list is emptied, so that values can be freed.
    `graph` is what really runs: the same inputs and outputs, fewer Nodes in between.
    """

    __slots__ = ("__weakref__", "_positions", "_program", "graph", "run")

    def __init__(self, graph: Graph, observe: OnChange | None = None) -> None:
        sources: Sources = {}
        self.graph = optimise(graph, sources=sources, observe=observe)
        self._program = self.graph.program
        self.run: Callable[[list[Any]], list[Any]] = self._program.run
        # By number, not by Node: Graphs with the same digest share this, each with
        # Nodes and lines of its own.
        given = {node: at for at, node in enumerate(steps_of(graph))}
        self._positions = tuple(
            given[sources.get(node, node)] for node in steps_of(self.graph)
        )

    def failed_step(self, error: BaseException) -> int | None:
        """Which of the given Graph's Nodes (literals not counted) raised `error`."""
        step = self._program.failed_step(error)
        return None if step is None else self._positions[step]


def steps_of(graph: Graph) -> list[Node]:
    """The Nodes that are something to do."""
    return [x for x in graph.nodes if x.op is not LITERAL and x.op is not PARAM]


EXECUTABLES: Final[WeakValueDictionary[str, Executable]] = WeakValueDictionary()


def executable_for(graph: Graph, observe: OnChange | None = None) -> Executable:
    """The Executable of a Graph, shared by all Graphs with the same digest.

    The digest is that of the Graph as it was traced: whoever finds one has run no pass.
    `observe` is shown what each pass does to a Graph that is met for the first time.
    """
    try:
        key = f"{graph.digest}.{VERSION}"
    except GraphError:
        # An attribute that has no text: nobody can share it.
        return Executable(graph, observe)
    found = EXECUTABLES.get(key)
    if found is None:
        found = EXECUTABLES.setdefault(key, Executable(graph, observe))
    return found
