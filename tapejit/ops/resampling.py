"""Resampling: one axis of pixels becomes one of another number of them.

Pixels are intervals of equal length, and both axes cover the same stretch: the middle
of new pixel i of m is at (i + 1/2) n / m. The "nearest" pixel is the one in which it
lies. "bilinear" is on the line between the two pixels whose middles are on both sides
of it, and beyond the outermost middles the outermost pixel.

Either is linear, with few terms for each result: `taps` says which. The transpose has
few terms too, `shares`, and is a record of its own, so neither derivative is a scatter.

Start reading at `taps`, then `resample_eval`, then `shares`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.base.types import TensorType, Type, is_differentiable, is_float, is_half
from tapejit.ir.node import ALL, OPS, Node, Op, Rule, literal, record
from tapejit.ir.structural import batch_stack
from tapejit.ops.comparison import where
from tapejit.ops.elementwise import ANY, Cotangents, check_kind
from tapejit.ops.indexing import gather, gather_add
from tapejit.ops.movement import check_shape, permute_dims, zeros
from tapejit.ops.reduction import F32, as_dtype
from tapejit.ops.scan import check_axis
from tapejit.ops.shapes import tensor

Array = np.ndarray[Any, Any]
# From so many terms on, a scatter takes their place.
MANY_SHARES: Final = 16
METHODS = ("bilinear", "nearest")
INEXACT = ("float", "complex")
NOTHING = -0.0  # which changes no number that it is added to, not even -0.0


class Taps(NamedTuple):
    """For each new pixel those below and above, and how far it is on the way."""

    low: Array
    high: Array
    weight: Array


@lru_cache(maxsize=64)
def taps(before: int, after: int, method: str) -> Taps:
    """Which pixels a new one is made of.

    In units of 1 / (2 * after) the middles are integers: no place is off by rounding.

    >>> taps(2, 4, "bilinear")
    Taps(low=array([0, 0, 0, 1]), high=array([0, 1, 1, 1]),
         weight=array([0.  , 0.25, 0.75, 0.  ]))
    >>> taps(3, 2, "nearest").low
    array([0, 2])
    """
    middles = (2 * np.arange(after) + 1) * before
    if method == "nearest":
        places = middles // (2 * after)
        return Taps(places, places, np.zeros(after))
    floors, rests = np.divmod(middles - after, 2 * after)
    low, high = np.maximum(floors, 0), np.minimum(floors + 1, before - 1)
    return Taps(low, high, np.where(low == high, 0.0, rests / (2 * after)))


class Shares(NamedTuple):
    """For each old pixel new ones that are made of it, and how much; 0 for none.

    Both are [number, pixels].
    """

    places: Array
    weights: Array


@lru_cache(maxsize=64)
def shares(before: int, after: int, method: str) -> Shares:
    """The transpose of `taps`.

    >>> found = shares(2, 3, "bilinear")
    >>> print(found.places.T.tolist(), found.weights.T.tolist())
    [[0, 1], [1, 2]] [[1.0, 0.5], [0.5, 1.0]]
    """
    low, high, weight = taps(before, after, method)
    sources: list[list[tuple[int, float]]] = [[] for _ in range(before)]
    for new, (below, above, far) in enumerate(zip(low, high, weight, strict=True)):
        if below == above:
            sources[below].append((new, 1.0))
        else:
            sources[below].append((new, 1.0 - far))
            sources[above].append((new, float(far)))
    found = [[pair for pair in pairs if pair[1]] for pairs in sources]
    count = max(map(len, found), default=0)
    places = np.zeros((count, before), np.int64)
    weights = np.zeros((count, before))
    for old, pairs in enumerate(found):
        for number, (new, share) in enumerate(pairs):
            places[number, old], weights[number, old] = new, share
    return Shares(places, weights)


def along(values: Array, ndim: int, axis: int) -> Array:
    """A vector that broadcasts along one axis."""
    return values.reshape([-1 if at == axis else 1 for at in range(ndim)])


def check(x: Type, axis: int, size: Size, method: str) -> TensorType:
    x = tensor(x)
    if method not in METHODS:
        raise ArgumentError(f"method is one of {', '.join(METHODS)}, got {method!r}")
    check_kind(x.dtype, ANY if method == "nearest" else INEXACT)
    check_axis(axis, x)
    check_shape((size,))
    return x.with_shape((*x.shape[:axis], size, *x.shape[axis + 1 :]))


# resample


def resample_type(x: Type, *, axis: int, size: Size, method: str) -> TensorType:
    out = check(x, axis, size, method)
    if tensor(x).shape[axis] == 0 and size != 0:
        raise ShapeError(f"there are no pixels along axis {axis} of {x}")
    return out


def resample_eval(x: Array, *, axis: int, size: int, method: str) -> Array:
    """Halves are computed in float32 and rounded once.

    A new pixel that is an old one is that, whatever the next one is.
    """
    if method == "bilinear" and not is_differentiable(x.dtype):
        resample_type(TensorType.of(x), axis=axis, size=size, method=method)
    low, high, weight = taps(x.shape[axis], size, method)
    if method == "nearest":
        return np.take(x, low, axis=axis)
    wide = x.astype(np.float32) if is_half(x.dtype) else x
    below, out = np.take(wide, low, axis=axis), np.take(wide, high, axis=axis)
    out -= below
    out *= along(weight.astype(wide.real.dtype), x.ndim, axis)
    if not weight.all():
        nothing = NOTHING if is_float(out.dtype) else complex(NOTHING, NOTHING)
        out[(slice(None),) * axis + (weight == 0,)] = nothing
    out += below
    return out.astype(x.dtype, copy=False)


# resample_adjoint


def adjoint_type(g: Type, *, axis: int, size: Size, method: str) -> TensorType:
    check_kind(tensor(g).dtype, INEXACT)
    return check(g, axis, size, method)


def adjoint_eval(g: Array, *, axis: int, size: int, method: str) -> Array:
    """What new pixels give back to the old ones, of which there are `size`."""
    shape = (*g.shape[:axis], size, *g.shape[axis + 1 :])
    wide = g.astype(np.float32) if is_half(g.dtype) else g
    out = np.zeros(shape, wide.dtype)
    if not size or not g.shape[axis]:
        return out.astype(g.dtype, copy=False)
    for places, weights in zip(*shares(size, g.shape[axis], method), strict=True):
        part = np.take(wide, places, axis=axis)
        part *= along(weights.astype(wide.real.dtype), g.ndim, axis)
        if not weights.all():  # what is not asked for may be infinite
            part[(slice(None),) * axis + (weights == 0,)] = 0
        out += part
    return out.astype(g.dtype, copy=False)


# Written out: reads at places that are known, weighted and added up


def expand_resample(node: Node) -> Node:
    """Between the pixels on both sides, as the record has it."""
    (x,) = node.inputs
    axis, method = node.attrs["axis"], node.attrs["method"]
    low, high, weight = taps(int(x.shape[axis]), int(node.attrs["size"]), method)
    if method == "nearest":
        return taken(x, low, axis)
    wide = widened(x)
    below = taken(wide, low, axis)
    step = weighted(taken(wide, high, axis) - below, weight, axis, NOTHING)
    return as_dtype(step + below, node.dtype)


def expand_adjoint(node: Node) -> Node:
    """What new pixels give back: few terms for each, or all of them scattered."""
    (g,) = node.inputs
    axis, size, method = (node.attrs[k] for k in ("axis", "size", "method"))
    before, after = int(size), int(g.shape[axis])
    wide = widened(g)
    found = shares(before, after, method)
    if len(found.weights) > MANY_SHARES:
        return as_dtype(scattered(wide, node, before), node.dtype)
    total = literal(0, wide.dtype)
    for places, weights in zip(*found, strict=True):
        total = total + weighted(taken(wide, places, axis), weights, axis)
    return as_dtype(total, node.dtype)


def scattered(g: Node, node: Node, before: int) -> Node:
    """For images that have become many times larger."""
    axis = node.attrs["axis"]
    low, high, weight = taps(before, int(g.shape[axis]), node.attrs["method"])
    front = (axis, *(at for at in range(g.ndim) if at != axis))
    rows = permute_dims(g, axes=front)
    out = zeros(g.dtype, (before, *rows.shape[1:]))
    for places, weights in ((low, 1 - weight), (high, weight)):
        part = weighted(rows, weights, 0)
        out = gather_add(out, part, index(places), axes=(0,))
    back = tuple(int(at) for at in np.argsort(front))
    return permute_dims(out, axes=back)


def taken(x: Node, places: Any, axis: int) -> Node:
    """`x` at places along an axis, which stays where it is."""
    out = gather(x, index(places), axes=(axis,))
    if not axis:
        return out
    order = (*range(1, axis + 1), 0, *range(axis + 1, x.ndim))
    return permute_dims(out, axes=order)


def index(places: Any) -> Node:
    return literal(places, np.dtype(np.int64))


def weighted(x: Node, weights: Any, axis: int, nothing: float = 0.0) -> Node:
    """`x` times weights along an axis; `nothing` where they are 0."""
    factors = along(weights.astype(x.dtype), x.ndim, axis)
    out = x * literal(factors, x.dtype)
    if weights.all():
        return out
    mask = literal(along(weights != 0, x.ndim, axis), np.dtype(bool))
    return where(mask, out, literal(nothing, x.dtype))


def widened(x: Node) -> Node:
    return as_dtype(x, F32) if x.dtype.itemsize == 2 else x


def linear(
    name: str,
    inverse: str,
    type_rule: Rule,
    eval: Rule,
    expands: Callable[[Node], Node],
) -> Op:
    """One of the two records, each the transpose of the other."""

    def vjp(
        g: Node, out: Node, x: Node, *, axis: int, size: Size, method: str
    ) -> Cotangents:
        return (OPS[inverse](g, axis=axis, size=x.shape[axis], method=method),)

    return record(
        name,
        type_rule=type_rule,
        eval=eval,
        vjp=vjp,
        batch=batch_stack(name),
        conj_linear=True,
        linear=ALL,
        expands=expands,
    )


resample = linear(
    "resample", "resample_adjoint", resample_type, resample_eval, expand_resample
)
resample_adjoint = linear(
    "resample_adjoint", "resample", adjoint_type, adjoint_eval, expand_adjoint
)
