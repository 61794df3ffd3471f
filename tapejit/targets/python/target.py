"""Readable Python as a Target: the loops of another one, as text that runs.

What people want to read is what runs, so it schedules as that target does.

Start reading at `PythonTarget`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tapejit.base.types import DType
from tapejit.ir.graph import Graph
from tapejit.ir.node import Op
from tapejit.loops.kernels import LoopPlan
from tapejit.loops.nests import Item, Nests
from tapejit.loops.pipeline import Observe
from tapejit.targets.python.kernel_source import module_source
from tapejit.targets.target import Target


class PythonTarget(Target[Any, Any, str]):
    """Text of what `scheduler` schedules; kernels are numbered from `first` on."""

    def __init__(self, scheduler: Target[Any, Any, object], first: int = 0) -> None:
        super().__init__("python", scheduler.tuning, scheduler.numerics)
        self.scheduler = scheduler
        self.first = first

    def supports(
        self, op: Op, dtypes: Sequence[DType], dtype: DType, attrs: Mapping[str, Any]
    ) -> bool:
        return self.scheduler.supports(op, dtypes, dtype, attrs)

    @property
    def unpolled_instructions(self) -> float:
        return self.scheduler.unpolled_instructions

    def arrange(self, items: Sequence[Item]) -> list[Item]:
        return self.scheduler.arrange(items)

    def schedule(self, nests: Nests, observe: Observe | None = None) -> LoopPlan:
        return self.scheduler.schedule(nests, observe)

    def emit(self, graph: Graph, plan: LoopPlan, name: str) -> str:
        return module_source(graph, plan, self.first, name)
