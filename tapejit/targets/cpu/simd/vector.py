"""SIMD values with operators, emitted as LLVM instructions.

A `Builder` knows an `IRBuilder`, a float format (`F32` or `F64`) and a number
of lanes. A `Vector` is one LLVM value of that many lanes: floats of the format, signed
integers of the same width, or a mask of bits. Operators on Vectors append instructions;
a Python number beside a Vector becomes a constant in every lane.

No instruction carries a fast-math flag, so each rounds once and lanes never influence
each other: a formula gives the same bits at any width. A fused multiply-add is written
where it is meant, by `Builder.fma`. Nothing here is undefined for any operand: floats
become integers by their bits, never by a conversion that has no result for NaN.

Start reading at `Builder`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tapejit.base.errors import ArgumentError
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value, VectorType
from tapejit.targets.cpu.target import CPU


class Format(NamedTuple):
    """A binary floating-point format.

    >>> F32.precision, F32.max_exponent, F32.suffix
    (24, 127, 'f32')
    """

    bits: int  # of the whole number
    precision: int  # bits of the significand, the hidden one included
    max_exponent: int  # of the largest finite number, also the bias

    @property
    def suffix(self) -> str:
        """How intrinsics name the format."""
        return f"f{self.bits}"

    @property
    def stored(self) -> int:
        """Bits of the significand that are stored."""
        return self.precision - 1

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.max_exponent)

    @property
    def rounder(self) -> float:
        """Adding and subtracting this rounds a small number to an integer.

        The sum's last bits are that integer in two's complement.
        """
        return 1.5 * 2.0**self.stored

    def bits_of(self, value: float) -> int:
        """The bits of a number of this format, as a signed integer."""
        float_code, int_code = ("<f", "<i") if self.bits == 32 else ("<d", "<q")
        (found,) = struct.unpack(int_code, struct.pack(float_code, value))
        return int(found)

    def round(self, value: float) -> float:
        """The nearest number of this format.

        >>> F32.round(0.1)
        0.10000000149011612
        """
        code = "<f" if self.bits == 32 else "<d"
        (found,) = struct.unpack(code, struct.pack(code, value))
        return float(found)


F32 = Format(bits=32, precision=24, max_exponent=127)
F64 = Format(bits=64, precision=53, max_exponent=1023)

FLOAT, INTEGER, MASK = "float", "integer", "mask"


class Splat(ir.Literal):
    """One constant in every lane, in LLVM's short form.

    Sixteen copies of each coefficient would make the text of a kernel several times
    longer, and parsing it is a good part of compiling it.
    """

    def __init__(self, type: VectorType, element: ir.Literal) -> None:
        self.type = type
        self.constant = element
        self.reference = f"splat ({element})"


class Vector:
    """One value per lane, and the operators on it."""

    __slots__ = ("builder", "kind", "value")

    def __init__(self, builder: Builder, value: Value, kind: str) -> None:
        self.builder = builder
        self.value = value
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind} {self.value.type}>"

    # The integer and the mask forms share the operators of bits.

    def __add__(self, other: Operand) -> Vector:
        return self.builder.binary("add", self, other)

    def __radd__(self, other: Operand) -> Vector:
        return self.builder.binary("add", other, self)

    def __sub__(self, other: Operand) -> Vector:
        return self.builder.binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Vector:
        return self.builder.binary("sub", other, self)

    def __mul__(self, other: Operand) -> Vector:
        return self.builder.binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Vector:
        return self.builder.binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Vector:
        return self.builder.binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Vector:
        return self.builder.binary("div", other, self)

    def __and__(self, other: Operand) -> Vector:
        return self.builder.binary("and_", self, other)

    def __or__(self, other: Operand) -> Vector:
        return self.builder.binary("or_", self, other)

    def __xor__(self, other: Operand) -> Vector:
        return self.builder.binary("xor", self, other)

    def __lshift__(self, count: int) -> Vector:
        return self.builder.binary("shl", self, count)

    def __rshift__(self, count: int) -> Vector:
        return self.builder.binary("ashr", self, count)

    def __neg__(self) -> Vector:
        return self.builder.negative(self)

    def __invert__(self) -> Vector:
        return self.builder.inverted(self)

    def __lt__(self, other: Operand) -> Vector:
        return self.builder.compare("<", self, other)

    def __le__(self, other: Operand) -> Vector:
        return self.builder.compare("<=", self, other)

    def __gt__(self, other: Operand) -> Vector:
        return self.builder.compare(">", self, other)

    def __ge__(self, other: Operand) -> Vector:
        return self.builder.compare(">=", self, other)

    def eq(self, other: Operand) -> Vector:
        """Where both are equal; `==` stays Python's, so that Vectors can be keys."""
        return self.builder.compare("==", self, other)

    def ne(self, other: Operand) -> Vector:
        """Where they differ, or one of them is NaN."""
        return self.builder.compare("!=", self, other)


