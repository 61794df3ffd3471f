"""A whole Graph as one LLVM module: its kernels, and the function that runs them.

`build` lowers, schedules and plans a Graph and emits `run(table)`: every kernel in
order, those that are worth it cut into tasks for the parallel driver. The table points
to inputs, outputs, the arena and the addresses of foreign functions, so a module names
nothing outside itself.

Start reading at `build`.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.loops.fuse.inplace import first_update
from tapejit.loops.kernels import Kernel, LoopPlan
from tapejit.loops.steps import Buffer, is_matmul
from tapejit.targets.cpu import kernel_key
from tapejit.targets.cpu.call.signal_layout import SYMBOL as POLL
from tapejit.targets.cpu.call.signal_poll import (
    FAILURE,
    INTERRUPTED,
    LOOKED,
    POLL_TYPE,
    TAKEN,
)
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import (
    FunctionType,
    IRBuilder,
    LLVMFunction,
    LLVMModule,
    Value,
)
from tapejit.targets.cpu.matmul.kernel import MatmulKernel
from tapejit.targets.cpu.nest.addressing import (
    I8,
    I64,
    POINTER,
    Addressing,
    Place,
    PointerTable,
    number,
)
from tapejit.targets.cpu.nest.kernel_emitter import (
    KernelEmitter,
    emit_combination,
    emit_kernel,
    new_function,
)
from tapejit.targets.cpu.nest.nonfinite_check import fail_unless_array_is_finite
from tapejit.targets.cpu.target import CPU

DRIVER: Final = "parallel"


class Built(NamedTuple):
    """A module and what its caller has to know.

    `imports` names the foreign functions in the order of their addresses.
    """

    module: LLVMModule
    symbol: str
    plan: LoopPlan
    arena_size: int
    imports: tuple[str, ...]


def build(
    graph: Graph,
    name: str,
    checks: bool = False,
    look: Callable[[LLVMModule, Mapping[str, str]], None] | None = None,
    marks_memory: bool = False,
    tell: Callable[[str, int, int], None] | None = None,
) -> Built:
    """The module of a Graph whose Nodes are all native; `name` makes symbols unique.

    With `checks` the function fails where a value is NaN or infinite. `look` is called
    with the module whenever it has another kernel, and the texts that are known of what
    is in it; what is there stays as it is. With `marks_memory` everything that is to be
    written is NaN before, so that what is read too early shows. `tell` hears how many
    kernels there are by now, and will be.
    """
    plan = CPU.plan(graph, checks)
    return emit_plan(graph, plan, name, look, marks_memory, tell)


def emit_plan(
    graph: Graph,
    made: LoopPlan,
    name: str,
    look: Callable[[LLVMModule, Mapping[str, str]], None] | None = None,
    marks_memory: bool = False,
    tell: Callable[[str, int, int], None] | None = None,
) -> Built:
    """The module of a plan, with the arguments of `build`."""
    module = ir.LLVMModule(name, marks_memory)
    constants = [constant_of(module, name, x) for x in made.nests.constants]
    polls = sum(kernel.work for kernel in made.kernels) > CPU.tuning.poll_instructions
    layout = PointerTable(len(graph.inputs), len(graph.outputs), constants, polls)
    quiet = PointerTable(len(graph.inputs), len(graph.outputs), constants, False)
    final = first_update(made.kernels, made.updates)
    imports: list[str] = [POLL] if polls else []
    parts = KernelFunctions(module)
    done: dict[int, Emitted] = {}
    for count, kernel in enumerate(made.kernels, 1):
        if tell is not None:
            tell("kernel", count, len(made.kernels))
        if kernel is final:
            layout = quiet
        label = f"{name}_k{kernel.number}"
        done[kernel.number] = parts.emitted(made, kernel, layout, label)
        if look is not None:
            look(module, parts.texts)
    symbol = f"{name}_run"
    run = ir.LLVMFunction(module, ir.FunctionType(I64, [POINTER]), symbol)
    builder = ir.IRBuilder(run.append_basic_block("entry"))
    (table,) = run.args
    arena = entry(builder, table, layout.arena)
    for at in (FAILURE, TAKEN):
        builder.store(number(0), word(builder, arena, at))
    stages = [[done[kernel.number] for kernel in region] for region in made.stages]
    calls = [parts.calls(x, f"{name}_s{at}") for at, x in enumerate(stages)]
    called = [part for stage in calls for part, _ in stage]
    local = LocalTable(builder, table, layout, called, f"{name}_t")
    flag = word(builder, arena, INTERRUPTED)
    if polls:
        for place in (flag, word(builder, arena, LOOKED)):
            builder.store(number(0), place)
    if marks_memory:
        mark_outputs(builder, local, graph, made)
    since_poll = 0.0

    def call(part: KernelFunction, tasks: int) -> None:
        places = local.of(part)
        if tasks == 1:
            builder.call(part.function, [places, number(0)])
            return
        driver = imported(builder, table, layout, imports, DRIVER)
        signature = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64])
        operands = [part.function, places, number(tasks)]
        call_address(builder, driver, signature, operands)

    for at, region in enumerate(made.stages):
        if final in region:  # from here on nothing fails or is interrupted
            if polls:
                leave_if_raised(builder, flag)
            leave_if_failed(builder, arena)
            polls = False
        since_poll += sum(kernel.work for kernel in region)
        # Many kernels, none of which is long.
        if polls and since_poll > CPU.tuning.poll_instructions:
            poll = imported(builder, table, layout, imports, POLL)
            call_address(builder, poll, POLL_TYPE, [arena])
            leave_if_raised(builder, flag)
            since_poll = 0.0
        if marks_memory:
            mark_arena(builder, local, made, at)
        for part, tasks in calls[at]:
            call(part, tasks)
    if polls:
        leave_if_raised(builder, flag)
    builder.ret(builder.load(arena, typ=I64))
    return Built(module, symbol, made, made.arena_size, tuple(imports))


class KernelFunction(NamedTuple):
    """A function of a kernel, and what its table has to point to."""

    function: LLVMFunction
    places: tuple[Place, ...]


class Emitted(NamedTuple):
    """The functions of a kernel: those before it, with tasks, itself, one after it."""

    kernel: Kernel
    before: Sequence[tuple[KernelFunction, int]]
    part: KernelFunction
    combination: KernelFunction | None

    def parts(self) -> list[KernelFunction]:
        """All of its functions."""
        last = [] if self.combination is None else [self.combination]
        return [*(part for part, _ in self.before), self.part, *last]


class Pattern(NamedTuple):
    """The functions of a kernel, for all kernels that are equal to it.

    `places` has those of each function as all of them have them in common.
    """

    emitted: Emitted
    places: list[list[kernel_key.RelativePlace]]

    def of(self, kernel: Kernel, memories: Sequence[kernel_key.MemoryPlace]) -> Emitted:
        """The same functions for an equal kernel, with tables of its own."""
        parts = iter(
            [
                KernelFunction(part.function, kernel_key.places_of(places, memories))
                for part, places in zip(self.emitted.parts(), self.places, strict=True)
            ]
        )
        before = [(next(parts), tasks) for _, tasks in self.emitted.before]
        return Emitted(kernel, before, next(parts), next(parts, None))


def pattern_of(
    emitted: Emitted, layout: PointerTable, memories: Sequence[kernel_key.MemoryPlace]
) -> Pattern | None:
    """What kernels that are equal to one just emitted have in common with it."""
    places = []
    for part in emitted.parts():
        found = kernel_key.relative_places(part.places, memories, layout)
        if found is None:
            return None
        places.append(found)
    return Pattern(emitted, places)


class KernelFunctions:
    """The functions of a module: kernels that do the same have one.

    Most of them are known by their key, before anything is emitted. Some of another
    structure have the same text nevertheless.
    """

    def __init__(self, module: LLVMModule) -> None:
        self.module = module
        self.by_key: dict[tuple[Value, ...], Pattern] = {}
        self.by_text: dict[str, LLVMFunction] = {}
        self.texts: dict[str, str] = {}  # of functions, by name
        self.by_calls: dict[tuple[str | int, ...], LLVMFunction] = {}

    def emitted(
        self, plan: LoopPlan, kernel: Kernel, layout: PointerTable, label: str
    ) -> Emitted:
        """The functions of a kernel: new ones, or those of an equal kernel."""
        is_keyed = kernel.role != "array op"
        key = kernel_key.key_of(plan, kernel, layout) if is_keyed else None
        if key is None:
            return self.new(plan, kernel, layout, label)
        known = self.by_key.get(key.structure)
        if known is not None:
            return known.of(kernel, key.memories)
        made = self.new(plan, kernel, layout, label)
        pattern = pattern_of(made, layout, key.memories)
        if pattern is not None:
            self.by_key[key.structure] = pattern
        return made

    def new(
        self, plan: LoopPlan, kernel: Kernel, layout: PointerTable, label: str
    ) -> Emitted:
        """A kernel that is emitted now."""
        module = self.module
        emitted: Addressing | KernelEmitter | MatmulKernel
        if kernel.array_op is None:
            emitted = emit_kernel(module, plan, kernel, layout, label)
        elif is_matmul(kernel.array_op):
            emitted = MatmulKernel(module, plan, kernel, layout, label)
        else:
            emitted = emit_array_op(module, plan, kernel, layout, label)
        part, combination = self.add(emitted), None
        if kernel.partials:
            combination = self.add(
                emit_combination(module, plan, kernel, layout, f"{label}_combine")
            )
        before = [
            (KernelFunction(x.function, x.places), x.tasks)
            for x in emitted.preparations
        ]
        return Emitted(kernel, before, part, combination)

    def add(self, emitted: Addressing | KernelEmitter | MatmulKernel) -> KernelFunction:
        """Keep a function just emitted, or the one that does the same already."""
        function = emitted.function
        texts = {x.name: x.definition() for x in emitted.own}
        # Products inside of tiles are named by the numbers of their Steps.
        text, own = "".join(texts.values()), f"{function.name}_p"
        products = [name for name in texts if name.startswith(own)]
        for at, name in enumerate(products):
            text = re.sub(rf"{re.escape(name)}\b", f"<{at}>", text)
        text = text.replace(function.name, "")
        known = self.by_text.setdefault(text, function)
        if known is function:
            self.texts |= texts
        else:
            for name in texts:
                del self.module.globals[name]
        return KernelFunction(known, tuple(emitted.places))

    def calls(
        self, stage: Sequence[Emitted], name: str
    ) -> list[tuple[KernelFunction, int]]:
        """What to call, and with how many tasks, to run the kernels of a stage."""
        in_order = sorted(stage, key=lambda x: x.kernel.number)
        before = [call for x in in_order for call in x.before]
        kernels = [(x.part, x.kernel.tasks) for x in stage]
        return [
            *self.together(before, f"{name}_before"),
            *self.together(kernels, name),
            *((x.combination, 1) for x in in_order if x.combination),
        ]

    def together(
        self, calls: list[tuple[KernelFunction, int]], name: str
    ) -> list[tuple[KernelFunction, int]]:
        """Calls that may be made in any order: all their tasks as one function's."""
        if len(calls) < 2 or all(tasks == 1 for _, tasks in calls):
            return calls
        key = tuple(x for part, tasks in calls for x in (part.function.name, tasks))
        function = self.by_calls.get(key)
        if function is None:
            function = self.by_calls[key] = self.one_of(calls, name)
        places = tuple(place for part, _ in calls for place in part.places)
        return [(KernelFunction(function, places), sum(tasks for _, tasks in calls))]

    def one_of(
        self, calls: list[tuple[KernelFunction, int]], name: str
    ) -> LLVMFunction:
        """A function whose tasks are those of all these calls."""
        function = new_function(self.module, name)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        table, task = function.args
        before = 0
        for part, tasks in calls:
            start = builder.gep(table, [number(before)], source_etype=POINTER)
            with builder.if_then(builder.icmp_signed("<", task, number(tasks))):
                builder.call(part.function, [start, task])
                builder.ret_void()
            task = builder.sub(task, number(tasks))
            before += len(part.places)
        builder.unreachable()
        return function


