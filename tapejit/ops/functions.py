"""Roots, powers, exponentials and their relatives, as a table.

Start reading at `exp`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapejit.base.types import is_complex
from tapejit.ir.node import Node, Op
from tapejit.ops.comparison import equal, greater, not_equal, where
from tapejit.ops.elementwise import INEXACT, elementwise


def through_double(ufunc: np.ufunc) -> Any:
    """`ufunc` whose float32 loop runs in double and rounds once.

    NumPy's own float32 loops are off by 2.3 ULP (exp) and 3.1 ULP (log) at worst;
    tapejit promises 2.
    """

    def evaluate(x: Any) -> Any:
        if x.dtype != np.float32:
            return ufunc(x)
        if not x.shape:
            return np.float32(ufunc(float(x)))
        out = np.empty(x.shape, np.float32)
        return ufunc(x, out, dtype=np.float64, casting="same_kind")

    evaluate.__name__ = ufunc.__name__
    return evaluate


exp = elementwise(
    "exp",
    eval=through_double(np.exp),
    deriv=(lambda t, x, out: t * out,),
    scalar=lambda m, x: m.exp(x),
    kinds=INEXACT,
)


def expm1_eval(x: Any) -> Any:
    """NumPy's, but for complex numbers that are not finite, or nearly infinite.

    There the exponential alone has the standard's special values, and NumPy's formula
    multiplies infinities with 0.
    """
    out = np.expm1(x)
    if x.dtype.kind != "c":
        return out
    is_far = ~np.isfinite(x) | (x.real > 60)  # where 1 is less than a rounding error
    return np.where(is_far, np.exp(x) - 1, out).astype(x.dtype)[()]


expm1 = elementwise(
    "expm1",
    eval=expm1_eval,
    deriv=(lambda t, x, out: t * (out + 1),),
    scalar=lambda m, x: m.expm1(x),
    kinds=INEXACT,
)
log = elementwise(
    "log",
    eval=through_double(np.log),
    deriv=(lambda t, x, out: t / x,),
    scalar=lambda m, x: m.log(x),
    kinds=INEXACT,
)


def log1p_eval(x: Any) -> Any:
    """NumPy's; complex numbers by the parts, since NumPy's lose a small operand."""
    if x.dtype.kind != "c":
        return np.log1p(x)
    wide = np.asarray(x, np.complex128)
    out = np.empty(wide.shape, np.complex128)
    # |1 + z|^2 - 1 without its cancellation where z is small; elsewhere the angle is
    # large enough that the logarithm of |1 + z| may be.
    excess = wide.real * (2 + wide.real) + wide.imag * wide.imag
    is_small = np.abs(wide) < 0.5
    out.real = np.where(is_small, 0.5 * np.log1p(excess), np.log(np.abs(1 + wide)))
    out.imag = np.arctan2(wide.imag, 1 + wide.real)
    return out.astype(x.dtype)[()]


log1p = elementwise(
    "log1p",
    eval=log1p_eval,
    deriv=(lambda t, x, out: t / (1 + x),),
    scalar=lambda m, x: m.log1p(x),
    kinds=INEXACT,
)
sqrt = elementwise(
    "sqrt",
    eval=np.sqrt,
    deriv=(lambda t, x, out: t * 0.5 / out,),
    scalar=lambda m, x: m.sqrt(x),
    kinds=INEXACT,
    exact="real",
    cost=6.0,
)
sin = elementwise(
    "sin",
    eval=np.sin,
    deriv=(lambda t, x, out: t * cos(x),),
    scalar=lambda m, x: m.sin(x),
    kinds=INEXACT,
)
cos: Op = elementwise(
    "cos",
    eval=np.cos,
    deriv=(lambda t, x, out: -t * sin(x),),
    scalar=lambda m, x: m.cos(x),
    kinds=INEXACT,
)
tanh = elementwise(
    "tanh",
    eval=np.tanh,
    deriv=(lambda t, x, out: t * (1 - out * out),),
    scalar=lambda m, x: m.tanh(x),
    kinds=INEXACT,
)


def sigmoid_eval(x: Any) -> Any:
    """1 / (1 + e^-x) from e^-|x|, which cannot overflow; rounded from double."""
    wide = x if x.dtype.itemsize >= 8 else x.astype(np.float64)
    small = np.exp(-np.abs(wide))
    top = np.where(wide < 0, small, 1.0)
    return (top / (1.0 + small)).astype(x.dtype)


sigmoid = elementwise(
    "sigmoid",
    eval=sigmoid_eval,
    deriv=(lambda t, x, out: t * out * (1 - out),),
    scalar=lambda m, x: m.sigmoid(x),
    kinds=("float",),
)


def erf_eval(x: Any) -> Any:
    from scipy.special import erf as scipy_erf

    wide = np.asarray(x, np.float64)
    inner = np.abs(wide) < 1
    found = np.where(inner, erf_series(np.where(inner, wide, 0.0)), scipy_erf(wide))
    return found.astype(x.dtype)[()]


# The Taylor coefficients of erf, the first one to twice the precision of a double.
ERF_FIRST = (1.1283791670955126, 1.533545961316588e-17)
ERF_REST = tuple(
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1))
    for n in range(1, 20)
)


def erf_series(x: Any) -> Any:
    """erf on (-1, 1) to 2 ULP, where SciPy's is off by 3."""
    z = x * x
    tail = np.zeros_like(z)
    for coefficient in reversed(ERF_REST):
        tail = tail * z + coefficient
    high, low = ERF_FIRST
    return x * high + x * (low + z * tail)


erf = elementwise(
    "erf",
    eval=erf_eval,
    deriv=(lambda t, x, out: t * (2 / math.sqrt(math.pi)) * exp(-square_of(x)),),
    scalar=lambda m, x: m.erf(x),
    kinds=("float",),
)


def square_of(x: Node) -> Node:
    return x * x


def pow_eval(x: Any, p: Any) -> Any:
    """NumPy's, but x^0.5 is inf at -inf and +0 at -0 as x^p is for all other p > 0.

    For an exponent that is the same along a line NumPy takes the square root, which
    is NaN and -0 there.
    """
    out = np.power(x, p)
    if out.dtype.kind != "f" or (p.ndim == 0 and p.item() != 0.5):
        return out
    is_special = (p == 0.5) & ((x == 0) | (x == -math.inf))
    return np.where(is_special, np.abs(x), out)[()] if np.any(is_special) else out


def pow_base_deriv(t: Node, x: Node, p: Node, out: Node) -> Node:
    """p x^(p-1), with x^0 constant: its slope is 0 also where x^(-1) is infinite."""
    return t * p * x ** where(equal(p, 0), 1, p - 1)


def pow_exponent_deriv(t: Node, x: Node, p: Node, out: Node) -> Node:
    """x^p log x, and 0 where the base has no logarithm."""
    has_log = not_equal(x, 0) if is_complex(x.dtype) else greater(x, 0)
    return t * out * log(where(has_log, x, 1))


pow = elementwise(
    "pow",
    eval=pow_eval,
    deriv=(pow_base_deriv, pow_exponent_deriv),
    scalar=lambda m, x, p: m.pow(x, p),
)
