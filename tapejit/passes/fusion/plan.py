"""Which values need memory, and where that memory is.

A value that is used only in the iteration that makes it lives in a register. One that
is used by a later pass over an axis is kept for as long as the loops around both go
through one iteration: a private buffer of the kernel, over the axes of the loops in
between. One that another kernel uses is kept in the arena, whole. A result is written
to its output and read back from there.

A `Kernel` is one item at the top of the tree of loops: a nest, a run of single Steps, or
a call into a library.

Start reading at `plan`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from tapejit.passes.fusion.index import Axis, strides_of
from tapejit.passes.fusion.lower import Lowered
from tapejit.passes.fusion.schedule import Loop, cost, is_leaf
from tapejit.passes.fusion.steps import Buffer, Step
from tapejit.types import DType

ALIGNMENT: Final = 64
Path = tuple[Loop, ...]


class Storage:
    """Where the value of a Step is kept.

    `strides` has an entry for every axis that the memory has; a position along others
    does not matter. `lanes` says that each element is a whole vector.
    """

    __slots__ = ("buffer", "dtype", "kernel", "lanes", "offset", "size", "strides")

    def __init__(
        self, dtype: DType, strides: dict[Axis, int], size: int, kernel: int | None
    ) -> None:
        self.dtype = dtype
        self.strides = strides
        self.size = size  # in elements
        self.kernel = kernel  # of private memory, None for the arena
        self.lanes = False
        self.buffer: Buffer | None = None
        self.offset = 0  # in bytes


class Kernel:
    """One item at the top of the tree: what is compiled to one function."""

    def __init__(self, number: int, items: list[Step | Loop]) -> None:
        self.number = number
        self.items = items
        self.vector: Axis | None = None
        self.width = 1
        self.tasks = 1
        self.private: list[Storage] = []
        self.partials: dict[Step, Storage] = {}

    @property
    def loop(self) -> Loop | None:
        """The outermost loop, None for a run of Steps."""
        first = self.items[0]
        return first if isinstance(first, Loop) else None

    def steps(self) -> Iterator[Step]:
        """Every Step, leaves excluded."""
        for item in self.items:
            if isinstance(item, Loop):
                yield from item.steps()
            else:
                yield item

    @property
    def work(self) -> float:
        """About how many instructions it takes, one lane at a time."""
        return sum(
            cost(step) * math.prod(a.size for a in step.labels | step.closed)
            for step in self.steps()
        )


class Plan:
    """Kernels in order, and the Storage of each Step that has one."""

    def __init__(self, lowered: Lowered, kernels: list[Kernel]) -> None:
        self.outputs = lowered.outputs
        self.constants = lowered.constants
        self.kernels = kernels
        self.storage: dict[Step, Storage] = {}
        self.paths: dict[Step, Path] = {}
        self.homes: dict[Step, Path] = {}
        self.kernel_of: dict[Step, Kernel] = {}
        self.arena_size = ALIGNMENT  # it begins with the number of a failure


def plan(lowered: Lowered, tree: Sequence[Step | Loop], lanes: int) -> Plan:
    """The kernels of a tree of loops, for vectors of `lanes` bytes."""
    made = Plan(lowered, kernels_of(tree))
    for kernel in made.kernels:
        for item in kernel.items:
            note_paths(made, kernel, item, ())
    for kernel in made.kernels:
        choose_vector(kernel, lanes, made)
        choose_tasks(kernel)
    uses: dict[Step, list[Step]] = {}
    for step in made.paths:
        for x in step.needed():
            uses.setdefault(x, []).append(step)
    for step in list(made.paths):
        store(made, step, uses.get(step, []))
    place_in_arena(made)
    return made


def kernels_of(tree: Sequence[Step | Loop]) -> list[Kernel]:
    """Each loop at the top, each library call, and each run of single Steps."""
    kernels: list[Kernel] = []
    single: list[Step | Loop] = []
    for item in tree:
        if isinstance(item, Step) and item.kind != "library":
            single.append(item)
            continue
        if single:
            kernels.append(Kernel(len(kernels), single))
            single = []
        kernels.append(Kernel(len(kernels), [item]))
    if single:
        kernels.append(Kernel(len(kernels), single))
    return kernels


def note_paths(plan: Plan, kernel: Kernel, item: Step | Loop, path: Path) -> None:
    """Remember the loops around every Step, and around its value."""
    if isinstance(item, Loop):
        for inner in item.body:
            note_paths(plan, kernel, inner, (*path, item))
        return
    plan.paths[item] = path
    plan.kernel_of[item] = kernel
    home = path
    for at, loop in enumerate(path):
        if loop.axis in item.closed:
            home = path[:at]
            break
    plan.homes[item] = home


def inner_axes(plan: Plan, step: Step) -> list[Axis]:
    """Of a reduction, the axes of its value that are looped over inside of it."""
    around = {loop.axis for loop in plan.homes[step]}
    return [
        loop.axis
        for loop in plan.paths[step]
        if loop.axis in step.labels and loop.axis not in around
    ]


def choose_vector(kernel: Kernel, lanes: int, plan: Plan) -> None:
    """The axis whose iterations are done several at a time: the least work wins."""
    steps = list(kernel.steps())
    axes: dict[Axis, None] = {}
    for step in steps:
        axes.update(dict.fromkeys(loop.axis for loop in plan.paths[step]))
    leaves = {x: None for step in steps for x in step.inputs if is_leaf(x)}
    widest = max(
        (x.dtype.itemsize for x in (*steps, *leaves) if x.kind not in POSITIONS),
        default=4,
    )
    most = max(1, lanes // max(widest, 4))

    def price(axis: Axis) -> float:
        width = min(most, 1 << (axis.size.bit_length() - 1))
        full = axis.size / math.ceil(axis.size / width)
        total = 0.0
        for step in (*steps, *leaves):
            around = step.labels | step.closed
            count = math.prod(x.size for x in around)
            here = cost(step)
            if step.kind == "load" or step.output is not None:
                here = 1.0 if distance(step, axis) in (0, 1) else 1.5 * full
            if axis in around:
                total += here * count / full
                if axis in step.closed:
                    total += 6.0 * count / axis.size
            else:
                total += here * count
        return total

    if axes:
        best = min(axes, key=lambda axis: (price(axis), axis.number))
        kernel.vector = best
        kernel.width = min(most, 1 << (best.size.bit_length() - 1))


def distance(step: Step, axis: Axis) -> int | None:
    """How far apart in memory neighbours along an axis are; None if positions vary."""
    if step.kind == "load":
        shape = step.source.shape if isinstance(step.source, Buffer) else None
        if shape is None:
            return 1
        strides = (1,) if step.attrs.get("flat") else strides_of(shape)
        total = 0
        for position, stride in zip(step.index, strides, strict=True):
            if isinstance(position, Step):
                if axis in position.labels:
                    return None
                continue
            total += sum(f * stride for a, f in position.terms if a.root is axis)
        return total
    assert step.dims is not None and step.output is not None
    for dim, stride in zip(step.dims, strides_of(step.output.shape), strict=False):
        if dim is not None and dim.root is axis:
            return stride
    return 0


POSITIONS: Final = ("index", "position", "verify", "moved")
TASK_WORK: Final = 60_000.0  # instructions of one lane; about ten microseconds
MAX_TASKS: Final = 32


def choose_tasks(kernel: Kernel) -> None:
    """Into how many parts the outermost loop is cut; always the same, for the bits."""
    loop = kernel.loop
    if loop is None:
        return
    grain = kernel.width if loop.axis is kernel.vector else 1
    possible = loop.axis.size // grain
    wanted = kernel.work / max(kernel.width, 1) / TASK_WORK
    if wanted >= 2:
        kernel.tasks = max(1, min(MAX_TASKS, int(wanted), possible))


def common(first: Path, second: Path) -> Path:
    """The loops around both."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a is not b:
            break
        count += 1
    return first[:count]


