"""Resampling, written out: reads at places that are known, weighted and added up.

Start reading at `expand_resample`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.ir.node import OPS, Node, literal
from tapejit.loops import numerics
from tapejit.ops.movement import zeros
from tapejit.ops.resampling import NOTHING, along, shares, taps


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
    return narrowed(step + below, node)


def expand_adjoint(node: Node) -> Node:
    """What new pixels give back: few terms for each, or all of them scattered."""
    (g,) = node.inputs
    axis, size, method = (node.attrs[k] for k in ("axis", "size", "method"))
    before, after = int(size), int(g.shape[axis])
    wide = widened(g)
    found = shares(before, after, method)
    if len(found.weights) > numerics.LOOPS.resample_most_terms:
        return narrowed(scattered(wide, node, before), node)
    total = literal(0, wide.dtype)
    for places, weights in zip(*found, strict=True):
        total = total + weighted(taken(wide, places, axis), weights, axis)
    return narrowed(total, node)


def scattered(g: Node, node: Node, before: int) -> Node:
    """For images that have become many times larger."""
    axis = node.attrs["axis"]
    low, high, weight = taps(before, int(g.shape[axis]), node.attrs["method"])
    front = (axis, *(at for at in range(g.ndim) if at != axis))
    rows = OPS["permute_dims"](g, axes=front)
    out = zeros(g.dtype, (before, *rows.shape[1:]))
    for places, weights in ((low, 1 - weight), (high, weight)):
        part = weighted(rows, weights, 0)
        out = OPS["gather_add"](out, part, index(places), axes=(0,))
    back = tuple(int(at) for at in np.argsort(front))
    return OPS["permute_dims"](out, axes=back)


def taken(x: Node, places: Any, axis: int) -> Node:
    """`x` at places along an axis, which stays where it is."""
    out = OPS["gather"](x, index(places), axes=(axis,))
    if not axis:
        return out
    order = (*range(1, axis + 1), 0, *range(axis + 1, x.ndim))
    return OPS["permute_dims"](out, axes=order)


def index(places: Any) -> Node:
    return literal(places, np.dtype(np.int64))


def weighted(x: Node, weights: Any, axis: int, nothing: float = 0.0) -> Node:
    """`x` times weights along an axis; `nothing` where they are 0."""
    factors = along(weights.astype(x.dtype), x.ndim, axis)
    out = x * literal(factors, x.dtype)
    if weights.all():
        return out
    mask = literal(along(weights != 0, x.ndim, axis), np.dtype(bool))
    return OPS["where"](mask, out, literal(nothing, x.dtype))


def widened(x: Node) -> Node:
    return OPS["cast"](x, dtype=np.dtype(np.float32)) if x.dtype.itemsize == 2 else x


def narrowed(x: Node, node: Node) -> Node:
    return x if x.dtype == node.dtype else OPS["cast"](x, dtype=node.dtype)
