"""The rungs of the ladder that look at kernels: assemble them, take barriers away.

Start reading at `Assembly`, then `survivors`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

from llvmlite import binding

from devices.found import PROCESSORS, Found
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

REGISTERS = 65536  # of a multiprocessor
BUDGET = re.compile(r"\.entry (\w+)\([^{]*?\.maxntid (\d+)[^{]*?\.minnctapersm (\d+)")
BARRIER = re.compile(r"^call void @\"llvm\.nvvm\.bar.*\n", re.MULTILINE)


def built_of(graph: Graph, name: str = "k") -> BuiltKernels:
    """The kernels of a Graph, without a device."""
    whole = whole_graph(without_empty(optimise(graph)))
    return CUDA.emit(whole, CUDA.plan(whole), name)


class Assembly:
    """Modules of many programs, which become machine code together.

    Each program's is there once for all that have the same.
    """

    def __init__(self, found: Found) -> None:
        self.found = found
        self.texts: dict[str, tuple[str, str]] = {}  # by key: a program, and its text

    def add(self, program: str, graph: Graph) -> str:
        """The key of a program's kernels."""
        name = f"k{len(self.texts)}"
        text = built_of(graph, name).text
        plain = re.sub(rf'"{name}(?=[_"])', '"k', text)
        key = hashlib.blake2b(plain.encode(), digest_size=12).hexdigest()
        if key not in self.found.registers:
            self.texts.setdefault(key, (program, text))
        return key

    def finish(self) -> None:
        """Make machine code of all that was added."""
        known: dict[str, list[list[int]]] = {key: [] for key in self.texts}
        for processor in PROCESSORS:
            for key, usage in self.machine_code(processor).items():
                known[key].append([x.registers for x in usage.values()])
        self.found.registers |= {
            key: tuple(x) for key, x in known.items() if len(x) == len(PROCESSORS)
        }

    def machine_code(self, processor: str) -> dict[str, dict[str, KernelUsage]]:
        """What the kernels of each module take."""
        texts = {key: text for key, (_, text) in self.texts.items()}
        if not texts:
            return {}
        try:
            made = assembled(linked(texts.values()), processor)
        except Exception:  # it is one of them: which one is found out
            made = None
        if made is not None and not made.faults:
            usage = made.usage
            return {
                key: {x: usage[x] for x in ENTRY.findall(text)}
                for key, text in texts.items()
            }
        found = {}
        for key, (program, text) in self.texts.items():
            try:
                one = assembled(text, processor)
                assert not one.faults, one.faults
            except Exception as error:
                self.found.fail(f"assemble {program}: {processor}: {error}")
            else:
                found[key] = one.usage
        return found


ENTRY = re.compile(r'define ptx_kernel void @"(\w+)"')


def linked(texts: Iterable[str]) -> str:
    """One module of several."""
    first, *others = map(binding.parse_assembly, texts)
    for x in others:
        first.link_in(x)
    return str(first)


class Assembled(NamedTuple):
    """What kernels take of a GPU, and what is wrong with them."""

    usage: dict[str, KernelUsage]
    faults: list[str]


def assembled(text: str, processor: str) -> Assembled:
    """Machine code is within its budget, spills nothing, and is exact."""
    ptx = to_ptx(text, processor)
    usage = assemble(ptx, processor).usage
    faults = [f"{x} is not exact" for x in broken_promises(ptx)]
    for name, threads, blocks in budgets(ptx):
        most = REGISTERS // (threads * blocks)
        found = usage[name]
        if found.registers > most:
            faults.append(f"{name}: {found.registers} registers of {most}")
        if found.spilled_bytes:
            faults.append(f"{name}: {found.spilled_bytes} bytes are spilled")
    return Assembled(usage, faults)


def budgets(ptx: str) -> Iterator[tuple[str, int, int]]:
    """Of each kernel, the threads of a block, and how many are to be resident."""
    for found in BUDGET.finditer(ptx):
        name, threads, blocks = found.groups()
        yield name, int(threads), int(blocks)


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
