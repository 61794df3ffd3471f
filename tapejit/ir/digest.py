"""A Graph's content as a name.

Equal computations have equal digests whatever their parameters, their functions and
their source lines are called, so two callers that record the same graph can share
what was made of it.

Start reading at `graph_digest`.
"""

from __future__ import annotations

from tapejit.ir.graph import Graph
from tapejit.ir.printer import canonical_text


def graph_digest(graph: Graph) -> str:
    """SHA-256 of the canonical text: no names, no comments, constants by content.

    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> def double(name):
    ...     x = param(name, TensorType.parse("f32[3]"))
    ...     return Graph("double_" + name, (x,), (x + x,))
    >>> graph_digest(double("a")) == graph_digest(double("b"))
    True
    """
    import hashlib

    return hashlib.sha256(canonical_text(graph).encode()).hexdigest()