def store(plan: Plan, step: Step, users: Sequence[Step]) -> None:
    """Give a Step memory if a user is in another iteration, or if it is a result."""
    kernel, home = plan.kernel_of[step], plan.homes[step]
    if step.kind == "library":
        plan.storage[step] = whole_storage(step)
        return
    is_array = bool(step.closed) and bool(inner_axes(plan, step))
    is_cut = kernel.tasks > 1 and bool(step.closed) and not home
    needs = is_array or is_cut or step.whole or step.output is not None
    scope = home if not (step.whole or step.output or is_cut) else ()
    for user in users:
        path = plan.paths[user]
        same = plan.kernel_of[user] is kernel and path[: len(home)] == home
        if user.source is step or user.kind == "library" or not same:
            needs = True
        shared = common(home, path) if plan.kernel_of[user] is kernel else ()
        scope = common(scope, shared)
    if not needs:
        return
    if not scope:
        plan.storage[step] = whole_storage(step)
        return
    around = {loop.axis for loop in scope}
    free = [axis for axis in ordered(plan, step) if axis not in around]
    vector = kernel.vector
    if vector in free:  # its elements are next to each other
        free.remove(vector)
        free.append(vector)  # type: ignore[arg-type]  # it is in the list
    sizes = [axis.size for axis in free]
    strides = dict(zip(free, strides_of(sizes), strict=True))
    made = Storage(step.dtype, strides, math.prod(sizes), kernel.number)
    made.lanes = vector in around and vector in step.labels
    plan.storage[step] = made
    kernel.private.append(made)


