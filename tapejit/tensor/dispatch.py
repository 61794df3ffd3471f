"""From a user's call to an operation: convert operands, run, record.

`apply` performs an operation: eagerly it runs the record's NumPy meaning and offers the
result to the tapes; if an operand is being traced it makes a Node instead. `unary` and
`binary` are the same, written out for the usual call, an elementwise operation of one
or two Tensors of one dtype, which saves half a microsecond of one and a half; all else
they leave to `apply`. A type rule runs when an op meets dtypes that are new to it, and
when NumPy refuses, to raise the error that teaches; else the result tells its type.

`operands` brings whatever the user passed to Tensors of one dtype; Python scalars and
NumPy floating scalars are weak, they take the dtype of the tensor they meet.

Start reading at `apply`, then `operands`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapejit import ops
from tapejit.base.config import MIXED, NUMERICS, config
from tapejit.base.errors import ArgumentError, ArgumentTypeError, TapejitError
from tapejit.base.numpy_adapter import restore, silence
from tapejit.base.origin import (
    describe,
    short_location,
    user_origin,
    user_stacklevel,
)
from tapejit.base.types import (
    DType,
    TensorType,
    Type,
    as_dtype,
    default_float,
    is_differentiable,
    promote,
    scalar_dtype,
    weak_dtype,
)
from tapejit.ir.interpret import contains_dim
from tapejit.ir.node import Derived, Node, Op
from tapejit.ir.numerics import check_result
from tapejit.ir.structural import MUTED
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tensor.lists import Scalar, flat, list_dtype
from tapejit.tensor.not_numbers import not_a_tensor
from tapejit.tensor.tensor import (
    CONSTANT,
    DeviceTensor,
    Provenance,
    Tensor,
    TracedTensor,
)

if TYPE_CHECKING:
    from tapejit.tensor.recorder import Listener
    from tapejit.tensor.trace import Trace

TAPES: Final[ContextVar[tuple[Listener, ...]]] = ContextVar("tapes", default=())
TRACE: Final[ContextVar[Trace | None]] = ContextVar("trace", default=None)

# The classes, Variable first of all, whose value is read with `_operand()`.
HANDLES: Final[set[type]] = set()

# The classes that stand for Python's floats and ints in a trace, once they are loaded.
TRACED_NUMBERS: Final[set[type]] = set()
WEAK_DOUBLES: Final = (np.float64, np.complex128)  # Python's numbers to operations

Operand = Any


def apply(op: Op, *inputs: Tensor, **attrs: Any) -> Tensor:
    """Perform `op` on Tensors.

    An op with several results gives a tuple of Tensors: see `apply_many`.
    """
    if MIXED and op.precision is not None:
        from tapejit.tensor.mixed_precision import converted

        inputs = tuple(converted(op, inputs))
    values = []
    for x in inputs:
        if type(x) is not Tensor:
            elsewhere: Tensor = apply_elsewhere(op, inputs, attrs)
            return elsewhere
        values.append(x._value)
    if (attrs or op.draws) and TRACE.get() is not None and is_traced(op, attrs):
        made: Tensor = apply_traced(op, inputs, attrs)
        return made
    if tuple([value.dtype for value in values]) not in op.accepted:
        check_dtypes(op, inputs, attrs)
    token = silence()
    try:
        out = op.eval(*values, **attrs)
    except Exception as error:  # NumPy's own too; raised again, explained
        raise explained(error, op, inputs, attrs) from None
    finally:
        restore(token)
    if NUMERICS:
        check_numerics(op, inputs, out)
    result: Any
    if type(out) is tuple:
        result = tuple([Tensor(part) for part in out])
    else:
        result = Tensor(out)
        if DEVICE_ARRAYS and all(map(is_constant, inputs)):
            result._made = CONSTANT  # it is made of constants alone
    tapes = TAPES.get()
    if tapes:
        for tape in tapes:
            tape.record(op, inputs, attrs, result)
    return result  # type: ignore[no-any-return]  # the tuple is apply_many's


def is_constant(x: Tensor) -> bool:
    """Whether a tensor goes to the device of what it meets."""
    return x._made is not None and x._made.follows


def apply_elsewhere(op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]) -> Any:
    """Perform an op on Tensors that are not all values on the CPU."""
    is_draw = TRACE.get() is not None and is_traced(op, attrs)
    if is_draw or any(isinstance(x, TracedTensor) for x in inputs):
        return apply_traced(op, inputs, attrs)
    # Here: who has no device loads nothing of it.
    from tapejit.tensor.on_device import apply_on_device

    return apply_on_device(op, inputs, attrs)


def is_traced(op: Op, attrs: dict[str, Any]) -> bool:
    """Whether an op on known tensors has a value only when the traced function runs.

    It draws random numbers, or has an open size.
    """
    return op.draws or any(map(contains_dim, attrs.values()))


def check_dtypes(op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]) -> None:
    """Run the type rule the first time an op meets these dtypes.

    NumPy takes more than the rules do (it adds float32 to float64, and floors
    integers); a traced function would refuse that, so eager mode does too. Shapes
    that do not fit NumPy refuses itself.
    """
    try:
        op.infer_type([x._type for x in inputs], attrs)
    except TapejitError as error:
        raise described(error, op, inputs) from None
    dtypes = tuple([x._value.dtype for x in inputs])
    op.accepted.add(dtypes)
    if len(set(dtypes)) == 1:
        op.accepted.add(dtypes[0])


def check_numerics(op: Op, inputs: Sequence[Tensor], out: Any) -> None:
    """Refuse a result that is not finite, if the setting asks for it."""
    if config.check_numerics:
        try:
            check_result(op, [x._value for x in inputs], out)
        except TapejitError as error:
            raise described(error, op, inputs) from None


NO_ORIGINS: Final[Mapping[Node, Provenance | None]] = {}
NO_ATTRS: Final[dict[str, Any]] = {}
_new = Tensor.__new__


def binary(op: Op, x: Operand, y: Operand) -> Tensor:
    """An elementwise op of two operands, promoted to one dtype.

    Two Tensors of one dtype take the short way: what `apply` does, written out for
    two operands without attributes, which saves half a microsecond.
    """
    first, second = x, y
    kind = type(x)
    if kind is not Tensor:
        if kind not in HANDLES:
            return apply(op, *operands((first, second), op.name))
        x = x._operand()
    kind = type(y)
    if kind is not Tensor:
        if kind is float and x._value.dtype.kind == "f":
            value = x._value
            is_array = type(value) is np.ndarray
            y = _SCALARS.get((second, value.dtype.num, is_array))
            if y is None:
                y = weak_scalar(second, value.dtype, is_array)
        elif kind in HANDLES:
            y = y._operand()
            if type(y) is not Tensor:
                return apply(op, *operands((first, second), op.name))
        else:
            return apply(op, *operands((first, second), op.name))
    left, right = x._value, y._value
    dtype = left.dtype
    if dtype is not right.dtype or dtype not in op.accepted or type(x) is not Tensor:
        return apply(op, *operands((first, second), op.name))
    token = silence()
    try:
        out = op.eval(left, right)
    except Exception as error:  # NumPy's own too; raised again, explained
        raise explained(error, op, (x, y), NO_ATTRS) from None
    finally:
        restore(token)
    if NUMERICS:
        check_numerics(op, (x, y), out)
    result = _new(Tensor)
    result._value = out
    result._id = 0
    result._made = None
    tapes = TAPES.get()
    if tapes:
        for tape in tapes:
            tape.record(op, (x, y), NO_ATTRS, result)
    return result


def unary(op: Op, x: Operand, to_float: bool = False) -> Tensor:
    """An elementwise op of one operand, the short way if it is a Tensor.

    With `to_float` integers and bools are converted, for ops that take floats.
    """
    if type(x) is not Tensor or x._value.dtype not in op.accepted:
        x = as_operand(x, op.name, copy=is_recording())
        x = as_float(x) if to_float else x
        if type(x) is not Tensor or x._value.dtype not in op.accepted:
            return apply(op, x)
    token = silence()
    try:
        out = op.eval(x._value)
    except Exception as error:  # NumPy's own too; raised again, explained
        raise explained(error, op, (x,), NO_ATTRS) from None
    finally:
        restore(token)
    if NUMERICS:
        check_numerics(op, (x,), out)
    result = _new(Tensor)
    result._value = out
    result._id = 0
    result._made = None
    tapes = TAPES.get()
    if tapes:
        for tape in tapes:
            tape.record(op, (x,), NO_ATTRS, result)
    return result


def apply_many(op: Op, *inputs: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
    """Perform an op with several results."""
    return apply(op, *inputs, **attrs)  # type: ignore[return-value]  # for such an op


@contextmanager
def muted() -> Iterator[None]:
    """What runs inside has run before: its effects do not happen again."""
    token = MUTED.set(True)
    try:
        yield
    finally:
        MUTED.reset(token)


def effect(op: Op, *inputs: Tensor, **attrs: Any) -> None:
    """Perform an op for its effect: now, or in order when the traced function runs."""
    trace = TRACE.get()
    if trace is not None:
        trace.effect(op, inputs, attrs)
        return
    if MUTED.get():
        return
    try:
        op.eval(*[host_value(x) for x in inputs], None, **attrs)
    except TapejitError as error:
        raise described(error, op, inputs) from None


def host_value(x: Tensor) -> Any:
    """The value of a tensor as NumPy has it, copied if it is on a device."""
    return x._value if type(x) is Tensor else np.asarray(x._value)[()]


def apply_traced(op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]) -> Any:
    """Make a Node in the current trace and offer it to the tapes of that trace."""
    trace = TRACE.get()
    if trace is None:
        for x in inputs:
            if isinstance(x, TracedTensor):
                raise leaked(x, op.name)
        raise ArgumentError(
            f"a size that stands for many is used outside of a trace: {attrs}",
            op=op.name,
            help="take sizes from the tensors at hand",
        )
    is_inner = trace.outer is not None or trace.is_transparent
    if is_inner and _is_outer(trace, op, inputs):
        token = TRACE.set(trace.outer)
        try:
            return apply(op, *inputs, **attrs)
        finally:
            TRACE.reset(token)
    if DEVICE_ARRAYS:
        from tapejit.tensor.device import met_in_trace

        inputs = met_in_trace(trace, op.name, inputs)
    try:
        inputs, attrs = trace.prepared(op, inputs, attrs)
        nodes = [trace.node_of(x) for x in inputs]
        result = trace.record(op, nodes, attrs)
    except TapejitError as error:
        raise described(error, op, inputs) from None
    for tape in TAPES.get():
        if tape.trace is trace:
            tape.record(op, inputs, attrs, result)
    return result


def _is_outer(trace: Trace, op: Op, inputs: Sequence[Tensor]) -> bool:
    """Whether an op in a mapped function has nothing to do with its rows.

    Around the map it would be performed once, so it is: in the trace around this one,
    unless a tape was opened for a row.
    """
    if op.draws and not trace.is_transparent:
        return False
    if any(tape.trace is trace for tape in TAPES.get()):
        return False
    return not any(isinstance(x, TracedTensor) and x._trace is trace for x in inputs)


def leaked(x: TracedTensor, name: str | None = None) -> ArgumentError:
    """The error for a traced tensor that outlived its trace."""
    if not x._trace.is_over:
        return ArgumentError(
            f"a tensor of {x._trace.name}, which is being traced, is used in another "
            "thread",
            op=name,
            help="start the thread outside the function, or give it a copy of the "
            "context: contextvars.copy_context().run(...)",
        )
    argument = x._value.name
    if argument is not None:
        made = f"argument {argument}"
    else:
        made = describe(None if x._made is None else x._made.origin)
    return ArgumentError(
        f"a tensor made while {x._trace.name} was traced is used after it: {made}",
        op=name,
        help="return it from the function instead of storing it",
    )


def explained(
    error: Exception, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]
) -> Exception:
    """The error to raise when an evaluation failed: the type rule's if it has one."""
    if isinstance(error, TapejitError):
        return described(error, op, inputs)
    try:
        op.infer_type([x._type for x in inputs], attrs)
    except TapejitError as better:
        return described(better, op, inputs)
    if isinstance(error, MemoryError):
        sizes = ", ".join(str(x._type) for x in inputs)
        return MemoryError(f"{op.name} of {sizes}: {error}")
    kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
    return described(kind(str(error)), op, inputs)


