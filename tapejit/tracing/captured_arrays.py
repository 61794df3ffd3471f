"""NumPy arrays that a function's body reaches, indexed by tensors of its trace.

`X[i]` with an ndarray `X` is NumPy's to perform, and NumPy needs to know `i`. While a
function is traced, arrays that its code names are therefore replaced by views of them,
`CapturedArray`s, which do the same, except that an index of the trace makes them an
input of the Graph, and the result a `TracedArray`: to Python an array, whose arithmetic
has NumPy's dtypes, as eagerly. Meeting a tensor it is one. Whatever else is asked of it
needs its value, as it would of a tensor. One without axes is a NumPy scalar, which an
argument may be, too.

Replaced are the variables of closures, globals, and attributes of the instance or of
objects named by the code, in the function and in the functions that it names.

Start reading at `captured_arrays`.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tapejit.array.indexing import getitem, take
from tapejit.base import tree
from tapejit.base.errors import UnsupportedError
from tapejit.tensor.dispatch import (
    HANDLES,
    TRACE,
    TRACED_NUMBERS,
    cast,
    convert,
    weak_scalar,
)
from tapejit.tensor.symbolic_float import TracedFloat
from tapejit.tensor.tensor import Tensor, TracedTensor
from tapejit.tracing.reachable import global_names, is_of_library

NUMBERS: Final = "biufc"
# What an array and a tensor do alike, whatever the dtype.
MOVES: Final = frozenset(
    {"reshape", "transpose", "ravel", "flatten", "squeeze", "swapaxes", "copy"}
)
# What they do alike if it is of floats: NumPy sums small integers in larger ones.
REDUCES: Final = frozenset({"sum", "mean", "max", "min", "prod", "std", "var"})


class CapturedArray(np.ndarray[Any, Any]):
    """A view of an array that tensors of a trace can index."""

    def __getitem__(self, key: Any) -> Any:
        if not _has_traced(key):
            return super().__getitem__(key)
        return _traced_array(getitem(_tensor_of(self), _plain(key)))

    def take(  # type: ignore[override]  # more kinds of indices
        self, indices: Any, axis: Any = None, **options: Any
    ) -> Any:
        """As an array's, also by tensors."""
        is_plain = options in ({}, {"out": None, "mode": "raise"})
        if not is_plain or not _has_traced(indices):
            return super().take(indices, axis, **options)
        tensor = _tensor_of(self)
        if axis is None:
            tensor, axis = tensor.reshape((-1,)), 0
        return _traced_array(take(tensor, _plain(indices), axis=axis))

    def __array_wrap__(
        self, array: Any, context: Any = None, return_scalar: bool = False
    ) -> Any:
        if return_scalar:  # NumPy would give an array without axes, which is not weak
            return np.asarray(array)[()]
        return super().__array_wrap__(array, context, return_scalar)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)


CapturedArray.__name__ = "ndarray"  # in messages: to the user it is one


def _has_traced(key: Any) -> bool:
    """Whether a tensor that is being traced is part of an index; sizes are numbers."""
    parts = key if isinstance(key, tuple) else (key,)
    if TRACE.get() is None:
        return False
    return any(type(x) is TracedTensor or type(x) is TracedArray for x in parts)


def _plain(key: Any) -> Any:
    """An index with tensors in it."""
    if isinstance(key, tuple):
        return tuple(map(_plain, key))
    return key.tensor if type(key) is TracedArray else key


def _tensor_of(array: np.ndarray[Any, Any]) -> Tensor:
    """The array as an input of the trace: one, however often it is indexed."""
    trace = TRACE.get()
    plain = array.view(np.ndarray)
    if trace is None or trace.state is None:
        return convert(plain, None)
    known = trace.state.arrays
    place = (plain.ctypes.data, plain.shape, plain.strides, plain.dtype.num)
    found = known.get(place)
    if found is None or not _is_same(found[1]._value, plain):
        # The array is held as well: the place stays its own.
        found = known[place] = (array, convert(plain, None))
    return found[1]


