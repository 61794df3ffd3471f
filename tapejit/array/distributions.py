"""Random distributions: uniform, normal and Bernoulli numbers, integers, permutations.

A distribution is a function of a source. The source is asked for words of 32 or 64
random bits in a shape and told what to make of them. If it keeps a state it moves on
only when that has succeeded, so a draw that fails has used nothing up.

Noise is drawn first and parameters are applied to it by ordinary operations: normal
numbers are `mean + stddev * noise`. To a tape the noise is a constant, and gradients
flow to the parameters.

Start reading at `draw_normal`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np

from tapejit import ops
from tapejit.array.elementwise import equal, less, subtract, where
from tapejit.array.indexing import take
from tapejit.array.manipulation import as_shape
from tapejit.array.precision import as_constant
from tapejit.base.dims import Dim, Shape
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    TapejitError,
)
from tapejit.base.types import (
    DType,
    TensorType,
    as_dtype,
    default_float,
    is_complex,
    is_float,
    is_integer,
    promote_all,
    wide_dtype,
)
from tapejit.ops import philox
from tapejit.ops.movement import check_shape
from tapejit.ops.shapes import broadcast_shapes, normalize_axis
from tapejit.tensor.device import in_trace
from tapejit.tensor.dispatch import TRACE, apply, as_operand, cast, weak_scalar
from tapejit.tensor.tensor import Tensor

Make = Callable[[Tensor], Tensor]


class Draws(Protocol):
    """Where words come from: so many, of so many bits, and what `make` makes of them.

    They are on the device of what they meet, `beside`, which may be numbers too.
    """

    def __call__(
        self, shape: Shape, bits: int, make: Make, beside: Sequence[Any] = ()
    ) -> Tensor: ...


Parameter = float | Tensor


INT64: Final = np.dtype("int64")
UINT64: Final = np.dtype("uint64")
FLOAT64: Final = np.dtype("float64")


def draw_normal(words: Draws, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
    """`mean + stddev * noise`, the noise of mean 0 and standard deviation 1."""
    name = "normal"
    center, scale = parameter(mean, "mean", name), parameter(stddev, "stddev", name)
    if not isinstance(scale, Tensor) and not 0 <= scale < math.inf:
        raise ArgumentError(
            f"stddev is a number from 0 on, got {scale}",
            op=name,
            help="it is the width of the distribution, the root of its variance",
        )
    kind = as_float_dtype(dtype, (center, scale), name)
    sizes = sizes_of(shape, (center, scale), name)

    def make(drawn: Tensor) -> Tensor:
        if is_number(center, 0) and is_number(scale, 1):
            return apply(ops.bits_to_normal, drawn, dtype=kind)
        wide = wide_dtype(kind)  # noise rounded to halves would not be uniform
        noise = apply(ops.bits_to_normal, drawn, dtype=wide)
        return cast(in_dtype(center, wide) + in_dtype(scale, wide) * noise, kind)

    return words(sizes, philox.word_bits(kind), make, (center, scale))


def draw_uniform(
    words: Draws, shape: Any, minval: Any, maxval: Any, dtype: Any
) -> Tensor:
    """Numbers spread evenly over [minval, maxval)."""
    name = "uniform"
    low, high = parameter(minval, "minval", name), parameter(maxval, "maxval", name)
    kind = as_float_dtype(dtype, (low, high), name)
    sizes = sizes_of(shape, (low, high), name)
    is_unit = is_number(low, 0) and is_number(high, 1)
    if not (is_unit or isinstance(low, Tensor) or isinstance(high, Tensor)):
        _check_interval(low, high, kind)

    def make(drawn: Tensor) -> Tensor:
        if is_unit:
            return apply(ops.bits_to_uniform, drawn, dtype=kind)
        noise = apply(ops.bits_to_uniform, drawn, dtype=wide_dtype(kind))
        return _between(noise, in_dtype(low, kind), in_dtype(high, kind))

    return words(sizes, philox.word_bits(kind), make, (low, high))


def _check_interval(low: float, high: float, dtype: DType) -> None:
    if not low <= high:
        raise ArgumentError(
            f"no number is at least minval={low} and below maxval={high}",
            op="uniform",
            help="maxval is excluded, so it must be greater than minval",
        )
    with np.errstate(over="ignore"):
        width = _width(weak_scalar(low, dtype), weak_scalar(high, dtype))
    if not np.isfinite(width._value):
        raise ArgumentError(
            f"the interval from {low} to {high} is too long for {dtype}",
            op="uniform",
            help='draw in a wider type, with dtype="float64"',
        )


def _width(low: Tensor, high: Tensor) -> Tensor:
    wide = wide_dtype(low.dtype)
    return subtract(cast(high, wide), cast(low, wide))


def _between(noise: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Noise in [0, 1) stretched to [low, high).

    Where the sum rounds to `high` the noise becomes 0. That is where it belongs: of
    the numbers nearest to `low` half lie outside the interval, and half of those
    nearest to `high` lie inside.
    """
    start, end = as_constant(low), as_constant(high)
    reaches_end = equal(_stretched(noise, start, end), end)
    noise = where(reaches_end, weak_scalar(0.0, noise.dtype), noise)
    return _stretched(noise, low, high)


