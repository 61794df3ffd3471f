"""`@tapejit.function`: Python functions in, traced Graphs that run natively out.

`function` finds the trace of a call: `signature` makes the key of its arguments,
`open_sizes` leaves sizes out of it, `cache` holds what was traced. `trace` is one
symbolic run of a body, with `captured_arrays` and `bound_variables`; `path` is one way
through it, bound to variables and called, `native_call` the same in machine code.
`recompute` trades time for memory. `inspect`, `inspectable`,
`report` and `verify` answer questions; `concrete_function`, `pickling`, `reachable` and
`made_in_loops` are about functions as objects.

Start reading at `function.py`, then `path.py`.
"""
