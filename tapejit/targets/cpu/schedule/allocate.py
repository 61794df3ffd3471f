"""Allocation: which values need memory, and where in the arena that memory is.

A value that is used only in the iteration that makes it lives in a register. One that
is used by a later pass over an axis is kept for as long as the loops around both go
through one iteration: a private buffer of the kernel, over the axes of the loops in
between. One that another kernel uses is kept in the arena, whole. A result is written
to its output and read back from there.

Start reading at `memory_of`, then `place_in_arena`.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final, TypeVar

import numpy as np

from tapejit.base.types import DType
from tapejit.loops.index import strides_of
from tapejit.loops.kernels import (
    ALIGNMENT,
    TASK_MEMORY,
    Kernel,
    LoopNest,
    LoopPlan,
    RoomKey,
    Storage,
    accumulator,
    bound,
    common,
    inner_axes,
    ordered,
)
from tapejit.loops.schedule.schedule import loops_in, sources_of, steps_in
from tapejit.loops.steps import ArrayOp, Step, is_matmul
from tapejit.targets.cpu.machine.processor import cores
from tapejit.targets.cpu.matmul.choices import MatmulChoice
from tapejit.targets.cpu.matmul.tiled_tiling import TiledChoice
from tapejit.targets.cpu.nest.reductions import sum_arrays
from tapejit.targets.cpu.schedule.tile_roles import adds_in_parts
from tapejit.targets.cpu.target import CPU

BYTE: Final = np.dtype(np.uint8)
MOST_PARTS: Final = 64  # of the memory for tasks: bits of a word
Key = TypeVar("Key")


def note_uses(plan: LoopPlan) -> LoopPlan:
    """Remember who uses each Step, and whether from memory in any case."""
    uses: dict[Step, list[tuple[Step, bool]]] = {}
    for step in plan.paths:
        for x in step.needed():
            source = x.source if x.is_leaf else None
            used = source if isinstance(source, Step) else x
            is_loaded = used is source or step.source is x
            uses.setdefault(used, []).append((step, is_loaded))
    return replace(plan, uses=uses)


def store_values(plan: LoopPlan) -> LoopPlan:
    """Give memory to the Steps that need some."""
    each = ((step, memory_of(plan, step)) for step in plan.paths)
    return replace(plan, storage={x: memory for x, memory in each if memory})


def memory_of(plan: LoopPlan, step: Step) -> Storage | None:
    """Memory for a Step if a user is in another iteration, or if it is a result."""
    kernel, home = plan.kernels[plan.kernel_of[step]], plan.homes[step]
    number, users = kernel.number, plan.uses.get(step, ())
    if isinstance(step.what, ArrayOp):
        if step.tiles is not None and not step.whole:
            return tile_storage(step, kernel, home)
        is_here = all(plan.kernel_of[user] == number for user, _ in users)
        is_here = is_here and step.tiles is None
        is_needed = step.output is not None or not users or not is_here
        return whole_storage(step) if is_needed else None
    is_array = bool(step.closed) and bool(inner_axes(plan, step))
    is_cut = kernel.tasks > 1 and bool(step.closed) and not home
    needs = is_array or is_cut or step.whole or step.output is not None
    scope = home if not (step.whole or step.output or is_cut) else ()
    for user, is_load in users:
        path = plan.paths[user]
        same = plan.kernel_of[user] == number and path[: len(home)] == home
        if is_load or isinstance(user.what, ArrayOp) or not same:
            needs = True
        shared = common(home, path) if plan.kernel_of[user] == number else ()
        scope = common(scope, shared)
    if not needs:
        return None
    if not scope:
        return whole_storage(step)
    around = bound(scope)
    tiles = {loop.axis: loop.tile for loop in scope if loop.tile}
    free = [axis for axis in ordered(plan, step) if axis not in around]
    vector, width = plan.lanes[step]
    if vector in free:  # its elements are next to each other
        free.remove(vector)
        free.append(vector)
    sizes = [tiles.get(axis, axis.extent) for axis in free]
    if tiles and len(sizes) > 1:
        sizes[-1] = spaced(sizes[-1], step.dtype)
    strides = dict(zip(free, strides_of(sizes), strict=True))
    lanes = width if vector in around and vector in step.labels else 0
    tiled = tuple(axis for axis in tiles if axis in free)
    return Storage(step.dtype, strides, math.prod(sizes), number, lanes, tiled)


def tile_storage(step: Step, kernel: Kernel, home: LoopNest) -> Storage:
    """Memory for the rows of one tile of a product."""
    assert step.dims is not None
    row, column = (axis.root for axis in step.dims[-2:] if axis is not None)
    tiles = {loop.axis: loop.tile for loop in home if loop.tile}
    apart = spaced(tiles.get(column, column.extent), step.dtype)
    strides = {row: apart, column: 1}
    tiled = tuple(axis for axis in strides if axis in tiles)
    size = tiles[row] * apart
    return Storage(step.dtype, strides, size, kernel.number, tiled=tiled)


def spaced(size: int, dtype: DType) -> int:
    """How far apart rows of a tile are: not so that they share a place in caches."""
    is_even = size * dtype.itemsize % CPU.tuning.crowded_row_bytes == 0
    return size + ALIGNMENT // dtype.itemsize if is_even else size


def whole_storage(step: Step) -> Storage:
    """Memory for the array that a Step's Node is, row by row."""
    assert step.dims is not None
    dims = step.dims
    shape = [1 if dim is None else dim.extent for dim in dims]
    if not step.whole and step.output is None:
        shape = [
            1 if dim is None or dim.root not in step.labels else dim.extent
            for dim in dims
        ]
    strides = {
        dim.root: stride
        for dim, stride, size in zip(dims, strides_of(shape), shape, strict=True)
        if dim is not None and size != 1
    }
    return Storage(step.dtype, strides, math.prod(shape), buffer=step.output)


