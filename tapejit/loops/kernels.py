"""Kernels, the memory of Steps, and the LoopPlan that holds both.

A `Kernel` is one item at the top of the tree of loops: a nest, a run of single Steps,
or an operation on whole arrays. The `LoopNest` of a Step are the loops around it, its
home the loops around its value: for a reduction, those outside of the loops it reduces
along.

Start reading at `Kernel`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from tapejit.base.types import DType
from tapejit.loops.index import Axis
from tapejit.loops.lower.lower import Lowered
from tapejit.loops.schedule.schedule import Loop, cost, is_long
from tapejit.loops.steps import ArrayOp, Buffer, Step

ALIGNMENT: Final = 64
LoopNest = tuple[Loop, ...]


class Storage:
    """Where the value of a Step is kept.

    `strides` has an entry for every axis that the memory has; a position along others
    does not matter.
    """

    __slots__ = (
        "buffer",
        "dtype",
        "is_placed",
        "kernel",
        "lanes",
        "offset",
        "size",
        "strides",
        "tiled",
    )

    def __init__(
        self, dtype: DType, strides: dict[Axis, int], size: int, kernel: int | None
    ) -> None:
        self.dtype = dtype
        self.strides = strides
        self.size = size  # in elements
        self.kernel = kernel  # of private memory, None for the arena
        self.lanes = 0  # how many each element has, 0 if it is a number
        self.tiled: tuple[Axis, ...] = ()  # the axes of which it holds one tile
        self.buffer: Buffer | None = None
        self.is_placed = False  # whether private memory has an offset, too
        self.offset = 0  # in bytes: in the arena, or in what a task has of it

    @property
    def nbytes(self) -> int:
        """How much it takes, rounded up so that what follows is aligned."""
        size = self.size * max(self.lanes, 1) * self.dtype.itemsize
        return -(-size // ALIGNMENT) * ALIGNMENT


class Kernel:
    """One item at the top of the tree: what is compiled to one function."""

    def __init__(self, number: int, items: list[Step | Loop]) -> None:
        self.number = number
        self.stage = number  # kernels with the same one may run at the same time
        self.items = items
        self.vector: Axis | None = None
        self.width = 1
        self.tasks = 1
        self.inner_tasks = 1  # of each iteration of the outermost loop, by the next one
        self.private: list[Storage] = []
        self.task_bytes = 0  # of the arena for each task: private memory that is placed
        self.partials: dict[Step, Storage] = {}

    @property
    def loop(self) -> Loop | None:
        """The outermost loop, None for a run of Steps."""
        first = self.items[0]
        return first if isinstance(first, Loop) else None

    @property
    def array_op(self) -> Step | None:
        """The operation on whole arrays that it is, if so.

        That of a product may have an epilogue: loops over its elements, which are done
        while these are in registers.
        """
        first = self.items[0]
        if isinstance(first, Step) and isinstance(first.what, ArrayOp):
            return first
        return None

    def steps(self) -> Iterator[Step]:
        """Every Step, leaves excluded."""
        for item in self.items:
            if isinstance(item, Loop):
                yield from item.steps()
            else:
                yield item

    @property
    def work(self) -> float:
        """About how many instructions it takes, one lane at a time."""
        return sum(map(work_of, self.steps()))


def work_of(step: Step) -> float:
    """About how many instructions a Step takes in all its iterations."""
    if not isinstance(step.what, ArrayOp):
        return cost(step) * math.prod(a.hint for a in step.labels | step.closed)
    node = step.node
    assert node is not None
    sizes = [math.prod(map(int, x.shape)) for x in (node, *node.inputs)]
    if node.op.terms is not None:
        return float(sizes[0] * node.op.terms(node))
    return cost(step) * max(sizes)


class LoopPlan:
    """Kernels in order, and the Storage of each Step that has one."""

    def __init__(self, lowered: Lowered, kernels: list[Kernel]) -> None:
        self.outputs = lowered.outputs
        self.constants = lowered.constants
        self.kernels = kernels
        self.storage: dict[Step, Storage] = {}
        self.paths: dict[Step, LoopNest] = {}
        self.homes: dict[Step, LoopNest] = {}
        self.lanes: dict[Step, tuple[Axis | None, int]] = {}
        self.kernel_of: dict[Step, Kernel] = {}
        # Who uses each Step, and whether from memory in any case.
        self.uses: dict[Step, list[tuple[Step, bool]]] = {}
        self.vector_bytes = 0
        self.shared: set[Step] = set()  # what another kernel uses
        long = (x for kernel in kernels for x in kernel.steps() if is_long(x))
        self.formulas = sum(1 for _ in long)
        self.updates: dict[Buffer, list[Buffer]] = {}  # results over inputs
        self.checks = False  # whether a value that is not finite is a failure
        self.arena_size = ALIGNMENT  # it begins with words that tell of failures
        self.shared_size = ALIGNMENT  # of that, what several kernels use
        self.used_size = ALIGNMENT  # with what the present stage has besides
        self.rooms: list[tuple[int, int]] = []  # of that, bytes and offset of each
        self.fresh: dict[int, list[Storage]] = {}  # in the arena, by its first stage
        self.marks_memory = False  # whether memory is NaN until it is written
        self.at_once = 0  # tasks that run at the same time at most, 0 for all

    def __str__(self) -> str:
        from tapejit.loops.printer import print_plan  # for people: it imports this

        return print_plan(self)

    def begin_stage(self) -> None:
        """What kernels of an earlier stage had for themselves is free again."""
        self.used_size = self.shared_size

    def parts_of(self, kernel: Kernel) -> int:
        """For how many tasks of a kernel there is private memory at once."""
        return min(kernel.tasks, self.at_once or kernel.tasks)

    def room_for(self, nbytes: int) -> int:
        """Where in the arena the present kernel has so much for itself."""
        offset = self.used_size
        self.rooms.append((nbytes, offset))
        self.used_size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.arena_size = max(self.arena_size, self.used_size)
        return offset

    def update_pairs(self) -> list[tuple[int, int]]:
        """The numbers of results and of inputs that they may be written over."""
        pairs = self.updates.items()
        return [(out.number, x.number) for out, inputs in pairs for x in inputs]


def kernels_of(
    tree: Sequence[Step | Loop], epilogues: Mapping[Step, Loop]
) -> list[Kernel]:
    """Each loop at the top, each operation on whole arrays, each run of Steps."""
    kernels: list[Kernel] = []
    single: list[Step | Loop] = []
    for item in tree:
        if isinstance(item, Step) and not isinstance(item.what, ArrayOp):
            single.append(item)
            continue
        if single:
            kernels.append(Kernel(len(kernels), single))
            single = []
        items = [item]
        if isinstance(item, Step) and item in epilogues:
            items.append(epilogues[item])
        kernels.append(Kernel(len(kernels), items))
    if single:
        kernels.append(Kernel(len(kernels), single))
    return kernels


def note_paths(
    plan: LoopPlan, kernel: Kernel, item: Step | Loop, path: LoopNest
) -> None:
    """Remember the loops around every Step, and around its value."""
    if isinstance(item, Loop):
        for inner in item.body:
            note_paths(plan, kernel, inner, (*path, item))
        return
    plan.paths[item] = path
    plan.kernel_of[item] = kernel
    home = path
    for at, loop in enumerate(path):
        if loop.axis in item.closed:
            home = path[:at]
            break
    plan.homes[item] = home
    plan.lanes[item] = kernel.vector, kernel.width
    for loop in path:
        if loop.lanes is not None:
            plan.lanes[item] = loop.lanes


def inner_axes(plan: LoopPlan, step: Step) -> list[Axis]:
    """Of a reduction, the axes of its value that are looped over inside of it."""
    around = bound(plan.homes[step])
    return [axis for axis in ordered(plan, step) if axis not in around]


def common(first: LoopNest, second: LoopNest) -> LoopNest:
    """The loops around both."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a is not b:
            break
        count += 1
    return first[:count]


def ordered(plan: LoopPlan, step: Step) -> list[Axis]:
    """The axes of a value in the order of the loops."""
    axes = [loop.axis for loop in plan.paths[step] if not loop.tile]
    return [axis for axis in axes if axis in step.labels]


def bound(path: LoopNest) -> set[Axis]:
    """The axes of which these loops have one iteration at a time."""
    return {loop.axis for loop in path if not loop.tile}


def accumulator(dtype: DType) -> DType:
    """What sums of this dtype are kept in: single precision for halves."""
    if dtype.kind not in "biu" and dtype.itemsize == 2:
        return np.dtype(np.float32)
    return dtype


def grain_of(kernel: Kernel) -> int:
    """How many iterations of the outermost loop are done together."""
    loop = kernel.loop
    assert loop is not None
    if loop.tile:
        return loop.tile
    return kernel.width if loop.axis is kernel.vector else 1
