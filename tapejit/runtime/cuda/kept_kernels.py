"""The kernels of a Graph, from the store or made: emitting them happens once.

There are two entries for a Graph. The first has its kernels as `Driver.compile` gives
them (PTX), with the launches, the constants and all else that a step needs: whoever
finds it plans and emits nothing. The second has the machine code of that PTX, under a
name that the assembler and the driver are part of: a newer driver assembles again, and
emits nothing. What is damaged is dropped, and made again.

Start reading at `make_kernels`, then `stored_kernels`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.rewrite.empty import is_empty, without_empty
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.cuda.device_graph import fixed, tensor_type, whole_graph
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.launches import InBuffer, Launch

if TYPE_CHECKING:  # who finds kernels in the store needs no compiler
    from tapejit.targets.cuda.module import BuiltKernels, KernelLaunch

Array = np.ndarray[Any, Any]


class Kernels(NamedTuple):
    """What a device needs of the kernels of a Graph.

    `unread` are results that nobody asks for, of what may fail; `updates` are numbers
    of results that are computed, and of inputs that they may be written over.
    """

    code: bytes
    launches: tuple[Launch, ...]
    arena_bytes: int
    can_fail: bool
    updates: tuple[tuple[int, int], ...]
    unread: tuple[TensorType, ...]
    constants: tuple[Array, ...]


class KernelTexts(NamedTuple):
    """The kernels of a Graph as text, and the Graph that they compute."""

    graph: Graph
    built: BuiltKernels


def make_kernels(
    graph: Graph, device: Device, optimised: Graph | None = None
) -> tuple[Kernels, KernelTexts, dict[str, float]]:
    """New kernels of a Graph, which are kept; also their text, and seconds."""
    begin = time.perf_counter()
    capability = device.driver.properties(device.number).capability
    emitted = emit(graph, capability, optimised)
    between = time.perf_counter()
    code = device.driver.compile(emitted.built.text, device.number)
    seconds = {"emit": between - begin, "compile": time.perf_counter() - between}
    made = kernels_of(graph, emitted, code)
    keep(graph, device, made)
    return made, emitted, seconds


def emit(
    graph: Graph, capability: tuple[int, int], optimised: Graph | None = None
) -> KernelTexts:
    """Kernels of a Graph for devices of a capability, as LLVM text."""
    from tapejit.targets.cuda.target import target_for

    target = target_for(capability)
    whole = whole_graph(without_empty(optimised or optimise(graph)))
    name = f"tj_{whole.digest[:16]}"
    return KernelTexts(whole, target.emit(whole, target.plan(whole), name))


def kernels_of(graph: Graph, emitted: KernelTexts, code: bytes) -> Kernels:
    """What is kept of kernels that were compiled."""
    built, plan = emitted.built, emitted.built.plan
    computed = sum(not is_empty(x) for x in graph.outputs)
    return Kernels(
        code,
        tuple(map(launch_of, built.launches)),
        built.arena_bytes,
        built.can_fail,
        tuple(plan.update_pairs()),
        tuple(tensor_type(x) for x in emitted.graph.outputs[computed:]),
        tuple(np.ascontiguousarray(x.value) for x in plan.nests.constants),
    )


def launch_of(launch: KernelLaunch) -> Launch:
    """A launch with its arguments: places in buffers, then numbers."""
    arguments: tuple[InBuffer | np.generic, ...] = (
        *[InBuffer(*at) for at in launch.places],
        *map(np.int64, launch.numbers),
    )
    return Launch(launch.name, launch.blocks, launch.threads, arguments)


# In the store


def kernels_key(graph: Graph, device: Device) -> str:
    """The name of a Graph's kernels in the store."""
    from tapejit.runtime.store.key import cache_key
    from tapejit.targets.cuda.target import target_for

    driver = device.driver
    target = target_for(driver.properties(device.number).capability)
    extras = {
        "kernels": driver.toolchain(device.number).compiler,
        "numbers": f"{target.tuning} {target.numerics}",
    }
    return cache_key(graph.digest, extras=extras)


