"""NumPy's functions on tensors: `np.sin(x)`, `array * x`, `np.sum(x, axis=0)`.

NumPy asks its arguments before it computes. `apply_ufunc` answers for ufuncs, the
operators of ndarray among them, and `apply_function` for the other functions: they
run tapejit's function of the same meaning, which the tapes record. What has no such
function is refused by name. Nothing here turns a tensor into an array to get on with
it, because that would cut the path of a gradient without a word. The one exception
are SciPy's optimizers and tensors that nobody records (see `scipy_optimize.py`).

The data structures are two tables. `UFUNCS` needs no rows, since NumPy 2 and tapejit
share the names of the array API standard. The other functions have a Row each in
`table.py`.

Start reading at `apply_function`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tapejit.array import (
    contraction,
    elementwise,
    exponentials,
    float_bits,
    matmul,
    reductions,
    trigonometry,
)
from tapejit.array.numpy import scipy_optimize, table
from tapejit.base.errors import UnsupportedError
from tapejit.base.numpy_adapter import NO_VALUE
from tapejit.base.public import names_in
from tapejit.tensor.dispatch import as_operand
from tapejit.tensor.tensor import Tensor

# Arguments that change nothing when they have one of these values. With another one
# the call is refused, whichever function it is.
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "casting": ("same_kind",),
    "copy": (None, True, False),  # tensors are immutable: nobody sees the difference
    "device": (None, "cpu"),
    "initial": (),
    "order": ("C", "K", "A"),
    "out": (None,),
    "signature": (None,),
    "subok": (True, False),
    "where": (True,),
}

# What is done with the numbers of a tensor outside of any computation.
OUTPUT: Final = frozenset(
    {
        np.array2string,
        np.array_repr,
        np.array_str,
        np.save,
        np.savetxt,
        np.savez,
        np.savez_compressed,
    }
)

UFUNCS: Final[dict[np.ufunc, Callable[..., Any]]] = {
    getattr(np, name): getattr(module, name)
    for module in (
        elementwise,
        matmul,
        contraction,
        trigonometry,
        exponentials,
        float_bits,
    )
    for name in names_in(vars(module), "tapejit")
    if isinstance(getattr(np, name, None), np.ufunc)
}
UFUNCS[np.degrees] = trigonometry.rad2deg
UFUNCS[np.radians] = trigonometry.deg2rad
UFUNCS[np.rint] = elementwise.round

# By name, because SciPy is imported by those who use it.
SCIPY_UFUNCS: Final[dict[str, Callable[..., Any]]] = {
    "cbrt": exponentials.cbrt,
    "erf": elementwise.erf,
    "exp2": exponentials.exp2,
    "expit": elementwise.sigmoid,
    "expm1": elementwise.expm1,
    "log1p": elementwise.log1p,
    "xlogy": exponentials.xlogy,
}

COMPARISONS: Final = frozenset(
    {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
)

# `np.add.reduce` and its relatives; the first two also take a dtype.
REDUCTIONS: Final[dict[np.ufunc, Callable[..., Tensor]]] = {
    np.add: reductions.sum,
    np.multiply: reductions.prod,
    np.maximum: reductions.max,
    np.minimum: reductions.min,
    np.logical_and: reductions.all,
    np.logical_or: reductions.any,
}


# Functions


def apply_function(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """What `np.f(...)` gives when a tensor is among its arguments.

    >>> import numpy as np
    >>> import tapejit as tj
    >>> np.sum(tj.asarray([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    <tj.Tensor f32[2] [4. 6.]>
    """
    if scipy_optimize.takes_numbers(2, args, kwargs):
        return scipy_optimize.call_with_numbers(function, args, kwargs)
    row = table.row_of(function)
    if row is None:
        if function in OUTPUT:
            return _with_values(function, args, kwargs)
        raise _unsupported(table.function_name(function))
    if row.is_variadic:
        options = {
            name: value
            for name, value in kwargs.items()
            if _is_passed_on(function, name, value, row)
        }
        return row.call(*args, **options)
    if len(args) > len(row.names):
        raise table.refused_argument(function, f"argument {len(row.names) + 1}")
    given = dict(zip(row.names, args, strict=False))
    given.update(kwargs)
    accepted = {
        name: value
        for name, value in given.items()
        if _is_passed_on(function, name, value, row)
    }
    leading = []
    for name in row.positional:
        if name not in accepted:
            break  # the rest goes by name, not into the wrong place
        leading.append(accepted.pop(name))
    return row.call(*leading, **accepted)


def _is_passed_on(
    function: Callable[..., Any], name: str, value: Any, row: table.Row
) -> bool:
    """Whether an argument means something here; False if it can be left out."""
    if value is NO_VALUE or is_neutral(name, value):
        return False
    if name == "out":
        raise _refused_out(table.function_name(function))
    if name not in row.names or name in NEUTRAL:
        raise table.refused_argument(function, name)
    return True


def is_neutral(name: str, value: Any) -> bool:
    """Whether an argument has a value with which it changes nothing."""
    plain = value is None or isinstance(value, (bool, str))
    return plain and value in NEUTRAL.get(name, ())


def _with_values(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    def value(x: Any) -> Any:
        return np.asarray(x) if hasattr(x, "__array_function__") else x

    named = {name: value(x) for name, x in kwargs.items()}
    return function(*[value(x) for x in args], **named)


# Ufuncs


def apply_ufunc(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: dict[str, Any]
) -> Any:
    """What `np.sin(x)`, `array * x` or `np.add.reduce(x)` gives for a tensor.

    >>> import numpy as np
    >>> import tapejit as tj
    >>> np.float32([1, 2]) * tj.asarray([3.0, 4.0])
    <tj.Tensor f32[2] [3. 8.]>
    """
    if scipy_optimize.takes_numbers(2, inputs, options):
        call = getattr(ufunc, method)
        return scipy_optimize.call_with_numbers(call, inputs, options)
    if method != "__call__":
        return _apply_method(ufunc, method, inputs, options)
    ours = UFUNCS.get(ufunc) or _scipy_meaning(ufunc) or _numba_meaning(ufunc)
    if ours is None:
        raise _unsupported(ufunc_name(ufunc))
    if options:
        _check_options(ufunc_name(ufunc), inputs, options)
    if ufunc in COMPARISONS:
        # NumPy hands the scalar in `np.float64(2) < x` over as an array without
        # axes. A scalar is weak, so x would be compared in another dtype than in
        # `x > np.float64(2)`.
        inputs = [x[()] if isinstance(x, np.ndarray) else x for x in inputs]
    return ours(*inputs)


def _apply_method(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: dict[str, Any]
) -> Tensor:
    name = f"{ufunc_name(ufunc)}.{method}"
    reduce = REDUCTIONS.get(ufunc)
    if method != "reduce" or reduce is None:
        raise _unsupported(name)
    rest = dict(options)
    axis = rest.pop("axis", 0)
    arguments = {"keepdims": rest.pop("keepdims", False)}
    if ufunc in (np.add, np.multiply):
        arguments["dtype"] = rest.pop("dtype", None)
    _check_options(name, inputs, rest)
    x = as_operand(inputs[0], name)
    if not x.ndim and axis in (0, -1):
        axis = None  # NumPy lets the first axis of a scalar pass
    return reduce(x, axis=axis, **arguments)


def _check_options(name: str, inputs: Sequence[Any], options: dict[str, Any]) -> None:
    """Refuse what would change the result."""
    target = options.get("out")
    for array in target if isinstance(target, tuple) else (target,):
        if array is not None:
            raise _refused_out(name, array, inputs)
    for option, value in options.items():
        is_absent = value is NO_VALUE or (option == "dtype" and value is None)
        if option != "out" and not is_absent and not is_neutral(option, value):
            raise table.refused(name, f"{option}=")


def _numba_meaning(ufunc: Any) -> Callable[..., Any] | None:
    """A ufunc that `numba.vectorize` has made, as an operation."""
    if not hasattr(ufunc, "_dispatcher"):
        return None
    from tapejit.array.scalar_operations import ufunc_operation

    return ufunc_operation(ufunc)


def _scipy_meaning(ufunc: np.ufunc) -> Callable[..., Any] | None:
    """tapejit's function for a ufunc of `scipy.special`."""
    if not _is_from_scipy(ufunc):
        return None
    name = ufunc.__name__.removeprefix("_")  # scipy.special.zeta calls `_zeta`
    return SCIPY_UFUNCS.get(name) or scipy_ufuncs().get(name)


def scipy_ufuncs() -> dict[str, Callable[..., Any]]:
    """tapejit's functions by the names of all of `scipy.special`'s ufuncs.

    >>> "gammaln" in scipy_ufuncs()
    True
    """
    from tapejit.array import special  # which most programs do without

    names = set(names_in(vars(special))) - special.PLAIN_FUNCTIONS
    return SCIPY_UFUNCS | {name: getattr(special, name) for name in names}


def _is_from_scipy(ufunc: np.ufunc) -> bool:
    module = sys.modules.get("scipy.special")
    homes = (module, getattr(module, "_ufuncs", None))  # the latter for `_zeta`
    return any(getattr(home, ufunc.__name__, None) is ufunc for home in homes)


def ufunc_name(ufunc: np.ufunc) -> str:
    """`np.add` or `scipy.special.gamma`, as users write it."""
    name = ufunc.__name__
    if getattr(np, name, None) is ufunc:
        return f"np.{name}"
    return f"scipy.special.{name}" if _is_from_scipy(ufunc) else name


# Refusals


WRITERS: Final = frozenset(
    f"np.{name}"
    for name in ("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask")
)


def _unsupported(name: str) -> UnsupportedError:
    if name in WRITERS or name.endswith(".at"):
        return UnsupportedError(
            "a tensor is not written into an array, where no tape sees it",
            op=name,
            help="pass x.numpy() to write its numbers alone; tj.where, tj.full_like "
            "and x.at[i].set(v) make tensors",
        )
    return UnsupportedError(
        "not a function of tensors",
        op=name,
        help=f"if no gradient is needed through it, write {name}(x.numpy())",
    )


def _refused_out(
    name: str, target: Any = None, inputs: Sequence[Any] = ()
) -> UnsupportedError:
    if any(target is x for x in inputs):
        return UnsupportedError(
            "an array cannot be changed in place by a tensor",
            op=name,
            help="write a = a + x instead of a += x, which gives a tensor, or "
            "a += x.numpy() if no gradient is needed; so for every operator",
        )
    return UnsupportedError(
        "takes no out= with tensors, which are immutable",
        op=name,
        help="use the result that the call returns",
    )
