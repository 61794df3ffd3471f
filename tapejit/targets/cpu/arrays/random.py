"""Random words and what they become, as loops over whole arrays.

The cipher is written once, for words of 32 bits in lanes of 64 that have room for
their products: eight blocks of a draw at a time, or one to make a state of another.
`ops.philox` says what everything means, and `ops.quantile` in which order the normal
quantile is rounded: what is computed here has the same bits.

Start reading at `cipher`, then `emit_random_bits`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tapejit.base.types import DType
from tapejit.ir.node import Node
from tapejit.loops.index import strides_of
from tapejit.ops.philox import (
    FOLDING,
    KEY_INCREMENTS,
    MASK32,
    MULTIPLIERS,
    ROUNDS,
    SPLITTING,
)
from tapejit.ops.quantile import TABLES, TAIL_LOG2, QuantileTable
from tapejit.ops.random import STATE_SIZE
from tapejit.targets.cpu.arrays.loops import ArrayOperand, each, emit_map, merged, moved
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value
from tapejit.targets.cpu.nest.addressing import I32, I64, Addressing, number, steps
from tapejit.targets.cpu.simd.storage import Floats, rounded
from tapejit.targets.cpu.simd.vector import INTEGER, Splat, Vector
from tapejit.targets.cpu.target import CPU

Array = np.ndarray[Any, Any]
I128: Final = ir.IntType(128)
U32: Final = np.dtype(np.uint32)
BLOCK_WORDS: Final = 4

Words = Sequence[Value]


# The cipher


def splat(value: int, width: int) -> Value:
    """An integer of 64 bits in every lane."""
    return Splat(ir.VectorType(I64, width), ir.Literal(I64, value))


def cipher(builder: IRBuilder, key: Words, counter: Words) -> Words:
    """A block of four words for each lane; words are the low halves of 64 bits."""
    return ciphered(builder, keys_of_rounds(builder, key), counter)


def keys_of_rounds(builder: IRBuilder, key: Words) -> list[Words]:
    """The key of each round; many blocks have them in common."""
    width = key[0].type.count
    low = splat(MASK32, width)
    increments = [splat(increment, width) for increment in KEY_INCREMENTS]
    found = [key]
    for _ in range(ROUNDS - 1):
        pairs = zip(found[-1], increments, strict=True)
        found.append([builder.and_(builder.add(x, more), low) for x, more in pairs])
    return found


def ciphered(builder: IRBuilder, keys: Sequence[Words], counter: Words) -> Words:
    """The cipher, from the keys of its rounds.

    What is above a word's 32 bits does not matter until the end: a product takes the
    low halves of its factors, in one instruction if that is said right there.
    """
    x0, x1, x2, x3 = counter
    width = x0.type.count
    low, half = splat(MASK32, width), splat(32, width)
    factors = [splat(factor, width) for factor in MULTIPLIERS]
    for key0, key1 in keys:
        product0 = builder.mul(builder.and_(x0, low), factors[0])
        product2 = builder.mul(builder.and_(x2, low), factors[1])
        high0, high2 = (builder.lshr(x, half) for x in (product0, product2))
        x0 = builder.xor(builder.xor(high2, x1), key0)
        x2 = builder.xor(builder.xor(high0, x3), key1)
        x1, x3 = product2, product0
    return tuple(builder.and_(x, low) for x in (x0, x1, x2, x3))


def words_of_blocks(
    builder: IRBuilder, keys: Sequence[Words], start: Words, index: Value
) -> Words:
    """The words of blocks so far behind a counter, which is two words of 64 bits."""
    low, high = start
    lower = builder.add(low, index)
    carry = builder.zext(builder.icmp_unsigned("<", lower, low), lower.type)
    upper = builder.add(high, carry)
    counter = (*halves(builder, lower), *halves(builder, upper))
    return ciphered(builder, keys, counter)


def halves(builder: IRBuilder, word: Value) -> tuple[Value, Value]:
    """The low and the high 32 bits."""
    width = word.type.count
    return (
        builder.and_(word, splat(MASK32, width)),
        builder.lshr(word, splat(32, width)),
    )


def joined(builder: IRBuilder, low: Value, high: Value) -> Value:
    """64 bits of two words."""
    return builder.or_(low, builder.shl(high, splat(32, low.type.count)))


class Streams:
    """States in memory, and words made from them."""

    def __init__(self, at: Addressing, states: ArrayOperand) -> None:
        self.at = at
        self.states = states

    def state(self, place: Value) -> list[Value]:
        """The words of one state, each in a lane of 64 bits."""
        at, stride = self.at, self.states.strides[-1]
        found = []
        for word in range(STATE_SIZE):
            here = at.builder.add(place, number(word * stride))
            value = at.load_at(self.states.pointer, here, U32, 1)
            found.append(at.builder.zext(value, ir.VectorType(I64, 1)))
        return found

    def digest(self, state: Words, purpose: tuple[int, int]) -> Words:
        """Four words that name a state for one purpose."""
        pairs = zip(state[:2], purpose, strict=True)
        key = [self.at.builder.xor(word, splat(use, 1)) for word, use in pairs]
        return cipher(self.at.builder, key, state[2:])

    def write_words(self, out: Value, place: Value, words: Words) -> None:
        """Words side by side."""
        for at, word in enumerate(words):
            here = self.at.builder.add(place, number(at))
            value = self.at.builder.trunc(word, ir.VectorType(ir.IntType(32), 1))
            self.at.store_at(out, here, value, U32)

    def write_state(self, out: Value, place: Value, digest: Words) -> None:
        """The state at the start of the stream that four words name."""
        zero = splat(0, 1)
        state = (*digest[:2], zero, zero, *digest[2:])
        self.write_words(out, place, state)


def emit_random_bits(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """The words of a draw, for each state."""
    (states,) = operands
    streams = Streams(at, states)
    size = math.prod(int(x) for x in node.attrs["shape"])
    words = size * (node.attrs["bits"] // 32)
    front = [int(x) for x in node.inputs[0].shape[:-1]]
    to = [stride * words for stride in strides_of(front)]
    sizes, strides = merged(front, states.strides[:-1], to)

    def row(places: list[Value]) -> None:
        emit_draw(at, streams.state(places[0]), out, places[1], words)

    each(at, sizes, strides, row)


def emit_draw(
    at: Addressing,
    state: Words,
    out: Value,
    place: Value,
    words: int,
    before: Value | None = None,
) -> None:
    """As many words of 32 bits as wanted, from one state; `before` blocks are not."""
    whole_blocks = 1 << max(0, (words // BLOCK_WORDS).bit_length() - 1)
    width = min(CPU.tuning.cipher_blocks, whole_blocks)
    at_once = width * BLOCK_WORDS
    key = [at.widened(word, width) for word in state[:2]]
    keys = keys_of_rounds(at.builder, key)
    low = at.widened(joined(at.builder, state[2], state[3]), width)
    high = at.widened(joined(at.builder, state[4], state[5]), width)

    def blocks(first: Value) -> Value:
        """All words of neighbouring blocks, in order, two in each lane."""
        b = at.builder
        first = first if before is None else b.add(before, first)
        numbers = b.add(at.spread(first, width), steps(width))
        x0, x1, x2, x3 = words_of_blocks(b, keys, (low, high), numbers)
        pairs = [x for lane in range(width) for x in (lane, width + lane)]
        order = ir.Literal(ir.VectorType(I32, 2 * width), pairs)
        return b.shuffle_vector(joined(b, x0, x1), joined(b, x2, x3), order)

    def whole(index: Value) -> None:
        """`index` counts words."""
        value = blocks(at.builder.lshr(index, number(2)))
        here = at.builder.add(place, index)
        where = at.builder.gep(out, [here], source_etype=ir.IntType(32))
        at.builder.store(value, where, align=4)

    done = words - words % at_once
    if done:
        work = CPU.tuning.array_element_instructions
        at.long_range(number(0), number(done), at_once, whole, work, done)
    left = words - done
    if not left:
        return
    memory = at.stack_memory(at_once, U32)

    def word(index: Value) -> None:
        value = at.load_at(memory, index, U32, 1)
        here = at.builder.add(place, at.builder.add(index, number(done)))
        at.store_at(out, here, value, U32)

    # Whole blocks, of which only the first words are wanted.
    value = blocks(number(done // BLOCK_WORDS))
    at.builder.store(value, memory, align=4)
    at.for_range(number(0), number(left), 1, word)


# States from states


def emit_random_advance(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """The key, and the counter with the number of blocks added."""
    (states,) = operands
    streams = Streams(at, states)
    blocks = ir.Literal(I128, int(node.attrs["blocks"]) % (1 << 128))

    def row(places: list[Value]) -> None:
        state = streams.state(places[0])
        counter: Value = blocks
        for digit, word in enumerate(state[2:]):
            wide = at.builder.zext(at.lane_number(word, 0), I128)
            shift = ir.Literal(I128, 32 * digit)
            counter = at.builder.add(counter, at.builder.shl(wide, shift))
        after = []
        for digit in range(BLOCK_WORDS):
            shift = ir.Literal(I128, 32 * digit)
            part = at.builder.trunc(at.builder.lshr(counter, shift), I64)
            after.append(at.spread(part, 1))
        streams.write_words(out, places[1], [*state[:2], *after])

    each_stream(at, states, node.inputs[0].shape[:-1], STATE_SIZE, row)


def emit_random_split(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """States of as many streams as wanted, named by a digest and their number."""
    (states,) = operands
    streams = Streams(at, states)
    count = int(node.attrs["count"])

    def row(places: list[Value]) -> None:
        key0, key1, *rest = streams.digest(streams.state(places[0]), SPLITTING)
        name = at.builder, (key0, key1)

        def stream(index: Value) -> None:
            counter = (*halves(at.builder, at.spread(index, 1)), *rest)
            place = moved(at, places[1], index, STATE_SIZE)
            streams.write_state(out, place, cipher(*name, counter))

        at.for_range(number(0), number(count), 1, stream)

    each_stream(at, states, node.inputs[0].shape[:-1], count * STATE_SIZE, row)


def each_stream(
    at: Addressing,
    states: ArrayOperand,
    shape: Sequence[Any],
    size: int,
    body: Callable[[list[Value]], None],
) -> None:
    """A loop over states, with results of `size` words each."""
    front = [int(x) for x in shape]
    to = [stride * size for stride in strides_of(front)]
    sizes, strides = merged(front, states.strides[:-1], to)
    each(at, sizes, strides, body)


def emit_random_fold_in(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """The state of the stream that a number names; a negative one is an error."""
    states, data = operands
    streams = Streams(at, states)
    front = [int(x) for x in node.shape[:-1]]
    rank = len(front)
    to = [stride * STATE_SIZE for stride in strides_of(front)]
    own = states.strides[:-1]
    sizes, strides = merged(
        front,
        (0,) * (rank - len(own)) + own,
        (0,) * (rank - len(data.strides)) + data.strides,
        to,
    )

    def row(places: list[Value]) -> None:
        given = at.load_at(data.pointer, places[1], data.dtype, 1)
        number_given = at.converted(given, data.dtype, np.dtype(np.uint64))
        if data.dtype.kind == "i":
            sign = at.lane_number(number_given, 0)
            with at.builder.if_then(at.builder.icmp_signed("<", sign, number(0))):
                at.fail()
        key0, key1, *rest = streams.digest(streams.state(places[0]), FOLDING)
        counter = (*halves(at.builder, number_given), *rest)
        found = cipher(at.builder, (key0, key1), counter)
        streams.write_state(out, places[2], found)

    each(at, sizes, strides, row)


# What words become


def emit_conversion(
    at: Addressing,
    node: Node,
    operands: Sequence[ArrayOperand],
    out: Value,
    function: Callable[[IRBuilder, Value, Node], Value],
) -> None:
    """A function of every word."""
    (words,) = operands
    result = ArrayOperand(out, node.dtype, strides_of(node.shape))
    emit_map(
        at,
        node.shape,
        [words],
        result,
        lambda values, width: function(at.builder, values[0], node),
    )


def emit_bits_to_normal(
    at: Addressing, node: Node, operands: Sequence[ArrayOperand], out: Value
) -> None:
    """Normal floats."""
    emit_conversion(at, node, operands, out, normal)


def wide_float(words: Value) -> DType:
    """The float of as many bits as words have."""
    return np.dtype(f"float{words.type.element.width}")


def signed_to_float(b: Floats, x: Vector) -> Vector:
    """Integers that are not negative as floats, rounded once."""
    return b.wrap(b.ir.sitofp(x.value, b.float_type))


def normal(builder: IRBuilder, words: Value, node: Node) -> Value:
    """The quantile of each word, rounded to the dtype."""
    width = words.type.count
    wide = wide_float(words)
    b = Floats(builder, wide, width)
    found = Quantile(b, TABLES[np.dtype(f"uint{b.format.bits}")])
    value = found.of(Vector(b, words, INTEGER)).value
    if node.dtype == wide:
        return value
    return rounded(b, b.wrap(value), node.dtype).value


class Quantile:
    """The normal quantile of words, in the steps of `ops.quantile`."""

    def __init__(self, b: Floats, table: QuantileTable) -> None:
        self.b = b
        self.table = table

    def of(self, words: Vector) -> Vector:
        """Centre and tail, of which each lane takes one."""
        b, table = self.b, self.table
        bits = table.word_bits
        unit = 2.0 ** -(bits + 1)
        is_upper = words < 0  # the highest bit is set
        upper = b.select(is_upper, words, ~words)
        distance = (upper << 1) | 1
        remainder = 0 - distance
        p = self.to_float(remainder) * unit
        w = self.negative_log2(p * (4 - 4 * p))
        ratio = self.quotient(table.centre_numerator, table.centre_denominator, w)
        low = distance & ((1 << table.low_bits) - 1)
        high = distance - low
        q = self.to_float(distance) * unit
        three = 3 * unit
        small = self.to_float(low) * three + q * ratio
        centre = self.to_float(high) * three + small
        # The centre's lanes go through the tail too, and are left out; a number for
        # which it was not made harms nobody.
        y = b.sqrt(self.negative_log2(4 * p))
        tail = y + self.quotient(table.tail_numerator, table.tail_denominator, y)
        limit = Vector(b, b.integer(1 << (bits + 1 - TAIL_LOG2)).value, INTEGER)
        is_tail = Vector(
            b, b.ir.icmp_unsigned("<", remainder.value, limit.value), "mask"
        )
        z = b.select(is_tail, tail, centre)
        return b.select(is_upper, z, -z)

    def to_float(self, x: Vector) -> Vector:
        """Words, all of whose bits count, as floats, rounded once."""
        return self.b.wrap(self.b.ir.uitofp(x.value, self.b.float_type))

    def negative_log2(self, x: Vector) -> Vector:
        """-log2 of floats in (0, 1]."""
        b, table = self.b, self.table
        pattern = b.as_bits(x)
        n = b.logical_shift(table.log2_split - pattern, table.mantissa_bits)
        m = b.as_float(pattern + (n << table.mantissa_bits))
        s = (m - 1) / (m + 1)
        return signed_to_float(b, n) - s * self.polynomial(table.log2, s * s)

    def quotient(self, numerator: Array, denominator: Array, x: Vector) -> Vector:
        found = self.polynomial(numerator, x)
        if len(denominator) == 1:
            return found
        return found / self.polynomial(denominator, x)

    def polynomial(self, coefficients: Array, x: Vector) -> Vector:
        """Horner's scheme, each product and each sum rounded."""
        found = self.b.constant(float(coefficients[-1]))
        for coefficient in coefficients[-2::-1]:
            found = found * x + float(coefficient)
        return found
