"""Kernels in numbers: loops, memory, arithmetic.

A `KernelReport` says what one kernel does, without running it. Bytes are what it has to
fetch and put back at least: every element of an argument, a result or the arena that it
touches counts once, memory that belongs to an iteration does not. A flop is one
operation on one element of floating point, whatever it costs; one of a product of
matrices is two, a multiplication and an addition.

Start reading at `kernel_reports`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import Any

from tapejit.base.types import TensorType, is_float
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node
from tapejit.ir.printer import origin_text
from tapejit.loops.index import Affine, Axis
from tapejit.loops.kernels import Kernel, LoopPlan
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import (
    AddAt,
    ArrayOp,
    Buffer,
    Compute,
    Contract,
    Load,
    PartialSum,
    Reduce,
    Step,
)
from tapejit.targets.python.kernel_source import SourceWriter
from tapejit.targets.python.kernel_writer import KernelWriter


class KernelReport:
    """What one kernel does; made by `Function.kernels`, and found when it is asked for.

    name         as in the source
    loops        the nest: `i<64> { j<1000 by 16> }`, one entry per loop
    vector       the loop whose iterations are done several at a time, with `width`
    tasks        into how many parts the outermost loop is cut for threads
    ops          how often each operation stands in it
    reads        bytes that it fetches, `writes` bytes that it puts back
    flops        operations on elements of floating point
    temporaries  types of what it keeps between passes over one axis
    lines        the user's lines it comes from
    source       readable Python

    >>> import tapejit as tj
    >>> @tj.function
    ... def energy(x):
    ...     return tj.sum(x * x)
    >>> (kernel,) = energy.kernels(tj.ones((8, 100)))
    >>> kernel.loops, kernel.bytes_moved, kernel.flops
    ('i<8> { j<100 by 16> }', 3204, 1600)
    """

    def __init__(self, module: Callable[[], SourceWriter], kernel: Kernel) -> None:
        self._module = module
        self._kernel = kernel
        self._steps = list(kernel.steps())
        is_array_op = isinstance(self._steps[0].what, ArrayOp)
        self._vector = None if is_array_op else kernel.vector
        self.width = 1 if self._vector is None else kernel.width
        self.tasks = kernel.tasks

    @cached_property
    def _writer(self) -> KernelWriter:
        return self._module().kernel(self._kernel)

    @property
    def name(self) -> str:
        return self._writer.name

    @cached_property
    def loops(self) -> str:
        return " ".join(loop_texts(self._writer, self._kernel.items))

    @property
    def vector(self) -> str | None:
        return None if self._vector is None else self._writer.index(self._vector)

    @cached_property
    def ops(self) -> dict[str, int]:
        return dict(Counter(x.name for x in self._steps if x.node is not None))

    @cached_property
    def _traffic(self) -> tuple[int, int]:
        return traffic(self._module().plan, self._kernel)

    @property
    def reads(self) -> int:
        return self._traffic[0]

    @property
    def writes(self) -> int:
        return self._traffic[1]

    @cached_property
    def flops(self) -> int:
        return sum(map(flops_of, self._steps))

    @property
    def temporaries(self) -> tuple[TensorType, ...]:
        kept = self._writer.private.values()
        return tuple(TensorType(x.dtype, x.shape) for x in kept)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        nodes = [x.node for x in self._steps if x.node is not None]
        return tuple(dict.fromkeys(filter(None, map(line_of, nodes))))

    @property
    def source(self) -> str:
        return self._writer.text()

    @property
    def bytes_moved(self) -> int:
        """What goes through memory, both ways."""
        return self.reads + self.writes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KernelReport):
            return NotImplemented
        return (str(self), self.source) == (str(other), other.source)

    def __str__(self) -> str:
        names = [
            name if count == 1 else f"{name} {count}"
            for name, count in self.ops.items()
        ]
        moved = f"reads {amount(self.reads)}, writes {amount(self.writes)}"
        parts = [self.loops, ", ".join(names), f"{moved}, {amount(self.flops, 'flop')}"]
        if self.temporaries:
            parts.append(f"keeps {', '.join(map(str, self.temporaries))}")
        return f"{self.name}: {'; '.join(part for part in parts if part)}"

    def __repr__(self) -> str:
        return f"<{self}>"


def kernel_reports(graph: Graph, plan: LoopPlan, first: int = 0) -> list[KernelReport]:
    """A report on each kernel of a plan; `first` is the number of the first."""
    module = cache(lambda: SourceWriter(graph, plan, first))
    return [KernelReport(module, kernel) for kernel in plan.kernels]


def line_of(node: Node) -> str:
    """`train.py:14`, without what a pass added."""
    return origin_text(node, {}).rpartition(", ")[2]


def loop_texts(
    writer: KernelWriter,
    items: Iterable[Step | Loop],
    lanes: tuple[Axis | None, int] | None = None,
) -> list[str]:
    """Each loop of a body as text; `lanes` are those around it, None outermost."""
    kernel, texts = writer.kernel, []
    is_outermost = lanes is None
    for item in items:
        if not isinstance(item, Loop):
            continue
        vector, width = item.lanes or lanes or (kernel.vector, kernel.width)
        by = f" by {width}" if item.axis is vector and width > 1 else ""
        if item.tile:
            by = f" in tiles of {item.tile}"
        if is_outermost and kernel.tasks > 1:
            by += f" in {kernel.tasks} tasks"
        text = f"{writer.index(item.axis)}<{item.axis.extent}{by}>"
        inner = loop_texts(writer, item.body, (vector, width))
        texts.append(f"{text} {{ {' '.join(inner)} }}" if inner else text)
    return texts


def count_of(step: Step) -> int:
    """How many iterations a Step runs in."""
    return math.prod(axis.hint for axis in step.labels | step.closed)


def flops_of(step: Step) -> int:
    """The operations on elements that a Step performs in all its iterations."""
    if not is_float(step.dtype) and not any(is_float(x.dtype) for x in step.inputs):
        return 0
    if isinstance(step.what, ArrayOp) and step.node is not None:
        terms = step.node.op.terms
        per_element = 1 if terms is None else 2 * terms(step.node)
        return size_of(step.node.shape) * per_element
    if isinstance(step.what, Contract):
        return 2 * count_of(step)
    return (
        count_of(step)
        if isinstance(step.what, (Compute, Reduce, PartialSum, AddAt))
        else 0
    )


def size_of(shape: Sequence[Any]) -> int:
    """The number of elements, of sizes that are known."""
    return math.prod(int(size) for size in shape)


def traffic(plan: LoopPlan, kernel: Kernel) -> tuple[int, int]:
    """Bytes that a kernel fetches from memory and puts back."""
    read: Counter[object] = Counter()
    sizes: dict[object, tuple[int, int]] = {}  # elements and bytes of each
    written: dict[object, int] = {}

    def fetch(memory: object, size: int, itemsize: int, count: int) -> None:
        sizes[memory] = size, itemsize
        read[memory] += count

    own = set(kernel.steps())
    leaves = {x for step in own for x in step.needed() if x.is_leaf}
    for step in own:
        memory = plan.storage.get(step)
        if memory is not None and memory.kernel is None:
            written[memory] = memory.size * memory.dtype.itemsize
    for step in (*own, *leaves):
        if isinstance(step.what, Load):
            source, count = step.what.source, elements_of(step)
            if isinstance(source, Buffer):
                fetch(source, size_of(source.shape), source.dtype.itemsize, count)
            elif source not in own:
                memory = plan.storage[source]
                fetch(memory, memory.size, memory.dtype.itemsize, count)
            continue
        if isinstance(step.what, ArrayOp):
            views = zip(step.views, step.performed.inputs, strict=True)
            for (base, *_), x in views:
                if base in own:
                    continue
                kept = plan.storage[base] if isinstance(base, Step) else base
                if isinstance(kept, Buffer):
                    size = size_of(kept.shape)
                else:
                    size = kept.size
                fetch(kept, size, x.dtype.itemsize, min(size, size_of(x.shape)))
            continue
        for needed in step.inputs:
            if needed not in own and needed in plan.storage:
                memory = plan.storage[needed]
                fetch(memory, memory.size, memory.dtype.itemsize, memory.size)
    fetched = sum(
        min(size, read[memory]) * itemsize for memory, (size, itemsize) in sizes.items()
    )
    return fetched, sum(written.values())


def elements_of(step: Step) -> int:
    """How many different elements a load asks for, at most."""
    affine = all(isinstance(x, Affine) for x in step.index)
    if affine:
        axes = {axis.root for x in step.index for axis, _ in x.terms}
        return math.prod(axis.hint for axis in axes)
    return count_of(step)


def amount(count: float, unit: str = "bytes") -> str:
    """A number of bytes or flops, for people.

    >>> amount(12), amount(8_400_000), amount(1600, "flop")
    ('12 bytes', '8.4 MB', '1.6 kflop')
    """
    short = "B" if unit == "bytes" else unit
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {prefix}{short}"
    return f"{count:.0f} {unit}"
