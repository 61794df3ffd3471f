"""Run a Graph with NumPy, Node by Node.

A `Program` is a Graph flattened once into steps: a function with its attributes
bound, the registers it reads, the register it writes, and the registers that nobody
reads afterwards. Values are let go as soon as the last reader has run, so a program
holds no more than a compiled one would.

Symbolic sizes are bound first, from the shapes of the arguments.

Start reading at `interpret`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tapejit.dims import Dim, bind_shapes, evaluate
from tapejit.errors import ArgumentTypeError
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, PARAM, Node
from tapejit.types import TensorType, Type

Array = Any  # np.ndarray, np.generic, or a tuple of them
Step = tuple[Callable[..., Any], tuple[int, ...], int, tuple[int, ...]]


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


class Program:
    """A Graph as straight-line steps over numbered registers."""

    __slots__ = ("graph", "is_symbolic", "outputs", "registers", "steps")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        index: dict[Node, int] = {node: at for at, node in enumerate(graph.inputs)}
        constants: dict[int, Any] = {}
        running: list[Node] = []
        for node in graph.nodes:
            index[node] = len(index)
            if node.op is LITERAL:
                constants[index[node]] = node.attrs["value"]
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
        self.steps = _steps(running, index, kept={*self.outputs, *constants})

    def run(self, arguments: list[Any]) -> list[Any]:
        """The outputs; `arguments` is emptied so that values can be let go."""
        registers = self.registers.copy()
        registers[: len(arguments)] = arguments
        steps = self._bound(arguments) if self.is_symbolic else self.steps
        arguments.clear()
        with np.errstate(all="ignore"):
            for function, reads, writes, last in steps:
                registers[writes] = function(*[registers[at] for at in reads])
                for at in last:
                    registers[at] = None
        return [registers[at] for at in self.outputs]

    def _bound(self, arguments: Sequence[Any]) -> list[Step]:
        """The steps with every symbolic size replaced by the actual one."""
        patterns, actual = [], []
        for node, value in zip(self.graph.inputs, arguments, strict=True):
            if isinstance(node.type, TensorType):
                patterns.append(node.type.shape)
                actual.append(value.shape)
        sizes = bind_shapes(patterns, actual)
        bound: list[Step] = []
        for function, reads, writes, last in self.steps:
            if isinstance(function, partial):
                attrs = {k: bind_dims(v, sizes) for k, v in function.keywords.items()}
                function = partial(function.func, **attrs)
            bound.append((function, reads, writes, last))
        return bound


def _steps(
    running: Sequence[Node], index: Mapping[Node, int], kept: set[int]
) -> list[Step]:
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
    return any(_contains_dim(value) for value in node.attrs.values())


def _contains_dim(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_contains_dim, value))
    return isinstance(value, Dim)


def bind_dims(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute with its symbolic sizes evaluated."""
    if isinstance(value, tuple):
        return tuple(bind_dims(part, sizes) for part in value)
    return evaluate(value, sizes) if isinstance(value, Dim) else value
