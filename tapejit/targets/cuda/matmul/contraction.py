"""A contraction: which elements of two operands meet, by strides.

    result[stack, row, column] = Σ a[stack, row, term] · b[stack, term, column]

A row, a column, a term and a place in the stack are numbers of several `Digit`s, each
with the strides of both operands: those of a matmul are axes of its result, those of a
convolution also positions, and entries of the window as terms. So a convolution needs
no matrix of its windows. Each phase of one is a contraction of its own.

Terms are cut into blocks as on a CPU, by their sizes alone: each block is one chain of
fused multiply-adds that begins with 0, and blocks are added in their order.

Start reading at `contractions_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tapejit import ops
from tapejit.base.types import DType
from tapejit.loops.steps import Step
from tapejit.targets.cpu.matmul.choices import aligned_strides
from tapejit.targets.cpu.matmul.conv_tiling import Windows, blocks_of, windows_of
from tapejit.targets.cpu.target import CPU


class Digit(NamedTuple):
    """A part of a number: how many places it has, and what one of them further is.

    That is so much in each operand, and `period` along an axis of the result.
    """

    size: int
    a: int = 0
    b: int = 0
    axis: int = -1
    period: int = 1


class StridedSpan(NamedTuple):
    """Where digits get in memory: the size and the stride of each, outermost first."""

    size: int
    stride: int


class TermCut(NamedTuple):
    """How terms are cut: `outer` times an axis of `size` in parts, `inner` in each.

    >>> cut = TermCut(1, 784, 4, 1)
    >>> cut.blocks, [cut.bounds(block) for block in range(4)]
    (4, [(0, 196), (196, 392), (392, 588), (588, 784)])
    """

    outer: int
    size: int
    parts: int
    inner: int

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.outer * self.parts

    def bounds(self, block: int) -> tuple[int, int]:
        """The first term of a block, and the first behind it."""
        before, part = divmod(block, self.parts)
        low, high = (
            (before * self.size + x * self.size // self.parts) * self.inner
            for x in (part, part + 1)
        )
        return low, high

    def edges(self) -> set[int]:
        """Where blocks begin and end."""
        return {x for block in range(self.blocks) for x in self.bounds(block)}


@dataclass(frozen=True)
class Contraction:
    """The elements that meet. `start` are the places of the first ones, `first` those
    of the result, by axis."""

    dtype: DType
    stack: tuple[Digit, ...]
    rows: tuple[Digit, ...]
    columns: tuple[Digit, ...]
    terms: tuple[Digit, ...]
    cut: TermCut
    start: Sequence[int]
    first: tuple[int, ...]

    @property
    def matrices(self) -> int:
        """How many products there are."""
        return prod(x.size for x in self.stack)

    @property
    def m(self) -> int:
        """How many rows there are."""
        return prod(x.size for x in self.rows)

    @property
    def n(self) -> int:
        """How many columns there are."""
        return prod(x.size for x in self.columns)

    @property
    def k(self) -> int:
        """How many terms there are."""
        return prod(x.size for x in self.terms)


def contractions_of(product: Step) -> list[Contraction]:
    """A product by its strides: one contraction, or one for each phase."""
    if product.op is ops.matmul:
        return [matmul_contraction(product)]
    return [window_contraction(product, x) for x in windows_of(product)]


def matmul_contraction(product: Step) -> Contraction:
    """A matmul; matrices of a stack that meet the same columns are more rows."""
    assert product.node is not None
    *front, m, n = map(int, product.node.shape)
    left, right = (
        aligned_strides(tuple(map(int, x.shape)), strides, len(front))
        for x, (_, _, strides) in zip(product.node.inputs, product.views, strict=True)
    )
    k = int(product.node.inputs[0].shape[-1])
    stack = [
        Digit(size, left[at], right[at], at)
        for at, size in enumerate(front)
        if size != 1
    ]
    rows = [Digit(m, left[-2], 0, len(front))]
    while stack and not stack[-1].b:
        rows.insert(0, stack.pop())
    numbers = CPU.numerics
    is_cut = k > numbers.matmul_uncut_terms
    parts = -(-k // numbers.matmul_block_terms) if is_cut else 1
    return Contraction(
        product.dtype,
        tuple(stack),
        tuple(rows),
        (Digit(n, 0, right[-1], len(front) + 1),),
        (Digit(k, left[-1], right[-2]),),
        TermCut(1, k, parts, 1),
        [x.offset for x in product.views],
        (0,) * (len(front) + 2),
    )


def window_contraction(product: Step, windows: Windows) -> Contraction:
    """A convolution, or one phase of it: the axes of its result but the last are rows.

    Rows come in the order of the result in memory.
    """
    rows: list[Digit] = []
    first = [0] * len(windows.shape)
    for row in (*windows.stack, windows.rows):
        inner = row.a
        for part in reversed(row.parts):
            rows.append(Digit(part.size, inner, 0, part.axis, part.period))
            first[part.axis] = part.first
            inner *= part.size
    last = len(windows.shape) - 1
    groups = Digit(windows.groups, *windows.group, last, windows.features)
    axis, parts = blocks_of(windows.terms)
    outer, cut = windows.terms[:axis], windows.terms[axis:]
    return Contraction(
        product.dtype,
        (groups,) if windows.groups > 1 else (),
        tuple(sorted(rows, key=lambda x: x.axis)),
        (Digit(windows.features, 0, windows.column, last),),
        tuple(Digit(*term) for term in windows.terms),
        TermCut(
            prod(x.size for x in outer),
            cut[0].size,
            parts,
            prod(x.size for x in cut[1:]),
        ),
        [
            view.offset + more
            for view, more in zip(product.views, windows.start, strict=True)
        ],
        tuple(first),
    )


def spans_of(digits: Sequence[Digit], operand: str) -> tuple[StridedSpan, ...]:
    """Where digits get in an operand, neighbours that go on evenly as one.

    >>> spans_of([Digit(3, 20), Digit(5, 4), Digit(4, 1)], "a")
    (StridedSpan(size=60, stride=1),)
    >>> spans_of([Digit(3, 24), Digit(5, 4)], "a")
    (StridedSpan(size=3, stride=24), StridedSpan(size=5, stride=4))
    """
    found: list[StridedSpan] = []
    for digit in digits:
        span = StridedSpan(digit.size, getattr(digit, operand))
        if span.size == 1:
            continue
        if found and found[-1].stride == span.size * span.stride:
            span = StridedSpan(found.pop().size * span.size, span.stride)
        found.append(span)
    return tuple(found)
