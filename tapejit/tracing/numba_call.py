"""`fn.numba(*specs)`: native code of a function as a function of Numba's.

The result is an `njit` function. Code that Numba compiles calls it as it calls any
other, without Python and without the GIL: the arguments are checked, the outputs made
with `np.empty`, and the native code of one trace is called by its address.

Numba compiles an implementation for the types of the arguments, from Python text that
is written here, around the call that `numba_host.table_call` makes. What is no argument
is known when the text is written: fixed arguments, captured tensors and the values that
variables have then are arrays that live as long as the code.

Native code that reports a failure does not say of which operation. Then, and only then,
Python runs: NumPy performs the operations on the same arrays and finds the one that
fails, and the Numba function raises the error of that one.

Start reading at `numba_function`, then `NumbaText.implementation`.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.base import tree
from tapejit.base.config import config
from tapejit.base.errors import (
    LinAlgError,
    OutOfRangeError,
    TapejitError,
    UnsupportedError,
)
from tapejit.base.structure import EMPTY, LEAF, Structure
from tapejit.base.types import DType, TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node, line_of
from tapejit.ir.structural import guard, require, start
from tapejit.loops.kernels import ALIGNMENT
from tapejit.runtime.compiled import Code, is_candidate
from tapejit.runtime.threads import driver_address
from tapejit.tape.variable import Variable
from tapejit.targets.cpu.machine.numba_host import (
    TableCall,
    TableEntry,
    function_by_types,
    table_call,
)
from tapejit.tensor.tensor import Tensor
from tapejit.tracing.concrete_function import ConcreteFunction, concrete_function
from tapejit.tracing.function import Function
from tapejit.tracing.path import TracedPath
from tapejit.tracing.trace import host_array

MISSING_DTYPES: Final = ("float16", "bfloat16")  # Numba has no arrays of these


def numba_function(
    function: Function[..., Any], specs: tuple[Any, ...], *, parallel: bool
) -> Any:
    """The `njit` function of the trace for these specs."""
    concrete = concrete_function(function, specs, {})
    path = concrete.path
    refuse_unless_pure(function.__name__, path)
    code = native_code(function.__name__, path)
    text = NumbaText(concrete, path, code, driver_address() if parallel else 0)
    return function_by_types(
        text.name if text.name.isidentifier() else "traced",
        [x.name for x in text.parameters],
        text.implementation,
    )


# What cannot be a function of Numba's


def refusal(name: str, what: str, node: Node | None, help: str) -> TapejitError:
    """The error of a function that Numba's code cannot call."""
    error = UnsupportedError(f"{name} as a Numba function: {what}", help=help)
    error.origin = line_of(node) or error.origin
    return error


def refuse_unless_pure(name: str, path: TracedPath) -> None:
    """Raise if a call is more than results of arguments."""
    if path.has_variable_arguments:
        advice = "give a spec, tj.TensorSpec(v.shape), and call it with arrays"
        raise refusal(name, "an argument is a Variable", None, advice)
    for variable, node in path.assigned:
        raise refusal(
            name,
            f"it assigns {variable}, and Numba's code has no variables",
            node,
            "return the new value and let the caller keep it; draw random numbers "
            "with a key: tj.random.normal(shape, key=key)",
        )
    link = path.graph.effects
    while link is not None and link.inputs:
        if link.op is guard:
            what = "which way it goes depends on the value of a tensor"
            advice = "choose with tj.where, or by an argument that is no tensor"
            raise refusal(name, what, link, advice)
        if link.op is not require:
            advice = "leave it out: NumPy or Python performs it"
            raise refusal(name, f"{link.op.name} is an effect", link, advice)
        link = link.inputs[-1]


def native_code(name: str, path: TracedPath) -> Code:
    """The native code of all of a path."""
    if not config.current().native:
        advice = "switch the setting native (TAPEJIT_NATIVE) on"
        raise refusal(name, "native code is switched off", None, advice)
    for x in (*path.graph.inputs, *path.graph.outputs):
        kind = x.tensor_type
        if not kind.is_static or 0 in kind.shape:
            what = f"{kind} is {'empty' if kind.is_static else 'of open size'}"
            raise refusal(name, what, x, "give each axis a size from 1 on")
        if kind.dtype.name in MISSING_DTYPES:
            advice = "take and give float32, and cast inside"
            raise refusal(name, f"Numba has no arrays of {kind.dtype}", x, advice)
    executable = path.executable
    executable.prepare()
    code = executable.code
    if code is None:
        node = without_native_code(executable.graph)
        what = "it computes nothing"
        if node is not None:
            kinds = ", ".join(str(x.type) for x in node.inputs)
            what = f"{node.op.name} of {kinds} has no native code"
        raise refusal(name, what, node, "do that outside, and hand in what it gives")
    return code


