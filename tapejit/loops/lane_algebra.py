"""The lane algebra: what a record's `scalar` is written in, whoever interprets it.

A record says in `scalar(m, *lanes, **attrs)` what it does to one element: operators
between `Lane`s, and functions that it asks of `m` by name, such as `m.exp(x)` or
`m.select(condition, x, 0)`. Both end in one call, `Algebra.call(name, *operands)`, so
an interpreter is a subclass with that one method. There are three: in `lanes.py` one
that emits LLVM and one that only finds out whether that could be done, and in
`lane_source.py` one that writes Python.

An operand is a Lane, or a plain Python number that stands for itself in every lane.

Start reading at `Algebra`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from tapejit.base.types import DType, is_float
from tapejit.ir.node import Op

# The kinds of lanes that are computed in different ways.
BOOL, SIGNED, UNSIGNED, FLOAT = "bool", "signed", "unsigned", "float"


def kind_of(dtype: Any) -> str | None:
    """How lanes of a dtype are computed; None if there are no such lanes.

    >>> import numpy as np
    >>> kind_of(np.dtype("uint8")), kind_of(np.dtype("complex64"))
    ('unsigned', None)
    """
    if is_float(dtype):
        return FLOAT
    return {"b": BOOL, "i": SIGNED, "u": UNSIGNED}.get(dtype.kind)


class Lane:
    """What an interpreter holds for one value, and the operators on it.

    `value` is the interpreter's own: an LLVM value, a piece of text, or nothing.
    """

    __slots__ = ("algebra", "dtype", "value")

    def __init__(self, algebra: Algebra, value: Any, dtype: DType | None) -> None:
        self.algebra = algebra
        self.value = value
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"<lane of {self.dtype}: {self.value}>"

    def __add__(self, other: Operand) -> Lane:
        return self.algebra.call("add", self, other)

    def __radd__(self, other: Operand) -> Lane:
        return self.algebra.call("add", other, self)

    def __sub__(self, other: Operand) -> Lane:
        return self.algebra.call("sub", self, other)

    def __rsub__(self, other: Operand) -> Lane:
        return self.algebra.call("sub", other, self)

    def __mul__(self, other: Operand) -> Lane:
        return self.algebra.call("mul", self, other)

    def __rmul__(self, other: Operand) -> Lane:
        return self.algebra.call("mul", other, self)

    def __truediv__(self, other: Operand) -> Lane:
        return self.algebra.call("div", self, other)

    def __rtruediv__(self, other: Operand) -> Lane:
        return self.algebra.call("div", other, self)

    def __neg__(self) -> Lane:
        return self.algebra.call("negative", self)

    # `==` stays Python's, so that Lanes can be keys: write `m.eq(x, y)`.

    def __lt__(self, other: Operand) -> Lane:
        return self.algebra.call("lt", self, other)

    def __le__(self, other: Operand) -> Lane:
        return self.algebra.call("le", self, other)

    def __gt__(self, other: Operand) -> Lane:
        return self.algebra.call("gt", self, other)

    def __ge__(self, other: Operand) -> Lane:
        return self.algebra.call("ge", self, other)


Operand = Lane | float | int


class Algebra(ABC):
    """An interpreter of lane expressions: the `m` of a record's `scalar`.

    >>> class Names(Algebra):
    ...     def call(self, name, *operands):
    ...         return Lane(self, name, None)
    >>> Names().tanh(1.0).value
    'tanh'
    """

    @abstractmethod
    def call(self, name: str, *operands: Any) -> Lane:
        """The function of that name, of Lanes and numbers."""

    def __getattr__(self, name: str) -> Callable[..., Lane]:
        if name.startswith("_"):  # not a function of lanes: copying, pickling
            raise AttributeError(name)
        return partial(self.call, name)

    def interpret(self, op: Op, lanes: list[Lane], attrs: Any) -> Lane:
        """A record's lane expression of these Lanes."""
        assert op.scalar is not None, f"{op.name} has no lane expression"
        found: Lane = op.scalar(self, *lanes, **attrs)
        return found
