"""One kernel as Python text.

A `KernelWriter` walks the tree of loops of one kernel and writes down what it computes:
one element at a time, by names.

Start reading at `KernelWriter.go_through`, then `keep`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tapejit import ops
from tapejit.base.types import DType
from tapejit.ir.node import Node, Op
from tapejit.ir.printer import origin_text
from tapejit.loops.index import Affine, Axis, Range, strides_of
from tapejit.loops.kernels import Kernel, LoopNest, Storage, accumulator, inner_axes
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import (
    Buffer,
    Compute,
    Contract,
    Copy,
    Load,
    Number,
    PartialSum,
    Step,
    partial_of,
    tiles_of,
)
from tapejit.targets.cpu.nest.reductions import identity
from tapejit.targets.python.lane_source import in_parentheses, source
from tapejit.targets.python.source_text import (
    Names,
    attr_text,
    constant_text,
    dtype_text,
    empty_text,
    is_plain,
    number_text,
    sum_text,
    wish_of,
)
from tapejit.targets.python.tile_source import (
    in_stack,
    part_of,
    parts_of,
    rows_of_tile,
    write_row_product,
)
from tapejit.targets.walk import Walk, has_array_op

if TYPE_CHECKING:
    from tapejit.targets.python.kernel_source import SourceWriter

INDENT: Final = "    "
LETTERS: Final = "ijklmnpqr"

# How a reduction takes in one more element, if Python has an operator for that.
TAKES: Final = {
    ops.add: "+=",
    ops.mul: "*=",
    ops.bitwise_and: "&=",
    ops.bitwise_or: "|=",
}
# The operations in which a Python number takes the dtype of what it meets.
WEAK: Final = frozenset(
    {
        *(ops.add, ops.sub, ops.mul, ops.div, ops.pow, ops.maximum, ops.minimum),
        *(ops.equal, ops.not_equal, ops.less, ops.less_equal),
        *(ops.greater, ops.greater_equal),
    }
)


def taken_in(reduction: Op, total: str, x: str) -> str:
    """The statement by which a total takes in one more element."""
    assert reduction.reduces is not None
    combine = reduction.reduces.combine
    if combine in TAKES:
        return f"{total} {TAKES[combine]} {x}"
    return f"{total} = {source(combine, {}, [total, x])}"


def behind(notes: Sequence[str]) -> str:
    """Notes as a comment behind a line; nothing if there are none."""
    return f"  # {', '.join(notes)}" if notes else ""


@dataclass(frozen=True)
class Array:
    """Memory as the text knows it: a name, and the axis along each dimension."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    axes: tuple[Axis | None, ...]
    tiled: tuple[Axis, ...] = ()  # the axes of which it holds one tile

    def at(self, positions: Sequence[str]) -> str:
        """One element."""
        return f"{self.name}[{', '.join(positions) or '()'}]"


class Total:
    """Where the text of a reduction adds up: a name, or an array over `axes`."""

    def __init__(self, step: Step, name: str, axes: list[Axis]) -> None:
        self.step = step
        self.name = name
        self.axes = axes
        self.dtype = accumulator(step.dtype)

    @property
    def op(self) -> Op:
        """The reduction."""
        return self.step.reduction


