"""The walk over a scheduled Kernel that all targets share: loops, Steps, reductions.

A `Walk` goes through the tree of loops of a Kernel and says what comes when: leaves
where they are first needed, the Steps and loops of a body in order, accumulators of
reductions, which begin before the outermost loop that a reduction goes along and are
finished behind it. A value of the current iteration is at hand once it was computed;
others are read from the memory that the plan gave them.

A target says what these things are: an LLVM value and a loop of blocks, or a line of
Python. It gives the walk the `Value` of each kind of Step (`Steps`), its `Accumulator`
and what a loop over an axis is (`go_through`, which calls `body`).

Start reading at `Walk.block`, then `Steps.step`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from tapejit.base.types import DType
from tapejit.loops.index import Affine, Axis, Range
from tapejit.loops.kernels import Kernel, LoopNest, LoopPlan, bound
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import (
    AddAt,
    AffineIndex,
    ArrayOp,
    CheckedIndex,
    Choose,
    Compute,
    Contract,
    Convert,
    Copy,
    IndexValue,
    Load,
    Number,
    PartialSum,
    Step,
    Verify,
)

Value = TypeVar("Value")
Accumulator = TypeVar("Accumulator")


class Steps(ABC, Generic[Value]):
    """The values of Steps in one iteration; `values` has those that are at hand."""

    plan: LoopPlan
    values: dict[Step, Value]

    def value(self, step: Step) -> Value:
        """A value that was computed before, or that of a leaf."""
        found = self.known(step)
        if found is None:
            found = self.step(step) if step.is_leaf else self.stored(step)
            self.values[step] = found
        return found

    def known(self, step: Step) -> Value | None:
        """A value of this iteration that is at hand, or None."""
        return self.values.get(step)

    def step(self, step: Step) -> Value:
        """What a Step computes in this iteration."""
        match step.what:
            case Number(number):
                return self.constant(number, step.dtype)
            case IndexValue((position,)):
                return self.index_value(position)
            case Load():
                return self.load(step, step.what)
            case CheckedIndex(size):
                return self.checked_index(step, size)
            case AffineIndex(factor, offset):
                return self.affine_index(step, factor, offset)
            case Verify(_, count):
                return self.verified(step, count)
            case Convert():
                (x,) = step.inputs
                return self.converted(self.value(x), x.dtype, step.dtype)
            case Copy():
                return self.value(step.inputs[0])
            case AddAt():
                return self.added_at(step)
            case Compute():
                return self.computed(step, step.what)
            case Choose(ranges):
                return self.chosen(step, ranges)
            case Contract():
                return self.contracted(step)
        raise AssertionError(f"{step} is no value of one iteration")

    @abstractmethod
    def stored(self, step: Step) -> Value:
        """The value of this iteration, from the memory of its Step."""

    @abstractmethod
    def constant(self, number: Any, dtype: DType) -> Value:
        """A number."""

    @abstractmethod
    def index_value(self, position: Affine | Step) -> Value:
        """A position as a number."""

    @abstractmethod
    def load(self, step: Step, what: Load) -> Value:
        """An element of an array, or of the memory of another Step."""

    @abstractmethod
    def checked_index(self, step: Step, size: int) -> Value:
        """A position from 0 on; it is a failure if it is not in [-size, size)."""

    @abstractmethod
    def affine_index(self, step: Step, factor: int, offset: int) -> Value:
        """A position times a factor, plus an offset."""

    @abstractmethod
    def verified(self, step: Step, count: int) -> Value:
        """The input; it is a failure if it is not in [0, count)."""

    @abstractmethod
    def converted(self, value: Value, before: DType, after: DType) -> Value:
        """A value in another dtype."""

    @abstractmethod
    def added_at(self, step: Step) -> Value:
        """The third input, plus the fourth where the first two are equal."""

    @abstractmethod
    def computed(self, step: Step, what: Compute) -> Value:
        """An elementwise operation."""

    @abstractmethod
    def chosen(self, step: Step, ranges: Sequence[Range]) -> Value:
        """The first input where all Ranges hold, else the second."""

    @abstractmethod
    def contracted(self, step: Step) -> Value:
        """The product of two inputs, of which nothing is summed."""


class Walk(Steps[Value], Generic[Value, Accumulator]):
    """Goes through one Kernel."""

    kernel: Kernel

    def block(self, items: Sequence[Step | Loop], path: LoopNest) -> None:
        """A body: its Steps and loops in order, leaves where they are first needed."""
        around = bound(path)
        for item in items:
            for x in self.needed_outside(item, around):
                self.ahead(x, item)
            if isinstance(item, Loop):
                self.loop(item, path)
            else:
                for _ in self.each_copy():
                    self.run(item)

    def needed_outside(self, item: Step | Loop, around: set[Axis]) -> list[Step]:
        """What an item needs that is the same in all iterations inside of it."""
        inside = set(item.steps()) if isinstance(item, Loop) else set()
        leaves = leaves_of(item)
        return [x for x in leaves if x.labels <= around and x.source not in inside]

    def ahead(self, step: Step, item: Step | Loop) -> None:
        """Have a value at hand before the item that needs it."""
        for _ in self.each_copy():
            self.value(step)

    def loop(self, loop: Loop, path: LoopNest) -> None:
        """A loop, with the reductions that begin and end with it."""
        plan = self.plan
        closing = [
            step
            for step in loop.steps()
            if step.closed and plan.homes[step] == path and loop in plan.paths[step]
        ]
        made = [[self.accumulator(step) for step in closing] for _ in self.each_copy()]
        self.go_through(loop, path)
        for _, row in zip(self.each_copy(), made, strict=True):
            for x in row:
                self.finish(x)

    def body(self, loop: Loop, path: LoopNest) -> None:
        """The body of a loop; its values are forgotten afterwards."""
        outer = []
        for _ in self.each_copy():
            outer.append(self.values)
            self.values = dict(self.values)
        self.block(loop.body, (*path, loop))
        for _, values in zip(self.each_copy(), outer, strict=True):
            self.values = values

    def run(self, step: Step) -> None:
        """A Step of a body."""
        if isinstance(step.what, ArrayOp):
            self.array_op(step)
        elif isinstance(step.what, PartialSum):
            self.partial_sum(step)
        elif step.closed:
            self.accumulate(step)
        else:
            self.keep(step, self.step(step))

    def each_copy(self) -> Iterator[None]:
        """Each of the iterations that go on together: one, unless loops say more."""
        yield

    @abstractmethod
    def go_through(self, loop: Loop, path: LoopNest) -> None:
        """All iterations of a loop: `body` wherever it has one."""

    @abstractmethod
    def keep(self, step: Step, value: Value) -> None:
        """Have a value at hand from now on, and in its memory if it has any."""

    @abstractmethod
    def array_op(self, step: Step) -> None:
        """An operation on whole arrays, or on the rows of a tile of them."""

    def partial_sum(self, step: Step) -> None:
        """The element of this iteration, into its part of a sum."""
        raise AssertionError(f"{step} is in the epilogue of a matmul")

    @abstractmethod
    def accumulator(self, step: Step) -> Accumulator:
        """Begin a reduction, before its loops."""

    @abstractmethod
    def accumulate(self, step: Step) -> None:
        """Add the element of this iteration to a reduction."""

    @abstractmethod
    def finish(self, made: Accumulator) -> None:
        """The value of a reduction, now that its loops are over."""


def has_array_op(loop: Loop) -> bool:
    """Whether there are products, or random words, for the rows of a tile."""
    return any(isinstance(step.what, ArrayOp) for step in loop.steps())


def leaves_of(item: Step | Loop) -> list[Step]:
    """The leaves that an item needs, the first ones first."""
    inside = item.steps() if isinstance(item, Loop) else (item,)
    return [x for step in inside for x in step.needed() if x.is_leaf]
