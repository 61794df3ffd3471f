"""Array creation: `asarray`, constants, ranges, identities, DLPack, and `TensorSpec`.

Start reading at `asarray`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit.array.manipulation import as_shape, broadcast_to
from tapejit.base.dims import Dim
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.base.origin import is_users_call, user_origin
from tapejit.base.public import names_in, public
from tapejit.base.types import (
    DType,
    as_dtype,
    default_float,
    is_differentiable,
    promote_all,
    scalar_dtype,
    weak_dtype,
)
from tapejit.ops.shapes import fits_shape
from tapejit.tensor.device import move, placed
from tapejit.tensor.dispatch import (
    HANDLES,
    TRACED_NUMBERS,
    as_operand,
    cast,
    convert,
    in_dtype,
)
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.tensor.shape_first import not_one_shape
from tapejit.tensor.tensor import Provenance, Tensor, TracedTensor


def asarray(
    value: Any, /, dtype: Any = None, *, copy: bool | None = None, device: Any = None
) -> Tensor:
    """A tensor of numbers, nested lists, a NumPy array, or anything array-like.

    Arrays keep their dtype and are copied, so later changes to them are not seen;
    `copy=False` shares the memory on your promise not to change it. Python floats
    become the default float, ints int32 where they fit; NumPy's scalars keep their
    dtype. `copy=False` refuses what cannot be shared: numbers, lists, and a change of
    dtype.

    >>> import tapejit as tj
    >>> tj.asarray([1.0, 2.0]), tj.asarray(3)
    (<tj.Tensor f32[2] [1. 2.]>, <tj.Tensor i32[] 3>)
    """
    kind = None if dtype is None else as_dtype(dtype)
    if isinstance(value, Tensor) or type(value) in HANDLES:
        is_array = getattr(type(value), "is_array", False)  # one of a trace
        given = as_operand(value) if is_array else value
        tensor = given if isinstance(given, Tensor) else given.value()
        if device is not None:
            tensor = move(tensor, device)
        if kind is None or tensor.dtype == kind:
            return tensor
        if copy is False:
            raise _cannot_share(f"a change of {tensor.dtype} to {kind}")
        return cast(tensor, kind)
    if copy is False:
        _check_shared(value, kind)
    if type(value) is not np.ndarray and hasattr(value, "__cuda_array_interface__"):
        return _from_gpu(value, kind, device)
    tensor = convert(value, kind, copy=copy is not False)
    if tensor._made is not None and tensor._made.follows and is_users_call(2):
        tensor._made.follows = False
    return placed(tensor, device)


def _from_gpu(value: Any, kind: DType | None, device: Any) -> Tensor:
    """Another library's array on a GPU: a copy on that GPU, or where it is to go."""
    from tapejit.tensor.exchange import from_interface

    tensor = from_interface(value.__cuda_array_interface__)
    tensor = tensor if device is None else move(tensor, device)
    return tensor if kind is None else cast(tensor, kind)


def _check_shared(value: Any, kind: DType | None) -> None:
    """Refuse what `copy=False` cannot share."""
    if isinstance(value, (bool, int, float, complex, list, tuple, range)):
        raise _cannot_share(f"a Python {type(value).__name__}")
    dtype = getattr(value, "dtype", None)
    if dtype is not None and dtype != (as_dtype(dtype) if kind is None else kind):
        raise _cannot_share(f"a change of {dtype} to {as_dtype(dtype)}")


def _cannot_share(what: str) -> ArgumentError:
    return ArgumentError(
        f"{what} needs a copy", op="asarray", help="leave out copy=False"
    )


