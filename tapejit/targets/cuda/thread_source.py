"""Kernels of threads as text to read: what each thread does, as Python that runs.

It is the text of `targets.python`: loops, positions, memory and the order of Steps are
the plan's, and it computes what the kernels compute. Comments say who goes through a
loop and whose memory is whose. Barriers, sums over threads and tiles of products are
left out: those are in the PTX.

Start reading at `ThreadWriter`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapejit.ir.graph import Graph
from tapejit.loops.kernels import Kernel, LoopNest, Storage
from tapejit.loops.schedule.schedule import Loop
from tapejit.targets.cuda.kernel import SimtKernel
from tapejit.targets.cuda.module import BuiltKernels, KernelLaunch
from tapejit.targets.python.kernel_source import SourceWriter
from tapejit.targets.python.kernel_writer import KernelWriter


class ThreadSource(SourceWriter):
    """Writes the kernels of a module of threads; `first` is the first's number."""

    def __init__(self, graph: Graph, built: BuiltKernels, first: int = 0) -> None:
        super().__init__(graph, built.plan, first)
        self.launches = launches_by_kernel(built)

    def kernel(self, kernel: Kernel) -> KernelWriter:
        assert isinstance(kernel, SimtKernel)
        return ThreadWriter(self, kernel, self.launches[kernel.number])


class ThreadWriter(KernelWriter):
    """Writes one kernel, and who does what."""

    kernel: SimtKernel

    def __init__(
        self,
        writer: ThreadSource,
        kernel: SimtKernel,
        launches: Sequence[KernelLaunch],
    ) -> None:
        self.launches = launches
        super().__init__(writer, kernel)

    @property
    def team(self) -> str:
        """What threads that go along the thread axis together are called."""
        if self.kernel.is_by_units:
            return "thread"
        return "warp" if self.kernel.team < self.kernel.threads else "block"

    def remarks(self) -> list[str]:
        return [str(x) for x in self.launches]

    def memory_notes(self, memory: Storage) -> list[str]:
        kernel = self.kernel
        is_along = kernel.vector in memory.strides
        whose = f"each {self.team}" if is_along else "each thread"
        place = "shared memory" if is_along else "local memory or registers"
        if memory in kernel.rooms:
            place = "global memory"
        return [f"of {whose}, in {place}"]

    def loop_notes(self, loop: Loop, path: LoopNest) -> list[str]:
        kernel, notes = self.kernel, []
        if kernel.array_op is not None:
            return []
        if loop.axis in kernel.grid:
            notes.append(f"shared out over {counted(kernel.tasks, self.team)}")
        transpose = kernel.transpose
        if transpose is not None and loop.axis in (transpose.across, kernel.vector):
            return [
                f"in tiles of {transpose.side}, by {counted(kernel.tasks, 'block')}"
            ]
        if loop.axis is kernel.vector:
            who = f"the {kernel.team} threads of the {self.team}"
            if not path:
                who = f"the {kernel.team} threads of {counted(kernel.tasks, self.team)}"
            elif kernel.chunks > 1:
                who = f"the threads of {counted(kernel.chunks, self.team)}"
            notes.append(f"by {who}")
            if self.width > 1:
                notes.append(f"{self.width} at a time")
        return notes


def counted(count: int, what: str) -> str:
    """`1 warp`, `8 blocks`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def launches_by_kernel(built: BuiltKernels) -> dict[int, list[KernelLaunch]]:
    """The launches of each kernel of the plan, by its number."""
    found: dict[int, list[KernelLaunch]] = {x.number: [] for x in built.plan.kernels}
    for launch in built.launches:
        for number in launch.kernels:
            found[number].append(launch)
    return found