Operand = Vector | float | int


class Builder:
    """Appends vector instructions at the position of an `IRBuilder`.

    >>> from tapejit.targets.cpu.llvm import ir
    >>> lanes = ir.VectorType(ir.DoubleType(), 4)
    >>> kind = ir.FunctionType(lanes, [lanes])
    >>> function = ir.LLVMFunction(ir.LLVMModule(), kind, "twice")
    >>> b = Builder(ir.IRBuilder(function.append_basic_block()), F64, 4)
    >>> x = b.wrap(function.args[0])
    >>> _ = b.ir.ret((x + x).value)
    >>> print(function.blocks[0].lines[0])
    %.3 = fadd <4 x double> %.1, %.1
    """

    def __init__(self, builder: IRBuilder, format: Format, width: int) -> None:
        if width < 1:
            raise ArgumentError(f"a vector has at least 1 lane, not {width}")
        self.ir = builder
        self.format = format
        self.width = width
        self.element = ir.FloatType() if format.bits == 32 else ir.DoubleType()
        self.float_type = ir.VectorType(self.element, width)
        self.int_element = ir.IntType(format.bits)
        self.int_type = ir.VectorType(self.int_element, width)
        self.mask_type = ir.VectorType(ir.IntType(1), width)

    # Making Vectors

    def wrap(self, value: Value) -> Vector:
        """An LLVM value of this Builder's floats as a Vector."""
        return Vector(self, value, FLOAT)

    def constant(self, value: float) -> Vector:
        """A float, rounded to the format, in every lane."""
        rounded = self.format.round(value)
        return Vector(
            self, Splat(self.float_type, ir.Literal(self.element, rounded)), FLOAT
        )

    def integer(self, value: int) -> Vector:
        """A signed integer in every lane."""
        return Vector(
            self, Splat(self.int_type, ir.Literal(self.int_element, value)), INTEGER
        )

    def _like(self, kind: str, value: Operand) -> Vector:
        if isinstance(value, Vector):
            return value
        if kind == FLOAT:
            return self.constant(value)
        return self.integer(int(value))

    # Arithmetic

    def binary(self, name: str, x: Operand, y: Operand) -> Vector:
        """`x` and `y` through the instruction of their kind."""
        kind = x.kind if isinstance(x, Vector) else y.kind  # type: ignore[union-attr]  # one is
        left, right = self._like(kind, x), self._like(kind, y)
        emit = getattr(self.ir, f"f{name}" if kind == FLOAT else name)
        return Vector(self, emit(left.value, right.value), kind)

    def negative(self, x: Vector) -> Vector:
        """-x, exact also for zero and NaN."""
        if x.kind == FLOAT:
            return Vector(self, self.ir.fneg(x.value), FLOAT)
        return 0 - x

    def inverted(self, x: Vector) -> Vector:
        """Every bit of integers, or every lane of a mask, the other way."""
        return Vector(self, self.ir.not_(x.value), x.kind)

    def compare(self, symbol: str, x: Operand, y: Operand) -> Vector:
        """The mask of lanes in which `x symbol y`; NaN is unequal to everything."""
        kind = x.kind if isinstance(x, Vector) else y.kind  # type: ignore[union-attr]  # one is
        left, right = self._like(kind, x).value, self._like(kind, y).value
        if kind != FLOAT:
            found = self.ir.icmp_signed(symbol, left, right)
        elif symbol == "!=":
            found = self.ir.fcmp_unordered(symbol, left, right)
        else:
            found = self.ir.fcmp_ordered(symbol, left, right)
        return Vector(self, found, MASK)

    def select(self, mask: Vector, x: Operand, y: Operand) -> Vector:
        """`x` in the lanes of the mask, `y` in the others."""
        kind = next((v.kind for v in (x, y) if isinstance(v, Vector)), FLOAT)
        left, right = self._like(kind, x).value, self._like(kind, y).value
        return Vector(self, self.ir.select(mask.value, left, right), kind)

    def call(self, name: str, *operands: Operand) -> Vector:
        """An intrinsic on floats, such as `fma`, `sqrt` or `copysign`."""
        values = [self._like(FLOAT, operand).value for operand in operands]
        full = f"llvm.{name}.v{self.width}{self.format.suffix}"
        return self.wrap(self.ir.intrinsic(full, self.float_type, values))

    def fma(self, x: Operand, y: Operand, z: Operand) -> Vector:
        """x * y + z, rounded once."""
        return self.call("fma", x, y, z)

    def sqrt(self, x: Vector) -> Vector:
        """The square root, correctly rounded."""
        return self.call("sqrt", x)

    def abs(self, x: Vector) -> Vector:
        """The magnitude."""
        return self.call("fabs", x)

    def copysign(self, magnitude: Operand, sign: Vector) -> Vector:
        """The magnitude of one with the sign of the other."""
        return self.call("copysign", magnitude, sign)

    def floor(self, x: Vector) -> Vector:
        """The largest integer that is not above."""
        return self.call("floor", x)

    def trunc(self, x: Vector) -> Vector:
        """The integer next to it towards zero."""
        return self.call("trunc", x)

    def round(self, x: Vector) -> Vector:
        """The nearest integer, of two the even one."""
        return self.call("roundeven", x)

    def maximum(self, x: Operand, y: Operand) -> Vector:
        """The larger one, NaN if one is NaN (`np.maximum`)."""
        left, right = self._like(FLOAT, x), self._like(FLOAT, y)
        return self.select((left >= right) | left.ne(left), left, right)

    def minimum(self, x: Operand, y: Operand) -> Vector:
        """The smaller one, NaN if one is NaN (`np.minimum`)."""
        left, right = self._like(FLOAT, x), self._like(FLOAT, y)
        return self.select((left <= right) | left.ne(left), left, right)

    def clamp(self, x: Vector, low: float, high: float) -> Vector:
        """`x` within bounds, or NaN."""
        below = self.select(x < low, low, x)
        return self.select(below > high, high, below)

    def polynomial(self, x: Vector, coefficients: Sequence[float]) -> Vector:
        """c0 + c1 x + c2 x^2 ..., by Horner's rule with fused steps.

        A long one is the sum of two, of even and of odd powers: half the steps wait
        for each other, which takes a third off the time of a float64 `erf`.
        """
        if len(coefficients) < CPU.numerics.split_polynomial_coefficients:
            return self._horner(x, coefficients)
        square = x * x
        odd = self._horner(square, coefficients[1::2])
        return self.fma(x, odd, self._horner(square, coefficients[::2]))

    def _horner(self, x: Vector, coefficients: Sequence[float]) -> Vector:
        *lower, last = coefficients
        total: Operand = last
        for coefficient in reversed(lower):
            total = self.fma(total, x, coefficient)
        return total if isinstance(total, Vector) else self.constant(total)

    # Bits

    def as_bits(self, x: Vector) -> Vector:
        """The bits of floats as integers."""
        return Vector(self, self.ir.bitcast(x.value, self.int_type), INTEGER)

    def as_float(self, bits: Vector) -> Vector:
        """Integers taken as the bits of floats."""
        return Vector(self, self.ir.bitcast(bits.value, self.float_type), FLOAT)

    def to_float(self, x: Vector) -> Vector:
        """Integers below 2^22 (2^51) in magnitude as floats, by adding their bits.

        Cheaper than the conversion of 64-bit integers, which needs AVX-512.
        """
        rounder = self.format.rounder
        return self.as_float(x + self.format.bits_of(rounder)) - rounder

    def split_round(self, shifted: Vector) -> tuple[Vector, Vector]:
        """The integer in a sum with `format.rounder`: as a float and as an integer."""
        rounder = self.format.rounder
        return shifted - rounder, self.as_bits(shifted) - self.format.bits_of(rounder)

    def power_of_two(self, exponent: Vector) -> Vector:
        """2^exponent for exponents of normal numbers."""
        return self.as_float(
            (exponent + self.format.max_exponent) << self.format.stored
        )

    def logical_shift(self, x: Vector, count: int) -> Vector:
        """Integers shifted down with zeros from above; `>>` repeats the sign."""
        return self.binary("lshr", x, count)

    def is_negative(self, x: Vector) -> Vector:
        """Where the sign bit is set, also of -0 and NaN."""
        return self.as_bits(x) < 0

    # Control, for what is rare

    def any(self, mask: Vector) -> Value:
        """Whether any lane is set, as an LLVM bit."""
        bits = self.ir.bitcast(mask.value, ir.IntType(self.width))
        return self.ir.icmp_unsigned("!=", bits, ir.Literal(bits.type, 0))
