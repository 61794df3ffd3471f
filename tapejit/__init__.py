"""Automatic differentiation for people who think in NumPy and in GradientTape.

>>> import tapejit as tj
>>> x = tj.Variable(3.0)
>>> with tj.GradientTape() as tape:
...     y = x * x
>>> print(tape.gradient(y, x))
6.0

The public names are the ones listed in `__all__`. The layers, each importing only
those before it: types, errors, config; `ir` (graphs); `ops` (the records); `passes`
(differentiation, batching); `api` (what users touch).

Start reading at `tapejit.ir`, then `tapejit.ops`, then `tapejit.api`.
"""

from __future__ import annotations

import math as _math
from typing import Any as _Any

import numpy as _np

from tapejit import tree as tree
from tapejit.api import fft as fft
from tapejit.api import operators as _operators
from tapejit.api import random as random
from tapejit.api.creation import (
    TensorSpec,
    arange,
    asarray,
    constant,
    empty,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from tapejit.api.elementwise import (
    abs,
    add,
    angle,
    astype,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    conj,
    cos,
    divide,
    equal,
    erf,
    exp,
    expm1,
    floor,
    floor_divide,
    greater,
    greater_equal,
    imag,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    positive,
    pow,
    real,
    remainder,
    round,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    stop_gradient,
    subtract,
    tanh,
    trunc,
    where,
)
from tapejit.api.foreign_names import hint as _hint
from tapejit.api.functional import (
    grad,
    hessian,
    hvp,
    jacobian,
    jvp,
    value_and_grad,
    vjp,
    vmap,
)
from tapejit.api.indexing import scatter_add, take
from tapejit.api.linear import matmul, vector_norm
from tapejit.api.manipulation import (
    broadcast_to,
    concat,
    expand_dims,
    flip,
    matrix_transpose,
    pad,
    permute_dims,
    reshape,
    squeeze,
    stack,
)
from tapejit.api.reductions import (
    all,
    any,
    argmax,
    argmin,
    logsumexp,
    max,
    mean,
    min,
    prod,
    sum,
)
from tapejit.api.standard import (
    __array_api_version__,
    __array_namespace_info__,
    can_cast,
    finfo,
    iinfo,
    isdtype,
    result_type,
)
from tapejit.api.tape import GradientTape, UnconnectedGradients
from tapejit.api.tensor import Tensor
from tapejit.api.variable import Variable
from tapejit.config import Config, ConfigError, config
from tapejit.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    GradientMismatch,
    GraphError,
    NotDifferentiableError,
    OutOfRangeError,
    ShapeError,
    StructureError,
    TapeError,
    TapejitError,
    TapeNotRecording,
    UnsupportedError,
    VariableError,
)
from tapejit.tree import register_structure

__version__ = "0.1.0"

pi = _math.pi
e = _math.e
inf = _math.inf
nan = _math.nan
newaxis = None

bool = _np.dtype("bool")
int8 = _np.dtype("int8")
int16 = _np.dtype("int16")
int32 = _np.dtype("int32")
int64 = _np.dtype("int64")
uint8 = _np.dtype("uint8")
uint16 = _np.dtype("uint16")
uint32 = _np.dtype("uint32")
uint64 = _np.dtype("uint64")
float16 = _np.dtype("float16")
float32 = _np.dtype("float32")
float64 = _np.dtype("float64")
complex64 = _np.dtype("complex64")
complex128 = _np.dtype("complex128")

del _operators

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "AxisError",
    "Config",
    "ConfigError",
    "DTypeError",
    "GradientMismatch",
    "GradientTape",
    "GraphError",
    "NotDifferentiableError",
    "OutOfRangeError",
    "ShapeError",
    "StructureError",
    "TapeError",
    "TapeNotRecording",
    "TapejitError",
    "Tensor",
    "TensorSpec",
    "UnconnectedGradients",
    "UnsupportedError",
    "Variable",
    "VariableError",
    "__array_api_version__",
    "__array_namespace_info__",
    "abs",
    "add",
    "all",
    "angle",
    "any",
    "arange",
    "argmax",
    "argmin",
    "asarray",
    "astype",
    "bfloat16",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "broadcast_to",
    "can_cast",
    "ceil",
    "clip",
    "complex64",
    "complex128",
    "concat",
    "config",
    "conj",
    "constant",
    "cos",
    "divide",
    "e",
    "empty",
    "equal",
    "erf",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "fft",
    "finfo",
    "flip",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "from_dlpack",
    "full",
    "full_like",
    "grad",
    "greater",
    "greater_equal",
    "hessian",
    "hvp",
    "iinfo",
    "imag",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "isfinite",
    "isinf",
    "isnan",
    "jacobian",
    "jvp",
    "less",
    "less_equal",
    "linspace",
    "log",
    "log1p",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "not_equal",
    "ones",
    "ones_like",
    "pad",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "prod",
    "random",
    "real",
    "register_structure",
    "remainder",
    "reshape",
    "result_type",
    "round",
    "scatter_add",
    "sigmoid",
    "sign",
    "sin",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "stop_gradient",
    "subtract",
    "sum",
    "take",
    "tanh",
    "testing",
    "tree",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
    "vector_norm",
    "vjp",
    "vmap",
    "where",
    "zeros",
    "zeros_like",
]


def __getattr__(name: str) -> _Any:
    if name == "bfloat16":  # looked up when asked for: it needs ml_dtypes
        from tapejit.types import dtype_named

        return dtype_named("bfloat16")
    if name == "testing":
        import tapejit.testing

        return tapejit.testing
    suggestion = _hint(name)
    tail = f"; {suggestion}" if suggestion else ""
    raise AttributeError(f"tapejit has no attribute {name!r}{tail}", name=name)
