"""Axes that loops run over, and positions as affine functions of them.

Every dimension of a computed value is an `Axis`. Where one value is read at the very
positions at which another is computed, their axes are made one (`Axis.root` finds which
one stands for all): such values belong into the same loop. A position along a dimension
is an `Affine`: a sum of axes times whole numbers, plus a constant. Slices, flips,
permutations, broadcasts and splits of an axis turn affine positions into affine ones,
which is how they cost nothing.

Start reading at `Affine`, then `through_reshape`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, NamedTuple

_numbers = count()


class Axis:
    """Something a loop runs over: at least two values.

    Code has as many iterations as its `extent` says. What is chosen by size, such as
    vectors, tiles and tasks, is chosen by its `hint`, which is the extent if that is
    known.
    """

    __slots__ = ("_parent", "extent", "hint", "number", "steps")
    unions: ClassVar = 0  # how often two were made one, in this process

    def __init__(self, extent: int) -> None:
        self.extent = self.hint = extent
        self.number = next(_numbers)
        self.steps: set[int] = set()  # the Steps that run over it, by number
        self._parent: Axis | None = None

    def __repr__(self) -> str:
        return f"<axis {self.number} of {self.extent}>"

    @property
    def root(self) -> Axis:
        """The axis that stands for all those made one with this."""
        axis = self
        while axis._parent is not None:
            axis = axis._parent
        if self is not axis:
            self._parent = axis
        return axis

    def unify(self, other: Axis) -> bool:
        """Make two axes one if no Step runs over both; whether they are one now."""
        a, b = self.root, other.root
        if a is b:
            return True
        if a.extent != b.extent or not a.steps.isdisjoint(b.steps):
            return False
        if len(a.steps) < len(b.steps):
            a, b = b, a
        a.steps |= b.steps
        b._parent = a
        Axis.unions += 1
        return True


class Roots(NamedTuple):
    """The roots of some axes, as long as no more of them are made one."""

    axes: tuple[Axis, ...]
    found: frozenset[Axis]
    unions: int

    @staticmethod
    def of(axes: tuple[Axis, ...], known: Roots | None) -> Roots:
        """Those of these axes: what is known, if it is still so."""
        if known is not None and known[0] is axes and known[2] == Axis.unions:
            return known
        return Roots(axes, frozenset([axis.root for axis in axes]), Axis.unions)


@dataclass(frozen=True)
class Affine:
    """constant + Σ factor · axis.

    >>> i = Axis(4)
    >>> Affine.of(i) * 3 + 2  # doctest: +ELLIPSIS
    2 + 3·a...
    """

    terms: tuple[tuple[Axis, int], ...] = ()
    constant: int = 0

    @staticmethod
    def of(axis: Axis) -> Affine:
        """The position that is the number of the iteration."""
        return Affine(((axis, 1),))

    def __add__(self, other: int | Affine) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        factors = dict(self.terms)
        for axis, factor in other.terms:
            factors[axis] = factors.get(axis, 0) + factor
        terms = tuple([(axis, f) for axis, f in factors.items() if f])
        return Affine(terms, self.constant + other.constant)

    def __mul__(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        terms = tuple([(axis, f * factor) for axis, f in self.terms])
        return Affine(terms, self.constant * factor)

    def __repr__(self) -> str:
        parts = [f"{factor}·a{axis.number}" for axis, factor in self.terms]
        return " + ".join([str(self.constant), *parts])

    @property
    def axis(self) -> Axis | None:
        """The axis this position simply is."""
        if self.constant == 0 and len(self.terms) == 1 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def rooted(self) -> Affine:
        """The same with axes that stand for themselves."""
        factors: dict[Axis, int] = {}
        for axis, factor in self.terms:
            root = axis.root
            factors[root] = factors.get(root, 0) + factor
        terms = tuple([(axis, f) for axis, f in factors.items() if f])
        return self if terms == self.terms else Affine(terms, self.constant)

    def span(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        ends = [sorted((0, factor * (axis.extent - 1))) for axis, factor in self.terms]
        low = self.constant + sum(end[0] for end in ends)
        return low, self.constant + sum(end[1] for end in ends)


@dataclass(frozen=True)
class Range:
    """A condition: the position is in [low, high)."""

    position: Affine
    low: int
    high: int

    @property
    def always_holds(self) -> bool:
        """Whether it holds for every iteration."""
        low, high = self.position.span()
        return self.low <= low and high < self.high


Position = Any  # an Affine, or a Step whose value is the position
Index = tuple[Position, ...]


@dataclass
class _Group:
    inner: list[int] = field(default_factory=list)
    outer: list[int] = field(default_factory=list)


def reshape_groups(before: Sequence[int], after: Sequence[int]) -> list[_Group]:
    """Which dimensions of one shape make up which of the other; sizes 1 are left out.

    >>> [(g.inner, g.outer) for g in reshape_groups((6, 1, 4), (2, 3, 4))]
    [([0], [0, 1]), ([2], [2])]
    """
    groups: list[_Group] = []
    i = j = 0
    while True:
        group = _Group()
        left = right = 1
        while i < len(before) and before[i] == 1:
            i += 1
        while j < len(after) and after[j] == 1:
            j += 1
        if i == len(before) and j == len(after):
            return groups
        left, right = before[i], after[j]
        group.inner.append(i)
        group.outer.append(j)
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left *= before[i]
                if before[i] != 1:
                    group.inner.append(i)
                i += 1
            else:
                right *= after[j]
                if after[j] != 1:
                    group.outer.append(j)
                j += 1
        groups.append(group)


def through_reshape(
    before: Sequence[int], after: Sequence[int], index: Index
) -> Index | None:
    """Where an element of the reshaped array was; None if no affine position says.

    Dimensions that are split have affine positions, dimensions that are merged do not,
    unless the merged position is a single number.

    >>> i, j = Axis(2), Axis(3)
    >>> where = through_reshape((6,), (2, 3), (Affine.of(i), Affine.of(j)))
    >>> where  # doctest: +ELLIPSIS
    (0 + 3·a... + 1·a...,)
    """
    found: list[Position] = [Affine()] * len(before)
    for group in reshape_groups(before, after):
        if len(group.inner) == 1:
            if len(group.outer) == 1:
                found[group.inner[0]] = index[group.outer[0]]
                continue
            total = Affine()
            for at in group.outer:
                if not isinstance(index[at], Affine):
                    return None
                total = total * after[at] + index[at]
            found[group.inner[0]] = total
            continue
        total = Affine()
        for at in group.outer:
            if not isinstance(index[at], Affine) or index[at].terms:
                return None
            total = total * after[at] + index[at]
        rest = total.constant
        for at in reversed(group.inner):
            found[at] = Affine((), rest % before[at])
            rest //= before[at]
    return tuple(found)


def reshaped_strides(
    before: Sequence[int], strides: Sequence[int], after: Sequence[int]
) -> tuple[int, ...] | None:
    """How far elements are apart in a reshaped array; None if it takes a copy.

    >>> reshaped_strides((2, 3, 4), (12, 4, 1), (6, 4))
    (4, 1)
    >>> reshaped_strides((3, 2), (1, 3), (6,)) is None
    True
    """
    found = [0] * len(after)
    for group in reshape_groups(before, after):
        step: int | None = None
        size = 1
        for at in reversed(group.inner):
            if before[at] == 1:
                continue
            if step is None:
                step = strides[at]
            elif strides[at] != size * step:
                return None
            size *= before[at]
        size = 1
        for at in reversed(group.outer):
            found[at] = size * (step or 0)
            size *= after[at]
    return tuple(found)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """How far elements are apart in an array that is stored row by row.

    >>> strides_of((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
