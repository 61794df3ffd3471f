"""Row tiles, as in flash attention: matmuls and what is between them share loops.

Between the products of an attention stand matrices with an element for every pair of
positions; memory and time would go into them. But their rows do not depend on each
other. So where a nest computes rows of a product, for rows of another product, all
three are done for a block of rows at a time: the nest's outer loops are kept, the rows
go by in tiles, and in a tile there are products and loops over its rows in turn.

A product takes part in one of three ways. For "rows", it computes those of a tile that
the nest reads; as a "result", those of a tile from what the nest has made. A "sum" adds
to all of its result what the rows of a tile contribute.
Random words that a nest takes row by row are drawn for the rows of a tile, as if they
were such a product.
Values of an earlier nest that would be large are computed again, product and all, from
its numbers of rows. A nest that makes rows for products alone shares its loops with
them as well, though there is no product before it.

Start reading at `tile_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import compress

from tapejit.loops.index import Axis
from tapejit.loops.nests import Item
from tapejit.loops.schedule.schedule import Loop, only, sources_of, steps_in
from tapejit.loops.steps import Step, TileRole, view_others
from tapejit.targets.cpu.schedule.tile_columns import even_part, tile_columns
from tapejit.targets.cpu.schedule.tile_roles import (
    chain_of,
    gives_rows,
    is_draw,
    is_of_tile,
    is_sum_of,
    is_tiled_matmul,
    leaves_in,
    nbytes,
    operands_in,
    read_by_rows,
    role,
    spread,
    takes_own_rows,
)
from tapejit.targets.cpu.target import CPU


def tile_rows(tree: Sequence[Item]) -> list[Item]:
    """The tree, with products and the nests between them in common loops."""
    if not any(is_tiled_matmul(item) for item in tree):
        return list(tree)
    made = Arranger(tree)
    seen: set[Loop] = set()
    while nests := made.nests(seen):
        for nest in nests:
            seen.add(nest)
            if made.arrange(nest):
                break  # the order of the others may be another one now
    return made.result()


@dataclass(eq=False)
class Group:
    """Items that come one after the other; with `axes`, in common loops over these."""

    items: list[Item]
    axes: tuple[Axis, ...] = ()
    width: int = 0  # of the widest product

    def steps(self) -> Iterator[Step]:
        """Every Step of its items."""
        return steps_in(self.items)


class Arranger:
    """Groups of items, in an order that computes everything before it is used."""

    def __init__(self, tree: Sequence[Item]) -> None:
        self.groups = [Group([item]) for item in tree]
        # Known as long as no Step is added or takes other values.
        self._users: dict[Step, list[Step]] | None = None

    def nests(self, seen: set[Loop]) -> list[Loop]:
        """The nests of their own that were not looked at yet."""
        items = (
            item for group in self.groups if not group.axes for item in group.items
        )
        return [x for x in items if isinstance(x, Loop) and x not in seen]

    def arrange(self, nest: Loop) -> bool:
        """Let a nest be one with the products before and after it, if it can.

        Whether it is.
        """
        before = self.products_before(nest)
        if before:
            axes = next(iter(before.values()))[:-1]
            width = max(x[-1].hint for x in before.values())
            is_one = all(x[:-1] == axes for x in before.values())
        else:
            axes, width = self.rows_for_products(nest)
            is_one = bool(axes)
        elements = math.prod(axis.hint for axis in axes) * width
        is_large = elements >= CPU.numerics.row_tile_least_elements
        if not is_large or not is_one:
            return False
        if before and len(axes) == 1 and not self.is_between(before, nest, axes):
            return False
        group = Group([], axes, width)
        if not self.moved([*before, nest], group):
            return False
        for product, x in before.items():
            product.dims = spread(product, x)
            product.change(tiles=TileRole("rows", axes))
        if before:
            self.draw(nest, group)
        for product in self.lone_products():
            self.take(product, group, set(nest.steps()))
        self.take_sums(group, set(nest.steps()))
        self.recompute(group)
        return True

    def products_before(self, nest: Loop) -> dict[Step, tuple[Axis, ...]]:
        """The products that a nest reads row by row and nobody else needs.

        With each of them the axes of its elements: those of rows, and its columns.
        """
        found = read_by_rows(nest, is_tiled_matmul)
        if not found:
            return found
        users, inside = self.users(), set(nest.steps())
        return {
            product: axes
            for product, axes in found.items()
            if all(x in inside for x in users[product])
        }

    def is_between(
        self, before: Iterable[Step], nest: Loop, axes: tuple[Axis, ...]
    ) -> bool:
        """Whether a matrix is larger than what it is made of, and goes into a product.

        Products of a single matrix are kernels for all threads, with an epilogue. Only
        what would take more time to store is worth being their rows' own.
        """
        for product in before:
            assert product.node is not None
            sizes = [math.prod(map(int, x.shape)) for x in product.node.inputs]
            least = CPU.numerics.row_tile_result_ratio * sum(sizes)
            if math.prod(map(int, product.node.shape)) < least:
                return False
        inside = set(nest.steps())
        after = [
            (product, *operand)
            for product in self.lone_products()
            for operand in operands_in(product, inside)
        ]
        return any(role(*x, axes) is not None for x in after)

    def draw(self, nest: Loop, group: Group) -> None:
        """Let a nest have its random words from draws for its own rows.

        Others who need the same words draw them once more.
        """
        for step, axes in read_by_rows(nest, is_draw).items():
            if axes[:-1] != group.axes:
                continue
            copies = Copies({step})
            made = copies.step(step)
            for x in nest.steps():
                copies.redirect(x)
            made.dims = spread(made, axes)
            made.change(tiles=TileRole("rows", group.axes))
            group.items.insert(0, made)
            self._users = None

    def rows_for_products(self, nest: Loop) -> tuple[tuple[Axis, ...], int]:
        """The axes of rows that a nest makes for products alone, and their length.

        So what goes into a product, a normalization, what is picked from a table, need
        not be in memory as a whole either. The other operand has to be near.
        """
        chain, inside, users = chain_of(nest), set(nest.steps()), self.users()
        near = {x for step in inside for x in users.get(step, ()) if is_tiled_matmul(x)}
        if not near:  # of most nests
            return (), 0
        for product in self.lone_products():
            if product not in near:
                continue
            at, base = next(operands_in(product, inside), (1, product))
            if at or base.dims is None or base.output is not None:
                continue
            own = tuple(axis.root for axis in base.dims if axis is not None)
            axes = own[:-1]
            is_row_by_row = bool(axes) and list(axes) == chain[: len(axes)]
            if is_row_by_row and all(
                is_tiled_matmul(x)
                and role(x, 0, base, axes) == "result"
                and is_near(x)
                and len(list(operands_in(x, inside))) == 1
                for x in users[base]
            ):
                return axes, own[-1].hint
        return (), 0

    def lone_products(self) -> list[Step]:
        """The products that are in no common loops."""
        single = [group.items[0] for group in self.groups if len(group.items) == 1]
        return [x for x in single if isinstance(x, Step) and is_tiled_matmul(x)]

    def users(self) -> dict[Step, list[Step]]:
        """Who needs each Step, leaves between them left out."""
        if self._users is not None:
            return self._users
        found: dict[Step, list[Step]] = {}
        for group in self.groups:
            for step in group.steps():
                for x in sources_of(step):
                    found.setdefault(x, []).append(step)
        self._users = found
        return found

    def moved(self, items: Sequence[Item], group: Group) -> bool:
        """Move items to the end of a group, if there is still an order then."""
        before = [(x, list(x.items)) for x in self.groups]
        own = list(group.items)
        for x in self.groups:
            x.items = [item for item in x.items if item not in items]
        group.items += items
        groups = [x for x in self.groups if x.items and x is not group]
        order = ordered([*groups, group])
        if order is not None:
            self.groups = order
            return True
        for x, there in before:
            x.items = there
        if group not in self.groups:
            group.items = own
        return False

    def take(self, product: Step, group: Group, inside: set[Step]) -> bool:
        """Add a product to a group if one of its operands are rows of that."""
        found = list(operands_in(product, inside))
        kind = role(product, *found[0], group.axes) if len(found) == 1 else None
        # Without a stack, tiles are tasks, and each of these has a sum of its own: too
        # many, unless rows are there only as long as the tile is.
        is_in_parts = kind == "sum" and len(group.axes) == 1
        if kind is None or (is_in_parts and not any(map(gives_rows, group.items))):
            return False
        # What else comes from these loops is there only when they are over, and so is
        # this.
        here = set(group.steps())
        is_late = any(x in here and x is not found[0][1] for x in sources_of(product))
        is_needed = any(product in sources_of(x) for x in here)
        if is_late or is_needed or not self.moved([product], group):
            return False
        product.change(tiles=TileRole(kind, group.axes))
        return True

    def take_sums(self, group: Group, inside: set[Step]) -> None:
        """Add the sums along rows that a later nest takes of what is computed here."""
        for other in list(self.groups):
            (item,) = other.items if len(other.items) == 1 else (None,)
            if not isinstance(item, Loop) or other.axes:
                continue
            if tuple(chain_of(item)[: len(group.axes)]) != group.axes:
                continue
            sums = [x for x in item.steps() if is_sum_of(x, inside, group.axes)]
            read = {x for step in group.steps() for x in sources_of(step)}
            if not sums or any(step in read for step in sums):
                continue
            before = list(group.items), list(other.items)
            for step in sums:
                body: list[Item] = [step]
                rest = [axis.root for axis in step.reduced]
                for axis in reversed([*group.axes, *rest]):
                    body = [Loop(axis, body)]
                group.items += body
            other.items = only([item], set(item.steps()) - set(sums))
            order = ordered([x for x in self.groups if x.items])
            if order is None:
                group.items, other.items = before
            else:
                self.groups = order

    def recompute(self, group: Group) -> None:
        """Have large values of an earlier group here as well, computed once more.

        Those that a product of its own reads, too: it may be done here as well. Numbers
        of rows, such as the largest element and the sum of powers, are kept.
        """
        used = {x for step in group.steps() for x in sources_of(step)}
        for other in self.groups:
            if other is group or other.axes != group.axes:
                continue
            theirs = list(other.steps())
            rows = {x for x in theirs if x.labels and x.labels <= set(group.axes)}
            wanted = [x for x in theirs if x in used - rows and is_of_tile(x)]
            if wanted:
                lone = {x for y in self.lone_products() for x in sources_of(y)}
                wanted += [x for x in theirs if x in lone - used and is_of_tile(x)]
            if sum(map(nbytes, wanted)) < CPU.numerics.row_tile_recomputed_bytes:
                continue
            needed = set(wanted)
            for step in reversed(theirs):
                if step in needed:
                    sources = (x for x in sources_of(step) if x in theirs)
                    needed.update(x for x in sources if x not in rows)
            users = [*group.steps(), *needed]
            if all(map(is_of_tile, needed)) and all(
                takes_own_rows(step, needed, group.axes) for step in users
            ):
                self.copy_to(group, other, needed)

    def copy_to(self, group: Group, other: Group, needed: set[Step]) -> None:
        """Compute some Steps of one group in another one, too."""
        self._users = None
        copies = Copies(needed)
        again: list[Item] = []
        for item in other.items:
            if isinstance(item, Loop):
                again += [joined(copies.loop(x)) for x in only([item], needed)]
            elif item in needed:
                again.append(copies.step(item))
        for step in group.steps():
            copies.redirect(step)
        group.items[:0] = again
        made = set(copies.steps.values())
        for product in self.lone_products():  # whose operands may be here now
            what, inputs = product.what, product.inputs
            copies.redirect(product)
            if not self.take(product, group, made):
                product.do(what)
                product.inputs = inputs
        # What only such a product would have needed is not.
        used = {x for step in group.steps() for x in sources_of(step)}
        while unused := made - used:
            made &= used
            group.items = only(group.items, set(group.steps()) - unused)
            used = {x for step in group.steps() for x in sources_of(step)}

    def result(self) -> list[Item]:
        """The tree with one nest for each group."""
        found: list[Item] = []
        users = self.users()
        for group in self.groups:
            if not group.axes:
                is_needed = (x in users or not is_draw(x) for x in group.items)
                found += compress(group.items, is_needed)
                continue
            inside = set(group.steps())
            for step in inside:  # what stays among rows need not be in one piece
                is_read_here = all(x in inside for x in users.get(step, ()))
                if is_read_here and is_of_tile(step):
                    step.whole = False
            *outer, row = group.axes
            body = [
                Loop(row, nest_at(item, len(outer)).body)
                if isinstance(item, Loop)
                else item
                for item in group.items
            ]
            rows = rows_of(group.axes, group.width)
            nests = tile_columns(row, body) or [Loop(row, body, tile=rows)]
            for nest in nests:
                for axis in reversed(outer):
                    nest = Loop(axis, [nest])
                found.append(nest)
        return found


def is_near(product: Step) -> bool:
    """Whether a right operand stays in a second cache from one tile to the next."""
    assert product.node is not None
    right = product.node.inputs[1]
    size = math.prod(map(int, right.shape[-2:])) * right.dtype.itemsize
    return size <= CPU.numerics.row_tile_operand_bytes


def ordered(groups: Sequence[Group]) -> list[Group] | None:
    """Groups in an order that computes everything before it is used, if there is one.

    Those that could come next come in the order that they had.
    """
    group_of = {step: at for at, group in enumerate(groups) for step in group.steps()}
    users: list[list[int]] = [[] for _ in groups]
    missing: list[int] = []
    for at, group in enumerate(groups):
        needs = {group_of[x] for step in group.steps() for x in sources_of(step)}
        needs.discard(at)
        missing.append(len(needs))
        for x in needs:
            users[x].append(at)
    ready = [at for at, count in enumerate(missing) if not count]  # a heap
    order: list[Group] = []
    while ready:
        done = heappop(ready)
        order.append(groups[done])
        for at in users[done]:
            missing[at] -= 1
            if not missing[at]:
                heappush(ready, at)
    return order if len(order) == len(groups) else None


def joined(item: Item) -> Item:
    """A nest, with loops that no longer have anything between them as one.

    They stood apart for the sake of reductions, which are not in it.
    """
    if not isinstance(item, Loop):
        return item
    body: list[Item] = []
    for x in map(joined, item.body):
        last = body[-1] if body else None
        if isinstance(x, Loop) and isinstance(last, Loop) and last.axis is x.axis:
            before = set(last.steps())
            if not any(y.source in before for y in leaves_in(x)):
                body[-1] = Loop(x.axis, [*last.body, *x.body], tile=x.tile)
                continue
        body.append(x)
    return Loop(item.axis, body, tile=item.tile)


def nest_at(nest: Loop, depth: int) -> Loop:
    """The loop that is so deep in a chain of loops."""
    for _ in range(depth):
        (inner,) = nest.body
        assert isinstance(inner, Loop)
        nest = inner
    return nest


class Copies:
    """Steps once more, with their leaves."""

    def __init__(self, wanted: set[Step]) -> None:
        self.wanted = wanted
        self.steps: dict[Step, Step] = {}

    def step(self, step: Step) -> Step:
        """The copy of a Step; of one that is not to be copied, itself."""
        found = self.steps.get(step)
        if found is not None:
            return found
        is_between = step.is_leaf and step.source in self.wanted
        if step not in self.wanted and not is_between:
            return step
        made = step.copy([self.step(x) for x in step.inputs])
        if isinstance(step.source, Step):
            made.change(source=self.step(step.source))
        made.whole = step.whole
        for axis in (*step.axes, *step.reduced):
            axis.root.steps.add(made.number)
        self.steps[step] = made
        return made

    def loop(self, item: Item) -> Item:
        """The copy of a loop with all that is in it."""
        if not isinstance(item, Loop):
            return self.step(item)
        return Loop(item.axis, [self.loop(x) for x in item.body], tile=item.tile)

    def redirect(self, step: Step) -> None:
        """Let a Step use copies where there are any."""
        step.inputs = [self.step(x) for x in step.inputs]
        view_others(step, self.steps)


def rows_of(axes: tuple[Axis, ...], width: int) -> int:
    """How many rows make a tile: as many as there is room for, best without a rest."""
    size, limits = axes[-1].hint, CPU.numerics
    least = min(limits.row_tile_least_rows, size)
    room = max(limits.row_tile_least_rows, limits.row_tile_bytes // (4 * width))
    most = min(limits.row_tile_most_rows, room, size)
    more = min(limits.row_tile_most_rows, 4 * room)
    sizes = [*range(most, least - 1, -1), *range(most + 1, more)]
    return next((n for n in sizes if size % n == 0), even_part(size, most))