def described(error: TapejitError, op: Op, inputs: Sequence[Tensor]) -> TapejitError:
    """The error with the operation's name, the user's line and the operands."""
    error.op = error.op or op.name
    error.origin = user_origin(2)
    error.operands = tuple(describe_operand(x) for x in inputs)
    return error


def described_node(
    error: Exception, node: Node, made: Mapping[Node, Provenance | None] = NO_ORIGINS
) -> Exception:
    """The error of a Node that failed, as the eager operation would have raised it.

    `made` says where inputs of its Graph came from.
    """
    if not isinstance(error, TapejitError):
        if node.op.is_effect:
            return error
        if isinstance(error, MemoryError):
            sizes = ", ".join(str(x.type) for x in node.inputs)
            return MemoryError(f"{node.op.name} of {sizes}: {error}")
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        error = kind(str(error))
    origin = node.origin
    while isinstance(origin, Derived):
        origin = origin.node.origin
    label = getattr(node.origin, "label", None)
    error.op = label or error.op or node.op.name
    error.origin = origin
    error.operands = tuple(
        described_type(x.type, made.get(x))
        for x in node.inputs
        if isinstance(x.type, TensorType)
    )
    return error


def describe_operand(x: Tensor) -> str:
    """`f32[64,8]   (matmul, train.py:14)`, as in error messages."""
    return described_type(x._shown_type, x._made)


