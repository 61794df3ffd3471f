"""Products of matrices as calls of BLAS, the same calls that NumPy would make.

The data structure is `MatmulSpec`: sizes, and strides in elements, of one stack of
products. `routine` says how each product is computed. The choice is NumPy's, so that
the results have NumPy's bits: a dot product where the result is one number, `gemv`
where one operand is a vector, `syrk` for a matrix times its own transpose, `gemm`
otherwise, and no call at all where nothing is summed. What NumPy copies or loops over
because its strides do not suit BLAS is not supported: `is_supported` tells.

`emit_matmul` writes the loop over the stack and the call inside it. It calls by
address: the code names no symbol, so it can be stored and loaded elsewhere. The width
of the library's integers is a part of the spec and of the code.

Start reading at `spec_of`, then `emit_matmul`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from tapejit.errors import ArgumentError
from tapejit.types import TensorType

__all__ = [
    "BatchAxis",
    "MatmulSpec",
    "Strides",
    "emit_matmul",
    "function_name",
    "is_supported",
    "merge_rows",
    "routine",
    "spec_of",
]

LETTERS = {
    np.dtype(np.float32): "s",
    np.dtype(np.float64): "d",
    np.dtype(np.complex64): "c",
    np.dtype(np.complex128): "z",
}
ROW_MAJOR, COLUMN_MAJOR = 101, 102
PLAIN, TRANSPOSED = 111, 112
UPPER = 121

ENUM, INDEX, POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType()
VECTOR_BYTES = 64


class Strides(NamedTuple):
    """How many elements lie between two rows and between two columns of a matrix."""

    row: int
    column: int


class BatchAxis(NamedTuple):
    """One axis of the stack: its size and each operand's stride in elements."""

    size: int
    a: int
    b: int
    c: int


@dataclass(frozen=True)
class MatmulSpec:
    """A stack of products, [m, k] times [k, n]; the result is row-major.

    `is_shared` says that both operands begin at the same place in memory. Axes of size
    1 have stride 0.

    >>> spec = MatmulSpec(np.dtype("f4"), 2, 3, 4, Strides(4, 1), Strides(3, 1))
    >>> routine(spec), function_name(spec)
    ('gemm', 'sgemm')
    """

    dtype: np.dtype[Any]
    m: int
    n: int
    k: int
    a: Strides
    b: Strides
    batch: tuple[BatchAxis, ...] = ()
    is_shared: bool = False
    integer_bits: int = 64

    @property
    def is_complex(self) -> bool:
        return self.dtype.kind == "c"


def spec_of(
    types: Sequence[TensorType],
    strides: Sequence[Sequence[int]],
    *,
    is_shared: bool = False,
    integer_bits: int = 64,
) -> MatmulSpec:
    """The spec of a `matmul` Node from its operands' types and strides in elements.

    The result is contiguous. Axes of the stack that one loop can run over are one.

    >>> x, w = TensorType.parse("f32[5,2,4]"), TensorType.parse("f32[4,3]")
    >>> spec_of((x, w), ((8, 4, 1), (1, 4))).batch
    (BatchAxis(size=5, a=8, b=0, c=6),)
    """
    left, right = (known_shape(operand) for operand in types)
    m, k, n = left[-2], left[-1], right[-1]
    front = np.broadcast_shapes(left[:-2], right[:-2])
    aligned = [
        aligned_strides(shape, steps, len(front))
        for shape, steps in zip((left, right), strides, strict=True)
    ]
    axes: list[BatchAxis] = []
    for at, size in enumerate(front):
        step = prod(front[at + 1 :]) * m * n
        axis = BatchAxis(size, aligned[0][at], aligned[1][at], step)
        if size != 1:
            append_axis(axes, axis)
    a, b = (Strides(*steps[-2:]) for steps in aligned)
    dtype = types[0].dtype
    return MatmulSpec(dtype, m, n, k, a, b, tuple(axes), is_shared, integer_bits)


def known_shape(operand: TensorType) -> tuple[int, ...]:
    """The sizes of an operand, all of them numbers."""
    sizes = [size for size in operand.shape if isinstance(size, int)]
    if len(sizes) != operand.ndim:
        raise ArgumentError(f"{operand} has open sizes: code is made for known ones")
    return tuple(sizes)


