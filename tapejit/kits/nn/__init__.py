"""Neural networks: functions, and the modules that hold parameters for them.

The functions are those of `tapejit/api/nn`. A `Module` is an object with variables,
`module.py`; `layers.py` and `normalization.py` have the usual ones, `sequential.py`
puts them one after another, `initializers.py` gives them their first values, and
`building.py` is how they make their variables in the middle of a computation.

Start reading at `module.py`.
"""

from __future__ import annotations

from typing import Any, Final

from tapejit.api import nn as _functions
from tapejit.api.nn import *  # noqa: F403  # all that is public there is public here
from tapejit.kits.nn import initializers
from tapejit.kits.nn.layers import Activation, Dense, Dropout, Embedding, Flatten
from tapejit.kits.nn.module import LoadedState, Module
from tapejit.kits.nn.normalization import BatchNorm, LayerNorm
from tapejit.kits.nn.sequential import Sequential
from tapejit.kits.nn.summary import Summary

# From the name in another library to a line of Python, as in `tapejit/api/nn`, whose
# table this one contains.
SPELLINGS: Final[dict[str, str]] = {
    **_functions.SPELLINGS,
    "BatchNorm1d": "tj.nn.BatchNorm()(x, training=True)",
    "BatchNorm2d": "tj.nn.BatchNorm()(x, training=True)",
    "BatchNormalization": "tj.nn.BatchNorm()(x, training=True)",
    "GELU": "tj.nn.Activation('gelu')(x)",
    "Layer": "tj.nn.Module",
    "LayerNormalization": "tj.nn.LayerNorm()(x)",
    "LazyLinear": "tj.nn.Dense(8)(x)",
    "Linear": "tj.nn.Dense(8)(x)",
    "Model": "tj.nn.Module",
    "ModuleDict": "dict(first=tj.nn.Dense(8))",
    "ModuleList": "[tj.nn.Dense(8)]",
    "Parameter": "tj.Variable(x)",
    "ReLU": "tj.nn.Activation('relu')(x)",
    "Sigmoid": "tj.nn.Activation('sigmoid')(x)",
    "Softmax": "tj.nn.Activation('softmax')(x)",
    "Tanh": "tj.nn.Activation('tanh')(x)",
    "init": "tj.nn.initializers.he_normal()",
}


def __getattr__(name: str) -> Any:
    spelling = SPELLINGS.get(name)
    tail = f"; write {spelling}" if spelling else ""
    raise AttributeError(f"tapejit.nn has no attribute {name!r}{tail}", name=name)


__all__ = [  # the names of another module, and ours
    *_functions.__all__,
    "Activation",
    "BatchNorm",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "LayerNorm",
    "LoadedState",
    "Module",
    "Sequential",
    "Summary",
    "initializers",
]
