"""The body of a function that is being run, and what its results become.

Tapes opened outside of a body are not used inside, nor the other way round; `SCOPE`
tells them apart. A Python number that a body returns becomes a tensor of the default
dtype, as everywhere. But `float(x)` of a float64 tensor is a double, and not to be
rounded, nor is that of an integer which float32 may not hold: where a body has taken
numbers from such tensors, its floats are float64.

Start reading at `Scope`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tapejit.base.types import DType, dtype_named
from tapejit.tensor.dispatch import as_operand, convert
from tapejit.tensor.tensor import Tensor

DOUBLES = frozenset({dtype_named("float64"), dtype_named("complex128")})
LONG = frozenset(map(dtype_named, ("int32", "int64", "uint32", "uint64")))


class Scope:
    """One run of a body.

    has_doubles   whether a number was taken from a tensor of float64 or complex128,
                  or a float from one of long integers
    """

    __slots__ = ("has_doubles",)

    def __init__(self) -> None:
        self.has_doubles = False


SCOPE: ContextVar[Scope | None] = ContextVar("scope", default=None)


@contextmanager
def scope() -> Iterator[None]:
    """A body runs: it uses no tapes opened outside, nor the other way round."""
    token = SCOPE.set(Scope())
    try:
        yield
    finally:
        SCOPE.reset(token)


def note_double(dtype: DType, what: str) -> None:
    """A Python number is taken from a tensor, by the method `what`."""
    scope = SCOPE.get()
    if scope is None:
        return
    if dtype in DOUBLES or (dtype in LONG and what in ("float", "complex")):
        scope.has_doubles = True


def returned(x: Any, name: str) -> Tensor:
    """What a body returns, as a tensor."""
    scope = SCOPE.get()
    if type(x) is float or type(x) is complex:
        if scope is not None and scope.has_doubles:
            wide = dtype_named("float64" if type(x) is float else "complex128")
            return convert(x, wide, name=name)
        return convert(x, None, name=name)
    if isinstance(x, (float, complex)):  # NumPy's keep their dtype
        return convert(x, None, name=name)
    return as_operand(x, name)