def aligned_strides(
    shape: tuple[int, ...], strides: Sequence[int], front: int
) -> tuple[int, ...]:
    """Strides for a stack of `front` axes: 0 where the operand is repeated."""
    missing = (0,) * (front - (len(shape) - 2))
    own = zip(shape, strides, strict=True)
    return (*missing, *(0 if size == 1 else step for size, step in own))


def append_axis(axes: list[BatchAxis], inner: BatchAxis) -> None:
    """Add an axis, as a part of the one around it if that steps over just this one."""
    if axes and axes[-1][1:] == tuple(inner.size * step for step in inner[1:]):
        inner = inner._replace(size=axes.pop().size * inner.size)
    axes.append(inner)


def merge_rows(spec: MatmulSpec) -> MatmulSpec:
    """The same products as fewer and taller ones, where a stack shares its right side.

    One long product is faster than many short ones; its bits may differ from theirs,
    because BLAS sums differently in matrices of different heights.

    >>> x, w = TensorType.parse("f32[5,2,4]"), TensorType.parse("f32[4,3]")
    >>> spec = merge_rows(spec_of((x, w), ((8, 4, 1), (3, 1))))
    >>> spec.m, spec.batch
    (10, ())
    """
    while spec.batch:
        axis = spec.batch[-1]
        # One row has no stride of its own: the next matrix is the next row.
        row = axis.a if spec.m == 1 else spec.a.row
        follows = axis.a == spec.m * row and axis.c == spec.m * spec.n
        if axis.b != 0 or not follows:
            break
        a = spec.a._replace(row=row)
        spec = replace(spec, m=axis.size * spec.m, a=a, batch=spec.batch[:-1])
    return spec


# Which call


def routine(spec: MatmulSpec) -> str | None:
    """How each product is computed; None if its strides do not suit BLAS.

    "nothing" for an empty result, "zeros" for an empty sum, "outer" where nothing is
    summed, else the kind of BLAS function: "dot", "gemv", "syrk" or "gemm".

    >>> matrix, column = TensorType.parse("f64[3,4]"), TensorType.parse("f64[4,1]")
    >>> routine(spec_of((matrix, column), ((4, 1), (1, 0))))
    'gemv'
    >>> routine(spec_of((matrix, column), ((8, 2), (1, 0)))) is None
    True
    """
    m, n, k, a, b = spec.m, spec.n, spec.k, spec.a, spec.b
    if spec.dtype not in LETTERS or not fits_integers(spec):
        return None
    if 0 in (m, n, *(axis.size for axis in spec.batch)):
        return "nothing"
    if k == 0:
        return "zeros"
    if m == 1 and n == 1:
        # The stride of a single element is 0, and any would do.
        is_walkable = k == 1 or (a.column > 0 and b.row > 0)
        return "dot" if is_walkable else None
    if k == 1:
        return "outer"
    if m == 1:
        return "gemv" if a.column > 0 and layout_of(b, k, n) else None
    if n == 1:
        return "gemv" if b.row > 0 and layout_of(a, m, k) else None
    if layout_of(a, m, k) is None or layout_of(b, k, n) is None:
        return None
    return "syrk" if is_own_transpose(spec) else "gemm"


def is_supported(spec: MatmulSpec) -> bool:
    """Whether `emit_matmul` can be asked for it.

    >>> halves = TensorType.parse("f16[2,2]")
    >>> is_supported(spec_of((halves, halves), ((2, 1), (2, 1))))
    False
    """
    return routine(spec) is not None


def function_name(spec: MatmulSpec) -> str | None:
    """The BLAS function whose address `emit_matmul` needs; None if it calls none.

    >>> row, column = TensorType.parse("c64[1,4]"), TensorType.parse("c64[4,1]")
    >>> function_name(spec_of((row, column), ((0, 1), (1, 0))))
    'cdotu_sub'
    """
    kind = routine(spec)
    if kind not in ("dot", "gemv", "syrk", "gemm"):
        return None
    if kind == "dot" and spec.is_complex:
        kind = "dotu_sub"
    return LETTERS[spec.dtype] + kind


class Layout(NamedTuple):
    """A matrix as BLAS sees it: whether its columns are contiguous, and the step
    between its rows or, then, its columns."""

    is_transposed: bool
    step: int


