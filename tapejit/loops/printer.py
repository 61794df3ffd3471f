"""The loop IR as text: what `str(plan)` shows, with the user's lines.

Kernels come in order, each with its loops. A loop is `for i:256 by 16`, an axis, its
extent and how many iterations are done at a time. A Step is a line: its number, its
dtype, what it does, `->` where its value is kept, and the line of the user's program.
Loads, constants and positions stand where they are used.

    kernel 0 (2 tasks) {
      for i:64 {
        for j:256 by 16 {
          %0: f32 = sum in0[i, j] over j                         # train.py:7
        }
        %1: f32 = div %0, 256.0 -> out0[i]                       # train.py:7
      }
    }

Nests are printed in the same way; what goes from one to another is `-> memory`.

Start reading at `print_plan`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from tapejit.base.types import short_name
from tapejit.ir.node import Node
from tapejit.ir.printer import origin_text
from tapejit.loops.index import Affine, Axis, Range
from tapejit.loops.kernels import Kernel, LoopPlan, Storage
from tapejit.loops.nests import Nests
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import (
    AddAt,
    AffineIndex,
    ArrayOp,
    Buffer,
    CheckedIndex,
    Choose,
    Compute,
    Contract,
    IndexValue,
    Load,
    Number,
    PartialSum,
    Reduce,
    Step,
    Verify,
    View,
)

INDENT: Final = "  "
LETTERS: Final = "ijklmnpqr"
COMMENT_COLUMN: Final = 64
BUFFERS: Final = {"input": "in", "output": "out", "constant": "const"}


def print_plan(plan: LoopPlan) -> str:
    """All kernels of a plan, with their memory."""
    printer = Printer(plan.storage)
    lines = [f"arena of {plan.arena_size} bytes"]
    for kernel in plan.kernels:
        lines += printer.kernel(kernel)
    return "\n".join(lines)


def print_nests(nests: Nests) -> str:
    """The nests of a Graph, which no target has scheduled; the Graph before that."""
    if not nests.nests:
        return str(nests.graph)
    printer = Printer(shared=nests.shared)
    lines: list[str] = []
    for number, nest in enumerate(nests.nests):
        lines.append(f"nest {number} ({nest.role}) {{")
        lines += [*printer.items(nest.items, 1), "}"]
    for out, inputs in nests.updates.items():
        given = ", ".join(map(printer.memory, inputs))
        lines.append(f"{printer.memory(out)} may be written over {given}")
    return "\n".join(lines)


class Printer:
    """Names for Steps and axes, given in the order in which they are met."""

    def __init__(
        self,
        storage: Mapping[Step, Storage] | None = None,
        shared: Collection[Step] = (),
    ) -> None:
        self.storage: Mapping[Step, Storage] = storage or {}
        self.shared = shared  # what goes from one nest to another
        self.names: dict[Step, str] = {}
        self.axes: dict[Axis, str] = {}
        self.lanes: tuple[Axis | None, int] = (None, 1)

    # Kernels and loops

    def kernel(self, kernel: Kernel) -> Iterator[str]:
        """One kernel: what is known of all of it, private memory, then its body."""
        notes = [f"stage {kernel.stage}"]
        if kernel.tasks > 1:
            notes.append(f"{kernel.tasks} tasks")
        yield f"kernel {kernel.number} ({', '.join(notes)}) {{"
        self.lanes = kernel.vector, kernel.width
        yield from self.items(kernel.items, 1)
        yield "}"

    def items(self, items: Sequence[Step | Loop], depth: int) -> Iterator[str]:
        """The Steps and loops of a body."""
        for item in items:
            if isinstance(item, Step):
                yield commented(f"{INDENT * depth}{self.line(item)}", item.node)
                continue
            before = self.lanes
            self.lanes = item.lanes or before
            yield f"{INDENT * depth}for {self.loop(item)} {{"
            yield from self.items(item.body, depth + 1)
            yield f"{INDENT * depth}}}"
            self.lanes = before

    def loop(self, loop: Loop) -> str:
        """The axis of a loop, its extent, and how many iterations go together."""
        text = f"{self.axis(loop.axis)}:{loop.axis.extent}"
        if loop.tile:
            return f"{text} by tiles of {loop.tile}"
        vector, width = self.lanes
        if loop.axis is vector and width > 1:
            text += f" by {width}"
        return text if loop.copies == 1 else f"{text}, {loop.copies} together"

    def axis(self, axis: Axis) -> str:
        """The name of an axis."""
        root = axis.root
        if root not in self.axes:
            number, at = divmod(len(self.axes), len(LETTERS))
            self.axes[root] = LETTERS[at] + (str(number) if number else "")
        return self.axes[root]

    # Steps

    def line(self, step: Step) -> str:
        """A Step with its value's number and place."""
        text = f"{self.name(step)}: {short_name(step.dtype)} = {self.what(step)}"
        memory = self.storage.get(step)
        if memory is not None:
            return f"{text} -> {self.place(memory)}"
        if step.output is not None:
            return f"{text} -> {self.memory(step.output)}"
        return f"{text} -> memory" if step in self.shared else text

    def name(self, step: Step) -> str:
        """The number of a value."""
        return self.names.setdefault(step, f"%{len(self.names)}")

    def operand(self, step: Step) -> str:
        """A value as an operand: its number, or what it is if that is simple."""
        return self.what(step) if step.is_leaf else self.name(step)

    def what(self, step: Step) -> str:
        """What a Step does."""
        operands = [self.operand(x) for x in step.inputs]
        listed = ", ".join(operands)
        match step.what:
            case Number(value):
                return str(value)
            case IndexValue((position,)):
                return self.position(position)
            case Load(source, index, ranges, flat):
                name = self.memory(source) + (".flat" if flat else "")
                places = ", ".join(self.position(x) for x in index)
                return f"{name}[{places}]" + self.condition(ranges)
            case CheckedIndex(size):
                return f"checked_index {listed}, size={size}"
            case AffineIndex(factor, offset):
                return f"{factor} * {listed} + {offset}"
            case Verify():
                return f"verify {listed}, count={step.what.count}"
            case AddAt():
                here, target, x, update = operands
                return f"{x}, plus {update} where {here} == {target}"
            case Choose(ranges):
                return f"{operands[0]}{self.condition(ranges)} else {operands[1]}"
            case Compute(op, attrs):
                extra = "".join(f", {key}={value}" for key, value in attrs.items())
                return f"{op.name} {listed}{extra}"
            case Reduce(op, _):
                return f"{op.name} {listed} over {self.over(step)}"
            case PartialSum(op, unit, group):
                cut = f"{unit} rows" if unit else f"{group} columns"
                return f"partial {op.name} {listed} by {cut}"
            case Contract(_):
                over = f" over {self.over(step)}" if step.reduced else ""
                return f"contract {listed}{over}"
            case ArrayOp(op, views, tiles, order):
                text = f"{op.name} {', '.join(map(self.view, views))}"
                if tiles is not None:
                    cuts = [f"{k} by {self.axis(a)}" for k, a in tiles.cuts.items()]
                    text += f", tiles of {tiles.kind} ({', '.join(cuts)})"
                return text if order is None else f"{text}, order={order}"
        return f"{step.what.word} {listed}"

    def over(self, step: Step) -> str:
        """The axes of a reduction."""
        return ", ".join(self.axis(axis) for axis in step.reduced)

    # Positions and memory

    def position(self, position: Any) -> str:
        """A position: a sum of axes times factors, or a value."""
        if not isinstance(position, Affine):
            return self.operand(position)
        parts = [
            self.axis(axis) if factor == 1 else f"{factor} * {self.axis(axis)}"
            for axis, factor in position.terms
        ]
        if position.constant or not parts:
            parts.append(str(position.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def condition(self, ranges: Sequence[Range]) -> str:
        """Where something holds."""
        texts = [f"{x.low} <= {self.position(x.position)} < {x.high}" for x in ranges]
        return f" if {' and '.join(texts)}" if texts else ""

    def memory(self, source: Buffer | Step) -> str:
        """The name of an array from outside, or of a Step's value in memory."""
        if isinstance(source, Buffer):
            return f"{BUFFERS[source.kind]}{source.number}"
        return self.name(source)

    def view(self, view: View) -> str:
        """An operand of an operation on whole arrays."""
        strides = ", ".join(map(str, view.strides))
        start = f"{view.offset}; " if view.offset else ""
        return f"{self.memory(view.base)}[{start}strides {strides}]"

    def place(self, memory: Storage) -> str:
        """Where a value is kept: the array, and the element of this iteration."""
        element = self.position(Affine(tuple(memory.strides.items())))
        if memory.buffer is not None:
            return f"{self.memory(memory.buffer)}[{element}]"
        where = f"arena+{memory.offset}" if memory.kernel is None else "private"
        return f"{where}[{element}]"


def commented(text: str, node: Node | None) -> str:
    """A line with where its operation was written."""
    where = "" if node is None else origin_text(node, {})
    return f"{text:<{COMMENT_COLUMN}} # {where}" if where else text
