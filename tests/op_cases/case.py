"""What a row of the op table is.

An `OpCase` describes one operation: how its operands are drawn, which dtypes it takes,
what it means in plain NumPy or Python, and which of its derivatives exist. Each of its
`Variant`s is a set of shapes with attributes; a `Row` is one variant of one case, and
is what the tests are parametrised over.

Derivatives are spelled with one letter per operand, as a reader of the mathematics
would expect them and not as the rules happen to give them:

    c   connected
    0   identically zero although the operand matters: `ZERO`
    -   no path: None

`first="cc"` has one letter per operand. `second` has one word per operand `i` whose
first derivative is connected: letter `j` says how the derivative by operand `i` depends
on operand `j`. So `x * y` is `("-c", "c-")`.

Start reading at `OpCase`, then `Row`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tapejit.ops  # noqa: F401  # fills the registry
from tapejit.base.types import (
    SHORT_NAMES,
    DType,
    TensorType,
    dtype_named,
    is_complex,
    is_differentiable,
    is_float,
    is_integer,
)
from tapejit.ir import OPS, Graph, Node, param
from tapejit.tensor.dispatch import apply
from tapejit.tensor.tensor import Tensor

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Attrs = Mapping[str, Any]
Rng = np.random.Generator
Sampler = Callable[[Rng, Shape], Array]

DTYPES: tuple[DType, ...] = tuple(map(dtype_named, SHORT_NAMES))
F64, C128 = np.dtype("float64"), np.dtype("complex128")

KINDS: dict[str, Callable[[DType], bool]] = {
    "bool": lambda dtype: dtype.kind == "b",
    "integer": is_integer,
    "float": is_float,
    "complex": is_complex,
}
FLOAT = ("float",)
INEXACT = ("float", "complex")
REAL = ("integer", "float")
NUMERIC = ("integer", "float", "complex")
ORDERED = ("bool", "integer", "float")
BITS = ("bool", "integer")
ANY = ("bool", "integer", "float", "complex")


def dtypes_of(kinds: Sequence[str]) -> tuple[DType, ...]:
    """Every dtype of these kinds."""
    return tuple(d for d in DTYPES if any(KINDS[kind](d) for kind in kinds))


# Domains: where samples come from


def between(low: float, high: float) -> Sampler:
    """Uniform numbers."""
    return lambda rng, shape: rng.uniform(low, high, shape)


def apart_from_zero(low: float, high: float) -> Sampler:
    """Numbers of either sign whose magnitude is between the bounds."""

    def sample(rng: Rng, shape: Shape) -> Array:
        return rng.uniform(low, high, shape) * rng.choice([-1.0, 1.0], shape)

    return sample


def near_integers(offset: float, spread: float = 0.15) -> Sampler:
    """Small integers plus an offset, so that kinks at other offsets are far."""

    def sample(rng: Rng, shape: Shape) -> Array:
        near = rng.uniform(offset - spread, offset + spread, shape)
        return rng.integers(-3, 4, shape) + near

    return sample


def distinct(rng: Rng, shape: Shape) -> Array:
    """Numbers no two of which are near each other: extremes are not tied."""
    count = math.prod(shape)
    grid = rng.permutation(count) - count / 2
    return 0.25 * (grid.reshape(shape) + rng.uniform(-0.2, 0.2, shape))


SMOOTH = apart_from_zero(0.2, 2.0)

Range = Callable[[Sequence[Shape], Attrs, int], tuple[int, int]]


@dataclass(frozen=True)
class Operand:
    """How one operand is drawn.

    sample    its domain for floats; of a complex operand both parts are drawn from it
    integers  half-open range for integers (unsigned ones take its part from 0 on), or
              a function of all shapes, the attributes and the operand's position
    own       the dtypes it takes if it has one of its own, the usual one first; empty
              if its dtype is the row's
    """

    sample: Sampler = SMOOTH
    integers: tuple[int, int] | Range = (-5, 6)
    own: tuple[DType, ...] = ()

    def draw(
        self, rng: Rng, dtype: DType, shapes: Sequence[Shape], at: int, attrs: Attrs
    ) -> Array:
        """An array of `dtype` and the shape at this position."""
        shape = shapes[at]
        if dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(bool)
        if is_integer(dtype):
            span = self.integers
            low, high = span if isinstance(span, tuple) else span(shapes, attrs, at)
            limits = np.iinfo(dtype)
            low, high = max(low, limits.min), min(high, limits.max + 1)
            drawn = rng.integers(low, max(high, low + 1), shape, dtype=dtype)
            return np.asarray(drawn)
        drawn = self.sample(rng, shape)
        if is_complex(dtype):
            drawn = drawn + 1j * self.sample(rng, shape)
        return np.asarray(drawn).astype(dtype)


CONDITION = Operand(own=dtypes_of(("bool",)))
# Any integer, int64 first.
INDEX_DTYPES = tuple(
    sorted(dtypes_of(("integer",)), key=lambda dtype: (dtype.kind, -dtype.itemsize))
)


@dataclass(frozen=True)
class Variant:
    """Shapes and attributes; attributes may be computed from the shapes.

    A function of the shapes makes the same variant of other sizes and of symbolic
    ones. `first` and `second` replace the case's where the attributes matter to them.
    `dtypes` limits the dtypes of the row, `note` tells variants of equal shapes apart.
    """

    shapes: tuple[Shape, ...]
    attrs: Attrs | Callable[..., Attrs] = field(default_factory=dict)
    first: str | None = None
    second: tuple[str, ...] | None = None
    dtypes: tuple[DType, ...] | None = None
    note: str = ""

    def attrs_for(self, shapes: Sequence[Any]) -> dict[str, Any]:
        """The attributes that go with these shapes."""
        return dict(self.attrs(*shapes) if callable(self.attrs) else self.attrs)


@dataclass(frozen=True)
class OpCase:
    """One operation: what it takes, what it means, how it differentiates.

    reference     `(*arrays, **attrs)` -> an array in the result's dtype or a wider one,
                  or a `Truth`; written without looking at the op's own evaluation
    agreement     the class of `agreement.py` by which results are judged
    refused       shapes with attributes that no dtype makes right
    unreachable   such that the namespace never passes on: the rule alone refuses them
    build         how to make the Node, or the Graph, for structural ops
    unbatched     operands that cannot have a batch axis
    fixed_sizes   sizes that mean something and are never symbolic
    is_eager      whether a user's call performs it; structural ops are only in graphs
    """

    op: str
    operands: tuple[Operand, ...]
    variants: tuple[Variant, ...]
    reference: Callable[..., Any]
    agreement: str
    takes: tuple[str, ...] = NUMERIC
    first: str = ""
    second: tuple[str, ...] = ()
    complex_first: str | None = None
    complex_second: tuple[str, ...] | None = None
    refused: tuple[Variant, ...] = ()
    unreachable: tuple[Variant, ...] = ()
    build: Callable[..., Node | Graph] | None = None
    unbatched: tuple[int, ...] = ()
    fixed_sizes: tuple[int, ...] = ()
    is_eager: bool = True

    def __str__(self) -> str:
        return self.op

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(Row(self, variant) for variant in self.variants)


@dataclass(frozen=True)
class Row:
    """One variant of one case."""

    case: OpCase
    variant: Variant

    def __str__(self) -> str:
        sizes = ",".join(
            "x".join(map(str, shape)) if shape else "scalar"
            for shape in self.variant.shapes
        )
        return "-".join(filter(None, [self.case.op, sizes, self.variant.note]))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.variant.shapes

    @property
    def attrs(self) -> dict[str, Any]:
        return self.variant.attrs_for(self.shapes)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """What its operands may be, all alike."""
        return self.variant.dtypes or dtypes_of(self.case.takes)

    def operand(self, at: int) -> Operand:
        """How the operand at a position is drawn; the last one stands for the rest."""
        return self.case.operands[min(at, len(self.case.operands) - 1)]

    def operand_dtypes(self, dtype: DType) -> list[DType]:
        """The dtype of each operand of a row of `dtype`."""
        operands = [self.operand(at) for at in range(len(self.shapes))]
        return [operand.own[0] if operand.own else dtype for operand in operands]

    def sample(
        self, rng: Rng, dtype: DType, shapes: Sequence[Shape] | None = None
    ) -> list[Array]:
        """Operands drawn from their domains."""
        shapes = self.shapes if shapes is None else shapes
        attrs = self.variant.attrs_for(shapes)
        return [
            self.operand(at).draw(rng, own, shapes, at, attrs)
            for at, own in enumerate(self.operand_dtypes(dtype))
        ]

    def graph(self, dtype: DType, shapes: Sequence[Any] | None = None) -> Graph:
        """The operation as a Graph; sizes may be symbolic."""
        shapes = self.shapes if shapes is None else shapes
        own = self.operand_dtypes(dtype)
        inputs = [
            param(f"x{at}", TensorType(kind, tuple(shape)))
            for at, (kind, shape) in enumerate(zip(own, shapes, strict=True))
        ]
        build = self.case.build or OPS[self.case.op]
        made = build(*inputs, **self.variant.attrs_for(shapes))
        if isinstance(made, Graph):
            return made
        return Graph(self.case.op, inputs, (made,))

    def eager(self, arrays: Sequence[Array]) -> Array:
        """What a user's call gives."""
        return np.asarray(eager(self.case.op, arrays, self.attrs)._value)

    def reference(self, arrays: Sequence[Array]) -> Any:
        """The truth for these operands."""
        with np.errstate(all="ignore"):
            return self.case.reference(*arrays, **self.attrs)

    def first(self, dtype: DType) -> str:
        """One letter per operand."""
        case = self.case
        letters = case.first if self.variant.first is None else self.variant.first
        if is_complex(dtype) and case.complex_first is not None:
            letters = case.complex_first
        return letters.ljust(len(self.shapes), letters[-1:] or "-")

    def second(self, dtype: DType) -> tuple[str, ...]:
        """One word per operand with a connected derivative."""
        case = self.case
        words = case.second if self.variant.second is None else self.variant.second
        if is_complex(dtype) and case.complex_second is not None:
            words = case.complex_second
        connected = self.first(dtype).count("c")
        words = words + words[-1:] * (connected - len(words))
        return tuple(word.ljust(len(self.shapes), word[-1:]) for word in words)

    def resized(self, change: Callable[[int], Any]) -> tuple[tuple[Any, ...], ...]:
        """The shapes with every size from 2 on changed, where it may be."""
        kept = (0, 1, *self.case.fixed_sizes)
        return tuple(
            tuple(size if size in kept else change(size) for size in shape)
            for shape in self.shapes
        )

    @property
    def double_dtypes(self) -> tuple[DType, ...]:
        """float64 and complex128, those of them that the row takes and connects."""
        return tuple(
            dtype
            for dtype in (F64, C128)
            if dtype in self.dtypes and "c" in self.first(dtype)
        )

    @property
    def some_dtypes(self) -> tuple[DType, ...]:
        """The first, float64 if it is one, and the last, each once and in order."""
        usual = (self.dtypes[0], self.double_or_only_dtype, self.dtypes[-1])
        return tuple(dict.fromkeys(usual))

    @property
    def double_or_only_dtype(self) -> DType:
        """float64 if the row takes it, else the last of its dtypes."""
        return F64 if F64 in self.dtypes else self.dtypes[-1]


