"""How Steps take part in tiles of rows: products, random words, and what reads them.

A tile has some rows of a matrix, and memory for these alone. So it has to be known of
a product which of its operands are such rows, and of everything else that it reads no
other ones. `TileRole` (in `loops/steps.py`) is what a product that takes part has.

Start reading at `role`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tapejit import ops
from tapejit.loops.fuse.fuse_epilogue import plain_axes
from tapejit.loops.index import Axis, strides_of
from tapejit.loops.nests import Item
from tapejit.loops.schedule.schedule import Loop, reads_its_own
from tapejit.loops.steps import ArrayOp, Reduce, Step, is_matmul, tiles_of

BLOCK_WORDS: Final = 4  # that a cipher gives at once
WORD: Final = 32  # bits


def is_tiled_matmul(item: Item) -> bool:
    """Whether this is a product of matrices, and not one of windows."""
    return isinstance(item, Step) and is_matmul(item) and item.op is ops.matmul


def is_draw(item: Item) -> bool:
    """Whether these are random words of one stream, whose rows are whole blocks."""
    if (
        not isinstance(item, Step)
        or not isinstance(item.what, ArrayOp)
        or item.node is None
    ):
        return False
    node = item.node
    if node.ndim < 2 or node.dtype.kind != "u":
        return False
    if node.op not in (ops.keyed_bits, ops.random_bits):
        return False
    is_one = node.inputs[0].ndim == 1 and node.attrs["bits"] == WORD
    return is_one and int(node.shape[-1]) % BLOCK_WORDS == 0


def role(product: Step, at: int, base: Step, axes: tuple[Axis, ...]) -> str | None:
    """How a product uses rows: row by row, in a sum over all of them, or otherwise."""
    if base.dims is None or product.node is None or product.dtype.itemsize < 4:
        return None
    if not has_matrices(base):
        return None
    own = [axis.root for axis in base.dims if axis is not None]
    if len(own) != len(axes) + 1 or tuple(own[:-1]) != axes:
        return None
    shape = tuple(1 if axis is None else axis.extent for axis in base.dims)
    plain = strides_of(shape)
    _, offset, strides = product.views[at]
    operand = tuple(map(int, product.node.inputs[at].shape))
    front = tuple(map(int, product.node.shape[:-2]))
    if offset or front != shape[:-2] or len(operand) != len(shape):
        return None

    def is_same(shape: Sequence[int], wanted: Sequence[int]) -> bool:
        sizes = zip(operand, shape, strides, wanted, strict=True)
        return all(a == b and (a == 1 or s == w) for a, b, s, w in sizes)

    if is_same(shape, plain):
        return "result" if at == 0 else "sum"
    swapped = (*shape[:-2], shape[-1], shape[-2])
    if at == 0 and is_same(swapped, (*plain[:-2], plain[-1], plain[-2])):
        return "sum"
    return None


def operands_in(product: Step, steps: set[Step]) -> Iterator[tuple[int, Step]]:
    """The operands of a product that are among some Steps, with their numbers."""
    for at, (base, _, _) in enumerate(product.views):
        if isinstance(base, Step) and base in steps:
            yield at, base


def takes_own_rows(step: Step, steps: set[Step], axes: tuple[Axis, ...]) -> bool:
    """Whether a Step takes of these others nothing but the rows that it is for."""
    if is_tiled_matmul(step):
        wanted = "sum" if tiles_of(step).kind == "sum" else "result"
        operands = operands_in(step, steps)
        return all(role(step, *operand, axes) == wanted for operand in operands)
    loads = [x for x in (step, *step.needed()) if x.source in steps]
    return all(reads_its_own(x, axes) for x in loads)


def read_by_rows(
    nest: Loop, is_wanted: Callable[[Step], bool]
) -> dict[Step, tuple[Axis, ...]]:
    """Matrices of a stack that a nest reads row by row, with the axes of elements."""
    chain = chain_of(nest)
    loads: dict[Step, list[Step]] = {}
    for load in (*leaves_in(nest), *nest.steps()):
        if isinstance(load.source, Step) and is_wanted(load.source):
            loads.setdefault(load.source, []).append(load)
    found: dict[Step, tuple[Axis, ...]] = {}
    for step, its_loads in loads.items():
        if not has_matrices(step) or step.output is not None or step.tiles is not None:
            continue
        ways = {plain_axes(step, load, is_draw(step)) for load in its_loads}
        axes = ways.pop()
        if ways or axes is None or len(axes) < 2:
            continue  # elements of other rows are needed as well
        if list(axes[:-1]) == chain[: len(axes) - 1]:
            found[step] = axes
    return found


def leaves_in(nest: Loop) -> Iterator[Step]:
    """The leaves that the Steps of a nest need."""
    for step in nest.steps():
        yield from (x for x in step.needed() if x.is_leaf)


def chain_of(nest: Loop) -> list[Axis]:
    """The axes of loops that have nothing but the next one in them."""
    axes = [nest.axis]
    while len(nest.body) == 1 and isinstance(nest.body[0], Loop):
        nest = nest.body[0]
        axes.append(nest.axis)
    return axes


def is_sum_of(step: Step, inside: set[Step], axes: tuple[Axis, ...]) -> bool:
    """Whether this is a sum, or the like, along the rows of one of these Steps."""
    is_row = isinstance(step.what, Reduce) and step.labels == frozenset(axes)
    return is_row and all(x.is_leaf and x.source in inside for x in step.inputs)


def is_of_tile(step: Step) -> bool:
    """Whether the value of a Step may be there for the rows of a tile only."""
    is_inner = not is_tiled_matmul(step) or tiles_of(step).kind == "rows"
    return step.output is None and is_inner


def gives_rows(item: Item) -> bool:
    """Whether this is a product whose rows are there for one tile only."""
    return (
        isinstance(item, Step)
        and is_tiled_matmul(item)
        and tiles_of(item).kind == "rows"
    )


def adds_up(step: Step) -> bool:
    """Whether a product adds up over tiles of rows."""
    return step.tiles is not None and step.tiles.kind == "sum"


def adds_in_parts(step: Step) -> bool:
    """Whether a product adds up over tiles that are tasks: each leaves its part."""
    return adds_up(step) and len(tiles_of(step).axes) == 1


def has_matrices(step: Step) -> bool:
    """Whether a value has rows and columns, more than one of each."""
    return step.dims is not None and None not in step.dims[-2:]


def nbytes(step: Step) -> int:
    """How large the whole value of a Step is."""
    sizes = [axis.extent for axis in step.dims or () if axis is not None]
    return math.prod(sizes) * step.dtype.itemsize


def spread(product: Step, axes: Sequence[Axis]) -> tuple[Axis | None, ...]:
    """The axes of a product, None where it has a size of 1."""
    assert product.dims is not None
    rest = iter(axes)
    return tuple(None if dim is None else next(rest) for dim in product.dims)
