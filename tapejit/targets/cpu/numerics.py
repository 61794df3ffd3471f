"""What fixes the bits of results on a CPU: how sums are cut, and how long chains are.

The numbers are the same on every processor and for any number of threads, so results
are the same bits on all of them. Rounding of a sum grows with the longest chain of
additions that follow each other; that is why chains have an end.

Some of these numbers are about speed as well: tasks, and tiles of rows and columns, add
up for themselves what they have, so where a loop is cut decides on the order of
additions.

Start reading at `Numerics`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Numerics:
    """The numbers that fix bits; "most" and "least" are limits."""

    # Vectors and chains

    # Of a vector, on every processor: as many lanes of a sum add up apart.
    vector_bytes: int = 64
    # Of a sum that are added one after the other, before they are flushed.
    sum_chain_terms: int = 32
    # From so many on a polynomial is latency, not work: even and odd powers apart.
    split_polynomial_coefficients: int = 9

    # Matmul

    # Of a block of k, of which a packed panel is not too large.
    matmul_block_terms: int = 256
    # That are one block all the same.
    matmul_uncut_terms: int = 384
    # Up to which lanes may run along k ("dots").
    dot_most_rows: int = 4
    # Of lanes along k, on every processor.
    dot_bytes: int = 64
    # The same, where results are too few to hide latency: fewer than are made at once.
    lone_dot_bytes: int = 256
    dots_at_once: int = 4

    # Tasks: each has its own arrays that add up, which are combined in order.

    # From which on threads are worth it.
    threads_least_instructions: float = 60_000.0
    # Of one task; a few microseconds.
    task_least_instructions: float = 12_000.0
    most_tasks: int = 32
    # Of a product that each task adds to for itself.
    matmul_sum_most_tasks: int = 8
    # For each vector of an array that adds up.
    set_up_instructions: float = 10.0
    # How much more than setting up a task does at least.
    task_to_set_up_ratio: float = 12.0

    # Tiles of a loop's rows, so that numbers of rows are vectors, and blocks of vectors

    # Tiles of fewer iterations are not worth their loops.
    loop_tile_least_rows: int = 4
    # Of the other work, from which on single numbers are worth tiles.
    single_work_share: float = 0.3
    # Of the nearest cache that accumulators may take.
    l1_accumulator_bytes: int = 24 << 10
    # In a block, best ones first.
    block_vectors: tuple[int, ...] = (4, 5, 6, 7, 8, 3, 4)

    # Tiles of rows that matmuls share with what is between them

    row_tile_most_rows: int = 256
    row_tile_least_rows: int = 16
    # Of a matrix of the rows of one tile: some stay near.
    row_tile_bytes: int = 1 << 18
    # Of an operand that all tiles use: it stays in a second cache.
    row_tile_operand_bytes: int = 1 << 20
    # By which a single matrix exceeds its operands to be worth it.
    row_tile_result_ratio: float = 2
    # Of a matrix from which on it is worth it.
    row_tile_least_elements: int = 1 << 16
    # Of earlier values, from which on these are computed again.
    row_tile_recomputed_bytes: int = 1 << 25

    # Tiles of columns, where rows go by in tiles: all of a tile stays in near caches.

    column_tile_most_rows: int = 64
    column_tile_least_rows: int = 32
    column_tile_most_columns: int = 256
    column_tile_least_columns: int = 128
    # Of which columns are a multiple.
    column_tile_lanes: int = 16
    # From one row to the next where tiles are added to columns instead of rows.
    transposed_row_bytes: int = 4096
