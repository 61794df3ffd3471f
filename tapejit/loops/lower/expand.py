"""Operations that loops compute as several: each has its Node as a small graph.

A reduction of a computed value, or a function of integers that is a few operations on
them, fuses with its neighbours once it is written out. The values are those of the
record: where it is exact every step is, and where it is rounded from a wide precision
the result agrees by the same bounds.

Start reading at `EXPANSIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from tapejit.base.types import is_complex
from tapejit.ir.graph import Graph
from tapejit.ir.node import OPS, Node, literal, origin_of
from tapejit.ir.rewriting import rewritten
from tapejit.loops import numerics
from tapejit.loops.lower.grouped import expand_conv
from tapejit.loops.lower.resampled import expand_adjoint, expand_resample
from tapejit.ops.activations import lowest
from tapejit.ops.philox import MASK32, MASK64, SIGNIFICANT_BITS
from tapejit.ops.reduction import powers_below_largest
from tapejit.ops.segments import scattered_sum
from tapejit.rewrite.cse import cse
from tapejit.rewrite.simplify import simplify

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def expanded(graph: Graph) -> Graph:
    """The Graph with all of them written out, and what is then computed twice, once."""
    found = rewritten(graph, expansion)
    return found if found is graph else cse(simplify(found))


def expansion(node: Node) -> Node:
    """What a Node is in terms of others, itself if it is one of them."""
    expand = EXPANSIONS.get(node.op.name)
    if expand is None or any(is_complex(x.dtype) for x in node.inputs):
        return node
    with origin_of(node.origin):
        return expand(node)


def cast(x: Node, dtype: np.dtype[np.generic]) -> Node:
    return x if x.dtype == dtype else OPS["cast"](x, dtype=dtype)


def expand_logsumexp(node: Node) -> Node:
    """log(sum(exp(x - largest))) + largest, from the powers that its slope has too."""
    (x,) = node.inputs
    axes = node.attrs["axes"]
    count = math.prod(int(x.shape[axis]) for axis in axes)
    is_long = count >= numerics.LOOPS.logsumexp_single_terms
    is_single = x.dtype != F64 and (x.dtype != F32 or is_long)
    wide = cast(x, F32 if is_single else F64)
    largest = OPS["max"](wide, axes=axes, keepdims=True)
    shift = OPS["where"](OPS["equal"](largest, -math.inf), 0, largest)
    powers = powers_below_largest(wide, axes)
    total = OPS["sum"](powers, axes=axes, keepdims=True)
    out = cast(OPS["log"](total) + shift, node.dtype)
    if node.attrs["keepdims"]:
        return out
    return OPS["reshape"](out, shape=node.shape)


def expand_softmax(node: Node) -> Node:
    """e^x over its sum, from the differences to the largest, as the record has it."""
    (x,) = node.inputs
    axes = node.attrs["axes"]
    wide = cast(x, F64 if x.dtype == F64 else F32)
    largest = largest_multiple(wide, axes)
    shift = OPS["maximum"](largest, literal(lowest(wide.dtype), wide.dtype))
    powers = OPS["exp"](wide - shift)
    total = OPS["sum"](powers, axes=axes, keepdims=True)
    one = literal(1.0, wide.dtype)
    return cast(powers * (one / OPS["maximum"](total, one)), node.dtype)


def largest_multiple(x: Node, axes: tuple[int, ...]) -> Node:
    """max(x), and where x is y times or over c > 0, max(y) times or over c.

    Products and quotients by c are in the order of the y, rounded or not, so it is the
    same number. Only zeros may differ in their signs, to which powers are indifferent.
    """
    match x:
        case Node(inputs=(y, Node(value=float(c), shape=()))) if (
            x.op.name in ("mul", "div") and 0 < c < math.inf and y.shape == x.shape
        ):
            largest = OPS["max"](y, axes=axes, keepdims=True)
            return x.op(largest, x.inputs[1])
    return OPS["max"](x, axes=axes, keepdims=True)


def expand_uniform(node: Node) -> Node:
    """The top bits of a word, times a power of two."""
    (words,) = node.inputs
    digits = SIGNIFICANT_BITS[node.dtype.name]
    bits = 8 * words.dtype.itemsize
    top = OPS["bitwise_right_shift"](words, literal(bits - digits, words.dtype))
    wide = cast(top, F64 if bits == 64 else F32)
    return cast(wide * literal(2.0**-digits, wide.dtype), node.dtype)


def expand_integers(node: Node) -> Node:
    """low + floor(word * (high - low) / 2**64), from products of halves."""
    (words,) = node.inputs
    low, high = int(node.attrs["low"]), int(node.attrs["high"])
    factor = high - low

    def number(value: int) -> Node:
        return literal(value, words.dtype)

    def half(x: Node) -> Node:
        return OPS["bitwise_right_shift"](x, number(32))

    def rest(x: Node) -> Node:
        return OPS["bitwise_and"](x, number(MASK32))

    offset = words
    if factor <= MASK64:
        factor_low, factor_high = number(factor & MASK32), factor >> 32
        middle = half(words) * factor_low + half(rest(words) * factor_low)
        offset = half(middle)
        if factor_high:
            upper = number(factor_high)
            offset = offset + half(words) * upper
            offset = offset + half(rest(words) * upper + rest(middle))
    return cast(offset + number(low & MASK64), node.dtype)


def expand_segment_sum(node: Node) -> Node:
    """A scatter, with nothing added where an element belongs to no segment."""
    x, ids = node.inputs
    return scattered_sum(x, ids, node.attrs["size"])


def expand_place_add(node: Node) -> Node:
    """Additions, each with a placement that is read in place; itself if parts are many.

    Fused, an element costs a masked load for each part. As an operation on whole arrays
    it costs to write the parts, and to read and write the elements that these have.
    """
    x, *updates = node.inputs
    own = [math.prod(map(int, part.shape)) for part in updates]
    size = math.prod(map(int, node.shape))
    if len(updates) * size > numerics.LOOPS.placed_element_loads * (size + sum(own)):
        return node
    parts = zip(updates, node.attrs["starts"], node.attrs["steps"], strict=True)
    for part, starts, steps in parts:
        placed = OPS["place"](part, shape=node.shape, starts=starts, steps=steps)
        x = x + placed
    return x


EXPANSIONS: Final[dict[str, Callable[[Node], Node]]] = {
    "bits_to_integers": expand_integers,
    "bits_to_uniform": expand_uniform,
    "conv": expand_conv,
    "logsumexp": expand_logsumexp,
    "place_add": expand_place_add,
    "resample": expand_resample,
    "resample_adjoint": expand_adjoint,
    "segment_sum": expand_segment_sum,
    "softmax": expand_softmax,
}