def layout_of(strides: Strides, rows: int, columns: int) -> Layout | None:
    """How BLAS can take a matrix of several rows and columns; None if it cannot."""
    if strides.column == 1 and strides.row >= columns:
        return Layout(False, strides.row)
    if strides.row == 1 and strides.column >= rows:
        return Layout(True, strides.column)
    return None


def fits_integers(spec: MatmulSpec) -> bool:
    """Whether the library's integers can hold every size and stride."""
    limit: int = 2 ** (spec.integer_bits - 1)
    return max(spec.m, spec.n, spec.k, *spec.a, *spec.b) < limit


def is_own_transpose(spec: MatmulSpec) -> bool:
    """Whether every product is that of a matrix with itself transposed."""
    return (
        spec.is_shared
        and spec.m == spec.n
        and (spec.a.row, spec.a.column) == (spec.b.column, spec.b.row)
        and all(axis.a == axis.b for axis in spec.batch)
    )


# Emission


def emit_matmul(
    builder: Any, address: Any, a: Any, b: Any, c: Any, spec: MatmulSpec
) -> None:
    """Emit a supported product; `a`, `b` and `c` point to the first elements.

    `address` is a pointer to the function that `function_name` names; None if none.
    Control leaves in the block that the builder stands in afterwards.

    >>> module = ir.Module("product")
    >>> signature = ir.FunctionType(ir.VoidType(), [POINTER] * 4)
    >>> function = ir.Function(module, signature, "product")
    >>> builder = ir.IRBuilder(function.append_basic_block())
    >>> matrix = TensorType.parse("f32[2,2]")
    >>> spec = spec_of((matrix, matrix), ((2, 1), (2, 1)))
    >>> emit_matmul(builder, *function.args, spec)
    >>> str(module).count("call void")
    1
    """
    kind = routine(spec)
    if kind is None:
        raise ArgumentError(f"BLAS does not take {spec}: ask is_supported first")
    if kind == "nothing":
        return
    emitter = EMITTERS[kind]
    with stack_loop(builder, spec, (a, b, c)) as pointers:
        emitter(Emission(builder, spec), address, *pointers)


class Emission:
    """The builder, the spec and the LLVM types that follow from it."""

    def __init__(self, builder: Any, spec: MatmulSpec) -> None:
        self.builder = builder
        self.spec = spec
        parts = 2 if spec.is_complex else 1
        is_single = spec.dtype.itemsize // parts == 4
        self.real = ir.FloatType() if is_single else ir.DoubleType()
        self.integer = ir.IntType(spec.integer_bits)

    def size(self, value: int) -> Any:
        return ir.Constant(self.integer, value)

    def number(self, value: float) -> Any:
        """A scale factor as BLAS takes it: complex ones by address."""
        constant = ir.Constant(self.real, value)
        if not self.spec.is_complex:
            return constant
        with self.builder.goto_entry_block():  # outside of every loop
            place = self.builder.alloca(self.real, ir.Constant(INDEX, 2))
            self.builder.store(constant, place)
            imaginary = offset(self.builder, place, self.real, index(1))
            self.builder.store(ir.Constant(self.real, 0.0), imaginary)
        return place

    def call(self, address: Any, arguments: Sequence[Any], result: Any) -> Any:
        """Call the function at `address`."""
        signature = ir.FunctionType(result, [value.type for value in arguments])
        # An opaque pointer does not tell the builder what it points to; a cast does.
        number = self.builder.ptrtoint(address, INDEX)
        callee = self.builder.inttoptr(number, signature.as_pointer())
        return self.builder.call(callee, arguments, attrs=("nounwind",))


def emit_gemm(at: Emission, address: Any, a: Any, b: Any, c: Any) -> None:
    """c = a b"""
    spec = at.spec
    left, right = layout_of(spec.a, spec.m, spec.k), layout_of(spec.b, spec.k, spec.n)
    assert left is not None
    assert right is not None
    arguments = [
        *(enum(ROW_MAJOR), transposition(left), transposition(right)),
        *(at.size(spec.m), at.size(spec.n), at.size(spec.k)),
        *(at.number(1.0), a, at.size(left.step), b, at.size(right.step)),
        *(at.number(0.0), c, at.size(spec.n)),
    ]
    at.call(address, arguments, ir.VoidType())


