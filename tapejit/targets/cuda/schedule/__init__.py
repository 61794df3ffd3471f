"""How Nests become kernels of threads: who goes through what, and where memory is.

Before there are kernels, `join_sums` takes sums to the nests of what they add up, and
`split_sums` takes large ones out of nests over short rows.
`distribute` chooses threads, `share_launches` which kernels are launched together,
`place_private` where memory is.

Start reading at `pipeline.py`.
"""
