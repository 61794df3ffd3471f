"""Column tiles: where rows go by in tiles, their columns may do so as well.

In the gradient of an attention nothing is added up along a row of the matrices between
the products: the forward pass has left what it needs of each row. So a tile need not
have whole rows. With some rows and some columns in a tile, all that is between the
products stays in the near caches, however many columns there are. A product for the
rows of a tile computes some of its columns; one from these rows adds up over tiles of
columns; and a sum over rows has a part of its result for each of them. Where tiles do
not divide the columns, the last one begins earlier, so that it is as wide.

Start reading at `tile_columns`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tapejit.loops.index import Axis
from tapejit.loops.nests import Item
from tapejit.loops.schedule.schedule import (
    Loop,
    only,
    reads_its_own,
    sources_of,
    steps_in,
)
from tapejit.loops.steps import ArrayOp, Step, tiles_of
from tapejit.targets.cpu.schedule.tile_roles import BLOCK_WORDS, is_draw
from tapejit.targets.cpu.target import CPU


def tile_columns(row: Axis, items: Sequence[Item]) -> list[Item]:
    """A loop over tiles of rows with one over tiles of columns, nothing if that fails.

    `items` are what is done for the rows of a tile: products, and loops over its rows.
    Numbers of rows come before, in loops of their own: what they are made of need not
    be there any longer than that.
    """
    column = columns_of(items)
    if column is None:
        return []
    limits = CPU.numerics
    least_rows = limits.column_tile_least_rows
    least_columns = limits.column_tile_least_columns
    rows = part_of(row.hint, limits.column_tile_most_rows, least_rows, 1)
    most, lanes = limits.column_tile_most_columns, limits.column_tile_lanes
    columns = part_of(column.hint, most, least_columns, lanes)
    if rows < least_rows or columns < least_columns or column.hint < 2 * columns:
        return []
    steps = set(steps_in(items))
    if any(map(is_draw, steps)) and column.extent % BLOCK_WORDS:
        return []  # the last tile would begin in the middle of a block of words
    numbers = {x for x in steps if is_number_of_row(x, column)}
    for step in steps - numbers:
        if isinstance(step.what, ArrayOp):
            along, cut = tiles_of(step), cut_of(step, steps)
            along = along._replace(column=column, cut=cut)
            step.change(tiles=along)
    inner = Loop(column, only(items, steps - numbers), tile=columns)
    return [*only(items, numbers), Loop(row, [inner], tile=rows)]


def columns_of(items: Sequence[Item]) -> Axis | None:
    """The axis of columns that all items have, None if one of them needs whole rows."""
    steps = set(steps_in(items))
    products = [x for x in steps if isinstance(x.what, ArrayOp)]
    axes = {last_of(x) for x in products if tiles_of(x).kind == "rows"}
    if len(axes) != 1:
        return None
    (column,) = axes
    if column is None or not all(takes_part(x, column, steps) for x in products):
        return None
    elements = {x for x in steps if not is_number_of_row(x, column)}
    for step in steps:
        if column in step.closed or not reads_own_column(step, column, steps):
            return None
        if step not in elements and any(x in elements for x in sources_of(step)):
            return None
    return column


def is_number_of_row(step: Step, column: Axis) -> bool:
    """Whether this is computed once for each row."""
    return not isinstance(step.what, ArrayOp) and column not in step.labels


def last_of(step: Step) -> Axis | None:
    """The axis of a value's columns."""
    last = step.dims[-1] if step.dims else None
    return None if last is None else last.root


def takes_part(product: Step, column: Axis, steps: set[Step]) -> bool:
    """Whether a product can be computed for some of the columns.

    What it has of the tile are rows with these columns, or its own result is.
    """
    inner = [base for base, *_ in product.views if base in steps]
    if tiles_of(product).kind == "rows":
        return not inner
    return len(inner) == 1 and last_of(inner[0]) is column


def cut_of(product: Step, steps: set[Step]) -> str:
    """Which axis of a product is that of columns."""
    kind = tiles_of(product).kind
    if kind == "sum":
        return "m" if product.views[0][0] in steps else "n"
    return "n" if kind == "rows" else "k"


def reads_own_column(step: Step, column: Axis, steps: set[Step]) -> bool:
    """Whether a Step takes of the tile's values only those of its own column."""
    loads = [x for x in (step, *step.needed()) if x.source in steps]
    return all(reads_its_own(x, [column]) for x in loads)


def part_of(size: int, most: int, least: int, unit: int) -> int:
    """The largest part of a size, a multiple of `unit`, best without a rest."""
    sizes = range(most // unit * unit, least - 1, -unit)
    return next((x for x in sizes if size % x == 0), even_part(size, most, unit))


def even_part(size: int, most: int, unit: int = 1) -> int:
    """The smallest part, a multiple of `unit`, that needs no more of them than `most`.

    >>> even_part(1021, 64), even_part(1021, 256, 16)
    (64, 256)
    """
    parts = math.ceil(size / most)
    return math.ceil(size / parts / unit) * unit
