"""The passes that schedule loops for a GPU, in order: Nests in, a LoopPlan out.

Each Nest is a kernel, a stage is a launch, of one kernel or of several. What a task is
on a CPU is a team of threads here, a warp or a block.

Start reading at `PASSES`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tapejit.loops.kernels import Kernel, LoopPlan, located
from tapejit.loops.nests import Nests
from tapejit.loops.pipeline import Observe, Pass, run_passes
from tapejit.targets.cpu.schedule.allocate import (
    leave_parts,
    note_uses,
    place_in_arena,
    store_values,
)
from tapejit.targets.cuda.matmul.products import tile_matmuls
from tapejit.targets.cuda.schedule.distribute import distribute
from tapejit.targets.cuda.schedule.place_private import place_private
from tapejit.targets.cuda.schedule.share_launches import share_launches


def order_kernels(plan: LoopPlan) -> LoopPlan:
    """The kernels of each launch, which come one after the other on a stream."""
    stages: dict[int, list[Kernel]] = {}
    for kernel in plan.kernels:
        stages.setdefault(kernel.stage, []).append(kernel)
    return replace(plan, stages=tuple(tuple(stages[at]) for at in sorted(stages)))


PASSES: Final = (
    Pass(located, "the next pass asks for the loops around a Step"),
    Pass(distribute, "memory follows from who goes through what"),
    Pass(tile_matmuls, "what a product keeps in memory follows from its tiles"),
    Pass(share_launches, "it needs blocks, and memory follows from the order", False),
    Pass(located, "Steps are done in vectors now"),
    Pass(note_uses, "once loops are as they will be run"),
    Pass(store_values, "a value needs memory where a user is in another loop"),
    Pass(leave_parts, "teams have parts of what has memory"),
    Pass(place_private, "once it is known what a team keeps"),
    Pass(place_in_arena, "last of memory: lifetimes are known"),
    Pass(order_kernels, "last: kernels are as they are launched"),
)


def schedule_nests(nests: Nests, observe: Observe | None = None) -> LoopPlan:
    """The kernels of some Nests; `observe` hears of each pass."""
    return run_passes(PASSES, LoopPlan.of(nests), nests.checks, observe)
