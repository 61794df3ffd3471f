"""Automatic differentiation for people who think in NumPy and in GradientTape.

>>> import tapejit as tj
>>> x = tj.Variable(3.0)
>>> with tj.GradientTape() as tape:
...     y = x * x
>>> print(tape.gradient(y, x))
6.0

Arrays   `tj.asarray`, `tj.zeros`, `tj.sum`, `tj.where`, ...: NumPy's names and rules.
         `np.sin(x)` and `array * x` work on tensors too, and tapes see them.
Tapes    `tj.Variable`, `tj.GradientTape`, `tape.gradient`, `tape.jacobian`; if a
         gradient is None, `tape.why_none(y, x)` says where the path ends.
Derivatives of functions   `tj.grad`, `tj.value_and_grad`, `tj.jacobian`, `tj.hessian`,
         `tj.hvp`, `tj.jvp`, `tj.vjp`, `tj.vmap`.
Speed    `@tj.function` makes a whole training step one native call. Take it away, or
         set TAPEJIT_EAGER=1, to debug; `f.explain(x)` tells what runs.
Training `tj.nn` (layers, losses), `tj.optimizers`, `tj.metrics`, `tj.data`, `tj.fit`,
         `tj.save`, `tj.load`.
Besides  `tj.linalg`, `tj.fft`, `tj.special`, `tj.image`, `tj.random`, `tj.debug`,
         `tj.config`.

Tab after `tj.` shows the public names, `help(tj.sum)` explains one with an example, and
`python -m tapejit` shows what tapejit finds on this machine.

For who reads the sources: each folder imports only those before it: `base` (types,
errors, settings), `ir` (graphs), `ops` (the records), `transforms` (derivatives),
`rewrite` (simplification), `loops` (the loop IR), `targets` (machine code), `runtime`
(running graphs), `tensor`, `array` (the functions), `tape`, `tracing` (functions),
`nn`, `optimizers`, `training`. Start reading at `tapejit.ir`, then `tapejit.ops`, then
`tapejit.tape`.
"""

from __future__ import annotations

import math as _math
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import numpy as _np

