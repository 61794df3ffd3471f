"""What loops can compute: which Nodes, and which products of matrices.

Start reading at `is_native`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.base.types import DType, TensorType, is_complex, is_float
from tapejit.ir.interpret import contains_dim
from tapejit.ir.node import LITERAL, Movement, Node, Op
from tapejit.loops import numerics
from tapejit.loops.lower.complex_parts import written_out
from tapejit.loops.lower.expand import is_known_power
from tapejit.loops.lower.grouped import is_convolved
from tapejit.loops.lower.windows import is_windowed_product

# Operations on whole arrays that are fused where this holds.
FUSED: Final[dict[Op, Callable[[Node], bool]]] = {
    # Of few arrays it is a condition on positions.
    ops.concat: lambda node: len(node.inputs) <= numerics.LOOPS.joined_arrays,
    # This one is a comparison.
    ops.gather_add: lambda node: one_hot(node) is not None,
    # Without gaps it is a condition on positions.
    ops.place: lambda node: all(step == 1 for step in node.attrs["steps"]),
}

Supports = Callable[[Op, Sequence[DType], DType, Mapping[str, Any]], bool]


def is_native(node: Node, supports: Supports) -> bool:
    """Whether loops can compute this Node.

    `supports` is a Target's: whether it can compute an elementwise operation on these
    dtypes, or sums of products that are rounded once.
    """
    has_complex = False
    for kind in (node.type, *[x.type for x in node.inputs]):
        if not isinstance(kind, TensorType) or not kind.is_static or 0 in kind.shape:
            return False
        has_complex |= is_complex(kind.dtype)
    op, attrs = node.op, node.attrs
    if any(map(contains_dim, attrs.values())):
        return False
    if has_complex:
        made = written_out(node)
        return made is not None and all(is_native(x, supports) for x in made)
    if op is ops.gather:
        return is_inside(node.inputs[0], node.inputs[1:], attrs["axes"])
    if op is ops.gather_add and one_hot(node) is not None:
        return is_inside(node.inputs[0], node.inputs[2:], attrs["axes"])
    dtypes = [x.dtype for x in node.inputs]
    if is_fused_product(node):
        return supports(op, dtypes, node.dtype, attrs)
    if op.terms is not None:
        return op is ops.matmul or is_convolved(node)
    if op.moves not in (None, Movement.OTHER) or op.reduces is not None:
        return True
    if op is ops.iota or op.bound is not None:
        return True
    if op.expands is not None or is_whole(node) or is_known_power(node):
        return True
    return op.scalar is not None and supports(op, dtypes, node.dtype, attrs)


def is_fused_product(node: Node) -> bool:
    """Whether loops compute a Node as sums of products that are rounded once.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> x, y = (param("x", TensorType.parse(f"{kind}[2,2]")) for kind in ("f32", "i32"))
    >>> is_fused_product(ops.matmul(x, x)), is_fused_product(ops.matmul(y, y))
    (True, False)
    """
    if node.op is ops.matmul:
        return is_float(node.dtype)
    return node.op.terms is not None and is_windowed_product(node)


def is_whole(node: Node) -> bool:
    """Whether a Node is an operation on whole arrays, with code of its own."""
    takes, is_fused = node.op.on_arrays, FUSED.get(node.op)
    if takes is None or not takes(node):
        return False
    return is_fused is None or not is_fused(node)


def one_hot(node: Node) -> int | None:
    """Of a scatter that hits each row once, the rank of its updates; None of others.

    Rows go along the last axis, and the indices of the axes before it count them, as in
    the gradient of a selected score. Updates are one per row: `[rows]` or `[rows, 1]`.
    """
    x, updates, *indices = node.inputs
    *counting, targets = indices
    rows = x.shape[:-1]
    if not rows or node.attrs["axes"] != tuple(range(x.ndim)):
        return None
    if updates.shape not in (rows, (*rows, 1)) or targets.ndim > updates.ndim:
        return None
    for axis, index in enumerate(counting):
        along = counting_axis(index, rows[axis])
        if along is None or along - index.ndim != axis - updates.ndim:
            return None
    return updates.ndim


def counting_axis(node: Node, size: int) -> int | None:
    """The axis along which a Node is 0, 1, 2 ... `size` - 1, if it has no other."""
    long = [at for at, length in enumerate(node.shape) if length != 1]
    if len(long) != 1 or node.shape[long[0]] != size:
        return None
    while node.op is ops.reshape or is_whole_cast(node):
        (node,) = node.inputs
    if node.op is ops.iota:
        return long[0]
    if node.op is not LITERAL:
        return None
    value = np.asarray(node.attrs["value"]).reshape(-1)
    return long[0] if np.array_equal(value, np.arange(size)) else None


def is_whole_cast(node: Node) -> bool:
    """Whether integers get another dtype that can hold as many as there are."""
    if node.op is not ops.cast or node.dtype.kind not in "iu":
        return False
    is_known = node.inputs[0].dtype.kind in "iu"
    return is_known and math.prod(node.shape) <= np.iinfo(node.dtype).max


def is_inside(x: Node, indices: Sequence[Node], axes: Sequence[int]) -> bool:
    """Whether the indices that are known are in range."""
    for index, axis in zip(indices, axes, strict=True):
        if index.op is LITERAL:
            value, size = np.asarray(index.attrs["value"]), x.shape[axis]
            if np.any((value < -size) | (value >= size)):
                return False
    return True


def is_small_product(x: Node, y: Node) -> bool:
    """Whether a product of matrices is better a loop among loops than a kernel."""
    m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
    first, second, _ = sorted((int(m), int(k), int(n)))
    is_small = first * second <= numerics.LOOPS.looped_matmul_elements
    return first == 1 or is_small or not is_float(x.dtype)