def described_type(type: Type | str, made: Provenance | None) -> str:
    """A type and where the value came from."""
    text = str(type)
    if made is None or made is SCALAR or made is CONSTANT:
        return text
    if made.variable is not None:
        return f"{text}   (variable {made.variable})"
    if made.origin is None:
        return f"{text}   ({made.by})"
    return f"{text}   ({made.by}, {short_location(made.origin)})"


# Operands


def binary_float(op: Op, x: Operand, y: Operand) -> Tensor:
    """As `binary`, for ops that take floats."""
    if hasattr(x, "dtype") and x.dtype.kind in "fc":
        return binary(op, x, y)
    return binary(op, *map(as_float, operands((x, y), op.name)))


def cast(x: Tensor, dtype: DType) -> Tensor:
    """`x` in another dtype; itself if it has that already."""
    if x.dtype == dtype:
        return x
    return apply(ops.cast, x, dtype=dtype)


def as_float(x: Tensor) -> Tensor:
    """Integers and bools as the default float."""
    return x if is_differentiable(x.dtype) else cast(x, default_float())


def as_bool(x: Tensor) -> Tensor:
    """Nonzero elements as True."""
    return x if x.dtype.kind == "b" else binary(ops.not_equal, x, 0)


def alias(x: Tensor) -> Tensor:
    """The result of an operation that changes nothing: the same value, a new Tensor.

    It must be new: inside `stop_recording` it is a constant although `x` is not, and
    a variable's own Tensor is never given away, or a value read before a tape would
    count as read inside it.
    """
    return apply(ops.read, x)