class LocalTable:
    """The tables of the kernels that come next, filled by `run`.

    Between few kernels, `run` stores the pointers that differ from those of the kernel
    before: it has no loops, so what it has loaded or stored stays so to its end. For
    many kernels this would be most of what LLVM has to do; there a loop fills the
    tables of several kernels, and data says with what.
    """

    def __init__(
        self,
        builder: IRBuilder,
        given: Value,
        layout: PointerTable,
        parts: Sequence[KernelFunction],
        name: str,
    ) -> None:
        self.builder, self.given, self.layout, self.name = builder, given, layout, name
        self.ahead = deque(parts)  # in the order in which they are asked for
        self.filled = 0  # of those, how many have their table by now
        self.start = 0  # where that of the next one begins
        sizes = [len(part.places) for part in parts]
        self.is_stored = sum(sizes) <= CPU.tuning.stored_table_entries
        self.most = 0 if self.is_stored else CPU.tuning.table_entries
        count = max([1, min(self.most, sum(sizes)), *sizes])
        self.memory = builder.alloca(ir.ArrayType(POINTER, count))
        self.memory.type = POINTER
        self.entries: dict[int, Value] = {}
        self.written: dict[int, Place] = {}

    def of(self, part: KernelFunction) -> Value:
        """The table of the next function."""
        if not self.filled:
            self.start = 0
            self.fill()
        start = self.start
        self.start += len(part.places)
        self.filled -= 1
        self.ahead.popleft()
        return self.at(start) if start else self.memory

    def fill(self) -> None:
        """Point to the memory of the kernels that come next."""
        places: list[Place] = []
        for part in self.ahead:
            if self.filled and len(places) + len(part.places) > self.most:
                break
            places += part.places
            self.filled += 1
        if not self.is_stored:
            self.copy(places)
        for at, place in enumerate(places):
            if self.written.get(at) != place:
                where = self.at(at)
                self.builder.store(self.pointer(place), where)
                self.written[at] = place

    def copy(self, places: Sequence[Place]) -> None:
        """All of it that is not in the module itself, by a loop."""
        module = self.builder.module
        words = [x for place in places for x in (max(place.entry, 0), place.offset)]
        kind = ir.ArrayType(I64, len(words))
        data = constant(module, f"{self.name}{len(module.globals)}", kind, words)
        filler = module.globals.get(self.name) or emit_filler(module, self.name)
        operands = [self.memory, data, self.given, number(len(places))]
        self.builder.call(filler, operands)
        self.written = {at: x for at, x in enumerate(places) if x.entry >= 0}

    def at(self, at: int) -> Value:
        """The place of an entry."""
        return self.builder.gep(self.memory, [number(at)], source_etype=POINTER)

    def pointer(self, place: Place) -> Value:
        if place.entry < 0:
            return self.layout.constants[place.offset]
        found = self.entries.get(place.entry)
        if found is None:
            found = entry(self.builder, self.given, place.entry)
            self.entries[place.entry] = found
        if place.offset:
            offset = number(place.offset)
            found = self.builder.gep(found, [offset], source_etype=I8)
        return found


