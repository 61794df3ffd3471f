"""What makes code fast on a GPU: registers and memory. It fixes no bits.

What decides how sums are cut is in `numerics`: threads, blocks and widths.

Start reading at `CUDATuning`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CUDATuning:
    """The numbers that are about speed alone."""

    # A multiprocessor is to hold so many threads of a kernel: 64 registers for each.
    # Without it nvJitLink took 255 registers where `ptxas` took 32.
    resident_threads: int = 1024

    # The registers of a multiprocessor, of which a thread gets so many at a time.
    registers: int = 1 << 16
    register_grain: int = 8

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
    # Another kernel takes a few microseconds, with all threads of a multiprocessor.
    launch_instructions: float = 500_000.0

    # Memory

    # A block has no more shared memory without asking for it.
    shared_most_bytes: int = 48 << 10
    # More of a thread's own memory is in the arena: a GPU reserves local memory for
    # all threads that it could run.
    local_most_bytes: int = 1 << 10

    # Whole arrays

    # A team searches so many elements of a long line for the first extremum.
    search_part_elements: int = 4096
    # A block sorts so many keys in shared memory: 16 kB.
    sorted_run_keys: int = 2048
    # A kernel looks at so many arrays that are joined, or parts that are added.
    placed_parts: int = 32