from tapejit.array import operators as _operators
from tapejit.array.after_import import make_known_to_einops as _make_known_to_einops
from tapejit.array.creation import (
    TensorSpec,
    arange,
    asarray,
    constant,
    empty,
    empty_like,
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
from tapejit.array.elementwise import (
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
from tapejit.array.indexing import scatter_add, take
from tapejit.array.manipulation import (
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
from tapejit.array.matmul import matmul
from tapejit.array.reductions import (
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
from tapejit.base import tree
from tapejit.base.config import Config, ConfigError, config
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    CheckFailed,
    CheckpointError,
    Disagreement,
    DTypeError,
    GradientMismatch,
    GraphError,
    LinAlgError,
    NonFiniteError,
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
from tapejit.base.late_names import FUNCTIONS as _FUNCTIONS
from tapejit.base.late_names import MODULES as _MODULES
from tapejit.base.tree import register_structure
from tapejit.tape.tape import GradientTape, UnconnectedGradients
from tapejit.tape.variable import Variable
from tapejit.tensor.tensor import Tensor

__version__ = "0.1.0"

pi = _math.pi
e = _math.e
inf = _math.inf
nan = _math.nan
newaxis = None

bool = _np.dtype("bool")
int8, int16, int32, int64 = map(_np.dtype, ("i1", "i2", "i4", "i8"))
uint8, uint16, uint32, uint64 = map(_np.dtype, ("u1", "u2", "u4", "u8"))
float16, float32, float64 = map(_np.dtype, ("f2", "f4", "f8"))
complex64, complex128 = map(_np.dtype, ("c8", "c16"))

array = asarray  # here: the folder of that name must not be found in its place
del globals()["tensor"]  # a folder too; whoever writes tj.tensor gets a hint

del _operators

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "AxisError",
    "CheckFailed",
    "CheckpointError",
    "Config",
    "ConfigError",
    "DTypeError",
    "Disagreement",
    "ForwardAccumulator",
    "Function",
    "GradientMismatch",
    "GradientTape",
    "GraphError",
    "History",
    "LinAlgError",
    "NonFiniteError",
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
    "absolute",
    "acos",
    "acosh",
    "add",
    "all",
    "allclose",
    "amax",
    "amin",
    "angle",
    "any",
    "append",
    "arange",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "argwhere",
    "array",
    "array_equal",
    "array_split",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "average",
    "bfloat16",
    "bincount",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "callbacks",
    "can_cast",
    "cbrt",
    "ceil",
    "clip",
    "clip_by_average_norm",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "column_stack",
    "complex64",
    "complex128",
    "compress",
    "concat",
    "concatenate",
    "config",
    "conj",
    "conjugate",
    "constant",
    "convolve",
    "copysign",
    "correlate",
    "cos",
    "cosh",
    "count_nonzero",
    "cross",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "custom_gradient",
    "data",
    "debug",
    "deg2rad",
    "degrees",
    "delete",
    "diag",
    "diagflat",
    "diagonal",
    "diff",
    "digitize",
    "divide",
    "divide_no_nan",
    "divmod",
    "dot",
    "dsplit",
    "dstack",
    "dynamic_partition",
    "dynamic_stitch",
    "e",
    "ediff1d",
    "einsum",
    "empty",
    "empty_like",
    "equal",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "eye",
    "fft",
    "finfo",
    "fit",
    "fix",
    "flip",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "fmod",
    "foldl",
    "frexp",
    "from_dlpack",
    "full",
    "full_like",
    "function",
    "functions_run_eagerly",
    "get_num_threads",
    "global_norm",
    "grad",
    "grad_pass_through",
    "greater",
    "greater_equal",
    "heaviside",
    "hessian",
    "histogram",
    "hsplit",
    "hstack",
    "hvp",
    "hypot",
    "iinfo",
    "imag",
    "image",
    "inf",
    "inner",
    "insert",
    "int8",
    "int16",
    "int32",
    "int64",
    "interp",
    "invert",
    "isclose",
    "isdtype",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "jacobian",
    "jvp",
    "kron",
    "ldexp",
    "left_shift",
    "less",
    "less_equal",
    "linalg",
    "linspace",
    "load",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logcumsumexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "matmul",
    "matrix_transpose",
    "matvec",
    "max",
    "maximum",
    "mean",
    "median",
    "meshgrid",
    "metrics",
    "min",
    "minimum",
    "mod",
    "modf",
    "moveaxis",
    "multiply",
    "multiply_no_nan",
    "nan",
    "nan_to_num",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "negative",
    "newaxis",
    "nextafter",
    "nn",
    "nonzero",
    "not_equal",
    "one_hot",
    "ones",
    "ones_like",
    "optimizers",
    "outer",
    "pad",
    "partition",
    "percentile",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "power",
    "print",
    "prod",
    "ptp",
    "put_along_axis",
    "quantile",
    "rad2deg",
    "radians",
    "random",
    "ravel",
    "ravel_multi_index",
    "real",
    "reciprocal",
    "recompute_grad",
    "register_structure",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "reverse_sequence",
    "right_shift",
    "roll",
    "rot90",
    "round",
    "rsqrt",
    "run_functions_eagerly",
    "save",
    "scatter_add",
    "searchsorted",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "select",
    "sequence_mask",
    "set_num_threads",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sort",
    "special",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stop_gradient",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "testing",
    "tile",
    "top_k",
    "trace",
    "transpose",
    "trapezoid",
    "tree",
    "tril",
    "triu",
    "true_divide",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unravel_index",
    "unstack",
    "value_and_grad",
    "var",
    "vdot",
    "vecdot",
    "vecmat",
    "vjp",
    "vmap",
    "vsplit",
    "vstack",
    "where",
    "xlogy",
    "zeros",
    "zeros_like",
]

_MODULE_OF = {
    name: path for path, names in _FUNCTIONS.items() for name in names.split()
}

if _TYPE_CHECKING:
    from tapejit import debug as debug
    from tapejit import nn, optimizers
    from tapejit import testing as testing
    from tapejit.array import fft, image, linalg, special
    from tapejit.array.arrangement import *
    from tapejit.array.array_api import *
    from tapejit.array.clipping import *
    from tapejit.array.comparison import *
    from tapejit.array.contraction import *
    from tapejit.array.effects import *
    from tapejit.array.exponentials import *
    from tapejit.array.float_bits import *
    from tapejit.array.folding import *
    from tapejit.array.histogram import *
    from tapejit.array.nan_statistics import *
    from tapejit.array.no_nan import *
    from tapejit.array.numpy.names import *
    from tapejit.array.padded import *
    from tapejit.array.positions import *
    from tapejit.array.scans import *
    from tapejit.array.segments import *
    from tapejit.array.selection import *
    from tapejit.array.sequences import *
    from tapejit.array.sorting import *
    from tapejit.array.statistics import *
    from tapejit.array.trigonometry import *
    from tapejit.runtime.threads import *
    from tapejit.tape import random
    from tapejit.tape.accumulator import *
    from tapejit.tape.custom import *
    from tapejit.tape.functional import *
    from tapejit.tensor.eager_mode import *
    from tapejit.tracing.function import *
    from tapejit.tracing.recompute import *
    from tapejit.training import callbacks, data, metrics
    from tapejit.training.checkpoint import *
    from tapejit.training.fit import *


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        module = globals()[name] = _import_module(_MODULES[name])
        # Tab completion: what such a module imports is nobody's business.
        vars(module).setdefault("__dir__", lambda: sorted(module.__all__))
        return module
    if name == "bfloat16":  # looked up when asked for: it needs ml_dtypes
        from tapejit.base.types import dtype_named

        return dtype_named("bfloat16")
    if name in _MODULE_OF:
        found = _import_module(_MODULE_OF[name])
        globals().update({each: getattr(found, each) for each in found.__all__})
        return globals()[name]
    from tapejit.tensor.foreign_names import hint

    suggestion = hint(name)
    tail = f"; {suggestion}" if suggestion else ""
    raise AttributeError(f"tapejit has no attribute {name!r}{tail}", name=name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_make_known_to_einops()
