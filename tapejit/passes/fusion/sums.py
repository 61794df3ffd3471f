"""Sums over the rows of a product, done along with it.

A gradient by a bias and a loss add up what the epilogue of a product computes. While
that is in registers, adding it up takes one instruction, and if nobody else needs the
value it is never stored. `Parts` turns such a reduction into two: in the epilogue, a
Step of kind "part" adds up the rows of a *unit*, column by column; what is left is a
reduction of these few rows of totals, or nothing if there is one unit only.

How many rows a unit has follows from the sizes alone (`unit_of`), and one task has all
of it, from the first row to the last: so additions come in the same order for any
number of threads and on every processor, whatever tiles it has. A unit is short, so
rounding does not add up in a long chain.

Start reading at `unit_of`, then `Parts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from tapejit.passes.fusion.index import Affine, Axis
from tapejit.passes.fusion.schedule import Loop
from tapejit.passes.fusion.steps import Step

REDUCTIONS: Final = ("sum", "max", "min")
DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float64))
MOST: Final = 512  # bytes of a column of a unit: packed, its rows fit a task's memory
LEAST: Final = 128  # so that tiles of rows are full enough
COLUMNS: Final = 16  # of a product, at least
ENOUGH: Final = 128  # columns of all units: four tasks of the widest vectors


def unit_of(product: Step) -> int:
    """How many rows of a product add up together, 0 if none do."""
    node, dtype = product.node, product.dtype
    assert node is not None
    if node.op.name != "matmul" or dtype not in DTYPES or not is_one_matrix(product):
        return 0
    *front, m, n = map(int, node.shape)
    rows = math.prod(front) * m
    most, least = (x // dtype.itemsize for x in (MOST, LEAST))
    sizes = range(min(rows, most), least - 1, -1)
    unit = next((size for size in sizes if rows % size == 0), 0)
    is_enough = m > 1 and n >= COLUMNS and unit and rows // unit * n >= ENOUGH
    return unit if is_enough else 0


def is_one_matrix(product: Step) -> bool:
    """Whether all rows of a stack meet the same columns, and follow each other."""
    assert product.node is not None
    x, y = product.node.inputs
    if math.prod(map(int, y.shape[:-2])) != 1:
        return False
    (_, _, strides), _ = product.attrs["views"]
    axes = zip(map(int, x.shape[:-1]), strides, strict=False)
    long = [(size, stride) for size, stride in axes if size != 1]
    return all(stride == size * inner for (_, stride), (size, inner) in pairwise(long))


def is_sum_of_rows(step: Step, axes: Sequence[Axis]) -> bool:
    """Whether a Step adds up all rows of a product, or all of its elements."""
    *rows, column = axes
    is_whole = step.closed | step.labels == {*axes} and step.closed >= {*rows}
    return (
        step.kind == "reduce"
        and step.reduction in REDUCTIONS
        and step.dtype in DTYPES
        and step.dtype == step.inputs[0].dtype
        and bool(rows)
        and is_whole
        and step.labels <= {column}
    )


class Parts:
    """Sums over the rows of a product: `steps` are what its epilogue does of them."""

    def __init__(self, sums: Sequence[Step], axes: Sequence[Axis], unit: int) -> None:
        *rows, self.column = axes
        self.closed = {step: step.closed for step in sums}  # as it was before
        self.unit = unit
        count = math.prod(axis.size for axis in rows) // unit if unit else 1
        self.units = [Axis(count)] if count > 1 else []
        self.steps = [self.part_of(step) for step in sums]

    def part_of(self, step: Step) -> Step:
        """What the epilogue does of a sum, which then adds up no more than that."""
        rest = [*self.units, *([self.column] if self.column in step.closed else [])]
        attrs, reduced = {"unit": self.unit}, [Axis(self.unit)]
        if not rest:
            step.kind, step.attrs = "part", {**step.attrs, **attrs}
            step.reduced = tuple(reduced)
            return step
        axes = [*self.units, self.column]
        made = Step(
            "part",
            step.dtype,
            inputs=step.inputs,
            axes=axes,
            reduced=reduced,
            dims=tuple(axes),
            op=step.op,
            attrs=attrs,
            node=step.node,
        )
        step.inputs, step.reduced = [load_of(made)], tuple(rest)
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
            if step.kind == "part" or loop.axis not in closed or closed & around:
                continue
            axes = (*(step.labels - around), *step.reduced)
            nests.setdefault(axes, []).append(step)
        made = []
        for axes, body in nests.items():
            for axis in reversed(axes):
                body = [Loop(axis, body)]
            made += body
        return made


def load_of(step: Step) -> Step:
    """A load of what a Step computes, in an iteration over the same axes."""
    assert step.dims is not None
    index = tuple(
        Affine.of(dim.root) if dim is not None and dim.root in step.labels else Affine()
        for dim in step.dims
    )
    return Step(
        "load",
        step.dtype,
        axes=tuple(step.labels),
        index=index,
        source=step,
        attrs={"flat": False},
    )