def without_native_code(graph: Graph) -> Node | None:
    """The first Node that NumPy performs."""
    native = (LITERAL, start, require)
    nodes = (x for x in graph.nodes if x.op not in native and not is_candidate(x))
    return next(nodes, None)


# Failures


class RaisedByNumba(TapejitError):
    """An error whose text was written before it happened."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
        self.message, self.op, self.operands = text, None, ()
        self.help, self.origin, self.places = None, None, None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,)


class OutOfRangeInNumba(RaisedByNumba, OutOfRangeError):
    """OutOfRangeError, raised by Numba's code."""


class LinAlgErrorInNumba(RaisedByNumba, LinAlgError):
    """LinAlgError, raised by Numba's code."""


class FailureInNumba(RaisedByNumba, RuntimeError):
    """A failure of native code that NumPy does not find."""


# What operations raise, and what is known of it without the values.
FailureKind = tuple[type[Exception], type[RaisedByNumba], str]
FAILURES: Final[tuple[FailureKind, ...]] = (
    (OutOfRangeError, OutOfRangeInNumba, "an index is outside its axis"),
    (LinAlgError, LinAlgErrorInNumba, "a matrix is singular, or not positive definite"),
)


class Failures:
    """Which operation has failed, as a number, and what to raise for it."""

    def __init__(
        self, name: str, path: TracedPath, kinds: Sequence[TensorType]
    ) -> None:
        self.name = name
        self.program = path.graph.program
        self.kinds = kinds
        self.failing = [node for node in path.graph.nodes if node.op.can_fail]
        self.find = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self.number_of)

    @property
    def address(self) -> int:
        """The address of `i64 find(i8** table)`."""
        return ctypes.cast(self.find, ctypes.c_void_p).value or 0

    def number_of(self, table: int) -> int:
        """The number of the failure of a call with this table of pointers."""
        pointers = (ctypes.c_void_p * len(self.kinds)).from_address(table)
        arrays = []
        for pointer, kind in zip(pointers, self.kinds, strict=True):
            size = math.prod(map(int, kind.shape)) * kind.dtype.itemsize
            data = memoryview((ctypes.c_char * size).from_address(pointer or 0))
            array = np.frombuffer(data, kind.dtype).reshape(tuple(map(int, kind.shape)))
            arrays.append(array if array.ndim else array[()])
        try:
            self.program.run(arrays)
        except tuple(kind for kind, _, _ in FAILURES) as error:
            failed = self.program.failed_node(error)
            for number, node, (raised, _, _) in self.numbered():
                if node is failed and isinstance(error, raised):
                    return number
        return -1

    def numbered(self) -> Iterator[tuple[int, Node, FailureKind]]:
        """The failures that there can be, by number."""
        pairs = itertools.product(self.failing, FAILURES)
        for number, (node, kind) in enumerate(pairs, 1):
            yield number, node, kind

    def raising(self, scope: dict[str, Any]) -> list[str]:
        """Lines of a function that raise the error of a failure."""
        lines = []
        for number, node, (_, error, what) in self.numbered():
            scope[error.__name__] = error
            raised = f"{error.__name__}({self.text(node, what)!r})"
            lines.append(f"    if failure == {number}: raise {raised}")
        scope["error"] = FailureInNumba
        text = self.text(None, "its native code reports a failure")
        return ["if failure:", *lines, f"    raise error({text!r})"]

    def text(self, node: Node | None, what: str) -> str:
        """What the error of an operation says."""
        error = TapejitError(
            what,
            op=self.name if node is None else node.op.name,
            help=f"called from Python, {self.name} says of the same arguments more",
        )
        error.origin = line_of(node)
        return str(error)


# Parameters


class NumbaParameter(NamedTuple):
    """A parameter: its name, its structure, and its leaves by number."""

    name: str
    structure: Structure
    leaves: tuple[int, ...]

    @property
    def texts(self) -> list[str]:
        """How each leaf is written."""
        return [self.name + path for path in self.structure.paths()]


