"""Concurrent kernels: which of them share a stage and run at the same time.

Kernels that need nothing of each other share a stage: their tasks are pulled by the
same threads, so nobody waits at the end of one while there is work in another one.
Products with a common operand are such kernels, as are the gradients of a layer's
weights, of its bias and of its input.

Start reading at `assign_stages`.
"""

from __future__ import annotations

from dataclasses import replace

from tapejit.loops.fuse.inplace import Order, first_update
from tapejit.loops.kernels import Kernel, LoopPlan


def order_stages(plan: LoopPlan) -> LoopPlan:
    """The kernels of each stage in the order in which threads begin them.

    Kernels with much work in a task are first, so that threads end at about the same
    time.
    """
    stages: dict[int, list[Kernel]] = {}
    for kernel in plan.kernels:
        stages.setdefault(kernel.stage, []).append(kernel)
    ordered = (sorted(x, key=lambda k: -k.work / k.tasks) for x in stages.values())
    return replace(plan, stages=tuple(map(tuple, ordered)))


def assign_stages(plan: LoopPlan) -> LoopPlan:
    """Number the stages of kernels, which stay in their order.

    A kernel that may write over an input starts one if another kernel of the last one
    reads that input. The first such kernel always does: what can fail, and what can be
    interrupted, is over then.
    """
    order = Order(plan.kernels)
    first, members, stage = first_update(plan.kernels, plan.updates), set[int](), 0
    staged: list[Kernel] = []
    for at, kernel in enumerate(plan.kernels):
        outputs = (x.output for x in kernel.steps() if x.output is not None)
        replaced = [x for out in outputs for x in plan.updates.get(out, ())]
        before = set(order.needs[at]).union(*(order.readers[x] for x in replaced))
        if members and (members & before or kernel is first):
            members.clear()
            stage += 1
        members.add(at)
        staged.append(replace(kernel, stage=stage))
    return replace(plan, kernels=tuple(staged))
