"""The first few of a sorted line, and searches in sorted lines.

Elements are compared as the integers of `ops.ordering`: in their order, equal where
they are equal, NaN the largest.

`argsort` of a window at the start keeps the best elements of a line so far in
registers, in order, with their positions. A vector of elements is compared with the
last of them; few have to be put in, which shifts what comes after by one lane.

`searchsorted` halves the part of the line that is left in all lanes at once, so that
no branch depends on a value and loads do not wait for each other.

Start reading at `emit_argsort`, then `emit_searchsorted`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tapejit.base.types import DType, is_float
from tapejit.ir.node import Node
from tapejit.loops.index import strides_of
from tapejit.loops.steps import Step
from tapejit.ops.ordering import compared_dtype
from tapejit.targets.cpu.arrays.loops import (
    ArrayOperand,
    by_vectors,
    each_of_task,
    each_vector_of_task,
    merged,
    moved,
    read,
    tasks_for,
    widest,
    write,
)
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import (
    I32,
    I64,
    INT64,
    Addressing,
    lane_numbers,
    number,
)
from tapejit.targets.cpu.simd import lanes
from tapejit.targets.cpu.target import CPU

INT32 = np.dtype(np.int32)


# Keys


def key_dtype(dtype: DType) -> DType:
    """The integers in whose order elements are."""
    return INT32 if dtype.itemsize <= 4 else INT64


def ordered_key(at: Addressing, x: Value, dtype: DType, descending: bool) -> Value:
    """Integers in the order of elements, those of `ops.ordering`."""
    builder, width, kind = at.builder, x.type.count, key_dtype(dtype)
    top = lanes.constant(kind, np.iinfo(kind).max, width)
    if not is_float(dtype):
        if dtype.kind == "u" and dtype.itemsize >= 4:
            key = builder.xor(x, lanes.constant(kind, np.iinfo(kind).min, width))
        else:
            key = at.converted(x, dtype, kind)
        return builder.not_(key) if descending else key
    # In registers a half is a float.
    wide = dtype if dtype.itemsize == 8 else np.dtype(np.float32)
    zero = lanes.constant(wide, 0, width)
    plain = builder.fsub(zero, x) if descending else builder.fadd(zero, x)
    bits = builder.bitcast(plain, lanes.register_type(kind, width))
    sign = builder.ashr(bits, lanes.constant(kind, 8 * kind.itemsize - 1, width))
    key = builder.xor(bits, builder.and_(sign, top))
    is_nan = builder.fcmp_unordered("uno", x, x)
    return builder.select(is_nan, top, key)


# The first few of a sorted line


def tasks_of_argsort(step: Step) -> int:
    """How many tasks share the lines."""
    (x,) = step.performed.inputs
    size = math.prod(map(int, x.shape))
    return tasks_for(size // int(x.shape[step.performed.attrs["axis"]]), size)


def emit_argsort(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """The positions of the first few of each line."""
    (x,), axis = operands, node.attrs["axis"]
    shape = [int(size) for size in node.inputs[0].shape]
    rest = [*shape[:axis], *shape[axis + 1 :]]
    own = strides_of(node.shape)
    result = ArrayOperand(out, node.dtype, own)
    every = [[*s[:axis], *s[axis + 1 :]] for s in (x.strides, own)]
    sizes, strides = merged(rest, *every)
    first = FirstOfLine(at, node, x, shape[axis])

    def line(places: list[Value]) -> None:
        found = first.positions(places[0])
        put_lanes(at, result, places[1], own[axis], found, first.count)

    each_of_task(at, sizes, strides, line)


def put_lanes(
    at: Addressing,
    out: ArrayOperand,
    place: Value,
    stride: int,
    value: Value,
    count: int,
) -> None:
    """The first lanes of a vector to the elements of a line."""
    first = 0
    while first < count:
        width = 1 << ((count - first).bit_length() - 1)
        part = at.shuffled(value, value, range(first, first + width))
        write(at, out, at.builder.add(place, number(first * stride)), stride, part)
        first += width


class FirstOfLine:
    """The best elements of a line so far, in order, and where they are.

    Both are vectors of `width` lanes, of which the first `count` matter. An element
    goes behind those that are not greater, so equal ones stay as they were.
    """

    def __init__(self, at: Addressing, node: Node, x: ArrayOperand, length: int):
        self.at, self.x, self.length = at, x, length
        _, self.count = node.attrs["window"]
        self.stride = x.strides[node.attrs["axis"]]
        self.descending = node.attrs["descending"]
        self.kind = key_dtype(x.dtype)
        self.width = max(4, 1 << (self.count - 1).bit_length())
        self.register = lanes.register_type(self.kind, self.width)
        with at.at_entry():
            self.keys = at.builder.alloca(self.register)
            self.places = at.builder.alloca(self.register)

    def positions(self, place: Value) -> Value:
        """Where the first elements of the line that begins at a place are."""
        at, count = self.at, self.count
        nothing = lanes.constant(self.kind, 0, self.width)
        for memory in (self.keys, self.places):
            at.builder.store(nothing, memory)

        def begin(index: Value) -> None:
            self.put(place, index, filled=index)

        at.for_range(number(0), number(count), 1, begin)
        if count < self.length:
            self.look_on(place)
        found = at.builder.load(self.places, typ=self.register)
        return at.converted(found, self.kind, INT64)

    def look_on(self, place: Value) -> None:
        """Look at the elements that come after the first ones, a vector at a time."""
        at, left = self.at, self.length - self.count
        width = min(CPU.tuning.search_lanes, 64, 1 << (left.bit_length() - 1))
        last, bits = number(self.length - width), ir.IntType(width)

        def part(index: Value) -> None:
            builder = at.builder
            first = at.smaller(index, last) if left % width else index
            keys = self.key_at(place, first, width)
            known = builder.load(self.keys, typ=self.register)
            bound = at.widened(at.lane(known, self.count - 1), width)
            better = builder.bitcast(builder.icmp_signed("<", keys, bound), bits)
            better = better if width == 64 else builder.zext(better, I64)
            if left % width:  # not again what was looked at before
                seen = builder.shl(number(-1), builder.sub(index, first))
                better = builder.and_(better, seen)
            is_any = builder.icmp_unsigned("!=", better, number(0))
            with builder.if_then(is_any, likely=False):
                each_bit(
                    at, better, lambda bit: self.put(place, builder.add(first, bit))
                )

        work = CPU.tuning.array_element_instructions
        at.long_range(
            number(self.count), number(self.length), width, part, work, self.length
        )

    def key_at(self, place: Value, index: Value, width: int) -> Value:
        """The keys of neighbours of the line."""
        at, x = self.at, self.x
        here = moved(at, place, index, self.stride)
        value = read(at, x, here, self.stride, width)
        return ordered_key(at, value, x.dtype, self.descending)

    def put(self, place: Value, index: Value, filled: Value | None = None) -> None:
        """Put an element in; `filled` says how many there are, if they are not all."""
        at, builder, width = self.at, self.at.builder, self.width
        keys, places = (
            builder.load(memory, typ=self.register)
            for memory in (self.keys, self.places)
        )
        lowest = lanes.constant(self.kind, np.iinfo(self.kind).min, width)
        by_one = [width, *range(width - 1)]
        new = at.widened(self.key_at(place, index, 1), width)
        behind = at.shuffled(keys, lowest, by_one)
        stays = builder.icmp_signed("<=", keys, new)
        follows = builder.icmp_signed("<=", behind, new)
        if filled is not None:
            some = at.converted(at.spread(filled, 1), INT64, INT32)
            some = at.widened(some, width)
            lane = lane_numbers(width)
            stays = builder.and_(stays, builder.icmp_signed("<", lane, some))
            follows = builder.and_(follows, builder.icmp_signed("<=", lane, some))
        here = at.widened(at.converted(at.spread(index, 1), INT64, self.kind), width)
        behind_places = at.shuffled(places, lowest, by_one)
        for memory, old, shifted, own in (
            (self.keys, keys, behind, new),
            (self.places, places, behind_places, here),
        ):
            moves = builder.select(follows, own, shifted)
            builder.store(builder.select(stays, old, moves), memory)


def each_bit(at: Addressing, bits: Value, body: Callable[[Value], None]) -> None:
    """`body(number)` for the bits that are set, of which there is one at least."""
    builder, before = at.builder, at.builder.block
    head, after = map(builder.append_basic_block, ("bit", "bits_done"))
    builder.branch(head)
    builder.position_at_end(head)
    left = builder.phi(I64)
    left.add_incoming(bits, before)
    body(builder.cttz(left, ir.Literal(ir.IntType(1), 1)))
    others = builder.and_(left, builder.sub(left, number(1)))
    left.add_incoming(others, builder.block)
    builder.cbranch(builder.icmp_unsigned("!=", others, number(0)), head, after)
    builder.position_at_end(after)


# put_along


def tasks_of_put_along(step: Step) -> int:
    """How many tasks share the lines."""
    node = step.performed
    size = math.prod(map(int, node.shape))
    return tasks_for(size // int(node.attrs["length"]), size)


def emit_put_along(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Zeros in each line, and elements at positions of it."""
    x, where = operands
    lead = node.ndim - len(where.strides)
    axis, length = lead + node.attrs["axis"], node.attrs["length"]
    places = where._replace(strides=(0,) * lead + where.strides)
    target = ArrayOperand(out, node.dtype, strides_of(node.shape)).as_bits()
    source, every = x.as_bits(), (x, places, target)
    rest = [*node.shape[:axis], *node.shape[axis + 1 :]]
    sizes, strides = merged(
        rest, *[[*own.strides[:axis], *own.strides[axis + 1 :]] for own in every]
    )
    count = int(node.inputs[0].shape[axis])
    along = [own.strides[axis] for own in every]

    def line(starts: list[Value]) -> None:
        def nothing(index: Value, width: int) -> None:
            here = moved(at, starts[2], index, along[2])
            zero = lanes.constant(target.dtype, 0, width)
            write(at, target, here, along[2], zero)

        def put(index: Value) -> None:
            here, there = (
                moved(at, start, index, stride)
                for start, stride in zip(starts[:2], along[:2], strict=True)
            )
            position = at.lane_number(read(at, places, there, 0, 1), 0)
            to = moved(at, starts[2], position, along[2])
            write(at, target, to, 0, read(at, source, here, 0, 1))

        if count < length:
            by_vectors(at, length, widest(target.dtype), nothing)
        at.for_range(number(0), number(count), 1, put)

    each_of_task(at, sizes, strides, line)


