"""Random programs of products of matrices, against plain Python.

Matrices of any sizes up to 40 and stacks of them are multiplied as they are and
transposed, among operations on elements, reductions, movements and gradients. Every
product is a kernel here, however small.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from graph_properties import for_all
from hypothesis import strategies as st
from random_graphs import SEEDS

import tapejit as tj
from tapejit.types import is_float

from . import random_programs
from .random_programs import Pool, Program, Shape, Weights
from .test_native_programs import Body, Judge, gradients, values


class ProductPool(Pool):
    """Tensors of few different sizes, so that many of them can be multiplied."""

    most_elements = 8000

    def weights(self) -> Weights:
        """Mostly products and what is done with them element by element."""
        return PRODUCT_WEIGHTS


class ProductProgram(Program):
    """A program of products of matrices and what comes before and after them."""

    def pool(self, xs: Sequence[Any]) -> Pool:
        return ProductPool(xs)


def matrices(pool: Pool) -> None:
    """A product of two tensors, each as it is or transposed, stacks broadcast."""
    choice = pool.choice
    at = pool.pick(lambda x: is_float(x.dtype) and x.ndim >= 2)
    if at is None:
        return
    x = pool.tensors[at]
    if choice.random() < 0.4:
        x = tj.matrix_transpose(x)

    def sides(y: Any) -> list[int]:
        """Whether it fits as it is (0) or transposed (1)."""
        if y.dtype != x.dtype or y.ndim < 2:
            return []
        try:
            np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        except ValueError:
            return []
        return [side for side in (0, 1) if y.shape[side - 2] == x.shape[-1]]

    other = pool.pick(lambda y: bool(sides(y)))
    assert other is not None  # its own transpose, at least
    y = pool.tensors[other]
    if choice.choice(sides(y)):
        y = tj.matrix_transpose(y)
    bound = x.shape[-1] * pool.bounds[at] * pool.bounds[other]
    pool.add(lambda: x @ y, bound, at, other)


def turned_over(pool: Pool) -> None:
    at = pool.pick(lambda x: x.ndim >= 2)
    if at is not None:
        x = pool.tensors[at]
        pool.add(lambda: tj.matrix_transpose(x), pool.bounds[at], at)


PRODUCT_WEIGHTS: Weights = {
    matrices: 8,
    random_programs.unary: 5,
    random_programs.binary: 7,
    random_programs.reduction: 2,
    random_programs.rearrangement: 1,
    turned_over: 1,
    random_programs.part: 1,
    random_programs.joint: 1,
    random_programs.selection: 1,
    random_programs.comparison: 1,
    random_programs.conversion: 1,
    random_programs.gathering: 1,
}


@st.composite
def product_programs(draw: Any, steps: int) -> ProductProgram:
    """Some matrices, stacks of them and a row; sizes are any up to 40."""
    seeds = [draw(SEEDS) for _ in range(steps + 1)]
    choice = random.Random(seeds[0])
    sizes = [choice.randint(1, 40) for _ in range(choice.randint(1, 3))]
    dtype = choice.choice(("float32", "float32", "float32", "float64", "float16"))

    def shape() -> Shape:
        front: tuple[Shape, ...] = ((), (), (), (1,), (2,), (3,), (2, 1))
        return (*choice.choice(front), choice.choice(sizes), choice.choice(sizes))

    arguments = [(dtype, shape()) for _ in range(choice.randint(2, 4))]
    arguments.append((dtype, (choice.choice(sizes),)))
    return ProductProgram(tuple(seeds[1:]), tuple(arguments))


@pytest.mark.usefixtures("every_product_is_a_kernel")
@pytest.mark.parametrize(
    ("ask", "steps", "examples"),
    [
        pytest.param(values, 16, (18, 60), id="values"),
        pytest.param(gradients, 12, (12, 40), id="gradients"),
    ],
)
def test_random_programs_of_products_agree_with_plain_python(
    ask: Callable[[Program], Body],
    steps: int,
    examples: tuple[int, int],
    full: bool,
) -> None:
    judge = Judge()

    @for_all(product_programs(steps), full, examples[full])
    def holds(program: ProductProgram) -> None:
        judge.compare(program, ask(program))

    assert judge.judged > 0.8 * judge.results > 0, f"{judge.judged} of {judge.results}"
