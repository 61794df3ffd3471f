"""Graphs as native code: what NumPy gives, as near as the table of agreement says.

Everywhere else the tests run graphs through NumPy and demand equal bits. Here the same
rows, programs and trainings are compiled; compiling takes time, so a sample of them is
by default and all with `--full`.

Start reading at `compiled.py`, then `test_native_ops.py`.
"""
