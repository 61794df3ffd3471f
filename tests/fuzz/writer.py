"""Writes random programs, a statement at a time.

A `Writer` runs what it writes: each name has a value, so that a family can look at
dtypes and shapes, and numbers that grow are scaled. What eager code refuses, it does
not write.

Start reading at `program_of`.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tapejit as tj
from tapejit.base.types import is_complex, is_float

from .arguments import (
    LARGE,
    MOST_ELEMENTS,
    Argument,
    arguments_of,
    dtype_of,
    matrices_of,
    shape_of,
    sizes_of,
)
from .families import FAMILIES, MOTIFS, PRODUCT_FAMILIES, Family, number
from .program import MODES, Line, Program

LARGEST = 8.0  # what is larger is scaled
REFUSED = (TypeError, ValueError, IndexError, OverflowError, NotImplementedError)
MODE_WEIGHTS = dict(zip(MODES, (20, 38, 26, 6, 4, 6), strict=True))


@dataclass(frozen=True)
class Style:
    """What programs are made of: families with weights, and how they begin."""

    families: dict[Family, int]
    motifs: dict[Family, int]
    sizes: Callable[[random.Random], list[int]]
    arguments: Callable[[random.Random, list[int]], tuple[Argument, ...]]
    steps: tuple[int, ...]
    modes: dict[str, int]


ANYTHING = Style(
    FAMILIES, MOTIFS, sizes_of, arguments_of, (1, 2, 3, 4, 5, 6, 8), MODE_WEIGHTS
)
# Those that can be traced, and are long: no value is asked for.
TRACED = replace(
    ANYTHING,
    families={family: n for family, n in FAMILIES.items() if family is not number},
    steps=(12, 16),
    modes={"values": 1, "inside": 1},
)
PRODUCTS = Style(
    PRODUCT_FAMILIES,
    {},
    lambda choice: [choice.randint(1, 40) for _ in range(choice.randint(1, 3))],
    matrices_of,
    (5, 7, 9),
    {"values": 3, "inside": 3, "outside": 1},
)


def program_of(seed: int, style: Style = ANYTHING) -> Program:
    """The program of a seed."""
    choice = random.Random(seed)
    sizes = style.sizes(choice)
    motif = None
    if style.motifs and choice.random() < 0.3:
        motif = choice.choices(list(style.motifs), list(style.motifs.values()))[0]
    arguments = style.arguments(choice, sizes)
    (mode,) = choice.choices(list(style.modes), list(style.modes.values()))
    steps = choice.choice(style.steps)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        writer = Writer(choice, seed, arguments, sizes)
        if motif is not None:
            motif(writer)
            steps //= 3
        for _ in range(steps):
            writer.step(style.families)
        return replace(writer.program(mode), policy=policy_of(seed))


def policy_of(seed: int) -> str:
    """Mixed precision for two of eight programs; the seed's statements stay its own."""
    return {3: "mixed_float16", 7: "mixed_bfloat16"}.get(seed % 8, "float32")


