"""Dropout: random elements become 0, the others grow so that the mean stays.

An element is kept if its random word, of 32 bits, is below a bound: a comparison of
integers, the same everywhere.

Start reading at `dropout`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapejit.array.elementwise import less, multiply, where
from tapejit.array.precision import float_operand
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.ops.shapes import broadcast_shapes
from tapejit.tensor.dispatch import alias, weak_scalar
from tapejit.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tapejit.tape import random

BITS: Final = 32  # of the word that decides on an element
WORD: Final = np.dtype(np.uint32)


def dropout(
    x: Any,
    /,
    rate: float = 0.5,
    *,
    training: bool = True,
    noise_shape: Any = None,
    generator: random.Generator | None = None,
    key: Any = None,
) -> Tensor:
    """x with each element made 0 with probability `rate`, the rest over 1 - rate.

    The draw comes from `generator`, from the default one if none is given, or from
    `key`, and then the same elements are dropped each time. `noise_shape` is the shape
    of the draw if elements are to share their fate: `(n, 1)` drops whole rows. Unless
    `training`, and for a rate of 0, nothing is drawn and x is returned.

    >>> import tapejit as tj
    >>> x = tj.ones(6)
    >>> print(tj.nn.dropout(x, 0.5, generator=tj.random.Generator(3)))
    [2. 2. 2. 2. 0. 0.]
    >>> print(tj.nn.dropout(x, 0.5, training=False))
    [1. 1. 1. 1. 1. 1.]
    """
    name = "dropout"
    operand = float_operand(x, name)
    if generator is not None and key is not None:
        raise ArgumentError("takes a generator or a key, not both", op=name)
    if not isinstance(rate, (int, float)):
        raise ArgumentTypeError(
            f"rate is a number, got {type(rate).__name__}",
            op=name,
            help="for other probabilities use tj.random.bernoulli and tj.where",
        )
    if not 0 <= rate <= 1:
        raise ArgumentError(f"rate is a probability from 0 to 1, got {rate}", op=name)
    if not training or rate == 0:
        return alias(operand)
    from tapejit.array.distributions import sizes_of  # 8 ms, which a relu need not cost
    from tapejit.tape.generator import source_of

    shape = operand.shape if noise_shape is None else noise_shape
    draw = source_of(key, name) if generator is None else generator._draw
    is_kept = draw(
        sizes_of(shape, (), name),
        BITS,
        lambda words: kept_where(words, rate),
        (operand,),
    )
    if broadcast_shapes(operand._type, is_kept._type) != operand.shape:
        raise ShapeError(
            f"a draw of shape {is_kept.shape} does not fit {operand._type}",
            op=name,
            help="noise_shape has the sizes of x, or 1",
        )
    return kept_alone(operand, is_kept, rate)


def kept_where(words: Tensor, rate: float) -> Tensor:
    """Which elements are kept, each by its random word."""
    bound = min(round((1 - rate) * 2**BITS), 2**BITS - 1)
    return less(words, weak_scalar(bound, WORD))


def kept_alone(x: Tensor, is_kept: Tensor, rate: float) -> Tensor:
    """What is kept, larger by as much as is dropped; the rest is 0."""
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    return where(is_kept, multiply(x, scale), weak_scalar(0.0, x.dtype))


__all__ = ["dropout"]
