"""Variables: state that training changes.

A Variable holds one internal Tensor, its current value. Using the variable in an
expression uses that Tensor, after telling the tapes that it was read; assigning puts
another Tensor in its place. Tensors never change, so a value read earlier keeps its
numbers. The internal Tensor is never handed out: `value()` gives a fresh one, else a
value read before a tape would count as read inside it.

Start reading at `Variable`, then `Variable.assign`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np

from tapejit import ops
from tapejit.array.creation import asarray
from tapejit.array.indexing import flat_positions, getitem
from tapejit.array.scattering import PartOf, Scatters, set_at, traced_change
from tapejit.base.config import NUMERICS
from tapejit.base.dims import Dim, Shape
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
    UnsupportedError,
    VariableError,
)
from tapejit.base.numpy_adapter import aligned_copy, restore, silence
from tapejit.base.origin import warn_user
from tapejit.base.public import public
from tapejit.base.types import DType, as_dtype, is_differentiable
from tapejit.base.waiting import acquire
from tapejit.ir.node import Op
from tapejit.runtime.sentinels import DEVICE_ARRAYS, FORKING
from tapejit.tape.commits import MIDST, WAITS, has_away, note_assigned
from tapejit.tensor.device import (
    as_device,
    device_of,
    following,
    in_block,
    moved_value,
    placed,
)
from tapejit.tensor.dispatch import (
    HANDLES,
    TAPES,
    TRACE,
    apply,
    cast,
    check_numerics,
    convert,
    leaked,
)
from tapejit.tensor.recorder import mark_left
from tapejit.tensor.tensor import (
    DeviceTensor,
    Operators,
    Provenance,
    Tensor,
    TensorRef,
    TracedTensor,
    next_id,
    tensor_of,
)

_MISSING: Any = object()
_next_serial = count().__next__
_alive: WeakValueDictionary[int, Variable] = WeakValueDictionary()


@public("tapejit")
class Variable(Scatters, Operators):
    """A tensor that can be assigned to, watched by tapes when it is trainable.

    `initial_value` is anything `tj.asarray` takes, or a function without arguments
    that returns it. `constraint` is applied by optimizers after an update.

    >>> import tapejit as tj
    >>> w = tj.Variable([1.0, 2.0], name="w")
    >>> w.assign_add([0.5, 0.5])
    <tj.Tensor f32[2] [1.5 2.5]>
    >>> w * 2
    <tj.Tensor f32[2] [3. 5.]>
    """

    __slots__ = (
        "__weakref__",
        "_away",
        "_constraint",
        "_follows",
        "_lock",
        "_name",
        "_serial",
        "_tensor",
        "_trainable",
    )

    def __init__(
        self,
        initial_value: Any = _MISSING,
        trainable: bool = True,
        dtype: Any = None,
        name: str | None = None,
        constraint: Callable[[Tensor], Any] | None = None,
    ) -> None:
        if callable(initial_value):
            initial_value = initial_value()
        if initial_value is _MISSING or initial_value is None:
            raise ArgumentError(
                "a Variable needs an initial value",
                help="for example tj.Variable(tj.zeros((3, 2)))",
            )
        if constraint is not None and not callable(constraint):
            raise ArgumentTypeError("the constraint of a Variable is a function")
        kind = None if dtype is None else as_dtype(dtype)
        value = asarray(initial_value, dtype=kind)
        trace, initial = TRACE.get(), None
        if isinstance(value, TracedTensor):
            if value._trace.is_over:
                raise leaked(value)
            state = None if trace is None else trace.state
            if state is None or state is not trace:
                raise UnsupportedError(
                    "a Variable cannot be made of a tensor that is being traced",
                    help="create it outside the function",
                )
            initial, there = value._value, value.device
            value = tensor_of(moved_value(state.value_of(initial), there))
        value = in_block(value)
        self._name = "Variable" if name is None else str(name)
        self._trainable = bool(trainable)
        self._constraint = constraint
        self._lock = RLock()
        self._follows = False  # to the device of those that a function meets it with
        self._serial = _next_serial()
        if type(value) is DeviceTensor:
            self._tensor = self._holding(value._value)
        else:
            self._tensor = self._holding(aligned_copy(value._value))
        _alive[self._serial] = self
        if trace is not None and trace.state is not None:
            trace.state.note_created(self, initial)

    def _holding(self, array: Any) -> Tensor:
        return tensor_of(array, Provenance("variable", None, self._name))

    if not TYPE_CHECKING:  # attributes that do not exist are errors

        def __getattr__(self, name: str) -> Any:
            """The Tensor while it is away: native code may write over its memory.

            The call that does so holds the lock to its end. Python that runs in the
            midst of it, in the handler of a signal, gets a copy of the old value:
            from the first write on no handler runs.
            """
            if name != "_tensor":
                return super().__getattr__(name)  # raises, with a hint
            with self._lock:
                try:
                    found = object.__getattribute__(self, "_tensor")
                except AttributeError:
                    away = object.__getattribute__(self, "_away")
                    found = Tensor(away._value.copy(), away._made)
                    self._tensor = found  # the next read gives the same
                    MIDST[:] = [x for x in MIDST if has_away(x)] + [self]
                    return found
                WAITS.has_waited = True
                return found

    def _is_away_elsewhere(self) -> bool:
        """Whether a call in another thread is writing over the value."""
        try:
            object.__getattribute__(self, "_tensor")
        except AttributeError:
            if not self._lock.acquire(blocking=False):
                return True
            self._lock.release()
        return False

    # What it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self._tensor.shape

    @property
    def dtype(self) -> DType:
        """The NumPy dtype."""
        return self._tensor.dtype

    @property
    def name(self) -> str:
        """The name given at creation."""
        self._note("_name")
        return self._name

    @property
    def trainable(self) -> bool:
        """Whether tapes watch it without being asked."""
        return self._trainable

    @property
    def constraint(self) -> Callable[[Tensor], Any] | None:
        """What an optimizer applies after an update."""
        self._note("_constraint")
        return self._constraint

    # Reading

    def _held(self) -> Tensor:
        """The Tensor that stands for the current value; nobody hears of it."""
        trace = TRACE.get()
        if trace is None or trace.state is None:
            return self._tensor
        return trace.state.slot_of(self).tensor

    def _operand(self) -> Tensor:
        """The value for use in an operation; the tapes hear of it."""
        trace = TRACE.get()
        if trace is None or trace.state is None:
            tensor = self._tensor
        else:
            tensor = trace.state.read(self)
        for tape in TAPES.get():
            if tensor._id not in tape.nodes:
                tape.note_read(self, tensor)
        return tensor

    def _note_read(self, tensor: Tensor) -> None:
        """Tell the tapes that `tensor`, the value this holds or held, was read."""
        for tape in TAPES.get():
            if tensor._id not in tape.nodes:
                tape.note_read(self, tensor)

    def value(self) -> Tensor:
        """The current value as a tensor, which later assignments do not change.

        >>> import tapejit as tj
        >>> v = tj.Variable(1.0)
        >>> before = v.value()
        >>> v.assign(2.0)
        <tj.Tensor f32[] 2.0>
        >>> before
        <tj.Tensor f32[] 1.0>
        """
        return apply(ops.read, self._operand())

    read_value = value

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the current value as a NumPy array."""
        return self._operand().numpy()

    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        return self._operand().__array__(dtype, copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._operand().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __getitem__(self, key: Any) -> Tensor:
        part = getitem(self.value(), key)
        part._made = PartOf(self, key)
        return part

    def ref(self) -> TensorRef:
        """A hashable key for this very variable."""
        trace = TRACE.get()
        if trace is not None and trace.state is not None:
            trace.state.pin(self)  # what follows may depend on which variable it is
        return TensorRef(self)

    def _note(self, fact: str) -> None:
        """A trace that has seen an attribute holds for variables that share it."""
        trace = TRACE.get()
        if trace is not None and trace.state is not None:
            trace.state.facts_seen.setdefault(id(self), set()).add(fact)

    # Writing

    def assign(self, value: Any) -> Tensor:
        """Replace the value; returns a read of the new one.

        The shape must be the same. Nothing of a gradient flows into what is
        assigned.

        >>> import tapejit as tj
        >>> tj.Variable([1.0, 2.0]).assign([3.0, 4.0])
        <tj.Tensor f32[2] [3. 4.]>
        """
        new = self._accepted(value, "assign")
        acquire(lock := self._lock, "to write a variable")
        try:
            while not self._put(new, self._held()):
                pass
        finally:
            lock.release()
        return self._assigned(new)

    def _put(self, new: Tensor, before: Tensor) -> bool:
        """Make `new` the value: at once, or at the end of the traced function.

        `before` is the value that `new` was made of. If the variable holds another by
        now, nothing happens and the answer is False: a finalizer or the handler of a
        signal, which the lock lets in, has assigned to it.
        """
        trace = TRACE.get()
        if trace is not None and trace.state is not None:
            trace.state.write(self, new)
            return True
        holding, key = self._holding(new._value), id(self)
        journal = JOURNAL.get()
        first = journal if journal is not None and key not in journal else None
        if first is not None:
            first[key] = (self, before)
        # No call, no new object, no jump back: nothing can run in between.
        if self._tensor is before:
            self._tensor = holding
            if MIDST:
                note_assigned([self])
            return True
        if first is not None:
            del first[key]
        return False

    def _assigned(self, new: Tensor) -> Tensor:
        """A read of the new value, which counts as read once it is used."""
        made = Provenance("assign", None, self._name)
        trace = TRACE.get()
        if trace is None or trace.state is None:
            result = tensor_of(new._value, made)
        else:
            result = trace.state.assigned(self, made)
        return self._pending(result)

    def _pending(self, result: Tensor) -> Tensor:
        """A tensor that tapes take for a read of this variable once it is used."""
        tapes = TAPES.get()
        if tapes:
            result._id = next_id()
            for tape in tapes:
                tape.pending[result._id] = self
        return result

    def assign_add(self, delta: Any) -> Tensor:
        """Add to the value; returns a read of the new one.

        >>> import tapejit as tj
        >>> tj.Variable(1.0).assign_add(2.0)
        <tj.Tensor f32[] 3.0>
        """
        return self._update(ops.add, delta, "assign_add")

    def assign_sub(self, delta: Any) -> Tensor:
        """Subtract from the value; returns a read of the new one.

        >>> import tapejit as tj
        >>> tj.Variable(1.0).assign_sub(2.0)
        <tj.Tensor f32[] -1.0>
        """
        return self._update(ops.sub, delta, "assign_sub")

    def _update(self, op: Any, delta: Any, name: str) -> Tensor:
        change = self._accepted(delta, name)
        acquire(lock := self._lock, "to write a variable")
        try:
            while True:
                before = self._held()
                new = self._changed(op, before, change)
                if self._put(new, before):
                    return self._assigned(new)
        finally:
            lock.release()

    def _changed(self, op: Op, value: Tensor, change: Tensor) -> Tensor:
        """The result of an op that no tape hears of."""
        trace = TRACE.get()
        if trace is not None and trace.state is not None:
            traced: Tensor = trace.state.unrecorded(apply, op, value, change)
            return traced
        if type(value) is DeviceTensor:
            return unrecorded(apply, op, value, change)
        token = silence()
        try:
            out = op.eval(value._value, change._value)
        finally:
            restore(token)
        if NUMERICS:
            check_numerics(op, (value, change), out)
        return Tensor(out)

    def _accepted(self, value: Any, name: str) -> Tensor:
        """A value that fits this variable exactly, or an error that says why not."""
        if isinstance(value, (Tensor, Variable)):
            tensor = self._near(asarray(value), name)
            if isinstance(tensor, TracedTensor) and tensor._trace.is_over:
                raise leaked(tensor, name)
            if isinstance(tensor, TracedTensor) and not tensor._trace.holds_state:
                raise tensor._trace.refused(self._name, name)
            if tensor.dtype != self.dtype:
                raise DTypeError(
                    f"variable {self._name!r} is {self._tensor._type}, the value "
                    f"{tensor._type}",
                    op=name,
                    help=f'convert it with .astype("{self.dtype.name}")',
                )
            self._warn_if_tracked(tensor, name)
        else:
            tensor = self._converted(value, name)
        if tensor.shape != self.shape:
            raise ShapeError(
                f"variable {self._name!r} has shape {self.shape}, the value "
                f"{tensor.shape}",
                op=name,
                help="assigning does not broadcast; use tj.broadcast_to",
            )
        return tensor

    def _converted(self, value: Any, name: str) -> Tensor:
        """What is no tensor yet: it goes to the variable's device."""
        converted = self._in_own_dtype(value, name)
        return placed(converted, self.device) if DEVICE_ARRAYS else converted

    def _in_own_dtype(self, value: Any, name: str) -> Tensor:
        given = convert(value, None, name=name)
        if not np.can_cast(given.dtype, self.dtype, "same_kind") and not (
            given.dtype.kind in "iu" and self.dtype.kind in "fcV"
        ):
            raise DTypeError(
                f"variable {self._name!r} is {self._tensor._type}, the value "
                f"{given._type}",
                op=name,
            )
        if isinstance(value, (list, tuple, int)):
            return convert(value, self.dtype, name=name)  # refuses what does not fit
        return cast(given, self.dtype)

    def _near(self, value: Tensor, name: str) -> Tensor:
        """A value that is on the variable's device, or an error."""
        if not DEVICE_ARRAYS or value.device == self.device:
            return value
        value = following(value, self.device)
        if value.device == self.device:
            return value
        raise ArgumentError(
            f"variable {self._name!r} is on {self.device}, the value on {value.device}",
            op=name,
            help=f'move it: .to("{self.device}")',
        )

    def _warn_if_tracked(self, tensor: Tensor, name: str) -> None:
        mark_left(tensor, f"was assigned to variable {self._name!r} ({name})")
        trace = TRACE.get()
        if trace is not None and trace.state is not None:
            trace.state.note_taken(tensor, name)
        if tensor._id and any(tape.tracks(tensor) for tape in TAPES.get()):
            warn_tracked(name)

    def _write_part(
        self, name: str, key: Any, updates: Any, write: Callable[..., None]
    ) -> Tensor:
        """Write into selected elements of a copy, then put it in place.

        In a trace: read, scatter, write.
        """
        try:
            selected = flat_positions(self, key)
        except OutOfRangeError:
            getitem(self._tensor, key)  # says it in terms of the variable
            raise
        source = asarray(updates)
        if DEVICE_ARRAYS:
            source = self._near(source, name)
        for x in (selected, source):
            if isinstance(x, TracedTensor) and not x._trace.holds_state:
                raise x._trace.refused(self._name, name)
        self._warn_if_tracked(source, name)
        if not _broadcasts(source.shape, selected.shape):
            raise ShapeError(
                f"{source._type} does not fit the selected shape {selected.shape}",
                op=name,
            )
        if not np.can_cast(source.dtype, self.dtype, "same_kind"):
            raise DTypeError(
                f"variable {self._name!r} is {self.dtype}, the value {source.dtype}",
                op=name,
            )
        trace = TRACE.get()
        acquire(lock := self._lock, "to write a variable")
        try:
            while True:
                before = self._held()
                if type(before) is DeviceTensor:
                    new = unrecorded(traced_change, before, key, source, write)
                elif trace is None or trace.state is None:
                    new = self._with_part(before, selected, source, write)
                else:
                    new = trace.state.unrecorded(
                        traced_change, before, key, source, write
                    )
                if self._put(new, before):
                    return self._assigned(new)
        finally:
            lock.release()

    def _with_part(
        self,
        before: Tensor,
        selected: Tensor,
        source: Tensor,
        write: Callable[..., None],
    ) -> Tensor:
        """The value with another part; halves add up in float32, rounded once."""
        positions = np.asarray(selected._value)
        is_half = write is not set_at and self.dtype.itemsize == 2
        wide = np.float32 if is_half and is_differentiable(self.dtype) else self.dtype
        new = aligned_copy(before._value.astype(wide, copy=False))
        values = np.broadcast_to(source._value, positions.shape)
        write(new.reshape(-1), positions, values.astype(self.dtype).astype(wide))
        return Tensor(new.astype(self.dtype, copy=False))

    def _move(self, name: Any) -> None:
        """Hold the value on another device from now on."""
        trace = TRACE.get()
        state = None if trace is None else trace.state
        if state is not None and id(self) in state.slots:
            raise UnsupportedError(
                f"variable {self._name!r} is moved in a function that uses it",
                help="move it before the call",
            )
        there = as_device(name)
        with self._lock:
            held = self._tensor
            if device_of(held) != there:
                self._tensor = self._holding(moved_value(held._value, there))

    def _join(self, there: str) -> None:
        """Be on a device, unless a function that is being traced has met this."""
        trace = TRACE.get()
        state = None if trace is None else trace.state
        if state is not None and id(self) in state.slots:
            return
        self._follows = True
        if device_of(self._tensor) != there:
            self._move(there)

    def _join_trace(self) -> None:
        """Be where a function is traced to run."""
        trace = TRACE.get()
        state = None if trace is None else trace.state
        if state is not None and state.placement.device is not None:
            self._join(state.device)

    def _refuse_inplace(self, other: Any) -> NoReturn:
        raise VariableError(
            f"variable {self._name!r} cannot be changed with an augmented assignment",
            help="use v.assign_add(x), v.assign_sub(x) or v.assign(v * x)",
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = _refuse_inplace
    __ifloordiv__ = __imod__ = __ipow__ = __imatmul__ = _refuse_inplace
    __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = _refuse_inplace

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ArgumentTypeError(
            f"variable {self._name!r} is not assigned with v[i] = x",
            help="use v[i].assign(x)",
        )

    # Copies and pickles

    def __copy__(self) -> Variable:
        return self  # a shallow copy shares its state, and the state is all there is

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        memo[id(self)] = copy = Variable(
            self._plain(),
            self._trainable,
            name=self._name,
            constraint=self._constraint,
        )
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._trainable, None, self._name, self._constraint)
        return (Variable, (self._plain(), *state))

    def _plain(self) -> Any:
        """The value as a new variable takes it."""
        held = self._tensor
        return held if type(held) is DeviceTensor else np.array(held._value)


HANDLES.add(Variable)

# While a function runs as plain Python: id -> the variables it has written and what
# they held before, so that a call that fails can put everything back.
JOURNAL: ContextVar[dict[int, tuple[Variable, Tensor]] | None] = ContextVar(
    "journal", default=None
)


def unrecorded(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """The result of operations that no tape hears of."""
    token = TAPES.set(())
    try:
        return function(*args)
    finally:
        TAPES.reset(token)


def _await_calls() -> None:
    """Before a fork: let calls in other threads end that write over variables.

    From now on none begins with that; and none that has begun waits for anything.
    """
    FORKING[0] = 1
    for variable in list(_alive.values()):
        while variable._is_away_elsewhere():
            time.sleep(1e-4)


def _allow_updates() -> None:
    FORKING[0] = 0


def _renew_locks() -> None:
    """In a forked child: no thread is left that could release a lock held before."""
    _allow_updates()
    for variable in list(_alive.values()):
        variable._lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_await_calls, after_in_parent=_allow_updates, after_in_child=_renew_locks
    )

_tracked_warned = False


def warn_tracked(name: str) -> None:
    """Say once that no gradient flows through an assignment."""
    global _tracked_warned
    if not _tracked_warned:
        _tracked_warned = True
        warn_user(
            f"{name} of a value that a tape is recording: no gradient flows through an "
            "assignment; use the value itself where the gradient is wanted"
        )


def _broadcasts(shape: Shape, wanted: Shape) -> bool:
    """Whether an array of `shape` can stand where `wanted` elements are selected."""
    if any(isinstance(size, Dim) for size in wanted):
        return True  # how many a mask selects is known when the function runs
    try:
        return np.broadcast_shapes(shape, wanted) == wanted
    except ValueError:
        return False
