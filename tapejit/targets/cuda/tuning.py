"""What makes code fast on a GPU: registers and memory. It fixes no bits.

What decides how sums are cut is in `numerics`: threads, blocks and widths. What GPUs
have is told here as well, for predictions: `MULTIPROCESSORS` and `GPUS`.

Start reading at `CUDATuning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


@dataclass(frozen=True)
class CUDATuning:
    """The numbers that are about speed alone."""

    # A multiprocessor is to hold so many threads of a kernel: 64 registers for each.
    # Without it nvJitLink took 255 registers where `ptxas` took 32.
    resident_threads: int = 1024

    # GPUs have so many multiprocessors at least. A kernel of fewer blocks may take more
    # registers: with 64, one block of a Gaussian mixture spilled 348 bytes.
    least_multiprocessors: int = 16

    # The registers of a multiprocessor, of which a thread gets so many at a time,
    registers: int = 1 << 16
    register_grain: int = 8
    # and so many at most.
    thread_registers: int = 255
    # It has so many parts, and a warp the registers of one of them.
    multiprocessor_parts: int = 4

    # Matmul

    # Beside sums and what they are made of, a thread has places and counts,
    matmul_other_registers: int = 40
    # and some more where it loads one number at a time.
    uneven_matmul_registers: int = 12
    # Tiles are chosen for so many multiprocessors,
    multiprocessors: int = 100
    # of which none is faster with fewer threads.
    busy_threads: int = 256
    # A warp loads 128 bytes of shared memory while it could do so many multiply-adds,
    shared_line_cost: float = 4.0
    # and a thread brings a byte from global memory there.
    global_byte_cost: float = 3.0
    # A tensor core multiplies numbers of so many bytes in the time of one multiply-add.
    tensor_core_bytes: int = 32
    # To begin and to end takes as long as so many terms.
    matmul_begin_steps: int = 40
    # Parts of sums that are written and read again move less than so much of what the
    # product moves in any case: a result that is larger has tiles enough.
    parts_most_share: float = 0.6
    # Another kernel takes a few microseconds, with all threads of a multiprocessor.
    launch_instructions: float = 500_000.0

    # Memory

    # A block has no more shared memory without asking for it.
    shared_most_bytes: int = 48 << 10
    # More of a thread's own memory is in the arena: a GPU reserves local memory for
    # all threads that it could run.
    local_most_bytes: int = 1 << 10

    # A tile that is transposed there has so many rows and columns: those of a warp.
    transposed_tile: int = 32

    # Whole arrays

    # A team searches so many elements of a long line for the first extremum.
    search_part_elements: int = 4096
    # A block sorts so many keys in shared memory: 16 kB.
    sorted_run_keys: int = 2048
    # So many blocks put back what a failed step was to replace.
    put_back_blocks: int = 64
    # A kernel looks at so many arrays that are joined, or parts that are added.
    placed_parts: int = 32


class Multiprocessor(NamedTuple):
    """What a multiprocessor has room for, and what a block takes beside its own."""

    threads: int
    blocks: int
    shared_bytes: int
    reserved_bytes: int = 1024  # of shared memory, for each block


# By compute capability.
MULTIPROCESSORS: Final[dict[tuple[int, int], Multiprocessor]] = {
    (7, 5): Multiprocessor(1024, 16, 64 << 10, 0),
    (8, 0): Multiprocessor(2048, 32, 164 << 10),
    (8, 6): Multiprocessor(1536, 16, 100 << 10),
    (8, 7): Multiprocessor(1536, 16, 164 << 10),
    (8, 9): Multiprocessor(1536, 24, 100 << 10),
    (9, 0): Multiprocessor(2048, 32, 228 << 10),
    (10, 0): Multiprocessor(2048, 32, 228 << 10),
    (10, 3): Multiprocessor(2048, 32, 228 << 10),
    (12, 0): Multiprocessor(1536, 24, 100 << 10),
}


class GPU(NamedTuple):
    """What a GPU can do in a second, as its maker says; nothing is measured."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    bytes: float  # of memory that it reads or writes
    flops: dict[str, float]  # by what computes: a fused multiply-add is two
    latency: float = 600e-9  # seconds until a number comes from memory
    launch: float = 2e-6  # seconds for a kernel of a graph to begin and to end


GPUS: Final = (
    GPU(
        "A100",
        (8, 0),
        108,
        2.04e12,
        {"f32": 19.5e12, "f64": 9.7e12, "mma": 312e12, "tf32": 156e12},
    ),
    GPU(
        "H100",
        (9, 0),
        132,
        3.35e12,
        {"f32": 66.9e12, "f64": 33.5e12, "mma": 989e12, "tf32": 494e12},
    ),
)
