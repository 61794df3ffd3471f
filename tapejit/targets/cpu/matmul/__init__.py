"""Matmuls and convolutions: shapes in, packed and register-tiled code out.

`tiling` says how a matmul is cut into tasks, panels and register tiles; `choices` and
`tiled_tiling` say it of those of a plan, before anything is emitted. `micro_kernel`
emits packing, prefetch and the inner loop; `emitter` has what both need of the place
they emit at. `conv_tiling` and `conv_kernel` do the same for convolutions, whose
windows are read where they lie. `kernel` makes a Kernel of it, with its epilogue,
`tile_sums` adds up rows and columns there, and `tiled` emits matmuls inside loops over
row tiles.

Start reading at `tiling.py`, then `micro_kernel.py`.
"""
