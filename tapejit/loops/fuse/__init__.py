"""Fusion around matmuls and updates: a tree of loops in, fewer passes over memory out.

`fuse_epilogue` moves elementwise Steps into the epilogue of the matmul they follow,
`fuse_sums` begins reductions of what an epilogue computes, `inplace` finds results that
may be written over an input, and `row_updates` table updates of which only some rows
change.

Start reading at `fuse_epilogue.py`, then `inplace.py`.
"""
