"""Figures of training steps that need no device: launches, bytes, registers."""

from __future__ import annotations

import re
from functools import cache
from math import ceil

import pytest

from devices.rungs import REGISTERS, assembled, built_of
from devices.test_ptx import needs_wheels
from devices.training_steps import ATTENTION, LARGE_MLP
from tapejit.ir import Graph
from tapejit.rewrite.empty import without_empty
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.cuda.device_graph import whole_graph
from tapejit.targets.cpu.kernel_report import traffic
from tapejit.targets.cpu.target import CPU
from tapejit.targets.cuda.module import BuiltKernels
from tapejit.targets.cuda.target import CUDA

FIGURES = {"mlp": LARGE_MLP, "attention": ATTENTION}
MOST_LAUNCHES = {"mlp": 14, "attention": 13}
MOST_BYTES = 1.1  # times what a CPU moves
CACHE_BYTES = 4 << 20  # the second level of the smallest GPU, a T4
RESIDENT = 1024  # threads of elementwise kernels that a multiprocessor has, or all


@cache
def graph_of(name: str) -> Graph:
    function, batch, _, _ = FIGURES[name].made()
    graph: Graph = function.graph(*batch)
    return graph


@cache
def kernels_of(name: str) -> BuiltKernels:
    return built_of(graph_of(name))


@pytest.mark.parametrize("name", FIGURES)
def test_a_step_has_few_launches(name: str) -> None:
    launches = kernels_of(name).launches
    assert len(launches) <= MOST_LAUNCHES[name], "\n".join(map(str, launches))


@pytest.mark.parametrize("name", FIGURES)
def test_a_step_moves_few_bytes(name: str) -> None:
    plan = kernels_of(name).plan
    moved = sum(sum(traffic(plan, kernel)) for kernel in plan.kernels)
    own = [y for x in plan.kernels for y in (*x.partials.values(), *x.rooms.values())]
    moved += sum(2 * x.nbytes for x in own)  # parts are written, and read again
    cpu = CPU.plan(whole_graph(without_empty(optimise(graph_of(name)))))
    wanted = sum(sum(traffic(cpu, kernel)) for kernel in cpu.kernels)
    assert moved <= MOST_BYTES * wanted, f"{moved} bytes, on a CPU {wanted}"
    # Parts of sums, and what threads keep, need not leave the cache of the GPU.
    assert all(x.nbytes <= CACHE_BYTES for x in own)


@needs_wheels
def test_elementwise_kernels_leave_registers_for_all_threads() -> None:
    made = kernels_of("mlp")
    found = assembled(made.text, "sm_80")
    assert not found.faults
    products = {x.number for x in made.plan.kernels if x.array_op is not None}
    elementwise = [
        launch
        for launch in made.launches
        if not products.intersection(map(int, re.findall(r"_(\d+)", launch.name)))
    ]
    assert any(x.name.count("_") > 1 for x in elementwise)  # several in one launch
    for launch in elementwise:
        registers = found.usage[launch.name].registers
        of_one = ceil(launch.blocks / CUDA.tuning.least_multiprocessors)
        resident = min(RESIDENT, of_one * launch.threads)
        assert registers * resident <= REGISTERS, f"{launch}: {registers} registers"
