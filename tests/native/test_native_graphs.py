"""Random Graphs as native code: alone, with their adjoints, and to second order.

Graphs of more than twenty Nodes in mixed dtypes; their sizes are those at which loops
begin, end and have something left over. NumPy says what is right; outputs that last
bits may turn into something else are not asked for (see `conditioning.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from graph_properties import float_nodes, for_all, random_like
from random_graphs import Case, Style, cases

from tapejit.ir import Graph
from tapejit.transforms import jvp_graph, vjp_graph

from .compiled import assert_composed, compile_native, run, run_numpy
from .conditioning import steady_outputs

DTYPES = tuple(np.dtype(name) for name in ("f4", "f4", "f8", "i4", "?", "f2"))
SIZES = (1, 2, 3, 7, 16, 33)
SINGLE = Style(
    dtypes=(np.dtype("f4"),), sizes=SIZES, most_elements=2000, most_factors=8
)
MIXED = replace(SINGLE, dtypes=DTYPES, has_many_dtypes=True)
SMOOTH = replace(SINGLE, dtypes=(), is_smooth=True, steps=14, most_elements=500)


class Judge:
    """Compares Graphs, and counts of how many outputs something could be said."""

    def __init__(self) -> None:
        self.outputs = 0
        self.judged = 0

    def assert_equal(self, graph: Graph, case: Case) -> None:
        """Native code and NumPy, on two sets of arguments."""
        executable = compile_native(graph)
        for salt in range(2):
            rng = np.random.default_rng((case.seed, salt))
            arrays = random_like(rng, graph.inputs, case)
            expected = run_numpy(graph, arrays)
            got = run(executable, arrays)
            steady = steady_outputs(graph, arrays, case.seed)
            self.outputs += len(steady)
            self.judged += sum(steady)
            for at, is_steady in enumerate(steady):
                assert (got[at].dtype, got[at].shape) == (
                    expected[at].dtype,
                    expected[at].shape,
                )
                if is_steady:
                    where = f"output {at} on arguments {salt}"
                    assert_composed(got[at : at + 1], expected[at : at + 1], where)


@pytest.fixture
def judge() -> Iterator[Judge]:
    """At the end most of what was computed must have been compared."""
    made = Judge()
    yield made
    assert made.judged > 0.8 * made.outputs > 0, f"{made.judged} of {made.outputs}"


def itself(graph: Graph) -> Graph:
    return graph


def with_adjoint(graph: Graph) -> Graph:
    return vjp_graph(graph, wrt=float_nodes(graph.inputs))


def with_second_adjoint(graph: Graph) -> Graph:
    """The adjoint of the adjoint, by the same inputs."""
    wrt = float_nodes(graph.inputs)
    return vjp_graph(vjp_graph(graph, wrt=wrt), wrt=wrt)


Derive = Callable[[Graph], Graph]


@pytest.mark.parametrize(
    ("style", "derive", "examples"),
    [
        pytest.param(MIXED, itself, (15, 30), id="mixed"),
        pytest.param(MIXED, with_adjoint, (8, 15), id="mixed-adjoint"),
        pytest.param(SINGLE, itself, (8, 15), id="single"),
        pytest.param(SINGLE, with_adjoint, (8, 15), id="single-adjoint"),
        pytest.param(SINGLE, jvp_graph, (4, 5), id="single-tangents"),
        pytest.param(SMOOTH, with_second_adjoint, (4, 6), id="second-order"),
    ],
)
def test_random_graphs_agree_with_numpy(
    style: Style,
    derive: Derive,
    examples: tuple[int, int],
    judge: Judge,
    full: bool,
) -> None:
    @for_all(cases(style), full, examples[full])
    def holds(case: Case) -> None:
        judge.assert_equal(derive(case.graph), case)


# Values that are not numbers

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)


def test_nan_infinity_and_signs_of_zero_are_numpys(full: bool) -> None:
    """A fifth of the arguments' elements are no plain numbers."""

    @for_all(cases(MIXED), full, examples=20)
    def holds(case: Case) -> None:
        graph = case.graph
        rng = np.random.default_rng((case.seed, 5))
        arrays = random_like(rng, graph.inputs, case)
        for at, x in enumerate(arrays):
            if x.dtype.kind == "f":
                is_special = rng.random(x.shape) < 0.2
                drawn = rng.choice(SPECIAL, x.shape).astype(x.dtype)
                arrays[at] = np.where(is_special, drawn, x)
        got, expected = run(compile_native(graph), arrays), run_numpy(graph, arrays)
        steady = steady_outputs(graph, arrays, case.seed)
        for at, is_steady in enumerate(steady):
            if is_steady:
                where = f"output {at}"
                assert_composed(got[at : at + 1], expected[at : at + 1], where)
