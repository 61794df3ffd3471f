"""How Nests become kernels of threads: who goes through what, and where memory is.

`distribute` chooses threads, `share_launches` which kernels are launched together,
`place_private` where memory is.

Start reading at `pipeline.py`.
"""
