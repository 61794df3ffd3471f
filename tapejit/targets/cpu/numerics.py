"""What fixes the bits of results on a CPU: how sums are cut, and how long chains are.

The numbers are the same on every processor and for any number of threads, so results
have the same bits on all of them. The error of a sum grows with its longest chain, the
additions that wait for each other; so chains have an end. Tasks take whole chains, so
how many there are is a matter of `tuning`.

Some of these numbers are about speed as well. Tiles and blocks of a loop, and tasks
that share a matmul, each add up what they have, so where a loop is cut like that
decides on the order of additions.

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
    # A chain of a sum has no more; it is then flushed into a total of its own.
    sum_chain_terms: int = 32
    # Of no more terms, chains have fewer: there are some for more tasks.
    short_sum_terms: int = 256
    short_sum_chain_terms: int = 16
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

    # Tiles of rows over which a matmul adds up are shared by no more tasks: each has a
    # part of the result, and these are combined in order.
    matmul_sum_most_tasks: int = 8

    # Tiles and blocks of a loop

    # Tiles make vectors of what is computed once for each row. They are worth it if
    # that is so much of the other work,
    single_work_share: float = 0.3
    # and if a tile is no shorter.
    loop_tile_least_rows: int = 4
    # Blocks keep accumulators in the nearest cache, where these may take so much.
    l1_accumulator_bytes: int = 24 << 10
    # A block has one of these numbers of vectors, the first that leaves no rest.
    block_vectors: tuple[int, ...] = (4, 5, 6, 7, 8, 3, 4)

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
