"""Python's operators and NumPy's methods, shared by Tensor and Variable.

Each is one line that names the function it stands for. The functions need Tensor, so
this module comes last and fills the empty base class that `tensor.py` declares.

Start reading at `OperatorMethods`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit import ops
from tapejit.array import elementwise, indexing, manipulation, matmul, reductions
from tapejit.array.scattering import assign_part
from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.ir.node import Op
from tapejit.tensor.device import device, device_of, move
from tapejit.tensor.dispatch import as_operand, binary, binary_float, unary
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.tensor.recorder import mark_left
from tapejit.tensor.scope import note_double
from tapejit.tensor.tensor import Operators, Tensor, TracedTensor

if TYPE_CHECKING:
    from tapejit.array.at import At
    from tapejit.base.types import DType

Axis = int | Sequence[int] | None

# Values that an operator leaves to the other side, which then raises TypeError.
Foreign = (str, bytes, dict, set, type(None))


Method = Callable[[Any, Any], Any]


def _operator(op: Op, run: Callable[[Op, Any, Any], Tensor]) -> tuple[Method, Method]:
    """The method of a binary operator and its reflected twin.

    One frame between the user's line and the work: a second one would cost as much
    as the rest of the way.
    """

    def forward(self: Any, other: Any) -> Any:
        try:
            return run(op, self, other)
        except ArgumentTypeError:
            if isinstance(other, Foreign):
                return NotImplemented
            raise

    def reflected(self: Any, other: Any) -> Any:
        try:
            return run(op, other, self)
        except ArgumentTypeError:
            if isinstance(other, Foreign):
                return NotImplemented
            raise

    forward.__name__, reflected.__name__ = op.name, f"reflected_{op.name}"
    return forward, reflected


# Of the array API standard; later ones took nothing away.
VERSIONS = frozenset({"2021.12", "2022.12", "2023.12", "2024.12", "2025.12"})


class OperatorMethods:
    """What tensors and variables can do in an expression."""

    __slots__ = ()
    __pandas_priority__ = 5000  # so that pandas leaves operators to tapejit

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> DType: ...

    # Arithmetic

    __add__, __radd__ = _operator(ops.add, binary)
    __sub__, __rsub__ = _operator(ops.sub, binary)
    __mul__, __rmul__ = _operator(ops.mul, binary)
    __truediv__, __rtruediv__ = _operator(ops.div, binary_float)
    __floordiv__, __rfloordiv__ = _operator(ops.floor_divide, binary)
    __mod__, __rmod__ = _operator(ops.remainder, binary)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __pow__(self, other: Any) -> Tensor:
        if isinstance(other, Foreign):
            return NotImplemented
        return elementwise.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        if isinstance(other, Foreign):
            return NotImplemented
        return elementwise.pow(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        if isinstance(other, Foreign):
            return NotImplemented
        return matmul.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        if isinstance(other, Foreign):
            return NotImplemented
        return matmul.matmul(other, self)

    def __neg__(self) -> Tensor:
        return elementwise.negative(self)

    def __pos__(self) -> Tensor:
        return elementwise.positive(self)

    def __abs__(self) -> Tensor:
        return elementwise.abs(self)

    def __round__(self, ndigits: int | None = None) -> Tensor:
        return elementwise.round(self, ndigits or 0)

    def __floor__(self) -> Tensor:
        return elementwise.floor(self)

    def __ceil__(self) -> Tensor:
        return elementwise.ceil(self)

    def __trunc__(self) -> Tensor:
        return elementwise.trunc(self)

    # Comparison and bits

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Foreign):
            return NotImplemented
        return binary(ops.equal, self, other)

    def __ne__(self, other: object) -> Any:
        if isinstance(other, Foreign):
            return NotImplemented
        return binary(ops.not_equal, self, other)

    __hash__ = None  # type: ignore[assignment]  # == works element by element

    __lt__, _ = _operator(ops.less, binary)
    __le__, _ = _operator(ops.less_equal, binary)
    __gt__, _ = _operator(ops.greater, binary)
    __ge__, _ = _operator(ops.greater_equal, binary)
    __and__, __rand__ = _operator(ops.bitwise_and, binary)
    __or__, __ror__ = _operator(ops.bitwise_or, binary)
    __xor__, __rxor__ = _operator(ops.bitwise_xor, binary)
    __lshift__, __rlshift__ = _operator(ops.bitwise_left_shift, binary)
    __rshift__, __rrshift__ = _operator(ops.bitwise_right_shift, binary)

    def __invert__(self) -> Tensor:
        return unary(ops.bitwise_invert, self)

    # Shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.itemsize

    @property
    def T(self) -> Tensor:
        """The axes reversed."""
        return manipulation.permute_dims(self, tuple(range(self.ndim))[::-1])

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        return manipulation.matrix_transpose(self)

    @property
    def real(self) -> Tensor:
        """The real part."""
        return elementwise.real(self)

    @property
    def imag(self) -> Tensor:
        """The imaginary part."""
        return elementwise.imag(self)

    @property
    def device(self) -> device:
        """Where the data is: "cpu", or "cuda:0" for the first GPU."""
        whole: Any = self
        return device_of(whole if isinstance(self, Tensor) else whole._held())

    def to(self, device: Any, /) -> Tensor:
        """The tensor on a device; tapes take its gradient back to where it came from.

        Itself if it is there already.
        """
        return move(as_operand(self), device)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The namespace of the array API standard: tapejit itself."""
        if api_version is not None and api_version not in VERSIONS:
            raise ArgumentError(f"there is no array API version {api_version!r}")
        return sys.modules["tapejit"]

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """As `to`, in the words of the array API standard."""
        from tapejit.array import array_api

        return array_api.to_device(as_operand(self), device, stream=stream)

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len() of a tensor without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise ArgumentTypeError("iteration over a tensor without axes")
        whole = as_operand(self)
        return (whole[at] for at in range(len(whole)))

    def __contains__(self, value: Any) -> bool:
        return bool(reductions.any(self == value))

    def __getitem__(self, key: Any) -> Tensor:
        return indexing.getitem(self, key)

    @property
    def at(self) -> At:
        """Copies with some elements changed: `x.at[i].set(v)`, `x.at[i].add(v)`."""
        from tapejit.array.at import At

        return At(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ArgumentTypeError(
            "a tensor cannot be changed in place",
            help="x.at[i].set(v) makes a changed copy; a Variable has v[i].assign(...)",
        )

    def __delitem__(self, key: Any) -> None:
        raise ArgumentTypeError("a tensor cannot be changed in place")

    if not TYPE_CHECKING:  # attributes that do not exist are errors

        def __getattr__(self, name: str) -> Any:
            from tapejit.tensor.foreign_names import ATTRIBUTES, attribute_error

            raise attribute_error(f"a {type(self).__name__}", name, ATTRIBUTES)

    # Python values

    def _scalar(self, what: str) -> Any:
        tensor = as_operand(self)
        if self.size != 1:
            raise ArgumentError(
                f"{what}() of a tensor with {self.size} elements",
                help="take one element, or reduce with tj.any, tj.all or tj.sum",
            )
        note_double(tensor.dtype, what)
        if isinstance(tensor, TracedTensor):
            return tensor._answer(what)
        mark_left(tensor)
        return np.asarray(tensor._value).reshape(())[()]

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._real_one("int"))

    def __float__(self) -> float:
        return float(self._real_one("float"))

    def __complex__(self) -> complex:
        return complex(self._one("complex"))

    def _one(self, what: str) -> Any:
        """As NumPy: int, float and complex take tensors without axes."""
        if self.ndim:
            raise ArgumentTypeError(
                f"{what}() takes a tensor without axes, this one has shape "
                f"{self.shape}",
                help="index it, or use .item() if it has one element",
            )
        return self._scalar(what)

    def _real_one(self, what: str) -> Any:
        """The imaginary part is not dropped silently."""
        if self.dtype.kind == "c":
            raise ArgumentTypeError(
                f"{what}() takes a real tensor, this one is {self.dtype}",
                help="take x.real, x.imag or abs(x) first",
            )
        return self._one(what)

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise ArgumentTypeError(
                f"only integer tensors can be an index, this one is {self.dtype}"
            )
        return int(self._one("index"))

    def item(self, *at: int) -> bool | int | float | complex:
        """One element as a Python scalar."""
        if at:
            return self[at].item()
        value: bool | int | float | complex = self._scalar("item").item()
        return value

    def tolist(self) -> Any:
        """The values as nested lists of Python scalars."""
        tensor = as_operand(self)
        note_double(tensor.dtype, "tolist")
        if isinstance(tensor, TracedTensor):
            return tensor._needed("tolist()").tolist()
        mark_left(tensor)
        return np.asarray(tensor._value).tolist()

    def __format__(self, spec: str) -> str:
        from tapejit.tensor import repr as representation

        return representation.formatted(self, spec)

    # Methods of ndarray

    def astype(self, dtype: Any) -> Tensor:
        """The same values in another dtype."""
        return elementwise.astype(self, dtype)

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one size may be -1."""
        flat = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return manipulation.reshape(self, flat)

    def flatten(self) -> Tensor:
        """All elements along one axis."""
        return manipulation.reshape(self, (-1,))

    ravel = flatten

    def transpose(self, *axes: Any) -> Tensor:
        """The axes in another order, reversed if none is given."""
        if not axes:
            return self.T
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return manipulation.permute_dims(self, order)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Without axes of size one."""
        return manipulation.squeeze(self, axis)

    def sum(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """The sum over `axis`."""
        return reductions.sum(self, axis=axis, keepdims=keepdims)

    def prod(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """The product over `axis`."""
        return reductions.prod(self, axis=axis, keepdims=keepdims)

    def mean(
        self, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False
    ) -> Tensor:
        """The mean over `axis`."""
        return reductions.mean(self, axis, dtype, keepdims=keepdims)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """The largest element over `axis`."""
        return reductions.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """The smallest element over `axis`."""
        return reductions.min(self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """The position of the largest element."""
        return reductions.argmax(self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """The position of the smallest element."""
        return reductions.argmin(self, axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """Whether every element is true."""
        return reductions.all(self, axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """Whether some element is true."""
        return reductions.any(self, axis=axis, keepdims=keepdims)

    def var(
        self,
        axis: Axis = None,
        dtype: Any = None,
        *,
        ddof: float = 0,
        keepdims: bool = False,
    ) -> Tensor:
        """The variance over `axis`."""
        from tapejit.array import statistics

        return statistics.var(self, axis, dtype, correction=ddof, keepdims=keepdims)

    def std(
        self,
        axis: Axis = None,
        dtype: Any = None,
        *,
        ddof: float = 0,
        keepdims: bool = False,
    ) -> Tensor:
        """The standard deviation over `axis`."""
        from tapejit.array import statistics

        return statistics.std(self, axis, dtype, correction=ddof, keepdims=keepdims)

    def cumsum(self, axis: int | None = None) -> Tensor:
        """The sums of all elements so far, of the flattened tensor without an axis."""
        from tapejit.array import scans

        flat = self.flatten() if axis is None else self
        return scans.cumulative_sum(flat, axis=0 if axis is None else axis)

    def cumprod(self, axis: int | None = None) -> Tensor:
        """The products of all elements so far."""
        from tapejit.array import scans

        flat = self.flatten() if axis is None else self
        return scans.cumulative_prod(flat, axis=0 if axis is None else axis)

    def argsort(self, axis: int = -1) -> Tensor:
        """The positions that put the elements in order."""
        from tapejit.array import sorting

        return sorting.argsort(self, axis=axis)

    def nonzero(self) -> tuple[Tensor, ...]:
        """The positions of the elements that are not zero, one tensor per axis."""
        from tapejit.array import sorting

        return sorting.nonzero(self)

    def take(self, indices: Any, axis: int | None = None) -> Tensor:
        """The elements at integer positions along an axis."""
        return indexing.take(self, indices, axis=axis)

    def repeat(self, repeats: Any, axis: int | None = None) -> Tensor:
        """Each element several times."""
        from tapejit.array import arrangement

        return arrangement.repeat(self, repeats, axis=axis)

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Two axes exchanged."""
        from tapejit.array import arrangement

        return arrangement.swapaxes(self, axis1, axis2)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """The elements of a diagonal."""
        from tapejit.array import selection

        return selection.diagonal(self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """The sum of a diagonal."""
        from tapejit.array import contraction

        return contraction.trace(self, offset, axis1, axis2)

    def copy(self) -> Tensor:
        """The same values; tensors being immutable, they are shared."""
        return elementwise.positive(self)

    def clip(self, min: Any = None, max: Any = None) -> Tensor:
        """The elements held between two bounds."""
        return elementwise.clip(self, min, max)

    def round(self, decimals: int = 0) -> Tensor:
        """The nearest numbers with so many decimals, ties to even."""
        return elementwise.round(self, decimals)

    def conj(self) -> Tensor:
        """The complex conjugate."""
        return elementwise.conj(self)

    def dot(self, other: Any) -> Tensor:
        """The matrix product."""
        return matmul.matmul(self, other)

    # Parts of variables

    def assign(self, value: Any) -> Tensor:
        """Write a part of a variable: `v[1:].assign(x)`."""
        return assign_part(self, value, "assign")  # type: ignore[arg-type]  # a Tensor: variables have their own

    def assign_add(self, value: Any) -> Tensor:
        """Add to a part of a variable: `v[1:].assign_add(x)`."""
        return assign_part(self, value, "assign_add", np.add.at)  # type: ignore[arg-type]  # as above

    def assign_sub(self, value: Any) -> Tensor:
        """Subtract from a part of a variable: `v[1:].assign_sub(x)`."""
        return assign_part(self, value, "assign_sub", np.subtract.at)  # type: ignore[arg-type]  # as above

    # Protocols

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Any:
        from tapejit.array.numpy import protocol

        return protocol.apply_ufunc(ufunc, method, inputs, options)

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        from tapejit.array.numpy import protocol

        return protocol.apply_function(function, args, kwargs)

    def __repr__(self) -> str:
        from tapejit.tensor import repr as representation

        return representation.text(self)

    def __str__(self) -> str:
        from tapejit.tensor import repr as representation

        return representation.values(self)

    def _repr_html_(self) -> str:
        from tapejit.tensor import repr as representation

        return representation.html(self)


# Methods that other libraries call with `dim=`.
HINTED = frozenset(
    {"all", "any", "argmax", "argmin", "argsort", "cumprod", "cumsum", "max", "mean"}
    | {"min", "prod", "squeeze", "std", "sum", "var"}
)


def _fill(base: type, methods: type) -> None:
    for name, value in vars(methods).items():
        if name in HINTED:
            value = with_hints(value)
        if name not in ("_", "__slots__", "__dict__", "__weakref__", "__module__"):
            setattr(base, name, value)


_fill(Operators, OperatorMethods)
