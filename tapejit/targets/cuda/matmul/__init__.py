"""Matmuls and convolutions on a GPU: tiles in shared memory, epilogues on the way out.

- `contraction` which elements of a product meet, by strides; a convolution is one whose
  windows are read where they lie
- `products` and `tiling` which tiles a product has, and how many threads
- `operand` brings a tile of an operand to shared memory
- `result_tile` the sums of a thread: by fused multiply-adds (`thread_tile`), or on
  tensor cores (`tensor_tile`)
- `kernel` goes from tile to tile along what is summed up; `epilogue` does with the
  result what the kernel's own Steps say

Start reading at `contraction.py`, then `kernel.py`.
"""
