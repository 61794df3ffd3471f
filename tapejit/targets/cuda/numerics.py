"""What fixes bits on a GPU: how many threads and blocks add up, and how wide.

All follows from sizes, nothing from the device: so sums have the same bits on every
GPU. A change of a number here is a line of the changelog.

Start reading at `CUDANumerics`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CUDANumerics:
    """The numbers that fix bits."""

    # Tensor cores multiply floats of 16 bits, in an order of their own.
    tensor_cores: bool = True
    # GPUs that have those we use have this compute capability, or a later one.
    tensor_capability: tuple[int, int] = (8, 0)

    warp_threads: int = 32
    block_threads: int = 256
    # Blocks go on with other iterations where there are more of these.
    most_blocks: int = 1024

    # Widths

    # A thread loads so much at once,
    vector_bytes: int = 16
    # and no more elements than that: they are in registers.
    most_width: int = 8
    # A kernel of so many Steps has one element in each thread: Black-Scholes takes 30
    # registers then, with four elements 80.
    heavy_steps: int = 40

    # Who goes through what

    # Of shorter rows each thread has one for itself,
    row_least_elements: int = 32
    # and adds up so much of an array over all rows: it is in registers.
    summed_array_bytes: int = 256
    # If there are fewer such rows, a warp shares one that takes so many instructions
    busy_units: int = 1 << 14
    shared_unit_instructions: float = 4096.0
    # along an axis that has so much of these.
    shared_work: float = 0.9
    # A warp goes through a row in so many steps at most, else a block does,
    warp_row_trips: int = 8
    # if there are so many rows at least.
    warp_least_rows: int = 64
    # Each thread adds up so many vectors at least, where other blocks do as well,
    summed_trips: int = 4
    # and each team so many rows, before it leaves a part.
    summed_rows: int = 16
