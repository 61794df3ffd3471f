"""Rows scattered into zeros and added up become one scatter of all of the rows.

A table that is read at several places (a word, its neighbour, words that are not) has a
cotangent that is a sum of as many tables, each of them zero but for some rows. It is
one `gather_add` of the rows joined, so only one table is there, and a step of gradient
descent need not touch the rows that nobody read (`loops/fuse/row_updates.py`).

Rows are added one after another here, not first to a table of their own: last bits may
be others. So this is part of making an adjoint, which eager code and traces share, and
not of the passes that run later. Sums are those of which nobody else uses what is in
between. What else is in one, whole arrays, is added up before.

Where the rows are more than the table has, joining them would cost more than it saves:
they are added in turns to one table, which gives the same bits.

Start reading at `join_scatters`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tapejit import ops
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node, origin_of
from tapejit.ir.rewriting import with_inputs


def join_scatters(graph: Graph) -> Graph:
    """Sums of scatters into zeros, each as one scatter.

    >>> from tapejit.ir import parse_graph
    >>> text = '''graph f(g: f32[2,3], i: i32[2], h: f32[1,3], j: i32[1]) {
    ...   %0: f32[9,3] = broadcast_to f32(0.0), shape=(9, 3)
    ...   %1: f32[9,3] = gather_add %0, g, i, axes=(0,)
    ...   %2: f32[9,3] = gather_add %0, h, j, axes=(0,)
    ...   %3: f32[9,3] = add %1, %2
    ...   return %3
    ... }'''
    >>> print(join_scatters(parse_graph(text)))
    graph f(g: f32[2,3], i: i32[2], h: f32[1,3], j: i32[1]) {
      %0: f32[9,3] = broadcast_to f32(0.0), shape=(9, 3)
      %1: f32[3,3] = concat g, h, axis=0
      %2: i32[3]   = concat i, j, axis=0
      %3: f32[9,3] = gather_add %0, %1, %2, axes=(0,)
      return %3
    }
    """
    sums = _sums(graph)
    if not sums:
        return graph
    moved: dict[Node, Node] = {}
    for node in graph.nodes:
        found = with_inputs(node, moved)
        if node in sums:
            whole, groups = sums[node]
            with origin_of(node.origin):
                terms = [moved.get(x, x) for x in whole]
                terms += [
                    _joined([with_inputs(x, moved) for x in group]) for group in groups
                ]
                found = terms[0]
                for term in terms[1:]:
                    found = found + term
        if found is not node:
            moved[node] = found
    outputs = [moved.get(x, x) for x in graph.outputs]
    effects = None if graph.effects is None else moved.get(graph.effects, graph.effects)
    return Graph(graph.name, graph.inputs, outputs, effects)


Sum = tuple[list[Node], list[list[Node]]]  # what stays, and groups that are joined


def _sums(graph: Graph) -> dict[Node, Sum]:
    """The last additions of sums in which there is something to join."""
    known = frozenset(graph.inputs)
    nodes = graph.nodes
    if sum(node.op is ops.gather_add for node in nodes) < 2:
        return {}
    uses = Counter(x for node in nodes for x in node.inputs)
    uses.update(graph.outputs)
    links = {
        node
        for node in nodes
        if node.op is ops.add and all(x.type == node.type for x in node.inputs)
    }
    inner = {x for node in links for x in node.inputs if x in links and uses[x] == 1}
    found: dict[Node, Sum] = {}
    for last in nodes:
        if last not in links or last in inner:
            continue
        whole: list[Node] = []
        groups: dict[Any, list[Node]] = {}
        waiting = list(reversed(last.inputs))
        while waiting:
            term = waiting.pop()
            if term in inner:
                waiting += reversed(term.inputs)
            elif uses[term] == 1 and _is_scatter_of_rows(term, known):
                groups.setdefault(term.attrs["axes"], []).append(term)
            else:
                whole.append(term)
        joined = [group for group in groups.values() if len(group) > 1]
        if joined:
            whole += [x for group in groups.values() if len(group) == 1 for x in group]
            found[last] = whole, joined
    return found


def _is_scatter_of_rows(node: Node, known: Collection[Node]) -> bool:
    """Whether a Node has sums in the rows that indices name, and 0 elsewhere.

    One that names single elements of a matrix may be a comparison with labels.
    """
    if node.op is not ops.gather_add or node in known:
        return False
    if node.ndim > 1 and len(node.attrs["axes"]) == node.ndim:
        return False
    start = node.inputs[0]
    while start not in known and start.op is ops.broadcast_to:
        (start,) = start.inputs
    if start in known or start.op is not LITERAL or start.shape:
        return False
    return not np.asarray(start.attrs["value"]).tobytes().strip(b"\0")  # not -0.0


def _joined(parts: Sequence[Node]) -> Node:
    """The sum of scatters along the same axes, of the first one's rows first."""
    first = parts[0]
    axes = first.attrs["axes"]
    dtypes = {x.dtype for part in parts for x in part.inputs[2:]}
    common = np.result_type(*dtypes)
    sizes = [math.prod(part.inputs[1].shape) for part in parts]
    total: Any = sum(sizes)
    are_many = isinstance(total, int) and all(isinstance(x, int) for x in first.shape)
    are_many = are_many and total > math.prod(first.shape)
    if are_many or common.kind not in "iu":  # of int64 and uint64 it is a float
        result = first
        for part in parts[1:]:
            result = ops.gather_add(result, *part.inputs[1:], axes=axes)
        return result
    rows = [_as_rows(part, common) for part in parts]
    updates, *indices = (
        ops.concat(*pieces, axis=0) for pieces in zip(*rows, strict=True)
    )
    return ops.gather_add(first.inputs[0], updates, *indices, axes=axes)


def _as_rows(part: Node, dtype: Any) -> list[Node]:
    """The updates of a scatter, one after another, and their indices."""
    x, updates, *indices = part.inputs
    rank = updates.ndim - (x.ndim - len(indices))
    front, rest = updates.shape[:rank], updates.shape[rank:]
    if rank != 1:
        updates = ops.reshape(updates, shape=(math.prod(front), *rest))
    flat = []
    for index in indices:
        if index.shape != front:
            index = ops.broadcast_to(index, shape=front)
        if rank != 1:
            index = ops.reshape(index, shape=(math.prod(front),))
        flat.append(index if index.dtype == dtype else ops.cast(index, dtype=dtype))
    return [updates, *flat]