def parameters_of(concrete: ConcreteFunction) -> Iterator[NumbaParameter]:
    """What is given at each call: the arguments that are tensors."""
    name, call = concrete._function.__name__, concrete._call
    numbers, _ = call.arguments(range(len(call.leaves)))
    advice = "give tensors or tuples of tensors; what holds none is fixed by the spec"
    for parameter, value in named(concrete, numbers):
        leaves, structure = tree.flatten(value, none_is_leaf=True)
        given = [concrete._is_tensor(at) for at in leaves]
        if not any(given):
            continue
        if not all(given) or not is_tuple(structure):
            what = f"{parameter} is no tensor or tuple of tensors"
            raise refusal(name, what, None, advice)
        yield NumbaParameter(parameter, structure, tuple(leaves))


def named(
    concrete: ConcreteFunction, values: Sequence[Any]
) -> Iterator[tuple[str, Any]]:
    """Positional arguments with their names."""
    signature = concrete._function._binder.signature
    for name, value in signature.bind(*values).arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}_{at}", x) for at, x in enumerate(value))
        else:
            yield name, value


def is_tuple(structure: Structure) -> bool:
    """Whether it is a leaf, None, or a tuple or list of these."""
    if structure is LEAF or structure is EMPTY:
        return True
    is_sequence = issubclass(structure.cls, (tuple, list))
    return is_sequence and all(map(is_tuple, structure.children))


def types_of_leaves(structure: Structure, kind: Any) -> Iterator[Any]:
    """Numba's types of the leaves of a tuple; None where it has no such leaf."""
    if structure is LEAF:
        yield kind
    parts = getattr(kind, "types", ())
    if len(parts) != len(structure.children):
        parts = [None] * len(structure.children)
    for child, part in zip(structure.children, parts, strict=True):
        yield from types_of_leaves(child, part)


# The text


class NumbaText:
    """What a function of Numba's is made of.

    inputs   of the native code: how an argument is written, or an array that is kept
    outputs  the types of its results
    """

    def __init__(
        self, concrete: ConcreteFunction, path: TracedPath, code: Code, driver: int
    ) -> None:
        self.name = concrete._function.__name__
        self.structure = path.structure
        if not is_tuple(self.structure):
            advice = "return tensors, or tuples of them"
            what = f"it returns {self.structure}"
            raise refusal(self.name, what, None, advice)
        self.parameters = list(parameters_of(concrete))
        self.kinds = [x.tensor_type for x in path.graph.inputs]
        self.outputs = [x.tensor_type for x in path.graph.outputs]
        written = {
            at: text
            for parameter in self.parameters
            for at, text in zip(parameter.leaves, parameter.texts, strict=True)
        }
        leaves = concrete._call.leaves
        values = [
            *[written.get(at, leaves[at]) for at in path.takes],
            *[binding.variable for binding in path.bindings],
            *path.captured,
        ]
        self.inputs = [
            x if isinstance(x, str) else kept_array(x, kind)
            for x, kind in zip(values, self.kinds, strict=True)
        ]
        self.failures = Failures(self.name, path, self.kinds)
        self.call = TableCall(
            address=code.loaded.functions[code.header["symbol"]],
            entries=[
                *map(input_entry, self.inputs, self.kinds),
                *map(result_entry, self.outputs),
            ],
            arena_bytes=code.header["arena"],
            imports=code.header["imports"],
            driver=driver,
            find_failure=self.failures.address,
            keeps=(code, self.inputs, self.failures),
        )

    def implementation(self, given: Sequence[Any]) -> Callable[..., Any]:
        """The Python function that Numba compiles for arguments of these types."""
        scope: dict[str, Any] = {"empty": np.empty, "call": table_call(self.call)}
        kinds = [
            kind
            for parameter, argument in zip(self.parameters, given, strict=True)
            for kind in types_of_leaves(parameter.structure, argument)
        ]
        texts = [text for parameter in self.parameters for text in parameter.texts]
        passed = dict(zip(texts, kinds, strict=True))
        lines, operands, scalars = [], [], []
        fits = True
        for x, kind in zip(self.inputs, self.kinds, strict=True):
            if not isinstance(x, str):
                continue
            checks, operand = taken_as(x, passed[x], kind, self.name)
            lines += checks
            fits = fits and bool(operand)
            scope[kind.dtype.name] = kind.dtype.type
            operands.append(operand)
        for at, kind in enumerate(self.outputs):
            scope[f"dtype_{at}"] = kind.dtype if kind.shape else kind.dtype.type
            if kind.shape:
                shape = tuple(map(int, kind.shape))
                lines.append(f"result_{at} = empty({shape}, dtype_{at})")
                operands.append(f"result_{at}")
            elif fits:
                scalars.append(f"result_{at}")
            else:  # it raises, and has to say what it would return
                lines.append(f"result_{at} = dtype_{at}(0)")
        if fits:
            if not self.call.is_on_stack:
                scope["byte"] = np.dtype(np.uint8)
                size = self.call.arena_bytes + ALIGNMENT
                lines.append(f"arena = empty({size}, byte)")
                operands.append("arena")
            found = "".join(f"{x}, " for x in ("failure", *scalars))
            lines.append(f"{found}= call({', '.join(operands)})")
            lines += self.failures.raising(scope)
        results = [f"result_{at}" for at in range(len(self.outputs))]
        lines.append(f"return {written_as(self.structure, iter(results))}")
        names = ", ".join(x.name for x in self.parameters)
        body = "".join(f"    {line}\n" for line in lines)
        exec(f"def implementation({names}):\n{body}", scope)
        made: Callable[..., Any] = scope["implementation"]
        return made