def emit_gemv(at: Emission, address: Any, a: Any, b: Any, c: Any) -> None:
    """c = a b for one column, c = bᵀ aᵀ for one row"""
    spec = at.spec
    if spec.m == 1:
        rows, matrix, vector, step = spec.n, b, a, spec.a.column
        layout = layout_of(Strides(spec.b.column, spec.b.row), spec.n, spec.k)
    else:
        rows, matrix, vector, step = spec.m, a, b, spec.b.row
        layout = layout_of(spec.a, spec.m, spec.k)
    assert layout is not None
    # NumPy always says "transposed" and gives the order that makes it true.
    order = ROW_MAJOR if layout.is_transposed else COLUMN_MAJOR
    arguments = [
        *(enum(order), enum(TRANSPOSED), at.size(spec.k), at.size(rows)),
        *(at.number(1.0), matrix, at.size(layout.step), vector, at.size(step)),
        *(at.number(0.0), c, at.size(1)),
    ]
    at.call(address, arguments, ir.VoidType())


def emit_syrk(at: Emission, address: Any, a: Any, b: Any, c: Any) -> None:
    """c = a aᵀ: the upper triangle is computed, the lower one copied from it."""
    spec, builder = at.spec, at.builder
    layout = layout_of(spec.a, spec.m, spec.k)
    assert layout is not None
    arguments = [
        *(enum(ROW_MAJOR), enum(UPPER), transposition(layout)),
        *(at.size(spec.m), at.size(spec.k)),
        *(at.number(1.0), a, at.size(layout.step), at.number(0.0), c, at.size(spec.m)),
    ]
    at.call(address, arguments, ir.VoidType())
    element = ir.IntType(8 * at.spec.dtype.itemsize)
    with loop(builder, index(0), index(spec.m)) as row:
        first = builder.add(row, index(1))
        with loop(builder, first, index(spec.m)) as column:
            upper = builder.add(builder.mul(row, index(spec.m)), column)
            lower = builder.add(builder.mul(column, index(spec.m)), row)
            source = offset(builder, c, element, upper)
            target = offset(builder, c, element, lower)
            align = at.spec.dtype.alignment
            value = builder.load(source, align=align, typ=element)
            builder.store(value, target, align=align)


def emit_dot(at: Emission, address: Any, a: Any, b: Any, c: Any) -> None:
    """One number; NumPy adds it to 0, which makes a positive zero of a negative one."""
    spec, builder, zero = at.spec, at.builder, ir.Constant(at.real, 0.0)
    # A single element has stride 0, which some libraries refuse.
    arguments = [
        *(at.size(spec.k), a, at.size(max(spec.a.column, 1))),
        *(b, at.size(max(spec.b.row, 1))),
    ]
    if not spec.is_complex:
        value = at.call(address, arguments, at.real)
        builder.store(builder.fadd(zero, value), c)
        return
    at.call(address, [*arguments, c], ir.VoidType())
    for part in range(2):
        place = offset(builder, c, at.real, index(part))
        value = builder.load(place, typ=at.real)
        builder.store(builder.fadd(zero, value), place)


def emit_outer(at: Emission, address: Any, a: Any, b: Any, c: Any) -> None:
    """c[i, j] = 0 + a[i] b[j]: k is 1"""
    spec, builder = at.spec, at.builder
    rows, columns, row_step, column_step = spec.m, spec.n, spec.a.row, spec.b.column
    if spec.n == 1:  # the long axis inside, where vectors are
        a, b = b, a
        rows, columns, row_step, column_step = 1, spec.m, 0, spec.a.row
    lanes = 1
    if column_step == 1 and not spec.is_complex:
        lanes = VECTOR_BYTES // spec.dtype.itemsize
    whole = columns - columns % lanes
    with loop(builder, index(0), index(rows)) as row:
        left = element_at(at, a, builder.mul(row, index(row_step)))
        start = builder.mul(row, index(columns))
        for width, first, last in ((lanes, 0, whole), (1, whole, columns)):
            if first == last:
                continue
            with loop(builder, index(first), index(last), width) as column:
                place = builder.mul(column, index(column_step))
                right = element_at(at, b, place, width)
                factors = [spread(builder, part, width) for part in left]
                values = multiply(builder, factors, right)
                target = builder.add(start, column)
                store_element(at, c, target, values)


def emit_zeros(at: Emission, address: Any, a: Any, b: Any, c: Any) -> None:
    """c = 0: k is 0"""
    spec, builder = at.spec, at.builder
    zero = ir.Constant(at.real, 0.0)
    with loop(builder, index(0), index(spec.m * spec.n)) as place:
        store_element(at, c, place, [zero] * (2 if spec.is_complex else 1))


