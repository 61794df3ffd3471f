"""What the kernels of a LoopPlan read and write, in the order of the code.

An `Access` is one read or write of memory, with the loops around it and a position
along each axis of that memory. A reduction is written when its outermost loop is over,
a product that adds up tile by tile when the loop over these tiles is. A value that is
in a register where it is used is no access. Leaves are read where they are used; code
may load them before a loop, but never before a Step that the loop comes after.

Start reading at `Accesses.of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from itertools import count
from typing import Any, Final, NamedTuple

from tapejit.base.errors import GraphError
from tapejit.ir.node import line_of
from tapejit.loops.index import Affine, Axis, Range
from tapejit.loops.kernels import Kernel, LoopNest, LoopPlan, Storage, bound
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import (
    AffineIndex,
    ArrayOp,
    Buffer,
    CheckedIndex,
    Load,
    PartialSum,
    Step,
    tiles_of,
)

FLAT: Final = "flat"  # the one dimension of memory that is read as a row of elements
HELP: Final = "this is a fault of tapejit; TAPEJIT_NATIVE=0 does without native code"

Where = tuple[tuple[Any, Affine], ...]


class Access(NamedTuple):
    """A read or a write of memory, with the loops around it.

    `where` has a position along each axis of a Step's memory, or each dimension of an
    array. A position that is known only when the code runs goes along an axis that no
    loop runs over: it may be any iteration of that.
    """

    kernel: Kernel
    step: Step  # who does it
    source: Step | Buffer  # whose memory it is
    is_write: bool
    path: LoopNest
    order: int
    where: Where
    ranges: tuple[Range, ...] = ()  # it is done where these hold


class Fault(NamedTuple):
    """An invariant that does not hold, and the Step that shows it."""

    invariant: int
    kernel: Kernel
    step: Step
    message: str
    source: Any = None  # what it reads

    def error(self, name: str) -> GraphError:
        """What is raised, with the line of the user's program."""
        kernel = f"kernel {self.kernel.number} of {name}"
        text = f"{kernel} breaks invariant {self.invariant}: {name_of(self.step)}"
        nodes = [x.node for x in (self.step, self.source) if isinstance(x, Step)]
        origin = line_of(next((x for x in nodes if x is not None), None))
        return GraphError(f"{text} {self.message}", origin=origin, help=HELP)


Found = Iterator[Access | Fault]


class Accesses:
    """Goes through kernels in order, and remembers which values are in registers."""

    def __init__(self, plan: LoopPlan) -> None:
        self.plan = plan
        self.values: dict[
            Step, tuple[Kernel, LoopNest]
        ] = {}  # with the loops around them
        self.order = count()

    def of(self, kernel: Kernel) -> Found:
        """Reads and writes of a kernel, or what is wrong with them."""
        return self.inside(kernel, kernel.items, ())

    def inside(
        self, kernel: Kernel, items: Sequence[Step | Loop], path: LoopNest
    ) -> Found:
        """The same for a body, in the order of the code."""
        for item in items:
            if isinstance(item, Step):
                yield from self.used_by(kernel, item, path)
                if home_of(item, path) == path:
                    yield from self.done(kernel, item, path)
                continue
            inside = (*path, item)
            yield from self.inside(kernel, item.body, inside)
            for step in item.steps():
                if home_of(step, self.plan.paths[step]) == path:
                    yield from self.done(kernel, step, path)

    def done(self, kernel: Kernel, step: Step, path: LoopNest) -> Found:
        """A value is complete: in a register, and in memory if it has some."""
        is_array = bool(step.closed) and not step.labels <= bound(path)
        if not is_array and not isinstance(step.what, (ArrayOp, PartialSum)):
            self.values[step] = kernel, path
        memory = self.plan.storage.get(step)
        if memory is not None:
            path = (
                () if isinstance(step.what, PartialSum) else path
            )  # complete after the kernel
            order, own = next(self.order), own_place(memory)
            yield Access(kernel, step, step, True, path, order, own)

    def used_by(self, kernel: Kernel, step: Step, path: LoopNest) -> Found:
        """What a Step reads: operands, and an element of memory if it loads."""
        if isinstance(step.what, ArrayOp):
            yield from self.operands(kernel, step, path)
            return
        for x in (*step.inputs, *(x for x in step.index if isinstance(x, Step))):
            if not x.is_leaf:
                yield from self.value(kernel, step, x, path)
            elif isinstance(x.what, Load):
                yield from self.load(kernel, step, x, path)
        if isinstance(step.what, Load):
            yield from self.load(kernel, step, step, path)

    def value(self, kernel: Kernel, step: Step, x: Step, path: LoopNest) -> Found:
        """The value of another Step: from a register if it is in one, or memory."""
        there, home = self.values.get(x, (None, ()))
        if there is kernel and path[: len(home)] == home:
            return
        memory = self.plan.storage.get(x)
        if memory is None:
            yield Fault(1, kernel, step, f"uses {name_of(x)}, which is nowhere")
        elif missing := memory.strides.keys() - bound(path):
            yield Fault(2, kernel, step, f"no loop for {missing} of {name_of(x)}")
        else:
            order, own = next(self.order), own_place(memory)
            yield Access(kernel, step, x, False, path, order, own)

    def load(self, kernel: Kernel, step: Step, load: Step, path: LoopNest) -> Found:
        """An element of an array or of another Step."""
        assert isinstance(load.what, Load)
        source = load.what.source
        known = [x.position for x in load.ranges]
        known += [x for x in load.index if isinstance(x, Affine)]
        if missing := {a.root for x in known for a, _ in x.terms} - bound(path):
            yield Fault(2, kernel, step, f"no loop for {missing} of what it loads")
            return
        if load.source is kernel.array_op:  # in registers, one element of it
            if not is_plain(load, path):
                text = f"reads {name_of(source)}, another element than it is at"
                yield Fault(1, kernel, step, text)
            return
        dims: Sequence[Any]
        if load.is_flat:
            dims, sizes = (FLAT,), [size_of(source)]
        elif isinstance(source, Buffer):
            dims, sizes = range(len(source.shape)), list(source.shape)
        else:
            dims = [None if dim is None else dim.root for dim in source.dims or ()]
            sizes = [1 if dim is None else dim.extent for dim in dims]
        each = zip(dims, load.index, sizes, strict=True)
        where = tuple((dim, place_of(x, n)) for dim, x, n in each if dim is not None)
        order = next(self.order)
        yield Access(kernel, step, source, False, path, order, where, load.ranges)

    def operands(self, kernel: Kernel, step: Step, path: LoopNest) -> Found:
        """The arrays that an operation on whole arrays reads, or a tile of them."""
        views = zip(step.performed.inputs, step.views, strict=True)
        for node, (base, offset, strides) in views:
            memory = self.plan.storage.get(base) if isinstance(base, Step) else base
            if memory is None:
                yield Fault(1, kernel, step, f"reads {name_of(base)}, which is nowhere")
                continue
            shape = tuple(map(int, node.shape))
            if isinstance(memory, Buffer):
                size, is_private = size_of(memory), False
                dims = enumerate(memory.shape)
                where: Where = tuple((dim, Affine.of(Axis(n))) for dim, n in dims)
            else:  # a tile of it, in loops over tiles
                size, is_private = memory.size, memory.kernel is not None
                where = own_place(memory)
            low, high = ends_of(shape, offset, strides)
            if not is_private and 0 not in shape and not 0 <= low <= high < size:
                text = f"reads {low} to {high} of {name_of(base)}, which has {size}"
                yield Fault(2, kernel, step, text)
            yield Access(kernel, step, base, False, path, next(self.order), where)


