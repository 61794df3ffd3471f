"""The passes that schedule loops for the CPU, in order: a tree in, a LoopPlan out.

First come passes from tree to tree. Then the tree is cut into Kernels, and each further
pass decides something about these: in-place updates, stages, vectors, tasks, memory.

Code that checks every value for NaN does without the passes that are not `with_checks`:
what it looks at has to be a whole array.

Start reading at `TREE_PASSES`, then `PLAN_PASSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tapejit.loops.fuse.fuse_epilogue import fuse_epilogues
from tapejit.loops.fuse.inplace import with_updates
from tapejit.loops.kernels import LoopPlan, kernels_of, note_paths
from tapejit.loops.lower.lower import Lowered
from tapejit.loops.printer import print_tree
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Step
from tapejit.targets.cpu.schedule.allocate import (
    note_uses,
    place_in_arena,
    place_in_task_memory,
    store_values,
)
from tapejit.targets.cpu.schedule.output_layout import lay_out_outputs
from tapejit.targets.cpu.schedule.stages import assign_stages
from tapejit.targets.cpu.schedule.tile_rows import tile_rows
from tapejit.targets.cpu.schedule.vectorize import arrange, join
from tapejit.targets.cpu.target import CPU
from tapejit.targets.target import Observe

Tree = list[Step | Loop]


class TreePass(NamedTuple):
    """A pass from tree to tree, and why it stands where it does."""

    run: Callable[[Sequence[Step | Loop]], Tree]
    reason: str


class PlanPass(NamedTuple):
    """A pass that decides something about the Kernels of a plan."""

    run: Callable[[LoopPlan], None]
    reason: str
    with_checks: bool = True


def update_in_place(plan: LoopPlan) -> None:
    """Results that may be written over an input, and kernels in an order for that."""
    late = CPU.tuning.unpolled_instructions
    plan.kernels, plan.updates = with_updates(plan.kernels, late)
    for number, kernel in enumerate(plan.kernels):
        kernel.number = number


def share_stages(plan: LoopPlan) -> None:
    """Kernels that need nothing of each other run at the same time."""
    assign_stages(plan.kernels, plan.updates)


def locate(plan: LoopPlan) -> None:
    """The loops around each Step, and around its value."""
    for kernel in plan.kernels:
        for item in kernel.items:
            note_paths(plan, kernel, item, ())


def note_shared(plan: LoopPlan) -> None:
    """The Steps that another kernel uses."""
    for step, kernel in plan.kernel_of.items():
        needed = (x.source if isinstance(x.source, Step) else x for x in step.needed())
        plan.shared.update(
            x for x in needed if plan.kernel_of.get(x) not in (None, kernel)
        )


def vectorize(plan: LoopPlan) -> None:
    """Vector axes, tiles, blocks and tasks of each kernel."""
    for kernel in plan.kernels:
        arrange(plan, kernel, plan.vector_bytes)
    locate(plan)


def join_rows(plan: LoopPlan) -> None:
    """Rows of small matmuls go through their inner loop together."""
    for kernel in plan.kernels:
        for item in kernel.items:
            if isinstance(item, Loop):
                join(plan, item.body)


TREE_PASSES: Final = (
    TreePass(tile_rows, "first: matmuls and what is between them share tiles"),
    TreePass(lay_out_outputs, "after tiling: a matmul that adds up stays compact"),
)
PLAN_PASSES: Final = (
    PlanPass(update_in_place, "first: it changes the order of kernels", False),
    PlanPass(share_stages, "what is updated in place begins a stage", False),
    PlanPass(locate, "the next passes ask for the loops around a Step"),
    PlanPass(note_shared, "what others read has to lie well for them, too"),
    PlanPass(vectorize, "it cuts loops; memory follows from these"),
    PlanPass(note_uses, "once loops are as they will be run"),
    PlanPass(store_values, "a value needs memory where a user is in another loop"),
    PlanPass(join_rows, "rows go together only if each has memory of its own"),
    PlanPass(place_in_arena, "last: lifetimes are known"),
    PlanPass(place_in_task_memory, "last: lifetimes are known"),
)


def plan_for_cpu(
    lowered: Lowered,
    tree: Sequence[Step | Loop],
    vector_bytes: int,
    checks: bool = False,
    observe: Observe | None = None,
) -> LoopPlan:
    """The kernels of a tree of loops, for vectors of so many bytes.

    With `checks`, a value that is not finite is a failure; matmuls are whole then.
    `observe` is told the name of each pass, with what it left, as text.
    """
    for tree_pass in () if checks else TREE_PASSES:
        tree = tree_pass.run(tree)
        if observe is not None:
            observe(tree_pass.run.__name__, print_tree(tree))
    plan = LoopPlan(lowered, kernels_of(*fuse_epilogues(tree, with_sums=not checks)))
    plan.checks, plan.vector_bytes = checks, vector_bytes
    if observe is not None:
        observe("fuse_epilogues", str(plan))
    for plan_pass in PLAN_PASSES:
        if plan_pass.with_checks or not checks:
            plan_pass.run(plan)
            if observe is not None:
                observe(plan_pass.run.__name__, str(plan))
    return plan
