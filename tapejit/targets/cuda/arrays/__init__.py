"""Operations on whole arrays as GPU kernels, which are no loop nests.

`table` names the emitter of each operation: `scatter` rows added to a table, `scan`
cumulative ops, `extremum` argmax and argmin, `random` Philox draws, `placement` parts
put into an array. `kernels` has what all of them begin with, and has threads share the
places of the CPU target's loops: what one thread does is its code, and its bits.

Start reading at `table.py`, then `scatter.py`.
"""