EMITTERS = {
    "gemm": emit_gemm,
    "gemv": emit_gemv,
    "syrk": emit_syrk,
    "dot": emit_dot,
    "outer": emit_outer,
    "zeros": emit_zeros,
}


# Numbers of one or two parts


def element_at(at: Emission, base: Any, place: Any, width: int = 1) -> list[Any]:
    """The real and, if there is one, the imaginary part of an element, or `width`."""
    builder, align = at.builder, at.spec.dtype.alignment
    if at.spec.is_complex:
        place = builder.mul(place, index(2))
    kind = at.real if width == 1 else ir.VectorType(at.real, width)
    parts = range(2 if at.spec.is_complex else 1)
    places = [builder.add(place, index(part)) for part in parts]
    pointers = [offset(builder, base, at.real, where) for where in places]
    return [builder.load(pointer, align=align, typ=kind) for pointer in pointers]


def store_element(at: Emission, base: Any, place: Any, values: Sequence[Any]) -> None:
    """What `element_at` reads."""
    builder = at.builder
    place = builder.mul(place, index(len(values)))
    for part, value in enumerate(values):
        where = builder.add(place, index(part))
        pointer = offset(builder, base, at.real, where)
        builder.store(value, pointer, align=at.spec.dtype.alignment)


def spread(builder: Any, value: Any, width: int) -> Any:
    """A number in every lane."""
    if width == 1:
        return value
    kind = ir.VectorType(value.type, width)
    single = builder.insert_element(
        ir.Constant(kind, ir.Undefined), value, ir.Constant(ENUM, 0)
    )
    zeros = ir.Constant(ir.VectorType(ENUM, width), None)
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), zeros)


def multiply(builder: Any, x: Sequence[Any], y: Sequence[Any]) -> list[Any]:
    """0 + x y, as a sum of one term is"""
    if len(x) == 1:
        products = [builder.fmul(x[0], y[0])]
    else:
        real = builder.fsub(builder.fmul(x[0], y[0]), builder.fmul(x[1], y[1]))
        imaginary = builder.fadd(builder.fmul(x[0], y[1]), builder.fmul(x[1], y[0]))
        products = [real, imaginary]
    return [builder.fadd(zero_like(value), value) for value in products]


def zero_like(value: Any) -> Any:
    return ir.Constant(value.type, None)


# Integers, places and loops


def enum(value: int) -> Any:
    return ir.Constant(ENUM, value)


def index(value: int) -> Any:
    return ir.Constant(INDEX, value)


def transposition(layout: Layout) -> Any:
    return enum(TRANSPOSED if layout.is_transposed else PLAIN)


def offset(builder: Any, base: Any, element: Any, place: Any) -> Any:
    """The address of an element."""
    return builder.gep(base, [place], source_etype=element)


@contextmanager
def loop(builder: Any, first: Any, last: Any, step: int = 1) -> Iterator[Any]:
    """A loop around what is emitted inside; gives the number that counts."""
    before = builder.block
    head = builder.append_basic_block("head")
    body = builder.append_basic_block("body")
    done = builder.append_basic_block("done")
    builder.branch(head)
    builder.position_at_end(head)
    number = builder.phi(INDEX)
    number.add_incoming(first, before)
    builder.cbranch(builder.icmp_signed("<", number, last), body, done)
    builder.position_at_end(body)
    yield number
    number.add_incoming(builder.add(number, index(step)), builder.block)
    builder.branch(head)
    builder.position_at_end(done)


@contextmanager
def stack_loop(
    builder: Any, spec: MatmulSpec, pointers: tuple[Any, Any, Any]
) -> Iterator[tuple[Any, Any, Any]]:
    """Loops over the stack; gives where the operands of one product begin."""
    if not spec.batch:
        yield pointers
        return
    axis, inner = spec.batch[0], replace(spec, batch=spec.batch[1:])
    element = ir.ArrayType(ir.IntType(8), spec.dtype.itemsize)
    with loop(builder, index(0), index(axis.size)) as number:
        a, b, c = (
            offset(builder, pointer, element, builder.mul(number, index(step)))
            for pointer, step in zip(pointers, axis[1:], strict=True)
        )
        with stack_loop(builder, inner, (a, b, c)) as found:
            yield found
