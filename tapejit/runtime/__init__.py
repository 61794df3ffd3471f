"""What runs: Executables, shared by all functions that trace to equal Graphs.

An `Executable` is a Graph ready to be called on arrays. Everything that calls one goes
through `executable_for`, so two functions with the same Graph have one Executable.

- `executable` whole native code, native segments among NumPy's operations, or NumPy
  alone; `native` compiles, loads and calls code; `background` does so while the
  function already runs; `checked` looks at every result
- `entry`, `layout`, `handles`: from Python's objects to compiled code and back;
  `kept_memory` lends memory to large results
- `store`, with `store_key`, `store_file`, `store_folder`: native code on disk; `kept`
  code of our own that every process needs
- `threads`, `pool`: how many threads, and where they come from; `signals` Ctrl-C
- `inside`, `information`: what there is to tell, of an Executable and of the machine

llvmlite and the code generator are imported by functions, when code has to be made.

Start reading at `executable.py`, then `native.py`.
"""
