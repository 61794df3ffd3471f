"""Kernels, the memory of Steps, and the LoopPlan that holds both.

A `Kernel` is a Nest that a target has scheduled: with vectors, tasks and a stage. A
`LoopPlan` is a `Region` of Kernels, which run in order. The `LoopNest` of a Step are
the loops around it, its home the loops around its value: for a reduction, those outside
of the loops it reduces along.

Start reading at `Kernel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tapejit.base.types import DType
from tapejit.loops.index import Axis
from tapejit.loops.nests import Item, Nest, Nests, Updates
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Buffer, Step

ALIGNMENT: Final = 64
LoopNest = tuple[Loop, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Storage:
    """Where the value of a Step is kept.

    `strides` has an entry for every axis that the memory has; a position along others
    does not matter.
    """

    dtype: DType
    strides: Mapping[Axis, int]
    size: int  # in elements
    kernel: int | None = None  # of private memory, None for the arena
    lanes: int = 0  # how many each element has, 0 if it is a number
    tiled: tuple[Axis, ...] = ()  # the axes of which it holds one tile
    buffer: Buffer | None = None
    is_placed: bool = False  # whether private memory has an offset, too
    offset: int = 0  # in bytes: in the arena, or in what a task has of it

    @property
    def nbytes(self) -> int:
        """How much it takes, rounded up so that what follows is aligned."""
        size = self.size * max(self.lanes, 1) * self.dtype.itemsize
        return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Slots:
    """What tasks leave of a sum: what some chains of it have added up, in order.

    A chain has so many iterations of the outermost loop, and so many elements of its
    axis, its length. There are `count` of them, of so many numbers each.
    """

    every: int
    length: int
    count: int
    numbers: int

    @property
    def size(self) -> int:
        """The numbers of all slots, and of one more for what they add up to."""
        return self.numbers * (self.count + 1)


class Choice:
    """How a target performs an operation on whole arrays; its own classes say that."""


# What memory is for: the value of a Step, a matmul's panels, a part of a sum, a name.
RoomKey = Step | Storage | tuple[Step, int] | str
TASK_MEMORY: Final = "task"  # the room for private memory that is placed


@dataclass(frozen=True, eq=False)
class Kernel(Nest):
    """A Nest as a target runs it: what is compiled to one function.

    Its `rooms` are memory in the arena that it has for itself, while it runs: common to
    its tasks, or as many times as large as there are `parts`.
    """

    number: int
    stage: int  # kernels with the same one may run at the same time
    vector: Axis | None = None
    width: int = 1
    tasks: int = 1
    inner_tasks: int = 1  # of each iteration of the outermost loop, by the next one
    parts: int = 1  # of memory for tasks: if there are fewer, tasks take turns
    calls_formulas: bool = False  # in place of having long ones written out
    partials: Mapping[Step, Storage] = field(default_factory=dict)
    slots: Mapping[Step, Slots] = field(default_factory=dict)  # of some partials
    choices: Mapping[Step, Choice] = field(default_factory=dict)
    rooms: Mapping[RoomKey, Storage] = field(default_factory=dict)

    @property
    def task_bytes(self) -> int:
        """What each task has of the arena for private memory that is placed."""
        room = self.rooms.get(TASK_MEMORY)
        return 0 if room is None else room.size // self.parts


Region = tuple[Kernel, ...]


@dataclass(frozen=True, eq=False)
class LoopPlan:
    """Kernels in order, and the Storage of each Step that has one."""

    nests: Nests
    kernels: Region
    kernel_of: Mapping[Step, int] = field(default_factory=dict)
    paths: Mapping[Step, LoopNest] = field(default_factory=dict)
    homes: Mapping[Step, LoopNest] = field(default_factory=dict)
    lanes: Mapping[Step, tuple[Axis | None, int]] = field(default_factory=dict)
    # Who uses each Step, and whether from memory in any case.
    uses: Mapping[Step, Sequence[tuple[Step, bool]]] = field(default_factory=dict)
    storage: Mapping[Step, Storage] = field(default_factory=dict)
    # What the kernels of a stage are the first to use of the arena.
    fresh: Mapping[int, Sequence[Storage]] = field(default_factory=dict)
    arena_size: int = ALIGNMENT  # it begins with words that tell of failures
    # The kernels of each stage, in the order in which threads should begin them.
    stages: tuple[Region, ...] = ()

    @staticmethod
    def of(nests: Nests) -> LoopPlan:
        """A Kernel for each Nest, about which nothing is decided."""
        numbered = enumerate(nests.nests)
        return LoopPlan(nests, tuple(Kernel(x.items, at, at) for at, x in numbered))

    def __str__(self) -> str:
        from tapejit.loops.printer import print_plan  # for people: it imports this

        return print_plan(self)

    @property
    def updates(self) -> Updates:
        """The inputs that each result may be written over."""
        return self.nests.updates

    @property
    def checks(self) -> bool:
        """Whether a value that is not finite is a failure."""
        return self.nests.checks

    def update_pairs(self) -> list[tuple[int, int]]:
        """The numbers of results and of inputs that they may be written over."""
        pairs = self.updates.items()
        return [(out.number, x.number) for out, inputs in pairs for x in inputs]


def located(plan: LoopPlan) -> LoopPlan:
    """The plan with the loops around every Step, and around its value."""
    paths: dict[Step, LoopNest] = {}
    homes: dict[Step, LoopNest] = {}
    lanes: dict[Step, tuple[Axis | None, int]] = {}
    kernel_of: dict[Step, int] = {}

    def note(kernel: Kernel, items: Sequence[Item], path: LoopNest) -> None:
        for item in items:
            if isinstance(item, Loop):
                note(kernel, item.body, (*path, item))
                continue
            paths[item] = path
            kernel_of[item] = kernel.number
            closing = (at for at, loop in enumerate(path) if loop.axis in item.closed)
            homes[item] = path[: next(closing, len(path))]
            inner = [loop.lanes for loop in path if loop.lanes is not None]
            lanes[item] = inner[-1] if inner else (kernel.vector, kernel.width)

    for kernel in plan.kernels:
        note(kernel, kernel.items, ())
    return replace(plan, paths=paths, homes=homes, lanes=lanes, kernel_of=kernel_of)


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


def task_grain(kernel: Kernel) -> int:
    """How many iterations of the outermost loop one task has at least: whole slots.

    Lengths of slots are powers of two times the grain.
    """
    return max([grain_of(kernel), *(x.length for x in kernel.slots.values())])