def ordered(plan: Plan, step: Step) -> list[Axis]:
    """The axes of a value in the order of the loops."""
    return [loop.axis for loop in plan.paths[step] if loop.axis in step.labels]


def whole_storage(step: Step) -> Storage:
    """Memory for the array that a Step's Node is, row by row."""
    assert step.dims is not None
    dims = step.dims
    shape = [1 if dim is None else dim.size for dim in dims]
    if not step.whole and step.output is None:
        shape = [
            1 if dim is None or dim.root not in step.labels else dim.size
            for dim in dims
        ]
    strides = {
        dim.root: stride
        for dim, stride, size in zip(dims, strides_of(shape), shape, strict=True)
        if dim is not None and size != 1
    }
    made = Storage(step.dtype, strides, math.prod(shape), None)
    made.buffer = step.output
    return made


def place_in_arena(plan: Plan) -> None:
    """Offsets for what lives in the arena, memory shared where lifetimes allow."""
    last_use: dict[Storage, int] = {}
    first_use: dict[Storage, int] = {}
    for step, path in plan.paths.items():
        at = plan.kernel_of[step].number
        own = plan.storage.get(step)
        stored = [x for x in step.needed() if x in plan.storage]
        for memory in [plan.storage[x] for x in stored] + ([own] if own else []):
            if memory.kernel is None and memory.buffer is None:
                first_use[memory] = min(first_use.get(memory, at), at)
                last_use[memory] = max(last_use.get(memory, at), at)
    for kernel in plan.kernels:
        if kernel.tasks > 1:
            for step in kernel.steps():
                if step.closed and not plan.homes[step]:
                    size = plan.storage[step].size
                    memory = Storage(
                        accumulator(step.dtype), {}, size * kernel.tasks, None
                    )
                    kernel.partials[step] = memory
                    first_use[memory] = last_use[memory] = kernel.number
    live: list[Storage] = []
    for memory in sorted(first_use, key=lambda x: (first_use[x], -room(x))):
        live = [x for x in live if last_use[x] >= first_use[memory]]
        place(memory, live)
        live.append(memory)
        end = memory.offset + room(memory)
        plan.arena_size = max(plan.arena_size, end)


def place(memory: Storage, live: Sequence[Storage]) -> None:
    """The first gap between what is in use at the same time."""
    at = ALIGNMENT
    for other in sorted(live, key=lambda x: x.offset):
        if at + room(memory) <= other.offset:
            break
        at = max(at, other.offset + room(other))
    memory.offset = at


def room(memory: Storage) -> int:
    """Bytes, rounded up so that what follows is aligned."""
    size = memory.size * memory.dtype.itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT


def accumulator(dtype: DType) -> DType:
    """What sums of this dtype are kept in: single precision for halves."""
    if dtype.kind not in "biu" and dtype.itemsize == 2:
        return np.dtype(np.float32)
    return dtype


def describe(plan: Plan) -> list[dict[str, Any]]:
    """Each kernel in numbers."""
    return [
        {"kernel": k.number, "tasks": k.tasks, "width": k.width, "work": k.work}
        for k in plan.kernels
    ]
