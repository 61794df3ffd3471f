"""How Nests become kernels of threads: who goes through what, and where memory is.

`split_sums` takes large sums out of nests over short rows, before there are kernels.
`distribute` chooses threads, `share_launches` which kernels are launched together,
`place_private` where memory is.

Start reading at `pipeline.py`.
"""
