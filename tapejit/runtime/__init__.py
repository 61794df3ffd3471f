"""What runs: Executables, shared by all functions that trace to equal Graphs.

A Graph comes in, an `Executable` goes out: a Graph ready to be called on arrays.
Everything that calls one goes through `executable_for`, so two functions with the same
Graph have one Executable.

- `executable` whole native code, native segments among NumPy's operations, or NumPy
  alone, with a look at every result if that is asked for; `compiled` compiles, loads
  and calls code; `background` does so while the function already runs
- `native_entry`, `cpython_layout`, `sentinels`: from Python's objects to compiled code
  and back; `memory_pool` lends memory to large results
- `store` native code on disk; `builtin_code` code of our own that every process needs
- `threads`, `thread_pool`: how many threads, and where they come from; `signals` Ctrl-C
- `cuda` runs kernels of GPUs; no function uses it yet
- `executable_report`, `machine_info`: what there is to tell, of an Executable and of
  the machine

llvmlite and the code generator are imported by functions, when code has to be made.

Start reading at `executable.py`, then `compiled.py`.
"""
