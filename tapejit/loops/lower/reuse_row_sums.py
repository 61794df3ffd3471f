"""Sums along the rows of a product, from a product that is there already.

The slope of a softmax needs, for each row, the sum of p * (g @ vᵀ), where p are the
weights that the values v were multiplied by. That is the sum of g * (p @ v), which has
as many terms as v has columns, and p @ v is what the attention has given. With it no
row of the large matrices is added up in the backward pass, so that these can go by in
tiles (`columns.py`). The sum has other terms, and as many digits.

Start reading at `with_known_products`.
"""

from __future__ import annotations

from tapejit import ops
from tapejit.base.types import is_float
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node, origin_of
from tapejit.ir.rewriting import rewritten

Matrix = tuple[Node, tuple[int, ...]]


def with_known_products(graph: Graph) -> Graph:
    """sum(p * (g @ vᵀ)) -> sum(g * (p @ v)) along the last axis, if p @ v is there.

    >>> from tapejit.ir import parse_graph
    >>> from tapejit import ops
    >>> text = '''graph f(p: f32[8,9], g: f32[8,3], v: f32[9,3]) {
    ...   %0: f32[8,3] = matmul p, v
    ...   %1: f32[3,9] = permute_dims v, axes=(1, 0)
    ...   %2: f32[8,9] = matmul g, %1
    ...   %3: f32[8,9] = mul p, %2
    ...   %4: f32[8] = sum %3, axes=(1,), keepdims=False
    ...   return %0, %4
    ... }'''
    >>> print(with_known_products(parse_graph(text)))
    graph f(p: f32[8,9], g: f32[8,3], v: f32[9,3]) {
      %0: f32[8,3] = matmul p, v
      %1: f32[8,3] = mul g, %0
      %2: f32[8]   = sum %1, axes=(1,), keepdims=False
      return %0, %2
    }
    """
    known: dict[tuple[Node, Matrix], Node] = {}

    def step(node: Node) -> Node:
        if node.op is ops.matmul and is_float(node.dtype):
            left, right = node.inputs
            known[left, matrix_of(right)] = node
        if node.op is not ops.sum or node.attrs["axes"] != (node.inputs[0].ndim - 1,):
            return node
        (terms,) = node.inputs
        if terms.op is not ops.mul:
            return node
        for p, product in (terms.inputs, terms.inputs[::-1]):
            if product.op is not ops.matmul or p.shape != product.shape:
                continue
            g, right = product.inputs
            found = known.get((p, transposed(matrix_of(right))))
            is_shorter = int(g.shape[-1]) < int(p.shape[-1])
            if found is not None and found.shape == g.shape and is_shorter:
                with origin_of(node.origin):
                    return ops.sum(g * found, **node.attrs)
        return node

    return rewritten(graph, step)


def matrix_of(node: Node) -> Matrix:
    """What a matrix is made of by changing axes only, and in which order they are."""
    axes = tuple(range(node.ndim))
    while node.op is ops.permute_dims:
        axes = tuple(node.attrs["axes"][axis] for axis in axes)
        (node,) = node.inputs
    return node, axes


def transposed(matrix: Matrix) -> Matrix:
    """The same with its last two axes the other way round."""
    base, (*front, row, column) = matrix
    return base, (*front, column, row)
