"""Elementwise operations on vectors of lanes, emitted as LLVM instructions.

This is what a kernel's body is made of: `apply` takes the LLVM values of a Node's
operands, a vector of `width` lanes each, and appends what the record's `scalar` says.
`FUNCTIONS` has a row for each function of the lane algebra, with one formula per kind
of lanes that has it; what is not there is looked up in `vecmath`, by name, for floats.
`is_supported` runs the same expression without emitting anything.

The meaning is the record's `eval`, bit for bit where that is exact. Every instruction
has a result for every operand: kernels compute lanes whose result nobody wants.

The files: `storage` has registers and memory, `floats`, `integers` and `casts` have the
formulas. `loops.lane_algebra` is the interface to the records, and
`targets.python.lane_source` writes the same as Python text.

Start reading at `apply`, then `FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tapejit.base.errors import UnsupportedError
from tapejit.base.types import DType
from tapejit.ir.node import Op
from tapejit.loops.lane_algebra import (
    BOOL,
    FLOAT,
    SIGNED,
    UNSIGNED,
    Algebra,
    Lane,
    Operand,
    kind_of,
)
from tapejit.targets.cpu import vecmath
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value
from tapejit.targets.cpu.simd import floats, integers
from tapejit.targets.cpu.simd.casts import cast
from tapejit.targets.cpu.simd.integers import Integers
from tapejit.targets.cpu.simd.storage import (
    Floats,
    constant,
    from_memory,
    memory_type,
    register_type,
    rounded,
    to_memory,
)
from tapejit.targets.cpu.simd.vector import Vector
from tapejit.targets.python.lane_source import source

__all__ = [
    "apply",
    "constant",
    "from_memory",
    "is_supported",
    "memory_type",
    "register_type",
    "source",
    "to_memory",
]

Attrs = Mapping[str, Any]
Formula = Callable[..., Any]
BOOL_DTYPE, INT32 = np.dtype(bool), np.dtype(np.int32)


class LaneRule(NamedTuple):
    """A function of the lane algebra, by kind of lanes; None where there is none.

    result          the dtype of the result if it is not the operands'
    rounds          whether the result may be one that small floats cannot hold
    has_attributes  whether numbers beside the lanes are attributes, such as an
                    order, and not operands
    """

    on_floats: Formula | None = None
    on_signed: Formula | None = None
    on_unsigned: Formula | None = None
    on_bools: Formula | None = None
    result: DType | None = None
    rounds: bool = False
    has_attributes: bool = False

    def formula(self, kind: str | None) -> Formula | None:
        """The formula for a kind of lanes."""
        return {
            FLOAT: self.on_floats,
            SIGNED: self.on_signed,
            UNSIGNED: self.on_unsigned,
            BOOL: self.on_bools,
        }.get(kind or "")


def on_numbers(
    on_floats: Formula | None, on_integers: Formula, on_bools: Formula | None = None
) -> LaneRule:
    """A function of signed and unsigned integers alike, which floats may have too."""
    return LaneRule(on_floats, on_integers, on_integers, on_bools)


def on_bits(formula: Formula) -> LaneRule:
    """A function of integers and bools."""
    return LaneRule(None, formula, formula, formula)


def same(b: Value, x: Value) -> Value:
    """What a function of complex numbers leaves of a real one."""
    return x


def nothing(n: Integers, x: Value) -> Value:
    """The imaginary part of an integer."""
    return n.constant(0)


def comparison(symbol: str) -> LaneRule:
    """A comparison of lanes of any kind."""

    def of_floats(b: Floats, x: Vector, y: Vector) -> Vector:
        return b.compare(symbol, x, y)

    def of_integers(n: Integers, x: Value, y: Value) -> Value:
        return n.compare(symbol, x, y)

    return LaneRule(of_floats, of_integers, of_integers, of_integers, result=BOOL_DTYPE)


def predicate(formula: Formula) -> LaneRule:
    """A property of floats."""
    return LaneRule(formula, result=BOOL_DTYPE)


def rounding(formula: Formula) -> LaneRule:
    """A function of floats that a number of fewer bits may not hold."""
    return LaneRule(formula, rounds=True)


FUNCTIONS: dict[str, LaneRule] = {
    "add": LaneRule(floats.add, integers.add, integers.add, integers.or_, rounds=True),
    "sub": LaneRule(floats.sub, integers.sub, integers.sub, rounds=True),
    "mul": LaneRule(floats.mul, integers.mul, integers.mul, integers.and_, rounds=True),
    "div": rounding(floats.div),
    "negative": on_numbers(floats.negative, integers.negative),
    "abs": LaneRule(Floats.abs, integers.magnitude, same),
    "sign": on_numbers(floats.sign, integers.sign),
    "floor_divide": LaneRule(
        floats.floor_divide, integers.floor_divide, integers.floor_divide, rounds=True
    ),
    "remainder": LaneRule(
        floats.remainder, integers.remainder, integers.remainder, rounds=True
    ),
    "fmod": on_numbers(floats.fmod, integers.fmod),
    # A negative exponent of integers is an error, which a lane cannot raise.
    "pow": LaneRule(vecmath.BINARY["pow"], None, integers.pow, rounds=True),
    "sqrt": rounding(Floats.sqrt),
    "maximum": on_numbers(floats.maximum, integers.maximum, integers.or_),
    "minimum": on_numbers(floats.minimum, integers.minimum, integers.and_),
    "floor": LaneRule(Floats.floor),
    "ceil": LaneRule(floats.ceil),
    "trunc": LaneRule(Floats.trunc),
    "round_half_even": LaneRule(Floats.round),
    "copysign": LaneRule(Floats.copysign),
    "nextafter": LaneRule(floats.nextafter),
    "exponent": LaneRule(floats.exponent, result=INT32),
    "real": on_numbers(same, same),
    "conj": on_numbers(same, same),
    "imag": on_numbers(floats.zero, nothing),
    "angle": rounding(floats.angle),
    "eq": comparison("=="),
    "ne": comparison("!="),
    "lt": comparison("<"),
    "le": comparison("<="),
    "gt": comparison(">"),
    "ge": comparison(">="),
    "isnan": predicate(floats.isnan),
    "isinf": predicate(floats.isinf),
    "isfinite": predicate(floats.isfinite),
    "signbit": predicate(floats.signbit),
    "and_": on_bits(integers.and_),
    "or_": on_bits(integers.or_),
    "xor": on_bits(integers.xor),
    "invert": on_bits(integers.invert),
    "shl": LaneRule(None, integers.shl, integers.shl),
    "shr": LaneRule(None, integers.shr, integers.shr),
}


@cache
def function_named(name: str) -> LaneRule | None:
    """The function of the lane algebra with this name, if lanes have it.

    >>> function_named("tanh").on_floats.__name__, function_named("perimeter")
    ('tanh', None)
    """
    found = FUNCTIONS.get(name)
    if found is not None:
        return found
    for table in (vecmath.UNARY, vecmath.BINARY, getattr(vecmath, "TERNARY", {})):
        if name in table:
            return LaneRule(table[name], rounds=True, has_attributes=True)
    return None


class Typed(Algebra):
    """An interpreter that follows the dtypes, and emits if it has a position to.

    Numbers beside Lanes take their dtype; where there are none, the result's.
    """

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def call(self, name: str, *operands: Any) -> Lane:
        if name == "cast":
            return self._cast(*operands)
        if name == "select":
            return self._select(*operands)
        if name == "ldexp":
            return self._ldexp(*operands)
        function = function_named(name)
        dtypes = {x.dtype for x in operands if isinstance(x, Lane)}
        if function is None or len(dtypes) != 1:
            raise UnsupportedError(
                f"lanes have no {name} of {sorted(map(str, dtypes))}"
            )
        dtype = dtypes.pop()
        assert dtype is not None
        formula = function.formula(kind_of(dtype))
        if formula is None:
            raise UnsupportedError(f"lanes have no {name} of {dtype}")
        value = self.emit(formula, dtype, operands, function)
        return Lane(self, value, function.result or dtype)

    def _cast(self, x: Lane, dtype: DType) -> Lane:
        if kind_of(x.dtype) is None or kind_of(dtype) is None:
            raise UnsupportedError(f"lanes have no cast of {x.dtype} to {dtype}")
        return Lane(self, self.emit_cast(x, dtype), dtype)

    def _select(self, condition: Lane, x: Operand, y: Operand) -> Lane:
        dtype = next((v.dtype for v in (x, y) if isinstance(v, Lane)), self.dtype)
        if kind_of(dtype) is None:
            raise UnsupportedError(f"lanes have no selection of {dtype}")
        assert dtype is not None
        return Lane(self, self.emit_select(condition, x, y, dtype), dtype)

    def _ldexp(self, x: Lane, n: Lane) -> Lane:
        if kind_of(x.dtype) != FLOAT or n.dtype != INT32:
            raise UnsupportedError(f"lanes have no ldexp of {x.dtype} and {n.dtype}")
        return Lane(self, self.emit_ldexp(x, n), x.dtype)

    # What is done with a call that has been found to be right. Here: nothing.

    def emit(
        self, formula: Formula, dtype: DType, operands: Sequence[Any], row: LaneRule
    ) -> Any:
        """A row of the table, for operands of a dtype and numbers."""

    def emit_cast(self, x: Lane, dtype: DType) -> Any:
        """A conversion."""

    def emit_select(self, condition: Lane, x: Operand, y: Operand, dtype: DType) -> Any:
        """One operand or the other, lane by lane."""

    def emit_ldexp(self, x: Lane, n: Lane) -> Any:
        """A float times a power of two, by an integer."""


class Emitting(Typed):
    """Appends LLVM instructions; values of Lanes are vectors of `width` lanes."""

    def __init__(self, builder: IRBuilder, dtype: DType, width: int) -> None:
        super().__init__(dtype)
        self.builder = builder
        self.width = width

    def emit(
        self, formula: Formula, dtype: DType, operands: Sequence[Any], row: LaneRule
    ) -> Any:
        if kind_of(dtype) != FLOAT:
            n = Integers(self.builder, dtype, self.width)
            return formula(n, *(self._value(x, dtype) for x in operands))
        b = Floats(self.builder, dtype, self.width)
        vectors = [
            x
            if row.has_attributes and not isinstance(x, Lane)
            else b.wrap(self._value(x, dtype))
            for x in operands
        ]
        found: Vector = formula(b, *vectors)
        return (rounded(b, found, dtype) if row.rounds else found).value

    def _value(self, x: Operand, dtype: DType) -> Value:
        return x.value if isinstance(x, Lane) else constant(dtype, x, self.width)

    def emit_cast(self, x: Lane, dtype: DType) -> Value:
        assert x.dtype is not None
        return cast(self.builder, x.value, x.dtype, dtype, self.width)

    def emit_select(
        self, condition: Lane, x: Operand, y: Operand, dtype: DType
    ) -> Value:
        chosen, other = self._value(x, dtype), self._value(y, dtype)
        return self.builder.select(condition.value, chosen, other)

    def emit_ldexp(self, x: Lane, n: Lane) -> Value:
        assert x.dtype is not None
        b = Floats(self.builder, x.dtype, self.width)
        return rounded(b, floats.ldexp(b, b.wrap(x.value), n.value), x.dtype).value


def is_supported(
    op: Op, in_dtypes: Sequence[DType], out_dtype: DType, attrs: Attrs
) -> bool:
    """Whether `apply` can emit an operation on lanes of these dtypes.

    >>> from tapejit import ops
    >>> f32, c64 = np.dtype("float32"), np.dtype("complex64")
    >>> is_supported(ops.exp, [f32], f32, {}), is_supported(ops.exp, [c64], c64, {})
    (True, False)
    """
    if op.scalar is None or any(kind_of(d) is None for d in (*in_dtypes, out_dtype)):
        return False
    probe = Typed(out_dtype)
    lanes = [Lane(probe, None, dtype) for dtype in in_dtypes]
    try:
        found = probe.interpret(op, lanes, attrs)
    except UnsupportedError:
        return False
    return found.dtype == out_dtype


def apply(
    builder: IRBuilder,
    op: Op,
    attrs: Attrs,
    in_dtypes: Sequence[DType],
    out_dtype: DType,
    values: Sequence[Value],
    width: int,
) -> Value:
    """The result of an operation, as instructions at the position of an IRBuilder.

    Values are as `register_type` says. The builder may be in another block after it.

    >>> from tapejit.targets.cpu.llvm import ir
    >>> from tapejit import ops
    >>> f32 = np.dtype("float32")
    >>> type = register_type(f32, 4)
    >>> kind = ir.FunctionType(type, [type, type])
    >>> function = ir.LLVMFunction(ir.LLVMModule(), kind, "f")
    >>> builder = ir.IRBuilder(function.append_basic_block())
    >>> _ = apply(builder, ops.sub, {}, [f32, f32], f32, function.args, 4)
    >>> print(function.blocks[0].lines[0])
    %.4 = fsub <4 x float> %.1, %.2
    """
    algebra = Emitting(builder, out_dtype, width)
    lanes = [
        Lane(algebra, value, dtype)
        for value, dtype in zip(values, in_dtypes, strict=True)
    ]
    found: Value = algebra.interpret(op, lanes, attrs).value
    return found
