"""Transposes in registers: vectors as rows in, vectors as columns out, by shuffles.

Packing an operand of a matmul and loading what lies across the vector axis both read
rows, which is a load each, and want columns, of which each lane would be a load.

Start reading at `transposed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value
from tapejit.targets.cpu.target import CPU

I32 = ir.IntType(32)


@lru_cache(256)
def mask_of(lanes: tuple[int, ...]) -> Value:
    """Which lanes a shuffle takes."""
    kind = ir.VectorType(I32, len(lanes))
    if not any(lanes):
        return ir.Literal(kind, None)
    return ir.Literal(kind, [ir.Literal(I32, lane) for lane in lanes])


def shuffled(b: IRBuilder, x: Value, y: Value, lanes: Sequence[int]) -> Value:
    """Some lanes of two vectors, those of the second one counted after the first's."""
    return b.shuffle_vector(x, y, mask_of(tuple(lanes)))


def transposed(b: IRBuilder, rows: list[Value], itemsize: int) -> list[Value]:
    """As many vectors as each has lanes, the other way round.

    First halves change places, then halves of halves, down to the parts of a
    register, which are cheap to move as a whole. In these, numbers of one vector
    and of the one half of them away take turns, as often as it takes.
    """
    width = len(rows)
    part = min(width, CPU.tuning.register_part_bytes // itemsize)
    size = width
    while size > part:
        size //= 2
        low = [lane + (width - size if lane & size else 0) for lane in range(width)]
        high = [lane + size for lane in low]
        halves = [
            [shuffled(b, x, y, lanes) for x, y in pairs_of(rows, at, size)]
            for at in range(0, width, 2 * size)
            for lanes in (low, high)
        ]
        rows = [x for half in halves for x in half]
    starts = [lane // part * part for lane in range(width)]
    turns = [lane % 2 * width + lane % part // 2 for lane in range(width)]
    low = [start + turn for start, turn in zip(starts, turns, strict=True)]
    high = [lane + part // 2 for lane in low]
    made = []
    for at in range(0, width, part):
        some = rows[at : at + part]
        for _ in range(part.bit_length() - 1):
            pairs = pairs_of(some, 0, part // 2)
            some = [shuffled(b, x, y, lanes) for x, y in pairs for lanes in (low, high)]
        made += some
    return made


def pairs_of(rows: list[Value], at: int, size: int) -> list[tuple[Value, Value]]:
    """Some vectors from one on, each with the one as many after it."""
    return [(rows[at + i], rows[at + i + size]) for i in range(size)]
