"""CUDA as a Target: threads in warps and blocks, and code that is an LLVM module.

Passes and emitters import this module for its numbers, so it imports them where they
are called.

Start reading at `CUDA`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tapejit.base.types import DType
from tapejit.ir.graph import Graph
from tapejit.ir.node import Op
from tapejit.targets.cuda.numerics import CUDANumerics
from tapejit.targets.cuda.tuning import CUDATuning
from tapejit.targets.target import Target

if TYPE_CHECKING:
    from tapejit.loops.kernels import LoopPlan
    from tapejit.loops.nests import Item, Nests
    from tapejit.loops.pipeline import Observe
    from tapejit.targets.cuda.module import BuiltKernels


class CUDATarget(Target[CUDATuning, CUDANumerics, "BuiltKernels"]):
    """An NVIDIA GPU."""

    def supports(
        self, op: Op, dtypes: Sequence[DType], dtype: DType, attrs: Mapping[str, Any]
    ) -> bool:
        from tapejit.targets.cpu.simd import lanes

        # Every GPU has a fused multiply-add.
        return op.terms is not None or lanes.is_supported(op, dtypes, dtype, attrs)

    @property
    def unpolled_instructions(self) -> float:
        return math.inf  # kernels are not interrupted

    @property
    def overwrites_numbers(self) -> bool:
        return True

    def arrange(self, items: Sequence[Item]) -> list[Item]:
        from tapejit.targets.cuda.schedule.join_sums import join_sums
        from tapejit.targets.cuda.schedule.split_sums import split_sums

        return split_sums(join_sums(items))

    def schedule(self, nests: Nests, observe: Observe | None = None) -> LoopPlan:
        from tapejit.targets.cuda.schedule.pipeline import schedule_nests

        return schedule_nests(nests, observe)

    def emit(self, graph: Graph, plan: LoopPlan, name: str) -> BuiltKernels:
        from tapejit.targets.cuda.module import emit_plan

        return emit_plan(graph, plan, name)


CUDA: Final = CUDATarget("cuda", CUDATuning(), CUDANumerics())


def target_for(capability: tuple[int, int]) -> CUDATarget:
    """The target of a GPU: older ones have no tensor cores, so bits differ.

    >>> target_for((9, 0)) is CUDA, target_for((7, 5)).numerics.tensor_cores
    (True, False)
    """
    if capability >= CUDA.numerics.tensor_capability:
        return CUDA
    numerics = replace(CUDA.numerics, tensor_cores=False)
    return CUDATarget(CUDA.name, CUDA.tuning, numerics)
