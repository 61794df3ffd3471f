"""Kernels of threads in numbers: their launches, and what they take of a GPU.

A `GPUKernelReport` says of a kernel of the plan what a `KernelReport` of the CPU says,
and with how many blocks of threads it is launched. What an assembler knows, registers
and spills, is there where nvJitLink is installed. Times are predictions of `roofline`.

Start reading at `gpu_kernel_reports`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from tapejit.base.errors import UnsupportedError
from tapejit.ir.graph import Graph
from tapejit.loops.nests import work_of
from tapejit.loops.steps import Load, is_matmul
from tapejit.targets.cpu.kernel_report import KernelReport, amount, flops_of
from tapejit.targets.cuda.kernel import SimtKernel
from tapejit.targets.cuda.matmul.products import tilings_of
from tapejit.targets.cuda.module import BuiltKernels, KernelLaunch
from tapejit.targets.cuda.ptx import PROCESSORS, KernelUsage, assemble, to_ptx
from tapejit.targets.cuda.roofline import (
    BlockUse,
    KernelWork,
    Prediction,
    occupancy,
    predict,
)
from tapejit.targets.cuda.thread_source import (
    ThreadSource,
    counted,
    launches_by_kernel,
)
from tapejit.targets.cuda.tuning import GPUS

if TYPE_CHECKING:
    from tapejit.targets.python.kernel_source import SourceWriter


Ask = Callable[[str], dict[str, KernelUsage] | None]


class Assembled:
    """A module for one processor: PTX, and what its kernels take.

    `usage` is nvJitLink's; where that is missing, `ask` asks a driver. It is None if
    there is neither, and `missing` says so then.
    """

    def __init__(self, text: str, processor: str, ask: Ask | None = None) -> None:
        self.text, self.processor, self.ask = text, processor, ask
        self.missing = ""

    @cached_property
    def ptx(self) -> str:
        return to_ptx(self.text, self.processor)

    @cached_property
    def usage(self) -> dict[str, KernelUsage] | None:
        try:
            return assemble(self.ptx, self.processor).usage
        except UnsupportedError as error:
            found = None if self.ask is None else self.ask(self.ptx)
            if found is None:
                self.missing = f"{error.message}; {error.help}"
            return found


class GPUKernelReport(KernelReport):
    """What one kernel does on a GPU; made by `Function.kernels`.

    Beside what a `KernelReport` has:

    launches      each with its name in PTX, blocks, threads, shared bytes
    blocks        of the first launch, which have `threads` each
    shared_bytes  what a block of it takes of shared memory
    registers     of a thread, by nvJitLink or a driver; None where there is neither
    spilled_bytes what does not fit in them; None, too
    occupancy     which part of the threads that fit a multiprocessor are resident; at
                  least, where registers are not known
    predicted     name of a GPU -> time at best: a prediction, not a measurement
    ptx           its functions

    >>> import tapejit as tj
    >>> square = tj.function(lambda x: x * x)
    >>> (kernel,) = square.kernels(tj.ones(1000), target="cuda")
    >>> kernel.blocks, kernel.threads, kernel.bytes_moved
    (1, 256, 8000)
    """

    _kernel: SimtKernel

    def __init__(
        self,
        module: Callable[[], SourceWriter],
        kernel: SimtKernel,
        launches: Sequence[KernelLaunch],
        assembled: Assembled,
    ) -> None:
        super().__init__(module, kernel)
        self.launches = tuple(launches)
        self._assembled = assembled

    @property
    def _main(self) -> KernelLaunch:
        return self.launches[0]  # others put its parts together

    @property
    def blocks(self) -> int:
        return self._main.blocks

    @property
    def threads(self) -> int:
        return self._main.threads

    @property
    def shared_bytes(self) -> int:
        return self._main.shared_bytes

    @property
    def registers(self) -> int | None:
        found = self._assembled.usage
        return None if found is None else found[self._main.name].registers

    @property
    def spilled_bytes(self) -> int | None:
        found = self._assembled.usage
        if found is None:
            return None
        return max(found[x.name].spilled_bytes for x in self.launches)

    @property
    def ptx(self) -> str:
        text, parts = self._assembled.ptx, []
        for launch in self.launches:
            start = text.index(f".entry {launch.name}(")
            start = text.rindex("\n", 0, start) + 1
            parts.append(text[start : text.index("\n}", start) + 2])
        return "\n".join(parts) + "\n"

    def use(self, launch: KernelLaunch) -> BlockUse:
        """What a launch takes: registers by its budget, where they are not known."""
        usage, registers = self._assembled.usage, launch.registers
        if usage is not None:
            registers = usage[launch.name].registers
        return BlockUse(launch.blocks, launch.threads, registers, launch.shared_bytes)

    @property
    def occupancy(self) -> float:
        capability, _ = PROCESSORS[self._assembled.processor]
        return occupancy(self.use(self._main), capability)

    @cached_property
    def work(self) -> KernelWork:
        """What predictions are made of."""
        kernel, product = self._kernel, self._kernel.array_op
        others = [x for x in self._steps if not is_matmul(x)]
        is_wide = any(x.dtype == np.float64 for x in self._steps)
        numbers = core = "f64" if is_wide else "f32"
        flops, trip = 0.0, 0
        if product is not None and is_matmul(product):
            flops = float(flops_of(product))
            tiling = tilings_of(kernel, product)[0]
            core = tiling.core if tiling.core in ("mma", "tf32") else numbers
            tile = tiling.tile
            elements = (tile.rows + tile.columns) * tile.depth // tile.threads
            trip = elements * product.dtype.itemsize
        elif product is not None and product.node is not None:
            trip = sum(x.dtype.itemsize for x in product.node.inputs)
        own, memory = set(self._steps), self._module().plan.storage
        needed = own.union(*[step.needed() for step in others])
        loads = [
            x
            for x in needed
            if isinstance(x.what, Load) or (x not in own and x in memory)
        ]
        trip += sum(x.dtype.itemsize for x in loads) * kernel.width
        return KernelWork(
            tuple(map(self.use, self.launches)),
            self.bytes_moved,
            trip,
            sum(map(work_of, others)),
            flops,
            core,
            numbers,
        )

    @property
    def predicted(self) -> dict[str, Prediction]:
        return {gpu.name: predict(self.work, gpu) for gpu in GPUS}

    def __str__(self) -> str:
        sizes = f"{counted(self.blocks, 'block')} of {counted(self.threads, 'thread')}"
        parts = [super().__str__(), f"{sizes}, {amount(self.shared_bytes)} shared"]
        if len(self.launches) > 1:
            parts.append(f"{len(self.launches)} launches")
        if self.registers is None:
            most = self._main.registers
            parts.append(f"{most} registers at most, occupancy {self.occupancy:.2f}")
        else:
            spills = amount(self.spilled_bytes) if self.spilled_bytes else "nothing"
            parts.append(
                f"{self.registers} registers, spills {spills}, occupancy "
                f"{self.occupancy:.2f}"
            )
        times = (f"{name} {x}" for name, x in self.predicted.items())
        return f"{'; '.join(parts)}; predicted {', '.join(times)}"


def gpu_kernel_reports(
    graph: Graph, built: BuiltKernels, assembled: Assembled, first: int = 0
) -> list[GPUKernelReport]:
    """A report on each kernel of a module; `first` is the number of the first.

    >>> from tapejit import ops
    >>> from tapejit.base.types import TensorType
    >>> from tapejit.ir import param
    >>> from tapejit.targets.cuda.target import CUDA
    >>> x = param("x", TensorType.parse("f32[1000]"))
    >>> graph = Graph("double", (x,), (x + x,))
    >>> built = CUDA.emit(graph, CUDA.plan(graph), "double")
    >>> (found,) = gpu_kernel_reports(graph, built, Assembled(built.text, "sm_80"))
    >>> print(found.launches[0])
    double_0<<<1, 256>>>(3 pointers, 0 B shared)
    """
    module = cache(lambda: ThreadSource(graph, built, first))
    launches = launches_by_kernel(built)
    found = []
    for kernel in built.plan.kernels:
        assert isinstance(kernel, SimtKernel)
        own = launches[kernel.number]
        found.append(GPUKernelReport(module, kernel, own, assembled))
    return found
