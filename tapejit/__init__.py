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
Training `tj.nn` (layers, losses), `tj.optimizers`, `tj.mixed_precision`, `tj.metrics`,
         `tj.data`, `tj.fit`, `tj.save`, `tj.load`.
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

import math as _math
import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import numpy as _np

from tapejit.array import operators as _operators
from tapejit.array.after_import import make_known_to_einops as _make_known_to_einops
from tapejit.array.creation import *
from tapejit.array.elementwise import *
from tapejit.array.indexing import *
from tapejit.array.manipulation import *
from tapejit.array.matmul import *
from tapejit.array.reductions import *
from tapejit.base import tree as tree
from tapejit.base.config import Config as Config
from tapejit.base.config import ConfigError as ConfigError
from tapejit.base.config import config as config
from tapejit.base.errors import *
from tapejit.base.late_names import FUNCTIONS as _FUNCTIONS
from tapejit.base.late_names import MODULES as _MODULES
from tapejit.base.public import publish as _publish
from tapejit.base.tree import register_structure as register_structure
from tapejit.tape.tape import *
from tapejit.tape.variable import Variable as Variable
from tapejit.tensor.tensor import Tensor as Tensor

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

_publish(list(globals()), globals(), "tapejit")
array = asarray  # here: the folder of that name must not be found in its place
del globals()["tensor"]  # a folder too; whoever writes tj.tensor gets a hint

del _operators

_MODULE_OF = {
    name: path for path, names in _FUNCTIONS.items() for name in names.split()
}

if _TYPE_CHECKING:
    from tapejit import debug as debug
    from tapejit import nn as nn
    from tapejit import optimizers as optimizers
    from tapejit import testing as testing
    from tapejit.array import fft as fft
    from tapejit.array import image as image
    from tapejit.array import linalg as linalg
    from tapejit.array import special as special
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
    from tapejit.tape import random as random
    from tapejit.tape.accumulator import *
    from tapejit.tape.custom import *
    from tapejit.tape.functional import *
    from tapejit.tensor import mixed_precision as mixed_precision
    from tapejit.tensor.device import *
    from tapejit.tensor.eager_mode import *
    from tapejit.tracing.function import *
    from tapejit.tracing.numba_operation import *
    from tapejit.tracing.recompute import *
    from tapejit.training import callbacks as callbacks
    from tapejit.training import data as data
    from tapejit.training import metrics as metrics
    from tapejit.training.checkpoint import *
    from tapejit.training.fit import *
else:  # what is imported here and what follows later; this package's folders are not
    __all__ = sorted(
        {"bfloat16", *_MODULES, *_MODULE_OF}.union(
            name
            for name in globals()
            if not name.startswith("_") and f"tapejit.{name}" not in _sys.modules
        )
    )


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
        names = _FUNCTIONS[_MODULE_OF[name]].split()
        globals().update({each: getattr(found, each) for each in names})
        _publish(names, globals(), "tapejit")
        return globals()[name]
    from tapejit.tensor.foreign_names import hint

    suggestion = hint(name)
    tail = f"; {suggestion}" if suggestion else ""
    raise AttributeError(f"tapejit has no attribute {name!r}{tail}", name=name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_make_known_to_einops()
