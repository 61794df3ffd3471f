"""Epilogue fusion: what follows a matmul is computed while it is in registers.

A product is a kernel of its own. What is computed from it element by element need not
wait until it is in memory: `fuse_epilogues` takes such Steps out of the loops that come
after it, and gives them to the product as its epilogue. Products of a layer with bias
and activation, or of a gradient with the update of a variable, so become one kernel.
Sums of what an epilogue computes are begun there, too (`sums`).

Start reading at `fuse_epilogues`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tapejit.loops.fuse.fuse_sums import EpilogueSums, SumCut, is_sum, load_of, sum_cut
from tapejit.loops.index import Affine, Axis
from tapejit.loops.schedule.schedule import Loop, only, steps_in
from tapejit.loops.steps import ArrayOp, Choose, Compute, Convert, Copy, Step, is_matmul

ELEMENTWISE: Final = (Compute, Convert, Copy, Choose)


class EpilogueFusion:
    """The items of a tree by place; some of them move to where their users are."""

    def __init__(self, tree: Sequence[Step | Loop], with_sums: bool) -> None:
        self.with_sums = with_sums
        self.places: list[list[Step | Loop]] = [[item] for item in tree]
        self.place_of: dict[Step, int] = {}
        self.users: dict[Step, list[Step]] = {}
        self.epilogues: dict[Step, Loop] = {}
        for at, item in enumerate(tree):
            for step in steps_in([item]):
                self.place_of[step] = at
                for x in step.needed():
                    self.users.setdefault(x, []).append(step)
                    if x.is_leaf and isinstance(x.source, Step):
                        self.users.setdefault(x.source, []).append(step)

    def fuse(self, product: Step) -> None:
        """Give a product its epilogue, if there is one that is worth it."""
        users = self.users.get(product, [])
        if not users or product.order is not None:
            return
        first = min(users, key=self.place_of.__getitem__)
        at = self.place_of[first]
        nest = next((x for x in self.places[at] if isinstance(x, Loop)), None)
        inside = set() if nest is None else set(nest.steps())
        # Another product there may have taken some of the users.
        early = [x for x in users if self.place_of[x] == at and x not in inside]
        if nest is None or early or has_product(nest):
            return
        load = next(
            (x for x in first.inputs if x.is_leaf and x.source is product), None
        )
        axes = None if load is None else plain_axes(product, load)
        if load is None or axes is None:
            return
        taken = self.taken(nest, product, load, frozenset(axes))
        cut = sum_cut(product) if self.with_sums else SumCut(0, 0)
        sums = self.sums_of([load, *taken], axes, cut)
        done = {*taken, *sums}
        is_kept = product.output is not None or any(x not in done for x in users)
        # Tiles that are stored without an epilogue are not copied: 3% for sums alone.
        if not taken and (is_kept or not sums):
            return
        if len(self.new_in_memory(taken, nest, done)) > (0 if is_kept else 1):
            return
        self.move(product, at, nest, taken, axes, EpilogueSums(sums, axes, cut))

    def taken(
        self, nest: Loop, product: Step, load: Step, axes: frozenset[Axis]
    ) -> dict[Step, None]:
        """The Steps of a nest that need nothing but the product and what was before."""
        inside = set(nest.steps())
        possible: dict[Step, bool] = {}  # whether it depends on the product

        def is_ready(x: Step) -> bool:
            if x.is_leaf:
                is_other = x.source is product and x is not load
                return x.source not in inside and not is_other
            return x in possible or x not in inside

        for step in nest.steps():
            fits = (
                isinstance(step.what, ELEMENTWISE)
                and not step.closed
                and step.labels == axes
            )
            if fits and all(map(is_ready, step.inputs)):
                possible[step] = load in step.inputs or any(
                    possible.get(x, False) for x in step.inputs
                )
        wanted: set[Step] = set()
        for step in reversed(possible):
            if possible[step] or step in wanted:
                wanted.add(step)
                wanted.update(x for x in step.inputs if x in possible)
        return {step: None for step in possible if step in wanted}

    def sums_of(
        self, values: Sequence[Step], axes: Sequence[Axis], cut: SumCut
    ) -> list[Step]:
        """The reductions that need nothing but one of these values."""
        found = []
        for x in values:
            users = self.users.get(x, [])
            others = [y for y in users if y not in values and not is_sum(y, axes, cut)]
            is_kept = x.output is not None or x.whole or bool(others)
            found += [y for y in users if is_sum(y, axes, cut, is_kept)]
        # Rows that are made for a product are in a nest with it, tile by tile.
        return [
            x
            for x in dict.fromkeys(found)
            if not any(
                isinstance(item, Loop) and has_product(item)
                for item in self.places[self.place_of[x]]
            )
        ]

    def new_in_memory(
        self, taken: dict[Step, None], nest: Loop, done: set[Step]
    ) -> list[Step]:
        """What would have to be stored only because it is computed elsewhere."""
        inside = set(nest.steps())
        found = []
        for step in taken:
            users = [x for x in self.users.get(step, []) if x not in done]
            is_stored = step.output is not None or step.whole
            is_stored = is_stored or any(
                x not in inside or step not in x.inputs for x in users
            )
            if users and not is_stored:
                found.append(step)
        return found

    def move(
        self,
        product: Step,
        at: int,
        nest: Loop,
        taken: dict[Step, None],
        axes: Sequence[Axis],
        parts: EpilogueSums,
    ) -> None:
        """Put a product where its first user is, with what it takes from there."""
        body: list[Step | Loop] = [*taken, *parts.steps]
        for axis in reversed(axes):
            body = [Loop(axis, body)]
        (epilogue,) = body
        assert isinstance(epilogue, Loop)
        self.epilogues[product] = epilogue
        self.places[self.place_of[product]].remove(product)
        rest = only([nest], set(nest.steps()) - {*taken, *parts.steps})
        self.load_taken(rest, taken)
        before = self.places[at].index(nest)
        self.places[at][before : before + 1] = [product, *rest]
        self.place_of[product] = at
        for place in {self.place_of[step] for step in parts.closed}:
            self.places[place] = parts.added(self.places[place])
            self.load_taken(self.places[place], dict.fromkeys(parts.steps))

    def load_taken(self, rest: list[Step | Loop], taken: dict[Step, None]) -> None:
        """Let what is left of a nest load what is now computed elsewhere.

        How such memory lies decides along which axis the nest has its vectors.
        """
        loads: dict[Step, Step] = {}
        for user in steps_in(rest):
            for at, x in enumerate(user.inputs):
                if x in taken:
                    load = loads.setdefault(x, load_of(x))
                    user.inputs[at] = load
                    self.users.setdefault(load, []).append(user)


def has_product(nest: Loop) -> bool:
    """Whether a nest makes rows for a product, or of one."""
    return any(isinstance(step.what, ArrayOp) for step in nest.steps())


def plain_axes(
    product: Step, load: Step, may_end: bool = False
) -> tuple[Axis, ...] | None:
    """The axes along which a product is loaded element by element, if it is.

    With `may_end`, what is loaded of a row may end before the row does.
    """
    if load.ranges or load.is_flat or product.dims is None:
        return None
    axes: list[Axis] = []
    for dim, position in zip(product.dims, load.index, strict=True):
        if not isinstance(position, Affine):
            return None
        if dim is None:
            if position.terms or position.constant:
                return None
            continue
        if len(position.terms) != 1 or position.constant or position.terms[0][1] != 1:
            return None
        axes.append(position.terms[0][0].root)
    sizes = [dim.extent for dim in product.dims if dim is not None]
    if may_end and axes and axes[-1].extent < sizes[-1]:
        sizes[-1] = axes[-1].extent
    is_whole = [axis.extent for axis in axes] == sizes
    return tuple(axes) if axes and is_whole and len(set(axes)) == len(axes) else None


def fuse_epilogues(
    tree: Sequence[Step | Loop], with_sums: bool = True
) -> tuple[list[Step | Loop], dict[Step, Loop]]:
    """The tree without the Steps that are done along with products, and those."""
    made = EpilogueFusion(tree, with_sums)
    for product in products_in(tree):
        made.fuse(product)
    return [item for place in made.places for item in place], made.epilogues


def products_in(tree: Sequence[Step | Loop]) -> Iterator[Step]:
    """The products among the items at the top."""
    for item in tree:
        if isinstance(item, Step) and is_matmul(item):
            yield item