# searchsorted


def tasks_of_searchsorted(step: Step) -> int:
    """How many tasks share the values: a search is as much as some elements."""
    line, values = step.performed.inputs
    halvings = int(line.shape[-1]).bit_length()
    size = math.prod(map(int, values.shape))
    return tasks_for(size, size * halvings)


def emit_searchsorted(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """How many elements of a line go before each value, or are not after it."""
    line, values = operands
    lead, size = len(line.strides) - 1, int(node.inputs[0].shape[-1])
    shape = [int(size) for size in node.shape]
    own = strides_of(shape)
    result = ArrayOperand(out, INT64, own)
    lines = (*line.strides[:-1], *(0,) * (len(shape) - lead))
    common = compared_dtype(line.dtype, values.dtype)
    search = Search(at, line, size, common, node.attrs["side"])

    def some(places: list[Value], last: Sequence[int], width: int) -> None:
        given = read(at, values, places[0], last[0], width)
        key = search.key(given, values.dtype)
        write(at, result, places[1], last[1], search.positions(places[2], key))

    sizes, strides = merged(shape, values.strides, own, lines)
    each_vector_of_task(at, sizes, strides, CPU.tuning.search_lanes, some)


class Search:
    """The search for keys in a line of so many elements."""

    def __init__(
        self, at: Addressing, line: ArrayOperand, size: int, common: DType, side: str
    ) -> None:
        self.at, self.line, self.size = at, line, size
        self.common, self.symbol = common, "<" if side == "left" else "<="

    def key(self, x: Value, dtype: DType) -> Value:
        """Keys of elements in the dtype in which they are compared."""
        same = self.at.converted(x, dtype, self.common)
        return ordered_key(self.at, same, self.common, descending=False)

    def positions(self, start: Value, keys: Value) -> Value:
        """How many elements of the line that begins at a place come before each key.

        What is left has been cut in half as often for all keys: a loop for all sizes
        of it, which is one in the end.
        """
        at, builder, width = self.at, self.at.builder, keys.type.count
        kind, size = lanes.register_type(INT32, width), self.size
        with at.at_entry():
            found, left = builder.alloca(kind), builder.alloca(I32)
        builder.store(lanes.constant(INT32, 0, width), found)
        builder.store(ir.Literal(I32, size), left)

        def step(count: Value) -> None:
            """Go on behind `count` elements if the last of them comes before."""
            before = builder.load(found, typ=kind)
            many = at.repeated(at.spread(count, 1), width)
            last = builder.sub(many, lanes.constant(INT32, 1, width))
            is_before = self.comes_before(start, builder.add(before, last), keys)
            after = builder.add(before, many)
            builder.store(builder.select(is_before, after, before), found)

        def halve(_: Value) -> None:
            whole = builder.load(left, typ=I32)
            half = builder.lshr(whole, ir.Literal(I32, 1))
            step(half)
            builder.store(builder.sub(whole, half), left)

        if size > 1:
            halvings = (size - 1).bit_length()
            at.for_range(number(0), number(halvings), 1, halve)
        step(ir.Literal(I32, 1))
        return at.converted(builder.load(found, typ=kind), INT32, INT64)

    def comes_before(self, start: Value, index: Value, keys: Value) -> Value:
        """Whether elements of a line come before keys."""
        at, line = self.at, self.line
        place = at.builder.mul(
            index, lanes.constant(INT32, line.strides[-1], index.type.count)
        )
        element = lanes.memory_type(line.dtype)
        first = at.builder.gep(line.pointer, [start], source_etype=element)
        found = at.gather(first, place, line.dtype, index.type.count)
        return at.builder.icmp_signed(self.symbol, self.key(found, line.dtype), keys)