def emit_filler(module: LLVMModule, name: str) -> Value:
    """`fill(table, data, given, count)`: data has an entry and an offset for each."""
    kinds = [POINTER, POINTER, POINTER, I64]
    function = ir.LLVMFunction(module, ir.FunctionType(ir.VoidType(), kinds), name)
    function.linkage = "internal"
    to, data, given, count = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    with builder.loop(number(0), count, 1) as at:
        first = builder.shl(at, number(1))
        words = [builder.add(first, number(x)) for x in (0, 1)]
        places = [builder.gep(data, [x], source_etype=I64) for x in words]
        place, offset = (builder.load(x, typ=I64) for x in places)
        base = builder.gep(given, [place], source_etype=POINTER)
        found = builder.load(base, typ=POINTER)
        found = builder.gep(found, [offset], source_etype=I8)
        builder.store(found, builder.gep(to, [at], source_etype=POINTER))
    builder.ret_void()
    return function


def mark_outputs(
    builder: IRBuilder, table: LocalTable, graph: Graph, plan: LoopPlan
) -> None:
    """Make the outputs NaN, but for one that is written over an input."""
    layout = table.layout
    given: dict[int, list[int]] = {}
    for out, at in plan.update_pairs():
        given.setdefault(out, []).append(at)
    for out, node in enumerate(graph.outputs):
        assert isinstance(node.type, TensorType)
        nbytes = math.prod(map(int, node.type.shape)) * node.type.dtype.itemsize
        pointer = table.pointer(Place(layout.inputs + out))
        own = builder.ptrtoint(pointer, I64)
        size = number(nbytes)
        for at in given.get(out, ()):
            other = builder.ptrtoint(table.pointer(Place(at)), I64)
            is_fresh = builder.icmp_unsigned("!=", own, other)
            size = builder.select(is_fresh, size, number(0))
        builder.mark(pointer, size)


