"""Partial sums in an epilogue: reductions that begin along with a matmul.

A gradient by a bias and a loss add up what the epilogue of a product computes. While
that is in registers, adding it up takes an instruction or two, and if nobody else needs
the value it is never stored. `EpilogueSums` turns such a reduction into two. In the
epilogue, a `PartialSum` adds up the rows of a *unit*, column by column, or the elements
of a *group* along a row. What is left is a reduction of these totals, or nothing if
there is one unit or group only.

How many add up together follows from the sizes alone (`sum_cut`), and one task has all
of them, in order: so additions come in the same order for any number of threads and on
every processor, whatever tiles it has. A unit is short, so rounding does not add up in
a long chain.

Start reading at `sum_cut`, then `EpilogueSums`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from tapejit import ops
from tapejit.loops import numerics
from tapejit.loops.index import Affine, Axis
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Load, PartialSum, Reduce, Step

REDUCTIONS: Final = (ops.sum, ops.max, ops.min)
DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float64))


class SumCut(NamedTuple):
    """How many numbers of a product add up together, 0 if none do."""

    unit: int  # rows
    group: int  # elements of a row


def sum_cut(product: Step) -> SumCut:
    """Units and groups by the sizes of a product."""
    node, dtype = product.node, product.dtype
    assert node is not None
    *front, m, n = map(int, node.shape)
    limits = numerics.LOOPS
    is_fit = m >= limits.sum_least_rows and n >= limits.sum_least_columns
    if node.op is not ops.matmul or dtype not in DTYPES or not is_fit:
        return SumCut(0, 0)
    rows = math.prod(front) * m
    most = limits.sum_unit_most_bytes // dtype.itemsize
    least = limits.sum_unit_least_bytes // dtype.itemsize
    group = limits.sum_group_bytes // dtype.itemsize
    sizes = range(min(rows, most), least - 1, -1)
    unit = next((size for size in sizes if rows % size == 0), 0)
    is_enough = unit and rows // unit * n >= limits.sum_units_columns
    is_large = rows * n * dtype.itemsize >= limits.sum_groups_bytes
    is_cut = is_enough and is_one_matrix(product)
    return SumCut(unit if is_cut else 0, group if is_large else 0)


def is_one_matrix(product: Step) -> bool:
    """Whether all rows of a stack meet the same columns, and follow each other."""
    assert product.node is not None
    x, y = product.node.inputs
    if math.prod(map(int, y.shape[:-2])) != 1:
        return False
    (_, _, strides), _ = product.views
    axes = zip(map(int, x.shape[:-1]), strides, strict=False)
    long = [(size, stride) for size, stride in axes if size != 1]
    return all(stride == size * inner for (_, stride), (size, inner) in pairwise(long))


def is_sum(
    step: Step, axes: Sequence[Axis], cut: SumCut, is_kept: bool = False
) -> bool:
    """Whether a product with these axes can begin a reduction of one of its values.

    It adds up all rows, or all elements, or those of each row. The latter takes longer,
    so it is worth it only if that value is not kept for somebody else.
    """
    *rows, column = axes
    is_fit = isinstance(step.what, Reduce) and step.dtype in DTYPES
    if not is_fit or step.dtype != step.inputs[0].dtype:
        return False
    if step.closed | step.labels != {*axes}:
        return False
    if step.closed == {column}:
        # Of the product's dtype.
        is_group = cut.group * step.dtype.itemsize == numerics.LOOPS.sum_group_bytes
        return is_group and step.reduction is ops.sum and not is_kept
    is_whole = bool(rows) and step.closed >= {*rows}
    return cut.unit > 0 and is_whole and step.reduction in REDUCTIONS


class EpilogueSums:
    """Sums that a product begins: `steps` are what its epilogue does of them."""

    def __init__(self, sums: Sequence[Step], axes: Sequence[Axis], cut: SumCut) -> None:
        *self.rows, self.column = axes
        self.closed = {step: step.closed for step in sums}  # as it was before
        self.cut = cut
        count = math.prod(axis.extent for axis in self.rows)
        self.units = axes_of(count, cut.unit)
        self.groups = axes_of(self.column.extent, cut.group)
        self.steps = [self.part_of(step) for step in sums]

    def part_of(self, step: Step) -> Step:
        """What the epilogue does of a sum, which then adds up no more than that."""
        if step.closed == {self.column}:
            # Groups come first: those of a row are of several tasks, and a cache line
            # that two of them write to took a fifth of the time.
            axes, rest = [*self.groups, *self.rows], self.groups
            cut, reduced = {"group": self.cut.group}, Axis(self.cut.group)
        else:
            axes, last = [*self.units, self.column], step.closed & {self.column}
            rest = [*self.units, *last]
            cut, reduced = {"unit": self.cut.unit}, Axis(self.cut.unit)
        assert step.op is not None
        what = PartialSum(step.op, **cut)
        if not rest:
            step.do(what)
            step.reduced = (reduced,)
            return step
        made = Step(
            what,
            step.dtype,
            inputs=step.inputs,
            axes=axes,
            reduced=(reduced,),
            dims=tuple(axes),
            node=step.node,
        )
        step.inputs, step.reduced = [load_of(made)], tuple(rest)
        step.change(order=tuple(axes))
        return made

    def added(
        self, items: Sequence[Step | Loop], around: frozenset[Axis] = frozenset()
    ) -> list[Step | Loop]:
        """A tree where sums of parts stand in loops of their own, after the others."""
        kept: list[Step | Loop] = []
        for item in items:
            if not isinstance(item, Loop):
                if item not in self.closed:
                    kept.append(item)
                continue
            body = self.added(item.body, around | {item.axis})
            if body:
                kept.append(Loop(item.axis, body, tile=item.tile, lanes=item.lanes))
            kept += self.sums_after(item, around)
        return kept

    def sums_after(self, loop: Loop, around: frozenset[Axis]) -> list[Step | Loop]:
        """Loops for the sums that were done at the end of a loop."""
        nests: dict[tuple[Axis, ...], list[Step | Loop]] = {}
        for step in loop.steps():
            closed = self.closed.get(step, frozenset())
            if (
                isinstance(step.what, PartialSum)
                or loop.axis not in closed
                or closed & around
            ):
                continue
            axes = (*(step.labels - around), *step.reduced)
            nests.setdefault(axes, []).append(step)
        made = []
        for axes, body in nests.items():
            for axis in reversed(axes):
                body = [Loop(axis, body)]
            made += body
        return made


def axes_of(size: int, part: int) -> list[Axis]:
    """An axis with an iteration for each part of another one, if they are several."""
    count = -(-size // part) if part else 1
    return [Axis(count)] if count > 1 else []


def load_of(step: Step) -> Step:
    """A load of what a Step computes, in an iteration over the same axes."""
    assert step.dims is not None
    index = tuple(
        Affine.of(dim.root) if dim is not None and dim.root in step.labels else Affine()
        for dim in step.dims
    )
    return Step(Load(step, index), step.dtype, axes=tuple(step.labels))
