"""More distributions: what random words become, beyond `distributions.py`.

Each function takes a source of words (see there), checks its arguments, and makes its
numbers in double precision from one word of 64 bits for each; they are rounded to the
dtype asked for at the end. Parameters are tensors or numbers and broadcast with the
shape.

Most are a formula of uniform noise: gradients flow to the parameters through it. Gamma
and beta numbers are made by rejection, which no gradient passes; `gamma_transport` and
`beta_transport` give them the gradients of the inverse of the distribution function,
whose values they do not change.

Start reading at `draw_exponential`, then `draw_gamma`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.array.distributions import (
    FLOAT64,
    INT64,
    Draws,
    Parameter,
    as_float_dtype,
    dtype_of,
    in_dtype,
    integer,
    is_number,
    named,
    natural,
    parameter,
    sizes_of,
)
from tapejit.array.elementwise import (
    exp,
    less,
    less_equal,
    log,
    log1p,
    maximum,
    minimum,
    negative,
    not_equal,
    where,
)
from tapejit.array.indexing import count_true, has_values, number_of, take
from tapejit.array.manipulation import as_shape, expand_dims, permute_dims, reshape
from tapejit.array.precision import as_constant
from tapejit.array.reductions import all as every
from tapejit.array.reductions import max as largest
from tapejit.array.reductions import sum as total_of
from tapejit.array.scans import cumulative_sum
from tapejit.array.sorting import argsort, searchsorted
from tapejit.base.dims import Dim
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.base.types import DType, is_complex, is_integer
from tapejit.ops.shapes import normalize_axis
from tapejit.tensor.device import in_trace
from tapejit.tensor.dispatch import apply, as_operand, cast
from tapejit.tensor.tensor import Tensor

SMALLEST: Final = 2.0**-54


def uniform_noise(words: Tensor) -> Tensor:
    """Doubles in (0, 1): 0, which has no logarithm, becomes half of the next number."""
    noise = apply(ops.bits_to_uniform, words, dtype=FLOAT64)
    return maximum(noise, SMALLEST)


def exponential_noise(words: Tensor) -> Tensor:
    """-log(1 - u): positive, finite, of mean 1."""
    return negative(log1p(negative(uniform_noise(words))))


def stretched(
    noise: Tensor, location: Parameter, scale: Parameter, dtype: DType
) -> Tensor:
    """location + scale · noise, rounded to a dtype at the end."""
    if not is_number(scale, 1):
        noise = in_dtype(scale, FLOAT64) * noise
    if not is_number(location, 0):
        noise = in_dtype(location, FLOAT64) + noise
    return cast(noise, dtype)


def _positive(value: Any, label: str, name: str) -> Parameter:
    """A parameter that is not negative; tensors are not looked at."""
    found = parameter(value, label, name)
    if not isinstance(found, Tensor) and not 0 <= found < math.inf:
        raise ArgumentError(f"{label} is a number from 0 on, got {value}", op=name)
    return found


# Formulas of one uniform number


def draw_exponential(words: Draws, shape: Any, scale: Any, dtype: Any) -> Tensor:
    """scale · noise, with P(noise > x) = e^-x."""
    return _draw_located(
        words, shape, 0.0, scale, dtype, exponential_noise, "exponential"
    )


def draw_gumbel(words: Draws, shape: Any, loc: Any, scale: Any, dtype: Any) -> Tensor:
    """loc + scale · noise, where e^-noise is exponential."""

    def noise(drawn: Tensor) -> Tensor:
        return negative(log(exponential_noise(drawn)))

    return _draw_located(words, shape, loc, scale, dtype, noise, "gumbel")


def draw_laplace(words: Draws, shape: Any, loc: Any, scale: Any, dtype: Any) -> Tensor:
    """loc + scale · noise, exponential to either side."""

    def noise(drawn: Tensor) -> Tensor:
        u = uniform_noise(drawn)
        is_left = less(u, 0.5)
        size = log(2.0 * where(is_left, u, 1.0 - u))
        return where(is_left, size, negative(size))

    return _draw_located(words, shape, loc, scale, dtype, noise, "laplace")


def _draw_located(
    words: Draws,
    shape: Any,
    loc: Any,
    scale: Any,
    dtype: Any,
    noise: Any,
    name: str,
) -> Tensor:
    center, width = parameter(loc, "loc", name), _positive(scale, "scale", name)
    kind = as_float_dtype(dtype, (center, width), name)
    sizes = sizes_of(shape, (center, width), name)

    def make(drawn: Tensor) -> Tensor:
        return stretched(noise(drawn), center, width, kind)

    return words(sizes, 64, make, (center, width))


def draw_truncated_normal(
    words: Draws,
    lower: Any,
    upper: Any,
    shape: Any,
    mean: Any,
    stddev: Any,
    dtype: Any,
) -> Tensor:
    """mean + stddev · z, with z normal between the bounds, by the inverse of Φ."""
    name = "truncated_normal"
    low, high = parameter(lower, "lower", name), parameter(upper, "upper", name)
    center, width = parameter(mean, "mean", name), _positive(stddev, "stddev", name)
    is_number = not (isinstance(low, Tensor) or isinstance(high, Tensor))
    if is_number and not low < high:
        raise ArgumentError(
            f"no number is above lower={lower} and below upper={upper}", op=name
        )
    given = (low, high, center, width)
    kind = as_float_dtype(dtype, given, name)
    sizes = sizes_of(shape, given, name)

    def make(drawn: Tensor) -> Tensor:
        noise = uniform_noise(drawn)
        left, right = in_dtype(low, FLOAT64), in_dtype(high, FLOAT64)
        # Φ has all its digits on the left: of an interval on the right the mirror
        # image is drawn.
        is_mirrored = less(0.0, as_constant(left) + as_constant(right))
        begin = apply(ops.ndtr, where(is_mirrored, negative(right), left))
        end = apply(ops.ndtr, where(is_mirrored, negative(left), right))
        z = apply(ops.ndtri, begin + noise * (end - begin))
        z = where(is_mirrored, negative(z), z)
        z = minimum(maximum(z, left), right)  # what rounding may do
        return stretched(z, center, width, kind)

    return words(sizes, 64, make, given)


# Rejection


def draw_gamma(words: Draws, alpha: Any, shape: Any, scale: Any, dtype: Any) -> Tensor:
    """scale · z, where z has the density z^(alpha-1) e^-z / Γ(alpha)."""
    name = "gamma"
    form, width = _positive(alpha, "alpha", name), _positive(scale, "scale", name)
    kind = as_float_dtype(dtype, (form, width), name)
    sizes = sizes_of(shape, (form, width), name)

    def make(drawn: Tensor) -> Tensor:
        a = in_dtype(form, FLOAT64)
        start = as_constant(a)
        z = apply(ops.bits_to_gamma, drawn, start)
        if isinstance(form, Tensor):
            z = apply(ops.gamma_transport, a, start, z)
        return stretched(z, 0.0, width, kind)

    return words(sizes, 64, make, (form, width))


def draw_beta(words: Draws, a: Any, b: Any, shape: Any, dtype: Any) -> Tensor:
    """Numbers in [0, 1] of the density x^(a-1) (1-x)^(b-1) / B(a, b)."""
    name = "beta"
    first, second = _positive(a, "a", name), _positive(b, "b", name)
    kind = as_float_dtype(dtype, (first, second), name)
    sizes = sizes_of(shape, (first, second), name)

    def make(drawn: Tensor) -> Tensor:
        left, right = in_dtype(first, FLOAT64), in_dtype(second, FLOAT64)
        starts = as_constant(left), as_constant(right)
        z = apply(ops.bits_to_beta, drawn, *starts)
        if isinstance(first, Tensor) or isinstance(second, Tensor):
            z = apply(ops.beta_transport, left, right, *starts, z)
        return cast(z, kind)

    return words(sizes, 64, make, (first, second))


def draw_poisson(words: Draws, rate: Any, shape: Any, dtype: Any) -> Tensor:
    """Integers k with probability e^-rate rate^k / k!."""
    name = "poisson"
    mean = _positive(rate, "rate", name)
    kind = _integer_dtype(dtype, name)
    sizes = sizes_of(shape, (mean,), name)

    def make(drawn: Tensor) -> Tensor:
        numbers = apply(ops.bits_to_poisson, drawn, in_dtype(mean, FLOAT64))
        return cast(numbers, kind)

    return words(sizes, 64, make, (mean,))


# Choices


def draw_categorical(
    words: Draws, logits: Any, shape: Any, axis: Any, dtype: Any
) -> Tensor:
    """Positions along an axis, with probabilities in proportion to e^logits."""
    name = "categorical"
    given = in_trace(as_operand(logits, name))
    if is_complex(given.dtype):
        raise DTypeError(f"logits are real numbers, got {given._type}", op=name)
    with named(name):
        at = normalize_axis(integer(axis, "axis", name), given.ndim)
    order = [*(i for i in range(given.ndim) if i != at), at]
    rows = cast(as_constant(given), FLOAT64)
    rows = permute_dims(rows, order) if at != given.ndim - 1 else rows
    if rows.shape[-1] == 0:
        raise ShapeError(f"there is nothing to choose from in {given._type}", op=name)
    kind = _integer_dtype(dtype, name)
    sizes = sizes_of(shape, (total_of(rows, axis=-1),), name)

    def make(drawn: Tensor) -> Tensor:
        top = largest(rows, axis=-1, keepdims=True)
        return cast(_positions(drawn, exp(rows - top)), kind)

    return words(sizes, 64, make, (rows,))


def _positions(words: Tensor, weights: Tensor) -> Tensor:
    """The inverse of the distribution function: how many sums are not above u·total.

    Since u < 1 the product is below the total, so the result is a position, and never
    one of weight 0.
    """
    sums = cumulative_sum(weights, axis=-1)
    goal = apply(ops.bits_to_uniform, words, dtype=FLOAT64) * sums[..., -1]
    if sums.ndim == 1:
        found = searchsorted(sums, goal, side="right")
    else:
        is_passed = less_equal(sums, expand_dims(goal, axis=-1))
        found = total_of(is_passed, axis=-1, dtype="int64")
    # Without probabilities, NaN or none above 0, the result is a position still.
    return minimum(found, sums.shape[-1] - 1)


def draw_choice(
    words: Draws, a: Any, shape: Any, replace: Any, p: Any, axis: Any
) -> Tensor:
    """Elements of `a` along an axis, or integers below `a`."""
    name = "choice"
    rows, count, at = _things(a, axis, name)
    sizes = () if shape is None else as_shape(shape, name)
    weights = None if p is None else _weights(p, count, name)
    number = math.prod(sizes)
    _check_choice(count, number, bool(replace), weights, name)

    def chosen(positions: Tensor) -> Tensor:
        return positions if rows is None else take(rows, positions, axis=at)

    def with_replacement(drawn: Tensor) -> Tensor:
        if weights is not None:
            return chosen(_positions(drawn, weights))
        limits = {"low": 0, "high": count, "dtype": INT64}
        return chosen(apply(ops.bits_to_integers, drawn, **limits))

    def in_order(drawn: Tensor) -> Tensor:
        if weights is None:
            order = apply(ops.bits_to_permutation, drawn)
        else:
            # Clocks that ring at these rates: the first ones are what one draws.
            order = argsort(exponential_noise(drawn) / weights, axis=-1)
        return chosen(reshape(order[:number], sizes))

    if replace and number:
        return words(sizes, 64, with_replacement, (rows, weights))
    return words((count,), 64, in_order, (rows, weights))


def _check_choice(
    count: Any, number: int, replace: bool, weights: Tensor | None, name: str
) -> None:
    if isinstance(count, Dim):
        return
    if number and not count:
        raise ArgumentError("there is nothing to choose from", op=name)
    possible = count
    if weights is not None and not replace and has_values(weights):
        is_possible = not_equal(weights, 0)
        if _is_true(total_of(is_possible) >= number, name):
            return
        possible = count_true(is_possible, name)
    if not replace and number > possible:
        raise ArgumentError(
            f"{number} different ones cannot be chosen from {possible}",
            op=name,
            help="with replace=True the same one may be chosen again",
        )


def _weights(p: Any, count: Any, name: str) -> Tensor:
    weights = cast(as_constant(in_trace(as_operand(p, name))), FLOAT64)
    if weights.shape != (count,):
        raise ShapeError(
            f"p has one probability for each of {count}, got {weights._type}", op=name
        )
    if weights.size and has_values(weights):
        total = total_of(weights)
        is_right = every(weights >= 0) & (total > 0) & (total < math.inf)
        if not _is_true(is_right, name):
            raise ArgumentError(
                "p are numbers from 0 on that are not all 0",
                op=name,
                help="they need not add up to 1; for logits use tj.random.categorical",
            )
    return weights


def _is_true(condition: Tensor, name: str) -> bool:
    """Whether a check holds; in a traced function a guard."""
    return number_of(condition, name) != 0


def draw_shuffle(words: Draws, x: Any, axis: Any) -> Tensor:
    """The elements of a tensor in a random order along an axis."""
    name = "shuffle"
    rows = as_operand(x, name)
    if rows.ndim == 0:
        raise ShapeError(
            "takes a tensor with an axis, got one number",
            op=name,
            help="tj.random.permutation(n) gives 0, 1, ..., n - 1 in a random order",
        )
    with named(name):
        at = normalize_axis(integer(axis, "axis", name), rows.ndim)

    def make(drawn: Tensor) -> Tensor:
        return take(rows, apply(ops.bits_to_permutation, drawn), axis=at)

    return words((rows.shape[at],), 64, make, (rows,))


def _things(a: Any, axis: Any, name: str) -> tuple[Tensor | None, Any, int]:
    """What to choose from: rows of a tensor or integers, how many, along which axis."""
    at = integer(axis, "axis", name)
    if isinstance(a, (int, np.integer)):
        return None, natural(a, "the number of things", name), 0
    rows = as_operand(a, name)
    if rows.ndim == 0:
        if not is_integer(rows.dtype):
            raise ArgumentTypeError(
                f"takes a tensor with an axis or an integer, got {rows._type}", op=name
            )
        return None, natural(rows, "the number of things", name), 0
    with named(name):
        at = normalize_axis(at, rows.ndim)
    return rows, rows.shape[at], at


def _integer_dtype(dtype: Any, name: str) -> DType:
    kind = INT64 if dtype is None else dtype_of(dtype, name)
    if not is_integer(kind):
        raise DTypeError(f"draws integers, not {kind}", op=name)
    return kind
