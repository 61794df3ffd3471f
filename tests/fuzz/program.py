"""The text of a random program, and what it is run on.

Start reading at `Program`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tapejit as tj
from tapejit.base.types import is_differentiable
from tapejit.ir import Graph

from .arguments import Argument, Array, Shape, dtype_of
from .spelled import with_spelled

MODES = ("values", "inside", "outside", "second", "outside twice", "forward")


@dataclass(frozen=True)
class Line:
    """A statement: the name it makes, if any, its text, and the names in it."""

    name: str
    text: str
    uses: frozenset[str]
    kind: tuple[str, Shape] | None = None  # dtype and shape of what it makes
    changes: str = ""  # the variable or generator that it changes
    inner: bool = False  # whether it stands in a decorated function of its own

    def __str__(self) -> str:
        return f"{self.name} = {self.text}" if self.name else self.text


@dataclass(frozen=True)
class Program:
    """Arguments, statements, and what is asked of them.

    `mode` is one of `MODES`: values alone; gradients by a tape in the function, or
    around it; second derivatives, in the function or around it; tangents. All of it is
    done under a `policy` of mixed precision.
    """

    seed: int
    arguments: tuple[Argument, ...]
    lines: tuple[Line, ...]
    results: tuple[str, ...]
    mode: str = "values"
    policy: str = "float32"

    # Text

    @property
    def variables(self) -> list[Argument]:
        return [x for x in self.arguments if x.holder == "variable"]

    @property
    def parameters(self) -> list[Argument]:
        return [x for x in self.arguments if x.holder != "variable"]

    def source(self) -> str:
        """The function, as Python; `decorate` makes its inner ones native or not."""
        head = ", ".join(x.name for x in self.parameters)
        text = [f"def program({head}):"]
        for line in self.lines:
            if line.inner:
                names = ", ".join(sorted(line.uses))
                text += ["    @decorate", f"    def inner({names}):"]
                text += [f"        return {line.text}"]
                text += [f"    {line.name} = inner({names})"]
            else:
                text.append(f"    {line}")
        text.append(f"    return [{', '.join(self.results)}]")
        return "\n".join(text)

    def __str__(self) -> str:
        about = [f"# seed {self.seed}, asked for {self.mode}, policy {self.policy}"]
        about += [f"# {x}" for x in self.arguments]
        return "\n".join([*about, self.source()])

    # Running

    def arrays(self, salt: int) -> list[Array]:
        """Numbers for all arguments, other ones for each salt."""
        rng = np.random.default_rng((self.seed, salt))
        return [x.array(rng) for x in self.arguments]

    def graph(self) -> Graph:
        """What it is asked for, as a Graph."""
        arrays = self.arrays(0)
        state = State(self, arrays)
        body = body_of(self, state, function_of(self, state, lambda f: f))
        pairs = zip(self.arguments, arrays, strict=True)
        given = [tj.asarray(x) for argument, x in pairs if argument in self.parameters]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is assigned under a tape
            return tj.function(body).graph(*given)

    def without(self, lines: Iterable[Line], results: tuple[str, ...]) -> Program:
        """Fewer statements."""
        return replace(self, lines=tuple(lines), results=results)


class State:
    """The variables and the generator of one way of running a program."""

    def __init__(self, program: Program, arrays: list[Array]) -> None:
        self.variables = {
            x.name: x.held(array)
            for x, array in zip(program.arguments, arrays, strict=True)
            if x.holder == "variable"
        }
        self.generator = tj.random.Generator(program.seed % 1000)

    def read(self) -> list[Array]:
        """All of it, as arrays."""
        found = [np.array(x) for x in self.variables.values()]
        return [*found, np.array(self.generator.state)]

    def write(self, values: list[Array]) -> None:
        """Go back to what was read."""
        for variable, value in zip(self.variables.values(), values[:-1], strict=True):
            variable.assign(value)
        self.generator.state = tj.asarray(values[-1])


class Number(float):
    """A Python number with the dtype of the tensor that it was taken from."""

    dtype: Any

    def __new__(cls, x: Any) -> Number:
        made = super().__new__(cls, x)
        made.dtype = x.dtype
        return made


def function_of(
    program: Program,
    state: State,
    decorate: Callable[[Any], Any],
    is_spelled: bool = False,
    number: Callable[[Any], Any] = float,
) -> Callable[..., Any]:
    """The program as a Python function on a state; perhaps `spelled` out.

    `number` is what the program calls `float`.
    """
    source, more = program.source(), {}
    if is_spelled:
        source, more = with_spelled(source)
    names = {
        "tj": tj,
        "np": np,
        "draws": state.generator,
        "decorate": decorate,
        "dtype_of": dtype_of,
        "float": number,
        **state.variables,
        **more,
    }
    # With a file name of its own, so that two programs have no line in common.
    exec(compile(source, f"<program {program.seed}>", "exec"), names)
    made: Callable[..., Any] = names["program"]  # type: ignore[assignment]
    return made


Body = Callable[..., Any]


def is_float(x: Any) -> bool:
    return bool(is_differentiable(x.dtype))


def body_of(program: Program, state: State, function: Body) -> Body:
    """What is asked of a program: a function of its arguments."""
    variables = [x for x in state.variables.values() if is_float(x)]
    ask = Ask(program, function, variables)
    if program.mode == "values":
        return function
    if program.mode == "forward":
        return ask.tangents
    return ask.second if program.mode in ("second", "outside twice") else ask.gradients


class Ask:
    """Derivatives of a program's results by its arguments and variables."""

    def __init__(self, program: Program, function: Body, variables: list[Any]) -> None:
        self.function, self.variables = function, variables
        self.loss = LOSSES[program.seed % len(LOSSES)]
        # A number that a function returns is a tensor, which plain Python's is not.
        numbers = {x.name for x in program.lines if x.name and x.kind is None}
        self.is_tensor = [name not in numbers for name in program.results]

    def targets(self, results: list[Any]) -> list[Any]:
        """The results that have derivatives."""
        pairs = zip(results, self.is_tensor, strict=True)
        return [r for r, is_tensor in pairs if is_tensor and is_float(r)]

    def gradients(self, *xs: Any) -> Any:
        """The results, and gradients of a loss that uses them all."""
        xs = tuple(map(tj.asarray, xs))
        sources = [x for x in xs if is_float(x)]
        asked = [*sources, *self.variables]
        with tj.GradientTape() as tape:
            tape.watch(sources)
            results = self.function(*xs)
            targets = self.targets(results)
            loss = self.loss(targets) if targets else None
        return results, tape.gradient(loss, asked) if targets and asked else None

    def second(self, *xs: Any) -> Any:
        """The gradients, and those of the sum of their squares."""
        xs = tuple(map(tj.asarray, xs))
        sources = [x for x in xs if is_float(x)]
        with tj.GradientTape() as tape:
            tape.watch(sources)
            _, first = self.gradients(*xs)
            squares = [g * g for g in first or () if g is not None]
        asked = [*sources, *self.variables]
        return first, tape.gradient(squares, asked) if squares else None

    def tangents(self, *xs: Any) -> Any:
        """The results and their tangents along ones."""
        xs = tuple(map(tj.asarray, xs))
        sources = [x for x in xs if is_float(x)]
        ones = [tj.ones_like(x) for x in sources]
        with tj.ForwardAccumulator(sources, ones) as forward:
            results = self.function(*xs)
        return results, [forward.jvp(r) for r in self.targets(results)]


def weighted(targets: list[Any]) -> Any:
    return sum(tj.sum(tj.real(r) * (0.5 + at)) for at, r in enumerate(targets))


LOSSES: tuple[Callable[[list[Any]], Any], ...] = (
    weighted,
    lambda targets: targets[0] * tj.sum(targets[-1]),
    lambda targets: targets,
)
