"""Lowering: a Graph in, loop Steps over axes out.

`lower` gives each Node its Step: what one iteration computes, and over which axes.
`value_at_index` has the value of a Node at an index, with every movement of elements
(reshape, slice, transpose, pad, gather) folded into the index. Before that `expand`
writes operations as several simpler ones, as their records say, and `grouped` does so
for convolutions in many groups; `windows` tells which convolutions are matmuls,
`reuse_row_sums` finds row sums that a matmul has already.

Start reading at `lower.py`, then `value_at_index.py`.
"""
