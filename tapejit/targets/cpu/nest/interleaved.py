"""Interleaved memory: rows of a few numbers each, where vectors go along the rows.

The parts of complex numbers, points with three coordinates, pixels: the numbers of a
vector lie two to four elements apart, and would take a load or a store each. So as many
whole vectors as a row has numbers are loaded, and deinterleaved by shuffles; and the
vectors of a row's numbers are interleaved, and stored as whole vectors.

Start reading at `deinterleaved`, then `packed_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tapejit.loops.kernels import LoopNest, Storage
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import ArrayOp, PartialSum, Step
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value
from tapejit.targets.cpu.nest.addressing import number
from tapejit.targets.cpu.simd.transpose import shuffled
from tapejit.targets.cpu.target import CPU

if TYPE_CHECKING:
    from tapejit.targets.cpu.nest.kernel_emitter import KernelEmitter


def deinterleaved(b: IRBuilder, vectors: Sequence[Value], first: int) -> Value:
    """Every so-manyth lane of some vectors that follow each other, from one on."""
    distance, width = len(vectors), vectors[0].type.count
    places = [first + lane * distance for lane in range(width)]
    found = vectors[0]
    for at, vector in enumerate(vectors[1:], 1):
        lanes = []
        for lane, place in enumerate(places):
            source, own = divmod(place, width)
            earlier = own if at == 1 else lane
            lanes.append(width + own if source == at else earlier)
        found = shuffled(b, found, vector, lanes)
    return found


def interleaved(b: IRBuilder, columns: Sequence[Value]) -> list[Value]:
    """Vectors that follow each other, in which numbers of all columns take turns."""
    distance, width = len(columns), columns[0].type.count
    made = []
    for start in range(0, distance * width, width):
        turns = [divmod(start + lane, distance) for lane in range(width)]
        found = columns[0]
        for at, column in enumerate(columns[1:], 1):
            lanes = []
            for lane, (own, turn) in enumerate(turns):
                earlier = own if at == 1 else lane
                lanes.append(width + own if turn == at else earlier)
            found = shuffled(b, found, column, lanes)
        made.append(found)
    return made


def packed_rows(emitter: KernelEmitter, loop: Loop) -> list[Storage]:
    """The memory whose rows a loop goes along, if it writes nothing else."""
    at, found = emitter.at, dict[Storage, None]()
    is_plain = not loop.tile and not loop.lanes and loop.axis is not at.vector
    is_short = 1 < loop.axis.extent <= CPU.tuning.interleaved_numbers
    if not is_plain or not is_short or emitter.copies or at.vector is None:
        return []
    for step in loop.body:
        if not isinstance(step, Step) or step.closed:
            return []
        if isinstance(step.what, (ArrayOp, PartialSum)):
            return []
        memory = emitter.plan.storage.get(step)
        if memory is None:
            continue
        strides = memory.strides
        rows = (strides.get(loop.axis), strides.get(at.vector))
        if memory.lanes or memory.tiled or emitter.is_partial(memory):
            return []
        if rows != (1, loop.axis.extent):
            return []
        found[memory] = None
    return list(found)


def emit_packed_rows(
    emitter: KernelEmitter, loop: Loop, path: LoopNest, rows: list[Storage]
) -> None:
    """A loop along the numbers of a row: all of them, then the stores."""
    at, axis = emitter.at, loop.axis
    emitter.columns = {memory: [] for memory in rows}
    for iteration in range(axis.extent):
        at.indices[axis] = number(iteration)
        emitter.body(loop, path)
    columns, emitter.columns = emitter.columns, {}
    at.indices[axis] = number(0)
    for memory, values in columns.items():
        pointer, first = at.pointer_to(memory), at.place_in(memory)
        for turn, row in enumerate(interleaved(at.builder, values)):
            here = at.builder.add(first, number(turn * at.width))
            at.store_at(pointer, here, row, memory.dtype)
