"""Vectorization: how loops are run, as vectors, in tiles and blocks, by tasks.

`choose_vector` picks the axis that vectors go along, for the kernel and for each loop
that does not go along that one. Numbers that belong to rows get vectors of their own by
`tile`; `block` keeps large accumulators in the nearest cache; `choose_tasks` cuts the
outermost loop for threads, and the next one if it is short.

Start reading at `vectorize`, then `parallelize`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple

from tapejit.loops.index import Affine, Axis, strides_of
from tapejit.loops.kernels import (
    Kernel,
    LoopNest,
    LoopPlan,
    Slots,
    accumulator,
    grain_of,
    inner_axes,
    located,
)
from tapejit.loops.schedule.schedule import Loop, cost, is_long
from tapejit.loops.steps import (
    AffineIndex,
    ArrayOp,
    Buffer,
    CheckedIndex,
    Contract,
    Copy,
    IndexValue,
    Load,
    PartialSum,
    Step,
    Verify,
    element_of,
    tiles_of,
)
from tapejit.targets.cpu.schedule.sum_order import is_ordered, slots_for
from tapejit.targets.cpu.schedule.tile_roles import adds_in_parts, adds_up
from tapejit.targets.cpu.target import CPU


def vectorize(plan: LoopPlan) -> LoopPlan:
    """The vector axis of each kernel, and its loops in tiles and blocks of vectors."""
    kernels = []
    for kernel in plan.kernels:
        if kernel.array_op is None:
            kernel = block(plan, tile(choose_vector(kernel, plan)))
            kernel = load_far_once(kernel)
        kernels.append(kernel)
    return replace(plan, kernels=tuple(kernels))


def parallelize(plan: LoopPlan) -> LoopPlan:
    """The tasks of each kernel."""
    kernels = (x if x.array_op else choose_tasks(plan, x) for x in plan.kernels)
    return replace(plan, kernels=tuple(kernels))


def share_formulas(plan: LoopPlan) -> LoopPlan:
    """Which kernels call functions for long formulas, which would be repeated often.

    The epilogue of a matmul is written for each of the many vectors of a tile.
    """
    count = sum(map(is_long, plan.paths))
    kernels = []
    for kernel in plan.kernels:
        steps = list(kernel.steps())
        if kernel.array_op is not None:
            calls = any(is_long(x) for x in steps if not isinstance(x.what, ArrayOp))
        else:
            calls = count > CPU.tuning.inlined_formulas
            calls |= len(steps) > CPU.tuning.large_kernel_steps
        kernels.append(replace(kernel, calls_formulas=calls))
    return replace(plan, kernels=tuple(kernels))


def choose_vector(kernel: Kernel, plan: LoopPlan) -> Kernel:
    """The axis whose iterations are done several at a time: the least work wins."""
    lanes, shared = CPU.numerics.vector_bytes, plan.nests.shared
    steps = list(kernel.steps())
    axes: dict[Axis, None] = {}
    rows: set[Axis] = set()  # those that products in the loops go along
    for step in steps:
        axes.update(dict.fromkeys(loop.axis for loop in plan.paths[step]))
        if isinstance(step.what, ArrayOp):
            rows.update(tiles_of(step).axes)
    axes = {axis: None for axis in axes if axis not in rows}
    inputs = {x: None for step in steps for x in step.inputs}
    leaves = [x for x in inputs if x.is_leaf]
    # What other kernels have left in memory, and what this one leaves there.
    number = kernel.number
    left = [x for x in inputs if x in shared and plan.kernel_of[x] != number]
    left += [x for x in steps if x in shared and x.output is None]

    widest = dict.fromkeys(axes, 4)  # bytes of the numbers that vary with an axis
    for x in (*steps, *leaves):
        if not isinstance(x.what, POSITIONS):  # these may be 4, as they are checked
            for axis in (x.labels | x.closed) & widest.keys():
                widest[axis] = max(widest[axis], x.dtype.itemsize)

    def width_along(axis: Axis) -> int:
        """How many of the widest numbers that vary with an axis a vector has."""
        return min(lanes // widest[axis], 1 << (axis.hint.bit_length() - 1))

    # Of the terms of a price, most are the same for all axes. They are added in the
    # same order for each: a tie stays one.
    terms: list[float] = []
    own: dict[Axis, dict[int, float]] = {axis: {} for axis in axes}
    apart = lanes_apart(plan, kernel)
    loops = {y: plan.paths[x][-1:] for x in reversed(steps) for y in (*x.inputs, x)}
    # Terms in lanes of their own. They have no say in the order in which sums add up.
    alone: list[tuple[int, frozenset[Axis], float]] = []
    is_free = not any(step.closed for step in steps)
    for step in (*steps, *leaves):
        around = step.labels | step.closed
        count = math.prod(x.hint for x in around)
        is_in_memory = isinstance(step.what, Load) or step.output is not None
        here, at = cost(step), len(terms)
        terms += [(1.0 if is_in_memory else here) * count, 0.0]
        near = axes_of_memory(step) if is_in_memory else frozenset[Axis]()
        for loop in loops[step]:
            if is_free and loop in apart and loop.axis in around:
                width = apart[loop].width
                full = loop.axis.hint / math.ceil(loop.axis.hint / width)
                is_near = not is_in_memory or distance(step, loop.axis) in (0, 1)
                each = 1.5 * full if not is_near else 1.0 if is_in_memory else here
                alone.append((at, apart[loop].around, each * count / full))
        for axis in (around | near) & own.keys():
            full = axis.hint / math.ceil(axis.hint / width_along(axis))
            if is_in_memory:
                here = 1.0 if distance(step, axis) in (0, 1) else 1.5 * full
            own[axis][at] = here * count / full if axis in around else here * count
            if axis in step.closed:
                own[axis][at + 1] = 6.0 * count / axis.hint
    for step in left:
        count = math.prod(x.hint for x in step.labels)
        for axis in step.labels & own.keys():
            if distance(step, axis) == 1:
                full = axis.hint / math.ceil(axis.hint / width_along(axis))
                own[axis][len(terms)] = count / full
        terms.append(1.5 * count)

    def price(axis: Axis) -> float:
        priced, total = list(terms), 0.0
        for at, around, term in alone:
            if axis not in around:
                priced[at] = term
        for at, term in own[axis].items():
            priced[at] = term
        for term in priced:  # `sum` rounds otherwise in other versions of Python
            total += term
        return total

    if not axes:
        return kernel
    best = min(axes, key=lambda axis: (price(axis), axis.number))
    items = [with_lanes(item, (), apart, best) for item in kernel.items]
    return replace(kernel, items=tuple(items), vector=best, width=width_along(best))


class LoopLanes(NamedTuple):
    """How a loop may have vectors of its own: their width, and the axes around it."""

    width: int
    around: frozenset[Axis]


def lanes_apart(plan: LoopPlan, kernel: Kernel) -> dict[Loop, LoopLanes]:
    """The innermost loops that can go along their own axis, whatever others do.

    What adds up does so along the axis of the kernel, and a loop over rows for products
    is that of a tile.
    """
    found: dict[Loop, LoopLanes] = {}
    for step in kernel.steps():
        path = plan.paths[step]
        if len(path) < 2 or path[-1] in found:
            continue
        loop, around = path[-1], frozenset(x.axis for x in path)
        is_tiled = any(x.tile for x in path)
        if is_tiled or any(not is_one_by_one(x) for x in loop.body):
            continue
        values = [y for x in loop.steps() for y in (x, *x.inputs)]
        sizes = [
            x.dtype.itemsize
            for x in values
            if loop.axis in x.labels and not isinstance(x.what, POSITIONS)
        ]
        width = CPU.numerics.vector_bytes // max([4, *sizes])
        width = min(width, 1 << (loop.axis.hint.bit_length() - 1))
        found[loop] = LoopLanes(width, around)
    return found


def is_one_by_one(item: Step | Loop) -> bool:
    """Whether this is a value of one iteration, which nothing adds up."""
    if isinstance(item, Loop) or isinstance(item.what, (ArrayOp, PartialSum)):
        return False
    return not item.closed


def with_lanes(
    item: Step | Loop, around: LoopNest, apart: Mapping[Loop, LoopLanes], vector: Axis
) -> Step | Loop:
    """A loop, with vectors along its own axis if no loop around goes along `vector`."""
    if not isinstance(item, Loop):
        return item
    own = apart.get(item)
    if own is None:
        path = (*around, item)
        body = [with_lanes(x, path, apart, vector) for x in item.body]
        return replace(item, body=body)
    if vector in own.around or own.width == 1:
        return item
    return replace(item, lanes=(item.axis, own.width))


def axes_of_memory(step: Step) -> frozenset[Axis]:
    """The axes along which a Step may go through memory."""
    if not isinstance(step.what, Load):
        return frozenset([dim.root for dim in step.dims or () if dim is not None])
    found: set[Axis] = set()
    for position in step.index:
        if isinstance(position, Step):
            found |= position.labels
        else:
            found.update(axis.root for axis, _ in position.terms)
    return frozenset(found)


def distance(step: Step, axis: Axis) -> int | None:
    """How far apart in memory neighbours along an axis are; None if positions vary."""
    if isinstance(step.what, Load):
        source = step.what.source
        if isinstance(source, Buffer):
            shape = source.shape
        else:
            dims = source.dims or ()
            shape = tuple(1 if dim is None else dim.extent for dim in dims)
        strides = (1,) if step.is_flat else strides_of(shape)
        total = 0
        for position, stride in zip(step.index, strides, strict=True):
            if isinstance(position, Step):
                if axis in position.labels:
                    return None
                continue
            total += sum(f * stride for a, f in position.terms if a.root is axis)
        return total
    assert step.dims is not None
    if step.output is not None:
        shape = step.output.shape
    else:
        shape = tuple(1 if dim is None else dim.extent for dim in step.dims)
    for dim, stride in zip(step.dims, strides_of(shape), strict=False):
        if dim is not None and dim.root is axis:
            return stride
    return 0


def row_part(place: Affine, vector: Axis | None, size: int) -> tuple[int, int] | None:
    """Of a place in rows that are whole: how many numbers these have, and which it is.

    `size` is that of the memory. None if numbers are neighbours, or far apart.
    """
    factors: dict[Axis, int] = {}
    for axis, factor in place.terms:
        factors[axis.root] = factors.get(axis.root, 0) + factor
    distance = factors.get(vector, 0) if vector is not None else 0
    if not 1 < distance <= CPU.tuning.interleaved_numbers or size % distance:
        return None
    if any(factor % distance for factor in factors.values()):
        return None
    return distance, place.constant % distance


def is_interleaved(leaf: Step, axis: Axis) -> bool:
    """Whether it loads numbers of whole rows, which are shuffles: none is far."""
    load = leaf.what
    if not isinstance(load, Load) or not isinstance(load.source, Buffer):
        return False
    place = None if leaf.ranges else element_of(load, load.source)
    size = math.prod(load.source.shape)
    return place is not None and row_part(place, axis, size) is not None


def tile(kernel: Kernel) -> Kernel:
    """Cut the outermost loop into tiles, so that numbers of rows are vectors, too.

    Where rows are what vectors go along, what is computed once per row is one number at
    a time. If that is a good part of the work, a tile of rows does it all at once.
    """
    loop = kernel.loop
    if loop is None or loop.axis is kernel.vector or kernel.vector is None:
        return kernel
    if loop.tile:  # of rows, for products
        return kernel
    single = [item for item in loop.body if isinstance(item, Step)]
    if not single or len(single) == len(loop.body):
        return kernel
    alone = sum(cost(step) for step in single)
    rows = kernel.work / loop.axis.hint - alone
    width = CPU.numerics.vector_bytes // max(x.dtype.itemsize for x in single)
    is_worth = alone > CPU.numerics.single_work_share * rows / kernel.width
    is_wide = width >= CPU.numerics.loop_tile_least_rows
    if not is_worth or not is_wide or loop.axis.hint < 2 * width:
        return kernel
    body = []
    for is_single, items in groupby(loop.body, lambda item: isinstance(item, Step)):
        lanes = (loop.axis, width) if is_single else None
        body.append(interchanged(Loop(loop.axis, list(items), lanes=lanes)))
    return replace(kernel, items=(Loop(loop.axis, body, tile=width),))


def interchanged(loop: Loop) -> Loop:
    """A loop over rows that adds them up, the other way round: sums in registers."""
    inner = loop.body[0]
    if loop.lanes or len(loop.body) != 1 or not isinstance(inner, Loop):
        return loop
    steps = [item for item in inner.body if isinstance(item, Step)]
    is_flat = len(steps) == len(inner.body)
    closed = frozenset().union(*[step.closed for step in steps])
    if not is_flat or closed != {loop.axis}:
        return loop
    return Loop(inner.axis, [Loop(loop.axis, inner.body)])


def vectors_in(size: int, width: int) -> int:
    """How many vectors make a block: a number that leaves no rest, if there is one."""
    numbers = CPU.numerics.block_vectors
    return next((n for n in numbers if size % (n * width) == 0), numbers[-1])


def block(plan: LoopPlan, kernel: Kernel) -> Kernel:
    """Cut a loop of vectors into blocks, inside of which the next loops come first.

    Accumulators over the other axes are as many vectors as those have elements. If that
    is more than the nearest cache holds, a block of iterations goes through one part of
    them after the other.
    """
    loop = kernel.loop
    if loop is None or loop.axis is not kernel.vector or loop.tile:
        return kernel
    taken = 0
    for step in loop.steps():
        if loop.axis in step.closed:
            inner = math.prod(axis.hint for axis in inner_axes(plan, step))
            taken += inner * step.dtype.itemsize * kernel.width
    size = vectors_in(loop.axis.hint, kernel.width) * kernel.width
    if taken <= CPU.numerics.l1_accumulator_bytes or loop.axis.hint < 2 * size:
        return kernel
    lanes = (loop.axis, kernel.width)
    body: list[Step | Loop] = []
    single: list[Step] = []
    for item in (*keep_apart(loop).body, None):
        if isinstance(item, Step):
            single.append(item)
            continue
        if single:
            body.append(Loop(loop.axis, single, lanes=lanes))
            single = []
        if item is None:
            break
        rest, sums = without_sums(item.body, loop.axis)
        nests: list[Step | Loop] = []
        if rest:
            nests.append(Loop(loop.axis, rest, lanes=lanes))
        for axes, step in sums:
            nest = Loop(loop.axis, [step], lanes=lanes)
            for axis in reversed(axes):
                nest = Loop(axis, [nest])
            nests.append(nest)
        body.append(Loop(item.axis, nests))
    return replace(kernel, items=(Loop(loop.axis, body, tile=size),))


def without_sums(
    items: Sequence[Step | Loop], axis: Axis, around: tuple[Axis, ...] = ()
) -> tuple[list[Step | Loop], list[tuple[tuple[Axis, ...], Step]]]:
    """A body without its sums of products along an axis, and those with their loops.

    They are worth loops of their own, in which the sum is a register.
    """
    rest: list[Step | Loop] = []
    sums: list[tuple[tuple[Axis, ...], Step]] = []
    for item in items:
        if isinstance(item, Loop):
            inner, found = without_sums(item.body, axis, (*around, item.axis))
            sums += found
            if inner:
                rest.append(Loop(item.axis, inner))
        elif (
            isinstance(item.what, Contract) and axis in item.closed and len(around) > 1
        ):
            sums.append((around, item))
        else:
            rest.append(item)
    return rest, sums


def keep_apart(loop: Loop) -> Loop:
    """Load what is far apart in memory once per block, not in every inner loop.

    The copy is the first thing a block does. So what the block itself computes is left
    out: it is not there yet. Nor is it far apart, since the elements of its private
    memory along the axis of vectors are neighbours.
    """
    steps = list(loop.steps())
    made_here = set(steps)
    leaves = {x: None for step in steps for x in step.inputs if x.is_leaf}
    body = list(loop.body)
    for leaf in leaves:
        is_far = isinstance(leaf.what, Load) and distance(leaf, loop.axis) not in (0, 1)
        is_far &= not is_interleaved(leaf, loop.axis)
        others = leaf.labels - {loop.axis}
        if not is_far or len(others) != 1 or leaf.source in made_here:
            continue
        (axis,) = others
        kept = Step(
            Copy(), leaf.dtype, inputs=[leaf], axes=leaf.axes, dims=tuple(leaf.labels)
        )
        for step in steps:
            step.inputs = [kept if x is leaf else x for x in step.inputs]
        body.insert(0, Loop(axis, [kept]))
    return replace(loop, body=body)


def load_far_once(kernel: Kernel) -> Kernel:
    """Copy what is far apart in memory to where it is side by side.

    A vector of elements that are far apart takes a load for each lane. An iteration
    along the vector axis begins with copies of what it would load so several times, or
    of rows, which are transposed.
    """
    if kernel.vector is None:
        return kernel
    made_here = set(kernel.steps())

    def copied(item: Step | Loop, around: frozenset[Axis]) -> Step | Loop:
        if isinstance(item, Step) or item.tile or item.lanes:
            return item
        around |= {item.axis}
        if item.axis is kernel.vector:
            copies = copies_of_far(item, around, kernel.width, made_here)
            return replace(item, body=(*copies, *item.body)) if copies else item
        body = tuple(copied(x, around) for x in item.body)
        return item if body == item.body else replace(item, body=body)

    items = tuple(copied(x, frozenset()) for x in kernel.items)
    return kernel if items == kernel.items else replace(kernel, items=items)


def copies_of_far(
    loop: Loop, around: frozenset[Axis], width: int, made_here: set[Step]
) -> list[Step | Loop]:
    """What copies loads of a loop that are far apart along its axis; who uses them."""
    loads: dict[Step, int] = {}
    count_loads(loop.body, 1, loads)
    near: dict[Step, Step] = {}
    copies: list[Step | Loop] = []
    left = CPU.tuning.copied_loads_bytes
    for leaf, count in loads.items():
        if not isinstance(leaf.what, Load) or leaf.source in made_here:
            continue
        inner = sorted(leaf.labels - around, key=lambda axis: axis.number)
        size = math.prod(axis.extent for axis in inner)
        nbytes = size * width * leaf.dtype.itemsize
        is_row = size > 2 and any(distance(leaf, axis) == 1 for axis in inner)
        is_far = distance(leaf, loop.axis) not in (0, 1, None)
        is_far &= not is_interleaved(leaf, loop.axis)
        if not is_far or not (is_row or count > size) or nbytes > left:
            continue
        left -= nbytes
        dims = tuple(sorted(leaf.labels, key=lambda axis: axis.number))
        near[leaf] = kept = Step(
            Copy(), leaf.dtype, inputs=[leaf], axes=leaf.axes, dims=dims
        )
        nest: Step | Loop = kept
        for axis in reversed(inner):
            nest = Loop(axis, [nest])
        copies.append(nest)
    for step in loop.steps() if near else ():
        step.inputs = [near.get(x, x) for x in step.inputs]
    return copies


def count_loads(
    items: Sequence[Step | Loop], trips: int, found: dict[Step, int]
) -> None:
    """How often each leaf is loaded by a body that is done so many times."""
    for item in items:
        if isinstance(item, Loop):
            count_loads(item.body, trips * item.axis.extent, found)
            continue
        for x in item.inputs:
            if x.is_leaf:
                found[x] = found.get(x, 0) + trips


def join_rows(plan: LoopPlan) -> LoopPlan:
    """Let rows of products go through their inner loop together: fewer loads for each.

    A number of one operand meets several of the other one, or, where both are vectors,
    two of each meet.
    """
    together: dict[Loop, int] = {}
    for kernel in plan.kernels:
        for item in kernel.items:
            if isinstance(item, Loop):
                join(plan, item.body, None, together)
    if max(together.values(), default=1) == 1:
        return plan

    def joined(item: Step | Loop) -> Step | Loop:
        if not isinstance(item, Loop):
            return item
        body = list(map(joined, item.body))
        return replace(item, body=body, copies=together.get(item, 1))

    kernels = (replace(x, items=tuple(map(joined, x.items))) for x in plan.kernels)
    return located(replace(plan, kernels=tuple(kernels)))


def join(
    plan: LoopPlan,
    items: Sequence[Step | Loop],
    above: Loop | None,
    together: dict[Loop, int],
) -> None:
    """How many iterations of each loop in a body go on together."""
    for outer in items:
        if not isinstance(outer, Loop):
            continue
        for inner in outer.body:
            if not isinstance(inner, Loop):
                continue
            products = [
                x
                for x in inner.body
                if isinstance(x, Step) and multiplies_along(x, inner.axis)
            ]
            if len(products) != len(inner.body):
                continue
            most = CPU.tuning.joined_sum_bytes // sum(held(plan, x) for x in products)
            are_vectors = all(
                plan.lanes[x][0] in y.labels for x in products for y in x.inputs
            )
            if not are_vectors:
                together[outer] = copies(plan, outer, products, most)
            elif above is not None and most >= 4 and len(above.body) == 1:
                for x in (outer, above):
                    together[x] = copies(plan, x, products, 2)
        join(plan, outer.body, outer, together)


def multiplies_along(step: Step, axis: Axis) -> bool:
    """Whether this adds up products along an axis."""
    return isinstance(step.what, Contract) and axis in step.closed


def held(plan: LoopPlan, step: Step) -> int:
    """How many bytes of registers a sum takes."""
    return plan.lanes[step][1] * accumulator(step.dtype).itemsize


def copies(plan: LoopPlan, loop: Loop, products: Sequence[Step], most: int) -> int:
    """How many iterations of a loop go on together; each needs memory of its own."""
    is_split = loop.tile or loop.lanes or loop.axis is plan.lanes[products[0]][0]
    if is_split or any(loop.axis not in x.labels for x in products):
        return 1
    for step in loop.steps():
        memory = plan.storage.get(step)
        is_shared = memory is not None and loop.axis not in memory.strides
        if is_shared and loop.axis in step.labels:
            return 1
    sizes = range(min(most, loop.axis.extent), 0, -1)
    return next((size for size in sizes if loop.axis.extent % size == 0), 1)


POSITIONS: Final = (IndexValue, CheckedIndex, Verify, AffineIndex)


def choose_tasks(plan: LoopPlan, kernel: Kernel) -> Kernel:
    """Into how many parts the outermost loop is cut.

    Where it has few iterations, tasks share those of the loop inside of it as well.
    Each part has its own arrays that add up, to be set up and combined in the end.
    """
    loop, limits = kernel.loop, CPU.tuning
    if loop is None:
        return kernel
    if any(map(adds_in_parts, loop.steps())):
        return matmul_sum_tasks(plan, kernel)
    work = kernel.work / max(kernel.width, 1)
    if work < limits.threads_least_instructions:
        return kernel
    cut = [step for step in loop.steps() if loop.axis in step.closed]
    sums = sum(math.prod(x.hint for x in inner_axes(plan, step)) for step in cut)
    set_up = limits.task_to_set_up_ratio * limits.set_up_instructions * sums
    least = max(limits.task_least_instructions, set_up)
    wanted = min(limits.most_tasks, int(work / least))
    slots = slots_of(plan, kernel, min(wanted, limits.uneven_tasks))
    if wanted < 2 or slots is None:
        return kernel
    possible = max(1, loop.axis.hint // grain_of(kernel))
    if slots:
        longest = max(x.length for x in slots.values())
        possible = math.ceil(loop.axis.extent / longest)
    tasks, inner_tasks = min(wanted, possible), 1
    is_short = tasks == possible < limits.uneven_tasks
    inner = shared_loop(kernel) if is_short else None
    if inner is not None:
        more = wanted // tasks
        more = min(more, limits.matrix_tile_most_tasks) if inner.tile else more
        trips = math.ceil(inner.axis.hint / (inner.tile or 1))
        inner_tasks = max(1, min(more, trips))
    tasks *= inner_tasks
    return replace(kernel, tasks=tasks, inner_tasks=inner_tasks, slots=slots)


def matmul_sum_tasks(plan: LoopPlan, kernel: Kernel) -> Kernel:
    """Tasks that have a part each of a matmul that adds up over tiles of rows.

    Their number decides on the order of additions, so it follows from that of tiles.
    """
    loop = kernel.loop
    assert loop is not None
    tiles = math.ceil(loop.axis.extent / loop.tile)
    slots = slots_of(plan, kernel, tiles)
    if tiles == 1 or slots is None:
        return kernel
    tasks = min(CPU.numerics.matmul_sum_most_tasks, tiles)
    return replace(kernel, tasks=tasks, slots=slots)


def slots_of(plan: LoopPlan, kernel: Kernel, tasks: int) -> dict[Step, Slots] | None:
    """What tasks leave of sums over the outermost loop: enough slots for some tasks.

    None if one of the sums is a single chain: a single task has all of it.
    """
    loop = kernel.loop
    assert loop is not None
    slots: dict[Step, Slots] = {}
    for step in loop.steps():
        if loop.axis not in step.closed or not is_ordered(step):
            continue
        made = slots_for(plan, step, grain_of(kernel), tasks)
        if made is None:
            return None
        slots[step] = made
    return slots


def shared_loop(kernel: Kernel) -> Loop | None:
    """The loop inside of the outermost one, if tasks can share its iterations, too.

    They have nothing to do together: nothing adds up over the one or the other.
    """
    loop = kernel.loop
    if loop is None or loop.tile or len(loop.body) != 1:
        return None
    (inner,) = loop.body
    if not isinstance(inner, Loop) or kernel.vector in (loop.axis, inner.axis):
        return None
    steps = list(loop.steps())
    summed = {axis for step in steps for axis in step.closed}
    if summed & {loop.axis, inner.axis} or (inner.tile and any(map(adds_up, steps))):
        return None
    return inner
