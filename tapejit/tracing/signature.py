"""What selects a trace: the arguments of a call, as a key.

A call is bound to the function's parameters, so that positional, keyword and default
spell the same call, and its structures are taken apart into leaves. Each leaf is one
part of the key:

    tensors and arrays   (number of the dtype, shape), and the device if it is a GPU
    variables            (VARIABLE, number of the dtype, shape, trainable, alias)
    Python floats        (float, value), or (FLOAT,) once they change from call to call
    NumPy floats         (np.float64, value), or (FLOAT, np.float64)
    other NumPy scalars  (SCALAR, np.int64)
    other values         (type, value), by `==` and hash

The usual call, tensors and plain values by position, makes its key in one loop.

Start reading at `Binder.call_of`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.base import tree
from tapejit.base.config import Config
from tapejit.base.errors import ArgumentTypeError
from tapejit.base.types import DType, TensorType, as_dtype
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import as_operand, leaked
from tapejit.tensor.tensor import DeviceTensor, Tensor, TracedTensor

VARIABLE: Final = "variable"
FLOAT: Final = "float"
FLOATS: Final = (float, np.floating)
SCALAR: Final = "scalar"

# The dtypes an argument can have as it is, by their number.
DTYPES: Final[dict[int, DType]] = {
    np.dtype(kind).num: np.dtype(kind)
    for kind in (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}


def is_usable(array: Any) -> bool:
    """Whether an array can be an input as it is: a dtype of ours, in native bytes."""
    return DTYPES.get(array.dtype.num) is array.dtype


def is_scalar(x: Any) -> bool:
    """Whether it is a NumPy scalar that is an input: no float, those have traces.

    >>> is_scalar(np.int64(3)), is_scalar(np.float64(3)), is_scalar(np.array(3))
    (True, False, False)
    """
    if not isinstance(x, np.generic) or isinstance(x, (float, complex, np.floating)):
        return False
    return is_usable(x)


class NumberSettings(NamedTuple):
    """The settings that say what dtypes the operations of a body have."""

    default_float: str
    policy: str


def numbers_of(settings: Config) -> NumberSettings:
    """What numbers are in a call under these settings."""
    return NumberSettings(settings.default_float, settings.mixed_precision)


PLAIN: Final = frozenset({bool, int, str, type(None)})
MAX_DEPTH: Final = 8  # of containers in a short call


class Call:
    """A call taken apart.

    leaves   everything in the arguments that is no container, in order
    key      one part per leaf, the settings of numbers in front, the structure behind
    arrays   the values of the leaves that are inputs, `takes` says which those are
    foreign  the arrays whose memory belongs to somebody else
    structure  of (args, kwargs); None if `leaves` are the positional arguments
    unknown  the leaves that stand for arguments of any value: nothing is called
    """

    __slots__ = ("arrays", "foreign", "key", "leaves", "structure", "takes", "unknown")

    def __init__(self) -> None:
        self.leaves: Sequence[Any] = ()
        self.key: Any = None
        self.arrays: list[Any] = []
        self.foreign: list[Any] = []
        self.structure: tree.Structure | None = None
        self.takes: list[int] = []
        self.unknown: frozenset[int] = frozenset()

    def arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """Positional and keyword arguments with other leaves in place of its own."""
        if self.structure is None:
            return tuple(leaves), {}
        args, kwargs = tree.unflatten(self.structure, leaves)
        return args, kwargs


class Binder:
    """Turns the arguments of one Python function into Calls.

    `skips` is the number of leading parameters that are bound already (`self`).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static: frozenset[str],
        dynamic: frozenset[str],
        skips: int = 0,
    ) -> None:
        whole = _signature_of(function)
        parameters = list(whole.parameters.values())[skips:]
        self.signature = whole.replace(parameters=parameters)
        self.static = static
        self.dynamic = dynamic
        self.name = getattr(function, "__name__", type(function).__name__)
        plain = (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        self.names = tuple(p.name for p in parameters if p.kind in plain)
        # By position: the keyword that can name it, if one can, and its default.
        self.places = tuple(
            (p.name if p.kind is plain[1] else None, p.default)
            for p in parameters
            if p.kind in plain
        )
        self.positions = {
            name: at for at, (name, _) in enumerate(self.places) if name is not None
        }
        self.keywords = {
            p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY
        }
        self.takes_any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.has_names = bool(self.keywords) or self.takes_any_name
        # How many arguments make a call that needs no binding; None: always bind.
        is_plain = all(p.kind in plain for p in parameters) and not (static or dynamic)
        self.arity = len(parameters) if is_plain else None
        unknown = (static | dynamic) - set(self.signature.parameters)
        if unknown:
            raise ArgumentTypeError(
                f"{self.name} has no parameter {', '.join(sorted(unknown))}",
                help="static= and dynamic= name parameters of the function",
            )

    def laid_out(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any] | None] | None:
        """The same call with as few names as can be; None if it has to be bound.

        First what can have a position, with defaults up to the last one that is given;
        then what only has a name, with all defaults, None if there are no such names.
        """
        if not self.has_names:
            found = self._by_position(args, kwargs) if kwargs else args
            return None if found is None else (found, None)
        given, named = list(args), dict(kwargs)
        for name, default in self.places[len(args) :]:
            value = default if name is None else named.pop(name, default)
            if value is inspect.Parameter.empty:
                return None
            given.append(value)
        for name, default in self.keywords.items():
            if named.setdefault(name, default) is inspect.Parameter.empty:
                return None
        # Other names are fine where any are, but for a second value of a position.
        is_fine = self.takes_any_name and named.keys().isdisjoint(self.positions)
        return (given, named) if is_fine or len(named) == len(self.keywords) else None

    def _by_position(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any] | None:
        """The arguments of a call without their names; None if not all have places."""
        found, left = list(args), len(kwargs)
        for name, default in self.places[len(args) :]:
            if name in kwargs:
                found.append(kwargs[name])
                left -= 1
                if not left:
                    return found
            elif default is inspect.Parameter.empty:
                return None
            else:
                found.append(default)
        return None

    def given_leaves(
        self, args: Sequence[Any], names: Iterable[str], short: FastKey
    ) -> list[int]:
        """Which leaf each argument is, those without a name first; none is nested."""
        first = len(short.leaves) - len(short.names)
        named = {name: first + at for at, name in enumerate(short.names)}
        named.update(self.positions)
        return [*range(len(args)), *[named[name] for name in names]]

    def leaf_name(self, structure: tree.Structure | None, at: int) -> str:
        """What a printed Graph calls a leaf: the parameter's name."""
        name = _LeafNames(self, structure)[at].removeprefix("argument ")
        return re.sub(r"\W+", "_", name).strip("_")

    def call_of(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        numbers: NumberSettings,
        general: set[Any],
    ) -> Call:
        """The Call of these arguments; `general` are the floats that are inputs."""
        if kwargs or len(args) != self.arity:
            args, kwargs = self._bound(args, kwargs)
            return self._structured(args, kwargs, numbers, general)
        call = Call()
        key: list[Any] = [numbers]
        arrays = call.arrays
        for at, x in enumerate(args):
            kind = type(x)
            if kind is Tensor:
                value = x._value
                key.append((value.dtype.num, value.shape))
                arrays.append(value)
                call.takes.append(at)
            elif kind is np.ndarray and is_usable(x):
                key.append((x.dtype.num, x.shape))
                arrays.append(x if x.shape else x[()])
                call.foreign.append(x)
                call.takes.append(at)
            elif kind in PLAIN:
                key.append((kind, x))
            elif kind is float:
                if (None, at) in general:
                    key.append((FLOAT,))
                    arrays.append(np.float64(x))
                    call.takes.append(at)
                else:
                    key.append(_part(x))
            else:
                return self._structured(args, {}, numbers, general)
        call.leaves = args
        call.key = tuple(key)
        return call

    def _bound(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as the signature has them, with its defaults."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _structured(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        numbers: NumberSettings,
        general: set[Any],
    ) -> Call:
        """A Call of any arguments: containers are taken apart."""
        call = Call()
        leaves, structure = tree.flatten((args, kwargs), none_is_leaf=True)
        if kwargs or len(leaves) != len(args) or structure != _flat(len(args)):
            call.structure = structure
        names = _LeafNames(self, call.structure)
        modes = self._modes(args, kwargs)
        key: list[Any] = [numbers]
        variables: dict[int, int] = {}
        found: list[Any] = []
        for at, leaf in enumerate(leaves):
            mode = modes[at] if modes else None
            x = self._simplified(leaf, at, names, mode)
            found.append(x)
            if isinstance(x, Tensor):
                value = x._value
                key.append((value.dtype.num, value.shape, *_place(x)))
                call.arrays.append(value)
                call.takes.append(at)
            elif type(x) is np.ndarray:
                key.append((x.dtype.num, x.shape))
                call.arrays.append(x if x.shape else x[()])
                call.foreign.append(x)
                call.takes.append(at)
            elif type(x) is Variable:
                alias = variables.setdefault(id(x), len(variables))
                held = x._tensor._value
                kind = (VARIABLE, held.dtype.num, held.shape, x.trainable, alias)
                key.append((*kind, *_place(x._tensor)))
            elif isinstance(x, FLOATS) and _is_input(
                mode, (call.structure, at) in general
            ):
                key.append((FLOAT,) if type(x) is float else (FLOAT, type(x)))
                call.arrays.append(np.float64(x))
                call.takes.append(at)
            elif is_scalar(x) and mode != "static":
                key.append((SCALAR, type(x)))
                call.arrays.append(x)
                call.takes.append(at)
            else:
                key.append(_part(x))
                try:
                    hash(key[-1])
                except TypeError:
                    raise _unhashable(names[at], x) from None
        if call.structure is not None:
            key.append(call.structure)
        call.leaves = found
        call.key = tuple(key)
        return call

    def check_hashable(
        self, leaves: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse what a call from outside would refuse, of a call inside a trace."""
        for x in leaves:
            if type(x).__hash__ is None and not isinstance(x, (Tensor, Variable)):
                bound = self.signature.bind(*args, **kwargs)
                bound.apply_defaults()
                whole = (bound.args, bound.kwargs)
                given, structure = tree.flatten(whole, none_is_leaf=True)
                at = next(at for at, y in enumerate(given) if y is x)
                raise _unhashable(_LeafNames(self, structure)[at], x)

    def _modes(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[str | None] | None:
        """Per leaf "static" or "dynamic", where the decorator says so."""
        if not (self.static or self.dynamic):
            return None
        modes: list[str | None] = []
        given = [*zip(self.names, args, strict=False)]
        given += [("", x) for x in args[len(self.names) :]]
        given += [(name, kwargs[name]) for name in _sorted_names(kwargs)]
        for name, x in given:
            mode = None
            if name in self.static:
                mode = "static"
            elif name in self.dynamic:
                mode = "dynamic"
            modes += [mode] * len(tree.flatten(x, none_is_leaf=True)[0])
        return modes

    def _simplified(self, x: Any, at: int, names: _LeafNames, mode: str | None) -> Any:
        """A leaf as a Tensor, an array, a Variable, or a value to be hashed."""
        if isinstance(x, Tensor) or type(x) is Variable:
            if isinstance(x, TracedTensor):
                raise leaked(x, self.name)
            if mode == "static":
                raise ArgumentTypeError(
                    f"{names[at]} is a tensor and cannot be static",
                    help="only values that can be hashed select a trace",
                )
            return x
        if type(x) is np.ndarray and is_usable(x):
            return x
        if mode == "dynamic" and isinstance(x, (bool, int, complex)):
            return as_operand(x, self.name)
        if isinstance(x, np.floating):
            return x if DTYPES.get(x.dtype.num) is x.dtype else float(x)
        if isinstance(x, (str, bytes, bool, int, float, complex, type(None))):
            return x
        if isinstance(x, type):
            return x  # np.float64 has the methods of its instances
        if is_scalar(x):
            return x
        if isinstance(x, np.generic) or hasattr(x, "__array__"):
            return as_operand(x, self.name)
        return x


class FastKey:
    """Arguments that are tensors, arrays, plain values, and containers of such.

    key      what selects the Path; simpler than `Call.key`
    taken    the inputs, with Tensors for floats; `places` says which leaves these are
    leaves   all leaves, in the order of `Call.leaves`
    names    of the last leaves, if they have no positions
    is_flat  whether each argument is a leaf
    """

    __slots__ = ("_parts", "is_flat", "key", "leaves", "names", "places", "taken")

    def __init__(self, numbers: NumberSettings) -> None:
        self.key: tuple[Any, ...] = ()
        self._parts: list[Any] = [numbers]
        self.taken: list[Any] = []
        self.places: list[int] = []
        self.leaves: list[Any] = []
        self.names: Sequence[str] = ()
        self.is_flat = True

    @property
    def arrays(self) -> list[Any]:
        """The values of the inputs."""
        return [
            x._value if isinstance(x, Tensor) else x if x.shape else x[()]
            for x in self.taken
        ]

    @property
    def foreign(self) -> list[Any]:
        """The arrays whose memory belongs to somebody else."""
        return [x for x in self.taken if type(x) is np.ndarray]

    def add(self, values: Iterable[Any], floats: set[int], depth: int = 0) -> bool:
        """Add arguments, or parts of one; False if there is no short way for one.

        `floats` are the leaves that are inputs if they are floats.
        """
        key, leaves = self._parts, self.leaves
        for x in values:
            kind = type(x)
            if kind is Tensor or kind is np.ndarray:
                value = x._value if kind is Tensor else x
                dtype = value.dtype
                if kind is np.ndarray and DTYPES.get(dtype.num) is not dtype:
                    return False
                key += (dtype.num, value.shape)
                self.places.append(len(leaves))
                self.taken.append(x)
                leaves.append(x)
                continue
            if kind is tuple or kind is list or kind is dict:
                self.is_flat = False
                if depth == MAX_DEPTH or not self.add_parts(x, floats, depth + 1):
                    return False
                continue
            if kind is float and len(leaves) in floats:
                key.append(FLOAT)
                self.places.append(len(leaves))
                self.taken.append(Tensor(np.float64(x)))
            elif kind in PLAIN or (kind is float and x == x and x):
                key += (kind, x)
            elif kind is float:
                key += (kind, repr(x))  # as `_part` has it
            elif kind is DeviceTensor:
                value = x._value
                key += (value.dtype.num, value.shape, *_place(x))
                self.places.append(len(leaves))
                self.taken.append(x)
            else:
                return False
            leaves.append(x)
        return True

    def add_parts(self, x: Any, floats: set[int], depth: int) -> bool:
        """Add what is in a container."""
        if type(x) is dict:
            for name in x:  # a generator would cost 0.3 µs
                if type(name) is not str:
                    return False
            names = sorted(x)
            self._parts += (dict, *names, dict)
            x = [x[name] for name in names]
        else:
            self._parts += (type(x), len(x))
        return self.add(x, floats, depth)

    def add_named(self, named: dict[str, Any], floats: set[int]) -> bool:
        """Add arguments that have names, the last ones; in the order of leaves."""
        self.names = sorted(named)
        self._parts += (dict, *self.names, dict)
        return self.add([named[name] for name in self.names], floats)


def short_call(
    binder: Binder,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    numbers: NumberSettings,
    floats: set[int],
) -> FastKey | None:
    """The short way of a call, if there is one."""
    given: Sequence[Any] = args
    named: dict[str, Any] | None = None
    if kwargs or binder.has_names:
        laid_out = binder.laid_out(args, kwargs)
        if laid_out is None:
            return None
        given, named = laid_out
    call = FastKey(numbers)
    if not call.add(given, floats):
        return None
    if named is not None and not call.add_named(named, floats):
        return None
    call.key = tuple(call._parts)
    return call


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """How a function is called; some written in C do not say, or not truly."""
    try:
        if not isinstance(function, np.ufunc):
            return inspect.signature(function)
    except ValueError:
        pass
    return inspect.signature(lambda *args, **kwargs: None)


def _is_input(mode: str | None, is_general: bool) -> bool:
    """Whether a float is an input of the Graph rather than part of the key."""
    return mode == "dynamic" or (mode is None and is_general)


def _sorted_names(kwargs: dict[str, Any]) -> list[str]:
    return sorted(kwargs)


_FLAT: dict[int, tree.Structure] = {}


def _flat(count: int) -> tree.Structure:
    """The structure of `count` leaves by position."""
    if count not in _FLAT:
        _FLAT[count] = tree.flatten(((0,) * count, {}))[1]
    return _FLAT[count]


def _part(x: Any) -> Any:
    """The part of a key for a value: equal values of one type have equal parts."""
    if isinstance(x, complex) or (isinstance(x, FLOATS) and (x != x or not x)):
        return (type(x), repr(x))  # nan equals nothing, 0.0 equals -0.0
    return (type(x), x)


def _unhashable(name: str, x: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{name} is a {type(x).__name__}, which cannot be hashed, so a trace for it "
        "could not be found again",
        help="pass tensors, numbers and hashable values; keep other objects in a "
        "closure or give their class __hash__ and __eq__",
    )


class _LeafNames:
    """What messages call a leaf: `x`, or `params['w']`; made when asked."""

    def __init__(self, binder: Binder, structure: tree.Structure | None) -> None:
        self.binder = binder
        self.structure = structure

    def __getitem__(self, at: int) -> str:
        if self.structure is None:
            return self._by_position(at, "")
        path = self.structure.paths()[at]  # [0][position]... or [1]['name']...
        which, first, rest = path[:3], *path[3:].partition("]")[::2]
        if which == "[1]":
            return f"argument {first[2:-1]}{rest}"
        return self._by_position(int(first[1:]), rest)

    def _by_position(self, position: int, rest: str) -> str:
        names = self.binder.names
        if position < len(names):
            return f"argument {names[position]}{rest}"
        return f"argument number {position + 1}{rest}"  # one of *args


def leaf_names(binder: Binder, structure: tree.Structure | None) -> _LeafNames:
    """What messages call the leaves of a call."""
    return _LeafNames(binder, structure)


def _place(x: Tensor) -> tuple[str, ...]:
    """The part of a key for where a tensor is: nothing for the CPU."""
    return (x._value.device.name,) if type(x) is DeviceTensor else ()


def places_in(key: Any) -> list[str]:
    """The devices of the tensors and variables in a key, but for the CPU."""
    found: list[str] = []
    for part in split_key(key)[0]:
        if is_tensor_part(part):
            found += part[2:]
        elif isinstance(part, tuple) and part and part[0] == VARIABLE:
            found += part[5:]
    return found


def is_tensor_part(part: Any) -> bool:
    """Whether this part of a key is a tensor's: (number of the dtype, shape).

    One of a device has its name behind them.
    """
    return isinstance(part, tuple) and len(part) in (2, 3) and type(part[0]) is int


def is_float_part(part: Any) -> bool:
    """Whether this part of a key is a float's, Python's or NumPy's."""
    if not isinstance(part, tuple):
        return False
    kind = part[0]
    return kind is FLOAT or (isinstance(kind, type) and issubclass(kind, FLOATS))


def describe_part(part: Any) -> str:
    """One part of a key, as messages show it."""
    if isinstance(part, tuple) and part and isinstance(part[0], int):
        dtype = DTYPES.get(part[0]) or _other_dtype(part[0])
        return " on ".join([str(TensorType(dtype, part[1])), *part[2:]])
    if isinstance(part, tuple) and part and part[0] == VARIABLE:
        kind = DTYPES.get(part[1]) or _other_dtype(part[1])
        return " on ".join([f"variable {TensorType(kind, part[2])}", *part[5:]])
    if isinstance(part, tuple) and part and part[0] in (FLOAT, SCALAR):
        return f"any {part[-1].__name__}" if len(part) == 2 else "any float"
    if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], type):
        kind, value = part
        shown = repr(value) if not isinstance(value, str) or kind is str else value
        return f"{kind.__name__} {shown}" if kind is not str else shown
    return str(part)


