"""Lowering: a Graph as Steps, what each Node computes in one iteration.

`Lowering.add` makes the Steps of one Node: elementwise operations, reductions, products
of matrices, operations on whole arrays. Movements make none: they are folded into the
positions at which others read (`reading.py`).

What a Graph must be made of, `native_ops.is_native` says.

Start reading at `lower`, then `Lowering.add`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.base.types import is_differentiable
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, OPS, Movement, Node, origin_of
from tapejit.loops import numerics
from tapejit.loops.index import Affine, Axis, Index, Range, strides_of
from tapejit.loops.lower.grouped import is_looped
from tapejit.loops.lower.value_at_index import (
    INT64,
    ValueAtIndex,
    aligned,
    axes_in,
    index_of,
)
from tapejit.loops.lower.windows import Frame, framed_padding, frames_of
from tapejit.loops.native_ops import (
    counting_axis,
    is_inside,
    is_small_product,
    is_whole,
    is_whole_cast,
    one_hot,
)
from tapejit.loops.nests import Nests, nests_of
from tapejit.loops.steps import (
    AddAt,
    ArrayOp,
    Buffer,
    CheckedIndex,
    Choose,
    Compute,
    Contract,
    Convert,
    Copy,
    IndexValue,
    Load,
    Number,
    Reduce,
    Step,
    Verify,
    View,
)
from tapejit.ops.row_updates import subtract_rows

FAR: Final = 1 << 24  # numbers below it may be positions
# By how much the larger one has to exceed the smaller one.
COMPARISONS: Final = {
    ops.greater_equal: 0,
    ops.less_equal: 0,
    ops.greater: 1,
    ops.less: 1,
}
MOST_EXACT: Final = 1 << 24  # whole numbers below it are floats, too


def lower(nests: Nests) -> Nests:
    """The Steps of a Graph in an order that can run, and the memory they know."""
    graph = nests.graph
    lowering = Lowering(graph)
    for node in graph.nodes:
        lowering.add(node)
    for at, node in enumerate(graph.outputs):
        lowering.output(at, node)
    return replace(
        nests,
        nests=nests_of(unrepeated(lowering.steps)),
        outputs=tuple(lowering.outputs),
        constants=tuple(lowering.constants.values()),
    )


class Lowering(ValueAtIndex):
    """Makes Steps of Nodes."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.frames: dict[tuple[Any, ...], Node] = {}  # what `placed` has made

    def add(self, node: Node) -> None:
        """Lower one Node, if there is something to compute."""
        op = node.op
        if op is LITERAL or op.moves in (Movement.ALIAS, Movement.VIEW):
            return
        if is_whole(node):
            self.computed[node] = self.array_op(node)
            return
        if op.moves is Movement.PIECES or op is ops.iota:
            return  # computed where they are asked for
        if op is ops.gather:
            x, *indices = node.inputs
            self.check_positions(x, indices, node.attrs["axes"])
            return
        if op.reduces is not None:
            if node.attrs["axes"] or node.inputs[0].dtype != node.dtype:
                self.computed[node] = self.reduction(node)
        elif op is ops.window_max:
            self.computed[node] = self.pooled(node)
        elif op is ops.matmul:
            small = is_small_product(*node.inputs)
            self.computed[node] = self.product(node) if small else self.array_op(node)
        elif op is ops.convolve:
            self.computed[node] = self.convolved(node)
        elif op.terms is not None:
            looped = is_looped(node)
            self.computed[node] = (
                self.correlated(node) if looped else self.array_op(self.framed(node))
            )
        elif op is ops.gather_add and one_hot(node) is not None:
            self.computed[node] = self.selected_row(node)
        elif op.bound is not None:
            check = Verify(node.op, op.bound(node))
            self.computed[node] = self.elementwise(node, check)
        elif op is ops.where:
            self.computed[node] = self.selection(node)
        else:
            self.computed[node] = self.elementwise(node, Compute(node.op, node.attrs))

    def elementwise(self, node: Node, what: Compute | Verify) -> Step:
        dims = self.dims_of(node.shape)
        index = index_of(dims)
        step = self.over(
            what,
            node,
            dims,
            lambda: [self.at(x, aligned(index, x)) for x in node.inputs],
        )
        values = [x.what.value for x in step.inputs if isinstance(x.what, Number)]
        if isinstance(what, Compute) and len(values) == len(step.inputs):
            with np.errstate(all="ignore"):
                value = node.op.eval(*values, **node.attrs)
            step.do(Number(value))
            step.inputs = []
        return step

    def selection(self, node: Node) -> Step:
        """One of two values, by a mask.

        A mask that is the same for all matrices of a stack is computed for each of
        them: to have it once, loops would begin with rows and columns, and products
        could not share them. If it compares rows with columns, as a causal one does, it
        is not even computed: a Range says where the iteration is.
        """
        condition, *values = node.inputs
        dims = self.dims_of(node.shape)
        index = index_of(dims)
        here = aligned(index, condition)
        axes = tuple(axis for axis in dims if axis is not None)
        holds = self.range_of(condition, here)
        if holds is None and not self.is_repeated(self.resolved(condition, here), axes):
            return self.elementwise(node, Compute(node.op, node.attrs))

        def inputs() -> list[Step]:
            found = [self.at(x, aligned(index, x)) for x in values]
            return found if holds else [self.mask(condition, here, axes), *found]

        what = Choose((holds,), node.op) if holds else Compute(node.op, node.attrs)
        return self.over(what, node, dims, inputs)

    def is_repeated(self, mask: tuple[Node, Index], axes: Sequence[Axis]) -> bool:
        """Whether bools are computed simply, and the same along one of the axes."""
        node, index = mask
        if node in self.inputs or node.op is LITERAL or node.dtype != np.bool_:
            return False
        is_simple = node.op.is_cheap and node.op.scalar is not None
        varying = {axis.root for place in index for axis in axes_in(place)}
        return is_simple and len(varying) < len(axes)

    def mask(self, node: Node, index: Index, axes: tuple[Axis, ...]) -> Step:
        """A condition, in this iteration if it would be the same in others."""
        base, place = self.resolved(node, index)
        if not self.is_repeated((base, place), axes):
            return self.at(node, index)
        return self.append(
            Step(
                Compute(base.op, base.attrs),
                base.dtype,
                inputs=[self.mask(x, aligned(place, x), axes) for x in base.inputs],
                axes=axes,
                dims=axes,
                node=base,
            )
        )

    def range_of(self, condition: Node, index: Index) -> Range | None:
        """Where a comparison of positions holds, None if it is none."""
        condition, index = self.resolved(condition, index)
        smallest = COMPARISONS.get(condition.op)
        if smallest is None or condition in self.inputs:
            return None
        places = [self.place_of(x, aligned(index, x)) for x in condition.inputs]
        if condition.op in (ops.less, ops.less_equal):
            places.reverse()
        larger, smaller = places
        if larger is None or smaller is None:
            return None
        distance = larger + smaller * -1
        _, most = distance.span()
        return Range(distance, smallest, max(most, smallest) + 1)

    def place_of(self, node: Node, index: Index) -> Affine | None:
        """What counts on from element to element, as a position; None for the rest."""
        node, index = self.resolved(node, index)
        if node not in self.inputs and is_whole_cast(node):
            counted, position = self.resolved(node.inputs[0], index)
            if counted.op is ops.iota:
                node, index = counted, position
        if node in self.inputs or not all(isinstance(x, Affine) for x in index):
            return None
        if node.op is ops.iota:
            (place,) = index
            return place if isinstance(place, Affine) else None
        if node.op is not LITERAL or node.dtype.kind not in "iu":
            return None
        value = np.asarray(node.attrs["value"])
        long = [at for at, size in enumerate(value.shape) if size != 1]
        if len(long) > 1:
            return None
        numbers = value.reshape(-1)
        first, last = int(numbers[0]), int(numbers[-1])
        if max(abs(first), abs(last)) >= FAR:
            return None  # the distance of two of them is to be a number, too
        step = (last - first) // max(numbers.size - 1, 1)
        expected = first + step * np.arange(numbers.size)
        if not np.array_equal(numbers, expected):
            return None
        found = Affine((), first)
        for at in long:
            found += index[at] * step
        return found

    def reduction(self, node: Node) -> Step:
        (x,) = node.inputs
        axes, keepdims = node.attrs["axes"], node.attrs["keepdims"]
        inner = self.dims_of(x.shape)
        dims = tuple(
            None if at in axes else dim
            for at, dim in enumerate(inner)
            if keepdims or at not in axes
        )
        reduced = [inner[at] for at in axes if inner[at] is not None]
        if not reduced:  # along sizes of 1
            if node.op is ops.sum and axes and is_differentiable(x.dtype):
                return self.sum_of_one(node, x, dims, inner)
            return self.over(
                Convert(), node, dims, lambda: [self.at(x, index_of(inner))]
            )
        step = self.over(
            Reduce(node.op),
            node,
            dims,
            lambda: [self.at(x, index_of(inner))],
            reduced=reduced,
        )
        is_exact = is_differentiable(x.dtype) and x.dtype.itemsize >= 4
        if node.op is ops.sum and is_exact and x.dtype == node.dtype:
            return self.times_equal(node, step)
        return step

    def times_equal(self, node: Node, step: Step) -> Step:
        """A sum along axes on which nothing depends: as many times one of them.

        One after the other, equal numbers add up to an error that grows with how many
        they are: each time it is rounded the same way.
        """
        (x,) = step.inputs
        equal = [axis for axis in step.reduced if axis.root not in x.labels]
        count = math.prod(axis.extent for axis in equal)
        if not equal or count >= MOST_EXACT:
            return step
        step.reduced = tuple(axis for axis in step.reduced if axis not in equal)
        if not step.reduced:  # 0 + x: the sum of -0 is 0
            zero = Step(Number(x.dtype.type(0)), x.dtype)
            step.do(Compute(OPS["add"]))
            step.inputs = [x, zero]
        number = Step(Number(x.dtype.type(count)), x.dtype)
        times = Step(
            Compute(OPS["mul"]),
            node.dtype,
            inputs=[step, number],
            axes=step.axes,
            dims=step.dims,
            node=node,
        )
        return self.append(times)

    def sum_of_one(
        self,
        node: Node,
        x: Node,
        dims: tuple[Axis | None, ...],
        inner: tuple[Axis | None, ...],
    ) -> Step:
        """0 + x, as NumPy has it: the sum of -0 is 0."""
        zero = Step(Number(x.dtype.type(0)), x.dtype)
        return self.over(
            Compute(OPS["add"]),
            node,
            dims,
            lambda: [self.at(x, index_of(inner)), zero],
        )

    def pooled(self, node: Node) -> Step:
        """A reduction over the entries of a window, of input that has its padding."""
        (x,) = node.inputs
        dims, entries = self.dims_of(node.shape), self.dims_of(node.attrs["window"])
        places = zip(
            index_of(dims), node.attrs["strides"], index_of(entries), strict=True
        )
        index = tuple(first * int(stride) + entry for first, stride, entry in places)
        reduced = [axis for axis in entries if axis is not None]
        what = Reduce(OPS["max"]) if reduced else Convert()
        return self.over(what, node, dims, lambda: [self.at(x, index)], reduced=reduced)

    def product(self, node: Node) -> Step:
        """A product of matrices as a sum of products in a loop."""
        x, y = node.inputs
        dims = self.dims_of(node.shape)
        *front, row, column = index_of(dims)
        inner = Axis(int(x.shape[-1])) if x.shape[-1] != 1 else None
        middle = Affine.of(inner) if inner is not None else Affine()
        return self.over(
            Contract(),
            node,
            dims,
            lambda: [
                self.at(x, aligned((*front, row, middle), x)),
                self.at(y, aligned((*front, middle, column), y)),
            ],
            reduced=() if inner is None else (inner,),
        )

    def correlated(self, node: Node) -> Step:
        """A convolution as a sum of products in a loop, of input with its padding."""
        x, filters = node.inputs
        dims, entries = self.dims_of(node.shape), self.dims_of(filters.shape[:-1])
        batch, *positions, feature = index_of(dims)
        *window, channel = index_of(entries)
        places = [
            place * int(stride) + entry * int(dilation)
            for place, stride, entry, dilation in zip(
                positions,
                node.attrs["strides"],
                window,
                node.attrs["dilations"],
                strict=True,
            )
        ]
        return self.over(
            Contract(),
            node,
            dims,
            lambda: [
                self.at(x, (batch, *places, channel)),
                self.at(filters, (*window, channel, feature)),
            ],
            reduced=[axis for axis in entries if axis is not None],
        )

    def convolved(self, node: Node) -> Step:
        """A convolution of sequences as a sum of products; the first is padded."""
        x, y = node.inputs
        dims, (entry,) = self.dims_of(node.shape), self.dims_of(y.shape[-1:])
        *front, place = index_of(dims)
        (back,) = index_of((entry,))
        seen = place + (back * -1 + (int(y.shape[-1]) - 1))
        return self.over(
            Contract(),
            node,
            dims,
            lambda: [
                self.at(x, (*aligned((*front, place), x)[:-1], seen)),
                self.at(y, (*aligned((*front, place), y)[:-1], back)),
            ],
            reduced=() if entry is None else (entry,),
        )

    def array_op(self, node: Node) -> Step:
        """An operation on whole arrays, wherever they lie."""
        if node.op.scatters is not None:
            x, indices = node.inputs[0], node.inputs[node.op.scatters :]
            self.check_positions(x, indices, node.attrs["axes"])
        views = [self.view(x) for x in node.inputs]
        if node.op is subtract_rows:  # whose rows lie side by side
            for at in (0, 2):
                x = node.inputs[at]
                if views[at][2] != strides_of(x.shape):
                    views[at] = View(self.copy_of(x), 0, strides_of(x.shape))
        is_windowed = node.op.terms is not None and node.op is not ops.matmul
        if is_windowed and 1 not in views[1][2][-2:]:
            filters = node.inputs[1]  # whose features or channels lie side by side
            views[1] = View(self.copy_of(filters), 0, strides_of(filters.shape))
        step = Step(
            ArrayOp(node.op, tuple(views)),
            node.dtype,
            inputs=[base for base, *_ in views if isinstance(base, Step)],
            dims=self.dims_of(node.shape),
            node=node,
        )
        step.whole = True
        return self.append(step)

    def framed(self, node: Node) -> Node:
        """The same convolution of input that is in memory with the zeros around it."""
        x, filters = node.inputs
        frames = frames_of(node)
        with origin_of(node.origin):
            starts = (0, *[frame.first for frame in frames], 0)
            counts = (x.shape[0], *[frame.length for frame in frames], x.shape[-1])
            if counts != x.shape:
                stops = tuple(map(operator.add, starts, counts))
                steps = (1,) * x.ndim
                x = OPS["slice"](x, starts=starts, stops=stops, steps=steps)
            if any(frame.size != frame.length for frame in frames):
                x = self.placed(x, frames)
            attrs = {**node.attrs, "padding": framed_padding(node, frames)}
            return OPS["conv"](x, filters, **attrs)

    def placed(self, x: Node, frames: Sequence[Frame]) -> Node:
        """An array with zeros around its elements.

        It is laid out as these are, whatever the order of its axes, and once for all
        who see the same: a convolution and its derivative by the filters do.
        """
        order = list(range(x.ndim))
        sizes = [int(x.shape[0]), *[frame.size for frame in frames], int(x.shape[-1])]
        starts = [0, *[frame.first - frame.begin for frame in frames], 0]
        while x.op is ops.permute_dims and x not in self.inputs:
            order = [x.attrs["axes"][at] for at in order]
            (x,) = x.inputs
        back = [order.index(at) for at in range(x.ndim)]
        shape = tuple(sizes[at] for at in back)
        begins = tuple(starts[at] for at in back)
        found = self.frames.get((x, shape, begins))
        if found is None:
            steps = (1,) * x.ndim
            found = OPS["place"](x, shape=shape, starts=begins, steps=steps)
            is_long = shape[-1] >= numerics.LOOPS.looped_row_elements
            made = self.copy_of(found) if is_long else self.array_op(found)
            self.computed[found] = made
            self.frames[x, shape, begins] = found
        return OPS["permute_dims"](found, axes=tuple(order))

    def selected_row(self, node: Node) -> Step:
        """A scatter that hits each row once: a comparison with the row's target."""
        x, updates, *_, targets = node.inputs
        dims = self.dims_of(node.shape)
        *rows, column = index_of(dims)
        front = (*rows, Affine())[: updates.ndim]

        def inputs() -> list[Step]:
            last = x.ndim - 1
            position = self.position(targets, aligned(front, targets), x, last)
            here = self.append(Step(IndexValue((column,)), INT64, axes=axes_in(column)))
            return [
                here,
                position,
                self.at(x, (*rows, column)),
                self.at(updates, front),
            ]

        return self.over(AddAt(), node, dims, inputs)

    def check_positions(
        self, x: Node, indices: Sequence[Node], axes: Sequence[int]
    ) -> None:
        """Look at the indices even if nobody asks for what they select."""
        for positions, axis in zip(indices, axes, strict=True):
            if counting_axis(positions, int(x.shape[axis])) is not None:
                continue
            if positions.op is not LITERAL or not is_inside(x, [positions], [axis]):
                dims = self.dims_of(positions.shape)
                self.position(positions, index_of(dims), x, axis)

    def output(self, at: int, node: Node) -> None:
        """Make a Node a result."""
        buffer = Buffer("output", at, node.dtype, node.shape)
        self.outputs.append(buffer)
        base = node
        while base not in self.inputs and base.op is ops.reshape:
            base = base.inputs[0]  # lies in memory as it did before
        step = self.computed.get(base)
        if step is not None and step.output is None and step.dims is not None:
            own = frozenset(axis.root for axis in step.dims if axis is not None)
            is_plain = step.labels == own and not isinstance(step.what, Number)
            if is_plain or isinstance(step.what, ArrayOp):
                step.output = buffer
                return
        dims = self.dims_of(node.shape)
        copy = self.over(Copy(), node, dims, lambda: [self.at(node, index_of(dims))])
        copy.output = buffer