def operands(values: Sequence[Operand], name: str = "operation") -> list[Tensor]:
    """Whatever the user passed, as Tensors of one dtype.

    For ops that allocate their results: an array that nothing records is not copied.
    """
    copy = is_recording()
    tensors: list[Any] = [
        value if is_weak(value) else as_operand(value, name, copy=copy)
        for value in values
    ]
    strong = [x for x in tensors if isinstance(x, Tensor)]
    if DEVICE_ARRAYS and any(type(x) is DeviceTensor for x in strong):
        from tapejit.tensor.on_device import common_device

        common_device(name, strong)
    dtype: DType | None = None
    for x in strong:
        dtype = x.dtype if dtype is None else promote(dtype, x.dtype)
    for value in tensors:
        if not isinstance(value, Tensor):
            scalar = (
                value.sample if type(value) in TRACED_NUMBERS else python_scalar(value)
            )
            dtype = scalar_dtype(scalar) if dtype is None else weak_dtype(scalar, dtype)
    assert dtype is not None
    if len(strong) > 1:
        _warn_once_if_widened(values, dtype)
    return [
        cast(x, dtype) if isinstance(x, Tensor) else weak_scalar(x, dtype)
        for x in tensors
    ]


def is_weak(value: Any) -> bool:
    """Whether a value takes the dtype of what it meets."""
    if isinstance(value, (*Scalar, np.floating)):
        return True
    return type(value) in TRACED_NUMBERS


