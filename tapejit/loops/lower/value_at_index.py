"""Index propagation: every movement of elements becomes a position to read at.

`Reading.at(node, index)` gives the Step whose value is the element of `node` at a
position, for use in the iteration that asks. It walks through permutations, slices,
broadcasts, flips and reshapes by rewriting the position, and ends at memory (a `load`)
or at a computed value. If that is computed at the very position, the two belong in one
iteration, and their axes are made one; otherwise the element is loaded from where the
value is kept.

Start reading at `ValueAtIndex.at`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.base.types import DType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Movement, Node
from tapejit.loops.index import (
    Affine,
    Axis,
    Index,
    Range,
    reshaped_strides,
    strides_of,
    through_reshape,
)
from tapejit.loops.native_ops import counting_axis
from tapejit.loops.steps import (
    AffineIndex,
    Buffer,
    CheckedIndex,
    Choose,
    Compute,
    Copy,
    IndexValue,
    Load,
    Number,
    Step,
    StepKind,
    View,
)

INT64: Final = np.dtype(np.int64)


class ValueAtIndex:
    """The Steps so far, and the one that computes each Node."""

    def __init__(self, graph: Graph) -> None:
        self.steps: list[Step] = []
        self.computed: dict[Node, Step] = {}
        self.copies: dict[Node, Step] = {}
        self.outputs: list[Buffer] = []
        self.readers: dict[Buffer, list[Axis | None]] = {}
        self.constants: dict[Node, Buffer] = {}
        self.inputs = {
            node: Buffer("input", at, node.dtype, node.shape)
            for at, node in enumerate(graph.inputs)
        }

    # Making Steps

    def append(self, step: Step) -> Step:
        """Take a Step into the order; it runs over the axes it has."""
        for axis in (*step.axes, *step.reduced):
            axis.root.steps.add(step.number)
        if step.dims is None:  # in an order that does not change from run to run
            step.dims = tuple(sorted(step.labels, key=lambda axis: axis.number))
        self.steps.append(step)
        return step

    def dims_of(self, shape: Sequence[int]) -> tuple[Axis | None, ...]:
        """Fresh axes for an array."""
        return tuple(Axis(int(size)) if size != 1 else None for size in shape)

    def over(
        self,
        what: StepKind,
        node: Node,
        dims: tuple[Axis | None, ...],
        make_inputs: Callable[[], Sequence[Step]],
        reduced: Sequence[Axis] = (),
    ) -> Step:
        """A Step over `dims`; its inputs are made when its axes are known to be its."""
        step = Step(what, node.dtype, dims=dims, node=node, reduced=reduced)
        own = [axis for axis in dims if axis is not None]
        for axis in (*own, *step.reduced):
            axis.root.steps.add(step.number)
        step.inputs = list(make_inputs())
        varying = {axis.root for x in step.inputs for axis in x.axes}
        for x in step.ranges:
            varying |= {axis.root for axis in axes_in(x.position)}
        if isinstance(what, Copy):
            step.axes = tuple(own)
        else:
            step.axes = tuple(axis for axis in own if axis.root in varying)
        self.steps.append(step)
        return step

    def position(self, node: Node, index: Index, x: Node, axis: int) -> Step:
        """An element of `node` as a position along an axis of `x`, checked."""
        given = self.at(node, index)
        return self.append(
            Step(
                CheckedIndex(int(x.shape[axis])),
                INT64,
                inputs=[given],
                axes=tuple(given.labels),
            )
        )

    # Reading

    def at(self, node: Node, index: Index, ranges: tuple[Range, ...] = ()) -> Step:
        """The element of a Node at a position, 0 where a Range does not hold."""
        node, index = self.resolved(node, index)
        if node in self.inputs:
            return self.load(self.inputs[node], node.dtype, index, ranges)
        if node.op is LITERAL:
            return self.constant(node, index, ranges)
        op = node.op
        if node in self.computed:
            return self.read(self.computed[node], index, ranges)
        if op.moves is Movement.PIECES:
            return self.piece(node, index, ranges)
        if op is ops.iota:
            return self.within(self.number_at(index[0]), node.dtype, ranges)
        if op is ops.reshape:
            return self.flat(node, index, ranges)
        if op is ops.gather:
            return self.gathered(node, index, ranges)
        return self.read(self.computed[node], index, ranges)

    def number_at(self, position: Any) -> Step:
        """A position as a number."""
        if isinstance(position, Step):
            return position
        return self.append(Step(IndexValue((position,)), INT64, axes=axes_in(position)))

    def moved(self, position: Any, factor: int, offset: int) -> Any:
        """factor · position + offset"""
        if isinstance(position, Affine):
            return position * factor + offset
        if (factor, offset) == (1, 0):
            return position
        return self.append(
            Step(
                AffineIndex(factor, offset),
                INT64,
                inputs=[position],
                axes=tuple(position.labels),
            )
        )

    def resolved(self, node: Node, index: Index) -> tuple[Node, Index]:
        """The Node behind movements, and the position in it."""
        while node not in self.inputs:
            op, attrs = node.op, node.attrs
            if is_same(node):
                if node.inputs[0].dtype != node.dtype:
                    break
            elif op is ops.permute_dims:
                back = [Affine()] * len(index)
                for at, axis in enumerate(attrs["axes"]):
                    back[axis] = index[at]
                index = tuple(back)
            elif op is ops.broadcast_to:
                index = aligned(index, node.inputs[0])
            elif op is ops.slice:
                parts = zip(index, attrs["starts"], attrs["steps"], strict=True)
                index = tuple(
                    self.moved(x, int(step), int(start)) for x, start, step in parts
                )
            elif op is ops.flip:
                index = tuple(
                    self.moved(x, -1, int(size) - 1) if at in attrs["axes"] else x
                    for at, (x, size) in enumerate(zip(index, node.shape, strict=True))
                )
            elif op is ops.reshape:
                before = node.inputs[0].shape
                found = through_reshape(before, node.shape, index)
                if found is None:
                    break
                index = found
            else:
                break
            node = node.inputs[0]
        return node, index

    def read(self, step: Step, index: Index, ranges: tuple[Range, ...]) -> Step:
        """A computed value, in this iteration if it can be, else from memory."""
        assert step.dims is not None
        is_here = not ranges and not step.whole
        for dim, position in zip(step.dims, index, strict=True):
            if dim is None:
                continue
            axis = position.axis if isinstance(position, Affine) else None
            same = axis is not None and dim.unify(axis)
            if not same and dim.root in step.labels:
                is_here = False
        if is_here:
            return step
        if isinstance(step.what, Number):  # a number, which is nowhere in memory
            return self.within(step, step.dtype, ranges)
        return self.load(step, step.dtype, index, ranges)

    def load(
        self,
        source: Any,
        dtype: DType,
        index: Index,
        ranges: tuple[Range, ...],
        flat: bool = False,
    ) -> Step:
        ranges = tuple(x for x in ranges if not x.always_holds)
        if isinstance(source, Buffer) and not flat:
            self.share_axes(source, index)
        if isinstance(source, Step) and not flat:
            # Where it does not vary, any position will do.
            dims = source.dims or ()
            index = tuple(
                position
                if dim is not None and (source.whole or dim.root in source.labels)
                else Affine()
                for dim, position in zip(dims, index, strict=True)
            )
        axes: dict[Axis, None] = {}
        for position in (*index, *[x.position for x in ranges]):
            axes.update(dict.fromkeys(axes_in(position)))
        return self.append(
            Step(Load(source, index, ranges, flat), dtype, axes=tuple(axes))
        )

    def share_axes(self, buffer: Buffer, index: Index) -> None:
        """Let all who read a Buffer row by row do so in the same loops."""
        axes = tuple(
            position.axis if isinstance(position, Affine) else None
            for position in index
        )
        known = self.readers.setdefault(buffer, list(axes))
        for at, axis in enumerate(axes):
            first = known[at]
            if first is None:
                known[at] = axis
            elif axis is not None:
                first.unify(axis)

    def constant(self, node: Node, index: Index, ranges: tuple[Range, ...]) -> Step:
        value = np.asarray(node.attrs["value"])
        if uniform(value):
            number = Step(Number(value.reshape(-1)[0]), node.dtype)
            return self.within(number, node.dtype, ranges)
        return self.load(self.constant_array(node), node.dtype, index, ranges)

    def constant_array(self, node: Node) -> Buffer:
        """A literal as memory."""
        if node not in self.constants:
            value = np.asarray(node.attrs["value"])
            self.constants[node] = Buffer(
                "constant", len(self.constants), node.dtype, value.shape, value
            )
        return self.constants[node]

    def within(self, step: Step, dtype: DType, ranges: tuple[Range, ...]) -> Step:
        """A value where Ranges hold, 0 elsewhere."""
        zero = Step(Number(dtype.type(0)), dtype)
        return self.choose(ranges, step, zero)

    def choose(self, ranges: tuple[Range, ...], x: Step, y: Step) -> Step:
        """`x` where all Ranges hold, else `y`."""
        ranges = tuple(r for r in ranges if not r.always_holds)
        if not ranges:
            return x
        axes: dict[Axis, None] = dict.fromkeys([*x.labels, *y.labels])
        for r in ranges:
            axes.update(dict.fromkeys(axes_in(r.position)))
        return self.append(
            Step(Choose(ranges), x.dtype, inputs=[x, y], axes=tuple(axes))
        )

    def piece(self, node: Node, index: Index, ranges: tuple[Range, ...]) -> Step:
        """An element of an array put together of others."""
        if not all(isinstance(x, Affine) for x in index):
            return self.read(self.copy_of(node), index, ranges)
        op, attrs = node.op, node.attrs
        x = node.inputs[0]
        if op is ops.concat:
            axis, start = attrs["axis"], 0
            found: Step | None = None
            for part in node.inputs:
                size = int(part.shape[axis])
                inside = Range(index[axis], start, start + size)
                moved = shifted(index, axis, -start)
                here = self.part_at(part, moved, (*ranges, inside))
                found = here if found is None else self.choose((inside,), here, found)
                start += size
            assert found is not None
            return found
        if op is ops.place:
            starts = attrs["starts"]
        else:
            starts = [low for low, _ in attrs["widths"]]
        inside_all = []
        for axis, start in enumerate(starts):
            end = int(start) + int(x.shape[axis])
            inside_all.append(Range(index[axis], int(start), end))
            index = shifted(index, axis, -int(start))
        here = self.part_at(x, index, (*ranges, *inside_all))
        if op is ops.place:
            return here
        return self.choose(tuple(inside_all), here, self.at(node.inputs[1], ()))

    def part_at(self, node: Node, index: Index, ranges: tuple[Range, ...]) -> Step:
        """An element of a part of another array.

        A part that is itself put together is kept in memory: written out, parts of
        parts would double with every level.
        """
        base, _ = self.resolved(node, index)
        if base.op.moves is Movement.PIECES and base not in self.computed:
            return self.read(self.copy_of(node), index, ranges)
        return self.at(node, index, ranges)

    def flat(self, node: Node, index: Index, ranges: tuple[Range, ...]) -> Step:
        """An element of a reshaped array whose old position is no affine one."""
        x = node.inputs[0]
        if not all(isinstance(position, Affine) for position in index):
            return self.read(self.copy_of(node), index, ranges)
        total = Affine()
        for position, stride in zip(index, strides_of(node.shape), strict=True):
            total += position * stride
        if x in self.inputs:
            return self.load(self.inputs[x], x.dtype, (total,), ranges, flat=True)
        return self.load(self.whole(x), x.dtype, (total,), ranges, flat=True)

    def gathered(self, node: Node, index: Index, ranges: tuple[Range, ...]) -> Step:
        """An element that is found at positions which are values themselves."""
        if ranges or not all(isinstance(position, Affine) for position in index):
            return self.read(self.copy_of(node), index, ranges)
        x, *indices = node.inputs
        axes = node.attrs["axes"]
        rank = max(i.ndim for i in indices)
        front, rest = index[:rank], list(index[rank:])
        where: list[Any] = [None if at in axes else rest.pop(0) for at in range(x.ndim)]
        for axis, positions in zip(axes, indices, strict=True):
            here = aligned(front, positions)
            along = counting_axis(positions, int(x.shape[axis]))
            if along is not None:
                where[axis] = here[along]
            else:
                where[axis] = self.position(positions, here, x, axis)
        return self.chosen(node, *self.resolved(x, tuple(where)))

    def chosen(self, node: Node, x: Node, where: Index) -> Step:
        """What `node` gathers from `x` here.

        One cheap operation is done once more on what is gathered from its operands, if
        those are in memory or do not vary along what is gathered: a row of scores less
        their largest, of which one is wanted, does not have to be kept for that.
        """
        step = self.computed.get(x)
        if step is None or not isinstance(step.what, Compute) or not x.op.is_cheap:
            return self.at(x, where)
        operands = [self.resolved(v, aligned(where, v)) for v in x.inputs]
        is_at_hand = all(
            v in self.inputs or all(isinstance(at, Affine) for at in index)
            for v, index in operands
        )
        if not is_at_hand or math.prod(node.shape) > math.prod(x.shape):
            return self.at(x, where)
        inputs = [self.at(*operand) for operand in operands]
        axes = dict.fromkeys(axis for v in inputs for axis in v.labels)
        return self.append(
            Step(
                Compute(x.op, x.attrs), x.dtype, inputs=inputs, axes=tuple(axes), node=x
            )
        )

    # Whole arrays

    def whole(self, node: Node) -> Step:
        """A Step that keeps all of a Node in memory, row by row."""
        step = self.computed.get(node)
        if (
            step is not None
            and step.dims is not None
            and not isinstance(step.what, Number)
        ):
            own = frozenset(axis.root for axis in step.dims if axis is not None)
            if step.whole or step.labels == own:
                step.whole = True
                return step
        return self.copy_of(node)

    def copy_of(self, node: Node) -> Step:
        """A Node's elements, put in memory row by row."""
        found = self.copies.get(node)
        if found is None:
            dims = self.dims_of(node.shape)
            found = self.over(
                Copy(), node, dims, lambda: [self.at(node, index_of(dims))]
            )
            found.whole = True
            self.copies[node] = found
        return found

    def view(self, node: Node) -> View:
        """A whole array as it lies in memory: what holds it, offset and strides."""
        base, offset, strides = self.lies(node)
        source: Any
        if base in self.inputs:
            source = self.inputs[base]
        elif base.op is LITERAL:
            source = self.constant_array(base)
        elif base in self.computed:
            source = self.whole(base)
        else:
            source = self.copy_of(base)
        return View(source, offset, strides)

    def lies(self, node: Node) -> tuple[Node, int, tuple[int, ...]]:
        """The Node that has to be in memory, row by row, for another to lie there.

        And where in it the other begins, and how far its elements are apart.
        """
        plain = strides_of(tuple(map(int, node.shape)))
        if node in self.inputs or not is_view(node):
            return node, 0, plain
        x = node.inputs[0]
        base, offset, strides = self.lies(x)
        found = moved_view(node, offset, strides)
        if found is not None:
            return base, *found
        # A copy of what there was before it was reshaped lies as it should.
        while x.op is ops.reshape and x not in self.inputs:
            x = x.inputs[0]
        return x, 0, plain


