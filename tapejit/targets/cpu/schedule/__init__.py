"""Scheduling for the CPU: Nests in, Kernels with their memory out.

`tile_rows` and `tile_columns` put matmuls and what is between them into loops over
tiles (`tile_roles` says who takes part, and how), `output_layout` writes a matmul in
the order of its copy, `stages` finds Kernels that may run at the same time. `vectorize`
chooses vector axes, tiles, blocks and tasks; `choose_tilings` cuts matmuls; `allocate`
gives memory, private or in the arena, to values and to kernels. `pipeline` runs all of
them, in one tuple, with the reason for each.

Start reading at `pipeline.py`, then `vectorize.py`.
"""
