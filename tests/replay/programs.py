"""The programs that are replayed, of four kinds.

A name is that of the kind, then what the kind calls it: `bench/mlp_adam`, `random/7`.
Programs are made when they are asked for, so a few of them take little time.

Start reading at `Program`, then `all_programs`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

import numpy as np
from differentiation import drawn_like
from fuzz.judge import Trial, outcome
from fuzz.writer import program_of
from native.golden_programs import PROGRAMS as GOLDEN
from op_cases import ROWS, Row
from op_cases.case import differentiable_positions

import tapejit as tj
from benchmarks.case import OURS, Case, as_program
from benchmarks.cases import load_groups
from tapejit.base import tree
from tapejit.base.errors import UnsupportedError
from tapejit.base.types import DType
from tapejit.ir import Graph
from tapejit.runtime.executable import Executable
from tapejit.transforms import vjp_graph

from .compiler import tracing_calls, usual_settings

SEEDS: Final = range(300)
# Whole processes, each of which runs the program of another case.
OF_OTHER_CASES: Final = ("cold", "warm_start", "memory", "attention_memory")


@dataclass(frozen=True)
class Program:
    """What functions there are in it, and what they compute.

    `graphs()` traces them, as users' settings would; `run()` gives results natively.
    """

    name: str
    graphs: Callable[[], list[Graph]]
    run: Callable[[], Any]


def all_programs(patterns: Sequence[str] = ()) -> list[Program]:
    """Every program, or those whose names match one of the patterns."""
    kinds = (golden_programs, benchmark_programs, op_programs, random_programs)
    return [
        program
        for programs in kinds
        for program in programs()
        if is_asked_for(program.name, patterns)
    ]


def is_asked_for(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches; all do if there are no patterns.

    >>> is_asked_for("op/tanh-3x4", ["golden/*", "op/tanh*"])
    True
    """
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


# Golden programs


def golden_programs() -> Iterator[Program]:
    """Those whose kernels are kept as text."""
    for name, make in GOLDEN.items():
        yield Program(
            f"golden/{name}", partial(golden_graphs, make), partial(run_golden, make)
        )


def golden_graphs(make: Callable[[], tuple[Any, ...]]) -> list[Graph]:
    with usual_settings():
        function, *arguments = make()
        return [function.graph(*arguments)]


def run_golden(make: Callable[[], tuple[Any, ...]]) -> Any:
    function, *arguments = make()
    return function(*arguments)


# Benchmarks


def benchmark_programs() -> Iterator[Program]:
    """What tapejit runs in each case, and in its variations of a case."""
    for group, cases in load_groups().items():
        if group in OF_OTHER_CASES:
            continue
        for case in cases:
            for label in case.builders:
                if label.partition(" (")[0] != OURS:
                    continue
                ending = label.removeprefix(OURS)
                yield Program(
                    f"bench/{case.name}{ending}",
                    partial(benchmark_graphs, case, label),
                    partial(run_benchmark, case, label),
                )


def benchmark_graphs(case: Case, label: str) -> list[Graph]:
    """None, if it calls no function."""
    with tracing_calls() as found:
        run_benchmark(case, label)
    return found


def run_benchmark(case: Case, label: str) -> Any:
    return as_program(case.builders[label](*case.inputs())).run()


# The op table


def op_programs() -> Iterator[Program]:
    """Each row, and with gradients if it has some."""
    for row in ROWS:
        yield Program(
            f"op/{row}", partial(row_graphs, row), partial(run_row, row, row_graph)
        )
        if adjoint_dtypes(row):
            yield Program(
                f"op/{row}/adjoint",
                partial(adjoint_graphs, row),
                partial(run_row, row, adjoint_graph),
            )


def row_graphs(row: Row) -> list[Graph]:
    return [row_graph(row, dtype) for dtype in row.dtypes]


def adjoint_graphs(row: Row) -> list[Graph]:
    return [adjoint_graph(row, dtype) for dtype in adjoint_dtypes(row)]


def adjoint_dtypes(row: Row) -> list[DType]:
    """Those that have gradients; complex numbers are left to NumPy."""
    return [x for x in row.dtypes if "c" in row.first(x) and x.kind != "c"]


def row_graph(row: Row, dtype: DType) -> Graph:
    return row.graph(dtype)


def adjoint_graph(row: Row, dtype: DType) -> Graph:
    graph = row.graph(dtype)
    wrt = [graph.inputs[at] for at in differentiable_positions(graph)]
    return vjp_graph(graph, wrt=wrt)


def run_row(row: Row, make: Callable[[Row, DType], Graph]) -> Any:
    """In two dtypes: float32 or the first, and the last, which is a rare one."""
    dtypes = row.dtypes if make is row_graph else adjoint_dtypes(row)
    usual = [x for x in dtypes if x.name == "float32"] or dtypes
    results = []
    for dtype in dict.fromkeys((usual[0], dtypes[-1])):
        rng = np.random.default_rng(61)
        graph = make(row, dtype)
        arrays = row.sample(rng, dtype)
        arrays += drawn_like(rng, [x.type for x in graph.inputs[len(arrays) :]])
        given = [x if x.ndim else x[()] for x in arrays]
        results.append(Executable(graph).run(given))
    return results


# Random programs


def random_programs() -> Iterator[Program]:
    """Those of the first seeds."""
    for seed in SEEDS:
        yield Program(
            f"random/{seed}", partial(random_graphs, seed), partial(run_random, seed)
        )


def random_graphs(seed: int) -> list[Graph]:
    """None, if the program asks for values and so runs eagerly."""
    with usual_settings():
        try:
            return [program_of(seed).graph()]
        except UnsupportedError:
            return []


def run_random(seed: int) -> Any:
    """The first call, with the state that it leaves; or the name of what it raises."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        trial = Trial(program_of(seed))
        arguments = trial.arguments(trial.program.arrays(0))
        found = outcome(trial.native, arguments, trial.compiled)
    return type(found).__name__ if isinstance(found, Exception) else found


def leaves_of(results: Any) -> list[Any]:
    """The arrays of results, and whatever else is in them."""
    leaves = tree.leaves(results)
    return [
        np.asarray(x) if isinstance(x, tj.Tensor | tj.Variable) else x for x in leaves
    ]
