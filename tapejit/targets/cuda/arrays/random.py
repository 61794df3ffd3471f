"""Draws: a thread for each block of four words that the cipher makes.

Start reading at `emit_random_bits`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tapejit.loops.steps import Step
from tapejit.targets.cpu.arrays.loops import operands_of
from tapejit.targets.cpu.arrays.random import (
    BLOCK_WORDS,
    Streams,
    Words,
    joined,
    keys_of_rounds,
    words_of_blocks,
)
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import I32, number
from tapejit.targets.cuda.arrays.kernels import (
    array_kernel,
    node_of,
    result_of,
    shape_of,
)
from tapejit.targets.cuda.kernel import ALIGNED, SimtKernel

if TYPE_CHECKING:
    from tapejit.targets.cuda.module import Emission


def emit_random_bits(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """The words of a draw, for each state."""
    node = node_of(step)
    front = shape_of(node.inputs[0])[:-1]
    states = math.prod(front)
    words = math.prod(shape_of(node)) // states * (node.attrs["bits"] // 32)
    blocks, left = -(-words // BLOCK_WORDS), words % BLOCK_WORDS
    with array_kernel(made, kernel, node.op.name, states * blocks) as at:
        (x,) = operands_of(at)
        out, streams = result_of(at, step), Streams(at, x)

        def single(index: Value) -> None:
            b = at.builder
            which, block = at.divided(index, blocks, states * blocks)
            along = at.unravelled(which, front)
            state = streams.state(at.at_position(number(0), x.strides[:-1], along))
            keys = keys_of_rounds(b, state[:2])
            start = joined(b, *state[2:4]), joined(b, *state[4:])
            found = words_of_blocks(b, keys, start, at.spread(block, 1))
            place = b.add(
                at.moved(number(0), which, words),
                at.moved(number(0), block, BLOCK_WORDS),
            )
            is_last = b.icmp_signed("==", block, number(blocks - 1))
            with b.if_else(is_last) as (then, otherwise):
                with then:
                    streams.write_words(out, place, found[: left or BLOCK_WORDS])
                with otherwise:
                    where = b.gep(out, [place], source_etype=I32)
                    align = 4 if left else ALIGNED
                    b.store(vector_of(found), where, align=align)

        def vector_of(found: Words) -> Value:
            b, kind = at.builder, ir.VectorType(I32, BLOCK_WORDS)
            whole: Value = ir.Literal(kind, ir.Undefined)
            for lane, word in enumerate(found):
                low = b.trunc(at.lane_number(word, 0), I32)
                whole = b.insert_element(whole, low, ir.Literal(I32, lane))
            return whole

        at.share(states * blocks, single)
