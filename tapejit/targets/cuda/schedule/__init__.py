"""How Nests become kernels of threads: who goes through what, and where memory is.

Start reading at `pipeline.py`.
"""
