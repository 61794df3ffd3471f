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
from tapejit.nn.functional import *  # all that is public there is public here
from tapejit.tensor.foreign_names import attribute_error, by_name

if TYPE_CHECKING:
    from tapejit.nn import initializers as initializers
    from tapejit.nn.attention import *
    from tapejit.nn.convolution import *
    from tapejit.nn.layers import *
    from tapejit.nn.module import *
    from tapejit.nn.normalization import *
    from tapejit.nn.sequential import *
    from tapejit.nn.summary import *

# Modules are imported when one is asked for: a network written with functions starts
# 10 ms sooner without them.
_FILES: Final[dict[str, str]] = {
    "attention": "MultiHeadAttention",
    "convolution": (
        "AvgPool2D AvgPool3D Conv1D Conv2D Conv3D DepthwiseConv2D MaxPool2D MaxPool3D"
    ),
    "layers": "Activation Dense Dropout Embedding Flatten",
    "module": "LoadedState Module",
    "normalization": "BatchNorm LayerNorm",
    "sequential": "Sequential",
    "summary": "Summary",
}
_FILE_OF: Final = by_name(_FILES)

# From the name in another library to a line of Python, as in `tapejit/nn/functional`,
# whose table this one contains.
SPELLINGS = _functions.SPELLINGS | by_name(
    {
        "tj.nn.AvgPool2D()(x[None, :, :, None])": "AveragePooling2D AvgPool2d",
        "tj.nn.AvgPool3D((2, 2, 1))(x[None, :, :, None, None])": (
            "AveragePooling3D AvgPool3d"
        ),
        "tj.nn.BatchNorm()(x, training=True)": (
            "BatchNorm1d BatchNorm2d BatchNormalization"
        ),
        "tj.nn.Conv1D(8, 2)(x[None])": "Conv1d",
        "tj.nn.Conv2D(8, 2)(x[None, :, :, None])": "Conv2d",
        "tj.nn.Conv3D(8, (2, 2, 1))(x[None, :, :, None, None])": "Conv3d",
        "tj.nn.conv2d_transpose(x[None, :, :, None], tj.ones((2, 2, 1, 1)), 2)": (
            "Conv2DTranspose ConvTranspose2d"
        ),
        "tj.nn.Activation('gelu')(x)": "GELU",
        "tj.mean(x[None, :, :, None], axis=(1, 2))": "GlobalAveragePooling2D",
        "tj.max(x[None, :, :, None], axis=(1, 2))": "GlobalMaxPooling2D",
        "tj.foldl(lambda state, row: tj.tanh(row + state), x)": (
            "GRU GRUCell LSTM LSTMCell RNN SimpleRNN"
        ),
        "tj.nn.Module": "Layer Model",
        "tj.nn.LayerNorm()(x)": "LayerNormalization",
        "tj.nn.Dense(8)(x)": "LazyLinear Linear",
        "tj.nn.MaxPool2D()(x[None, :, :, None])": "MaxPool2d MaxPooling2D",
        "tj.nn.MaxPool3D((2, 2, 1))(x[None, :, :, None, None])": (
            "MaxPool3d MaxPooling3D"
        ),
        "dict(first=tj.nn.Dense(8))": "ModuleDict",
        "[tj.nn.Dense(8)]": "ModuleList",
        "tj.nn.MultiHeadAttention(2, 4)(x[None], x[None])": "MultiheadAttention",
        "tj.Variable(x)": "Parameter",
        "tj.nn.Activation('relu')(x)": "ReLU",
        "tj.nn.Activation('sigmoid')(x)": "Sigmoid",
        "tj.nn.Activation('softmax')(x)": "Softmax",
        "tj.nn.Activation('tanh')(x)": "Tanh",
        "tj.image.resize(x[:, :, None], (4, 4))": "Upsample",
        "tj.image.resize(x[:, :, None], (4, 4), 'nearest')": "UpSampling2D",
        "tj.nn.initializers.he_normal()": "init",
    }
)


def __getattr__(name: str) -> Any:
    if name == "initializers":  # a file of this folder: importing it gives it a name
        return import_module("tapejit.nn.initializers")
    if name in _FILE_OF:
        file = import_module(f"tapejit.nn.{_FILE_OF[name]}")
        found = globals()[name] = getattr(file, name)
        return found
    raise attribute_error("tapejit.nn", name, SPELLINGS)


if not TYPE_CHECKING:  # checkers know it from the imports
    __all__ = [*_functions.__all__, *_FILE_OF, "initializers"]

    def __dir__() -> list[str]:
        return sorted(__all__)
