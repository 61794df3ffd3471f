"""What training programs are made of: modules, optimizers, metrics, data.

Everything here is written with the public functions of tapejit and keeps its state in
Variables, so it runs eagerly and in traced functions alike.

Start reading at `nn/module.py`.
"""