def stored_kernels(graph: Graph, device: Device) -> Kernels | None:
    """The kernels that an earlier process has made, or this one."""
    from tapejit.runtime.store.store import current_store

    entry = current_store().get(kernels_key(graph, device))
    return None if entry is None else unpacked(entry.header, entry.code)


def keep(graph: Graph, device: Device, kernels: Kernels) -> None:
    """Put kernels into the store."""
    from tapejit.runtime.store.store import current_store

    header, data = packed(kernels)
    header["name"] = f"{graph.name} on {device.kind}"
    current_store().put(kernels_key(graph, device), header, data)


def packed(kernels: Kernels) -> tuple[dict[str, Any], bytes]:
    """Kernels as an entry has them: what JSON can say, and bytes."""
    launches = [
        (
            x.kernel,
            x.blocks,
            x.threads,
            [at for at in x.arguments if isinstance(at, InBuffer)],
            [int(at) for at in x.arguments if not isinstance(at, InBuffer)],
        )
        for x in kernels.launches
    ]
    header = {
        "kernels": len(launches),
        "launches": launches,
        "arena": kernels.arena_bytes,
        "can_fail": kernels.can_fail,
        "updates": kernels.updates,
        "unread": [str(x) for x in kernels.unread],
        "constants": [str(TensorType(x.dtype, x.shape)) for x in kernels.constants],
        "code": len(kernels.code),
    }
    return header, b"".join([kernels.code, *[x.tobytes() for x in kernels.constants]])


def unpacked(header: Mapping[str, Any], data: bytes) -> Kernels:
    """The kernels of an entry.

    >>> made = Kernels(b"code", (), 64, False, ((0, 1),), (), (np.ones(2),))
    >>> unpacked(*packed(made)).constants
    (array([1., 1.]),)
    """
    launches = [
        Launch(
            name,
            blocks,
            threads,
            (*[InBuffer(*at) for at in places], *map(np.int64, numbers)),
        )
        for name, blocks, threads, places, numbers in header["launches"]
    ]
    constants, end = [], header["code"]
    for kind in map(TensorType.parse, header["constants"]):
        shape = fixed(kind)
        found = np.frombuffer(data, kind.dtype, math.prod(shape), end)
        constants.append(found.reshape(shape))
        end += found.nbytes
    return Kernels(
        data[: header["code"]],
        tuple(launches),
        header["arena"],
        header["can_fail"],
        tuple((out, x) for out, x in header["updates"]),
        tuple(map(TensorType.parse, header["unread"])),
        tuple(constants),
    )


def helper_code(name: str, text: Callable[[], str], device: Device) -> bytes:
    """Machine code of a kernel that is of no Graph, from the store if it is there."""
    from tapejit.runtime.store.key import cache_key
    from tapejit.runtime.store.store import current_store

    compiler = device.driver.toolchain(device.number).compiler
    store, key = current_store(), cache_key(name, extras={"kernels": compiler})
    entry = store.get(key)
    code = device.driver.compile(text(), device.number) if entry is None else entry.code
    if entry is None:
        store.put(key, {"name": name}, code)
    return machine_code(code, name, device, {})


def machine_code(
    code: bytes, name: str, device: Device, seconds: dict[str, float]
) -> bytes:
    """Machine code of what `Driver.compile` has given; that itself if none is made.

    `seconds` hears how long assembling took.
    """
    from tapejit.runtime.store.key import cache_key
    from tapejit.runtime.store.store import current_store

    assembler = device.driver.toolchain(device.number).assembler
    if not assembler:
        return code
    digest = hashlib.sha256(code).hexdigest()
    store, key = current_store(), cache_key(digest, extras={"assembler": assembler})
    entry = store.get(key)
    if entry is not None:
        return entry.code
    begin = time.perf_counter()
    made = device.driver.assemble(code, device.number)
    seconds["assemble"] = time.perf_counter() - begin
    store.put(key, {"name": f"machine code of {name}"}, made)
    return made
