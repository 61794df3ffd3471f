"""Whether a LoopPlan is well formed: everything is in memory when it is read.

Passes decide where a value is kept, for how long, and in which order loops come. They
may rely on these invariants of a LoopPlan, and all of them together must keep them:

1. Every read is dominated by a write of all that it reads. Inside of a kernel the write
   comes first, in the same iteration of all loops around both. Memory that lacks an
   axis of its value is read in the iteration along that axis which has written it. What
   another kernel has written is of an earlier stage. A value in a register is used in
   the body that computes it, or in a loop inside of that. Who calls reads all results.
2. Views lie within their storage: arrays, private memory, the arena. A loop runs over
   every axis that a position depends on.
3. Lifetimes of what shares memory do not overlap. They are counted in stages in the
   arena, and in items of the loop around them in what a task has of it.
4. Tasks write disjoint places, and so do iterations that go on together.
5. A sum over iterations of several tasks has a part for each of them. The parts are
   combined in order when the stage is over, and nobody reads the sum before.
6. After a result may have been written over an input, nobody reads that input.

`accesses` lists what the Steps of a kernel read and write, each with the loops around
it. A Step is written in one place, so dominance is a comparison of two boxes: what the
write covers and what the read wants, in the first and in the last iteration of the
loops around both, and in all iterations of the others. Lanes that the last vector or
tile has in common with the one before it count once. How a product of matrices is cut
into tasks is decided later, and is not looked at here.

Start reading at `check_plan`, then `Checker.why_missing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np

from tapejit.loops.accesses import (
    FLAT,
    Access,
    Accesses,
    Fault,
    axes_of,
    axes_written,
    name_of,
    size_of,
    written_in_tiles,
)
from tapejit.loops.fuse.inplace import is_scatter
from tapejit.loops.index import Affine, Axis, Range, strides_of
from tapejit.loops.kernels import (
    ALIGNMENT,
    Kernel,
    LoopNest,
    LoopPlan,
    Storage,
    bound,
    common,
)
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Buffer, Step

MOST_SAMPLES: Final = 1 << 14  # iterations that are looked at one by one

Limits = Mapping[Axis, tuple[int, int]]  # the first iteration, and that after the last
Uses = dict[Storage, list[Access]]


def check_plan(plan: LoopPlan, name: str) -> None:
    """GraphError if a LoopPlan breaks one of the module's invariants."""
    for fault in Checker(plan).faults():
        raise fault.error(name)


