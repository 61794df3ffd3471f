"""The rungs of the ladder that look at kernels: assemble them, take barriers away.

Start reading at `assembled`, then `survivors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from typing import NamedTuple

from devices.graphs import Array, driver_of, run_code
from devices.sweep import is_same
from tapejit.ir import Graph
from tapejit.rewrite.empty import without_empty
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.cuda.device_code import DeviceCode
from tapejit.runtime.cuda.device_graph import whole_graph
from tapejit.runtime.cuda.driver import DeviceError
from tapejit.runtime.cuda.executor import ORDERS
from tapejit.runtime.cuda.launches import LaunchList
from tapejit.targets.cuda.module import BuiltKernels
from tapejit.targets.cuda.ptx import KernelUsage, assemble, broken_promises, to_ptx
from tapejit.targets.cuda.target import CUDA

PROCESSORS = ("sm_80", "sm_90", "sm_100")
REGISTERS = 65536  # of a multiprocessor
BARRIER = re.compile(r"^call void @\"llvm\.nvvm\.bar.*\n", re.MULTILINE)
BUDGET = re.compile(r'void @"(\w+)".*"nvvm.maxntid"="(\d+)" "nvvm.minctasm"="(\d+)"')


def built_of(graph: Graph, name: str = "k") -> BuiltKernels:
    """The kernels of a Graph, without a device."""
    whole = whole_graph(without_empty(optimise(graph)))
    return CUDA.emit(whole, CUDA.plan(whole), name)


class Assembled(NamedTuple):
    """What kernels take of a GPU, and what is wrong with them."""

    usage: dict[str, KernelUsage]
    faults: list[str]


def assembled(text: str, processor: str) -> Assembled:
    """Machine code of a module is within its budget, does not spill, and is exact."""
    ptx = to_ptx(text, processor)
    usage = assemble(ptx, processor).usage
    faults = [f"{x} is not exact" for x in broken_promises(ptx)]
    for name, threads, blocks in BUDGET.findall(text):
        most = REGISTERS // (int(threads) * int(blocks))
        found = usage[name]
        if found.registers > most:
            faults.append(f"{name}: {found.registers} registers of {most}")
        if found.spilled_bytes:
            faults.append(f"{name}: {found.spilled_bytes} bytes are spilled")
    return Assembled(usage, faults)


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """The text without each of its barriers, and where that was."""
    for found in BARRIER.finditer(text):
        before = text[: found.start()]
        kernel = before.rpartition("define ")[2].split('"')[1]
        yield (
            f"{kernel}: barrier {before.count('llvm.nvvm.bar')}",
            (before + text[found.end() :]),
        )


def survivors(code: DeviceCode, arrays: Sequence[Array]) -> tuple[int, list[str]]:
    """How many barriers there are, and those without which nothing changes.

    Without a barrier there is a race, or another result in some order of threads.
    """
    wanted = run_code(code, arrays)
    driver, count, found = driver_of(code.device), 0, []
    for where, text in mutants(code.emitted.built.text):
        count += 1
        mutant = copy(code)
        module = driver.load(driver.compile(text, 0), 0)
        mutant.launches = LaunchList(driver, module, code.launches.launches)
        if not any(differs(mutant, arrays, wanted, order) for order in ORDERS):
            found.append(where)
        driver.release(module)
    return count, found


def differs(
    code: DeviceCode, arrays: Sequence[Array], wanted: Sequence[Array], order: str
) -> bool:
    """Whether an order of threads gives something else, or is an error."""
    try:
        got = run_code(code, arrays, order)
    except DeviceError:
        return True
    return not all(map(is_same, got, wanted))
