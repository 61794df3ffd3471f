"""The cut of matmuls, and the tasks of operations on whole arrays.

These are chosen by rules of shapes, strides and the processor's registers, for a matmul
that is a kernel as for those in loops over tiles.

Start reading at `choose_tilings`.
"""

from __future__ import annotations

from dataclasses import replace

from tapejit.loops.kernels import Kernel, LoopPlan
from tapejit.targets.cpu.matmul.choices import Known, matmul_choice
from tapejit.targets.cpu.matmul.tiled_tiling import tiled_choice
from tapejit.targets.cpu.schedule.tile_roles import is_tiled_matmul


def choose_tilings(plan: LoopPlan) -> LoopPlan:
    """How each matmul is cut, and into how many tasks each operation."""
    known: Known = {}
    return replace(plan, kernels=tuple(tiled(plan, x, known) for x in plan.kernels))


def tiled(plan: LoopPlan, kernel: Kernel, known: Known) -> Kernel:
    """A kernel with the tilings of its matmuls."""
    step = kernel.array_op
    if step is None:
        products = (x for x in kernel.steps() if is_tiled_matmul(x))
        choices = {x: tiled_choice(plan, kernel, x) for x in products}
        return replace(kernel, choices=choices) if choices else kernel
    if kernel.role == "matmul":
        choice = matmul_choice(kernel, step, plan.checks, known)
        return replace(kernel, tasks=choice.tasks, choices={step: choice})
    # Here, because most programs have none: 5 ms.
    from tapejit.targets.cpu.arrays.table import TASKS

    assert step.op is not None
    tasks = TASKS.get(step.op.name)
    return kernel if tasks is None else replace(kernel, tasks=tasks(step))
