"""Neural networks: functions, and the modules that hold parameters for them.

The functions are those of `tapejit/nn/functional`. A `Module` is an object with
variables, `module.py`; `layers.py`, `convolution.py`, `normalization.py` and
`attention.py` have the usual ones, `sequential.py` puts them one after another,
`initializers.py` gives them their first values, and `building.py` is how they make
their variables in the middle of a computation.

Start reading at `module.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tapejit.nn import functional as _functions
from tapejit.nn.functional import *  # noqa: F403  # all that is public there is public here

if TYPE_CHECKING:
    from tapejit.nn import initializers
    from tapejit.nn.attention import MultiHeadAttention
    from tapejit.nn.convolution import (
        AvgPool2D,
        AvgPool3D,
        Conv1D,
        Conv2D,
        Conv3D,
        DepthwiseConv2D,
        MaxPool2D,
        MaxPool3D,
    )
    from tapejit.nn.layers import Activation, Dense, Dropout, Embedding, Flatten
    from tapejit.nn.module import LoadedState, Module
    from tapejit.nn.normalization import BatchNorm, LayerNorm
    from tapejit.nn.sequential import Sequential
    from tapejit.nn.summary import Summary

# Modules are imported when one is asked for: a network written with functions starts
# 10 ms sooner without them.
_FILE_OF: Final[dict[str, str]] = {
    "Activation": "layers",
    "AvgPool2D": "convolution",
    "AvgPool3D": "convolution",
    "BatchNorm": "normalization",
    "Conv1D": "convolution",
    "Conv2D": "convolution",
    "Conv3D": "convolution",
    "Dense": "layers",
    "DepthwiseConv2D": "convolution",
    "Dropout": "layers",
    "Embedding": "layers",
    "Flatten": "layers",
    "LayerNorm": "normalization",
    "LoadedState": "module",
    "MaxPool2D": "convolution",
    "MaxPool3D": "convolution",
    "Module": "module",
    "MultiHeadAttention": "attention",
    "Sequential": "sequential",
    "Summary": "summary",
}

# From the name in another library to a line of Python, as in `tapejit/nn/functional`,
# whose table this one contains.
SPELLINGS: Final[dict[str, str]] = {
    **_functions.SPELLINGS,
    "AveragePooling2D": "tj.nn.AvgPool2D()(x[None, :, :, None])",
    "AveragePooling3D": "tj.nn.AvgPool3D((2, 2, 1))(x[None, :, :, None, None])",
    "AvgPool2d": "tj.nn.AvgPool2D()(x[None, :, :, None])",
    "AvgPool3d": "tj.nn.AvgPool3D((2, 2, 1))(x[None, :, :, None, None])",
    "BatchNorm1d": "tj.nn.BatchNorm()(x, training=True)",
    "BatchNorm2d": "tj.nn.BatchNorm()(x, training=True)",
    "BatchNormalization": "tj.nn.BatchNorm()(x, training=True)",
    "Conv1d": "tj.nn.Conv1D(8, 2)(x[None])",
    "Conv2d": "tj.nn.Conv2D(8, 2)(x[None, :, :, None])",
    "Conv3d": "tj.nn.Conv3D(8, (2, 2, 1))(x[None, :, :, None, None])",
    "Conv2DTranspose": (
        "tj.nn.conv2d_transpose(x[None, :, :, None], tj.ones((2, 2, 1, 1)), 2)"
    ),
    "ConvTranspose2d": (
        "tj.nn.conv2d_transpose(x[None, :, :, None], tj.ones((2, 2, 1, 1)), 2)"
    ),
    "GELU": "tj.nn.Activation('gelu')(x)",
    "GlobalAveragePooling2D": "tj.mean(x[None, :, :, None], axis=(1, 2))",
    "GlobalMaxPooling2D": "tj.max(x[None, :, :, None], axis=(1, 2))",
    "GRU": "tj.foldl(lambda state, row: tj.tanh(row + state), x)",
    "GRUCell": "tj.foldl(lambda state, row: tj.tanh(row + state), x)",
    "Layer": "tj.nn.Module",
    "LayerNormalization": "tj.nn.LayerNorm()(x)",
    "LazyLinear": "tj.nn.Dense(8)(x)",
    "Linear": "tj.nn.Dense(8)(x)",
    "LSTM": "tj.foldl(lambda state, row: tj.tanh(row + state), x)",
    "LSTMCell": "tj.foldl(lambda state, row: tj.tanh(row + state), x)",
    "MaxPool2d": "tj.nn.MaxPool2D()(x[None, :, :, None])",
    "MaxPooling2D": "tj.nn.MaxPool2D()(x[None, :, :, None])",
    "MaxPool3d": "tj.nn.MaxPool3D((2, 2, 1))(x[None, :, :, None, None])",
    "MaxPooling3D": "tj.nn.MaxPool3D((2, 2, 1))(x[None, :, :, None, None])",
    "Model": "tj.nn.Module",
    "ModuleDict": "dict(first=tj.nn.Dense(8))",
    "ModuleList": "[tj.nn.Dense(8)]",
    "MultiheadAttention": "tj.nn.MultiHeadAttention(2, 4)(x[None], x[None])",
    "Parameter": "tj.Variable(x)",
    "RNN": "tj.foldl(lambda state, row: tj.tanh(row + state), x)",
    "ReLU": "tj.nn.Activation('relu')(x)",
    "Sigmoid": "tj.nn.Activation('sigmoid')(x)",
    "SimpleRNN": "tj.foldl(lambda state, row: tj.tanh(row + state), x)",
    "Softmax": "tj.nn.Activation('softmax')(x)",
    "Tanh": "tj.nn.Activation('tanh')(x)",
    "Upsample": "tj.image.resize(x[:, :, None], (4, 4))",
    "UpSampling2D": "tj.image.resize(x[:, :, None], (4, 4), 'nearest')",
    "init": "tj.nn.initializers.he_normal()",
}


def __getattr__(name: str) -> Any:
    if name == "initializers":  # a file of this folder: importing it gives it a name
        return import_module("tapejit.nn.initializers")
    if name in _FILE_OF:
        file = import_module(f"tapejit.nn.{_FILE_OF[name]}")
        found = globals()[name] = getattr(file, name)
        return found
    spelling = SPELLINGS.get(name)
    tail = f"; write {spelling}" if spelling else ""
    raise AttributeError(f"tapejit.nn has no attribute {name!r}{tail}", name=name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [  # the names of another module, and ours
    *_functions.__all__,
    "Activation",
    "AvgPool2D",
    "AvgPool3D",
    "BatchNorm",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "Dense",
    "DepthwiseConv2D",
    "Dropout",
    "Embedding",
    "Flatten",
    "LayerNorm",
    "LoadedState",
    "MaxPool2D",
    "MaxPool3D",
    "Module",
    "MultiHeadAttention",
    "Sequential",
    "Summary",
    "initializers",
]
