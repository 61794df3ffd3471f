"""Addressing on a GPU: who a thread is, and where its memory is.

A kernel's parameters are pointers to what the host has: arrays, the arena, constants,
and two words about failures. What a thread keeps for itself is local memory, what its
team keeps is shared memory, or a part of the arena.

Elements that a thread has next to each other are loaded at once where they begin at a
multiple of their size: `aligned` says of which places that is known.

Failures: the first word is the number of the first step that has failed, or -1; the
second one that of this step. Kernels that write over inputs look at the first and leave
everything as it was, so a step that fails changes nothing, nor do those behind it.

Start reading at `SimtAddressing`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tapejit.base.types import DType
from tapejit.loops.index import Axis
from tapejit.loops.kernels import Kernel, LoopPlan, RoomKey, Storage
from tapejit.loops.steps import Buffer, Step
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import StoreInstruction, Value
from tapejit.targets.cpu.llvm.values import Alloca
from tapejit.targets.cpu.nest.addressing import (
    I8,
    I32,
    I64,
    POINTER,
    Addressing,
    Place,
    PointerTable,
    number,
    steps,
)
from tapejit.targets.cpu.nest.reductions import accumulator_of
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cuda.kernel import ALIGNED, GPUFunction, SimtKernel
from tapejit.targets.cuda.target import CUDA

SHUFFLE: Final = "llvm.nvvm.shfl.sync.bfly.i32"
REGISTER: Final = "llvm.nvvm.read.ptx.sreg."
BLOCK_BARRIER: Final = "llvm.nvvm.barrier.cta.sync.aligned.all"
WARP_BARRIER: Final = "llvm.nvvm.bar.warp.sync"


Test = Callable[[Value], Value]


class DeviceTable(PointerTable):
    """The buffers that the host has: inputs, outputs, the arena, words, constants."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, ())

    @property
    def words(self) -> int:
        """The buffer of the words about failures."""
        return self.inputs + self.outputs + 1

    def place_of(self, memory: Buffer | Storage, offset: int = 0) -> Place:
        if isinstance(memory, Buffer) and memory.kind == "constant":
            nbytes = offset * memory.dtype.itemsize
            return Place(self.words + 1 + memory.number, nbytes)
        return super().place_of(memory, offset)