def place_in_arena(plan: LoopPlan) -> LoopPlan:
    """Offsets for what lives in the arena, memory shared where lifetimes allow."""
    last_use: dict[Storage, int] = {}
    first_use: dict[Storage, int] = {}
    for step, number in plan.kernel_of.items():
        at = plan.kernels[number].stage
        memories = [plan.storage.get(x) for x in sources_of(step)]
        for memory in (*memories, plan.storage.get(step)):
            if memory and memory.kernel is None and memory.buffer is None:
                first_use[memory] = min(first_use.get(memory, at), at)
                last_use[memory] = max(last_use.get(memory, at), at)
    for kernel in plan.kernels:
        for memory in (*kernel.partials.values(), *kernel.rooms.values()):
            first_use[memory] = last_use[memory] = kernel.stage
    free, live, size = FreeMemory(ALIGNMENT), Lifetimes(), plan.arena_size
    placed: dict[Storage, Storage] = {}
    fresh: dict[int, list[Storage]] = {}
    for given in sorted(first_use, key=lambda x: (first_use[x], -x.nbytes)):
        first = first_use[given]
        for over in live.ended_before(first):
            free.give_back(over.offset, over.nbytes)
        memory = placed[given] = replace(given, offset=free.take(given.nbytes))
        live.add(memory, last_use[given])
        fresh.setdefault(first, []).append(memory)
        size = max(size, memory.offset + memory.nbytes)
    kernels = tuple(
        replace(
            kernel,
            partials=moved(kernel.partials, placed),
            rooms=moved(kernel.rooms, placed),
        )
        for kernel in plan.kernels
    )
    storage = moved(plan.storage, placed)
    return replace(plan, kernels=kernels, storage=storage, fresh=fresh, arena_size=size)


def moved(
    storage: Mapping[Key, Storage], placed: Mapping[Storage, Storage]
) -> dict[Key, Storage]:
    """The same, what has been placed where it is now."""
    return {key: placed.get(memory, memory) for key, memory in storage.items()}