def _stretched(noise: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Noise from [0, 1) to [low, high], rounded to their dtype at the end."""
    return cast(cast(low, noise.dtype) + _width(low, high) * noise, low.dtype)


def draw_bernoulli(words: Draws, p: Any, shape: Any) -> Tensor:
    """True with probability `p`."""
    chance = parameter(p, "p", "bernoulli")
    if not isinstance(chance, Tensor) and not 0 <= chance <= 1:
        raise ArgumentError(f"a probability is from 0 to 1, got {p}", op="bernoulli")
    sizes = sizes_of(shape, (chance,), "bernoulli")

    def make(drawn: Tensor) -> Tensor:
        # In float32 every probability below 2**-24 would be 2**-24.
        noise = apply(ops.bits_to_uniform, drawn, dtype=FLOAT64)
        return less(noise, in_dtype(chance, FLOAT64))

    return words(sizes, 64, make, (chance,))


def draw_integers(words: Draws, low: Any, high: Any, shape: Any, dtype: Any) -> Tensor:
    """Integers from `low` up to but not including `high`."""
    name = "integers"
    if high is None:
        low, high = 0, low
    kind = INT64 if dtype is None else dtype_of(dtype, name)
    attrs = {
        "low": integer(low, "low", name),
        "high": integer(high, "high", name),
        "dtype": kind,
    }
    sizes = sizes_of(shape, (), name)
    with named(name):
        ops.bits_to_integers.infer_type([TensorType(UINT64, sizes)], attrs)
    return words(sizes, 64, lambda drawn: apply(ops.bits_to_integers, drawn, **attrs))


def draw_permutation(words: Draws, x: Any, axis: Any) -> Tensor:
    """The elements of `x`, or the integers below `x`, in a random order."""
    name = "permutation"
    at = integer(axis, "axis", name)
    rows: Tensor | None = None
    count: Any = x
    if not isinstance(x, (int, np.integer, Dim)):
        rows = as_operand(x, name)
        if rows.ndim == 0 and is_integer(rows.dtype):
            count, rows = rows, None
    with named(name):
        at = normalize_axis(at, 1 if rows is None else rows.ndim)
    if rows is not None:
        count = rows.shape[at]
    elif not isinstance(count, Dim):
        count = natural(count, "the number of things to order", name)

    def make(drawn: Tensor) -> Tensor:
        order = apply(ops.bits_to_permutation, drawn)
        return order if rows is None else take(rows, order, axis=at)

    return words((count,), 64, make, (rows,))


# Arguments


def parameter(value: Any, label: str, name: str) -> Parameter:
    """A parameter of a distribution: a number as a float, others as tensors."""
    if isinstance(value, (int, float, np.integer, np.floating)):
        try:
            return float(value)
        except OverflowError:
            raise ArgumentError(f"{label} is too large for a float", op=name) from None
    tensor = as_operand(value, name)
    if is_complex(tensor.dtype):
        raise DTypeError(f"{label} is a real number, got {tensor._type}", op=name)
    return tensor


def is_number(parameter: Parameter, number: float) -> bool:
    return not isinstance(parameter, Tensor) and parameter == number


def in_dtype(parameter: Parameter, dtype: DType) -> Tensor:
    if isinstance(parameter, Tensor):
        return cast(parameter, dtype)
    with np.errstate(over="ignore"):  # the largest numbers of a narrow type are inf
        return in_trace(weak_scalar(parameter, dtype))


def as_float_dtype(dtype: Any, parameters: Sequence[Parameter], name: str) -> DType:
    """The dtype of random floats: as told, as the parameters, or the default."""
    if dtype is None:
        tensors = [x for x in parameters if isinstance(x, Tensor)]
        floats = [x.dtype for x in tensors if is_float(x.dtype)]
        return promote_all(floats) if floats else default_float()
    kind = dtype_of(dtype, name)
    if not is_float(kind):
        raise DTypeError(
            f"draws floats, not {kind}",
            op=name,
            help="tj.random.integers draws integers, tj.random.bernoulli bools",
        )
    return kind


def dtype_of(dtype: Any, name: str) -> DType:
    try:
        return as_dtype(dtype)
    except TypeError as error:
        raise DTypeError(str(error), op=name) from None


def sizes_of(shape: Any, parameters: Sequence[Parameter], name: str) -> Shape:
    """The shape of a result: the one asked for, broadcast with the parameters'."""
    sizes = () if shape is None else as_shape(shape, name)
    if TRACE.get() is None and any(isinstance(size, Dim) for size in sizes):
        raise ShapeError(f"cannot draw a tensor of shape {sizes}", op=name)
    types = [TensorType(x.dtype, x.shape) for x in parameters if isinstance(x, Tensor)]
    with named(name):
        check_shape(sizes)
        if not types:
            return sizes
        return broadcast_shapes(TensorType(default_float(), sizes), *types)


def integer(value: Any, label: str, name: str) -> int:
    """An argument as an int."""
    try:
        return operator.index(value)
    except TypeError as error:
        if isinstance(error, TapejitError):  # a tensor knows better why it is none
            raise
        kind = type(value).__name__
        raise ArgumentTypeError(f"{label} is an integer, got {kind}", op=name) from None


def natural(value: Any, label: str, name: str) -> int:
    """An argument as an int that is not negative."""
    number = integer(value, label, name)
    if number < 0:
        raise ArgumentError(f"{label} is an integer from 0 on, got {number}", op=name)
    return number


@contextmanager
def named(name: str) -> Iterator[None]:
    """Errors raised inside name this function instead of an operation of its own."""
    try:
        yield
    except TapejitError as error:
        error.op = name
        raise
