"""How long a kernel takes at best on GPUs that are known by their data sheets.

Predictions, of a model: no GPU has been asked. A kernel takes what its launches take,
and the longest of three things: its bytes through memory, its instructions, its
multiply-adds on the unit that does them. Few threads do not fill a GPU: memory is as
fast as the bytes that all resident threads have asked for can be in the time that one
answer takes. What a cache saves or loses, bank conflicts and blocks that wait for each
other are not in it.

`occupancy` is exact, as far as registers and shared memory are known: so many of the
threads that a multiprocessor has room for are resident.

Start reading at `predict`.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from tapejit.targets.cuda.target import CUDA
from tapejit.targets.cuda.tuning import GPU, MULTIPROCESSORS


class BlockUse(NamedTuple):
    """What a launch takes: blocks, and what each of them has."""

    blocks: int
    threads: int
    registers: int  # of a thread
    shared_bytes: int


class KernelWork(NamedTuple):
    """What a kernel does, in all its launches, most of it in the first.

    `trip_bytes` are what a thread asks memory for before it needs an answer;
    `instructions` are those of one element each, beside `flops` on the unit `core`.
    """

    launches: tuple[BlockUse, ...]
    moved_bytes: int
    trip_bytes: int
    instructions: float
    flops: float = 0.0
    core: str = "f32"  # a key of `GPU.flops`
    numbers: str = "f32"  # of the instructions: f32 or f64


class Prediction(NamedTuple):
    """Seconds, and what takes them: memory, arithmetic or launching."""

    seconds: float
    bound: str

    def __str__(self) -> str:
        return f"{1e6 * self.seconds:.1f} us ({self.bound})"


def predict(work: KernelWork, gpu: GPU) -> Prediction:
    """The time of a kernel at best; a prediction, not a measurement.

    >>> from tapejit.targets.cuda.tuning import GPUS
    >>> one = BlockUse(blocks=1024, threads=256, registers=32, shared_bytes=0)
    >>> copy = KernelWork((one,), 800_000_000, 32, 1e8)
    >>> [f"{gpu.name}: {predict(copy, gpu)}" for gpu in GPUS]
    ['A100: 394.2 us (memory)', 'H100: 240.8 us (memory)']
    """
    main = work.launches[0]
    resident = max(1, resident_blocks(main, gpu.capability)) * gpu.multiprocessors
    threads = min(main.blocks, resident) * main.threads
    busy = min(1.0, threads / (gpu.multiprocessors * CUDA.tuning.busy_threads))
    asked = threads * max(1, work.trip_bytes) / gpu.latency
    times = {
        "memory": work.moved_bytes / min(gpu.bytes, asked),
        "arithmetic": max(
            # A fused multiply-add is one instruction.
            2 * work.instructions / (gpu.flops[work.numbers] * busy),
            work.flops / (gpu.flops[work.core] * busy),
        ),
        "launching": gpu.launch * len(work.launches),
    }
    bound = max(times, key=lambda x: times[x])
    longest = max(times["memory"], times["arithmetic"])
    return Prediction(times["launching"] + longest, bound)


def occupancy(use: BlockUse, capability: tuple[int, int]) -> float:
    """Which part of the threads that a multiprocessor has room for are resident.

    >>> occupancy(BlockUse(1, 256, 40, 0), (8, 0))
    0.75
    """
    room = MULTIPROCESSORS[capability].threads
    return resident_blocks(use, capability) * warps_of(use) * warp() / room


def resident_blocks(use: BlockUse, capability: tuple[int, int]) -> int:
    """How many blocks a multiprocessor has at once; 0 if not even one fits."""
    room, tuning = MULTIPROCESSORS[capability], CUDA.tuning
    grain = tuning.register_grain
    registers = ceil(max(use.registers, 1) / grain) * grain * warp()
    in_part = tuning.registers // tuning.multiprocessor_parts // registers
    warps = in_part * tuning.multiprocessor_parts
    found = min(
        room.blocks,
        room.threads // (warps_of(use) * warp()),
        warps // warps_of(use),
    )
    shared = use.shared_bytes + room.reserved_bytes
    return min(found, room.shared_bytes // shared) if shared else found


def warp() -> int:
    """The threads of a warp."""
    return CUDA.numerics.warp_threads


def warps_of(use: BlockUse) -> int:
    """The warps of a block."""
    return ceil(use.threads / warp())