class Checker:
    """Goes through the kernels of a LoopPlan and remembers what they read and write."""

    def __init__(self, plan: LoopPlan) -> None:
        self.plan = plan
        self.writes: dict[Step, Access] = {}
        self.reads: list[Access] = []

    def faults(self) -> Iterator[Fault]:
        """All that is wrong with the LoopPlan."""
        accesses = Accesses(self.plan)
        for kernel in self.plan.kernels:
            for found in accesses.of(kernel):
                if isinstance(found, Fault):
                    yield found
                elif found.is_write:
                    self.writes[found.step] = found
                    yield from self.write_faults(found)
                else:
                    self.reads.append(found)
                    yield from self.read_faults(found)
            yield from self.task_faults(kernel)
        yield from self.result_faults()
        yield from self.update_faults()
        yield from self.lifetimes_in_arena()
        for kernel in self.plan.kernels:
            if kernel.task_bytes:
                yield from self.lifetimes_in_task(kernel)

    def write_faults(self, write: Access) -> Iterator[Fault]:
        """Whether memory has room for all that is written to it."""
        kernel, step = write.kernel, write.step
        memory = self.plan.storage[step]
        is_private = memory.kernel is not None
        if is_private and memory.kernel != kernel.number:
            yield Fault(1, kernel, step, "writes to memory of another kernel")
        if memory.buffer is not None and size_of(memory.buffer) != memory.size:
            text = f"has {memory.size} elements for {name_of(memory.buffer)}"
            yield Fault(2, kernel, step, text)
        tiles = {loop.axis: loop.tile for loop in write.path if loop.tile}
        room = memory.size
        for axis, stride in sorted(memory.strides.items(), key=lambda x: -x[1]):
            needed = tiles.get(axis, 0) if axis in memory.tiled else axis.extent
            if not needed or needed * stride > room:
                yield Fault(2, kernel, step, f"has no room for all of {axis}")
            room = stride
        for loop in write.path:
            is_one = loop.axis in axes_of(step) and loop.axis not in memory.strides
            if loop.copies > 1 and is_private and is_one:
                text = f"has one place for iterations of {loop.axis} that go together"
                yield Fault(4, kernel, step, text)

    def read_faults(self, read: Access) -> Iterator[Fault]:
        """Whether what is read is there."""
        source = read.source
        if isinstance(source, Step):
            if reason := self.why_missing(self.writes.get(source), read):
                text = f"reads {name_of(source)}, {reason}"
                yield Fault(1, read.kernel, read.step, text, source)
            return
        is_flat = any(dim == FLAT for dim, _ in read.where)
        shape = (size_of(source),) if is_flat else source.shape
        each = zip(read.where, shape, strict=True)
        places = [(position, 0, size) for (_, position), size in each]
        if escapes(places, read.ranges, limits_of(read.path)):
            text = f"reads outside of {name_of(source)}"
            yield Fault(2, read.kernel, read.step, text)

    def why_missing(self, write: Access | None, read: Access) -> str:
        """Why a write does not cover all that a read wants; nothing if it does."""
        if write is None:
            return "which is not written before"
        value, memory = write.step, self.plan.storage[write.step]
        is_here = read.kernel is write.kernel
        if is_here and value in write.kernel.partials:
            return "of which each task has a part"
        if not is_here and memory.kernel is not None:
            return "which is in private memory of another kernel"
        if not is_here and write.kernel.stage >= read.kernel.stage:
            return "which may be computed at the same time"
        shared = common(read.path, write.path) if is_here else ()
        if written_in_tiles(value) and memory.kernel is None and shared:
            return "which is written tile by tile"
        wanted = dict(read.where)
        for axis in axes_of(value) - memory.strides.keys():
            is_own = wanted.get(axis, Affine.of(axis)) == Affine.of(axis)
            if axis not in bound(shared) or not is_own or FLAT in wanted:
                return f"of which one iteration of {axis} is kept"
        for is_last in (False, True):
            inside = limits_of(write.path, shared, is_last)
            covered = {x: inside.get(x, (0, x.extent)) for x in memory.strides}
            if FLAT in wanted:
                is_whole = all(ends == (0, x.extent) for x, ends in covered.items())
                places = [(wanted[FLAT], 0, memory.size if is_whole else 0)]
            else:
                places = [(wanted[x], *ends) for x, ends in covered.items()]
            if escapes(places, read.ranges, limits_of(read.path, shared, is_last)):
                return "not all of which is written before"
        return ""

    def task_faults(self, kernel: Kernel) -> Iterator[Fault]:
        """Whether tasks leave each other's results alone."""
        loop = kernel.loop
        if kernel.tasks == 1 or loop is None:
            return
        if len(kernel.items) != 1:
            first = next(loop.steps())
            yield Fault(4, kernel, first, "has beside its loop what all tasks repeat")
        cut = {loop.axis}
        if kernel.inner_tasks > 1:
            cut |= {x.axis for x in loop.body if isinstance(x, Loop)}
        for step in kernel.steps():
            memory = self.plan.storage.get(step)
            if memory is None or memory.kernel is not None:
                continue
            parts = kernel.partials.get(step)
            if parts is None and not cut <= axes_written(step, memory):
                yield Fault(4, kernel, step, "is written to one place by several tasks")
            elif parts is not None and parts.size < parts_size(kernel, step, memory):
                yield Fault(5, kernel, step, "has not a part for every task")

    def result_faults(self) -> Iterator[Fault]:
        """Whether every element of every result is written."""
        written = {write.step.output: write for write in self.writes.values()}
        for buffer in self.plan.nests.outputs:
            write = written.get(buffer)
            memory = None if write is None else self.plan.storage[write.step]
            if write is None or memory is None or memory.buffer is not buffer:
                kernel = self.plan.kernels[-1]
                step = list(kernel.steps())[-1]
                yield Fault(1, kernel, step, f"is over, {name_of(buffer)} not written")
            elif math.prod(axis.extent for axis in memory.strides) != size_of(buffer):
                text = f"does not write all of {name_of(buffer)}"
                yield Fault(1, write.kernel, write.step, text)

    def update_faults(self) -> Iterator[Fault]:
        """Whether an input is read after a result may have been written over it."""
        for write in self.writes.values():
            out = write.step.output
            replaced = () if out is None else self.plan.updates.get(out, ())
            memory = self.plan.storage[write.step]
            for read in self.reads if replaced else ():
                if read.source in replaced and not is_over(read, write, memory):
                    text = f"is written over {name_of(read.source)}, still to be read"
                    yield Fault(6, write.kernel, write.step, text)

    # Memory that several have

    def uses(self, is_meant: Callable[[Storage], bool]) -> Uses:
        """Who reads or writes some of the memory."""
        found: Uses = {}
        for x in (*self.writes.values(), *self.reads):
            if not isinstance(x.source, Step):
                continue
            memory = self.plan.storage.get(x.source)
            if memory is not None and is_meant(memory):
                found.setdefault(memory, []).append(x)
        return found

    def lifetimes_in_arena(self) -> Iterator[Fault]:
        """Whether what is in the arena at the same time is in different places."""
        uses = self.uses(lambda x: x.kernel is None and x.buffer is None)
        for kernel in self.plan.kernels:
            for step, memory in kernel.partials.items():
                uses[memory] = [self.writes[step]]
            for memory in kernel.rooms.values():  # from its beginning to its end
                step = next(kernel.steps())
                uses[memory] = [Access(kernel, step, step, True, (), 0, ())]

        def lives(_: LoopNest, use: Access) -> int:
            return use.kernel.stage

        for memory, (use, *_) in uses.items():
            if memory.offset < ALIGNMENT:
                yield Fault(2, use.kernel, use.step, "is where the arena's words are")
        yield from self.overlaps(uses, self.plan.arena_size, lives)

    def lifetimes_in_task(self, kernel: Kernel) -> Iterator[Fault]:
        """The same for private memory that is in what a task has of the arena."""
        uses = self.uses(lambda x: x.is_placed and x.kernel == kernel.number)

        def lives(around: LoopNest, use: Access) -> int:
            """The item of the innermost loop around all uses that this one is in."""
            items = around[-1].body if around else kernel.items
            path: list[Step | Loop] = [*self.plan.paths[use.step], use.step]
            return items.index(path[len(around)])

        yield from self.overlaps(uses, kernel.task_bytes, lives)

    def overlaps(
        self, uses: Uses, size: int, lives: Callable[[LoopNest, Access], int]
    ) -> Iterator[Fault]:
        """What is in the same place at the same time, or beyond the end."""
        ordered = sorted(uses, key=lambda x: x.offset)
        for at, one in enumerate(ordered):
            end = one.offset + one.nbytes
            use = uses[one][0]
            if end > size:
                yield Fault(2, use.kernel, use.step, "is beyond the end of the arena")
            for other in ordered[at + 1 :]:
                if other.offset >= end:
                    break
                both = (*uses[one], *uses[other])
                around = reduce(common, [self.plan.paths[x.step] for x in both])
                first, second = (
                    [lives(around, x) for x in uses[memory]] for memory in (one, other)
                )
                if max(first) >= min(second) and max(second) >= min(first):
                    text = f"shares memory with {name_of(uses[other][0].source)}"
                    yield Fault(3, use.kernel, use.step, text)


