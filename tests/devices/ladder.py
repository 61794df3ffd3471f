"""The whole proof of GPU kernels without a GPU:  python -m tests.devices.ladder

Rungs, in this order: `assemble` all kernels for three processors, `run` them on the
emulated device with the CPU's results, run them in five `orders` of threads, and with
each barrier left out (`mutate`), which must be noticed. Races are errors throughout.

Programs are those of Replay: golden ones, each row of the op table with its gradient in
every dtype, random ones; benchmarks are assembled only. `--only 'op/tanh*'` picks some,
`--every 10` one of so many, `--rung run` a rung. The last lines count; the exit code is
1 if something is wrong. All of it takes two hours of a processor.

Start reading at `main`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402  # after the path is set
from differentiation import drawn_like  # noqa: E402
from op_cases import ROWS, Row  # noqa: E402
from replay.programs import (  # noqa: E402
    adjoint_dtypes,
    adjoint_graph,
    all_programs,
    is_asked_for,
)

import tapejit as tj  # noqa: E402
from devices.graphs import Array, emulated, run_code  # noqa: E402
from devices.rungs import PROCESSORS, assembled, built_of, survivors  # noqa: E402
from devices.sweep import NO_KERNEL, arguments_for, is_same, judge  # noqa: E402
from tapejit.base.errors import UnsupportedError  # noqa: E402
from tapejit.base.types import DType  # noqa: E402
from tapejit.ir import Graph  # noqa: E402
from tapejit.runtime.cuda.device_code import device_code  # noqa: E402
from tapejit.runtime.cuda.devices import Device  # noqa: E402
from tapejit.runtime.cuda.executor import ORDERS  # noqa: E402

RUNNABLE = ("op/*", "golden/*", "random/*")
MANY_BARRIERS = 40  # of which a rung leaves out one after the other


class LadderCase(NamedTuple):
    """A Graph, and arguments once it is run."""

    name: str
    graph: Graph
    arrays: Callable[[], list[Array]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.devices.ladder")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--every", type=int, default=1, help="one of so many programs")
    parser.add_argument("--rung", action="append", choices=RUNGS, default=[])
    options = parser.parse_args(arguments)
    tj.config.update(cache=False, progress=False)
    wrong = 0
    for rung in options.rung or RUNGS:
        patterns = options.only or (RUNNABLE if rung != "assemble" else ())
        cases = cases_of(patterns)
        picked = (x for at, x in enumerate(cases) if at % options.every == 0)
        wrong += climb(rung, picked)
    return 1 if wrong else 0


def climb(rung: str, cases: Iterator[LadderCase]) -> int:
    """One rung for all cases; how many are wrong."""
    step, device = RUNGS[rung], emulated()
    found, reasons = Counter[str](), dict[str, Counter[str]]()
    began = time.perf_counter()
    for case in cases:
        try:
            counts = step(case, device)
        except UnsupportedError as error:
            found[NO_KERNEL] += 1
            reasons.setdefault(error.message, Counter())[error.op or ""] += 1
            continue
        except Exception as error:
            found["wrong"] += 1
            text = f"{type(error).__name__}: {str(error)[:1500]}"
            print(f"WRONG {rung} {case.name}: {text}\n", flush=True)
            continue
        found.update(counts)
    seconds = time.perf_counter() - began
    print(f"{rung}: {dict(found)}, {seconds:.0f} s", flush=True)
    for text, names in reasons.items():
        said = ", ".join(f"{name} {count}" for name, count in names.most_common())
        print(f"  {names.total():6} {text}: {said}")
    return found["wrong"]


# Rungs: what is counted of a case


def assemble_case(case: LadderCase, device: Device) -> dict[str, int]:
    """Kernels are within their budget of registers, without spills, and exact."""
    text = built_of(case.graph).text
    found = {"programs": 1}
    for processor in PROCESSORS:
        made = assembled(text, processor)
        assert not made.faults, f"{processor}: {made.faults}"
        found[processor] = len(made.usage)
        most = max((x.registers for x in made.usage.values()), default=0)
        found[f"{processor} above 64 registers"] = most > 64
    return found


def run_case(case: LadderCase, device: Device) -> dict[str, int]:
    """Results are the CPU's."""
    return {judge(case.graph, case.arrays(), device).kind: 1}


def order_case(case: LadderCase, device: Device) -> dict[str, int]:
    """They are the same in all orders of threads."""
    code, arrays = device_code(case.graph, device), case.arrays()
    first = run_code(code, arrays)
    for order in ORDERS:
        got = run_code(code, arrays, order)
        assert all(map(is_same, got, first)), f"threads {order}\n{case.graph}"
    return {"in five orders": 1}


def mutate_case(case: LadderCase, device: Device) -> dict[str, int]:
    """No barrier can be left out."""
    code = device_code(case.graph, device)
    if (
        not 0
        < code.emitted.built.text.count('call void @"llvm.nvvm.bar')
        <= MANY_BARRIERS
    ):
        return {"without barriers": 1}
    count, found = survivors(code, case.arrays())
    assert not found, f"not needed: {found}\n{case.graph}"
    return {"barriers": count, "programs": 1}


RUNGS = {
    "assemble": assemble_case,
    "run": run_case,
    "orders": order_case,
    "mutate": mutate_case,
}


# Cases


def cases_of(patterns: Sequence[str]) -> Iterator[LadderCase]:
    """All Graphs of the programs whose names match."""
    yield from (x for x in op_cases() if is_asked_for(x.name, patterns))
    others = patterns or ["golden/*", "bench/*", "random/*"]
    for program in all_programs(others):
        if program.name.startswith("op/"):
            continue
        for at, whole in enumerate(program.graphs()):
            # What only looks at values is for who runs the Graph.
            graph = Graph(whole.name, whole.inputs, whole.outputs)
            name = f"{program.name}#{at}"
            yield LadderCase(name, graph, lambda x=graph: arguments_for(x))


def op_cases() -> Iterator[LadderCase]:
    """Each row of the op table in each dtype, and with its gradient."""
    for row in ROWS:
        for dtype in row.dtypes:
            if dtype.kind != "c":
                name = f"op/{row}/{dtype}"
                yield LadderCase(name, row.graph(dtype), drawn(row, dtype, []))
        for dtype in adjoint_dtypes(row):
            graph = adjoint_graph(row, dtype)
            kinds = [x.type for x in graph.inputs[len(row.shapes) :]]
            name = f"op/{row}/{dtype}/adjoint"
            yield LadderCase(name, graph, drawn(row, dtype, kinds))


def drawn(row: Row, dtype: DType, kinds: Sequence[object]) -> Callable[[], list[Array]]:
    """Operands of a row, and whatever its gradient takes besides."""

    def draw() -> list[Array]:
        rng = np.random.default_rng(61)
        return [*row.sample(rng, dtype), *drawn_like(rng, kinds)]

    return draw


if __name__ == "__main__":
    raise SystemExit(main())