def name_of(x: Step | Buffer) -> str:
    """What a Step or an array is called in messages."""
    if isinstance(x, Buffer):
        return f"{x.kind} {x.number}"
    return f"{x.name} (Step {x.number})"


def size_of(x: Step | Buffer) -> int:
    """How many elements an array has."""
    if isinstance(x, Buffer):
        return math.prod(map(int, x.shape))
    return math.prod(dim.extent for dim in x.dims or () if dim is not None)


def written_in_tiles(step: Step) -> bool:
    """Whether this is a product, or a draw, for the rows of a tile."""
    return isinstance(step.what, ArrayOp) and step.tiles is not None


def home_of(step: Step, path: LoopNest) -> LoopNest:
    """The loops around a value that is complete: those outside of what it adds up."""
    closed = step.closed
    if written_in_tiles(step):
        closed = frozenset(filter(None, [tiles_of(step).cuts.get("k")]))
    for at, loop in enumerate(path):
        if loop.axis in closed:
            return path[:at]
    return path


def axes_of(step: Step) -> frozenset[Axis]:
    """The axes that a value varies with."""
    if not isinstance(step.what, ArrayOp):
        return step.labels
    return frozenset(dim.root for dim in step.dims or () if dim is not None)


def axes_written(step: Step, memory: Storage) -> Set[Axis]:
    """The axes whose iterations write to different places."""
    if not written_in_tiles(step):
        return memory.strides.keys()
    along = tiles_of(step)
    return set(along.axes[:-1] if along.kind == "sum" else along.axes)


def is_plain(load: Step, path: LoopNest) -> bool:
    """Whether a load is of the very element that the loops are at."""
    places = [x.axis for x in load.index if isinstance(x, Affine) and x.terms]
    axes = [None if axis is None else axis.root for axis in places]
    assert isinstance(load.source, Step)
    dims = load.source.dims or ()
    is_whole = len(places) == len([x for x in dims if x is not None])
    is_here = is_whole and axes == [loop.axis for loop in path]
    return is_here and not load.ranges and not load.is_flat


def own_place(memory: Storage) -> Where:
    """The element of this iteration in a Step's memory."""
    return tuple((axis, Affine.of(axis)) for axis in memory.strides)


def place_of(position: Affine | Step, size: int) -> Affine:
    """A position in terms of loops, or of what it may be when the code runs."""
    if isinstance(position, Affine):
        return position.rooted()
    if isinstance(position.what, AffineIndex):
        place = place_of(position.inputs[0], size)
        return place * position.what.factor + position.what.offset
    if isinstance(position.what, CheckedIndex):
        size = position.what.size
    return Affine.of(Axis(size))


def ends_of(
    shape: Sequence[int], offset: int, strides: Sequence[int]
) -> tuple[int, int]:
    """The first and the last element of a view."""
    ends = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    low = offset + sum(min(end, 0) for end in ends)
    return low, offset + sum(max(end, 0) for end in ends)
