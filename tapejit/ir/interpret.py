"""Run a Graph with NumPy, Node by Node.

A `Program` is a Graph flattened once into steps: a function with its attributes
bound, the registers it reads, the register it writes, and the registers that nobody
reads afterwards. Values are let go as soon as the last reader has run, so a program
holds no more than a compiled one would.

Symbolic sizes are bound first, from the shapes of the arguments; the steps of the sizes
met last are kept, so that a program is bound once per size.

Start reading at `interpret`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any, Final

import numpy as np

from tapejit.base.dims import Dim, evaluate
from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.base.numpy_adapter import restore, silence
from tapejit.base.types import TensorType, Type
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, PARAM, Node
from tapejit.ir.structural import dim_value

Array = Any  # np.ndarray, np.generic, or a tuple of them
Instruction = tuple[Callable[..., Any], tuple[int, ...], int, tuple[int, ...]]


def interpret(graph: Graph, *arguments: Any) -> tuple[np.ndarray[Any, Any], ...]:
    """The outputs of `graph` for these arrays.

    >>> from tapejit.ir import param
    >>> x = param("x", TensorType.parse("f32[n]"))
    >>> graph = Graph("square", (x,), (x * x,))
    >>> interpret(graph, np.float32([1, 2, 3]))
    (array([1., 4., 9.], dtype=float32),)
    """
    if len(arguments) != len(graph.inputs):
        raise ArgumentTypeError(
            f"{graph.name} takes {len(graph.inputs)} arguments, got {len(arguments)}"
        )
    for at, (node, value) in enumerate(zip(graph.inputs, arguments, strict=True)):
        if not fits(value, node.type):
            found = TensorType.of(value) if hasattr(value, "dtype") else type(value)
            raise ArgumentTypeError(
                f"argument {at} of {graph.name} is {node.type}, got {found}"
            )
    return tuple(np.asarray(value) for value in graph.program.run(list(arguments)))


def fits(value: Any, type: Type) -> bool:
    """Whether a value can be an argument of this type (symbolic sizes fit any)."""
    if not isinstance(type, TensorType):
        return True
    if getattr(value, "dtype", None) != type.dtype or value.ndim != type.ndim:
        return False
    pairs = zip(value.shape, type.shape, strict=True)
    return all(isinstance(want, Dim) or got == want for got, want in pairs)


def perform(
    nodes: Iterable[Node], values: dict[Node, Any], step: Callable[..., Any]
) -> None:
    """Give each Node its value, by `step(node, values of its inputs)`.

    For whoever wants every value, or something else than arrays as values.
    """
    for node in nodes:
        values[node] = step(node, [values[x] for x in node.inputs])


class Program:
    """A Graph as straight-line steps over numbered registers.

    The first run goes through the steps one by one. A program that runs again is
    worth compiling: the same steps as a Python function, one line each, which costs
    0.05 µs a step where the loop costs 0.3.

    `symbolic_axes` are the inputs' axes of symbolic size; `bound` holds what runs for
    their sizes: the steps, and from the second run on a function. All those functions
    have the same `source`, they differ in the attributes they are bound to, and in the
    numbers that the `sized` steps compute of nothing but sizes, once per function.
    """

    __slots__ = (
        "bound",
        "compiled",
        "has_run",
        "input_types",
        "is_symbolic",
        "nodes",
        "outputs",
        "registers",
        "sized",
        "source",
        "steps",
        "symbolic_axes",
        "token",
    )

    def __init__(self, graph: Graph) -> None:
        # The types, not the Graph: it holds this Program, and that would be a cycle.
        self.input_types = tuple(node.type for node in graph.inputs)
        self.has_run = False
        self.token = object()  # by which its frames are recognised
        self.compiled: Callable[[list[Any]], list[Any]] | None = None
        index: dict[Node, int] = {node: at for at, node in enumerate(graph.inputs)}
        constants: dict[int, Any] = {}
        running: list[Node] = []
        for node in graph.nodes:
            index[node] = len(index)
            if node.op is LITERAL:
                constants[index[node]] = node.attrs["value"][()]
            elif node.op is PARAM:
                raise ArgumentTypeError(
                    f"parameter {node.name} is used in {graph.name} but is no input"
                )
            else:
                running.append(node)
        self.registers: list[Any] = [None] * len(index)
        for at, value in constants.items():
            self.registers[at] = value
        self.outputs = tuple(index[node] for node in graph.outputs)
        self.is_symbolic = any(has_dims(node) for node in (*graph.inputs, *running))
        self.symbolic_axes = tuple(
            (at, axis)
            for at, kind in enumerate(self.input_types)
            if isinstance(kind, TensorType)
            for axis, size in enumerate(kind.shape)
            if isinstance(size, Dim)
        )
        self.bound: dict[tuple[int, ...], Any] = {}
        self.source: Source | None = None
        self.nodes = tuple(running)
        self.sized = _sized_steps(running) if self.is_symbolic else ()
        constant = {index[running[at]] for at in self.sized}
        self.steps = _steps(running, index, {*self.outputs, *constants, *constant})

    def run(self, arguments: list[Any]) -> list[Any]:
        """The outputs; `arguments` is emptied so that values can be let go."""
        token = silence()
        try:
            if self.compiled is not None:
                return self.compiled(arguments)
            if self.is_symbolic:
                return self._run_bound(arguments)
            if self.has_run:
                self.compiled = self._compile(self.steps, self.registers)
                return self.compiled(arguments)
            self.has_run = True
            return self._run_steps(arguments, self.steps)
        finally:
            restore(token)

    def _run_bound(self, arguments: list[Any]) -> list[Any]:
        """Run for the sizes of these arguments, as far prepared as they were met."""
        key = tuple([arguments[at].shape[axis] for at, axis in self.symbolic_axes])
        found = self.bound.get(key)
        if found is None:
            steps = self._bound(arguments)
            if len(self.bound) >= MAX_BOUND:
                oldest, *_ = list(self.bound)  # at once: other threads add to it
                self.bound.pop(oldest, None)
            self.bound[key] = steps
            return self._run_steps(arguments, steps)
        if isinstance(found, list):
            registers = self.registers.copy()
            try:
                for at in self.sized:
                    function, reads, writes, _ = found[at]
                    registers[writes] = function(*[registers[x] for x in reads])
            except Exception:  # then it is a step of the run that fails
                return self._run_steps(arguments, found)
            found = self.bound[key] = self._compile(found, registers)
        return found(arguments)

    def _compile(
        self, steps: Sequence[Instruction], registers: Sequence[Any]
    ) -> Callable[[list[Any]], list[Any]]:
        inputs = len(self.input_types)
        if self.source is None:
            self.source = source_of(steps, inputs, self.outputs, self.sized)
        return self.source.bound_to(steps, inputs, registers, self.token)

    def _run_steps(
        self, arguments: list[Any], steps: Sequence[Instruction]
    ) -> list[Any]:
        registers = self.registers.copy()
        registers[: len(arguments)] = arguments
        arguments.clear()
        for at, (function, reads, writes, last) in enumerate(steps):  # noqa: B007  # failed_step reads `at`
            registers[writes] = function(*[registers[x] for x in reads])
            for x in last:
                registers[x] = None
        return [registers[x] for x in self.outputs]

    def failed_node(self, error: BaseException) -> Node | None:
        """Which Node raised `error`, None if it came from elsewhere."""
        traceback = error.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            found: int | None = None
            is_own = False
            if frame.f_code is Program._run_steps.__code__:
                found = frame.f_locals["at"]
                is_own = frame.f_locals["self"] is self
            elif frame.f_code.co_filename == COMPILED:
                found = frame.f_globals["STEP_OF_LINE"].get(traceback.tb_lineno)
                is_own = frame.f_globals["PROGRAM"] is self.token
            if found is not None and is_own:
                return self.nodes[int(found)]
            traceback = traceback.tb_next
        return None

    def _bound(self, arguments: Sequence[Any]) -> list[Instruction]:
        """The steps with every symbolic size replaced by the actual one."""
        patterns, actual = [], []
        for kind, value in zip(self.input_types, arguments, strict=True):
            if isinstance(kind, TensorType):
                patterns.append(kind.shape)
                actual.append(value.shape)
        from tapejit.base.binding import bind_shapes

        sizes = bind_shapes(patterns, actual)
        bound: list[Instruction] = []
        for function, reads, writes, last in self.steps:
            if isinstance(function, partial):
                function = _bound_function(function, sizes)
            bound.append((function, reads, writes, last))
        return bound


def _bound_function(function: partial[Any], sizes: Mapping[str, int]) -> Any:
    """A step for these sizes; what has no value for them fails when it is run.

    A guard before it may stop the run, because the step is not meant for the sizes.
    """
    try:
        attrs = {k: bind_dims(v, sizes) for k, v in function.keywords.items()}
    except ArithmeticError as error:
        return partial(_fail, ArgumentError(str(error)))
    return partial(function.func, **attrs)


def _fail(error: Exception, *arrays: Any) -> Any:
    raise error


MAX_BOUND: Final = 64  # how many sizes a program stays bound to

COMPILED: Final = "<tapejit program>"

INFIX: Final[dict[Any, str]] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
}


class Source:
    """The steps as the code of one Python function of a list, which it empties.

    `calls` are the steps that call a function of their own, by its name in the code.
    """

    def __init__(
        self, code: CodeType, calls: dict[str, int], step_of_line: dict[int, int]
    ) -> None:
        self.code, self.calls, self.step_of_line = code, calls, step_of_line

    def bound_to(
        self,
        steps: Sequence[Instruction],
        inputs: int,
        registers: Sequence[Any],
        token: object,
    ) -> Callable[[list[Any]], list[Any]]:
        """The function that calls those of `steps`; its frames show the `token`."""
        names: dict[str, Any] = {
            f"r{at}": value
            for at, value in enumerate(registers)
            if at >= inputs and value is not None
        }
        names["__name__"] = __name__  # its frames are tapejit's, not the user's
        names["STEP_OF_LINE"] = self.step_of_line
        names["PROGRAM"] = token
        for name, at in self.calls.items():
            names[name] = steps[at][0]
        exec(self.code, names)
        # Taken out of its own globals, or the two would keep each other alive.
        program: Callable[[list[Any]], list[Any]] = names.pop("program")
        return program


def source_of(
    steps: Sequence[Instruction],
    inputs: int,
    outputs: Sequence[int],
    without: Collection[int] = (),
) -> Source:
    """The code of a program, one line for each step but those `without`."""
    arguments = "".join(f"r{at}, " for at in range(inputs))
    lines = [f"({arguments}) = arguments"] if inputs else []
    lines.append("arguments.clear()")
    calls: dict[str, int] = {}
    step_of_line: dict[int, int] = {}
    for at, (function, reads, writes, last) in enumerate(steps):
        if at in without:
            continue
        sources = [f"r{x}" for x in reads]
        if function in INFIX:
            value = f" {INFIX[function]} ".join(sources)
        elif function is operator.neg:
            value = f"-{sources[0]}"
        else:
            calls[f"f{at}"] = at
            value = f"f{at}({', '.join(sources)})"
        lines.append(f"r{writes} = {value}")
        step_of_line[len(lines) + 1] = at
        if last:
            lines.append("del " + ", ".join(f"r{x}" for x in last))
    lines.append(f"return [{', '.join(f'r{x}' for x in outputs)}]")
    source = "def program(arguments):\n" + "".join(f"    {line}\n" for line in lines)
    return Source(compile(source, COMPILED, "exec"), calls, step_of_line)


def _sized_steps(running: Sequence[Node]) -> tuple[int, ...]:
    """The steps that compute numbers of sizes and literals only."""
    numbers: set[Node] = set()
    found: list[int] = []
    for at, node in enumerate(running):
        is_number = isinstance(node.type, TensorType) and not node.type.shape
        known = all(x.op is LITERAL or x in numbers for x in node.inputs)
        # An op with a lane expression is elementwise: it has no effects and no state.
        is_pure = node.op is dim_value or (
            node.op.scalar is not None and bool(node.inputs)
        )
        if is_number and known and is_pure:
            numbers.add(node)
            found.append(at)
    return tuple(found)


def _steps(
    running: Sequence[Node], index: Mapping[Node, int], kept: set[int]
) -> list[Instruction]:
    last_reader: dict[int, int] = {}
    for at, node in enumerate(running):
        last_reader[index[node]] = at  # a result nobody reads goes at once
        for x in node.inputs:
            last_reader[index[x]] = at
    ending: dict[int, list[int]] = {}
    for register, at in last_reader.items():
        if register not in kept:
            ending.setdefault(at, []).append(register)
    return [
        (
            partial(node.op.eval, **node.attrs) if node.attrs else node.op.eval,
            tuple(index[x] for x in node.inputs),
            index[node],
            tuple(ending.get(at, ())),
        )
        for at, node in enumerate(running)
    ]


def has_dims(node: Node) -> bool:
    """Whether a Node's type or attributes contain a symbolic size."""
    if isinstance(node.type, TensorType) and not node.type.is_static:
        return True
    return any(contains_dim(value) for value in node.attrs.values())


def contains_dim(value: Any) -> bool:
    """Whether an attribute has a symbolic size in it."""
    if isinstance(value, tuple):
        return any(map(contains_dim, value))
    return isinstance(value, Dim)


def bind_dims(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute with its symbolic sizes evaluated."""
    if isinstance(value, tuple):
        return tuple(bind_dims(part, sizes) for part in value)
    return evaluate(value, sizes) if isinstance(value, Dim) else value
