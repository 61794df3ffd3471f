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
