"""The bits of a sum follow from extents: `targets/cpu/schedule/sum_order.py`.

What shares the loops of a sum decides on its tasks, and so do numbers of tuning. None
of that may change a bit of it, as long as vectors go along the same axis.
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

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, axis: tj.sum(x, axis=axis),
    "mean": lambda x, axis: tj.mean(x * 2, axis=axis),
    "prod": lambda x, axis: tj.prod(x / 100 + 1, axis=axis),
    "squares": lambda x, axis: tj.sum(x * x, axis=axis),
}
# Other work in the same nest. It goes along the same axes in the same order.
CONTEXTS: dict[str, Callable[[Any], Any]] = {
    "a map": lambda x: x * 2,
    "a costly map": lambda x: tj.erf(tj.exp(tj.sin(x))),
    "a costly sum": lambda x: tj.sum(tj.erf(tj.exp(tj.sin(x)))),
    "several sums": lambda x: (tj.sum(tj.erf(x)), tj.sum(tj.exp(x)), tj.sum(x * 3)),
}
SHAPES: tuple[tuple[tuple[int, ...], Any], ...] = (
    *(((n,), None) for n in (7, 512, 1000, 16_385, 100_003)),
    *(((1000, 70), axis) for axis in (0, 1, None)),
    *(((300, 301), axis) for axis in (0, 1, None)),
    *(((4097, 48), axis) for axis in (0, 1, None)),
    *(((7, 40_009), axis) for axis in (0, 1, None)),
    *(((40, 30, 50), axis) for axis in (0, 2, (0, 2), (1, 2), None)),
)
LONG = [((300, 301), 0), ((300, 301), None), ((40, 30, 50), (0, 2)), ((4097, 48), None)]


def drawn(shape: tuple[int, ...], dtype: str = "f4") -> Any:
    return tj.asarray(np.random.default_rng(7).standard_normal(shape).astype(dtype))


def first_of(found: Any) -> Any:
    return first_of(found[0]) if isinstance(found, tuple) else found


def bits(f: Callable[..., Any], *arguments: Any) -> bytes:
    """The bits of the first result, of code made anew."""
    with tj.config.override(cache=False):
        found = tj.function(f)(*arguments)
    return bytes(np.asarray(first_of(found)).tobytes())


def assert_same_in_contexts(reduce: Callable[[Any], Any], x: Any) -> None:
    """Compare a reduction alone with the same one beside other work."""
    alone = bits(reduce, x)
    for name, context in CONTEXTS.items():
        together = bits(lambda x, c=context: (reduce(x), c(x)), x)
        assert together == alone, name


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_other_work_changes_no_bit(shape: Any, axis: Any) -> None:
    assert_same_in_contexts(lambda x: tj.sum(x, axis=axis), drawn(shape))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_nor_does_it_of_other_reductions(name: str, dtype: str) -> None:
    for shape, axis in LONG:
        x = drawn(shape, dtype)
        assert_same_in_contexts(lambda x, axis=axis: REDUCTIONS[name](x, axis), x)


SPEED = {
    "threads_least_instructions": (1.0, 1e12),
    "task_least_instructions": (100.0, 1e9),
    "set_up_instructions": (0.1, 1e3),
    "task_to_set_up_ratio": (0.1, 1e3),
    "most_tasks": (3, 1000),
    "busy_tasks": (1, 100),
    "uneven_tasks": (2, 100),
    "peeled_steps": (1, 1000),
}


def tasks_of(f: Callable[..., Any], x: Any) -> int:
    """How many tasks the kernels of a function have together."""
    with tj.config.override(cache=False):
        return sum(kernel.tasks for kernel in tj.function(f).kernels(x))


def sums(x: Any, axis: Any) -> Any:
    costly = tj.erf(tj.exp(tj.sin(x)))
    return tj.sum(x, axis=axis), tj.sum(costly), tj.sum(costly, axis=0), tj.prod(x)


@pytest.mark.parametrize("name", SPEED)
def test_what_decides_on_tasks_changes_no_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        (drawn(shape), axis)
        for shape in ((3000, 301), (400, 64, 3), (2048, 128))
        for axis in (0, None)
    ]

    def found() -> list[bytes]:
        return [bits(lambda x, axis=axis: sums(x, axis), x) for x, axis in cases]

    expected = found()
    for number in SPEED[name]:
        with monkeypatch.context() as patch:
            set_limits(patch, **{name: number})
            assert found() == expected, number


def test_they_do_decide_on_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn((3000, 301))
    assert tasks_of(lambda x: sums(x, 0), x) > 8
    set_limits(monkeypatch, threads_least_instructions=1e12)
    assert tasks_of(lambda x: sums(x, 0), x) < 8


def in_chains(terms: Any) -> Any:
    """Chains of terms, chains of chains, one after the other from 0."""
    terms, numerics = list(terms), CPUNumerics()
    chain = numerics.sum_chain_terms
    if chain < len(terms) <= numerics.short_sum_terms:
        chain = numerics.short_sum_chain_terms
    while len(terms) > 1:
        starts = range(0, len(terms), chain)
        parts = [terms[at : at + chain] for at in starts]
        terms = []
        for part in parts:
            total = np.zeros_like(part[0])
            for x in part:
                total = total + x
            terms.append(total)
    return terms[0]


@pytest.mark.parametrize("rows", [5, 31, 33, 200, 1000, 1025, 40_000])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("is_costly", [False, True])
def test_a_sum_of_rows_is_chains_of_chains(
    rows: int, dtype: str, is_costly: bool
) -> None:
    x = drawn((rows, 48), dtype)

    def f(x: Any) -> Any:
        other = CONTEXTS["a costly sum"](x) if is_costly else None
        return tj.sum(x, axis=0), other

    got = np.asarray(tj.function(f)(x)[0])
    np.testing.assert_array_equal(got, in_chains(x.numpy()))