def leave_parts(plan: LoopPlan) -> LoopPlan:
    """Memory for what each task of a kernel adds up."""
    kernels = (replace(x, partials=parts_of(plan, x)) for x in plan.kernels)
    return replace(plan, kernels=tuple(kernels))


def parts_of(plan: LoopPlan, kernel: Kernel) -> dict[Step, Storage]:
    """Memory for the parts of sums that the tasks of a kernel leave."""
    if kernel.tasks == 1:
        return {}
    found: dict[Step, Storage] = {}
    for step in kernel.steps() if kernel.loop is not None else ():
        if (step.closed and not plan.homes[step]) or adds_in_parts(step):
            slots, whole = kernel.slots.get(step), plan.storage[step].size
            size = whole * kernel.tasks if slots is None else slots.size
            found[step] = Storage(accumulator(step.dtype), {}, size)
    return found


def place_in_task_memory(plan: LoopPlan) -> LoopPlan:
    """Offsets for what each task has for itself."""
    placed: dict[Storage, Storage] = {}
    kernels = tuple(place_in_task(plan, kernel, placed) for kernel in plan.kernels)
    return replace(plan, kernels=kernels, storage=moved(plan.storage, placed))


def place_in_task(
    plan: LoopPlan, kernel: Kernel, placed: dict[Storage, Storage]
) -> Kernel:
    """A room for large memory of a tile of rows; what is over makes place for others.

    That is known by the items of the loop over tiles, which come one after the other.
    """
    tiles = [x for x in loops_in(kernel.items) if x.tile]
    if not tiles:
        return kernel
    tile = tiles[-1]  # the inner one, if columns go by in tiles, too
    items = {x: at for at, item in enumerate(tile.body) for x in steps_in([item])}
    live: list[tuple[int, Storage]] = []  # with the last item that uses it
    on_stack, task_bytes = CPU.tuning.stack_array_bytes, 0
    for step, first in items.items():
        memory = plan.storage.get(step)
        if memory is None or memory.kernel is None or memory.nbytes <= on_stack:
            continue
        if tile not in plan.homes[step] or memory in placed:
            continue
        users = [items.get(user, len(items)) for user, _ in plan.uses.get(step, ())]
        last = max([first, *users])
        live = [(until, x) for until, x in live if until >= first]
        offset = first_gap(memory.nbytes, [x for _, x in live])
        made = placed[memory] = replace(memory, is_placed=True, offset=offset)
        live.append((last, made))
        task_bytes = max(task_bytes, offset + made.nbytes)
    if not task_bytes:
        return kernel
    # There may be more tasks than processors: those that run take turns with it.
    at_once = cores() if cores() <= MOST_PARTS else kernel.tasks
    parts = min(kernel.tasks, at_once)
    return replace(
        kernel, parts=parts, rooms={TASK_MEMORY: room_of(parts * task_bytes)}
    )


def first_gap(nbytes: int, live: Sequence[Storage]) -> int:
    """The first gap between what is in use at the same time."""
    at = 0
    for other in sorted(live, key=lambda x: x.offset):
        if at + nbytes <= other.offset:
            break
        at = max(at, other.offset + other.nbytes)
    return at


def give_rooms(plan: LoopPlan) -> LoopPlan:
    """What each kernel has of the arena for itself, while it runs."""
    return replace(plan, kernels=tuple(with_rooms(plan, x) for x in plan.kernels))


def with_rooms(plan: LoopPlan, kernel: Kernel) -> Kernel:
    """A kernel with its rooms: panels, and arrays of tasks too large for the stack."""
    if kernel.array_op is not None:
        own = array_rooms(kernel.array_op)
        rooms: dict[RoomKey, Storage] = {key: room_of(own[key]) for key in own}
        for step, choice in kernel.choices.items():
            if isinstance(choice, MatmulChoice) and choice.tiling.is_ready:
                rooms[step] = room_of(choice.tiling.packed)
        return replace(kernel, rooms=rooms)
    kernel = kernel if kernel.rooms else replace(kernel, parts=kernel.tasks)
    rooms = dict(kernel.rooms)
    for key, nbytes in kept_apart(plan, kernel):
        rooms[key] = room_of(kernel.parts * nbytes)
    for step, choice in kernel.choices.items():
        if isinstance(choice, TiledChoice) and choice.whole.is_prepared:
            many = kernel.parts if choice.is_of_stack else 1
            rooms[step] = room_of(many * choice.packed)
    return replace(kernel, rooms=rooms)


