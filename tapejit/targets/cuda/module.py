"""A whole Graph as one LLVM module of kernels, and the list of their launches.

The host has buffers (`DeviceTable`): inputs, outputs, the arena, two words about
failures, constants. An argument of a kernel is the address of a place in one of them.

Each kernel of a LoopPlan is a function, with a second one that combines parts of sums
where teams leave some. Those of a launch that several share are parts of one function,
which asks for the number of its block and calls one of them. An operation on whole
arrays emits what it needs: products of matrices in `matmul`, others in `arrays`; both
get an `Emission` and `add` their functions to it.

Start reading at `emit_plan`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from tapejit.base.errors import UnsupportedError
from tapejit.ir.graph import Graph
from tapejit.ir.node import line_of
from tapejit.loops.fuse.inplace import can_fail
from tapejit.loops.kernels import Kernel, LoopPlan
from tapejit.loops.steps import Step, is_matmul
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import LLVMModule
from tapejit.targets.cpu.nest.addressing import I64, Place, number
from tapejit.targets.cuda.addressing import DeviceTable, SimtAddressing, block_of
from tapejit.targets.cuda.arrays import table
from tapejit.targets.cuda.kernel import GPUFunction, SimtKernel
from tapejit.targets.cuda.matmul.products import emit_matmul
from tapejit.targets.cuda.simt import SimtEmitter
from tapejit.targets.cuda.target import CUDA


class KernelLaunch(NamedTuple):
    """A kernel and its size; `places` are its arguments, and `numbers` behind them.

    Its threads may take so many `registers` each. `kernels` are those of the plan, by
    their numbers.
    """

    name: str
    blocks: int
    threads: int
    places: tuple[Place, ...]
    shared_bytes: int
    registers: int
    kernels: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.name}<<<{self.blocks}, {self.threads}>>>("
            f"{len(self.places)} pointers, {self.shared_bytes} B shared)"
        )


class BuiltKernels(NamedTuple):
    """The kernels of a Graph as LLVM text, and how to launch them."""

    text: str
    launches: tuple[KernelLaunch, ...]
    plan: LoopPlan
    arena_bytes: int
    can_fail: bool  # whether a kernel may note that its step has failed


@dataclass
class Emission:
    """What is emitted of a plan.

    `kernel` is the number of the one that is next, `label` the name of its functions.
    `parts` are those of the launch that is made, if several kernels share it.
    """

    plan: LoopPlan
    layout: DeviceTable
    module: LLVMModule
    label: str = ""
    kernel: int = -1
    launches: list[KernelLaunch] = field(default_factory=list)
    parts: list[tuple[GPUFunction, KernelLaunch]] | None = None

    def function(self, name: str, threads: int, resident: int = 0) -> GPUFunction:
        """A new kernel; `resident` threads are to fit a multiprocessor."""
        is_part = self.parts is not None
        return GPUFunction(self.module, name, threads, resident, is_part)

    def add(
        self, at: SimtAddressing, blocks: int, numbers: tuple[int, ...] = ()
    ) -> None:
        """Launch a kernel that is complete, in so many blocks, with these numbers."""
        function = at.function
        assert at.shared_bytes <= CUDA.tuning.shared_most_bytes, function.name
        if self.parts is None:
            function.launched(blocks)
        made = KernelLaunch(
            function.name,
            blocks,
            function.threads,
            tuple(at.places),
            at.shared_bytes,
            function.most_registers,
            (self.kernel,),
            numbers,
        )
        if self.parts is None:
            self.launches.append(made)
        else:
            self.parts.append((function, made))

    def join(self, name: str) -> None:
        """One kernel of all parts: each has blocks of its own."""
        assert self.parts is not None
        parts, self.parts = self.parts, None
        of_first, _ = parts[0]
        function = self.function(name, of_first.threads, of_first.resident)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        block, first = block_of(function, builder), 0
        for part, launch in parts:
            own = builder.sub(block, number(first))
            first += launch.blocks
            is_own = builder.icmp_signed("<", block, number(first))
            with builder.if_then(is_own):
                builder.call(part, [*function.like(part), own])
                builder.ret_void()
        builder.ret_void()
        function.launched(first)
        launches = [launch for _, launch in parts]
        places = tuple(place for x in launches for place in x.places)
        shared = sum(x.shared_bytes for x in launches)
        made = KernelLaunch(
            name,
            first,
            function.threads,
            places,
            shared,
            function.most_registers,
            tuple(at for x in launches for at in x.kernels),
        )
        self.launches.append(made)


def emit_plan(graph: Graph, plan: LoopPlan, name: str) -> BuiltKernels:
    """The module of a plan; `name` makes its symbols unique."""
    layout = DeviceTable(len(graph.inputs), len(graph.outputs))
    made = Emission(plan, layout, ir.LLVMModule(name))
    fails = plan.checks or any(map(may_note_failure, plan.kernels))
    if fails:
        made.label = f"{name}_begin"
        emit_begin(made)
    for stage in plan.stages:
        if len(stage) > 1:
            made.parts = []
        for kernel in stage:
            assert isinstance(kernel, SimtKernel)
            made.label, made.kernel = f"{name}_{kernel.number}", kernel.number
            if kernel.array_op is not None:
                emit_array_op(made, kernel, kernel.array_op)
            else:
                emit_kernel(made, kernel)
        if len(stage) > 1:
            made.join("_".join([name, *(str(x.number) for x in stage)]))
    text = str(made.module)
    return BuiltKernels(text, tuple(made.launches), plan, plan.arena_size, fails)


def may_note_failure(kernel: Kernel) -> bool:
    """Whether values may make a kernel note that its step has failed."""
    step = kernel.array_op
    if step is None or is_matmul(step):
        return can_fail(kernel)
    return table.may_note_failure(step)


def emit_begin(made: Emission) -> None:
    """Count the steps that can fail, so that the host knows which one has."""
    function = made.function(made.label, 1)
    words = function.parameter()
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    where = builder.gep(words, [number(1)], source_etype=I64)
    builder.store(builder.add(builder.load(where, 8, I64), number(1)), where, 8)
    builder.ret_void()
    places = (Place(made.layout.words),)
    most = function.most_registers
    made.launches.append(KernelLaunch(made.label, 1, 1, places, 0, most))


def emit_kernel(made: Emission, kernel: SimtKernel) -> None:
    """Loops over elements, and what combines the sums that they leave in parts."""
    plan, layout = made.plan, made.layout
    function = made.function(made.label, kernel.threads)
    emitter = SimtEmitter(function, plan, kernel, layout)
    emitter.emit()
    made.add(emitter.at, kernel.blocks)
    for at, step in enumerate(kernel.partials):
        size = plan.storage[step].size
        threads = CUDA.numerics.block_threads
        function = made.function(f"{made.label}_c{at}", threads)
        one = SimtKernel(
            kernel.items,
            kernel.number,
            kernel.stage,
            tasks=kernel.tasks,
            partials=kernel.partials,
            threads=threads,
            team=threads,
        )
        emitter = SimtEmitter(function, plan, one, layout)
        emitter.reductions.combine(step)
        emitter.at.builder.ret_void()
        columns = min(size, CUDA.numerics.warp_threads)
        made.add(emitter.at, math.ceil(size / columns))


def emit_array_op(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """An operation on whole arrays: a product of matrices, or another one."""
    if is_matmul(step):
        emit_matmul(made, kernel, step)
        return
    emit = table.EMITTERS.get(step.name)
    if emit is None:
        assert step.node is not None
        raise UnsupportedError(
            f"there is no kernel for {step.name} on a GPU",
            op=step.name,
            origin=line_of(step.node),
        )
    emit(made, kernel, step)
