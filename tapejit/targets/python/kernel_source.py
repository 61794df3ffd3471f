"""Kernels as Python text: the loops of a plan, one element at a time.

The text is for reading and for stepping through: `run` takes the arrays that the
native function takes, calls one Python function for each kernel, and returns the
results. Loops, positions, memory and the order of Steps are the plan's. What it leaves
out is how: lanes and tasks are in comments, and a sum is added up front to back, so
results may differ from the kernel's in the last digits.

Names are the user's where there are any: arguments and variables, and what the user
assigned a value to. The comment behind a line says where the operation was written.

Start reading at `module_source`, then `SourceWriter`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tapejit.base.types import is_complex
from tapejit.ir.graph import Graph
from tapejit.ir.printer import Writer
from tapejit.loops.kernels import Kernel, LoopPlan
from tapejit.loops.steps import Buffer
from tapejit.targets.python.kernel_writer import (
    INDENT,
    Array,
    KernelWriter,
    whole_array,
)
from tapejit.targets.python.source_text import Names, array_text, empty_text, wish_of

HEADER: Final = "import numpy as np\n"
HELPERS: Final = {
    "ops.": "from tapejit import ops\n",
    "bfloat16": "from ml_dtypes import bfloat16\n",
    "base64.": "import base64\n",
    "position(": '''

def position(index, size):
    """An index as a position; a negative one counts from the end."""
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of range for size {size}")
    return int(index) % size
''',
    "verified(": '''

def verified(number, count):
    """A number that has to be below another."""
    if not 0 <= number < count:
        raise ValueError(f"{number} is not in the range from 0 to {count - 1}")
    return number
''',
    "view(": '''

def view(array, offset, shape, strides):
    """Elements of an array, wherever they lie; strides count elements."""
    flat = array.reshape(-1)[offset:]
    steps = [stride * array.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, steps)
''',
}


def module_source(
    graph: Graph, plan: LoopPlan, first: int = 0, name: str = "run"
) -> str:
    """The kernels and the function that calls them, as a module that runs.

    >>> from tapejit.targets.cpu.module import build
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> graph = Graph("double", (x,), (x + x,))
    >>> print(module_source(graph, build(graph, "double").plan))
    import numpy as np
    <BLANKLINE>
    <BLANKLINE>
    def kernel_0(x, out):
        for i in range(3):  # 2 at a time
            x_i = x[i]
            out[i] = x_i + x_i
    <BLANKLINE>
    <BLANKLINE>
    def run(x):
        out = np.empty((3,), np.float32)
        with np.errstate(all="ignore"):
            kernel_0(x, out)
        return [out]
    """
    return SourceWriter(graph, plan, first).module(name)


class SourceWriter:
    """Writes the kernels of one plan; knows the names of arrays they share."""

    def __init__(self, graph: Graph, plan: LoopPlan, first: int) -> None:
        self.graph = graph
        self.plan = plan
        self.first = first
        self.names = Names()
        self.shared: dict[Any, Array] = {}
        written = Writer().input_names(graph)
        self.inputs = [self.names(written[x]) for x in graph.inputs]
        outputs = len(graph.outputs)
        self.outputs = [
            self.names("out" if outputs == 1 else f"out{at}") for at in range(outputs)
        ]
        self.constants = [self.names(f"c{x.number}") for x in plan.nests.constants]
        self.arena: list[Array] = []
        for step in plan.paths:
            memory = plan.storage.get(step)
            if memory is not None and memory.kernel is None and memory.buffer is None:
                made = whole_array(step, self.names(wish_of(step)))
                self.shared[memory] = made
                self.arena.append(made)

    def buffer(self, buffer: Buffer) -> str:
        """The name of memory from outside."""
        kinds = {
            "input": self.inputs,
            "output": self.outputs,
            "constant": self.constants,
        }
        return kinds[buffer.kind][buffer.number]

    def kernel(self, kernel: Kernel) -> KernelWriter:
        """What writes one of the kernels."""
        return KernelWriter(self, kernel)

    def module(self, name: str) -> str:
        """Everything, in an order that runs."""
        writers = [self.kernel(kernel) for kernel in self.plan.kernels]
        constants = [
            f"{called} = {array_text(x.value)}\n"
            for called, x in zip(self.constants, self.plan.nests.constants, strict=True)
        ]
        lines = [f"def {name}({', '.join(self.inputs)}):"]
        for called, node in zip(self.inputs, self.graph.inputs, strict=True):
            if is_complex(node.dtype):  # as rows of two numbers
                rows = f"np.stack([{called}.real, {called}.imag], axis=-1)"
                lines.append(f"{INDENT}{called} = {rows}")
        outputs = zip(self.outputs, self.plan.nests.outputs, strict=True)
        made = [(called, x.shape, x.dtype) for called, x in outputs]
        for called, shape, dtype in made:
            lines.append(f"{INDENT}{called} = {empty_text(shape, dtype)}")
        for x in self.arena:
            lines.append(f"{INDENT}{x.name} = {empty_text(x.shape, x.dtype)}")
        if writers:
            lines.append(f'{INDENT}with np.errstate(all="ignore"):')
        for writer in writers:
            call = f"{writer.name}({', '.join(writer.arguments)})"
            lines.append(f"{2 * INDENT}{call}")
        results = [
            f"{called}.view(np.{x.dtype})[..., 0]" if is_complex(x.dtype) else called
            for called, x in zip(self.outputs, self.graph.outputs, strict=True)
        ]
        lines.append(f"{INDENT}return [{', '.join(results)}]")
        parts = [*[x.text() for x in writers], "\n".join(lines) + "\n"]
        body = "".join(f"\n\n{part}" for part in parts)
        numbers = "\n" + "".join(constants) if constants else ""
        imports, helpers = HEADER, ""
        for word, text in HELPERS.items():
            if re.search(rf"(?<![\w.]){re.escape(word)}", numbers + body):
                if text.startswith("\n"):
                    helpers += text
                else:
                    imports += text
        return f"{imports}{numbers}{helpers}{body}".rstrip("\n")