def kept_array(x: Any, kind: TensorType) -> Any:
    """The value of what is no argument, as memory that nobody else writes."""
    if isinstance(x, Variable):
        x = x._tensor
    value = host_array(x._value) if isinstance(x, Tensor) else x
    return np.array(value, kind.dtype, order="C", ndmin=1)


def input_entry(x: Any, kind: TensorType) -> TableEntry:
    if not isinstance(x, str):
        return TableEntry("fixed", x.ctypes.data)
    return TableEntry("array" if kind.shape else "scalar")


def result_entry(kind: TensorType) -> TableEntry:
    return TableEntry("array") if kind.shape else TableEntry("result", kind.dtype.name)


def taken_as(
    text: str, given: Any, kind: TensorType, name: str
) -> tuple[list[str], str]:
    """Lines that check an argument of one of Numba's types, and how it is handed on.

    Nothing is handed on if the type is a wrong one: the lines raise.
    """
    raised = f"raise ValueError({f'{name}: {text} must be {kind}'!r} + "
    if not kind.shape:
        number = as_number(text, given, kind.dtype)
        if number:
            return [], f"{kind.dtype.name}({number})"
    elif is_array_of(given, kind):
        shape = tuple(map(int, kind.shape))
        lines = [f"if {text}.shape != {shape}: {raised}', its shape is another')"]
        if given.layout != "C":
            strides = np.empty(shape, np.int8).strides
            size = kind.dtype.itemsize
            wrong = " or ".join(
                f"{text}.strides[{at}] != {stride * size}"
                for at, (stride, length) in enumerate(zip(strides, shape, strict=True))
                if length > 1
            )
            advice = "in order C: np.ascontiguousarray"
            if wrong:
                lines.append(f"if {wrong}: {raised}', {advice}')")
        return lines, text
    # Under a loop: Numba has to see a way on, to the type of what is returned.
    return [f"for _ in range(1): {raised}{f', got {given}'!r})"], ""


def is_array_of(given: Any, kind: TensorType) -> bool:
    """Whether a type of Numba's is that of arrays of a dtype and rank."""
    from numba import from_dtype, types

    is_array = isinstance(given, types.Array) and given.ndim == kind.ndim
    return is_array and given.aligned and given.dtype == from_dtype(kind.dtype)


def as_number(text: str, given: Any, dtype: DType) -> str:
    """A number, or array without axes, of a kind that a dtype takes; "" for others."""
    from numba import types

    if isinstance(given, types.Array) and given.ndim == 0:
        text, given = f"{text}[()]", given.dtype
    takes: dict[str, Any] = {
        "b": types.Boolean,
        "i": (types.Boolean, types.Integer),
        "u": (types.Boolean, types.Integer),
        "f": (types.Boolean, types.Integer, types.Float),
        "c": (types.Boolean, types.Integer, types.Float, types.Complex),
    }
    return text if isinstance(given, takes[dtype.kind]) else ""


def written_as(structure: Structure, leaves: Iterator[str]) -> str:
    """A result of this structure, as an expression."""
    if structure is LEAF:
        return next(leaves)
    if structure is EMPTY:
        return "None"
    parts = "".join(f"{written_as(x, leaves)}, " for x in structure.children)
    return f"({parts})"
