"""The CPU as a Target: what makes it fast, what fixes its bits, what it can do.

Passes and emitters import this module for its numbers, so it imports them where they
are called.

Start reading at `CPU`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tapejit.base.types import DType
from tapejit.ir.graph import Graph
from tapejit.ir.node import Op
from tapejit.targets.cpu.numerics import CPUNumerics
from tapejit.targets.cpu.tuning import CPUTuning
from tapejit.targets.target import Target

if TYPE_CHECKING:
    from tapejit.loops.kernels import LoopPlan
    from tapejit.loops.nests import Item, Nests
    from tapejit.loops.pipeline import Observe
    from tapejit.targets.cpu.module import Built


class CPUTarget(Target[CPUTuning, CPUNumerics, "Built"]):
    """A processor with vectors, caches and threads; code is an LLVM module."""

    def supports(
        self, op: Op, dtypes: Sequence[DType], dtype: DType, attrs: Mapping[str, Any]
    ) -> bool:
        from tapejit.targets.cpu.machine import processor
        from tapejit.targets.cpu.simd import lanes

        if op.terms is None:
            return lanes.is_supported(op, dtypes, dtype, attrs)
        # Sums of products that are rounded once: calls of a function in place of the
        # instruction take 50 times as long and more.
        return processor.has_fused_multiply_add()

    @property
    def unpolled_instructions(self) -> float:
        return self.tuning.unpolled_instructions

    def arrange(self, items: Sequence[Item]) -> list[Item]:
        from tapejit.targets.cpu.schedule.pipeline import arrange

        return arrange(items)

    def schedule(self, nests: Nests, observe: Observe | None = None) -> LoopPlan:
        from tapejit.targets.cpu.schedule.pipeline import schedule_nests

        return schedule_nests(nests, observe)

    def emit(self, graph: Graph, plan: LoopPlan, name: str) -> Built:
        from tapejit.targets.cpu.module import emit_plan

        return emit_plan(graph, plan, name)


CPU: Final = CPUTarget("cpu", CPUTuning(), CPUNumerics())
