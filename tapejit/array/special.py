"""Special functions, public as `tj.special`: SciPy's names, with derivatives.

Values and special values are those of `scipy.special` in double precision, rounded to
the dtype of the operands. Integers become floats. Every function is differentiable by
all its floating-point arguments, as often as wanted; the incomplete gamma and beta
functions by their parameters too. `log1mexp` is not SciPy's.

`scipy.special.f(x)` of a tensor is `tj.special.f(x)` wherever SciPy's function is a
ufunc. `scipy.special.polygamma` is not one: it turns its arguments into arrays, which
cuts the path, so write `tj.special.polygamma`.

Start reading at `erfc`, then `gammainc`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tapejit import ops
from tapejit.array import softmax as shares
from tapejit.array.elementwise import erf as erf
from tapejit.array.elementwise import sigmoid
from tapejit.array.exponentials import xlogy as xlogy
from tapejit.array.reductions import logsumexp as logsumexp
from tapejit.base.errors import ArgumentError, DTypeError
from tapejit.base.public import names_in
from tapejit.base.types import is_integer
from tapejit.tensor.dispatch import (
    apply,
    as_float,
    as_operand,
    binary_float,
    operands,
    unary,
)
from tapejit.tensor.tensor import Tensor

# What SciPy has as functions and not as ufuncs: they do not ask their arguments.
PLAIN_FUNCTIONS: Final = frozenset({"log_softmax", "logsumexp", "polygamma", "softmax"})


# The error function and the normal distribution


def erfc(x: Any, /) -> Tensor:
    """1 - erf(x), which keeps its digits where it is small.

    >>> import tapejit as tj
    >>> print(tj.special.erfc(tj.asarray([0.0, 5.0])))
    [1.0000000e+00 1.5374598e-12]
    """
    return unary(ops.erfc, x, True)


def erfcx(x: Any, /) -> Tensor:
    """exp(x²) erfc(x), which neither vanishes nor overflows for positive x.

    >>> import tapejit as tj
    >>> print(tj.special.erfcx(tj.asarray([0.0, 100.0])))
    [1.         0.00564161]
    """
    return unary(ops.erfcx, x, True)


def erfinv(x: Any, /) -> Tensor:
    """The inverse of erf, from -1 to 1.

    >>> import tapejit as tj
    >>> print(tj.special.erfinv(tj.asarray([0.0, 0.5, 1.0])))
    [0.         0.47693628        inf]
    """
    return unary(ops.erfinv, x, True)


def ndtr(x: Any, /) -> Tensor:
    """The probability that a standard normal number is below x.

    >>> import tapejit as tj
    >>> print(tj.special.ndtr(tj.asarray([-1.0, 0.0, 1.0])))
    [0.15865526 0.5        0.8413448 ]
    """
    return unary(ops.ndtr, x, True)


def log_ndtr(x: Any, /) -> Tensor:
    """The logarithm of `ndtr`, finite also where that vanishes.

    >>> import tapejit as tj
    >>> print(tj.special.log_ndtr(tj.asarray([-100.0, 0.0])))
    [-5.0055244e+03 -6.9314718e-01]
    """
    return unary(ops.log_ndtr, x, True)


def ndtri(p: Any, /) -> Tensor:
    """Below which number a standard normal one is with probability p.

    >>> import tapejit as tj
    >>> print(tj.special.ndtri(tj.asarray([0.0, 0.5, 0.975])))
    [     -inf 0.        1.9599644]
    """
    return unary(ops.ndtri, p, True)


def log1mexp(x: Any, /) -> Tensor:
    """log(1 - exp(x)) for x < 0, which keeps its digits at both ends.

    With x the logarithm of a probability, it is that of the opposite.

    >>> import tapejit as tj
    >>> print(tj.special.log1mexp(tj.asarray([-20.0, -1.0, -1e-10])))
    [-2.0611537e-09 -4.5867515e-01 -2.3025850e+01]
    """
    return unary(ops.log1mexp, x, True)


# Gamma and beta


def gammaln(x: Any, /) -> Tensor:
    """The logarithm of the absolute value of the gamma function.

    >>> import tapejit as tj
    >>> print(tj.special.gammaln(tj.asarray([1.0, 5.0])))
    [0.        3.1780539]
    """
    return unary(ops.gammaln, x, True)


def digamma(x: Any, /) -> Tensor:
    """The derivative of `gammaln`; SciPy's other name for it is `psi`.

    >>> import tapejit as tj
    >>> print(tj.special.digamma(tj.asarray([1.0, 2.0])))
    [-0.5772157   0.42278433]
    """
    return unary(ops.digamma, x, True)


psi = digamma


def polygamma(n: Any, x: Any, /) -> Tensor:
    """The n-th derivative of `digamma`; n is an integer or a tensor of integers.

    >>> import tapejit as tj
    >>> print(tj.special.polygamma(1, tj.asarray([1.0, 2.0])))
    [1.644934   0.64493406]
    """
    if isinstance(n, int) and n < 0:
        raise ArgumentError(
            f"the order is an integer from 0 on, got {n}", op="polygamma"
        )
    order = as_operand(n, "polygamma")
    if not is_integer(order.dtype):
        raise DTypeError(
            f"the order is an integer, got {order._type}",
            op="polygamma",
            help="there are no derivatives of fractional order; write n.astype(int)",
        )
    return apply(ops.polygamma, order, as_float(as_operand(x, "polygamma")))


def zeta(x: Any, q: Any = 1, /) -> Tensor:
    """Hurwitz' zeta function: the sum of (q + k)^-x over k = 0, 1, 2, ...

    With q = 1 it is Riemann's, for x > 1.

    >>> import tapejit as tj
    >>> print(tj.special.zeta(tj.asarray([2.0, 4.0])))
    [1.644934  1.0823232]
    """
    return binary_float(ops.zeta, x, q)


def betaln(a: Any, b: Any, /) -> Tensor:
    """The logarithm of the absolute value of the beta function.

    >>> import tapejit as tj
    >>> print(tj.special.betaln(tj.asarray(2.0), 3.0))
    -2.4849067
    """
    return binary_float(ops.betaln, a, b)


def gammainc(a: Any, x: Any, /) -> Tensor:
    """The probability that a gamma distributed number of shape `a` is below x.

    It is the regularised lower incomplete gamma function. Gradients flow to both.

    >>> import tapejit as tj
    >>> a = tj.Variable(2.0)
    >>> with tj.GradientTape() as tape:
    ...     y = tj.special.gammainc(a, 1.5)
    >>> print(y, tape.gradient(y, a))
    0.4421746 -0.31348863
    """
    return binary_float(ops.gammainc, a, x)


def gammaincc(a: Any, x: Any, /) -> Tensor:
    """1 - gammainc(a, x), which keeps its digits where it is small.

    >>> import tapejit as tj
    >>> print(tj.special.gammaincc(tj.asarray(2.0), tj.asarray([1.5, 50.0])))
    [5.578254e-01 9.836624e-21]
    """
    return binary_float(ops.gammaincc, a, x)


def betainc(a: Any, b: Any, x: Any, /) -> Tensor:
    """The probability that a beta distributed number is below x.

    It is the regularised incomplete beta function. Gradients flow to all three.

    >>> import tapejit as tj
    >>> print(tj.special.betainc(2.0, tj.asarray([1.0, 3.0]), 0.5))
    [0.25   0.6875]
    """
    values = map(as_float, operands((a, b, x), "betainc"))
    return apply(ops.betainc, *values)


# Bessel functions


def i0(x: Any, /) -> Tensor:
    """The modified Bessel function of the first kind of order 0.

    >>> import tapejit as tj
    >>> print(tj.special.i0(tj.asarray([0.0, 1.0])))
    [1.        1.2660658]
    """
    return _bessel(x, "i0", order=0, scaled=False)


def i0e(x: Any, /) -> Tensor:
    """exp(-|x|) i0(x).

    >>> import tapejit as tj
    >>> print(tj.special.i0e(tj.asarray([0.0, 1000.0])))
    [1.         0.01261724]
    """
    return _bessel(x, "i0e", order=0, scaled=True)


def i1(x: Any, /) -> Tensor:
    """The modified Bessel function of the first kind of order 1.

    >>> import tapejit as tj
    >>> print(tj.special.i1(tj.asarray([0.0, 1.0])))
    [0.        0.5651591]
    """
    return _bessel(x, "i1", order=1, scaled=False)


def i1e(x: Any, /) -> Tensor:
    """exp(-|x|) i1(x).

    >>> import tapejit as tj
    >>> print(tj.special.i1e(tj.asarray([0.0, 1000.0])))
    [0.         0.01261093]
    """
    return _bessel(x, "i1e", order=1, scaled=True)


# Odds and entropies


def expit(x: Any, /) -> Tensor:
    """The probability whose log-odds are x: `tj.sigmoid`.

    >>> import tapejit as tj
    >>> print(tj.special.expit(tj.asarray([0.0])))
    [0.5]
    """
    return sigmoid(x)


def logit(p: Any, /) -> Tensor:
    """log(p / (1 - p)), the inverse of `expit`.

    >>> import tapejit as tj
    >>> print(tj.special.logit(tj.asarray([0.0, 0.5, 0.75])))
    [     -inf 0.        1.0986123]
    """
    return unary(ops.logit, p, True)


def entr(x: Any, /) -> Tensor:
    """-x log x, 0 at 0 and -inf below.

    >>> import tapejit as tj
    >>> print(tj.special.entr(tj.asarray([0.0, 0.5, 1.0])))
    [ 0.         0.3465736 -0.       ]
    """
    return unary(ops.entr, x, True)


def rel_entr(x: Any, y: Any, /) -> Tensor:
    """x log(x / y), the terms of the relative entropy; 0 where x is 0.

    Where both are 0 the gradients are 1 and -1, as along x = y.

    >>> import tapejit as tj
    >>> print(tj.special.rel_entr(tj.asarray([0.0, 0.5]), 0.25))
    [0.        0.3465736]
    """
    return binary_float(ops.rel_entr, x, y)


def kl_div(x: Any, y: Any, /) -> Tensor:
    """x log(x / y) - x + y: never negative, and 0 only where x is y.

    Where both are 0 the gradients are 0.

    >>> import tapejit as tj
    >>> print(tj.special.kl_div(tj.asarray([0.25, 0.5]), 0.25))
    [0.         0.09657359]
    """
    return binary_float(ops.kl_div, x, y)


def xlog1py(x: Any, y: Any, /) -> Tensor:
    """x log(1 + y), and 0 where x is 0.

    >>> import tapejit as tj
    >>> print(tj.special.xlog1py(tj.asarray([0.0, 2.0]), tj.asarray([-1.0, 1.0])))
    [0.        1.3862944]
    """
    return binary_float(ops.xlog1py, x, y)


def softmax(x: Any, /, axis: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)), over all axes unless told otherwise.

    >>> import tapejit as tj
    >>> print(tj.special.softmax(tj.asarray([[0.0, 0.0], [0.0, 0.0]])))
    [[0.25 0.25]
     [0.25 0.25]]
    """
    return shares.softmax(x, axis=axis)


def log_softmax(x: Any, /, axis: Any = None) -> Tensor:
    """The logarithm of `softmax`, finite also where that vanishes.

    >>> import tapejit as tj
    >>> print(tj.special.log_softmax(tj.asarray([0.0, 1000.0])))
    [-1000.     0.]
    """
    return shares.log_softmax(x, axis=axis)


def _bessel(x: Any, name: str, *, order: int, scaled: bool) -> Tensor:
    value = as_float(as_operand(x, name))
    return apply(ops.bessel_i, value, order=order, scaled=scaled)


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = [*names_in(globals()), "erf", "logsumexp", "xlogy"]