def parts_size(kernel: Kernel, step: Step, memory: Storage) -> int:
    """How large the parts of a value are together, before they are combined."""
    slots = kernel.slots.get(step)
    return memory.size * kernel.tasks if slots is None else slots.size


def is_over(read: Access, write: Access, memory: Storage) -> bool:
    """Whether an input is read before a result is written over it.

    In the kernel that writes, each element is read in the iteration that replaces it.
    """
    if read.kernel is not write.kernel:
        return read.kernel.stage < write.kernel.stage
    assert isinstance(read.source, Buffer)
    shape = read.source.shape
    if is_scatter(write.step):  # it reads of its first operand the rows that it writes
        (table, offset, strides), *others = write.step.views
        is_first = table is read.source and all(x is not table for x, *_ in others)
        return is_first and not offset and strides == strides_of(shape)
    is_flat = any(dim == FLAT for dim, _ in read.where)
    strides = (1,) if is_flat else strides_of(shape)
    each = zip(read.where, strides, strict=True)
    wanted = sum((position * stride for (_, position), stride in each), Affine())
    around = {loop.axis for loop in common(read.path, write.path)}
    is_same = not wanted.constant and dict(wanted.terms) == memory.strides
    return is_same and around <= memory.strides.keys() and read.order < write.order


# Positions


