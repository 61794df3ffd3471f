"""CUDA: loops become kernels of threads, and these LLVM text.

- `target` what passes and emitters ask: `tuning` is about speed, `numerics` fixes bits
- `schedule` who goes through what (`distribute`), and where memory is
- `kernel` teams, units and the function of a kernel; `simt` walks its loops,
  `addressing` knows a thread's place and memory, `reductions` adds up over threads
- `matmul` and `arrays` kernels of operations on whole arrays
- `put_back` the kernel that undoes what a failed step did
- `module` all of a Graph as one module, and the list of its launches; `native_ops`
  what there are kernels for
- `ptx` the one file that knows a toolchain
- `thread_source` kernels as text to read, `kernel_report` in numbers; `roofline`
  predicts how long they take

`tapejit.runtime.cuda` compiles and launches what is made here.

Start reading at `module.py`, then `kernel.py` and `simt.py`.
"""