def unrepeated(steps: Sequence[Step]) -> list[Step]:
    """The Steps without loads that say the same, and without what nobody uses."""
    first: dict[Any, Step] = {}
    instead: dict[Step, Step] = {}
    kept: list[Step] = []
    for step in steps:
        step.inputs = [instead.get(x, x) for x in step.inputs]
        index = tuple(
            instead.get(x, x) if isinstance(x, Step) else x.rooted() for x in step.index
        )
        ranges = tuple(Range(x.position.rooted(), x.low, x.high) for x in step.ranges)
        if isinstance(step.what, Load):
            step.change(index=index, ranges=ranges)
        elif isinstance(step.what, IndexValue):
            step.change(index=index)
        elif isinstance(step.what, Choose):
            step.change(ranges=ranges)
        if isinstance(step.what, Number) and step.output is None:
            continue
        if isinstance(step.what, (Load, IndexValue, CheckedIndex)):
            key = (
                type(step.what),
                id(step.source),
                index,
                ranges,
                step.dtype,
                tuple(step.inputs),
                step.what.size if isinstance(step.what, CheckedIndex) else None,
            )
            known = first.setdefault(key, step)
            if known is not step:
                instead[step] = known
                continue
        kept.append(step)
    used: set[Step] = set()
    for step in reversed(kept):
        is_end = step.output is not None or isinstance(
            step.what, (Verify, CheckedIndex)
        )
        if is_end or step in used:
            used.add(step)
            used.update(step.needed())
    return [step for step in kept if step in used]
