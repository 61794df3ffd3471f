"""Machine code: LLVM text in, object bytes and loaded functions out.

`processor` asks the processor what it is, `host` describes it to LLVM, `compile` makes
what LLVM makes of a text, `objects` bytes of that and functions of bytes, `linking`
loads simple objects without LLVM. `module_chunks` compiles a module while it is being
written, `compile_thread` does so on a thread. `numba_host` gives a module to Numba: an
alternative host that tests and benchmarks compare with.

Start reading at `objects.py`, then `module_chunks.py`.
"""
