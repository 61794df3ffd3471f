"""Kernels of threads: how a Nest is shared out, and the function that does it.

A `team` is a warp, a block, or a single thread. Its threads go through the thread axis
together, each with `width` elements next to each other; a single thread has none. A
`unit` is what a team does at once: an iteration of all `grid` axes, and one of the
`chunks` that the thread axis is cut into; where loads are transposed, these are tiles
of two axes. Teams take units in turn, so `tasks` is the number of teams.

Where the thread axis is that of the outermost loop, there are no units: all threads of
all blocks share it.

Start reading at `SimtKernel`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tapejit.loops.index import Axis
from tapejit.loops.kernels import Kernel
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Step
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import FunctionType, LLVMModule, Value, VoidType
from tapejit.targets.cuda.target import CUDA

ALIGNED: Final = 16  # bytes, as many as a thread loads at once


def power_above(n: int) -> int:
    """The smallest power of two that is not below `n`.

    >>> power_above(1), power_above(32), power_above(33)
    (1, 32, 64)
    """
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class Transpose:
    """Tiles in which a nest is gone through, so that it loads and stores side by side.

    Its `loads` go along the axis `across` in memory, the rest of it along the thread
    axis. A tile of each load is brought to shared memory, and read there the other way.
    """

    across: Axis
    side: int
    loops: tuple[Loop, ...]  # all of the nest
    loads: tuple[Step, ...]

    def tiles(self, axis: Axis) -> int:
        """How many there are along an axis."""
        return math.ceil(axis.extent / self.side)


@dataclass(frozen=True, eq=False)
class SimtKernel(Kernel):
    """A Nest as threads run it; `vector` is the thread axis, `tasks` counts teams."""

    threads: int = 1  # of a block
    team: int = 1  # threads that go through the thread axis together
    grid: tuple[Axis, ...] = ()
    chunks: int = 1
    transpose: Transpose | None = None

    def with_threads(self, threads: int, blocks: int, team: int = 0) -> SimtKernel:
        """The same with other threads; a team is a block if nothing else is said."""
        team = team or threads
        tasks = blocks * threads // team
        return replace(self, threads=threads, team=team, tasks=tasks)

    @property
    def teams(self) -> int:
        """How many teams a block has."""
        return self.threads // self.team

    @property
    def is_by_units(self) -> bool:
        """Whether each thread has units for itself."""
        return self.team == 1 and bool(self.grid)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return max(1, self.tasks // self.teams)

    @property
    def units(self) -> int:
        """How many units there are."""
        return math.prod(axis.extent for axis in self.grid) * self.chunks


class GPUFunction(ir.LLVMFunction):
    """A function that is launched; it gets parameters as somebody asks for them.

    It says how many threads its blocks have and how many of these blocks are to be
    resident at once, so how many registers a thread may take: assemblers differ by a
    factor of four in what they take otherwise. A launch of few blocks has each of them
    on a multiprocessor of its own, and registers in plenty (`launched`).

    >>> kernel = GPUFunction(LLVMModule("m"), "nothing", 256)
    >>> ir.IRBuilder(kernel.append_basic_block("entry")).ret_void()
    >>> print(kernel.definition().splitlines()[0])
    define ptx_kernel void @"nothing"() "nvvm.maxntid"="256" "nvvm.minctasm"="4"
    """

    __slots__ = ("given", "is_part", "numbers", "resident", "threads")

    def __init__(
        self,
        module: LLVMModule,
        name: str,
        threads: int,
        resident_threads: int = 0,
        is_part: bool = False,
    ) -> None:
        super().__init__(module, FunctionType(VoidType(), []), name)
        self.threads = threads
        self.is_part = is_part  # of a kernel, which calls it with the block's number
        self.resident = resident_threads or CUDA.tuning.resident_threads
        self.given: list[Value] = []
        self.numbers: list[Value] = []

    def parameter(self, is_alone: bool = True) -> Value:
        """A new pointer; nothing else leads to its memory if it `is_alone`."""
        words = "ptr noalias align" if is_alone else "ptr align"
        kind = ir.Type(f"{words} {ALIGNED}")
        made = Value(ir.PointerType(), f"%p{len(self.given)}")
        self.given.append(Value(kind, made.reference))
        return made

    def like(self, other: GPUFunction) -> list[Value]:
        """New parameters for the pointers of a part."""
        count = len(self.given)
        made = [Value(x.type, f"%p{count + at}") for at, x in enumerate(other.given)]
        self.given += made
        return made

    def number(self) -> Value:
        """A new number of 64 bits; numbers come after all pointers."""
        made = Value(ir.IntType(64), f"%n{len(self.numbers)}")
        self.numbers.append(made)
        return made

    @property
    def resident_blocks(self) -> int:
        """How many blocks are to be resident at once."""
        return max(1, self.resident // self.threads)

    @property
    def most_registers(self) -> int:
        """How many registers a thread may take, so that they are."""
        tuning = CUDA.tuning
        found = tuning.registers // (self.resident_blocks * self.threads)
        found -= found % tuning.register_grain
        return min(tuning.thread_registers, found)

    def launched(self, blocks: int) -> None:
        """So many blocks are what is launched."""
        most = math.ceil(blocks / CUDA.tuning.least_multiprocessors)
        self.resident = min(self.resident, most * self.threads)

    def definition(self) -> str:
        given = ", ".join(map(str, [*self.given, *self.numbers]))
        lines: Sequence[str] = [x for block in self.blocks for x in block.text()]
        body = "\n".join(["{", *lines, "}", ""])
        if self.is_part:
            head = f"define internal void {self.reference}({given}) alwaysinline"
            return f"{head}\n{body}"
        budget = {
            "nvvm.maxntid": self.threads,
            "nvvm.minctasm": self.resident_blocks,
        }
        words = " ".join(f'"{key}"="{value}"' for key, value in budget.items())
        head = f"define ptx_kernel void {self.reference}({given}) {words}"
        return f"{head}\n{body}"
