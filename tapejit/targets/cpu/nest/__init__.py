"""Loop nests: a scheduled Kernel in, an LLVM function of nested loops out.

`kernel_emitter` emits the loops, tiles, remainders and tasks of a Kernel, `addressing`
the places in memory that an iteration reads and writes, `step_values` what it computes,
`reductions` sums and extremes, `row_draws` random words in tiles, `nonfinite_check` the
marks that checked code leaves.

Start reading at `kernel_emitter.py`, then `addressing.py`.
"""