def _other_dtype(number: int) -> DType:
    return as_dtype("bfloat16")


def describe_key(binder: Binder, key: Any) -> str:
    """`(x: f32[8,4], training: bool True)`, as `signatures()` shows it."""
    parts, structure = split_key(key)
    names = _LeafNames(binder, structure)
    texts = [
        f"{names[at].removeprefix('argument ')}: {describe_part(part)}"
        for at, part in enumerate(parts)
    ]
    return f"({', '.join(texts)})"


def split_key(key: Any) -> tuple[tuple[Any, ...], tree.Structure | None]:
    """The parts of a key, one per leaf, and its structure."""
    if isinstance(key[-1], tree.Structure):
        return key[1:-1], key[-1]
    return key[1:], None


def difference(binder: Binder, new: Any, old: Any) -> list[str]:
    """What changed between two keys, one line per leaf."""
    parts, structure = split_key(new)
    before, other = split_key(old)
    if structure != other or len(parts) != len(before):
        return ["the structure of the arguments"]
    names = _LeafNames(binder, structure)
    lines = [
        f"{names[at]}: now {describe_part(now)}, before {describe_part(then)}"
        for at, (now, then) in enumerate(zip(parts, before, strict=True))
        if now != then
    ]
    for label, now, then in zip(NumberSettings._fields, new[0], old[0], strict=True):
        if now != then:
            lines.append(f"the {label.replace('_', ' ')}: now {now}, before {then}")
    return lines
