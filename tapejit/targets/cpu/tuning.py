"""What makes code fast on a CPU: caches, costs, sizes of tasks. It fixes no bits.

An instruction is counted by the estimate of `schedule.cost`. An operation is a
multiplication or an addition of a matmul, whose operands are A and B and have the axis
k in common. `tests/native/test_tuning.py` changes each number and compares bits.

Start reading at `CPUTuning`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CPUTuning:
    """The numbers that are about speed alone."""

    # Caches

    cache_line_bytes: int = 64
    l1_way_bytes: int = 4096
    l1_ways: int = 8
    l2_sets: int = 1024
    l2_ways: int = 8
    # A cache has few places for rows that are a multiple of it long.
    crowded_row_bytes: int = 512

    # Memory

    # A larger array of a task is in the arena, not on the stack.
    stack_array_bytes: int = 1 << 15
    # All arrays of a kernel that are on the stack take so much at most.
    stack_bytes: int = 1 << 18
    # So is an arena of this size, where Numba's code calls.
    stack_arena_bytes: int = 1 << 14
    # A larger output is written past the caches,
    streamed_output_bytes: int = 1 << 23
    # so much at a time: such stores begin at a multiple of it.
    streamed_store_bytes: int = 32
    # Copies of what is far apart in memory take so much of a near cache.
    copied_loads_bytes: int = 128 << 10
    # Rows of so many numbers are loaded whole: a shuffle for each, and no gather.
    interleaved_numbers: int = 4

    # Tasks

    # A kernel with less work has one task: threads are not worth it.
    threads_least_instructions: float = 60_000.0
    # A task has so much work at least: a few microseconds.
    task_least_instructions: float = 12_000.0
    # To set up an array that adds up takes so long for each vector,
    set_up_instructions: float = 10.0
    # and a task does so many times more than that.
    task_to_set_up_ratio: float = 12.0
    most_tasks: int = 32
    # From so many on, two threads are busy.
    busy_tasks: int = 4
    # Threads may end at different times if there are fewer, so an inner loop is cut,
    uneven_tasks: int = 9
    # but tiles of one matrix are cut into few: each packs what all of them use.
    matrix_tile_most_tasks: int = 2
    # So much of an array to be placed is worth a task: some microseconds.
    placement_task_elements: int = 1 << 15
    placement_most_tasks: int = 64
    # So many places are counted, at most, to know what parts cover.
    placement_counted_elements: int = 1 << 24
    # So many updates of a scatter are worth a task: some microseconds.
    scatter_task_elements: int = 1 << 14
    scatter_most_tasks: int = 8
    # For shorter rows there is one task: each goes through all indices, which costs as
    # much as to add such a row.
    scatter_least_row_bytes: int = 64

    # Loop nests

    # A loop of no more iterations is written out,
    unrolled_iterations: int = 16
    # if it is no more Steps then,
    unrolled_steps: int = 24
    # for so many of which a long formula counts.
    long_formula_steps: int = 8
    # No more are written twice, for a loop without masks.
    peeled_steps: int = 40
    # A kernel of more Steps calls long formulas,
    large_kernel_steps: int = 150
    # as each kernel does if all of them have more.
    inlined_formulas: int = 60
    # A shorter row is not worth a prefetch,
    prefetched_row_least_bytes: int = 512
    # and for a longer one the nearest cache has no room.
    prefetched_row_most_bytes: int = 16384
    # A masked load that strays farther from its array is told where to load nothing:
    # memory that is not mapped costs it some 200 cycles. Near an array most is mapped.
    masked_stray_bytes: int = 32768
    # Sums of products that are made at a time take so much: they stay in registers.
    joined_sum_bytes: int = 320

    # Operations on whole arrays

    # An element takes about so many.
    array_element_instructions: float = 10.0
    # Lines that do not meet are shared by tasks of so many elements: some microseconds.
    line_task_elements: int = 1 << 14
    line_most_tasks: int = 64
    # A search has several vectors, which do not wait for each other.
    search_lanes: int = 32
    # A cipher makes so many blocks of random words at a time.
    cipher_blocks: int = 8

    # Matmul and convolution: tasks

    # So much is worth a task: some microseconds.
    matmul_task_operations: int = 400_000
    # It is less where each number is used once or twice.
    memory_task_operations: int = 100_000
    # There may be so many tasks where more of them cost nothing.
    matmul_most_tasks: int = 32
    matmul_task_most_rows: int = 1024
    # A task's block of the result has rows of so much,
    matmul_task_row_bytes: int = 256
    # and of more if A is packed: packing it must be worth it.
    packed_task_row_bytes: int = 4096
    # Sums between blocks of k that are not in the result take so much.
    matmul_sum_bytes: int = 1 << 17
    # A task of a convolution reads so much of x again for every panel.
    conv_task_bytes: int = 1 << 18
    # An axis of a convolution with so many rows fills a tile.
    conv_tile_least_rows: int = 8

    # Matmul and convolution: packing

    # So much of A is packed at a time,
    packed_a_bytes: int = 1 << 18
    # and, where its rows lie side by side, so many steps of k.
    packed_at_once_steps: int = 8
    # A is better packed if one of its rows is spread over so much
    spread_a_bytes: int = 1 << 19
    # and read for so many panels.
    spread_a_panels: int = 2
    # A panel of B is packed if it meets more tiles of rows.
    unpacked_b_tiles: int = 8
    # So many tiles that share the panels of B make packing these worth it, once for all
    # of them and wherever B lies.
    shared_b_tiles: int = 4
    # B is read in place, row by row, if it is not in a second cache
    streamed_b_bytes: int = 1 << 20
    # and meets no more tiles of rows;
    streamed_b_tiles: int = 3
    # a task then has rows of so much at least.
    streamed_task_row_bytes: int = 2048
    # So much is worth packing all panels of B before the first task.
    prepacked_operations: int = 1 << 27
    # Then so much of A stays near while all panels go by,
    prepacked_a_bytes: int = 1 << 17
    # and B, which is there twice, is no larger.
    prepacked_b_bytes: int = 1 << 26

    # Matmul and convolution: register tiles

    # The loop of a tile does so many steps of k at once,
    matmul_unrolled_steps: int = 2
    # or one, if the tile has one vector in each of more rows.
    unrolled_tile_most_rows: int = 6
    # To move numbers across the bounds of such parts of a register takes longer.
    register_part_bytes: int = 16
    # A brief epilogue has no more for each vector of a register tile.
    brief_epilogue_instructions: float = 2
    # An epilogue is written for each vector of a row if there are no more.
    written_epilogue_vectors: int = 3
    # A copy of a tile takes 3% of the time for so many steps of k,
    short_matmul_steps: int = 128
    # which is worth more code if there is so much to do.
    long_matmul_operations: int = 1 << 24

    # Signals and compilation

    # One lane does so much between two calls of `poll`, by the estimate that decides on
    # tasks: 50 us to 1 ms. Such a call takes 10 ns.
    poll_instructions: int = 2_000_000
    # One lane does no more after an update, when nobody asks for signals: 50 ms.
    unpolled_instructions: float = 2e9
    # Kernels with no more pointers get these by instructions, others by a loop: LLVM
    # takes 45 us for each instruction.
    stored_table_entries: int = 128
    # So many pointers stay in the nearest cache until their kernels have run.
    table_entries: int = 512
    # So much text is worth a module of its own.
    module_chunk_characters: int = 33_000
    # In this time the helper takes the GIL, to begin with a Job.
    helper_start_seconds: float = 5e-5
