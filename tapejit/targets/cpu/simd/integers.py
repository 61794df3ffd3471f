"""Integer and bool lanes: NumPy's arithmetic, with a result for every operand.

LLVM has no result for a division by zero, for the smallest integer divided by -1, or
for a shift by more bits than there are: the operands are replaced first, and what
NumPy says is put in their place. Sums, differences and products wrap around.

`Integers` is the position in the code, the dtype and the number of lanes; functions
take it and LLVM values. Bools are integers of one bit without a sign, whose sum is
`or` and whose product is `and`.

Start reading at `Integers`, then `divmod_towards_zero`.
"""

from __future__ import annotations

from tapejit.base.types import DType
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, Value
from tapejit.targets.cpu.simd.vector import Splat


class Integers:
    """Appends instructions on integer lanes of one dtype."""

    def __init__(self, builder: IRBuilder, dtype: DType, width: int) -> None:
        self.ir = builder
        self.dtype = dtype
        self.bits = 1 if dtype.kind == "b" else 8 * dtype.itemsize
        self.is_signed = dtype.kind == "i"
        self.width = width
        self.element = ir.IntType(self.bits)
        self.type = ir.VectorType(self.element, width)

    @property
    def lowest(self) -> int:
        """The smallest number of a signed dtype."""
        return -(1 << (self.bits - 1))

    def constant(self, value: int) -> Value:
        """An integer in every lane."""
        return Splat(self.type, ir.Literal(self.element, value))

    def compare(self, symbol: str, x: Value, y: Value) -> Value:
        """The lanes in which `x symbol y`, as numbers of the dtype."""
        if self.is_signed:
            return self.ir.icmp_signed(symbol, x, y)
        return self.ir.icmp_unsigned(symbol, x, y)

    def equals(self, x: Value, value: int) -> Value:
        """The lanes that are a certain number."""
        return self.compare("==", x, self.constant(value))

    def any(self, mask: Value) -> Value:
        """Whether any lane is set, as an LLVM bit."""
        bits = self.ir.bitcast(mask, ir.IntType(self.width))
        return self.ir.icmp_unsigned("!=", bits, ir.Literal(bits.type, 0))


def add(n: Integers, x: Value, y: Value) -> Value:
    return n.ir.add(x, y)


def sub(n: Integers, x: Value, y: Value) -> Value:
    return n.ir.sub(x, y)


def mul(n: Integers, x: Value, y: Value) -> Value:
    return n.ir.mul(x, y)


def negative(n: Integers, x: Value) -> Value:
    return n.ir.sub(n.constant(0), x)


def magnitude(n: Integers, x: Value) -> Value:
    """The smallest integer has no positive kin and stays."""
    is_below = n.compare("<", x, n.constant(0))
    return n.ir.select(is_below, negative(n, x), x)


def sign(n: Integers, x: Value) -> Value:
    """-1, 0 or 1."""
    zero, one = n.constant(0), n.constant(1)
    is_above = n.compare(">", x, zero)
    other = n.ir.select(n.compare("<", x, zero), n.constant(-1), zero)
    return n.ir.select(is_above, one, other)


def maximum(n: Integers, x: Value, y: Value) -> Value:
    return n.ir.select(n.compare(">", x, y), x, y)


def minimum(n: Integers, x: Value, y: Value) -> Value:
    return n.ir.select(n.compare("<", x, y), x, y)


def and_(n: Integers, x: Value, y: Value) -> Value:
    return n.ir.and_(x, y)


def or_(n: Integers, x: Value, y: Value) -> Value:
    return n.ir.or_(x, y)


def xor(n: Integers, x: Value, y: Value) -> Value:
    return n.ir.xor(x, y)


def invert(n: Integers, x: Value) -> Value:
    return n.ir.xor(x, n.constant(-1))


# Shifts


def shl(n: Integers, x: Value, count: Value) -> Value:
    """Nothing is left of a number that is shifted by all its bits, or by fewer than 0.

    A negative count is a large one if its sign is a bit like the others.
    """
    is_inside = n.ir.icmp_unsigned("<", count, n.constant(n.bits))
    safe = n.ir.select(is_inside, count, n.constant(0))
    return n.ir.select(is_inside, n.ir.shl(x, safe), n.constant(0))


