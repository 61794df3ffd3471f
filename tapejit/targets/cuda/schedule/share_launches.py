"""Kernels that share a launch: their blocks run at the same time.

A launch takes as long as half a million instructions, and a small product has fewer
blocks than a GPU has multiprocessors. So kernels that need nothing of each other are
launched as one, each with blocks of its own: loops over few elements, such as updates
of biases, and small products, such as those of queries, keys and values.

They are put off until somebody needs one of them. Then all of the same kind go along
which are ready as well. One that writes over an input comes after those that read it,
and after all that can fail: it looks whether one has.

Start reading at `share_launches`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from tapejit.loops.fuse.inplace import Order
from tapejit.loops.kernels import Kernel, LoopPlan
from tapejit.loops.steps import is_matmul
from tapejit.targets.cuda.kernel import SimtKernel
from tapejit.targets.cuda.matmul.products import tilings_of
from tapejit.targets.cuda.schedule.distribute import closed_in, with_blocks_of
from tapejit.targets.cuda.target import CUDA

LOOPS: Final = "loops"


class LaunchShare(NamedTuple):
    """What a kernel is in a launch with others, which are of the same kind."""

    kind: str
    blocks: int = 1
    shared_bytes: int = 0


def share_launches(plan: LoopPlan) -> LoopPlan:
    """A stage for each launch; kernels keep their numbers."""
    launches = Launches(plan)
    for at, kernel in enumerate(plan.kernels):
        launches.flush({x for x in launches.waiting if launches.is_before(x, at)})
        if share_of(kernel) is None:
            launches.add([at])
        else:
            launches.waiting.append(at)
    launches.flush(set(launches.waiting))
    kernels = (staged(x, *launches.found[x.number]) for x in plan.kernels)
    return replace(plan, kernels=tuple(kernels))


class Launches:
    """Kernels by number: those with a launch, and those that are `waiting`."""

    def __init__(self, plan: LoopPlan) -> None:
        self.plan, self.order = plan, Order(plan.kernels)
        self.shares = list(map(share_of, plan.kernels))
        # The number of the launch, and the threads of its blocks.
        self.found: dict[int, tuple[int, int]] = {}
        self.count = 0
        self.waiting: list[int] = []

    def is_before(self, first: int, then: int) -> bool:
        """Whether a kernel has to be over when a later one begins."""
        outputs = [x.output for x in self.plan.kernels[then].steps()]
        given = [x for out in outputs if out for x in self.plan.updates.get(out, ())]
        readers = set().union(*(self.order.readers.get(x, ()) for x in given))
        fails = bool(given) and first in self.order.failing
        return fails or first in self.order.needs[then] or first in readers

    def flush(self, needed: set[int]) -> None:
        """Launch these, whatever comes before them, and others that go along."""
        for x in reversed(self.waiting):
            if any(self.is_before(x, y) for y in needed if y > x):
                needed.add(x)
        while needed:
            for group in list(self.ready()):
                if needed.intersection(group):
                    self.add(group)
                    needed.difference_update(group)
                    self.waiting = [x for x in self.waiting if x not in group]

    def ready(self) -> Iterator[list[int]]:
        """Those that wait for no other one, as they can be launched together."""
        groups: dict[str, list[int]] = {}
        for at, x in enumerate(self.waiting):
            if any(self.is_before(y, x) for y in self.waiting[:at]):
                continue
            share = self.shares[x]
            assert share is not None
            group = groups.setdefault(share.kind, [])
            if not self.has_room([*group, x]):
                yield groups.pop(share.kind)
                group = groups[share.kind] = []
            group.append(x)
        yield from groups.values()

    def has_room(self, group: list[int]) -> bool:
        """Whether a GPU does all of these at once."""
        found = [x for x in (self.shares[at] for at in group) if x is not None]
        shared = sum(x.shared_bytes for x in found)
        blocks = sum(x.blocks for x in found)
        is_small = blocks <= 2 * CUDA.tuning.multiprocessors
        return is_small and shared <= CUDA.tuning.shared_most_bytes

    def add(self, group: list[int]) -> None:
        """The next launch."""
        threads = max(threads_of(self.plan.kernels[x]) for x in group)
        self.found.update(dict.fromkeys(group, (self.count, threads)))
        self.count += 1


def share_of(kernel: Kernel) -> LaunchShare | None:
    """What a kernel is among others; None if it is launched alone."""
    assert isinstance(kernel, SimtKernel)
    product = kernel.array_op
    if product is None:
        is_small = kernel.work < CUDA.tuning.launch_instructions
        return LaunchShare(LOOPS) if is_small and is_map(kernel) else None
    if not is_matmul(product):
        return None
    (tiling, *others) = tilings_of(kernel, product)
    if others or tiling.is_split or tiling.blocks > CUDA.tuning.multiprocessors:
        return None
    kind = f"{tiling.tile.threads} threads, {tiling.resident_threads} resident"
    nbytes = tiling.shared_size * tiling.itemsize
    return LaunchShare(kind, tiling.blocks, nbytes)


def is_map(kernel: SimtKernel) -> bool:
    """Whether each thread has iterations for itself, so it does not matter which."""
    loop = kernel.loop
    if loop is None:
        return True
    if kernel.transpose is not None:
        return False
    is_along = kernel.vector is loop.axis and loop.axis not in closed_in(loop)
    return is_along or kernel.is_by_units


def threads_of(kernel: Kernel) -> int:
    """The threads of a block."""
    assert isinstance(kernel, SimtKernel)
    return kernel.threads


def staged(kernel: Kernel, launch: int, threads: int) -> Kernel:
    """A kernel in its launch; blocks of loops have as many threads as others there."""
    assert isinstance(kernel, SimtKernel)
    if kernel.threads != threads:
        kernel = with_blocks_of(kernel, max(threads, CUDA.numerics.warp_threads))
    return replace(kernel, stage=launch)