def constant(
    value: Any, dtype: Any = None, shape: Any = None, name: str | None = None
) -> Tensor:
    """A tensor of a value, repeated to `shape` if one is given.

    `name` is taken for TensorFlow's sake; tensors are told apart by the line that made
    them, which messages and graphs show.

    >>> import tapejit as tj
    >>> tj.constant(2.0, shape=(2,))
    <tj.Tensor f32[2] [2. 2.]>
    """
    tensor = asarray(value, dtype=dtype)
    return tensor if shape is None else broadcast_to(tensor, shape)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor that shares the memory of another library's array.

    >>> import numpy as np
    >>> import tapejit as tj
    >>> tj.from_dlpack(np.float32([1, 2]))
    <tj.Tensor f32[2] [1. 2.]>
    """
    from tapejit.tensor.exchange import from_dlpack as taken

    return taken(x, device, copy)


def _new(array: np.ndarray[Any, Any], device: Any) -> Tensor:
    follows = not is_users_call(3)
    made = Provenance("constant", user_origin(3), follows=follows)
    return placed(Tensor(array, made), device)


def _check_one_shape(name: str, shape: Any, dtype: Any) -> None:
    """Refuse sizes one by one, of which the second would be the dtype."""
    if type(dtype) is int:
        raise not_one_shape(name, [shape, dtype], "dtype")


def _kind(dtype: Any, default: DType) -> DType:
    return default if dtype is None else as_dtype(dtype)


@with_hints
def full(
    shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None
) -> Tensor:
    """A tensor of one value.

    >>> import tapejit as tj
    >>> tj.full((2,), 7)
    <tj.Tensor i32[2] [7 7]>
    """
    sizes = _checked(shape)
    is_traced = type(fill_value) in TRACED_NUMBERS or _is_symbolic(sizes)
    if is_traced or isinstance(fill_value, Tensor) or type(fill_value) in HANDLES:
        return broadcast_to(asarray(fill_value, dtype=dtype, device=device), sizes)
    kind = _kind(dtype, convert(fill_value, None)._value.dtype)
    value = convert(fill_value, kind)._value
    return _new(np.full(sizes, value, kind), device)


def _checked(shape: Any) -> tuple[int, ...]:
    sizes = as_shape(shape)
    for size in sizes:
        if type(size) is Dim or size < 0:
            raise ShapeError(f"cannot make a tensor of shape {sizes}")
    return sizes


def _is_symbolic(sizes: tuple[int, ...]) -> bool:
    """Whether a size is one of a trace that holds for many."""
    return any(isinstance(size, Dim) for size in sizes)


@with_hints
def zeros(shape: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    """A tensor of zeros, of the default float unless told otherwise.

    >>> import tapejit as tj
    >>> tj.zeros(2)
    <tj.Tensor f32[2] [0. 0.]>
    """
    _check_one_shape("zeros", shape, dtype)
    sizes, kind = _checked(shape), _kind(dtype, default_float())
    if _is_symbolic(sizes):
        return full(sizes, 0, dtype=kind, device=device)
    return _new(np.zeros(sizes, kind), device)


@with_hints
def ones(shape: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    """A tensor of ones, of the default float unless told otherwise.

    >>> import tapejit as tj
    >>> tj.ones(2, dtype=tj.int32)
    <tj.Tensor i32[2] [1 1]>
    """
    _check_one_shape("ones", shape, dtype)
    sizes, kind = _checked(shape), _kind(dtype, default_float())
    if _is_symbolic(sizes):
        return full(sizes, 1, dtype=kind, device=device)
    return _new(np.ones(sizes, kind), device)


def empty(shape: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    """A tensor whose values do not matter; tensors being immutable, they are zeros.

    >>> import tapejit as tj
    >>> tj.empty((2, 3)).shape
    (2, 3)
    """
    _check_one_shape("empty", shape, dtype)
    return zeros(shape, dtype=dtype, device=device)


def full_like(
    x: Any, /, fill_value: Any, dtype: Any = None, *, device: Any = None
) -> Tensor:
    """One value in the shape and dtype of `x`.

    >>> import tapejit as tj
    >>> tj.full_like(tj.zeros(2), 3)
    <tj.Tensor f32[2] [3. 3.]>
    """
    shape, own, place = _like(x)
    kind, place = _kind(dtype, own), place if device is None else device
    if isinstance(x, TracedTensor):
        return broadcast_to(asarray(fill_value, dtype=kind, device=place), shape)
    return full(shape, fill_value, dtype=kind, device=place)


def empty_like(x: Any, /, dtype: Any = None, *, device: Any = None) -> Tensor:
    """A tensor like `x` whose values do not matter: zeros.

    >>> import tapejit as tj
    >>> tj.empty_like(tj.ones((2, 3))).shape
    (2, 3)
    """
    return zeros_like(x, dtype=dtype, device=device)


def zeros_like(x: Any, /, dtype: Any = None, *, device: Any = None) -> Tensor:
    """Zeros in the shape and dtype of `x`.

    >>> import tapejit as tj
    >>> tj.zeros_like(tj.asarray([1, 2]))
    <tj.Tensor i32[2] [0 0]>
    """
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, dtype: Any = None, *, device: Any = None) -> Tensor:
    """Ones in the shape and dtype of `x`.

    >>> import tapejit as tj
    >>> tj.ones_like(tj.asarray([1.5, 2.5]))
    <tj.Tensor f32[2] [1. 1.]>
    """
    return full_like(x, 1, dtype=dtype, device=device)


def _like(x: Any) -> tuple[Any, DType, Any]:
    """Shape, dtype and device; None if there is no device."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        x = asarray(x)
    is_ours = isinstance(x, Tensor) or type(x) in HANDLES
    return x.shape, as_dtype(x.dtype), x.device if is_ours else None