class KernelWriter(Walk[str, Total]):
    """Writes one kernel; `values` has the expression for each Step known here."""

    def __init__(self, writer: SourceWriter, kernel: Kernel) -> None:
        self.writer = writer
        self.plan = writer.plan
        self.kernel = kernel
        self.number = writer.first + kernel.number
        self.name = f"kernel_{self.number}"
        self.names = Names(writer.names.taken)
        self.values: dict[Step, str] = {}
        self.indices: dict[Axis, str] = {}
        self.accumulators: dict[Step, Total] = {}
        self.loaded: dict[str, str] = {}
        self.firsts: dict[Axis, str] = {}
        self.ends: dict[Axis, str] = {}  # of tiles for products, the last one shorter
        self.ranges: dict[Axis, str] = {}
        self.vector, self.width = kernel.vector, kernel.width
        self.lines: list[str] = []
        self.depth = 1
        self.used: dict[str, None] = {}
        self.uses = Counter(x for step in kernel.steps() for x in step.inputs)
        for step in kernel.steps():
            self.uses.update(x for x in step.index if isinstance(x, Step))
        self.axis_names: dict[Axis, str] = {}
        self.private: dict[Any, Array] = {}
        self.in_registers: dict[Step, Array] = {}  # products that are not stored
        around = [loop for step in kernel.steps() for loop in self.plan.paths[step]]
        tiles = {loop.axis: loop.tile for loop in around if loop.tile}
        for step in kernel.steps():
            memory = self.plan.storage.get(step)
            if memory is not None and memory.kernel is not None:
                ordered = sorted(memory.strides, key=lambda x: -memory.strides[x])
                shape = tuple(
                    tiles[axis] if axis in memory.tiled else axis.extent
                    for axis in ordered
                )
                name = self.names(f"kept_{wish_of(step)}")
                made = Array(name, memory.dtype, shape, tuple(ordered), memory.tiled)
                self.private[memory] = made
        self.block(kernel.items, ())

    @property
    def arguments(self) -> list[str]:
        """The arrays it uses, in the order of `run`."""
        known = (
            *self.writer.inputs,
            *[x.name for x in self.writer.arena],
            *self.writer.outputs,
        )
        return [name for name in known if name in self.used]

    def text(self) -> str:
        """The whole function."""
        lines = [f"def {self.name}({', '.join(self.arguments)}):"]
        lines += [f"{INDENT}# {x}" for x in self.remarks()]
        for memory, x in self.private.items():
            note = behind(self.memory_notes(memory))
            lines.append(f"{INDENT}{x.name} = {empty_text(x.shape, x.dtype)}{note}")
        return "\n".join([*lines, *self.lines]) + "\n"

    def write(self, text: str, node: Node | None = None) -> None:
        """One line, with where its operation was written."""
        where = "" if node is None else origin_text(node, {})
        note = behind([where] if where else [])
        self.lines.append(f"{INDENT * self.depth}{text}{note}")

    # What comments say of a target

    def remarks(self) -> list[str]:
        """Comments at the head of the function."""
        return []

    def memory_notes(self, memory: Storage) -> list[str]:
        """What is said of memory that the kernel has for itself."""
        return []

    def loop_notes(self, loop: Loop, path: LoopNest) -> list[str]:
        """What is said of a loop."""
        notes = []
        if not loop.tile and loop.axis is self.vector and self.width > 1:
            notes.append(f"{self.width} at a time")
        if not path and self.kernel.tasks > 1:
            notes.append(f"in {self.kernel.tasks} tasks")
        return notes

    # Loops

    def ahead(self, step: Step, item: Step | Loop) -> None:
        """A leaf: written where it is used if that is once and here, else named."""
        if step in self.values:
            return
        text, is_here = self.step(step), isinstance(item, Step)
        if isinstance(step.what, Load) and not (is_here and self.uses[step] == 1):
            name = self.loaded.get(text)  # the same in another loop has the same name
            if name is None:
                name = self.loaded[text] = self.names(self.load_name(step))
            self.write(f"{name} = {text}")
            text = name
        self.values[step] = text

    def go_through(self, loop: Loop, path: LoopNest) -> None:
        axis, before = loop.axis, (self.vector, self.width)
        self.vector, self.width = loop.lanes or before
        note = behind(self.loop_notes(loop, path))
        if loop.tile:
            first = self.first_of(axis)
            head = f"for {first} in range(0, {axis.extent}, {loop.tile}):"
            self.write(head + note)
            end = f"{first} + {loop.tile}"
            if axis.extent % loop.tile:
                end = f"min({end}, {axis.extent})"
            if axis.extent % loop.tile and has_array_op(loop):
                self.ends[axis] = self.names(f"end_{self.index(axis)}")
                self.write(f"{INDENT}{self.ends[axis]} = {end}")
                end = self.ends[axis]
            self.ranges[axis] = f"range({first}, {end})"
        else:
            self.write(f"for {self.index(axis)} in {self.range_of(axis)}:{note}")
        self.depth += 1
        self.body(loop, path)
        self.depth -= 1
        self.vector, self.width = before
        if loop.tile:
            del self.ranges[axis]

    def index(self, axis: Axis) -> str:
        """The name of the number of an iteration."""
        if axis not in self.axis_names:
            taken = self.names.taken
            free = [letter for letter in LETTERS if letter not in taken]
            self.axis_names[axis] = self.names(free[0] if free else "at")
        return self.axis_names[axis]

    def first_of(self, axis: Axis) -> str:
        """The name of the number of the first iteration of a tile."""
        if axis not in self.firsts:
            self.firsts[axis] = self.names(f"first_{self.index(axis)}")
        return self.firsts[axis]

    def range_of(self, axis: Axis) -> str:
        """The iterations of a loop, all of them or those of the current tile."""
        return self.ranges.get(axis, f"range({axis.extent})")

    def keep(self, step: Step, value: str) -> None:
        memory = self.plan.storage.get(step)
        if memory is not None and not self.uses[step]:
            self.write(f"{self.element(step)} = {value}", step.node)
            return
        if isinstance(step.what, Copy) and memory is None:
            self.values[step] = value
            return
        wish = self.load_name(step) if isinstance(step.what, Load) else wish_of(step)
        name = self.names(wish)
        self.write(f"{name} = {value}", step.node)
        self.values[step] = name
        if memory is not None:
            self.write(f"{self.element(step)} = {name}")

    def array_op(self, step: Step) -> None:
        if step.tiles is not None and step.performed.op is ops.matmul:
            write_row_product(self, step)
            return
        views = zip(step.views, step.performed.inputs, strict=True)
        operands = [self.view(view, x) for view, x in views]
        if step.performed.op is ops.matmul:
            text = " @ ".join(operands)
        else:
            attrs = [f"{key}={attr_text(x)}" for key, x in step.performed.attrs.items()]
            name = step.performed.op.name
            text = f"ops.{name}.eval({', '.join([*operands, *attrs])})"
            if step.tiles is not None:
                front = step.performed.shape[:-2]
                text += in_stack(self, step, front, part_of("mn", parts_of(self, step)))
                columns = self.array(step).shape[-1]
                if columns < step.performed.shape[-1] and tiles_of(step).column is None:
                    text += f"[:, :{columns}]"
        if step in self.plan.storage:
            here = rows_of_tile(self, self.array(step)) or "[...]"
            self.write(f"{self.matrices(step)}{here} = {text}", step.performed)
        else:
            name = self.names(wish_of(step))
            self.in_registers[step] = whole_array(step, name)
            self.write(f"{name} = {text}", step.performed)
        for part in self.kernel.steps():
            if isinstance(part.what, PartialSum):
                nothing = number_text(identity(part.reduction, part.dtype), part.dtype)
                self.write(f"{self.array(part).name}[...] = {nothing}")

    def matrices(self, step: Step) -> str:
        """The memory of a result, its axes as the operation has them."""
        name, order = self.array(step).name, step.order
        if order is None:
            return name
        back = tuple(order.index(axis) for axis in range(len(order)))
        return f"{name}.transpose{back}"

    def view(self, view: tuple[Any, int, tuple[int, ...]], node: Node) -> str:
        """A whole array as it lies in memory."""
        base, offset, strides = view
        if isinstance(base, Step):
            array = self.array(base)
            name, shape = array.name, array.shape
        else:
            name, shape = self.buffer(base), base.shape
        wanted = tuple(map(int, node.shape))
        plain = strides_of(wanted)
        pairs = zip(strides, plain, wanted, strict=True)
        is_whole = offset == 0 and math.prod(shape) == math.prod(wanted)
        if is_whole and all(a == b or size == 1 for a, b, size in pairs):
            return name if tuple(shape) == wanted else f"{name}.reshape{wanted}"
        is_flipped = tuple(shape) == wanted[::-1] and len(wanted) == 2
        if offset == 0 and is_flipped and strides == strides_of(shape)[::-1]:
            return f"{name}.T"
        return f"view({name}, {offset}, {wanted}, {tuple(strides)})"

    # Reductions

    def accumulator(self, step: Step) -> Total:
        made = Total(step, self.names(wish_of(step)), inner_axes(self.plan, step))
        self.accumulators[step] = made
        neutral = identity(made.op, made.dtype)
        if made.axes:
            shape = tuple(axis.extent for axis in made.axes)
            number, kind = number_text(neutral, made.dtype), dtype_text(made.dtype)
            self.write(f"{made.name} = np.full({shape}, {number}, {kind})")
        else:
            self.write(f"{made.name} = {constant_text(neutral, made.dtype)}")
        return made

    def accumulate(self, step: Step) -> None:
        made = self.accumulators[step]
        values = [
            self.converted(self.value(x), x.dtype, made.dtype) for x in step.inputs
        ]
        text = values[0]
        if isinstance(step.what, Contract):
            symbol = " & " if made.dtype.kind == "b" else " * "
            text = symbol.join(map(in_parentheses, values))
        total = made.name
        if made.axes:
            total += f"[{', '.join(self.index(axis) for axis in made.axes)}]"
        is_any = made.dtype.kind == "b" and made.op is ops.sum
        self.write(taken_in(ops.any if is_any else made.op, total, text), step.node)

    def partial_sum(self, step: Step) -> None:
        *rows, column = (loop.axis for loop in self.plan.paths[step])
        part = partial_of(step)
        if part.unit:
            names, sizes = map(self.index, rows), [axis.extent for axis in rows]
            row = sum_text(list(zip(names, strides_of(sizes), strict=True)), 0)
            text = f"{in_parentheses(row)} // {part.unit}"
        else:
            text = f"{self.index(column)} // {part.group}"
        for axis in step.labels - {*rows, column}:
            self.axis_names[axis] = text
        total, x = self.element(step), self.value(step.inputs[0])
        self.write(taken_in(step.reduction, total, x), step.node)

    def finish(self, made: Total) -> None:
        step = made.step
        has_memory = step in self.plan.storage
        if not made.axes:
            value = self.converted(made.name, made.dtype, step.dtype)
            if value != made.name:
                self.write(f"{made.name} = {value}")
            self.values[step] = made.name
            if has_memory:
                self.write(f"{self.element(step)} = {made.name}")
            return
        depth = self.depth
        for axis in made.axes:
            self.write(f"for {self.index(axis)} in {self.range_of(axis)}:")
            self.depth += 1
        total = f"{made.name}[{', '.join(self.index(axis) for axis in made.axes)}]"
        value = self.converted(total, made.dtype, step.dtype)
        self.write(f"{self.element(step)} = {value}")
        self.depth = depth

    # Steps

    def stored(self, step: Step) -> str:
        return self.element(step)

    def constant(self, number: Any, dtype: DType) -> str:
        return constant_text(number, dtype)

    def index_value(self, position: Affine | Step) -> str:
        return f"np.int64({self.position(position)})"

    def checked_index(self, step: Step, size: int) -> str:
        return f"position({self.value(step.inputs[0])}, {size})"

    def affine_index(self, step: Step, factor: int, offset: int) -> str:
        (text,) = self.operands(step)
        return sum_text([(text, factor)], offset)

    def verified(self, step: Step, count: int) -> str:
        return f"verified({self.value(step.inputs[0])}, {count})"

    def converted(self, value: str, before: DType, after: DType) -> str:
        if before == after:
            return value
        return f"{in_parentheses(value)}.astype({dtype_text(after)})"

    def added_at(self, step: Step) -> str:
        here, target, x, update = self.operands(step)
        return f"{x} + {update} if {here} == {target} else {x}"

    def chosen(self, step: Step, ranges: Sequence[Range]) -> str:
        x, y = self.operands(step)
        return f"{x} if {self.condition(ranges)} else {y}"

    def contracted(self, step: Step) -> str:
        return (" & " if step.dtype.kind == "b" else " * ").join(self.operands(step))

    def operands(self, step: Step) -> list[str]:
        """The inputs of a Step, as operands of any operator."""
        return [in_parentheses(self.value(x)) for x in step.inputs]

    def computed(self, step: Step, what: Compute) -> str:
        is_weak = what.op in WEAK and any(
            not isinstance(x.what, Number) for x in step.inputs
        )
        operands = [
            number_text(x.what.value, x.dtype)
            if is_weak and isinstance(x.what, Number) and is_plain(x.dtype)
            else self.value(x)
            for x in step.inputs
        ]
        return source(what.op, what.attrs, operands)

    def load(self, step: Step, what: Load) -> str:
        given = what.source
        if isinstance(given, Buffer):
            name = self.buffer(given)
            positions = [self.position(x) for x in step.index]
            shape: tuple[int, ...] = given.shape
        else:
            array = self.array(given)
            name, shape = array.name, array.shape
            where = {
                dim.root: position
                for dim, position in zip(given.dims or (), step.index, strict=False)
                if dim is not None
            }
            positions = [
                "0" if axis is None else self.within(array, axis, where[axis])
                for axis in (() if step.is_flat else array.axes)
            ]
        if step.is_flat:
            positions = [self.position(step.index[0])]
            text = f"{name}{'' if len(shape) == 1 else '.flat'}[{positions[0]}]"
        else:
            text = f"{name}[{', '.join(positions) or '()'}]"
        if not step.ranges:
            return text
        fill = constant_text(0, step.dtype)
        return f"{text} if {self.condition(step.ranges)} else {fill}"

    def load_name(self, step: Step) -> str:
        """A name for a loaded value: x_ij for x[i, j]."""
        letters = ""
        for x in step.index:
            if isinstance(x, Affine):
                letters += "".join(self.index(axis.root) for axis, _ in x.terms)
            else:
                letters += "at"
        assert isinstance(step.what, Load)
        given = step.what.source
        name = self.buffer(given) if isinstance(given, Buffer) else wish_of(given)
        return f"{name}_{letters or 0}"

    # Positions and memory

    def position(self, position: Any) -> str:
        """A position, as a sum of indices or a value."""
        if isinstance(position, Step):
            return self.value(position)
        terms = [(self.index(axis.root), factor) for axis, factor in position.terms]
        return sum_text(terms, position.constant)

    def condition(self, ranges: Sequence[Range]) -> str:
        """Whether all Ranges hold."""
        parts = []
        for x in ranges:
            low, high = x.position.span()
            text = self.position(x.position)
            if low < x.low:
                text = f"{x.low} <= {text}"
            if high >= x.high:
                text = f"{text} < {x.high}"
            if not x.always_holds:
                parts.append(text)
        return " and ".join(parts) or "True"

    def buffer(self, buffer: Buffer) -> str:
        """The name of memory from outside, noted as used."""
        name = self.writer.buffer(buffer)
        if buffer.kind != "constant":
            self.used[name] = None
        return name

    def array(self, step: Step) -> Array:
        """The memory of a Step."""
        if step in self.in_registers:
            return self.in_registers[step]
        memory = self.plan.storage[step]
        found = self.private.get(memory) or self.writer.shared.get(memory)
        if found is None:
            assert memory.buffer is not None
            name = self.buffer(memory.buffer)
            made = whole_array(step, name)
            if made.shape != tuple(memory.buffer.shape):  # a reshape, which is free
                name = f"{name}.reshape({made.shape})"
            return Array(name, made.dtype, made.shape, made.axes)
        if memory in self.writer.shared:
            self.used[found.name] = None
        return found

    def element(self, step: Step) -> str:
        """The place in memory for the value of this iteration."""
        array = self.array(step)
        return array.at(
            [
                "0" if axis is None else self.within(array, axis, Affine.of(axis))
                for axis in array.axes
            ]
        )

    def within(self, array: Array, axis: Axis, position: Any) -> str:
        """A position along an axis of memory, which may hold one tile only."""
        text = self.position(position)
        return f"{text} - {self.first_of(axis)}" if axis in array.tiled else text


def whole_array(step: Step, name: str) -> Array:
    """The array that `plan.whole_storage` makes."""
    is_full = step.whole or step.output is not None
    axes = tuple(
        None if dim is None or not (is_full or dim.root in step.labels) else dim.root
        for dim in step.dims or ()
    )
    shape = tuple(1 if axis is None else axis.extent for axis in axes)
    return Array(name, step.dtype, shape, axes)
