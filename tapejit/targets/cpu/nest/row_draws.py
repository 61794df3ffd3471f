"""Random words inside of loops: for the rows of one tile at a time.

Any block of words can be computed alone, from the number of blocks before it. So those
that a mask of dropout is made of need not be in memory as a whole, and are there again
for a gradient without having been kept.

Start reading at `draw_rows`.
"""

from __future__ import annotations

from tapejit.loops.index import Affine, strides_of
from tapejit.loops.steps import Step, tiles_of
from tapejit.targets.cpu.arrays.loops import ArrayOperand
from tapejit.targets.cpu.arrays.random import BLOCK_WORDS, Streams, emit_draw
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import Addressing, number


def draw_rows(at: Addressing, step: Step) -> None:
    """The words of the rows, and maybe of the columns, of the current tile."""
    along, shape = tiles_of(step), tuple(map(int, step.performed.shape))
    tiles = {x.axis: x.tile for x in at.plan.paths[step] if x.tile}
    (base, offset, strides) = step.views[0]
    given = ArrayOperand(at.start_of(base), base.dtype, strides)
    state = Streams(at, given).state(number(offset))
    blocks = [stride // BLOCK_WORDS for stride in strides_of(shape)[:-1]]
    stack = iter(along.axes[:-1])
    terms = [
        (next(stack), many)
        for size, many in zip(shape[:-2], blocks[:-1], strict=True)
        if size != 1
    ]
    row, column = along.axes[-1], along.column
    before = at.scalar(Affine(tuple(terms)))
    origin = at.builder.mul(at.origins[row], number(blocks[-1]))
    before = at.builder.add(before, origin)
    own = at.plan.storage[step]
    (axis,) = [x for x in own.strides if x is not row]
    words = axis.extent  # a row may have some more, up to the end of a block
    if column is not None:
        words = tiles[column]
        first = at.builder.udiv(at.origins[column], number(BLOCK_WORDS))
        before = at.builder.add(before, first)
    out = at.pointer_to(own)

    def draw(index: Value) -> None:
        here = at.builder.add(before, at.builder.mul(index, number(blocks[-1])))
        place = at.builder.mul(index, number(own.strides[row]))
        emit_draw(at, state, out, place, words, here)

    at.for_range(number(0), at.counts[row], 1, draw)