def eager(op: str, arrays: Sequence[Array], attrs: Attrs) -> Tensor:
    """Perform an op on Tensors as a user's call does: scalars are NumPy scalars."""
    return apply(OPS[op], *[Tensor(x if x.ndim else x[()]) for x in arrays], **attrs)


def differentiable_positions(graph: Graph) -> list[int]:
    """Which inputs are floating point."""
    return [
        at
        for at, x in enumerate(graph.inputs)
        if isinstance(x.type, TensorType) and is_differentiable(x.type.dtype)
    ]


# Shapes that every elementwise op is tried on

UNARY_SHAPES: tuple[tuple[Shape, ...], ...] = (
    ((3, 4),),
    ((),),
    ((0, 3),),
    ((2, 1, 3),),
)
BINARY_SHAPES: tuple[tuple[Shape, ...], ...] = (
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((2, 1, 3), (4, 1)),
    ((), ()),
    ((), (3,)),
    ((0, 3), (3,)),
    ((2, 1), (1, 0)),
)
TERNARY_SHAPES: tuple[tuple[Shape, ...], ...] = (
    ((3, 4), (3, 4), (3, 4)),
    ((3, 1), (), (4,)),
    ((4,), (2, 1, 4), (3, 1)),
    ((), (), ()),
    ((), (3,), (3,)),
    ((0, 3), (3,), ()),
)
MISFITS: tuple[tuple[Shape, ...], ...] = (
    ((3,), (4,)),
    ((2, 3), (3, 2)),
    ((0,), (2,)),
    ((2, 3), (2,)),
)


def variants_of(shapes: Sequence[tuple[Shape, ...]]) -> tuple[Variant, ...]:
    return tuple(map(Variant, shapes))
