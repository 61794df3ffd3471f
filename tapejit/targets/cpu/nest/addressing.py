"""Addressing: positions, memory and widths of vectors at a place in a kernel.

An `Addressing` knows where the function has got to (`builder`), the number of the
current iteration of each loop around it (`indices`), and how to reach memory: the
entries of the table, private memory of the call, the arena. Values are vectors, of the
kernel's width or of one lane; `together` makes them equally wide.

Start reading at `Addressing`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.base.types import DType
from tapejit.loops.index import Affine, Axis
from tapejit.loops.kernels import TASK_MEMORY, Kernel, LoopPlan, RoomKey, Storage
from tapejit.loops.steps import Buffer, Load, Step, element_of
from tapejit.targets.cpu.call.signal_poll import POLL_TYPE, TAKEN
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import (
    IRBuilder,
    LLVMFunction,
    LLVMModule,
    StoreInstruction,
    Type,
    Value,
)
from tapejit.targets.cpu.matmul.tiling import host_registers
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cpu.simd.casts import cast
from tapejit.targets.cpu.simd.transpose import shuffled
from tapejit.targets.cpu.simd.vector import Splat
from tapejit.targets.cpu.target import CPU

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
POINTER = ir.PointerType()
INT64: Final = np.dtype(np.int64)


def number(value: int) -> Value:
    """A position."""
    return ir.Literal(I64, value)


class PointerTable:
    """Which entry of the table points to what."""

    def __init__(
        self, inputs: int, outputs: int, constants: Sequence[Value], polls: bool = False
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.constants = constants  # LLVM globals
        self.polls = polls  # whether the first of the imports is `poll`

    @property
    def arena(self) -> int:
        """The entry of the arena; the imports follow."""
        return self.inputs + self.outputs

    @property
    def imports(self) -> int:
        """The entry of the addresses of foreign functions."""
        return self.inputs + self.outputs + 1

    def place_of(self, memory: Buffer | Storage, offset: int = 0) -> Place:
        """Where memory is that kernels have in common, or an element of it."""
        nbytes = offset * memory.dtype.itemsize
        if isinstance(memory, Storage):
            if memory.buffer is None:
                return Place(self.arena, memory.offset + nbytes)
            memory = memory.buffer
        if memory.kind == "constant":
            assert not offset, "a constant is known as a whole"
            return Place(-1, memory.number)
        first = 0 if memory.kind == "input" else self.inputs
        return Place(first + memory.number, nbytes)


class Place(NamedTuple):
    """Where a kernel finds memory: an entry of the table and an offset in bytes.

    For a constant, the entry is negative and the offset its number.
    """

    entry: int
    offset: int = 0


def first_elements(kernel: Kernel) -> dict[Buffer, int]:
    """The first element that a kernel reads of each argument, as its loops begin.

    Arguments of which it loads elements from outside, from where the code finds out, or
    that it has as operands of a whole are left out: of these, the first is number 0.
    """
    found: dict[Buffer, int] = {}
    others: set[object] = set()
    if kernel.array_op is not None:
        return {}
    for step in kernel.steps():
        others.update(view.base for view in step.views)
        for x in (step, *step.needed()):
            if not isinstance(x.what, Load):
                continue
            source = x.what.source
            if not isinstance(source, Buffer) or source.kind != "input":
                continue
            sizes = (math.prod(source.shape),) if x.what.flat else source.shape
            place = element_of(x.what, source)
            if place is None or not all(
                0 <= position.constant < size
                for position, size in zip(x.what.index, sizes, strict=True)
            ):
                others.add(source)
            else:
                first = min(place.constant, found.get(source, place.constant))
                found[source] = first
    return {source: first for source, first in found.items() if source not in others}


def strays(place: Affine, size: int, dtype: DType) -> bool:
    """Whether a place gets far outside of an array of so many elements."""
    low, high = place.span()
    return max(-low, high - size) * dtype.itemsize > CPU.tuning.masked_stray_bytes


class Preparation(NamedTuple):
    """A function to be called before a kernel, with its table, once for each task."""

    function: LLVMFunction
    places: tuple[Place, ...]
    tasks: int


def taking_function(module: LLVMModule, parts: int) -> LLVMFunction:
    """A function that finds a bit which is not set, sets it, and gives its number.

    It waits if there is none: whoever has set one is a task that runs.
    """
    name = f"{module.name}_take_{parts}"
    function = module.declared(name, I64, [POINTER])
    if function.blocks:
        return function
    function.linkage = "internal"
    entry, look, take, done = (
        function.append_basic_block(x) for x in ("entry", "look", "take", "done")
    )
    ir.IRBuilder(entry).branch(look)
    b, (word,) = ir.IRBuilder(look), function.args
    before = b.load_atomic(word, "monotonic", 8, typ=I64)
    place = b.cttz(b.not_(before), ir.Literal(ir.IntType(1), 0))
    b.cbranch(b.icmp_unsigned("<", place, number(parts)), take, look)
    b.position_at_end(take)
    bit = b.shl(number(1), place)
    found = b.atomic_rmw("or", word, bit, "acquire")
    is_free = b.icmp_unsigned("==", b.and_(found, bit), number(0))
    b.cbranch(is_free, done, look)
    b.position_at_end(done)
    b.ret(place)
    return function


class Addressing:
    """Emits at one place; `builder` is where."""

    def __init__(
        self,
        function: LLVMFunction,
        plan: LoopPlan,
        kernel: Kernel,
        layout: PointerTable,
        places: dict[Place, int] | None = None,
    ) -> None:
        self.plan = plan
        self.kernel = kernel
        self.layout = layout
        self.function = function
        self.table, self.task = self.arguments()
        self.entry = function.append_basic_block("entry")
        self.builder: IRBuilder = ir.IRBuilder(self.entry)
        start = function.append_basic_block("start")
        self.builder.branch(start)
        self.builder.position_at_end(start)
        self.indices: dict[Axis, Value] = {}
        self.origins: dict[Axis, Value] = {}  # where the current tile begins
        self.valid: Any = None  # lanes that are here for the first time
        self.skips: dict[Axis, Value | None] = {}  # iterations of a tile done before
        self.counts: dict[Axis, Value] = {}  # those of a tile of rows for products
        self.is_repeating = False  # whether lanes that are not valid are of those
        self.vector, self.width = kernel.vector, kernel.width
        self.private: dict[RoomKey, Value] = {}
        self.part: Value | None = None  # the number of what it has; None: the task's
        self.has_streamed = False  # whether some stores go past the caches
        # Entries of the kernel's own table; its functions have the same one.
        self.places: dict[Place, int] = {} if places is None else places
        self.first = first_elements(kernel)
        self.pointers: dict[Place, Value] = {}
        self.preparations: list[Preparation] = []

    def arguments(self) -> tuple[Value, Value]:
        """The kernel's table, and the number of the task."""
        table, task = self.function.args[:2]
        return table, task

    @property
    def own(self) -> list[LLVMFunction]:
        """The functions of the kernel that no other kernel uses."""
        return [self.function]

    @contextlib.contextmanager
    def at_entry(self) -> Iterator[None]:
        """Emit where everything is still ahead."""
        here = self.builder
        self.builder = ir.IRBuilder(self.entry)
        try:
            yield
        finally:
            self.builder = here

    def for_range(
        self, low: Value, high: Value, stride: int, body: Callable[[Value], None]
    ) -> None:
        """for (i = low; i < high; i += stride); runs at least once."""
        with self.builder.loop(low, high, stride) as index:
            body(index)

    def long_range(
        self,
        low: Value,
        high: Value,
        stride: int,
        body: Callable[[Value], None],
        work: float,
        size: int,
    ) -> None:
        """The same, asking for signals now and then if it takes long.

        `work` is that of an iteration, `size` how many there are at most.
        """
        if not self.layout.polls or size * work <= CPU.tuning.poll_instructions:
            self.for_range(low, high, stride, body)
            return
        strip = stride * max(1, int(CPU.tuning.poll_instructions / (work * stride)))

        def part(first: Value) -> None:
            self.poll()
            end = self.builder.add(first, number(strip))
            end = self.smaller(end, high)
            self.for_range(first, end, stride, body)

        self.for_range(low, high, strip, part)

    # Whether threads share the places that a function goes through.
    shares_places: bool = False

    def each_place(
        self,
        sizes: Sequence[int],
        strides: Sequence[Sequence[int]],
        body: Callable[[list[Value]], None],
        start: list[Value],
    ) -> None:
        """Loops over all positions; `body` gets the place of each in every array."""
        self.each_inside(sizes, strides, body, start, self.kernel.work)

    def each_inside(
        self,
        sizes: Sequence[int],
        strides: Sequence[Sequence[int]],
        body: Callable[[list[Value]], None],
        start: list[Value],
        work: float,
    ) -> None:
        """These loops; `work` is that of all of them together."""
        if not sizes:
            body(start)
            return

        def inside(index: Value) -> None:
            here = [
                self.moved(place, index, own[0])
                for place, own in zip(start, strides, strict=True)
            ]
            rest = [own[1:] for own in strides]
            self.each_inside(sizes[1:], rest, body, here, share)

        share = work / sizes[0]
        self.long_range(number(0), number(sizes[0]), 1, inside, share, sizes[0])

    def moved(self, place: Value, index: Value, stride: int) -> Value:
        """A place, `index` strides further."""
        if stride == 0:
            return place
        step = index if stride == 1 else self.builder.mul(index, number(stride))
        return self.builder.add(place, step)

    def poll(self) -> None:
        """Leave the kernel if a signal asks for it."""
        address = self.builder.load(self.imports(), typ=I64)
        poll = self.builder.inttoptr(address, POLL_TYPE.as_pointer())
        raised = self.builder.call(poll, [self.arena()])
        with self.builder.if_then(self.builder.icmp_signed("!=", raised, number(0))):
            self.leave()

    def take_part(self) -> None:
        """Have one of a few parts of memory for as long as the task runs.

        There are more tasks than processors, and those that run take turns with it.
        """
        take = taking_function(self.function.module, self.kernel.parts)
        taken = self.taken_parts()
        with self.at_entry():
            self.part = self.builder.call(take, [taken])

    def taken_parts(self) -> Value:
        """The word that says which parts are taken."""
        arena = self.arena()
        with self.at_entry():
            return self.builder.gep(arena, [number(TAKEN)], source_etype=I64)

    def leave(self) -> None:
        """The end of a task; what it has taken is free again."""
        if self.part is not None:
            bit = self.builder.shl(number(1), self.part)
            rest = self.builder.not_(bit)
            self.builder.atomic_rmw("and", self.taken_parts(), rest, "release")
        self.builder.ret_void()

    # Positions

    def scalar(self, position: Affine) -> Value:
        """A position, that of the first lane if it varies with the vector axis."""
        total: Value | None = None
        for axis, factor in position.terms:
            index = self.indices[axis.root]
            term = index if factor == 1 else self.builder.mul(index, number(factor))
            total = term if total is None else self.builder.add(total, term)
        if total is None:
            return number(position.constant)
        if position.constant:
            total = self.builder.add(total, number(position.constant))
        return total

    def known(self, position: Affine) -> Affine:
        """A position in which indices of loops that are written out are numbers."""
        found = Affine((), position.constant)
        for axis, factor in position.terms:
            index = self.indices.get(axis.root)
            if axis.root is not self.vector and isinstance(index, ir.Literal):
                found += factor * index.constant
            else:
                found += Affine(((axis, factor),))
        return found

    def affine(self, position: Affine, kind: DType = INT64) -> Value:
        """A position in every lane, as an integer that can hold it."""
        vector, width = self.vector, self.width
        along = sum(f for axis, f in position.terms if axis.root is vector)
        first, element = self.scalar(position), ir.IntType(8 * kind.itemsize)
        if element != I64:
            first = self.builder.trunc(first, element)
        if along == 0:
            return self.spread(first, 1)
        here = self.spread(first, width)
        return self.builder.add(here, steps(width, along, element))

    def offset(self, strides: Mapping[Axis, int]) -> Value:
        """The place of this iteration in memory with these strides."""
        return self.scalar(Affine(tuple(strides.items())))

    def lanes_from(self, skip: Value, width: int) -> Value:
        """The lanes from a number on."""
        first = self.builder.trunc(skip, I32)
        return self.builder.icmp_signed(
            ">=", lane_numbers(width), self.spread(first, width)
        )

    # Memory

    def arena(self) -> Value:
        return self.at_place(Place(self.layout.arena))

    def imports(self) -> Value:
        return self.at_place(Place(self.layout.imports))

    def fail(self) -> None:
        """Leave a mark: NumPy will do all of this again, and raise."""
        self.builder.store(number(1), self.arena())

    def fail_unless(self, is_good: Value) -> None:
        """Leave the mark if something is not so in one of the lanes."""
        bits = self.builder.bitcast(is_good, ir.IntType(is_good.type.count))
        is_bad = self.builder.icmp_unsigned("!=", bits, ir.Literal(bits.type, -1))
        with self.builder.if_then(is_bad):
            self.fail()

    def at_place(self, place: Place) -> Value:
        """A pointer to memory; the kernel's own table has it.

        What a kernel does not say itself, several can have in common.
        """
        found = self.pointers.get(place)
        if found is None:
            at = number(self.places.setdefault(place, len(self.places)))
            with self.at_entry():
                where = self.builder.gep(self.table, [at], source_etype=POINTER)
                found = self.pointers[place] = self.builder.load(where, typ=POINTER)
        return found

    def buffer(self, buffer: Buffer) -> Value:
        """The first element of a Buffer."""
        return self.at_place(self.layout.place_of(buffer))

    def start_of(self, base: Buffer | Step) -> Value:
        """The first element of what an operand lies in."""
        if isinstance(base, Buffer):
            return self.buffer(base)
        return self.pointer_to(self.plan.storage[base])

    def pointer_to(self, memory: Storage) -> Value:
        """The first element of a Step's memory."""
        if memory.buffer is not None or memory.kernel is None:
            return self.at_place(self.layout.place_of(memory))
        if memory.is_placed:
            offset = number(memory.offset)
            of_task = self.part_of_room(TASK_MEMORY)
            with self.at_entry():
                if memory not in self.private:
                    where = self.builder.gep(of_task, [offset], source_etype=I8)
                    self.private[memory] = where
            return self.private[memory]
        size = memory.size * max(memory.lanes, 1)
        return self.private_memory(memory, size, memory.dtype)

    def private_memory(self, key: RoomKey, size: int, dtype: DType) -> Value:
        """Memory of this task: its part of a room, or on the stack."""
        if key in self.kernel.rooms:
            return self.part_of_room(key)
        found = self.private.get(key)
        if found is None:
            found = self.private[key] = self.stack_memory(size, dtype)
        return found

    def stack_memory(self, size: int, dtype: DType) -> Value:
        """Memory on the stack of the thread."""
        with self.at_entry():
            found = self.builder.alloca(ir.ArrayType(lanes.memory_type(dtype), size))
            found.align = 64
            found.type = POINTER  # whose elements are told at each use
        return found

    def room(self, key: RoomKey) -> Value:
        """Memory of the kernel in the arena, which all tasks have in common."""
        return self.at_place(self.layout.place_of(self.kernel.rooms[key]))

    def part_of_room(self, key: RoomKey) -> Value:
        """This task's part of memory in the arena."""
        found = self.private.get(key)
        if found is None:
            first, parts = self.room(key), self.kernel.parts
            nbytes = number(self.kernel.rooms[key].size // parts)
            with self.at_entry():
                part = self.task if self.part is None else self.part
                distance = self.builder.mul(part, nbytes)
                found = self.builder.gep(first, [distance], source_etype=I8)
                if self.builder.module.marks_memory:  # a task before has written it
                    self.builder.mark(found, nbytes)
            self.private[key] = found
        return found

    def load_at(self, pointer: Value, at: Value, dtype: DType, width: int) -> Value:
        """Neighbouring elements from memory."""
        element = lanes.memory_type(dtype)
        where = self.builder.gep(pointer, [at], source_etype=element)
        kind = ir.VectorType(element, width)
        value = self.builder.load(where, align=dtype.itemsize, typ=kind)
        return lanes.from_memory(self.builder, value, dtype)

    def store_at(
        self, pointer: Value, at: Value, value: Value, dtype: DType
    ) -> StoreInstruction:
        """Neighbouring elements to memory; the instruction that does it."""
        element = lanes.memory_type(dtype)
        where = self.builder.gep(pointer, [at], source_etype=element)
        plain = lanes.to_memory(self.builder, value, dtype)
        return self.builder.store(plain, where, align=dtype.itemsize)

    def place_in(self, memory: Storage) -> Value:
        """The element of this iteration in a Step's memory."""
        at = self.offset(memory.strides)
        at = self.within_tile(memory, at)
        return self.builder.mul(at, number(memory.lanes)) if memory.lanes else at

    def within_tile(self, memory: Storage, at: Value) -> Value:
        """A place in memory that holds one tile only."""
        for axis in memory.tiled:
            stride = number(memory.strides[axis])
            start = self.builder.mul(self.origins[axis], stride)
            at = self.builder.sub(at, start)
        return at

    def read(self, memory: Storage) -> Value:
        """The value of this iteration from memory."""
        at, pointer = self.place_in(memory), self.pointer_to(memory)
        if memory.lanes:
            return self.load_at(pointer, at, memory.dtype, memory.lanes)
        vector, width = self.vector, self.width
        stride = memory.strides.get(vector, 0) if vector is not None else 0
        if stride in (0, 1):
            return self.load_at(pointer, at, memory.dtype, width if stride else 1)
        place = self.builder.add(self.spread(at, width), steps(width, stride))
        return self.gather(pointer, place, memory.dtype, width)

    def write(self, memory: Storage, value: Value) -> None:
        """The value of this iteration to memory."""
        at, pointer = self.place_in(memory), self.pointer_to(memory)
        vector, width = self.vector, self.width
        if memory.lanes:
            whole = self.widened(value, memory.lanes)
            self.store_at(pointer, at, whole, memory.dtype)
            return
        stride = memory.strides.get(vector, 0) if vector is not None else 0
        if stride == 0:
            self.store_at(pointer, at, self.lane(value, 0), memory.dtype)
        elif stride == 1:
            value = self.widened(value, width)
            made = self.store_at(pointer, at, value, memory.dtype)
            if self.streams(memory, width):
                self.stream(made)
        else:
            value = self.widened(value, width)
            for lane in range(width):
                here = self.builder.add(at, number(lane * stride))
                self.store_at(pointer, here, self.lane(value, lane), memory.dtype)

    def streams(self, memory: Storage, width: int) -> bool:
        """Whether memory is so large that what is written to it is not kept in caches.

        Every vector has to begin at a multiple of `streamed_store_bytes`, also the last
        one, which is done together with some elements before it.
        """
        itemsize, vector = memory.dtype.itemsize, self.vector
        is_large = memory.size * itemsize >= CPU.tuning.streamed_output_bytes
        if memory.buffer is None or not is_large or not vector:
            return False
        others = [x for axis, x in memory.strides.items() if axis is not vector]
        places = [*others, width, vector.extent - width]
        return all(x * itemsize % CPU.tuning.streamed_store_bytes == 0 for x in places)

    def stream(self, store: StoreInstruction) -> None:
        """Let a store go past the caches."""
        store.align = CPU.tuning.streamed_store_bytes
        one = self.function.module.add_metadata([ir.Literal(I32, 1)])
        store.set_metadata("nontemporal", one)
        self.has_streamed = True

    # Widths

    def whole(self, value: int, width: int) -> Value:
        return lanes.constant(INT64, value, width)

    def spread(self, value: Value, width: int) -> Value:
        """A plain number in every lane."""
        kind = ir.VectorType(value.type, width)
        one = self.builder.insert_element(
            ir.Literal(kind, ir.Undefined), value, ir.Literal(I32, 0)
        )
        return one if width == 1 else self.repeated(one, width)

    def repeated(self, value: Value, width: int) -> Value:
        if isinstance(value, Splat):
            return Splat(ir.VectorType(value.type.element, width), value.constant)
        zeros = ir.Literal(ir.VectorType(I32, width), None)
        nothing = ir.Literal(value.type, ir.Undefined)
        return self.builder.shuffle_vector(value, nothing, zeros)

    def widened(self, value: Value, width: int) -> Value:
        """A value with as many lanes, all alike if it had one."""
        if value.type.count == width:
            return value
        return self.repeated(value, width)

    def together(self, values: Sequence[Value], width: int = 1) -> list[Value]:
        """Values with equally many lanes."""
        most = max([width, *[x.type.count for x in values]])
        return [self.widened(x, most) for x in values]

    def lane(self, value: Value, at: int) -> Value:
        """One lane as a value of one lane."""
        if value.type.count == 1:
            return value
        one = self.builder.extract_element(value, ir.Literal(I32, at))
        return self.spread(one, 1)

    def lane_number(self, value: Value, at: int) -> Value:
        return self.builder.extract_element(value, ir.Literal(I32, at))

    def converted(self, value: Value, before: DType, after: DType) -> Value:
        """Lanes of another dtype."""
        return cast(self.builder, value, before, after, value.type.count)

    def gather(self, pointer: Value, place: Value, dtype: DType, width: int) -> Value:
        """Elements from anywhere, one by one."""
        element = lanes.memory_type(dtype)
        found: Value = ir.Literal(ir.VectorType(element, width), ir.Undefined)
        for lane in range(width):
            at = self.builder.extract_element(place, ir.Literal(I32, lane))
            where = self.builder.gep(pointer, [at], source_etype=element)
            value = self.builder.load(where, align=dtype.itemsize, typ=element)
            found = self.builder.insert_element(found, value, ir.Literal(I32, lane))
        return lanes.from_memory(self.builder, found, dtype)

    def gather_where(
        self, step: Step, pointer: Value, place: Value, times: int, holds: Value | None
    ) -> Value:
        """What a Step loads from these places; 0 where a condition does not hold.

        `times` is the size of an element in lanes.
        """
        width = self.width
        if holds is not None:
            holds = self.widened(holds, width)
            place = self.builder.select(holds, place, self.whole(0, width))
        if times > 1:
            place = self.builder.mul(place, self.whole(times, width))
            place = self.builder.add(place, steps(width))
        found = self.gather(pointer, place, step.dtype, width)
        if holds is not None:
            fill = lanes.constant(step.dtype, 0, width)
            found = self.builder.select(holds, found, fill)
        return found

    def guarded(
        self, step: Step, pointer: Value, base: Value, width: int, holds: Value | None
    ) -> Value:
        """Neighbouring elements; 0 where a condition does not hold."""
        if holds is None:
            return self.load_at(pointer, base, step.dtype, width)
        if width == 1 and holds.type.count == 1:
            is_good = self.builder.extract_element(holds, ir.Literal(I32, 0))
            safe = self.builder.select(is_good, base, number(0))
            found = self.load_at(pointer, safe, step.dtype, 1)
            fill = lanes.constant(step.dtype, 0, 1)
            return self.builder.select(holds, found, fill)
        holds = self.widened(holds, width)
        size = min(width, host_registers().nbytes // step.dtype.itemsize)
        parts = [
            self.masked(step, pointer, base, at, size, holds)
            for at in range(0, width, size)
        ]
        while len(parts) > 1:
            parts = [
                self.joined(x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)
            ]
        return lanes.from_memory(self.builder, parts[0], step.dtype)

    def brought_near(self, base: Value, holds: Value) -> Value:
        """A place for a masked load: where the array begins if nothing is loaded.

        A processor takes some 200 cycles to find that a masked load of memory that is
        not mapped loads nothing.
        """
        bits = ir.IntType(holds.type.count)
        found = self.builder.bitcast(holds, bits)
        is_any = self.builder.icmp_unsigned("!=", found, ir.Literal(bits, 0))
        return self.builder.select(is_any, base, number(0))

    def smaller(self, x: Value, y: Value) -> Value:
        """The smaller one of two positions."""
        return self.builder.select(self.builder.icmp_signed("<", x, y), x, y)

    def masked(
        self,
        step: Step,
        pointer: Value,
        base: Value,
        first: int,
        size: int,
        holds: Value,
    ) -> Value:
        """Some of neighbouring elements, zeros where a condition does not hold.

        A register at a time: LLVM does not split wider loads correctly if it knows the
        condition.
        """
        element = lanes.memory_type(step.dtype)
        kind = ir.VectorType(element, size)
        at = self.builder.add(base, number(first))
        where = self.builder.gep(pointer, [at], source_etype=element)
        letter = "i" if isinstance(element, ir.IntType) else "f"
        name = f"llvm.masked.load.v{size}{letter}{step.dtype.itemsize * 8}.p0"
        wanted = self.part_of_mask(holds, first, size, step.dtype)
        fill = ir.Literal(kind, None)
        return self.builder.intrinsic(name, kind, [where, wanted, fill])

    def part_of_mask(self, holds: Value, first: int, size: int, dtype: DType) -> Value:
        """Some lanes of a condition, for numbers of a dtype in one register.

        As signs of numbers that are as wide: of bits that it knows in part, LLVM 22
        takes those for set that are not (with AVX2: a whole vector is loaded).
        """
        element = ir.IntType(8 * dtype.itemsize)
        wide = self.builder.sext(holds, ir.VectorType(element, holds.type.count))
        some = self.shuffled(wide, wide, range(first, first + size))
        zero = ir.Literal(ir.VectorType(element, size), None)
        return self.builder.icmp_signed("<", some, zero)

    def store_masked(
        self, pointer: Value, at: Value, value: Value, dtype: DType, holds: Value
    ) -> None:
        """Those of neighbouring floats for which a condition holds, to memory."""
        element = lanes.memory_type(dtype)
        plain, width = lanes.to_memory(self.builder, value, dtype), value.type.count
        size = min(width, host_registers().nbytes // dtype.itemsize)
        name = f"llvm.masked.store.v{size}f{dtype.itemsize * 8}.p0"
        for first in range(0, width, size):
            here = self.builder.add(at, number(first))
            where = self.builder.gep(pointer, [here], source_etype=element)
            new = self.shuffled(plain, plain, range(first, first + size))
            is_new = self.part_of_mask(holds, first, size, dtype)
            self.builder.intrinsic(name, ir.VoidType(), [new, where, is_new])

    def joined(self, x: Value, y: Value) -> Value:
        """The lanes of two vectors as one."""
        return self.shuffled(x, y, range(2 * x.type.count))

    def shuffled(self, x: Value, y: Value, wanted: Sequence[int]) -> Value:
        """Some lanes of two vectors."""
        return shuffled(self.builder, x, y, wanted)


def lane_numbers(width: int) -> Value:
    """0, 1, 2 ... in 32 bits, one for each lane."""
    kind = ir.VectorType(I32, width)
    return ir.Literal(kind, [ir.Literal(I32, lane) for lane in range(width)])


def steps(width: int, stride: int = 1, element: Type = I64) -> Value:
    """0, 1, 2 ... times a stride, one for each lane."""
    numbers = [ir.Literal(element, lane * stride) for lane in range(width)]
    return ir.Literal(ir.VectorType(element, width), numbers)
