"""What is inside of a Graph that runs on a GPU, in numbers and as text.

`DeviceInside` is the counterpart of `runtime.executable_report.NativeInside`: the
kernels of each segment, emitted once more to be looked at, and what the host does
between them. No device is needed, nor its driver, and nothing runs.

Start reading at `DeviceInside`.
"""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node
from tapejit.ir.printer import origin_text
from tapejit.ir.structural import item, start
from tapejit.rewrite.empty import is_empty
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.cuda.device_graph import why_not_whole
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.executable import (
    DeviceExecutable,
    alone,
    cut,
    is_always_hosts,
    moves_in,
    why_hosts,
)
from tapejit.runtime.cuda.kept_kernels import emit
from tapejit.runtime.executable_report import (
    Inside,
    OnNumPy,
    located,
    timing_text,
    write_files,
)
from tapejit.targets.cuda.kernel_report import (
    Assembled,
    GPUKernelReport,
    gpu_kernel_reports,
)
from tapejit.targets.cuda.ptx import PROCESSORS, KernelUsage, processor_for
from tapejit.targets.cuda.thread_source import ThreadSource
from tapejit.targets.cuda.tuning import GPUS

if TYPE_CHECKING:
    from tapejit.loops.kernels import LoopPlan

USUAL: Final = "sm_80"  # where no device says another one


class ReadBack(NamedTuple):
    """A value that the host waits for in the middle of a call, and where."""

    op: str
    nbytes: int
    where: str

    def __str__(self) -> str:
        return f"{located(self.op, self.where)}: reads {self.nbytes} bytes back"


class DevicePart:
    """A Graph that is kernels as a whole; `first` is the first kernel's number."""

    def __init__(
        self, graph: Graph, processor: str, first: int, device: Device | None
    ) -> None:
        capability, _ = PROCESSORS[processor]
        self.graph, self.built = emit(graph, capability, graph)
        self.first = first
        self.count = len(self.plan.kernels)
        self.arena_size = self.built.arena_bytes
        names = [x.name for x in self.built.launches]

        def ask(ptx: str) -> dict[str, KernelUsage] | None:
            if device is None:
                return None
            return device.driver.usage(ptx, names, device.number)

        self.assembled = Assembled(self.built.text, processor, ask)

    @property
    def plan(self) -> LoopPlan:
        """The loops of its kernels."""
        return self.built.plan

    @cached_property
    def kernels(self) -> list[GPUKernelReport]:
        """Each kernel in numbers."""
        return gpu_kernel_reports(self.graph, self.built, self.assembled, self.first)

    def source(self, name: str) -> str:
        """The kernels as Python, and the function of this name that calls them."""
        return ThreadSource(self.graph, self.built, self.first).module(name)

    def llvm(self) -> str:
        """The module that becomes PTX."""
        return self.built.text

    def asm(self) -> str:
        """Its PTX."""
        return self.assembled.ptx


class DeviceInside(Inside):
    """The kernels of a Graph on a GPU, and what is not in them.

    A `device` is asked what kernels take of it, where nvJitLink is missing.

    `on_numpy` is what the host does for want of a kernel, `reads_back` what it waits
    for. UnsupportedError names what nobody performs.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> inside = DeviceInside(Graph("double", (x,), (x + x,)), "sm_80")
    >>> ".target sm_80" in inside.asm(), len(inside.kernels), inside.reads_back
    (True, 1, [])
    """

    def __init__(
        self, graph: Graph, processor: str = USUAL, device: Device | None = None
    ) -> None:
        if processor not in PROCESSORS:
            raise ArgumentError(
                f"no GPU has the capability {processor!r}",
                help=f"known are {', '.join(PROCESSORS)}",
            )
        super().__init__()
        self.parts: list[DevicePart] = []
        self.reads_back: list[ReadBack] = []
        optimised = optimise(graph)
        if why_not_whole(optimised) is None:
            part = DevicePart(optimised, processor, 0, device)
            self.parts.append(part)
            outputs = graph.outputs
            computed = [at for at, x in enumerate(outputs) if not is_empty(x)]
            pairs = part.plan.update_pairs()
            self.updates = {
                (computed[out], x) for out, x in pairs if out < len(computed)
            }
            return
        found, count = cut(optimised), 0
        for whole in (*found.segments.values(), *map(alone, moves_in(found))):
            part = DevicePart(whole, processor, count, device)
            count += part.count
            self.parts.append(part)
        performed = {*found.segments, *moves_in(found)}
        for node in found.graph.nodes:
            if node in performed or node.op in (LITERAL, item, start):
                continue
            original = found.originals.get(node, node)
            self.note_host(original, original.op.name)

    def note_host(self, node: Node, name: str) -> None:
        """Note what the host performs, and what it waits for."""
        where = origin_text(node, {})
        if not is_always_hosts(node):
            self.on_numpy.append(OnNumPy(name, why_hosts(node) or "", where))
        size = sum(nbytes(x) for x in node.inputs if x.op is not LITERAL)
        if size:
            self.reads_back.append(ReadBack(name, size, where))

    @property
    def missing(self) -> str:
        """What keeps registers unknown; '' if nothing does, or there are no kernels."""
        if not self.parts or self.parts[0].assembled.usage is not None:
            return ""
        return self.parts[0].assembled.missing

    @property
    def predicted(self) -> dict[str, float]:
        """Name of a GPU -> seconds for all kernels at best: a prediction."""
        kernels = [kernel for part in self.parts for kernel in part.kernels]
        return {
            gpu.name: sum(x.predicted[gpu.name].seconds for x in kernels)
            for gpu in GPUS
        }

    def asm(self) -> str:
        """PTX, one module for each segment."""
        return self._joined([part.asm() for part in self.parts], "//")


def nbytes(node: Node) -> int:
    """The memory of a value; 0 of what is no array."""
    kind = node.type
    if not isinstance(kind, TensorType):
        return 0
    count = kind.dtype.itemsize
    for size in kind.shape:
        count *= int(size)
    return count


def show(executable: DeviceExecutable) -> None:
    """Report on kernels that are ready, as far as the settings ask for it."""
    settings, device = config.current(), executable.device
    processor = processor_for(device.driver.properties(device.number).capability)
    inside = DeviceInside(executable.given, processor, device)
    if settings.debug >= 1:
        count = len(inside.kernels)
        kernels = f"{count} kernel{'' if count == 1 else 's'} on {device.name}"
        took = timing_text(executable.seconds or {})
        text = f"tapejit: compiled {executable.given.name}, {kernels}: {took}\n"
        text += "".join(f"tapejit: NumPy performs {x}\n" for x in inside.on_numpy)
        if settings.debug >= 4:
            text += inside.plan() + inside.source()
        if settings.debug >= 5:
            text += inside.llvm()
        sys.stderr.write(text)  # in one piece, or the lines of two threads would mix
    if settings.dump:
        where = f".{device.name.replace(':', '_')}"
        write_files(inside, executable, settings.dump, where, "ptx")
