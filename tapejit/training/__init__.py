"""What training programs are made of: data, the loop, metrics, checkpoints.

Everything here is written with the public functions of tapejit and keeps its state in
Variables, so it runs eagerly and in traced functions alike. `fit` is the loop, `data`
its batches, `callbacks`, `history` and `progress` what it tells; `metrics` are running
averages; `checkpoint` saves and loads, in files of `tensor_file`.

Start reading at `fit.py`.
"""
