"""Calling conventions: native code that is the same for all Graphs.

`entry` is the way in from Python, a CPython function emitted as LLVM, with
`entry_code`, `entry_tables` and `entry_variables`. `thread_driver` runs a list of tasks
on threads, `signal_poll` asks for Ctrl-C in long loops. `thread_layout` and
`signal_layout` number the words that these share with `runtime`.

Start reading at `entry.py`, then `thread_driver.py`.
"""
