"""What loops can compute: which Nodes, and which products of matrices.

Start reading at `is_native`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tapejit.base.types import DType, TensorType, is_complex, is_float
from tapejit.ir.interpret import has_dims
from tapejit.ir.node import LITERAL, Node
from tapejit.loops import numerics
from tapejit.loops.lower.expand import EXPANSIONS
from tapejit.loops.lower.grouped import is_written_out
from tapejit.loops.lower.windows import is_windowed_product
from tapejit.ops.small_matrices import is_small

REDUCTIONS: Final = frozenset({"sum", "prod", "max", "min", "all", "any"})
ALIASES: Final = frozenset({"read", "reread", "stop_gradient", "with_shape"})
MOVEMENTS: Final = frozenset(
    {"reshape", "permute_dims", "broadcast_to", "flip", "slice"}
)


def always(node: Node) -> bool:
    """An operation that is taken whatever it is applied to."""
    return True


def is_small_matrix(node: Node) -> bool:
    """Whether an operation on matrices is one on small ones, in single or double."""
    shapes = [x.shape for x in node.inputs]
    columns = shapes[1][-1] if len(shapes) > 1 else 1
    return (
        node.dtype.kind == "f"
        and node.dtype.itemsize >= 4
        and is_small(shapes[0], columns)
    )


def are_rows(axes: Sequence[int], dtype: DType) -> bool:
    """Whether positions along axes are those of rows of floats, side by side.

    Halves are added up as floats and rounded once, at the end, so they are not meant.
    """
    return tuple(axes) == tuple(range(len(axes))) and dtype.itemsize >= 4


WHOLE: Final[dict[str, Callable[[Node], bool]]] = {
    "argmax": always,
    "argmin": always,
    "bits_to_normal": always,
    # Of few arrays it is a condition on positions, which is fused.
    "concat": lambda node: len(node.inputs) > numerics.LOOPS.joined_arrays,
    "cholesky": is_small_matrix,
    "cofactor": is_small_matrix,
    "cumulative_prod": always,
    "cumulative_sum": always,
    "det": is_small_matrix,
    "gather_add": lambda node: one_hot(node) is None,  # that one is a comparison
    "keyed_bits": always,
    "linear_recurrence": always,
    "logcumsumexp": always,
    # Without gaps it is a condition on positions.
    "place": lambda node: any(step != 1 for step in node.attrs["steps"]),
    "place_add": always,  # that of few large parts has been expanded
    "random_advance": always,
    "random_bits": always,
    "random_fold_in": always,
    "random_split": always,
    "solve": is_small_matrix,
    "solve_triangular": is_small_matrix,
    "subtract_rows": lambda node: are_rows(node.attrs["axes"], node.dtype),
}
"""Operations on whole arrays, each with what it takes: their code is a function of its
own among the kernels (`targets/cpu/arrays`)."""
PIECEWISE: Final = frozenset({"place", "pad", "concat"})

IsLaned = Callable[[Any, Sequence[DType], DType, Any], bool]


def is_native(node: Node, is_laned: IsLaned) -> bool:
    """Whether loops can compute this Node.

    `is_laned` says for an elementwise operation whether vectors of its dtypes can.
    """
    given = [node.type, *[x.type for x in node.inputs]]
    types = [x for x in given if isinstance(x, TensorType) and x.is_static]
    if len(types) < len(given) or has_dims(node):
        return False
    shapes = [kind.shape for kind in types]
    if any(is_complex(kind.dtype) for kind in types):
        return False
    if any(0 in shape for shape in shapes):
        return False
    name, attrs = node.op.name, node.attrs
    if name in MOVEMENTS or name in ALIASES or name in ("pad", "concat"):
        return True
    if name == "place":
        return True  # with gaps, as an operation on whole arrays
    if name in REDUCTIONS or name in ("iota", "checked_categories"):
        return True
    if name == "matmul":
        return True
    if name == "conv":
        return is_windowed_product(node) or is_written_out(node)
    if name == "gather":
        return is_inside(node.inputs[0], node.inputs[1:], attrs["axes"])
    if name == "gather_add" and one_hot(node) is not None:
        return is_inside(node.inputs[0], node.inputs[2:], attrs["axes"])
    if name in EXPANSIONS or is_whole(node):
        return True
    if node.op.scalar is None:
        return False
    return is_laned(node.op, [x.dtype for x in node.inputs], node.dtype, attrs)


def is_fused_product(node: Node) -> bool:
    """Whether loops compute a Node as sums of products that are rounded once.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> x, y = (param("x", TensorType.parse(f"{kind}[2,2]")) for kind in ("f32", "i32"))
    >>> is_fused_product(ops.matmul(x, x)), is_fused_product(ops.matmul(y, y))
    (True, False)
    """
    if node.op.name == "conv":
        return is_windowed_product(node)
    return node.op.name == "matmul" and is_float(node.dtype)


def is_whole(node: Node) -> bool:
    """Whether a Node is an operation on whole arrays, with code of its own."""
    takes = WHOLE.get(node.op.name)
    return takes is not None and takes(node)


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
    while node.op.name == "reshape" or is_whole_cast(node):
        (node,) = node.inputs
    if node.op.name == "iota":
        return long[0]
    if node.op is not LITERAL:
        return None
    value = np.asarray(node.attrs["value"]).reshape(-1)
    return long[0] if np.array_equal(value, np.arange(size)) else None


def is_whole_cast(node: Node) -> bool:
    """Whether integers get another dtype that can hold as many as there are."""
    if node.op.name != "cast" or node.dtype.kind not in "iu":
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
