"""A Graph ready to run: arrays in, arrays out.

This Executable interprets: it runs the record of each operation through NumPy, in
order, with nothing in between. Functions know it only by `run` and `failed_node`.

Start reading at `executable_for`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from tapejit.errors import GraphError
from tapejit.ir.graph import Graph


class Executable:
    """Runs one Graph.

    `run(arrays)` gives the outputs; the list is emptied, so that values can be freed.
    """

    __slots__ = ("__weakref__", "_program", "run")

    def __init__(self, graph: Graph) -> None:
        self._program = graph.program
        self.run: Callable[[list[Any]], list[Any]] = self._program.run

    def failed_step(self, error: BaseException) -> int | None:
        """Which of the Graph's Nodes (literals not counted) raised `error`."""
        return self._program.failed_step(error)


EXECUTABLES: Final[WeakValueDictionary[str, Executable]] = WeakValueDictionary()


def executable_for(graph: Graph) -> Executable:
    """The Executable of a Graph, shared by all Graphs with the same digest."""
    try:
        digest = graph.digest
    except GraphError:
        return Executable(graph)  # an attribute that has no text: nobody can share it
    found = EXECUTABLES.get(digest)
    if found is None:
        found = EXECUTABLES.setdefault(digest, Executable(graph))
    return found
