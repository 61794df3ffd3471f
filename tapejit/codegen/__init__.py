"""Code generation: planned loops become machine code.

From the bottom up:

- `ir`, with `ir_values`, writes LLVM's language, an instruction at a time. `vector` is
  a thin layer over it in which SIMD arithmetic reads as formulas; `vecmath` writes the
  transcendental functions in it.
- `lanes` emits what a record's `scalar` says, for vectors of any dtype: `lane_algebra`,
  `lane_storage`, `lane_floats`, `lane_integers` and `lane_casts` are its parts.
- `cursor`, `step_values`, `reductions` and `loops` emit a kernel: memory and positions,
  the values of Steps, sums, loops. `whole`, with `whole_array`, `whole_index`,
  `whole_scan` and `whole_random`, has operations on whole arrays, `finite` the marks
  that checked code leaves.
- `gemm` says how a product of matrices is cut up, `gemm_site`, `gemm_micro` and
  `gemm_sums` emit it, `gemm_windows` and `gemm_windows_micro` do the same for
  convolutions. `products` makes a kernel of it, with what is done to it before it is
  stored; `row_products` calls it in loops, for some rows at a time, and `row_draws`
  draws random words there.
- `module` makes one LLVM module of a Graph, `compile` machine code of a module,
  `objects` bytes of that and a loaded function of bytes. `host` describes the
  processor. `numba_host` gives a module to Numba instead; it is an alternative that
  tests and benchmarks compare with, and Executables do not use it.
- `entry`, with `entry_tables`, `driver` and `polling` are native code that is the same
  for all Graphs: the way in from Python, the threads, Ctrl-C.
- `kernel_report`, `kernel_source`, `kernel_writer`, `row_source`, `lane_source` and
  `source_text` say what kernels do, in numbers and as Python that runs.

Code names nothing outside itself: arrays, working memory and foreign functions come
through one table of pointers, so that it can be stored and loaded anywhere.

Nothing here is imported before something has to be compiled: llvmlite is not loaded by
`import tapejit`.

Start reading at `module.py`, then `loops.py`; for arithmetic at `vector.py`.
"""
