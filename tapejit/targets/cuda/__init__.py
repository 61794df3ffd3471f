"""CUDA, as far as it is there: LLVM text of kernels becomes code for a GPU.

`ptx` is the one file that knows a toolchain. What schedules loops for threads and emits
their LLVM is not there yet; `tapejit.runtime.cuda` runs LLVM text that it is given.

Start reading at `ptx.py`.
"""