def _is_same(before: Any, array: np.ndarray[Any, Any]) -> bool:
    """Whether the body has not changed an array since."""
    return np.array_equal(before, array, equal_nan=array.dtype.kind in "fc")


def _traced_array(x: Tensor) -> Any:
    """The result of an index: an array, or a number, as NumPy gives them.

    A floating one is weak beside tensors, as NumPy's scalars are.
    """
    if x.ndim or x.dtype.kind != "f" or not isinstance(x, TracedTensor):
        return TracedArray(x)
    wide: Any = cast(x, np.dtype(np.float64))
    return TracedFloat(wide, x.dtype.type(np.nan), frozenset({x._value}))


class TracedArray(NDArrayOperatorsMixin):
    """An ndarray whose elements are those of a tensor that is being traced.

    Without axes it is a NumPy scalar.
    """

    __slots__ = ("tensor",)
    is_array = True  # not a variable

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def _operand(self) -> Tensor:
        """The tensor, for operations of tapejit."""
        return self.tensor

    @property
    def shape(self) -> Any:
        """The sizes of the axes."""
        return self.tensor.shape

    @property
    def dtype(self) -> Any:
        """The NumPy dtype."""
        return self.tensor.dtype

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return self.tensor.ndim

    @property
    def size(self) -> Any:
        """How many elements there are."""
        return self.tensor.size

    @property
    def T(self) -> TracedArray:
        """With the axes in reverse order."""
        return TracedArray(self.tensor.transpose())

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        return _traced_array(getitem(self.tensor, _plain(key)))

    def astype(self, dtype: Any, **options: Any) -> TracedArray:
        """In another dtype."""
        return TracedArray(cast(self.tensor, np.dtype(dtype)))

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __complex__(self) -> complex:
        return complex(self._needed())

    def __index__(self) -> int:
        return self.tensor.__index__()

    def __round__(self, digits: int | None = None) -> Any:
        number: Any = self._needed()[()]
        return round(number, digits)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __hash__(self) -> int:
        if self.ndim:
            raise TypeError("unhashable type: 'numpy.ndarray'")
        is_whole = self.dtype.kind in "biu"
        return hash(int(self) if is_whole else self._needed()[()])

    def __getattr__(self, name: str) -> Any:
        alike = name in MOVES or (name in REDUCES and self.dtype.kind == "f")
        if alike:
            method = getattr(self.tensor, name)
            return lambda *args, **options: TracedArray(method(*args, **options))
        if not hasattr(np.ndarray, name):
            raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")
        return getattr(self._needed(), name)

    def _needed(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.tensor)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._needed(), dtype)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Any:
        from tapejit.array.numpy import protocol as numpy_protocol

        if any(isinstance(x, Tensor) or _is_other_handle(x) for x in inputs):
            given = [x.tensor if type(x) is TracedArray else x for x in inputs]
            return numpy_protocol.apply_ufunc(ufunc, method, given, options)
        apply = numpy_protocol.UFUNCS.get(ufunc)
        if apply is None or method != "__call__" or options or ufunc.nout != 1:
            values = [_value(x) for x in inputs]
            return getattr(ufunc, method)(*values, **options)
        *kinds, kind = ufunc.resolve_dtypes((*map(_kind, inputs), None))
        pairs = zip(inputs, kinds, strict=True)
        return _traced_array(cast(apply(*[_cast(x, k) for x, k in pairs]), kind))

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        from tapejit.array.numpy import protocol as numpy_protocol

        leaves, structure = tree.flatten((args, kwargs), none_is_leaf=True)
        arrays = [x for x in leaves if type(x) is TracedArray]
        others = [x for x in leaves if isinstance(x, Tensor) or _is_other_handle(x)]
        kinds = {x.dtype.kind for x in arrays}
        # Of integers NumPy's dtypes differ from those of tensors.
        if others or (kinds <= {"f", "b"} and "f" in kinds):
            given = [x.tensor if type(x) is TracedArray else x for x in leaves]
            args, kwargs = tree.unflatten(structure, given)
            try:
                found = numpy_protocol.apply_function(function, args, kwargs)
            except UnsupportedError:
                if others:
                    raise
            else:
                return found if others else tree.map(_traced_array, found)
        given = [_value(x) for x in leaves]
        args, kwargs = tree.unflatten(structure, given)
        return function(*args, **kwargs)


