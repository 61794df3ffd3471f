"""The bits of a sum follow from its array alone: `targets/cpu/schedule/sum_order.py`.

What shares the loop with a sum decides on its loops, vectors, tiles and tasks. None of
that may change a bit of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from limits import set_limits

import tapejit as tj
from tapejit.targets.cpu.numerics import CPUNumerics

pytestmark = pytest.mark.usefixtures("with_native_code")

Reduction = Callable[[Any, Any], Any]

REDUCTIONS: dict[str, Reduction] = {
    "sum": lambda x, axis: tj.sum(x, axis=axis),
    "mean": lambda x, axis: tj.mean(x, axis=axis),
    "var": lambda x, axis: tj.var(x, axis=axis),
    "prod": lambda x, axis: tj.prod(x / 100 + 1, axis=axis),
    "logsumexp": lambda x, axis: tj.logsumexp(x, axis=axis),
    "squares": lambda x, axis: tj.sum(x * x, axis=axis),
    "powers": lambda x, axis: tj.sum(tj.nn.softmax(x, axis=axis) * 3, axis=axis),
}
# What shares the loops of a reduction, and so decides on them.
CONTEXTS: dict[str, Callable[[Any], Any]] = {
    "a map": lambda x: x * 2,
    "a costly map": lambda x: tj.erf(tj.exp(tj.sin(x))),
    "another order": lambda x: tj.permute_dims(tj.exp(x), tuple(range(x.ndim))[::-1]),
    "rows": lambda x: tj.sum(x * x * 2, axis=-1),
    "columns": lambda x: tj.sum(x * x * 2, axis=0),
    "all": lambda x: tj.sum(tj.sin(x)),
    "a softmax": lambda x: tj.nn.softmax(x, axis=-1),
    "wider numbers": lambda x: tj.exp(x.astype("f8")),
    "a gather": lambda x: x[np.arange(len(x)) // 2],
}
SHAPES: tuple[tuple[tuple[int, ...], Any], ...] = (
    *(((n,), None) for n in (1, 2, 7, 16, 33, 70, 512, 1000, 4097, 100_003)),
    *(((2, 9), axis) for axis in (0, 1, None)),
    *(((1000, 3), axis) for axis in (0, 1, None)),
    *(((1000, 7), axis) for axis in (0, 1, None)),
    *(((4097, 13), axis) for axis in (0, 1, None)),
    *(((64, 1000), axis) for axis in (0, 1, None)),
    *(((300, 301), axis) for axis in (0, 1, None)),
    *(((100_003, 5), axis) for axis in (0, 1, None)),
    *(((7, 40_009), axis) for axis in (0, 1, None)),
    *(((30, 40, 50), axis) for axis in (0, 1, 2, (0, 1), (0, 2), (1, 2), None)),
    *(((16, 8, 14, 14), axis) for axis in ((0, 2, 3), (0, 1), 3, None)),
)
LONG = [((300, 301), 0), ((300, 301), None), ((30, 40, 50), (0, 2)), ((4097, 13), None)]


def drawn(shape: tuple[int, ...], dtype: str = "f4") -> Any:
    return tj.asarray(np.random.default_rng(7).standard_normal(shape).astype(dtype))


def bits(f: Callable[..., Any], *arguments: Any) -> bytes:
    """The bits of the first result, of code made anew."""
    with tj.config.override(cache=False):
        found = tj.function(f)(*arguments)
    first = found[0] if isinstance(found, tuple) else found
    return bytes(np.asarray(first).tobytes())


def bits_in(contexts: list[str], reduce: Callable[[Any], Any], x: Any) -> None:
    """Compare a reduction alone with the same one in several contexts."""
    alone = bits(reduce, x)
    for name in contexts:
        context = CONTEXTS[name]
        together = bits(lambda x, c=context: (reduce(x), c(x)), x)
        assert together == alone, name
    several = bits(lambda x: (reduce(x), *(CONTEXTS[c](x) for c in contexts)), x)
    assert several == alone, contexts


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_what_shares_the_loops_changes_no_bit(shape: Any, axis: Any) -> None:
    bits_in(list(CONTEXTS), lambda x: tj.sum(x, axis=axis), drawn(shape))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_nor_does_it_of_other_reductions(name: str, dtype: str) -> None:
    contexts = ["a costly map", "another order", "columns", "wider numbers"]
    for shape, axis in LONG:
        x = drawn(shape, dtype)
        bits_in(contexts, lambda x, axis=axis: REDUCTIONS[name](x, axis), x)


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (1000, 16, 16),
        (16, 1000, 16),
        (1, 1000, 7),
        (30, 40, 1),
        (3, 1000, 2),
        (16, 4097, 4),
        (5, 5, 5),
    ],
)
def test_a_small_matmul_has_the_same_bits_in_any_loops(m: int, k: int, n: int) -> None:
    x, w = drawn((m, k)), drawn((k, n))
    contexts: list[Callable[[Any, Any, Any], Any]] = [
        lambda x, w, y: tj.nn.relu(y),
        lambda x, w, y: tj.sum(y, axis=0),
        lambda x, w, y: tj.sum(y),
        lambda x, w, y: tj.exp(x.astype("f8")),
        lambda x, w, y: tj.permute_dims(tj.exp(x), (1, 0)),
        lambda x, w, y: tj.permute_dims(tj.exp(y), (1, 0)),
    ]
    alone = bits(lambda x, w: x @ w, x, w)
    for context in contexts:

        def together(x: Any, w: Any, context: Any = context) -> Any:
            y = x @ w
            return y, context(x, w, y)

        assert bits(together, x, w) == alone


SPEED = {
    "task_least_instructions": (100.0, 1e9),
    "threads_least_instructions": (1.0, 1e12),
    "task_to_set_up_ratio": (0.1, 1e3),
    "most_tasks": (3, 1000),
    "even_tasks": (1, 100),
    "single_work_share": (0.001, 1e3),
    "l1_accumulator_bytes": (64, 1 << 30),
}


@pytest.mark.parametrize("name", SPEED)
def test_what_decides_on_tasks_and_tiles_changes_no_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = ["a costly map", "rows", "columns", "all"]
    cases = [
        (shape, axis)
        for shape in ((3000, 301), (400, 64, 3), (2048, 128))
        for axis in (0, (0, 1), None)
    ]

    def found() -> list[bytes]:
        return [
            bits(
                lambda x, axis=axis: (
                    tj.sum(x, axis=axis),
                    *(CONTEXTS[c](x) for c in contexts),
                ),
                drawn(shape),
            )
            for shape, axis in cases
        ]

    expected = found()
    for number in SPEED[name]:
        with monkeypatch.context() as patch:
            set_limits(patch, **{name: number})
            assert found() == expected


def in_order(terms: Any, chain: int) -> Any:
    """Chains of terms, chains of chains, one after the other from 0."""
    terms = list(terms)
    while True:
        starts = range(0, len(terms), chain)
        parts = [terms[at : at + chain] for at in starts]
        terms = []
        for part in parts:
            total = np.zeros_like(part[0])
            for x in part:
                total = total + x
            terms.append(total)
        if len(terms) == 1:
            return terms[0]


def expected(x: Any, axis: int, lanes: int) -> Any:
    """The sum along an axis by the rule that is written down, in NumPy."""
    numerics = CPUNumerics()
    x = np.moveaxis(x, axis, 0)
    size = len(x)
    if lanes == 1:
        return in_order(x, numerics.sum_chain_terms)
    padding = np.zeros((-size % lanes, *x.shape[1:]), x.dtype)
    whole = size // lanes * lanes
    x = np.concatenate([x[:whole], padding, x[whole:]])
    x = x.reshape(-1, lanes, *x.shape[1:])
    found = in_order(x, numerics.sum_chain_terms)
    while len(found) > 1:
        found = found[: len(found) // 2] + found[len(found) // 2 :]
    return found[0]


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "lanes"),
    [
        ((13,), 0, "f4", 8),
        ((1000,), 0, "f4", 16),
        ((1000,), 0, "f8", 8),
        ((100_003,), 0, "f4", 16),
        ((40, 3), 1, "f4", 1),
        ((40, 6), 1, "f4", 4),
        ((1000, 7), 0, "f4", 16),
        ((1000, 15), 0, "f4", 16),
        ((1000, 16), 0, "f4", 16),
        ((1000, 32), 0, "f4", 1),
        ((40_009, 17), 0, "f8", 8),
        ((100, 5, 2), 0, "f8", 8),
        ((100, 60, 10), 0, "f8", 1),
        ((9, 40_009), 1, "f8", 8),
    ],
)
def test_the_order_is_the_one_that_is_written_down(
    shape: tuple[int, ...], axis: int, dtype: str, lanes: int
) -> None:
    x = drawn(shape, dtype)
    got = np.asarray(tj.function(lambda x: tj.sum(x, axis=axis))(x))
    np.testing.assert_array_equal(got, expected(x.numpy(), axis, lanes))
