"""The user's handle: an immutable array that knows how to be recorded.

A Tensor holds its value (a NumPy array, or a NumPy scalar when it has no axes) and an
id that tapes give it when they first see it; 0 means that none has. It does not refer
to the graph: each tape maps ids to Nodes, so dropping the tape drops everything.

Two classes of it look the same to users: a TracedTensor has a Node in place of a value,
a DeviceTensor an array on a device. Whoever asks whether the class is exactly Tensor,
as dispatch and native entries do, has the usual case and pays nothing for the others.

Start reading at `Tensor`; operators and methods are in `operators.py`.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapejit.base.origin import Origin
from tapejit.base.public import public
from tapejit.base.types import DType, TensorType
from tapejit.runtime.sentinels import DEVICE_ARRAYS, TENSOR_CLASS

if TYPE_CHECKING:
    from tapejit.array.operators import OperatorMethods
    from tapejit.ir.node import Node

    Operators = OperatorMethods
else:

    class Operators:
        """Filled by operators.py: the functions it names need Tensor themselves."""

        __slots__ = ()


next_id = count(1).__next__


@public("tapejit")
class Tensor(Operators):
    """An immutable n-dimensional array that tapes can record.

    Made by `tj.asarray`, `tj.constant`, the creation functions and every operation.

    >>> import tapejit as tj
    >>> x = tj.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> x
    <tj.Tensor f32[2,2]
    [[1. 2.]
     [3. 4.]]>
    >>> (x @ x).shape, x.dtype
    ((2, 2), dtype('float32'))
    """

    __slots__ = ("__weakref__", "_id", "_made", "_value")

    def __init__(self, value: Any, made: Any = None) -> None:
        self._value = value
        self._id = 0
        self._made: Provenance | None = made

    # What it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self._value.shape  # type: ignore[no-any-return]  # an array's, a Node's

    @property
    def dtype(self) -> DType:
        """The NumPy dtype."""
        return self._value.dtype  # type: ignore[no-any-return]  # an array's, a Node's

    @property
    def _type(self) -> TensorType:
        return TensorType(self._value.dtype, self._value.shape)

    @property
    def _shown_type(self) -> TensorType:
        return self._type

    # As NumPy

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy as a NumPy array, yours to change.

        A recorded tensor's value leaves the tape here; `tape.why_none` then says so.

        >>> import tapejit as tj
        >>> tj.asarray([1.0, 2.0]).numpy()
        array([1., 2.], dtype=float32)
        """
        from tapejit.tensor.recorder import mark_left

        mark_left(self)
        return np.array(self._value)

    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        from tapejit.tensor.recorder import mark_left

        mark_left(self)
        array = np.asarray(self._value)
        if copy or (dtype is not None and dtype != array.dtype):
            return array.astype(array.dtype if dtype is None else dtype)
        view = array.view()
        view.flags.writeable = False
        return view

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        array = self.__array__()
        if max_version is None or max_version < (1, 0):
            # Older consumers cannot be told that the data is read-only.
            array = np.array(array)
        return array.__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.asarray(self._value).__dlpack_device__()

    # Copies and pickles

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tensor, (np.array(self._value),))

    def ref(self) -> TensorRef:
        """A hashable key for this very tensor, since `==` works element by element.

        >>> import tapejit as tj
        >>> x = tj.asarray([1.0])
        >>> {x.ref(): "x"}[x.ref()]
        'x'
        """
        return TensorRef(self)


class Provenance:
    """Where a Tensor came from, without its parents: for `tape.why_none`.

    `by` is an op's name or one of the kinds "constant", "array", "variable",
    "assign"; `origin` is the user's line; `variable` the name of what was read.
    What `follows` goes to the device of the operands that it meets.
    """

    __slots__ = ("by", "follows", "origin", "variable")

    def __init__(
        self,
        by: str,
        origin: Origin | None,
        variable: str | None = None,
        *,
        follows: bool = False,
    ) -> None:
        self.by = by
        self.origin = origin
        self.variable = variable
        self.follows = follows


# Of constants that functions of ours make: nobody has said where they are.
CONSTANT: Final = Provenance("constant", None, follows=True)


class TensorRef:
    """Equal and hashed by the identity of what it refers to."""

    __slots__ = ("_referent",)

    def __init__(self, referent: Any) -> None:
        self._referent = referent

    def deref(self) -> Any:
        """The tensor or variable itself."""
        return self._referent

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorRef) and self._referent is other._referent

    def __hash__(self) -> int:
        return id(self._referent)

    def __repr__(self) -> str:
        return f"<ref of {self._referent!r}>"


class TracedTensor(Tensor):
    """A Tensor without a value: a Node of the function being traced."""

    __slots__ = ("_trace",)

    _value: Node

    def __init__(self, node: Node, trace: Any, made: Any = None) -> None:
        super().__init__(node, made)
        self._trace = trace

    @property
    def shape(self) -> Any:
        return self._trace.shape_of(self._value)

    @property
    def _type(self) -> TensorType:
        return self._value.tensor_type

    @property
    def _shown_type(self) -> TensorType:
        """The type of the tensor in the call that is traced, without symbolic sizes."""
        state = self._trace.state
        return self._type if state is None else state.facts.shown(self._type)

    def _needed(self, what: str) -> np.ndarray[Any, Any]:
        """The value, where the trace can tell it."""
        if self._trace.is_over:
            from tapejit.tensor.dispatch import leaked

            raise leaked(self)
        self._mark_left()
        value: np.ndarray[Any, Any] = self._trace.needs_value(self, what)
        return value

    def _mark_left(self) -> None:
        from tapejit.tensor.recorder import mark_left

        mark_left(self)

    def _answer(self, what: str) -> Any:
        """What Python's `bool`, `int`, `index`, ... of this one element is based on."""
        if what in ("bool", "int", "index") and not self._trace.is_over:
            self._mark_left()
            return self._trace.ask(self, what)
        return self._needed(f"{what}()").reshape(())[()]

    def numpy(self) -> np.ndarray[Any, Any]:
        return np.array(self._needed("numpy()"))

    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        return Tensor(self._needed("NumPy")).__array__(dtype, copy)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return Tensor(self._needed("DLPack")).__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor(self._needed("pickle")).__reduce__()


class DeviceTensor(Tensor):
    """A Tensor whose value is on a device: a DeviceArray."""

    __slots__ = ()

    @property
    def _shown_type(self) -> Any:
        return f"{self._type} on {self._value.device.name}"

    def __dlpack__(self, **options: Any) -> Any:
        from tapejit.tensor.exchange import to_dlpack

        return to_dlpack(self, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        from tapejit.tensor.exchange import dlpack_device

        return dlpack_device(self._value.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        from tapejit.tensor.exchange import cuda_array_interface

        return cuda_array_interface(self)

    def __reduce__(self) -> tuple[Any, ...]:
        from tapejit.tensor.device import put_on

        return (put_on, (self.numpy(), self._value.device.name))


for _kind in (TracedTensor, DeviceTensor):  # in messages: to the user it is one
    _kind.__name__ = "Tensor"


def another(x: Tensor) -> Tensor:
    """The same value as a tensor that no tape knows."""
    return type(x)(x._value)


def tensor_of(value: Any, made: Any = None) -> Tensor:
    """A Tensor of an array, wherever that is; without axes it is a NumPy scalar."""
    if type(value) in DEVICE_ARRAYS:
        return DeviceTensor(value, made)
    return Tensor(value if value.shape else value[()], made)  # no view


TENSOR_CLASS.append(Tensor)