def shr(n: Integers, x: Value, count: Value) -> Value:
    """The sign is all that is left of what is shifted by all its bits."""
    last = n.constant(n.bits - 1)
    is_inside = n.ir.icmp_unsigned("<", count, n.constant(n.bits))
    safe = n.ir.select(is_inside, count, last)
    if n.is_signed:
        return n.ir.ashr(x, safe)
    return n.ir.select(is_inside, n.ir.lshr(x, safe), n.constant(0))


# Division


def divmod_towards_zero(n: Integers, x: Value, y: Value) -> tuple[Value, Value]:
    """The quotient without its fraction, and what remains; both 0 where y is 0."""
    has_result = n.compare("!=", y, n.constant(0))
    is_replaced = n.equals(y, 0)
    if n.is_signed:  # the quotient has no place among the integers, and wraps to x
        wraps = n.ir.and_(n.equals(x, n.lowest), n.equals(y, -1))
        is_replaced = n.ir.or_(is_replaced, wraps)
    divisor = n.ir.select(is_replaced, n.constant(1), y)
    quotient = _quotient(n, x, divisor)
    rest = n.ir.sub(x, n.ir.mul(quotient, divisor))
    zero = n.constant(0)
    return n.ir.select(has_result, quotient, zero), n.ir.select(has_result, rest, zero)


def _quotient(n: Integers, x: Value, y: Value) -> Value:
    """`x / y` for a divisor that is allowed.

    Processors divide integers one by one, but floats in vectors. The quotient of two
    integers of b bits is at least 2^-b of itself away from any integer that it is not,
    so a float with more bits than b that is cut off gives the right one.
    """
    if n.bits == 64:
        return n.ir.sdiv(x, y) if n.is_signed else n.ir.udiv(x, y)
    element = ir.FloatType() if n.bits <= 16 else ir.DoubleType()
    wide = ir.VectorType(element, n.width)
    if n.is_signed:
        ratio = n.ir.fdiv(n.ir.sitofp(x, wide), n.ir.sitofp(y, wide))
        return n.ir.fptosi(ratio, n.type)
    ratio = n.ir.fdiv(n.ir.uitofp(x, wide), n.ir.uitofp(y, wide))
    return n.ir.fptoui(ratio, n.type)


def _is_rounded_up(n: Integers, rest: Value, y: Value) -> Value:
    """Where the quotient towards zero is above the quotient."""
    zero = n.constant(0)
    is_other = n.compare("<", n.ir.xor(rest, y), zero)  # the signs differ
    return n.ir.and_(n.compare("!=", rest, zero), is_other)


def floor_divide(n: Integers, x: Value, y: Value) -> Value:
    """The largest integer that is not above the quotient."""
    quotient, rest = divmod_towards_zero(n, x, y)
    if not n.is_signed:
        return quotient
    # A set bit in every place is -1.
    return n.ir.add(quotient, n.ir.sext(_is_rounded_up(n, rest, y), n.type))


def remainder(n: Integers, x: Value, y: Value) -> Value:
    """What remains, with the sign of the divisor."""
    _, rest = divmod_towards_zero(n, x, y)
    if not n.is_signed:
        return rest
    return n.ir.select(_is_rounded_up(n, rest, y), n.ir.add(rest, y), rest)


def fmod(n: Integers, x: Value, y: Value) -> Value:
    """What remains, with the sign of the dividend."""
    return divmod_towards_zero(n, x, y)[1]


def pow(n: Integers, x: Value, p: Value) -> Value:
    """By squaring, for exponents that are not negative."""
    zero, one = n.constant(0), n.constant(1)
    before = n.ir.block
    head = n.ir.append_basic_block("power")
    body = n.ir.append_basic_block("power.square")
    done = n.ir.append_basic_block("power.done")
    n.ir.branch(head)
    n.ir.position_at_end(head)
    total, base, left = (n.ir.phi(n.type) for _ in range(3))
    for phi, start in ((total, one), (base, x), (left, p)):
        phi.add_incoming(start, before)
    n.ir.cbranch(n.any(n.compare("!=", left, zero)), body, done)
    n.ir.position_at_end(body)
    is_odd = n.compare("!=", n.ir.and_(left, one), zero)
    total.add_incoming(n.ir.select(is_odd, n.ir.mul(total, base), total), body)
    base.add_incoming(n.ir.mul(base, base), body)
    left.add_incoming(n.ir.lshr(left, one), body)
    n.ir.branch(head)
    n.ir.position_at_end(done)
    return total
