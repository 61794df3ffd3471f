"""The whole proof of GPU kernels without a GPU:  python -m tests.devices.ladder

Rungs, in this order: `run` all kernels on the emulated device with the CPU's results,
run them in five `orders` of threads, and with each barrier left out (`mutate`), which
must be noticed; `assemble` them for three processors. Races are errors throughout.

Programs are those of Replay: golden ones, each row of the op table with its gradient in
every dtype, random ones; benchmarks are assembled only. `--only 'op/tanh*'` picks some,
`--every 10` one of so many, `--rung run` a rung, `--processes 2` how many at once. The
last lines count; the exit code is 1 if something is wrong. `--page` writes what was
found to `docs/cuda_kernels.md`.

Start reading at `main`, then `Climb`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
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
from devices.found import Found, write_page  # noqa: E402
from devices.graphs import Array, emulated, run_code  # noqa: E402
from devices.rungs import Assembly, survivors  # noqa: E402
from devices.sweep import arguments_for, is_same, judge  # noqa: E402
from tapejit.base.errors import UnsupportedError  # noqa: E402
from tapejit.base.types import DType  # noqa: E402
from tapejit.ir import Graph  # noqa: E402
from tapejit.runtime.cuda.device_code import DeviceCode  # noqa: E402
from tapejit.runtime.cuda.devices import Device  # noqa: E402
from tapejit.runtime.cuda.executor import ORDERS  # noqa: E402

RUNGS = ("run", "orders", "mutate", "assemble")
ASSEMBLED_ONLY = "bench/*"
MANY_BARRIERS = 40  # of which a rung leaves out one after the other
RUN = 48  # cases that a process takes in turn, on a device of their own


class LadderCase(NamedTuple):
    """A Graph, arguments once it is run, and the operation if it is a row of one."""

    name: str
    graph: Graph
    arrays: Callable[[], list[Array]]
    op: str = ""
    dtype: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.devices.ladder")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--every", type=int, default=1, help="one of so many programs")
    parser.add_argument("--rung", action="append", choices=RUNGS, default=[])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args(arguments)
    rungs, count = tuple(options.rung) or RUNGS, options.processes
    climb = partial(climbed, options.only, options.every, rungs, count)
    if count == 1:
        found = climb(0)
    else:
        with multiprocessing.get_context("spawn").Pool(count) as pool:
            found = Found.together(pool.map(climb, range(count), chunksize=1))
    print(found)
    if options.page:
        write_page(found)
    return 1 if found.wrong else 0


def climbed(
    patterns: Sequence[str], every: int, rungs: Sequence[str], count: int, part: int
) -> Found:
    """What one process of so many finds."""
    tj.config.update(cache=False, progress=False)
    began = time.process_time()
    picked = islice(cases_of(patterns), 0, None, every)
    mine = (x for at, x in enumerate(picked) if at // RUN % count == part)
    climb = Climb(rungs)
    while cases := list(islice(mine, RUN)):
        climb.all(cases)
    found = climb.found
    found.seconds, found.every = time.process_time() - began, every
    return found


class Climb:
    """Goes through cases, rung by rung; `found` is what is known of them."""

    def __init__(
        self, rungs: Sequence[str] = RUNGS, make: Callable[[], Device] = emulated
    ) -> None:
        self.rungs, self.make, self.found = rungs, make, Found()
        self.mutated: set[str] = set()

    def all(self, cases: Iterable[LadderCase]) -> None:
        """All rungs of some cases."""
        self.device = self.make()
        assembly = Assembly(self.found)
        for case in cases:
            if "assemble" in self.rungs:
                self.attempt("assemble", case, partial(self.assemble, case, assembly))
            is_run = not fnmatchcase(case.name, ASSEMBLED_ONLY)
            if is_run and set(self.rungs) - {"assemble"}:
                self.attempt("run", case, partial(self.run, case))
        assembly.finish()

    def attempt(self, rung: str, case: LadderCase, body: Callable[[], None]) -> None:
        try:
            body()
        except UnsupportedError as error:
            self.found.refuse(rung, error.message, error.op or "")
        except Exception as error:
            self.found.fail(f"{rung} {case.name}: {type(error).__name__}: {error}")

    def assemble(self, case: LadderCase, assembly: Assembly) -> None:
        """Kernels are within their budget of registers, without spills, and exact."""
        key = assembly.add(case.name, case.graph)
        self.found.counts["assemble", "programs"] += 1
        if case.op:
            self.found.row(case.op).modules.add(key)

    def run(self, case: LadderCase) -> None:
        """Results are the CPU's, in all orders of threads, and need every barrier."""
        code = DeviceCode(case.graph, self.device)
        arrays, found = case.arrays(), self.found
        if "run" in self.rungs:
            kind, why = judge(code, arrays)
            found.counts["run", kind] += 1
            if why:
                found.explained[why] += 1
            if case.op:
                found.row(case.op).see(case.dtype, kind)
        if "orders" in self.rungs:
            self.attempt("orders", case, partial(self.orders, code, arrays))
        if "mutate" in self.rungs:
            self.attempt("mutate", case, partial(self.mutate, code, arrays))
        self.device.driver.release(code.launches.module)

    def orders(self, code: DeviceCode, arrays: list[Array]) -> None:
        """Results are the same in all orders of threads."""
        first = run_code(code, arrays)
        for order in ORDERS:
            got = run_code(code, arrays, order)
            assert all(map(is_same, got, first)), f"threads {order}\n{code.given}"
        self.found.counts["orders", "programs"] += 1

    def mutate(self, code: DeviceCode, arrays: list[Array]) -> None:
        """No barrier can be left out."""
        text, found = code.emitted.built.text, self.found.counts
        plain = text.replace(code.emitted.graph.digest[:16], "")
        if plain in self.mutated or not (barriers := text.count(BARRIER)):
            return
        self.mutated.add(plain)
        if barriers > MANY_BARRIERS:
            found["mutate", "modules with more barriers"] += 1
            return
        count, left = survivors(code, arrays)
        assert not left, f"not needed: {left}\n{code.given}"
        found["mutate", "modules"] += 1
        found["mutate", "barriers"] += count


BARRIER = 'call void @"llvm.nvvm.bar'


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
        op = row.case.op
        for dtype in row.dtypes:
            if dtype.kind != "c":
                name = f"op/{row}/{dtype}"
                draw = drawn(row, dtype, [])
                yield LadderCase(name, row.graph(dtype), draw, op, dtype.name)
        for dtype in adjoint_dtypes(row):
            graph = adjoint_graph(row, dtype)
            kinds = [x.type for x in graph.inputs[len(row.shapes) :]]
            name = f"op/{row}/{dtype}/adjoint"
            yield LadderCase(name, graph, drawn(row, dtype, kinds), op, dtype.name)


def drawn(row: Row, dtype: DType, kinds: Sequence[object]) -> Callable[[], list[Array]]:
    """Operands of a row, and whatever its gradient takes besides."""

    def draw() -> list[Array]:
        rng = np.random.default_rng(61)
        return [*row.sample(rng, dtype), *drawn_like(rng, kinds)]

    return draw


if __name__ == "__main__":
    raise SystemExit(main())
