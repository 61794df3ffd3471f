"""Steps: what one iteration of a loop does.

A Step has a `kind`, the Steps whose values it takes (`inputs`), and the axes that its
value varies with (`axes`); a reduction also runs over `reduced`. A value that is not
read at the iteration that computes it goes through memory: a `load` whose `source` is
the Step. Memory from outside is a `Buffer`.

| kind | value |
|---|---|
| `constant` | a number |
| `index` | a position as a number |
| `load` | an element of a Buffer or of another Step, or `fill` where a Range fails |
| `position` | a value as a position, checked |
| `moved` | a position times a factor, plus an offset |
| `verify` | its input, checked |
| `convert` | its input in another dtype |
| `copy` | its input |
| `add_at` | its third input, plus the fourth where the first two are equal |
| `compute` | an elementwise operation |
| `choose` | the first input where all Ranges hold, else the second |
| `reduce` | all elements along `reduced` combined |
| `part` | the same for some rows or columns of a product that is in registers |
| `contract` | the sum of products of two inputs along `reduced` |
| `library` | a whole array, made from whole arrays by a function of its own |

Start reading at `Step`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from tapejit import ops
from tapejit.base.types import DType
from tapejit.ir.node import Node, Op
from tapejit.loops.index import Affine, Axis, Index, Range

_numbers = count()


class Buffer:
    """Memory that exists before the loops run: an argument, a result or a constant."""

    __slots__ = ("dtype", "kind", "number", "shape", "value")

    def __init__(
        self,
        kind: str,
        number: int,
        dtype: DType,
        shape: tuple[int, ...],
        value: Any = None,
    ) -> None:
        self.kind = kind  # "input", "output" or "constant"
        self.number = number
        self.dtype = dtype
        self.shape = shape
        self.value = value

    def __repr__(self) -> str:
        return f"<{self.kind} {self.number}: {self.dtype}{list(self.shape)}>"


class Step:
    """One thing to do in an iteration."""

    __slots__ = (
        "attrs",
        "axes",
        "dims",
        "dtype",
        "fill",
        "index",
        "inputs",
        "kind",
        "node",
        "number",
        "op",
        "output",
        "ranges",
        "reduced",
        "source",
        "whole",
    )

    def __init__(
        self,
        kind: str,
        dtype: DType,
        *,
        inputs: Sequence[Step] = (),
        axes: Sequence[Axis] = (),
        reduced: Sequence[Axis] = (),
        dims: tuple[Axis | None, ...] | None = None,
        op: Op | None = None,
        attrs: Any = None,
        index: Index = (),
        ranges: tuple[Range, ...] = (),
        source: Any = None,
        fill: Any = 0,
        node: Node | None = None,
    ) -> None:
        self.kind = kind
        self.dtype = dtype
        self.inputs = list(inputs)
        self.axes = tuple(axes)
        self.reduced = tuple(reduced)
        self.dims = dims  # of the value as an array, None for a size of 1
        self.op = op
        self.attrs = attrs or {}
        self.index = index
        self.ranges = ranges
        self.source = source
        self.fill = fill
        self.node = node
        self.number = next(_numbers)
        self.output: Buffer | None = None  # where its whole value goes
        self.whole = False  # whether all of it must be in memory at once, row by row

    def __repr__(self) -> str:
        name = self.op.name if self.op is not None else self.kind
        return f"<{name} {self.number}>"

    @property
    def labels(self) -> frozenset[Axis]:
        """The axes of the value, as they are after unification."""
        return frozenset([axis.root for axis in self.axes])

    @property
    def closed(self) -> frozenset[Axis]:
        """The axes it is reduced along."""
        return frozenset([axis.root for axis in self.reduced])

    @property
    def reduction(self) -> Op:
        """The reduction that combines its elements."""
        if self.op is None or self.kind == "library":  # of products
            return ops.sum
        return self.op

    def needed(self) -> Iterator[Step]:
        """The Steps that come before it."""
        yield from self.inputs
        if isinstance(self.source, Step):
            yield self.source
        for position in self.index:
            if isinstance(position, Step):
                yield position

    def copy(self, inputs: Sequence[Step], index: Index) -> Step:
        """The same Step over again, with other inputs."""
        return Step(
            self.kind,
            self.dtype,
            inputs=inputs,
            axes=self.axes,
            reduced=self.reduced,
            dims=self.dims,
            op=self.op,
            attrs=self.attrs,
            index=index,
            ranges=self.ranges,
            source=self.source,
            fill=self.fill,
            node=self.node,
        )


def view_others(step: Step, instead: Mapping[Step, Step]) -> None:
    """Let an operation on whole arrays find its operands in other Steps' memory."""
    if "views" not in step.attrs:
        return
    views = [
        (instead.get(base, base) if isinstance(base, Step) else base, *rest)
        for base, *rest in step.attrs["views"]
    ]
    step.attrs = {**step.attrs, "views": views}


def across(before: Step, after: Step) -> frozenset[Axis]:
    """The axes whose loop has to be over before `after` can use `before`."""
    apart = before.closed
    if after.source is before and (before.whole or after.attrs.get("flat")):
        apart |= before.labels
    elif after.source is before:
        assert before.dims is not None
        for dim, position in zip(before.dims, after.index, strict=True):
            if dim is None:
                continue
            axis = position.axis if isinstance(position, Affine) else None
            if axis is None or axis.root is not dim.root:
                apart |= {dim.root}
    return apart