def kept_apart(plan: LoopPlan, kernel: Kernel) -> Iterator[tuple[RoomKey, int]]:
    """The arrays of a task that are in the arena: the stack has no place for them."""
    on_stack = 0
    for key, size in dict(arrays_of(plan, kernel)).items():
        nbytes = -(-size // ALIGNMENT) * ALIGNMENT
        is_large = nbytes > CPU.tuning.stack_array_bytes
        if is_large or on_stack + nbytes > CPU.tuning.stack_bytes:
            yield key, nbytes
        else:
            on_stack += nbytes


def arrays_of(plan: LoopPlan, kernel: Kernel) -> Iterator[tuple[RoomKey, int]]:
    """The arrays that a task has for itself, in bytes: values, and sums of theirs."""
    for step in kernel.steps():
        memory = plan.storage.get(step)
        if memory is not None and memory.kernel is not None and not memory.is_placed:
            yield memory, memory.nbytes
        if step.closed:
            for at, nbytes in enumerate(sum_arrays(plan, step)):
                yield (step, at), nbytes


def array_rooms(step: Step) -> Mapping[str, int]:
    """The rooms of an operation on whole arrays, in bytes, by what they are for."""
    if is_matmul(step):
        return {}
    # Here, because most programs have none: 5 ms.
    from tapejit.targets.cpu.arrays.table import ROOMS

    assert step.op is not None
    rooms = ROOMS.get(step.op.name)
    return {} if rooms is None else rooms(step)


def room_of(nbytes: int) -> Storage:
    """Memory of so many bytes."""
    return Storage(BYTE, {}, -(-nbytes // ALIGNMENT) * ALIGNMENT)


class Lifetimes:
    """Memory that is in use, by its last stage."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int, Storage]] = []  # a heap
        self._count = 0

    def add(self, memory: Storage, last: int) -> None:
        """Memory that is in use until this stage is over."""
        self._count += 1  # so that no two Storages are compared
        heappush(self._ends, (last, self._count, memory))

    def ended_before(self, stage: int) -> Iterator[Storage]:
        """What is no longer in use; it is forgotten."""
        while self._ends and self._ends[0][0] < stage:
            yield heappop(self._ends)[-1]


class FreeMemory:
    """The gaps between what is in use, in order; the last one has no end.

    An LSTM over 100 steps has 1,900 arrays in the arena, half of them at once, but few
    gaps: so `take` looks at these.

    >>> free = FreeMemory(0)
    >>> free.take(64), free.take(128), free.take(64)
    (0, 64, 192)
    >>> free.give_back(64, 128)
    >>> free.take(256), free.take(128)
    (256, 64)
    """

    def __init__(self, start: int) -> None:
        self._starts = [start]
        self._ends = [sys.maxsize]

    def take(self, nbytes: int) -> int:
        """The place of the first gap that is large enough."""
        starts, ends = self._starts, self._ends
        at = next(at for at, x in enumerate(starts) if x + nbytes <= ends[at])
        found = starts[at]
        starts[at] += nbytes
        if starts[at] == ends[at]:
            del starts[at], ends[at]
        return found

    def give_back(self, offset: int, nbytes: int) -> None:
        """Something is free again; it is one with the gaps beside it."""
        starts, ends, end = self._starts, self._ends, offset + nbytes
        at = bisect(starts, offset)
        if at and ends[at - 1] == offset:
            at -= 1
            ends[at] = end
        else:
            starts.insert(at, offset)
            ends.insert(at, end)
        if at + 1 < len(starts) and starts[at + 1] == end:
            ends[at] = ends[at + 1]
            del starts[at + 1], ends[at + 1]
