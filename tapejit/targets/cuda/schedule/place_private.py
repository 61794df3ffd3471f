"""Where the private memory of a kernel is: local to threads, shared, or neither.

What a team keeps along its thread axis is in shared memory, each thread at its own
places; what lies along other axes is local to a thread. Where there is too much of it,
it is in the arena.

Start reading at `place_private`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tapejit.loops.kernels import Kernel, LoopPlan, RoomKey, Storage
from tapejit.loops.steps import Step, is_matmul
from tapejit.targets.cpu.nest.reductions import accumulator_of
from tapejit.targets.cpu.schedule.allocate import room_of
from tapejit.targets.cuda.arrays.table import rooms_of
from tapejit.targets.cuda.kernel import ALIGNED, SimtKernel
from tapejit.targets.cuda.matmul.products import matmul_rooms
from tapejit.targets.cuda.target import CUDA


def place_private(plan: LoopPlan) -> LoopPlan:
    """Rooms in the arena for what teams and threads cannot keep near."""
    return replace(plan, kernels=tuple(placed(plan, x) for x in plan.kernels))


def placed(plan: LoopPlan, kernel: Kernel) -> Kernel:
    """A kernel with its rooms."""
    assert isinstance(kernel, SimtKernel)
    if kernel.array_op is not None:
        own = array_rooms(kernel, kernel.array_op)
        return replace(kernel, rooms={key: room_of(own[key]) for key in own})
    tuning = CUDA.tuning
    # What sums of warps are added up in is there in any case.
    shared, local = CUDA.numerics.block_threads, 0
    rooms: dict[RoomKey, Storage] = {}
    for key, size, is_along in private_arrays(plan, kernel):
        nbytes = -(-size // ALIGNED) * ALIGNED
        if is_along:
            shared += nbytes * kernel.teams
            if shared > tuning.shared_most_bytes:
                shared -= nbytes * kernel.teams
                rooms[key] = room_of(nbytes * kernel.tasks)
        else:
            local += nbytes
            if local > tuning.local_most_bytes:
                local -= nbytes
                rooms[key] = room_of(nbytes * kernel.tasks * kernel.team)
    return replace(kernel, rooms=rooms)


def array_rooms(kernel: Kernel, step: Step) -> Mapping[str, int]:
    """The rooms of an operation on whole arrays, in bytes, by what they are for."""
    if is_matmul(step):
        return matmul_rooms(kernel, step)
    return rooms_of(step)


def private_arrays(
    plan: LoopPlan, kernel: Kernel
) -> Iterator[tuple[RoomKey, int, bool]]:
    """What a kernel keeps, in bytes, and whether it lies along the threads."""
    for memory in dict.fromkeys(plan.storage.get(x) for x in kernel.steps()):
        if memory is not None and memory.kernel is not None:
            size = memory.size * max(memory.lanes, 1) * memory.dtype.itemsize
            yield memory, size, kernel.vector in memory.strides
    for step in kernel.steps():
        if not step.closed:
            continue
        made = accumulator_of(plan, step, in_order=False)
        if made.axes:
            size = made.size * made.width * made.dtype.itemsize
            yield (step, 0), size, made.vector in made.axes