def arange(
    start: Any,
    /,
    stop: Any = None,
    step: Any = 1,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Tensor:
    """Evenly spaced values, the stop excluded.

    >>> import tapejit as tj
    >>> tj.arange(3), tj.arange(1.0, 2.0, 0.5)
    (<tj.Tensor i32[3] [0 1 2]>, <tj.Tensor f32[2] [1.  1.5]>)
    """
    if stop is None:
        start, stop = 0, start
    values = [_as_number(x) for x in (start, stop, step)]
    if values[2] == 0:
        raise ArgumentError("the step is 0", op="arange")
    kind = _dtype_of_ends(start, stop, step) if dtype is None else as_dtype(dtype)
    if any(isinstance(value, Dim) for value in values):
        return _symbolic_arange(values, kind, device)
    if all(isinstance(value, int) for value in values):
        places = range(*values)
        # NumPy counts in int64 only, and in floats beyond it.
        if places and max(places[0], places[-1]) >= 2**63:
            return _new(np.fromiter(places, np.uint64).astype(kind), device)
    return _new(in_dtype(np.arange(*values), kind), device)


def _dtype_of_ends(*ends: Any) -> DType:
    """What holds numbers between these: those that are Python's are weak."""
    strong = [x.dtype for x in ends if hasattr(x, "dtype")]
    weak = [x for x in ends if not hasattr(x, "dtype")]
    if strong:
        dtype = promote_all(map(as_dtype, strong))
        for value in weak:
            dtype = weak_dtype(value, dtype)
        return dtype
    kinds = [scalar_dtype(value) for value in weak]
    return max(kinds, key=lambda kind: (kind.kind == "f", kind.itemsize))


def _as_number(x: Any) -> Any:
    """A scalar as a Python number: an integer can be one in a trace, too."""
    if isinstance(x, TracedTensor) and x.dtype.kind in "iu" and not x.ndim:
        return int(x)
    return x.item() if hasattr(x, "item") else x


def _symbolic_arange(values: list[Any], dtype: DType, device: Any) -> Tensor:
    """Evenly spaced integers, as many as there turn out to be."""
    start, stop, step = values
    if not all(isinstance(value, int) for value in values) or step != 1:
        numbers = [operator.index(x) if isinstance(x, Dim) else x for x in values]
        return arange(numbers[0], numbers[1], numbers[2], dtype, device=device)
    if stop <= start:
        return zeros((0,), dtype=dtype, device=device)
    from tapejit.array.scans import cumulative_sum

    counted = cumulative_sum(ones(stop - start, dtype="int64", device=device))
    return cast(counted + (start - 1), dtype)


@with_hints
def linspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    endpoint: bool = True,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """`num` evenly spaced values.

    >>> import tapejit as tj
    >>> print(tj.linspace(0, 1, 5))
    [0.   0.25 0.5  0.75 1.  ]
    """
    low, high = (x.item() if hasattr(x, "item") else x for x in (start, stop))
    array = np.linspace(low, high, operator.index(num), endpoint=endpoint)
    kind = _dtype_of_ends(start, stop) if dtype is None else as_dtype(dtype)
    if dtype is None and not is_differentiable(kind):
        kind = default_float()
    return _new(in_dtype(array, kind), device)


@with_hints
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    k: int = 0,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Tensor:
    """Ones on a diagonal.

    >>> import tapejit as tj
    >>> print(tj.eye(2))
    [[1. 0.]
     [0. 1.]]
    """
    if isinstance(n_rows, Dim) or isinstance(n_cols, Dim):
        count = n_rows if n_cols is None else n_cols
        columns = arange(count, dtype="int64", device=device)
        rows = arange(n_rows, dtype="int64", device=device)
        return cast(columns == rows[:, None] + k, _kind(dtype, default_float()))
    return _new(np.eye(n_rows, n_cols, k, _kind(dtype, default_float())), device)


@public("tapejit")
class TensorSpec:
    """The shape and dtype of a tensor that is not there yet; None is any size.

    A shape that is None altogether is one of any rank.

    >>> import tapejit as tj
    >>> tj.TensorSpec([None, 3], tj.float32)
    TensorSpec(shape=(None, 3), dtype=float32)
    >>> tj.TensorSpec(None).is_compatible_with(tj.ones((2, 3)))
    True
    """

    __slots__ = ("dtype", "name", "shape")

    def __init__(
        self, shape: Any, dtype: Any = "float32", name: str | None = None
    ) -> None:
        sizes = (shape,) if isinstance(shape, int) else shape
        if sizes is not None:
            sizes = tuple(sizes)
        for size in sizes or ():
            if size is not None and (not isinstance(size, int) or size < 0):
                raise ArgumentTypeError(f"a size is an int or None, got {size!r}")
        self.shape: tuple[int | None, ...] | None = sizes
        self.dtype = as_dtype(dtype)
        self.name = name

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> TensorSpec:
        """The spec of a tensor that is there."""
        return cls(tensor.shape, tensor.dtype, name)

    def is_compatible_with(self, tensor: Any) -> bool:
        """Whether a tensor, or every one of a spec, has this dtype and shape."""
        if as_dtype(tensor.dtype) != self.dtype:
            return False
        if self.shape is None:
            return True
        shape = tensor.shape
        return shape is not None and fits_shape(tuple(shape), self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return NotImplemented
        return (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype.name})"


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = ["TensorSpec", *names_in(globals())]