class SimtAddressing(Addressing):
    """Emits for one thread: `thread` is its number in the block, `rank` in its team."""

    function: GPUFunction
    kernel: SimtKernel

    def __init__(
        self,
        function: GPUFunction,
        plan: LoopPlan,
        kernel: Kernel,
        layout: DeviceTable,
    ) -> None:
        assert isinstance(kernel, SimtKernel)
        self.alone = not any(step.output in plan.updates for step in kernel.steps())
        self.aligned = False  # whether places are multiples of the width
        self.shares_places = True  # until the threads have shared some
        self.blocks = kernel.blocks
        self.words = layout.words
        super().__init__(function, plan, kernel, layout)
        self.first = {}  # pointers are to where arrays begin: these are aligned
        with self.at_entry():
            self.thread = self.register("tid.x")
            self.block = self.register("ctaid.x")
            self.task, self.rank, self.team = self.block, self.thread, number(0)
            if kernel.teams > 1:
                size = number(kernel.team)
                self.team = self.builder.udiv(self.thread, size)
                self.rank = self.builder.urem(self.thread, size)
                first = self.builder.mul(self.block, number(kernel.teams))
                self.task = self.builder.add(first, self.team)
        if not self.alone:
            self.leave_after_failure()

    def arguments(self) -> tuple[Value, Value]:
        return ir.Literal(POINTER, None), number(0)

    # Threads

    def register(self, name: str) -> Value:
        """A number of the hardware."""
        found = self.builder.intrinsic(f"{REGISTER}{name}", I32, [])
        return self.builder.zext(found, I64)

    def barrier(self) -> None:
        """Wait until all threads of the team are here and see what others wrote."""
        if self.kernel.team < self.kernel.threads:
            every = [ir.Literal(I32, -1)]
            self.builder.intrinsic(WARP_BARRIER, ir.VoidType(), every)
        else:
            self.block_barrier()

    def block_barrier(self) -> None:
        """The same for all threads of the block."""
        which = [ir.Literal(I32, 0)]
        self.builder.intrinsic(BLOCK_BARRIER, ir.VoidType(), which)

    def is_first(self) -> Value:
        """Whether this is the first thread of its team."""
        return self.builder.icmp_signed("==", self.rank, number(0))

    def strided(
        self, low: Value, high: Value, stride: int, body: Callable[[Value], None]
    ) -> None:
        """for (i = low; i < high; i += stride), perhaps not once.

        With a stride of 0 there is one iteration at most.
        """
        b, before = self.builder, self.builder.block
        if not stride:
            with b.if_then(b.icmp_signed("<", low, high)):
                body(low)
            return
        head, inside, after = map(b.append_basic_block, ("loop", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        at = b.phi(I64)
        at.add_incoming(low, before)
        b.cbranch(b.icmp_signed("<", at, high), inside, after)
        b.position_at_end(inside)
        body(at)
        at.add_incoming(b.add(at, number(stride)), b.block)
        b.branch(head)
        b.position_at_end(after)

    # Shares of whole arrays

    def share(self, count: int, body: Callable[[Value], None]) -> None:
        """Have all threads of all blocks share so many things: `body(number)`."""
        threads = self.function.threads
        self.shares_places = False
        self.blocks = min(CUDA.numerics.most_blocks, math.ceil(count / threads))
        first = self.builder.mul(self.block, number(threads))
        first = self.builder.add(first, self.thread)
        everyone = self.blocks * threads
        stride = 0 if count <= everyone else everyone
        self.strided(first, number(count), stride, body)
        self.shares_places = True

    def each_place(
        self,
        sizes: Sequence[int],
        strides: Sequence[Sequence[int]],
        body: Callable[[list[Value]], None],
        start: list[Value],
    ) -> None:
        if not self.shares_places:
            super().each_place(sizes, strides, body, start)
            return

        def single(index: Value) -> None:
            along = self.unravelled(index, sizes)
            body(
                [self.at_position(*x, along) for x in zip(start, strides, strict=True)]
            )

        self.share(math.prod(sizes), single)

    def at_position(
        self, place: Value, strides: Sequence[int], along: Sequence[Value]
    ) -> Value:
        """A place, so many strides further along each axis."""
        for index, stride in zip(along, strides, strict=True):
            place = self.moved(place, index, stride)
        return place

    def unravelled(self, index: Value, sizes: Sequence[int]) -> list[Value]:
        """The position along each axis of an element, counted row by row."""
        found = []
        for size in reversed(sizes[1:]):
            index, rest = self.divided(index, size, math.prod(sizes))
            found.append(rest)
        return [index, *reversed(found)] if sizes else []

    def divided(self, index: Value, size: int, count: int) -> tuple[Value, Value]:
        """Quotient and remainder of an index that is below `count`.

        A division of 64 bits by a constant takes three times as many instructions.
        """
        b = self.builder
        if count > 1 << 32:
            return b.udiv(index, number(size)), b.urem(index, number(size))
        short, by = b.trunc(index, I32), ir.Literal(I32, size)
        return b.zext(b.udiv(short, by), I64), b.zext(b.urem(short, by), I64)

    def repeat_while(
        self, kind: ir.Type, start: Value, goes_on: Test, body: Callable[[Value], Value]
    ) -> None:
        """for (x = start; goes_on(x); x = body(x)), perhaps not once."""
        b, before = self.builder, self.builder.block
        head, inside, after = map(b.append_basic_block, ("loop", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        at = b.phi(kind)
        at.add_incoming(start, before)
        b.cbranch(goes_on(at), inside, after)
        b.position_at_end(inside)
        following = body(at)
        at.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(after)

    def from_lane(self, value: Value, distance: int, dtype: DType) -> Value:
        """The value of the lane whose number differs in one bit, 32 bits at a time."""
        b = self.builder

        def one(word: Value) -> Value:
            numbers = [ir.Literal(I32, x) for x in (-1, distance, 31)]
            every, far, clamp = numbers
            return b.intrinsic(SHUFFLE, I32, [every, word, far, clamp])

        kind = lanes.register_type(dtype, 1).element
        plain = b.extract_element(value, ir.Literal(I32, 0))
        if dtype.kind == "b":
            found = b.trunc(one(b.zext(plain, I32)), kind)
        elif dtype.itemsize == 8:
            pair = ir.VectorType(I32, 2)
            halves = b.bitcast(plain, pair)
            got: Value = ir.Literal(pair, ir.Undefined)
            for at in (ir.Literal(I32, 0), ir.Literal(I32, 1)):
                word = one(b.extract_element(halves, at))
                got = b.insert_element(got, word, at)
            found = b.bitcast(got, kind)
        elif dtype.kind in "iu":
            found = b.trunc(one(b.zext(plain, I32)), kind)
        else:
            found = b.bitcast(one(b.bitcast(plain, I32)), kind)
        return self.spread(found, 1)

    # Failures

    def fail(self) -> None:
        words = self.at_place(Place(self.words))
        second = self.builder.gep(words, [number(1)], source_etype=I64)
        step = self.builder.load(second, align=8, typ=I64)
        self.builder.atomic_rmw("umin", words, step, "monotonic")

    def leave_after_failure(self) -> None:
        """Do nothing if a step has failed: variables stay as they are."""
        words = self.at_place(Place(self.words))
        first = self.builder.load(words, align=8, typ=I64)
        with self.builder.if_then(self.builder.icmp_signed("!=", first, number(-1))):
            self.builder.ret_void()

    # Memory

    def at_place(self, place: Place) -> Value:
        found = self.pointers.get(place)
        if found is None:
            # A result that may be written over an input is where that is.
            is_alone = self.alone and place.entry != self.words
            found = self.pointers[place] = self.function.parameter(is_alone)
            self.places[place] = len(self.places)
        return found

    def shared_array(self, size: int, dtype: DType) -> Value:
        """Memory of the block."""
        element = lanes.memory_type(dtype)
        kind = ir.ArrayType(element, size)
        module = self.function.module
        name = f"{self.function.name}_s{len(module.globals)}"
        made = ir.GlobalVariable(module, kind, name)
        made.linkage = "internal addrspace(3)"
        made.align, made.initializer = ALIGNED, ir.Literal(kind, ir.Undefined)
        self.shared_bytes += -(-size * dtype.itemsize // ALIGNED) * ALIGNED
        there = f"addrspacecast (ptr addrspace(3) {made.reference} to ptr)"
        return Value(POINTER, there)

    shared_bytes = 0

    def stack_memory(self, size: int, dtype: DType) -> Value:
        made = super().stack_memory(size, dtype)
        assert isinstance(made, Alloca)
        made.align = ALIGNED
        return made

    def private_memory(self, key: RoomKey, size: int, dtype: DType) -> Value:
        if key in self.private:
            return self.private[key]
        if key in self.kernel.rooms:
            return self.part_of_room(key)
        if not self.is_along(key):
            made = self.stack_memory(size, dtype)
        else:
            apart = -(-size * dtype.itemsize // ALIGNED) * ALIGNED // dtype.itemsize
            made = self.shared_array(apart * self.kernel.teams, dtype)
            if self.kernel.teams > 1:
                with self.at_entry():
                    at = [self.builder.mul(self.team, number(apart))]
                    element = lanes.memory_type(dtype)
                    made = self.builder.gep(made, at, source_etype=element)
        self.private[key] = made
        return made

    def part_of_room(self, key: RoomKey) -> Value:
        found = self.private.get(key)
        if found is None:
            kernel, which, parts = self.kernel, self.task, self.kernel.tasks
            with self.at_entry():
                if not self.is_along(key):
                    first = self.builder.mul(which, number(kernel.team))
                    which = self.builder.add(first, self.rank)
                    parts *= kernel.team
                nbytes = kernel.rooms[key].size // parts // ALIGNED * ALIGNED
                distance = self.builder.mul(which, number(nbytes))
                room = self.room(key)
                found = self.builder.gep(room, [distance], source_etype=I8)
            self.private[key] = found
        return found

    def is_along(self, key: RoomKey) -> bool:
        """Whether private memory lies along the threads of a team."""
        if isinstance(key, Storage):
            return self.kernel.vector in key.strides
        assert isinstance(key, tuple)
        return (
            self.kernel.vector in accumulator_of(self.plan, key[0], in_order=False).axes
        )

    def streams(self, memory: Storage, width: int) -> bool:
        return False

    # Loads and stores

    @contextlib.contextmanager
    def aligned_if(self, is_aligned: bool) -> Iterator[None]:
        """What is loaded or stored inside is at multiples of the width."""
        before, self.aligned = self.aligned, is_aligned
        yield
        self.aligned = before

    def fits(self, strides: Mapping[Axis, int]) -> bool:
        """Whether places with these strides are multiples of the width."""
        others = (x for axis, x in strides.items() if axis is not self.kernel.vector)
        return not any(x % self.width for x in others)

    def alignment(self, dtype: DType, width: int) -> int:
        """Of so many elements, in bytes."""
        return min(ALIGNED, dtype.itemsize * (width if self.aligned else 1))

    def load_at(self, pointer: Value, at: Value, dtype: DType, width: int) -> Value:
        element = lanes.memory_type(dtype)
        where = self.builder.gep(pointer, [at], source_etype=element)
        kind, align = ir.VectorType(element, width), self.alignment(dtype, width)
        value = self.builder.load(where, align=align, typ=kind)
        return lanes.from_memory(self.builder, value, dtype)

    def store_at(
        self, pointer: Value, at: Value, value: Value, dtype: DType
    ) -> StoreInstruction:
        element = lanes.memory_type(dtype)
        where = self.builder.gep(pointer, [at], source_etype=element)
        plain = lanes.to_memory(self.builder, value, dtype)
        align = self.alignment(dtype, value.type.count)
        return self.builder.store(plain, where, align=align)

    def read(self, memory: Storage) -> Value:
        with self.aligned_if(memory.lanes > 0 or self.fits(memory.strides)):
            return super().read(memory)

    def write(self, memory: Storage, value: Value) -> None:
        with self.aligned_if(memory.lanes > 0 or self.fits(memory.strides)):
            super().write(memory, value)

    def gather_where(
        self, step: Step, pointer: Value, place: Value, times: int, holds: Value | None
    ) -> Value:
        if holds is None or not self.is_written_here(step):
            return super().gather_where(step, pointer, place, times, holds)
        if times > 1:
            place = self.builder.mul(place, self.whole(times, self.width))
            place = self.builder.add(place, steps(self.width))
        return self.only_where(step, pointer, place, self.widened(holds, self.width))

    def guarded(
        self, step: Step, pointer: Value, base: Value, width: int, holds: Value | None
    ) -> Value:
        is_written = self.is_written_here(step)
        if holds is None or (width == 1 and not is_written):
            return super().guarded(step, pointer, base, width, holds)
        place = self.builder.add(self.spread(base, width), steps(width))
        holds = self.widened(holds, width)
        if is_written:
            return self.only_where(step, pointer, place, holds)
        place = self.builder.select(holds, place, self.whole(0, width))
        found = self.gather(pointer, place, step.dtype, width)
        fill = lanes.constant(step.dtype, 0, width)
        return self.builder.select(holds, found, fill)

    def is_written_here(self, step: Step) -> bool:
        """Whether a Step loads from memory that other threads of the kernel write."""
        source = step.source
        if not isinstance(source, Step):
            return not self.alone
        return self.plan.kernel_of.get(source) == self.kernel.number

    def only_where(
        self, step: Step, pointer: Value, place: Value, holds: Value
    ) -> Value:
        """Elements from places where a condition holds; others are not looked at.

        Nothing else is always there to be looked at: another thread may be writing it.
        """
        b, width = self.builder, place.type.count
        zero = lanes.constant(step.dtype, 0, 1)
        found: Value = lanes.constant(step.dtype, 0, width)
        for lane in range(width):
            before = b.block
            with b.if_then(self.lane_number(holds, lane)):
                here = self.lane_number(place, lane)
                value, inside = self.load_at(pointer, here, step.dtype, 1), b.block
            either = b.phi(value.type)
            either.add_incoming(zero, before)
            either.add_incoming(value, inside)
            at = ir.Literal(I32, lane)
            found = b.insert_element(found, self.lane_number(either, 0), at)
        return found
