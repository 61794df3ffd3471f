"""Random programs in the words of the public namespace, and what to run them on.

A `Program` is a function of tensors that takes one random step per seed: it picks
tensors from the pool of those it has, calls a function of a random family on them, and
puts the result into the pool. Shapes and dtypes are all it looks at, so it takes the
same steps as plain Python and when it is traced. `Program.graph` is what it traces to.

The pool knows a bound on the magnitude of each tensor; what grows is scaled.

Start reading at `programs`, then `Pool.step`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from random_graphs import SEEDS

import tapejit as tj
from tapejit.ir import Graph
from tapejit.types import is_float

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

DTYPES = ("float32", "float32", "float64", "float16", "int32", "bool")
SIZES = (1, 2, 3, 7, 16, 33)
LARGEST = 4.0
MOST_ELEMENTS = 1500


@dataclass(frozen=True)
class Program:
    """A seed per step, and the dtypes and shapes of the arguments."""

    seeds: tuple[int, ...]
    arguments: tuple[tuple[str, Shape], ...]

    def __call__(self, *xs: Any) -> list[Any]:
        """What the steps made and nothing used."""
        pool = self.pool(xs)
        for seed in filter(None, self.seeds):  # 0 is no step: failures shrink to a few
            pool.choice = random.Random(seed)
            pool.step()
        return [x for x in pool.tensors if id(x) not in pool.used] or [xs[0] * 1]

    def pool(self, xs: Sequence[Any]) -> Pool:
        """Where the steps take tensors from."""
        return Pool(xs)

    def arrays(self, salt: int) -> list[Array]:
        rng = np.random.default_rng((*self.seeds[:2], salt))
        return [drawn(rng, dtype, shape) for dtype, shape in self.arguments]

    def graph(self) -> Graph:
        """The program as a Graph."""
        return tj.function(self).graph(*map(tj.asarray, self.arrays(0)))


def drawn(rng: np.random.Generator, dtype: str, shape: Shape) -> Array:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype == "int32":
        return rng.integers(-5, 6, shape).astype(dtype)
    return np.asarray(rng.uniform(-1.5, 1.5, shape)).astype(dtype)


@st.composite
def programs(draw: Any, steps: int = 24) -> Program:
    """A program of some more than twenty steps."""
    seeds = [draw(SEEDS) for _ in range(steps + 1)]
    choice = random.Random(seeds[0])
    sizes = [*choice.sample(SIZES, 3), *([0] if choice.random() < 0.15 else [])]
    arguments = [
        (choice.choice(DTYPES), shape_of(choice, sizes))
        for _ in range(choice.randint(1, 3))
    ]
    arguments.append(("float32", shape_of(choice, sizes)))
    return Program(tuple(seeds[1:]), tuple(arguments))


def shape_of(choice: random.Random, sizes: Sequence[int]) -> Shape:
    while True:
        ndim = choice.choice((0, 1, 1, 2, 2, 2, 3))
        shape = tuple(choice.choice(sizes) for _ in range(ndim))
        if math.prod(shape) <= MOST_ELEMENTS:
            return shape


class Pool:
    """The tensors of a program under way, and bounds on their magnitudes."""

    choice: random.Random
    most_elements = MOST_ELEMENTS

    def __init__(self, xs: Sequence[Any]) -> None:
        self.tensors = list(xs)
        self.bounds = [6.0 if not is_float(x.dtype) else 1.5 for x in xs]
        self.used = {id(x) for x in xs}

    def step(self) -> None:
        """One call of a function of some family; a family may pass."""
        count = len(self.tensors)
        for _ in range(20):
            weights = self.weights()
            (family,) = self.choice.choices(list(weights), list(weights.values()))
            family(self)
            if len(self.tensors) > count:
                return

    def weights(self) -> Weights:
        """How often each family is tried."""
        return WEIGHTS

    def add(self, make: Callable[[], Any], bound: float, *sources: int) -> None:
        """Call, keep the result, scaled if its numbers may be large."""
        made = make()
        if math.prod(made.shape) > self.most_elements:
            return
        if is_float(made.dtype) and bound > LARGEST:
            made, bound = made * (1 / bound), 1.0
        elif made.dtype.kind == "i" and bound > 1e6:
            made, bound = made % 7, 7.0
        self.tensors.append(made)
        self.bounds.append(bound)
        self.used.update(id(self.tensors[at]) for at in sources)

    def pick(self, test: Callable[[Any], bool] = lambda x: True) -> int | None:
        """The number of a tensor that passes, a recent one more likely."""
        found = [at for at, x in enumerate(self.tensors) if test(x)]
        if not found:
            return None
        return self.choice.choice(found[-6:] if self.choice.random() < 0.6 else found)

    def pick_float(self) -> int:
        found = self.pick(lambda x: is_float(x.dtype))
        assert found is not None  # the last argument is one
        return found

    def partner(self, at: int) -> int:
        """A tensor of the same dtype with which it broadcasts; itself if need be."""
        x = self.tensors[at]

        def fits(y: Any) -> bool:
            if y.dtype != x.dtype:
                return False
            try:
                joint = np.broadcast_shapes(x.shape, y.shape)
            except ValueError:
                return False
            return math.prod(joint) <= self.most_elements

        found = self.pick(fits)
        return at if found is None else found

    def axes(self, x: Any) -> tuple[int, ...]:
        return tuple(at for at in range(x.ndim) if self.choice.random() < 0.5)


# Families


def unary(pool: Pool) -> None:
    at = pool.pick_float()
    x, b = pool.tensors[at], pool.bounds[at]
    table: list[tuple[Callable[[], Any], float]] = [
        (lambda: tj.tanh(x), 1.0),
        (lambda: tj.sin(x), 1.0),
        (lambda: tj.sigmoid(x), 1.0),
        (lambda: tj.exp(tj.cos(x)), 2.8),
        (lambda: tj.sqrt(x * x + 1), b + 1),
        (lambda: tj.log1p(x * x), b),
        (lambda: -x, b),
        (lambda: tj.abs(x), b),
        (lambda: tj.nn.relu(x - 0.1), b),
        (lambda: tj.square(x), b * b),
        (lambda: tj.stop_gradient(x) * x, b * b),
        (lambda: 1 / (x * x + 1), 1.0),
    ]
    make, bound = pool.choice.choice(table)
    pool.add(make, bound, at)


def binary(pool: Pool) -> None:
    at = pool.pick(lambda x: x.dtype != bool)
    assert at is not None
    other = pool.partner(at)
    x, y = pool.tensors[at], pool.tensors[other]
    a, b = pool.bounds[at], pool.bounds[other]
    table: list[tuple[Callable[[], Any], float]] = [
        (lambda: x + y, a + b),
        (lambda: x - y, a + b),
        (lambda: x * y, a * b),
        (lambda: tj.maximum(x, y), max(a, b)),
        (lambda: tj.minimum(x, y), max(a, b)),
    ]
    if is_float(x.dtype):
        table += [
            (lambda: x / (y * y + 1), a),
            (lambda: (x * x + 1) ** (y / 4), (a * a + 1) ** (b / 4)),
            (lambda: tj.hypot(x, y + 0.3), a + b + 1),
        ]
    else:
        table += [(lambda: x // 3, a), (lambda: x % 5, 5.0)]
    make, bound = pool.choice.choice(table)
    pool.add(make, bound, at, other)


def broadcast(pool: Pool) -> None:
    at = pool.pick()
    assert at is not None
    x = pool.tensors[at]
    first = pool.choice.choice([2, 3, *[y.shape[0] for y in pool.tensors if y.shape]])
    pool.add(lambda: tj.broadcast_to(x, (first, *x.shape)), pool.bounds[at], at)


def reduction(pool: Pool) -> None:
    at = pool.pick(lambda x: x.dtype != bool and math.prod(x.shape) > 0)
    if at is None:
        return
    x, b = pool.tensors[at], pool.bounds[at]
    axes, keepdims = pool.axes(x), pool.choice.random() < 0.5
    count = math.prod(x.shape[axis] for axis in axes)
    table = [(tj.sum, b * count), (tj.max, b), (tj.min, b)]
    if is_float(x.dtype):
        table += [(tj.sum, b * count), (tj.mean, b), (tj.logsumexp, b + 8)]
    function, bound = pool.choice.choice(table)
    pool.add(lambda: function(x, axis=axes, keepdims=keepdims), bound, at)


def cumulative(pool: Pool) -> None:
    at = pool.pick(lambda x: is_float(x.dtype) and x.ndim > 0)
    if at is None:
        return
    x = pool.tensors[at]
    axis = pool.choice.randrange(x.ndim)
    bound = pool.bounds[at] * max(x.shape[axis], 1)
    pool.add(lambda: tj.cumulative_sum(x, axis=axis), bound, at)


def rearrangement(pool: Pool) -> None:
    at = pool.pick()
    assert at is not None
    x = pool.tensors[at]
    order = pool.choice.sample(range(x.ndim), x.ndim)
    place = pool.choice.randint(0, x.ndim)
    table = [
        lambda: tj.permute_dims(x, tuple(order)),
        lambda: tj.reshape(x, (math.prod(x.shape),)),
        lambda: tj.expand_dims(x, axis=place),
        lambda: tj.flip(x, axis=pool.axes(x)),
        lambda: tj.reshape(x, x.shape[::-1]),
    ]
    pool.add(pool.choice.choice(table), pool.bounds[at], at)


def part(pool: Pool) -> None:
    """A slice, or something set where the slice is."""
    at = pool.pick(lambda x: x.ndim > 0)
    if at is None:
        return
    x = pool.tensors[at]
    key = tuple(
        slice(
            pool.choice.randint(0, size),
            pool.choice.randint(0, size),
            pool.choice.choice((1, 1, 2, 3, None)),
        )
        if pool.choice.random() < 0.5
        else slice(None, None, pool.choice.choice((1, 2, -1)))
        for size in x.shape
    )
    if pool.choice.random() < 0.7 or not is_float(x.dtype):
        pool.add(lambda: x[key], pool.bounds[at], at)
    else:
        pool.add(lambda: x.at[key].multiply(0.5), pool.bounds[at], at)


def joint(pool: Pool) -> None:
    """A concatenation, a stack, or padding."""
    at = pool.pick(lambda x: x.ndim > 0)
    if at is None:
        return
    x, b = pool.tensors[at], pool.bounds[at]
    axis = pool.choice.randrange(x.ndim)
    rest = [*x.shape[:axis], *x.shape[axis + 1 :]]

    def fits(y: Any) -> bool:
        alike = y.dtype == x.dtype and y.ndim == x.ndim
        return alike and [*y.shape[:axis], *y.shape[axis + 1 :]] == rest

    other = pool.pick(fits)
    assert other is not None  # itself, at least
    y = pool.tensors[other]
    widths = [(pool.choice.randint(0, 2), pool.choice.randint(0, 3)) for _ in x.shape]
    table = [
        lambda: tj.concat([x, y, x], axis=axis),
        lambda: tj.pad(x, widths),
        lambda: tj.stack([x, x], axis=axis),
    ]
    bound = max(b, pool.bounds[other])
    pool.add(pool.choice.choice(table), bound, at, other)


def gathering(pool: Pool) -> None:
    """Elements at positions, or added up there."""
    at = pool.pick(lambda x: any(size > 0 for size in x.shape))
    if at is None:
        return
    x, b = pool.tensors[at], pool.bounds[at]
    axis = pool.choice.choice([k for k, size in enumerate(x.shape) if size])
    size = x.shape[axis]
    places = [pool.choice.randrange(size) for _ in range(pool.choice.choice((1, 3, 9)))]
    positions = np.array(places, np.int64)
    if axis == 0 and is_float(x.dtype) and pool.choice.random() < 0.4:
        bound = b * (1 + len(places) / 2)
        pool.add(lambda: x.at[positions].add(0.5 * x[positions]), bound, at)
    else:
        pool.add(lambda: tj.take(x, positions, axis=axis), b, at)


def product(pool: Pool) -> None:
    at = pool.pick(lambda x: is_float(x.dtype) and x.ndim >= 2)
    if at is None:
        return
    x = pool.tensors[at]

    def fits(y: Any) -> bool:
        return bool(y.dtype == x.dtype and y.ndim == 2 and y.shape[0] == x.shape[-1])

    other = pool.pick(fits)
    inner = max(x.shape[-1], 1)
    if other is None:
        turned = tj.matrix_transpose(x)
        pool.add(lambda: x @ turned, inner * pool.bounds[at] ** 2, at)
        return
    y = pool.tensors[other]
    bound = inner * pool.bounds[at] * pool.bounds[other]
    pool.add(lambda: x @ y, bound, at, other)


def selection(pool: Pool) -> None:
    at = pool.pick(lambda x: x.dtype != bool)
    assert at is not None
    other = pool.partner(at)
    x, y = pool.tensors[at], pool.tensors[other]
    bound = max(pool.bounds[at], pool.bounds[other])
    shape = np.broadcast_shapes(x.shape, y.shape)
    flags = pool.pick(lambda c: c.dtype == bool and c.shape == shape)
    if flags is None:
        pool.add(lambda: tj.where(x > y, x, y), bound, at, other)
    else:
        condition = pool.tensors[flags]
        pool.add(lambda: tj.where(condition, x, y), bound, at, other, flags)


def comparison(pool: Pool) -> None:
    at = pool.pick(lambda x: x.dtype != bool)
    assert at is not None
    other = pool.partner(at)
    x, y = pool.tensors[at], pool.tensors[other]
    table = [lambda: x > y, lambda: x <= y, lambda: x != y]
    pool.add(pool.choice.choice(table), 1.0, at, other)


def conversion(pool: Pool) -> None:
    at = pool.pick()
    assert at is not None
    x, b = pool.tensors[at], pool.bounds[at]
    pool.add(lambda: tj.astype(x, pool.choice.choice(DTYPES)), max(b, 1.0), at)


Weights = dict[Callable[[Pool], None], int]

WEIGHTS: Weights = {
    unary: 4,
    binary: 5,
    broadcast: 1,
    reduction: 3,
    cumulative: 1,
    rearrangement: 3,
    part: 2,
    joint: 1,
    gathering: 1,
    product: 2,
    selection: 1,
    comparison: 1,
    conversion: 2,
}
