"""Who goes through what: the thread axis of each kernel, its teams and its blocks.

The thread axis is the one along which most memory lies element by element, so that
neighbouring threads load what is side by side. Where that is too short for a warp, a
thread goes through a whole short row by itself, and its neighbours through others.
Where a nest stores along that axis and loads along another one, blocks take square
tiles. All is chosen by sizes alone.

Start reading at `distribute`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import fields, replace
from itertools import accumulate, takewhile

from tapejit.loops.index import Axis
from tapejit.loops.kernels import Kernel, LoopPlan
from tapejit.loops.nests import work_of
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Load, Step
from tapejit.targets.cpu.schedule.vectorize import distance
from tapejit.targets.cuda.kernel import SimtKernel, Transpose, power_above
from tapejit.targets.cuda.target import CUDA


def distribute(plan: LoopPlan) -> LoopPlan:
    """The threads of each kernel."""
    shared = plan.nests.shared
    return replace(plan, kernels=tuple(distributed(x, shared) for x in plan.kernels))


def distributed(given: Kernel, shared: Set[Step]) -> SimtKernel:
    """A kernel with its threads; operations on whole arrays choose theirs later.

    Values of `shared` Steps go to other kernels through memory.
    """
    kernel = SimtKernel(**{x.name: getattr(given, x.name) for x in fields(given)})
    loop = kernel.loop
    if loop is None:
        return kernel
    if (tiled := over_tiles(kernel, loop, shared)) is not None:
        return tiled
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
        is_long = summed.hint >= numbers.row_least_elements
        if is_long or not free:
            return over_axis(kernel, loop, summed, 1)
    busiest = busiest_axis(loop, set(free))
    are_long = kernel.work >= units * numbers.shared_unit_instructions
    if busiest is not None and are_long and units < numbers.busy_units:
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
    """How many elements a thread has at once: of a row, all of a warp have some."""
    numbers, steps = CUDA.numerics, list(loop.steps())
    is_light = len(steps) < numbers.heavy_steps
    if not is_light or (axis is loop.axis and len(loop.body) < len(steps)):
        return 1
    item = max(step.dtype.itemsize for step in steps)
    width = min(numbers.most_width, max(1, numbers.vector_bytes // item))
    warp = 0 if axis is loop.axis else numbers.warp_threads
    while axis.hint % width or (width > 1 and 2 * axis.hint <= warp * width):
        width //= 2
    return width


def over_tiles(kernel: SimtKernel, loop: Loop, shared: Set[Step]) -> SimtKernel | None:
    """Blocks take tiles of a nest that loads along another axis than it stores."""
    numbers, tuning = CUDA.numerics, CUDA.tuning
    loops, steps = chain_of(loop), list(loop.steps())
    stored = [x for x in steps if x.output is not None or x in shared]
    along = Counter(x.dims[-1].root for x in stored if x.dims and x.dims[-1])
    if closed_in(loop) or len(loops[-1].body) < len(steps) or not along:
        return None
    (axis, _), *_ = along.most_common(1)
    loads = [x for x in transposable(steps) if abs(distance(x, axis) or 0) > 1]
    near = Counter(
        other.axis
        for other in loops
        for x in loads
        if other.axis is not axis and is_near(x, other.axis)
    )
    if not near:
        return None
    (across, _), *_ = near.most_common(1)
    if min(axis.hint, across.hint) < numbers.row_least_elements:
        return None
    side, room = tuning.transposed_tile, tuning.shared_most_bytes
    loads = [x for x in loads if is_near(x, across)]
    nbytes = [side * (side + 1) * x.dtype.itemsize for x in loads]
    loads = [x for x, end in zip(loads, accumulate(nbytes), strict=True) if end <= room]
    made = Transpose(across, side, tuple(loops), tuple(loads))
    grid = tuple(x.axis for x in loops if x.axis not in (axis, across))
    kernel = replace(kernel, vector=axis, grid=grid, transpose=made)
    kernel = replace(kernel, chunks=made.tiles(across) * made.tiles(axis))
    blocks = min(numbers.most_blocks, kernel.units)
    return kernel.with_threads(numbers.block_threads, blocks)


def is_near(load: Step, axis: Axis) -> bool:
    """Whether a load goes along an axis element by element, up or down."""
    return abs(distance(load, axis) or 0) == 1


def transposable(steps: Sequence[Step]) -> list[Step]:
    """The loads of other nests' arrays whose positions are those of loops."""
    inside = set(steps)
    loads = dict.fromkeys(x for step in steps for x in step.needed() if x.is_leaf)
    return [
        x
        for x in loads
        if isinstance(x.what, Load) and not x.ranges and x.source not in inside
    ]


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
