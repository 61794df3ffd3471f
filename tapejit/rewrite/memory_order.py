"""Memory order: how values lie in memory, as far as their operations tell.

A rewriting that saves a copy keeps every number, but perhaps not the order of the
numbers in memory; and NumPy adds up a matrix in the order it meets in memory, so a sum
further on could change in its last bit. `Layouts` know for each Node the order of its
axes, from the one with the largest stride to the one with the smallest, and whether
its elements lie without gaps and repetitions. A copy may be saved where both are known
and the same before and after.

What comes from outside counts as laid out row by row.

Start reading at `Layouts.are_alike`.
"""

from __future__ import annotations

import operator
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit import ops
from tapejit.base.types import TensorType, is_complex
from tapejit.ir.node import LITERAL, PARAM, Movement, Node, Op


class MemoryOrder(NamedTuple):
    """The axes by falling stride, None if unknown; whether elements lie side by side.

    A size 1 has no say in the order, a repeated axis counts where it stands.
    """

    order: tuple[int, ...] | None
    is_dense: bool


UNKNOWN: Final = MemoryOrder(None, False)
OPERATORS: Final[frozenset[Any]] = frozenset(
    {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg}
)
PLACING: Final = frozenset({ops.place, ops.place_add})
# These always make a new array; which order its axes get is known for rows alone.
COPYING: Final = frozenset({ops.gate, ops.square, ops.where})


def in_rows(ndim: int) -> MemoryOrder:
    return MemoryOrder(tuple(range(ndim)), True)


def is_complex_number(node: Node) -> bool:
    """Whether a Node is one complex number.

    Then it matters to the next product whether it comes as an array without axes or as
    a NumPy scalar: the loop that multiplies arrays rounds once less.
    """
    kind = node.type
    return isinstance(kind, TensorType) and not kind.shape and is_complex(kind.dtype)


class Layouts:
    """The layouts of Nodes, found when they are asked for and kept."""

    def __init__(self) -> None:
        self._known: dict[Node, MemoryOrder] = {}

    def are_alike(self, x: Node, y: Node) -> bool:
        """Whether two Nodes of the same value are known to lie alike in memory.

        >>> from tapejit import ops
        >>> from tapejit.ir import param
        >>> layouts = Layouts()
        >>> x = param("x", TensorType.parse("f32[3,1]"))
        >>> layouts.are_alike(x * 1, x)
        True
        >>> wide = ops.broadcast_to(x, shape=(3, 2))  # every element twice, no memory
        >>> layouts.are_alike(wide * 1, wide)
        False
        """
        layout = self.of(x)
        return layout.is_dense and layout.order is not None and layout == self.of(y)

    def of(self, node: Node) -> MemoryOrder:
        """The layout of a Node."""
        known = self._known
        stack = [node]
        while stack:  # and no recursion: a program may be ten thousand Nodes deep
            x = stack[-1]
            unknown = [] if x in known else [y for y in x.inputs if y not in known]
            stack += unknown
            if not unknown:
                stack.pop()
                if x not in known:
                    known[x] = self._inferred(x)
        return known[node]

    def _inferred(self, node: Node) -> MemoryOrder:
        if not isinstance(node.type, TensorType):
            return UNKNOWN
        ndim = len(node.type.shape)
        op = node.op
        if not ndim or op is PARAM or op in PLACING:
            return in_rows(ndim)
        if op is LITERAL:
            is_plain = node.attrs["value"].flags.c_contiguous
            return in_rows(ndim) if is_plain else UNKNOWN
        operands = [self._known[x] for x in node.inputs]
        if op.moves is Movement.ALIAS or op is ops.recomputed:
            return operands[0]
        if op is ops.permute_dims:
            return _permuted(operands[0], node.attrs["axes"])
        if op is ops.real or op is ops.imag:
            return _part(op, node.inputs[0], operands[0])
        if op is ops.slice:
            return MemoryOrder(operands[0].order, False)
        plain = tuple(range(ndim))
        is_plain = operands != [] and _all_plain(operands)
        if op is ops.broadcast_to:
            return MemoryOrder(plain, False) if is_plain else UNKNOWN
        if op is ops.concat:
            return in_rows(ndim) if is_plain else UNKNOWN
        if op is ops.matmul and ndim == 2:
            return in_rows(ndim)
        is_dense = is_plain and _all_dense(operands)
        if op is ops.reshape or op.reduces is not None or op is ops.matmul:
            return in_rows(ndim) if is_dense else UNKNOWN
        if op.scalar is None:
            return UNKNOWN
        if is_dense or (is_plain and (is_ufunc(op) or op in COPYING)):
            return in_rows(ndim)
        return self._kept(node, operands) if is_ufunc(op) else UNKNOWN

    def _kept(self, node: Node, operands: list[MemoryOrder]) -> MemoryOrder:
        """A ufunc takes over the order that all its operands with axes have."""
        whole = [
            layout.order if x.shape == node.shape else None
            for x, layout in zip(node.inputs, operands, strict=True)
            if x.shape
        ]
        return MemoryOrder(whole[0], True) if len(set(whole)) == 1 else UNKNOWN


def _all_plain(layouts: list[MemoryOrder]) -> bool:
    """Whether in each the last axis runs fastest."""
    for layout in layouts:
        if layout.order is None or layout.order != tuple(range(len(layout.order))):
            return False
    return True


def _all_dense(layouts: list[MemoryOrder]) -> bool:
    return False not in [layout.is_dense for layout in layouts]


def _part(op: Op, x: Node, layout: MemoryOrder) -> MemoryOrder:
    """The parts of complex numbers are views that skip the other part."""
    if is_complex(x.dtype):
        return MemoryOrder(layout.order, False)
    return layout if op is ops.real else UNKNOWN


def _permuted(layout: MemoryOrder, axes: tuple[int, ...]) -> MemoryOrder:
    if layout.order is None:
        return UNKNOWN
    return MemoryOrder(tuple(axes.index(at) for at in layout.order), layout.is_dense)


def is_ufunc(op: Op) -> bool:
    """Whether NumPy chooses the layout of the result by those of the operands."""
    return isinstance(op.eval, np.ufunc) or op.eval in OPERATORS or op is ops.cast
