"""Implicit matmul of a convolution: windows are read where they lie.

With its padding in memory, the input of a convolution has every term of it at a place
that is a sum of multiples: one for each axis of the result, and one for each axis of a
window. So the matrix of all windows need not be laid out, in memory or in a cache:

    result[batch, position, feature] = Σ x[batch, position · stride + entry · dilation,
                                           channel] · filters[entry, channel, feature]

A `Windows` says this with strides. The rows of the product are axes of the result
(`RowAxis`) that x is read along evenly; other axes make a stack of such products, and
features are the columns. What is summed up, `Term`s, are the axes of a window and the
channels; those that both operands go through evenly are one. The derivative by the
filters is the same with other strides: there entries of the window and channels are
rows, batch and positions are terms.

Spread input is not spread in memory: each phase is a product of its own, with the
entries of the window that it sees.

Terms are cut into blocks of at most `matmul_block_terms`, by their sizes alone. The sum
of a block is one chain of fused multiply-adds that begins with 0, and blocks are added
in their order: so the bits are the same for all tiles, processors and numbers of
threads.

The code is emitted by `conv_kernel`. Start reading at `windows_of`, then
`window_tiling`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from tapejit.base.types import DType
from tapejit.loops.index import strides_of
from tapejit.loops.lower.windows import Phase, phases_of
from tapejit.loops.steps import Step
from tapejit.targets.cpu.matmul.tiling import (
    BatchAxis,
    Cut,
    Gemm,
    Registers,
    Strides,
    Tiling,
    tile_of,
)
from tapejit.targets.cpu.target import CPU


class ResultAxis(NamedTuple):
    """An axis of the result: which one it is, and the places along it."""

    size: int
    axis: int
    first: int = 0
    period: int = 1


class RowAxis(NamedTuple):
    """Axes of the result that x is read along evenly, outermost first."""

    parts: tuple[ResultAxis, ...]
    a: int  # stride of x

    @property
    def size(self) -> int:
        return prod(part.size for part in self.parts)


class Term(NamedTuple):
    """An axis that is summed along: its size, the strides of x and of the filters."""

    size: int
    a: int
    b: int


@dataclass(frozen=True)
class Windows:
    """A convolution by strides, or one phase of it. `shape` is that of the result.

    `start` has the places of the first elements of x and of the filters, `group` the
    strides of a group of channels and of features.
    """

    shape: tuple[int, ...]
    rows: RowAxis
    stack: tuple[RowAxis, ...]
    terms: tuple[Term, ...]  # outermost first
    groups: int
    group: tuple[int, int]
    start: tuple[int, int]
    column: int  # stride of the features of a filter, 1 if there is one

    @property
    def features(self) -> int:
        """Of one group."""
        return self.shape[-1] // self.groups

    @property
    def matrices(self) -> int:
        """How many products a group has."""
        return prod(axis.size for axis in self.stack)

    @property
    def count(self) -> int:
        """How many terms an element has."""
        return prod(term.size for term in self.terms)


def windows_of(product: Step) -> list[Windows]:
    """The Step of a convolution by the strides it has, one phase after the other."""
    node = product.performed
    axes = [phases_of(node, axis) for axis in range(node.ndim - 2)]
    return [windows_in(product, phases) for phases in itertools.product(*axes)]


def windows_in(product: Step, phases: Sequence[Phase]) -> Windows:
    """One phase of a convolution; `phases` are those of its axes."""
    node = product.performed
    (_, _, left), (_, _, right) = product.views
    shape = tuple(map(int, node.shape))
    channels = int(node.inputs[1].shape[-2])
    groups = int(node.attrs["groups"])
    rows = [RowAxis((ResultAxis(shape[0], 0),), left[0])]
    terms = [Term(channels, left[-1], right[-2])]
    start = [0, 0]
    for axis, phase in enumerate(phases):
        a, b = left[axis + 1], right[axis]
        part = ResultAxis(phase.positions, axis + 1, phase.first, phase.period)
        rows.append(RowAxis((part,), phase.stride * a))
        terms.append(Term(phase.entries, phase.dilation * a, phase.skip * b))
        start[0] += phase.start * a
        start[1] += phase.entry * b
    found = merged_rows(rows)
    chosen = rows_among(found)
    return Windows(
        shape,
        chosen,
        tuple(axis for axis in found if axis is not chosen),
        merged_terms(terms),
        groups,
        (channels * left[-1], shape[-1] // groups * right[-1]),
        (start[0], start[1]),
        right[-1] if shape[-1] > groups else 1,
    )


def merged_rows(axes: Sequence[RowAxis]) -> list[RowAxis]:
    """In the order of x in memory, neighbours that it goes through evenly made one.

    >>> rows = [RowAxis((ResultAxis(3, 0),), 1), RowAxis((ResultAxis(5, 1),), 3)]
    >>> merged_rows(rows) == [RowAxis((ResultAxis(5, 1), ResultAxis(3, 0)), 1)]
    True
    """
    found: list[RowAxis] = []
    # What has one place can go with any other, so it comes first.
    for axis in sorted(axes, key=lambda axis: (axis.size > 1, -abs(axis.a))):
        if found and (found[-1].size == 1 or found[-1].a == axis.size * axis.a):
            axis = RowAxis((*found.pop().parts, *axis.parts), axis.a)
        found.append(axis)
    return found


def merged_terms(terms: Sequence[Term]) -> tuple[Term, ...]:
    """The same of what is summed up, for both operands; there is one at least.

    >>> merged_terms([Term(3, 100, 96), Term(3, 8, 32), Term(8, 1, 4)])
    (Term(size=3, a=100, b=96), Term(size=24, a=1, b=4))
    """
    if any(term.size == 0 for term in terms):
        return (Term(0, 0, 0),)
    found: list[Term] = []
    several = [term for term in terms if term.size > 1]
    for term in sorted(several, key=lambda term: -abs(term.a)):
        if found and found[-1][1:] == (term.size * term.a, term.size * term.b):
            term = Term(found.pop().size * term.size, term.a, term.b)
        found.append(term)
    return tuple(found) or (Term(1, 0, 0),)


def rows_among(axes: Sequence[RowAxis]) -> RowAxis:
    """Rows next to each other if they are enough for a tile, else the most rows."""
    enough = [axis for axis in axes if axis.size >= CPU.tuning.conv_tile_least_rows]
    if enough:
        return enough[-1]
    return max(axes, key=lambda axis: axis.size)


class Blocks(NamedTuple):
    """How terms are cut: the first ones one by one, one in parts, the rest whole.

    >>> blocks_of((Term(32, 900, 900), Term(30, 30, 30), Term(30, 1, 1)))
    Blocks(axis=1, parts=4)
    >>> blocks_of((Term(3, 100, 96), Term(96, 1, 1)))
    Blocks(axis=0, parts=1)
    """

    axis: int
    parts: int


def blocks_of(terms: Sequence[Term]) -> Blocks:
    """The cut of terms, by their sizes alone."""
    if prod(term.size for term in terms) <= CPU.numerics.matmul_uncut_terms:
        return Blocks(0, 1)
    inside, axis, most = 1, len(terms) - 1, CPU.numerics.matmul_block_terms
    while axis and inside * terms[axis].size <= most:
        inside *= terms[axis].size
        axis -= 1
    return Blocks(axis, -(-terms[axis].size // (most // inside)))


def window_tiling(windows: Windows, dtype: DType, registers: Registers) -> Tiling:
    """Tiles, panels and the tasks of a group; of the result as a stack of matrices."""
    *front, m, features = windows.shape
    out = strides_of(windows.shape)
    inner, rows = windows.terms[-1], windows.rows.size
    gemm = Gemm(
        m,
        windows.features,
        windows.count,
        dtype,
        Strides(windows.rows.a, inner.a),
        Strides(inner.b, windows.column),
        Strides(features, 1),
        tuple(
            BatchAxis(size, 0, 0, stride)
            for size, stride in zip(front, out, strict=False)
            if size != 1
        ),
    )
    width = registers.nbytes // gemm.lane
    vectors = -(-gemm.n // width)
    mr, nv = tile_of(rows, vectors, gemm.k, registers)
    cut = blocks_of(windows.terms)
    blocks = cut.parts * prod(term.size for term in windows.terms[: cut.axis])
    made = Tiling(gemm, False, False, width, Cut.of(rows, mr), nv, blocks=blocks)
    tuning, numerics = CPU.tuning, CPU.numerics
    terms = numerics.matmul_uncut_terms if blocks == 1 else numerics.matmul_block_terms
    depth = max(1, min(gemm.k, terms))
    room = tuning.conv_task_bytes // (depth * gemm.lane)
    most = min(tuning.matmul_task_most_rows, room)
    row_blocks = -(-rows // most)
    stacks = -(-windows.matrices // max(1, most // rows))
    made = replace(made, row_blocks=row_blocks, groups=stacks)
    if blocks > 1:
        held = min(most, rows * windows.matrices) * made.columns * gemm.lane
        panels = max(1, tuning.matmul_sum_bytes // held)
        made = replace(made, column_blocks=-(-made.panels // panels))
    wanted = min(
        tuning.busy_tasks, -(-gemm.operations // tuning.matmul_task_operations)
    )
    while made.tasks * windows.groups < wanted:
        if 2 * made.column_blocks <= made.panels:  # what is packed is packed once
            made = replace(made, column_blocks=2 * made.column_blocks)
        elif 2 * made.groups <= windows.matrices:
            made = replace(made, groups=2 * made.groups)
        elif 2 * made.row_blocks <= made.rows.parts:
            made = replace(made, row_blocks=2 * made.row_blocks)
        else:
            break
    tiles = made.tiles_of_task * -(-windows.matrices // made.groups)
    packs_b = tiles > tuning.unpacked_b_tiles or windows.column != 1
    return replace(made, packs_b=packs_b)
