"""The CPU target: loops in, machine code with vectors and threads out.

- `target` is the CPU as a Target: `tuning` has the numbers that are about speed,
  `numerics` those that fix bits
- `schedule` makes Kernels of a tree of loops: tiles, vectors, tasks, memory
- `llvm` writes LLVM's language; `simd` has vector arithmetic in it, `vecmath` the
  transcendental functions
- `nest` emits Kernels that are loop nests, `matmul` matmuls and convolutions, `arrays`
  operations on whole arrays
- `module` makes one LLVM module of a Graph; `machine` makes machine code of a module
- `call` is native code that all Graphs share: the entry from Python, threads, Ctrl-C
- `kernel_report` tells what Kernels do, in numbers

Code names nothing outside itself: arrays, working memory and foreign functions come
through one table of pointers, so that it can be stored and loaded anywhere. Nothing
here is imported before something has to be compiled.

Start reading at `module.py`, then `nest/kernel_emitter.py`; arithmetic at
`simd/vector.py`.
"""
