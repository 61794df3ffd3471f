"""The passes that schedule loops for the CPU, in order: Nests in, a LoopPlan out.

`arrange` is what neutral passes ask for: tiles, and the order of what is in memory.
Then each Nest is a Kernel, and each pass decides something about these: stages,
vectors, tasks, memory.

Code that checks every value for NaN does without the passes that are not `with_checks`:
what it looks at has to be a whole array.

Start reading at `PASSES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tapejit.loops.kernels import LoopPlan, located
from tapejit.loops.nests import Item, Nests
from tapejit.loops.pipeline import Observe, Pass, run_passes
from tapejit.targets.cpu.schedule import allocate
from tapejit.targets.cpu.schedule.choose_tilings import choose_tilings
from tapejit.targets.cpu.schedule.output_layout import lay_out_outputs
from tapejit.targets.cpu.schedule.stages import assign_stages, order_stages
from tapejit.targets.cpu.schedule.tile_rows import tile_rows
from tapejit.targets.cpu.schedule.vectorize import (
    join_rows,
    parallelize,
    share_formulas,
    vectorize,
)

PASSES: Final = (
    Pass(assign_stages, "first: it needs to know what Nests read, no more", False),
    Pass(located, "the next pass asks for the loops around a Step"),
    Pass(vectorize, "it cuts loops; tasks and memory follow from these"),
    Pass(located, "loops are others now"),
    Pass(parallelize, "before memory: tasks have some of their own"),
    Pass(allocate.note_uses, "once loops are as they will be run"),
    Pass(allocate.store_values, "a value needs memory where a user is in another loop"),
    Pass(allocate.leave_parts, "tasks have parts of what has memory"),
    Pass(join_rows, "rows go together only if each has memory of its own"),
    Pass(choose_tilings, "once it is known how operands lie in memory"),
    Pass(share_formulas, "once it is known how large a kernel is"),
    Pass(
        allocate.place_in_task_memory, "before rooms: what is left over is one of them"
    ),
    Pass(allocate.give_rooms, "once tilings and tasks are known"),
    Pass(allocate.place_in_arena, "last of memory: lifetimes are known"),
    Pass(order_stages, "last: all of a kernel's work and tasks is known"),
)


def arrange(items: Sequence[Item]) -> list[Item]:
    """Matmuls and what is between them in common loops, and in the order of copies.

    In this order: a matmul that adds up tile by tile stays compact.
    """
    return lay_out_outputs(tile_rows(items))


def schedule_nests(nests: Nests, observe: Observe | None = None) -> LoopPlan:
    """The kernels of some Nests; `observe` hears of each pass."""
    return run_passes(PASSES, LoopPlan.of(nests), nests.checks, observe)
