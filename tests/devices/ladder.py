"""The whole proof of GPU kernels without a GPU:  python -m tests.devices.ladder

Rungs, in this order: `assemble` all kernels for three processors, `run` them on the
emulated device, in five `orders` of threads, with each barrier left out (`mutate`).
Programs are those of Replay: golden ones, benchmarks, each row of the op table with its
gradient in every dtype, random ones. `--only 'op/tanh*'` picks some, `--every 10` a
part of them. The last lines count; the exit code is 1 if something is wrong.

Start reading at `main`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

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
from devices.graphs import Array, emulated  # noqa: E402
from devices.sweep import arguments_for, judge  # noqa: E402
from tapejit.ir import Graph  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.devices.ladder")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--every", type=int, default=1, help="one of so many")
    parser.add_argument("--part", default="0:1", help="this of so many parts")
    options = parser.parse_args(arguments)
    tj.config.update(cache=False, progress=False)
    part, parts = map(int, options.part.split(":"))
    step = options.every * parts
    cases = [*cases_of(options.only)][part * options.every :: step]
    return run(cases)


def run(cases: Sequence[tuple[str, Graph, list[Array]]]) -> int:
    device, found, wrong = emulated(), Counter[str](), 0
    reasons: dict[str, Counter[str]] = {}
    began = time.perf_counter()
    for name, graph, arrays in cases:
        try:
            verdict = judge(graph, arrays, device)
        except Exception as error:
            wrong += 1
            print(
                f"WRONG {name}: {type(error).__name__}: {str(error)[:1500]}\n",
                flush=True,
            )
            continue
        found[verdict.kind] += 1
        if verdict.kind == "no kernel":
            reason, _, op = verdict.text.partition("|")
            reasons.setdefault(reason, Counter())[op] += 1
    print(dict(found), f"{wrong} wrong, {time.perf_counter() - began:.0f} s")
    for text, names in reasons.items():
        said = ", ".join(f"{name} {count}" for name, count in names.most_common())
        print(f"  {names.total()} {text}: {said}")
    return 1 if wrong else 0


def cases_of(patterns: Sequence[str]) -> Iterator[tuple[str, Graph, list[Array]]]:
    """Names, Graphs and arguments."""
    yield from (x for x in op_cases() if is_asked_for(x[0], patterns))
    for program in all_programs(patterns or ["golden/*", "bench/*", "random/*"]):
        if program.name.startswith("op/"):
            continue
        for at, whole in enumerate(program.graphs()):
            # What only looks at values is for who runs the Graph.
            graph = Graph(whole.name, whole.inputs, whole.outputs)
            yield f"{program.name}#{at}", graph, arguments_for(graph)


def op_cases() -> Iterator[tuple[str, Graph, list[Array]]]:
    for row in ROWS:
        for dtype in row.dtypes:
            if dtype.kind != "c":
                yield f"op/{row}/{dtype}", row.graph(dtype), drawn(row, dtype, [])
        for dtype in adjoint_dtypes(row):
            graph = adjoint_graph(row, dtype)
            kinds = [x.type for x in graph.inputs[len(row.shapes) :]]
            yield f"op/{row}/{dtype}/adjoint", graph, drawn(row, dtype, kinds)


def drawn(row: Row, dtype: np.dtype, kinds: Sequence) -> list[Array]:
    rng = np.random.default_rng(61)
    return [*row.sample(rng, dtype), *drawn_like(rng, kinds)]


if __name__ == "__main__":
    raise SystemExit(main())