def number_dtype(value: Any) -> DType:
    """The dtype of a number on its own: a NumPy scalar has one."""
    return value.dtype if isinstance(value, np.generic) else scalar_dtype(value)


def python_scalar(value: Any) -> bool | int | float | complex:
    """A weak value as a Python scalar."""
    if isinstance(value, np.generic):
        return value.item()  # type: ignore[no-any-return]
    return value if isinstance(value, Scalar) else float(value)


SCALAR: Final = Provenance(
    "scalar", None, follows=True
)  # what made a number that stands in an expression

# By value, the number of the dtype (it hashes faster than the dtype), and form.
_SCALARS: Final[dict[tuple[float, int, bool], Tensor]] = {}


def weak_scalar(value: Any, dtype: DType, for_array: bool = False) -> Tensor:
    """A scalar as a Tensor of `dtype`; common ones are made once.

    NumPy combines an array faster with an array without axes than with a scalar
    (0.45 µs against 0.68), so `for_array` gives one.
    """
    if type(value) in TRACED_NUMBERS:
        number: Tensor = value.in_dtype(dtype)
        return number
    if type(value) is not float or value == 0.0:  # 0.0 and -0.0 would share an entry
        return Tensor(_scalar_value(value, dtype), SCALAR)
    key = (value, dtype.num, for_array)
    found = _SCALARS.get(key)
    if found is None:
        number = _scalar_value(value, dtype)
        found = Tensor(np.asarray(number) if for_array else number, SCALAR)
        if len(_SCALARS) < 4096:
            _SCALARS[key] = found
    return found


def _scalar_value(value: Any, dtype: DType) -> Any:
    """Python numbers in `dtype`.

    A float that is too large becomes infinite, silently; an integer that does not
    fit an integer dtype is an OverflowError, as in NumPy.
    """
    array = np.asarray(value)
    if dtype.kind in "iu" and array.dtype.kind in "iuO" and array.size:
        info = np.iinfo(dtype)
        for end in (array.min(), array.max()):
            if not info.min <= int(end) <= info.max:
                raise OverflowError(
                    f"the Python integer {end} is out of bounds for {dtype.name}"
                )
    return in_dtype(array, dtype)[()]


