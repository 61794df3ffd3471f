"""The loop IR: Steps, and what one iteration of a loop does in each.

A `Step` says `what` it does, by one of the frozen kinds below, on the values of other
Steps (`inputs`), and which axes its value varies with (`axes`); a reduction also runs
over `reduced`. A value that is not read in the iteration that computes it goes through
memory: a `Load` whose source is the Step. Memory from outside is a `Buffer`.

A kind never changes: a pass that decides something about a Step gives it another one
(`Step.change`).

Start reading at `Step`, then `Load` and `ArrayOp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar, NamedTuple, dataclass_transform

from tapejit import ops
from tapejit.base.types import DType
from tapejit.ir.node import Node, Op
from tapejit.loops.index import Affine, Axis, Index, Range, Roots, strides_of

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


@dataclass_transform(frozen_default=True, eq_default=False)
class StepKind:
    """What a Step does: frozen, with fields of its own.

    `word` is what a Step without an operation is called in texts.
    """

    word: ClassVar[str]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)


class Number(StepKind):
    """A number."""

    word = "constant"
    value: Any


class IndexValue(StepKind):
    """A position as a number."""

    word = "index"
    index: Index  # of one dimension


class Load(StepKind):
    """An element of a Buffer or of another Step's memory, 0 where a Range fails.

    If it is `flat`, its one position counts the elements of all dimensions.
    """

    word = "load"
    source: Buffer | Step
    index: Index
    ranges: tuple[Range, ...] = ()
    flat: bool = False


class CheckedIndex(StepKind):
    """Its input as a position along an axis of `size`, which is checked."""

    word = "checked_index"
    size: int


class AffineIndex(StepKind):
    """A position times a factor, plus an offset."""

    word = "affine_index"
    factor: int
    offset: int


class Verify(StepKind):
    """Its input, which is checked to be in [0, count)."""

    word = "verify"
    op: Op
    count: int


class Convert(StepKind):
    """Its input in another dtype."""

    word = "convert"


class Copy(StepKind):
    """Its input."""

    word = "copy"


class AddAt(StepKind):
    """Its third input, plus the fourth where the first two are equal."""

    word = "add_at"


class Compute(StepKind):
    """An elementwise operation."""

    word = "compute"
    op: Op
    attrs: Mapping[str, Any] = field(default_factory=dict)


class Choose(StepKind):
    """The first input where all Ranges hold, else the second."""

    word = "choose"
    ranges: tuple[Range, ...]
    op: Op | None = None


class Reduce(StepKind):
    """All elements along `reduced`, combined as the operation says.

    `order` are the axes of the array that is reduced, as it has them.
    """

    word = "reduce"
    op: Op
    order: tuple[Axis, ...] = ()


class PartialSum(StepKind):
    """A reduction of some rows or columns of a matmul that is in registers.

    It takes `unit` rows, column by column, or a `group` of elements of each row.
    """

    word = "partial_sum"
    op: Op
    unit: int = 0
    group: int = 0


class Contract(StepKind):
    """The sum of products of two inputs along `reduced`: a small matmul as a loop.

    `order` are its axes, last the one that neighbours in memory belong to.
    """

    word = "contract"
    order: tuple[Axis, ...] = ()


class View(NamedTuple):
    """An operand as it lies in the memory of a Buffer or of another Step."""

    base: Buffer | Step
    offset: int
    strides: tuple[int, ...]


class TileRole(NamedTuple):
    """How a matmul takes part in a loop over tiles of rows, and the axes of these.

    For "rows", it computes those of a tile that others read; as a "result", those of a
    tile from what others have made; a "sum" adds to all of its result what the rows of
    a tile contribute. Where columns go by in tiles as well, `column` is their axis, and
    `cut` says which of the matmul's own axes that is: "m", "n" or "k".
    """

    kind: str
    axes: tuple[Axis, ...]
    column: Axis | None = None
    cut: str = ""

    @property
    def cuts(self) -> dict[str, Axis]:
        """The axes of the matmul that go by in tiles, and along what."""
        found = {"k" if self.kind == "sum" else "m": self.axes[-1]}
        return found if self.column is None else {**found, self.cut: self.column}


class ArrayOp(StepKind):
    """A whole array, made from whole arrays by a function of its own.

    A matmul may be computed by tiles of rows (`tiles`), or have its result in memory
    with its axes in another `order`.
    """

    word = "array_op"
    op: Op
    views: tuple[View, ...]
    tiles: TileRole | None = None
    order: tuple[int, ...] | None = None


class Step:
    """One thing to do in an iteration."""

    __slots__ = (
        *("axes", "dims", "dtype", "inputs", "node", "number", "output", "reduced"),
        *("_closed", "_labels", "what", "whole"),
        *("index", "is_flat", "is_leaf", "op", "order", "ranges", "source", "tiles"),
        "views",
    )
    # What it does, as far as kinds have that in common.
    op: Op | None  # the operation that it performs or is a part of
    source: Buffer | Step | None  # whose memory a load reads
    index: Index  # the position that a load reads, or that is the value itself
    ranges: tuple[Range, ...]  # the conditions of a load or of a choice
    is_flat: bool  # whether it loads by one position that counts all elements
    views: tuple[View, ...]  # the operands of an operation on whole arrays
    tiles: TileRole | None  # how a matmul takes part in tiles of rows, if it does
    order: tuple[int, ...] | None  # a matmul's axes in memory, if not its own
    # It takes nothing but positions: it is done wherever it is needed. A load of what
    # another Step has computed is one, too: who uses it waits for that.
    is_leaf: bool

    def __init__(
        self,
        what: StepKind,
        dtype: DType,
        *,
        inputs: Sequence[Step] = (),
        axes: Sequence[Axis] = (),
        reduced: Sequence[Axis] = (),
        dims: tuple[Axis | None, ...] | None = None,
        node: Node | None = None,
    ) -> None:
        self.do(what)
        self.dtype = dtype
        self.inputs = list(inputs)
        self.axes = tuple(axes)
        self.reduced = tuple(reduced)
        self.dims = dims  # of the value as an array, None for a size of 1
        self.node = node
        self.number = next(_numbers)
        self._labels: Roots | None = None
        self._closed: Roots | None = None
        self.output: Buffer | None = None  # where its whole value goes
        self.whole = False  # whether all of it must be in memory at once, row by row

    def __repr__(self) -> str:
        return f"<{self.name} {self.number}>"

    @property
    def name(self) -> str:
        """The name of its operation, or the word for what it does."""
        op = self.op
        return self.what.word if op is None else op.name

    @property
    def labels(self) -> frozenset[Axis]:
        """The axes of the value, as they are after unification."""
        self._labels = found = Roots.of(self.axes, self._labels)
        return found.found

    @property
    def closed(self) -> frozenset[Axis]:
        """The axes it is reduced along."""
        self._closed = found = Roots.of(self.reduced, self._closed)
        return found.found

    @property
    def reduction(self) -> Op:
        """The reduction that combines its elements."""
        op = self.op
        if op is None or isinstance(self.what, ArrayOp):  # of products
            return ops.sum
        return op

    def do(self, what: StepKind) -> None:
        """Decide what it does."""
        self.what = what
        self.op = getattr(what, "op", None)
        self.source = self.tiles = self.order = None
        self.index, self.views, self.is_flat = (), (), False
        self.ranges = getattr(what, "ranges", ())
        self.is_leaf = isinstance(what, (Number, IndexValue))
        if isinstance(what, (Load, IndexValue)):
            self.index = what.index
        if isinstance(what, Load):
            self.source, self.is_flat = what.source, what.flat
            self.is_leaf = all(isinstance(x, Affine) for x in what.index)
        elif isinstance(what, ArrayOp):
            self.views, self.tiles, self.order = what.views, what.tiles, what.order

    def change(self, **fields: Any) -> None:
        """Decide something else about what it does."""
        what: Any = self.what
        self.do(replace(what, **fields))

    def needed(self) -> list[Step]:
        """The Steps that come before it."""
        if not isinstance(self.what, Load):
            return self.inputs
        found = [*self.inputs, self.source, *self.index]
        return [x for x in found if isinstance(x, Step)]

    def copy(self, inputs: Sequence[Step]) -> Step:
        """The same Step over again, with other inputs."""
        return Step(
            self.what,
            self.dtype,
            inputs=inputs,
            axes=self.axes,
            reduced=self.reduced,
            dims=self.dims,
            node=self.node,
        )


def element_of(load: Load, source: Buffer) -> Affine | None:
    """The element that is loaded, of all in a row; None if only the code finds out."""
    strides = (1,) if load.flat else strides_of(source.shape)
    total = Affine()
    for position, stride in zip(load.index, strides, strict=True):
        if not isinstance(position, Affine):
            return None
        total += position * stride
    return total


def is_matmul(step: object) -> bool:
    """Whether this is a product of matrices that is a kernel of its own."""
    return (
        isinstance(step, Step)
        and isinstance(step.what, ArrayOp)
        and step.op is not None
        and step.op.terms is not None
        and step.dtype.kind not in "biu"
    )


def view_others(step: Step, instead: Mapping[Step, Step]) -> None:
    """Let an operation on whole arrays find its operands in other Steps' memory."""
    views = tuple(
        view._replace(base=instead.get(view.base, view.base))
        if isinstance(view.base, Step)
        else view
        for view in step.views
    )
    if views:
        step.change(views=views)


def tiles_of(step: Step) -> TileRole:
    """How a matmul that takes part in tiles of rows does so."""
    tiles = step.tiles
    assert tiles is not None
    return tiles


def partial_of(step: Step) -> PartialSum:
    """Which rows or elements a partial sum takes together."""
    assert isinstance(step.what, PartialSum)
    return step.what


def across(before: Step, after: Step) -> frozenset[Axis]:
    """The axes whose loop has to be over before `after` can use `before`."""
    apart = before.closed
    if after.source is not before:
        return apart
    if before.whole or after.is_flat:
        return apart | before.labels
    assert before.dims is not None
    for dim, position in zip(before.dims, after.index, strict=True):
        if dim is None:
            continue
        axis = position.axis if isinstance(position, Affine) else None
        if axis is None or axis.root is not dim.root:
            apart |= {dim.root}
    return apart
