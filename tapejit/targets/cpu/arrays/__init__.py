"""Operations on whole arrays that are no loop nest: scan, scatter, concat, draws.

Each is a function of its own among the kernels: a Node in, LLVM loops over its arrays
out. `table` names the emitter of each operation: `scan` cumulative ops, `scatter` rows
added to a table, `placement` parts put into an array, `extremum` argmax and argmin,
`random` Philox draws, `small_matrices` systems of a few equations. `loops` is what they
are made of.

Start reading at `table.py`, then `scan.py`.
"""
