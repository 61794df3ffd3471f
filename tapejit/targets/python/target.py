"""Readable Python as a Target: the loops of another one, as text that runs.

What people want to read is what runs, so it schedules as that target does.

Start reading at `PythonTarget`.
"""

from __future__ import annotations

from typing import Any

from tapejit.ir.graph import Graph
from tapejit.loops.kernels import LoopPlan
from tapejit.targets.python.kernel_source import module_source
from tapejit.targets.target import DerivedTarget, Target


class PythonTarget(DerivedTarget[str]):
    """Text of what `of` schedules; kernels are numbered from `first` on."""

    def __init__(self, of: Target[Any, Any, object], first: int = 0) -> None:
        super().__init__("python", of)
        self.first = first

    def emit(self, graph: Graph, plan: LoopPlan, name: str) -> str:
        return module_source(graph, plan, self.first, name)
