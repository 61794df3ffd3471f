"""Output layout: a matmul is written in the order that a copy of it would have.

Heads that are joined, or axes that change places before a reshape, make a copy: the
elements of a product in another order. If nobody wants them in the old one, the product
has no need to be in memory twice: its own memory takes the order of the copy, and what
would have read the copy reads the product. `order` says which axis of the product's
matrices comes where. A product that grows tile by tile may be better off with another
order in any case (`transpose_output`).

Start reading at `lay_out_outputs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tapejit.ir.node import Node
from tapejit.loops.fuse.fuse_epilogue import plain_axes
from tapejit.loops.index import strides_of
from tapejit.loops.lower.value_at_index import is_view, moved_view
from tapejit.loops.schedule.schedule import Loop, loops_in, only, sources_of, steps_in
from tapejit.loops.steps import ArrayOp, Copy, Load, Step, View, view_others
from tapejit.targets.cpu.schedule.tile_roles import is_tiled_matmul
from tapejit.targets.cpu.target import CPU


def lay_out_outputs(tree: Sequence[Step | Loop]) -> list[Step | Loop]:
    """The tree, with products in the memory of their copies."""
    steps = list(steps_in(tree))
    users: dict[Step, list[Step]] = {}
    for step in steps:
        for x in sources_of(step):
            users.setdefault(x, []).append(step)
    instead: dict[Step, Step] = {}
    for copy in steps:
        product = copied_product(copy)
        if product is None or product.order is not None or adds_up(product, tree):
            continue
        others = [x for x in users[product] if x is not copy]
        order = order_of(copy, product)
        if order is None or order == sorted(order):
            continue
        if reorder(product, order, others):
            instead[copy] = product
    for product in steps:
        if adds_up(product, tree) and product.output is None and product.whole:
            transpose_output(product, users.get(product, []))
    if not instead:
        return list(tree)
    for step in steps:
        redirect(step, instead)
    return only(tree, set(steps) - set(instead))


def reorder(product: Step, order: list[int], users: Sequence[Step]) -> bool:
    """Let the memory of a product have its axes in this order; whether users can."""
    strides = result_strides(product, order)
    whole = [x for x in users if isinstance(x.what, ArrayOp)]
    views = {x: views_of(x, product, strides) for x in whole}
    loads = [x for y in users if y not in views for x in loads_of(y, product)]
    if None in views.values() or None in loads:
        return False
    assert product.dims is not None
    product.dims = tuple(product.dims[axis] for axis in order)
    product.change(order=tuple(order))
    for x, there in views.items():
        x.change(views=there)
    for load in dict.fromkeys(loads):
        assert load is not None
        load.change(index=tuple(load.index[axis] for axis in order))
    return True


def transpose_output(product: Step, users: Sequence[Step]) -> None:
    """Let a product with few rows to which tiles are added have them as columns.

    Then what a tile is multiplied with is packed, and the tile itself is not read again
    and again. The next row is not far away, even if matrices of a stack take turns.
    """
    *front, m, n = range(len(product.performed.shape))
    shape = tuple(map(int, product.performed.shape))
    if shape[m] >= shape[n]:
        return
    for at in range(len(front), -1, -1):
        order = [*front[:at], n, *front[at:], m]
        apart = math.prod(shape[axis] for axis in order[at + 1 :])
        is_far = apart * product.dtype.itemsize > CPU.numerics.transposed_row_bytes
        if is_far or reorder(product, order, users):
            return


def copied_product(copy: Step) -> Step | None:
    """The product of matrices that a Step copies to memory, element by element."""
    if not isinstance(copy.what, Copy) or not copy.whole or copy.output is not None:
        return None
    (load,) = copy.inputs
    product = load.source
    if (
        not load.is_leaf
        or not isinstance(product, Step)
        or not is_tiled_matmul(product)
    ):
        return None
    return product if product.output is None and product.whole else None


def adds_up(product: Step, tree: Sequence[Step | Loop]) -> bool:
    """Whether tiles of rows add to a product, one after the other: it stays compact."""
    along = product.tiles
    if along is None or along.kind != "sum":
        return False
    row = along.axes[-1]
    tiles = [x.tile for x in loops_in(tree) if x.tile and product in x.body]
    return any(tile < row.extent for tile in tiles)


def order_of(copy: Step, product: Step) -> list[int] | None:
    """Which axis of the product is where in the copy; None if there is no such order.

    Elements that are next to each other must be those of a row or of a column.
    """
    (load,) = copy.inputs
    axes = plain_axes(product, load)
    if axes is None or copy.dims is None or product.dims is None:
        return None
    own = [at for at, dim in enumerate(product.dims) if dim is not None]
    place = dict(zip(axes, own, strict=True))
    wanted = [dim.root for dim in copy.dims if dim is not None]
    if len(wanted) != len(own) or any(axis not in place for axis in wanted):
        return None
    single = iter([at for at, dim in enumerate(product.dims) if dim is None])
    if len(copy.dims) != len(product.dims):
        return None
    order = [next(single) if dim is None else place[dim.root] for dim in copy.dims]
    last = next(at for at in reversed(order) if product.dims[at] is not None)
    return order if last >= len(product.dims) - 2 else None


def views_of(
    step: Step, product: Step, strides: tuple[int, ...]
) -> tuple[View, ...] | None:
    """The operands of an operation on whole arrays, if a product lies otherwise."""
    if not isinstance(step.what, ArrayOp) or step.node is None:
        return None
    found: list[View] = []
    for x, view in zip(step.node.inputs, step.views, strict=True):
        if view[0] is product:
            there = view_in(x, product, strides)
            if there is None:
                return None
            view = View(product, *there)
        found.append(view)
    return tuple(found)


def loads_of(step: Step, product: Step) -> list[Step | None]:
    """The loads by which a Step has elements of a product; None for another way."""
    around = [x for x in (step, *step.needed()) if x.source is product]
    plain = [x for x in around if isinstance(x.what, Load) and not x.is_flat]
    is_plain = len(plain) == len(around) and product not in step.inputs
    return [*plain] if is_plain else [None]


def view_in(
    node: Node, product: Step, strides: tuple[int, ...]
) -> tuple[int, tuple[int, ...]] | None:
    """Where a view of a product begins, and how far its elements are apart."""
    if node is product.node:
        return 0, strides
    if not is_view(node):
        return None
    there = view_in(node.inputs[0], product, strides)
    return None if there is None else moved_view(node, *there)


def redirect(step: Step, instead: dict[Step, Step]) -> None:
    """Let a Step read products in place of copies: memory is the same."""
    for x in (step, *step.needed()):
        if isinstance(x.source, Step) and x.source in instead:
            x.change(source=instead[x.source])
    step.inputs = [instead.get(x, x) for x in step.inputs]
    view_others(step, instead)


def result_strides(
    product: Step, order: Sequence[int] | None = None
) -> tuple[int, ...]:
    """How far elements of a product are apart, by the axes of its matrices."""
    shape = tuple(map(int, product.performed.shape))
    order = order or product.order or range(len(shape))
    plain = strides_of([shape[axis] for axis in order])
    return tuple(step for _, step in sorted(zip(order, plain, strict=True)))
