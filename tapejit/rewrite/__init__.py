"""Rewrites: Graph in, an equal Graph with less to do out, and the same bits.

`optimise` in `pipeline.py` runs the passes in one tuple, with the reason for the place
of each: `inline` calls, `simplify` identities, `fold` constants, merge `placements` of
parts into zeros, `shared_orders` of sorted keys, and eliminate common subexpressions
(`cse`). `memory_order` tells how values lie in memory, as far as operations say.

A pass never changes a Node: it makes new ones, with `ir.rewriting`. Derivatives are no
rewrites, they are `tapejit.transforms`.

Start reading at `pipeline.py`, then `simplify.py`.
"""
