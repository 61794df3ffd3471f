"""In-place update: which results may be written over an input.

The new value of a variable, `w - rate * g`, is computed from the old one element by
element. If nobody needs the old one afterwards, the new one can have its memory: half
of the memory is touched, and what is written is in the cache already. `update_in_place`
finds such results, each with the inputs that it may replace. Whether one does is known
when the code is called; the code is right in both cases, if

- other kernels that read the input come before the one that writes over it, so kernels
  change their order where that helps;
- that kernel reads the input only where it writes, and only for what it writes there;
- nothing can fail or be interrupted from then on: whoever calls relies on it that code
  which gives up has changed nothing. So what can fail comes first too, and what is left
  to do is short.

Start reading at `update_in_place`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeGuard, TypeVar

from tapejit.loops.index import Axis, strides_of
from tapejit.loops.nests import Nest, Nests, Updates
from tapejit.loops.schedule.schedule import sources_of
from tapejit.loops.steps import (
    ArrayOp,
    Buffer,
    CheckedIndex,
    Load,
    Step,
    Verify,
    element_of,
    is_matmul,
)

AnyNest = TypeVar("AnyNest", bound=Nest)


def update_in_place(nests: Nests) -> Nests:
    """The nests in the order in which most results can replace an input.

    Also these results, with the inputs that each may replace. Signals are not asked for
    after an update, so no more work is left then than the target allows.
    """
    order = Order(nests.nests)
    found: list[tuple[int, Buffer, Buffer]] = []
    for at, nest in enumerate(nests.nests):
        # All threads have what is outside of loops, so one of them may not write it
        # while others read: a nest of numbers is for one thread alone.
        has_numbers = nests.target.overwrites_numbers and nest.role == "steps"
        for out, given in candidates(nest, has_numbers):
            if order.put_last(at, {*order.readers[given], *order.failing}):
                found.append((at, out, given))
    if not found:
        return nests
    places = order.sorted()
    left, late = nests.target.unpolled_instructions, set()
    for at in reversed(places):
        left -= nests.nests[at].work
        if left < 0:
            break
        late.add(at)
    updates: dict[Buffer, list[Buffer]] = {}
    for at, out, given in found:
        if at in late:
            updates.setdefault(out, []).append(given)
    moved = tuple(nests.nests[at] for at in places)
    return replace(nests, nests=moved, updates=updates)


class Order:
    """What has to come before what among nests, which are numbers here."""

    def __init__(self, nests: Sequence[Nest]) -> None:
        self.readers: dict[Buffer, set[int]] = {}
        self.failing = {at for at, x in enumerate(nests) if can_fail(x)}
        self.needs: list[set[int]] = [set() for _ in nests]
        self.before: list[int] = []  # all that come before each, as bits
        made_by = {step: at for at, x in enumerate(nests) for step in x.steps()}
        for at, nest in enumerate(nests):
            for step in nest.steps():
                for buffer in buffers_of(step):
                    self.readers.setdefault(buffer, set()).add(at)
                self.needs[at].update(made_by[x] for x in sources_of(step))
            self.needs[at].discard(at)
            self.before.append(self.bits(self.needs[at]))

    def bits(self, some: set[int]) -> int:
        """These nests and all that come before them."""
        found = 0
        for at in some:
            found |= self.before[at] | 1 << at
        return found

    def put_last(self, last: int, others: set[int]) -> bool:
        """Have a nest come after others; False if that is impossible."""
        others, own = others - {last}, 1 << last
        if last in self.failing or any(self.before[at] & own for at in others):
            return False
        self.needs[last] |= others
        new = self.bits(others)
        if new & ~self.before[last]:
            for at, known in enumerate(self.before):
                if at == last or known & own:
                    self.before[at] = known | new
        return True

    def sorted(self) -> list[int]:
        """All nests, as far as possible in the order in which they were."""
        users: list[list[int]] = [[] for _ in self.needs]
        missing = [len(needed) for needed in self.needs]
        for at, needed in enumerate(self.needs):
            for x in needed:
                users[x].append(at)
        ready = [at for at, count in enumerate(missing) if not count]
        heapify(ready)
        found = []
        while ready:
            found.append(heappop(ready))
            for user in users[found[-1]]:
                missing[user] -= 1
                if not missing[user]:
                    heappush(ready, user)
        return found


def first_update(nests: Sequence[AnyNest], updates: Updates) -> AnyNest | None:
    """The first nest that may write over an input."""
    for nest in nests:
        if any(step.output in updates for step in nest.steps()):
            return nest
    return None


def can_fail(nest: Nest) -> bool:
    """Whether something in a nest may leave the mark of a failure."""
    step = nest.array_op
    is_whole = step is not None and not is_matmul(step) and not is_scatter(step)
    return is_whole or any(
        isinstance(x.what, (Verify, CheckedIndex)) for x in nest.steps()
    )


def is_scatter(step: Step) -> bool:
    """Whether a Step adds at positions, which others have checked.

    It reads a row of its first operand only to write it, and nothing else of it.
    """
    if not isinstance(step.what, ArrayOp):
        return False
    return step.what.op.scatters is not None


def candidates(nest: Nest, has_numbers: bool) -> Iterator[tuple[Buffer, Buffer]]:
    """Results and inputs that the nest reads only where it writes the result."""
    uses: dict[Buffer, list[Step]] = {}
    places: dict[Buffer, list[dict[Axis, int] | None]] = {}
    whole: set[Buffer] = set()
    inside = set(nest.steps())
    for step in nest.steps():
        for x in (step, *step.needed()):
            if isinstance(x.what, Load) and is_input(x.source):
                uses.setdefault(x.source, []).append(step)
                places.setdefault(x.source, []).append(strides_in(x))
        whole.update(viewed(step))
    for step in nest.steps():
        out = step.output
        if out is not None and is_scatter(step):
            given, offset, strides = step.views[0]
            if is_input(given) and is_alike(given, out):  # else a nest has made it
                is_alone = viewed(step).count(given) == 1
                if is_alone and not offset and strides == strides_of(given.shape):
                    yield out, given
        if out is None or step.closed or isinstance(step.what, ArrayOp):
            continue
        place = own_strides(step)
        behind: set[Step] | None = None
        for given, users in uses.items():
            if given in whole or not is_alike(given, out, has_numbers):
                continue
            if any(x != place for x in places[given]):
                continue
            behind = ancestors(step, inside) if behind is None else behind
            if behind.issuperset(users):
                yield out, given


def is_input(source: object) -> TypeGuard[Buffer]:
    return isinstance(source, Buffer) and source.kind == "input"


def is_alike(one: Buffer, other: Buffer, has_numbers: bool = False) -> bool:
    """Whether these are arrays, or perhaps numbers, of the same dtype and shape."""
    is_array = has_numbers or bool(one.shape)
    return is_array and one.shape == other.shape and one.dtype == other.dtype


def buffers_of(step: Step) -> Iterator[Buffer]:
    """The inputs that a Step reads, itself or through leaves."""
    for x in (step, *step.needed()):
        if is_input(x.source):
            yield x.source
    yield from viewed(step)


def viewed(step: Step) -> list[Buffer]:
    """The inputs that an operation on whole arrays reads."""
    return [x for x, *_ in step.views if is_input(x)]


def ancestors(step: Step, inside: set[Step]) -> set[Step]:
    """All of a nest's Steps that a Step's value is made of, itself included.

    What leads out of a nest does not lead back.
    """
    found, left = {step}, [step]
    while left:
        for x in sources_of(left.pop()):
            if x in inside and x not in found:
                found.add(x)
                left.append(x)
    return found


def own_strides(step: Step) -> dict[Axis, int]:
    """Where a result's elements go in its memory, by axis."""
    dims = step.dims or ()
    sizes = [1 if dim is None else dim.extent for dim in dims]
    return {
        dim.root: stride
        for dim, stride in zip(dims, strides_of(sizes), strict=True)
        if dim is not None
    }


def strides_in(load: Step) -> dict[Axis, int] | None:
    """Where a load reads its array, by axis; None if that is not all there is to it."""
    if load.ranges or load.is_flat:
        return None
    assert isinstance(load.what, Load)
    assert isinstance(load.what.source, Buffer)
    place = element_of(load.what, load.what.source)
    return None if place is None or place.constant else dict(place.rooted().terms)
