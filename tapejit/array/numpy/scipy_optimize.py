"""SciPy's optimizers: they get plain arrays where a user's function gives tensors.

`scipy.optimize` computes in place and in compiled code, on arrays of its own:
`g = np.atleast_1d(gradient(x))`, then `g[active] = 0`. So a NumPy function or operator
that one of its modules calls on tensors works on copies of their numbers and gives
arrays. Gradients lose nothing by it: a tensor that a tape records, or that is traced,
stays a tensor, and so does every tensor outside of `scipy.optimize`.

Start reading at `takes_numbers`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit.base import tree
from tapejit.tensor.dispatch import HANDLES, TAPES
from tapejit.tensor.tensor import Tensor, TracedTensor

PACKAGE = "scipy.optimize"


def takes_numbers(depth: int, *operands: Any) -> bool:
    """Whether an optimizer called NumPy, `depth` frames up, on tensors nobody records.

    Nearly always the first question decides: SciPy's optimizers are not loaded.
    """
    if PACKAGE not in sys.modules:
        return False
    caller = sys._getframe(depth + 1).f_globals.get("__name__", "")
    if not caller.startswith(PACKAGE):
        return False
    return not any(_is_recorded(x) for x in tree.leaves(operands))


def _is_recorded(x: Any) -> bool:
    if type(x) in HANDLES:
        return bool(TAPES.get())  # reading it is what they would record
    if not isinstance(x, Tensor):
        return False
    return isinstance(x, TracedTensor) or any(x._id in t.nodes for t in TAPES.get())


def call_with_numbers(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """NumPy's own result, for the numbers of the tensors."""
    args, kwargs = tree.map(_numbers, (tuple(args), kwargs))
    return function(*args, **kwargs)


def _numbers(x: Any) -> Any:
    return np.array(x) if isinstance(x, Tensor) or type(x) in HANDLES else x
