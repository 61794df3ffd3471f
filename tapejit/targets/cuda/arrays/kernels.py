"""Kernels of operations on whole arrays: one for each pass, with threads that share it.

`emit_shared` takes an emitter of the CPU target that goes once through independent
places, and has threads share these; each does what a CPU does there. Operations that
take several passes, or a team for one place, have emitters of their own.

Start reading at `array_kernel`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tapejit.ir.node import Node
from tapejit.loops.steps import Step
from tapejit.targets.cpu.arrays.loops import operands_of
from tapejit.targets.cpu.arrays.table import EMITTERS
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cuda.addressing import SimtAddressing
from tapejit.targets.cuda.kernel import SimtKernel, power_above
from tapejit.targets.cuda.target import CUDA

if TYPE_CHECKING:
    from tapejit.targets.cuda.module import Emission


@contextmanager
def array_kernel(
    made: Emission,
    kernel: SimtKernel,
    name: str,
    count: int,
    blocks: int = 1,
    team: int = 0,
) -> Iterator[SimtAddressing]:
    """A kernel that is launched when what is inside was emitted.

    Its blocks have threads for `count` things, as many as there may be. There are so
    many blocks, or as many as what threads share wants.
    """
    numbers = CUDA.numerics
    threads = max(numbers.warp_threads, power_above(count))
    threads = min(numbers.block_threads, threads)
    function = made.function(f"{made.label}_{name}", threads)
    own = kernel.with_threads(threads, blocks, team)
    at = SimtAddressing(function, made.plan, own, made.layout)
    yield at
    at.builder.ret_void()
    made.add(at, at.blocks)


def node_of(step: Step) -> Node:
    """The Node that an operation on whole arrays is."""
    assert step.node is not None
    return step.node


def shape_of(node: Node) -> tuple[int, ...]:
    """The sizes of a Node, which are fixed."""
    return tuple(map(int, node.shape))


def result_of(at: SimtAddressing, step: Step) -> Value:
    """Where the result is stored, row by row."""
    return at.pointer_to(at.plan.storage[step])


def emit_shared(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """The CPU's loops, whose places threads share."""
    node = node_of(step)
    name, size = node.op.name, math.prod(shape_of(node))
    with array_kernel(made, kernel, name, size) as at:
        EMITTERS[name](at, node, operands_of(at), result_of(at, step))
