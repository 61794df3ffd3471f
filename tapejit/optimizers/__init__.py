"""Optimizers: rules that turn gradients into new values of variables.

An optimizer holds a step count, a learning rate, and for every variable it has seen
the `slots` of its rule (a momentum, a mean of squares), all of them Variables.
`apply_gradients` checks its pairs, clips, decays weights, and hands gradient, value
and slots to the rule, which is arithmetic on tensors and nothing else.

`base.py` has what all optimizers do, `momentum.py` and `adaptive.py` the rules,
`schedules.py` learning rates that follow the step, `slots.py` the table of slots,
`loss_scale.py` an optimizer around another one for gradients in half precision.

Start reading at `base.py`, then `momentum.py`.
"""

from __future__ import annotations

from tapejit.optimizers import schedules
from tapejit.optimizers.adaptive import Adagrad, Adam, AdamW, RMSprop
from tapejit.optimizers.base import Optimizer
from tapejit.optimizers.loss_scale import LossScaleOptimizer
from tapejit.optimizers.momentum import SGD, Lion
from tapejit.optimizers.slots import ByVariable as ByVariable  # pickles name it

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Lion",
    "LossScaleOptimizer",
    "Optimizer",
    "RMSprop",
    "schedules",
]


def __dir__() -> list[str]:
    return sorted(__all__)