def mark_arena(
    builder: IRBuilder, table: LocalTable, plan: LoopPlan, stage: int
) -> None:
    """Make what a stage is the first to write NaN, and what its kernels have alone."""
    for memory in plan.fresh.get(stage, ()):
        place = table.pointer(Place(table.layout.arena, memory.offset))
        builder.mark(place, number(memory.nbytes))


def constant_of(module: LLVMModule, name: str, buffer: Buffer) -> Value:
    """An array as part of the module."""
    data = bytearray(np.ascontiguousarray(buffer.value).tobytes())
    return constant(
        module, f"{name}_c{buffer.number}", ir.ArrayType(I8, len(data)), data
    )


def constant(
    module: LLVMModule, name: str, kind: ir.Type, data: Sequence[int]
) -> Value:
    """Numbers as part of the module."""
    made = ir.GlobalVariable(module, kind, name)
    made.linkage = "internal"
    made.global_constant = True
    made.align = 64
    made.initializer = ir.Literal(kind, data)
    made.type = POINTER  # whose elements are told at each use
    return made


def entry(builder: IRBuilder, table: Value, at: int) -> Value:
    """An entry of the table."""
    where = builder.gep(table, [number(at)], source_etype=POINTER)
    return builder.load(where, typ=POINTER)


def word(builder: IRBuilder, arena: Value, at: int) -> Value:
    """The place of one of the words that the arena begins with."""
    return builder.gep(arena, [number(at)], source_etype=I64)


