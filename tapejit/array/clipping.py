"""Clipping: values held between bounds, and tensors scaled down to a largest norm.

Gradients are what is usually clipped, so the functions of lists take None where there
is no gradient and give None back. Norms are Euclidean and computed in float32 or
wider: the squares of half-precision numbers overflow early.

Start reading at `clip_by_norm`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tapejit.array import elementwise, reductions
from tapejit.array.creation import zeros
from tapejit.array.factorisations import as_inexact
from tapejit.array.norms import safe_root, vector_norm
from tapejit.array.precision import widened
from tapejit.base import tree
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.base.structure import Structure, flat_structure
from tapejit.base.types import is_complex, promote_all
from tapejit.tensor.dispatch import HANDLES, as_operand, cast
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor

__all__ = [
    "clip_by_average_norm",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "global_norm",
]


@named
def clip_by_value(t: Any, /, clip_value_min: Any, clip_value_max: Any) -> Tensor:
    """The elements held between two bounds: `tj.clip` under TensorFlow's name.

    >>> import tapejit as tj
    >>> print(tj.clip_by_value(tj.asarray([-3.0, 0.5, 2.0]), -1.0, 1.0))
    [-1.   0.5  1. ]
    """
    out = elementwise.clip(t, clip_value_min, clip_value_max)
    return _kept_shape(out, t, clip_value_min, clip_value_max)


@named
def clip_by_norm(t: Any, /, clip_norm: Any, axes: Any = None) -> Tensor:
    """The tensor, scaled down to the norm `clip_norm` if its own is larger.

    With `axes` the slices over those axes are scaled one by one.

    >>> import tapejit as tj
    >>> print(tj.clip_by_norm(tj.asarray([3.0, 4.0]), 1.0))
    [0.6 0.8]
    >>> print(tj.clip_by_norm(tj.asarray([[3.0, 4.0], [0.3, 0.4]]), 1.0, axes=1))
    [[0.6 0.8]
     [0.3 0.4]]
    """
    _check_limit(clip_norm)
    x = as_inexact(t, "clip_by_norm")
    wide = widened(x)
    norm = vector_norm(wide, axis=axes, keepdims=True)
    out = cast(wide * _scale(norm, clip_norm), x.dtype)
    return _kept_shape(out, x, clip_norm)


@named
def clip_by_average_norm(t: Any, /, clip_norm: Any) -> Tensor:
    """The tensor, scaled down if its norm over its size is larger than `clip_norm`.

    >>> import tapejit as tj
    >>> print(tj.clip_by_average_norm(tj.asarray([3.0, 4.0]), 0.5))
    [0.6 0.8]
    """
    _check_limit(clip_norm)
    x = as_inexact(t, "clip_by_average_norm")
    if x.size == 0:
        return x
    wide = widened(x)
    average = elementwise.divide(vector_norm(wide), x.size)
    out = cast(wide * _scale(average, clip_norm), x.dtype)
    return _kept_shape(out, x, clip_norm)


@named
def global_norm(t_list: Any, /) -> Tensor:
    """The norm of several tensors taken as one vector; None is left out.

    The result is float32, or float64 if one of the tensors is of that width.

    >>> import tapejit as tj
    >>> print(tj.global_norm([tj.asarray([3.0]), None, tj.asarray([[4.0]])]))
    5.0
    """
    return _norm(_taken_apart(t_list)[0])


@named
def clip_by_global_norm(
    t_list: Any, /, clip_norm: Any, use_norm: Any = None
) -> tuple[Any, Tensor]:
    """The tensors, scaled down together if their norm is larger; and that norm.

    They come back as a list, or in the structure of the dict that holds them. None
    stays None. `use_norm` is the norm if it is known already. If the norm is not
    finite, every element becomes NaN: scaled by nothing sensible, the tensors must not
    pass for clipped ones.

    >>> import tapejit as tj
    >>> gradients = [tj.asarray([3.0]), None, tj.asarray([4.0])]
    >>> clipped, norm = tj.clip_by_global_norm(gradients, 1.0)
    >>> print(clipped[0], clipped[1], clipped[2], norm)
    [0.6] None [0.8] 5.0
    """
    _check_limit(clip_norm)
    tensors, structure = _taken_apart(t_list)
    norm = _norm(tensors) if use_norm is None else as_operand(use_norm)
    scale = _scale(norm, clip_norm)
    scale = elementwise.where(elementwise.isfinite(norm), scale, math.nan)
    limits = (clip_norm, use_norm)
    scaled = [_scaled(x, scale, limits) for x in tensors]
    return tree.unflatten(structure, scaled), norm


def _scale(norm: Tensor, limit: Any) -> Tensor:
    """What makes a norm at most `limit`: exactly 1 for one that is."""
    return elementwise.divide(limit, elementwise.maximum(norm, limit))


def _scaled(x: Tensor | None, scale: Tensor, limits: tuple[Any, ...]) -> Tensor | None:
    if x is None:
        return None
    return _kept_shape(cast(widened(x) * scale, x.dtype), x, *limits)


def _kept_shape(out: Tensor, t: Any, *limits: Any) -> Tensor:
    """What was clipped, if limits have not given it another shape."""
    # Not of numbers: a float may be traced.
    wide = [x for x in limits if isinstance(x, (list, tuple)) or _has_axes(x)]
    if wide:
        given = as_operand(t).shape
        if out.shape != given:
            shapes = [np.shape(limit) for limit in wide]
            raise ShapeError(
                f"the tensor has shape {given}, and what it is clipped to "
                f"{' and '.join(map(str, shapes))}: clipping keeps the shape",
                help="tj.clip broadcasts; or broadcast the tensor first",
            )
    return out


def is_array(x: Any) -> bool:
    """Whether it is a tensor, a variable or a NumPy array."""
    return isinstance(x, (Tensor, np.ndarray)) or type(x) in HANDLES


def _has_axes(x: Any) -> bool:
    return is_array(x) and x.ndim > 0


def _norm(tensors: list[Tensor | None]) -> Tensor:
    squares = [_sum_of_squares(x) for x in tensors if x is not None]
    if not squares:
        return zeros((), dtype="float32")
    kind = promote_all(x.dtype for x in squares)
    total = cast(squares[0], kind)
    for x in squares[1:]:
        total = total + cast(x, kind)
    return safe_root(total)


def _sum_of_squares(x: Tensor) -> Tensor:
    wide = widened(x)
    if is_complex(wide.dtype):
        parts = elementwise.real(wide), elementwise.imag(wide)
        return reductions.sum(parts[0] * parts[0] + parts[1] * parts[1])
    return reductions.sum(wide * wide)


def _taken_apart(given: Any) -> tuple[list[Tensor | None], Structure]:
    """The tensors of a list or of dicts; one tensor is no list of its rows."""
    if is_array(given) or not isinstance(given, Iterable):
        raise ArgumentTypeError(
            f"takes a list of tensors, got {type(given).__name__}",
            help="write [x] for one tensor; for a structure, tj.tree.leaves(x)",
        )
    given = given if isinstance(given, Mapping) else list(given)
    leaves, structure = list(given), flat_structure(list, len(given))
    if any(isinstance(x, Mapping) for x in (given, *leaves)):
        leaves, structure = tree.flatten(given, none_is_leaf=True)
    found = [None if x is None else as_inexact(x, "clipping") for x in leaves]
    return found, structure


def _check_limit(limit: Any) -> None:
    if type(limit) in (int, float) and not limit > 0:
        raise ArgumentError(f"clip_norm is greater than 0, got {limit}")
