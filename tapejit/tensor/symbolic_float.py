"""A Python float that changes from call to call, inside a trace.

A learning rate that decays must not retrace its function at every value. When a float
argument comes with a second value, the body is traced once more with a `TracedFloat` in
its place: arithmetic with numbers gives another, an operation with a tensor uses it as
the weak scalar it is. Whoever asks for its value gets that of this call, and the trace
notes that it holds for no other.

Start reading at `TracedFloat`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.base import tree
from tapejit.base.dims import Dim
from tapejit.base.types import DType
from tapejit.ir.node import Node, Op
from tapejit.tensor.dispatch import HANDLES, TRACED_NUMBERS, apply, cast
from tapejit.tensor.tensor import Tensor, TracedTensor

Method = Callable[..., Any]
_OF_ALL: Final = frozenset({"dtype", "itemsize", "nbytes", "ndim", "shape", "size"})
_THEIRS: Final = NotImplemented  # an operator that the other side has to perform


class TracedFloat:
    """A weak float whose value is an input of the function being traced.

    `tensor` is its float64, `value` what it is in this call, a Python float or a
    NumPy scalar, `positions` the arguments it comes from, the symbolic sizes, and the
    elements of arrays, whose `value` is NaN.
    """

    __slots__ = ("positions", "tensor", "value")

    def __init__(
        self, tensor: TracedTensor, value: float, positions: frozenset[int | Dim | Node]
    ) -> None:
        self.tensor = tensor
        self.value = value
        self.positions = positions

    @property
    def sample(self) -> float:
        """A number of this kind."""
        return type(self.value)(1.0)

    def asked(self) -> float:
        """The value, which makes the trace one for this value alone."""
        for source in self.positions:
            if isinstance(source, Dim):
                self.tensor._trace.facts.fix(source)
            elif isinstance(source, Node):  # an element of an array: no guard for it
                return type(self.value)(float(self.tensor))
            else:
                self.tensor._trace.asked.add(source)
        return self.value

    def in_dtype(self, dtype: DType) -> Tensor:
        """The number as a tensor of a dtype, as a Python float would become one."""
        return cast(self.tensor, dtype)

    def combined(self, op: Op, left: Any, right: Any) -> TracedFloat:
        """The result of arithmetic, itself a weak float."""
        parts = [_parts(x) for x in (left, right)]
        out = self.tensor._trace.unrecorded(
            apply, op, *[tensor for tensor, _, _ in parts]
        )
        value = op.eval(*[number for _, number, _ in parts])
        if isinstance(value, np.floating) and value.itemsize < 8:  # rounded as NumPy's
            narrow = self.tensor._trace.unrecorded(cast, out, value.dtype)
            out = self.tensor._trace.unrecorded(cast, narrow, out.dtype)
        return TracedFloat(out, value, parts[0][2] | parts[1][2])

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, (int, float)):
            if other:
                return self.combined(ops.div, self, other)
            return self.asked() / other  # raises, as eagerly
        return self.asked() / other.asked() if type(other) is TracedFloat else _THEIRS

    def __neg__(self) -> TracedFloat:
        return self.combined(ops.mul, self, -1.0)

    def __pos__(self) -> TracedFloat:
        return self

    def __getattr__(self, name: str) -> Any:
        kind = type(self.value)
        if not hasattr(kind, name):  # to ask whether it has one is not to ask for it
            text = f"{kind.__name__!r} object has no attribute {name!r}"
            raise AttributeError(text, name=name)
        return getattr(self.value if name in _OF_ALL else self.asked(), name)

    # To Python and NumPy it is the float or NumPy scalar that was given.

    @property
    def __class__(self) -> type:
        return type(self.value)

    @__class__.setter
    def __class__(self, other: type) -> None:
        raise TypeError("the class of a float is not assigned")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.asked(), dtype)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        if any(map(_is_tensor, inputs)):
            return NotImplemented
        return getattr(ufunc, method)(*map(_number, inputs), **kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        leaves, structure = tree.flatten((args, kwargs), none_is_leaf=True)
        if any(map(_is_tensor, leaves)):
            return NotImplemented
        args, kwargs = tree.unflatten(structure, [_number(x) for x in leaves])
        return func(*args, **kwargs)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor) or type(x) in HANDLES


def _number(x: Any) -> Any:
    return x.asked() if type(x) is TracedFloat else x


def _parts(x: Any) -> tuple[Tensor, Any, frozenset[int | Dim | Node]]:
    if type(x) is not TracedFloat and type(x) in TRACED_NUMBERS:
        x = x.weak_float()
    if isinstance(x, TracedFloat):
        return x.tensor, x.value, x.positions
    number = x if isinstance(x, np.floating) else float(x)
    return Tensor(np.float64(x)), number, frozenset()


def _arithmetic(op: Op) -> tuple[Method, Method]:
    def forward(self: TracedFloat, other: Any) -> Any:
        if isinstance(other, (int, float, TracedFloat)):
            return self.combined(op, self, other)
        return NotImplemented

    def reflected(self: TracedFloat, other: Any) -> Any:
        if isinstance(other, (int, float)):
            return self.combined(op, other, self)
        return NotImplemented

    return forward, reflected


def _asking(name: str) -> Method:
    """A method of float that needs the value."""

    def method(self: TracedFloat, *others: Any) -> Any:
        if any(map(_is_tensor, others)):
            return NotImplemented  # the tensor's operator needs no value
        value = self.asked()
        kind = type(value)
        if not hasattr(kind, name):
            raise TypeError(f"type {kind.__name__} has no method {name}")
        return getattr(kind, name)(value, *map(_number, others))

    method.__name__ = name
    return method


for _name, _op in (("add", ops.add), ("sub", ops.sub), ("mul", ops.mul)):
    _forward, _reflected = _arithmetic(_op)
    setattr(TracedFloat, f"__{_name}__", _forward)
    setattr(TracedFloat, f"__r{_name}__", _reflected)

for _name in (
    *("abs", "bool", "float", "int", "trunc", "floor", "ceil", "round", "format"),
    *("repr", "str", "hash", "eq", "ne", "lt", "le", "gt", "ge"),
    *("floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "divmod", "rdivmod"),
    "rtruediv",
):
    setattr(TracedFloat, f"__{_name}__", _asking(f"__{_name}__"))

TRACED_NUMBERS.add(TracedFloat)
