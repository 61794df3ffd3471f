"""Kernels keyed by structure: which are equal is known before any of them is emitted.

A model of many layers has the same kernels in each of them. `key_of` describes a Kernel
by all that its emitter reads of it: Steps, loops, sizes of axes, strides and dtypes of
memory. Where memory is, is no part of that, and objects are known by the order in which
they are met. So kernels of a LoopPlan that have the same key have the same LLVM text:
one function, with a table of pointers for each kernel. `relative_places` says what a
table points to in terms that hold for all of them, `places_of` what that is for one.
A step of an unrolled loop that reads its own rows of an argument is such a kernel, too:
its table points to these (`first_elements`).

A value that cannot be described (a function, say) makes a Kernel the only one of its
kind, with the key None.

Start reading at `key_of`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tapejit.base.types import TensorType
from tapejit.ir.node import Node, Op
from tapejit.loops.index import Affine, Axis
from tapejit.loops.kernels import Kernel, LoopNest, LoopPlan, Storage
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import ArrayOp, Buffer, Load, Step, element_of
from tapejit.targets.cpu.nest.addressing import (
    Place,
    PointerTable,
    first_elements,
    strays,
)
from tapejit.targets.cpu.schedule.vectorize import row_part


class MemoryPlace(NamedTuple):
    """Where a kernel finds the memory of a value, and how many bytes that has."""

    start: Place
    nbytes: int


class KernelKey(NamedTuple):
    """What equal kernels have in common, and the memory of this one, in its order."""

    structure: tuple[Any, ...]
    memories: list[MemoryPlace]


def key_of(plan: LoopPlan, kernel: Kernel, layout: PointerTable) -> KernelKey | None:
    """The key of a kernel, for this plan only: others have other settings."""
    made = Description(plan, kernel, layout)
    try:
        made.describe()
    except Unknown:
        return None
    return KernelKey(tuple(made.found), made.memories)


class Unknown(Exception):
    """There is something in a kernel that has no description."""


class Description:
    """A kernel as a flat list of what can be compared: numbers, names, dtypes, Ops.

    Before each value stands its class. An object has a number, which is that of the
    first one like it; the first time, what it is like follows.
    """

    def __init__(self, plan: LoopPlan, kernel: Kernel, layout: PointerTable) -> None:
        self.plan, self.kernel, self.layout = plan, kernel, layout
        self.found: list[Any] = []
        self.memories: list[MemoryPlace] = []
        self._inside = set(kernel.steps())
        self._numbers: dict[Any, int] = {}
        self._places: dict[Place, int] = {}  # memory that is the same for two
        self._first = first_elements(kernel)

    def describe(self) -> None:
        """All of it."""
        kernel, plan = self.kernel, self.plan
        self.found += (
            self.layout.polls,
            kernel.width,
            kernel.tasks,
            kernel.inner_tasks,
            kernel.parts,
            kernel.calls_formulas,
        )
        self.add(kernel.vector)
        self.sequence(kernel.items)
        for step in kernel.steps():
            self.nest(plan.paths[step])
            self.nest(plan.homes[step])
            axis, width = plan.lanes[step]
            self.axes((axis,))
            self.found += (width, step.output in plan.updates)
        for notes in (kernel.partials, kernel.slots, kernel.choices, kernel.rooms):
            self.mapping(notes)

    def add(self, value: Any) -> None:
        """A value of any class."""
        kind = value.__class__
        self.found.append(kind)
        write = WRITERS.get(kind)
        if write is not None:
            write(self, value)
        elif isinstance(value, tuple):
            self.sequence(value)
        elif isinstance(value, np.generic):
            self.found += (value.dtype, value.tobytes())
        elif isinstance(value, np.dtype):
            self.found.append(value)
        elif (names := field_names(kind)) is not None:
            for name in names:
                self.add(getattr(value, name))
        else:
            raise Unknown

    def is_new(self, value: Any) -> bool:
        """Whether an object is met for the first time."""
        count = len(self._numbers)
        number = self._numbers.setdefault(value, count)
        self.found.append(number)
        return number == count

    def itself(self, value: Any) -> None:
        self.found.append(value)

    def nothing(self, value: None) -> None:
        """None: its class says it."""

    def float(self, value: float) -> None:
        self.found.append(struct.pack("d", value))  # 0.0 == -0.0, and no NaN is equal

    def sequence(self, values: Sequence[Any]) -> None:
        self.found.append(len(values))
        for x in values:
            self.add(x)

    def mapping(self, values: Mapping[Any, Any]) -> None:
        self.found.append(len(values))
        for key, value in values.items():
            self.add(key)
            self.add(value)

    def axis(self, axis: Axis) -> None:
        root = axis.root
        if self.is_new(root):
            self.found.append(root.extent)

    def axes(self, axes: Iterable[Axis | None]) -> None:
        found, numbers = self.found, self._numbers
        for axis in axes:
            known = None if axis is None else numbers.get(axis.root)
            if axis is None or known is not None:
                found.append(known)
            else:
                self.axis(axis)
        found.append("axes")

    def affine(self, position: Affine) -> None:
        self.found += (position.constant, len(position.terms))
        for axis, factor in position.terms:
            self.axis(axis)
            self.found.append(factor)

    def loop(self, loop: Loop) -> None:
        self.head(loop)
        self.sequence(loop.body)

    def head(self, loop: Loop) -> None:
        """A loop without its body."""
        if self.is_new(loop):
            self.axis(loop.axis)
            self.found += (loop.tile, loop.copies)
            self.add(loop.lanes)

    def nest(self, loops: LoopNest) -> None:
        """Loops around a Step; the tree need not have all of them any more."""
        if self.is_new(loops):
            for loop in loops:
                self.head(loop)
            self.found.append("nest")

    def step(self, step: Step) -> None:
        if not self.is_new(step):
            return
        memory = self.plan.storage.get(step)
        self.found += (step.dtype, step.whole)
        self.axes(step.axes)
        self.axes(step.reduced)
        self.axes(step.dims or ())
        self.found.append(memory is None)
        if memory is not None:
            self.storage(memory)
        is_read = memory is not None and not memory.lanes
        if is_read and step not in self._inside and not step.is_leaf:
            return  # another kernel has made it, however that may be
        self.found.append(step.dims is None)
        if isinstance(step.what, Load) and step.what.source in self._first:
            self.element(step.what, step.what.source)
        else:
            self.add(step.what)
        self.found += (len(step.inputs), step.output is None)
        for x in step.inputs:
            self.step(x)
        if step.output is not None:
            self.buffer(step.output)
        if isinstance(step.what, ArrayOp):
            self.add(step.node)
        else:
            self.found.append(step.node is None)

    def element(self, load: Load, source: Buffer) -> None:
        """An element of an argument: how far it is from the first one that is read."""
        first, place = self._first[source], element_of(load, source)
        assert place is not None
        size = math.prod(source.shape)
        parts = [row_part(place, axis.root, size) for axis, _ in place.terms]
        self.found.append(tuple(x for x in parts if x is not None))
        place += -first
        self.buffer(source, first)
        self.affine(place)
        self.found.append(strays(place, size - first, source.dtype))
        self.sequence(load.ranges)

    def node(self, node: Node) -> None:
        """An operation on whole arrays: itself, and the types of its operands."""
        self.found.append(node.op)
        self.mapping(node.attrs)
        for x in (node, *node.inputs):
            assert isinstance(x.type, TensorType)
            self.found.append(x.type)

    def storage(self, memory: Storage) -> None:
        if not self.is_new(memory):
            return
        self.found += (memory.dtype, memory.size, memory.lanes, memory.is_placed)
        for axis, stride in memory.strides.items():
            self.axis(axis)
            self.found.append(stride)
        self.axes(memory.tiled)
        if memory.is_placed:
            self.found.append(memory.offset)
        if memory.kernel is None:
            self.add(memory.buffer)
            self.place(self.layout.place_of(memory), memory.nbytes)
        else:
            self.found.append("private")

    def buffer(self, buffer: Buffer, first: int = 0) -> None:
        if self.is_new(buffer):
            self.found += (buffer.kind, buffer.dtype, buffer.shape)
            size = math.prod(buffer.shape) - first
            start = self.layout.place_of(buffer, first)
            self.place(start, size * buffer.dtype.itemsize)

    def place(self, start: Place, nbytes: int) -> None:
        """Which memory is the same is told, but not where it is."""
        self.memories.append(MemoryPlace(start, nbytes))
        self.found.append(self._places.setdefault(start, len(self._places)))


@cache
def field_names(kind: type[Any]) -> tuple[str, ...] | None:
    """Those of a dataclass, None of another class."""
    return tuple(x.name for x in fields(kind)) if is_dataclass(kind) else None


WRITERS: dict[type, Callable[[Description, Any], None]] = {
    **dict.fromkeys((bool, int, str, bytes, Op, TensorType), Description.itself),
    type(None): Description.nothing,
    float: Description.float,
    tuple: Description.sequence,
    list: Description.sequence,
    dict: Description.mapping,
    Axis: Description.axis,
    Affine: Description.affine,
    Loop: Description.loop,
    Step: Description.step,
    Node: Description.node,
    Storage: Description.storage,
    Buffer: Description.buffer,
}


# Places


class RelativePlace(NamedTuple):
    """A Place as equal kernels have it in common.

    It is `offset` bytes after the start of a memory of the key, by number; if it is of
    none, it is the same Place for all.
    """

    memory: int | None
    offset: int
    same: Place


def relative_places(
    places: Iterable[Place], memories: Sequence[MemoryPlace], layout: PointerTable
) -> list[RelativePlace] | None:
    """What a table of a kernel points to; None if that is not known of one of them."""
    starts = [memory.start for memory in memories]
    exact = {start: at for at, start in reversed([*enumerate(starts)])}
    fixed = (Place(layout.arena), Place(layout.imports))
    found: list[RelativePlace] = []
    for place in places:
        at: int | None = exact.get(place)
        if at is None and place.entry >= 0 and place not in fixed:
            inside = [
                at
                for at, (start, nbytes) in enumerate(memories)
                if start.entry == place.entry
                and start.offset <= place.offset < start.offset + nbytes
            ]
            if len({starts[x] for x in inside}) != 1:
                return None
            at = inside[0]
        elif at is None and place not in fixed:
            return None
        before = 0 if at is None else place.offset - starts[at].offset
        found.append(RelativePlace(at, before, place))
    return found


def places_of(
    relative: Iterable[RelativePlace], memories: Sequence[MemoryPlace]
) -> tuple[Place, ...]:
    """The same for another kernel, with its memories."""
    found = []
    for x in relative:
        if x.memory is not None:
            start = memories[x.memory].start
            found.append(Place(start.entry, start.offset + x.offset))
        else:
            found.append(x.same)
    return tuple(found)