HANDLES.add(TracedArray)


def _is_other_handle(x: Any) -> bool:
    return type(x) in HANDLES and type(x) is not TracedArray


def _value(x: Any) -> Any:
    return x._needed() if type(x) is TracedArray else x


def _kind(x: Any) -> Any:
    """What NumPy promotes by: a dtype, or the class of a Python number."""
    if type(x) in TRACED_NUMBERS:
        x = x.sample
    if type(x) in (int, float, complex):
        return type(x)
    return x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype


def _cast(x: Any, kind: Any) -> Tensor:
    if type(x) is TracedArray:
        return cast(x.tensor, kind)
    if type(x) in TRACED_NUMBERS:
        return weak_scalar(x, kind)
    return convert(np.asarray(x, kind), None)


# Putting them in place


@contextmanager
def captured_arrays(function: Any, instance: Any = None) -> Iterator[None]:
    """Arrays that the code of a function names can be indexed by tensors inside."""
    replaced: list[tuple[ArrayHolder, Any, Any]] = []
    try:
        for place in _places(function, instance):
            array = place.get()
            is_plain = type(array) is np.ndarray and array.dtype.kind in NUMBERS
            if is_plain and array.ndim:  # without axes there is nothing to index
                view = array.view(CapturedArray)
                replaced.append((place, array, view))
                place.set(view)
        yield
    finally:
        for place, array, view in reversed(replaced):
            if place.get() is view:  # else the body has put something else there
                place.set(array)


class ArrayHolder:
    """Where an array is: a cell of a closure, or an entry of a dict."""

    __slots__ = ("_cell", "_key", "_table")

    def __init__(
        self,
        cell: CellType | None,
        table: MutableMapping[str, Any] | None = None,
        key: str = "",
    ) -> None:
        self._cell = cell
        self._table = table
        self._key = key

    def get(self) -> Any:
        """What is there, None if there is nothing."""
        if self._table is not None:
            return self._table.get(self._key)
        try:
            return None if self._cell is None else self._cell.cell_contents
        except ValueError:  # it is empty
            return None

    def set(self, value: Any) -> None:
        """Put something there."""
        if self._table is not None:
            self._table[self._key] = value
        elif self._cell is not None:
            self._cell.cell_contents = value


def _places(function: Any, instance: Any) -> list[ArrayHolder]:
    """Where arrays may be that the code of a function names."""
    found: list[ArrayHolder] = []
    left = [function, instance]
    seen: set[int] = set()
    while left:
        x = left.pop()
        if x is None or id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, MethodType):
            left += [x.__func__, x.__self__]
        elif isinstance(x, FunctionType):
            here = [ArrayHolder(cell) for cell in x.__closure__ or ()]
            if not is_of_library(x):
                names = dict.fromkeys(global_names(x.__code__))
                here += [ArrayHolder(None, x.__globals__, name) for name in names]
            found += here
            left += [place.get() for place in here]
        elif hasattr(type(x), "_reaches"):
            left += x._reaches()
        elif not isinstance(x, (type, ModuleType)) and not _is_ours(type(x)):
            if callable(x):
                left.append(type(x).__call__)
            table = getattr(x, "__dict__", None)
            if type(table) is dict:
                found += [ArrayHolder(None, table, name) for name in table]
    return found


def _is_ours(kind: type) -> bool:
    """Whether objects of a class hold no arrays that a user has put there."""
    return kind.__module__.partition(".")[0] in ("tapejit", "numpy", "scipy")