class Writer:
    """The names of a program under way, with their values."""

    def __init__(
        self,
        choice: random.Random,
        seed: int,
        arguments: tuple[Argument, ...],
        sizes: list[int],
    ) -> None:
        self.choice, self.seed, self.sizes = choice, seed, sizes
        self.arguments: list[Argument] = []
        self.lines: list[Line] = []
        self.values: dict[str, Any] = {}
        self.variables: dict[str, Any] = {}
        self.used: set[str] = set()
        self.generator = tj.random.Generator(seed % 1000)
        self.rng = np.random.default_rng((seed, 0))
        for argument in arguments:
            self.take(argument)

    def take(self, argument: Argument) -> str:
        """One more argument."""
        self.arguments.append(argument)
        held = argument.held(argument.array(self.rng))
        if argument.holder == "variable":
            self.variables[argument.name] = held
        else:
            self.values[argument.name] = tj.asarray(held)
        return argument.name

    def new_argument(self, dtype: str, shape: tuple[int, ...]) -> str:
        """An argument that a motif wants."""
        values = self.choice.choice(("smooth", "smooth", "smooth", "ties"))
        name = "abcdefghijkl"[len(self.arguments)]
        return self.take(Argument(name, dtype, shape, values=values))

    def new_variable(self, dtype: str, shape: tuple[int, ...]) -> str:
        """A variable that a motif wants."""
        name = "abcdefghijkl"[len(self.arguments)]
        return self.take(Argument(name, dtype, shape, holder="variable"))

    def step(self, families: dict[Family, int]) -> None:
        """One statement of some family; a family may pass."""
        for _ in range(12):
            (family,) = self.choice.choices(list(families), list(families.values()))
            if family(self):
                return

    def program(self, mode: str) -> Program:
        """What was written; the results are what nothing uses."""
        last = [x.name for x in self.lines if x.name and x.name not in self.used]
        last += [
            x.name
            for x in self.lines
            if x.name in self.used and self.choice.random() < 0.15
        ]
        if not last or self.choice.random() < 0.1:  # an argument, or one thing twice
            last.append(self.choice.choice(list(self.values or last)))
        return Program(
            self.seed, tuple(self.arguments), tuple(self.lines), tuple(last), mode
        )

    # Statements

    def value(self, text: str) -> Any:
        """What an expression gives now."""
        names = {
            "tj": tj,
            "np": np,
            "draws": self.generator,
            "dtype_of": dtype_of,
            **self.variables,
            **self.values,
        }
        return eval(text, names)

    def write(
        self, text: str, *uses: str, changes: str = "", inner: bool = False
    ) -> str:
        """A new name for an expression; '' if it is refused."""
        try:
            made = self.value(text)
        except REFUSED:
            return ""
        if isinstance(made, float):  # of a number asked for
            return self.keep(Line("", text, frozenset(uses)), made)
        if not isinstance(made, tj.Tensor) or math.prod(made.shape) > MOST_ELEMENTS:
            return ""
        if is_float(made.dtype) or is_complex(made.dtype):
            factor = scale_of(made.numpy())
            if factor != 1:
                text, made = f"({text}) * {factor}", made * factor
        kind = (made.dtype.name, made.shape)
        return self.keep(
            Line("", text, frozenset(uses), kind, changes, inner and bool(uses)), made
        )

    def keep(self, line: Line, made: Any) -> str:
        """Give a statement its name."""
        name = f"t{len(self.lines)}"
        self.lines.append(
            Line(name, line.text, line.uses, line.kind, line.changes, line.inner)
        )
        if isinstance(made, tj.Tensor):
            self.values[name] = made
        self.used |= line.uses
        return name

    def perform(self, text: str, *uses: str, changes: str) -> bool:
        """A statement for what it does."""
        try:
            self.value(text)
        except REFUSED:
            return False
        self.lines.append(Line("", text, frozenset(uses), None, changes))
        self.used |= set(uses)
        return True

    # Operands

    def pick(self, test: Callable[[Any], bool] = lambda x: True) -> str:
        """A name whose value passes, a recent one more likely; '' if there is none."""
        found = [name for name, x in self.values.items() if test(x)]
        if not found:
            return ""
        return self.choice.choice(found[-3:] if self.choice.random() < 0.6 else found)

    def pick_float(self, least: int = 0) -> str:
        return self.pick(lambda x: is_float(x.dtype) and x.ndim >= least)

    def partner(self, x: str, alike: bool | None = None) -> str:
        """A name that broadcasts with `x`, mostly of its dtype; itself if need be."""
        shape, dtype = self.values[x].shape, self.values[x].dtype
        if alike is None:
            alike = self.choice.random() < 0.8

        def fits(y: Any) -> bool:
            if alike and y.dtype != dtype:
                return False
            try:
                joint = np.broadcast_shapes(shape, y.shape)
            except ValueError:
                return False
            return math.prod(joint) <= MOST_ELEMENTS

        return self.pick(fits) or x

    def axes(self, ndim: int) -> tuple[int, ...]:
        """Some of the axes, all of them often."""
        if self.choice.random() < 0.3:
            return tuple(range(ndim))
        return tuple(at for at in range(ndim) if self.choice.random() < 0.5)

    def shape(self, least: int = 0) -> tuple[int, ...]:
        return shape_of(self.choice, self.sizes, least)

    def size(self) -> int:
        return self.choice.choice(self.sizes) or self.choice.choice(LARGE)


def scale_of(x: Any) -> float:
    """A power of two that brings the finite numbers of `x` into range."""
    size = np.abs(np.asarray(x).astype(np.clongdouble))
    largest = float(np.max(size, where=np.isfinite(size), initial=0.0))
    if largest <= LARGEST:
        return 1
    return 2.0 ** -math.ceil(math.log2(largest))
