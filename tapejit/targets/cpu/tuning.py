"""What makes code fast on a CPU: caches, costs, sizes of tasks. It fixes no bits.

An instruction is counted by the estimate of `schedule.cost`. An operation is a
multiplication or an addition of a matmul. "A" and "B" are the left and the right
operand of a matmul, k is the axis that they have in common.

Start reading at `Tuning`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """The numbers that are about speed alone; "most" and "least" are limits."""

    # Caches

    cache_line_bytes: int = 64
    l1_way_bytes: int = 4096
    l1_ways: int = 8
    l2_sets: int = 1024
    l2_ways: int = 8
    # A cache has few places for rows that are a multiple of it apart.
    crowded_row_bytes: int = 512

    # Memory of a task

    # Of one array; what is larger is in the arena.
    stack_array_bytes: int = 1 << 15
    # Of a kernel in all.
    stack_bytes: int = 1 << 18
    # Of an output, from which on it is written past the caches.
    streamed_output_bytes: int = 1 << 23
    # That are written so at a time: such stores begin at a multiple of it.
    streamed_store_bytes: int = 32

    # Tasks that add up nothing

    # From which on two threads are busy.
    busy_tasks: int = 4
    # Below which threads may end at different times.
    uneven_tasks: int = 9
    # Of the tiles of one matrix: each packs what all of them use.
    matrix_tile_most_tasks: int = 2
    # Of what is placed in an array: some microseconds.
    placement_task_elements: int = 1 << 15
    placement_most_tasks: int = 64
    # That are counted to know what parts cover.
    placement_counted_elements: int = 1 << 24
    # Of updates: some microseconds.
    scatter_task_elements: int = 1 << 14
    scatter_most_tasks: int = 8
    # To go through indices costs as much as to add such a row.
    scatter_least_row_bytes: int = 64

    # Loop nests

    # Loops of no more are written out,
    unrolled_iterations: int = 16
    # if their bodies are no more Steps then.
    unrolled_steps: int = 24
    # That a long formula counts for.
    long_formula_steps: int = 8
    # That are worth writing twice, for a loop without masks.
    peeled_steps: int = 40
    # From which on a kernel calls what would be long formulas.
    large_kernel_steps: int = 150
    # Of all kernels, from which on each of them does.
    inlined_formulas: int = 60
    # Of a row that is worth asking for beforehand,
    prefetched_row_least_bytes: int = 512
    # and of one that the nearest cache has room for.
    prefetched_row_most_bytes: int = 16384
    # Of sums of products that are made at a time: they stay in registers.
    joined_sum_bytes: int = 320

    # Operations on whole arrays

    # For an element, about.
    array_element_instructions: float = 10.0
    # Of a search: several vectors, which do not wait for each other.
    search_lanes: int = 32
    # Of random words that a cipher makes at a time.
    cipher_blocks: int = 8

    # Matmul and convolution: tasks

    # That are worth a task, some microseconds.
    matmul_task_operations: int = 400_000
    # The same, where each number is used once or twice.
    memory_task_operations: int = 100_000
    # Where more of them cost nothing.
    matmul_most_tasks: int = 32
    matmul_task_most_rows: int = 1024
    # Of a row of a task's block of the result.
    matmul_task_row_bytes: int = 256
    # The same, if A is packed: packing it must be worth it.
    packed_task_row_bytes: int = 4096
    # Of sums between blocks of k that are not in the result.
    matmul_sum_bytes: int = 1 << 17
    # Of x that a task of a convolution reads again for every panel.
    conv_task_bytes: int = 1 << 18
    # Of a convolution, so that a tile is worth it.
    conv_tile_least_rows: int = 8

    # Matmul and convolution: packing

    # Of A that are packed at a time.
    packed_a_bytes: int = 1 << 18
    # Over which A's rows are read across better packed,
    spread_a_bytes: int = 1 << 19
    # if they are read for so many panels.
    spread_a_panels: int = 2
    # Of rows: more make packing a panel of B worth it.
    unpacked_b_tiles: int = 8
    # The same among rows of a tile, where all tiles share panels, wherever B lies.
    shared_b_tiles: int = 4
    # Of rows for which B is read in place if it is far away.
    streamed_b_tiles: int = 3
    # Of B, which is not in a second cache then.
    streamed_b_bytes: int = 1 << 20
    # Of the rows of B that is read in place, at least, for a task.
    streamed_task_row_bytes: int = 2048
    # That are worth packing all panels of B before the first task.
    prepacked_operations: int = 1 << 27
    # Of A that stay near while all panels go by.
    prepacked_a_bytes: int = 1 << 17
    # Of B that may be there twice.
    prepacked_b_bytes: int = 1 << 26
    # Steps of k of rows that lie side by side.
    packed_at_once_steps: int = 8

    # Matmul and convolution: register tiles

    # Of k in the loop of a tile; one if it has more rows and a vector in each.
    matmul_unrolled_steps: int = 2
    unrolled_tile_most_rows: int = 6
    # Of a register, across whose bounds moving takes longer.
    register_part_bytes: int = 16
    # Of an epilogue's Steps, for each vector of a register tile: it is brief.
    brief_epilogue_instructions: float = 2
    # Of a row, for each of which an epilogue is written.
    written_epilogue_vectors: int = 3
    # Of k for which a copy of the tile takes 3% of the time,
    short_matmul_steps: int = 128
    # and how many make more code worth these.
    long_matmul_operations: int = 1 << 24

    # Signals and compilation

    # Of one lane between two calls of `poll`, by the estimate that decides on tasks:
    # 50 us to 1 ms. Such a call takes 10 ns.
    poll_instructions: int = 2_000_000
    # Of one lane after an update, without asking for signals: 50 ms.
    unpolled_instructions: float = 2e9
    # That are worth a module of their own.
    module_chunk_characters: int = 33_000
    # In which the helper takes the GIL, to begin with a Job.
    helper_start_seconds: float = 5e-5
