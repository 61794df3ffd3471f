"""Matmuls and convolutions on a GPU: tiles in shared memory, epilogues on the way out.

`contraction` says of a product, by strides, which elements meet; a convolution is one
whose windows are read where they lie. `tiling` chooses the tiles. `operand` brings a
tile of an operand to shared memory, `thread_tiles` multiplies tiles of there by fused
multiply-adds. `kernel` goes from tile to tile along what is summed up; `epilogue` does
with the result what the kernel's own Steps say.

Start reading at `contraction.py`, then `kernel.py`.
"""
