"""Code that notes whether what was computed is finite.

Kernels that are checked leave a mark in the arena when a value is NaN or infinite, and
go on. The function then reports a failure, and the call is performed again by NumPy,
which finds out what it was.

Start reading at `fail_unless_finite`.
"""

from __future__ import annotations

from tapejit.base.types import DType, is_float
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import Addressing, number


def fail_unless_finite(at: Addressing, value: Value, dtype: DType) -> None:
    """Leave a mark if a lane is NaN or infinite; other dtypes are always finite."""
    if not is_float(dtype):
        return
    # Infinity minus itself is NaN, as NaN is; of finite numbers it is 0.
    rest = at.builder.fsub(value, value)
    is_good = at.builder.fcmp_ordered("ord", rest, rest)
    at.fail_unless(is_good)


def fail_unless_array_is_finite(
    at: Addressing, pointer: Value, size: int, dtype: DType
) -> None:
    """The same for everything in a stretch of memory."""
    if not is_float(dtype):
        return
    width = min(16, 1 << (size.bit_length() - 1))
    last = number(size - width)

    def body(place: Value) -> None:
        is_inside = at.builder.icmp_signed("<", place, last)
        place = at.builder.select(is_inside, place, last)
        fail_unless_finite(at, at.load_at(pointer, place, dtype, width), dtype)

    at.for_range(number(0), number(size), width, body)
