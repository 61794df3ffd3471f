"""The Python of kernels runs, and gives what NumPy gives.

The text is what people read to learn what native code does, so it has to be a program,
and the same one: of every op, of random graphs, of programs like the benchmarks'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
from agreement import assert_agrees
from graph_properties import for_all, random_like
from op_cases import CASES, OpCase
from random_graphs import Case, cases

import tapejit as tj
from tapejit.ir import Graph
from tapejit.loops.steps import PartialSum, StepKind
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime import compiled as native
from tapejit.runtime.executable_report import NativePart

from .compiled import assert_composed, run_numpy
from .conditioning import steady_outputs
from .golden_programs import PROGRAMS
from .test_native_graphs import MIXED, SINGLE

ALL_CASES = [case for rows in CASES.values() for case in rows]
NUMBERS = count()  # for symbols that no other code has


def part_of(graph: Graph) -> NativePart | None:
    """The kernels of a Graph, None if not all of it can be native."""
    whole = native.whole_graph(optimise(graph))
    return None if whole is None else NativePart(whole, "kernels", 0)


def run_source(part: NativePart, arrays: Sequence[Any]) -> list[Any]:
    """What the Python of the kernels gives."""
    text = part.source("run")
    namespace: dict[str, Any] = {}
    exec(compile(text, "<kernels>", "exec"), namespace)
    results: list[Any] = namespace["run"](*arrays)
    return results


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_source_of_an_op_is_its_reference(case: OpCase, full: bool) -> None:
    rng = np.random.default_rng(53)
    for row in case.rows if full else case.rows[:1]:
        for dtype in row.dtypes:
            part = part_of(row.graph(dtype))
            arrays = row.sample(rng, dtype)
            if part is None or sum(x.size for x in arrays) > 5000:
                continue
            (got,) = run_source(part, arrays)
            expected = row.reference(arrays)
            where = f"{row} in {dtype}"
            assert_agrees(case.agreement, got, expected, where=where)


@pytest.mark.parametrize("style", [SINGLE, MIXED], ids=["single", "mixed"])
def test_the_source_of_random_graphs_is_what_numpy_computes(
    style: Any, full: bool
) -> None:
    judged = Counter[bool]()

    @for_all(cases(style), full, 12)
    def check(case: Case) -> None:
        part = part_of(case.graph)
        if part is None:
            return
        arrays = random_like(np.random.default_rng(case.seed), case.graph.inputs, case)
        expected = run_numpy(case.graph, arrays)
        got = run_source(part, arrays)
        steady = steady_outputs(case.graph, arrays, case.seed)
        for at, is_steady in enumerate(steady):
            judged[is_steady] += 1
            assert got[at].dtype == expected[at].dtype
            assert got[at].shape == expected[at].shape
            if is_steady:
                assert_composed(got[at : at + 1], expected[at : at + 1], f"{at}")

    assert judged[True] > judged[False]


# Programs


def values(rng: np.random.Generator, *shape: int, dtype: str = "f8") -> Any:
    return tj.asarray(rng.standard_normal(shape).astype(dtype))


def value_and_gradients(loss: Callable[..., Any], wrt: int) -> Callable[..., Any]:
    """The loss and its gradients by the first arguments."""

    def both(*args: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(args[:wrt])
            value = loss(*args)
        return value, *tape.gradient(value, list(args[:wrt]))

    return tj.function(both)


erf, gelu, log_softmax = tj.special.erf, tj.nn.gelu, tj.nn.log_softmax
sparse_loss = tj.nn.sparse_softmax_cross_entropy


def option_price(s: Any, v: Any, t: Any) -> Any:
    d = (tj.log(s) + (0.02 + v * v * 0.5) * t) / (v * tj.sqrt(t))
    return tj.sum(s * 0.5 * (1 + erf(d)) - tj.exp(-0.02 * t))


def cross_entropy(x: Any, labels: Any) -> Any:
    scores = log_softmax(x)
    return -tj.mean(tj.take_along_axis(scores, labels[:, None], axis=1))


def normalised(x: Any, scale: Any, offset: Any) -> Any:
    centre = tj.mean(x, axis=-1, keepdims=True)
    spread = tj.mean((x - centre) ** 2, axis=-1, keepdims=True)
    h = gelu((x - centre) / tj.sqrt(spread + 1e-5) * scale + offset)
    return tj.sum(h * h)


def logistic(w: Any, x: Any, y: Any) -> Any:
    z = x @ w
    return tj.mean(tj.logaddexp(0.0, z) - y * z)


def attraction(p: Any, m: Any) -> Any:
    d = p[:, None, :] - p[None, :, :]
    r = tj.sqrt(tj.sum(d * d, axis=-1) + 1e-3)
    return -0.5 * tj.sum(m[:, None] * m[None, :] / r)


def rosenbrock(x: Any) -> Any:
    return tj.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def mixture(alphas: Any, means: Any, x: Any) -> Any:
    q = x[:, None, :] - means
    inner = alphas - 0.5 * tj.sum(q * q, axis=-1)
    top = tj.max(inner, axis=1, keepdims=True)
    return tj.sum(tj.log(tj.sum(tj.exp(inner - top), axis=1)) + top[:, 0])


def network(w: Any, v: Any, x: Any, y: Any) -> Any:
    error = tj.tanh(x @ w) @ v - y
    return tj.mean(error * error)


def programs() -> dict[str, tuple[Any, ...]]:
    """Functions like those of the benchmarks, with arguments."""
    rng = np.random.default_rng(59)
    labels = tj.asarray(rng.integers(0, 7, 40).astype("i4"))
    prices = tuple(tj.asarray(0.5 + rng.random(70)) for _ in range(3))
    signs = tj.asarray((rng.random(9) < 0.5).astype("f8"))
    x = values(rng, 12)
    return {
        "option_price": (value_and_gradients(option_price, 2), *prices),
        "cross_entropy": (
            value_and_gradients(cross_entropy, 1),
            values(rng, 40, 7),
            labels,
        ),
        "normalised": (
            value_and_gradients(normalised, 3),
            values(rng, 40, 10),
            values(rng, 10),
            values(rng, 10),
        ),
        "logistic": (
            value_and_gradients(logistic, 1),
            values(rng, 5),
            values(rng, 9, 5),
            signs,
        ),
        "attraction": (
            value_and_gradients(attraction, 1),
            values(rng, 9, 3),
            values(rng, 9),
        ),
        "rosenbrock": (value_and_gradients(rosenbrock, 1), x),
        "hessian": (tj.function(tj.hessian(rosenbrock)), x),
        "mixture": (
            value_and_gradients(mixture, 2),
            values(rng, 5),
            values(rng, 5, 4),
            values(rng, 50, 4),
        ),
        "network": (
            value_and_gradients(network, 2),
            values(rng, 20, 30),
            values(rng, 30, 18),
            values(rng, 40, 20),
            values(rng, 40, 18),
        ),
    }


def gathered(x: Any, index: Any) -> Any:
    """A position that is moved: every second row, from the second on."""
    return x[1::2][index]


def pieces(x: Any) -> Any:
    """Arrays put together of others, numbers of rows, a sum along a size of 1."""
    padded = tj.pad(tj.concat([x, 2 * x]), ((1, 2), (0, 1)), constant_values=3.0)
    narrow = x[:, :1].astype("int8")
    return padded * 2, tj.sum(narrow, axis=1, dtype="int64") + tj.arange(x.shape[0])


def more_programs() -> dict[str, tuple[Any, ...]]:
    """What the benchmarks do not have."""
    rng = np.random.default_rng(61)
    index = tj.asarray(np.int64([0, -1, 3]))
    labels = tj.asarray(rng.integers(0, 7, 40).astype("i4"))
    return {
        "gathered": (tj.function(gathered), values(rng, 12, 5), index),
        "pieces": (tj.function(pieces), values(rng, 6, 5)),
        "categories": (
            value_and_gradients(lambda x, y: tj.mean(sparse_loss(x, y)), 1),
            values(rng, 40, 7),
            labels,
        ),
    }


@pytest.mark.parametrize("name", programs())
def test_the_source_of_a_program_is_what_it_computes(name: str) -> None:
    function, *arguments = programs()[name]
    assert_same(function, arguments)


@pytest.mark.parametrize("name", more_programs())
def test_the_source_of_other_programs_is_what_they_compute(name: str) -> None:
    function, *arguments = more_programs()[name]
    assert_same(function, arguments)


def assert_same(function: Any, arguments: Sequence[Any]) -> None:
    """The source of a function, its native code, and NumPy."""
    graph = function.graph(*arguments)
    part = part_of(graph)
    assert part is not None, "all of it is native"
    captured = function.explain(*arguments)._path.captured
    arrays = [x.numpy() for x in (*arguments, *captured)]
    expected = run_numpy(graph, arrays)
    assert_composed(run_source(part, arrays), expected, "source")
    segment = native.Segment(part.graph, f"source_{next(NUMBERS)}", None)
    compiled = segment.called(arrays)
    assert compiled is not None
    assert_composed([np.asarray(x) for x in compiled], expected, "native")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_golden_source_runs(name: str) -> None:
    function, *arguments = PROGRAMS[name]()
    graph = function.graph(*arguments)
    captured = function.explain(*arguments)._path.captured
    arrays = [x.numpy() for x in (*arguments, *captured)]
    namespace: dict[str, Any] = {}
    exec(function.source(*arguments), namespace)
    assert_composed(namespace["run"](*arrays), run_numpy(graph, arrays), name)


def test_names_are_the_users() -> None:
    text = PROGRAMS["softmax"]()[0].source(tj.ones((8, 100)))
    assert "def run(x):" in text
    assert "weights = np.exp(shifted)  # golden_programs.py:36" in text


def test_a_position_out_of_range_is_an_error() -> None:
    function, table, _ = PROGRAMS["gather"]()
    index = tj.asarray(np.int64([0, 1, 2, 3, 10]))
    namespace: dict[str, Any] = {}
    exec(function.source(table, index), namespace)
    with pytest.raises(IndexError, match="index 10 is out of range for size 10"):
        namespace["run"](table.numpy(), index.numpy())


def test_the_programs_have_every_kind_of_step() -> None:
    """Partial sums are in matmuls, which these programs have few of."""
    known = set(StepKind.__subclasses__()) - {PartialSum}
    found: set[type] = set()
    for function, *arguments in (*programs().values(), *more_programs().values()):
        part = part_of(function.graph(*arguments))
        assert part is not None
        for kernel in part.built.plan.kernels:
            for step in kernel.steps():
                found |= {type(x.what) for x in (step, *step.needed())}
    assert known <= found, known - found
