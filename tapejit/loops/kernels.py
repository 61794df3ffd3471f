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
from functools import cached_property
from typing import Final

import numpy as np

from tapejit.base.types import DType
from tapejit.loops.index import Axis
from tapejit.loops.nests import Item, Nest, Nests, Updates
from tapejit.loops.schedule.schedule import Loop, is_long
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


@dataclass(eq=False)
class Kernel(Nest):
    """A Nest as a target runs it: what is compiled to one function."""

    number: int
    stage: int  # kernels with the same one may run at the same time
    vector: Axis | None = None
    width: int = 1
    tasks: int = 1
    inner_tasks: int = 1  # of each iteration of the outermost loop, by the next one
    task_bytes: int = 0  # of the arena for each task: private memory that is placed
    partials: Mapping[Step, Storage] = field(default_factory=dict)


Region = tuple[Kernel, ...]


@dataclass(eq=False)
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
    fresh: Mapping[int, Sequence[Storage]] = field(default_factory=dict)
    arena_size: int = ALIGNMENT  # it begins with words that tell of failures
    shared_size: int = ALIGNMENT  # of that, what several kernels use
    used_size: int = ALIGNMENT  # with what the present stage has besides
    rooms: list[tuple[int, int]] = field(default_factory=list)  # bytes and offset
    marks_memory: bool = False  # whether memory is NaN until it is written
    at_once: int = 0  # tasks that run at the same time at most, 0 for all

    @staticmethod
    def of(nests: Nests) -> LoopPlan:
        """A Kernel for each Nest, about which nothing is decided."""
        numbered = enumerate(nests.nests)
        return LoopPlan(nests, tuple(Kernel(x.items, at, at) for at, x in numbered))

    def __str__(self) -> str:
        from tapejit.loops.printer import print_plan  # for people: it imports this

        return print_plan(self)

    @property
    def outputs(self) -> Sequence[Buffer]:
        """The results."""
        return self.nests.outputs

    @property
    def constants(self) -> Sequence[Buffer]:
        """Arrays that are part of the code."""
        return self.nests.constants

    @property
    def updates(self) -> Updates:
        """The inputs that each result may be written over."""
        return self.nests.updates

    @property
    def checks(self) -> bool:
        """Whether a value that is not finite is a failure."""
        return self.nests.checks

    @cached_property
    def formulas(self) -> int:
        """How many long formulas there are."""
        return sum(map(is_long, self.paths))

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
