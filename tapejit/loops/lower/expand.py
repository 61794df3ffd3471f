"""Decomposition: operations that loops compute as several simpler ones.

A reduction of a computed value, or a function of integers that is a few operations on
them, fuses with its neighbours once it is written out. The values are those of the
record: where it is exact every step is, and where it is rounded from a wide precision
the result agrees by the same bounds.

Start reading at `expansion`.
"""

from __future__ import annotations

import math

import numpy as np

from tapejit import ops
from tapejit.base.types import is_complex
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, OPS, Node, origin_of
from tapejit.ir.rewriting import rewritten
from tapejit.loops import numerics
from tapejit.loops.lower.grouped import (
    is_rewritten,
    is_written_out,
    rewritten_conv,
    written_out,
)
from tapejit.rewrite.cse import cse
from tapejit.rewrite.simplify import simplify


def expanded(graph: Graph) -> Graph:
    """The Graph with all of them written out, and what is then computed twice, once."""
    found = rewritten(graph, expansion)
    if found is graph:
        return graph
    # What a convolution is made of may be convolutions that are written out.
    again = rewritten(found, lambda x: expansion(x) if x.op is ops.conv else x)
    return cse(simplify(again))


def expansion(node: Node) -> Node:
    """What a Node is in terms of others, itself if it is one of them."""
    if any(is_complex(x.dtype) for x in node.inputs):
        return node
    expand = node.op.expands
    if node.op is ops.place_add and not is_fused(node):
        expand = None
    if node.op is ops.conv and is_written_out(node):
        expand = written_out
    if node.op is ops.conv and is_rewritten(node):
        expand = rewritten_conv
    if is_known_power(node):
        expand = unsigned_power
    if expand is None:
        return node
    with origin_of(node.origin):
        return expand(node)


def is_known_power(node: Node) -> bool:
    """Whether signed integers are raised to powers that are known, none negative.

    Of others nobody knows whether they are an error.

    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("i32[3]"))
    >>> is_known_power(x**2), is_known_power(x**x)
    (True, False)
    """
    if node.op is not ops.pow or node.dtype.kind != "i":
        return False
    exponent = node.inputs[1]
    return exponent.op is LITERAL and bool(np.all(exponent.attrs["value"] >= 0))


def unsigned_power(node: Node) -> Node:
    """The same bits as of integers without signs, which loops can compute."""
    unsigned = np.dtype(f"u{node.dtype.name}")
    parts = [OPS["cast"](x, dtype=unsigned) for x in node.inputs]
    return OPS["cast"](OPS["pow"](*parts), dtype=node.dtype)


def is_fused(node: Node) -> bool:
    """Whether parts that are added to an array are few enough to be read in place.

    Fused, an element costs a masked load for each part. As an operation on whole arrays
    it costs to write the parts, and to read and write the elements that these have.
    """
    _, *updates = node.inputs
    own = [math.prod(map(int, part.shape)) for part in updates]
    size = math.prod(map(int, node.shape))
    return len(updates) * size <= numerics.LOOPS.placed_element_loads * (
        size + sum(own)
    )