def leave_if_raised(builder: IRBuilder, flag: Value) -> None:
    """Return, if the handler of a signal has raised, or made the call overtaken."""
    reason = builder.load(flag, typ=I64)
    with builder.if_then(builder.icmp_signed("!=", reason, number(0))):
        builder.ret(builder.sub(number(0), reason))


def leave_if_failed(builder: IRBuilder, arena: Value) -> None:
    """Return the number of a failure, if there was one."""
    failure = builder.load(arena, typ=I64)
    with builder.if_then(builder.icmp_signed("!=", failure, number(0))):
        builder.ret(failure)


def imported(
    builder: IRBuilder,
    table: Value,
    layout: PointerTable,
    imports: list[str],
    name: str,
) -> Value:
    """The address of a foreign function."""
    if name not in imports:
        imports.append(name)
    addresses = entry(builder, table, layout.imports)
    return entry(builder, addresses, imports.index(name))


def call_address(
    builder: IRBuilder,
    address: Value,
    signature: FunctionType,
    operands: Sequence[Value],
) -> Value:
    """Call a function whose address is only known when it runs."""
    number = builder.ptrtoint(address, I64)
    typed = builder.inttoptr(number, signature.as_pointer())
    return builder.call(typed, operands)


def emit_array_op(
    module: LLVMModule, plan: LoopPlan, kernel: Kernel, layout: PointerTable, name: str
) -> Addressing:
    """An operation on whole arrays that is no product of matrices."""
    # Here, because most programs have none: 5 ms.
    from tapejit.targets.cpu.arrays.loops import operands_of
    from tapejit.targets.cpu.arrays.table import EMITTERS

    (step,) = kernel.steps()
    at = Addressing(new_function(module, name), plan, kernel, layout)
    out = at.pointer_to(plan.storage[step])
    EMITTERS[step.performed.op.name](at, step.performed, operands_of(at), out)
    if plan.checks:
        fail_unless_array_is_finite(at, out, plan.storage[step].size, step.dtype)
    at.builder.ret_void()
    return at