def in_dtype(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """An array in another dtype, without warnings of what it cannot hold."""
    token = silence()
    try:
        return ops.cast.eval(array, dtype=dtype)  # type: ignore[no-any-return]
    finally:
        restore(token)


def is_recording() -> bool:
    """Whether a tape or a trace may keep the operands of the next operation."""
    return bool(TAPES.get()) or TRACE.get() is not None


def as_operand(value: Any, name: str = "operation", *, copy: bool = True) -> Tensor:
    """One value as a Tensor.

    `copy=False` shares the memory of an array, for an op that allocates its result
    and is not recorded: nobody can then see later changes of the array.
    """
    if isinstance(value, Tensor):
        return value
    if type(value) in HANDLES:
        tensor: Tensor = value._operand()
        return tensor
    if isinstance(value, WEAK_DOUBLES):
        if type(value) in TRACED_NUMBERS:
            return weak_scalar(value, default_float())
        value = value.item()
    tensor = convert(value, None, name=name, copy=copy)
    if isinstance(value, np.generic) and tensor._made is not None:
        tensor._made.follows = True
    return tensor


def convert(
    value: Any, dtype: DType | None, *, name: str = "asarray", copy: bool = True
) -> Tensor:
    """Anything array-like that is not a Tensor yet as one.

    Python numbers get the default dtypes; NumPy's scalars keep their own, which are
    weak in arithmetic only.
    """
    if type(value) is np.ndarray and (dtype is None or dtype == value.dtype):
        made = Provenance("array", user_origin(2))
        if value.dtype.kind in "OUSMmT":
            raise not_a_tensor(value, name)
        if as_dtype(value.dtype) is value.dtype:
            return Tensor(np.array(value) if copy else value, made)
    if type(value) in TRACED_NUMBERS:
        return weak_scalar(
            value, number_dtype(value.sample) if dtype is None else dtype
        )
    if isinstance(value, Scalar):
        kind = number_dtype(value) if dtype is None else dtype
        return Tensor(_scalar_value(value, kind), _made("constant"))
    if isinstance(value, (list, tuple, range)):
        return _convert_sequence(value, dtype, name)
    if isinstance(value, (str, bytes)) or value is None:
        raise not_a_tensor(value, name)
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError(
            f"{name} takes no masked arrays", help="fill it first: a.filled(0)"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise not_a_tensor(value, name) from None
    if array.dtype.kind in "OUSMmTV" and array.dtype.name != "bfloat16":
        raise not_a_tensor(value, name)
    target = as_dtype(array.dtype) if dtype is None else dtype
    made = _made("array")
    if array.dtype != target:
        return Tensor(in_dtype(array, target), made)
    return Tensor(np.array(array) if copy else array, made)


def _convert_sequence(value: Any, dtype: DType | None, name: str) -> Tensor:
    """Nested lists: numbers make a constant, tensors among them are stacked."""
    if any(is_symbolic(leaf) for leaf in flat(value)):
        from tapejit.tensor.stacking import stack_nested

        stacked: Tensor = stack_nested(value)
        return stacked if dtype is None else cast(stacked, dtype)
    try:
        array = np.array(value)
    except ValueError:
        raise ArgumentError(
            f"{name} got nested lists of unequal lengths",
            help="every row needs the same number of elements",
        ) from None
    if array.dtype == object or array.dtype.kind in "USMm":
        raise not_a_tensor(value, name)
    if array.dtype == np.float64 and all(isinstance(x, int) for x in flat(value)):
        array = np.array(value, object)  # beyond int64 NumPy makes floats of integers
    if dtype is None:
        dtype = list_dtype(array, value)
    return Tensor(_scalar_value(array, dtype), _made("constant"))


def is_symbolic(leaf: Any) -> bool:
    kind = type(leaf)
    return isinstance(leaf, Tensor) or kind in HANDLES or kind in TRACED_NUMBERS


def _made(by: str) -> Provenance:
    return Provenance(by, user_origin(3), follows=by == "constant")


_widening_warned = False


def _warn_once_if_widened(values: Sequence[Any], dtype: DType) -> None:
    """Say once that a float64 ndarray widened a float32 variable."""
    global _widening_warned
    if _widening_warned or dtype != np.float64:
        return
    arrays = [x for x in values if isinstance(x, np.ndarray) or hasattr(x, "is_array")]
    variables = [x for x in values if type(x) in HANDLES and not hasattr(x, "is_array")]
    wide = any(x.dtype == np.float64 for x in arrays)
    if wide and any(x.dtype == np.float32 for x in variables):
        _widening_warned = True
        warnings.warn(
            "a float64 NumPy array met a float32 Variable and the result is float64; "
            'convert the data once with x.astype("float32") or make the variable '
            'float64 with dtype="float64"',
            stacklevel=user_stacklevel(),
        )
