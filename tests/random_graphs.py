"""Random well-typed Graphs, and arguments to run them on.

A `Builder` grows a pool of Nodes: each step picks Nodes of the pool and applies one
operation of a random family to them. It keeps a bound on the magnitude of every Node
and scales what grows, so that twenty steps stay where numbers are comparable.

A `Case` is a Graph with arguments. `cases` draws one; what it may contain is said by a
`Style`: only smooth operations, complex numbers, many dtypes, symbolic sizes, calls.

Start reading at `cases`, then `Builder.step`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tapejit import ops
from tapejit.base.binding import bind_shapes
from tapejit.base.dims import Dim, evaluate
from tapejit.base.errors import ShapeError
from tapejit.base.types import TensorType, is_complex, is_differentiable
from tapejit.ir import Graph, Node, literal, param, topological_order
from tapejit.ir.interpret import bind_dims
from tapejit.ops.shapes import broadcast_shapes, drop_axes

Arrays = list[np.ndarray[Any, Any]]

F64, C128 = np.dtype("float64"), np.dtype("complex128")
BOOL, I64 = np.dtype("bool"), np.dtype("int64")
MANY_DTYPES = tuple(
    np.dtype(name) for name in ("f8", "f4", "f2", "i8", "i4", "u1", "?", "c8")
)
LARGEST = 6.0  # magnitudes beyond this are scaled down
MOST_ELEMENTS = 300
POSITIONS = [((), ()), ((2,), (2,)), ((2, 1), (3,)), ((0,), ())]  # shapes of indices
SIZES = {"n": 3, "m": 2}  # what the builder reckons with


@dataclass(frozen=True)
class Style:
    """What a random Graph may contain."""

    is_smooth: bool = False
    has_complex: bool = False
    has_many_dtypes: bool = False
    has_dims: bool = False
    has_calls: bool = False
    has_casts_to_integers: bool = True
    steps: int = 24
    dtypes: tuple[np.dtype[Any], ...] = ()  # other than those the flags above give
    sizes: tuple[int, ...] = ()  # other than 1 to 3: each Graph takes three of them
    most_elements: int = MOST_ELEMENTS
    most_factors: int = MOST_ELEMENTS  # of a product

    @property
    def all_dtypes(self) -> tuple[np.dtype[Any], ...]:
        return self.dtypes or (MANY_DTYPES if self.has_many_dtypes else (F64,))


@dataclass(frozen=True)
class Case:
    """A Graph, arguments for it, and a seed for whatever else is random."""

    graph: Graph
    arrays: Arrays
    seed: int

    def __repr__(self) -> str:
        shapes = [array.shape for array in self.arrays]
        return f"seed {self.seed}, arguments of shapes {shapes}\n{self.graph}"

    @property
    def rng(self) -> np.random.Generator:
        """For tangents and cotangents: not the numbers the arguments were made of."""
        return np.random.default_rng((self.seed, 1))

    @property
    def sizes(self) -> dict[str, int]:
        """The actual sizes of the symbolic ones."""
        patterns = [x.shape for x in self.graph.inputs]
        return dict(bind_shapes(patterns, [array.shape for array in self.arrays]))

    def actual_type(self, node: Node) -> TensorType:
        return node.tensor_type.with_shape(bind_dims(node.shape, self.sizes))


SEEDS = st.integers(0, 2**64 - 1)


@st.composite
def cases(draw: Any, style: Style = Style()) -> Case:  # it is frozen
    """A random Graph of more than twenty Nodes with arguments.

    Each step is random by a seed of its own and 0 stands for no step, so that a
    failing Graph shrinks to the few steps that matter.
    """
    seeds = [draw(SEEDS) for _ in range(style.steps + 2)]
    graph = random_graph(seeds[1:], style)
    return case_of(graph, seeds[0])


def case_of(graph: Graph, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    sizes = {name: int(rng.integers(2, 5)) for name in SIZES}
    return Case(graph, [random_array(rng, x, sizes) for x in graph.inputs], seed)


def random_array(
    rng: np.random.Generator, x: Node, sizes: dict[str, int]
) -> np.ndarray[Any, Any]:
    shape = tuple(evaluate(size, sizes) for size in x.shape)
    kind = x.dtype.kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -5, 6, shape).astype(x.dtype)
    values = np.asarray(rng.uniform(-1.5, 1.5, shape))
    if kind == "c":
        values = values + 1j * rng.uniform(-1.5, 1.5, shape)
    return np.asarray(values).astype(x.dtype)


def random_graph(seeds: Sequence[int], style: Style) -> Graph:
    """A Graph whose outputs are all the Nodes that nothing else uses."""
    choice = random.Random(seeds[0])
    dtypes = style.all_dtypes
    if style.has_complex:
        dtypes = (*dtypes, C128)
    sizes: list[Any] = [1, 2, 3, 2, 3]
    if style.sizes:
        sizes = choice.sample(style.sizes, 3)
    if choice.random() < 0.2:
        sizes.append(0)
    if style.has_dims:
        sizes += [Dim("n"), Dim("n"), Dim("m")]
    inputs = [
        param(name, TensorType(choice.choice(dtypes), random_shape(choice, sizes)))
        for name in "abcd"[: choice.randint(1, 4)]
    ]
    if not any(x.dtype == F64 for x in inputs):
        inputs.append(param("e", TensorType(F64, random_shape(choice, sizes))))
    builder = Builder(choice, style, inputs)
    for seed in filter(None, seeds[1:]):
        builder.choice = random.Random(seed)
        builder.step()
    return builder.graph("random")


def random_shape(choice: random.Random, sizes: Sequence[Any]) -> tuple[Any, ...]:
    ndim = choice.choice((0, 1, 1, 2, 2, 2, 3))
    return tuple(choice.choice(sizes) for _ in range(ndim))


class Builder:
    """Grows a pool of Nodes from inputs; `bound` holds magnitudes."""

    def __init__(
        self, choice: random.Random, style: Style, inputs: Sequence[Node]
    ) -> None:
        self.choice = choice
        self.style = style
        self.inputs = list(inputs)
        self.pool = list(inputs)
        self.bound: dict[Node, float] = dict.fromkeys(inputs, 2.2)
        self.families = [
            self.unary,
            self.unary,
            self.binary,
            self.binary,
            self.reduce,
            self.move,
            self.move,
            self.cut,
            self.place_parts,
            self.join,
            self.multiply_matrices,
            self.gather,
            self.select,
        ]
        if not style.is_smooth:
            self.families += [self.kink, self.convert, self.discrete]
        if style.has_complex:
            self.families += [self.complex, self.complex]
        if style.has_calls:
            self.families.append(self.call)

    def graph(self, name: str) -> Graph:
        used = {x for node in topological_order(self.pool) for x in node.inputs}
        outputs = [x for x in self.pool if x not in used and x not in self.inputs]
        if not outputs or self.choice.random() < 0.2:  # an input, and one thing twice
            outputs.append(self.choice.choice(self.inputs))
            outputs.append(self.choice.choice(outputs))
        return Graph(name, self.inputs, outputs)

    def step(self) -> None:
        """Apply one operation of a random family; a family may pass."""
        size = len(self.pool)
        for _ in range(20):
            self.choice.choice(self.families)()
            if len(self.pool) > size:
                break

    # The pool

    def add(self, node: Node, bound: float) -> None:
        """Put a Node into the pool, scaled if its numbers may be large."""
        if not isinstance(node.type, TensorType):
            return
        if self.count(node.shape) > self.style.most_elements:
            return
        if is_differentiable(node.dtype) and bound > LARGEST:
            node, bound = node * (2 / bound), 2.0
        self.pool.append(node)
        self.bound[node] = bound

    def count(self, shape: Sequence[Any]) -> int:
        return math.prod(evaluate(size, SIZES) for size in shape)

    def pick(self, test: Callable[[Node], bool] = lambda x: True) -> Node | None:
        """A Node that passes the test, a recent one more likely."""
        found = [x for x in self.pool if test(x)]
        if not found:
            return None
        return self.choice.choice(found[-6:] if self.choice.random() < 0.6 else found)

    def pick_float(self) -> Node | None:
        return self.pick(lambda x: x.dtype.kind == "f")

    def partner(self, x: Node) -> Node:
        """A Node that can meet `x` element by element; `x` itself if need be."""

        def fits(y: Node) -> bool:
            if y.dtype != x.dtype:
                return False
            try:
                shape = broadcast_shapes(x.tensor_type, y.tensor_type)
            except ShapeError:
                return False
            return self.count(shape) <= self.style.most_elements

        return self.pick(fits) or x

    def some_axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(at for at in range(ndim) if self.choice.random() < 0.5)

    # Families

    def unary(self) -> None:
        x = self.pick_float()
        if x is None:
            return
        b = self.bound[x]
        table: list[tuple[Callable[[], Node], float]] = [
            (lambda: ops.tanh(x), 1.0),
            (lambda: ops.sin(x), 1.0),
            (lambda: ops.cos(x), 1.0),
            (lambda: ops.sigmoid(x), 1.0),
            (lambda: ops.square(x), b * b),
            (lambda: -x, b),
            (lambda: ops.sqrt(x * x + 1), b + 1),
            (lambda: ops.log1p(ops.square(x)), b),
            (lambda: ops.log(x * x + 0.5), b + 1),
            (lambda: x / (x * x + 1), 0.5),
            (lambda: ops.pow(x * x + 1, 0.7), b * b + 1),
            (lambda: ops.erf(x), 1.0),
            (lambda: ops.read(x), b),
            (lambda: ops.stop_gradient(x) * x, b * b),
        ]
        if b <= 2.5:
            table += [(lambda: ops.exp(x), math.exp(b))]
            table += [(lambda: ops.expm1(x), math.exp(b))]
        make, bound = self.choice.choice(table)
        self.add(make(), bound)

    def binary(self) -> None:
        x = self.pick(lambda x: x.dtype.kind in "fciu")
        if x is None:
            return
        y = self.partner(x)
        a, b = self.bound[x], self.bound[y]
        table: list[tuple[Callable[[], Node], float]] = [
            (lambda: x + y, a + b),
            (lambda: x - y, a + b),
            (lambda: x * y, a * b),
            (lambda: x * x * y, a * a * b),
        ]
        if x.dtype.kind == "f":
            table += [
                (lambda: x / (y * y + 0.5), 2 * a),
                (lambda: ops.pow(x * x + 0.5, y / 4), (a * a + 0.5 + 2) ** (b / 4)),
            ]
        make, bound = self.choice.choice(table)
        self.add(make(), bound)

    def reduce(self) -> None:
        x = self.pick(lambda x: x.dtype.kind in "fc")
        if x is None:
            return
        axes, keepdims = self.some_axes(x.ndim), self.choice.random() < 0.5
        count = self.count([x.shape[axis] for axis in axes])
        b = self.bound[x]
        table: list[tuple[Any, float]] = [(ops.sum, max(1, 2 * count) * b)]
        has_elements = all(never_empty(x.shape[axis]) for axis in axes)
        # Of a symbolic axis a product has a thousand Nodes.
        is_short = all(isinstance(x.shape[axis], int) for axis in axes)
        if is_short and count <= self.style.most_factors:
            table.append((ops.prod, max(b, 1) ** count))
        if x.dtype.kind == "f" and has_elements:
            table.append((ops.logsumexp, b + 5))
            if not self.style.is_smooth:
                table += [(ops.max, b), (ops.min, b)]
        op, bound = self.choice.choice(table)
        self.add(op(x, axes=axes, keepdims=keepdims), bound)

    def move(self) -> None:
        x = self.pick()
        assert x is not None
        order = list(range(x.ndim))
        self.choice.shuffle(order)
        at = self.choice.randint(0, x.ndim)
        longer = (*x.shape[:at], 1, *x.shape[at:])
        size = x.tensor_type.size
        shapes = [y.shape for y in self.pool if y.tensor_type.size == size]
        extra = self.choice.choice((1, 2, *[y.shape[0] for y in self.pool if y.shape]))
        table = [
            lambda: ops.reshape(x, shape=(size,)),
            lambda: ops.reshape(x, shape=longer),
            lambda: ops.reshape(x, shape=self.choice.choice(shapes)),
            lambda: ops.permute_dims(x, axes=tuple(order)),
            lambda: ops.flip(x, axes=self.some_axes(x.ndim)),
            lambda: ops.broadcast_to(x, shape=(extra, *x.shape)),
            lambda: ops.broadcast_to(
                x, shape=tuple(extra if size == 1 else size for size in x.shape)
            ),
        ]
        self.add(self.choice.choice(table)(), self.bound[x])

    def cut(self) -> None:
        """A slice, or its transpose."""
        x = self.pick()
        assert x is not None
        ranges = [self.some_range(size) for size in x.shape]
        starts = tuple(start for start, _, _ in ranges)
        stops = tuple(stop for _, stop, _ in ranges)
        steps = tuple(step for _, _, step in ranges)
        part = ops.slice(x, starts=starts, stops=stops, steps=steps)
        self.add(part, self.bound[x])
        if self.choice.random() < 0.4:
            y = self.pick(lambda y: y.type == part.type)
            back = ops.place(y or part, shape=x.shape, starts=starts, steps=steps)
            self.add(back, self.bound[y] if y is not None else self.bound[x])

    def place_parts(self) -> None:
        """What adjoints have of several slices: each in its place, and their sum."""
        x = self.pick(lambda x: x.ndim > 0 and x.dtype.kind in "fciu")
        if x is None:
            return
        total, bound = None, 0.0
        for _ in range(self.choice.randint(2, 4)):
            starts, stops, steps = zip(*map(self.some_range, x.shape), strict=True)
            part = ops.slice(x, starts=starts, stops=stops, steps=steps)
            y = self.pick(lambda y, part=part: y.type == part.type)
            part, own = (part, x) if y is None else (y, y)
            term = ops.place(part, shape=x.shape, starts=starts, steps=steps)
            if self.choice.random() < 0.2:
                term = own = self.pick(lambda y: y.type == x.type) or x
            total = term if total is None else total + term
            bound += self.bound[own]
        assert total is not None
        self.add(total, bound)

    def some_range(self, size: Any) -> tuple[Any, Any, int]:
        if isinstance(size, int):
            start = self.choice.randint(0, size)
            return start, self.choice.randint(start, size), self.choice.randint(1, 3)
        if not never_empty(size):
            return 0, size, 1
        return self.choice.choice([(0, size, 1), (1, size, 1), (0, size - 1, 2)])

    def join(self) -> None:
        """A concatenation, or padding."""
        x = self.pick(lambda x: x.ndim > 0)
        if x is None:
            return
        axis = self.choice.randrange(x.ndim)
        others = drop_axes(x.shape, (axis,))

        def fits(y: Node) -> bool:
            same = y.dtype == x.dtype and y.ndim == x.ndim
            return same and drop_axes(y.shape, (axis,)) == others

        parts = [x, *filter(None, [self.pick(fits) for _ in range(2)])]
        if self.choice.random() < 0.5:
            bound = max(self.bound[part] for part in parts)
            self.add(ops.concat(*parts, axis=axis), bound)
            return
        value = self.pick(lambda y: y.dtype == x.dtype and not y.ndim)
        widths = tuple(
            (self.choice.randint(0, 2), self.choice.randint(0, 1)) for _ in x.shape
        )
        bound = max(self.bound[x], 1.0 if value is None else self.bound[value])
        self.add(ops.pad(x, 1 if value is None else value, widths=widths), bound)

    def multiply_matrices(self) -> None:
        x = self.pick(lambda x: x.dtype.kind in "fc" and x.ndim >= 2)
        if x is None:
            return

        def fits(y: Node) -> bool:
            meets = y.dtype == x.dtype and y.ndim >= 2 and y.shape[-2] == x.shape[-1]
            stacks = [z.tensor_type.with_shape(z.shape[:-2]) for z in (x, y)]
            try:
                return meets and broadcast_shapes(*stacks) is not None
            except ShapeError:
                return False

        axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        y = self.pick(fits) if self.choice.random() < 0.6 else None
        y_bound = self.bound[x if y is None else y]
        if y is None:
            y = ops.permute_dims(x, axes=axes)
        bound = 2 * self.count(x.shape[-1:]) * self.bound[x] * y_bound
        self.add(ops.matmul(x, y), bound)

    def gather(self) -> None:
        x = self.pick(lambda x: any(map(never_empty, x.shape)))
        if x is None:
            return
        able = [at for at, size in enumerate(x.shape) if never_empty(size)]
        axes = tuple(sorted(self.choice.sample(able, min(len(able), 2))))
        if self.choice.random() < 0.6:
            axes = axes[:1]
        shapes = self.choice.choice(
            [((), ()), ((2,), (2,)), ((2, 1), (3,)), ((0,), ())]
        )
        indices = [
            literal(self.some_positions(x.shape[axis], shape), I64)
            for axis, shape in zip(axes, shapes, strict=False)
        ]
        taken = ops.gather(x, *indices, axes=axes)
        self.add(taken, self.bound[x])
        if self.choice.random() < 0.4 and x.dtype.kind in "fciu":
            y = self.pick(lambda y: y.type == taken.type) or taken
            bound = self.bound[x] + 6 * self.bound.get(y, self.bound[x])
            self.add(ops.gather_add(x, y, *indices, axes=axes), bound)

    def some_positions(self, size: Any, shape: tuple[int, ...]) -> Any:
        most = size if isinstance(size, int) else 2
        count = math.prod(shape)
        flat = [self.choice.randint(-most, most - 1) for _ in range(count)]
        return np.array(flat, np.int64).reshape(shape)

    def select(self) -> None:
        """`where`, with a condition that nothing rounded can turn over."""
        x = self.pick(lambda x: x.dtype.kind in "fciu")
        condition = self.pick(lambda c: c.dtype == BOOL)
        if x is None:
            return
        y = self.partner(x)
        if condition is None or self.choice.random() < 0.5:
            flat = [self.choice.random() < 0.5 for _ in range(2)]
            condition = literal(
                np.array(flat)[:, None][: self.choice.randint(1, 2)], BOOL
            )
        try:
            chosen = ops.where(condition, x, y)
        except ShapeError:
            return
        self.add(chosen, max(self.bound[x], self.bound[y]))

    def kink(self) -> None:
        x = self.pick_float()
        if x is None:
            return
        y = self.partner(x)
        a, b = self.bound[x], self.bound[y]
        table: list[tuple[Callable[[], Node], float]] = [
            (lambda: ops.maximum(x, y), max(a, b)),
            (lambda: ops.minimum(x, y), max(a, b)),
            (lambda: ops.abs(x), a),
            (lambda: ops.sign(x) * y, b),
            (lambda: ops.floor(x * 1.7 + 0.31), 1.7 * a + 2),
            (lambda: ops.ceil(x * 1.9 + 0.13) * x, a * (1.9 * a + 2)),
            (lambda: ops.trunc(x * 2.1 + 0.23) * x, a * (2.1 * a + 2)),
            (lambda: ops.floor_divide(x + 0.11, y * y + 0.77), 1.3 * a + 1),
            (lambda: ops.round(x * 2.3 + 0.17), 2.3 * a + 2),
            (lambda: ops.remainder(x * 1.3 + 0.11, y * y + 0.77), b * b + 1),
            (lambda: ops.gate(x, ops.ge_mask(x, y + 0.137)), a),
            (lambda: ops.gt_mask(x, y + 0.137) + ops.eq_mask(x, 0.5), 2.0),
        ]
        make, bound = self.choice.choice(table)
        self.add(make(), bound)

    def convert(self) -> None:
        x = self.pick()
        assert x is not None
        if not self.style.has_many_dtypes:
            if x.dtype != F64:
                self.add(ops.cast(x, dtype=F64), self.bound[x])
            return
        dtype = self.choice.choice(self.style.all_dtypes)
        if is_complex(x.dtype) and not is_complex(dtype):
            x = ops.real(x)
        if dtype.kind in "iub" and is_differentiable(x.dtype):
            if not self.style.has_casts_to_integers:
                return
            x = ops.abs(x) * 3.1 + 0.3  # away from integers, and none below zero
        self.add(ops.cast(x, dtype=dtype), 25.0)

    def discrete(self) -> None:
        """Comparisons, positions, bits, counts: what ends a path."""
        x = self.pick()
        assert x is not None
        y = self.partner(x)
        kind = x.dtype.kind
        table: list[Callable[[], Node]] = [lambda: ops.any(x, axes=(), keepdims=False)]
        if kind in "fiu":
            shifted = y + 0.137 if kind == "f" else y
            table += [
                lambda: ops.greater(x, shifted),
                lambda: ops.less_equal(x, shifted),
            ]
            full = [at for at, size in enumerate(x.shape) if never_empty(size)]
            if full:
                axis = self.choice.choice(full)
                table.append(lambda: ops.argmax(x, axis=axis, keepdims=False))
        if kind in "biu":
            table += [
                lambda: ops.bitwise_and(x, y),
                lambda: ops.bitwise_xor(x, y),
                lambda: ops.bitwise_invert(x),
                lambda: ops.sum(x, axes=self.some_axes(x.ndim), keepdims=True),
                lambda: ops.all(x, axes=self.some_axes(x.ndim), keepdims=False),
            ]
        self.add(self.choice.choice(table)(), 100.0)

    def complex(self) -> None:
        x = self.pick(lambda x: x.dtype in (F64, C128))
        if x is None:
            return
        y = self.partner(x)
        b = self.bound[x]
        if x.dtype == F64:
            self.add(ops.make_complex(x, y), b + self.bound[y])
            return
        table: list[tuple[Callable[[], Node], float]] = [
            (lambda: ops.real(x), b),
            (lambda: ops.imag(x), b),
            (lambda: ops.conj(x), b),
            (lambda: ops.square(x), b * b),
            (lambda: ops.conj(x) * y, b * self.bound[y]),
            (lambda: x / (ops.conj(y) * y + 0.5), 2 * b),
            (lambda: ops.cast(ops.real(x), dtype=C128), b),
            (lambda: ops.sqrt(ops.real(ops.conj(x) * x) + 0.3), b + 1),
        ]
        if b < 2.5:
            table.append((lambda: ops.exp(x), math.exp(b)))
        full = [at for at, size in enumerate(x.shape) if never_empty(size)]
        if full:
            axis, inverse = self.choice.choice(full), self.choice.random() < 0.5
            length = 2 * self.count(x.shape[axis : axis + 1])
            turn = partial(ops.fourier, x, axis=axis, inverse=inverse)
            table.append((turn, b * length))
        if not self.style.is_smooth:
            table += [
                (lambda: ops.abs(x), b),
                (lambda: ops.sign(x + (0.3 + 0.4j)), 1.0),
                (lambda: ops.angle(x + (0.3 + 0.4j)), math.pi),
            ]
        make, bound = self.choice.choice(table)
        self.add(make(), bound)

    def call(self) -> None:
        """A call of a smaller random Graph, perhaps with one operand twice.

        A body finds its sizes in its own arguments, so those have plain ones.
        """
        count = self.choice.randint(1, 3)
        given = [self.pick(has_plain_sizes) for _ in range(count)]
        operands = [x for x in given if x is not None]
        if not any(x.dtype.kind == "f" for x in operands):
            return
        names = [param(f"p{at}", x.type) for at, x in enumerate(operands)]
        style = replace(self.style, steps=5, has_calls=self.style.steps > 5)
        builder = Builder(self.choice, style, names)
        for name, x in zip(names, operands, strict=True):
            builder.bound[name] = self.bound[x]
        for _ in range(style.steps):
            builder.step()
        body = builder.graph("body")
        whole = ops.call(*operands, graph=body)
        for at, out in enumerate(body.outputs):
            self.add(ops.item(whole, index=at), builder.bound.get(out, LARGEST))


def never_empty(size: Any) -> bool:
    """Whether an axis has elements whatever a symbolic size turns out to be."""
    if isinstance(size, int):
        return size > 0
    return str(size).isidentifier()


def has_plain_sizes(x: Node) -> bool:
    return all(isinstance(size, int) or never_empty(size) for size in x.shape)
