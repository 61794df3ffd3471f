"""Products of matrices alone: 60 shapes from 16 to 2,048, in three operand orders.

20 shapes in float32, each as `a @ b` (nn), `a.T @ b` (tn) and `a @ b.T` (nt), against
NumPy's OpenBLAS and Torch's MKL; `gemm_serial` does the same with one thread. A number
in the table is the geometric mean of the seconds of its shapes, so that a ratio of two
is the geometric mean of the ratios: each shape counts the same, large or small.

Products are checked by what they do to a vector, in which every entry takes part: all
of them in float64 would take longer than measuring them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import exp, log
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads, Program

ORDERS = ("nn", "tn", "nt")
SMALL = (  # rows, columns, and the length of each sum; all below 256
    (16, 16, 16),
    (32, 32, 32),
    (64, 64, 64),
    (128, 128, 128),
    (192, 192, 192),
    (32, 64, 16),
    (128, 10, 200),
    (128, 32, 128),
    (37, 70, 21),
    (100, 240, 50),
)
LARGE = (
    (256, 256, 256),
    (128, 512, 784),
    (512, 256, 128),
    (784, 512, 128),
    (1024, 256, 256),
    (256, 1024, 1024),
    (1000, 300, 700),
    (1024, 1024, 1024),
    (2048, 64, 2048),
    (2048, 2048, 2048),
)
LONGEST = 2048
SECONDS = 0.002
"""How long one shape is repeated in one round."""

Shape = tuple[int, int, int]
Product = tuple[str, Shape]
Multiply = Callable[[Any, Any], Any]


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """What operands are cut from, and the vector."""
    numbers = rng.standard_normal(LONGEST * LONGEST + LONGEST, dtype=np.float32)
    return numbers, rng.standard_normal(LONGEST)


def operands(product: Product, numbers: Array) -> tuple[Array, Array]:
    """The two operands as they lie in memory, cut from different places.

    >>> a, b = operands(("tn", (2, 3, 4)), np.arange(2060.0))
    >>> a.shape, b.shape
    ((4, 2), (4, 3))
    """
    order, (m, n, k) = product
    a = numbers[: m * k].copy()
    b = numbers[LONGEST : LONGEST + n * k].copy()
    return (
        a.reshape((k, m) if order[0] == "t" else (m, k)),
        b.reshape((n, k) if order[1] == "t" else (k, n)),
    )


def multiplier(order: str) -> Multiply:
    """The product as users of NumPy, Torch and tapejit alike write it."""
    match order:
        case "nn":
            return lambda a, b: a @ b
        case "tn":
            return lambda a, b: a.T @ b
        case _:
            return lambda a, b: a @ b.T


def reference(
    products: Sequence[Product], numbers: Array, vector: Array
) -> list[Array]:
    """What each product does to the vector, in float64."""
    found: list[Array] = []
    for product in products:
        order, (_, n, _) = product
        a, b = (x.astype(np.float64) for x in operands(product, numbers))
        a = a.T if order[0] == "t" else a
        b = b.T if order[1] == "t" else b
        found.append(a @ (b @ vector[:n]))
    return found


def repeated(run: Callable[[], Any], seconds: float) -> int:
    """How many calls take about `seconds`, after two to warm up."""
    run()
    run()
    started = perf_counter()
    run()
    return max(1, round(seconds / (perf_counter() - started)))


def time_of(run: Callable[[], Any], times: int) -> float:
    """Seconds per call, of so many after one that is not timed, if that is cheap."""
    if times > 1:
        run()
    started = perf_counter()
    for _ in range(times):
        run()
    return (perf_counter() - started) / times


def geometric_mean(numbers: Sequence[float]) -> float:
    """By logarithms.

    >>> round(geometric_mean([1.0, 4.0]), 12)
    2.0
    """
    return exp(sum(map(log, numbers)) / len(numbers))


def program_of(
    calls: Sequence[Callable[[], Any]],
    read: Callable[[Any], Array],
    vector: Array,
) -> Program:
    """All products, answered as what they do to the vector, and timed one by one."""
    times: list[int] = []

    def run() -> list[Array]:
        products = (read(call()).astype(np.float64) for call in calls)
        return [(p @ vector[: p.shape[1]]).astype(np.float32) for p in products]

    def measure() -> float:
        if not times:
            times.extend(repeated(call, SECONDS) for call in calls)
        pairs = zip(calls, times, strict=True)
        return geometric_mean([time_of(call, count) for call, count in pairs])

    return Program(run=run, measure=measure)


def with_numpy(products: Sequence[Product], numbers: Array, vector: Array) -> Program:
    """NumPy, whose BLAS is OpenBLAS."""
    calls = [
        partial(multiplier(product[0]), *operands(product, numbers))
        for product in products
    ]
    return program_of(calls, np.asarray, vector)


def with_torch(products: Sequence[Product], numbers: Array, vector: Array) -> Program:
    """Torch, whose BLAS is MKL."""
    import torch

    calls = [
        partial(multiplier(product[0]), *map(torch.tensor, operands(product, numbers)))
        for product in products
    ]
    return program_of(calls, lambda x: x.numpy(), vector)


def with_tapejit(products: Sequence[Product], numbers: Array, vector: Array) -> Program:
    """A compiled function for each product."""
    import tapejit as tj

    calls = [
        partial(
            tj.function(multiplier(product[0])),
            *map(tj.asarray, operands(product, numbers)),
        )
        for product in products
    ]
    return program_of(calls, lambda x: x.numpy(), vector)


def by_products(
    name: str,
    description: str,
    products: Sequence[Product],
    goal: Leads,
    threads: int | None,
) -> Case:
    """One case for some of the products."""
    return Case(
        name=name,
        description=description,
        unit="µs",
        make_inputs=make_inputs,
        reference=partial(reference, products),
        builders={
            "tapejit": partial(with_tapejit, products),
            "numpy": partial(with_numpy, products),
            "torch": partial(with_torch, products),
        },
        goals=(goal,),
        rounds=7,  # of every shape, a quarter of a second for the largest
        threads=threads,
    )


def cases_of(file: str, threads: int | None = None) -> tuple[Case, ...]:
    """The small shapes in all orders together, the large ones by order."""
    small = [(order, shape) for order in ORDERS for shape in SMALL]
    return (
        by_products(
            f"{file}/small",
            "30 products of matrices up to 240, nn, tn and nt: geometric mean",
            small,
            Leads(1.2),
            threads,
        ),
        *(
            by_products(
                f"{file}/{order}",
                f"10 products of matrices from 256 to 2048, {order}: geometric mean",
                [(order, shape) for shape in LARGE],
                Leads(0.95),
                threads,
            )
            for order in ORDERS
        ),
    )


CASES = cases_of("gemm")