def is_view(node: Node) -> bool:
    """Whether a Node has the elements of its operand, in another order at most."""
    is_moved = is_same(node) or node.op.moves is Movement.VIEW
    return is_moved and node.inputs[0].dtype == node.dtype


def is_same(node: Node) -> bool:
    """Whether a Node has the elements of its operand where they are."""
    if node.op.reduces is not None:
        return not node.attrs["axes"]
    return node.op.moves is Movement.ALIAS


def moved_view(
    node: Node, offset: int, strides: tuple[int, ...]
) -> tuple[int, tuple[int, ...]] | None:
    """Where a view begins and how far its elements are apart, from its operand's.

    None if an array that lies so cannot be reshaped without a copy.
    """
    op, attrs, x = node.op, node.attrs, node.inputs[0]
    if op is ops.permute_dims:
        strides = tuple(strides[axis] for axis in attrs["axes"])
    elif op is ops.broadcast_to:
        missing = (0,) * (node.ndim - x.ndim)
        own = zip(strides, x.shape, node.shape[node.ndim - x.ndim :], strict=True)
        strides = missing + tuple(s if a == b else 0 for s, a, b in own)
    elif op is ops.slice:
        starts = map(int, attrs["starts"])
        offset += sum(a * s for a, s in zip(starts, strides, strict=True))
        steps = map(int, attrs["steps"])
        strides = tuple(a * s for a, s in zip(steps, strides, strict=True))
    elif op is ops.flip:
        for axis in attrs["axes"]:
            offset += (int(x.shape[axis]) - 1) * strides[axis]
        strides = tuple(
            -s if at in attrs["axes"] else s for at, s in enumerate(strides)
        )
    elif op is ops.reshape:
        shapes = [tuple(map(int, v.shape)) for v in (x, node)]
        found = reshaped_strides(shapes[0], strides, shapes[1])
        if found is None:
            return None
        strides = found
    return offset, strides


def index_of(dims: Sequence[Axis | None]) -> tuple[Affine, ...]:
    """The position of an iteration over these axes."""
    return tuple(Affine.of(dim) if dim is not None else Affine() for dim in dims)


def aligned(index: Index, x: Node) -> Index:
    """A position in an array that `x` is broadcast to, as one in `x`."""
    own = index[len(index) - x.ndim :]
    return tuple(
        Affine() if size == 1 else position
        for position, size in zip(own, x.shape, strict=True)
    )


def shifted(index: Index, axis: int, by: int) -> Index:
    """A position moved along one axis."""
    return tuple(x + by if at == axis else x for at, x in enumerate(index))


def axes_in(position: Any) -> tuple[Axis, ...]:
    """The axes that a position varies with."""
    if isinstance(position, Step):
        return tuple(position.labels)
    return tuple(axis for axis, _ in position.terms)


def uniform(value: np.ndarray[Any, Any]) -> bool:
    """Whether all elements are the same bits."""
    if value.size == 1:
        return True
    if value.size > 4096:
        return False
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    rows = flat.reshape(value.size, -1)
    return bool((rows == rows[0]).all())
