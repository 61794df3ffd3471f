"""Activation functions, from the rectifiers to softmax.

They work element by element, but for `glu`, `softmax` and `log_softmax`, which look
along an axis. Nearly all are compositions of the functions of `tapejit`, arranged so
that nothing overflows, so that the slope at a kink is the one that TensorFlow has, and
so that a second derivative which vanishes is 0 and not None.

Which operand of `maximum` comes first decides the slope at a tie: `maximum(0, x)`
gives the 0 its due, and x gets slope 0 there.

Start reading at `relu`, then `softmax`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tapejit import ops
from tapejit.array.elementwise import add, clip, expm1, sigmoid, tanh
from tapejit.array.precision import axes_of, float_operand, real_operand, wide_operand
from tapejit.array.softmax import log_softmax as log_softmax
from tapejit.array.softmax import softmax as softmax
from tapejit.base.errors import ShapeError
from tapejit.base.public import names_in
from tapejit.tensor.dispatch import binary, cast, unary, weak_scalar
from tapejit.tensor.tensor import Tensor

Axis = int | Sequence[int] | None

# Self-normalizing networks: the fixed point has mean 0 and variance 1.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def relu(x: Any, /) -> Tensor:
    """max(x, 0), with slope 0 at 0.

    >>> import tapejit as tj
    >>> print(tj.nn.relu(tj.asarray([-1.0, 0.0, 2.0])))
    [0. 0. 2.]
    """
    return _positive_part(real_operand(x, "relu"))


def _positive_part(x: Tensor) -> Tensor:
    """max(0, x): the 0 wins a tie."""
    return binary(ops.maximum, weak_scalar(0, x.dtype), x)


def _negative_part(x: Tensor) -> Tensor:
    """min(x, 0): x wins a tie."""
    return binary(ops.minimum, x, weak_scalar(0, x.dtype))


def relu6(x: Any, /) -> Tensor:
    """x held between 0 and 6, with slope 0 at both ends.

    >>> import tapejit as tj
    >>> print(tj.nn.relu6(tj.asarray([-1.0, 3.0, 8.0])))
    [0. 3. 6.]
    """
    x = _positive_part(real_operand(x, "relu6"))
    return binary(ops.minimum, weak_scalar(6, x.dtype), x)


def leaky_relu(x: Any, /, negative_slope: Any = 0.01) -> Tensor:
    """x where it is positive, `negative_slope` times x elsewhere.

    The slope may be a variable that is learned, one for all elements or one per
    channel; it must then broadcast with x.

    >>> import tapejit as tj
    >>> print(tj.nn.leaky_relu(tj.asarray([-2.0, 0.0, 2.0]), 0.5))
    [-1.  0.  2.]
    """
    x = real_operand(x, "leaky_relu")
    return add(_positive_part(x), _negative_part(x) * negative_slope)


def elu(x: Any, /, alpha: Any = 1.0) -> Tensor:
    """x where it is positive, alpha (e^x - 1) elsewhere.

    >>> import tapejit as tj
    >>> print(tj.nn.elu(tj.asarray([-1.0, 0.0, 2.0])))
    [-0.63212055  0.          2.        ]
    """
    x, dtype = wide_operand(x, "elu")
    return cast(_positive_part(x) + expm1(_negative_part(x)) * alpha, dtype)


def selu(x: Any, /) -> Tensor:
    """`elu` scaled so that activations tend to mean 0 and variance 1.

    >>> import tapejit as tj
    >>> print(tj.nn.selu(tj.asarray([-1.0, 0.0, 2.0])))
    [-1.1113307  0.         2.101402 ]
    """
    x, dtype = wide_operand(x, "selu")
    below = expm1(_negative_part(x)) * (SELU_SCALE * SELU_ALPHA)
    return cast(_positive_part(x) * SELU_SCALE + below, dtype)


def celu(x: Any, /, alpha: Any = 1.0) -> Tensor:
    """x where it is positive, alpha (e^(x / alpha) - 1) elsewhere: no kink at 0.

    >>> import tapejit as tj
    >>> print(tj.nn.celu(tj.asarray([-1.0, 0.0, 2.0]), 2.0))
    [-0.78693867  0.          2.        ]
    """
    x, dtype = wide_operand(x, "celu")
    return cast(_positive_part(x) + expm1(_negative_part(x) / alpha) * alpha, dtype)


def gelu(x: Any, /, approximate: bool = False) -> Tensor:
    """x times the probability that a standard normal number is below x.

    `approximate=True` takes the probability from a tanh, as the first models did.

    >>> import tapejit as tj
    >>> print(tj.nn.gelu(tj.asarray([-1.0, 0.0, 2.0])))
    [-0.15865526  0.          1.9544997 ]
    >>> print(tj.nn.gelu(tj.asarray([-1.0, 0.0, 2.0]), approximate=True))
    [-0.158808   0.         1.9545977]
    """
    x, dtype = wide_operand(x, "gelu")
    if approximate:
        # (1 + tanh(u)) / 2 is sigmoid(2u), which keeps its digits where u is low.
        bent = x + x * x * x * 0.044715
        return cast(x * sigmoid(bent * (2 * math.sqrt(2 / math.pi))), dtype)
    return cast(x * unary(ops.ndtr, x), dtype)


def silu(x: Any, /) -> Tensor:
    """x times sigmoid(x), also known as swish.

    >>> import tapejit as tj
    >>> print(tj.nn.silu(tj.asarray([-1.0, 0.0, 2.0])))
    [-0.26894143  0.          1.7615942 ]
    """
    x, dtype = wide_operand(x, "silu")
    return cast(x * sigmoid(x), dtype)


swish = silu


def mish(x: Any, /) -> Tensor:
    """x times tanh(softplus(x)).

    >>> import tapejit as tj
    >>> print(tj.nn.mish(tj.asarray([-1.0, 0.0, 2.0])))
    [-0.30340147  0.          1.9439589 ]
    """
    x, dtype = wide_operand(x, "mish")
    return cast(x * tanh(softplus(x)), dtype)


def softplus(x: Any, /) -> Tensor:
    """log(1 + e^x), without overflow; its slope is sigmoid(x).

    >>> import tapejit as tj
    >>> print(tj.nn.softplus(tj.asarray([-1000.0, 0.0, 1000.0])))
    [0.000000e+00 6.931472e-01 1.000000e+03]
    """
    return unary(ops.softplus, float_operand(x, "softplus"))


def softsign(x: Any, /) -> Tensor:
    """x / (1 + |x|), which tends to -1 and 1.

    >>> import tapejit as tj
    >>> print(tj.nn.softsign(tj.asarray([-1.0, 0.0, 3.0])))
    [-0.5   0.    0.75]
    """
    return unary(ops.softsign, float_operand(x, "softsign"))


def log_sigmoid(x: Any, /) -> Tensor:
    """log(sigmoid(x)), exact also where sigmoid(x) is 0 or 1.

    >>> import tapejit as tj
    >>> print(tj.nn.log_sigmoid(tj.asarray([-1000.0, 0.0])))
    [-1.000000e+03 -6.931472e-01]
    """
    return -unary(ops.softplus, -float_operand(x, "log_sigmoid"))


def hard_tanh(x: Any, /) -> Tensor:
    """x held between -1 and 1; as that of `tj.clip` its slope at both ends is 1.

    >>> import tapejit as tj
    >>> print(tj.nn.hard_tanh(tj.asarray([-2.0, 0.5, 2.0])))
    [-1.   0.5  1. ]
    """
    return clip(float_operand(x, "hard_tanh"), -1, 1)


def hard_sigmoid(x: Any, /) -> Tensor:
    """x / 6 + 1 / 2 held between 0 and 1, with slope 0 at both ends.

    >>> import tapejit as tj
    >>> print(tj.nn.hard_sigmoid(tj.asarray([-4.0, 0.0, 1.5])))
    [0.   0.5  0.75]
    """
    x, dtype = wide_operand(x, "hard_sigmoid")
    return cast(relu6(x + 3.0) / 6.0, dtype)


def hard_swish(x: Any, /) -> Tensor:
    """x times `hard_sigmoid(x)`.

    >>> import tapejit as tj
    >>> print(tj.nn.hard_swish(tj.asarray([-4.0, 0.0, 1.5])))
    [-0.     0.     1.125]
    """
    x, dtype = wide_operand(x, "hard_swish")
    return cast(x * relu6(x + 3.0) / 6.0, dtype)


def glu(x: Any, /, axis: int = -1) -> Tensor:
    """The first half along an axis times the sigmoid of the second half.

    >>> import tapejit as tj
    >>> print(tj.nn.glu(tj.asarray([[2.0, 4.0, 0.0, 1000.0]])))
    [[1. 4.]]
    """
    x, dtype = wide_operand(x, "glu")
    (at,) = axes_of(x, int(axis), "glu")
    size = x.shape[at]
    if size % 2 != 0:
        raise ShapeError(
            f"axis {axis} of {x._type} cannot be halved",
            op="glu",
            help="one half is multiplied by the sigmoid of the other",
        )
    before = (slice(None),) * at
    half = size // 2
    values, gates = x[(*before, slice(half))], x[(*before, slice(half, None))]
    return cast(values * sigmoid(gates), dtype)


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = [*names_in(globals()), "log_softmax", "softmax"]
