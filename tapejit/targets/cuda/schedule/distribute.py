"""Who goes through what: the thread axis of each kernel, its teams and its blocks.

The thread axis is the one along which most memory lies element by element, so that
neighbouring threads load what is side by side. Where that is too short for a warp, a
thread goes through a whole short row by itself, and its neighbours through others. All
is chosen by sizes alone.

Start reading at `distribute`.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import fields, replace
from itertools import takewhile

from tapejit.loops.index import Axis
from tapejit.loops.kernels import Kernel, LoopPlan
from tapejit.loops.nests import work_of
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Load, Step
from tapejit.targets.cpu.schedule.vectorize import distance
from tapejit.targets.cuda.kernel import SimtKernel, power_above
from tapejit.targets.cuda.target import CUDA


def distribute(plan: LoopPlan) -> LoopPlan:
    """The threads of each kernel."""
    return replace(plan, kernels=tuple(map(distributed, plan.kernels)))


def distributed(given: Kernel) -> SimtKernel:
    """A kernel with its threads; operations on whole arrays choose theirs later."""
    kernel = SimtKernel(**{x.name: getattr(given, x.name) for x in fields(given)})
    loop = kernel.loop
    if loop is None:
        return kernel
    axis = near_axis(loop)
    if axis.hint < CUDA.numerics.row_least_elements:
        return over_short_rows(kernel, loop)
    return over_axis(kernel, loop, axis, width_along(loop, axis))


def over_axis(kernel: SimtKernel, loop: Loop, axis: Axis, width: int) -> SimtKernel:
    """Neighbouring threads go along an axis, with so many elements each."""
    kernel = replace(kernel, vector=axis, width=width)
    if axis is loop.axis:
        return over_all(kernel, loop)
    return over_rows(kernel, loop, axis)


def over_short_rows(kernel: SimtKernel, loop: Loop) -> SimtKernel:
    """Each thread has iterations of all outer loops, with the rows inside of them.

    Where outer loops are added up over, threads go along the longest of these. They
    share an iteration that takes long where there are few.
    """
    numbers = CUDA.numerics
    chain, closed = [x.axis for x in chain_of(loop)], closed_in(loop)
    free = list(takewhile(lambda axis: axis not in closed, chain))
    units = math.prod(axis.hint for axis in free)
    summed = max(chain[len(free) :], key=lambda axis: axis.hint, default=None)
    if summed is not None and units < numbers.block_threads:
        if not free or summed.hint >= numbers.row_least_elements:
            return over_axis(kernel, loop, summed, 1)
    busiest = busiest_axis(loop, set(free))
    is_long = kernel.work >= units * numbers.shared_unit_instructions
    if busiest is not None and is_long and units < numbers.busy_units:
        return over_axis(kernel, loop, busiest, 1)
    if len(free) == 1:
        return over_axis(kernel, loop, loop.axis, width_along(loop, loop.axis))
    return over_units(replace(kernel, grid=tuple(free), team=1))


def chain_of(loop: Loop) -> list[Loop]:
    """A loop, and those that it has inside with nothing beside them."""
    found = [loop]
    while (inner := only_loop(found[-1])) is not None:
        found.append(inner)
    return found


def busiest_axis(loop: Loop, free: Set[Axis]) -> Axis | None:
    """The axis along which nearly all work of a nest is, other than the outer ones."""
    work: dict[Axis, float] = {}
    for step in loop.steps():
        for axis in (step.labels | step.closed) - free:
            work[axis] = work.get(axis, 0.0) + work_of(step)
    found = max(work, key=lambda axis: (work[axis], -axis.number), default=None)
    least = CUDA.numerics.shared_work * sum(map(work_of, loop.steps()))
    return found if found is not None and work[found] >= least else None


def over_units(kernel: SimtKernel) -> SimtKernel:
    """A thread for each unit, in blocks so small that all multiprocessors have some."""
    numbers, threads = CUDA.numerics, CUDA.numerics.block_threads
    least = CUDA.tuning.multiprocessors
    while threads > numbers.warp_threads and kernel.units < threads * least:
        threads //= 2
    return with_blocks_of(kernel, threads)


def near_axis(loop: Loop) -> Axis:
    """The axis along which most memory lies element by element."""
    near: dict[Axis, float] = {loop.axis: 0.0}
    for step in loop.steps():
        size = math.prod(axis.hint for axis in step.labels | step.closed)
        for axis in axes_side_by_side(step):
            near[axis] = near.get(axis, 0.0) + size
    around = loop_axes(loop)
    return max(
        (x for x in near if x in around), key=lambda x: (near[x], x.hint, -x.number)
    )


def loop_axes(loop: Loop) -> set[Axis]:
    """The axes of a loop and of those inside of it."""
    inner = (loop_axes(x) for x in loop.body if isinstance(x, Loop))
    return {loop.axis}.union(*inner)


def axes_side_by_side(step: Step) -> list[Axis]:
    """The axes along which a Step goes through memory element by element."""
    found = []
    for x in (step, *step.inputs):
        if isinstance(x.what, Load):
            found += [axis for axis in x.labels if distance(x, axis) == 1]
    last = step.dims[-1] if step.output is not None and step.dims else None
    return found if last is None else [*found, last.root]


def width_along(loop: Loop, axis: Axis) -> int:
    """How many elements a thread has at once: a row is enough for a warp."""
    numbers, steps = CUDA.numerics, list(loop.steps())
    is_light = len(steps) < numbers.heavy_steps
    if not is_light or (axis is loop.axis and len(loop.body) < len(steps)):
        return 1
    item = max(step.dtype.itemsize for step in steps)
    width = min(numbers.most_width, max(1, numbers.vector_bytes // item))
    least = 1 if axis is loop.axis else numbers.warp_threads
    while axis.hint % width or (width > 1 and axis.hint < least * width):
        width //= 2
    return width


def over_all(kernel: SimtKernel, loop: Loop) -> SimtKernel:
    """All threads of all blocks share the outermost loop."""
    numbers = CUDA.numerics
    trips = math.ceil(loop.axis.hint / kernel.width)
    is_summed = loop.axis in closed_in(loop)
    least = numbers.summed_trips if is_summed else 1
    trips = math.ceil(trips / least)
    threads = min(numbers.block_threads, max(numbers.warp_threads, power_above(trips)))
    return over_blocks(kernel, trips, threads)


def over_blocks(kernel: SimtKernel, trips: int, threads: int) -> SimtKernel:
    """Blocks of so many threads for iterations that do not depend on each other."""
    blocks = min(CUDA.numerics.most_blocks, math.ceil(trips / threads))
    return kernel.with_threads(threads, blocks)


def with_blocks_of(kernel: SimtKernel, threads: int) -> SimtKernel:
    """The same by other blocks, for iterations that do not depend on each other."""
    loop = kernel.loop
    if kernel.is_by_units:
        blocks = min(CUDA.numerics.most_blocks, math.ceil(kernel.units / threads))
        return kernel.with_threads(threads, blocks, 1)
    trips = 1 if loop is None else math.ceil(loop.axis.hint / kernel.width)
    return over_blocks(kernel, trips, threads)


def over_rows(kernel: SimtKernel, loop: Loop, axis: Axis) -> SimtKernel:
    """Teams take iterations of the outer loops, their threads go along one inside."""
    numbers, closed = CUDA.numerics, closed_in(loop)
    warp = numbers.warp_threads
    grid = [loop]
    while (inner := only_loop(grid[-1])) is not None:
        if inner.axis is axis or {inner.axis, grid[-1].axis} & closed:
            break
        grid.append(inner)
    inner = only_loop(grid[-1])
    is_map = inner is not None and inner.axis is axis
    is_map = is_map and not closed & {axis, *(x.axis for x in grid)}
    rows = math.prod(x.axis.hint for x in grid)
    trips = math.ceil(axis.hint / kernel.width)
    chunks = math.ceil(trips / warp) if is_map else 1
    is_short = trips <= warp or (
        trips <= warp * numbers.warp_row_trips and rows >= numbers.warp_least_rows
    )
    if is_map or is_short:
        team, threads = warp, numbers.block_threads
        threads = min(threads, warp * power_above(rows * chunks))
    else:
        threads = team = min(numbers.block_threads, power_above(trips))
    teams, units = threads // team, rows * chunks
    if loop.axis in closed:
        units = math.ceil(units / numbers.summed_rows)
    blocks = min(numbers.most_blocks, math.ceil(units / teams))
    return replace(
        kernel,
        threads=threads,
        team=team,
        tasks=blocks * teams,
        grid=tuple(x.axis for x in grid),
        chunks=chunks,
    )


def only_loop(loop: Loop) -> Loop | None:
    """The loop inside of another one, if there is nothing else in it."""
    (first, *others) = loop.body
    return first if isinstance(first, Loop) and not others else None


def closed_in(loop: Loop) -> set[Axis]:
    """The axes that something in a loop is reduced along."""
    found: set[Axis] = set()
    for step in loop.steps():
        found |= step.closed
    return found
