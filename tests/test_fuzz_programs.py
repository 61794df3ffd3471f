"""Random Python programs on tapes: cold, hot, nested, pushed forward and mapped.

A program is the source text of a function of a few float64 tensors with a scalar
result: one random statement a line, loops and branches among them. The first run
under a tape grows the trie, the second finds everything there; both must give the
same bits, and what forward mode says of the same function.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from graph_properties import for_all
from hypothesis import strategies as st
from random_graphs import SEEDS

import tapejit as tj
from tapejit.tape.recording import TRIE

Shape = tuple[int, ...]
LARGEST = 4.0
MOST_ELEMENTS = 60


@pytest.fixture(autouse=True)
def fresh_trie() -> Iterator[None]:
    """What a program leaves in the trie is of no use to other tests."""
    yield
    TRIE.clear()


@dataclass(frozen=True)
class Program:
    """The source of a function `f`, the shapes of its arguments, and a seed."""

    source: str
    shapes: tuple[Shape, ...]
    seed: int
    asks_for_values: bool

    def __repr__(self) -> str:
        return f"seed {self.seed}, arguments of shapes {self.shapes}\n{self.source}"

    def function(self) -> Callable[..., tj.Tensor]:
        names: dict[str, Any] = {"tj": tj, "np": np, "__name__": "random_program"}
        exec(compile(self.source, "<random program>", "exec"), names)
        return names["f"]

    def arrays(self, salt: int = 0) -> list[np.ndarray[Any, Any]]:
        """Arguments, or directions, of which there are many."""
        rng = np.random.default_rng((self.seed, salt))
        return [np.asarray(rng.uniform(-1, 1, shape)) for shape in self.shapes]


@st.composite
def programs(draw: Any, lines: int = 18) -> Program:
    seeds = [draw(SEEDS) for _ in range(lines + 2)]
    author = Author(random.Random(seeds[1]))
    for seed in filter(None, seeds[2:]):  # 0 is no line: failures shrink to a few
        author.choice = random.Random(seed)
        author.write_line()
    return author.program(seeds[0])


class Author:
    """Writes a function line by line; knows shapes, and bounds of magnitudes."""

    def __init__(self, choice: random.Random) -> None:
        self.choice = choice
        sizes = (1, 2, 3, 3) if choice.random() < 0.8 else (0, 1, 2)
        self.shapes = tuple(
            tuple(choice.choice(sizes) for _ in range(choice.choice((0, 1, 2, 2))))
            for _ in range(choice.randint(1, 3))
        )
        self.known: dict[str, Shape] = dict(zip("abc", self.shapes, strict=False))
        self.bound = dict.fromkeys(self.known, 1.0)
        self.lines: list[str] = []
        self.used: set[str] = set()
        self.asks_for_values = False

    def program(self, seed: int) -> Program:
        ends = [name for name in self.known if name not in self.used]
        total = " + ".join(f"tj.sum({name})" for name in ends)
        names = ", ".join("abc"[: len(self.shapes)])
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return {total}"])
        source = f"def f({names}):\n{body}"
        return Program(source, self.shapes, seed, self.asks_for_values)

    def write_line(self) -> None:
        sorts = [self.unary, self.unary, self.binary, self.binary, self.shape_only]
        sorts += [self.reduction, self.index, self.product, self.loop, self.branch]
        for _ in range(20):
            if self.choice.choice(sorts)():
                return

    def pick(self, test: Callable[[Shape], bool] = lambda shape: True) -> str | None:
        found = [name for name, shape in self.known.items() if test(shape)]
        if not found:
            return None
        return self.choice.choice(found[-4:] if self.choice.random() < 0.5 else found)

    def partner(self, x: str) -> str:
        def fits(shape: Shape) -> bool:
            try:
                joint = np.broadcast_shapes(shape, self.known[x])
            except ValueError:
                return False
            return int(np.prod(joint)) <= MOST_ELEMENTS

        return self.pick(fits) or x

    def write(self, text: str, shape: Shape, bound: float, *used: str) -> bool:
        """A new name for an expression, scaled if its numbers may be large."""
        if int(np.prod(shape)) > MOST_ELEMENTS:
            return False
        if bound > LARGEST:
            text, bound = f"({text}) * {1 / bound!r}", 1.0
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.known[name], self.bound[name] = tuple(map(int, shape)), bound
        self.used.update(used)
        return True

    def unary(self) -> bool:
        x = self.pick()
        assert x is not None
        b = self.bound[x]
        text, bound = self.choice.choice(
            [
                (f"tj.tanh({x})", 1.0),
                (f"tj.sin({x})", 1.0),
                (f"tj.sigmoid({x})", 1.0),
                (f"tj.exp(tj.sin({x}))", 2.8),
                (f"tj.log({x} * {x} + 1)", b),
                (f"tj.sqrt({x}**2 + 0.5)", b + 1),
                (f"{x} ** 3", b**3),
                (f"-{x}", b),
                (f"1.0 / ({x} * {x} + 2)", 0.5),
                (f"tj.stop_gradient({x}) * {x}", b * b),
                (f"tj.square({x} - 0.5)", (b + 0.5) ** 2),
                (f"np.cos({x})", 1.0),
            ]
        )
        return self.write(text, self.known[x], bound, x)

    def binary(self) -> bool:
        x = self.pick()
        assert x is not None
        y = self.partner(x)
        a, b = self.bound[x], self.bound[y]
        shape = np.broadcast_shapes(self.known[x], self.known[y])
        size = self.known[x][-1:] or (1,)
        constant = [round(self.choice.uniform(-1, 1), 2) for _ in range(size[0])]
        text, bound = self.choice.choice(
            [
                (f"{x} + {y}", a + b),
                (f"{x} * {y}", a * b),
                (f"{x} - 2 * {y}", a + 2 * b),
                (f"{x} / ({y} * {y} + 1)", a),
                (f"tj.maximum({x}, {y})", max(a, b)),
                (f"tj.where({x} > {y}, {x}, 0.5 * {y})", max(a, b)),
                (f"{x} * np.float64(0.7) + {y}", a + b),
                (f"({x} * {x} + 1) ** ({y} / 2)", (a * a + 1) ** (b / 2)),
            ]
        )
        if self.known[x] and self.choice.random() < 0.2:  # not recorded, as data is
            text = f"{x} * np.array({constant})"
            return self.write(text, self.known[x], a, x)
        return self.write(text, shape, bound, x, y)

    def reduction(self) -> bool:
        x = self.pick(lambda shape: bool(shape) and 0 not in shape)
        if x is None:
            return False
        shape, b = self.known[x], self.bound[x]
        axis = self.choice.choice((None, *range(-len(shape), len(shape))))
        keeps = self.choice.random() < 0.3
        name, bound = self.choice.choice(
            [
                ("sum", b * int(np.prod(shape))),
                ("mean", b),
                ("max", b),
                ("logsumexp", b + 4),
                ("prod", max(b, 1.0) ** int(np.prod(shape))),
            ]
        )
        reduced = np.sum(np.empty(shape), axis=axis, keepdims=keeps).shape
        text = f"tj.{name}({x}, axis={axis}, keepdims={keeps})"
        return self.write(text, reduced, bound, x)

    def shape_only(self) -> bool:
        x = self.pick()
        assert x is not None
        shape = self.known[x]
        y = self.pick(lambda other: other == shape) or x
        table = [
            (f"tj.reshape({x}, (-1,))", (int(np.prod(shape)),)),
            (f"{x}[..., None]", (*shape, 1)),
            (f"tj.broadcast_to({x}, {(2, *shape)})", (2, *shape)),
            (f"tj.stack([{x}, {y}])", (2, *shape)),
            (f"tj.permute_dims({x}, {tuple(range(len(shape)))[::-1]})", shape[::-1]),
            (f'tj.astype(tj.astype({x}, "complex128").real, "float64")', shape),
        ]
        if shape:
            joint = (2 * shape[0], *shape[1:])
            table.append((f"tj.concat([{x}, {y} * 0.5])", joint))
            table.append((f"tj.flip({x}, axis=0)", shape))
        if 0 in shape:
            table = [row for row in table if "-1" not in row[0]]
        text, result = self.choice.choice(table)
        return self.write(text, result, max(self.bound[x], self.bound[y]), x, y)

    def index(self) -> bool:
        x = self.pick(lambda shape: bool(shape) and shape[0] > 0)
        if x is None:
            return False
        key = self.choice.choice(
            ["0", "-1", "1:", "::-1", "::2", "[0, -1, 0]", "..., :1", "None, 0"]
        )
        result = eval(f"array[{key}]", {"array": np.empty(self.known[x])}).shape
        return self.write(f"{x}[{key}]", result, self.bound[x], x)

    def product(self) -> bool:
        x = self.pick(lambda shape: len(shape) == 2)
        if x is None:
            return False
        rows, inner = self.known[x]
        y = self.pick(lambda shape: len(shape) in (1, 2) and shape[0] == inner)
        if y is None or self.choice.random() < 0.3:
            bound = self.bound[x] ** 2 * max(inner, 1)
            return self.write(f"{x} @ {x}.T", (rows, rows), bound, x)
        bound = self.bound[x] * self.bound[y] * max(inner, 1)
        return self.write(f"{x} @ {y}", (rows, *self.known[y][1:]), bound, x, y)

    def loop(self) -> bool:
        x = self.pick()
        assert x is not None
        y = self.pick(lambda shape: shape == self.known[x])
        assert y is not None
        name, count = f"t{len(self.lines)}", self.choice.randint(0, 3)
        made = self.write(f"{x} * 0.9", self.known[x], self.bound[x], x, y)
        self.lines[-1] += f"\n    for _ in range({count}):"
        self.lines[-1] += f"\n        {name} = tj.sin({name}) + 0.3 * {y}"
        self.bound[name] = self.bound[x] + count * (1 + 0.3 * self.bound[y])
        return made

    def branch(self) -> bool:
        """A branch of Python on a value: the tape records the one that ran."""
        x = self.pick()
        assert x is not None
        if self.choice.random() < 0.7:  # most programs can be traced
            return False
        self.asks_for_values = True
        text = f"tj.tanh({x}) if float(tj.sum({x})) > 0.1 else {x} * {x}"
        bound = max(1.0, self.bound[x] ** 2)
        return self.write(f"({text})", self.known[x], bound, x)


def gradients(
    function: Callable[..., Any], xs: list[Any], *, persistent: bool = False
) -> tuple[Any, list[Any]]:
    """The value and the gradient by a tape; tensors are watched, variables watch."""
    with tj.GradientTape(persistent=persistent) as tape:
        tape.watch([x for x in xs if isinstance(x, tj.Tensor)])
        y = function(*xs)
    return y, tape.gradient(y, xs, unconnected_gradients="zero")


def assert_same(got: list[Any], expected: list[Any]) -> None:
    for one, two in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, two, strict=True)


def dot(xs: list[Any], ys: list[Any]) -> tuple[float, float]:
    """The inner product and the sum of its magnitudes."""
    products = [
        np.ravel(np.asarray(x) * np.asarray(y)) for x, y in zip(xs, ys, strict=True)
    ]
    flat = np.concatenate(products)
    return float(np.sum(flat)), float(np.sum(np.abs(flat)))


def largest(x: Any) -> float:
    return float(np.max(np.abs(np.asarray(x)), initial=0))


def tensors(arrays: list[Any]) -> list[tj.Tensor]:
    return [tj.asarray(array) for array in arrays]


def test_a_hot_tape_gives_the_gradients_of_a_cold_one(full: bool) -> None:
    @for_all(programs(), full, examples=60)
    def holds(program: Program) -> None:
        function = program.function()
        TRIE.clear()
        xs = tensors(program.arrays())
        cold_value, cold = gradients(function, xs)
        states = TRIE.size
        assert states > 0
        for _ in range(2):
            hot_value, hot = gradients(function, xs)
            assert_same([hot_value, *hot], [cold_value, *cold])
        assert TRIE.size == states, "the second run is all known"


def test_a_hot_tape_gives_the_gradients_of_other_values(full: bool) -> None:
    """Neither a number nor an array of the first run is left in the second."""

    @for_all(programs().filter(lambda p: not p.asks_for_values), full, examples=40)
    def holds(program: Program) -> None:
        function = program.function()
        TRIE.clear()
        gradients(function, tensors(program.arrays(1)))
        states = TRIE.size
        hot_value, hot = gradients(function, tensors(program.arrays(2)))
        assert TRIE.size == states
        TRIE.clear()
        cold_value, cold = gradients(function, tensors(program.arrays(2)))
        assert_same([hot_value, *hot], [cold_value, *cold])


def test_the_gradient_is_what_forward_mode_projects(full: bool) -> None:
    @for_all(programs(), full, examples=60)
    def holds(program: Program) -> None:
        function, arrays = program.function(), program.arrays()
        value, found = gradients(function, tensors(arrays))
        for salt in (1, 2):
            directions = program.arrays(salt)
            again, pushed = tj.jvp(function, arrays, directions)
            np.testing.assert_array_equal(again, value)
            expected, scale = dot(found, directions)
            assert abs(float(pushed) - expected) <= 1e-10 * (scale + abs(expected))


def test_watched_tensors_and_variables_have_equal_gradients(full: bool) -> None:
    @for_all(programs(), full, examples=30)
    def holds(program: Program) -> None:
        function, arrays = program.function(), program.arrays()
        value, expected = gradients(function, tensors(arrays))
        variables = [tj.Variable(array) for array in arrays]
        for persistent in (False, True, False):
            got_value, got = gradients(function, variables, persistent=persistent)
            assert_same([got_value, *got], [value, *expected])
        functional = tj.value_and_grad(function, tuple(range(len(arrays))))
        got_value, got = functional(*arrays)
        assert_same([got_value, *got], [value, *expected])


def test_the_graphs_behind_tapes_and_maps_are_well_formed(full: bool) -> None:
    """With checks on, every Graph that is built is checked before it runs."""

    @for_all(programs(lines=12).filter(lambda p: not p.asks_for_values), full, 15)
    def holds(program: Program) -> None:
        function, arrays = program.function(), program.arrays()
        TRIE.clear()  # a plan is checked when it is made
        with tj.config.override(check=True):
            value, found = gradients(function, tensors(arrays))
            mapped = tj.vmap(tj.grad(function))(*[array[None] for array in arrays])
        assert value.shape == ()
        assert mapped.shape == (1, *found[0].shape)


def test_a_tape_does_not_change_what_is_computed(full: bool) -> None:
    @for_all(programs(), full, examples=20)
    def holds(program: Program) -> None:
        function, arrays = program.function(), program.arrays()
        value, _ = gradients(function, tensors(arrays))
        np.testing.assert_array_equal(function(*tensors(arrays)), value, strict=True)


def test_nested_tapes_give_second_derivatives_cold_and_hot(full: bool) -> None:
    def product_with_hessian(
        function: Callable[..., Any], xs: list[Any], vs: list[Any]
    ) -> list[Any]:
        with tj.GradientTape() as outer:
            outer.watch(xs)
            _, first = gradients(function, xs)
            along = sum(tj.sum(g * v) for g, v in zip(first, vs, strict=True))
        return outer.gradient(along, xs, unconnected_gradients="zero")

    @for_all(programs(lines=12), full, examples=40)
    def holds(program: Program) -> None:
        function, arrays = program.function(), program.arrays()
        xs, vs, us = tensors(arrays), tensors(program.arrays(1)), program.arrays(2)
        TRIE.clear()
        cold = product_with_hessian(function, xs, vs)
        states = TRIE.size
        assert_same(product_with_hessian(function, xs, vs), cold)
        assert TRIE.size == states
        forward_over_reverse = tj.hvp(function, xs, vs)
        for one, two in zip(cold, forward_over_reverse, strict=True):
            size = max(largest(two), 1e-6)
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-10 * size)
        turned = product_with_hessian(function, xs, tensors(us))
        (one, one_scale), (two, two_scale) = dot(cold, us), dot(turned, vs)
        assert abs(one - two) <= 1e-9 * (one_scale + two_scale + 1e-6)


def test_a_mapped_program_is_a_loop_over_rows(full: bool) -> None:
    @for_all(programs().filter(lambda p: not p.asks_for_values), full, examples=30)
    def holds(program: Program) -> None:
        function = program.function()
        rows = [program.arrays(salt) for salt in range(3)]
        stacked = [np.stack(column) for column in zip(*rows, strict=True)]
        values = tj.vmap(function)(*stacked)
        slopes = tj.vmap(tj.grad(function))(*stacked)
        for at, row in enumerate(rows):
            value, (slope, *_) = gradients(function, tensors(row))
            np.testing.assert_allclose(values[at], value, rtol=1e-11, atol=1e-12)
            size = max(1.0, largest(slope))
            np.testing.assert_allclose(slopes[at], slope, rtol=0, atol=1e-11 * size)


def test_a_jacobian_has_the_rows_that_output_gradients_pick(full: bool) -> None:
    @for_all(programs(lines=10), full, examples=20)
    def holds(program: Program) -> None:
        function, arrays = program.function(), program.arrays()

        def vector(*xs: Any) -> Any:
            return tj.stack([function(*xs), tj.sum(xs[0]) * function(*xs)])

        xs = tensors(arrays)
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(xs)
            y = vector(*xs)
        jacobian = tape.jacobian(y, xs, unconnected_gradients="zero")
        for row in range(2):
            unit = np.eye(2)[row]
            found = tape.gradient(
                y, xs, output_gradients=unit, unconnected_gradients="zero"
            )
            for whole, one in zip(jacobian, found, strict=True):
                assert whole.shape == (2, *one.shape)
                size = max(1.0, largest(one))
                np.testing.assert_allclose(whole[row], one, rtol=0, atol=1e-11 * size)