def limits_of(
    path: LoopNest, fixed: Collection[Loop] = (), is_last: bool = False
) -> dict[Axis, tuple[int, int]]:
    """Which iterations loops go through while those of `fixed` are in one of theirs.

    That is their first or their last one. A loop over tiles is in one tile then.
    """
    found: dict[Axis, tuple[int, int]] = {}
    for loop in path:
        low, high = found.get(loop.axis, (0, loop.axis.extent))
        if loop in fixed:
            unit = loop.tile or 1
            low += (high - 1 - low) // unit * unit if is_last else 0
            high = min(low + unit, high)
        found[loop.axis] = low, high
    return found


def escapes(
    places: Sequence[tuple[Affine, int, int]], ranges: Sequence[Range], limits: Limits
) -> bool:
    """Whether a position leaves its bounds in an iteration for which all Ranges hold.

    By the ends of each position. If these are beyond the bounds, Ranges may still leave
    out such iterations, and some thousands of them are looked at one by one.
    """
    suspects = []
    for position, low, high in places:
        first, last = span(position, limits)
        for x in ranges:
            if x.position.rooted().terms == position.terms:
                away = position.constant - x.position.constant
                first, last = max(first, x.low + away), min(last, x.high - 1 + away)
        if first <= last and (first < low or last >= high):
            suspects.append((position, low, high))
    if not suspects:
        return False
    conditions = [(x.position.rooted(), x.low, x.high) for x in ranges]
    terms = [x.terms for x, _, _ in (*suspects, *conditions)]
    axes = list(dict.fromkeys(axis for term in terms for axis, _ in term))
    most = int(MOST_SAMPLES ** (1 / max(len(axes), 1)))
    samples = [sampled(*limits.get(axis, (0, axis.extent)), most) for axis in axes]
    grid = dict(zip(axes, np.meshgrid(*samples, indexing="ij"), strict=True))

    def is_inside(position: Affine, low: int, high: int) -> Any:
        at = position.constant + sum(grid[axis] * f for axis, f in position.terms)
        return (low <= at) & (at < high)

    holds = [is_inside(*x) for x in conditions]
    good = [is_inside(*x) for x in suspects]
    done = np.logical_and.reduce(np.broadcast_arrays(True, *holds))
    return bool(np.any(done & ~np.logical_and.reduce(np.broadcast_arrays(*good))))


def span(position: Affine, limits: Limits) -> tuple[int, int]:
    """The smallest and the largest value of a position; none if loops do nothing."""
    first = last = position.constant
    for axis, factor in position.terms:
        low, high = limits.get(axis, (0, axis.extent))
        if low >= high:
            return 0, -1
        ends = sorted((low * factor, (high - 1) * factor))
        first, last = first + ends[0], last + ends[1]
    return first, last


def sampled(low: int, high: int, most: int) -> Any:
    """All iterations, or those at both ends and some in between."""
    if high - low <= most:
        return np.arange(low, high)
    near = most // 3
    between = np.linspace(low, high - 1, max(most - 2 * near, 2)).astype(int)
    ends = np.arange(near)
    return np.unique(np.concatenate([low + ends, high - 1 - ends, between]))
