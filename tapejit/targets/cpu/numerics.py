"""What fixes the bits of results on a CPU: how sums are cut, and how long chains are.

The numbers are the same on every processor and for any number of threads, so results
have the same bits on all of them. The error of a sum grows with its longest chain, the
additions that wait for each other; so chains have an end.

The order of a sum in a loop nest is a rule of its array (`schedule.sum_order`). Some of
the numbers are about speed as well: a matmul that adds up over tiles of rows or columns
adds up tile by tile, so where its loop is cut decides on the order of additions.

Start reading at `CPUNumerics`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CPUNumerics:
    """The numbers that fix bits."""

    # Vectors and chains

    # A vector has so many on every processor; the lanes of a sum add up apart.
    vector_bytes: int = 64
    # A chain of a sum has so many, by which its error grows; with fewer, accumulators
    # that are arrays would be flushed into totals too often.
    sum_chain_terms: int = 32
    # Lanes of a sum take so much: the widest registers.
    sum_lane_bytes: int = 64
    # Along a shorter axis there are no lanes: to add them takes as long as the terms.
    sum_lanes_least_terms: int = 4
    # So it is of a small matmul, whose rows go through its loop together.
    matmul_lanes_least_terms: int = 16
    # With fewer results side by side, vectors along them are too short for chains.
    sum_chains_least: int = 32
    # From so many on a polynomial is latency, not work: even and odd powers go apart,
    # which takes a third off the time of a float64 `erf`.
    split_polynomial_coefficients: int = 9

    # Matmul

    # A block of k has so many: its packed panel is not too large.
    matmul_block_terms: int = 256
    # So many are one block all the same.
    matmul_uncut_terms: int = 384
    # Up to so many rows, lanes may run along k ("dots").
    dot_most_rows: int = 4
    # These lanes take so much, on every processor.
    dot_bytes: int = 64
    # They take more where results are too few to hide latency,
    lone_dot_bytes: int = 256
    # that is, fewer than are computed at once.
    interleaved_dots: int = 4

    # Tasks: each has a part of a matmul that adds up over tiles of rows. Other sums do
    # not depend on them.

    # A kernel with less work has one task: threads are not worth it.
    threads_least_instructions: float = 60_000.0
    # A task has so much work at least: a few microseconds.
    task_least_instructions: float = 12_000.0
    # To set up an array that adds up takes so long for each vector,
    set_up_instructions: float = 10.0
    # and a task does so many times more than that.
    task_to_set_up_ratio: float = 12.0
    most_tasks: int = 32
    # So many tasks may each add to a matmul of their own.
    matmul_sum_most_tasks: int = 8

    # Blocks of a loop

    # A block has one of these numbers of vectors, the first that leaves no rest. Chains
    # end at powers of two.
    block_vectors: tuple[int, ...] = (8, 4, 2)

    # Tiles of rows, which matmuls share with what is between them

    # A matrix with fewer elements is not worth it,
    row_tile_least_elements: int = 1 << 16
    # nor is a single one that is not so much larger than its operands.
    row_tile_result_ratio: float = 2
    row_tile_least_rows: int = 16
    row_tile_most_rows: int = 256
    # The rows of a tile take so much in each matrix, so some stay near.
    row_tile_bytes: int = 1 << 18
    # An operand that all tiles use is no larger, so it stays in a second cache.
    row_tile_operand_bytes: int = 1 << 20
    # Earlier values that take so much are computed again.
    row_tile_recomputed_bytes: int = 1 << 25

    # Tiles of columns, where rows go by in tiles: all of a tile stays in near caches

    column_tile_least_rows: int = 32
    column_tile_most_rows: int = 64
    column_tile_least_columns: int = 128
    column_tile_most_columns: int = 256
    # Columns of a tile are a multiple of it.
    column_tile_lanes: int = 16
    # A result to which tiles are added has rows for columns, if these are no longer.
    transposed_row_bytes: int = 4096
