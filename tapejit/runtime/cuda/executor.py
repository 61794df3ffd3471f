"""The executor: LLVM text of GPU kernels runs on this CPU, by emulated threads.

A thread is a coroutine. Threads run one at a time, in any of `ORDERS`: a kernel that
lacks a barrier gives other results in some of them. Shared memory is full of 0xFF
before each block. Every access is at memory that is alive, or ends the launch with an
error; with `watch`, a race does, too.

`threads` makes coroutines of kernels, `scheduler` runs those of a block, `warp` has the
operations of warps, `races` looks at the log of accesses.

Start reading at `Executor.launch`.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from llvmlite import binding

from tapejit.base.errors import ArgumentError
from tapejit.runtime.cuda.driver import Argument, DeviceError
from tapejit.runtime.cuda.races import ACCESS, Race, RaceFinder, Range
from tapejit.runtime.cuda.scheduler import (
    AT_FAULT,
    FIRST_AHEAD,
    LAST_AHEAD,
    MOST_THREADS,
    NONE_AHEAD,
    OVER,
    SCHEDULER,
    VARIABLES,
)
from tapejit.runtime.cuda.threads import as_coroutines, starter
from tapejit.targets.cpu.machine.host import host_machine

Array = np.ndarray[Any, Any]

# The orders in which threads run, and which warp is ahead of the others.
ORDERS: Final = {
    "up": NONE_AHEAD,
    "down": NONE_AHEAD,
    "random": NONE_AHEAD,
    "first ahead": FIRST_AHEAD,
    "last ahead": LAST_AHEAD,
}
LOG_ROOM: Final = 1 << 14  # accesses for which there is room at first
NUMPYS: Final = {"ptr": "i8", "half": "f2", "float": "f4", "double": "f8"}

# A half as a float. LLVM calls this by its name where a processor has no instruction
# for it; no library has it for certain.
WIDEN_HALF: Final = """
define float @__extendhfsf2(half %x) {
  %short = bitcast half %x to i16
  %bits = zext i16 %short to i32
  %size = and i32 %bits, 32767
  %shifted = shl i32 %size, 13
  %small = bitcast i32 %shifted to float
  %scaled = fmul float %small, 0x46F0000000000000
  %finite = bitcast float %scaled to i32
  %other = or i32 %shifted, 2139095040
  %is_finite = icmp ult i32 %size, 31744
  %found = select i1 %is_finite, i32 %finite, i32 %other
  %sign = xor i32 %bits, %size
  %high = shl i32 %sign, 16
  %all = or i32 %found, %high
  %wide = bitcast i32 %all to float
  ret float %wide
}
"""


class Executor:
    """The kernels of a module.

    >>> executor = Executor('''
    ... declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
    ... define ptx_kernel void @numbers(ptr %out) {
    ...   %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
    ...   %at = getelementptr i32, ptr %out, i32 %thread
    ...   store i32 %thread, ptr %at
    ...   ret void
    ... }''')
    >>> out = np.zeros(4, np.int32)
    >>> executor.launch("numbers", 1, 4, [out])
    >>> out
    array([0, 1, 2, 3], dtype=int32)
    """

    def __init__(self, text: str) -> None:
        self.scheduler = scheduler()
        made = as_coroutines(binding.parse_assembly(text))
        self.parameters, self.sites = made.parameters, made.sites
        self.engine = compiled(made.text + WIDEN_HALF, self.scheduler)
        own = memory(
            self.engine.get_global_value_address("tj.own"), "i8", len(made.variables)
        )
        self.own = list(zip(made.variables, own.tolist(), strict=True))

    def launch(
        self,
        name: str,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument | Array],
        *,
        alive: Iterable[Range] = (),
        order: str = "up",
        seed: int = 0,
        watch: bool = False,
    ) -> None:
        """Run a kernel to its end.

        An argument is an array, an address or a NumPy number. Threads may look at the
        arrays, at what is `alive` and at what the module has.
        """
        if name not in self.parameters:
            known = ", ".join(self.parameters)
            raise ArgumentError(f"no kernel is {name!r}", help=f"there are {known}")
        if order not in ORDERS:
            raise ArgumentError(f"no order is {order!r}", help=f"known: {list(ORDERS)}")
        if blocks <= 0:
            raise ArgumentError(f"{name} has {blocks} blocks to run")
        if not 0 < threads <= MOST_THREADS:
            raise ArgumentError(
                f"a block has 1 to {MOST_THREADS} threads, got {threads}"
            )
        arrays = [x for x in arguments if isinstance(x, np.ndarray)]
        pieces = [*alive, *map(range_of, arrays)]
        pieces += [(start, start + x.size) for x, start in self.own]
        table = np.array(apart(pieces), np.int64).reshape(-1, 2)
        values = self.values(name, arguments)
        places = (ctypes.c_void_p * len(values))(*(x.ctypes.data for x in values))
        turns, numbers = np.arange(threads, dtype=np.int32), np.arange(blocks)
        if order in ("down", "last ahead"):
            turns, numbers = turns[::-1].copy(), numbers[::-1]
        elif order == "random":
            random = np.random.default_rng(seed)
            turns, numbers = random.permutation(turns), random.permutation(numbers)
        start = self.engine.get_function_address(starter(name).strip('"'))
        poison = self.engine.get_function_address("tj.poison")
        run_block = self.scheduler.run_block
        with self.scheduler.is_free:
            self.array("tj.threads", "i4", 1)[0] = threads
            self.array("tj.blocks", "i4", 1)[0] = blocks
            self.array("tj.alive", "i8", 1)[0] = table.ctypes.data
            self.array("tj.alive_count", "i4", 1)[0] = len(table)
            shared = [(x, x + y.size) for y, x in self.own if y.is_shared]
            finder = RaceFinder(self.sites, name, table, shared) if watch else None
            try:
                for block in numbers.tolist():
                    if watch:
                        self.call("tj.open_log", LOG_ROOM)
                    failure = run_block(
                        start,
                        ctypes.addressof(places),
                        block,
                        turns.ctypes.data,
                        ORDERS[order],
                        poison,
                    )
                    if failure:
                        raise self.failure(name, block, threads)
                    if finder is not None:
                        self.must_not_race(name, finder.look(self.log(), block))
                if finder is not None:
                    self.must_not_race(name, finder.look_at_blocks())
            finally:
                self.call("tj.close_log")

    def values(self, name: str, arguments: Sequence[Argument | Array]) -> list[Array]:
        """The arguments as a kernel has them in memory."""
        kinds = self.parameters[name]
        if len(kinds) != len(arguments):
            raise ArgumentError(
                f"{name} takes {len(kinds)} arguments, got {len(arguments)}"
            )
        found = []
        for kind, x in zip(kinds, arguments, strict=True):
            value = np.array(x.ctypes.data if isinstance(x, np.ndarray) else x)
            wanted = np.dtype(NUMPYS.get(kind) or f"i{int(kind[1:]) // 8}")
            if value.dtype.kind != wanted.kind or value.itemsize != wanted.itemsize:
                raise ArgumentError(f"{name} takes {wanted} there, got {value.dtype}")
            found.append(value)
        return found

    # What the scheduler has in memory

    def array(self, name: str, dtype: str | np.dtype[Any], count: int) -> Array:
        """A variable of the scheduler."""
        address = self.scheduler.engine.get_global_value_address(name)
        return memory(address, dtype, count)

    def call(self, name: str, *numbers: int) -> None:
        kinds = [ctypes.c_int64] * len(numbers)
        address = self.scheduler.engine.get_function_address(name)
        ctypes.CFUNCTYPE(None, *kinds)(address)(*numbers)

    def where(self, address: int) -> str:
        """An address as who looks for a fault wants it."""
        for variable, start in self.own:
            if 0 <= address - start < variable.size:
                return f"byte {address - start} of {variable.name}"
        return f"{address:#x}"

    # Failures

    def failure(self, name: str, block: int, threads: int) -> DeviceError:
        """Why a block did not come to its end."""
        fault = self.array("tj.fault", ACCESS, 1)[0]
        states = self.array("tj.state", "i4", MOST_THREADS)[:threads]
        if (states == AT_FAULT).any():
            site, address = self.sites[fault["site"]], int(fault["address"])
            kind, why = "illegal", "not all of which are alive"
            if address % site.align:
                kind, why = "misaligned", f"which must be a multiple of {site.align}"
            return DeviceError(
                f"{kind} address: thread {fault['thread']} of block {block} of {name} "
                f"looks at {site.size} bytes at {address:#x}, {why}: {site.text}"
            )
        groups = Counter(states.tolist())
        told = [
            f"{count} (the first is {states.tolist().index(state)}) "
            + (
                "are over"
                if state == OVER
                else f"wait at {self.sites[state // 4].text}"
            )
            for state, count in groups.items()
        ]
        return DeviceError(
            f"some threads of block {block} of {name} wait where others do not come: "
            f"{'; '.join(told)}",
            help="all threads must come to a barrier, those of a warp to the same one",
        )

    def log(self) -> Array:
        """The accesses of the last block."""
        size = int(self.array("tj.log_size", "i8", 1)[0])
        return memory(int(self.array("tj.log", "i8", 1)[0]), ACCESS, size)

    def must_not_race(self, name: str, race: Race | None) -> None:
        """An error for a race."""
        if race is None:
            return
        who = f"blocks {race.actors}"
        if race.block is not None:
            who = f"threads {race.actors} of block {race.block}"
        one, other = (self.sites[x].text for x in race.sites)
        raise DeviceError(
            f"race: {who} of {name} look at {self.where(race.address)}, and nothing "
            f"says who is first:\n  {one}\n  {other}",
            help="a barrier must stand between them, or each have a place of its own",
        )


class ThreadScheduler:
    """The compiled scheduler, which runs one launch at a time."""

    def __init__(self) -> None:
        self.engine = compiled(SCHEDULER)
        pointer, number = ctypes.c_void_p, ctypes.c_int32
        self.run_block = ctypes.CFUNCTYPE(
            number, pointer, pointer, number, pointer, number, pointer
        )(self.engine.get_function_address("tj.run_block"))
        self.is_free = threading.Lock()
        engine = self.engine
        self.addresses = {x: engine.get_global_value_address(x) for x in VARIABLES}
        self.addresses["tj.touch"] = engine.get_function_address("tj.touch")


@cache
def scheduler() -> ThreadScheduler:
    return ThreadScheduler()


def compiled(text: str, linked: ThreadScheduler | None = None) -> Any:
    """A module in this process; what it only declares may be that of the scheduler."""
    machine = host_machine()  # which makes LLVM ready
    module = binding.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=1)
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)  # splits coroutines
    engine = binding.create_mcjit_compiler(module, machine)
    declared = {x.name: x for x in (*module.global_variables, *module.functions)}
    for name, address in linked.addresses.items() if linked else ():
        if name in declared:  # it is in use
            engine.add_global_mapping(declared[name], address)
    engine.finalize_object()
    return engine


def memory(address: int, dtype: str | np.dtype[Any], count: int) -> Array:
    """What is at an address, as an array."""
    wanted = np.dtype(dtype)
    raw = (ctypes.c_char * (count * wanted.itemsize)).from_address(address)
    return np.frombuffer(memoryview(raw).cast("B"), wanted)


def range_of(array: Array) -> Range:
    """Where an array is."""
    return np.lib.array_utils.byte_bounds(array)


def apart(pieces: Iterable[Range]) -> list[Range]:
    """Pieces of memory, ascending; those that overlap are one.

    >>> apart([(8, 12), (0, 4), (4, 8), (10, 16)])
    [(0, 4), (4, 8), (8, 16)]
    """
    found: list[Range] = []
    for start, end in sorted(pieces):
        if found and start < found[-1][1]:
            start, end = found[-1][0], max(end, found.pop()[1])
        found.append((start, end))
    return found
